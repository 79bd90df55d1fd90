"""The audit finds what was built in, reads what is there, and leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mahalens
from mahalens import Gaussian, InputError
from mahalens.nn import Abs


def sample(gaussian: Gaussian, count: int, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(count, gaussian.dim, generator=torch.Generator().manual_seed(seed)).double()
    return gaussian.mean + noise @ gaussian.factor.T


@pytest.fixture(scope="module")
def gaussian() -> Gaussian:
    draw = torch.Generator().manual_seed(3)
    root = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    mean = torch.randn(6, generator=draw, dtype=torch.float64)
    return Gaussian.from_covariance(mean, root @ root.T + 0.1 * torch.eye(6).double())


def two_layers(rows: torch.Tensor, bias: torch.Tensor, activation: nn.Module) -> nn.Sequential:
    """Rows, an activation, and a second layer that sums the units."""
    first = nn.Linear(rows.shape[1], len(rows)).to(rows.dtype)
    second = nn.Linear(len(rows), 2).to(rows.dtype)
    with torch.no_grad():
        first.weight.copy_(rows)
        first.bias.copy_(bias)
    return nn.Sequential(first, activation, second)


class TestBuiltIn:
    def test_the_ground_truth_of_the_gaussian_study_whitens_through_the_mean(self, gaussian):
        x = sample(gaussian, 4000)
        fitted = Gaussian.from_covariance(x.mean(0), torch.cov(x.T, correction=0))
        rows = torch.linalg.inv(fitted.factor)
        # Six units cannot tell this layer from an untrained one, of which most pass as well.
        record = mahalens.audit(two_layers(rows, -rows @ fitted.mean, Abs()), x, baseline=None)
        layer = record.layers[0]
        assert layer.activation == "abs"
        assert layer.whitening.sphericity < 1e-2
        assert layer.whitening.precision_error < 1e-2
        assert layer.whitening.precision_scale == pytest.approx(1, abs=1e-2)
        assert layer.hyperplanes.mean_spreads.abs().max() < 1e-6
        assert layer.hyperplanes.through.all()
        assert layer.pairs.mirrored == layer.pairs.duplicate == layer.pairs.parallel == ()
        assert layer.verdict.word == "distance-like"
        assert layer.verdict.share == 1

    def test_the_true_gaussian_is_met_within_the_error_of_its_sample(self, gaussian):
        rows = torch.linalg.inv(gaussian.factor)
        network = two_layers(rows, -rows @ gaussian.mean, Abs())
        layer = mahalens.audit(network, sample(gaussian, 20_000)).layers[0]
        # Entries of the sample's covariance of a whitened Gaussian err by about 1 / sqrt(N).
        assert layer.whitening.sphericity < 3 * (6 * 7 / 20_000) ** 0.5
        assert layer.hyperplanes.mean_spreads.abs().max() < 4 / 20_000**0.5

    def test_every_exact_relu_pair_is_found(self, gaussian):
        x = sample(gaussian, 500).float()
        rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
        bias = torch.randn(40, generator=torch.Generator().manual_seed(2))
        order = torch.randperm(80, generator=torch.Generator().manual_seed(5))
        both, offsets = torch.cat([rows, -rows])[order], torch.cat([bias, -bias])[order]
        layer = mahalens.audit(two_layers(both, offsets, nn.ReLU()), x).layers[0]
        place = torch.argsort(order)
        expected = {tuple(sorted((int(place[i]), int(place[i + 40])))) for i in range(40)}
        assert set(layer.pairs.mirrored) == expected
        assert len(layer.pairs.kept) == 40

    def test_planted_units_are_found_and_no_others(self):
        x = torch.rand(300, 4, generator=torch.Generator().manual_seed(0))
        rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(7))
        bias = -(rows * x.mean(0)).sum(1)
        bias[3] = -100  # never active
        rows[5], bias[5] = rows[1], bias[1]  # a copy
        rows[9], bias[9] = 0, 2.0  # the same on every input
        layer = mahalens.audit(two_layers(rows, bias, nn.ReLU()), x).layers[0]
        assert layer.units.dead == (3,)
        assert layer.pairs.duplicate == ((1, 5),)
        assert layer.units.saturated == (9,)
        assert layer.units.always == (9,)
        assert layer.units.rare == {"0.05": (3,), "0.01": (3,)}

    def test_planted_saturated_sigmoids(self):
        x = torch.rand(300, 4, generator=torch.Generator().manual_seed(0))
        rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(7))
        bias = -(rows * x.mean(0)).sum(1)
        bias[2], bias[4] = 50.0, -12.0
        layer = mahalens.audit(two_layers(rows, bias, nn.Sigmoid()), x).layers[0]
        assert layer.units.saturated == (2, 4)
        assert layer.units.flat[2] == layer.units.flat[4] == 1
        assert layer.units.flat[[0, 1, 3, 5]].max() < 0.05

    def test_rare_units_at_both_thresholds(self):
        x = torch.arange(1000.0)[:, None]
        network = two_layers(
            torch.ones(4, 1), torch.tensor([-995.5, -960.5, -900.5, 1.0]), nn.ReLU()
        )
        layer = mahalens.audit(network, x).layers[0]
        assert layer.units.active.tolist() == [0.004, 0.039, 0.099, 1.0]
        assert layer.units.rare == {"0.05": (0, 1), "0.01": (0,)}
        custom = mahalens.audit(network, x, rare=(0.5,)).layers[0]
        assert custom.units.rare == {"0.5": (0, 1, 2)}

    def test_inputs_that_no_unit_answers(self):
        x = torch.tensor([[-1.0], [2.0], [-3.0], [4.0]])
        layer = mahalens.audit(
            two_layers(torch.ones(2, 1), torch.zeros(2), nn.ReLU()), (x, torch.tensor([0, 0, 1, 1]))
        ).layers[0]
        assert layer.units.silent_share == 0.5
        assert layer.units.silent_samples == (0, 2)
        assert layer.units.silent_by_class.tolist() == [0.5, 0.5]


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
    x = torch.randn(211, 5)
    y = torch.randint(0, 3, (211,))
    z = network[0](x).detach().double()
    return network, x, y, z, mahalens.audit(network, (x, y), batch_size=32)


class TestReadings:
    def test_moments_are_those_of_the_whole(self, case):
        _, _, y, z, record = case
        units = record.layers[0].units
        centred = z - z.mean(0)
        assert torch.allclose(units.mean, z.mean(0), atol=1e-5)
        assert torch.allclose(units.std, z.std(0, correction=0), atol=1e-5)
        skewness = (centred**3).mean(0) / z.std(0, correction=0) ** 3
        assert torch.allclose(units.skewness, skewness, atol=1e-4)
        assert torch.equal(units.least, z.amin(0))
        assert torch.equal(units.greatest, z.amax(0))
        levels = torch.tensor(record.settings.quantiles).double()
        assert torch.allclose(units.quantiles, torch.quantile(z, levels, dim=0).T, atol=1e-5)
        for label in range(3):
            own = z[y == label]
            assert torch.allclose(units.class_mean[label], own.mean(0), atol=1e-5)
            assert torch.allclose(units.class_std[label], own.std(0, correction=0), atol=1e-5)
            expected = torch.quantile(own, levels, dim=0).T
            assert torch.allclose(units.class_quantiles[label], expected, atol=1e-5)

    def test_distances_in_input_units_and_spreads(self, case):
        network, x, y, _, record = case
        planes = record.layers[0].hyperplanes
        weight, bias = network[0].weight.detach().double(), network[0].bias.detach().double()
        for label in range(3):
            mean = x[y == label].double().mean(0)
            expected = (weight @ mean + bias) / weight.norm(dim=1)
            assert torch.allclose(planes.class_distance[label], expected, atol=1e-5)
        along = (x.double() @ (weight / weight.norm(dim=1, keepdim=True)).T).std(0, correction=0)
        assert torch.allclose(planes.mean_spreads, planes.mean_distance / along, atol=1e-4)

    def test_prototypes_are_the_nearest_and_the_most_active(self, case):
        network, _, _, z, record = case
        found = record.layers[0].prototypes
        length = network[0].weight.detach().double().norm(dim=1)
        for unit in range(7):
            order = z[:, unit].abs().argsort()[:8]
            assert found.near_sample[unit].tolist() == order.tolist()
            expected = z[order, unit].abs() / length[unit]
            assert torch.allclose(found.near_distance[unit], expected, atol=1e-5)
            order = z[:, unit].argsort(descending=True)[:8]
            assert found.active_sample[unit].tolist() == order.tolist()
            expected = nn.functional.gelu(z[order, unit])
            assert torch.allclose(found.active_value[unit], expected, atol=1e-5)

    def test_histograms_count_every_kept_row_by_class(self, case):
        _, _, y, z, record = case
        found = record.layers[0].histograms
        assert found.counts.sum(2).tolist() == [torch.bincount(y).tolist()] * 7
        for unit in (0, 6):
            for label in range(3):
                edges = found.edges[unit].numpy()
                counts, _ = np.histogram(z[y == label, unit].numpy(), edges)
                assert abs(found.counts[unit, label].numpy() - counts).sum() <= 2  # rounding

    def test_batches_do_not_matter(self, case):
        network, x, y, _, record = case
        whole = mahalens.audit(network, (x, y), batch_size=1000)
        loaded = mahalens.audit(network, DataLoader(TensorDataset(x, y), batch_size=7))
        for other in (whole, loaded):
            for a, b in zip(record.layers, other.layers, strict=True):
                assert torch.allclose(a.units.std, b.units.std, atol=1e-6)
                assert torch.allclose(a.units.class_mean, b.units.class_mean, atol=1e-6)
                assert torch.equal(a.prototypes.near_sample, b.prototypes.near_sample)
                assert a.verdict.word == b.verdict.word
                assert a.whitening.sphericity == pytest.approx(b.whitening.sphericity, rel=1e-5)
        assert record.accuracy == whole.accuracy == loaded.accuracy

    def test_accuracy_and_examples(self, case):
        network, x, y, _, record = case
        assert record.accuracy == int((network(x).argmax(1) == y).sum()) / 211
        assert torch.equal(record.examples, x[record.example_samples])
        assert torch.equal(record.example_labels, y[record.example_samples])

    def test_a_shuffled_loader_gives_its_examples_as_it_gave_them_before(self, case):
        network, x, y, _, _ = case
        loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
        record = mahalens.audit(network, loader)
        prototypes = record.layers[0].prototypes
        place = {int(n): i for i, n in enumerate(record.example_samples)}
        best = record.examples[[place[int(n)] for n in prototypes.near_sample[:, 0]]]
        values = network[0](best).diagonal().abs() / network[0].weight.norm(dim=1)
        assert torch.allclose(values.double(), prototypes.near_distance[:, 0], atol=1e-5)

    def test_kept_rows_stand_for_all(self):
        network = two_layers(torch.ones(1, 1), torch.zeros(1), nn.ReLU())
        x = torch.arange(20_000.0)[:, None] - 10_000
        record = mahalens.audit(network, x, rows_kept=2000, batch_size=300)
        layer = record.layers[0]
        assert layer.rows == 20_000
        assert int(layer.histograms.counts.sum()) == 2000
        assert abs(float(layer.units.quantiles[0, 3])) < 4 * 10_000 * 1.25 / 2000**0.5
        assert "2,000 rows drawn at random from 20,000" in layer.notes[0]

    def test_clusters_take_the_place_of_labels(self):
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(400, 2, generator=draw) + 20 * (torch.arange(400) % 3)[:, None]
        network = two_layers(torch.tensor([[1.0, 0.0]]), torch.tensor([-20.0]), Abs())
        record = mahalens.audit(network, x, clusters=3)
        assert record.data.labels == "clusters"
        assert sorted(record.data.counts) == [133, 133, 134]
        assert record.layers[0].hyperplanes.through.all()
        assert record.accuracy is None

    def test_batch_norm_is_folded_in(self):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
        for _ in range(20):
            network(3 * torch.randn(64, 4) + 1)
        x = 3 * torch.randn(300, 4) + 1
        layer = mahalens.audit(network, x).layers[0]
        z = network[:2].eval()(x).detach().double()
        assert layer.folded == "BatchNorm"
        assert torch.allclose(layer.units.mean, z.mean(0), atol=1e-4)
        norm, linear = network[1], network[0]
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        rows = (linear.weight * scale[:, None]).detach().double()
        assert torch.allclose(layer.hyperplanes.length, rows.norm(dim=1), atol=1e-6)


class TestConvolutions:
    @pytest.mark.parametrize(
        "layer",
        [
            nn.Conv2d(2, 3, 3, padding=1),
            nn.Conv2d(2, 3, (3, 2), stride=2, dilation=(1, 2), padding=(2, 1)),
            nn.Conv2d(2, 3, (3, 5), padding="same"),
        ],
        ids=["plain", "strided", "same"],
    )
    def test_patches_are_the_rows(self, layer):
        torch.manual_seed(0)
        x = torch.randn(6, 2, 9, 8)
        network = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
        network(x)
        record = mahalens.audit(network, x, patches=1000, batch_size=4).layers[0]
        z = layer(x).detach().movedim(1, -1)
        assert record.positions == z[0, ..., 0].numel()
        assert record.rows == z[..., 0].numel()
        assert torch.allclose(record.units.mean, z.flatten(0, 2).mean(0).double(), atol=1e-5)
        # Outputs have the covariance W Σ Wᵀ with Σ that of the patches.
        spectrum = torch.linalg.eigvalsh(torch.cov(z.flatten(0, 2).double().T, correction=0))
        assert torch.allclose(record.whitening.output_spectrum, spectrum.flip(0), rtol=0.05)

    def test_a_sample_is_a_prototype_once(self):
        x = torch.zeros(5, 1, 4, 4)
        x[2] = 1.0
        network = nn.Sequential(nn.Conv2d(1, 1, 2, bias=False), nn.ReLU())
        with torch.no_grad():
            network[0].weight.fill_(1.0)
        found = mahalens.audit(network, x, prototypes=3).layers[0].prototypes
        assert len(set(found.near_sample[0].tolist()) - {2}) == 3
        assert found.active_sample[0, 0] == 2


class TestNoTrace:
    def state(self, network, generator):
        return (
            {key: value.clone() for key, value in network.state_dict().items()},
            [module.training for module in network.modules()],
            [len(module._forward_hooks) for module in network.modules()],
            len(torch.nn.modules.module._global_forward_hooks),
            torch.random.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            generator.get_state().tolist(),
            [p.grad is None for p in network.parameters()],
            [p.requires_grad for p in network.parameters()],
        )

    @pytest.mark.parametrize("fails", [False, True])
    def test_nothing_of_the_model_or_the_random_state_changes(self, fails):
        class Moody(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 4)
                self.norm = nn.BatchNorm1d(4)
                self.register_buffer("count", torch.zeros(1))

            def forward(self, x):
                self.count += 1
                if fails and self.count > 4:
                    raise ValueError("too many calls\nfor me")
                random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
                return nn.functional.dropout(
                    self.norm(self.layer(x)).relu(), training=self.training
                )

        network = Moody().train()
        network.norm.eval()
        network.layer.bias.requires_grad_(False)
        generator = torch.Generator().manual_seed(4)
        data = DataLoader(
            TensorDataset(torch.randn(30, 3), torch.arange(30) % 4),
            batch_size=4, shuffle=True, generator=generator,
        )  # fmt: skip
        before = self.state(network, generator)
        if fails:
            with pytest.raises(InputError, match="too many calls for me"):
                mahalens.audit(network, data)
        else:
            mahalens.audit(network, data)
        after = self.state(network, generator)
        assert all(torch.equal(before[0][key], after[0][key]) for key in before[0])
        assert before[1:] == after[1:]


class TestPerturbation:
    def test_it_is_what_a_network_with_the_perturbation_built_in_says(self):
        from mahalens.auditing.perturbation import TABLE_LEVELS, level_key, perturb

        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        x = torch.randn(200, 4)
        y = network(x).argmax(1)
        reading = (
            mahalens.audit(network, (x, y), perturb=True, batch_size=64).layers[0].perturbation
        )
        z = network[0](x).detach()
        low, high = z.relu().amin(0), z.relu().amax(0)
        assert reading.baseline == 1
        for kind, levels in TABLE_LEVELS.items():
            for level in levels:
                changed = network[2](perturb(z, low, high, kind, level).relu()).argmax(1)
                expected = float((changed == y).float().mean())
                assert getattr(reading, kind)[level_key(level)] == pytest.approx(expected)

    def test_it_needs_labels(self):
        network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        with pytest.raises(InputError, match="needs labels"):
            mahalens.audit(network, torch.randn(9, 4), perturb=True)


class TestBadInput:
    network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (torch.zeros(0, 3), "no samples"),
            ((torch.zeros(4, 3), torch.zeros(5).long()), "4 samples and y 5 labels"),
            (torch.tensor([[1.0, 2.0, torch.nan]]), "NaN or infinite values, first in sample 0"),
            (torch.zeros(4, 7), "fails on the data, a batch of shape .*4, 7"),
            ((x for x in [torch.zeros(4, 3)]), "used up after one pass"),
            ("digits", "the data is a str"),
            ([], "no samples"),
            ((torch.zeros(4, 3), -torch.ones(4).long()), "label -1"),
        ],
    )
    def test_data(self, data, message):
        with pytest.raises(InputError, match=message) as caught:
            mahalens.audit(self.network, data)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rare": 2.0}, "shares between 0 and 1"),
            ({"bins": 0}, "bins is 0"),
            ({"colour": 1}, "no option 'colour'"),
            ({"clusters": 1}, "clusters is 1"),
            ({"batch_size": 0}, "batch_size is 0"),
            ({"layers": ["nine"]}, "no layer 'nine'"),
            ({"tolerance": -1}, "tolerance is -1"),
            ({"clusters": 9}, "has 4 samples"),
            ({"nodes": [1, 2]}, "unit 2, but no layer has one; the widest has 2"),
            ({"nodes": {"nine": [1]}}, "layer 'nine'"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises(InputError, match=message):
            mahalens.audit(self.network, torch.zeros(4, 3), **options)

    def test_models(self):
        with pytest.raises(InputError, match="the model is a function"):
            mahalens.audit(lambda x: x, torch.zeros(4, 3))
        with pytest.raises(InputError, match="no Linear and no convolution"):
            mahalens.audit(nn.ReLU(), torch.zeros(4, 3))
        with pytest.raises(InputError, match="looks up rows"):
            mahalens.audit(nn.Embedding(4, 2), torch.zeros(4, 3).long())

    def test_classes_must_cover_the_labels(self):
        with pytest.raises(InputError, match="label 2, but classes names only 2"):
            mahalens.audit(self.network, (torch.zeros(3, 3), torch.arange(3)), classes=["a", "b"])
