"""What a budget leaves of a run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mahalens.errors import InputError, Interrupted
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.costs import (
    OVERHEAD,
    Cost,
    estimate,
    measure_costs,
    within_budget,
)
from mahalens.studies.representation.problem import Problem

MODELS = ("relu", "abs")
COSTS = {"relu": Cost(1e-7, 1e-3, 1e-2), "abs": Cost(2e-7, 1e-3, 1e-2)}


def config(budget=None, **options):
    return RepresentationConfig.with_defaults(models=MODELS, budget=budget, **options)


def test_a_run_that_fits_is_left_alone():
    given_ = config("100h")
    assert within_budget(given_, COSTS, 1437) is given_
    assert within_budget(config(), COSTS, 1437).shortened == ()


def test_the_estimate_adds_up():
    small = config(trials=2, epochs=10, pixels="raw")
    looks = 1e-3 * 11  # epochs 0 to 10
    step = (1e-7 + 2e-7) * 1000 * 10
    wanted = OVERHEAD + 1.15 * 2 * (step + 2 * looks + 2 * 1e-2)
    assert estimate(small, COSTS, 1000) == pytest.approx(wanted)


def test_trials_go_first_then_samples_then_epochs():
    whole = estimate(config(), COSTS, 60_000) - OVERHEAD
    half = within_budget(config(f"{OVERHEAD + 0.5 * whole}"), COSTS, 60_000)
    assert 5 < half.trials <= 10
    assert (half.train_size, half.epochs) == (None, 5000)
    tenth = within_budget(config(f"{OVERHEAD + 0.1 * whole}"), COSTS, 60_000)
    assert tenth.trials == 5
    assert 15_000 <= tenth.train_size < 60_000
    assert tenth.epochs == 5000
    little = within_budget(config(f"{OVERHEAD + 0.01 * whole}"), COSTS, 60_000)
    assert (little.trials, little.train_size) == (5, 15_000)
    assert 1 <= little.epochs < 5000
    assert little.shortened == (
        f"budget of {little.budget:.0f} s: trials cut from 20 to 5, training samples cut from "
        f"60,000 to 15,000, epochs cut from 5,000 to {little.epochs:,}",
    )
    assert little.deviations()[-1] == little.shortened[0]
    assert little.group == 5


def test_few_samples_are_left_alone():
    little = within_budget(config("40s", epochs=50_000), COSTS, 800)
    assert little.train_size is None
    assert little.epochs < 50_000


def test_a_budget_too_small_for_one_epoch():
    with pytest.raises(InputError, match=r"--budget of 1 s: one epoch of 5 trials of 2 models"):
        within_budget(config("1s"), COSTS, 1437)


@settings(max_examples=60, deadline=None)
@given(
    budget=st.floats(25, 1e6),
    samples=st.integers(10, 60_000),
    trials=st.integers(1, 40),
    epochs=st.integers(1, 50_000),
    speed=st.floats(0.5, 20),
)
def test_what_is_left_fits_and_is_not_more_than_was_asked(budget, samples, trials, epochs, speed):
    asked = replace(config(trials=trials, epochs=epochs), budget=budget)
    try:
        left = within_budget(asked, COSTS, samples, speed=speed)
    except InputError:
        assert estimate(replace(asked, epochs=1, trials=min(5, trials)), COSTS, 10) > 0
        return
    assert estimate(left, COSTS, left.train_size or samples) <= budget * speed
    assert left.trials <= trials
    assert left.epochs <= epochs
    assert (left.train_size or samples) <= samples
    assert left.trials >= min(5, trials)
    changed = (left.trials, left.train_size, left.epochs) != (trials, None, epochs)
    assert bool(left.shortened) == changed


def test_timing_can_be_interrupted():
    asked = RepresentationConfig.with_defaults(models=("relu",), trials=1, train_size=50)
    with pytest.raises(Interrupted):
        measure_costs(Problem.from_config(asked), lambda: True)


def test_costs_are_measured_for_every_model():
    asked = RepresentationConfig.with_defaults(
        models=("relu", "abs-l2"), trials=2, train_size=100, epochs=10
    )
    costs = measure_costs(Problem.from_config(asked))
    assert list(costs) == ["relu", "abs-l2"]
    for cost in costs.values():
        assert cost.step > 0
        assert cost.look > 0
        assert cost.read > 0
