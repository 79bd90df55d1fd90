"""Test accuracy of every trial, a row per network, one panel per part of the run."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.accuracy_axis import AccuracyScale, label
from mahalens.report.figures.rows import family_rows, jitter, room_for_rows
from mahalens.report.figures.style import GREY, INK, key, legend, panels, plain
from mahalens.report.networks import network_style
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords

TITLE = "How accurate is each network, and how much does that vary?"
_METRIC = "test_accuracy"
_PUBLISHED: dict[str, Any] = {"ms": 6, "mfc": "white", "mec": INK, "mew": 1.2, "zorder": 5}


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Each mark is a trial. The axis is that of the error, 100 − accuracy, on a log scale: "
        "equal steps halve the error, so that networks near the top can be told apart beside one "
        "that fails. A wide cloud means that the starting point decides. An interval that reaches "
        "past the edge goes on beyond it."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no trial has an accuracy."""
    parts = [p for p in records.parts() if _measured(p)]
    models = models_in_order((m for p in parts for m in p.trials.model), records.study)
    if not models:
        return None
    shown = [value for part in parts for value in _measured(part)]
    published = [
        float(row["published"])
        for part in parts
        for model in models
        if is_number((row := part.row(model, _METRIC)).get("published"))
    ]
    scale = AccuracyScale([*shown, *published])
    rows = family_rows(models)
    figure, axes = panels(
        len(parts), len(parts), room_for_rows(rows), extra_height=0.5, sharex=True, sharey=True
    )
    several = False
    for ax, part in zip(axes, parts, strict=True):
        several |= _draw_part(ax, part, rows.places, scale)
        ax.set_title(plain(part.title), loc="left")
        ax.set_xlabel(label())
    rows.label(axes[0], lambda model: plain(model_label(model, records.study)))
    scale.set(axes[0].xaxis)
    entries = [key("a trial (marker: family)", marker="o", ls="", color=GREY, alpha=0.7, ms=5)]
    if several:
        entries.append(key("mean with 95 % interval", marker="|", color=INK, ms=10, mew=2, lw=1.4))
    if published:
        entries.append(key("published mean", marker="D", ls="", **_PUBLISHED))
    legend(figure, entries)
    return figure


def _measured(part: RunRecords) -> list[float]:
    return [v for model in set(part.trials.model) for v in part.trials.of(model, _METRIC).values()]


def _draw_part(ax: Axes, part: RunRecords, places: dict[str, float], scale: AccuracyScale) -> bool:
    """Draw one panel; say whether some network has several trials, and so an interval."""
    colours = model_colours(places, part.study)
    several = False
    for model, place in places.items():
        trials = part.trials.of(model, _METRIC)
        row = part.row(model, _METRIC)
        if not trials:
            within = ax.get_yaxis_transform()
            told = ax.text(0.99, place, "no value", fontsize=8, color=GREY, transform=within)
            told.set(va="center", ha="right")
        ax.plot(
            scale.at(list(trials.values())),
            [place + jitter(trial, len(trials)) for trial in trials],
            ls="",
            marker=network_style(model)["marker"],
            ms=4.5,
            color=colours[model],
            mec="none",
            alpha=0.65,
            zorder=3,
        )
        if len(trials) > 1 and is_number(row.get("mean")):
            several = True
            ax.plot(scale.at([row["mean"]]), [place], "|", ms=12, mew=2.2, color=INK, zorder=4)
            ends = row.get("ci95") or []
            if len(ends) == 2 and all(is_number(end) for end in ends):
                ax.plot(scale.at(ends), [place, place], "-", lw=1.4, color=INK, zorder=4)
        if is_number(row.get("published")):
            ax.plot(scale.at([row["published"]]), [place], "D", **_PUBLISHED)
    return several
