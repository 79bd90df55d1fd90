"""The penalties study, number by number, against what anybody would write."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import config_of
from torch.nn.functional import cross_entropy

from mahalens.data import stream
from mahalens.nn import Chain
from mahalens.studies.networks import seed_of_trial
from mahalens.studies.penalties import (
    METRICS,
    MODELS,
    PAIRS,
    PENALTIES,
    PROPOSED,
    PenaltiesConfig,
    axis_cosines,
    best_of,
    claims_of,
    covariance_of,
    dead_units,
    finish,
    jobs,
    judge,
    measure,
    row_measures,
    split,
    whitening_penalty,
)
from mahalens.studies.run import Context
from mahalens.studies.samples import samples_of
from mahalens.studies.study import Job, Measures, Results
from mahalens.studies.transfer import folds_of
from mahalens.train import TrialStack

make = PenaltiesConfig.with_defaults
EPOCHS = 4


def stack_of(weight, bias=None, activation="ReLU"):
    """Return a stack of one network with these rows, whose outputs are its hidden units."""
    weight = torch.as_tensor(weight)
    units, inputs = weight.shape
    module = Chain.parse(f"Linear({units}), {activation}, Linear({units})", inputs=inputs).build()
    with torch.no_grad():
        module[0].weight.copy_(weight)
        module[0].bias.copy_(torch.zeros(units) if bias is None else torch.tensor(bias))
        module[2].weight.copy_(torch.eye(units))
        module[2].bias.zero_()
    chain = Chain.parse(f"Linear({units}), {activation}, Linear({units})", inputs=inputs)
    return TrialStack.from_modules(chain, [module])


# --- Penalties --------------------------------------------------------------------------------


def gaussian_samples():
    x = torch.randn(200, 3, generator=stream(0, "test"), dtype=torch.float64)
    return x @ torch.tensor([[3.0, 1, 0], [0, 1, 0.5], [0, 0, 0.2]], dtype=torch.float64)


def whitenings():
    """Return PCA whitening, a rotated one and the covariance of some samples."""
    covariance = covariance_of(gaussian_samples())
    spreads, axes = torch.linalg.eigh(covariance)
    pca = (axes / spreads.sqrt()).T
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=stream(1, "q"), dtype=pca.dtype)).Q
    return pca, rotation @ pca, covariance


def test_covariance_is_that_of_numpy_trial_by_trial():
    x = torch.stack([gaussian_samples(), gaussian_samples() ** 2])
    for one, covariance in zip(x, covariance_of(x), strict=True):
        np.testing.assert_allclose(covariance, np.cov(one.numpy().T, bias=True))


def test_whitening_penalty_is_zero_for_every_whitening_and_orthogonality_chooses_one():
    pca, rotated, covariance = whitenings()
    for rows in (pca, rotated):
        assert whitening_penalty(rows, covariance).item() == pytest.approx(0, abs=1e-12)
    terms = {name: PENALTIES[name].term for name in PROPOSED}
    named = [{"0.weight": rows} for rows in (pca, rotated)]
    for name in ("uncorrelated", "white"):
        assert all(terms[name](one, covariance).item() < 1e-12 for one in named)
    for name in ("orthogonal", "axes"):
        least, more = (terms[name](one, covariance).item() for one in named)
        assert least == pytest.approx(0, abs=1e-12)
        assert more > 0.01
    assert whitening_penalty(0 * pca, covariance).item() == 1


def test_the_measures_are_the_roots_of_the_penalties():
    x = torch.tensor([[1.0, 2.0], [-1.0, 0.0], [0.0, -2.0], [3.0, 1.0]])
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    values = row_measures(stack_of(rows), covariance_of(x[None]))
    z = x @ rows.T
    covariance = torch.from_numpy(np.cov(z.numpy().T, bias=True)).float()
    assert values["row_cosine"].item() == pytest.approx(math.sqrt(0.5))
    assert values["correlation"].item() == pytest.approx(abs(np.corrcoef(z.numpy().T)[0, 1]))
    wanted = (covariance - torch.eye(2)).norm() / math.sqrt(2)
    assert values["whitening_error"].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_rows_along_axes():
    covariance = torch.tensor([4.0, 1.0]).diag()[None]
    assert axis_cosines(stack_of([[2.0, 0.0], [0.0, -1.0]]), covariance).item() == 1
    wanted = (1 + math.sqrt(0.5)) / 2
    assert axis_cosines(stack_of([[2.0, 0.0], [1.0, 1.0]]), covariance).item() == pytest.approx(
        wanted
    )
    assert axis_cosines(stack_of([[math.nan, 0.0]]), covariance).isnan().all()


@pytest.mark.parametrize(("activation", "share"), [("ReLU", 50.0), ("Abs", 0.0)])
def test_a_unit_that_no_sample_activates_is_dead(activation, share):
    x = torch.tensor([[[1.0, 0.0], [2.0, 1.0]]])
    network = stack_of([[1.0, 0.0], [-1.0, 0.0]], activation=activation)
    assert dead_units(network, x).tolist() == [share]


# --- Models, options and claims ---------------------------------------------------------------


def test_models_are_both_activations_with_every_penalty():
    assert len(MODELS) == 2 * len(PENALTIES)
    assert len(PAIRS) == len(set(PAIRS)) == 18
    for model, than in PAIRS:
        assert split(model)[0] == split(than)[0]
        assert split(than)[1] in (PENALTIES["none"], PENALTIES["decay"])
    assert all(METRICS[PENALTIES[name].aim] for name in PROPOSED)


def test_no_more_units_than_inputs_and_small_sets():
    assert [make().units(inputs) for inputs in (4, 64)] == [4, 32]
    assert make().train_size == 60
    assert make(data=["mnist"]).train_size == 1_000
    config = make(data=["iris", "mine.npz"], models=["abs-none"], trials=12)
    assert jobs(config) == [
        *(Job("iris", "abs-none", first, count) for first, count in ((0, 10), (10, 2))),
        *(Job("mine.npz", "abs-none", trial, 1) for trial in range(12)),
    ]


def test_claims_are_about_the_models_of_the_run_and_all_its_sets():
    keys = [claim.key for claim in claims_of(make())]
    assert len(keys) == len(set(keys)) == 40
    few = claims_of(make(data=["iris", "wine"], models=["abs-none", "abs-white", "relu-decay"]))
    assert [claim.key for claim in few] == [
        "abs-white-generalises",
        "abs-white-narrows-gap",
        "abs-white-beats-decay",
        "abs-white-does-what-it-says",
        "relu-decay-generalises",
        "relu-decay-narrows-gap",
    ]
    parts = few[3].predicate.parts
    assert [part.model for part in parts] == ["abs-white (iris)", "abs-white (wine)"]
    assert {part.metric for part in parts} == {"whitening_error"}


def test_claims_rest_on_the_mean_over_all_sets_and_ends_of_strengths_are_reported():
    def measures(accuracy, strength):
        values = {"test_accuracy": accuracy, "gap": accuracy, "strength": strength}
        return Measures({n: torch.tensor(v, dtype=torch.float64) for n, v in values.items()}, 1.0)

    results = Results(
        {
            ("iris", "abs-white"): measures([90.0, 80.0, math.nan], [0.1, 0.1, 0.01]),
            ("wine", "abs-white"): measures([70.0, 90.0, 80.0], [0.001, 0.01, 0.1]),
            ("iris", "relu-decay"): measures([1.0, 2.0, 3.0], [0.001] * 3),
            ("wine", "relu-decay"): measures([1.0, 2.0, 3.0], [0.01] * 3),
        },
        {},
    )
    finish(config_of("penalties"), results)
    mean = results.evidence["", "abs-white", "test_accuracy"]
    np.testing.assert_array_equal(mean, [80.0, 85.0, math.nan])
    weakest, strongest = results.cautions
    assert weakest.startswith("most trials chose the weakest penalty on offer in 1 of the cases")
    assert "(ReLU decay (iris))" in weakest
    assert "(Abs white (iris))" in strongest
    assert "a stronger one might suit" in strongest


# --- Training ---------------------------------------------------------------------------------


def plain_network(activation, trial, x, classes):
    """Return what the study starts from."""
    units = min(32, x.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of_trial(0, trial))
        return Chain.parse(
            f"Linear({units}), {activation}, Linear({classes})", inputs=x.shape[1]
        ).build()


def plain_penalty(name, network, x):
    """Return a penalty from the outputs of the first layer, sample by sample."""
    weight, units = network[0].weight, network[0].out_features
    z = network[0](x)
    covariance = (z - z.mean(0)).T @ (z - z.mean(0)) / len(x)
    pairs = ~torch.eye(units, dtype=torch.bool)

    def cosines(gram):
        lengths = gram.diagonal().sqrt()
        return (gram / lengths / lengths[:, None])[pairs].square().mean()

    white = (covariance - torch.eye(units)).square().sum() / units
    return {
        "decay": (weight.square().sum() + network[2].weight.square().sum()) / 2,
        "orthogonal": cosines(weight @ weight.T),
        "uncorrelated": cosines(covariance),
        "white": white,
        "axes": white + cosines(weight @ weight.T),
    }[name]


def plain_training(model, trial, x, y, strength):
    """Train by torch's Adam on the full batch."""
    name = model.partition("-")[2]
    network = plain_network(split(model)[0], trial, x, int(y.max()) + 1)
    steps = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        steps.zero_grad()
        loss = cross_entropy(network(x), y)
        if name != "none":
            loss = loss + strength * plain_penalty(name, network, x)
        loss.backward()
        steps.step()
    return network


@torch.no_grad()
def plain_score(network, x, y):
    share = 100 * float((network(x).argmax(1) == y).double().mean())
    return round(share, 3), -float(cross_entropy(network(x), y))


@pytest.mark.parametrize("model", ["abs-none", "relu-decay", *(f"abs-{n}" for n in PROPOSED)])
def test_training_is_that_of_a_plain_loop_with_the_best_strength(model):
    config = make(data=["iris"], epochs=EPOCHS, trials=2, train_size=24)
    (measured,) = measure(config, Job("iris", model, 0, 2), Context()).values()
    for trial in (0, 1):
        one = samples_of("iris", seed=0, trial=trial, train_size=24)
        scores = []
        for strength in split(model)[1].strengths:
            folds = folds_of(one.y, stream(0, "folds", trial))
            parts = []
            for fit, held in folds:
                network = plain_training(model, trial, one.x[fit], one.y[fit], strength)
                parts.append(plain_score(network, one.x[held], one.y[held]))
            accuracy, loss = (sum(part) / 4 for part in zip(*parts, strict=True))
            scores.append((round(accuracy, 2), loss))
        best = split(model)[1].strengths[scores.index(max(scores))]
        if model == "abs-none":
            assert "strength" not in measured.metrics
        else:
            assert float(measured.metrics["strength"][trial]) == best
        network = plain_training(model, trial, one.x, one.y, best)
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(measured.weights[name][trial], tensor, rtol=1e-3, atol=1e-4)
        accuracy, loss = plain_score(network, one.test_x, one.test_y)
        known, _ = plain_score(network, one.x, one.y)
        numbers = {name: float(values[trial]) for name, values in measured.metrics.items()}
        assert numbers["test_accuracy"] == pytest.approx(accuracy, abs=0.01)
        assert numbers["test_loss"] == pytest.approx(-loss, rel=1e-3)
        assert numbers["gap"] == pytest.approx(known - accuracy, abs=0.01)
        start = plain_network(split(model)[0], trial, one.x, 3)[0].weight
        cosines = torch.nn.functional.normalize(start) @ torch.nn.functional.normalize(start).T
        wanted = cosines[~torch.eye(4, dtype=torch.bool)].square().mean().sqrt()
        assert numbers["start_row_cosine"] == pytest.approx(wanted.item(), rel=1e-4)


def test_the_compiled_engine_gives_the_same_penalised_networks():
    config = make(data=["wine"], epochs=EPOCHS, train_size=24)
    job = Job("wine", "relu-axes", 0, 2)
    one, two = (measure(config, job, Context(engine))["relu-axes"] for engine in ("torch", "auto"))
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=1e-3, atol=1e-4)


def test_strengths_by_accuracy_first_then_loss_and_those_that_ran_away_last():
    accuracy = torch.tensor([[90.0, 91, 91], [50, 40, 30], [math.nan, 2, math.nan]])
    loss = torch.tensor([[0.1, 0.9, 0.5], [9.0, 1, 1], [math.nan, 3, math.nan]])
    assert best_of(accuracy, loss).tolist() == [2, 0, 1]
    equal = torch.tensor([[0.1 + 0.2, 0.3]], dtype=torch.float64)
    assert best_of(equal, torch.tensor([[2.0, 1.0]])).tolist() == [1]


def test_a_trial_that_ran_away_has_no_numbers():
    config = make(data=["iris"], epochs=9, train_size=24, learning_rate=1e12)
    (measured,) = measure(config, Job("iris", "relu-white", 0, 1), Context()).values()
    assert all(bool(values.isnan().all()) for values in measured.metrics.values())
    lost = judge(stack_of([[math.inf, 0.0]]), 0, torch.ones(2, 2), torch.zeros(2).long())
    assert all(map(math.isnan, lost))
