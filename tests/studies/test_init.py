"""The study of starting weights: how models start, choose their rate and train, the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import config_of
from torch import nn
from torch.nn import functional

from mahalens.data import held_out, stream
from mahalens.init import METHODS, initialise
from mahalens.nn import Abs
from mahalens.studies import init as study
from mahalens.studies.run import Context
from mahalens.studies.samples import samples_of
from mahalens.studies.study import Job, Measures, Results

make = study.InitConfig.with_defaults
IRIS = samples_of("iris", seed=0, trial=0, train_size=None)


def small(**options):
    usual = {"data": ["iris"], "trials": 2, "epochs": 3, "table_rates": (0.003, 0.03)}
    return make(**{**usual, "image_rates": (0.01, 0.02), **options})


def measures_of(config, model, first=0, count=1, data="iris"):
    return study.measure(config, Job(data, model, first, count), Context())[model]


# --- Options and models -----------------------------------------------------------------------


def test_models_are_all_starts_with_both_activations():
    every = {f"{activation}-{name}" for activation in ("abs", "relu") for name in study.STARTS}
    assert set(study.MODELS) == every - {"abs-cluster-pca-mirror"}
    for model in study.MODELS:
        activation, way = study.read_model(model)
        assert activation == {"abs": "Abs", "relu": "ReLU"}[model.split("-")[0]]
        assert {way.hidden, way.output} <= set(METHODS)
        assert set(way.options) <= set(METHODS[way.hidden].options)
    # Each start from data differs in its hidden layer alone from one of the usual ones.
    usual = {study.STARTS[name].output for name in study.RIVALS}
    assert {study.STARTS[name].output for name in study.FROM_DATA} <= usual


# --- Starts -----------------------------------------------------------------------------------


def started(model, *who):
    return study.start(model, IRIS, IRIS.x, IRIS.y, small(), *(who or ("trial", 0))).module


def test_starts_of_a_trial_share_what_they_can():
    before = torch.random.get_rng_state()
    kaiming, point, relu = (
        started(f"{m}") for m in ("abs-kaiming", "abs-sample-point", "relu-kaiming")
    )
    for other in (point, started("abs-class-mean"), relu):
        assert torch.equal(kaiming[0].weight, other[0].weight)
        assert torch.equal(kaiming[2].weight, other[2].weight)
    assert not torch.equal(kaiming[0].bias, point[0].bias)
    assert torch.equal(kaiming[0].bias, relu[0].bias)
    for who in (("trial", 1), ("tuning", 0, 0)):
        assert not torch.equal(kaiming[0].weight, started("abs-kaiming", *who)[0].weight)
    # Orthonormal rows of LSUV are turned alike; only their length follows from what comes in.
    outputs = [started(name)[2].weight.detach() for name in ("abs-lsuv", "abs-cluster-pca")]
    assert torch.allclose(*(functional.normalize(rows, dim=1) for rows in outputs), atol=1e-6)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("model", ["relu-cluster-pca", "abs-whiten", "relu-lsuv", "abs-kaiming"])
def test_a_start_is_what_initialise_gives(model):
    method = model.split("-", 1)[1].replace("-", "_")
    activation = nn.ReLU() if "relu" in model else Abs()
    other = nn.Sequential(nn.Linear(4, 32), activation, nn.Linear(32, 3))
    for layer, way in (("0", method), ("2", "kaiming" if method == "kaiming" else "lsuv")):
        own = stream(0, f"start of layer {layer}", "trial", 0)
        initialise(other, (IRIS.x, IRIS.y), way, layers=[layer], generator=own)
    assert torch.equal(started(model)(IRIS.test_x), other(IRIS.test_x))


def test_variants_are_what_they_are_called():
    assert study.leading_axes(IRIS.x, 0.9) == 2
    assert int(torch.linalg.matrix_rank(started("abs-whiten-90")[0].weight)) == 2
    mirrored = started("relu-cluster-pca-mirror")[0].weight
    assert torch.equal(mirrored[0::2], -mirrored[1::2])
    plain, everywhere = started("abs-cluster-pca"), started("abs-cluster-pca-all")
    assert torch.equal(everywhere[0].weight, plain[0].weight)
    assert not torch.equal(everywhere[2].weight, plain[2].weight)
    assert not torch.equal(started("abs-cluster-pca-3")[0].weight, plain[0].weight)


def test_abs_through_one_point_cannot_tell_opposite_inputs_apart():
    # |w·x| = |w·(-x)|: with all hyperplanes through the mean the network is an even function.
    x = IRIS.test_x
    for name in ("kaiming", "lsuv", "whiten", "sample-point", "class-mean", "cluster-pca"):
        network = started(f"abs-{name}")
        even = torch.allclose(network(x), network(-x), atol=1e-4)
        assert even == (name in ("kaiming", "lsuv", "whiten"))


# --- Training ---------------------------------------------------------------------------------


def plain_loop(model, samples, seen, rate, *who, epochs=3):
    """Return accuracies before training and after every epoch, and losses of the epochs."""
    network = study.start(model, samples, samples.x, samples.y, small(), *who).module
    order = int(torch.randint(2**62, (), generator=stream(0, "order of batches", *who)))
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    shares, losses, count = [], [], len(samples.y)
    for epoch in range(epochs + 1):
        with torch.no_grad():
            right = network(seen[0]).argmax(1) == seen[1]
            shares.append(100 * float(right.double().mean()))
        if epoch == epochs:
            return shares, losses
        losses.append(0.0)
        batches = torch.randperm(count, generator=stream(order, "batches", epoch + 1))
        for rows in batches.split(study.batch_size(count)):
            loss = functional.cross_entropy(network(samples.x[rows]), samples.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses[-1] += float(loss.detach()) * len(rows) / count
    return None


@pytest.mark.parametrize("model", ["relu-kaiming", "abs-whiten"])
def test_training_is_that_of_a_plain_loop(model):
    own = measures_of(small(table_rates=(0.03,)), model)
    shares, losses = plain_loop(model, IRIS, (IRIS.test_x, IRIS.test_y), 0.03, "trial", 0)
    epochs, accuracy = own.curves["test_accuracy"]
    assert epochs.tolist() == [0, 1, 2, 3]
    assert accuracy[0].tolist() == pytest.approx(shares)
    assert own.curves["train_loss"][1][0, 1:].tolist() == pytest.approx(losses, rel=1e-4)
    metrics = {name: float(values) for name, values in own.metrics.items()}
    assert metrics["mean_accuracy"] == pytest.approx(sum(shares[1:]) / 3)
    assert (metrics["first_accuracy"], metrics["test_accuracy"]) == pytest.approx(
        (shares[1], shares[-1])
    )
    network = started(model).requires_grad_(False)
    loss = functional.cross_entropy(network(IRIS.x), IRIS.y)
    assert metrics["start_loss"] == pytest.approx(float(loss))
    assert metrics["start_loss"] == float(own.curves["train_loss"][1][0, 0])
    assert metrics["longest_row"] == pytest.approx(float(network[0].weight.norm(dim=1).max()))
    z = network[0](IRIS.x)
    idle = (z > 0).all(0) | (z <= 0).all(0) if "relu" in model else (z > 0).all(0) | (z < 0).all(0)
    assert metrics["idle_units"] == pytest.approx(100 * float(idle.double().mean()))


def test_a_rate_is_chosen_on_held_out_training_samples():
    rates = (0.0001, 0.01, 0.1)
    config = small(epochs=4, table_rates=(0.1, 0.0001, 0.01))
    one = samples_of("iris", seed=0, trial=1, train_size=None)
    total = np.zeros(3)
    for run in range(3):
        out = held_out(one.y, 0.25, stream(0, "validation", 1, run))
        part = type(one)(**{**vars(one), "x": one.x[~out], "y": one.y[~out]})
        for place, rate in enumerate(rates):
            seen, who = (one.x[out], one.y[out]), ("tuning", 1, run)
            shares, _ = plain_loop("abs-kaiming", part, seen, rate, *who, epochs=4)
            total[place] += np.mean(shares[1:])
    job = Job("iris", "abs-kaiming", 1, 1)
    assert study.choose_rate(config, job, 1) == rates[int(total.argmax())] != 0.0001
    # Of equal rates the lowest is taken: nothing changes by either.
    assert study.choose_rate(small(epochs=1, table_rates=(2e-9, 1e-9)), job, 1) == 1e-9


def test_images_choose_from_rates_of_their_own():
    config = small(data=["digits"], train_size=300, epochs=1)
    metrics = measures_of(config, "abs-kaiming", 1, data="digits").metrics
    assert float(metrics["learning_rate"]) in (0.01, 0.02)
    assert metrics["rate_at_end"].tolist() == [100.0]
    metrics = measures_of(small(epochs=1, table_rates=(1e-9, 0.01, 0.02)), "abs-kaiming", 0, 3)
    rates = metrics.metrics["learning_rate"].tolist()
    assert metrics.metrics["rate_at_end"].tolist() == [100.0 * (rate != 0.01) for rate in rates]


def test_a_training_that_explodes_has_no_numbers(monkeypatch):
    start = study.start

    def too_large(*given):
        network = start(*given)
        with torch.no_grad():
            for layer in (0, 2):
                network.module[layer].weight.mul_(1e25)
        return network

    monkeypatch.setattr("mahalens.studies.init.start", too_large)
    own = measures_of(small(epochs=4), "abs-kaiming")
    assert own.curves["test_accuracy"][1].shape == (1, 5)
    assert all(bool(values.isnan().all()) for values in own.metrics.values())


def test_epochs_to_a_bound_are_interpolated_between_the_middles_of_epochs():
    loss = torch.tensor([2.0, 0.5, 0.6, 0.1])
    for bound, wanted in ((4.0, 0.25), (2.0, 0.5), (1.0, 1.0), (0.5, 1.5), (9.0, 0.0)):
        assert study.epochs_to(8.0, loss, bound) == pytest.approx(wanted)
    assert 2.5 < study.epochs_to(8.0, loss, 0.3) < 3.5
    assert math.isnan(study.epochs_to(8.0, loss, 0.05))
    assert math.isnan(study.epochs_to(8.0, torch.full((3,), math.nan), 1.0))
    assert study.epochs_to(8.0, torch.tensor([2.0, 0.0]), 1.0) == 1.5
    times, logs = [0.0, 0.5, 1.5, 2.5], np.log([8.0, 2.0, 0.5, 0.4])
    for bound in (5.0, 1.7, 0.45):
        slow = np.interp(-math.log(bound), -logs, times)
        assert study.epochs_to(8.0, torch.tensor([2.0, 0.5, 0.4]), bound) == pytest.approx(
            slow, rel=1e-6
        )


def test_rates_at_the_end_of_the_grid_are_a_caution():
    ends = {
        ("iris", "abs-lsuv"): [100.0, 100.0, 0.0],
        ("iris", "abs-whiten"): [100.0, 0.0, 0.0],
        ("wine", "abs-lsuv"): [0.0, 0.0, math.nan],
    }
    measures = {k: Measures({"rate_at_end": torch.tensor(v)}, 1.0) for k, v in ends.items()}
    results = Results(measures, {})
    study.finish(config_of("init"), results)
    (caution,) = results.cautions
    assert "on iris" in caution
    assert "abs-lsuv in 2 of 3" in caution
    assert "whiten" not in caution
