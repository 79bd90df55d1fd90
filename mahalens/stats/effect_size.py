"""The interval of Cohen's d, from the noncentral t distribution."""

from __future__ import annotations

import math

import numpy as np

# Scipy sums a series that grows with t² and gives up near 1e5. The integral below takes over
# long before; both agree to 1e-12 at the seam.
_SERIES_UP_TO = 100.0


def noncentrality_interval(t: float, df: float) -> tuple[float, float]:
    """The noncentralities under which ``t`` lies in the middle 95 % of its distribution.

    The ends λ solve ``P(T <= t; df, λ) = 0.975`` and ``0.025``. With two groups of n₁ and n₂
    values, ``λ √(1/n₁ + 1/n₂)`` are the ends of the interval of Cohen's d.

    Args:
        t: Student's t statistic, finite.
        df: its degrees of freedom, above 0.

    Reference:
        G. Cumming, S. Finch, A primer on the understanding, use, and calculation of confidence
        intervals that are based on central and noncentral distributions, 2001.

    Example:
        >>> [round(end, 2) for end in noncentrality_interval(0.0, 18)]
        [-1.96, 1.96]
    """
    if t < 0:
        low, high = noncentrality_interval(-t, df)
        return -high, -low
    from scipy import optimize, stats  # takes a second to import

    # P(T <= t; λ) = P(t s + z >= λ) with s = χ/√df and z normal. To leave the bounds, s or z has
    # to leave its own, by 1.25 % each and 2.5 % together: both ends lie between them.
    s_low, s_high = (float(stats.chi.ppf(q, df)) / math.sqrt(df) for q in (0.0125, 0.9875))
    z_high = float(stats.norm.ppf(0.9875))
    bounds = (t * s_low - z_high, t * s_high + z_high)

    def end(probability: float) -> float:
        def excess(noncentrality: float) -> float:
            return _cdf(t, df, noncentrality) - probability

        return float(optimize.brentq(excess, *bounds))

    return end(0.975), end(0.025)


def _cdf(t: float, df: float, noncentrality: float) -> float:
    from scipy import stats  # takes a second to import

    if t <= _SERIES_UP_TO:
        return float(stats.nct.cdf(t, df, noncentrality))
    return _integral(t, df, noncentrality)


def _integral(t: float, df: float, noncentrality: float) -> float:
    """``P(T <= t) = ∫ φ(z) P(χ >= √df (λ - z) / t) dz`` for t > 0, by the trapezoidal rule."""
    from scipy import stats  # takes a second to import

    z = np.arange(-900, 901) / 100
    weights = np.exp(-z * z / 2)
    beyond = stats.chi.sf((noncentrality - z) / t * math.sqrt(df), df)
    return float(weights @ beyond / weights.sum())
