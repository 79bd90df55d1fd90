"""Predicates about the difference of two models, on hand-made evidence."""

import math

import numpy as np
import pytest

from mahalens.studies.claims import (
    Average,
    Difference,
    Every,
    Evidence,
    Indistinguishable,
    MoreVariable,
    Within,
)

FIGURES = {("accuracy", "a"): 95.64, ("accuracy", "b"): 47.2}
NOISE = np.array([0.1, -0.1, 0.05, -0.05, 0.02, -0.02, 0.08, -0.08])


def evidence(**columns):
    return Evidence(
        trials={(m, "accuracy"): np.array(values, float) for m, values in columns.items()},
        facts={},
        published=lambda metric, model: FIGURES.get((metric, model)),
    )


def is_a_text(why):
    assert why.endswith(".")
    assert why == " ".join(why.split())
    assert "nan" not in why.lower().split()
    assert "None" not in why


def outcome(predicate, **columns):
    found = predicate.judge(evidence(**columns))
    is_a_text(found.why)
    return found


FAR = Difference("accuracy", "a", "b", "below", -20.0)


def test_a_difference_beyond_a_bound():
    base = 90 + NOISE
    assert outcome(FAR, a=base - 50 + NOISE[::-1], b=base).holds is True
    assert outcome(FAR, a=base - 1, b=base).holds is False
    wild = outcome(FAR, a=base - np.array([0, 60, 5, 55, 0, 45, 10, 20]), b=base)
    assert wild.holds is None
    assert wild.sentence.startswith("Undecided. ")
    assert wild.measured == pytest.approx(-24.375)
    assert FAR.published(evidence()) == "95.64 against 47.2"


def test_differences_are_paired():
    """Trials differ by far more than the models, which differ by just over the bound each time."""
    base = np.array([20.0, 90, 40, 70, 55])
    close = Difference("accuracy", "a", "b", "below", -5.0)
    found = outcome(close, a=base - 5.1 + NOISE[:5] / 10, b=base)
    assert found.holds is True


def test_too_few_trials_decide_nothing():
    for predicate in (
        FAR,
        Within("accuracy", "a", "b", 5.0),
        Indistinguishable("accuracy", "a", "b", 5.0),
        MoreVariable("accuracy", "a", "b"),
    ):
        assert outcome(predicate, a=[1.0, 2.0, 3.1], b=[41.0, 42.0, 43.0]).holds is None


def test_missing_models_and_trials():
    for predicate in (
        FAR,
        Within("accuracy", "a", "b", 1.0),
        Indistinguishable("accuracy", "a", "b", 1.0),
        MoreVariable("accuracy", "a", "b"),
    ):
        assert predicate.judge(evidence(a=[1.0] * 6)) is None
        assert predicate.judge(evidence(a=[math.nan] * 6, b=[1.0] * 6)) is None


def test_trials_without_a_value_are_left_out():
    a = [40.0, math.nan, 41, 42, 40, 41, 39]
    b = [90.0, 91, math.nan, 90, 91, 90, 92]
    assert outcome(FAR, a=a, b=b).holds is True


def test_within_a_margin():
    near = Within("accuracy", "a", "b", 0.5)
    base = 95 + NOISE
    assert outcome(near, a=base + NOISE[::-1], b=base).holds is True
    assert outcome(near, a=base + 2 + NOISE[::-1], b=base).holds is False
    assert outcome(near, a=base - 2 + NOISE[::-1], b=base).holds is False
    assert outcome(near, a=base + 20 * NOISE, b=base).holds is None
    assert outcome(near, a=base + 0.5 + NOISE[::-1], b=base).holds is None


def test_equal_runs_are_within_any_margin():
    assert outcome(Within("accuracy", "a", "b", 0.1), a=[5.0] * 6, b=[5.0] * 6).holds is True


def test_indistinguishable_needs_more_than_a_lack_of_significance():
    alike = Indistinguishable("accuracy", "a", "b", 0.5)
    base = 95 + NOISE
    assert outcome(alike, a=base + NOISE[::-1] / 2, b=base).holds is True
    # A small but certain difference.
    assert outcome(alike, a=base + 0.3 + NOISE / 10, b=base).holds is False
    # Not significant, but so wild that nothing is shown.
    assert outcome(alike, a=base + 30 * NOISE, b=base).holds is None


def test_more_variable():
    wilder = MoreVariable("accuracy", "a", "b")
    assert outcome(wilder, a=90 + 30 * NOISE, b=90 + NOISE).holds is True
    assert outcome(wilder, a=90 + NOISE, b=90 + 30 * NOISE).holds is False
    assert outcome(wilder, a=90 + 1.1 * NOISE, b=90 + NOISE).holds is None
    assert outcome(wilder, a=90 + 30 * NOISE, b=90 + NOISE).measured == pytest.approx(30)
    assert wilder.judge(evidence(a=[5.0] * 6, b=[5.0] * 6)) is None


def test_every():
    high, low = Average("accuracy", "a", "above", 90.0), Average("accuracy", "b", "above", 90.0)
    both = Every((high, low))
    good, bad = 95 + NOISE, 50 + NOISE
    assert outcome(both, a=good, b=good).holds is True
    assert outcome(both, a=good, b=bad).holds is False
    assert outcome(both, a=good, b=90 + 100 * NOISE).holds is None
    open_ = outcome(both, a=good, b=90 + 100 * NOISE)
    assert open_.sentence.startswith("Undecided. a: mean 95")
    assert open_.sentence.count("Undecided") == 1
    assert outcome(both, a=good[:3], b=good).sentence.startswith("Too few trials to tell. a: mean")
    half = outcome(both, a=good)
    assert half.holds is None
    assert half.measured == 0.5
    assert "1 of 2 parts have no numbers here" in half.why
    assert outcome(both, a=bad).holds is False
    assert both.judge(evidence(c=good)) is None
    assert both.published(evidence()) == "mean 95.6; mean 47.2"


def test_a_difference_of_nothing_but_rounding_is_zero():
    random = np.random.default_rng(0)
    a = 100 * random.random(7)
    b = random.permutation(a)
    assert float(np.mean(a - b)) != 0  # or the test would show nothing
    for predicate in (FAR, Within("accuracy", "a", "b", 1.0)):
        assert outcome(predicate, a=a, b=b).measured == 0.0
    near = outcome(FAR, a=a + 1e-9, b=a)
    assert near.measured == pytest.approx(1e-9, rel=1e-3)
