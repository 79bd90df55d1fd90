"""What the page shows of a run with parts: one ledger, results and tests part by part."""

from __future__ import annotations

from typing import Any

from mahalens.report.catalogue import VERDICT_SYMBOLS, model_label
from mahalens.report.comparisons import EXPLANATION, comparisons
from mahalens.report.figures.latent_data import latent_nodes
from mahalens.report.ledger import Statement, state_of, statements
from mahalens.report.level_table import levels_of
from mahalens.report.networks import STUDIES
from mahalens.report.numbers import MISSING, anything, number
from mahalens.report.overview import about, overview, part_of
from mahalens.report.records import RunRecords
from mahalens.report.sections import outcomes_of, results_of

_FEW = 24  # tests that can be shown without folding them away


def about_of(records: RunRecords) -> str:
    """What stands under every table: the data, and what was scaled down."""
    changes = [str(change) for change in records.config.get("scaled", [])]
    if records.study in STUDIES:
        return about({**records.summary, "scaled": changes or records.summary.get("scaled", [])})
    return f"Scaled run: {'; '.join(changes)}." if changes else ""


def by_parts(records: RunRecords) -> dict[str, Any] | None:
    """Ledger, results, outcomes, tests and moments of a run with parts; None for one without."""
    if records.study not in STUDIES:
        return None
    parts = records.parts()
    tests = comparisons(records.summary)
    results = []
    published = False
    for part in parts:
        entries = [*part.summary["rows"], *part.summary["outcomes"]]
        outcomes = outcomes_of(part)
        lines = overview(part.summary, part_of(entries[0]) if entries else "")
        levels = levels_of(part.summary) if records.study == "perturbation" else None
        published |= any(line.published != MISSING for line in lines)
        published |= levels is not None and levels.published
        results.append(
            {
                "title": part.title,
                "lines": [] if levels else lines,
                "levels": levels,
                "metrics": results_of(part),
                "outcomes": outcomes,
                "ends": _ends(part),
                "tells": [line for line in outcomes if line["tells"]],
            }
        )
    return {
        "ledger": ledger(records),
        "results": results,
        "published": published,
        "comparisons": tests,
        "few_comparisons": sum(len(pairs) for pairs in tests.values()) <= _FEW,
        "explanation": EXPLANATION,
        "moments": [table for part in parts for table in moments(part)],
    }


def _ends(part: RunRecords) -> str:
    """How the trials of all networks ended, in one sentence."""
    totals: dict[str, int] = {}
    for outcome in part.outcomes.values():
        for status, count in outcome["statuses"].items():
            totals[status] = totals.get(status, 0) + count
    every = sum(totals.values())
    if set(totals) == {"done"}:
        return f"All {number(every)} trials ran to their last epoch."
    told = ", ".join(f"{number(count)} {status}" for status, count in totals.items())
    return f"{number(every)} trials: {told}."


def ledger(records: RunRecords) -> dict[str, Any]:
    """Statements with a verdict for each part the run has; of others, how many were not put."""
    found = statements(records.summary["claims"])
    held = [part.title.split(" ")[0].lower() for part in records.parts()]
    put = [part for statement in found for part in statement.claims if part]
    columns = [part for part in dict.fromkeys(put) if part in held]
    absent = [part for part in put if part not in held]
    return {
        "columns": columns,
        "absent": (
            f"{len(absent)} claims about {', '.join(dict.fromkeys(absent))} pixels were not "
            "measured: this run has none."
            if absent
            else ""
        ),
        "statements": [
            {
                "text": statement.text,
                "key": statement.key,
                "source": statement.source,
                "whole": _cell("", statement.claims[""]) if "" in statement.claims else None,
                "cells": [
                    _cell(part, statement.claims[part]) if part in statement.claims else None
                    for part in columns
                ],
                "published": _published(statement),
            }
            for statement in found
            if "" in statement.claims or any(part in columns for part in statement.claims)
        ],
    }


def _published(statement: Statement) -> str:
    figures = (anything(claim.get("published")) for claim in statement.claims.values())
    return "; ".join(dict.fromkeys(figures))


def _cell(part: str, claim: Any) -> dict[str, str]:
    measured = claim.get("measured")
    return {
        "part": part,
        "verdict": state_of(claim),
        "symbol": VERDICT_SYMBOLS[claim["verdict"]],
        "kind": str(claim["verdict"]).replace(" ", "-"),
        "measured": "" if measured is None else anything(measured),
        "why": str(claim.get("why") or ""),
    }


def moments(part: RunRecords) -> list[dict[str, Any]]:
    """Mean, variance and skewness of every class along the nodes of the latent figure."""
    return [
        {
            "title": f"{model_label(model, part.study)}, {part.title.lower()}",
            "nodes": [number(node) for node in data.nodes],
            "lines": [
                (str(label), [number(value) for node in of_class for value in node])
                for label, of_class in enumerate(data.moments.transpose(1, 0, 2).tolist())
            ],
        }
        for model, data in latent_nodes(part).items()
    ]
