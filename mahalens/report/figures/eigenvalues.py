"""Learned against true eigenvalues: read off the rows, and off W^T W."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.scales import positive_range, set_log_ticks
from mahalens.report.figures.style import DASHED, GREY, INK, key, legend, note, panels, plain
from mahalens.report.records import RunRecords

Floats = NDArray[np.float64]

TITLE = "Eigenvalues of the covariance"
_READINGS = {"rows": "read row by row, 1/‖wᵢ‖²", "gram": "read from WᵀW"}
_BEYOND = 100.0  # how far past the true range, as a factor, an estimate is still drawn


def caption(records: RunRecords) -> str:
    """What to look for."""
    first, second = ("left", "right") if len(_models(records)) == 1 else ("upper", "lower")
    return (
        "On the diagonal the learned eigenvalue is the true one. The "
        f"{first} reading takes one eigenvalue from each unit, which works only if the rows "
        f"happen to be eigenvectors; the {second} one takes them from WᵀW, which no rotation of "
        f"the rows can change. Where the {second} lies on the diagonal and the {first} does not, "
        "the model has learned the covariance and only the row-wise reading fails."
    )


def _models(records: RunRecords) -> list[str]:
    names = (name.split("/") for name in records.plots)
    return models_in_order(
        parts[1]
        for parts in names
        if len(parts) == 3 and parts[0] == "eigenvalues" and parts[2] in _READINGS
    )


def draw(records: RunRecords) -> Figure | None:
    """Two panels a model; None when the run holds no eigenvalues."""
    true = records.plots.get("eigenvalues/true", np.zeros(0)).astype(np.float64)
    models = _models(records)
    x_ends = positive_range(true)
    if not models or x_ends is None:
        return None
    empty = np.zeros((0, len(true)))
    estimates = {
        (reading, model): records.plots.get(f"eigenvalues/{model}/{reading}", empty).astype(float)
        for reading in _READINGS
        for model in models
    }
    y_limits = _limits(np.concatenate([e.ravel() for e in [true, *estimates.values()]]), x_ends)
    side_by_side = len(models) == 1
    columns = 2 if side_by_side else len(models)
    height = 3.8 if side_by_side else 2.8
    figure, axes = panels(2 * len(models), columns, height, sharex=True, sharey=True)
    colours = model_colours(models)
    for ax, ((reading, model), values) in zip(axes, estimates.items(), strict=True):
        best = records.outcomes.get(model, {}).get("best_trial")
        _draw_panel(ax, true, values, best, colours[model], y_limits)
        if reading == "rows" or side_by_side:
            ax.set_title(plain(model_label(model)), color=colours[model])
        if reading == "gram" or side_by_side:
            ax.set_xlabel("true eigenvalue (log)")
        if model == models[0]:
            ax.set_ylabel(f"learned eigenvalue (log),\n{_READINGS[reading]}")
    x_limits = x_ends[0] / 3, x_ends[1] * 3
    axes[0].set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
    set_log_ticks(axes[0].xaxis, *x_limits, most=5)
    set_log_ticks(axes[0].yaxis, *y_limits)
    legend(
        figure,
        [
            key("a trial", marker="o", ls="", color=GREY, alpha=0.5, ms=4),
            key("best trial (lowest final loss)", marker="o", ls="", color=GREY, mec=INK, ms=7),
            key("learned = true", color=INK, ls=DASHED, lw=1.1),
        ],
    )
    return figure


def _limits(values: Floats, true: tuple[float, float]) -> tuple[float, float]:
    """The range of all values that lie no further than a fixed factor past the true ones."""
    near = values[(values >= true[0] / _BEYOND) & (values <= true[1] * _BEYOND)]
    return float(near.min() / 1.8), float(near.max() * 1.8)


def _draw_panel(
    ax: Axes,
    true: Floats,
    estimates: Floats,
    best: int | None,
    colour: str,
    limits: tuple[float, float],
) -> None:
    x = np.broadcast_to(true, estimates.shape)
    defined = ~np.isnan(estimates)
    inside = defined & (estimates >= limits[0]) & (estimates <= limits[1])
    many = len(true) > 20
    alpha = 0.15 if many else 0.35
    ax.plot(x[inside], estimates[inside], "o", ms=4, color=colour, mec="none", alpha=alpha)
    if best is not None and best < len(estimates):
        kept = inside[best]
        size, edge = (4.5, 0.4) if many else (7.0, 0.9)
        strong = estimates[best][kept]
        ax.plot(true[kept], strong, "o", color=colour, ms=size, mec=INK, mew=edge, zorder=4)
    ax.axline((1.0, 1.0), (10.0, 10.0), color=INK, ls=DASHED, lw=1.1, zorder=1)
    undefined = np.count_nonzero(~defined)
    outside = np.count_nonzero(defined & ~inside)
    remarks = [f"{outside} of {estimates.size} outside the view"] if outside else []
    remarks += [f"{undefined} of {estimates.size} not defined"] if undefined else []
    if remarks or not estimates.size:
        note(ax, "\n".join(remarks) or "no estimate", upper=True)
