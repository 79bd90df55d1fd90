"""Paired and unpaired comparisons against scipy, published values and slow, obvious twins."""

import itertools
import math
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy import stats as scipy_stats
from stats_samples import SLEEP, WILD_PAIRS, assert_without_nan, is_finite

from mahalens.errors import InputError
from mahalens.stats import (
    Comparison,
    compare,
    compare_family,
    compare_summaries,
    equivalent,
    holm,
    paired_lower,
)
from mahalens.stats.comparisons import (
    noncentrality_interval,
    quarter_differences,
    signed_rank_p,
    without_rounding,
)

# Miles per gallon of the 32 cars of Henderson and Velleman (1981), automatic and manual.
AUTOMATIC = [
    *(21.4, 18.7, 18.1, 14.3, 24.4, 22.8, 19.2, 17.8, 16.4, 17.3),
    *(15.2, 10.4, 10.4, 14.7, 21.5, 15.5, 15.2, 13.3, 19.2),
]
MANUAL = [21.0, 21.0, 22.8, 32.4, 30.4, 33.9, 27.3, 26.0, 30.4, 15.8, 19.7, 15.0, 21.4]

whole_pairs = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=15).map(
    lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
)


def assert_close(left, right, **tolerance):
    if left is None or right is None:
        assert left is right
    else:
        assert left == pytest.approx(right, **(tolerance or {"rel": 1e-9, "abs": 1e-12}))


class TestPairedLower:
    def naive_p(self, difference):
        """P(T+ <= observed) over all 2^n ways to sign the ranks."""
        moved = [value for value in difference if value != 0]
        ranks = scipy_stats.rankdata(np.abs(moved)) if moved else []
        observed = sum(rank for rank, value in zip(ranks, moved, strict=True) if value > 0)
        sums = [
            sum(itertools.compress(ranks, signs))
            for signs in itertools.product([False, True], repeat=len(moved))
        ]
        return sum(total <= observed for total in sums) / len(sums)

    def naive_averages(self, difference):
        pairs = itertools.combinations_with_replacement(difference, 2)
        return sorted((a + b) / 2 for a, b in pairs)

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), max_size=9))
    def test_small_samples_are_exact_with_ties_and_zeros(self, pairs):
        difference = [x - y for x, y in pairs]
        result = paired_lower([x for x, _ in pairs], [y for _, y in pairs])
        assert result.n == len(pairs)
        assert result.wins == sum(d < 0 for d in difference)
        assert result.ties == sum(d == 0 for d in difference)
        assert result.p_value == pytest.approx(self.naive_p(difference), abs=1e-12)
        if pairs:
            assert result.shift == pytest.approx(np.median(self.naive_averages(difference)))
            back = paired_lower([y for _, y in pairs], [x for x, _ in pairs])
            assert (back.shift, back.n - back.ties) == (-result.shift, back.wins + result.wins)
            assert result.median_difference == np.median(difference)

    @pytest.mark.parametrize("size", [1, 5, 6, 20, 50, 51, 80])
    def test_p_value_is_scipys(self, size):
        generator = np.random.default_rng(size)
        a, b = generator.normal(size=size), generator.normal(0.4, size=size)
        expected = scipy_stats.wilcoxon(a, b, alternative="less").pvalue
        assert paired_lower(a, b).p_value == pytest.approx(expected, rel=1e-12)

    # Two-sided 5 % critical values of the signed-rank test are 0, 2, 8, 52 and 434: a null shift
    # is rejected up to there, so the interval starts at the next average. At 51 pairs the normal
    # approximation takes over; the exact cut is 454.
    @pytest.mark.parametrize(
        ("size", "cut"), [(6, 1), (7, 3), (10, 9), (20, 53), (50, 435), (51, 454)]
    )
    def test_interval_cuts_where_the_published_tables_do(self, size, cut):
        difference = np.random.default_rng(size).normal(size=size)
        averages = self.naive_averages(difference)
        low, high = paired_lower(difference, np.zeros(size)).ci95
        slack = 0 if size <= 50 else 2
        assert averages[cut - 1 - slack] - 1e-12 <= low <= averages[cut - 1 + slack] + 1e-12
        assert averages[-cut - slack] - 1e-12 <= high <= averages[-cut + slack] + 1e-12

    def test_interval_holds_the_shifts_that_the_test_does_not_reject(self):
        difference = np.random.default_rng(5).normal(size=12)
        low, high = paired_lower(difference, np.zeros(12)).ci95
        for shift in np.linspace(low - 0.5, high + 0.5, 41):
            p = scipy_stats.wilcoxon(difference - shift).pvalue
            assert (p > 0.05) == (low < shift < high)

    def test_equal_trials_missing_values_and_too_few_pairs(self):
        equal = paired_lower([1.0] * 8, [1.0] * 8)
        assert (equal.wins, equal.ties, equal.p_value) == (0, 8, 1.0)
        assert (equal.shift, equal.ci95) == (0.0, (0.0, 0.0))
        none = paired_lower([math.nan], [1.0])
        assert (none.n, none.dropped, none.p_value, none.ci95) == (0, 1, 1.0, None)
        assert math.isnan(none.shift)
        assert math.isnan(none.median_difference)
        some = paired_lower([1.0, math.nan, 3.0, None, 0.5], [2.0, 5.0, math.inf, 1.0, 0.0])
        rest = paired_lower([1.0, 0.5], [2.0, 0.0])
        assert some == msgspec.structs.replace(rest, dropped=3)
        assert paired_lower(np.arange(5), np.arange(5) + 1).ci95 is None


class TestRounding:
    # Samples of 1000 that were classified correctly.
    A = np.array([945, 946, 918, 909, 913, 923, 899, 935, 923, 928])
    B = np.array([949, 945, 922, 909, 912, 922, 904, 940, 924, 929])

    @pytest.mark.parametrize("per", [3, 10, 1000, 1e9])
    def test_the_unit_of_the_metric_decides_no_tie(self, per):
        counts, shares = paired_lower(self.A, self.B), paired_lower(self.A / per, self.B / per)
        assert counts.p_value == pytest.approx(0.05859375)
        assert (shares.p_value, shares.wins, shares.ties) == (counts.p_value, 6, 1)
        assert shares.shift == pytest.approx(counts.shift / per)
        pairs = (self.A, self.B), (self.A / per, self.B / per)
        plain, scaled = (compare(*pair).wilcoxon_p for pair in pairs)
        assert plain == scaled
        for margin in (1, 3):
            whole = equivalent(self.A, self.B, margin)
            part = equivalent(self.A / per, self.B / per, margin / per)
            assert part.wilcoxon_p == whole.wilcoxon_p

    def test_all_comparisons_agree_that_rounding_is_no_difference(self):
        a, b = [0.3] * 6, [0.1 + 0.2] * 6
        result = paired_lower(a, b)
        assert (result.p_value, result.ties, result.shift) == (1.0, 6, 0.0)
        assert compare(a, b).wilcoxon_p == 1.0

    @pytest.mark.parametrize("margin", [0.1, 0.2, 0.3, 0.7])
    def test_differences_at_the_margin_are_not_within_it(self, margin):
        b = np.arange(1.0, 9.0)
        for a in (b + margin, b - margin):
            at = equivalent(a, b, margin)
            assert (at.verdict, at.preferred_p, at.p_beyond) == ("undecided", 1.0, 1.0)
            assert equivalent(a, b, margin * 1.0001).verdict == "equivalent"
            assert equivalent(a, b, margin * 0.9999).verdict == "different"

    def test_real_differences_stay(self):
        # An error of 1e-3, or a diverged trial, says nothing about the precision of the others.
        a = np.array([1e-26, 3e-26, 2e-26, 5e-26, 1e-27, 1e-3, 1e12])
        b = np.array([2e-26, 5e-26, 5e-26, 9e-26, 1e-26, 2e-3, 1e12])
        np.testing.assert_array_equal(4 * quarter_differences(a, b), a - b)
        assert (paired_lower(a, b).wins, paired_lower(a, b).ties) == (6, 1)
        close = 1 + np.arange(20) * 1e-13
        np.testing.assert_array_equal(4 * quarter_differences(close, 0 * close), close)

    def test_sizes_become_equal_only_if_one_size_is_possible_for_all(self):
        precise, coarse = 1.0, 1e13  # tolerances of 7e-15 and 0.07
        differences = np.array([1.0, -1.05, 1.1, 0.05, -2.0])
        largest = np.array([precise, coarse, precise, coarse, precise])
        assert without_rounding(differences, largest).tolist() == [1.0, -1.0, 1.1, 0.0, -2.0]
        assert without_rounding(differences[:0], largest[:0]).size == 0

    @given(whole_pairs, st.integers(1, 1000))
    def test_differences_of_whole_numbers_keep_their_order(self, pairs, per):
        a, b = (np.array(values, float) for values in pairs)
        cleaned, exact = quarter_differences(a / per, b / per), a - b
        for i, j in itertools.combinations(range(len(a)), 2):
            assert np.sign(cleaned[i] - cleaned[j]) == np.sign(exact[i] - exact[j])
            sizes = np.abs(cleaned)
            assert np.sign(sizes[i] - sizes[j]) == np.sign(abs(exact[i]) - abs(exact[j]))
        assert not np.signbit(cleaned[cleaned == 0]).any()


class TestCompare:
    def test_sleep_data(self):
        # pip install pingouin==0.7.0; pingouin.ttest(a, b, paired=True), pingouin.ttest(a, b,
        # correction=True), pingouin.compute_effsize(a, b), pingouin.wilcoxon, pingouin.normality.
        # The interval is the one R's t.test prints.
        result = compare(*SLEEP)
        assert (result.n, result.dropped, result.n_a, result.n_b) == (10, 0, 10, 10)
        assert (result.mean_a, result.mean_b) == pytest.approx((0.75, 2.33))
        assert (result.sd_a, result.sd_b) == pytest.approx((1.789010, 2.002249), abs=1e-6)
        assert result.mean_difference == pytest.approx(-1.58)
        assert result.difference_ci95 == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)
        assert (result.paired_t, result.paired_df) == (pytest.approx(-4.0621276834), 9)
        assert result.paired_p == pytest.approx(0.0028328902, abs=1e-10)
        assert (result.welch_t, result.welch_df, result.welch_p) == pytest.approx(
            (-1.8608134675, 17.7764735162, 0.0793941402)
        )
        assert result.cohens_d == pytest.approx(-0.8321810813)
        assert result.d_z == pytest.approx(-4.0621276834 / math.sqrt(10))
        assert (result.shapiro_a, result.shapiro_b, result.shapiro_difference) == pytest.approx(
            (0.4079287935, 0.3511346847, 0.0333416088)
        )
        # One patient slept 4.6 hours longer: the samples pass as normal, their differences do not.
        assert (result.samples_normal, result.normal) == (True, False)
        assert (result.preferred_test, result.preferred_p) == ("Wilcoxon", 0.00390625)
        assert result.wilcoxon_p == 0.00390625
        assert msgspec.json.decode(msgspec.json.encode(result), type=Comparison) == result

    def test_effect_size_of_the_cars_is_the_published_one(self):
        # The manual of R's package effectsize gives d = -1.48 with [-2.27, -0.67] for these cars.
        manual = MANUAL + [math.nan] * (len(AUTOMATIC) - len(MANUAL))
        result = compare(AUTOMATIC, manual)
        assert (result.n, result.n_a, result.n_b, result.dropped) == (13, 19, 13, 6)
        assert round(result.cohens_d, 2) == -1.48
        assert [round(end, 2) for end in result.cohens_d_ci95] == [-2.27, -0.67]
        # R: t.test(mpg ~ am) gives t = -3.7671, df = 18.332, p-value = 0.001374.
        assert result.welch_t == pytest.approx(-3.7671, abs=5e-5)
        assert result.welch_df == pytest.approx(18.332, abs=5e-4)
        assert result.welch_p == pytest.approx(0.001374, abs=5e-7)

    @pytest.mark.parametrize("size", [3, 8, 20, 51, 120])
    def test_every_number_is_scipys(self, size):
        generator = np.random.default_rng(size)
        a, b = generator.normal(size=size), generator.normal(0.5, 2, size=size)
        result = compare(a, b)
        paired, welch = scipy_stats.ttest_rel(a, b), scipy_stats.ttest_ind(a, b, equal_var=False)
        assert (result.paired_t, result.paired_p) == pytest.approx(
            (paired.statistic, paired.pvalue)
        )
        assert result.paired_df == paired.df
        assert result.difference_ci95 == pytest.approx(tuple(paired.confidence_interval(0.95)))
        assert (result.welch_t, result.welch_p, result.welch_df) == pytest.approx(
            (welch.statistic, welch.pvalue, welch.df)
        )
        assert result.wilcoxon_p == pytest.approx(scipy_stats.wilcoxon(a, b).pvalue)
        assert (result.shapiro_a, result.shapiro_b, result.shapiro_difference) == pytest.approx(
            tuple(scipy_stats.shapiro(values).pvalue for values in (a, b, a - b)), rel=1e-6
        )
        pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
        assert result.cohens_d == pytest.approx((a.mean() - b.mean()) / pooled)
        assert result.d_z == pytest.approx((a - b).mean() / (a - b).std(ddof=1))

    @settings(deadline=None, max_examples=30)
    @given(whole_pairs)
    def test_swapping_the_models_turns_every_sign(self, pairs):
        there, back = compare(*pairs), compare(*reversed(pairs))
        assert there.n == back.n
        for name in ("mean_difference", "paired_t", "welch_t", "cohens_d", "d_z"):
            right = getattr(back, name)
            assert_close(getattr(there, name), None if right is None else -right)
        for name in ("difference_ci95", "cohens_d_ci95"):
            right = getattr(back, name)
            assert_close(getattr(there, name), None if right is None else (-right[1], -right[0]))
        for name in ("paired_p", "welch_p", "welch_df", "wilcoxon_p"):
            assert_close(getattr(there, name), getattr(back, name))
        assert_close(there.shapiro_a, back.shapiro_b)
        assert (there.mean_a, there.sd_a) == (back.mean_b, back.sd_b)

    @settings(deadline=None, max_examples=30)
    @given(whole_pairs, st.integers(-1000, 1000), st.integers(-60, 60))
    def test_neither_place_nor_scale_of_the_metric_matters(self, pairs, shift, power):
        plain = compare(*pairs)
        moved = compare(*([(x + shift) * 2.0**power for x in values] for values in pairs))
        for name in (
            *("paired_t", "paired_p", "paired_df", "welch_t", "welch_p", "welch_df", "cohens_d"),
            *("cohens_d_ci95", "d_z", "wilcoxon_p", "shapiro_difference"),
        ):
            assert_close(getattr(moved, name), getattr(plain, name), rel=1e-6, abs=1e-9)
        if plain.n:
            assert moved.mean_difference == pytest.approx(plain.mean_difference * 2.0**power)

    @settings(deadline=None, max_examples=50)
    @example(([None, None, None], [0.0, 0.0, 5e-324]))
    @example(([None, None, None], [-1e308, 0.0, 1e308]))
    @given(WILD_PAIRS)
    def test_any_numbers_give_a_comparison_without_nan(self, pairs):
        result = compare(*pairs)
        complete = [all(map(is_finite, pair)) for pair in zip(*pairs, strict=True)]
        assert (result.n, result.dropped) == (sum(complete), len(complete) - sum(complete))
        assert_without_nan(result)
        for name in ("paired_p", "welch_p", "wilcoxon_p", "shapiro_a", "preferred_p"):
            assert getattr(result, name) is None or 0 <= getattr(result, name) <= 1
        if result.cohens_d_ci95 is not None:
            assert result.cohens_d_ci95[0] < result.cohens_d < result.cohens_d_ci95[1]
        assert (result.preferred_p is None) == (result.n < 2)

    def test_trials_without_a_value_are_left_out(self):
        a = [1.0, math.nan, 3.0, None, 0.5, 0.1, 2.0]
        b = [2.0, 5.0, math.inf, 1.0, 0.0, 0.2, 4.0]
        complete = compare([1.0, 0.5, 0.1, 2.0], [2.0, 0.0, 0.2, 4.0])
        result = compare(a, b)
        assert (result.n, result.dropped, result.n_a, result.n_b) == (4, 3, 5, 6)
        for name in ("mean_difference", "paired_t", "paired_p", "wilcoxon_p", "shapiro_difference"):
            assert getattr(result, name) == getattr(complete, name)
        # Welch's test takes all values there are.
        samples = ([x for x in values if is_finite(x)] for values in (a, b))
        welch = scipy_stats.ttest_ind(*samples, equal_var=False)
        assert result.welch_p == pytest.approx(welch.pvalue)

    def test_identical_models_do_not_differ(self):
        result = compare([0.1, 0.7, 0.4, 0.9], [0.1, 0.7, 0.4, 0.9])
        assert (result.paired_t, result.paired_p, result.d_z) == (0.0, 1.0, 0.0)
        assert (result.welch_t, result.welch_p, result.cohens_d) == (0.0, 1.0, 0.0)
        assert (result.wilcoxon_p, result.preferred_p) == (1.0, 1.0)
        assert (result.mean_difference, result.difference_ci95) == (0.0, (0.0, 0.0))
        assert (result.normal, result.shapiro_difference) == (False, None)

    @pytest.mark.parametrize("base", [0.0, 1.0, 1e6])
    def test_equal_differences_leave_the_answer_to_wilcoxon(self, base):
        # 1.1 - 1 and 2.1 - 2 differ in the last bits, which is no spread.
        b = np.arange(8.0) + base
        result = compare(b + 0.1, b)
        assert (result.paired_t, result.paired_p, result.d_z) == (None, None, None)
        assert (result.paired_df, result.preferred_test) == (7, "Wilcoxon")
        assert result.preferred_p == result.wilcoxon_p == pytest.approx(2 / 2**8)
        assert result.mean_difference == pytest.approx(0.1, abs=1e-9)
        assert result.welch_p is not None

    def test_rounding_is_no_difference_but_small_differences_are(self):
        a = np.random.default_rng(0).normal(size=12)
        rounded = compare(a, np.nextafter(a, np.inf))
        assert (rounded.mean_difference, rounded.paired_p, rounded.wilcoxon_p) == (0.0, 1.0, 1.0)
        result = compare([1e12, 1.0, 2.0, 3.0], [1e12, 0.5, 1.25, 2.0])
        assert result.mean_difference == pytest.approx((0.5 + 0.75 + 1) / 4)
        assert result.paired_t is not None

    def test_samples_without_spread(self):
        one = compare([1.0] * 5, [1.0, 2.0, 3.0, 2.0, 1.5])
        assert (one.sd_a, one.shapiro_a, one.samples_normal) == (0.0, None, False)
        assert one.welch_df == pytest.approx(4)
        assert one.welch_p == pytest.approx(one.paired_p)
        both = compare([1.0] * 5, [2.0] * 5)
        assert both.wilcoxon_p == pytest.approx(2 / 2**5)
        beside = compare([1e200] * 3, [1.0, 2.0, 3.0])  # a spread that is nothing beside 1e200
        assert (beside.sd_b, beside.mean_difference) == (1.0, pytest.approx(1e200))
        for result in (both, beside):
            assert (result.welch_t, result.welch_df, result.welch_p) == (None, None, None)
            assert (result.cohens_d, result.cohens_d_ci95) == (None, None)

    @pytest.mark.parametrize(
        ("a", "b", "means"),
        [
            ([], [], (None, None)),
            ([1.0], [3.0], (1.0, 3.0)),
            ([1.0, math.nan], [2.0, 4.0], (1.0, 3.0)),
        ],
    )
    def test_fewer_than_two_pairs_have_counts_and_means_only(self, a, b, means):
        result = compare(a, b)
        defined = {n for n, v in msgspec.structs.asdict(result).items() if v is not None}
        assert (result.mean_a, result.mean_b) == means
        assert defined <= {
            *("n", "dropped", "n_a", "n_b", "mean_a", "mean_b", "sd_b", "mean_difference"),
            *("normal", "samples_normal"),
        }
        assert not result.normal

    def test_numbers_at_the_ends_of_the_range(self):
        largest = sys.float_info.max
        pair = np.array([[1.0, 0.5, 0.25, 0.75], [-1.0, -0.25, -1.0, 0.5]])
        plain = compare(*pair)
        for result in (compare(*(pair * largest)), compare(*(pair * 1e-300))):
            assert result.paired_t == pytest.approx(plain.paired_t)
            assert result.welch_p == pytest.approx(plain.welch_p)
            assert result.cohens_d_ci95 == pytest.approx(plain.cohens_d_ci95)
        assert compare(*(pair * largest)).mean_a == pytest.approx(largest * 0.625)
        assert compare([largest] * 2, [-largest] * 2).mean_difference == math.inf

    def test_normality_chooses_the_test(self):
        bell = scipy_stats.norm.ppf(np.linspace(0.05, 0.95, 12))
        normal = compare(bell + 1, np.zeros(12))
        assert (normal.preferred_test, normal.preferred_p) == ("paired t", normal.paired_p)
        bell[0] = 50.0
        assert compare(bell, np.zeros(12)).preferred_test == "Wilcoxon"
        many = compare(np.random.default_rng(0).normal(size=5001), np.zeros(5001))
        assert (many.shapiro_a, many.normal) == (None, False)


@pytest.mark.parametrize("alternative", ["less", "greater", "two-sided"])
@pytest.mark.parametrize("values", [[1, -1], [1, 1, 1], [2, -1, 2, 3, -3, 5, 1], [-4, 4, 1, -2, 6]])
def test_ties_have_the_p_value_of_all_signs(values, alternative):
    # Scipy goes through all signs, which takes seconds from a dozen trials on.
    expected = scipy_stats.wilcoxon(values, alternative=alternative).pvalue
    p = signed_rank_p(np.array(values, dtype=float), alternative)
    assert p == pytest.approx(expected, rel=1e-12)


class TestNoncentrality:
    def slow_cdf(self, t, df, noncentrality):
        """P(T <= t) by integrating over the spread s of the sample, T = (z + λ) / s."""

        def integrand(s):
            density = scipy_stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)
            return density * scipy_stats.norm.cdf(t * s - noncentrality)

        points = [noncentrality / t] if t else None
        return integrate.quad(integrand, 0, 6, points=points, limit=500)[0]

    # On both sides of 100, where a series gives way to an integral.
    @pytest.mark.parametrize(
        ("t", "df"), [(-3.0, 8), (0.0, 2), (0.4, 38), (12.0, 2), (99.9, 8), (100.1, 8), (130.0, 38)]
    )
    def test_ends_of_the_interval_leave_2_5_percent_outside(self, t, df):
        low, high = noncentrality_interval(t, df)
        assert low < t < high
        assert self.slow_cdf(t, df, low) == pytest.approx(0.975, abs=1e-7)
        assert self.slow_cdf(t, df, high) == pytest.approx(0.025, abs=1e-7)

    @pytest.mark.parametrize("t", [1e3, 1e6, 1e12, 1e100])
    def test_huge_t_has_the_interval_of_its_spread(self, t):
        # Beside t the noise of the mean is nothing; only that of the estimated spread is left.
        expected = t * np.sqrt(scipy_stats.chi2.ppf([0.025, 0.975], 18) / 18)
        tolerance = 1e-4 if t < 1e4 else 1e-9
        assert noncentrality_interval(t, 18) == pytest.approx(tuple(expected), rel=tolerance)


class TestFamily:
    def rejected(self, p_values, level):
        """Holm's procedure in his words: step down while the smallest is small enough."""
        left = sorted(range(len(p_values)), key=lambda i: p_values[i])
        rejections = set()
        while left and p_values[left[0]] * len(left) <= level:
            rejections.add(left.pop(0))
        return rejections

    def test_worked_by_hand(self):
        # In order: 0.005 · 4, 0.01 · 3, 0.03 · 2, and 0.04 · 1, which may not be less than 0.06.
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert (holm([]), holm([0.2]), holm([0.5, 0.6])) == ([], [0.2], [1.0, 1.0])
        assert holm([0.01, None, 0.03, math.nan]) == [0.02, None, 0.03, None]
        # statsmodels 0.15: multipletests(p, method="holm")
        adjusted = holm([0.01, 0.04, 0.03, 0.005, 0.005, 0.9])
        assert adjusted == pytest.approx([0.04, 0.09, 0.09, 0.03, 0.03, 0.9])

    @given(st.lists(st.one_of(st.floats(0, 1), st.none(), st.just(math.nan)), max_size=12))
    def test_adjusting_raises_and_preserves_the_order(self, values):
        pairs = [(p, q) for p, q in zip(values, holm(values), strict=True) if q is not None]
        assert len(pairs) == sum(p is not None and not math.isnan(p) for p in values)
        assert all(p <= q <= 1 for p, q in pairs)
        for (p, q), (other_p, other_q) in itertools.product(pairs, pairs):
            assert q <= other_q or p > other_p

    @given(st.lists(st.integers(0, 64).map(lambda k: k / 64), max_size=8), st.integers(0, 63))
    def test_adjusted_values_reject_what_the_procedure_rejects(self, values, level):
        rejections = {i for i, p in enumerate(holm(values)) if p <= level / 64}
        assert rejections == self.rejected(values, level / 64)

    def test_family_adjusts_each_test_by_itself(self):
        generator = np.random.default_rng(4)
        trials = {name: generator.lognormal(shift, size=12) for shift, name in enumerate("xyz")}
        trials["w"] = np.full(12, math.nan)
        pairs = [("x", "y"), ("z", "x"), ("y", "z"), ("x", "w")]
        family = compare_family(trials, pairs)
        assert [(c.a, c.b) for c in family] == pairs
        assert [c.result for c in family] == [compare(trials[a], trials[b]) for a, b in pairs]
        for test in ("paired", "welch", "wilcoxon", "preferred"):
            p_values = [getattr(c.result, f"{test}_p") for c in family]
            adjusted = [getattr(c, f"holm_{test}") for c in family]
            assert adjusted == holm(p_values)
            assert adjusted[3] is None
            assert min(adjusted[:3]) == 3 * min(p_values[:3])
        assert compare_family({"x": [1.0]}, []) == []


def test_a_summary_is_tested_as_its_samples_are():
    generator = np.random.default_rng(0)
    a, b = generator.normal(3, 1, 20), generator.normal(2, 2, 20)
    result = compare_summaries((a.mean(), a.std(ddof=1)), (b.mean(), b.std(ddof=1)), 20)
    whole = scipy_stats.ttest_ind(a, b)
    assert (result.t, result.p_value) == pytest.approx((whole.statistic, whole.pvalue))
    assert result.cohens_d == pytest.approx(compare(a, b).cohens_d)
    assert result.t_range == (result.t, result.t)


def test_the_range_holds_all_that_rounds_to_the_printed_numbers():
    generator = np.random.default_rng(1)
    result = compare_summaries((95.35, 0.17), (95.26, 0.19), 20, rounding=0.005)
    for _ in range(200):
        shift = generator.uniform(-0.005, 0.005, 4)
        near = compare_summaries(
            (95.35 + shift[0], 0.17 + shift[1]), (95.26 + shift[2], 0.19 + shift[3]), 20
        )
        assert result.t_range[0] <= near.t <= result.t_range[1]
        assert result.d_range[0] <= near.cohens_d <= result.d_range[1]


def family(*pairs):
    models = {"x": [1.0, 2.0], "y": [2.0, 1.0]}
    return lambda: compare_family(models, [tuple(pair) for pair in pairs])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_lower([1, 2], [1, 2, 3]), r"a has 2 trials and b has 3.*same order"),
        (lambda: compare([1, 2], [1, 2, 3]), r"a has 2 trials and b has 3.*same order"),
        (lambda: equivalent([1, 2], [1, 2, 3], 1.0), r"a has 2 trials and b has 3.*same order"),
        (lambda: holm([0.5, -0.1]), r"at place 1 is outside 0 to 1"),
        (lambda: holm([0.5, math.inf]), r"at place 1 is outside 0 to 1"),
        (lambda: compare_summaries((1.0, 0.1), (2.0, 0.1), 1), "give at least 2 each"),
        (lambda: compare_summaries((1.0, 0.0), (2.0, 0.0), 5), "give at least 2 each"),
        (lambda: compare_summaries((1.0, math.nan), (2.0, 0.1), 5), "give at least 2 each"),
        (family("xq"), r"model 'q' has no trials; pass pairs of 'x', 'y'"),
        (family("xx"), r"pair \('x', 'x'\) is one model twice"),
        (family("xy", "yx"), r"pair \('y', 'x'\) is listed twice"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()
