"""How a trial of the transfer study is split, trained and measured: beside the slow way."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from mahalens.data import load_set, stream
from mahalens.errors import InputError
from mahalens.nn import Abs, OffsetL2
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.samples import whole_set
from mahalens.studies.transfer import samples as sampling
from mahalens.studies.transfer.config import TransferConfig
from mahalens.studies.transfer.kernels import features_of, kernel_features
from mahalens.studies.transfer.measuring import jobs, measure
from mahalens.studies.transfer.models import chain_of
from mahalens.studies.transfer.samples import by_channel, check, folds_of, trial_samples
from mahalens.studies.transfer.training import milestones, seed_of, train
from mahalens.studies.transfer.warping import warped_distances
from mahalens.studies.transfer.yardsticks import nearest


def options(**changes):
    given = {"data": ["wine"], "trials": 2, "epochs": 20, **changes}
    rates = given.pop("rates", (0.003, 0.03))
    return replace(TransferConfig.with_defaults(**given), rates=rates, kernels=6)


@pytest.fixture
def series(tmp_path):
    """A set of the user: two channels of 12 steps, two classes that differ in where they peak."""
    rng = np.random.default_rng(0)
    for end, count in (("TRAIN", 16), ("TEST", 10)):
        lines = ["@classLabel true early late", "@data"]
        for number in range(count):
            noise = rng.normal(size=(2, 12))
            noise[0, 2 + 6 * (number % 2)] += 5
            channels = (",".join(f"{value:.4f}" for value in row) for row in noise)
            lines.append(":".join((*channels, ("early", "late")[number % 2])))
        (tmp_path / f"mine_{end}.ts").write_text("\n".join(lines))
    return str(tmp_path / "mine_TRAIN.ts")


class TestSamples:
    def test_a_trial_is_a_split_of_its_own_with_classes_as_they_were(self):
        config, whole = options(), load_set("wine")
        one, two = (trial_samples(config, "wine", trial) for trial in (0, 1))
        assert torch.bincount(one.y).equal(torch.bincount(whole.y))
        assert torch.bincount(two.test_y).equal(torch.bincount(whole.test_y))
        assert not one.test_x.equal(two.test_x)
        assert trial_samples(config, "wine", 0).x.equal(one.x)
        assert one.x.mean(0).abs().max() < 1e-6
        assert (one.x.std(0, correction=0) - 1).abs().max() < 1e-5

    def test_all_samples_are_used_once(self):
        config, whole = options(), load_set("iris")
        own = trial_samples(config, "iris", 3)
        order = torch.cat((own.y, own.test_y)).sort().values
        assert order.equal(torch.cat((whole.y, whole.test_y)).sort().values)
        train = sampling._drawn(whole.y, whole.test_y, stream(0, "split", 3))
        every = torch.cat((whole.x, whole.test_x)).double()
        mean, spread = every[train].mean(0), every[train].std(0, correction=0)
        assert torch.allclose(own.test_x.double(), (every[~train] - mean) / spread, atol=1e-5)

    def test_train_size_keeps_shares(self):
        own = trial_samples(options(train_size=30), "wine", 0)
        shares = torch.bincount(own.y) / 30
        whole = torch.bincount(load_set("wine").y) / 125
        assert len(own.y) == 30
        assert (shares - whole).abs().max() < 0.05

    def test_a_set_of_the_user_keeps_its_split_and_channels_their_scales(self, series):
        whole_set.cache_clear()
        own = trial_samples(options(data=[series]), series, 1)
        whole = load_set(series)
        assert own.y.equal(whole.y)
        assert own.image_shape == (2, 12)
        cube = whole.x.reshape(16, 2, 12).double()
        mean = cube.mean((0, 2), keepdim=True)
        spread = (cube - mean).square().mean((0, 2), keepdim=True).sqrt()
        assert torch.allclose(own.x.double(), ((cube - mean) / spread).flatten(1), atol=1e-5)
        other = whole.test_x.reshape(10, 2, 12).double()
        assert torch.allclose(
            by_channel(whole.x, whole.test_x, (2, 12))[1].double(),
            ((other - mean) / spread).flatten(1),
            atol=1e-5,
        )

    @pytest.mark.parametrize("count", [4, 37, 199, 200, 301])
    def test_folds(self, count):
        y = torch.arange(count) % 3
        folds = folds_of(y, torch.Generator().manual_seed(1))
        assert len(folds) == (4 if count < 200 else 1)
        for fold in folds:
            assert len(fold.held) == count // 4
            both = torch.cat((fold.fit, fold.held)).sort().values
            assert both.equal(torch.arange(count))
            assert (torch.bincount(y[fold.held], minlength=3) - count / 12).abs().max() < 2
        held = torch.cat([fold.held for fold in folds])
        assert len(held.unique()) == len(held)

    def test_too_few(self, series):
        with pytest.raises(InputError, match=r"^3 training samples; give at least 4$"):
            folds_of(torch.tensor([0, 1, 1]), torch.Generator())
        with pytest.raises(InputError, match="3 training samples; wanted at least 4, some to be"):
            check(options(data=[series], train_size=3))

    def test_facts(self, series):
        facts = check(options(data=["wine", series]))
        assert facts["wine"]["source"].endswith("load_wine, split anew by every trial")
        assert facts["mine_TRAIN"]["channels"] == 2
        assert facts["mine_TRAIN"]["steps"] == 12
        assert facts["mine_TRAIN"]["source"] == series


def slow_train(config, model, trial):
    """One trial as a plain module by torch's own optimiser: choose, then train on all samples."""
    own = trial_samples(config, "wine", trial)

    def build():
        torch.manual_seed(seed_of(config, trial))
        layers = {
            "relu-linear": lambda: [nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 3)],
            "abs-l2-neg": lambda: [nn.Linear(13, 8), Abs(), OffsetL2(8, 3)],
        }[model]()
        return nn.Sequential(*layers)

    sign = -1 if model.endswith("neg") else 1
    marks = milestones(config.epochs)

    def course(x, y, rate, epochs, look):
        module = build()
        adam = torch.optim.Adam(module.parameters(), lr=rate, betas=(0.9, 0.99))
        seen = []
        for epoch in range(1, epochs + 1):
            adam.zero_grad()
            functional.cross_entropy(sign * module(x), y).backward()
            adam.step()
            if epoch in marks:
                with torch.no_grad():
                    seen.append(look(module))
        return seen

    losses = {}
    for rate in config.rates:
        per_fold = []
        for fold in folds_of(own.y, stream(config.seed, "folds", trial)):
            held_x, held_y = own.x[fold.held], own.y[fold.held]

            def look(module, held_x=held_x, held_y=held_y):
                return float(functional.cross_entropy(sign * module(held_x), held_y))

            per_fold.append(course(own.x[fold.fit], own.y[fold.fit], rate, config.epochs, look))
        for place, mark in enumerate(marks):
            losses[rate, mark] = np.mean([seen[place] for seen in per_fold])
    rate, mark = min(losses, key=lambda key: losses[key])
    seen = course(own.x, own.y, rate, mark, lambda module: sign * module(own.test_x))
    return rate, mark, seen[-1]


class TestTraining:
    @pytest.mark.parametrize("model", ["relu-linear", "abs-l2-neg"])
    def test_is_what_plain_torch_does(self, model):
        config = replace(options(), hidden=8)
        samples = [trial_samples(config, "wine", trial) for trial in (0, 1)]
        done = train(config, chain_of(model, 13, 3, 8), (0, 1), samples)
        with torch.random.fork_rng(devices=[]):
            slow = [slow_train(config, model, trial) for trial in (0, 1)]
        assert done.rates.tolist() == pytest.approx([rate for rate, _, _ in slow])
        assert done.epochs[done.chosen].tolist() == [mark for _, mark, _ in slow]
        for own, (_, _, outputs) in zip(done.outputs, slow, strict=True):
            assert torch.allclose(own, outputs, rtol=1e-3, atol=1e-4)

    def test_metrics_are_those_of_the_kept_weights(self):
        config = replace(options(), hidden=8)
        found = measure(config, Job("wine", "relu-l2", 0, 2))["relu-l2"]
        for trial in (0, 1):
            own = trial_samples(config, "wine", trial)
            module = chain_of("relu-l2", 13, 3, 8).build()
            module.load_state_dict({name: w[trial] for name, w in found.weights.items()})
            with torch.no_grad():
                outputs = module(own.test_x)
            chosen = outputs.argmax(1)
            right = 100 * float((chosen == own.test_y).double().mean())
            assert float(found.metrics["test_accuracy"][trial]) == pytest.approx(right)
            classes = [float((chosen[own.test_y == c] == c).double().mean()) for c in range(3)]
            balanced = float(found.metrics["balanced_accuracy"][trial])
            assert balanced == pytest.approx(100 * np.mean(classes))
            loss = float(functional.cross_entropy(outputs, own.test_y))
            assert float(found.metrics["log_loss"][trial]) == pytest.approx(loss, rel=1e-4)
            end = found.epochs.tolist().index(int(found.metrics["chosen_epochs"][trial]))
            assert float(found.curves["test_accuracy"][trial, end]) == pytest.approx(right)
            assert found.curves["test_accuracy"][trial, end + 1 :].isnan().all()

    def test_a_trial_does_not_depend_on_the_others(self):
        config = replace(options(trials=3), hidden=8)
        both = measure(config, Job("wine", "abs-linear", 0, 3))["abs-linear"]
        alone = measure(config, Job("wine", "abs-linear", 2, 1))["abs-linear"]
        for name, values in both.metrics.items():
            assert values[2:].equal(alone.metrics[name]), name

    def test_a_rate_that_runs_away_is_not_chosen(self):
        config = replace(options(rates=(0.01, 9.0)), hidden=8)
        found = measure(config, Job("wine", "relu-linear", 0, 2))["relu-linear"]
        assert found.metrics["chosen_rate"].tolist() == pytest.approx([0.01, 0.01])
        assert found.metrics["test_accuracy"].min() > 80

    def test_heads_share_the_start_of_their_backbone(self):
        config = options()
        torch.manual_seed(seed_of(config, 1))
        linear = chain_of("relu-linear", 4, 3, 8).build()
        torch.manual_seed(seed_of(config, 1))
        other = chain_of("abs-l2-neg", 4, 3, 8).build()
        assert linear[0].weight.equal(other[0].weight)

    def test_all_heads_learn(self):
        config = options(epochs=60)
        for job in jobs(replace(config, models=("relu-l2", "none-l2-neg-code", "boosting"))):
            assert float(measure(config, job)[job.work].metrics["test_accuracy"].mean()) > 85


class TestYardsticks:
    def test_neighbours_by_hand(self):
        config = options()
        own = trial_samples(config, "wine", 0)
        judged = nearest(config, own, 0)
        distances = torch.cdist(own.test_x.double(), own.x.double())
        votes = own.y[distances.topk(judged.neighbours, largest=False).indices]
        slow = torch.stack([torch.bincount(row, minlength=3).argmax() for row in votes])
        assert judged.predicted.equal(slow)

    def test_one_neighbour_is_chosen_where_it_is_best(self):
        # Pairs of samples, far from all others: every other sample has another class.
        x = torch.arange(20.0).repeat_interleave(2)[:, None] * 10 + torch.tensor([0, 0.1]).repeat(
            20
        ).reshape(-1, 1)
        y = (torch.arange(20) % 2).repeat_interleave(2)
        own = trial_samples(options(), "wine", 0)
        own = type(own)("made", x, y, x, y, 2, None)
        assert nearest(options(), own, 0).neighbours == 1

    def test_a_part_held_out_may_be_one_sample(self):
        whole = trial_samples(options(), "iris", 0)
        few = torch.tensor([int((whole.y == label).nonzero()[0]) for label in (0, 1, 2, 2)])
        own = dataclasses.replace(whole, x=whole.x[few, :1], y=whole.y[few])
        own = dataclasses.replace(own, test_x=whole.test_x[:, :1])
        assert nearest(options(), own, 0).predicted.shape == own.test_y.shape

    def test_boosting_gives_probabilities(self):
        found = measure(options(), Job("wine", "boosting", 0, 1))["boosting"]
        assert 0 < float(found.metrics["log_loss"][0]) < 1
        assert float(found.metrics["train_accuracy"][0]) == 100

    def test_warping_beside_the_plain_recursion(self):
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(3, 2, 13, generator=generator)
        b = torch.randn(4, 2, 13, generator=generator)
        for share in (0.0, 0.1, 0.3, 1.0):
            band = math.ceil(share * 13)
            slow = torch.tensor([[_warped(one, two, band) for two in b] for one in a]).float()
            assert torch.allclose(warped_distances(a, b, share), slow, rtol=1e-5)
        straight = (a[:, None] - b).square().sum((2, 3))
        assert torch.allclose(warped_distances(a, b, 0.0), straight, rtol=1e-5)

    def test_many_pairs(self, monkeypatch):
        monkeypatch.setattr("mahalens.studies.transfer.warping._PAIRS", 5)
        a = torch.randn(4, 1, 9, generator=torch.Generator().manual_seed(1))
        few = warped_distances(a, a)
        monkeypatch.undo()
        assert few.equal(warped_distances(a, a))
        assert few.diag().abs().max() == 0


def _warped(a, b, band):
    """Dynamic time warping, cell by cell."""
    steps = a.shape[1]
    table = np.full((steps + 1, steps + 1), np.inf)
    table[0, 0] = 0
    for i in range(steps):
        for j in range(max(0, i - band), min(steps, i + band + 1)):
            cost = float((a[:, i] - b[:, j]).square().sum())
            before = min(table[i, j], table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = cost + before
    return table[steps, steps]


class TestKernels:
    def test_shapes_and_shares(self):
        x = torch.randn(7, 3, 30, generator=torch.Generator().manual_seed(2))
        made = kernel_features(x, 20, torch.Generator().manual_seed(0))
        assert made.shape == (7, 40)
        assert ((made[:, 1::2] >= 0) & (made[:, 1::2] <= 1)).all()

    def test_a_series_alone_has_the_same_features(self):
        x = torch.randn(7, 2, 30, generator=torch.Generator().manual_seed(2))
        whole = kernel_features(x, 9, torch.Generator().manual_seed(0))
        alone = kernel_features(x[3:4], 9, torch.Generator().manual_seed(0))
        assert torch.allclose(whole[3:4], alone, atol=1e-5)

    def test_they_do_not_see_the_level_of_a_series_without_padding(self, monkeypatch):
        # Weights are centred, so that a constant adds nothing where there is no edge.
        real = functional.conv1d
        unpadded = lambda *given, padding, **rest: real(*given, **rest)  # noqa: E731
        monkeypatch.setattr("mahalens.studies.transfer.kernels.conv1d", unpadded)
        x = torch.randn(4, 1, 40, generator=torch.Generator().manual_seed(3))
        one = kernel_features(x, 9, torch.Generator().manual_seed(0))
        two = kernel_features(x + 5, 9, torch.Generator().manual_seed(0))
        assert torch.allclose(one, two, atol=1e-4)

    @pytest.mark.parametrize("steps", [1, 2, 5, 7, 8])
    def test_short_series(self, steps):
        made = kernel_features(torch.ones(2, 1, steps), 5, torch.Generator().manual_seed(0))
        assert made.isfinite().all()

    def test_standardised_by_training(self):
        x, test_x = torch.randn(20, 24), torch.randn(5, 24) + 3
        features, other = features_of(x, test_x, (2, 12), 4, torch.Generator().manual_seed(0))
        assert features.mean(0).abs().max() < 1e-5
        assert other.shape == (5, 8)


class TestSeries:
    def test_every_model(self, series):
        config = replace(
            options(data=[series], epochs=40, trials=1),
            models=("relu-l2-neg", "kernels-linear", "kernels-l2", "dtw", "knn"),
        )
        found = [measure(config, job) for job in jobs(config)]
        assert [list(one) for one in found] == [[model] for model in config.models]
        for one in found:
            for own in one.values():
                assert own.metrics["test_accuracy"].isfinite().all()

    def test_tables_have_no_models_for_sequences(self, series):
        config = options(data=["wine", series], trials=6)
        works = [(job.part, job.work) for job in jobs(config)]
        assert ("mine_TRAIN", "dtw") in works
        assert ("wine", "dtw") not in works
        assert ("wine", "kernels-linear") not in works
        assert works.count(("wine", "relu-linear")) == 2
