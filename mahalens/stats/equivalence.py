"""Do two models differ by less than a margin? A difference that is not seen does not show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mahalens.errors import InputError
from mahalens.stats.pairs import (
    Alternative,
    Differences,
    is_normal,
    paired_vectors,
    signed_rank_p,
    t_test,
)
from mahalens.stats.summary import Summary, summarize
from mahalens.stats.two_models import PairedTest

_LEVEL = 0.05

Verdict = Literal["equivalent", "different", "undecided"]


class Equivalence(msgspec.Struct, frozen=True):
    """Whether the mean difference ``a - b`` over paired trials lies within ``±margin``.

    ``t_lower`` and ``p_lower`` belong to the test that the difference lies above ``-margin``,
    ``t_upper`` and ``p_upper`` to the test that it lies below ``margin``; ``tost_p`` is the larger
    p-value. It is below 0.05 exactly if ``ci90``, the 90 % interval of the mean difference, lies
    within the margin. ``wilcoxon_p`` is the same from two signed-rank tests.

    ``preferred_p`` is one of the two, chosen as in :func:`mahalens.stats.compare`. ``p_beyond`` is
    the p-value of the opposite statement by the same test, that the difference is larger than
    ``margin`` on one side. ``verdict`` is "equivalent" if ``preferred_p < 0.05``, "different" if
    ``p_beyond < 0.05``, and "undecided" else. What is not defined is ``None``.
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
    verdict: Verdict = "undecided"


def equivalent(a: ArrayLike, b: ArrayLike, margin: float) -> Equivalence:
    """Test that two models differ by less than ``margin`` on average, over paired trials.

    Two one-sided paired t-tests (TOST) of the differences ``d = a - b``, with mean d̄ and standard
    deviation s: ``t_lower = (d̄ + margin) √n / s`` and ``t_upper = (d̄ - margin) √n / s``. If all
    differences are equal there is no t, and the signed-rank tests answer; five equal differences
    within the margin are the fewest that can be called equivalent. The signed-rank tests speak of
    the middle of the differences, not of their mean: one bad trial does not decide.

    Args:
        a: one number per trial [T].
        b: the same trials under the other model [T]. ``None``, NaN and infinite values mark
            trials without a value.
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
    limit = _margin(margin)
    first, second = paired_vectors(a, b)
    difference = Differences(first, second, at_least=limit)
    over_pairs = summarize(difference.scaled)
    result = Equivalence(
        n=difference.n,
        dropped=first.size - difference.n,
        margin=limit,
        mean_difference=difference.unscale(over_pairs.mean) if difference.n else None,
    )
    if difference.n < 2:
        return result

    values, scaled_limit = difference.scaled, math.ldexp(limit, -difference.exponent)
    shapiro_difference = difference.shapiro_p()
    normal = is_normal(shapiro_difference)
    by_ranks = _tests(_rank_p, values, scaled_limit)
    by_t = None if difference.constant else _tests(_t_p, values, scaled_limit)
    preferred = by_t if by_t is not None and normal else by_ranks
    low, high = _interval(over_pairs)
    return msgspec.structs.replace(
        result,
        ci90=(difference.unscale(low), difference.unscale(high)),
        df=difference.n - 1,
        t_lower=None if by_t is None else _t(values, -scaled_limit),
        t_upper=None if by_t is None else _t(values, scaled_limit),
        p_lower=None if by_t is None else by_t.lower,
        p_upper=None if by_t is None else by_t.upper,
        tost_p=None if by_t is None else by_t.within,
        wilcoxon_p=by_ranks.within,
        shapiro_difference=shapiro_difference,
        normal=normal,
        preferred_test="paired t" if normal else "Wilcoxon",
        preferred_p=preferred.within,
        p_beyond=preferred.beyond,
        verdict=preferred.verdict,
    )


class _Tests(msgspec.Struct, frozen=True):
    """One-sided p-values at both margins, and what follows from them."""

    lower: float
    upper: float
    below: float
    above: float

    @property
    def within(self) -> float:
        return max(self.lower, self.upper)

    @property
    def beyond(self) -> float:
        # Twice, because either of two sides would do.
        return min(1.0, 2 * min(self.below, self.above))

    @property
    def verdict(self) -> Verdict:
        if self.within < _LEVEL:
            return "equivalent"
        return "different" if self.beyond < _LEVEL else "undecided"


def _tests(
    p: Callable[[NDArray[np.float64], float, Alternative], float],
    values: NDArray[np.float64],
    limit: float,
) -> _Tests:
    return _Tests(
        lower=p(values, -limit, "greater"),
        upper=p(values, limit, "less"),
        below=p(values, -limit, "less"),
        above=p(values, limit, "greater"),
    )


def _rank_p(values: NDArray[np.float64], centre: float, alternative: Alternative) -> float:
    return signed_rank_p(values - centre, alternative)


def _t_p(values: NDArray[np.float64], centre: float, alternative: Alternative) -> float:
    return t_test(values, centre, alternative)[1]


def _t(values: NDArray[np.float64], centre: float) -> float | None:
    t, _ = t_test(values, centre)
    return t if math.isfinite(t) else None


def _interval(over_pairs: Summary) -> tuple[float, float]:
    """The 90 % interval of the mean, without width if all differences are equal."""
    from scipy import stats  # takes a second to import

    quantile = float(stats.t.ppf(0.95, over_pairs.n - 1))
    half_width = quantile * over_pairs.std / math.sqrt(over_pairs.n)
    return over_pairs.mean - half_width, over_pairs.mean + half_width


def _margin(margin: float) -> float:
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
