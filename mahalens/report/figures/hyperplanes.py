"""2-D: the data, each unit's hyperplane and normal, learned against true distance contours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.style import (
    DASHED,
    INK,
    WIDTH,
    key,
    keys,
    legend,
    note,
    panels,
    plain,
)
from mahalens.report.numbers import number
from mahalens.report.records import RunRecords

Floats = NDArray[np.float64]

TITLE = "Hyperplanes and distance contours"
_LEVELS = (1.0, 2.0, 3.0)
_DATA = "#a9b6bf"
_TRUE = "#6b6b6b"


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Best trial of each model. Where a model has learned the distance, its solid contours lie "
        "on the dashed true ones. In theory every hyperplane passes through the mean; the arrow "
        "is the unit's normal and points to the side where w·x + b is positive. Any rotation of a "
        "whitening is a whitening, so hyperplanes need not follow the ellipse's axes."
    )


def draw(records: RunRecords) -> Figure | None:
    """One panel a model; None when the run holds no picture of the plane."""
    plots = records.plots
    shared = ("mean", "samples", "grid_x", "grid_y", "true")
    if any(f"plane/{name}" not in plots for name in shared):
        return None
    models = models_in_order(
        name.split("/")[1] for name in plots if name.endswith("/distance") and name[:6] == "plane/"
    )
    if not models:
        return None
    plane = {name: plots[f"plane/{name}"].astype(np.float64) for name in shared}
    x, y = plane["grid_x"], plane["grid_y"]
    shape = (y[-1] - y[0]) / (x[-1] - x[0])
    columns = 2 if shape < 1.2 or len(models) == 4 else 3
    columns = min(columns, len(models))
    height = float(np.clip((WIDTH / columns - 0.5) * shape + 0.6, 2.4, 5.2))
    figure, axes = panels(len(models), columns, height, sharex=True, sharey=True)
    colours = model_colours(models)
    for ax, model in zip(axes, models, strict=True):
        _draw_panel(ax, records, model, plane, colours[model])
    for ax in axes:
        spec = ax.get_subplotspec()
        last_row = len(models) - axes.index(ax) <= columns
        ax.tick_params(labelbottom=last_row)
        ax.set_xlabel("x₁ (input units)" if last_row else "")
        ax.set_ylabel("x₂ (input units)" if spec is not None and spec.is_first_col() else "")
    legend(
        figure,
        [
            key("data", marker="o", ls="", color=_DATA, ms=4),
            key("mean", marker="P", ls="", color=INK, mec="white", ms=9),
            key("true distance 1, 2, 3", color=_TRUE, ls=DASHED, lw=1.2),
            keys("learned distance 1, 2, 3", list(colours.values()), lw=2.2),
            key("hyperplane and normal", color=INK, lw=1.1, marker=r"$\uparrow$", ms=9, mew=0.4),
        ],
    )
    return figure


def _draw_panel(
    ax: Axes, records: RunRecords, model: str, plane: dict[str, Floats], colour: str
) -> None:
    x, y = plane["grid_x"], plane["grid_y"]
    ax.plot(*plane["samples"].T, ".", ms=4, color=_DATA, mec="none", alpha=0.6, zorder=1)
    _contours(ax, x, y, plane["true"], colors=_TRUE, linestyles=[DASHED], linewidths=1.1, zorder=3)
    learned = records.plots[f"plane/{model}/distance"].astype(np.float64)
    _contours(ax, x, y, learned, label=True, colors=colour, linewidths=2.2, zorder=2)
    weight = records.plots.get(f"plane/{model}/weight", np.zeros((0, 2))).astype(np.float64)
    bias = records.plots.get(f"plane/{model}/bias", np.zeros(0)).astype(np.float64)
    low, high = np.array([x[0], y[0]]), np.array([x[-1], y[-1]])
    flat = outside = 0
    for w, b in zip(weight, bias, strict=True):
        if not np.all(np.isfinite([*w, b])) or not np.any(w):
            flat += 1
            continue
        ends = visible_part(w, float(b), low, high)
        if ends is None:
            outside += 1
            continue
        ax.plot(*ends.T, color=INK, lw=1.1, zorder=4)
        # Mirrored units share a line; the same place on it lets their arrows show as one pair.
        start = ends[0] + 0.86 * (ends[1] - ends[0])
        tip = start + 0.085 * float(np.min(high - low)) * w / np.linalg.norm(w)
        arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", xy=tuple(tip), xytext=tuple(start), arrowprops=arrow, zorder=5)
    ax.plot(*plane["mean"], "P", ms=9, color=INK, mec="white", mew=1.0, zorder=6)
    remarks = _unreached(learned)
    if outside:
        remarks.append(f"{outside} of {len(weight)} hyperplanes outside the view")
    if flat:
        remarks.append(f"{flat} of {len(weight)} units without a hyperplane")
    if remarks:
        note(ax, "\n".join(remarks))
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    ax.grid(visible=False)
    mse = records.row(model, "test_mse").get("best")
    told = "" if mse is None else f", test MSE {number(mse)}"
    ax.set_title(plain(model_label(model)) + told, color=colour)


def _unreached(learned: Floats) -> list[str]:
    """A remark where the model never gives one of the distances that contours are drawn at."""
    values = learned[np.isfinite(learned)]
    if not values.size:
        return []
    low, high = float(values.min()), float(values.max())
    missing = [f"{level:g}" for level in _LEVELS if not low < level < high]
    if not missing:
        return []
    return [f"output between {number(low)} and {number(high)}: no contour {', '.join(missing)}"]


def _contours(ax: Axes, x: Floats, y: Floats, z: Floats, label: bool = False, **style: Any) -> None:
    values = np.ma.masked_invalid(z)
    if not values.count():
        return
    levels = [level for level in _LEVELS if values.min() < level < values.max()]
    if levels:
        lines = ax.contour(x, y, values, levels=levels, **style)
        if label:
            for text in ax.clabel(lines, fmt="%g", fontsize=8.5, inline_spacing=3, zorder=4):
                text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})


def visible_part(w: Floats, b: float, low: Floats, high: Floats) -> Floats | None:
    """The two ends [2, 2] of the line ``w·x + b = 0`` inside the box, or None if it misses it.

    Ends come in the same order for (w, b) and (-w, -b).

    >>> visible_part(np.array([0.0, 2.0]), -1.0, np.zeros(2), np.ones(2)).tolist()
    [[0.0, 0.5], [1.0, 0.5]]
    """
    centre = (low + high) / 2
    size = math.hypot(*w)
    normal = w / size
    along = np.array([-normal[1], normal[0]])
    if (along[0], along[1]) < (0.0, 0.0):
        along = -along
    distance = (float(w @ centre) + b) / size
    if abs(distance) > math.dist(low, high):
        return None
    foot = centre - distance * normal
    first, last = -np.inf, np.inf
    for axis in range(2):
        if abs(along[axis]) < 1e-12:  # parallel to this side of the box
            if not low[axis] <= foot[axis] <= high[axis]:
                return None
            continue
        ends = sorted(((bound[axis] - foot[axis]) / along[axis]) for bound in (low, high))
        first, last = max(first, ends[0]), min(last, ends[1])
    if first >= last:
        return None
    return np.stack([foot + first * along, foot + last * along])
