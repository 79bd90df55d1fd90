"""Test accuracy of every trial, a row per network, one panel per part of the run."""

from __future__ import annotations

from matplotlib.figure import Figure

from mahalens.report.catalogue import model_label, models_in_order
from mahalens.report.figures.accuracy_axis import AccuracyScale, label
from mahalens.report.figures.rows import family_rows, room_for_rows
from mahalens.report.figures.style import legend, panels, plain
from mahalens.report.figures.trial_rows import draw_trials, entries, measured, published
from mahalens.report.records import RunRecords

TITLE = "How accurate is each network, and how much does that vary?"
_METRIC = "test_accuracy"


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
    parts = [p for p in records.parts() if measured(p, _METRIC)]
    models = models_in_order((m for p in parts for m in p.trials.model), records.study)
    if not models:
        return None
    shown = [value for part in parts for value in measured(part, _METRIC)]
    given = [mean for part in parts for mean in published(part, models, _METRIC)]
    scale = AccuracyScale([*shown, *given])
    rows = family_rows(models)
    figure, axes = panels(
        len(parts), len(parts), room_for_rows(rows), extra_height=0.5, sharex=True, sharey=True
    )
    several = False
    for ax, part in zip(axes, parts, strict=True):
        several |= draw_trials(ax, part, _METRIC, rows.places, scale)
        ax.set_title(plain(part.title), loc="left")
        ax.set_xlabel(label())
    rows.label(axes[0], lambda model: plain(model_label(model, records.study)))
    scale.set(axes[0].xaxis)
    told = entries("a trial (marker: family)", several=several, published=bool(given))
    legend(figure, told)
    return figure
