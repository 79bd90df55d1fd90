"""What Abs units gain over ReLU units, by their share of the layer; a panel per data set."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from mahalens.report.figures.part_panels import columns_for, part_panels
from mahalens.report.figures.style import DASHED, GREY, INK, Entry, key, legend
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords
from mahalens.studies.hybrid.mixtures import MIXTURES, NARROW, WIDE

TITLE = "How much do Abs units gain over ReLU units, by their share?"
_METRIC = "gain"
_DOUBLE = "narrow-double"
_LOOKS = {WIDE: ("#0072B2", "o", -1.2), NARROW: ("#D55E00", "s", 1.2)}  # colour, marker, aside
_LEARNED = 116.0  # where mixtures that are learned stand, beyond all units Abs


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Points of test accuracy that a layer has more than one of as many ReLU units in the same "
        "trial: mean with 95 % interval. Half-way up a straight line, a mixture is just between "
        "the pure layers; it pays only where the line bulges upwards. If one Abs unit stands for "
        "two ReLU units, the narrow Abs layer (right) reaches the dashed line."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no layer can be compared with one of ReLU units alone."""
    parts = [part for part in records.parts() if any(_found(part, model) for model in MIXTURES)]
    if not parts:
        return None
    figure, axes = part_panels(parts, 2.7, "Abs units (% of the layer)")
    for place, (ax, part) in enumerate(zip(axes, parts, strict=True)):
        _draw_panel(ax, part)
        if place % columns_for(len(parts)) == 0:
            ax.set_ylabel("gain over ReLU\n(points of test accuracy)")
    legend(figure, _entries(parts))
    return figure


def _draw_panel(ax: Axes, part: RunRecords) -> None:
    ax.axhline(0.0, color=INK, lw=0.9, zorder=2)
    if doubled := _found(part, _DOUBLE):
        mean, low, high = doubled
        ax.axhspan(low, high, color=GREY, alpha=0.15, lw=0, zorder=1)
        ax.axhline(mean, color=GREY, ls=DASHED, lw=1.4, zorder=2)
    for family, (colour, marker, aside) in _LOOKS.items():
        shares, seen = [], []
        for model, mixture in MIXTURES.items():
            found = _found(part, model)
            if mixture.family != family or model == _DOUBLE or not found:
                continue
            if mixture.share is None:
                _draw_points(ax, [_LEARNED + aside], [found], colour, marker, mfc="white")
            else:
                shares.append(100 * mixture.share + aside)
                seen.append(found)
        _draw_points(ax, shares, seen, colour, marker)
        ax.plot(shares, [mean for mean, _, _ in seen], color=colour, lw=1.4, zorder=3)
    ticks = {0.0: "0", 25.0: "25", 50.0: "50", 75.0: "75", 100.0: "100"}
    if _learned(part):
        ticks[_LEARNED] = "learned"
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.set_xlim(-5.0, max(ticks) + 6.0)


def _draw_points(
    ax: Axes,
    places: list[float],
    found: list[tuple[float, float, float]],
    colour: str,
    marker: str,
    **style: Any,
) -> None:
    for place, (mean, low, high) in zip(places, found, strict=True):
        ax.plot([place, place], [low, high], "-", color=colour, lw=1.4, zorder=3)
        ax.plot([place], [mean], marker, color=colour, ms=5.5, zorder=4, **style)


def _found(part: RunRecords, model: str) -> tuple[float, float, float] | None:
    """Mean and interval of what a model gains; without an interval its ends are the mean."""
    row = part.row(model, _METRIC)
    if not is_number(row.get("mean")):
        return None
    mean = float(row["mean"])
    low, high = row.get("ci95") or (mean, mean)
    return mean, float(low), float(high)


def _learned(part: RunRecords) -> bool:
    return any(one.share is None and _found(part, name) for name, one in MIXTURES.items())


def _entries(parts: list[RunRecords]) -> list[Entry]:
    told = []
    for family, (colour, marker, _) in _LOOKS.items():
        own = [name for name, one in MIXTURES.items() if one.family == family]
        if any(_found(part, name) for part in parts for name in own):
            told.append(key(f"{family} layer", color=colour, marker=marker, ms=5.5, lw=1.4))
    if any(_found(part, _DOUBLE) for part in parts):
        label = "narrow layer with twice as many ReLU units, 95 % interval"
        told.append(key(label, color=GREY, ls=DASHED, lw=1.4))
    return told
