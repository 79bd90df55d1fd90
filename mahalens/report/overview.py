"""The few columns that tell most about the networks of a run, as text, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.networks import FAMILY_TITLES, families_of
from mahalens.report.numbers import MISSING, interval, is_number, number


@dataclass(frozen=True)
class Line:
    """One network: mean test accuracy and what else a reader asks first."""

    model: str
    label: str
    family: str
    colour: str
    accuracy: str
    half_width: str
    interval: str
    published: str
    published_sd: str
    sd: str
    range: str
    dead: str
    dead_published: str
    rare: str
    epochs: str
    n: str


def part_of(entry: Mapping[str, Any]) -> str:
    """The part that a row or an outcome belongs to.

    >>> part_of({"group": {"pixels": "raw"}}), part_of({})
    ('raw pixels', '')
    """
    return ", ".join(f"{value} {key}" for key, value in entry.get("group", {}).items())


def overview(summary: Mapping[str, Any], part: str | None = None) -> list[Line]:
    """One line a network, in the order of families; of one part alone if it is named."""
    own_rows: list[dict[str, Any]] = [
        row for row in summary["rows"] if part is None or part_of(row) == part
    ]
    rows = {(str(r["model"]), str(r["metric"])): r for r in own_rows}
    study = str(summary["study"])
    models = models_in_order((model for model, _ in rows), study)
    colours = model_colours(models, study)

    def line(model: str, family: str) -> Line:
        def row(metric: str) -> dict[str, Any]:
            return rows.get((model, metric), {})

        accuracy, dead = row("test_accuracy"), row("dead_outputs")
        low, high = accuracy.get("min"), accuracy.get("max")
        detail = accuracy.get("published_detail") or {}
        return Line(
            model=model,
            label=model_label(model, study),
            family=FAMILY_TITLES.get(family, "Others"),
            colour=colours[model],
            accuracy=number(accuracy.get("mean"), 4),
            half_width=_half_width(accuracy.get("ci95")),
            interval=interval(accuracy.get("ci95")),
            published=number(accuracy.get("published"), 4),
            published_sd=number(detail.get("sd", detail.get("std")), 2),
            sd=number(accuracy.get("std")),
            range=f"{number(low)} to {number(high)}" if is_number(low) else MISSING,
            dead=number(dead.get("mean")),
            dead_published=number(dead.get("published")),
            rare=number(row("rare5_outputs").get("mean")),
            epochs=number(_whole(row("epochs_to_converge").get("mean"))),
            n=number(accuracy.get("n")),
        )

    return [line(model, family) for family, own in families_of(models).items() for model in own]


def _half_width(ends: list[float] | None) -> str:
    if not ends or not all(is_number(end) for end in ends):
        return MISSING
    return number((ends[1] - ends[0]) / 2, 2)


def _whole(value: float | None) -> float | None:
    return round(value) if value is not None and is_number(value) else None
