"""Log axes that stay readable: few round ticks, plain numbers near 1, and a place for zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, NullLocator

from mahalens.report.numbers import number

_DECADE_STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 200)
_SMALLEST, _LARGEST = 1e-250, 1e250  # beyond, room for margins would overflow the number type


def on_log_axis(value: float) -> float:
    """A positive value as a log axis can show it."""
    return min(max(value, _SMALLEST), _LARGEST)


def positive_range(values: Any) -> tuple[float, float] | None:
    """Smallest and largest positive finite value, as a log axis shows them; None without any."""
    array = np.asarray(values, dtype=np.float64)
    kept = array[np.isfinite(array) & (array > 0)]
    return (on_log_axis(kept.min()), on_log_axis(kept.max())) if kept.size else None


def padded(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """``low`` and ``high`` moved apart by a share of their ratio, for limits of a log axis."""
    decades = max(share * (math.log10(high) - math.log10(low)), 0.04)
    return low * 10.0**-decades, high * 10.0**decades


def zero_place(values: Any) -> float | None:
    """Where to draw 0 on a log axis: some way below the smallest positive value.

    None when nothing needs it (no value is 0) or when nothing is positive.

    >>> zero_place([0.0, 0.02, 0.5]), zero_place([0.02, 0.5])
    (0.001, None)
    """
    ends = positive_range(values)
    if ends is None or not np.any(np.asarray(values) == 0):
        return None
    lowest, highest = (math.log10(end) for end in ends)
    return float(10.0 ** (math.floor(lowest) - max(1, min(10, math.ceil((highest - lowest) / 8)))))


def zero_edge(zero: float, smallest: float) -> float:
    """Half-way (on the log axis) from the place of 0 to the smallest value: the scale ends here."""
    return math.sqrt(zero) * math.sqrt(smallest)


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round numbers between ``low`` and ``high`` to label a log axis with.

    >>> log_ticks(0.3, 8), log_ticks(1e-31, 2, most=5)
    ([0.5, 1.0, 2.0, 5.0], [1e-30, 1e-20, 1e-10, 1.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # Numbers are parsed rather than multiplied: 3e-1 is then 0.3, and 1e309 no error.
    choices = [
        [float(f"{mantissa}e{power}") for power in range(first, last + 1) for mantissa in mantissas]
        for mantissas in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3))
    ]
    for step in _DECADE_STEPS:
        powers = range(first - first % step, last + 1, step)
        choices.append([float(f"1e{power}") for power in powers])
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in choices]
    if len(inside[0]) < 2:  # much less than a power of ten: as on a linear axis
        even = MaxNLocator(3).tick_values(low, high)
        # matplotlib takes numbers below 2e-287 for 0 and finds nothing there
        return [float(tick) for tick in even if low <= tick <= high] or [low]
    return next((ticks for ticks in inside if 0 < len(ticks) <= most), inside[-1] or inside[0])


def tick_label(value: float) -> str:
    """A power of ten as such, except near 1, where the plain number is easier to read."""
    if 1e-3 <= value < 1e6:
        text = number(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.2e}".split("e")
    power = f"10^{{{int(exponent)}}}"
    shown = f"{float(mantissa):g}"
    return f"${power}$" if shown == "1" else rf"${shown}\times {power}$"


def set_log_ticks(
    axis: Axis, low: float, high: float, most: int = 6, zero: float | None = None
) -> None:
    """Label a log axis from ``low`` to ``high``, and 0 at the place ``zero`` if there is one."""
    ticks = log_ticks(low, high, most)
    labels = [tick_label(tick) for tick in ticks]
    if zero is not None:
        ticks, labels = [zero, *ticks], ["0", *labels]
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, labels)
