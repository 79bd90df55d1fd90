"""Accuracy by level of perturbation, a column per network, every number as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.numbers import is_number, number
from mahalens.studies.perturbation.levels import KINDS, TABLE, column, percent

_STUDY = "perturbation"


@dataclass(frozen=True)
class Cell:
    """A mean over the trials with half the width of its interval and the published mean."""

    mean: str
    half_width: str
    published: str

    @property
    def text(self) -> str:
        """All of it, for the terminal."""
        half = f" ± {self.half_width}" if self.half_width else ""
        published = f" ({self.published})" if self.published else ""
        return f"{self.mean}{half}{published}"


@dataclass(frozen=True)
class Line:
    """One level, with a cell per network; ``None`` where it was not measured."""

    section: str
    label: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class Levels:
    """The table: names and colours of the networks, and its lines."""

    networks: list[str]
    colours: list[str]
    lines: list[Line]

    @property
    def published(self) -> bool:
        """Whether there is a published mean somewhere."""
        return any(
            cell is not None and cell.published for line in self.lines for cell in line.cells
        )


def levels_of(summary: Mapping[str, Any]) -> Levels:
    """The table of a summary that has one part."""
    rows = {(str(row["model"]), str(row["metric"])): row for row in summary["rows"]}
    models = models_in_order((model for model, _ in rows), _STUDY)
    colours = model_colours(models, _STUDY)

    def line(section: str, label: str, metric: str, places: int = 2) -> Line:
        return Line(section, label, [_cell(rows.get((model, metric)), places) for model in models])

    lines = [
        line("Unperturbed", "training accuracy", "train_accuracy"),
        line("Unperturbed", "test accuracy", "test_accuracy"),
    ]
    for kind, levels in TABLE.items():
        for level in levels:
            label = f"{kind} {percent(kind, level)}"
            lines.append(line(KINDS[kind], label, column(kind, level)))
    lines.append(line("Index, -1 intensity to 1 distance", "reliance on distance", "reliance"))
    return Levels(
        [model_label(model, _STUDY) for model in models], [colours[m] for m in models], lines
    )


def _cell(row: Mapping[str, Any] | None, places: int) -> Cell | None:
    """Accuracies have two places, as published: 99.98 is not 100."""
    if row is None or not is_number(row["mean"]):
        return None
    ends: Sequence[float] = row.get("ci95") or ()
    told = len(ends) == 2 and all(is_number(end) for end in ends)
    published = row.get("published")
    return Cell(
        f"{row['mean']:.{places}f}",
        number((ends[1] - ends[0]) / 2, 2) if told else "",
        f"{published:.{places}f}" if published is not None and is_number(published) else "",
    )
