"""Makes the tables of docs from run folders.

    python docs/results.py [--metrics] [--tests] RUN...
    python docs/results.py --readme | --draws | --claims RUN...

Prints Markdown: for each run its command, versions, results by variant and claims; with
``--metrics`` every metric with its spread, with ``--tests`` the tests between models. With
``--readme`` one line per published figure and a column per run, with ``--draws`` one line per run
(how MD_Abs fares on its draw of the Gaussian), with ``--claims`` the verdicts of all runs side by
side. Nothing in those tables is typed by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from mahalens.errors import RunFolderError
from mahalens.report.numbers import number
from mahalens.report.records import Row, RunRecords, load_runs
from mahalens.report.run_tables import (
    about,
    all_endings,
    claims_table,
    comparison_tables,
    metrics_tables,
    outcomes_table,
    results_tables,
)
from mahalens.report.tables import Cell, Column, Table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--metrics", action="store_true", help="also every metric")
    parser.add_argument("--tests", action="store_true", help="also the tests between models")
    form = parser.add_mutually_exclusive_group()
    for name, make in (("readme", readme), ("draws", draws), ("claims", claims)):
        form.add_argument(f"--{name}", dest="make", action="store_const", const=make)
    options = parser.parse_args()
    try:
        runs = load_runs(map(Path, options.runs))
    except RunFolderError as error:
        parser.error(str(error))
    if options.make is not None:
        print_lines([options.make(runs).markdown()])
        return
    for records in runs.values():
        print_lines(page(records, metrics=options.metrics, tests=options.tests))


def print_lines(lines: list[str]) -> None:
    """Write Markdown to the terminal."""
    sys.stdout.write("\n".join(lines) + "\n")


def page(records: RunRecords, *, metrics: bool = False, tests: bool = False) -> list[str]:
    """Return everything that a document shows of one run."""
    config = records.config
    lines = ["```sh", config.command, "```", ""]
    lines += [
        f"mahalens {config.mahalens}, torch {config.torch}, threads: {config.threads}, engine: "
        f"{config.engine}, seed {config.seed}. {about(records)} {all_endings(records)}",
        "",
    ]
    tables = results_tables(records)
    tables += metrics_tables(records) if metrics else []
    tables += comparison_tables(records) if tests else []
    tables += [outcomes_table(variant, only_odd=True) for variant in records.variants()]
    tables.append(reasons(records) if not records.study.variant else claims({"": records}))
    before: tuple[str, ...] = ()
    for table in filter(None, tables):
        if table.notes and table.notes != before and table.title != "Claims":
            lines += [" ".join(table.notes), ""]
        before = table.notes
        lines += [*([f"**{table.title}**", ""] if table.title else []), table.markdown(), ""]
    return lines


def claims(runs: dict[str, RunRecords]) -> Table:
    """Return the verdict on each claim in each run."""
    return claims_table(runs)


def reasons(records: RunRecords) -> Table:
    """Return each claim that a run measured, with its verdict and the numbers behind it."""
    lines = tuple(
        (Cell(claim.statement), Cell(claim.verdict, verdict=True), Cell(claim.why))
        for claim in records.summary.claims
        if claim.verdict != "not measured"
    )
    return Table("Claims", tuple(Column(head, True) for head in ("claim", "verdict", "why")), lines)


def readme(runs: dict[str, RunRecords]) -> Table:
    """Return one line per published figure: ours, theirs, and what explains the difference."""
    first = next(iter(runs.values()))
    columns = [Column("", True), Column("model", True)]
    for records in runs.values():
        columns += [Column(f"{records.config.options['dim']}-D here"), Column("published")]
        columns.append(Column("differs by", True))
    lines = []
    for metric, shown in first.study.metrics.items():
        for model in first.models():
            rows = [(records, records.row(model, metric)) for records in runs.values()]
            if any(row is not None and row.published is not None for _, row in rows):
                head = (Cell(shown.label), Cell(first.study.look(model).label))
                lines.append((*head, *(cell for pair in rows for cell in beside(*pair))))
    for model in ("abs", "relu"):
        cells = [cell for records in runs.values() for cell in (basins(records, model), "–", "")]
        head = (Cell("Trials lie at"), Cell(first.study.look(model).label))
        lines.append((*head, *map(Cell, cells)))
    return Table("", tuple(columns), tuple(lines))


def beside(records: RunRecords, row: Row | None) -> Iterator[Cell]:
    """Yield our mean, the published one, and letters for what may explain the difference.

    No letter if the published mean lies in our 95 % interval. D: the draw of the Gaussian is
    another, which is always so. Measured in our run: L, trials at a local minimum; N, trials that
    have not arrived although the converging solver leads from them to the perfect fit.
    """
    if row is None or row.mean is None or row.published is None:
        yield from map(Cell, (mean_of(row), "–", "–"))
        return
    low, high = row.interval or (row.mean, row.mean)
    outcome = records.outcome(row.model)
    ends = outcome.basins if outcome is not None else {}
    letters = "D" + "L" * ("local minimum" in ends)
    losses = records.values(row.model, "train_mse").values()
    variance = records.summary.facts["target_variance"]
    if sum(loss < 1e-3 * variance for loss in losses) < ends.get("zero residual", 0):
        letters += "N"
    inside = low <= row.published <= high
    yield from map(Cell, (mean_of(row), number(row.published), "–" if inside else letters))


def draws(runs: dict[str, RunRecords]) -> Table:
    """Return how MD_Abs fares on each draw, ordered by condition number."""
    heads = ("seed", "condition number of Σ", "training MSE, mean", "min to max", "sphericity norm")
    lines = []
    for records in sorted(runs.values(), key=condition):
        loss, shape = records.row("abs", "train_mse"), records.row("abs", "sphericity")
        ends = "–" if loss is None else f"{number(loss.min)} to {number(loss.max)}"
        head = (number(records.config.seed), number(condition(records)))
        cells = (*head, mean_of(loss), ends, mean_of(shape), basins(records, "abs"))
        lines.append(tuple(map(Cell, cells)))
    return Table("", (*map(Column, heads), Column("trials lie at", True)), tuple(lines))


def condition(records: RunRecords) -> float:
    """Return the condition number of a run's draw of Σ."""
    return float(records.summary.facts["condition_number"])


def basins(records: RunRecords, model: str) -> str:
    """Return where the trials of a model lie."""
    outcome = records.outcome(model)
    ends = sorted(outcome.basins.items()) if outcome is not None else []
    return ", ".join(f"{count} {basin}" for basin, count in ends)


def mean_of(row: Row | None) -> str:
    """Return a mean with the half-width of its interval."""
    if row is None or row.interval is None:
        return number(None if row is None else row.mean)
    return f"{number(row.mean)} ± {number((row.interval[1] - row.interval[0]) / 2, 2)}"


if __name__ == "__main__":
    main()
