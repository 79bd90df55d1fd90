"""Comparing two models trial by trial, and shares of trials."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mahalens.errors import InputError
from mahalens.stats.pairs import paired_vectors, rank_sum_distribution, signed_rank_p

# Above this many pairs the signed-rank distribution is taken as normal (scipy's limit as well).
_EXACT_UP_TO = 50


class PairedComparison(msgspec.Struct, frozen=True):
    """How far ``a`` lies below ``b`` over paired trials; differences are ``a - b``.

    ``p_value`` is one-sided: small means that ``a`` is lower. ``shift`` is the Hodges-Lehmann
    estimate of the difference and ``ci95`` the interval that belongs to it, ``None`` below six
    pairs, where no signed-rank interval reaches 95 %. Without any pair the p-value is 1 and the
    differences are NaN.
    """

    n: int
    dropped: int
    wins: int
    ties: int
    median_difference: float
    shift: float
    ci95: tuple[float, float] | None
    p_value: float


class Proportion(msgspec.Struct, frozen=True):
    """A share of ``n`` trials with its 95 % Wilson interval."""

    k: int
    n: int
    share: float
    ci95: tuple[float, float]


def paired_lower(a: ArrayLike, b: ArrayLike) -> PairedComparison:
    """Is ``a`` lower than ``b``, trial by trial?

    The p-value is that of Wilcoxon's signed-rank test against the alternative ``a < b``. Pairs
    without a difference do not enter it; if no other pair is left, it is 1. It is exact up to 50
    pairs (with ties among the differences: up to 13), and uses the normal approximation above.

    The Hodges-Lehmann shift is the median of the averages ``(dᵢ + dⱼ) / 2``, ``i <= j``, of the
    differences ``d = a - b``. Its interval runs from the k-th smallest to the k-th largest of
    these averages with the k that the signed-rank distribution allows for 95 %. Unlike the mean,
    it is not carried away by one trial that ended in a bad minimum.

    Args:
        a: one number per trial [T].
        b: the same trials under the other model [T]. A pair in which either value is not finite
            (``None``, NaN, infinite) is left out and counted in ``dropped``.

    Reference:
        M. Hollander, D. A. Wolfe, E. Chicken, Nonparametric Statistical Methods, 3rd ed.,
        sections 3.1 to 3.3.

    Example:
        >>> result = paired_lower([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12])
        >>> result.wins, result.shift, result.ci95, result.p_value
        (6, -3.5, (-6.0, -1.0), 0.015625)
    """
    first, second = paired_vectors(a, b)
    finite = np.isfinite(first) & np.isfinite(second)
    difference = first[finite] - second[finite]
    n = difference.size
    averages = _walsh_averages(difference)
    return PairedComparison(
        n=n,
        dropped=first.size - n,
        wins=int(np.count_nonzero(difference < 0)),
        ties=int(np.count_nonzero(difference == 0)),
        median_difference=float(np.median(difference)) if n else math.nan,
        shift=float(np.median(averages)) if n else math.nan,
        ci95=_shift_interval(averages, n),
        p_value=signed_rank_p(difference, "less"),
    )


def proportion(k: SupportsIndex, n: SupportsIndex) -> Proportion:
    """The share k / n with its 95 % Wilson interval.

    Args:
        k: trials in which something happened.
        n: trials in all, at least 1.

    Example:
        >>> result = proportion(14, 20)
        >>> result.share, [round(end, 3) for end in result.ci95]
        (0.7, [0.481, 0.855])
    """
    k, n = operator.index(k), operator.index(n)
    if n < 1 or not 0 <= k <= n:
        raise InputError(
            f"k = {k} of n = {n} is no share of trials; pass counts with 0 <= k <= n and n >= 1"
        )
    from scipy import stats  # takes a second to import

    interval = stats.binomtest(k, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Proportion(k=k, n=n, share=k / n, ci95=(float(interval.low), float(interval.high)))


def _walsh_averages(difference: NDArray[np.float64]) -> NDArray[np.float64]:
    """The averages of all pairs, each value with itself too, in ascending order [T (T + 1) / 2]."""
    i, j = np.triu_indices(difference.size)
    half = difference / 2
    averages: NDArray[np.float64] = np.sort(half[i] + half[j])
    return averages


def _shift_interval(averages: NDArray[np.float64], n: int) -> tuple[float, float] | None:
    """Invert the signed-rank test: drop as many averages at each end as 2.5 % allows."""
    if n <= _EXACT_UP_TO:
        cut = int(np.searchsorted(np.cumsum(_signed_rank_distribution(n)), 0.025, side="right"))
    else:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        cut = math.floor(n * (n + 1) / 4 - 1.959963984540054 * deviation)
    if cut < 1:
        return None
    return float(averages[cut - 1]), float(averages[-cut])


def _signed_rank_distribution(n: int) -> NDArray[np.float64]:
    """P(T = t) for t = 0 .. n (n + 1) / 2, T the sum of the ranks whose fair coin shows heads."""
    return rank_sum_distribution(range(1, n + 1))
