import math
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from mahalens.errors import InputError
from mahalens.stats import Equivalence, compare, equivalent

SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
BELL = scipy_stats.norm.ppf(np.linspace(0.05, 0.95, 12))

wild = st.one_of(st.floats(), st.none(), st.sampled_from([0.0, 1.0, sys.float_info.max]))


@pytest.mark.parametrize(
    ("margin", "p"), [(1, 0.914944114551), (2, 0.154157235669), (3, 0.002655570292659)]
)
def test_sleep_data(margin, p):
    # pip install pingouin==0.7.0; pingouin.tost(a, b, bound=margin, paired=True)
    result = equivalent(SLEEP_1, SLEEP_2, margin)
    assert result.tost_p == pytest.approx(p, rel=1e-9)
    assert (result.n, result.df, result.margin) == (10, 9, margin)
    assert result.mean_difference == pytest.approx(-1.58)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(3, 20), st.floats(0.01, 3), st.floats(-2, 2))
def test_two_one_sided_tests_and_the_interval_say_the_same(seed, size, margin, shift):
    generator = np.random.default_rng(seed)
    b = generator.normal(size=size)
    a = b + shift + generator.normal(size=size)
    result = equivalent(a, b, margin)
    lower = scipy_stats.ttest_rel(a, b - margin, alternative="greater")
    upper = scipy_stats.ttest_rel(a, b + margin, alternative="less")
    assert result.t_lower == pytest.approx(lower.statistic, abs=1e-9)
    assert result.t_upper == pytest.approx(upper.statistic, abs=1e-9)
    assert result.p_lower == pytest.approx(lower.pvalue, abs=1e-9)
    assert result.p_upper == pytest.approx(upper.pvalue, abs=1e-9)
    assert result.tost_p == max(result.p_lower, result.p_upper)
    assert result.ci90 == pytest.approx(tuple(scipy_stats.ttest_rel(a, b).confidence_interval(0.9)))
    assert (result.tost_p < 0.05) == (-margin < result.ci90[0] and result.ci90[1] < margin)
    ranks = [
        scipy_stats.wilcoxon(a - b + margin, alternative="greater").pvalue,
        scipy_stats.wilcoxon(a - b - margin, alternative="less").pvalue,
    ]
    assert result.wilcoxon_p == pytest.approx(max(ranks))
    assert result.normal == compare(a, b).normal
    assert result.preferred_p == (result.tost_p if result.normal else result.wilcoxon_p)
    if result.normal:
        # Beyond the margin with 95 % confidence, with the usual two-sided interval.
        low, high = compare(a, b).difference_ci95
        assert (result.p_beyond < 0.05) == (low > margin or high < -margin)


def test_verdicts():
    zero = np.zeros(12)
    assert equivalent(0.1 * BELL, zero, 0.2).verdict == "equivalent"
    assert equivalent(0.1 * BELL + 1, zero, 0.2).verdict == "different"
    assert equivalent(0.1 * BELL - 1, zero, 0.2).verdict == "different"
    assert equivalent(BELL, zero, 0.2).verdict == "undecided"
    # Not seeing a difference is not the same as there being none.
    assert compare(BELL, zero).paired_p > 0.9


def test_far_from_normal_asks_the_ranks():
    a = 0.1 * BELL
    a[3] = 30.0
    result = equivalent(a, np.zeros(12), 0.2)
    assert (result.normal, result.preferred_test) == (False, "Wilcoxon")
    assert result.tost_p > 0.5
    assert result.preferred_p == result.wilcoxon_p < 0.05
    assert result.verdict == "equivalent"
    beyond = equivalent(a + 5, np.zeros(12), 0.2)
    assert beyond.verdict == "different"
    assert beyond.p_beyond == pytest.approx(2 / 2**12)


@pytest.mark.parametrize(
    ("size", "verdict"), [(4, "undecided"), (5, "equivalent"), (20, "equivalent")]
)
def test_identical_models_are_equivalent_from_five_trials_on(size, verdict):
    values = np.arange(size) / 7
    result = equivalent(values, values, 0.01)
    assert (result.t_lower, result.tost_p, result.ci90) == (None, None, (0.0, 0.0))
    assert result.verdict == verdict
    if size <= 13:
        assert result.preferred_p == pytest.approx(1 / 2**size)


def test_equal_differences_beyond_and_at_the_margin():
    zero = np.zeros(8)
    beyond = equivalent(zero + 3.0, zero, 2.0)
    assert (beyond.verdict, beyond.ci90) == ("different", (3.0, 3.0))
    assert beyond.p_beyond == pytest.approx(2 / 2**8)
    at = equivalent(zero + 2.0, zero, 2.0)
    assert (at.verdict, at.preferred_p, at.p_beyond) == ("undecided", 1.0, 1.0)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0]), ([1.0, math.nan], [1.0, 2.0])])
def test_fewer_than_two_pairs_decide_nothing(a, b):
    result = equivalent(a, b, 1.0)
    assert (result.verdict, result.preferred_p, result.ci90) == ("undecided", None, None)
    assert (result.n, result.dropped) == (min(1, len(a)), max(0, len(a) - 1))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(wild, wild), max_size=8), st.floats(5e-324, sys.float_info.max))
def test_any_numbers_give_an_answer_without_nan(pairs, margin):
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    there, back = equivalent(a, b, margin), equivalent(b, a, margin)
    for value in msgspec.structs.astuple(there):
        for number in value if isinstance(value, tuple) else (value,):
            assert not (isinstance(number, float) and math.isnan(number))
    assert there.verdict == back.verdict
    assert there.wilcoxon_p == back.wilcoxon_p


def test_scale_of_the_metric_does_not_matter():
    plain = equivalent(SLEEP_1, SLEEP_2, 2.0)
    for power in (-900, 900):
        a, b = (np.ldexp(values, power) for values in (SLEEP_1, SLEEP_2))
        result = equivalent(a, b, 2.0 * 2.0**power)
        assert (result.tost_p, result.wilcoxon_p) == (plain.tost_p, plain.wilcoxon_p)


def test_equivalence_goes_through_json():
    result = equivalent(SLEEP_1, SLEEP_2, 3.0)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Equivalence) == result


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf, None, "much"])
def test_impossible_margins_are_refused(margin):
    with pytest.raises(InputError, match=r"margin is .* a finite number above 0 is wanted"):
        equivalent([1.0, 2.0], [1.0, 2.0], margin)


def test_unequal_lengths_are_refused():
    with pytest.raises(InputError, match=r"a has 2 trials and b has 3.*same order"):
        equivalent([1, 2], [1, 2, 3], 1.0)


def test_margin_far_beyond_the_metric():
    values = np.array([1.0, 3.0, -2.0, 0.5, 2.0])
    result = equivalent(1e-100 * values, np.zeros(5), 1e100)
    assert (result.verdict, result.tost_p, result.t_lower) == ("equivalent", 0.0, None)
    # In units of this margin, the differences are 0.
    result = equivalent(1e-300 * values, np.zeros(5), 1e300)
    assert (result.verdict, result.tost_p, result.wilcoxon_p) == ("equivalent", None, 1 / 2**5)
