"""How far the hyperplane of an output lies from its own class and from the others."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_label, models_in_order
from mahalens.report.figures.rows import family_rows, room_for_rows
from mahalens.report.figures.scales import on_log_axis, padded, positive_range, set_log_ticks
from mahalens.report.figures.style import GREY, INK, key, legend, panels, plain
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords

TITLE = "Does an output measure distance or intensity?"
_DISTANCE, _INTENSITY, _NEITHER = "#0072B2", "#D55E00", "#8a8a8a"
_OWN: dict[str, Any] = {"marker": "o", "ms": 6.5, "mec": INK, "mew": 0.8, "ls": ""}
_OTHER: dict[str, Any] = {
    "marker": "o",
    "ms": 6.5,
    "mfc": "white",
    "mec": INK,
    "mew": 1.1,
    "ls": "",
}


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "How far the centre of a class lies from where an output is 0, in spreads of that output, "
        "averaged over classes and trials; thin lines are 95 % intervals. An output that measures "
        "distance passes through its own class (filled mark left of the open one, blue), one that "
        "measures intensity through the others (filled mark right, orange). Grey: the interval of "
        "the ratio of the two holds 1. On the log scale a bar is as long as that ratio is far from "
        "1. Outputs of OffsetL2 are distances already; theirs are not from a hyperplane but from "
        "the prototype."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no network has both distances."""
    parts = [part for part in records.parts() if _models(part)]
    models = models_in_order((m for part in parts for m in _models(part)), records.study)
    if not models:
        return None
    rows = family_rows(models)
    figure, axes = panels(
        len(parts), len(parts), room_for_rows(rows), extra_height=0.8, sharex=True, sharey=True
    )
    for ax, part in zip(axes, parts, strict=True):
        for model, place in rows.places.items():
            _draw_model(ax, part, model, place)
        ax.set_title(plain(part.title), loc="left")
        ax.set_xlabel("distance from the hyperplane (spreads, log scale)")
    rows.label(axes[0], lambda model: plain(model_label(model, records.study)))
    reach = positive_range(
        [end for part in parts for m in _models(part) for end in _reach(part, m)]
    )
    limits = padded(*(reach or (0.1, 1.0)))
    axes[0].set_xscale("log")
    axes[0].set_xlim(limits)
    set_log_ticks(axes[0].xaxis, *limits)
    legend(
        figure,
        [
            key("own class", color=GREY, **_OWN),
            key("other classes", **_OTHER),
            key("own nearer: distance", color=_DISTANCE, lw=3),
            key("others nearer: intensity", color=_INTENSITY, lw=3),
            key("no clear difference", color=_NEITHER, lw=3),
        ],
    )
    return figure


def _models(part: RunRecords) -> list[str]:
    given = models_in_order((row["model"] for row in part.summary["rows"]), part.study)
    return [model for model in given if _ends(part, model) is not None]


def _ends(part: RunRecords, model: str) -> tuple[float, float] | None:
    own, other = (part.row(model, f"{kind}_centre").get("mean") for kind in ("own", "other"))
    if own is None or other is None or not is_number(own) or not is_number(other):
        return None
    return float(own), float(other)


def _bounds(part: RunRecords, model: str, metric: str) -> tuple[float, float] | None:
    ends = part.row(model, metric).get("ci95") or []
    return (ends[0], ends[1]) if len(ends) == 2 and all(is_number(end) for end in ends) else None


def _reach(part: RunRecords, model: str) -> list[float]:
    """What the axis must show: the marks, and how far the intervals go up."""
    tops = [b[1] for kind in ("own", "other") if (b := _bounds(part, model, f"{kind}_centre"))]
    return [*(_ends(part, model) or ()), *tops]


def _draw_model(ax: Axes, part: RunRecords, model: str, place: float) -> None:
    ends = _ends(part, model)
    if ends is None:
        return
    own, other = (on_log_axis(end) for end in ends)
    colour = _DISTANCE if own < other else _INTENSITY
    low, high = _bounds(part, model, "centre_ratio") or (own / other, own / other)
    if low <= 1 <= high:
        colour = _NEITHER
    ax.plot([own, other], [place, place], color=colour, lw=3, solid_capstyle="butt", zorder=2)
    for kind, aside in (("own", -0.22), ("other", 0.22)):
        if bounds := _bounds(part, model, f"{kind}_centre"):
            # An end at 0 or below becomes the smallest a log axis knows: past the left edge.
            x = [on_log_axis(bound) for bound in bounds]
            ax.plot(x, [place + aside] * 2, color=GREY, lw=0.9, zorder=1)
    ax.plot([own], [place], color=colour, zorder=4, **_OWN)
    ax.plot([other], [place], zorder=3, **_OTHER)
