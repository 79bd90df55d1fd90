import math
import statistics
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from mahalens.errors import InputError
from mahalens.stats import Summary, summarize

finite = st.floats(min_value=-1e150, max_value=1e150)
missing = st.sampled_from([math.nan, math.inf, -math.inf, None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 3, 20, 101])
def test_summary_agrees_with_numpy_and_scipy(size, dtype):
    values = np.random.default_rng(size).lognormal(sigma=3, size=size).astype(dtype)
    exact = values.astype(np.float64)
    summary = summarize(values)
    low, high = scipy_stats.t.interval(
        0.95, size - 1, loc=exact.mean(), scale=scipy_stats.sem(exact)
    )
    assert summary.n == size
    assert summary.dropped == 0
    assert summary.mean == pytest.approx(exact.mean(), rel=1e-13)
    assert summary.std == pytest.approx(exact.std(ddof=1), rel=1e-13)
    assert summary.variance == pytest.approx(exact.var(ddof=1), rel=1e-13)
    assert summary.median == pytest.approx(np.median(exact), rel=1e-15)
    assert (summary.min, summary.max) == (exact.min(), exact.max())
    assert summary.ci95 == pytest.approx((low, high), rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.one_of(finite, missing), max_size=12))
def test_summary_is_that_of_the_finite_values(values):
    kept = [value for value in values if value is not None and math.isfinite(value)]
    summary = summarize(values)
    assert summary.n == len(kept)
    assert summary.dropped == len(values) - len(kept)
    assert summary.ci95 is None or summary.n >= 2
    if not kept:
        assert math.isnan(summary.mean)
        assert summary.ci95 is None
        return
    scale = max(map(abs, kept))
    assert (summary.min, summary.max) == (min(kept), max(kept))
    assert summary.mean == pytest.approx(statistics.fmean(kept), rel=1e-12, abs=1e-12 * scale)
    assert summary.median == pytest.approx(
        statistics.median(kept), rel=1e-12, abs=max(1e-12 * scale, 5e-324)
    )
    if len(kept) >= 2:
        assert summary.std == pytest.approx(
            statistics.stdev(kept), rel=1e-9, abs=max(1e-12 * scale, 5e-324)
        )
        assert summary.ci95[0] <= summary.mean <= summary.ci95[1]
    else:
        assert math.isnan(summary.std)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 30))
def test_equal_values_have_no_width(value, count):
    summary = summarize([value] * count)
    assert (summary.mean, summary.median, summary.min, summary.max) == (value,) * 4
    assert (summary.std, summary.variance, summary.ci95) == (0.0, 0.0, (value, value))


def test_one_value_has_no_interval():
    summary = summarize([3.0, math.nan])
    assert (summary.mean, summary.n, summary.dropped, summary.ci95) == (3.0, 1, 1, None)
    assert math.isnan(summary.std)
    assert math.isnan(summary.variance)


def test_squares_of_diverged_trials_do_not_overflow_the_spread():
    summary = summarize([1e200, 3e200, 0.0])
    assert summary.std == pytest.approx(1e200 * statistics.stdev([1, 3, 0]))
    assert summary.variance == math.inf
    largest = sys.float_info.max
    assert summarize([largest, largest / 2]).mean == pytest.approx(0.75 * largest)


def test_shifting_and_scaling_carry_over():
    values = np.random.default_rng(0).normal(size=20)
    first, second = summarize(values), summarize(3 * values - 5)
    assert second.mean == pytest.approx(3 * first.mean - 5)
    assert second.variance == pytest.approx(9 * first.variance)
    assert second.ci95 == pytest.approx([3 * end - 5 for end in first.ci95])


def test_summary_goes_through_json_with_null_for_undefined():
    encoded = msgspec.json.encode(summarize([1.0]))
    assert b'"std":null' in encoded
    full = summarize([1.0, 2.0, 4.0])
    assert msgspec.json.decode(msgspec.json.encode(full), type=Summary) == full
    with pytest.raises(AttributeError):
        full.mean = 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0]], r"values has shape \[1, 2\].*one number per trial"),
        (3.0, r"values has shape \[\]"),
        (["a"], "values must be numbers"),
        ([[1.0], [1.0, 2.0]], "values must be numbers"),
    ],
)
def test_what_is_not_a_flat_list_of_numbers_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        summarize(values)


def test_importing_stats_needs_neither_torch_nor_scipy():
    code = (
        "import sys, mahalens.stats; "
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'scipy'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []
