"""Figures of an audit for papers and slides: the network at a glance, and each layer in strips."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.report.audit.payload import (
    COLOURS,
    SHAPES,
    Floats,
    array,
    class_mark,
    levels,
    nearness,
)
from mahalens.report.audit.tables import VERDICTS, look_of, short_name
from mahalens.report.style import GREY, INK, WIDTH, plain
from mahalens.report.tables import number

_MOST_LAYERS, _MOST_UNITS = 60, 40  # in one figure
_ROW, _TOP, _BOTTOM = 0.2, 0.8, 1.05  # inches
_BAND = "#e3e8ec"
_LONGEST = 48  # characters of a layer's name


def draw_overview(record: AuditRecord) -> Figure:
    """Draw a line per layer, in the order of the network: share through a class, and chance."""
    layers = record.layers[:_MOST_LAYERS]
    height = 1.7 + 0.3 * max(len(layers), 2)
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.27, 1.0 / height, 0.56, 1 - 1.7 / height))
    for row, layer in enumerate(layers):
        colour = look_of(layer.verdict.word).colour
        share, chance = (_known(v) for v in (layer.verdict.share, layer.verdict.chance))
        ax.plot([chance, share], [row, row], color=colour, lw=3.5, alpha=0.45, zorder=2)
        ax.plot([chance], [row], "|", color=INK, ms=13, mew=2, zorder=3)
        ax.plot([share], [row], "o", color=colour, ms=9, mec="white", zorder=4)
        dead = len(layer.units.dead)
        text = f"{layer.verdict.word}{f', {dead} dead' if dead else ''}"
        _beside(ax, row, text, 1.02, color=colour, fontsize=9)
    names = [short_name(layer.name) + f"  ({layer.units_count:,})" for layer in layers]
    ax.set_yticks(np.arange(len(layers)), [plain(name) for name in names])
    ax.set(xlim=(-0.02, 1.02), ylim=(max(len(layers), 2) - 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    where = "a class mean" if record.data.labels != "none" else "the mean of the data"
    ax.set_xlabel(f"live units whose hyperplane passes through {where}")
    title = "How often do hyperplanes pass through classes?"
    figure.text(0.02, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", va="center")
    if len(record.layers) > _MOST_LAYERS:
        text = f"the first {_MOST_LAYERS} of {len(record.layers)} layers"
        figure.text(0.98, 1 - 0.28 / height, text, color=GREY, ha="right", va="center")
    words = dict.fromkeys(layer.verdict.word for layer in layers if layer.verdict.word in VERDICTS)
    handles = [Line2D([], [], ls="", marker="o", color=VERDICTS[w].colour, ms=8) for w in words]
    handles.append(Line2D([], [], ls="", marker="|", color=INK, ms=11, mew=2))
    labels, columns = [*words, "by chance"], len(handles)
    figure.legend(handles, labels, loc="lower center", ncols=columns, handletextpad=0.4)
    return figure


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def draw_strips(record: AuditRecord, layer: LayerRecord) -> Figure:
    """Draw one strip per unit: the middle line is its hyperplane, each mark a class's mean.

    Of more than 40 units the figure has 40, evenly from the one nearest a class to the furthest,
    so that the picture is fair to the layer; it says so.
    """
    near = nearness(layer)
    closest = np.argsort(np.where(np.isnan(near), np.inf, near), kind="stable")
    spread = np.linspace(0, len(closest) - 1, min(len(closest), _MOST_UNITS)).round().astype(int)
    order = _grouped(layer, [int(unit) for unit in closest[spread]])
    height = _TOP + _BOTTOM + _ROW * max(len(order), 3)
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    left, right = 0.09, 0.84
    ax = figure.add_axes((left, _BOTTOM / height, right - left, 1 - (_TOP + _BOTTOM) / height))
    places, band = _places(record, layer, order)
    reach = _reach(layer, places)
    rows = np.arange(len(order))
    low, high = np.clip(band, -reach, reach).T
    ax.barh(rows, high - low, left=low, height=0.62, color=_BAND, zorder=1)
    ax.axvline(0, color=INK, lw=1.6, zorder=2)
    _draw_marks(ax, layer, order, places, reach)
    ax.set(xlim=(-1.04 * reach, 1.04 * reach), ylim=(max(len(order), 3) - 0.4, -0.6))
    ax.set_yticks([])  # names stand as texts, which are drawn far faster than ticks
    for row, unit in enumerate(order):
        _beside(ax, row, f"unit {unit}", -0.01, ha="right")
    ax.set_xlabel("distance from the hyperplane z = 0, in spreads (standard deviations) of z")
    _name_nearest(ax, record, layer, order, near)
    name = layer.name if len(layer.name) <= _LONGEST else layer.name[: _LONGEST - 1] + "…"
    title = f"{name}: {layer.verdict.word}"
    figure.text(left, 1 - 0.3 / height, plain(title), fontsize=12, fontweight="bold", va="center")
    shown = "all units"
    if layer.units_count > _MOST_UNITS:
        shown = f"{_MOST_UNITS} of {layer.units_count:,} units, evenly from the nearest a mean to "
        shown += "the furthest"
    figure.text(left, 1 - 0.58 / height, f"Shown: {shown}", color=GREY, va="center")
    _legend(figure, record, layer)
    return figure


def _grouped(layer: LayerRecord, order: list[int]) -> list[int]:
    """Return units of the same nearest class together, the nearest first."""
    owner = getattr(layer.hyperplanes, "nearest", None)
    return order if owner is None else sorted(order, key=lambda u: (owner[u] < 0, owner[u]))


def _places(record: AuditRecord, layer: LayerRecord, order: list[int]) -> tuple[Floats, Floats]:
    """Return class means [rows, C] (or the one mean) and the band [rows, 2], in spreads of z."""
    units = layer.units
    spread = array(units.std)[order]
    spread = np.where(spread > 0, spread, np.nan)[:, None]
    means = array(units.mean)[order][:, None]
    if units.class_mean is not None and len(units.class_mean):
        means = array(units.class_mean)[:, order].T
    low, _, high = levels(record)
    quantiles = array(units.quantiles)[order]
    ends = np.full((len(order), 2), np.nan)
    if quantiles.shape[1] > high:
        ends = quantiles[:, [low, high]]
    return means / spread, np.nan_to_num(ends / spread)


def _reach(layer: LayerRecord, places: Floats) -> float:
    """Return half the width that nearly all marks need; the rest are drawn at the edge."""
    known = np.abs(places[np.isfinite(places)])
    least = 2.0 if layer.units.class_mean is None else 1.5
    return float(np.clip(1.1 * np.quantile(known, 0.98) if len(known) else 2.0, least, 4.0))


def _draw_marks(
    ax: Axes, layer: LayerRecord, order: list[int], places: Floats, reach: float
) -> None:
    planes, classes = layer.hyperplanes, places.shape[1]
    by_class = layer.units.class_mean is not None
    inside = np.clip(places, -reach, reach)
    nearest = np.full(len(order), -1 if by_class else 0)
    through = np.zeros(len(order), dtype=bool)
    if planes is not None:
        through = planes.through.numpy()[order]
        if planes.nearest is not None:
            nearest = planes.nearest.numpy()[order]
    # Beyond what marks can tell apart, all classes look the same and are drawn in one go.
    alike = by_class and classes > len(COLOURS) * len(SHAPES)
    hit = through[:, None] & (nearest[:, None] == np.arange(classes))
    for labels in [list(range(classes))] if alike else [[label] for label in range(classes)]:
        colour, marker = class_mark(labels[0], classes) if by_class else (INK, "o")
        for which, size, edge, width in ((~hit, 20, "white", 0.4), (hit, 52, INK, 1.3)):
            row, column = np.nonzero(which[:, labels])
            look: dict[str, Any] = {"marker": marker, "color": colour, "edgecolors": edge}
            look |= {"s": size, "linewidths": width, "zorder": 5 if edge == INK else 3}
            if len(row):
                ax.scatter(inside[:, labels][row, column], row, clip_on=False, **look)


def _name_nearest(
    ax: Axes, record: AuditRecord, layer: LayerRecord, order: list[int], near: Floats
) -> None:
    """Write at the right which class each hyperplane is nearest to, and how near."""
    planes, dead = layer.hyperplanes, set(layer.units.dead)
    for row, unit in enumerate(order):
        text, strong = "", False
        if planes is not None:
            strong = bool(planes.through[unit])
            whose = int(planes.nearest[unit]) if planes.nearest is not None else -1
            name = record.data.classes[whose] if 0 <= whose < len(record.data.classes) else "mean"
            name = name if len(name) <= 14 else name[:13] + "…"
            if np.isfinite(near[unit]):
                text = f"{'through' if strong else 'nearest'} {name}, {number(near[unit], 2)}"
        text = "dead" if unit in dead else text
        look: dict[str, Any] = {"color": INK, "fontweight": "bold"} if strong else {"color": GREY}
        _beside(ax, row, text, 1.015, **look)


def _beside(ax: Axes, row: int, text: str, x: float, **look: Any) -> None:
    look = {"fontsize": 7.5, "va": "center", "parse_math": False, "color": INK, **look}
    ax.text(x, row, text, transform=ax.get_yaxis_transform(), **look)


def _legend(figure: Figure, record: AuditRecord, layer: LayerRecord) -> None:
    names = record.data.classes
    by_class = layer.units.class_mean is not None
    entries: list[tuple[Artist, str]] = []
    if by_class and len(names) <= 12:
        for label, name in enumerate(names):
            colour, marker = class_mark(label, len(names))
            short = name if len(name) <= 12 else name[:11] + "…"
            entries.append((Line2D([], [], ls="", marker=marker, color=colour, ms=5), plain(short)))
    else:
        text = "mean of a class" if by_class else "mean of the data"
        entries.append((Line2D([], [], ls="", marker="o", color=GREY, ms=5), text))
    ring = Line2D([], [], ls="", marker="o", mfc="white", mec=INK, mew=1.3, ms=7)
    low, _, high = levels(record)
    ends = record.settings.quantiles or (0.5,)
    entries.append((ring, "passed through"))
    band = Patch(facecolor=_BAND)
    entries.append((band, f"{100 * ends[low]:g} to {100 * ends[high]:g} % of the rows"))
    handles, labels = zip(*entries, strict=True)
    spaces = {"handletextpad": 0.5, "handlelength": 1.4, "columnspacing": 1.4}
    columns = min(len(entries), 7)
    figure.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8, **spaces)
