"""Whether one change is worth more than another, as a claim judges it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mahalens.studies.claims import Evidence, GainsMore

CLAIM = GainsMore("m", "a+", "a", "b+", "b")


def evidence(published=None, **columns):
    trials = {(name, "m"): np.asarray(values, dtype=float) for name, values in columns.items()}
    return Evidence(trials, {}, lambda metric, model: (published or {}).get(model))


def drawn(gain, other, trials=12):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, trials)) * 50  # trials differ far more than models do
    noise = rng.normal(size=(2, trials)) * 0.1
    return {"a": a, "a+": a + gain + noise[0], "b": b, "b+": b + other + noise[1]}


@pytest.mark.parametrize(
    ("gain", "other", "holds"), [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 1.0, None)]
)
def test_the_mean_difference_of_two_gains_decides(gain, other, holds):
    columns = drawn(gain, other)
    found = CLAIM.judge(evidence(**columns))
    difference = (columns["a+"] - columns["a"]) - (columns["b+"] - columns["b"])
    low, high = stats.t.interval(
        0.95, len(difference) - 1, difference.mean(), stats.sem(difference)
    )
    assert found.holds is holds
    assert found.measured == pytest.approx(difference.mean())
    assert (low > 0) == (holds is True)
    assert (high <= 0) == (holds is False)
    assert "a+ gains" in found.why
    assert found.sentence.startswith("Undecided. ") == (holds is None)


def test_trials_without_a_number_are_left_out():
    columns = drawn(2.0, 1.0)
    whole = CLAIM.judge(evidence(**{name: values[1:] for name, values in columns.items()}))
    columns["b"][0] = np.nan
    assert CLAIM.judge(evidence(**columns)) == whole


def test_few_trials_decide_nothing_and_no_numbers_give_no_finding():
    assert CLAIM.judge(evidence(**drawn(2.0, 1.0, trials=4))).holds is None
    columns = drawn(2.0, 1.0)
    del columns["b"]
    assert CLAIM.judge(evidence(**columns)) is None
    apart = {name: [np.nan] * 5 + [1.0] for name in ("a", "a+")}
    assert CLAIM.judge(evidence(**apart, b=[1.0] * 5 + [np.nan], **{"b+": [1.0] * 6})) is None


def test_published_gains():
    figures = {"a+": 5.0, "a": 2.0, "b+": 4.0, "b": 3.5}
    assert CLAIM.published(evidence(figures)) == "3 against 0.5"
    assert CLAIM.published(evidence({"a+": 5.0})) is None
