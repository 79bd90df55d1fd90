"""One metric over many trials, summarised."""

from __future__ import annotations

import math
import statistics

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mahalens.errors import InputError


class Summary(msgspec.Struct, frozen=True):
    """Location, spread and range of the finite values of one metric.

    ``n`` counts the finite values that went in and ``dropped`` the others (NaN and the
    infinities). What is not defined is NaN, which JSON shows as null: everything when ``n`` is 0,
    ``std`` and ``variance`` when ``n`` is 1. ``ci95`` is then ``None``.
    """

    mean: float
    std: float
    variance: float
    median: float
    min: float
    max: float
    n: int
    dropped: int
    ci95: tuple[float, float] | None


def summarize(values: ArrayLike) -> Summary:
    """Summarise a metric over its trials.

    ``std`` and ``variance`` divide by n - 1. ``ci95`` is the Student t interval of the mean,
    ``mean ± t(0.975; n - 1) · std / √n``; equal values give an interval of width zero.

    Args:
        values: one number per trial [T]; ``None`` and NaN mark trials without a value. They
            and the infinities are left out and counted.

    Example:
        >>> summary = summarize([1.0, 2.0, 3.0, float("nan")])
        >>> summary.mean, summary.std, summary.n, summary.dropped
        (2.0, 1.0, 3, 1)
        >>> [round(end, 3) for end in summary.ci95]
        [-0.484, 4.484]
    """
    given = as_vector(values, "values")
    kept = given[np.isfinite(given)]
    n, dropped = kept.size, given.size - kept.size
    if n == 0:
        nan = math.nan
        return Summary(nan, nan, nan, nan, nan, nan, n=0, dropped=dropped, ci95=None)
    low, high = float(kept.min()), float(kept.max())
    if low == high:
        # Rounding in the mean would leave a tiny spread that is not there.
        spread, ci95 = (math.nan, None) if n == 1 else (0.0, (low, low))
        return Summary(low, spread, spread, low, low, low, n=n, dropped=dropped, ci95=ci95)

    # A diverged trial may be as large as its number type allows. Scaling by a power of two is
    # exact, and keeps the squares below from overflowing.
    _, exponent = math.frexp(max(abs(low), abs(high)))
    scaled = [float(value) for value in np.ldexp(kept, -exponent)]
    scaled_mean = statistics.fmean(scaled)
    scaled_std = statistics.stdev(scaled, xbar=scaled_mean)
    mean, std = unscale(scaled_mean, exponent), unscale(scaled_std, exponent)
    half_width = unscale(_t_quantile(n - 1) * scaled_std / math.sqrt(n), exponent)
    return Summary(
        mean=mean,
        std=std,
        variance=std * std,
        median=unscale(statistics.median(scaled), exponent),
        min=low,
        max=high,
        n=n,
        dropped=dropped,
        ci95=(mean - half_width, mean + half_width),
    )


def as_vector(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """One number per trial as a float64 vector, or an :class:`InputError` that says why not."""
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be numbers, one per trial, but could not be read ({error}); "
            "pass a flat sequence of floats with NaN or None where a trial has no value"
        ) from None
    if vector.ndim != 1:
        raise InputError(
            f"{name} has shape {list(vector.shape)}, but one number per trial [T] is wanted; "
            "flatten it or pass one metric at a time"
        )
    return vector


def unscale(value: float, exponent: int) -> float:
    """``value · 2**exponent``, infinite where that is too large for a float."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def _t_quantile(degrees: int) -> float:
    from scipy import stats  # takes a second to import: only those who ask for intervals wait

    return float(stats.t.ppf(0.975, degrees))
