"""The few columns that tell most about the networks of a run, as text, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def parts_of(summary: Mapping[str, Any]) -> list[str]:
    """The parts of a run, in the order of its rows."""
    return list(dict.fromkeys(part_of(row) for row in summary["rows"]))


def part_of(entry: Mapping[str, Any]) -> str:
    """The part that a row or an outcome belongs to.

    >>> part_of({"group": {"pixels": "raw"}}), part_of({})
    ('raw pixels', '')
    """
    return ", ".join(f"{value} {key}" for key, value in entry.get("group", {}).items())


def overview(summary: Mapping[str, Any], part: str) -> list[Line]:
    """One line a network, in the order of families."""
    own_rows: list[dict[str, Any]] = [r for r in summary["rows"] if part_of(r) == part]
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


def about(summary: Mapping[str, Any]) -> str:
    """The data of a run, what was scaled down and what to mind, as every table of it must say.

    >>> about({"protocol": "scaled", "scaled": ["trials: 5 instead of 20"],
    ...        "facts": {"data": "digits", "training_samples": 1437, "test_samples": 360}})
    'Data: digits (1,437 training, 360 test samples). Scaled: trials: 5 instead of 20.'
    >>> about({"protocol": "published", "cautions": ["all networks were still learning"]})
    'Published protocol, nothing scaled down. Mind: all networks were still learning.'
    """
    facts = summary.get("facts", {})
    counts = [
        f"{number(facts[name])} {said}"
        for name, said in (("training_samples", "training"), ("test_samples", "test samples"))
        if is_number(facts.get(name))
    ]
    amount = f" ({', '.join(counts)})" if counts else ""
    data = f"Data: {facts['data']}{amount}. " if facts.get("data") else ""
    cautions = "".join(f" Mind: {text}." for text in _texts(summary.get("cautions", [])))
    if summary["protocol"] == "published":
        return f"{data}Published protocol, nothing scaled down.{cautions}"
    scaled = "; ".join(_texts(summary.get("scaled", []))) or "not recorded"
    return f"{data}Scaled: {scaled}.{cautions}"


def _texts(changes: Iterable[object]) -> list[str]:
    return [str(change) for change in changes]
