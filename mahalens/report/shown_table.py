"""The table that a reader of a paired study sees first: a line per model, a column per metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mahalens.report.catalogue import (
    MetricView,
    in_order,
    metric_view,
    metrics_of,
    model_colours,
    model_label,
    models_in_order,
)
from mahalens.report.numbers import is_number, mean_and_half, number
from mahalens.report.views import view_of

_MOST = 5  # metrics that are shown of a study that does not say which


@dataclass(frozen=True)
class Cell:
    """A mean over the trials, as text; ``best`` if no other model has a better one.

    ``n`` is the number of trials that have a value, where some have none.
    """

    mean: str
    half_width: str = ""
    published: str = ""
    n: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        """All of it on one line."""
        half = f" ± {self.half_width}" if self.half_width else ""
        published = f" ({self.published})" if self.published else ""
        return f"{self.mean}{half}{published}{f', n = {self.n}' if self.n else ''}"


@dataclass(frozen=True)
class Line:
    """One model, with a cell per metric; ``None`` where it was not measured."""

    label: str
    colour: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class Shown:
    """The table of one part."""

    metrics: list[MetricView]
    lines: list[Line]

    @property
    def published(self) -> bool:
        """Whether there is a published mean somewhere."""
        return any(
            cell is not None and cell.published for line in self.lines for cell in line.cells
        )


def shown_metrics(summary: Mapping[str, Any]) -> list[str]:
    """The metrics to show of a run, those alone that have a number somewhere."""
    study = str(summary["study"])
    rows = [r for r in summary["rows"] if is_number(r["mean"]) or is_number(r.get("published"))]
    given = in_order((str(row["metric"]) for row in rows), metrics_of(study))
    shown = [metric for metric in view_of(study).shown if metric in given]
    return shown or given[:_MOST]


def shown_of(summary: Mapping[str, Any], metrics: Sequence[str] | None = None) -> Shown:
    """The table of a summary that has one part; of the given metrics, else of its own."""
    study = str(summary["study"])
    known = metrics_of(study)
    rows = {(str(row["model"]), str(row["metric"])): row for row in summary["rows"]}
    models = models_in_order((model for model, _ in rows), study)
    trials = {str(o["model"]): int(o["trials"]) for o in summary.get("outcomes", [])}
    colours = model_colours(models, study)
    views = [
        metric_view(known, m) for m in (shown_metrics(summary) if metrics is None else metrics)
    ]
    best = {view.name: _best(view, [rows.get((m, view.name)) for m in models]) for view in views}

    def line(model: str) -> Line:
        given = ((view, rows.get((model, view.name))) for view in views)
        cells = [_cell(row, view, best[view.name], trials.get(model)) for view, row in given]
        return Line(model_label(model, study), colours[model], cells)

    return Shown(views, [line(model) for model in models])


def _best(metric: MetricView, rows: Sequence[Mapping[str, Any] | None]) -> float | None:
    """The best mean of a column; none if neither end is good, or if most models share it."""
    means = [float(row["mean"]) for row in rows if row is not None and is_number(row["mean"])]
    if metric.better is None or len(means) < 2:
        return None
    best = max(means) if metric.better == "high" else min(means)
    return best if 2 * means.count(best) <= len(means) else None


def _cell(
    row: Mapping[str, Any] | None, metric: MetricView, best: float | None, trials: int | None
) -> Cell | None:
    if row is None or not (is_number(row["mean"]) or is_number(row.get("published"))):
        return None
    percent = metric.unit == "%"
    mean, half = mean_and_half(row["mean"], row.get("ci95"), percent)
    published = mean_and_half(row.get("published"), None, percent)[0]
    lost = trials is not None and is_number(row["mean"]) and row["n"] < trials
    return Cell(
        mean,
        half,
        published if is_number(row.get("published")) else "",
        number(row["n"]) if lost else "",
        best=is_number(row["mean"]) and row["mean"] == best,
    )
