"""An axis for any metric: accuracies on the log scale of the error, others linear or log."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from mahalens.report.catalogue import MetricView
from mahalens.report.figures.accuracy_axis import AccuracyScale
from mahalens.report.figures.accuracy_axis import label as accuracy_label
from mahalens.report.figures.scales import log_ticks, positive_range, tick_label
from mahalens.report.views import View


class PlainScale:
    """Values where they are, or where their logarithms are; with ticks a reader can tell apart.

    >>> PlainScale([1.0, 3.0]).at([2.0]).tolist(), PlainScale([1.0, 100.0], log=True).at([10.0])
    ([2.0], array([1.]))
    """

    def __init__(self, values: Iterable[float], log: bool = False) -> None:
        given = np.asarray(list(values), dtype=np.float64)
        given = given[np.isfinite(given)]
        ends = positive_range(given)
        # A log axis has no place for 0: with one there, all is drawn on a linear one.
        self.log = log and ends is not None and bool((given > 0).all())
        self._given = self.at(given) if given.size else np.zeros(1)

    def at(self, values: ArrayLike) -> NDArray[np.float64]:
        """Places of values; what a log axis cannot show stands at its edge."""
        array = np.asarray(values, dtype=np.float64)
        if not self.log:
            return array
        lowest = getattr(self, "_given", None)
        floor = 1e-250 if lowest is None else 10.0 ** self.limits()[0]
        return np.log10(np.maximum(array, floor))

    def limits(self) -> tuple[float, float]:
        """The ends of an axis that shows everything, with some room."""
        low, high = float(self._given.min()), float(self._given.max())
        room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
        return low - room, high + room

    def set(self, axis: Axis, gap: float = 0.045) -> None:
        """Give an axis these limits, and ticks no closer than ``gap``, a share of the axis."""
        low, high = self.limits()
        most = max(2, int(1 / max(gap, 0.01)) - 1)
        axis.set_minor_locator(NullLocator())
        axis.set_view_interval(low, high, ignore=True)
        if self.log:
            ticks = log_ticks(10.0**low, 10.0**high, most=min(most, 6))
            axis.set_ticks([float(np.log10(t)) for t in ticks], [tick_label(t) for t in ticks])
        else:
            axis.set_major_locator(MaxNLocator(min(most, 6)))


def scale_of(
    metric: MetricView, view: View, values: Iterable[float]
) -> tuple[AccuracyScale | PlainScale, str]:
    """The scale for a metric and what to write beside it.

    A percentage of which more is better stands on the log scale of the error, unless the study
    wants its primary metric on a linear one.
    """
    linear = view.linear and metric.name in view.primary
    if metric.unit == "%" and metric.better == "high" and not linear:
        return AccuracyScale(values), accuracy_label(metric.mid_sentence)
    scale = PlainScale(values, log=metric.log)
    unit = f" ({metric.unit})" if metric.unit else ""
    return scale, f"{metric.mid_sentence}{unit}{', log scale' if scale.log else ''}"
