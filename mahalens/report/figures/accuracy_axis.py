"""An axis of accuracies on which 95 % and 97 % are told apart beside 40 %: log of the error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0)
_FINER = (*(0.1 * n for n in range(1, 10)), *range(1, 10), *range(10, 101, 10))
_NAMED = "log scale of the error"


class AccuracyScale:
    """Places of accuracies in per cent; further along is better, and 100 has a place.

    >>> scale = AccuracyScale([10.0, 90.0, 99.0])
    >>> scale.at([0.0, 90.0, 98.0]).round(2).tolist()
    [-2.0, -1.0, -0.3]
    >>> [label for _, label in scale.ticks()]
    ['0', '20', '50', '80', '90', '95', '98', '99']
    """

    def __init__(self, accuracies: Iterable[float]) -> None:
        errors = 100.0 - np.asarray(list(accuracies), dtype=np.float64)
        errors = errors[np.isfinite(errors)]
        positive = errors[errors > 1e-9]
        self._perfect = bool(np.any(errors <= 1e-9))
        smallest = float(positive.min()) if positive.size else 1.0
        self._zero = smallest / 2.5  # where an error of 0 is drawn
        self.worst = min(float(positive.max()), 100.0) if positive.size else 100.0
        self.best = self._zero if self._perfect else smallest

    def at(self, accuracies: ArrayLike) -> NDArray[np.float64]:
        """Where accuracies stand: minus the logarithm of the error; NaN stays NaN."""
        errors = 100.0 - np.asarray(accuracies, dtype=np.float64)
        return -np.log10(np.maximum(errors, self._zero))

    def ticks(self, gap: float = 0.045) -> list[tuple[float, str]]:
        """Places with their labels, the worst first, no two closer than a share of the axis."""
        low, high = self.limits()

        def inside(errors: Sequence[float]) -> list[tuple[float, str]]:
            ticks = [(float(-np.log10(e)), f"{round(100 - e, 6):g}") for e in reversed(errors)]
            return [(place, label) for place, label in ticks if low <= place <= high]

        found = inside(_ERRORS)
        # Few round numbers are better than many others, where there is no room for many.
        found = inside(_FINER) if len(found) < (5 if gap < 0.06 else 3) else found
        if len(found) < 3:  # less than a factor of two: as on a linear axis
            even = MaxNLocator(4).tick_values(100 - self.worst, 100 - self.best)
            found = inside([100 - float(a) for a in reversed(even) if a < 100 - 1e-9])
        if self._perfect:
            last = float(-np.log10(self._zero))
            found = [tick for tick in found if tick[0] < last - max(0.12, gap) * (high - low)]
            found.append((last, "100"))
        kept: list[tuple[float, str]] = []
        for place, label in found:
            if not kept or place - kept[-1][0] >= gap * (high - low):
                kept.append((place, label))
        return kept

    def limits(self) -> tuple[float, float]:
        """The ends of an axis that shows everything, with some room."""
        low, high = -np.log10(self.worst), -np.log10(self.best)
        room = max(0.04 * (high - low), 0.03)
        return float(low - room), float(high + room)

    def set(self, axis: Axis, gap: float = 0.045) -> None:
        """Give an axis these limits and ticks, no two closer than ``gap``, a share of it."""
        axis.set_minor_locator(NullLocator())
        axis.set_view_interval(*self.limits(), ignore=True)
        places, labels = zip(*found, strict=True) if (found := self.ticks(gap)) else ((), ())
        axis.set_ticks(list(places), list(labels))


def label(what: str = "test accuracy") -> str:
    """The label of such an axis."""
    return f"{what} (%, {_NAMED})"
