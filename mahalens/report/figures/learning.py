"""Test accuracy along training: a row of panels per family, a column per part of the run."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label
from mahalens.report.figures.accuracy_axis import AccuracyScale, label
from mahalens.report.figures.scales import set_log_ticks
from mahalens.report.figures.style import GREY, key, legend, panels, plain
from mahalens.report.networks import FAMILY_TITLES, families_of, network_style
from mahalens.report.records import RunRecords

TITLE = "How fast does each network learn?"


def caption(records: RunRecords) -> str:
    """What to look for."""
    several = any(len(trials) > 1 for trials in records.curves.values())
    band = (
        "Lines are means over the trials, bands reach from the worst trial to the best. "
        if several
        else "Each line is the one trial of a network. "
    )
    return (
        f"{band}A line that still rises at the right edge has not converged: its accuracy says how "
        "long it was trained. Dashed: outputs held to intensities; dotted: to distances. "
        "Accuracies stand on the log scale of the error."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no trial has a curve."""
    parts = [part for part in records.parts() if part.curves]
    families = families_of(model for part in parts for model in part.curves)
    curves = [c for part in parts for trials in part.curves.values() for c in trials.values()]
    if not curves:
        return None
    scale = AccuracyScale(np.concatenate([curve.value for curve in curves]).tolist())
    last = max(2.0, *(float(curve.step.max()) for curve in curves))
    count = len(parts) * len(families)
    figure, axes = panels(count, len(parts), 2.75, extra_height=0.5, sharex=True, sharey=True)
    places = ((family, part) for family in families for part in parts)
    several = False
    for place, (ax, (family, part)) in enumerate(zip(axes, places, strict=True)):
        drawn = [model for model in families[family] if part.curves.get(model)]
        for model in drawn:
            several |= _draw_model(ax, part, model, scale)
        title = FAMILY_TITLES.get(family, "Others")
        ax.set_title(plain(f"{title}, {part.title.lower()}"), loc="left", fontsize=9.5)
        if drawn:
            ax.legend(loc="upper left", fontsize=7.5, ncols=2, handlelength=2.6, borderpad=0.2)
        if place % len(parts) == 0:
            ax.set_ylabel(label().replace(" (", "\n("))
        if place >= count - len(parts):
            ax.set_xlabel("epoch (log scale)")
    axes[0].set_xscale("symlog", linthresh=1.0, linscale=0.4)
    set_log_ticks(axes[0].xaxis, 1.0, last, zero=0.0)
    axes[0].set_xlim(0, last * 1.05)
    scale.set(axes[0].yaxis)
    low, high = scale.limits()
    axes[0].set_ylim(low, high + 0.3 * (high - low))  # room for the names
    if several:
        legend(
            figure,
            [
                key("mean of the trials", color=GREY, lw=1.8),
                key("from the worst trial to the best", color=GREY, lw=8, alpha=0.25),
            ],
        )
    return figure


def _draw_model(ax: Axes, part: RunRecords, model: str, scale: AccuracyScale) -> bool:
    """One network's line and band; say whether it has several trials."""
    colour = model_colours([model], part.study)[model]
    curves = list(part.curves[model].values())
    steps = np.unique(np.concatenate([curve.step for curve in curves]))
    together = np.full((len(curves), len(steps)), np.nan)
    for place, curve in enumerate(curves):
        together[place, np.searchsorted(steps, curve.step)] = curve.value
    # A trial that stopped early is not carried on: from there, the others alone are drawn.
    kept = np.isfinite(together).any(axis=0)
    steps, together = steps[kept], together[:, kept]
    line = network_style(model)["ls"]
    mean = scale.at(np.nanmean(together, axis=0))
    marker = "." if len(steps) == 1 else ""
    name = plain(model_label(model, part.study))
    ax.plot(steps, mean, color=colour, lw=1.7, ls=line, marker=marker, label=name, zorder=4)
    if len(curves) > 1:
        low, high = scale.at(np.nanmin(together, axis=0)), scale.at(np.nanmax(together, axis=0))
        ax.fill_between(steps, low, high, color=colour, alpha=0.13, lw=0, zorder=2)
    return len(curves) > 1
