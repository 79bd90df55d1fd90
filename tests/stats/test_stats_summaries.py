"""Summaries, shares and ratios of spreads against numpy, scipy and their defining equations."""

import math
import statistics
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

import mahalens.stats
from mahalens.errors import InputError
from mahalens.stats import Summary, proportion, spread_ratio, summarise

finite = st.floats(min_value=-1e150, max_value=1e150)
missing = st.sampled_from([math.nan, math.inf, -math.inf, None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 3, 20, 101])
def test_summary_agrees_with_numpy_and_scipy(size, dtype):
    values = np.random.default_rng(size).lognormal(sigma=3, size=size).astype(dtype)
    exact = values.astype(np.float64)
    summary = summarise(values)
    interval = scipy_stats.t.interval(0.95, size - 1, exact.mean(), scipy_stats.sem(exact))
    assert (summary.n, summary.dropped) == (size, 0)
    assert (summary.min, summary.max) == (exact.min(), exact.max())
    assert summary.median == pytest.approx(np.median(exact), rel=1e-15)
    assert (summary.mean, summary.std, summary.variance) == pytest.approx(
        (exact.mean(), exact.std(ddof=1), exact.var(ddof=1)), rel=1e-13
    )
    assert summary.ci95 == pytest.approx(interval, rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.one_of(finite, missing), max_size=12))
def test_summary_is_that_of_the_finite_values(values):
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    summary = summarise(values)
    assert (summary.n, summary.dropped) == (len(numbers), len(values) - len(numbers))
    assert (summary.ci95 is None) == math.isnan(summary.std) == (len(numbers) < 2)
    assert math.isnan(summary.mean) == (not numbers)
    if numbers:
        small = max(1e-12 * max(map(abs, numbers)), 5e-324)
        assert (summary.min, summary.max) == (min(numbers), max(numbers))
        assert summary.mean == pytest.approx(statistics.fmean(numbers), rel=1e-12, abs=small)
        assert summary.median == pytest.approx(statistics.median(numbers), rel=1e-12, abs=small)
    if len(numbers) >= 2:
        assert summary.std == pytest.approx(statistics.stdev(numbers), rel=1e-9, abs=small)
        assert summary.ci95[0] <= summary.mean <= summary.ci95[1]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 30))
def test_equal_values_have_no_width(value, count):
    summary = summarise([value] * count)
    assert (summary.mean, summary.median, summary.min, summary.max) == (value,) * 4
    assert (summary.std, summary.variance, summary.ci95) == (0.0, 0.0, (value, value))


def test_masked_values_are_missing():
    summary = summarise(np.ma.array([1.0, 2.0, 1000.0], mask=[False, False, True]))
    assert (summary.mean, summary.n, summary.dropped) == (1.5, 2, 1)


def test_squares_of_diverged_trials_do_not_overflow_the_spread():
    summary = summarise([1e200, 3e200, 0.0])
    assert summary.std == pytest.approx(1e200 * statistics.stdev([1, 3, 0]))
    assert summary.variance == math.inf
    largest = sys.float_info.max
    assert summarise([largest, largest / 2]).mean == pytest.approx(0.75 * largest)


def test_summary_goes_through_json_with_null_for_undefined():
    assert b'"std":null' in msgspec.json.encode(summarise([1.0]))
    summary = summarise([1.0, 2.0, 4.0])
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
    with pytest.raises(AttributeError):
        summary.mean = 0.0


def test_the_old_spelling_warns():
    with pytest.warns(DeprecationWarning, match="use mahalens.stats.summarise"):
        assert mahalens.stats.summarize([1.0, 2.0]) == summarise([1.0, 2.0])


@settings(deadline=None)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_solves_its_equation(counts):
    k, n = counts
    result = proportion(k, n)
    low, high = result.ci95
    z = scipy_stats.norm.ppf(0.975)
    assert result.share == k / n
    assert 0 <= low <= result.share <= high <= 1
    # The ends are the shares p with |k/n - p| = z sqrt(p (1 - p) / n).
    for end in (low, high):
        assert (k / n - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / n, abs=1e-12)


def test_proportion_takes_numpy_integers():
    result = proportion(np.int64(3), np.int32(20))
    assert (type(result.k), type(result.share)) == (int, float)


def test_spread_ratio_is_brown_and_forsythes():
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=20), generator.normal(5, 3, size=15)
    result = spread_ratio([*a, math.nan], b)
    assert (result.n_a, result.n_b) == (20, 15)
    assert result.ratio == pytest.approx(a.std(ddof=1) / b.std(ddof=1))
    assert result.p_value == pytest.approx(scipy_stats.levene(a, b, center="median").pvalue)


@pytest.mark.parametrize(
    ("a", "b", "ratio", "p"),
    [
        ([1.0], [1.0, 2.0], None, None),
        ([1.0, 1.0], [3.0, 3.0], None, None),
        ([1.0, 2.0], [4.0, 8.0], 0.25, 1.0),
        ([1.0, 2.0, 4.0], [3.0, 3.0, 3.0], math.inf, None),
        ([1.0, 2.0] * 3, [4.0, 8.0] * 3, 0.25, 0.0),
        # Equal spreads, up to rounding of 1.4 - 1.1 and 2.4 - 2.1.
        ([1.1, 1.4] * 6, [2.1, 2.4] * 6, pytest.approx(1.0), 1.0),
    ],
)
def test_spread_ratio_at_its_limits(a, b, ratio, p):
    result = spread_ratio(a, b)
    assert result.ratio == ratio
    assert p is None or result.p_value == p
    assert (result.p_value is None) == (ratio is None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summarise([[1.0, 2.0]]), r"values has shape \[1, 2\].*one number per trial"),
        (lambda: summarise(3.0), r"values has shape \[\]"),
        (lambda: summarise(["a"]), "values must be numbers"),
        (lambda: summarise([[1.0], [1.0, 2.0]]), "values must be numbers"),
        (lambda: summarise(torch.ones(2, requires_grad=True)), "values must be numbers.*detach"),
        (lambda: proportion(2.0, 5), "k = 2.0 of n = 5 are not counts"),
        (lambda: proportion(0, 0), "k = 0 of n = 0 is not a share"),
        (lambda: proportion(-1, 3), "k = -1 of n = 3 is not a share"),
        (lambda: proportion(4, 3), "k = 4 of n = 3 is not a share"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_importing_stats_needs_no_torch():
    code = "import sys, mahalens.stats; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
