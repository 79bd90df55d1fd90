"""Figure 1 of source 003: how the classes lie along some hidden nodes, one ridge per class."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mahalens.report.catalogue import model_label
from mahalens.report.figures.latent_data import Latent, latent_nodes
from mahalens.report.figures.style import DASHED, GREY, INK, key, legend, panels, plain
from mahalens.report.records import RunRecords

TITLE = "How do the classes lie along hidden nodes?"
_OVERLAP = 1.9  # the height of a ridge, in rows
_MOST = 6  # nodes in a row of panels
_MOST_CLASSES = 22  # ridges that can be told apart; thousands would take minutes to draw


def caption(records: RunRecords) -> str:
    """What to look for."""
    sizes = [data.counts.shape[1] for p in records.parts() for data in latent_nodes(p).values()]
    most = max(sizes, default=0)
    first = f" The first {_MOST_CLASSES} of {most:,} classes are drawn." * (most > _MOST_CLASSES)
    return (
        "Pre-activations of hidden nodes of the first trial, on the training samples: a ridge per "
        "class, every ridge of the same area, the tick its mean. The dashed line at 0 is the "
        "node’s hyperplane. Look for the classes it passes through: these are the ones the node "
        "measures distance from. Overlapping ridges are classes that this node cannot tell apart."
        + first
    )


def draw(records: RunRecords) -> Figure | None:
    """None when the run has no such distributions."""
    shown = [
        (part, model, data, node)
        for part in records.parts()
        for model, data in latent_nodes(part).items()
        for node in range(min(len(data.nodes), _MOST))
    ]
    if not shown:
        return None
    columns = max(min(len(data.nodes), _MOST) for _, _, data, _ in shown)
    classes = max(data.counts.shape[1] for _, _, data, _ in shown)
    height = 1.0 + 0.16 * min(max(classes, 4), _MOST_CLASSES)
    figure, axes = panels(len(shown), columns, height, extra_height=0.4)
    for ax, (part, model, data, node) in zip(axes, shown, strict=True):
        _draw_node(ax, data, node)
        name = plain(model_label(model, part.study))
        title = f"{name}, node {data.nodes[node]}\n{part.title.lower()}"
        ax.set_title(title, loc="left", fontsize=8.5)
        ax.set_xlabel("pre-activation", fontsize=8.5)
        if node == 0:
            ax.set_ylabel("class")
    legend(
        figure,
        [
            key("samples of a class (same area each)", color=GREY, lw=7, alpha=0.5),
            key("mean of the class", color=INK, marker="|", ls="", ms=9, mew=2),
            key("hyperplane of the node", color=INK, ls=DASHED, lw=1.0),
        ],
    )
    return figure


def _draw_node(ax: Axes, data: Latent, node: int) -> None:
    edges, counts = data.edges[node], data.counts[node][:_MOST_CLASSES]
    classes = len(counts)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    tallest = float(shares.max()) or 1.0
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.92, classes))
    for label in range(classes):  # those further down stand in front
        heights = label - _OVERLAP * shares[label] / tallest
        front = 2 + label
        ax.stairs(
            heights, edges, baseline=label, fill=True, color=colours[label], alpha=0.6, zorder=front
        )
        ax.stairs(heights, edges, baseline=None, color=colours[label], lw=0.9, zorder=front + 0.2)
        mean = float(data.moments[node, label, 0])
        if np.isfinite(mean) and edges[0] <= mean <= edges[-1]:
            ax.plot([mean], [label - 0.15], "|", color=INK, ms=7, mew=1.6, zorder=front + 0.4)
    if edges[0] < 0 < edges[-1]:
        ax.axvline(0, color=INK, ls=DASHED, lw=1.0, zorder=1.5)
    step = max(1, -(-classes // 12))
    ax.set_yticks(range(0, classes, step))
    ax.set_ylim(classes - 0.6, -_OVERLAP - 0.1)
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.tick_params(axis="y", length=0)
