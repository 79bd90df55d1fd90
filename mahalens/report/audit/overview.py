"""The network at a glance: how often hyperplanes pass through classes, layer by layer."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from mahalens.auditing.record import AuditRecord
from mahalens.report.audit.about import short_name
from mahalens.report.audit.marks import VERDICTS, verdict_mark
from mahalens.report.figures.style import GREY, INK, WIDTH, plain

MOST = 60
"""Layers in the figure."""


def draw_overview(record: AuditRecord) -> Figure:
    """A line per layer, in the order of the network: share through a class, against chance."""
    layers = record.layers[:MOST]
    height = 1.7 + 0.3 * max(len(layers), 2)
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.27, 1.0 / height, 0.56, 1 - 1.7 / height))
    for row, layer in enumerate(layers):
        _, _, colour = verdict_mark(layer.verdict.word)
        share, chance = (_known(v) for v in (layer.verdict.share, layer.verdict.chance))
        ax.plot([chance, share], [row, row], color=colour, lw=3.5, alpha=0.45, zorder=2)
        ax.plot([chance], [row], "|", color=INK, ms=13, mew=2, zorder=3)
        ax.plot([share], [row], "o", color=colour, ms=9, mec="white", zorder=4)
        dead = len(layer.units.dead)
        told = f"{layer.verdict.word}{f', {dead} dead' if dead else ''}"
        ax.text(
            1.02,
            row,
            plain(told),
            transform=ax.get_yaxis_transform(),
            va="center",
            color=colour,
            fontsize=9,
        )
    names = [short_name(layer.name) + f"  ({layer.units_count:,})" for layer in layers]
    ax.set_yticks(np.arange(len(layers)), [plain(name) for name in names])
    ax.set(xlim=(-0.02, 1.02), ylim=(max(len(layers), 2) - 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    where = "a class mean" if record.data.labels != "none" else "the mean of the data"
    ax.set_xlabel(f"live units whose hyperplane passes through {where}")
    title = "How often do hyperplanes pass through classes?"
    figure.text(0.02, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", va="center")
    if len(record.layers) > MOST:
        told = f"the first {MOST} of {len(record.layers)} layers"
        figure.text(0.98, 1 - 0.28 / height, told, color=GREY, ha="right", va="center")
    words = dict.fromkeys(layer.verdict.word for layer in layers if layer.verdict.word in VERDICTS)
    handles = [Line2D([], [], ls="", marker="o", color=VERDICTS[w][2], ms=8) for w in words]
    handles.append(Line2D([], [], ls="", marker="|", color=INK, ms=11, mew=2))
    figure.legend(
        handles=handles,
        labels=[*words, "by chance"],
        loc="lower center",
        ncols=len(handles),
        handletextpad=0.4,
    )
    return figure


def _known(value: float | None) -> float:
    return math.nan if value is None else value
