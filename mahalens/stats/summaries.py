"""One metric over many trials: location and spread, shares, and which of two models varies more."""

from __future__ import annotations

import math
import operator
import statistics
import warnings
from typing import SupportsIndex

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mahalens.errors import InputError


class Summary(msgspec.Struct, frozen=True):
    """Location, spread and range of the finite values of one metric.

    ``n`` counts the finite values and ``dropped`` the others (NaN and the infinities). Undefined
    numbers are NaN, which JSON shows as null: all of them if ``n`` is 0, ``std`` and ``variance``
    if ``n`` is 1. In both cases ``ci95`` is ``None``.
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


def summarise(values: ArrayLike) -> Summary:
    """Summarise a metric over its trials.

    ``std`` and ``variance`` divide by n - 1. ``ci95`` is the Student t interval of the mean,
    ``mean ± t(0.975; n - 1) · std / √n``; equal values give an interval of width zero.

    Args:
        values: one number per trial [T], with ``None`` or NaN where a trial has no value.

    Example:
        >>> summary = summarise([1.0, 2.0, 3.0, float("nan")])
        >>> summary.mean, summary.std, summary.n, summary.dropped
        (2.0, 1.0, 3, 1)
        >>> [round(end, 3) for end in summary.ci95]
        [-0.484, 4.484]
    """
    vector = as_vector(values, "values")
    finite = vector[np.isfinite(vector)]
    n, dropped = finite.size, vector.size - finite.size
    if n == 0:
        nan = math.nan
        return Summary(nan, nan, nan, nan, nan, nan, n=0, dropped=dropped, ci95=None)
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        # Rounding in the mean would otherwise show up as a tiny spread.
        spread, ci95 = (math.nan, None) if n == 1 else (0.0, (low, low))
        return Summary(low, spread, spread, low, low, low, n=n, dropped=dropped, ci95=ci95)

    # A diverged trial may be as large as its number type allows. Scaling by a power of two is
    # exact, and prevents the squares below from overflowing.
    _, exponent = math.frexp(max(abs(low), abs(high)))
    scaled = [float(value) for value in np.ldexp(finite, -exponent)]
    scaled_mean = statistics.fmean(scaled)
    scaled_std = statistics.stdev(scaled, xbar=scaled_mean)
    mean, std = unscale(scaled_mean, exponent), unscale(scaled_std, exponent)
    half_width = unscale(float(stats.t.ppf(0.975, n - 1)) * scaled_std / math.sqrt(n), exponent)
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


def summarize(values: ArrayLike) -> Summary:
    """Call :func:`summarise`, which replaces this spelling."""
    warnings.warn("use mahalens.stats.summarise", DeprecationWarning, stacklevel=2)
    return summarise(values)


class Proportion(msgspec.Struct, frozen=True):
    """A share of trials with its 95 % Wilson interval; made by :func:`proportion`.

    ``share`` is ``k / n``; ``ci95`` its interval, which never leaves 0 to 1.
    """

    k: int
    n: int
    share: float
    ci95: tuple[float, float]


def proportion(k: SupportsIndex, n: SupportsIndex) -> Proportion:
    """Return the share k / n with its 95 % Wilson interval.

    Args:
        k: trials in which something happened.
        n: trials in all, at least 1.

    Example:
        >>> result = proportion(14, 20)
        >>> result.share, [round(end, 3) for end in result.ci95]
        (0.7, [0.481, 0.855])
    """
    try:
        k, n = operator.index(k), operator.index(n)
    except TypeError:
        raise InputError(f"k = {k!r} of n = {n!r} are not counts; pass whole numbers") from None
    if n < 1 or not 0 <= k <= n:
        raise InputError(
            f"k = {k} of n = {n} is not a share of trials; pass counts with 0 <= k <= n and n >= 1"
        )
    interval = stats.binomtest(k, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Proportion(k=k, n=n, share=k / n, ci95=(float(interval.low), float(interval.high)))


class SpreadRatio(msgspec.Struct, frozen=True):
    """Standard deviations of two samples, their ratio, and a test that they differ.

    ``ratio`` is ``std_a / std_b``: infinite if b has no spread, ``None`` if either sample has
    fewer than two values or neither has a spread. ``p_value`` is two-sided, ``None`` without a
    ratio.
    """

    n_a: int
    n_b: int
    std_a: float
    std_b: float
    ratio: float | None
    p_value: float | None


def spread_ratio(a: ArrayLike, b: ArrayLike) -> SpreadRatio:
    """Compare the spread of two models over their trials.

    The test is Brown and Forsythe's: a one-way analysis of variance of the absolute deviations
    from each sample's median. Unlike the F test it does not mistake a few wild trials for a large
    variance of all of them. Values that are not finite are left out.

    Reference:
        M. B. Brown, A. B. Forsythe, Robust tests for the equality of variances, JASA 69 (1974).

    Example:
        >>> result = spread_ratio([1, 5, 9, 2, 8], [4, 5, 6, 4, 6])
        >>> round(result.ratio, 2), result.p_value < 0.05
        (3.54, True)
    """
    first, second = as_vector(a, "a"), as_vector(b, "b")
    first, second = first[np.isfinite(first)], second[np.isfinite(second)]
    x, y = summarise(first), summarise(second)
    if x.n < 2 or y.n < 2 or x.std == y.std == 0:
        return SpreadRatio(x.n, y.n, x.std, y.std, None, None)
    p_value = 1.0  # also for two values, which are equally far from their median
    if min(x.n, y.n) > 2:
        p_value = _brown_forsythe_p(first, second)
    ratio = x.std / y.std if y.std > 0 else math.inf
    return SpreadRatio(x.n, y.n, x.std, y.std, ratio, p_value)


def _brown_forsythe_p(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    from mahalens.stats.comparisons import without_rounding

    # If all deviations of a sample are equal, only their rounding is left to divide by.
    quarters = (first / 4, second / 4)  # the difference of two large numbers may overflow
    sizes = np.concatenate([np.abs(values - np.median(values)) for values in quarters])
    largest = np.concatenate([np.full(values.size, np.abs(values).max()) for values in quarters])
    sizes = without_rounding(sizes, largest)
    if np.ptp(sizes[: first.size]) == np.ptp(sizes[first.size :]) == 0:
        return float(sizes[0] == sizes[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = float(stats.levene(first, second, center="median").pvalue)
    return 1.0 if math.isnan(p_value) else p_value


def as_vector(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Convert to a float64 vector with one number per trial, or raise :class:`InputError`."""
    try:
        if isinstance(values, np.ma.MaskedArray):
            values = np.ma.filled(values.astype(np.float64), np.nan)
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: tensors with gradients
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
    """Return ``value · 2**exponent``, infinite where that overflows."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)
