"""Draws the plots that a study asks for, each from the records alone.

:func:`draw_figures` draws all figures of a page; :func:`draw` draws one plot and is told apart by
its class in :mod:`mahalens.studies.plots`. Plots of arrays are in
:mod:`mahalens.report.array_plots`. Figures are built as objects and rendered with Agg, so that the
caller's set-up of matplotlib stays as it is. Nothing here knows a study by name.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from mahalens.report import array_plots
from mahalens.report.records import Comparison, Curve, RunRecords, split_name
from mahalens.report.style import (
    DASHED,
    GREY,
    INK,
    LINES,
    PALETTE,
    PUBLISHED,
    Entry,
    Floats,
    PlainScale,
    Rows,
    Scale,
    axis_label,
    columns_for,
    jitter,
    key,
    label_below,
    legend,
    no_value,
    panels,
    plain,
    render,
    scale_for,
    set_differences,
    set_steps,
    small_title,
    styled,
    tick_gap,
)
from mahalens.report.tables import in_sentence, number
from mahalens.studies import plots as kinds
from mahalens.studies.study import Metric, Model

_BETTER, _WORSE = PALETTE[0], PALETTE[1]
_RING: dict[str, Any] = {"ms": 6, "mfc": "none", "mec": INK, "mew": 0.9}
_LETTER = 0.075  # inches, of the names of rows


@dataclass(frozen=True)
class DrawnFigure:
    """One figure as the page shows it; ``name`` is its file name without ``.png``."""

    name: str
    title: str
    caption: str
    png: bytes
    width: int
    height: int


def draw_figures(records: RunRecords) -> list[DrawnFigure]:
    """Draw, in the order of the page, every plot of the study that the run has numbers for."""
    figures = []
    for plot in records.study.plots:
        with styled():
            figure = draw(plot, records)
            if figure is None:
                continue
            png, width, height = render(figure)
        caption = " ".join(filter(None, (plot.caption, remark_on(plot, records))))
        figures.append(DrawnFigure(plot.name, plot.title, caption, png, width, height))
    return figures


@functools.singledispatch
def draw(plot: kinds.Plot, records: RunRecords) -> Figure | None:
    """Draw one plot of a run; None if the run has no numbers for it."""
    raise TypeError(f"nothing draws a {type(plot).__name__}; register a function with `draw`")


@functools.singledispatch
def remark_on(plot: kinds.Plot, records: RunRecords) -> str:
    """Return what the caption must add for this run; most plots need nothing."""
    return ""


draw.register(kinds.Levels, array_plots.draw_levels)
draw.register(kinds.Grid, array_plots.draw_grid)
draw.register(kinds.Ridges, array_plots.draw_ridges)
draw.register(kinds.Plane, array_plots.draw_plane)
draw.register(kinds.Diagonal, array_plots.draw_diagonal)
remark_on.register(kinds.Ridges, array_plots.remark_on_ridges)


# --- Numbers of models ------------------------------------------------------------------------


def _spread(records: RunRecords, model: str, metric: str) -> tuple[float, float, float] | None:
    """Return the mean and the ends of its interval; without one, these are the mean too."""
    row = records.row(model, metric)
    if row is None or row.mean is None:
        return None
    return (row.mean, *(row.interval or (row.mean, row.mean)))


def _published(records: RunRecords, models: Iterable[str], metric: str) -> dict[str, float]:
    rows = ((model, records.row(model, metric)) for model in models)
    return {m: row.published for m, row in rows if row is not None and row.published is not None}


def _trials(records: RunRecords, models: Iterable[str], metric: str) -> list[float]:
    return [value for m in models for value in records.values(m, metric).values()]


def _shown(records: RunRecords, models: Sequence[str], metric: str) -> list[float]:
    """Return what an axis must show of means and intervals.

    Of two or three trials an interval may be far wider than all that was seen, and is cut.
    """
    spreads = [s for model in models if (s := _spread(records, model, metric))]
    trials = _trials(records, models, metric) or [end for spread in spreads for end in spread]
    return [min(max(end, min(trials)), max(trials)) for spread in spreads for end in spread]


def _measured(records: RunRecords, models: Sequence[str], metric: str) -> list[float]:
    """Return the numbers of all trials, and published means."""
    return [*_trials(records, models, metric), *_published(records, models, metric).values()]


def _best_trial(records: RunRecords) -> str:
    metric = records.metric(records.primary())
    end = "highest" if metric.better == "high" else "lowest"
    return plain(f"best trial ({end} {in_sentence(metric.label)})")


def _scales(
    metric: Metric, variants: Sequence[RunRecords], numbers: Callable[[RunRecords], list[float]]
) -> dict[str, Scale]:
    """Return a scale for each variant; variants of the same data share one."""
    values = {variant.variant: numbers(variant) for variant in variants}
    if variants[0].study.variant != "data":
        every = [value for of_variant in values.values() for value in of_variant]
        values = dict.fromkeys(values, every)
    return {name: scale_for(metric, of_variant) for name, of_variant in values.items()}


def _with(
    plot: kinds.Plot, records: RunRecords, *metrics: str
) -> tuple[list[RunRecords], list[str]]:
    """Return the variants and models that have a mean of all these metrics somewhere."""
    chosen = array_plots.chosen(plot, records)

    def has(variant: RunRecords, model: str) -> bool:
        return all(_spread(variant, model, metric) for metric in metrics)

    variants = [v for v in records.variants() if any(has(v, model) for model in chosen)]
    return variants, [model for model in chosen if any(has(v, model) for v in variants)]


def _looks(records: RunRecords, models: Iterable[str]) -> dict[str, Model]:
    """Return how models are drawn: unknown ones in colours by turn, those of one colour dashed."""
    looks: dict[str, Model] = {}
    turns, used = count(), set()
    for model in models:
        look = records.study.look(model)
        if look == Model(model):
            look = replace(look, colour=PALETTE[next(turns) % len(PALETTE)])
        line = next((ls for ls in (look.line, *LINES) if (look.colour, ls) not in used), look.line)
        used.add((look.colour, line))
        looks[model] = replace(look, label=plain(look.label), line=line)
    return looks


# --- Dots in rows -----------------------------------------------------------------------------


@draw.register
def _draw_dots(plot: kinds.Dots, records: RunRecords) -> Figure | None:
    cells = [(variant, plot.metric) for variant in records.variants()]
    return _draw_rows(records, cells, Rows.of(_alike(plot, records), plot.family))


@draw.register
def _draw_metrics(plot: kinds.AllMetrics, records: RunRecords) -> Figure | None:
    variants = records.variants()
    cells = [(variant, name) for name in records.metrics() for variant in variants]
    measured = set(records.measured_models())
    rows = Rows.of(model for model in array_plots.chosen(plot, records) if model in measured)
    return _draw_rows(records, cells, rows, every=True)


def _draw_rows(
    records: RunRecords, cells: list[tuple[RunRecords, str]], rows: Rows, every: bool = False
) -> Figure | None:
    """Draw a row per model: variants of one metric, or ``every`` metric, which needs names."""
    models = list(rows.places)
    cells = [(variant, name) for variant, name in cells if _trials(variant, models, name)]
    if not cells:
        return None
    looks = _looks(records, models)
    height = 0.33 if every else 0.27
    figure, axes, columns = rows.panels(len(cells), lambda model: looks[model].label, height)
    beside = 0.4 + _LETTER * max(len(look.label) for look in looks.values())
    several = False
    for ax, (variant, name) in zip(axes, cells, strict=True):
        metric = records.metric(name)
        numbers = functools.partial(_measured, models=models, metric=name)
        scale = _scales(metric, [v for v, n in cells if n == name], numbers)[variant.variant]
        for model, place in rows.places.items():
            several |= _draw_trials(ax, variant, model, name, place, scale, looks[model], every)
        scale.set(ax.xaxis, tick_gap(columns, beside))
        title = ", ".join(filter(None, (metric.label if every else "", variant.title)))
        ax.set_title(plain(title), loc="left", fontsize=9.5 if every else None)
        if every:
            ax.set_xlabel(axis_label(metric, scale, name=False))
    if not every:
        label_below(axes, columns, axis_label(metric, scale))
    entries = [key("a trial", marker="o", ls="", color=GREY, alpha=0.7, ms=5)]
    if every:
        entries.append(key(_best_trial(records), marker="o", ls="", **_RING))
    if several:
        entries.append(key("mean with 95 % interval", marker="|", color=INK, ms=10, mew=2, lw=1.4))
    if any(_published(variant, models, name) for variant, name in cells):
        entries.append(key("published mean", mfc="white", **PUBLISHED))
    legend(figure, entries)
    return figure


def _alike(plot: kinds.Dots, records: RunRecords) -> dict[str, list[str]]:
    """Return models with a value, each with the later ones that equal it in every trial.

    Detectors that read one network have its calibration: five equal rows would look like five
    results. By the primary metric, which a reader looks for by name, every model has its row.
    """
    alike: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    variants = records.variants()
    for model in array_plots.chosen(plot, records):
        values = [sorted(variant.values(model, plot.metric).items()) for variant in variants]
        if not any(values):
            continue
        if plot.metric != records.primary() and repr(values) in first:
            alike[first[repr(values)]].append(model)
        else:
            first[repr(values)] = model
            alike[model] = []
    return alike


@remark_on.register
def _remark_on_dots(plot: kinds.Dots, records: RunRecords) -> str:
    label = {model: records.study.look(model).label for model in records.models()}
    shared = [
        f"{label[model]} stands for {' and '.join(label[other] for other in others)}"
        for model, others in _alike(plot, records).items()
        if others
    ]
    if not shared:
        return ""
    return f"Models with the same values in all trials share a row: {'; '.join(shared)}."


def _draw_trials(
    ax: Axes,
    records: RunRecords,
    model: str,
    metric: str,
    place: float,
    scale: Scale,
    look: Model,
    ring: bool,
) -> bool:
    """Draw one row; return whether the model has several trials, and so a mean."""
    trials, row = records.values(model, metric), records.row(model, metric)
    if not trials:
        no_value(ax, place)
    heights = {trial: place + jitter(trial, len(trials)) for trial in trials}
    dots: dict[str, Any] = {
        "marker": look.marker,
        "color": look.colour,
        "ms": 4.5,
        "mec": "none",
        "alpha": 0.65,
    }
    x = scale.at(list(trials.values()))
    ax.plot(x, list(heights.values()), ls="", zorder=3, **dots)
    best = records.best_trial(model)
    if ring and best in trials:
        ax.plot(scale.at([trials[best]]), [heights[best]], "o", zorder=6, **_RING)
    if row is not None and row.published is not None:
        above = place - 0.33 if ring else place
        ax.plot(scale.at([row.published]), [above], mfc="white", zorder=5, **PUBLISHED)
    if row is None or row.mean is None or len(trials) < 2:
        return False
    ax.plot(scale.at([row.mean]), [place], "|", ms=12, mew=2.2, color=INK, zorder=4)
    if row.interval is not None:
        ax.plot(scale.at(row.interval), [place, place], "-", lw=1.4, color=INK, zorder=4)
    return True


# --- Curves -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Panel:
    """Some models of one variant, each with steps ``[L]`` and values ``[T, L]`` of its trials."""

    variant: RunRecords
    group: str
    curves: dict[str, tuple[Floats, Floats]]


@draw.register
def _draw_curves(plot: kinds.Curves, records: RunRecords) -> Figure | None:
    shown, columns = _arranged(plot, records)
    if not shown:
        return None
    metric = records.metric(plot.column)
    label, log = plot.label or metric.label, plot.log or metric.log
    metric = msgspec.structs.replace(metric, label=label, log=log)
    variants = list({panel.variant.variant: panel.variant for panel in shown}.values())
    scales = _scales(
        metric,
        variants,
        lambda wanted: _reach(plot, [p for p in shown if p.variant.variant == wanted.variant]),
    )
    share = plot.than is None and (len(variants) == 1 or records.study.variant == "pixels")
    height = 2.3 if plot.than is not None else 2.75 if len(shown) > 6 else 3.1
    figure, axes = panels(len(shown), columns, height, sharex=True, sharey=share)
    models = {model for panel in shown for model in panel.curves}
    inside = callable(plot.panel) and plot.line is None and len(models) > 10
    drawn: dict[str, Entry] = {}
    for place, (ax, panel) in enumerate(zip(axes, shown, strict=True)):
        scale = scales[panel.variant.variant]
        names = _draw_panel(ax, plot, panel, scale)
        title = panel.variant.title if len(variants) > 1 or not panel.group else ""
        group = panel.group if title else panel.group[:1].upper() + panel.group[1:]
        title = ": ".join(filter(None, (title, group)))
        model = next(iter(panel.curves), "")
        colour = records.study.look(model).colour if plot.panel == "model" else INK
        ax.set_title(plain(title), loc="left", color=colour)
        if plot.than is None:
            scale.set(ax.yaxis, 0.08)
        if inside:
            _legend_inside(ax, names, metric.better == "high")
        elif plot.panel != "model":
            drawn |= names
        if place % columns == 0:
            ax.set_ylabel(_beside(plot, metric, scale))
    steps = np.concatenate([steps for p in shown for steps, _ in p.curves.values()])
    most = max(2, min(6, int(1 / tick_gap(columns))))
    first, last = min(1.0, float(steps.min())), max(2.0, float(steps.max()))
    log = set_steps(axes[0], first, last, most)
    label_below(axes, columns, f"{records.study.along} (log scale)" if log else records.study.along)
    legend(figure, [*drawn.values(), *_curve_entries(plot, records, shown)])
    return figure


def _arranged(plot: kinds.Curves, records: RunRecords) -> tuple[list[_Panel], int]:
    """Return the panels, row by row, and the number of columns.

    Beside each other stand up to three groups of models of one variant; of more groups, each is a
    row of variants.
    """
    groups: dict[str, list[str]] = {}
    for model in array_plots.chosen(plot, records):
        title = records.study.look(model).label if plot.panel == "model" else ""
        groups.setdefault(plot.panel(model) if callable(plot.panel) else title, []).append(model)
    every = [
        _Panel(variant, group, _curves(plot, variant, models))
        for variant in records.variants()
        for group, models in groups.items()
    ]
    shown = [panel for panel in every if panel.curves]
    variants = {panel.variant.variant for panel in shown}
    names = [group for group in groups if any(panel.group == group for panel in shown)]
    if len(variants) < 2 or len(names) < 2:
        return shown, columns_for(len(shown))
    grid = [p for p in every if p.variant.variant in variants and p.group in names]
    if len(names) <= 3:
        return grid, len(names)
    return sorted(grid, key=lambda panel: names.index(panel.group)), min(len(variants), 3)


def _curves(
    plot: kinds.Curves, records: RunRecords, models: Iterable[str]
) -> dict[str, tuple[Floats, Floats]]:
    """Return steps ``[L]`` and values ``[T, L]`` of models; with ``than``, differences."""
    columns = records.curves.get(plot.column, {})
    curves = {}
    for model in models:
        trials = columns.get(model, {})
        if plot.than is not None:
            other = plot.than(model)
            base = columns.get(other, {}) if other is not None and other != model else {}
            trials = {t: _minus(curve, base[t]) for t, curve in trials.items() if t in base}
        steps, values = _aligned(list(trials.values()))
        if steps.size:
            curves[model] = steps, values
    return curves


def _minus(curve: Curve, base: Curve) -> Curve:
    """Return how far a curve is ahead of another; before training who is ahead is chance."""
    steps, here, there = np.intersect1d(curve.step, base.step, return_indices=True)
    trained = steps > 0
    return Curve(steps[trained], (curve.value[here] - base.value[there])[trained])


def _aligned(curves: Sequence[Curve]) -> tuple[Floats, Floats]:
    """Put trials on one axis of steps; NaN where one has no value, as it stopped before."""
    steps = np.unique(np.concatenate([np.zeros(0), *(curve.step for curve in curves)]))
    values = np.full((len(curves), len(steps)), np.nan)
    for place, curve in enumerate(curves):
        values[place, np.searchsorted(steps, curve.step)] = curve.value
    values[~np.isfinite(values)] = np.nan
    seen = np.isfinite(values).any(axis=0)
    return steps[seen], values[:, seen]


def _bands(plot: kinds.Curves, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the lower end, the middle and the upper end of trials ``[T, L]`` at each step."""
    if plot.than is None:
        low, middle, high = np.nanpercentile(values, (25, 50, 75), axis=0)
        return low, middle, high
    middle = np.nanmean(values, axis=0)
    half = np.zeros_like(middle)
    seen = np.isfinite(values).sum(axis=0)
    if (several := seen > 1).any():
        error = stats.sem(values[:, several], nan_policy="omit")
        half[several] = stats.t.ppf(0.975, seen[several] - 1) * np.asarray(error)
    return middle - half, middle, middle + half


def _reach(plot: kinds.Curves, shown: Sequence[_Panel]) -> list[float]:
    """Return what axes must have room for: what is drawn, not the worst of every trial."""
    values: list[float] = []
    for panel in shown:
        for _, trials in panel.curves.values():
            every = trials if plot.draw == "trials" else np.stack(_bands(plot, trials))
            values += every[np.isfinite(every)].tolist()
        if plot.draw == "trials":
            values += _levels(plot, panel).values()
    return values


def _levels(plot: kinds.Curves, panel: _Panel) -> dict[str, float]:
    """Return published means of what a curve ends in."""
    return _published(panel.variant, panel.curves, plot.metric or plot.column)


def _draw_panel(ax: Axes, plot: kinds.Curves, panel: _Panel, scale: Scale) -> dict[str, Entry]:
    """Draw the models of one panel; return their names with their lines."""
    names: dict[str, Entry] = {}
    looks = _looks(panel.variant, panel.curves)
    reach = []
    for model, (steps, trials) in panel.curves.items():
        look = looks[model]
        name = look.label
        if plot.line is not None:  # models of one name must look alike in all panels
            name, look = plain(plot.line(model)), replace(look, line="-")
        marker = "." if len(steps) == 1 else ""  # a single point has no line to see
        style: dict[str, Any] = {"color": look.colour, "ls": look.line, "marker": marker}
        low, middle, high = _bands(plot, trials)
        reach.append([float(np.nanmin(middle)), float(np.nanmax(middle))])
        if plot.than is None:
            low, middle, high = map(scale.at, (low, middle, high))
        if plot.draw == "trials":
            _draw_every(ax, plot, panel, model, scale.at(trials), style)
        elif len(trials) > 1 and (plot.band is None or plot.band(model)):
            faint = 0.15 if len(panel.curves) <= 6 or plot.band is not None else 0.05
            ax.fill_between(steps, low, high, color=look.colour, alpha=faint, lw=0, zorder=2)
        if plot.draw == "median" or plot.panel != "model":
            ax.plot(steps, middle, lw=1.7, zorder=4, **style)
        names[name] = key(name, lw=2.0, color=look.colour, ls=look.line)
    if plot.draw == "trials":
        for level in _levels(plot, panel).values():
            ax.axhline(float(scale.at([level])[0]), color=INK, ls=DASHED, lw=1.2, zorder=3)
            small_title(ax, f"published mean {number(level)}")
    if plot.than is not None:
        ax.axhline(0.0, color=INK, lw=0.9, zorder=2)
        small_title(ax, set_differences(ax.yaxis, reach))
    return names


def _draw_every(
    ax: Axes, plot: kinds.Curves, panel: _Panel, model: str, places: Floats, style: dict[str, Any]
) -> None:
    """Draw every trial; the best one, and where a trial ran away, are marked."""
    best = panel.variant.best_trial(model) if plot.panel == "model" else None
    steps = panel.curves[model][0]
    for trial, values in zip(panel.variant.curves[plot.column][model], places, strict=True):
        seen = np.isfinite(values)
        if not seen.any():
            continue
        width, alpha, level = (2.2, 1.0, 4) if trial == best else (0.8, 0.4, 2)
        x, y = steps[seen], values[seen]
        marker = "." if len(x) == 1 else ""
        ax.plot(x, y, lw=width, alpha=alpha, zorder=level, **{**style, "marker": marker})
        if trial in panel.variant.lost_trials(model):
            ax.plot(x[-1:], y[-1:], "X", color=INK, mec="white", ms=8, zorder=5)


def _beside(plot: kinds.Curves, metric: Metric, scale: Scale) -> str:
    if plot.than is None:
        return axis_label(metric, scale).replace(" (", "\n(", 1)
    unit = "points" if metric.unit == "%" else metric.unit
    label = f"difference in {in_sentence(metric.label)}" + (f"\n({unit})" if unit else "")
    return plain(plot.label or label)


def _legend_inside(ax: Axes, names: dict[str, Entry], upper: bool) -> None:
    """Name the models of a panel in the corner that their curves leave free, and make room."""
    rows = -(-len(names) // 2)
    style: dict[str, Any] = {"ncols": 2, "fontsize": 7.5, "handlelength": 2.6, "borderpad": 0.2}
    handles = [handle for handle, _ in names.values()]
    ax.legend(handles, list(names), loc="upper left" if upper else "lower left", **style)
    low, high = ax.get_ylim()
    room = (0.03 + 0.075 * rows) * (high - low)
    ax.set_ylim(low if upper else low - room, high + room if upper else high)


def _curve_entries(plot: kinds.Curves, records: RunRecords, shown: Sequence[_Panel]) -> list[Entry]:
    several = any(len(trials) > 1 for panel in shown for _, trials in panel.curves.values())
    band = "95 % interval" if plot.than is not None else "from the lower to the upper quartile"
    if plot.draw == "median":
        return [key(band, color=GREY, lw=8, alpha=0.3)] if several else []
    entries = [key("a trial", color=GREY, lw=0.9)]
    if plot.panel == "model":
        entries.append(key(_best_trial(records), color=GREY, lw=2.4))
    elif several:
        entries.append(key("median of the trials", color=GREY, lw=2.0))
    if any(_levels(plot, panel) for panel in shown):
        entries.append(key("published mean of the last value", color=INK, ls=DASHED, lw=1.2))
    if any(panel.variant.lost_trials(model) for panel in shown for model in panel.curves):
        entries.append(key("stopped: not finite", marker="X", ls="", color=INK, mec="white", ms=8))
    return entries


# --- Differences ------------------------------------------------------------------------------


@draw.register
def _draw_differences(plot: kinds.Differences, records: RunRecords) -> Figure | None:
    metric = records.metric(plot.metric)
    against = _reference(plot, records)
    tests = {v.variant: _tests(plot, v, against) for v in records.variants()}
    variants = [v for v in records.variants() if tests[v.variant]]
    if not variants:
        return None
    # In the order of the variant with most pairs: one that lacks a pair must not move it.
    fullest = sorted(tests.values(), key=len, reverse=True)
    rows = Rows.of(dict.fromkeys(name for lines in fullest for name in lines))
    figure, axes, columns = rows.panels(len(variants), plain, 0.25)
    beside = 0.4 + _LETTER * max(map(len, rows.places))
    drawn = set()
    for ax, variant in zip(axes, variants, strict=True):
        lines = tests[variant.variant]
        for name, place in rows.places.items():
            if name in lines:
                drawn.add(_draw_pair(ax, lines[name], place, metric))
            else:
                no_value(ax, place)
        ax.axvline(0.0, color=INK, lw=0.9, zorder=2)
        most = max(2, min(6, int(1 / tick_gap(columns, beside)) - 1))
        ax.set_title(plain(variant.title), loc="left")
        small_title(ax, set_differences(ax.xaxis, [_ends(line) for line in lines.values()], most))
    unit = "points" if metric.unit == "%" else metric.unit
    along = f"difference in {in_sentence(metric.label)}{f' from {against}' if against else ''}"
    label_below(axes, columns, f"{along} ({unit})" if unit else along)
    legend(figure, _difference_entries(metric, against, drawn))
    return figure


def _reference(plot: kinds.Differences, records: RunRecords) -> str:
    """Return the label of the model that all others were tested against; empty if several were."""
    lines = [line for line in records.summary.comparisons if line.metric == plot.metric]
    seconds = {split_name(line.b)[0] for line in lines}
    if len(seconds) != 1 or any(split_name(line.a)[0] in seconds for line in lines):
        return ""
    return records.study.look(seconds.pop()).label


def _tests(plot: kinds.Differences, records: RunRecords, against: str) -> dict[str, Comparison]:
    """Return the tests that gave a difference, by pair, or by the model that is not ``against``."""
    tests = {}
    for line in records.summary.comparisons:
        if line.metric != plot.metric or line.mean_difference is None:
            continue
        if plot.models is not None and not plot.models(split_name(line.a)[0]):
            continue
        first, second = (records.study.look(split_name(name)[0]).label for name in (line.a, line.b))
        if not against and ", " in first:  # or the minus would seem to belong to the last word
            first = f"({first})"
        tests[first if against else f"{first} − {second}"] = line
    return tests


def _ends(line: Comparison) -> list[float]:
    ends = (line.mean_difference, line.difference_ci95_low, line.difference_ci95_high)
    return [end for end in ends if end is not None]


def _draw_pair(ax: Axes, line: Comparison, place: float, metric: Metric) -> str:
    """Draw a difference; return its colour."""
    difference, *interval = _ends(line)
    better = metric.better is None or (difference > 0) == (metric.better == "high")
    colour = (_BETTER if better else _WORSE) if line.is_significant else GREY
    if len(interval) == 2:
        ax.plot(interval, [place, place], "-", lw=1.6, color=colour, zorder=3)
    face = colour if line.is_significant else "white"
    ax.plot([difference], [place], "o", ms=6, mfc=face, mec=colour, mew=1.4, zorder=4)
    return colour


def _difference_entries(metric: Metric, against: str, drawn: set[str]) -> list[Entry]:
    words = {_BETTER: "significant, first is better", _WORSE: "significant, second is better"}
    if against:
        words = {_BETTER: f"significantly better than {plain(against)}"}
        words[_WORSE] = f"significantly worse than {plain(against)}"
    if metric.better is None:
        words = {_BETTER: "significant"}
    words[GREY] = "not significant"
    return [
        key(text, color=c, marker="o", ms=6, lw=1.6, mec=c, mfc="white" if c == GREY else c)
        for c, text in words.items()
        if c in drawn
    ]


# --- Two metrics, and metrics against a number of the model ------------------------------------


@draw.register
def _draw_scatter(plot: kinds.Scatter, records: RunRecords) -> Figure | None:
    variants, models = _with(plot, records, plot.x, plot.y)
    if not variants:
        return None
    looks = _looks(records, models)
    columns = columns_for(len(variants))
    figure, axes = panels(len(variants), columns, 4.2 if columns < 3 else 3.6)
    # Without "better", as accuracies stand on a linear axis here: two that fall together do so.
    across, up = (msgspec.structs.replace(records.metric(n), better=None) for n in (plot.x, plot.y))
    numbers = functools.partial(_shown if plot.average else _trials, models=models)
    x_scales = _scales(across, variants, lambda each: numbers(each, metric=plot.x))
    y_scales = _scales(
        up, variants, lambda each: [*numbers(each, metric=plot.y), *_fall(plot, each)]
    )
    guides: dict[str, Entry] = {}
    for ax, variant in zip(axes, variants, strict=True):
        x, y = x_scales[variant.variant], y_scales[variant.variant]
        for place, model in enumerate(models):
            points = _means(plot, variant, model) if plot.average else _pairs(plot, variant, model)
            xs, ys = x.at([point[0] for point in points]), y.at([point[1] for point in points])
            # Trials of several models at the same place stand side by side.
            low, high = x.limits()
            aside = 0.005 * (place - (len(models) - 1) / 2) * (high - low)
            look = looks[model]
            style: dict[str, Any] = {"marker": look.marker, "color": look.colour, "mec": "white"}
            if plot.average and len(points):
                faint: dict[str, Any] = {"color": look.colour, "lw": 1.0, "alpha": 0.6, "zorder": 3}
                ax.plot(xs[1:3], ys[:1].repeat(2), "-", **faint)
                ax.plot(xs[:1].repeat(2), ys[1:3], "-", **faint)
                front = 5 if model == plot.reference else 4  # others share its place
                ax.plot(xs[:1], ys[:1], ls="", ms=8, zorder=front, **style)
            else:
                ax.plot(xs + aside, ys, ls="", ms=6, alpha=0.8, mew=0.5, **style)
        guides |= _draw_guides(ax, plot, variant, x, y)
        x.set(ax.xaxis, tick_gap(columns))
        y.set(ax.yaxis, 0.09)
        ax.set_title(plain(variant.title), loc="left")
    label_below(axes, columns, axis_label(across, x))
    for ax in axes[::columns]:
        ax.set_ylabel(axis_label(up, y))
    marks = [key(k.label, marker=k.marker, color=k.colour, ls="", ms=7) for k in looks.values()]
    legend(figure, [*marks, *guides.values()], columns=4)
    return figure


def _pairs(plot: kinds.Scatter, records: RunRecords, model: str) -> list[tuple[float, float]]:
    """Return both numbers of every trial that has them."""
    across, up = records.values(model, plot.x), records.values(model, plot.y)
    return [(across[trial], up[trial]) for trial in across if trial in up]


def _means(plot: kinds.Scatter, records: RunRecords, model: str) -> list[tuple[float, float]]:
    """Return both means, both lower and both upper ends of their intervals."""
    across, up = _spread(records, model, plot.x), _spread(records, model, plot.y)
    return [] if across is None or up is None else list(zip(across, up, strict=True))


def _fall(plot: kinds.Scatter, records: RunRecords) -> list[float]:
    """Return both ends of the line of what is lost, if there is one."""
    start = _spread(records, plot.loss, plot.y)
    return [] if start is None else [start[0], 0.0]


def _draw_guides(
    ax: Axes, plot: kinds.Scatter, records: RunRecords, x: Scale, y: Scale
) -> dict[str, Entry]:
    """Draw the lines to compare with; return those that a legend must name."""
    dashed: dict[str, Any] = {"color": INK, "ls": DASHED, "lw": 1.1}
    guides = {}
    if means := _means(plot, records, plot.reference):
        ax.axvline(float(x.at(means[0][0])), color=GREY, ls="--", lw=0.8)
        ax.axhline(float(y.at(means[0][1])), color=GREY, ls="--", lw=0.8)
    if fall := _fall(plot, records):
        ax.plot(x.at([0.0, 100.0]), y.at(fall), zorder=1, **dashed)
        guides[plot.loss_label] = key(plain(plot.loss_label), **dashed)
    return guides


@draw.register
def _draw_spans(plot: kinds.Spans, records: RunRecords) -> Figure | None:
    variants, models = _with(plot, records, plot.first, plot.second)
    if not variants:
        return None
    numbers = [v for r in variants for m in (plot.first, plot.second) for v in _shown(r, models, m)]
    metric = records.metric(plot.first)
    scale = PlainScale(numbers, log=True)  # on which a bar is as long as the ratio is far from 1
    rows = Rows.of(models, plot.family)
    labels = {model: plain(records.study.look(model).label) for model in models}
    figure, axes, columns = rows.panels(len(variants), labels.__getitem__)
    for ax, variant in zip(axes, variants, strict=True):
        for model, place in rows.places.items():
            _draw_span(ax, plot, variant, model, place, scale)
        scale.set(ax.xaxis, tick_gap(columns, 2.0))
        ax.set_title(plain(variant.title), loc="left")
    named = Metric(plot.label or metric.label, "", metric.unit)
    label_below(axes, columns, axis_label(named, scale))
    first, second = (records.metric(name).label for name in (plot.first, plot.second))
    bars = zip(plot.words, (_BETTER, _WORSE, GREY), strict=True)
    mark = {"marker": "o", "ls": "", "ms": 6.5, "mec": INK}
    legend(
        figure,
        [
            key(in_sentence(first), color=GREY, **mark),
            key(in_sentence(second), mfc="white", **mark),
            *(key(word, color=colour, lw=3) for word, colour in bars),
        ],
    )
    return figure


def _draw_span(
    ax: Axes, plot: kinds.Spans, records: RunRecords, model: str, place: float, scale: Scale
) -> None:
    spreads = [_spread(records, model, name) for name in (plot.first, plot.second)]
    first, second = spreads
    if first is None or second is None:
        no_value(ax, place)
        return
    ratio = _spread(records, model, plot.ratio)
    colour = _BETTER if first[0] < second[0] else _WORSE
    if ratio is not None and ratio[1] <= 1 <= ratio[2]:
        colour = GREY
    ends = scale.at([first[0], second[0]])
    ax.plot(ends, [place, place], color=colour, lw=3, solid_capstyle="butt", zorder=2)
    for spread, aside in ((first, -0.22), (second, 0.22)):
        ax.plot(scale.at(spread[1:]), [place + aside] * 2, color=GREY, lw=0.9, zorder=1)
    ax.plot(ends[:1], [place], "o", ms=6.5, color=colour, mec=INK, mew=0.8, zorder=4)
    ax.plot(ends[1:], [place], "o", ms=6.5, mfc="white", mec=INK, mew=1.1, zorder=3)


@draw.register
def _draw_against(plot: kinds.Against, records: RunRecords) -> Figure | None:
    models = array_plots.chosen(plot, records)
    places = {model: at for model in models if (at := plot.at(model)) is not None}
    cells = [
        (name, variant)
        for name in plot.metrics
        for variant in records.variants()
        if any(_spread(variant, model, name) for model in places)
    ]
    if not cells:
        return None
    several = len({name for name, _ in cells}) > 1
    variants = len({variant.variant for _, variant in cells})
    columns = min(3, variants) if several and variants > 1 else columns_for(len(cells))
    figure, axes = panels(len(cells), columns, 3.0, sharex=True)
    across = PlainScale(places.values(), plot.log)
    entries: dict[str, Entry] = {}
    for place, (ax, (name, variant)) in enumerate(zip(axes, cells, strict=True)):
        metric = records.metric(name)
        # A level of 0, such as what the full model lacks, would only squeeze a log axis.
        zero = [] if metric.log else [0.0]
        drawn = [m for m in models if (s := _spread(variant, m, name)) and (s[0] or not metric.log)]
        scale = PlainScale([*_shown(variant, drawn, name), *zero], metric.log)
        entries |= _draw_lines(ax, plot, variant, name, drawn, models, across, scale)
        scale.set(ax.yaxis, 0.09)
        title = ": ".join(filter(None, (variant.title, metric.label if several else "")))
        ax.set_title(plain(title), loc="left", fontsize=9.5 if several else None)
        if several or place % columns == 0:
            ax.set_ylabel(axis_label(metric, scale, name=not several).replace(" (", "\n(", 1))
    ticks = sorted(set(places.values()))
    ticks = ticks[:: -(-len(ticks) // 8)]
    axes[0].set_xticks(across.at(ticks), [f"{tick:g}" for tick in ticks])
    axes[0].set_xlim(*across.limits())
    label_below(axes, columns, f"{plot.label} (log scale)" if across.log else plot.label)
    legend(figure, list(entries.values()), columns=4)
    return figure


def _draw_lines(
    ax: Axes,
    plot: kinds.Against,
    records: RunRecords,
    metric: str,
    drawn: Sequence[str],
    models: Sequence[str],
    across: PlainScale,
    scale: PlainScale,
) -> dict[str, Entry]:
    """Draw a line through the models of each name, and levels for models without a number.

    Markers and dashes go by all ``models``, so that they mean the same in all panels.
    """
    looks = _looks(records, models)
    spreads = {m: scale.at(s).tolist() for m in drawn if (s := _spread(records, m, metric))}
    lines: dict[str, dict[float, str]] = {}
    for model in models:
        if (number := plot.at(model)) is not None:
            lines.setdefault(plot.line(model), {})[number] = model
    if not scale.log:
        ax.axhline(0.0, color=INK, lw=0.9, zorder=2)
    entries: dict[str, Entry] = {}
    for turn, (name, every) in enumerate(lines.items()):
        line = {number: model for number, model in every.items() if model in spreads}
        if not line:
            continue
        colours = {looks[model].colour for model in line.values()}
        colour = colours.pop() if len(colours) == 1 else PALETTE[turn % len(PALETTE)]
        style: dict[str, Any] = {"color": colour, "marker": "os^Dv"[turn % 5], "ms": 5.5, "lw": 1.6}
        low, high = across.limits()
        aside = 0.011 * (turn - (len(lines) - 1) / 2) * (high - low)  # or intervals would hide
        places = across.at(sorted(line)) + aside
        for x, number in zip(places, sorted(line), strict=True):
            ax.plot([x, x], spreads[line[number]][1:], "-", color=colour, lw=1.3, zorder=3)
        ax.plot(places, [spreads[line[number]][0] for number in sorted(line)], zorder=4, **style)
        entries[name] = key(plain(name), **style)
    levels = [model for model in models if plot.at(model) is None]
    alike: Counter[str] = Counter()  # Levels of one colour differ by their dashes.
    for model in levels:
        look = looks[model]
        turn = alike[look.colour]
        alike[look.colour] += 1
        if model not in spreads:
            continue
        level, low, high = spreads[model]
        style = {"color": look.colour, "ls": LINES[1 + turn % (len(LINES) - 1)], "lw": 1.3}
        if len(levels) == 1:
            ax.axhspan(low, high, color=look.colour, alpha=0.1, lw=0, zorder=1)
        ax.axhline(level, zorder=2, **style)
        entries[look.label] = key(look.label, **style)
    return entries
