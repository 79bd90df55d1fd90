"""The picture of a layer: where the class means stand relative to each unit's hyperplane."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.report.audit.choice import nearness
from mahalens.report.audit.compact import Floats, array
from mahalens.report.audit.marks import COLOURS, SHAPES, class_mark
from mahalens.report.audit.units import levels
from mahalens.report.figures.style import GREY, INK, WIDTH, plain
from mahalens.report.numbers import number

MOST = 40
"""Nodes in one figure."""
_ROW, _TOP, _BOTTOM = 0.2, 0.8, 1.05  # inches
_BAND = "#e3e8ec"
_LONGEST = 48  # characters of a layer's name


def draw_strips(record: AuditRecord, layer: LayerRecord) -> Figure:
    """One strip per unit: the line in the middle is its hyperplane, each mark a class's mean.

    Of more than 40 nodes the figure has 40, evenly from the one nearest a class to the furthest,
    so that the picture is fair to the layer; it says so.
    """
    near = nearness(layer)
    closest = np.argsort(np.where(np.isnan(near), np.inf, near), kind="stable")
    spread = np.linspace(0, len(closest) - 1, min(len(closest), MOST)).round().astype(int)
    order = _grouped(layer, [int(unit) for unit in closest[spread]])
    height = _TOP + _BOTTOM + _ROW * max(len(order), 3)
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    left, right = 0.09, 0.84
    ax = figure.add_axes(
        (left, _BOTTOM / height, right - left, 1 - (_TOP + _BOTTOM) / height),
    )
    places, band = _places(record, layer, order)
    reach = _reach(layer, places)
    rows = np.arange(len(order))
    ax.barh(
        rows,
        np.clip(band[:, 1], -reach, reach) - np.clip(band[:, 0], -reach, reach),
        left=np.clip(band[:, 0], -reach, reach),
        height=0.62,
        color=_BAND,
        zorder=1,
    )
    ax.axvline(0, color=INK, lw=1.6, zorder=2)
    _draw_marks(ax, record, layer, order, places, reach)
    ax.set(xlim=(-1.04 * reach, 1.04 * reach), ylim=(max(len(order), 3) - 0.4, -0.6))
    ax.set_yticks([])  # names stand as texts, which are drawn far faster than ticks
    for row, unit in enumerate(order):
        _beside(ax, row, f"unit {unit}", left=True)
    ax.set_xlabel("distance from the hyperplane z = 0, in spreads (standard deviations) of z")
    _name_nearest(ax, record, layer, order, near)
    name = layer.name if len(layer.name) <= _LONGEST else layer.name[: _LONGEST - 1] + "…"
    title = f"{name}: {layer.verdict.word}"
    figure.text(left, 1 - 0.3 / height, plain(title), fontsize=12, fontweight="bold", va="center")
    cut = layer.units_count > MOST
    told = f"{MOST} of {layer.units_count:,} units, evenly from the nearest a mean to the furthest"
    told = told if cut else "all units"
    figure.text(left, 1 - 0.58 / height, f"Shown: {told}", color=GREY, va="center")
    _legend(figure, record, layer)
    return figure


def _grouped(layer: LayerRecord, order: list[int]) -> list[int]:
    """Nodes of the same nearest class together, the nearest first."""
    planes = layer.hyperplanes
    if planes is None or planes.nearest is None:
        return order
    owner = planes.nearest.numpy()
    return sorted(order, key=lambda u: (owner[u] < 0, owner[u]))


def _places(record: AuditRecord, layer: LayerRecord, order: list[int]) -> tuple[Floats, Floats]:
    """Class means [rows, C] (or the one mean) and the band [rows, 2], in spreads of z."""
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
    """Half the width of the picture: as wide as nearly all marks need, the rest at its edge."""
    known = np.abs(places[np.isfinite(places)])
    least = 2.0 if layer.units.class_mean is None else 1.5
    return float(np.clip(1.1 * np.quantile(known, 0.98) if len(known) else 2.0, least, 4.0))


def _draw_marks(
    ax: Axes,
    record: AuditRecord,
    layer: LayerRecord,
    order: list[int],
    places: Floats,
    reach: float,
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
            if len(row):
                ax.scatter(
                    inside[:, labels][row, column],
                    row,
                    s=size,
                    marker=marker,
                    color=colour,
                    edgecolors=edge,
                    linewidths=width,
                    zorder=5 if edge == INK else 3,
                    clip_on=False,
                )


def _name_nearest(
    ax: Axes, record: AuditRecord, layer: LayerRecord, order: list[int], near: Floats
) -> None:
    """At the right, the class each hyperplane is nearest to, and how near."""
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
        _beside(ax, row, text, color=INK if strong else GREY, bold=strong)


def _beside(
    ax: Axes, row: int, text: str, left: bool = False, color: str = INK, bold: bool = False
) -> None:
    ax.text(
        -0.01 if left else 1.015,
        row,
        text,
        transform=ax.get_yaxis_transform(),
        fontsize=7.5,
        ha="right" if left else "left",
        va="center",
        color=color,
        fontweight="bold" if bold else "normal",
        parse_math=False,
    )


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
        told = "mean of a class" if by_class else "mean of the data"
        entries.append((Line2D([], [], ls="", marker="o", color=GREY, ms=5), told))
    ring = Line2D([], [], ls="", marker="o", mfc="white", mec=INK, mew=1.3, ms=7)
    low, _, high = levels(record)
    ends = record.settings.quantiles or (0.5,)
    entries.append((ring, "passed through"))
    band = Patch(facecolor=_BAND)
    entries.append((band, f"{100 * ends[low]:g} to {100 * ends[high]:g} % of the rows"))
    figure.legend(
        handles=[handle for handle, _ in entries],
        labels=[label for _, label in entries],
        loc="lower center",
        ncols=min(len(entries), 7),
        fontsize=8,
        handletextpad=0.5,
        handlelength=1.4,
        columnspacing=1.4,
    )
