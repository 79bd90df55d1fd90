"""Two models over the same trials: t-tests, effect sizes, signed ranks and which to lean on."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mahalens.stats.effect_size import noncentrality_interval
from mahalens.stats.pairs import (
    Differences,
    is_normal,
    paired_vectors,
    shapiro_p,
    signed_rank_p,
    t_test,
)
from mahalens.stats.summary import Summary, summarize

PairedTest = Literal["paired t", "Wilcoxon"]

# Beside a largest value of 1, the square of such a spread is 0 for a float.
_NO_SPREAD = 1e-150


class Comparison(msgspec.Struct, frozen=True):
    """Two models, ``a`` and ``b``, in one metric; differences are ``a - b``, p-values two-sided.

    ``n`` pairs have two finite values and ``dropped`` have not. ``mean_difference`` with its
    95 % interval, ``paired_t``, ``d_z``, ``wilcoxon_p`` and ``shapiro_difference`` belong to
    these pairs. ``mean_a``, ``sd_a``, ``shapiro_a`` belong to all ``n_a`` finite values of ``a``
    (likewise ``b``), and so do Welch's test and Cohen's d.

    ``normal`` says whether the differences pass as normal, ``samples_normal`` whether both
    samples do: the first is what the paired t-test assumes, the second what Welch's does.
    What is not defined is ``None``, and a difference that is too large for a float is infinite.
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
    welch_t: float | None
    welch_df: float | None
    welch_p: float | None
    cohens_d: float | None
    cohens_d_ci95: tuple[float, float] | None
    d_z: float | None
    wilcoxon_p: float | None
    shapiro_a: float | None
    shapiro_b: float | None
    shapiro_difference: float | None
    normal: bool
    samples_normal: bool
    preferred_test: PairedTest | None
    preferred_p: float | None


class _Paired(msgspec.Struct, frozen=True):
    t: float | None = None
    df: int | None = None
    p: float | None = None
    d_z: float | None = None


class _Unpaired(msgspec.Struct, frozen=True):
    t: float | None = None
    df: float | None = None
    p: float | None = None
    d: float | None = None
    d_ci95: tuple[float, float] | None = None


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
    and Cohen's d for two constant samples. Differences that only rounding keeps apart are equal.

    Args:
        a: one number per trial [T].
        b: the same trials under the other model [T]. ``None``, NaN and infinite values mark
            trials without a value.

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
    difference = Differences(first, second)
    over_pairs = summarize(difference.scaled)
    paired = _paired_test(difference)
    all_a, all_b = summarize(first), summarize(second)
    unpaired = _unpaired_tests(first, second)
    wilcoxon_p = signed_rank_p(difference.scaled, "two-sided") if difference.n >= 2 else None
    shapiro_difference = difference.shapiro_p()
    normal = is_normal(shapiro_difference)
    preferred_test: PairedTest | None = None
    if difference.n >= 2:
        preferred_test = "paired t" if normal else "Wilcoxon"
    shapiro_a, shapiro_b = (shapiro_p(v[np.isfinite(v)]) for v in (first, second))
    return Comparison(
        n=difference.n,
        dropped=first.size - difference.n,
        n_a=all_a.n,
        n_b=all_b.n,
        mean_a=_defined(all_a.mean),
        mean_b=_defined(all_b.mean),
        sd_a=_defined(all_a.std),
        sd_b=_defined(all_b.std),
        mean_difference=_defined(difference.unscale(over_pairs.mean)),
        difference_ci95=_unscaled(over_pairs.ci95, difference),
        paired_t=paired.t,
        paired_df=paired.df,
        paired_p=paired.p,
        welch_t=unpaired.t,
        welch_df=unpaired.df,
        welch_p=unpaired.p,
        cohens_d=unpaired.d,
        cohens_d_ci95=unpaired.d_ci95,
        d_z=paired.d_z,
        wilcoxon_p=wilcoxon_p,
        shapiro_a=shapiro_a,
        shapiro_b=shapiro_b,
        shapiro_difference=shapiro_difference,
        normal=normal,
        samples_normal=is_normal(shapiro_a) and is_normal(shapiro_b),
        preferred_test=preferred_test,
        preferred_p=paired.p if preferred_test == "paired t" else wilcoxon_p,
    )


def _unscaled(
    interval: tuple[float, float] | None, difference: Differences
) -> tuple[float, float] | None:
    """An interval of scaled differences in the unit of the metric."""
    if interval is None:
        return None
    return difference.unscale(interval[0]), difference.unscale(interval[1])


def _paired_test(difference: Differences) -> _Paired:
    if difference.n < 2:
        return _Paired()
    df = difference.n - 1
    if difference.constant:
        return _Paired(0.0, df, 1.0, 0.0) if difference.scaled[0] == 0 else _Paired(df=df)
    t, p = t_test(difference.scaled, 0.0)
    return _Paired(t, df, p, t / math.sqrt(difference.n))


def _unpaired_tests(first: NDArray[np.float64], second: NDArray[np.float64]) -> _Unpaired:
    """Welch's test and Cohen's d, both from the means and spreads of the two samples."""
    a, b = _on_one_scale(first, second)
    if a.n < 2 or b.n < 2:
        return _Unpaired()
    if max(a.std, b.std) < _NO_SPREAD:
        return _Unpaired(t=0.0, p=1.0, d=0.0) if a.mean == b.mean else _Unpaired()
    from scipy import stats  # takes a second to import

    def test(equal_var: bool) -> tuple[float, float]:
        result = stats.ttest_ind_from_stats(
            a.mean, a.std, a.n, b.mean, b.std, b.n, equal_var=equal_var
        )
        return float(result[0]), float(result[1])

    t, p = test(equal_var=False)
    # Student's t is Cohen's d but for the sizes of the samples.
    student_t, _ = test(equal_var=True)
    per_t = math.sqrt(1 / a.n + 1 / b.n)
    low, high = noncentrality_interval(student_t, a.n + b.n - 2)
    return _Unpaired(t, _welch_df(a, b), p, student_t * per_t, (low * per_t, high * per_t))


def _on_one_scale(
    first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[Summary, Summary]:
    """Summaries of both samples in units of their largest value, whose squares are finite."""
    a, b = first[np.isfinite(first)], second[np.isfinite(second)]
    largest = max(np.max(np.abs(a), initial=0.0), np.max(np.abs(b), initial=0.0))
    exponent = math.frexp(float(largest))[1]
    return summarize(np.ldexp(a, -exponent)), summarize(np.ldexp(b, -exponent))


def _welch_df(a: Summary, b: Summary) -> float:
    """Degrees of freedom of Welch and Satterthwaite, which scipy keeps to itself."""
    share = a.std**2 / a.n / (a.std**2 / a.n + b.std**2 / b.n)
    return 1 / (share**2 / (a.n - 1) + (1 - share) ** 2 / (b.n - 1))


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
