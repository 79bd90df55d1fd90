"""How far the distance along few axes is from the full one, by rank."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mahalens.report.figures.scales import padded, positive_range, set_log_ticks
from mahalens.report.figures.style import key, legend, panels
from mahalens.report.records import RunRecords

TITLE = "Distance error against rank"
_KINDS = {
    "truncated": ("dropped directions count as 0 (source 002)", "#0072B2", "o"),
    "variance": ("dropped directions get their mean variance", "#E69F00", "s"),
    "precision": ("dropped directions get the inverse of their mean precision", "#009E73", "^"),
}


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Relative error of the distance against the full Mahalanobis distance, for random points "
        "and ellipsoids drawn as in source 002: median and quartiles. The longest axes contribute "
        "least to a Mahalanobis distance, so that dropping the others loses nearly all of it; one "
        "spread for all of them recovers most. The last point keeps every axis."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when the run holds no such measurement."""
    grid = records.plots.get("ranks/grid")
    kinds = [kind for kind in _KINDS if f"ranks/{kind}" in records.plots]
    if grid is None or not kinds or len(grid) < 2:
        return None
    shown = grid[:-1]  # at full rank all errors are 0
    figure, (ax,) = panels(1, 1, 4.2)
    every = np.concatenate([records.plots[f"ranks/{kind}"][:, :-1].ravel() for kind in kinds])
    ends = positive_range(every)
    if ends is None:
        return None
    entries = []
    for kind in kinds:
        label, colour, marker = _KINDS[kind]
        low, middle, high = records.plots[f"ranks/{kind}"][:, :-1]
        ax.fill_between(shown, low, high, color=colour, alpha=0.15, lw=0)
        ax.plot(shown, middle, color=colour, marker=marker, ms=5, lw=1.8)
        entries.append(key(label, color=colour, marker=marker, ms=5, lw=1.8))
    ax.set_xscale("log")
    ax.set_yscale("log")
    limits = padded(*ends)
    ax.set_ylim(limits)
    set_log_ticks(ax.yaxis, *limits)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(shown, [str(int(rank)) for rank in shown])
    ax.set_xlabel(f"components kept, of {int(grid[-1])} (log scale)")
    ax.set_ylabel("relative error of the distance (log scale)")
    legend(figure, entries, columns=2)
    return figure
