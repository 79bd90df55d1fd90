"""Paired differences of every tested pair with their intervals, a panel per data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from mahalens.report.catalogue import MetricView, model_label
from mahalens.report.comparisons import is_significant, pair_label
from mahalens.report.figures.part_panels import metric_of, part_panels, shade_rows, tick_gap
from mahalens.report.figures.rows import plain_rows, room_for_rows
from mahalens.report.figures.style import GREY, INK, key, legend, plain
from mahalens.report.figures.trial_rows import no_value
from mahalens.report.networks import named_in_full
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords

_BETTER, _WORSE = "#0072B2", "#D55E00"
_LETTER = 0.075  # inches, of the names of rows
_FAR = 8.0  # times the median reach: from there on a linear axis would hide the others
_SOME = 4  # differences of which it makes sense to ask what most of them are like


def title(records: RunRecords, metric: str = "") -> str:
    """The question that the figure answers."""
    return f"{_metric(records, metric).label}: which differences are real?"


def caption(records: RunRecords, metric: str = "") -> str:
    """What to look for."""
    against = _reference(records, _metric(records, metric).name)
    what = f"each model minus {against}" if against else "the first model minus the second"
    return (
        f"Mean over the trials of {what}, with its 95 % interval. Filled: significant (p < 0.05) "
        "by the test to lean on, after Holm's correction over the pairs of the data set. An "
        "interval is not corrected: it can keep clear of zero where the test, after the "
        "correction, is not significant."
    )


def _reference(records: RunRecords, metric: str) -> str:
    """The model that all others were tested against, by its label; empty if there are several."""
    tests = records.summary.get("comparisons", [])
    seconds = {named_in_full(str(t["b"]))[0] for t in tests if t.get("metric") == metric}
    return model_label(seconds.pop(), records.study) if len(seconds) == 1 else ""


def draw(records: RunRecords, metric: str = "") -> Figure | None:
    """None when nothing was tested."""
    view = _metric(records, metric)
    against = _reference(records, view.name)
    tests = {part.part: _lines(part, view.name, against) for part in records.parts()}
    parts = [part for part in records.parts() if tests[part.part]]
    if not parts:
        return None
    # In the order of the data set with most pairs: one that lacks a pair must not move it.
    fullest = sorted(tests.values(), key=len, reverse=True)
    names = list(dict.fromkeys(name for own in fullest for name in own))
    rows = plain_rows(names)
    unit = "points" if view.unit == "%" else view.unit
    along = f"difference in {view.mid_sentence}{f' from {against}' if against else ''}"
    along += f" ({unit})" if unit else ""
    figure, axes = part_panels(parts, room_for_rows(rows, 0.25), along, sharey=True)
    shade_rows(axes, len(names))
    beside = 0.4 + _LETTER * max(len(name) for name in names)
    drawn: set[str] = set()
    for ax, part in zip(axes, parts, strict=True):
        for name, place in rows.places.items():
            line = tests[part.part].get(name)
            if line is None:
                no_value(ax, place)
            else:
                drawn.add(_draw_pair(ax, line, place, view))
        ax.axvline(0.0, color=INK, lw=0.9, zorder=2)
        _set_axis(ax, list(tests[part.part].values()), tick_gap(len(parts), beside))
    rows.label(axes[0], plain)
    words = {_BETTER: "significant, first is better", _WORSE: "significant, second is better"}
    if against:
        shown = plain(against)
        words = {
            _BETTER: f"significantly better than {shown}",
            _WORSE: f"significantly worse than {shown}",
        }
    if view.better is None:
        words = {_BETTER: "significant"}
    words[GREY] = "not significant"
    legend(
        figure,
        [
            key(said, color=c, marker="o", ms=6, lw=1.6, mec=c, mfc="white" if c == GREY else c)
            for c, said in words.items()
            if c in drawn
        ],
    )
    return figure


def _metric(records: RunRecords, metric: str) -> MetricView:
    """The metric asked for, else the primary one if it was tested, else the first that was."""
    tested = [str(line.get("metric") or "") for line in records.summary.get("comparisons", [])]
    primary = metric_of(records, metric)
    return (
        primary if metric or primary.name in tested or not tested else metric_of(records, tested[0])
    )


def _lines(part: RunRecords, metric: str, against: str) -> dict[str, dict[str, Any]]:
    """The tests of a metric that gave a difference, by the pair, or by what was ``against`` one."""

    def name(line: dict[str, Any]) -> str:
        if against:
            return model_label(named_in_full(str(line["a"]))[0], part.study)
        return pair_label(str(line["a"]), str(line["b"]), part.study)

    return {
        name(line): line
        for line in part.summary["comparisons"]
        if line.get("metric") == metric and is_number(line.get("mean_difference"))
    }


def _draw_pair(ax: Axes, line: dict[str, Any], place: float, metric: MetricView) -> str:
    """Draw a difference; say in which colour."""
    difference = float(line["mean_difference"])
    clear = is_significant(line)
    good = (difference > 0) == (metric.better == "high") or metric.better is None
    colour = (_BETTER if good else _WORSE) if clear else GREY
    given = (line.get(f"difference_ci95_{end}") for end in ("low", "high"))
    ends = [float(end) for end in given if end is not None and is_number(end)]
    if len(ends) == 2:
        ax.plot(ends, [place, place], "-", lw=1.6, color=colour, zorder=3)
    face = colour if clear else "white"
    ax.plot([difference], [place], "o", ms=6, mfc=face, mec=colour, mew=1.4, zorder=4)
    return colour


def _set_axis(ax: Axes, lines: list[dict[str, Any]], gap: float) -> None:
    """Limits and ticks; where some differences reach far beyond most, a log scale for those."""
    named = ("mean_difference", "difference_ci95_low", "difference_ci95_high")
    given = [[float(line[n]) for n in named if is_number(line.get(n))] for line in lines]
    low, high = min(0.0, *map(min, given)), max(0.0, *map(max, given))
    ends = ((low, -1.0), (high, 1.0))
    most = max(2, min(6, int(1 / gap) - 1))
    typical = float(np.median([max(map(abs, values)) for values in given]))
    if len(lines) < _SOME or typical == 0 or max(-low, high) <= _FAR * typical:
        room = 0.05 * (high - low) or 0.5
        ax.set_xlim(low - room, high + room)
        ax.xaxis.set_major_locator(MaxNLocator(most))
        return
    edge = _round_down(2 * typical)
    ax.set_xscale("symlog", linthresh=edge, linscale=1.0)
    ax.set_xlim(*(end * 1.4 if abs(end) > edge else end + s * edge / 5 for end, s in ends))
    far = (sign * _round_down(abs(end)) for end, sign in ends if abs(end) > 4 * edge)
    near = (sign * edge for end, sign in ends if abs(end) >= edge)
    ticks = sorted({0.0, *near, *far})
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    # Beside the title, not in it: with the name of a data set it would be too long.
    told = ax.set_title(f"log scale beyond ±{edge:g}", loc="right", fontsize=8, color=GREY)
    told.set_fontweight("normal")


def _round_down(value: float) -> float:
    """The largest of 1, 2, 5, 10, 20, ... that is not larger.

    >>> _round_down(61.0), _round_down(0.3)
    (50.0, 0.2)
    """
    first, power = f"{value:.15e}".split("e")
    digit = max(step for step in (1, 2, 5) if step <= float(first))
    return float(f"{digit}e{power}")
