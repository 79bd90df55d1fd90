"""One metric of every trial, a row per model, a panel per data set."""

from __future__ import annotations

from matplotlib.figure import Figure

from mahalens.report.catalogue import model_label, models_in_order
from mahalens.report.figures.accuracy_axis import AccuracyScale
from mahalens.report.figures.metric_axis import scale_of
from mahalens.report.figures.part_panels import metric_of, part_panels, shade_rows, tick_gap
from mahalens.report.figures.rows import plain_rows, room_for_rows
from mahalens.report.figures.style import legend, plain
from mahalens.report.figures.trial_rows import draw_trials, entries, measured, published
from mahalens.report.records import RunRecords
from mahalens.report.views import view_of

_LETTER = 0.075  # inches, of the names of rows


def title(records: RunRecords, metric: str = "") -> str:
    """The question that the figure answers."""
    named = metric_of(records, metric).label
    return f"{named}: which model is best, and how much does it vary?"


def caption(records: RunRecords, metric: str = "") -> str:
    """What to look for."""
    view = metric_of(records, metric)
    scale, _ = scale_of(view, view_of(records.study), [])
    axis = (
        "The axis is that of the error, 100 − accuracy, on a log scale: equal steps halve the "
        "error. "
        if isinstance(scale, AccuracyScale)
        else f"{view.direction} ".lstrip()
    )
    own = "Each data set has an axis of its own. " if len(records.parts()) > 1 else ""
    shared = _shared_rows(records, view.name)
    return (
        f"Each mark is a trial. {axis}{own}{shared}All models share their trials: two whose clouds "
        "overlap can still differ in every trial, which the paired tests see. An interval that "
        "reaches past the edge goes on beyond it."
    )


def draw(records: RunRecords, metric: str = "") -> Figure | None:
    """None when no trial has the metric."""
    view = metric_of(records, metric)
    parts = [part for part in records.parts() if measured(part, view.name)]
    models = list(_alike(records, view.name))
    if not models:
        return None
    names = {model: plain(model_label(model, records.study)) for model in models}
    rows = plain_rows(models)
    scales = [
        scale_of(
            view,
            view_of(records.study),
            [*measured(part, view.name), *published(part, models, view.name)],
        )
        for part in parts
    ]
    figure, axes = part_panels(parts, room_for_rows(rows), scales[0][1], sharey=True)
    shade_rows(axes, len(models))
    several = False
    beside = 0.4 + _LETTER * max(len(name) for name in names.values())
    for ax, part, (scale, _) in zip(axes, parts, scales, strict=True):
        several |= draw_trials(ax, part, view.name, rows.places, scale)
        scale.set(ax.xaxis, tick_gap(len(parts), beside))
    rows.label(axes[0], names.__getitem__)
    given = any(published(part, models, view.name) for part in parts)
    legend(figure, entries("a trial", several=several, published=given))
    return figure


def _alike(records: RunRecords, metric: str) -> dict[str, list[str]]:
    """Models with a value, each with the later ones that have the same value in every trial.

    Detectors that read one network have its calibration: five equal rows would look like five
    findings. By the primary metric, which a reader looks for by name, every model has its row.
    """
    parts = records.parts()
    primary = metric_of(records, "").name == metric
    found: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    names = (m for part in parts for m in part.trials.model if part.trials.of(m, metric))
    for model in models_in_order(names, records.study):
        values = repr([sorted(part.trials.of(model, metric).items()) for part in parts])
        if values in first and not primary:
            found[first[values]].append(model)
        else:
            first[values] = model
            found[model] = []
    return found


def _shared_rows(records: RunRecords, metric: str) -> str:
    """Which models share a row, as a sentence; empty if none do."""
    told = [
        f"{model_label(model, records.study)} stands for "
        + " and ".join(model_label(other, records.study) for other in others)
        for model, others in _alike(records, metric).items()
        if others
    ]
    return f"Models with the same values in all trials share a row: {'; '.join(told)}. " * bool(
        told
    )
