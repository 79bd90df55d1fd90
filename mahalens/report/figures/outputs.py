"""How often every output is active, trial by trial, for networks whose outputs can die."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mahalens.report.catalogue import model_label, models_in_order
from mahalens.report.figures.style import key, legend, panels, plain
from mahalens.report.networks import has_relu_outputs
from mahalens.report.numbers import is_number, number
from mahalens.report.records import RunRecords

TITLE = "Which outputs are dead, in which trial?"
# Upper ends of the shares, their colours and names: warm for what hardly answers.
_STEPS = (
    (0.0, "#8c2d04", "dead: never active"),
    (0.01, "#e6701d", "below 1 % of the inputs"),
    (0.05, "#fdc28c", "1 to 5 %"),
    (0.25, "#dbe9f4", "5 to 25 %"),
    (0.75, "#93bfdd", "25 to 75 %"),
    (1.0, "#3a7fb5", "above 75 %"),
)
_MISSING = "#cccccc"
_ACROSS = 6


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Share of the training samples on which an output exceeds 1e-6, for networks that end in "
        "ReLU: a row per trial, a column per output. A dead output can never name its class; where "
        "the same column is dark in many trials, the class is the reason, else the starting point. "
        "Below each name: the mean shares of outputs that are dead and that are active on fewer "
        "than 5 % of the samples; where the run has it, also the share that was dead before "
        "training."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no network of the run ends in ReLU."""
    parts = [part for part in records.parts() if _models(part)]
    shown = [(part, model) for part in parts for model in _models(part)]
    if not shown:
        return None
    widest = max(len(_models(part)) for part in parts)
    columns = min(max(widest, 2), _ACROSS) if len(parts) > 1 else min(len(shown), _ACROSS)
    trials = max(len(_activity(part, model)) for part, model in shown)
    height = 1.45 + 0.13 * min(max(trials, 4), 20)
    figure, axes = panels(len(shown), columns, height, extra_height=0.75)
    seen: set[int] = set()
    missing = False
    for place, (ax, (part, model)) in enumerate(zip(axes, shown, strict=True)):
        activity = _activity(part, model)
        levels = _levels(activity)
        seen |= set(levels[np.isfinite(activity)].tolist())
        missing |= bool(np.isnan(activity).any())
        _draw_panel(ax, activity, levels)
        name = plain(model_label(model, part.study)).replace(", ", ",\n")
        ax.set_title(f"{name}\n{part.title.lower()}", fontsize=8.5, loc="left")
        ax.set_xlabel(f"output\n{_told(part, model)}", fontsize=8)
        if place % columns == 0:
            ax.set_ylabel("trial")
    square = {"marker": "s", "ls": "", "ms": 9, "mec": "#999999", "mew": 0.5}
    entries = [
        key(name, color=colour, **square)
        for level, (_, colour, name) in enumerate(_STEPS)
        if level in seen
    ]
    if missing:
        entries.append(key("not finite", color=_MISSING, **square))
    legend(figure, entries, columns=6)
    return figure


def _models(part: RunRecords) -> list[str]:
    names = (name.partition("/") for name in part.plots)
    given = [model for model, _, kind in names if kind == "output_activity"]
    found = [model for model in models_in_order(given, part.study) if has_relu_outputs(model)]
    return [model for model in found if _activity(part, model).size]


def _activity(part: RunRecords, model: str) -> NDArray[np.float64]:
    return part.plots[f"{model}/output_activity"].astype(np.float64)


def _levels(activity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which of the steps each share belongs to: a step takes what lies below its end."""
    ends = np.array([end for end, _, _ in _STEPS])
    levels = np.searchsorted(ends[1:-1], np.nan_to_num(activity), side="right") + 1
    return np.where(activity == 0, 0, levels)


def _draw_panel(ax: Axes, activity: NDArray[np.float64], levels: NDArray[np.int64]) -> None:
    colours = ListedColormap([colour for _, colour, _ in _STEPS]).with_extremes(bad=_MISSING)
    norm = BoundaryNorm(np.arange(len(_STEPS) + 1) - 0.5, colours.N)
    trials, outputs = activity.shape
    shown = np.ma.masked_array(levels, np.isnan(activity))
    edge = "white" if outputs <= 20 else "none"
    ax.pcolormesh(shown, cmap=colours, norm=norm, edgecolors=edge, linewidth=0.4)
    ax.grid(visible=False)
    ax.set(xlim=(0, outputs), ylim=(trials, 0))
    for axis, count in ((ax.xaxis, outputs), (ax.yaxis, trials)):
        step = max(1, -(-count // 5))
        ticks = np.arange(0, count, step)
        axis.set_ticks(ticks + 0.5, [str(tick) for tick in ticks])
        axis.set_tick_params(length=0)


def _told(part: RunRecords, model: str) -> str:
    dead, rare = (part.row(model, f"{kind}_outputs").get("mean") for kind in ("dead", "rare5"))
    if not is_number(dead) or not is_number(rare):
        return ""
    start = part.row(model, "dead_outputs_start").get("mean")
    before = f"\nat the start: {number(start)} %" if is_number(start) else ""
    return f"dead: {number(dead)} %{before}\nbelow 5 %: {number(rare)} %"
