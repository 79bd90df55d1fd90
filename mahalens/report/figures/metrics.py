"""Every metric as small multiples: each trial a dot, mean with interval, published mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mahalens.report.catalogue import (
    MetricView,
    in_order,
    metric_view,
    metrics_of,
    model_colours,
    model_label,
    models_in_order,
    primary_metric,
    remark_on,
)
from mahalens.report.figures.scales import (
    on_log_axis,
    padded,
    positive_range,
    set_log_ticks,
    zero_edge,
    zero_place,
)
from mahalens.report.figures.style import GREY, INK, key, legend, panels, plain
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords

TITLE = "Metrics over all trials"

_MEAN: dict[str, Any] = {"color": INK, "zorder": 4}
_BEST: dict[str, Any] = {"ms": 6, "mfc": "none", "mec": INK, "mew": 0.9, "zorder": 6}
_PUBLISHED: dict[str, Any] = {"ms": 6, "mfc": "white", "mec": INK, "mew": 1.2, "zorder": 5}


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Compare the spread of the dots with the gap between models: a mean with a wide interval "
        "often hides two groups of trials, those that solved the problem and those that did not. "
        "On a log scale, an interval that reaches 0 or below runs to the left edge. "
        f"{remark_on(records.study)}"
    ).strip()


def draw(records: RunRecords) -> Figure | None:
    """One panel for each metric that has a finite value in some trial."""
    known = metrics_of(records.study)
    columns = records.trials.metrics
    names = in_order((n for n, values in columns.items() if np.isfinite(values).any()), known)
    models = models_in_order(records.trials.model)
    if not names:
        return None
    across = min(3, len(names))
    figure, axes = panels(len(names), across, 0.85 + 0.33 * len(models), extra_height=0.55)
    for place, (ax, name) in enumerate(zip(axes, names, strict=True)):
        _draw_panel(ax, records, metric_view(known, name), models)
        labels = [plain(model_label(model)) if place % across == 0 else "" for model in models]
        ax.set_yticks(range(len(models)), labels)
    primary = metric_view(known, primary_metric(records.study, names)).label
    best = "final loss" if records.study == "gaussian" else primary[0].lower() + primary[1:]
    entries = [
        key("a trial", marker="o", ls="", color=GREY, alpha=0.6, ms=4),
        key(f"best trial (lowest {best})", marker="o", ls="", **_BEST),
    ]
    if len(set(records.trials.trial)) > 1:
        mean = key("mean with 95 % interval", marker="|", color=INK, ms=10, mew=2, lw=1.4)
        entries.append(mean)
    if any(is_number(records.row(m, n).get("published")) for m in models for n in names):
        entries.append(key("published mean", marker="D", ls="", **_PUBLISHED))
    legend(figure, entries)
    return figure


def _draw_panel(ax: Axes, records: RunRecords, metric: MetricView, models: list[str]) -> None:
    rows = {model: records.row(model, metric.name) for model in models}
    dots = {model: records.trials.of(model, metric.name) for model in models}
    published = {m: row["published"] for m, row in rows.items() if is_number(row.get("published"))}
    measured = [value for values in dots.values() for value in values.values()]
    shown = [*measured, *published.values()]
    log = metric.log and _worth_a_log_axis(shown)
    zero = zero_place(shown) if log else None

    def at(value: float) -> float:
        if zero is not None and value <= 0:
            return zero
        return on_log_axis(value) if log else value

    colours = model_colours(models)
    for place, model in enumerate(models):
        trials = dots[model]
        heights = {trial: place + _jitter(trial, len(trials)) for trial in trials}
        x, y = [at(value) for value in trials.values()], list(heights.values())
        ax.plot(x, y, "o", ms=4, color=colours[model], mec="none", alpha=0.5, zorder=3)
        best = records.outcomes.get(model, {}).get("best_trial")
        if best in trials:
            ax.plot(at(trials[best]), heights[best], "o", **_BEST)
        if len(trials) > 1:
            _draw_mean(ax, rows[model], place, at, log)
        if model in published:
            ax.plot(at(published[model]), place - 0.33, "D", **_PUBLISHED)
        if not trials:
            within = ax.get_yaxis_transform()
            told = ax.text(0.99, place, "no value", fontsize=8, color=GREY, transform=within)
            told.set(va="center", ha="right")
    ax.set_ylim(len(models) - 0.45, -0.6)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.set_title(plain(metric.label), fontsize=9.5, loc="left")
    if log:
        _set_log_scale(ax, metric.unit, shown, zero)
    else:
        _set_linear_scale(ax, metric.unit, measured)


def _draw_mean(ax: Axes, row: dict[str, Any], place: int, at: Any, log: bool) -> None:
    if not is_number(row.get("mean")):
        return
    ax.plot(at(row["mean"]), place, "|", ms=13, mew=2.2, **_MEAN)
    ends = row.get("ci95") or []
    if len(ends) == 2 and all(is_number(end) for end in ends):
        # An end at 0 or below becomes the smallest a log axis knows: past the left edge.
        x = [on_log_axis(end) if log else end for end in ends]
        ax.plot(x, [place, place], "-", lw=1.4, **_MEAN)


def _jitter(trial: int, trials: int) -> float:
    """An offset that is the same on every drawing; the golden ratio spreads trials evenly."""
    return 0.0 if trials == 1 else 0.44 * ((trial * 0.6180339887) % 1.0 - 0.5)


def _worth_a_log_axis(values: list[float]) -> bool:
    """Whether values span a power of ten: below that a log axis bends little and has few ticks."""
    ends = positive_range(values)
    return ends is not None and min(values) >= 0 and ends[1] >= 10 * ends[0]


def _set_linear_scale(ax: Axes, unit: str, measured: list[float]) -> None:
    counts = all(value == int(value) for value in measured)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=counts, steps=[1, 2, 2.5, 5, 10]))
    ax.margins(x=0.08)
    if counts and min(measured) == max(measured):  # or the axis would zoom into fractions
        low, high = ax.get_xlim()
        only = measured[0]
        ax.set_xlim(min(low, max(only - 1.0, 0.0) - 0.1), max(high, only + 1.1))
    ax.set_xlabel(unit)


def _set_log_scale(ax: Axes, unit: str, shown: list[float], zero: float | None) -> None:
    smallest, largest = positive_range(shown) or (1.0, 1.0)
    limits = padded(smallest if zero is None else zero, largest)
    ax.set_xscale("log")
    ax.set_xlim(limits)
    first = limits[0]
    if zero is not None:
        first = zero_edge(zero, smallest)
        ax.axvline(first, color=GREY, lw=0.8, ls=":")
    set_log_ticks(ax.xaxis, first, limits[1], most=5, zero=zero)
    ax.set_xlabel(f"{unit} (log scale)" if unit else "log scale")
