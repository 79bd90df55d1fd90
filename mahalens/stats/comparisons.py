"""Two models over the same trials, one pair or a family: t-tests, effect sizes, signed ranks.

:func:`equivalent` tests that two are equal: a difference that was not detected is no evidence that
there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from mahalens.errors import InputError
from mahalens.stats.summaries import Summary, as_vector, summarise

Alternative = Literal["two-sided", "less", "greater"]
PairedTest = Literal["paired t", "Wilcoxon"]

_NORMAL_FROM = 0.05  # Shapiro-Wilk p-values from here on count as normal
_SHAPIRO_UP_TO = 5000  # values; scipy does not vouch for the test's p-value above
_TIES_UP_TO = 13  # with ties among more differences, scipy takes the signed-rank sum as normal
_EXACT_UP_TO = 50  # pairs; above, the signed-rank distribution is taken as normal (as in scipy)

# A metric is itself a sum of rounded numbers, and its last few bits carry no information. Scipy
# warns of spreads below 10 roundings of the mean; a difference is at most twice the larger value.
_ROUNDINGS = 32

_NO_SPREAD = 1e-150  # beside a largest value of 1, the square of such a spread underflows

# Scipy's series for the noncentral t grows with t² and fails near 1e5. The integral below takes
# over long before; both agree to 1e-12 at the seam.
_SERIES_UP_TO = 100.0


def paired_vectors(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Convert two metrics to vectors [T] of the same trials, or raise :class:`InputError`."""
    first, second = as_vector(a, "a"), as_vector(b, "b")
    if first.size != second.size:
        raise InputError(
            f"a has {first.size} trials and b has {second.size}, but paired trials are wanted; "
            "pass the same trials in the same order, NaN where one has no value"
        )
    return first, second


def quarter_differences(
    first: NDArray[np.float64], second: NDArray[np.float64], centre: float = 0.0
) -> NDArray[np.float64]:
    """Return ``(a - b - centre) / 4`` [n] of the pairs in which both values are finite.

    Quarters, because the difference of two large numbers may be too large for a float. Rounding
    is removed (:func:`without_rounding`).
    """
    finite = np.isfinite(first) & np.isfinite(second)
    a, b, middle = first[finite] / 4, second[finite] / 4, centre / 4
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), abs(middle))
    return without_rounding(a - b - middle, largest)


def without_rounding(
    differences: NDArray[np.float64], largest: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return differences [n] in which rounding decides neither ties nor zeros.

    91.3 - 90.9 and 90.8 - 90.4 differ by 1e-14, which would rank one above the other, and
    ``[1.1, 2.1] - [1, 2]`` would have a spread of 1e-16 and a t of 1e15. If rounding alone can
    explain why all differences are unequal, they become equal, and 0 if 0 is possible too.
    Otherwise a difference that may be 0 becomes 0, and sizes that only rounding separates become
    equal.

    The tolerance of a difference is 32 roundings of the numbers in it: 7e-15 of ``largest``. It is
    not a share of the largest value of all trials, because one trial with an error of 1e-3 would
    then erase the differences of others near 1e-26. Nor does it cover values that were rounded to
    float32: 1e-7 of a value may be a real difference.

    Args:
        differences: sums or differences of a few numbers, one per trial [n].
        largest: the largest absolute value among the numbers in each difference [n].
    """
    doubt = _ROUNDINGS * np.finfo(np.float64).eps * largest
    low = float(np.max(differences - doubt, initial=-np.inf))
    high = float(np.min(differences + doubt, initial=np.inf))
    if low <= high:
        return np.full_like(differences, 0.0 if low <= 0.0 <= high else low / 2 + high / 2)
    sizes = np.abs(differences)
    sizes[sizes <= doubt] = 0.0
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    ends = zip((sizes - doubt)[order].tolist(), (sizes + doubt)[order].tolist(), strict=True)
    begin, low, high = 0, -math.inf, math.inf
    for place, (lower, upper) in enumerate([*ends, (math.inf, math.inf)]):
        low, high = max(low, lower), min(high, upper)
        if low > high:  # no size is possible for all since ``begin``
            group = order[begin:place]
            sizes[group] = sizes[group[np.argmin(doubt[group])]]  # the most precise one
            begin, low, high = place, lower, upper
    return np.sign(differences) * sizes + 0.0  # + 0.0: without negative zeros


def t_test(
    values: NDArray[np.float64], centre: float, alternative: Alternative = "two-sided"
) -> tuple[float, float]:
    """Return Student's t and p-value of n >= 2 values, not all equal, around ``centre``."""
    # In units of the largest number, which has a finite square. Scipy divides by the mean to look
    # for lost digits, and by a spread that may be 0 when squared.
    exponent = math.frexp(max(abs(centre), float(np.max(np.abs(values)))))[1]
    with np.errstate(all="ignore"):
        result = stats.ttest_1samp(
            np.ldexp(values, -exponent), math.ldexp(centre, -exponent), alternative=alternative
        )
    return float(result.statistic), float(result.pvalue)


def signed_rank_p(difference: NDArray[np.float64], alternative: Alternative) -> float:
    """Return the p-value of Wilcoxon's signed-rank test that the differences lie around 0.

    Zeros do not enter it; if nothing else is left, it is 1. It is exact up to 50 differences
    (with ties: up to 13) and scipy's normal approximation above.
    """
    moved = difference[difference != 0]
    if moved.size == 0:
        return 1.0
    size = np.abs(moved)
    if moved.size <= _TIES_UP_TO and np.unique(size).size < moved.size:
        # Scipy goes through all 2ⁿ signs here, in seconds. Twice the mean ranks are integers.
        ranks = np.rint(2 * stats.rankdata(size)).astype(int)
        probability = _rank_sum_distribution(ranks.tolist())
        observed = int(ranks[moved > 0].sum())
        less, greater = probability[: observed + 1].sum(), probability[observed:].sum()
        both = min(1.0, 2 * min(less, greater))
        return float({"less": less, "greater": greater, "two-sided": both}[alternative])
    return float(stats.wilcoxon(moved, alternative=alternative).pvalue)


def _rank_sum_distribution(ranks: Sequence[int]) -> NDArray[np.float64]:
    """P(T = t) for t = 0 .. Σ ranks, T the sum of a random subset of the ranks."""
    probability = np.zeros(sum(ranks) + 1)
    probability[0] = 1.0
    for rank in ranks:
        moved = np.zeros_like(probability)
        moved[rank:] = probability[: probability.size - rank]
        probability = (probability + moved) / 2
    return probability


def shapiro_p(values: NDArray[np.float64]) -> float | None:
    """Return the Shapiro-Wilk p-value of finite values [n]; ``None`` where it is undefined."""
    if not 3 <= values.size <= _SHAPIRO_UP_TO:
        return None
    low, high = float(values.min()), float(values.max())
    if low == high:
        return None
    # Neither place nor scale matters to the test, but scipy mistakes a small range for none.
    part = 1.0 if math.isfinite(high - low) else 0.5  # halves of the smallest numbers are 0
    return float(stats.shapiro((values * part - low * part) / (high * part - low * part)).pvalue)


def is_normal(p: float | None) -> bool:
    """Return whether a Shapiro-Wilk test was possible and did not reject normality."""
    return p is not None and p >= _NORMAL_FROM


class PairedComparison(msgspec.Struct, frozen=True):
    """The difference ``a - b`` of two models over paired trials.

    ``p_value`` is one-sided: small means that ``a`` is lower. ``shift`` is the Hodges-Lehmann
    estimate of the difference and ``ci95`` its interval, ``None`` below six pairs, where no
    signed-rank interval reaches 95 %. Without any pair the p-value is 1 and the differences are
    NaN.
    """

    n: int
    dropped: int
    wins: int
    ties: int
    median_difference: float
    shift: float
    ci95: tuple[float, float] | None
    p_value: float


def paired_lower(a: ArrayLike, b: ArrayLike) -> PairedComparison:
    """Test whether ``a`` is lower than ``b``, trial by trial.

    The p-value is that of Wilcoxon's signed-rank test against the alternative ``a < b``. Pairs
    without a difference do not enter it; if no other pair is left, it is 1. It is exact up to 50
    pairs (with ties among the differences: up to 13), and uses the normal approximation above.
    Differences that only rounding separates are equal.

    The Hodges-Lehmann shift is the median of the averages ``(dᵢ + dⱼ) / 2``, ``i <= j``, of the
    differences ``d = a - b``. Its interval runs from the k-th smallest to the k-th largest of
    these averages with the k that the signed-rank distribution allows for 95 %. Unlike the mean,
    it is not carried away by one trial that ended in a bad minimum.

    Args:
        a: one number per trial [T].
        b: the same trials under the other model [T]. Pairs in which either value is not finite
            are left out and counted in ``dropped``.

    Reference:
        M. Hollander, D. A. Wolfe, E. Chicken, Nonparametric Statistical Methods, 3rd ed.,
        sections 3.1 to 3.3.

    Example:
        >>> result = paired_lower([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12])
        >>> result.wins, result.shift, result.ci95, result.p_value
        (6, -3.5, (-6.0, -1.0), 0.015625)
    """
    first, second = paired_vectors(a, b)
    quarter = quarter_differences(first, second)
    n = quarter.size
    i, j = np.triu_indices(n)
    averages: NDArray[np.float64] = np.sort(quarter[i] / 2 + quarter[j] / 2)
    interval = _shift_interval(averages, n)
    return PairedComparison(
        n=n,
        dropped=first.size - n,
        wins=int(np.count_nonzero(quarter < 0)),
        ties=int(np.count_nonzero(quarter == 0)),
        median_difference=4 * float(np.median(quarter)) if n else math.nan,
        shift=4 * float(np.median(averages)) if n else math.nan,
        ci95=None if interval is None else (4 * interval[0], 4 * interval[1]),
        p_value=signed_rank_p(quarter, "less"),
    )


def _shift_interval(averages: NDArray[np.float64], n: int) -> tuple[float, float] | None:
    """Invert the signed-rank test: drop as many averages at each end as 2.5 % allows."""
    if n <= _EXACT_UP_TO:
        distribution = np.cumsum(_rank_sum_distribution(range(1, n + 1)))
        cut = int(np.searchsorted(distribution, 0.025, side="right"))
    else:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        cut = math.floor(n * (n + 1) / 4 - 1.959963984540054 * deviation)
    return (float(averages[cut - 1]), float(averages[-cut])) if cut >= 1 else None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two models, ``a`` and ``b``, in one metric; differences are ``a - b``, p-values two-sided.

    ``n`` counts the pairs with two finite values and ``dropped`` the others. ``mean_difference``
    with its 95 % interval, ``paired_t``, ``d_z``, ``wilcoxon_p`` and ``shapiro_difference`` belong
    to these pairs. ``mean_a``, ``sd_a``, ``shapiro_a`` belong to all ``n_a`` finite values of
    ``a`` (likewise ``b``), and so do Welch's test and Cohen's d.

    ``normal`` is true if the differences pass as normal, ``samples_normal`` if both samples do:
    the paired t-test assumes the first, Welch's the second. Undefined numbers are ``None``, and a
    difference too large for a float is infinite.
    """

    n: int
    dropped: int
    n_a: int
    n_b: int
    mean_a: float | None
    mean_b: float | None
    sd_a: float | None
    sd_b: float | None
    mean_difference: float | None
    difference_ci95: tuple[float, float] | None
    paired_t: float | None
    paired_df: int | None
    paired_p: float | None
    welch_t: float | None = None
    welch_df: float | None = None
    welch_p: float | None = None
    cohens_d: float | None = None
    cohens_d_ci95: tuple[float, float] | None = None
    d_z: float | None
    wilcoxon_p: float | None
    shapiro_a: float | None
    shapiro_b: float | None
    shapiro_difference: float | None
    normal: bool
    samples_normal: bool
    preferred_test: PairedTest | None
    preferred_p: float | None


def compare(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Compare two models in one metric over the same trials.

    With the differences ``dᵢ = aᵢ - bᵢ`` of the n pairs, their mean d̄ and standard deviation s:

    * paired t-test: ``t = d̄ √n / s`` with n - 1 degrees of freedom; ``d_z = d̄ / s``.
    * Welch's t-test: ``(ā - b̄) / √(s_a²/n_a + s_b²/n_b)``, as if the trials were not paired.
    * Cohen's d: ``(ā - b̄) / s_pooled`` with its 95 % interval from the noncentral t distribution.
      It takes the samples as independent, as published tables do. Paired trials that agree with
      each other make the interval wider than it need be.
    * Wilcoxon's signed-rank test, exact up to 50 pairs (with ties: up to 13).

    ``preferred_test`` is the paired t-test if the differences pass the Shapiro-Wilk test with
    p >= 0.05 (``normal``), and Wilcoxon's if they do not or could not be tested: fewer than 3
    pairs, more than 5000, or all of them equal. Only the differences matter to this choice, as
    neither test asks how ``a`` and ``b`` are distributed by themselves. Few trials can only show
    gross departures, and below 6 pairs no signed-rank test reaches p < 0.05.

    Without spread there is no t: if all differences are equal, ``paired_t`` and ``paired_p`` are
    ``None`` and Wilcoxon answers; if all are 0, t is 0 and every p-value 1. Likewise Welch's test
    and Cohen's d for two constant samples. Differences that only rounding separates are equal.

    Args:
        a: one number per trial [T].
        b: the same trials under the other model [T].

    Example:
        >>> result = compare([5.1, 4.8, 6.0, 5.5, 5.9], [4.0, 4.1, 5.2, 4.2, 4.9])
        >>> result.preferred_test, round(result.mean_difference, 2), round(result.paired_t, 3)
        ('paired t', 0.98, 9.179)
        >>> round(result.paired_p, 5), result.wilcoxon_p, round(result.welch_p, 3)
        (0.00078, 0.0625, 0.018)
        >>> round(result.cohens_d, 2), [round(end, 2) for end in result.cohens_d_ci95]
        (1.87, [0.3, 3.36])
    """
    first, second = paired_vectors(a, b)
    quarter = quarter_differences(first, second)
    over_pairs = summarise(quarter)
    n, interval = over_pairs.n, over_pairs.ci95
    values_a, values_b = first[np.isfinite(first)], second[np.isfinite(second)]
    all_a, all_b = summarise(values_a), summarise(values_b)
    paired_t, paired_p = _paired_test(quarter)
    wilcoxon_p = signed_rank_p(quarter, "two-sided") if n >= 2 else None
    shapiro_difference = shapiro_p(quarter)
    normal = is_normal(shapiro_difference)
    shapiro_a, shapiro_b = shapiro_p(values_a), shapiro_p(values_b)
    preferred_test: PairedTest = "paired t" if normal else "Wilcoxon"
    return Comparison(
        n=n,
        dropped=first.size - n,
        n_a=all_a.n,
        n_b=all_b.n,
        mean_a=_defined(all_a.mean),
        mean_b=_defined(all_b.mean),
        sd_a=_defined(all_a.std),
        sd_b=_defined(all_b.std),
        mean_difference=_defined(4 * over_pairs.mean),
        difference_ci95=None if interval is None else (4 * interval[0], 4 * interval[1]),
        paired_t=paired_t,
        paired_df=n - 1 if n >= 2 else None,
        paired_p=paired_p,
        **_unpaired_tests(values_a, values_b),
        d_z=None if paired_t is None else paired_t / math.sqrt(n),
        wilcoxon_p=wilcoxon_p,
        shapiro_a=shapiro_a,
        shapiro_b=shapiro_b,
        shapiro_difference=shapiro_difference,
        normal=normal,
        samples_normal=is_normal(shapiro_a) and is_normal(shapiro_b),
        preferred_test=preferred_test if n >= 2 else None,
        preferred_p=paired_p if normal else wilcoxon_p,
    )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _paired_test(differences: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Student's t and p-value of the differences, as far as they are defined."""
    if differences.size < 2 or np.ptp(differences) > 0:
        return t_test(differences, 0.0) if differences.size >= 2 else (None, None)
    return (0.0, 1.0) if differences[0] == 0 else (None, None)


def _unpaired_tests(first: NDArray[np.float64], second: NDArray[np.float64]) -> dict[str, Any]:
    """Welch's test and Cohen's d of two finite samples, as fields of a :class:`Comparison`."""
    # In units of the largest value, which has a finite square.
    largest = max(np.max(np.abs(first), initial=0.0), np.max(np.abs(second), initial=0.0))
    exponent = math.frexp(float(largest))[1]
    a, b = summarise(np.ldexp(first, -exponent)), summarise(np.ldexp(second, -exponent))
    if a.n < 2 or b.n < 2:
        return {}
    if max(a.std, b.std) < _NO_SPREAD:
        return {"welch_t": 0.0, "welch_p": 1.0, "cohens_d": 0.0} if a.mean == b.mean else {}

    moments = (a.mean, a.std, a.n, b.mean, b.std, b.n)
    welch_t, welch_p = map(float, stats.ttest_ind_from_stats(*moments, equal_var=False))
    # Student's t is Cohen's d but for the sizes of the samples.
    student_t = float(stats.ttest_ind_from_stats(*moments)[0])
    per_t = math.sqrt(1 / a.n + 1 / b.n)
    low, high = noncentrality_interval(student_t, a.n + b.n - 2)
    return {
        "welch_t": welch_t,
        "welch_df": _welch_df(a, b),
        "welch_p": welch_p,
        "cohens_d": student_t * per_t,
        "cohens_d_ci95": (low * per_t, high * per_t),
    }


def _welch_df(a: Summary, b: Summary) -> float:
    """Degrees of freedom of Welch and Satterthwaite, which scipy does not return."""
    share = a.std**2 / a.n / (a.std**2 / a.n + b.std**2 / b.n)
    return 1 / (share**2 / (a.n - 1) + (1 - share) ** 2 / (b.n - 1))


def noncentrality_interval(t: float, df: float) -> tuple[float, float]:
    """Solve ``P(T <= t; df, λ) = 0.975`` and ``0.025`` for the noncentralities λ.

    With two groups of n₁ and n₂ values, ``λ √(1/n₁ + 1/n₂)`` are the ends of the 95 % interval of
    Cohen's d (G. Cumming, S. Finch, A primer on the understanding, use, and calculation of
    confidence intervals that are based on central and noncentral distributions, 2001).
    """
    if t < 0:
        low, high = noncentrality_interval(-t, df)
        return -high, -low
    # P(T <= t; λ) = P(t s + z >= λ) with s = χ/√df and z normal. Each of s and z leaves its
    # middle 97.5 % with 1.25 % on either side: both ends lie between these bounds.
    s_low, s_high = (float(stats.chi.ppf(q, df)) / math.sqrt(df) for q in (0.0125, 0.9875))
    z_high = float(stats.norm.ppf(0.9875))
    low, high = (
        optimize.brentq(
            lambda noncentrality, probability: _noncentral_cdf(t, df, noncentrality) - probability,
            t * s_low - z_high,
            t * s_high + z_high,
            args=(probability,),
        )
        for probability in (0.975, 0.025)
    )
    return float(low), float(high)


def _noncentral_cdf(t: float, df: float, noncentrality: float) -> float:
    """``P(T <= t) = ∫ φ(z) P(χ >= √df (λ - z) / t) dz``, for large t by the trapezoidal rule."""
    if t <= _SERIES_UP_TO:
        return float(stats.nct.cdf(t, df, noncentrality))
    z = np.arange(-900, 901) / 100
    weights = np.exp(-z * z / 2)
    beyond = stats.chi.sf((noncentrality - z) / t * math.sqrt(df), df)
    return float(weights @ beyond / weights.sum())


class SummaryComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Student's unpaired t-test of two printed summaries, ``a - b``; the p-value is two-sided.

    ``t_range`` and ``d_range`` are the ends that rounding of the printed numbers leaves open.
    """

    t: float
    df: int
    p_value: float
    cohens_d: float
    t_range: tuple[float, float]
    d_range: tuple[float, float]


def compare_summaries(
    a: tuple[float, float], b: tuple[float, float], n: int, rounding: float = 0.0
) -> SummaryComparison:
    """Recompute t and Cohen's d from printed means and standard deviations, for checking papers.

    ``t = (ā - b̄) / (s √(2/n))`` and ``d = (ā - b̄) / s`` with ``s² = (s_a² + s_b²) / 2``: Student's
    test for two independent samples of the same size, with 2n - 2 degrees of freedom.

    Args:
        a: mean and standard deviation of one sample.
        b: the same of the other.
        n: size of each sample.
        rounding: how far a printed number may be from the true one, such as 0.005 for two decimals.

    Example:
        >>> result = compare_summaries((95.35, 0.17), (95.26, 0.19), 20, rounding=0.005)
        >>> round(result.t, 2), result.df, round(result.cohens_d, 2)
        (1.58, 38, 0.5)
        >>> [round(end, 2) for end in result.t_range]
        [1.37, 1.8]
    """
    if n < 2 or not (a[1] >= 0 and b[1] >= 0 and max(a[1], b[1]) > rounding >= 0):
        raise InputError(
            f"samples of {n} with standard deviations {a[1]:g} and {b[1]:g}, rounded by up to "
            f"{rounding:g}; give at least 2 each, and a deviation larger than the rounding"
        )
    per_t = math.sqrt(2 / n)

    def student(shift: float, spread: float) -> tuple[float, float]:
        first, second = (max(0.0, std + spread) for _, std in (a, b))
        result = stats.ttest_ind_from_stats(a[0] + shift, first, n, b[0] - shift, second, n)
        return float(result[0]), float(result[1])

    t, p = student(0.0, 0.0)
    ends = [student(i * rounding, j * rounding)[0] for i in (-1, 1) for j in (-1, 1)]
    low, high = min(ends), max(ends)
    return SummaryComparison(
        t=t,
        df=2 * n - 2,
        p_value=p,
        cohens_d=t * per_t,
        t_range=(low, high),
        d_range=(low * per_t, high * per_t),
    )


class FamilyComparison(msgspec.Struct, frozen=True):
    """Two models of a family with the p-values of each test, Holm-adjusted over the family.

    ``result`` holds the unadjusted p-values. Where one of them is ``None``, the adjusted one is
    too, and that comparison does not count towards the size of the family.
    """

    a: str
    b: str
    result: Comparison
    holm_paired: float | None
    holm_welch: float | None
    holm_wilcoxon: float | None
    holm_preferred: float | None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's method, in their original order.

    With the m values in ascending order, the k-th (from 0) becomes the largest of
    ``min(1, (m - j) pⱼ)``, j <= k. ``None`` and NaN stay ``None`` and do not count.

    Reference:
        S. Holm, A simple sequentially rejective multiple test procedure, 1979.

    Example:
        >>> holm([0.01, 0.04, None, 0.03])
        [0.03, 0.06, None, 0.06]
    """
    defined = [(p, i) for i, p in enumerate(p_values) if p is not None and not math.isnan(p)]
    for p, i in defined:
        if not 0 <= p <= 1:
            raise InputError(
                f"p-value {p!r} at place {i} is outside 0 to 1; pass p-values, None where a test "
                "was not defined"
            )
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for k, (p, i) in enumerate(sorted(defined)):
        largest = max(largest, min(1.0, (len(defined) - k) * float(p)))
        adjusted[i] = largest
    return adjusted


def compare_family(
    trials: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]]
) -> list[FamilyComparison]:
    """Compare pairs of models, with p-values adjusted over all pairs.

    Each test is adjusted by itself, over its p-values of the whole family; ``preferred`` over
    those of the test that each pair prefers.

    Args:
        trials: one metric over the same trials [T] for each model.
        pairs: which models to compare, each two of them once and in either order.

    Example:
        >>> trials = {"x": [1, 2, 3, 4], "y": [2, 3, 5, 7], "z": [1, 3, 2, 5]}
        >>> for c in compare_family(trials, [("x", "y"), ("x", "z")]):
        ...     print(c.a, c.b, round(c.result.paired_p, 3), round(c.holm_paired, 3))
        x y 0.035 0.071
        x z 0.638 0.638
    """
    _check_pairs(trials, pairs)
    results = [compare(trials[a], trials[b]) for a, b in pairs]
    tests = ("paired", "welch", "wilcoxon", "preferred")
    adjusted = {
        f"holm_{test}": holm([getattr(result, f"{test}_p") for result in results]) for test in tests
    }
    return [
        FamilyComparison(a, b, results[i], **{name: p[i] for name, p in adjusted.items()})
        for i, (a, b) in enumerate(pairs)
    ]


def _check_pairs(trials: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse pairs that cannot be compared, and those that would count twice in the family."""
    seen: set[frozenset[str]] = set()
    for a, b in pairs:
        for name in (a, b):
            if name not in trials:
                raise InputError(
                    f"model {name!r} has no trials; pass pairs of {', '.join(map(repr, trials))}"
                )
        pair = frozenset((a, b))
        if len(pair) == 1 or pair in seen:
            fault = "is one model twice" if len(pair) == 1 else "is listed twice"
            raise InputError(
                f"pair ({a!r}, {b!r}) {fault}; pass each two models once, as every pair costs the "
                "others power"
            )
        seen.add(pair)


_LEVEL = 0.05

_Verdict = Literal["equivalent", "different", "undecided"]


class Equivalence(msgspec.Struct, frozen=True):
    """Outcome of the test that the mean difference ``a - b`` lies within ``±margin``.

    ``t_lower`` and ``p_lower`` belong to the test that the difference lies above ``-margin``,
    ``t_upper`` and ``p_upper`` to the test that it lies below ``margin``; ``tost_p`` is the larger
    p-value. It is below 0.05 exactly if ``ci90``, the 90 % interval of the mean difference, lies
    within the margin. ``wilcoxon_p`` is the same from two signed-rank tests.

    ``preferred_p`` is one of the two, chosen as in :func:`mahalens.stats.compare`. ``p_beyond`` is
    the p-value of the opposite statement by the same test, that the difference is larger than
    ``margin`` on one side. ``verdict`` is "equivalent" if ``preferred_p < 0.05``, "different" if
    ``p_beyond < 0.05``, otherwise "undecided". Undefined numbers are ``None``.
    """

    n: int
    dropped: int
    margin: float
    mean_difference: float | None
    ci90: tuple[float, float] | None = None
    df: int | None = None
    t_lower: float | None = None
    t_upper: float | None = None
    p_lower: float | None = None
    p_upper: float | None = None
    tost_p: float | None = None
    wilcoxon_p: float | None = None
    shapiro_difference: float | None = None
    normal: bool = False
    preferred_test: PairedTest | None = None
    preferred_p: float | None = None
    p_beyond: float | None = None
    verdict: _Verdict = "undecided"


def equivalent(a: ArrayLike, b: ArrayLike, margin: float) -> Equivalence:
    """Test that two models differ by less than ``margin`` on average, over paired trials.

    Two one-sided paired t-tests (TOST) of the differences ``d = a - b``, with mean d̄ and standard
    deviation s: ``t_lower = (d̄ + margin) √n / s`` and ``t_upper = (d̄ - margin) √n / s``. If all
    differences are equal, t is undefined and the signed-rank tests answer; five equal differences
    within the margin are the fewest that can be called equivalent. The signed-rank tests are about
    the middle of the differences, not about their mean: one bad trial does not decide. Differences
    that only rounding separates from the margin lie at the margin.

    Args:
        a: one number per trial [T].
        b: the same trials under the other model [T].
        margin: the largest difference that does not matter, in the unit of the metric, above 0.
            Choose it before looking at the results.

    Reference:
        D. J. Schuirmann, A comparison of the two one-sided tests procedure and the power approach
        for assessing the equivalence of average bioavailability, 1987.

    Example:
        >>> a, b = [0.91, 0.93, 0.92, 0.94, 0.92], [0.92, 0.93, 0.91, 0.93, 0.92]
        >>> result = equivalent(a, b, margin=0.02)
        >>> result.verdict, round(result.tost_p, 3), [round(end, 3) for end in result.ci90]
        ('equivalent', 0.004, [-0.006, 0.01])
        >>> equivalent(a, b, margin=0.005).verdict
        'undecided'
    """
    limit = _checked_margin(margin)
    first, second = paired_vectors(a, b)
    values, edge = quarter_differences(first, second), limit / 4
    over_pairs = summarise(values)
    n, mean = over_pairs.n, over_pairs.mean
    dropped = first.size - n
    if n < 2:
        return Equivalence(n, dropped, limit, mean_difference=4 * mean if n else None)

    half_width = float(stats.t.ppf(0.95, n - 1)) * over_pairs.std / math.sqrt(n)
    shapiro_difference = shapiro_p(values)
    normal = is_normal(shapiro_difference)
    t_statistics: dict[str, float | None] = {}
    if over_pairs.std > 0:
        lower, upper = t_test(values, -edge, "greater"), t_test(values, edge, "less")
        t_statistics = {
            "t_lower": lower[0] if math.isfinite(lower[0]) else None,
            "t_upper": upper[0] if math.isfinite(upper[0]) else None,
            "p_lower": lower[1],
            "p_upper": upper[1],
            "tost_p": max(lower[1], upper[1]),
        }
    preferred: PairedTest = "paired t" if normal else "Wilcoxon"

    def p(centre: float, alternative: Alternative, test: PairedTest) -> float:
        if test == "paired t":
            return t_test(values, centre / 4, alternative)[1]
        return signed_rank_p(quarter_differences(first, second, centre), alternative)

    def p_within(test: PairedTest) -> float:
        return max(p(-limit, "greater", test), p(limit, "less", test))

    within = p_within(preferred)
    # Twice the smaller one, because either side would do.
    beyond = 2 * min(p(-limit, "less", preferred), p(limit, "greater", preferred))
    verdict: _Verdict = "different" if beyond < _LEVEL else "undecided"
    return Equivalence(
        n,
        dropped,
        limit,
        mean_difference=4 * mean,
        ci90=(4 * (mean - half_width), 4 * (mean + half_width)),
        df=n - 1,
        **t_statistics,
        wilcoxon_p=p_within("Wilcoxon"),
        shapiro_difference=shapiro_difference,
        normal=normal,
        preferred_test=preferred,
        preferred_p=within,
        p_beyond=min(1.0, beyond),
        verdict="equivalent" if within < _LEVEL else verdict,
    )


def _checked_margin(margin: float) -> float:
    try:
        limit = float(margin)
    except (TypeError, ValueError):
        limit = math.nan
    if not (math.isfinite(limit) and limit > 0):
        raise InputError(
            f"margin is {margin!r}, but a finite number above 0 is wanted; pass the largest "
            "difference that does not matter, in the unit of the metric"
        )
    return limit
