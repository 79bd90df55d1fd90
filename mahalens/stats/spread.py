"""Which of two models varies more from trial to trial."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from mahalens.stats.summary import as_vector, summarize


class SpreadRatio(msgspec.Struct, frozen=True):
    """Standard deviations of two samples, their ratio, and a test that they differ.

    ``ratio`` is ``std_a / std_b``, infinite where b has no spread, ``None`` where either has fewer
    than two values or neither has a spread; ``p_value`` is two-sided, ``None`` without a ratio.
    """

    n_a: int
    n_b: int
    std_a: float
    std_b: float
    ratio: float | None
    p_value: float | None


def spread_ratio(a: ArrayLike, b: ArrayLike) -> SpreadRatio:
    """Compare the spread of two models over their trials.

    The test is Brown and Forsythe's: a one-way analysis of the absolute deviations from each
    sample's median. Unlike the F test it does not take a few wild trials for a large variance of
    all. Values that are not finite are left out.

    Reference:
        M. B. Brown, A. B. Forsythe, Robust tests for the equality of variances, JASA 69 (1974).

    >>> result = spread_ratio([1, 5, 9, 2, 8], [4, 5, 6, 4, 6])
    >>> round(result.ratio, 2), result.p_value < 0.05
    (3.54, True)
    """
    first, second = as_vector(a, "a"), as_vector(b, "b")
    first, second = first[np.isfinite(first)], second[np.isfinite(second)]
    x, y = summarize(first), summarize(second)
    if x.n < 2 or y.n < 2 or x.std == y.std == 0:
        return SpreadRatio(x.n, y.n, x.std, y.std, None, None)
    ratio = x.std / y.std if y.std > 0 else math.inf
    if x.n < 3 or y.n < 3:  # two values are equally far from their median
        return SpreadRatio(x.n, y.n, x.std, y.std, ratio, 1.0)
    from scipy import stats  # takes a second to import

    # The deviations of one sample may all be equal: then the statistic divides by 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = float(stats.levene(first, second, center="median").pvalue)
    return SpreadRatio(x.n, y.n, x.std, y.std, ratio, p_value if p_value == p_value else 1.0)
