import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from mahalens.errors import InputError
from mahalens.stats import paired_lower, proportion
from mahalens.stats.comparisons import _signed_rank_distribution


def naive_signed_rank_p(difference):
    """P(T+ <= observed) over all 2^n ways to sign the ranks."""
    moved = [value for value in difference if value != 0]
    if not moved:
        return 1.0
    ranks = scipy_stats.rankdata(np.abs(moved))
    observed = sum(rank for rank, value in zip(ranks, moved, strict=True) if value > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product([False, True], repeat=len(moved))
    ]
    return sum(total <= observed for total in sums) / len(sums)


def naive_walsh(difference):
    return sorted(
        (difference[i] + difference[j]) / 2
        for i in range(len(difference))
        for j in range(i, len(difference))
    )


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), max_size=9))
def test_small_samples_are_exact_with_ties_and_zeros(pairs):
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    difference = [x - y for x, y in pairs]
    result = paired_lower(a, b)
    assert result.n == len(pairs)
    assert result.wins == sum(x < y for x, y in pairs)
    assert result.ties == sum(x == y for x, y in pairs)
    assert result.p_value == pytest.approx(naive_signed_rank_p(difference), abs=1e-12)
    if pairs:
        assert result.shift == pytest.approx(np.median(naive_walsh(difference)))
        assert result.median_difference == np.median(difference)


@pytest.mark.parametrize("size", [1, 5, 6, 20, 50, 51, 80])
def test_p_value_is_scipys(size):
    generator = np.random.default_rng(size)
    a, b = generator.normal(size=size), generator.normal(0.4, size=size)
    expected = scipy_stats.wilcoxon(a, b, alternative="less").pvalue
    assert paired_lower(a, b).p_value == pytest.approx(expected, rel=1e-12)


def test_equal_trials_say_nothing():
    result = paired_lower([1.0] * 8, [1.0] * 8)
    assert (result.wins, result.ties, result.p_value) == (0, 8, 1.0)
    assert (result.shift, result.ci95) == (0.0, (0.0, 0.0))


def test_no_pairs_at_all():
    result = paired_lower([math.nan], [1.0])
    assert (result.n, result.dropped, result.p_value, result.ci95) == (0, 1, 1.0, None)
    assert math.isnan(result.shift)
    assert math.isnan(result.median_difference)


def test_pairs_that_are_not_finite_are_dropped_whole():
    a = [1.0, math.nan, 3.0, None, 0.5, 0.1]
    b = [2.0, 5.0, math.inf, 1.0, 0.0, 0.2]
    kept = paired_lower([1.0, 0.5, 0.1], [2.0, 0.0, 0.2])
    result = paired_lower(a, b)
    assert result.dropped == 3
    assert (result.n, result.wins, result.shift) == (kept.n, kept.wins, kept.shift)


def test_swapping_the_models_swaps_the_answer():
    generator = np.random.default_rng(3)
    a, b = generator.lognormal(size=20), generator.lognormal(0.5, size=20)
    there, back = paired_lower(a, b), paired_lower(b, a)
    assert there.wins + back.wins == 20
    assert there.shift == pytest.approx(-back.shift)
    assert there.ci95 == pytest.approx((-back.ci95[1], -back.ci95[0]))
    assert there.p_value < 0.5 < back.p_value


@pytest.mark.parametrize("size", [0, 1, 2, 7, 12])
def test_signed_rank_distribution_counts_subsets(size):
    sums = [
        sum(subset)
        for length in range(size + 1)
        for subset in itertools.combinations(range(1, size + 1), length)
    ]
    counts = np.bincount(sums, minlength=size * (size + 1) // 2 + 1)
    np.testing.assert_allclose(_signed_rank_distribution(size), counts / 2**size, rtol=1e-14)


@pytest.mark.parametrize(("size", "cut"), [(6, 1), (7, 3), (10, 9), (20, 53), (50, 435)])
def test_interval_cuts_where_the_published_tables_do(size, cut):
    # Two-sided 5 % critical values of the signed-rank test are 0, 2, 8, 52 and 434: a null
    # shift is rejected up to there, so the interval starts at the next average.
    difference = np.random.default_rng(size).normal(size=size)
    averages = naive_walsh(difference)
    expected = (averages[cut - 1], averages[-cut])
    assert paired_lower(difference, np.zeros(size)).ci95 == pytest.approx(expected)


def test_interval_holds_the_shifts_that_the_test_does_not_reject():
    difference = np.random.default_rng(5).normal(size=12)
    low, high = paired_lower(difference, np.zeros(12)).ci95
    for shift in np.linspace(low - 0.5, high + 0.5, 41):
        p = scipy_stats.wilcoxon(difference - shift).pvalue
        assert (p > 0.05) == (low < shift < high)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_too_few_pairs_have_no_interval(size):
    assert paired_lower(np.arange(size), np.arange(size) + 1).ci95 is None


def test_large_samples_use_the_normal_cut():
    # At the border the exact and the approximate interval differ by at most a rank or two.
    generator = np.random.default_rng(8)
    difference = generator.normal(size=51)
    low, high = paired_lower(difference, np.zeros(51)).ci95
    averages = naive_walsh(difference)
    exact = int(np.searchsorted(np.cumsum(_signed_rank_distribution(51)), 0.025, side="right"))
    assert abs(averages.index(low) + 1 - exact) <= 2
    assert abs(len(averages) - averages.index(high) - exact) <= 2


def test_one_bad_trial_does_not_carry_the_shift_away():
    a, b = np.full(20, 0.1), np.full(20, 0.2) + np.linspace(0, 1e-3, 20)
    b[0] = 1e9
    result = paired_lower(a, b)
    assert result.shift == pytest.approx(-0.1, abs=1e-2)
    assert result.ci95[1] < 0


def test_unequal_lengths_are_refused():
    with pytest.raises(InputError, match=r"a has 2 trials and b has 3.*same order"):
        paired_lower([1, 2], [1, 2, 3])


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


def test_proportion_takes_numpy_integers_and_mirrors():
    result, other = proportion(np.int64(3), np.int32(20)), proportion(17, 20)
    assert (type(result.k), type(result.share)) == (int, float)
    assert result.ci95 == pytest.approx((1 - other.ci95[1], 1 - other.ci95[0]))


@pytest.mark.parametrize(("k", "n"), [(0, 0), (-1, 3), (4, 3), (0, -2)])
def test_impossible_counts_are_refused(k, n):
    with pytest.raises(InputError, match=rf"k = {k} of n = {n} is no share"):
        proportion(k, n)
