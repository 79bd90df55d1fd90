"""The hybrid study, number by number, against what anybody would write."""

import math

import pytest
import torch
from torch import nn

from mahalens.data import stream
from mahalens.data.tables import held_out
from mahalens.nn import AbsReLU
from mahalens.studies.hybrid import training
from mahalens.studies.hybrid.config import RATES, HybridConfig
from mahalens.studies.hybrid.measuring import area, epochs_until, late_gain, measure
from mahalens.studies.hybrid.mixtures import MIXTURES
from mahalens.studies.hybrid.reading import read_layer
from mahalens.studies.hybrid.training import best_rates, judged, number, started, train, try_rates
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.samples import samples_of
from mahalens.train import Batches

EPOCHS = 3
CONFIG = HybridConfig.with_defaults(data=["iris"], epochs=EPOCHS, trials=2)


def sets(trials, data="iris"):
    return [samples_of(data, seed=0, trial=trial, train_size=None) for trial in trials]


def plain_network(model, units, inputs, classes, seed):
    """What the study starts from, unit by unit."""

    class Units(nn.Module):
        def forward(self, z):
            marked = MIXTURES[model].absolute(units)
            if MIXTURES[model].share is None:
                return torch.where(z > 0, z, self.slope * z)
            parts = [z[:, k].abs() if k < marked else z[:, k].relu() for k in range(units)]
            return torch.stack(parts, 1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(inputs, units), Units(), nn.Linear(units, classes))
    network[1].slope = nn.Parameter(torch.full((units,), -0.5))
    return network


def plain_loop(network, x, y, rate, seed, epochs=EPOCHS, size=16):
    """Adam over shuffled batches; the loss of every epoch."""
    steps = torch.optim.Adam(network.parameters(), lr=rate)
    losses = []
    for epoch in range(1, epochs + 1):
        total = 0.0
        for rows in Batches(size, seeds=[seed]).split(0, epoch, len(x)):
            steps.zero_grad()
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            steps.step()
            total += loss.item() * len(rows) / len(x)
        losses.append(total)
    return losses


@pytest.mark.parametrize("model", ["abs-0", "abs-25", "abs-100", "narrow-75", "narrow-learned"])
def test_training_is_that_of_a_plain_loop(model):
    trials, data = (0, 3), sets((0, 3))
    done = train(CONFIG, model, trials, data)
    for place, (trial, one) in enumerate(zip(trials, data, strict=True)):
        seed = number(CONFIG, "start", trial)
        network = plain_network(model, CONFIG.units(model, False), 4, 3, seed)
        rate = float(done.tried.rates[place])
        losses = plain_loop(network, one.x, one.y, rate, number(CONFIG, "order", trial))
        wanted = torch.tensor(losses)
        torch.testing.assert_close(done.losses[place], wanted, rtol=1e-3, atol=1e-4)
        accuracy, _ = judged(network, one.test_x, one.test_y)
        assert float(done.accuracy[place, -1]) == pytest.approx(float(accuracy), abs=0.01)


def test_the_learning_rate_is_the_best_on_held_out_training_samples():
    (one,) = sets([1])
    tried = try_rates(CONFIG, "abs-50", [1], [one])
    accuracy, loss = torch.zeros(3, len(RATES)), torch.zeros(3, len(RATES))
    for draw in range(3):
        out = held_out(one.y, 0.2, stream(0, "validation", 1, draw))
        assert 0 < int(out.sum()) < 0.21 * len(one.y)
        for place, rate in enumerate(RATES):
            network = plain_network("abs-50", 32, 4, 3, number(CONFIG, "start", 1))
            losses = plain_loop(network, one.x[~out], one.y[~out], rate, number(CONFIG, "order", 1))
            seen = tried.losses[0, draw * len(RATES) + place]
            torch.testing.assert_close(seen, torch.tensor(losses), rtol=1e-3, atol=1e-4)
            accuracy[draw, place], loss[draw, place] = judged(network, one.x[out], one.y[out])
    wanted = max(
        range(len(RATES)),
        key=lambda place: (
            round(float(accuracy[:, place].mean()), 3),
            -float(loss[:, place].mean()),
        ),
    )
    assert tried.rates.tolist() == [RATES[wanted]]


def test_large_sets_are_cut_once(monkeypatch):
    monkeypatch.setattr(training, "FEW", 100)
    (one,) = sets([0])
    assert try_rates(CONFIG, "narrow-0", [0], [one]).losses.shape == (1, len(RATES), EPOCHS)


class TestBestRates:
    def test_accuracy_first_then_loss(self):
        accuracy = torch.tensor([[90.0, 91, 91, 80, 91], [50, 40, 30, 20, 10]])
        loss = torch.tensor([[0.1, 0.9, 0.5, 0.0, 0.7], [9.0, 1, 1, 1, 1]])
        assert best_rates(accuracy, loss).tolist() == [RATES[2], RATES[0]]

    def test_what_ran_away_is_taken_last(self):
        accuracy = torch.tensor([[math.nan, 3.0, math.nan, math.nan, math.nan]])
        assert best_rates(accuracy, accuracy).tolist() == [RATES[1]]
        lost = torch.full((1, 5), math.nan)
        assert best_rates(lost, lost).shape == (1,)


class TestPairing:
    def test_layers_of_one_width_start_alike(self):
        (like,) = sets([0])
        starts = {m: started(CONFIG, m, [0, 1], like) for m in MIXTURES}
        for family, reference in (("wide", "abs-0"), ("narrow", "narrow-0")):
            wanted = starts[reference].tensors()
            for model, mixture in MIXTURES.items():
                if mixture.family == family and mixture.times == 1:
                    own = starts[model].tensors()
                    assert all(torch.equal(own[name], wanted[name]) for name in wanted)
        weight = starts["abs-0"].tensors()["0.weight"]
        assert not torch.equal(weight[0], weight[1])

    def test_a_layer_that_learns_its_mixture_starts_half_way(self):
        (like,) = sets([0])
        start = started(CONFIG, "narrow-learned", [0], like)
        assert start.tensors()["1.weight"].tolist() == [[-0.5] * 4]

    @pytest.mark.parametrize("work", ["wide", "narrow"])
    def test_trials_depend_neither_on_each_other_nor_on_models(self, work):
        together = measure(CONFIG, Job("iris", work, 0, 2))
        fewer = HybridConfig.with_defaults(data=["iris"], epochs=EPOCHS, trials=9, models=[
            "abs-0", "abs-88", "narrow-0", "narrow-100",
        ])  # fmt: skip
        alone = measure(fewer, Job("iris", work, 1, 1))
        assert len(alone) == 2
        for model, own in alone.items():
            for name, values in own.metrics.items():
                if name != "seconds":
                    wanted = together[model].metrics[name][1:]
                    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
            for name, curve in own.curves.items():
                wanted = together[model].curves[name][1:]
                torch.testing.assert_close(curve, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(scope="module")
def found():
    return measure(CONFIG, Job("iris", "narrow", 0, 2))


class TestMeasures:
    def test_gains_are_over_relu_in_the_same_trial(self, found):
        than = found["narrow-0"].metrics["test_accuracy"]
        for own in found.values():
            assert torch.equal(own.metrics["gain"], own.metrics["test_accuracy"] - than)

    def test_without_relu_there_is_no_gain(self):
        config = HybridConfig.with_defaults(data=["iris"], epochs=1, models=["narrow-100"])
        (own,) = measure(config, Job("iris", "narrow", 0, 1)).values()
        assert "gain" not in own.metrics

    def test_the_last_point_of_the_curve_is_the_result(self, found):
        for own in found.values():
            assert own.epochs.tolist() == [0, 1, 2, 3]
            last = own.curves["test_accuracy"][:, -1].double()
            assert torch.equal(last, own.metrics["test_accuracy"])
            assert bool(own.curves["train_loss"][:, 0].isnan().all())
            loss = own.curves["train_loss"][:, -1].double()
            assert torch.equal(loss, own.metrics["train_loss"])

    def test_weights_give_the_accuracy_again(self, found):
        own = found["narrow-50"]
        for trial, one in enumerate(sets((0, 1))):
            weights = {name: tensor[trial] for name, tensor in own.weights.items()}
            network = nn.Sequential(
                nn.Linear(4, 4), AbsReLU([True] * 2 + [False] * 2), nn.Linear(4, 3)
            )
            network.load_state_dict(weights, strict=False)
            accuracy, _ = judged(network, one.test_x, one.test_y)
            assert float(accuracy) == pytest.approx(float(own.metrics["test_accuracy"][trial]))

    def test_a_trial_that_ran_away_has_no_numbers(self, monkeypatch):
        monkeypatch.setattr(training, "RATES", (1e30,))
        config = HybridConfig.with_defaults(data=["iris"], epochs=4, models=["narrow-0"])
        (own,) = measure(config, Job("iris", "narrow", 0, 1)).values()
        assert own.epochs.tolist() == [0, 1, 2, 3, 4]
        assert own.statuses == ["non-finite"]
        assert all(bool(values.isnan().all()) for values in own.metrics.values())


class TestCurves:
    def test_area_of_a_straight_line(self):
        at = torch.tensor([0, 1, 4, 10])
        assert area(at, 10.0 * at[None]).tolist() == [50.0]
        assert area(at, torch.full((2, 4), 7.0)).tolist() == [7.0, 7.0]

    def test_epochs_until(self):
        losses = torch.tensor([[2.0, 1.0, 3.0], [5.0, math.nan, math.nan], [0.5, 0.5, 0.5]])
        assert epochs_until(losses, 1.0).tolist() == [2.0, 4.0, 1.0]
        assert epochs_until(losses[None], 1.0).shape == (1, 3)

    def test_late_gain(self):
        at = torch.tensor([0, 50, 89, 90, 100])
        assert late_gain(at, torch.tensor([[0.0, 1, 2, 4, 9]])).tolist() == [5.0]
        assert late_gain(torch.tensor([0, 1]), torch.tensor([[3.0, 4.0]])).tolist() == [1.0]


class TestReading:
    x = torch.tensor([[1.0, 0.0], [2.0, -1.0], [0.5, 3.0], [1.0, 1.0]])

    def network(self, weight, bias, mask, out):
        net = nn.Sequential(nn.Linear(2, len(mask)), AbsReLU(mask), nn.Linear(len(mask), 2))
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor(weight))
            net[0].bias.copy_(torch.tensor(bias))
            net[2].weight.copy_(torch.tensor(out))
        return net

    def test_units(self):
        net = self.network(
            [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]],  # in front, both, behind, both
            [0.0, 0.0, 0.0, 0.0],
            [True, True, False, False],
            [[1.0, 0.0, 0.0, 1.0], [-1.0, 2.0, 3.0, 1.0]],
        )
        found = read_layer(net, self.x)
        assert found["dead"] == 25.0
        assert found["dead_relu"] == 50.0
        assert found["flat_abs"] == 50.0
        spread = [self.x[:, 0].std(correction=0), self.x[:, 1].abs().std(correction=0)]
        # The last unit says the same to both classes, the third is silent.
        assert found["abs_weight"] == pytest.approx(100.0)
        net[2].weight.data[0, 3] = 0.0
        moved = 2 * spread[0] + 2 * spread[1]
        relu = self.x[:, 1].relu().std(correction=0)
        wanted = 100 * float(moved / (moved + relu))
        assert read_layer(net, self.x)["abs_weight"] == pytest.approx(wanted, rel=1e-5)
        assert math.isnan(found["learned_abs"])

    @pytest.mark.parametrize("pure", [True, False])
    def test_pure_layers_have_no_share(self, pure):
        net = self.network([[1.0, 0.0]] * 2, [0.0, 0.0], [pure] * 2, [[1.0, 2.0], [3.0, 4.0]])
        found = read_layer(net, self.x)
        assert math.isnan(found["abs_weight"])
        assert math.isnan(found["dead_relu"]) == pure
        assert math.isnan(found["flat_abs"]) != pure

    def test_learned_slopes(self):
        net = nn.Sequential(nn.Linear(2, 2), nn.PReLU(2), nn.Linear(2, 2))
        with torch.no_grad():
            net[1].weight.copy_(torch.tensor([-1.0, 0.5]))
        found = read_layer(net, self.x)
        assert found["learned_abs"] == 0.25
        assert found["dead"] == 0.0
        assert all(math.isnan(found[name]) for name in ("dead_relu", "flat_abs", "abs_weight"))
