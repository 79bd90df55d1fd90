"""What the figures share: type, colours, grids of panels, rendering."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

WIDTH = 10.0  # inches; at 100 px an inch, type has its nominal size on a page 1,000 px wide
_DPI = 200  # twice that, for sharp screens and paper

INK = "#222222"
GREY = "#8a8a8a"
DASHED = (0, (5, 2))

Entry = tuple[Line2D | tuple[Line2D, ...], str]

_STYLE: Any = {
    "text.usetex": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 7.0,
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#ececec",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": None,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the reports; the caller's settings are back afterwards."""
    with mpl.rc_context(_STYLE):
        yield


def panels(
    count: int, columns: int, panel_height: float, extra_height: float = 0.6, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with ``count`` panels, row by row.

    ``panel_height`` and ``extra_height`` (for the legend) are in inches; ``options`` go to
    ``Figure.subplots``. Places left over in the last row stay empty.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07, wspace=0.02, hspace=0.03)
    figure = Figure(figsize=(WIDTH, rows * panel_height + extra_height), layout=layout)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes: list[Axes] = list(grid.flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def legend(figure: Figure, entries: list[Entry], columns: int = 5) -> None:
    """One legend for the whole figure, below the panels, with as many columns as there is room."""
    if entries:
        labels = [label for _, label in entries]
        figure.legend(
            handles=[handle for handle, _ in entries],
            labels=labels,
            loc="outside lower center",
            ncols=legend_columns(labels, columns),
            handlelength=2.2,
            columnspacing=2.2,
            handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
        )


def legend_columns(labels: list[str], most: int = 5) -> int:
    """How many columns a legend can have; matplotlib fills one after the other.

    >>> legend_columns(["a", "b", "c"]), legend_columns(["x" * 40] * 6)
    (3, 2)
    """

    def width(columns: int) -> float:
        rows = -(-len(labels) // columns)
        longest = (max(map(len, labels[at : at + rows])) for at in range(0, len(labels), rows))
        return sum(0.75 + 0.078 * length for length in longest)  # inches

    fitting = (n for n in range(min(len(labels), most), 1, -1) if width(n) <= WIDTH)
    return next(fitting, 1)


def key(label: str, **style: Any) -> Entry:
    """An entry of a legend."""
    return Line2D([], [], **style), label


def keys(label: str, colours: list[str], **style: Any) -> Entry:
    """An entry of a legend whose line shows several colours, one after the other."""
    lines = (Line2D([], [], color=c, solid_capstyle="butt", **style) for c in colours)
    return tuple(lines), label


def note(ax: Axes, text: str, upper: bool = False) -> None:
    """A remark in the lower (or upper) left corner of a panel."""
    ax.text(
        0.02,
        0.98 if upper else 0.02,
        text,
        transform=ax.transAxes,
        fontsize=8,
        color=INK,
        va="top" if upper else "bottom",
        ha="left",
        zorder=10,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2.0},
    )


def plain(text: str) -> str:
    """Text from a record, with no part of it read as a formula."""
    return text.replace("$", r"\$")


def render(figure: Figure) -> tuple[bytes, int, int]:
    """A figure as PNG, with its width and height in pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    png = buffer.getvalue()
    width, height = struct.unpack(">II", png[16:24])  # as the file's header has them
    return png, width, height
