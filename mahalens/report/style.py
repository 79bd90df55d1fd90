"""The style of all figures: type and colours, panels, legends, axes, and rows of models.

Scales say where values stand along an axis: ``at`` gives places, ``limits`` the ends, ``set``
labels an axis, ``name`` says what is special. :class:`AccuracyScale` is the logarithm of the
error, on which 95 % and 97 % are told apart beside 40 %; :class:`PlainScale` is linear, or
logarithmic with a place for zero. :func:`scale_for` chooses the one that suits a metric.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from mahalens.report.tables import in_sentence, number
from mahalens.studies.study import Metric

Floats = NDArray[np.float64]
Entry = tuple[Line2D | tuple[Line2D, ...], str]
"""A mark and its name, for a legend."""

WIDTH = 10.0  # inches; at 100 px an inch, type has its nominal size on a page 1,000 px wide
_DPI = 200  # twice that, for sharp screens and paper

INK, GREY, PALE = "#222222", "#8a8a8a", "#f6f7f8"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, told apart under every common form of colour blindness."""
DASHED = (0, (5, 2))
LINES: tuple[Any, ...] = ("-", DASHED, (0, (1.2, 1.3)), (0, (6, 1.5, 1.2, 1.5)), (0, (9, 3)))
"""Line styles for models of one colour."""
PUBLISHED: dict[str, Any] = {"marker": "D", "ls": "", "ms": 6, "mec": INK, "mew": 1.2}

_STYLE: Any = mpl.rc_params_from_file(
    Path(__file__).with_name("figures.mplstyle"), use_default_template=False
)
"""The settings of all figures; those of a user: ``plt.style.use("mahalens.report.figures")``."""


def styled() -> AbstractContextManager[None]:
    """Draw in the style of the reports; the caller's settings are back afterwards."""
    return mpl.rc_context(_STYLE)


def render(figure: Figure) -> tuple[bytes, int, int]:
    """Return a figure as PNG, with its width and height in pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    png = buffer.getvalue()
    width, height = struct.unpack(">II", png[16:24])  # as the file's header has them
    return png, width, height


def plain(text: str) -> str:
    """Return text from a record, with no part of it read as a formula."""
    return text.replace("$", r"\$")


# --- Panels -----------------------------------------------------------------------------------


def columns_for(count: int) -> int:
    """Return how many of several panels stand beside each other.

    >>> [columns_for(n) for n in (1, 2, 3, 4, 5, 6)]
    [1, 2, 3, 2, 3, 3]
    """
    return 2 if count == 4 else min(count, 3)


def tick_gap(columns: int, beside: float = 1.0) -> float:
    """Return the share of a panel that a tick's label takes.

    ``beside`` are the inches that the names of rows take.
    """
    return 0.5 / max((WIDTH - beside) / columns, 1.0)


def panels(count: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of the page's width with ``count`` panels, row by row.

    ``height`` is that of a panel with its labels, in inches; ``options`` go to
    ``Figure.subplots``. Places left over in the last row stay empty. :func:`legend` adds its own
    height.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07, wspace=0.02, hspace=0.03)
    figure = Figure(figsize=(WIDTH, rows * height), layout=layout)
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for unused in axes[count:]:
        unused.remove()
    for ax in axes[count - columns : count]:
        ax.tick_params(labelbottom=True)  # also above a place that stays empty
    return figure, axes[:count]


def label_below(axes: Sequence[Axes], columns: int, label: str) -> None:
    """Write ``label`` below the last panel of each column.

    Of three columns only the middle one has it, as it is too long for each, and a panel that has
    the last row to itself.
    """
    columns = min(columns, len(axes))
    alone = len(axes) - 1 if len(axes) % columns == 1 else None
    for place, ax in enumerate(axes):
        last = place + columns >= len(axes)
        if last and (columns < 3 or place % columns == 1 or place == alone):
            ax.set_xlabel(plain(label))


def note(ax: Axes, text: str, upper: bool = False) -> None:
    """Write a remark in the lower (or upper) left corner of a panel."""
    ax.text(
        0.02,
        0.98 if upper else 0.02,
        text,
        transform=ax.transAxes,
        fontsize=8,
        va="top" if upper else "bottom",
        zorder=10,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2.0},
    )


def small_title(ax: Axes, text: str) -> None:
    """Write a remark at the right, above a panel."""
    ax.set_title(plain(text), loc="right", fontsize=8.5, fontweight="normal")


# --- Legends ----------------------------------------------------------------------------------


def key(label: str, **style: Any) -> Entry:
    """Return an entry of a legend."""
    return Line2D([], [], **style), label


def keys(label: str, colours: Iterable[str], **style: Any) -> Entry:
    """Return an entry of a legend whose line shows several colours, one after the other."""
    lines = (Line2D([], [], color=c, solid_capstyle="butt", **style) for c in colours)
    return tuple(lines), label


def legend(figure: Figure, entries: Sequence[Entry], columns: int = 5) -> None:
    """Add one legend for the whole figure below the panels, and the height that it takes."""
    if not entries:
        return
    labels = [label for _, label in entries]
    columns = _legend_columns(labels, columns)
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.25 + 0.19 * rows)
    figure.legend(
        handles=[handle for handle, _ in entries],
        labels=labels,
        loc="outside lower center",
        ncols=columns,
        handlelength=2.2,
        columnspacing=2.2,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )


def _legend_columns(labels: Sequence[str], most: int) -> int:
    """Return how many columns a legend can have; matplotlib fills one after the other.

    >>> _legend_columns(["a", "b", "c"], 5), _legend_columns(["x" * 40] * 6, 5)
    (3, 2)
    """

    def width(columns: int) -> float:
        rows = -(-len(labels) // columns)
        longest = (max(map(len, labels[at : at + rows])) for at in range(0, len(labels), rows))
        return sum(0.75 + 0.078 * length for length in longest)  # inches

    fitting = (n for n in range(min(len(labels), most), 1, -1) if width(n) <= WIDTH)
    return next(fitting, 1)


# --- Rows of models ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """The place of each row, from the top down, and the depth of all."""

    places: dict[str, float]
    depth: float

    @classmethod
    def of(cls, names: Iterable[str], family: Callable[[str], str] | None = None) -> Rows:
        """Return rows in the order of their names; families stay together, with room between.

        >>> Rows.of(["b", "a"]).places
        {'b': 0.0, 'a': 1.0}
        >>> Rows.of(["relu", "relu-bias", "abs"], lambda name: name[4:]).places
        {'relu': 0.0, 'abs': 1.0, 'relu-bias': 2.6}
        """
        families: dict[str, list[str]] = {}
        for name in names:
            families.setdefault("" if family is None else family(name), []).append(name)
        places: dict[str, float] = {}
        place = 0.0
        for members in families.values():
            for name in members:
                places[name] = place
                place += 1.0
            place = round(place + 0.6, 6)
        return cls(places, place - 0.6)

    def panels(
        self, count: int, labels: Callable[[str], str], row: float = 0.27
    ) -> tuple[Figure, list[Axes], int]:
        """Return a figure of panels with these rows, ``row`` inches each, and its columns.

        Rows are named, from the top down; if they are many, every other one has a faint band.
        """
        columns = columns_for(count)
        figure, axes = panels(count, columns, 0.9 + row * max(self.depth, 2.0), sharey=True)
        for ax in axes:
            ax.set_yticks(list(self.places.values()), list(map(labels, self.places)))
            ax.set_ylim(self.depth - 0.4, -0.6)
            ax.grid(visible=False, axis="y")
            ax.tick_params(axis="y", length=0)
            if len(self.places) > 6 and self.depth == len(self.places):
                for place in range(0, len(self.places), 2):
                    ax.axhspan(place - 0.5, place + 0.5, color=PALE, lw=0, zorder=0)
        return figure, axes, columns


def no_value(ax: Axes, place: float) -> None:
    """Say that there is nothing to draw in a row."""
    across = ax.get_yaxis_transform()
    text = ax.text(0.99, place, "no value", fontsize=8, color=GREY, transform=across)
    text.set(va="center", ha="right")


def jitter(trial: int, trials: int) -> float:
    """Return the offset of a trial in its row; the golden ratio spreads them evenly."""
    return 0.0 if trials == 1 else 0.44 * ((trial * 0.6180339887) % 1.0 - 0.5)


# --- Log axes that stay readable: few round ticks, and a place for zero -----------------------

_SMALLEST, _LARGEST = 1e-250, 1e250  # beyond, room for margins would overflow the number type


def positive_range(values: ArrayLike) -> tuple[float, float] | None:
    """Return the smallest and largest positive value, as a log axis shows them; None without."""
    array = np.asarray(values, dtype=np.float64)
    positive = array[np.isfinite(array) & (array > 0)]
    if not positive.size:
        return None
    low, high = np.clip([positive.min(), positive.max()], _SMALLEST, _LARGEST)
    return float(low), float(high)


def padded(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """Return ``low`` and ``high`` moved apart by a share of their ratio, as ends of a log axis."""
    decades = max(share * (math.log10(high) - math.log10(low)), 0.04)
    return low * 10.0**-decades, high * 10.0**decades


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` round numbers between ``low`` and ``high`` to label a log axis with.

    >>> log_ticks(0.3, 8), log_ticks(1e-31, 2, most=5)
    ([0.5, 1.0, 2.0, 5.0], [1e-30, 1e-20, 1e-10, 1.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # Numbers are parsed rather than multiplied: 3e-1 is then 0.3, and 1e309 no error.
    choices = [
        [float(f"{mantissa}e{power}") for power in range(first, last + 1) for mantissa in mantissas]
        for mantissas in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3))
    ]
    for step in (1, 2, 3, 5, 10, 20, 50, 100, 200):
        powers = range(first - first % step, last + 1, step)
        choices.append([float(f"1e{power}") for power in powers])
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in choices]
    if len(inside[0]) < 2:  # much less than a power of ten: as on a linear axis
        even = MaxNLocator(3).tick_values(low, high)
        # matplotlib takes numbers below 2e-287 for 0 and finds nothing there
        return [float(tick) for tick in even if low <= tick <= high] or [low]
    return next((ticks for ticks in inside if 0 < len(ticks) <= most), inside[-1] or inside[0])


def tick_label(value: float) -> str:
    """Return a power of ten as such, except near 1, where the plain number is easier to read.

    >>> tick_label(0.3), tick_label(10_000.0), tick_label(1e-4)
    ('0.3', '10,000', '$10^{-4}$')
    """
    if 1e-3 <= value < 1e6:
        text = number(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.2e}".split("e")
    power = f"10^{{{int(exponent)}}}"
    digits = f"{float(mantissa):g}"
    return f"${power}$" if digits == "1" else rf"${digits}\times {power}$"


def set_log_ticks(
    axis: Axis, low: float, high: float, most: int = 6, zero: float | None = None
) -> None:
    """Label a log axis from ``low`` to ``high``, and 0 at the place ``zero`` if there is one."""
    ticks = log_ticks(low, high, most)
    labels = [tick_label(tick) for tick in ticks]
    if zero is not None:
        ticks, labels = [zero, *ticks], ["0", *labels]
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, labels)


def set_steps(ax: Axes, first: float, last: float, most: int) -> bool:
    """Let steps of training run along a panel; return whether on a log scale.

    Only a long way needs one. Step 0, before training, has a short linear piece at the left.
    """
    log = last > 50
    if log and first < 1:
        ax.set_xscale("symlog", linthresh=1.0, linscale=0.4)
        set_log_ticks(ax.xaxis, 1.0, last, most, zero=0.0)
    elif log:
        ax.set_xscale("log")
        set_log_ticks(ax.xaxis, 1.0, last, most)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))
    ax.set_xlim(first, last * (1.1 if log else 1.02))
    return log


def set_differences(axis: Axis, reach: Sequence[Sequence[float]], most: int = 6) -> str:
    """Let differences stand along an axis; return the remark that it needs, if any.

    ``reach`` has the numbers that each of them goes to. Where some reach far beyond most, those
    stand on a log scale.
    """
    ends = [*(end for numbers in reach for end in numbers), 0.0]
    low, high = min(ends), max(ends)
    typical = float(np.median([max(map(abs, numbers)) for numbers in reach]))
    if len(reach) < 4 or typical == 0 or max(-low, high) <= 8.0 * typical:
        room = 0.05 * (high - low) or 0.5
        axis.set_major_locator(MaxNLocator(most))
        _set_limits(axis, low - room, high + room)
        return ""
    edge = _round_down(2 * typical)
    ax = axis.axes
    (ax.set_xscale if axis is ax.xaxis else ax.set_yscale)("symlog", linthresh=edge, linscale=1.0)
    sides = ((low, -1.0), (high, 1.0))
    far = (side * _round_down(abs(end)) for end, side in sides if abs(end) > 4 * edge)
    near = (side * edge for end, side in sides if abs(end) >= edge)
    ticks = sorted({0.0, *near, *far})
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    limits = (end * 1.4 if abs(end) > edge else end + side * edge / 5 for end, side in sides)
    _set_limits(axis, *limits)
    return f"log scale beyond ±{edge:g}"


def _set_limits(axis: Axis, low: float, high: float) -> None:
    (axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim)(low, high)


def _round_down(value: float) -> float:
    """Return the largest of 1, 2, 5, 10, 20, ... that is not larger.

    >>> _round_down(61.0), _round_down(0.3)
    (50.0, 0.2)
    """
    first, power = f"{value:.15e}".split("e")
    digit = max(step for step in (1, 2, 5) if step <= float(first))
    return float(f"{digit}e{power}")


# --- Scales of metrics ------------------------------------------------------------------------


class PlainScale:
    """Values where they are, or where their logarithms are; then 0 stands left of the rest.

    Values that span less than a power of ten, or of which some are negative, stay where they are.

    >>> PlainScale([1.0, 3.0]).at([2.0]).tolist(), PlainScale([1.0, 100.0], log=True).at([10.0])
    ([2.0], array([1.]))
    >>> PlainScale([0.0, 0.02, 0.5], log=True).at([0.0])
    array([-3.])
    """

    def __init__(self, values: Iterable[float], log: bool = False) -> None:
        array = np.asarray(list(values), dtype=np.float64)
        array = array[np.isfinite(array)]
        ends = positive_range(array)
        self.log = log and ends is not None and array.min() >= 0 and ends[1] >= 10 * ends[0]
        self.name = "log scale" if self.log else ""
        self._whole = bool(array.size and (array == array.round()).all())
        self._zero: float | None = None
        if not self.log or ends is None:
            self._ends = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
            return
        self._ends = math.log10(ends[0]), math.log10(ends[1])
        if (array == 0).any():
            decades = math.ceil((self._ends[1] - self._ends[0]) / 8)
            self._zero = math.floor(self._ends[0]) - float(max(1, min(10, decades)))

    def at(self, values: ArrayLike) -> Floats:
        """Return the places of values; what a log axis cannot show lies beyond its edge."""
        array = np.asarray(values, dtype=np.float64)
        if not self.log:
            return array
        places = np.log10(np.clip(array, _SMALLEST, _LARGEST))
        beyond = self.limits()[0] - 1.0
        places = np.where(array <= 0, beyond, places)
        return places if self._zero is None else np.where(array == 0, self._zero, places)

    def limits(self) -> tuple[float, float]:
        """Return the ends of an axis that shows everything, with some room."""
        low, high = self._ends if self._zero is None else (self._zero, self._ends[1])
        if self._whole and not self.log and low == high:  # or it would zoom into fractions
            return min(low, max(low - 1.0, 0.0)) - 0.1, high + 1.1
        room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
        return low - room, high + room

    def set(self, axis: Axis, gap: float = 0.045) -> None:
        """Give an axis these limits, and ticks no closer than ``gap``, a share of it."""
        low, high = self.limits()
        most = min(6, max(2, int(1 / max(gap, 0.01)) - 1))
        axis.set_minor_locator(NullLocator())
        _set_limits(axis, low, high)
        if not self.log:
            steps = [1, 2, 2.5, 5, 10]
            axis.set_major_locator(MaxNLocator(most, integer=self._whole, steps=steps))
            return
        if self._zero is not None:  # the scale ends half-way to the place of 0
            low = (self._zero + self._ends[0]) / 2
            line = axis.axes.axvline if axis is axis.axes.xaxis else axis.axes.axhline
            line(low, color=GREY, lw=0.8, ls=":")
        ticks = log_ticks(10.0**low, 10.0**high, most)
        zero = [] if self._zero is None else [(self._zero, "0")]
        labels = [*zero, *((math.log10(tick), tick_label(tick)) for tick in ticks)]
        axis.set_ticks([place for place, _ in labels], [label for _, label in labels])


_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0)
_FINER = (*(0.1 * n for n in range(1, 10)), *range(1, 10), *range(10, 101, 10))


class AccuracyScale:
    """Places of accuracies in per cent; further along is better, and 100 has a place.

    >>> scale = AccuracyScale([10.0, 90.0, 99.0])
    >>> scale.at([0.0, 90.0, 98.0]).round(2).tolist()
    [-2.0, -1.0, -0.3]
    >>> [label for _, label in scale.ticks()]
    ['0', '20', '50', '80', '90', '95', '98', '99']
    """

    name = "log scale of the error"

    def __init__(self, accuracies: Iterable[float]) -> None:
        errors = 100.0 - np.asarray(list(accuracies), dtype=np.float64)
        errors = errors[np.isfinite(errors)]
        positive = errors[errors > 1e-9]
        self._perfect = bool(np.any(errors <= 1e-9))
        smallest = float(positive.min()) if positive.size else 1.0
        self._zero = smallest / 2.5  # where an error of 0 is drawn
        self._worst = min(float(positive.max()), 100.0) if positive.size else 100.0
        self._best = self._zero if self._perfect else smallest

    def at(self, values: ArrayLike) -> Floats:
        """Return where accuracies stand: minus the logarithm of the error; NaN stays NaN."""
        errors = 100.0 - np.asarray(values, dtype=np.float64)
        return -np.log10(np.maximum(errors, self._zero))

    def ticks(self, gap: float = 0.045) -> list[tuple[float, str]]:
        """Return places with labels, the worst first, no two closer than a share of the axis."""
        low, high = self.limits()

        def inside(errors: Sequence[float]) -> list[tuple[float, str]]:
            ticks = [(float(-np.log10(e)), f"{round(100 - e, 6):g}") for e in reversed(errors)]
            return [(place, label) for place, label in ticks if low <= place <= high]

        ticks = inside(_ERRORS)
        # Few round numbers are better than many others, where there is no room for many.
        ticks = inside(_FINER) if len(ticks) < (5 if gap < 0.06 else 4) else ticks
        if len(ticks) < 3:  # less than a factor of two: as on a linear axis
            even = MaxNLocator(4).tick_values(100 - self._worst, 100 - self._best)
            ticks = inside([100 - float(a) for a in reversed(even) if a < 100 - 1e-9])
        if self._perfect:
            last = float(-np.log10(self._zero))
            ticks = [tick for tick in ticks if tick[0] < last - max(0.12, gap) * (high - low)]
            ticks.append((last, "100"))
        apart: list[tuple[float, str]] = []
        for place, label in ticks:
            if not apart or place - apart[-1][0] >= gap * (high - low):
                apart.append((place, label))
        return apart

    def limits(self) -> tuple[float, float]:
        """Return the ends of an axis that shows everything, with some room."""
        low, high = -np.log10(self._worst), -np.log10(self._best)
        room = max(0.04 * (high - low), 0.03)
        return float(low - room), float(high + room)

    def set(self, axis: Axis, gap: float = 0.045) -> None:
        """Give an axis these limits, and ticks no closer than ``gap``, a share of it."""
        axis.set_minor_locator(NullLocator())
        _set_limits(axis, *self.limits())
        ticks = self.ticks(gap)
        axis.set_ticks([place for place, _ in ticks], [label for _, label in ticks])


Scale = AccuracyScale | PlainScale


def scale_for(metric: Metric, values: Iterable[float]) -> Scale:
    """Return the scale on which a metric is drawn: percentages that should be high by error."""
    if metric.unit == "%" and metric.better == "high":
        return AccuracyScale(values)
    return PlainScale(values, metric.log)


def axis_label(metric: Metric, scale: Scale, name: bool = True) -> str:
    """Return what stands along an axis: the metric (unless ``name`` is off), unit and scale."""
    unit = ", ".join(filter(None, (metric.unit, scale.name)))
    if not name:
        return plain(unit)
    return plain(f"{in_sentence(metric.label)} ({unit})" if unit else in_sentence(metric.label))
