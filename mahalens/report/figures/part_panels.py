"""A panel for each data set of a run, with room for as many as six and for twenty rows each."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import MetricView, metric_view, metrics_of, primary_metric
from mahalens.report.figures.style import WIDTH, panels, plain
from mahalens.report.records import RunRecords

_LABEL = 0.5  # inches that the label of a tick takes, with room


def columns_for(count: int) -> int:
    """How many panels stand beside each other.

    >>> [columns_for(n) for n in (1, 2, 3, 4, 5, 6)]
    [1, 2, 3, 2, 3, 3]
    """
    return 2 if count == 4 else min(count, 3)


def tick_gap(count: int, beside: float) -> float:
    """The share of a panel that a tick's label takes, ``beside`` inches left for row names."""
    width = (WIDTH - beside) / columns_for(count)
    return _LABEL / max(width, 1.0)


def part_panels(
    parts: list[RunRecords], height: float, along: str, below: float = 0.6, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Panels with the titles of the parts, and ``along`` below the last of each column.

    Below three columns it stands once, under the middle one, as it is too long for each, and
    under a panel that has the last row to itself. ``below`` are inches left for the legend.
    """
    columns = columns_for(len(parts))
    figure, axes = panels(len(parts), columns, height, extra_height=below, **options)
    alone = len(parts) - 1 if len(parts) % columns == 1 else None
    for place, (ax, part) in enumerate(zip(axes, parts, strict=True)):
        ax.set_title(plain(part.title), loc="left")
        ax.tick_params(labelbottom=True)  # also where a panel stands below
        last = place + columns >= len(parts)
        if last and (columns < 3 or place % columns == 1 or place == alone):
            ax.set_xlabel(plain(along))
    return figure, axes


def metric_of(records: RunRecords, metric: str) -> MetricView:
    """The metric of that name, or the primary one of the run if it is empty."""
    rows = (str(row["metric"]) for row in records.summary["rows"])
    return metric_view(metrics_of(records.study), metric or primary_metric(records.study, rows))


def shade_rows(axes: list[Axes], rows: int) -> None:
    """Faint bands behind every other row, where a reader would lose the line."""
    if rows > 6:
        for ax in axes:
            for place in range(0, rows, 2):
                ax.axhspan(place - 0.5, place + 0.5, color="#f6f7f8", lw=0, zorder=0)
