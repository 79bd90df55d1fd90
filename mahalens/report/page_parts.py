"""What the page shows of a run with parts: one ledger, results and tests part by part."""

from __future__ import annotations

from typing import Any

from mahalens.report.about import about
from mahalens.report.catalogue import VERDICT_SYMBOLS, model_label
from mahalens.report.comparisons import comparisons, explanation
from mahalens.report.figures.latent_data import latent_nodes
from mahalens.report.ledger import Statement, statements
from mahalens.report.level_table import levels_of
from mahalens.report.numbers import MISSING, anything, number
from mahalens.report.overview import overview
from mahalens.report.records import RunRecords
from mahalens.report.sections import outcomes_of, results_of
from mahalens.report.shown_table import shown_metrics, shown_of
from mahalens.report.views import Parts, view_of

_FEW = 24  # tests that can be shown without folding them away
_MANY = 30  # models that lost trials which the head of the page can name
_WIDE = 3  # columns of verdicts in words that fit beside the statements
_DENSE = 7  # columns of signs with a number beside each


def about_of(records: RunRecords, brief: bool = False) -> str:
    """What stands under every table: the data, and what was scaled down."""
    changes = [str(change) for change in records.config.get("scaled", [])]
    if view_of(records.study).parts:
        scaled = changes or records.summary.get("scaled", [])
        return about({**records.summary, "scaled": scaled}, brief)
    return f"Scaled run: {'; '.join(changes)}." if changes else ""


def by_parts(records: RunRecords) -> dict[str, Any] | None:
    """Ledger, results, outcomes, tests and moments of a run with parts; None for one without."""
    view = view_of(records.study).parts
    if view is None:
        return None
    parts = records.parts()
    tests = comparisons(records.summary)
    results = [_results(part, view, shown_metrics(records.summary)) for part in parts]
    return {
        "table": view.table,
        "model": view.model,
        "of_data": view.of_data,
        "ledger": ledger(records, view),
        "results": results,
        "published": any(part["published"] for part in results),
        "comparisons": tests,
        "few_comparisons": sum(len(pairs) for pairs in tests.values()) <= _FEW,
        "explanation": explanation(records.study),
        "tells": _tells(results),
        "moments": [table for part in parts for table in moments(part)],
    }


def _results(part: RunRecords, view: Parts, metrics: list[str]) -> dict[str, Any]:
    """What the page shows of one part: its table, all metrics, how the trials ended."""
    outcomes = outcomes_of(part)
    lines = overview(part.summary) if view.table == "overview" else []
    levels = levels_of(part.summary) if view.table == "levels" else None
    shown = shown_of(part.summary, metrics) if view.table == "shown" else None
    return {
        "title": part.title,
        "phrase": part.phrase,
        "about": about_of(part, brief=view.of_data),
        "lines": lines,
        "levels": levels,
        "shown": shown,
        "empty": not (lines or levels or (shown and shown.lines)),
        "published": any(line.published != MISSING for line in lines)
        or any(table is not None and table.published for table in (levels, shown)),
        "metrics": results_of(part),
        "outcomes": outcomes,
        "ends": _ends(part),
        "tells": [line for line in outcomes if line["tells"]],
    }


def _tells(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Models some of whose trials did not end as they should, and how; of many, how many."""
    found = [
        (f"{outcome['model']}, {part['phrase']}:", outcome["statuses"])
        for part in results
        for outcome in part["tells"]
    ]
    if len(found) <= _MANY:
        return found
    rest = f"and {len(found) - _MANY} more, told under the results"
    return [*found[:_MANY], ("", rest)]


def _ends(part: RunRecords) -> str:
    """How the trials of all models ended, in one sentence."""
    totals: dict[str, int] = {}
    for outcome in part.outcomes.values():
        for status, count in outcome["statuses"].items():
            totals[status] = totals.get(status, 0) + count
    every = sum(totals.values())
    if set(totals) == {"done"}:
        return f"All {number(every)} trials ran to their end."
    told = ", ".join(f"{number(count)} {status}" for status, count in totals.items())
    return f"{number(every)} trials: {told}."


def ledger(records: RunRecords, view: Parts) -> dict[str, Any]:
    """Statements with a verdict for each part the run has; of others, how many were not put.

    With many parts a verdict is a sign, with more of them one without its number; above the
    statements of a paired study stands how many hold, part by part. What such a study measured
    on no data set, as for models that were left out, stands apart.
    """
    every = statements(records.summary["claims"])
    unmeasured = [own for own in every if view.of_data and _unmeasured(own)]
    found = [own for own in every if own not in unmeasured]
    held = [part.part for part in records.parts()]
    put = [part for statement in found for part in statement.claims if part]
    columns = [part for part in held if part in put] if view.of_data else list(dict.fromkeys(put))
    columns = [part for part in columns if part in held]
    absent = [part for part in put if part not in held]
    names = ", ".join(view.short(part) if view.of_data else part for part in dict.fromkeys(absent))
    asked = names if view.of_data else f"{names} {view.by}"

    def cell(statement: Statement, part: str) -> dict[str, str] | None:
        claim = statement.claims.get(part)
        return None if claim is None else _cell(view.short(part) if part else "", claim)

    return {
        "columns": [view.short(part) if view.of_data else view.title(part) for part in columns],
        "compact": len(columns) > _WIDE,
        "dense": len(columns) > _DENSE,
        "absent": (
            f"{len(absent)} claims about {asked} were not measured: this run has none."
            if absent
            else ""
        ),
        "unmeasured": [statement.text for statement in unmeasured],
        "totals": [_totals(found, part) for part in columns] if view.of_data else [],
        "statements": [
            {
                "text": statement.text,
                "key": statement.key,
                "source": statement.source,
                "whole": cell(statement, ""),
                "cells": [cell(statement, part) for part in columns],
                "published": _published(statement),
            }
            for statement in found
            if "" in statement.claims or any(part in columns for part in statement.claims)
        ],
    }


def _unmeasured(statement: Statement) -> bool:
    return all(claim["verdict"] == "not measured" for claim in statement.claims.values())


def _totals(found: list[Statement], part: str) -> str:
    """How many of the claims put to a part hold."""
    states = [statement.claims[part]["verdict"] for statement in found if part in statement.claims]
    return f"{states.count('holds')} of {len(states)}"


def _published(statement: Statement) -> str:
    figures = (anything(claim.get("published")) for claim in statement.claims.values())
    return "; ".join(dict.fromkeys(figures))


def _cell(part: str, claim: Any) -> dict[str, str]:
    measured = claim.get("measured")
    verdict = str(claim["verdict"])
    return {
        "part": part,
        "verdict": verdict,
        "symbol": VERDICT_SYMBOLS[verdict],
        "kind": verdict.replace(" ", "-"),
        "measured": "" if measured is None else anything(measured),
        "why": str(claim.get("why") or ""),
    }


def moments(part: RunRecords) -> list[dict[str, Any]]:
    """Mean, variance and skewness of every class along the nodes of the latent figure."""
    return [
        {
            "title": f"{model_label(model, part.study)}, {part.phrase}",
            "nodes": [number(node) for node in data.nodes],
            "lines": [
                (str(label), [number(value) for node in of_class for value in node])
                for label, of_class in enumerate(data.moments.transpose(1, 0, 2).tolist())
            ],
        }
        for model, data in latent_nodes(part).items()
    ]
