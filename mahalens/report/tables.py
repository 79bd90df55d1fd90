"""Tables for the terminal: results, outcomes of the trials, and the ledger of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mahalens.report.about import about
from mahalens.report.catalogue import (
    VERDICT_SYMBOLS,
    MetricView,
    in_order,
    metric_view,
    metrics_of,
    model_label,
    models_in_order,
)
from mahalens.report.endings import statuses_line, trials_line
from mahalens.report.ledger import Statement, statements
from mahalens.report.numbers import (
    MISSING,
    anything,
    duration,
    is_number,
    number,
    with_interval,
)
from mahalens.report.part_tables import (
    comparisons_table,
    new_table,
    outcomes_by_part,
    results_by_part,
)
from mahalens.report.views import view_of

__all__ = ["claims_table", "comparisons_table", "outcomes_table", "results_table", "run_tables"]

MOST_COLUMNS = 5
"""With more models than this, a table has a line for each instead of a column."""
_VERDICT_STYLES = {"holds": "green", "fails": "red", "undecided": "yellow", "not measured": "dim"}


def run_tables(name: str, summary: Mapping[str, Any]) -> list[Table]:
    """All that is printed at the end of a run called ``name``, in order."""
    tables = [results_table(summary)]
    if summary.get("comparisons"):
        tables.append(comparisons_table(summary))
    return [*tables, outcomes_table(summary), claims_table([(name, summary)])]


def results_table(summary: Mapping[str, Any]) -> Table:
    """Each metric of each model: mean ± half-width of its 95 % interval, and what was published.

    ``summary`` is the content of ``summary.json``. Metrics without a finite value or published
    figure are left out. Of studies with more metrics than a table can hold, those that tell most.
    """
    if parts := view_of(str(summary["study"])).parts:
        return results_by_part(summary, parts)
    known = metrics_of(str(summary["study"]))
    rows = [r for r in summary["rows"] if is_number(r["mean"]) or is_number(r.get("published"))]
    models = models_in_order(row["model"] for row in rows)
    metrics = in_order((row["metric"] for row in rows), known)
    if len(models) > MOST_COLUMNS:
        return _models_table(rows, models, metrics, known)
    groups = list(dict.fromkeys(group_label(row) for row in rows))
    cells = {(group_label(row), row["metric"], row["model"]): row for row in rows}
    some = any(is_number(row.get("published")) for row in rows)
    told = "\nin brackets: the published mean" if some else ""
    table = new_table(f"Results: mean ± half-width of its 95 % interval{told}")
    if len(groups) > 1:
        table.add_column("group")
    table.add_column("metric", min_width=14)
    for model in models:
        table.add_column(Text(model_label(model)), justify="right")
    for group in groups:
        for metric in metrics:
            given = [cells.get((group, metric, model)) for model in models]
            if any(given):
                name = Text(metric_view(known, metric).label_with_unit)
                lead = [Text(group), name] if len(groups) > 1 else [name]
                table.add_row(*lead, *(_result(row) for row in given))
    return table


def _models_table(
    rows: list[Any], models: list[str], metrics: list[str], known: Mapping[str, MetricView]
) -> Table:
    """The same with a line per model, for studies that compare many."""
    cells = {(row["metric"], row["model"]): row for row in rows}
    some = any(is_number(row.get("published")) for row in rows)
    told = "\nin brackets: the published figure" if some else ""
    table = new_table(f"Results: mean ± half-width of its 95 % interval{told}")
    table.add_column("model")
    for metric in metrics:
        table.add_column(Text(metric_view(known, metric).label_with_unit), justify="right")
    for model in models:
        given = (_result(cells.get((metric, model))) for metric in metrics)
        table.add_row(Text(model_label(model)), *given)
    return table


def group_label(row: Mapping[str, Any]) -> str:
    """Which part of a study a row of the summary belongs to, such as ``dim 2, solver adam``."""
    return ", ".join(f"{key} {anything(value)}" for key, value in row.get("group", {}).items())


def _result(row: Mapping[str, Any] | None) -> Text:
    if row is None:
        return Text(MISSING, style="dim")
    text = Text(with_interval(row["mean"], row.get("ci95")))
    if is_number(row.get("published")):
        text.append(f"\n({number(row['published'])})", style="dim")
    return text


def outcomes_table(summary: Mapping[str, Any]) -> Table:
    """How the trials of each model ended, and which were lost to numbers that are not finite."""
    if parts := view_of(str(summary["study"])).parts:
        return outcomes_by_part(summary, parts)
    outcomes = {str(outcome["model"]): outcome for outcome in summary.get("outcomes", [])}
    table = new_table("Outcomes of the trials")
    table.add_column("model")
    table.add_column("trials", justify="right")
    table.add_column("how they ended")
    table.add_column("best trial", justify="right")
    table.add_column("time", justify="right")
    for model in models_in_order(outcomes):
        outcome = outcomes[model]
        ends = Text(statuses_line(outcome))
        if outcome.get("non_finite"):
            ends.append(f"\nnot finite: {trials_line(outcome['non_finite'])}", style="red")
        table.add_row(
            Text(model_label(model)),
            number(outcome["trials"]),
            ends,
            number(outcome.get("best_trial")),
            duration(outcome.get("seconds")),
        )
    return table


def claims_table(summaries_with_names: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The ledger of claims over one or several runs.

    Takes pairs of a run's name and its summary. Claims come in the order in which they are
    first met; a run that does not know a claim leaves its cell empty. A statement that was put
    to several parts of a run, as with raw and with normalised pixels, has all verdicts in one
    cell.
    """
    ledger: dict[str, dict[int, Statement]] = {}
    for column, (_, summary) in enumerate(summaries_with_names):
        for statement in statements(summary["claims"]):
            ledger.setdefault(statement.key, {})[column] = statement
    names = [name for name, _ in summaries_with_names]
    told = [
        about(summary) if len(names) == 1 else f"{name}: {about(summary)}"
        for name, summary in summaries_with_names
        if view_of(str(summary["study"])).parts
    ]
    table = new_table("Claims", *told)
    table.add_column("claim", min_width=24, ratio=3, overflow="fold")
    table.add_column("source")
    table.add_column("published", ratio=1)
    for name in names:
        # Wide enough for the longest verdict: a column that is squeezed out says nothing at all.
        table.add_column(Text(name), min_width=len("? not measured"), ratio=1)
    for given in ledger.values():
        first = next(iter(given.values()))
        said = Text(first.text)
        said.append(f"\n{first.key}", style="dim")
        cells = (_verdicts(given.get(column)) for column in range(len(names)))
        table.add_row(said, Text(first.source), _published(given, names), *cells)
    return table


def _published(given: Mapping[int, Statement], names: Sequence[str]) -> Text:
    """One figure if the runs agree on it, else each run's own (they differ in dimension, say)."""
    named: dict[str, list[str]] = {}
    for column, statement in given.items():
        for claim in statement.claims.values():
            runs = named.setdefault(anything(claim.get("published")), [])
            if names[column] not in runs:
                runs.append(names[column])
    if len(named) == 1:
        return Text(next(iter(named)))
    return Text("\n".join(f"{figure} ({', '.join(runs)})" for figure, runs in named.items()))


def _verdicts(statement: Statement | None) -> Text:
    if statement is None:
        return Text(MISSING, style="dim")
    cells = [_verdict(part, claim) for part, claim in statement.claims.items()]
    return Text("\n").join(cells)


def _verdict(part: str, claim: Mapping[str, Any]) -> Text:
    verdict = claim["verdict"]
    text = Text(f"{VERDICT_SYMBOLS[verdict]} {verdict}", style=_VERDICT_STYLES[verdict])
    if part:
        text = Text(f"{part}: ").append_text(text)
    if claim.get("measured") is not None:
        text.append(f"{', ' if part else chr(10)}{anything(claim['measured'])}", style="dim")
    return text
