"""The audit finds what was built in, reads what is there, and refuses what it cannot read."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from twin import assert_read

import mahalens
from mahalens import Gaussian, InputError
from mahalens.auditing.perturb import TABLE_LEVELS, level_key, perturb
from mahalens.nn import Abs, DistanceHead, Mahalanobis, Norm, OffsetL2, PointSlope
from mahalens.report.audit.folder import write_audit


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sample(gaussian: Gaussian, count: int) -> torch.Tensor:
    return gaussian.mean + drawn(count, gaussian.dim).double() @ gaussian.factor.T


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
        assert (layer.verdict.word, layer.verdict.share) == ("distance-like", 1)
        # The true Gaussian is met within the error of its sample, about 1 / sqrt(N) by entry.
        rows = torch.linalg.inv(gaussian.factor)
        network = two_layers(rows, -rows @ gaussian.mean, Abs())
        # Batches are so small that the baseline draws no sample from some.
        layer = mahalens.audit(network, x, batch_size=16).layers[0]
        assert layer.whitening.sphericity < 3 * (6 * 7 / 4000) ** 0.5
        assert layer.hyperplanes.mean_spreads.abs().max() < 4 / 4000**0.5

    def test_every_exact_relu_pair_is_found(self, gaussian):
        rows, bias = drawn(40, 6, seed=1), drawn(40, seed=2)
        order = torch.randperm(80, generator=torch.Generator().manual_seed(5))
        both, offsets = torch.cat([rows, -rows])[order], torch.cat([bias, -bias])[order]
        network = two_layers(both, offsets, nn.ReLU())
        layer = mahalens.audit(network, sample(gaussian, 500).float()).layers[0]
        place = torch.argsort(order)
        expected = {tuple(sorted((int(place[i]), int(place[i + 40])))) for i in range(40)}
        assert set(layer.pairs.mirrored) == expected
        assert len(layer.pairs.kept) == 40

    def test_planted_units_are_found_and_no_others(self):
        x, rows = drawn(300, 4).sigmoid(), drawn(12, 4, seed=7)
        bias = -(rows * x.mean(0)).sum(1)
        bias[3] = -100  # never active
        rows[5], bias[5] = rows[1], bias[1]  # a copy
        rows[9], bias[9] = 0, 2.0  # the same on every input
        units = mahalens.audit(two_layers(rows, bias, nn.ReLU()), x).layers[0].units
        assert (units.dead, units.saturated, units.always) == ((3,), (9,), (9,))
        assert units.rare == {"0.05": (3,), "0.01": (3,)}
        bias[2], bias[4] = 50.0, -12.0
        units = mahalens.audit(two_layers(rows[:6], bias[:6], nn.Sigmoid()), x).layers[0].units
        assert (units.dead, units.saturated) == ((3,), (2, 4))
        assert units.flat[[2, 3, 4]].tolist() == [1, 1, 1]
        assert units.flat[[0, 1, 5]].max() < 0.05

    def test_rare_units_at_both_thresholds(self):
        x = torch.arange(1000.0)[:, None]
        bias = torch.tensor([-995.5, -960.5, -900.5, 1.0])
        network = two_layers(torch.ones(4, 1), bias, nn.ReLU())
        units = mahalens.audit(network, x).layers[0].units
        assert units.active.tolist() == [0.004, 0.039, 0.099, 1.0]
        assert units.rare == {"0.05": (0, 1), "0.01": (0,)}
        assert mahalens.audit(network, x, rare=0.5).layers[0].units.rare == {"0.5": (0, 1, 2)}

    def test_inputs_that_no_unit_answers(self):
        x, y = torch.tensor([[-1.0], [2.0], [-3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
        network = two_layers(torch.ones(2, 1), torch.zeros(2), nn.ReLU())
        units = mahalens.audit(network, (x, y)).layers[0].units
        assert (units.silent_share, units.silent_samples) == (0.5, (0, 2))
        assert units.silent_by_class.tolist() == [0.5, 0.5]

    def test_weights_that_are_no_numbers_are_the_headline(self):
        broken = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        broken[0].weight.data[:2] = torch.nan
        record = mahalens.audit(broken, drawn(30, 4))
        layer = record.layers[0]
        assert (layer.verdict.word, layer.units.dead) == ("broken", ())
        assert "2 give NaN or infinite values" in layer.verdict.reason
        assert "2 units gave NaN" in layer.notes[0]
        assert layer.units.mean.isnan().tolist() == [True, True, False]
        assert "2 of 3 units of layer 0 give no numbers" in record.verdict


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
    x, y = torch.randn(211, 5), torch.randint(0, 3, (211,))
    z = network[0](x).detach().double()
    return network, x, y, z, mahalens.audit(network, (x, y), batch_size=32)


class TestReadings:
    def test_moments_and_prototypes_are_those_of_the_whole(self, case):
        _, _, y, z, record = case
        layer = record.layers[0]
        assert_read(layer, list(z[:, None]), y, rtol=0, atol=1e-5)
        skewness = ((z - z.mean(0)) ** 3).mean(0) / z.std(0, correction=0) ** 3
        torch.testing.assert_close(layer.units.skewness, skewness, rtol=0, atol=1e-4)
        levels = torch.tensor(record.settings.quantiles).double()
        for got, rows in (
            (layer.units.quantiles, z),
            *((layer.units.class_quantiles[label], z[y == label]) for label in range(3)),
        ):
            wanted = torch.quantile(rows, levels, dim=0).T
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
        order = z.argsort(0, descending=True)[:8]
        assert torch.equal(layer.prototypes.active_sample, order.T)
        active = nn.functional.gelu(z.gather(0, order)).T
        torch.testing.assert_close(layer.prototypes.active_value, active, rtol=0, atol=1e-5)

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

    def test_histograms_count_every_kept_row_by_class(self, case):
        network, x, y, z, record = case
        found = record.layers[0].histograms
        assert found.counts.sum(2).tolist() == [torch.bincount(y).tolist()] * 7
        for unit, label in ((0, 0), (6, 1), (6, 2)):
            counts, _ = np.histogram(z[y == label, unit].numpy(), found.edges[unit].numpy())
            assert abs(found.counts[unit, label].numpy() - counts).sum() <= 2  # rounding
        some = mahalens.audit(network, (x, y), nodes={"0": [5, 2]}, baseline=None)
        assert some.layers[0].histograms.units == (5, 2)
        assert torch.equal(some.layers[0].histograms.counts, found.counts[[5, 2]])

    def test_numbers_may_be_those_of_numpy(self, case):
        network, x, y, *_ = case
        plain = {"nodes": [5, 2], "seed": 3, "clusters": 2, "batch_size": 50}
        numpy = {key: np.asarray(v) if key == "nodes" else np.int16(v) for key, v in plain.items()}
        one, other = (
            mahalens.audit(network, (x, y), baseline=None, **options) for options in (plain, numpy)
        )
        assert other.settings == one.settings
        assert other.layers[0].histograms.units == (5, 2)
        assert type(other.settings.seed) is int

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
        part = mahalens.audit(network, (x, y), batch_size=100, drop_last=True)
        assert part.data.samples == 200

    def test_accuracy_and_examples(self, case):
        network, x, y, _, record = case
        assert record.accuracy == int((network(x).argmax(1) == y).sum()) / 211
        assert torch.equal(record.examples, x[record.example_samples])
        assert torch.equal(record.example_labels, y[record.example_samples])
        least = mahalens.audit(network, (x, y), predict=lambda scores: scores.argmin(1))
        assert least.accuracy == float((network(x).argmin(1) == y).double().mean())

    def test_kept_rows_stand_for_all(self):
        network = two_layers(torch.ones(1, 1), torch.zeros(1), nn.ReLU())
        x = torch.arange(20_000.0)[:, None] - 10_000
        layer = mahalens.audit(network, x, rows_kept=2000, batch_size=300).layers[0]
        assert layer.rows == 20_000
        assert int(layer.histograms.counts.sum()) == 2000
        assert abs(float(layer.units.quantiles[0, 3])) < 4 * 10_000 * 1.25 / 2000**0.5
        assert "2,000 rows drawn at random from 20,000" in layer.notes[0]

    def test_wide_layers_are_read_from_their_outputs(self):
        torch.manual_seed(0)
        network, x = nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 8)), drawn(50, 9)
        first, last = mahalens.audit(network, x, widest=6).layers
        spectrum = torch.linalg.eigvalsh(torch.cov(network[0](x).detach().double().T, correction=0))
        torch.testing.assert_close(
            first.whitening.output_spectrum, spectrum.flip(0), rtol=1e-4, atol=1e-6
        )
        assert first.whitening.precision_error is None
        assert "whitening is read from the outputs alone, as it has 9 inputs" in first.notes[0]
        assert last.whitening.precision_error is not None
        (layer,) = mahalens.audit(nn.Linear(9, 8), x, widest=6).layers
        assert layer.whitening is None
        assert "whitening is not read, as it has 9 inputs and 8 units" in layer.notes[0]

    def test_perturbations_are_those_of_a_network_with_them_built_in(self):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        x = torch.randn(200, 4)
        y = network(x).argmax(1)
        record = mahalens.audit(network, (x, y), perturb=True, batch_size=64)
        reading = record.layers[0].perturbation
        z = network[0](x).detach()
        low, high = z.relu().amin(0), z.relu().amax(0)
        assert reading.baseline == 1
        for kind, levels in TABLE_LEVELS.items():
            for level in levels:
                changed = network[2](perturb(z, low, high, kind, level).relu()).argmax(1)
                expected = float((changed == y).float().mean())
                assert getattr(reading, kind)[level_key(level)] == pytest.approx(expected)


class TestFeatures:
    x, y = drawn(30, 4), torch.arange(30) % 3

    def test_features_are_read_as_the_layer_that_made_them(self):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        layer = mahalens.audit(network, (self.x, self.y)).layers[0]
        z, parts = network[0](self.x).detach(), dict(network[0].named_parameters())
        record = mahalens.audit_features(
            z, self.y, inputs=self.x, activation="relu", batch_size=7, **parts
        )
        found = record.layers[0]
        assert (record.data.counts, record.data.shape) == ((10, 10, 10), (6,))
        assert (found.kind, found.activation, found.inputs) == ("features", "relu", 4)
        assert (found.units.dead, found.pairs) == (layer.units.dead, layer.pairs)
        for part, name in (
            *(("units", "mean"), ("units", "class_std"), ("units", "active")),
            *(("hyperplanes", "class_distance"), ("whitening", "spectrum")),
        ):
            got, wanted = (getattr(getattr(of, part), name) for of in (found, layer))
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)

    def test_features_alone_have_units_and_outputs_only(self):
        z = drawn(20, 3, 5)  # positions
        layer = mahalens.audit_features(z).layers[0]
        assert (layer.rows, layer.positions, layer.inputs) == (60, 3, 0)
        assert (layer.hyperplanes, layer.pairs) == (None, None)
        assert layer.whitening.precision_error is None
        torch.testing.assert_close(layer.units.mean, z.mean((0, 1)).double(), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        ("features", "options", "message"),
        [
            (x.relu(), {"weight": torch.eye(4), "inputs": x}, "not weight times inputs plus bias"),
            (x, {"weight": torch.eye(4), "inputs": x[:9]}, "inputs has 9 samples but features"),
            (x, {"weight": torch.eye(4), "inputs": x[:, :2]}, r"give finite numbers \[N, 4\]"),
            (x, {"inputs": x}, "give weight too"),
            (x, {"weight": torch.eye(3)}, "3 rows but the features have 4 units"),
            (x, {"activation": "softmax"}, "activation is 'softmax'; give none or a function"),
            (x[0], {}, r"of shape \[4\]; give real numbers"),
            ([(x,), (x[:, :2],)], {}, "4 units at first but 2 from sample 30 on"),
            ([], {}, "there are no features"),
        ],
    )
    def test_features_that_do_not_fit_are_named(self, features, options, message):
        with pytest.raises(InputError, match=message):
            mahalens.audit_features(features, **options)


DISTANCE_LAYERS = {
    "OffsetL2": lambda: OffsetL2(5, 7),
    "published": lambda: OffsetL2(5, 7, variant="published-code"),
    "Mahalanobis": lambda: Mahalanobis(5, 4, 2),
    "shared": lambda: Mahalanobis(5, 4, 2, shared=True, remainder="diagonal"),
    "DistanceHead": lambda: DistanceHead(5, 3),
    "density": lambda: DistanceHead(5, 3, metric="low-rank", rank=2, logits="density"),
}


class TestDistanceLayers:
    labels = torch.arange(120) % 3
    x = drawn(120, 5) + labels[:, None]

    @pytest.mark.parametrize("name", DISTANCE_LAYERS)
    @pytest.mark.parametrize("inside", [False, True])
    def test_units_are_distances_without_hyperplanes(self, name, inside):
        torch.manual_seed(0)
        layer, x = DISTANCE_LAYERS[name](), self.x
        measured = layer.distances if isinstance(layer, DistanceHead) else layer
        model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), layer) if inside else layer
        heads = layer(x).shape[1] == 3
        record = mahalens.audit(model, (x, self.labels), batch_size=50, perturb=heads)
        found = record.layers[-1]
        distances = measured(model[:2](x) if inside else x).detach().double()
        assert (found.name, found.kind) == ("2" if inside else found.kind, type(layer).__name__)
        assert (found.units_count, found.inputs) == (distances.shape[1], 5)
        assert (found.activation, found.folded, found.feeds) == ("none", None, None)
        assert (found.hyperplanes, found.pairs, record.skipped) == (None, None, ())
        torch.testing.assert_close(found.units.mean, distances.mean(0), rtol=1e-4, atol=1e-5)
        near, wanted = found.prototypes, distances.sort(0).values[:8]
        for got in (near.near_distance.T, distances.gather(0, near.near_sample.T)):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        if inside:
            assert (record.layers[0].activation, record.layers[0].feeds) == ("relu", None)

    def test_points_and_slopes_are_linear_layers(self):
        torch.manual_seed(0)
        model = nn.Sequential(PointSlope(5, 6), nn.ReLU(), nn.Linear(6, 3))
        record = mahalens.audit(model, (self.x, self.labels))
        layer = record.layers[0]
        assert (layer.kind, layer.activation, layer.feeds) == ("PointSlope", "relu", "2")
        assert record.skipped == ()
        z = model[0](self.x).detach().double()
        torch.testing.assert_close(layer.units.mean, z.mean(0), rtol=1e-4, atol=1e-5)
        lengths = model[0].weight.detach().double().norm(dim=1)
        torch.testing.assert_close(layer.hyperplanes.length, lengths)

    def test_a_norm_at_the_end_leaves_the_activation_before_it(self):
        model = nn.Sequential(nn.Linear(5, 6), Abs(), Norm())
        assert mahalens.audit(model, self.x).layers[0].activation == "abs"

    def test_records_with_distances_are_written_and_prune_leaves_them(self, tmp_path):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), OffsetL2(8, 6), nn.Linear(6, 3)
        )
        record = mahalens.audit(model, (self.x, self.labels))
        write_audit(record, tmp_path / "audit")
        smaller = mahalens.prune(model, record, self.x)
        torch.testing.assert_close(smaller(self.x), model(self.x))


X, Y = drawn(20, 4), torch.arange(20) % 3


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rare": 2.0}, "shares between 0 and 1"),
            ({"bins": 0}, "bins is 0; give a whole number of at least 1"),
            ({"seed": -1}, "seed is -1"),
            ({"colour": 1}, "no option 'colour'"),
            ({"clusters": 1}, "clusters is 1"),
            ({"clusters": 99, "labelled": False}, "has 20 samples"),
            ({"batch_size": 0}, "batch_size is 0"),
            ({"batch_size": 2.5}, "batch_size is 2.5, wanted a whole number"),
            ({"layers": ["nine"]}, "no layer 'nine'"),
            ({"tolerance": -1}, "tolerance is -1"),
            ({"nodes": [1, 5]}, "unit 5, but no layer has one; the widest has 5"),
            ({"nodes": {"nine": [1]}}, "layer 'nine'"),
            ({"nodes": 3}, r"nodes is 3; give a list of units, such as \[3\]"),
            ({"image": (3, 3)}, r"image is \[3, 3\]; give"),
            ({"baseline": "fresh"}, "baseline is 'fresh'; give 'auto', None"),
            ({"classes": ["a", "b"]}, "label 2, but classes names only 2"),
            ({"labelled": False, "perturb": True}, "needs labels"),
            ({"predict": lambda output: output["a"]}, "predict fails on the model's output"),
            ({"predict": lambda output: output}, r"predict gives \[20, 3\]; give .* \[20\]"),
            ({"predict": lambda output: 7}, "predict gives int; give the classes"),
        ],
    )
    def test_options_are_refused_in_one_line(self, options, message):
        with pytest.raises(InputError, match=message) as caught:
            mahalens.audit(small(), (X, Y), **options)
        assert "\n" not in str(caught.value)

    def test_something_else_than_a_record_is_refused(self):
        model = small()
        record = mahalens.audit(model, (X, Y))
        with pytest.raises(InputError, match="the record is a int"):
            mahalens.prune(model, 3)
        with pytest.raises(InputError, match="the other record is a int"):
            record.diff(3)

    def test_a_saved_record_may_be_read_by_whom_any_new_file_may(self, tmp_path):
        mahalens.audit(small(), (X, Y)).save(tmp_path / "audit.safetensors")
        (tmp_path / "plain").touch()
        assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
