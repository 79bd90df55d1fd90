"""Makes the tables for the documents of paired studies from run folders.

    python docs/paired_results.py [--tests] RUN...

Prints Markdown: for each run its command and versions, the means of the models on every data set,
and the claims with the verdict for each data set; with ``--tests`` also the tests between models.
Nothing in those tables is typed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from result_lines import claims, head, print_runs, table

from mahalens.report.about import data_line
from mahalens.report.comparisons import comparisons
from mahalens.report.numbers import MISSING, number
from mahalens.report.parts import parts_of
from mahalens.report.records import RunRecords
from mahalens.report.shown_table import Cell, shown_metrics, shown_of


def main() -> None:
    """Print the tables."""
    print_runs(__doc__, page, tests="also the tests between models")


def page(run: RunRecords, tests: bool = False) -> list[str]:
    """All that a document shows of a run."""
    summary = run.summary
    trials = max((outcome["trials"] for outcome in summary["outcomes"]), default=0)
    epochs = summary["facts"].get("epochs")
    told = [data_line(summary), f"{number(epochs)} epochs" if epochs else "", f"{trials} trials"]
    lines = head(run, ", ".join(text for text in told if text))
    for caution in summary.get("cautions", []):
        lines += [f"Mind: {caution}.", ""]
    parts = parts_of(summary)
    found = [shown_of(part.summary, shown_metrics(summary)) for part in parts]
    published = "; in brackets: the published mean" if any(own.published for own in found) else ""
    lines += [
        "Means over the trials ± half-width of the 95 % interval; bold: the best of its column"
        f"{published}.",
        "",
    ]
    for part, own in zip(parts, found, strict=True):
        named = [part.title, *(metric.label_with_unit for metric in own.metrics)]
        lines += table(named, ([line.label, *map(_cell, line.cells)] for line in own.lines))
    if tests and summary.get("comparisons"):
        lines += _tests(run)
    columns = {part.name: part.title for part in parts}
    return lines + claims(run, columns, source=True, whole="(one verdict for all)")


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    return cell.text.replace(cell.mean, f"**{cell.mean}**", 1) if cell.best else cell.text


def _tests(run: RunRecords) -> list[str]:
    """The tests between models, those that are significant in bold."""

    def lines() -> Iterator[list[str]]:
        for title, pairs in comparisons(run.summary).items():
            for pair in pairs:
                p = f"**{pair.lean_p}**" if pair.significant else pair.lean_p
                difference = f"{pair.difference} ({pair.difference_interval})"
                yield [title, pair.pair, difference, p, pair.lean_on, pair.effect]

    named = ("tested", "pair", "difference (95 % interval)", "Holm p", "test", "Cohen's d")
    return [
        "Differences over the shared trials, first minus second, in points where the metric is a "
        "percentage; p by the test to lean on, with Holm's correction over the pairs of a data set "
        "and metric; bold: below 0.05.",
        "",
        *table(named, lines()),
    ]


if __name__ == "__main__":
    main()
