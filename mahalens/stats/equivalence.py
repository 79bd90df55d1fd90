"""Equivalence tests: a difference that was not detected is no evidence that there is none."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mahalens.errors import InputError
from mahalens.stats.comparisons import (
    Alternative,
    PairedTest,
    is_normal,
    paired_vectors,
    quarter_differences,
    shapiro_p,
    signed_rank_p,
    t_test,
)
from mahalens.stats.summaries import summarise

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
    the middle of the differences, not about their mean: one bad trial does not decide.

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
    within, beyond = _p_within(values, edge, preferred), _p_beyond(values, edge, preferred)
    verdict: _Verdict = "different" if beyond < _LEVEL else "undecided"
    return Equivalence(
        n,
        dropped,
        limit,
        mean_difference=4 * mean,
        ci90=(4 * (mean - half_width), 4 * (mean + half_width)),
        df=n - 1,
        **t_statistics,
        wilcoxon_p=_p_within(values, edge, "Wilcoxon"),
        shapiro_difference=shapiro_difference,
        normal=normal,
        preferred_test=preferred,
        preferred_p=within,
        p_beyond=beyond,
        verdict="equivalent" if within < _LEVEL else verdict,
    )


def _p(
    values: NDArray[np.float64], centre: float, alternative: Alternative, test: PairedTest
) -> float:
    if test == "paired t":
        return t_test(values, centre, alternative)[1]
    return signed_rank_p(values - centre, alternative)


def _p_within(values: NDArray[np.float64], edge: float, test: PairedTest) -> float:
    return max(_p(values, -edge, "greater", test), _p(values, edge, "less", test))


def _p_beyond(values: NDArray[np.float64], edge: float, test: PairedTest) -> float:
    # Twice the smaller one, because either side would do.
    return min(1.0, 2 * min(_p(values, -edge, "less", test), _p(values, edge, "greater", test)))


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
