"""What every comparison over paired trials starts from: the pairs, their differences, normality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mahalens.errors import InputError
from mahalens.stats.summary import as_vector, unscale

NORMAL_FROM = 0.05
"""A Shapiro-Wilk p-value from here on counts as normal."""

# A metric is itself a sum of rounded numbers, so that its last few bits say nothing. Scipy warns
# of spreads below 10 roundings of the mean; a difference is at most twice the larger value.
_ROUNDINGS = 32

# With ties among more differences than this, scipy takes the signed-rank sum as normal.
_TIES_UP_TO = 13

# Above this many values scipy does not vouch for the p-value of the Shapiro-Wilk test.
_SHAPIRO_UP_TO = 5000

Alternative = Literal["two-sided", "less", "greater"]


def paired_vectors(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two metrics as vectors [T] of the same trials, or an :class:`InputError`."""
    first, second = as_vector(a, "a"), as_vector(b, "b")
    if first.size != second.size:
        raise InputError(
            f"a has {first.size} trials and b has {second.size}, but paired trials are wanted; "
            "pass the same trials in the same order, NaN where one has no value"
        )
    return first, second


class Differences:
    """The differences ``a - b`` of the pairs in which both values are finite, safe to square.

    ``scaled · 2**exponent`` are the differences [n]. ``scaled`` is at most 1 in size, so that
    neither a diverged trial nor a tiny error leaves the range of floats when squared.

    Differences that rounding cannot tell apart are made equal, and 0 if 0 is among what they may
    be. Otherwise ``[1.1, 2.1] - [1, 2]`` would have a spread of 1e-16 and a t of 1e15.

    Args:
        first: one number per trial [T].
        second: the same trials under the other model [T].
        at_least: a number that ``scaled`` will be held against; it sets the scale if it is larger.

    Example:
        >>> d = Differences(np.array([1.1, 2.1, np.nan]), np.array([1.0, 2.0, 3.0]))
        >>> d.n, d.constant, round(d.unscale(d.scaled[0]), 9)
        (2, True, 0.1)
    """

    def __init__(
        self, first: NDArray[np.float64], second: NDArray[np.float64], at_least: float = 0.0
    ) -> None:
        finite = np.isfinite(first) & np.isfinite(second)
        # Quarters, because the difference of two large numbers may be too large for a float.
        a, b = first[finite] / 4, second[finite] / 4
        quarter = _settled(a - b, np.maximum(np.abs(a), np.abs(b)))
        largest = max(at_least / 4, float(np.max(np.abs(quarter), initial=0.0)))
        exponent = math.frexp(largest)[1]
        self.scaled: NDArray[np.float64] = np.ldexp(quarter, -exponent)
        self.exponent = exponent + 2
        self.n = quarter.size
        self.constant = self.n == 0 or bool(self.scaled.min() == self.scaled.max())

    def unscale(self, value: float) -> float:
        """A number in the unit of ``scaled`` in the unit of the metric."""
        return unscale(float(value), self.exponent)

    def shapiro_p(self) -> float | None:
        """The normality of the differences, see :func:`shapiro_p`."""
        return None if self.constant else shapiro_p(self.scaled)


def t_test(
    values: NDArray[np.float64], centre: float, alternative: Alternative = "two-sided"
) -> tuple[float, float]:
    """Student's t and p-value of values [n] that are not all equal, n >= 2, around ``centre``."""
    from scipy import stats  # takes a second to import

    # Scipy divides by the mean to look for lost digits, and by a spread that may be 0 squared.
    with np.errstate(all="ignore"):
        result = stats.ttest_1samp(values, centre, alternative=alternative)
    return float(result.statistic), float(result.pvalue)


def signed_rank_p(difference: NDArray[np.float64], alternative: Alternative) -> float:
    """The p-value of Wilcoxon's signed-rank test that the differences lie around 0.

    Zeros do not enter it; if nothing else is left, it is 1. It is exact up to 50 differences
    (with ties: up to 13) and scipy's normal approximation above.
    """
    moved = difference[difference != 0]
    if moved.size == 0:
        return 1.0
    from scipy import stats  # takes a second to import

    size = np.abs(moved)
    if moved.size <= _TIES_UP_TO and np.unique(size).size < moved.size:
        # Scipy goes through all 2ⁿ signs here, in seconds. Twice the mean ranks are integers.
        ranks = np.rint(2 * stats.rankdata(size)).astype(int)
        probability = rank_sum_distribution(ranks.tolist())
        observed = int(ranks[moved > 0].sum())
        less, greater = probability[: observed + 1].sum(), probability[observed:].sum()
        both = min(1.0, 2 * min(less, greater))
        return float({"less": less, "greater": greater, "two-sided": both}[alternative])
    return float(stats.wilcoxon(moved, alternative=alternative).pvalue)


def rank_sum_distribution(ranks: Sequence[int]) -> NDArray[np.float64]:
    """P(T = t) for t = 0 .. sum of the ranks, T the sum of those whose fair coin shows heads."""
    probability = np.zeros(sum(ranks) + 1)
    probability[0] = 1.0
    for rank in ranks:
        moved = np.zeros_like(probability)
        moved[rank:] = probability[: probability.size - rank]
        probability = (probability + moved) / 2
    return probability


def shapiro_p(values: NDArray[np.float64]) -> float | None:
    """The p-value of the Shapiro-Wilk test that finite values [n] are normal.

    ``None`` where the test is not defined: fewer than 3 values, more than 5000, or all equal.
    """
    if not 3 <= values.size <= _SHAPIRO_UP_TO:
        return None
    low, high = float(values.min()), float(values.max())
    if low == high:
        return None
    from scipy import stats  # takes a second to import

    # Neither place nor scale matters to the test, but scipy takes a small range for none.
    unit = (values / 2 - low / 2) / (high / 2 - low / 2)
    return float(stats.shapiro(unit).pvalue)


def is_normal(p: float | None) -> bool:
    """Whether a Shapiro-Wilk test was made and found nothing against normality."""
    return p is not None and p >= NORMAL_FROM


def _settled(given: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equal differences if all of them could be the same number, the given ones if not."""
    if given.size == 0:
        return given
    doubt = _ROUNDINGS * np.finfo(np.float64).eps * size
    low, high = float(np.max(given - doubt)), float(np.min(given + doubt))
    if low > high:
        return given
    return np.full_like(given, 0.0 if low <= 0.0 <= high else (low + high) / 2)
