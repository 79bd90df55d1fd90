"""Two one-sided tests against scipy and pingouin, and the verdicts that follow."""

import math
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from stats_samples import SLEEP, WILD_PAIRS, assert_without_nan

from mahalens.errors import InputError
from mahalens.stats import Equivalence, compare, equivalent

ZERO = np.zeros(12)
BELL = scipy_stats.norm.ppf(np.linspace(0.05, 0.95, 12))
OUTLIER = np.where(np.arange(12) == 3, 30.0, 0.1 * BELL)


@pytest.mark.parametrize(
    ("margin", "p"), [(1, 0.914944114551), (2, 0.154157235669), (3, 0.002655570292659)]
)
def test_sleep_data(margin, p):
    # pip install pingouin==0.7.0; pingouin.tost(a, b, bound=margin, paired=True)
    result = equivalent(*SLEEP, margin)
    assert result.tost_p == pytest.approx(p, rel=1e-9)
    assert (result.n, result.df, result.margin) == (10, 9, margin)
    assert result.mean_difference == pytest.approx(-1.58)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Equivalence) == result


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(3, 20), st.floats(0.01, 3), st.floats(-2, 2))
def test_two_one_sided_tests_and_the_interval_agree(seed, size, margin, shift):
    generator = np.random.default_rng(seed)
    b = generator.normal(size=size)
    a = b + shift + generator.normal(size=size)
    result = equivalent(a, b, margin)
    lower = scipy_stats.ttest_rel(a, b - margin, alternative="greater")
    upper = scipy_stats.ttest_rel(a, b + margin, alternative="less")
    assert (result.t_lower, result.t_upper, result.p_lower, result.p_upper) == pytest.approx(
        (lower.statistic, upper.statistic, lower.pvalue, upper.pvalue), abs=1e-9
    )
    assert result.tost_p == max(result.p_lower, result.p_upper)
    assert result.ci90 == pytest.approx(tuple(scipy_stats.ttest_rel(a, b).confidence_interval(0.9)))
    assert (result.tost_p < 0.05) == (-margin < result.ci90[0] and result.ci90[1] < margin)
    ranks = [
        scipy_stats.wilcoxon(a - b + margin, alternative="greater").pvalue,
        scipy_stats.wilcoxon(a - b - margin, alternative="less").pvalue,
    ]
    assert result.wilcoxon_p == pytest.approx(max(ranks))
    comparison = compare(a, b)
    assert result.normal == comparison.normal
    assert result.preferred_p == (result.tost_p if result.normal else result.wilcoxon_p)
    if result.normal:
        # Beyond the margin with 95 % confidence, with the usual two-sided interval.
        low, high = comparison.difference_ci95
        assert (result.p_beyond < 0.05) == (low > margin or high < -margin)


@pytest.mark.parametrize(
    ("a", "test", "verdict"),
    [
        (0.1 * BELL, "paired t", "equivalent"),
        (0.1 * BELL + 1, "paired t", "different"),
        (0.1 * BELL - 1, "paired t", "different"),
        (BELL, "paired t", "undecided"),  # no difference detected, yet none excluded
        (OUTLIER, "Wilcoxon", "equivalent"),  # far from normal: the ranks decide
        (OUTLIER + 5, "Wilcoxon", "different"),
        (ZERO, "Wilcoxon", "equivalent"),
        (ZERO + 0.3, "Wilcoxon", "different"),
        (ZERO + 0.2, "Wilcoxon", "undecided"),  # right at the margin
    ],
)
def test_verdicts(a, test, verdict):
    result = equivalent(a, ZERO, 0.2)
    assert (result.preferred_test, result.verdict) == (test, verdict)
    assert result.preferred_p == (result.tost_p if test == "paired t" else result.wilcoxon_p)


def test_p_values_of_ranks_and_of_equal_differences():
    assert compare(BELL, ZERO).paired_p > 0.9
    assert equivalent(OUTLIER, ZERO, 0.2).tost_p > 0.5
    assert equivalent(OUTLIER + 5, ZERO, 0.2).p_beyond == pytest.approx(2 / 2**12)
    beyond, at = equivalent(ZERO + 3.0, ZERO, 2.0), equivalent(ZERO + 2.0, ZERO, 2.0)
    assert (beyond.p_beyond, beyond.ci90) == (pytest.approx(2 / 2**12), (3.0, 3.0))
    assert (at.preferred_p, at.p_beyond) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("size", "verdict"), [(4, "undecided"), (5, "equivalent"), (20, "equivalent")]
)
def test_identical_models_are_equivalent_from_five_trials_on(size, verdict):
    values = np.arange(size) / 7
    result = equivalent(values, values, 0.01)
    assert (result.t_lower, result.tost_p, result.ci90) == (None, None, (0.0, 0.0))
    assert result.verdict == verdict
    assert result.preferred_p == pytest.approx(1 / 2**size) or size > 13


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0]), ([1.0, math.nan], [1.0, 2.0])])
def test_fewer_than_two_pairs_decide_nothing(a, b):
    result = equivalent(a, b, 1.0)
    assert (result.verdict, result.preferred_p, result.ci90) == ("undecided", None, None)
    assert (result.n, result.dropped) == (min(1, len(a)), max(0, len(a) - 1))


@settings(deadline=None, max_examples=40)
@given(WILD_PAIRS, st.floats(5e-324, sys.float_info.max))
def test_any_numbers_give_an_answer_without_nan(pairs, margin):
    a, b = pairs
    there, back = equivalent(a, b, margin), equivalent(b, a, margin)
    assert_without_nan(there)
    assert (there.verdict, there.wilcoxon_p) == (back.verdict, back.wilcoxon_p)


def test_scale_of_the_metric_does_not_matter():
    plain = equivalent(*SLEEP, 2.0)
    for power in (-900, 900):
        result = equivalent(*(np.ldexp(values, power) for values in SLEEP), 2.0 * 2.0**power)
        assert (result.tost_p, result.wilcoxon_p) == (plain.tost_p, plain.wilcoxon_p)


@pytest.mark.parametrize("size", [1e100, 1e300])
def test_margin_far_beyond_the_metric(size):
    result = equivalent(np.array([1.0, 3.0, -2.0, 0.5, 2.0]) / size, np.zeros(5), size)
    assert (result.verdict, result.tost_p, result.t_lower) == ("equivalent", 0.0, None)
    assert result.wilcoxon_p == 1 / 2**5


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf, None, "much"])
def test_impossible_margins_are_refused(margin):
    with pytest.raises(InputError, match=r"margin is .* a finite number above 0 is wanted"):
        equivalent([1.0, 2.0], [1.0, 2.0], margin)
