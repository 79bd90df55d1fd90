"""The hybrid study, number by number, against what anybody would write."""

from __future__ import annotations

import math
import re

import pytest
import torch
from small_runs import config_of
from torch import nn
from torch.nn.functional import cross_entropy

from mahalens.data import held_out, stream
from mahalens.nn import AbsReLU
from mahalens.studies import hybrid as study
from mahalens.studies.networks import curve_metrics as of_curve
from mahalens.studies.run import Context
from mahalens.studies.samples import samples_of
from mahalens.studies.study import Job, Results
from mahalens.train import Batches

EPOCHS = 3
make = study.HybridConfig.with_defaults

# --- Models and options -----------------------------------------------------------------------


def test_mixtures_from_none_to_all_in_both_widths():
    shares = {"wide": [], "narrow": []}
    for name, mixture in study.MIXTURES.items():
        if mixture.share is not None and mixture.times == 1:
            shares[mixture.family].append(mixture.share)
            assert int(re.fullmatch(r"(?:abs|narrow)-(\d+)", name)[1]) == round(100 * mixture.share)
        if mixture.share is not None:
            assert all(mixture.absolute(units) == mixture.share * units for units in (8, 32, 128))
        assert mixture.family == ("narrow" if name.startswith("narrow") else "wide")
    assert shares["wide"] == [0, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 1]
    assert shares["narrow"] == [0, 1 / 4, 1 / 2, 3 / 4, 1]
    assert [study.MIXTURES[name].share for name in study.REFERENCE.values()] == [0.0, 0.0]
    assert len(study.PAIRS) == len(set(study.PAIRS)) == 16
    assert all(study.MIXTURES[a].family == study.MIXTURES[b].family for a, b in study.PAIRS)


def test_widths():
    config, other = make(), make(hidden=16, narrow=8)
    assert [config.units("abs-50", image) for image in (True, False)] == [128, 32]
    assert [config.units("narrow-50", image) for image in (True, False)] == [4, 4]
    assert config.units("narrow-double", True) == 8
    assert [other.units(m, True) for m in ("abs-0", "narrow-0", "narrow-double")] == [16, 8, 16]


def test_only_the_widths_that_are_asked_for_are_computed():
    wide = make(data=["iris", "mine.npz"], models=["abs-0", "abs-12"], trials=5)
    assert study.jobs(wide) == [
        *(Job("iris", "wide", first, count) for first, count in ((0, 4), (4, 1))),
        # Samples that may fill the memory come one trial at a time.
        *(Job("mine.npz", "wide", trial, 1) for trial in range(5)),
    ]


# --- Training ---------------------------------------------------------------------------------


def seed_of(purpose, trial):
    return int(torch.randint(2**31, (1,), generator=stream(0, purpose, trial)))


def plain_network(model, trial, units, inputs=4, classes=3):
    """Return what the study starts from, unit by unit."""

    class Units(nn.Module):
        def forward(self, z):
            if study.MIXTURES[model].share is None:
                return torch.where(z > 0, z, self.weight * z)
            marked = study.MIXTURES[model].absolute(units)
            parts = [z[:, k].abs() if k < marked else z[:, k].relu() for k in range(units)]
            return torch.stack(parts, 1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("start", trial))
        network = nn.Sequential(nn.Linear(inputs, units), Units(), nn.Linear(units, classes))
    if study.MIXTURES[model].share is None:
        network[1].weight = nn.Parameter(torch.full((units,), -0.5))
    return network


def plain_loop(network, x, y, rate, trial):
    """Train with Adam over shuffled batches; return the loss of every epoch."""
    steps = torch.optim.Adam(network.parameters(), lr=rate)
    losses = []
    for epoch in range(1, EPOCHS + 1):
        losses.append(0.0)
        for rows in Batches(16, seeds=[seed_of("order", trial)]).split(0, epoch, len(x)):
            steps.zero_grad()
            loss = cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            steps.step()
            losses[-1] += loss.item() * len(rows) / len(x)
    return losses


@torch.no_grad()
def judged(network, x, y):
    """Return accuracy and loss."""
    share = 100 * float((network(x).argmax(1) == y).double().mean())
    return round(share, 3), -float(cross_entropy(network(x), y))


@pytest.fixture(scope="module")
def measured():
    """Some layers on Iris, by model."""
    wide, narrow = "abs-0 abs-25 abs-88 abs-100", "narrow-0 narrow-75 narrow-100 narrow-learned"
    models = f"{wide} {narrow}".split()
    config = make(data=["iris"], epochs=EPOCHS, trials=2, models=models)
    jobs_ = [Job("iris", family, 0, 2) for family in study.REFERENCE]
    measures = {m: own for j in jobs_ for m, own in study.measure(config, j, Context()).items()}
    results = Results({("iris", m): own for m, own in measures.items()}, {})
    study.finish(config, results)
    return {model: own for (_, model), own in results.measures.items()}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["abs-0", "abs-25", "abs-100", "narrow-75", "narrow-learned"])
def test_training_is_that_of_a_plain_loop_at_the_best_rate(measured, model):
    own, units = measured[model], make().units(model, False)
    for trial in (0, 1):
        one = samples_of("iris", seed=0, trial=trial, train_size=None)
        scores = []
        for rate in study.RATES:  # on held-out training samples, three times as there are few
            drawn = []
            for draw in range(3):
                out = held_out(one.y, 0.2, stream(0, "validation", trial, draw))
                network = plain_network(model, trial, units)
                plain_loop(network, one.x[~out], one.y[~out], rate, trial)
                drawn.append(judged(network, one.x[out], one.y[out]))
            scores.append(tuple(sum(part) / 3 for part in zip(*drawn, strict=True)))
        best = study.RATES[scores.index(max(scores))]
        assert float(own.metrics["rate"][trial]) == pytest.approx(best)
        network = plain_network(model, trial, units)
        losses = plain_loop(network, one.x, one.y, best, trial)
        wanted = torch.tensor([math.nan, *losses])
        curve = own.curves["train_loss"][1][trial]
        torch.testing.assert_close(curve, wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
        accuracy, _ = judged(network, one.test_x, one.test_y)
        assert float(own.metrics["test_accuracy"][trial]) == pytest.approx(accuracy, abs=0.01)
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(own.weights[name][trial], tensor, rtol=0.02, atol=0.01)


def test_metrics_of_curves_and_gains(measured):
    for model, own in measured.items():
        reference = measured[study.REFERENCE[study.MIXTURES[model].family]]
        gain = own.metrics["test_accuracy"] - reference.metrics["test_accuracy"]
        assert torch.equal(own.metrics["gain"], gain)
        assert set(own.metrics) == set(study.METRICS)
        at, accuracy = own.curves["test_accuracy"]
        assert at.tolist() == [0, 1, 2, 3]
        assert torch.equal(accuracy[:, -1].double(), own.metrics["test_accuracy"])
        loss = own.curves["train_loss"][1][:, -1].double()
        assert torch.equal(loss, own.metrics["train_loss"])
    alone = Results({("iris", "narrow-100"): measured["narrow-100"]}, {})
    study.finish(make(), alone)
    assert "gain" not in alone.measures["iris", "narrow-100"].metrics


def job(family="narrow"):
    return Job("iris", family, 0, 1), Context()


def test_a_trial_that_ran_away_has_no_numbers(monkeypatch):
    monkeypatch.setattr("mahalens.studies.hybrid.RATES", (1e30,))
    (own,) = study.measure(make(data=["iris"], epochs=4, models=["narrow-0"]), *job()).values()
    assert own.curves["test_accuracy"][0].tolist() == [0, 1, 2, 3, 4]
    assert all(bool(values.isnan().all()) for values in own.metrics.values())


def test_rates_by_accuracy_first_then_loss_and_those_that_ran_away_last():
    accuracy = torch.tensor([[90.0, 91, 91, 80, 91], [50, 40, 30, 20, 10]])
    loss = torch.tensor([[0.1, 0.9, 0.5, 0.0, 0.7], [9.0, 1, 1, 1, 1]])
    assert study.best_rates(accuracy, loss).tolist() == [study.RATES[2], study.RATES[0]]
    accuracy = torch.tensor([[math.nan, 3.0, math.nan, math.nan, math.nan]])
    assert study.best_rates(accuracy, accuracy).tolist() == [study.RATES[1]]
    assert study.best_rates(accuracy * math.nan, accuracy).shape == (1,)


def test_numbers_of_curves():
    at = torch.tensor([0, 1, 4, 10])
    assert study.area(at, 10.0 * at[None]).tolist() == [50.0]
    assert study.area(at, torch.full((2, 4), 7.0)).tolist() == [7.0, 7.0]
    losses = torch.tensor([[2.0, 1.0, 3.0], [5.0, math.nan, math.nan], [0.5, 0.5, 0.5]])
    assert study.epochs_until(losses, 1.0).tolist() == [2.0, 4.0, 1.0]
    assert study.epochs_until(losses[None], 1.0).shape == (1, 3)
    at = torch.tensor([0, 50, 89, 90, 100])
    assert of_curve(at, torch.tensor([[0.0, 1, 2, 4, 9]]))["late_gain"].tolist() == [5.0]
    assert of_curve(torch.tensor([0, 1]), torch.tensor([[3.0, 4.0]]))["late_gain"].tolist() == [1.0]


# --- Reading ----------------------------------------------------------------------------------

X = torch.tensor([[1.0, 0.0], [2.0, -1.0], [0.5, 3.0], [1.0, 1.0]])


def network_of(weight, mask, out):
    net = nn.Sequential(nn.Linear(2, len(mask)), AbsReLU(mask), nn.Linear(len(mask), 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(weight))
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor(out))
    return net


def test_units_that_are_dead_flat_or_lean_on():
    net = network_of(
        [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]],  # in front, both, behind, both
        [True, True, False, False],
        [[1.0, 0.0, 0.0, 1.0], [-1.0, 2.0, 3.0, 1.0]],
    )
    numbers = study.read_layer(net, X)
    assert (numbers["dead"], numbers["dead_relu"], numbers["flat_abs"]) == (25.0, 50.0, 50.0)
    # The last unit says the same to both classes, the third is silent.
    assert numbers["abs_weight"] == pytest.approx(100.0)
    assert math.isnan(numbers["learned_abs"])
    net[2].weight.data[0, 3] = 0.0
    spread = [v.std(correction=0) for v in (X[:, 0], X[:, 1].abs(), X[:, 1].relu())]
    moved = 2 * spread[0] + 2 * spread[1]
    wanted = 100 * float(moved / (moved + spread[2]))
    assert study.read_layer(net, X)["abs_weight"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("pure", [True, False])
def test_pure_layers_have_no_share(pure):
    numbers = study.read_layer(
        network_of([[1.0, 0.0]] * 2, [pure] * 2, [[1.0, 2.0], [3.0, 4.0]]), X
    )
    assert math.isnan(numbers["abs_weight"])
    assert math.isnan(numbers["dead_relu"]) == pure
    assert math.isnan(numbers["flat_abs"]) != pure


def test_learned_slopes():
    net = nn.Sequential(nn.Linear(2, 2), nn.PReLU(2), nn.Linear(2, 2))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([-1.0, 0.5]))
    numbers = study.read_layer(net, X)
    assert (numbers["learned_abs"], numbers["dead"]) == (0.25, 0.0)
    assert all(math.isnan(numbers[name]) for name in ("dead_relu", "flat_abs", "abs_weight"))


def test_learned_mixtures_have_claims_where_they_are_trained(finished):
    ids = {claim["id"] for claim in finished("hybrid").summary["claims"]}
    assert "hybrid/narrow-learned-becomes-abs/iris" in ids
    assert "hybrid/learned-becomes-abs/iris" not in ids
    assert "learned" not in config_of("hybrid").models
