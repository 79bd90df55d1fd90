"""How far every search still is from the true point, step by step; one panel a method."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.scales import on_log_axis, padded, positive_range, set_log_ticks
from mahalens.report.figures.style import DASHED, GREY, INK, key, legend, panels, plain
from mahalens.report.names import family
from mahalens.report.numbers import is_number, number
from mahalens.report.records import RunRecords

TITLE = "Convergence"
_LINES = ((0, ()), (0, (6, 1.5)), (0, (3, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_NAMES = {"pca-l2": "PCA-L2", "pca-l1": "PCA-L1", "remainder": "PCA-L2 + rest"}


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Distance of the found point from the true one. Bold: geometric mean over the trials; "
        "thin: each trial. A line that still falls at the right edge says how long was searched, "
        "not what the distances can tell; one that levels off high has found no way on."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no search has a curve."""
    models = models_in_order(m for m, trials in records.curves.items() if trials)
    families = list(dict.fromkeys(family(model)[0] for model in models))
    curves = [curve for model in models for curve in records.curves[model].values()]
    if not curves:
        return None
    ends = positive_range(np.concatenate([curve.value for curve in curves]))
    if ends is None:
        return None
    last = max(max(float(curve.step.max()) for curve in curves), 2.0)
    figure, axes = panels(len(families), 3, 3.1, sharex=True, sharey=True)
    colours = model_colours(models)
    for ax, name in zip(axes, families, strict=True):
        own = [model for model in models if family(model)[0] == name]
        for place, model in enumerate(own):
            _draw_model(ax, records, model, colours[model], place)
        title = _NAMES.get(name) or model_label(name)
        ax.set_title(plain(title), color=colours[own[0]], loc="left")
        ax.set_xlabel("step (log scale)")
        ax.tick_params(labelbottom=True, labelleft=True)
        if len(own) > 1 or any(_published(records, model) for model in own):
            ax.legend(loc="lower left", fontsize=8, handlelength=2.6, borderpad=0.2)
    axes[0].set_xscale("symlog", linthresh=1.0, linscale=0.4)
    set_log_ticks(axes[0].xaxis, 1.0, last, zero=0.0)
    axes[0].set_xlim(0, last * 1.1)
    axes[0].set_yscale("log")
    limits = padded(*ends)
    axes[0].set_ylim(limits)
    set_log_ticks(axes[0].yaxis, *limits)
    for ax in axes[:: min(3, len(axes))]:
        ax.set_ylabel("error ‖x − x_true‖ (log scale)")
    legend(
        figure,
        [
            key("a trial", color=GREY, lw=0.8, alpha=0.6),
            key("geometric mean of the trials", color=GREY, lw=2.2),
        ],
    )
    return figure


def _draw_model(ax: Axes, records: RunRecords, model: str, colour: str, place: int) -> None:
    style = _LINES[place % len(_LINES)]
    curves = list(records.curves[model].values())
    for curve in curves:
        values = [on_log_axis(v) if v > 0 else np.nan for v in curve.value]
        ax.plot(curve.step, values, color=colour, lw=0.7, alpha=0.3, ls=style, zorder=2)
    steps = max((curve.step for curve in curves), key=len)
    together = [np.interp(steps, c.step, np.log(np.maximum(c.value, 1e-250))) for c in curves]
    size = family(model)[1]
    label = "" if size is None else f"{size} components"
    published = _published(records, model)
    if published is not None:
        ax.axhline(published, color=INK, lw=0.9, ls=DASHED, alpha=0.6, zorder=1)
        label = f"{label or 'here'} (published: {number(published)})"
    mean = np.exp(np.mean(together, axis=0))
    ax.plot(steps, mean, color=colour, lw=2.0, ls=style, zorder=4, label=label or None)


def _published(records: RunRecords, model: str) -> float | None:
    value = records.row(model, "final_error").get("published")
    return float(value) if value is not None and is_number(value) and value > 0 else None
