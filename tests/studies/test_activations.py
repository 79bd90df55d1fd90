"""The activations study: readings by hand, and the protocol of the representation study."""

from __future__ import annotations

import pytest
import torch
from small_runs import config_of
from torch import nn

from mahalens.nn import Chain
from mahalens.studies import activations as study
from mahalens.studies import networks as of
from mahalens.studies import representation
from mahalens.studies.run import Context
from mahalens.studies.study import Job, Results
from mahalens.train import TrialStack

make = study.ActivationsConfig.with_defaults


def small(**options):
    return config_of("activations", **{"epochs": 12, "train_size": 90, **options})


def measures_of(config, model, first=0, count=1, data="digits"):
    return study.measure(config, Job(data, model, first, count), Context())[model]


# --- Models, options and claims ---------------------------------------------------------------


def test_swish_is_silu():
    assert make(models=("relu", "swish2-neg", "swish")).models == ("relu", "silu", "silu2-neg")


@pytest.mark.parametrize("name", study.ACTIVATIONS)
def test_three_forms_of_every_activation(name):
    kind = study.ACTIVATIONS[name]
    free, held, far = (study.text_of(f"{name}{form}", 3, 4) for form in study.FORMS)
    assert free == f"Linear(4), {kind}, Linear(3, bias=False)"
    assert (held, far) == (f"{free}, {kind}", f"{free}, {kind}, Neg")
    assert all(study.split(f"{name}{form}") == (name, form) for form in study.FORMS)
    below = (getattr(nn, kind, None) or nn.Identity)()(torch.tensor(-30.0))
    assert (abs(float(below)) < 1e-6) == (name in study.ONE_SIDED)
    assert (name in study.ONE_SIDED) != (name in study.TWO_SIDED)
    keys = {claim.key for claim in study.CLAIMS}
    for key in ("intensities-cost", "distances-no-worse", "distances-equal-free"):
        assert f"{name}-{key}" in keys


def test_the_references_are_the_six_of_the_paper():
    assert set(representation.PRIMARY) <= set(study.MODELS)
    assert study.MODELS["gelu2-neg"].label == "GELU2-Neg"
    assert len(set(study.PAIRS)) == len(study.PAIRS)
    assert {("gelu2", "gelu"), ("abs2-neg", "relu2-neg")} <= set(study.PAIRS)
    assert all(a in study.MODELS and b in study.MODELS and a != b for a, b in study.PAIRS)
    config = make()
    assert study.STUDY.published(config, "test_accuracy", "relu2", "mnist").mean == 47.20
    assert study.STUDY.published(config, "test_accuracy", "relu2", "digits") is None
    assert study.STUDY.published(config, "test_accuracy", "gelu2", "mnist") is None


# --- Reading ----------------------------------------------------------------------------------


def flat_share(values):
    """Return the share of columns that hardly vary, beside the one that varies most."""
    spread = values.double().std(0, correction=0)
    return 100 * float((spread <= 0.01 * spread.max()).double().mean())


@pytest.mark.parametrize("model", study.MODELS)
@torch.no_grad()
def test_readings_equal_plain_counting(model):
    config = small(models=(model,), epochs=3, pixels="raw")
    own = measures_of(config, model, 0, 2)
    data = of.training_data("digits", 90, 0)
    chain = Chain.parse(study.text_of(model, 10), inputs=64)
    for stack, ending in (
        (of.start_of(chain, 0, range(2)), "_start"),
        (TrialStack.from_tensors(chain, own.weights), ""),
    ):
        for trial in range(2):
            outputs = stack[trial](data.x)
            counts = torch.bincount(outputs.argmax(1), minlength=10)
            sizes = torch.bincount(data.y, minlength=10)
            wanted = {
                "unused": 100 * float((counts == 0).double().mean()),
                "rare": 100 * float((counts < 0.1 * sizes).double().mean()),
                "flat": flat_share(outputs),
                "dead": 100 * float((outputs.abs() <= 1e-6).all(0).double().mean()),
            }
            for kind, share in wanted.items():
                value = float(own.metrics[f"{kind}_outputs{ending}"][trial])
                assert value == pytest.approx(share, abs=1e-9), (kind, ending)
    lost = own.metrics["flat_outputs"] - own.metrics["flat_outputs_start"]
    assert torch.equal(own.metrics["outputs_lost"], lost)
    hidden = [flat_share(stack[trial][:2](data.x)) for trial in range(2)]
    assert own.metrics["flat_hidden"].tolist() == pytest.approx(hidden)


# --- Training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", ["normalised", "raw"])
@pytest.mark.parametrize("model", ["relu2", "abs2-neg"])
def test_training_is_that_of_the_representation_study(model, pixels):
    """The six references come out as there, bit by bit."""
    own = measures_of(small(models=[model], pixels=pixels), model, 0, 3)
    options = {"models": (model,), "pixels": pixels, "epochs": 12, "train_size": 90}
    config = config_of("representation", **options)
    other = representation.measure(config, Job(pixels, model, 0, 3), Context())[model]
    same = "test_accuracy train_accuracy train_loss dead_outputs dead_hidden dead_outputs_start"
    for name in (*same.split(), "epochs_to_converge", "late_gain"):
        assert torch.equal(own.metrics[name], other.metrics[name])
    for a, b in zip(own.curves["test_accuracy"], other.curves["test_accuracy"], strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_a_plain_loop_ends_there_too():
    own = measures_of(config_of("activations", epochs=5, train_size=90), "softplus2", 4, 2)
    data = of.training_data("digits", 90, 0)
    x, test_x = of.pixel_inputs(data, "normalised")
    for row, trial in enumerate((4, 5)):
        torch.manual_seed(of.seed_of_trial(0, trial))
        module = Chain.parse(study.text_of("softplus2", 10), inputs=64).build()
        optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
        for _ in range(5):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x), data.y).backward()
            optimiser.step()
        hits = (module(test_x).argmax(1) == data.test_y).double().mean()
        assert float(own.metrics["test_accuracy"][row]) == pytest.approx(100 * float(hits))
        torch.testing.assert_close(own.weights["2.weight"][row], module[2].weight.detach())


def test_adam_learns_more():
    accuracies = [
        measures_of(config_of("activations", epochs=60, solver=solver), "gelu").metrics
        for solver in ("sgd", "adam")
    ]
    sgd, adam = (float(metrics["train_accuracy"]) for metrics in accuracies)
    assert adam > sgd + 30


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_runaways_have_no_numbers(solver):
    config = small(solver=solver, learning_rate=1e12, pixels="raw")
    own = measures_of(config, "softplus", 0, 2)
    if solver == "adam":  # whose steps are bounded, however large
        assert own.metrics["test_accuracy"].isfinite().all()
        return
    assert all(values.isnan().all() for values in own.metrics.values())
    results = Results({("digits", "softplus"): own}, {})
    study.finish(config, results)
    assert results.cautions == []


def test_features_of_a_table_are_standardised_one_by_one():
    """The same network, whatever the units of a table are."""
    config = make(data=["wine"], epochs=3)
    own = measures_of(config, "relu", data="wine")
    raw = measures_of(make(data=["wine"], epochs=3, pixels="raw"), "relu", data="wine")
    assert float(own.metrics["train_loss"]) < 2 < float(raw.metrics["train_loss"])
