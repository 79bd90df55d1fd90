"""Claims, results and outcomes as the page shows them: every number as text."""

from __future__ import annotations

from typing import Any

from mahalens.report.catalogue import (
    VERDICT_SYMBOLS,
    VERDICTS,
    in_order,
    metric_view,
    metrics_of,
    model_colours,
    model_label,
    models_in_order,
    primary_metric,
)
from mahalens.report.endings import statuses_line, trials_line
from mahalens.report.numbers import anything, duration, interval, is_number, number
from mahalens.report.records import RunRecords
from mahalens.report.tables import group_label


def primary_of(records: RunRecords) -> str:
    """The metric by which the best trial of this run was chosen."""
    return primary_metric(records.study, (row["metric"] for row in records.summary["rows"]))


def claims_of(records: RunRecords) -> list[dict[str, str]]:
    """Every claim, those that fail first."""
    claims = sorted(records.summary["claims"], key=lambda c: VERDICTS.index(c["verdict"]))
    return [
        {
            "id": claim["id"],
            "source": claim["source"],
            "statement": claim["statement"],
            "verdict": claim["verdict"],
            "symbol": VERDICT_SYMBOLS[claim["verdict"]],
            "kind": claim["verdict"].replace(" ", "-"),
            "published": anything(claim.get("published")),
            "measured": anything(claim.get("measured")),
            "why": claim.get("why") or "",
        }
        for claim in claims
    ]


def results_of(records: RunRecords) -> list[dict[str, Any]]:
    """One block a metric (and group, where there are several), one line a model."""
    known = metrics_of(records.study)
    rows = records.summary["rows"]
    colours = model_colours((row["model"] for row in rows), records.study)
    groups = list(dict.fromkeys(group_label(row) for row in rows))
    blocks = []
    for group in groups:
        own = [row for row in rows if group_label(row) == group]
        for name in in_order((row["metric"] for row in own), known):
            metric = metric_view(known, name)
            lines = {row["model"]: row for row in own if row["metric"] == name}
            if not any(
                is_number(r["mean"]) or is_number(r.get("published")) for r in lines.values()
            ):
                lines = {}
            blocks.append(
                {
                    "label": metric.label_with_unit,
                    "group": group if len(groups) > 1 else "",
                    "explanation": f"{metric.explanation} {metric.direction}".strip(),
                    "lines": [
                        _result_line(
                            model_label(model, records.study), lines[model], colours[model]
                        )
                        for model in models_in_order(lines, records.study)
                    ],
                }
            )
    return blocks


def _result_line(label: str, row: dict[str, Any], colour: str) -> dict[str, Any]:
    detail = row.get("published_detail") or {}
    return {
        "model": label,
        "colour": colour,
        "empty": not is_number(row["mean"]),
        "mean": number(row["mean"]),
        "sd": number(row.get("std")),
        "interval": interval(row.get("ci95")),
        "min": number(row.get("min")),
        "max": number(row.get("max")),
        "best": number(row.get("best")),
        "n": number(row["n"]),
        "published": number(row.get("published")),
        "published_detail": [f"{name} {number(v)}" for name, v in detail.items() if is_number(v)],
    }


def outcomes_of(records: RunRecords) -> list[dict[str, Any]]:
    """One line a model."""
    colours = model_colours(records.outcomes, records.study)
    primary = primary_of(records)
    lines = []
    for model in models_in_order(records.outcomes, records.study):
        outcome = records.outcomes[model]
        lost = outcome.get("non_finite") or []
        lines.append(
            {
                "model": model_label(model, records.study),
                "colour": colours[model],
                "trials": number(outcome["trials"]),
                "statuses": statuses_line(outcome),
                "tells": statuses_line(outcome) not in ("1 analytic", f"{outcome['trials']} done"),
                "lost": trials_line(lost) if lost else "none",
                "best": number(outcome.get("best_trial")),
                "best_value": number(records.row(model, primary).get("best")),
                "time": duration(outcome.get("seconds")),
            }
        )
    return lines
