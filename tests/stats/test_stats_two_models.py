import math
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy import stats as scipy_stats

from mahalens.errors import InputError
from mahalens.stats import Comparison, compare
from mahalens.stats.effect_size import _integral, noncentrality_interval
from mahalens.stats.pairs import signed_rank_p

# Student's sleep data: extra hours of sleep of ten patients under two drugs.
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

# Miles per gallon of the 32 cars of Henderson and Velleman (1981), automatic and manual.
AUTOMATIC = [
    *(21.4, 18.7, 18.1, 14.3, 24.4, 22.8, 19.2, 17.8, 16.4, 17.3),
    *(15.2, 10.4, 10.4, 14.7, 21.5, 15.5, 15.2, 13.3, 19.2),
]
MANUAL = [21.0, 21.0, 22.8, 32.4, 30.4, 33.9, 27.3, 26.0, 30.4, 15.8, 19.7, 15.0, 21.4]

whole = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=15)
wild = st.one_of(st.floats(), st.none(), st.sampled_from([0.0, 1.0, sys.float_info.max]))
EXACT = {"rel": 1e-9, "abs": 1e-12}


def columns(pairs):
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def assert_close(left, right, **tolerance):
    if left is None or right is None:
        assert left is right
    else:
        assert left == pytest.approx(right, **(tolerance or EXACT))


def test_sleep_data():
    # pip install pingouin==0.7.0; pingouin.ttest(a, b, paired=True), pingouin.ttest(a, b,
    # correction=True), pingouin.compute_effsize(a, b), pingouin.wilcoxon, pingouin.normality.
    # The interval is the one R's t.test prints.
    result = compare(SLEEP_1, SLEEP_2)
    assert (result.n, result.dropped, result.n_a, result.n_b) == (10, 0, 10, 10)
    assert (result.mean_a, result.mean_b) == pytest.approx((0.75, 2.33))
    assert (result.sd_a, result.sd_b) == pytest.approx((1.789010, 2.002249), abs=1e-6)
    assert result.mean_difference == pytest.approx(-1.58)
    assert result.difference_ci95 == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)
    assert (result.paired_t, result.paired_df) == (pytest.approx(-4.0621276834), 9)
    assert result.paired_p == pytest.approx(0.0028328902, abs=1e-10)
    assert result.welch_t == pytest.approx(-1.8608134675)
    assert result.welch_df == pytest.approx(17.7764735162)
    assert result.welch_p == pytest.approx(0.0793941402)
    assert result.cohens_d == pytest.approx(-0.8321810813)
    assert result.d_z == pytest.approx(-4.0621276834 / math.sqrt(10))
    assert result.wilcoxon_p == 0.00390625
    assert result.shapiro_a == pytest.approx(0.4079287935)
    assert result.shapiro_b == pytest.approx(0.3511346847)
    assert result.shapiro_difference == pytest.approx(0.0333416088)
    # One patient slept 4.6 hours longer: the samples pass as normal, their differences do not.
    assert (result.samples_normal, result.normal) == (True, False)
    assert (result.preferred_test, result.preferred_p) == ("Wilcoxon", 0.00390625)


def test_effect_size_of_the_cars_is_the_published_one():
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
def test_every_number_is_scipys(size):
    generator = np.random.default_rng(size)
    a, b = generator.normal(size=size), generator.normal(0.5, 2, size=size)
    result = compare(a, b)
    paired, welch = scipy_stats.ttest_rel(a, b), scipy_stats.ttest_ind(a, b, equal_var=False)
    assert result.paired_t == pytest.approx(paired.statistic)
    assert result.paired_p == pytest.approx(paired.pvalue)
    assert result.paired_df == paired.df
    assert result.difference_ci95 == pytest.approx(tuple(paired.confidence_interval(0.95)))
    assert result.welch_t == pytest.approx(welch.statistic)
    assert result.welch_p == pytest.approx(welch.pvalue)
    assert result.welch_df == pytest.approx(welch.df)
    assert result.wilcoxon_p == pytest.approx(scipy_stats.wilcoxon(a, b).pvalue)
    for found, values in [
        (result.shapiro_a, a),
        (result.shapiro_b, b),
        (result.shapiro_difference, a - b),
    ]:
        assert found == pytest.approx(scipy_stats.shapiro(values).pvalue, rel=1e-6)
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert result.cohens_d == pytest.approx((a.mean() - b.mean()) / pooled)
    assert result.d_z == pytest.approx((a - b).mean() / (a - b).std(ddof=1))


@pytest.mark.parametrize("alternative", ["less", "greater", "two-sided"])
@pytest.mark.parametrize("values", [[1, -1], [1, 1, 1], [2, -1, 2, 3, -3, 5, 1], [-4, 4, 1, -2, 6]])
def test_ties_have_the_p_value_of_all_signs(values, alternative):
    # Scipy goes through all signs, which takes seconds from a dozen trials on.
    found = signed_rank_p(np.array(values, dtype=float), alternative)
    expected = scipy_stats.wilcoxon(values, alternative=alternative).pvalue
    assert found == pytest.approx(expected, rel=1e-12)


def slow_cdf(t, df, noncentrality):
    """P(T <= t) by integrating over the spread s of the sample, T = (z + λ) / s."""

    def integrand(s):
        density = scipy_stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)
        return density * scipy_stats.norm.cdf(t * s - noncentrality)

    points = [noncentrality / t] if t else None
    return integrate.quad(integrand, 0, 6, points=points, limit=500)[0]


@pytest.mark.parametrize("df", [2, 8, 38])
@pytest.mark.parametrize("t", [-3.0, 0.0, 0.4, 2.6, 12.0, 60.0])
def test_ends_of_the_noncentral_interval_leave_2_5_percent_outside(t, df):
    low, high = noncentrality_interval(t, df)
    assert low < t < high
    assert slow_cdf(t, df, low) == pytest.approx(0.975, abs=1e-7)
    assert slow_cdf(t, df, high) == pytest.approx(0.025, abs=1e-7)


@pytest.mark.parametrize("df", [2, 18, 198])
def test_series_and_integral_agree_where_they_meet(df):
    for noncentrality in (50.0, 90.0, 100.0, 130.0):
        expected = scipy_stats.nct.cdf(100.0, df, noncentrality)
        assert _integral(100.0, df, noncentrality) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("t", [1e3, 1e6, 1e12, 1e100])
def test_huge_t_has_the_interval_of_its_spread(t):
    # The noise of the mean is nothing beside t; what is left is that of the estimated spread.
    low, high = noncentrality_interval(t, 18)
    expected = t * np.sqrt(scipy_stats.chi2.ppf([0.025, 0.975], 18) / 18)
    assert (low, high) == pytest.approx(tuple(expected), rel=1e-4 if t < 1e4 else 1e-9)


@settings(deadline=None, max_examples=60)
@given(whole)
def test_swapping_the_models_turns_every_sign(pairs):
    a, b = columns(pairs)
    there, back = compare(a, b), compare(b, a)
    assert there.n == back.n
    for name in ("mean_difference", "paired_t", "welch_t", "cohens_d", "d_z"):
        left, right = getattr(there, name), getattr(back, name)
        assert_close(left, None if right is None else -right)
    for name in ("difference_ci95", "cohens_d_ci95"):
        left, right = getattr(there, name), getattr(back, name)
        assert_close(left, None if right is None else (-right[1], -right[0]))
    for name in ("paired_p", "welch_p", "welch_df", "wilcoxon_p"):
        assert_close(getattr(there, name), getattr(back, name))
    assert_close(there.shapiro_a, back.shapiro_b)
    assert (there.mean_a, there.sd_a) == (back.mean_b, back.sd_b)


@settings(deadline=None, max_examples=60)
@given(whole, st.integers(-1000, 1000), st.integers(-60, 60))
def test_neither_place_nor_scale_of_the_metric_matters(pairs, shift, power):
    a, b = columns(pairs)
    plain = compare(a, b)
    moved = compare([(x + shift) * 2.0**power for x in a], [(x + shift) * 2.0**power for x in b])
    for name in (
        *("paired_t", "paired_p", "paired_df", "welch_t", "welch_p", "welch_df", "cohens_d"),
        *("cohens_d_ci95", "d_z", "wilcoxon_p", "shapiro_difference"),
    ):
        assert_close(getattr(moved, name), getattr(plain, name), rel=1e-6, abs=1e-9)
    if plain.n:
        assert moved.mean_difference == pytest.approx(plain.mean_difference * 2.0**power)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(wild, wild), max_size=8))
def test_any_numbers_give_a_comparison_without_nan(pairs):
    a, b = columns(pairs)
    result = compare(a, b)
    kept = [
        (x, y)
        for x, y in pairs
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
    ]
    assert (result.n, result.dropped) == (len(kept), len(pairs) - len(kept))
    for value in msgspec.structs.astuple(result):
        for number in value if isinstance(value, tuple) else (value,):
            assert not (isinstance(number, float) and math.isnan(number))
    for name in ("paired_p", "welch_p", "wilcoxon_p", "shapiro_a", "preferred_p"):
        assert getattr(result, name) is None or 0 <= getattr(result, name) <= 1
    if result.cohens_d_ci95 is not None:
        low, high = result.cohens_d_ci95
        assert low < result.cohens_d < high
    assert (result.preferred_p is None) == (result.n < 2)


def test_trials_without_a_value_are_left_out():
    a = [1.0, math.nan, 3.0, None, 0.5, 0.1, 2.0]
    b = [2.0, 5.0, math.inf, 1.0, 0.0, 0.2, 4.0]
    kept = compare([1.0, 0.5, 0.1, 2.0], [2.0, 0.0, 0.2, 4.0])
    result = compare(a, b)
    assert (result.n, result.dropped, result.n_a, result.n_b) == (4, 3, 5, 6)
    for name in ("mean_difference", "paired_t", "paired_p", "wilcoxon_p", "shapiro_difference"):
        assert getattr(result, name) == getattr(kept, name)
    # Welch's test takes all values there are.
    welch = scipy_stats.ttest_ind(
        [1.0, 3.0, 0.5, 0.1, 2.0], [2.0, 5.0, 1.0, 0.0, 0.2, 4.0], equal_var=False
    )
    assert result.welch_p == pytest.approx(welch.pvalue)


def test_identical_models_do_not_differ():
    result = compare([0.1, 0.7, 0.4, 0.9], [0.1, 0.7, 0.4, 0.9])
    assert (result.paired_t, result.paired_p, result.d_z) == (0.0, 1.0, 0.0)
    assert (result.welch_t, result.welch_p, result.cohens_d) == (0.0, 1.0, 0.0)
    assert (result.wilcoxon_p, result.preferred_p) == (1.0, 1.0)
    assert (result.mean_difference, result.difference_ci95) == (0.0, (0.0, 0.0))
    assert (result.normal, result.shapiro_difference) == (False, None)


@pytest.mark.parametrize("base", [0.0, 1.0, 1e6])
def test_equal_differences_leave_the_answer_to_wilcoxon(base):
    # 1.1 - 1 and 2.1 - 2 differ in the last bits, which is no spread.
    b = np.arange(8.0) + base
    result = compare(b + 0.1, b)
    assert (result.paired_t, result.paired_p, result.d_z, result.paired_df) == (None, None, None, 7)
    assert (result.preferred_test, result.preferred_p) == ("Wilcoxon", result.wilcoxon_p)
    assert result.wilcoxon_p == pytest.approx(2 / 2**8)
    assert result.mean_difference == pytest.approx(0.1, abs=1e-9)
    assert result.welch_p is not None


def test_rounding_alone_is_no_difference():
    a = np.random.default_rng(0).normal(size=12)
    result = compare(a, np.nextafter(a, np.inf))
    assert (result.mean_difference, result.paired_p, result.wilcoxon_p) == (0.0, 1.0, 1.0)


def test_small_differences_beside_one_large_trial_are_seen():
    result = compare([1e12, 1.0, 2.0, 3.0], [1e12, 0.5, 1.25, 2.0])
    assert result.mean_difference == pytest.approx((0.5 + 0.75 + 1) / 4)
    assert result.paired_t is not None


def test_constant_samples():
    one = compare([1.0] * 5, [1.0, 2.0, 3.0, 2.0, 1.5])
    assert (one.sd_a, one.shapiro_a, one.samples_normal) == (0.0, None, False)
    assert one.welch_df == pytest.approx(4)
    assert one.welch_p == pytest.approx(one.paired_p)
    both = compare([1.0] * 5, [2.0] * 5)
    assert (both.welch_t, both.welch_df, both.welch_p) == (None, None, None)
    assert (both.cohens_d, both.cohens_d_ci95) == (None, None)
    assert both.wilcoxon_p == pytest.approx(2 / 2**5)


@pytest.mark.parametrize(
    ("a", "b", "means"),
    [([], [], (None, None)), ([1.0], [3.0], (1.0, 3.0)), ([1.0, math.nan], [2.0, 4.0], (1.0, 3.0))],
)
def test_fewer_than_two_pairs_have_counts_and_means_only(a, b, means):
    result = compare(a, b)
    defined = {
        name: value
        for name, value in msgspec.structs.asdict(result).items()
        if value is not None and name not in ("n", "dropped", "n_a", "n_b", "sd_b")
    }
    assert (result.mean_a, result.mean_b) == means
    assert set(defined) <= {"mean_a", "mean_b", "mean_difference", "normal", "samples_normal"}
    assert not result.normal


def test_numbers_at_the_ends_of_the_range():
    largest = sys.float_info.max
    plain = compare([1.0, 0.5, 0.25, 0.75], [-1.0, -0.25, -1.0, 0.5])
    huge = compare(
        [largest, largest / 2, largest / 4, largest * 0.75],
        [-largest, -largest / 4, -largest, largest / 2],
    )
    tiny = compare([1e-300, 5e-301, 2.5e-301, 7.5e-301], [-1e-300, -2.5e-301, -1e-300, 5e-301])
    for result in (huge, tiny):
        assert result.paired_t == pytest.approx(plain.paired_t)
        assert result.welch_p == pytest.approx(plain.welch_p)
        assert result.cohens_d_ci95 == pytest.approx(plain.cohens_d_ci95)
    assert huge.mean_a == pytest.approx(largest * 0.625)
    assert compare([largest] * 2, [-largest] * 2).mean_difference == math.inf


def test_normality_chooses_the_test():
    b = np.zeros(12)
    bell = scipy_stats.norm.ppf(np.linspace(0.05, 0.95, 12))
    assert compare(bell + 1, b).preferred_test == "paired t"
    assert compare(bell + 1, b).preferred_p == compare(bell + 1, b).paired_p
    bell[0] = 50.0
    assert compare(bell, b).preferred_test == "Wilcoxon"
    many = compare(np.random.default_rng(0).normal(size=5001), np.zeros(5001))
    assert (many.shapiro_a, many.normal) == (None, False)


def test_comparison_goes_through_json():
    result = compare(SLEEP_1, SLEEP_2)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Comparison) == result


def test_unequal_lengths_are_refused():
    with pytest.raises(InputError, match=r"a has 2 trials and b has 3.*same order"):
        compare([1, 2], [1, 2, 3])


def test_spread_that_is_nothing_beside_the_values_is_none():
    result = compare([1e200] * 3, [1.0, 2.0, 3.0])
    assert (result.welch_t, result.welch_p, result.cohens_d) == (None, None, None)
    assert (result.sd_b, result.mean_difference) == (1.0, pytest.approx(1e200))
