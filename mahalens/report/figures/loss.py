"""Training loss of every trial, one panel a model."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.scales import (
    on_log_axis,
    padded,
    positive_range,
    set_log_ticks,
    zero_edge,
    zero_place,
)
from mahalens.report.figures.style import DASHED, GREY, INK, key, legend, panels, plain
from mahalens.report.numbers import is_number, number
from mahalens.report.records import RunRecords

TITLE = "Training loss"


def caption(records: RunRecords) -> str:
    """What to look for."""
    if _unit(records) == "step":
        return (
            "Every trial is a thin line. Lines that dive to rounding have solved the problem "
            "exactly; lines that level off sit in a local minimum, at a saddle or have not "
            "converged (the table of outcomes says which)."
        )
    return (
        "Every trial is a thin line. A line still sloping down at the right edge has not "
        "converged: its final MSE says how long it was trained, not how well the model can do. "
        "Flat lines at different heights are different local minima."
    )


def _unit(records: RunRecords) -> str:
    return "step" if records.config["options"].get("solver") == "newton" else "epoch"


def draw(records: RunRecords) -> Figure | None:
    """None when no trial has a curve to show."""
    models = models_in_order(model for model, trials in records.curves.items() if trials)
    curves = [curve for model in models for curve in records.curves[model].values()]
    if not curves:
        return None
    losses = np.concatenate([curve.value for curve in curves])
    epochs = np.concatenate([curve.step for curve in curves])
    rows = {model: records.row(model, "train_mse") for model in models}
    published = {m: row["published"] for m, row in rows.items() if is_number(row.get("published"))}
    published = {m: value for m, value in published.items() if value > 0}
    shown = np.concatenate([losses, list(published.values())])
    zero, ends = zero_place(shown), positive_range(shown)
    if ends is None or positive_range(losses) is None:
        return None

    figure, axes = panels(len(models), 3, 3.5, sharex=True, sharey=True)
    colours = model_colours(models)
    any_lost = False
    for ax, model in zip(axes, models, strict=True):
        any_lost |= _draw_trials(ax, records, model, colours[model], zero)
        ax.set_title(plain(model_label(model)), color=colours[model], loc="left")
        ax.set_xlabel(f"{_unit(records)} (log scale)")
        ax.tick_params(labelbottom=True)
        if model in published:
            ax.axhline(published[model], color=INK, ls=DASHED, lw=1.2, zorder=3)
            told = f"published mean {number(published[model])}"
            ax.set_title(told, loc="right", fontsize=8.5, fontweight="normal")
    _set_scales(axes[0], epochs, ends, zero)
    axes[0].set_ylabel("training MSE (log scale)")
    entries = [
        key("a trial", color=GREY, lw=0.9),
        key("best trial (lowest final loss)", color=GREY, lw=2.4),
    ]
    if published:
        entries.append(key("published mean of the final loss", color=INK, ls=DASHED, lw=1.2))
    if any_lost:
        entries.append(key("stopped: not finite", marker="X", ls="", color=INK, mec="white", ms=8))
    legend(figure, entries)
    return figure


def _draw_trials(
    ax: Axes, records: RunRecords, model: str, colour: str, zero: float | None
) -> bool:
    """Draw every curve of a model; say whether one of them was stopped as not finite."""
    any_lost = False
    outcome = records.outcomes.get(model, {})
    best, lost = outcome.get("best_trial"), outcome.get("non_finite", [])
    for trial, curve in records.curves[model].items():
        seen = np.isfinite(curve.value)
        if not seen.any():
            continue
        x, y = curve.step[seen], curve.value[seen]
        y = np.array([zero if zero is not None and v <= 0 else on_log_axis(v) for v in y])
        width, alpha, level = (2.2, 1.0, 4) if trial == best else (0.8, 0.4, 2)
        marker = "." if len(x) == 1 else ""  # a single point has no line to see
        ax.plot(x, y, color=colour, lw=width, alpha=alpha, marker=marker, zorder=level)
        if trial in lost:
            any_lost = True
            ax.plot(x[-1], y[-1], "X", color=INK, mec="white", ms=8, zorder=5)
    return any_lost


def _set_scales(
    ax: Axes, epochs: np.ndarray, ends: tuple[float, float], zero: float | None
) -> None:
    """Log scales; epoch 0, the loss before training, gets a short linear piece at the left."""
    last = max(float(epochs.max()), 2.0)
    if epochs.min() < 1:
        ax.set_xscale("symlog", linthresh=1.0, linscale=0.4)
        set_log_ticks(ax.xaxis, 1.0, last, zero=0.0)
    else:
        ax.set_xscale("log")
        set_log_ticks(ax.xaxis, 1.0, last)
    limits = padded(ends[0] if zero is None else zero, ends[1])
    ax.set_yscale("log")
    ax.set_ylim(limits)
    first = limits[0] if zero is None else zero_edge(zero, ends[0])
    set_log_ticks(ax.yaxis, first, limits[1], zero=zero)
