"""What was seen along training: the median of the trials with its quartiles, a panel per part."""

from __future__ import annotations

from itertools import count

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mahalens.report.catalogue import (
    MetricView,
    metric_view,
    metrics_of,
    model_colours,
    model_label,
    models_in_order,
)
from mahalens.report.figures.accuracy_axis import AccuracyScale
from mahalens.report.figures.metric_axis import PlainScale, scale_of
from mahalens.report.figures.part_panels import columns_for, part_panels, tick_gap
from mahalens.report.figures.scales import set_log_ticks
from mahalens.report.figures.style import key, legend, legend_columns, plain
from mahalens.report.records import Curve, RunRecords
from mahalens.report.views import view_of

TITLE = "How fast does each model learn?"
_LINES = ((0, ()), (0, (5, 2)), (0, (1.2, 1.3)), (0, (6, 1.5, 1.2, 1.5)))
_LONG = 50  # epochs from which on the first ones need a log scale to be seen
_FEW = 6  # models whose bands can lie over each other


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Lines are medians over the trials, bands reach from the lower to the upper quartile. A "
        "line that still moves at the right edge has not converged. Models of one colour are told "
        "apart by their lines."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no trial has a curve."""
    parts = [part for part in records.parts() if part.curves]
    models = models_in_order((m for part in parts for m in part.curves), records.study)
    if not models:
        return None
    view = _metric(records)
    scales = [scale_of(view, view_of(records.study), _seen(part)) for part in parts]
    curves = [c for part in parts for trials in part.curves.values() for c in trials.values()]
    last = max(2.0, *(float(curve.step.max()) for curve in curves))
    along = "epoch (log scale)" if last > _LONG else "epoch"
    names = {model: plain(model_label(model, records.study)) for model in models}
    lines = -(-len(models) // legend_columns(list(names.values())))
    figure, axes = part_panels(parts, 3.0, along, below=0.4 + 0.2 * lines, sharex=True)
    colours = model_colours(models, records.study)
    styles = _styles(models, colours)
    for place, (ax, part, (scale, beside)) in enumerate(zip(axes, parts, scales, strict=True)):
        for model in (model for model in models if part.curves.get(model)):
            faint = 0.15 if len(models) <= _FEW else 0.05
            _draw_model(ax, list(part.curves[model].values()), scale, styles[model], faint)
        scale.set(ax.yaxis, 0.09)
        if place % columns_for(len(parts)) == 0:
            ax.set_ylabel(beside.replace(" (", "\n(", 1))
    if last > _LONG:
        axes[0].set_xscale("symlog", linthresh=1.0, linscale=0.4)
        most = max(2, int(1 / tick_gap(len(parts), 1.0)))
        set_log_ticks(axes[0].xaxis, 1.0, last, most=most, zero=0.0)
    else:
        axes[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0].set_xlim(min(0.0, *(float(c.step.min()) for c in curves)), last * 1.02)
    legend(figure, [key(names[m], lw=2.0, color=styles[m][0], ls=styles[m][1]) for m in models])
    return figure


def _metric(records: RunRecords) -> MetricView:
    """The column of the curves, with what the study says of a metric of that name."""
    curve = view_of(records.study).curve
    name = curve[1] if curve else ""
    known = metrics_of(records.study)
    if name in known:
        return known[name]
    unit, better = ("%", "high") if name.endswith("accuracy") else ("", "low")
    return MetricView(name, metric_view({}, name).label, "", unit, better, name.endswith("loss"))


def _styles(models: list[str], colours: dict[str, str]) -> dict[str, tuple[str, object]]:
    """Colour and line of each model: those of one colour have different lines."""
    turns = {colour: count() for colour in colours.values()}
    return {m: (colours[m], _LINES[next(turns[colours[m]]) % len(_LINES)]) for m in models}


def _seen(part: RunRecords) -> list[float]:
    """What the panel must have room for: medians and quartiles, not the worst trial."""
    ends = [_quartiles(list(trials.values()))[1] for trials in part.curves.values() if trials]
    return [float(value) for own in ends for value in own.ravel()]


def _quartiles(curves: list[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Epochs [L] and, of the trials that were seen there, quartiles and median [3, L]."""
    steps = np.unique(np.concatenate([curve.step for curve in curves]))
    together = np.full((len(curves), len(steps)), np.nan)
    for place, curve in enumerate(curves):
        together[place, np.searchsorted(steps, curve.step)] = curve.value
    kept = np.isfinite(together).any(axis=0)
    return steps[kept], np.nanpercentile(together[:, kept], (25, 50, 75), axis=0)


def _draw_model(
    ax: Axes,
    curves: list[Curve],
    scale: AccuracyScale | PlainScale,
    style: tuple[str, object],
    faint: float,
) -> None:
    steps, found = _quartiles(curves)
    low, median, high = (scale.at(values) for values in found)
    colour, line = style
    marker = "." if len(steps) == 1 else ""
    ax.plot(steps, median, color=colour, ls=line, lw=1.6, marker=marker, zorder=4)
    if len(curves) > 1:
        ax.fill_between(steps, low, high, color=colour, alpha=faint, lw=0, zorder=2)
