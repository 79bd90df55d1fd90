"""Perturbed networks against plain modules, perturbed one trial and one level at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mahalens.auditing.perturbation import GRID_LEVELS, TABLE_LEVELS
from mahalens.errors import Interrupted
from mahalens.nn.chain import Chain
from mahalens.studies.perturbation import measuring
from mahalens.studies.perturbation.levels import TABLE
from mahalens.studies.perturbation.measuring import Halves, measure
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.problem import Group, Problem
from mahalens.train import TrialStack

MODELS = ("relu-bias", "abs-bias", "abs2-neg", "linear-l2", "relu-l2-code", "abs-point")
TRIALS = 3


@pytest.fixture(scope="module")
def problem():
    config = RepresentationConfig.with_defaults(
        models=MODELS, trials=TRIALS, epochs=1, train_size=90, pixels="raw"
    )
    return Problem.from_config(config)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


def group_of(model):
    return Group("raw", model, 0, TRIALS)


class Perturbed(nn.Module):
    """A network with a layer of its own for perturbing, as one would write it by hand."""

    def __init__(self, network, activation, low, high, kind, level, place):
        super().__init__()
        self.network, self.activation = network, activation
        self.low, self.high, self.kind, self.level, self.place = low, high, kind, level, place

    def perturb(self, value):
        span = self.high - self.low
        if self.kind == "scale":
            return self.level * value
        if self.kind == "clip":
            return torch.min(value, self.low + self.level * span)
        return (1 - self.level) * value + self.level * self.high

    def forward(self, x):
        linear, rest = self.network[0], list(self.network)[1:]
        z = linear(x)
        if self.place == "before":
            hidden = self.activation(self.perturb(z))
        else:
            hidden = self.perturb(self.activation(z))
        for layer in rest[1:] if self.activation is not IDENTITY else rest:
            hidden = layer(hidden)
        return hidden


IDENTITY = nn.Identity()


def activation_of(model):
    return {"r": torch.relu, "a": torch.abs, "l": IDENTITY}[model[0]]


def by_hand(problem, model, stack, kind, level, place, x, y):
    """Accuracy of each trial, from plain modules in float64."""
    train, _ = problem.inputs("raw")
    accuracies = []
    for trial in range(TRIALS):
        network = stack[trial].double()
        activation = activation_of(model)
        with torch.no_grad():
            hidden = activation(network[0](train.double()))
            low, high = hidden.min(0).values, hidden.max(0).values
            perturbed = Perturbed(network, activation, low, high, kind, level, place)
            chosen = perturbed(x.double()).argmax(1)
        accuracies.append(100 * float((chosen == y).double().mean()))
    return torch.tensor(accuracies, dtype=torch.float64)


def test_every_level_is_that_of_plain_modules(problem, model):
    stack = problem.start(group_of(model))
    found = measure(problem, group_of(model), stack)
    x, test_x = problem.inputs("raw")
    y, test_y = problem.data.y, problem.data.test_y
    wanted = {
        "train": ("before", x, y),
        "test": ("before", test_x, test_y),
        "after": ("after", x, y),
    }
    for name, (place, samples, labels) in wanted.items():
        for kind, levels in GRID_LEVELS.items():
            assert found[f"{name}/{kind}"].shape == (TRIALS, len(levels))
            for at, level in enumerate(levels):
                slow = by_hand(problem, model, stack, kind, level, place, samples, labels)
                # float32 against float64: a near tie may go the other way
                close = (found[f"{name}/{kind}"][:, at] - slow).abs() <= 100 * 2.5 / len(labels)
                assert close.all(), (name, kind, level)


def test_levels_that_change_nothing_give_the_unperturbed_accuracy(problem, model):
    found = measure(problem, group_of(model), problem.start(group_of(model)))
    for kind, level in (("scale", 1.0), ("clip", 1.0), ("offset", 0.0)):
        at = GRID_LEVELS[kind].index(level)
        for name in ("train", "after"):
            gap = found[f"{name}/{kind}"][:, at] - found["train/unperturbed"]
            assert gap.abs().max() <= 100 * 1.5 / 90


def test_a_layer_without_activation_is_the_same_in_both_places(problem):
    found = measure(problem, group_of("linear-l2"), problem.start(group_of("linear-l2")))
    for kind in GRID_LEVELS:
        assert torch.equal(found[f"train/{kind}"], found[f"after/{kind}"])


def test_scales_are_the_same_before_and_after_relu_and_abs(problem):
    for model in ("relu-bias", "abs-bias"):
        found = measure(problem, group_of(model), problem.start(group_of(model)))
        gap = (found["train/scale"] - found["after/scale"]).abs()
        assert gap.max() <= 100 * 1.5 / 90


def test_scaling_only_weighs_the_output_bias(problem):
    """W(sa) + b and Wa + b/s choose the same class: without bias, scales change nothing."""
    stack = problem.start(group_of("relu-bias"))
    tensors = stack.tensors()
    without = TrialStack.from_tensors(
        stack.chain, {**tensors, "2.bias": torch.zeros_like(tensors["2.bias"])}
    )
    found = measure(problem, group_of("relu-bias"), without)
    assert (
        found["train/scale"] - found["train/unperturbed"][:, None]
    ).abs().max() <= 100 * 1.5 / 90
    for at, level in enumerate(GRID_LEVELS["scale"]):
        weighed = TrialStack.from_tensors(
            stack.chain, {**tensors, "2.bias": tensors["2.bias"] / level}
        )
        wanted = measure(problem, group_of("relu-bias"), weighed)["train/unperturbed"]
        got = measure(problem, group_of("relu-bias"), stack)["train/scale"][:, at]
        assert (wanted - got).abs().max() <= 100 * 1.5 / 90


def test_blocks_of_any_size_give_the_same(problem, monkeypatch):
    stack = problem.start(group_of("abs-bias"))
    whole = measure(problem, group_of("abs-bias"), stack)
    monkeypatch.setattr(Halves, "rows", lambda self: 17)
    again = measure(problem, group_of("abs-bias"), stack)
    assert whole.keys() == again.keys()
    for name, values in whole.items():
        assert (values - again[name]).abs().max() <= 100 * 1.5 / 90, name


def test_ranges_are_those_of_all_samples(monkeypatch):
    chain = Chain.parse("Linear(3), ReLU, Linear(2)", inputs=2)
    stack = TrialStack.from_seeds(chain, range(2))
    x = torch.randn(200, 2)
    monkeypatch.setattr(measuring, "_BLOCK", 1)  # 16 samples at once
    low, high = Halves.of(stack).ranges(x)
    for trial in range(2):
        hidden = torch.relu(stack[trial][0](x)).detach()
        torch.testing.assert_close(low[trial, 0], hidden.min(0).values)
        torch.testing.assert_close(high[trial, 0], hidden.max(0).values)


def test_it_can_be_stopped(problem):
    with pytest.raises(Interrupted):
        measure(problem, group_of("abs-bias"), problem.start(group_of("abs-bias")), lambda: True)


def test_the_columns_of_a_run_are_the_levels_of_the_audit():
    assert TABLE == TABLE_LEVELS
