"""Learning curves of the activations study, a panel for each form of the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.figures.accuracy_axis import AccuracyScale, label
from mahalens.report.figures.part_panels import tick_gap
from mahalens.report.figures.scales import set_log_ticks
from mahalens.report.figures.style import DASHED, key, legend, panels
from mahalens.report.records import Curve, RunRecords
from mahalens.studies.activations.models import ACTIVATIONS, FORMS, split
from mahalens.studies.activations.presentation import COLOURS

TITLE = "Which activations learn, and what holding their outputs does to them"
_LINES = {"leakyrelu": DASHED}  # so that ReLU can be seen below it
_LONG = 50  # epochs from which on the first ones need a log scale to be seen


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Lines are medians over the trials, bands reach from the lower to the upper quartile. The "
        "axis is that of the error, 100 − accuracy, on a log scale, and all panels of a data set "
        "share it: an activation that falls behind in the middle panel does not bear to be held to "
        "intensities, and one that is back on the right is repaired by distances. A line that "
        "still moves at the right edge has not converged."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no trial has a curve."""
    parts = [part for part in records.parts() if part.curves]
    models = {model for part in parts for model in part.curves}
    forms = [form for form in FORMS if any(split(model)[1] == form for model in models)]
    if not forms:
        return None
    figure, axes = panels(len(parts) * len(forms), len(forms), 3.2, extra_height=0.5, sharex=True)
    last = 2.0
    for row, part in enumerate(parts):
        found = {model: list(own.values()) for model, own in part.curves.items() if own}
        scale = AccuracyScale(v for own in found.values() for c in own for v in c.value)
        for form, ax in zip(forms, axes[row * len(forms) :], strict=False):
            named = FORMS[form][0].upper() + FORMS[form][1:]
            ax.set_title(f"{part.title}: {FORMS[form]}" if len(parts) > 1 else named, loc="left")
            for name in ACTIVATIONS:
                if own := found.get(f"{name}{form}"):
                    _draw_model(ax, own, scale, name)
                    last = max(last, *(float(curve.step.max()) for curve in own))
            scale.set(ax.yaxis, 0.09)
            if form != forms[0]:
                ax.tick_params(labelleft=False)
        axes[row * len(forms)].set_ylabel(label().replace(" (", "\n(", 1))
    for ax in axes[-len(forms) :]:
        ax.set_xlabel("epoch (log scale)" if last > _LONG else "epoch")
    if last > _LONG:
        axes[0].set_xscale("symlog", linthresh=1.0, linscale=0.4)
        most = max(2, int(1 / tick_gap(len(forms), 1.0)))
        set_log_ticks(axes[0].xaxis, 1.0, last, most=most, zero=0.0)
    axes[0].set_xlim(0.0, last * 1.02)
    shown = [name for name in ACTIVATIONS if any(split(model)[0] == name for model in models)]
    entries = [key(ACTIVATIONS[n], lw=2.0, color=COLOURS[n], ls=_line(n)) for n in shown]
    legend(figure, entries, columns=7)
    return figure


def _draw_model(ax: Axes, curves: list[Curve], scale: AccuracyScale, name: str) -> None:
    """Median and quartiles of the trials, at the epochs that all of them were seen at."""
    steps = curves[0].step
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.step)
    values = np.stack([c.value[np.isin(c.step, steps)] for c in curves])
    known = np.isfinite(values).any(axis=0)
    if not known.any():
        return
    low, median, high = scale.at(np.nanpercentile(values[:, known], (25, 50, 75), axis=0))
    ax.plot(steps[known], median, color=COLOURS[name], ls=_line(name), lw=1.6, zorder=4)
    if len(curves) > 1:
        ax.fill_between(steps[known], low, high, color=COLOURS[name], alpha=0.15, lw=0, zorder=2)


def _line(name: str) -> Any:
    return _LINES.get(name, "-")
