"""Makes the tables of docs/results/perturbation.md from run folders.

    python docs/perturbation_results.py RUN...

Prints Markdown: for each run its command and versions, accuracy at every level of the table beside
the published one, on training and test samples and after the activation function, and the claims
with the verdict for each kind of pixels. Nothing in those tables is typed by hand.
"""

from __future__ import annotations

from typing import Any

from result_lines import claims, head, print_runs

from mahalens.report.catalogue import model_label
from mahalens.report.numbers import is_number, number
from mahalens.report.records import RunRecords
from mahalens.studies.perturbation.levels import KINDS, TABLE, column, percent

PIXELS = ("raw", "normalized")


def main() -> None:
    """Print the tables."""
    print_runs(__doc__, _page)


def _page(run: RunRecords) -> list[str]:
    facts = run.summary["facts"]
    trials = max(outcome["trials"] for outcome in run.summary["outcomes"])
    told = (
        f"{facts['training_samples']:,} training samples of {facts['data']}, "
        f"{facts['epochs']:,} epochs, {trials} trials"
    )
    *lines, versions, blank = head(run, told)
    mind = "".join(f" Mind: {caution}." for caution in run.summary["cautions"])
    columns = {way: way for way in PIXELS}
    ledger = claims(run, columns, source=True)
    return [*lines, f"{versions}{mind}", blank, *_levels(run.summary), *ledger]


def _levels(summary: dict[str, Any]) -> list[str]:
    rows = {(r["group"]["pixels"], r["model"], r["metric"]): r for r in summary["rows"]}
    lines = [
        "Accuracy in percent, means over the trials (of training accuracy with the half-width of "
        "the 95 % interval). Training and test: perturbed before the activation function, as "
        "published; after: on the training samples, perturbed after it.",
        "",
    ]
    for pixels in PIXELS:
        for model in dict.fromkeys(model for way, model, _ in rows if way == pixels):
            lines += _network(rows, pixels, model)
    return lines


def _network(
    rows: dict[tuple[str, str, str], dict[str, Any]], pixels: str, model: str
) -> list[str]:
    lines = [
        f"| {model_label(model, 'perturbation')}, {pixels} pixels | training | published | test | "
        "after |",
        "|---|---:|---:|---:|---:|",
    ]

    def add(label: str, metric: str, test: str | None, after: str | None) -> None:
        row = rows[pixels, model, metric]
        others = [rows.get((pixels, model, name or "")) for name in (test, after)]
        cells = [_interval(row), _plain(row.get("published")), *(_mean(other) for other in others)]
        lines.append(f"| {label} | {' | '.join(cells)} |")

    add("unperturbed", "train_accuracy", "test_accuracy", None)
    for kind, levels in TABLE.items():
        for level in levels:
            name = column(kind, level)
            add(
                f"{KINDS[kind].lower()} {percent(kind, level)}",
                name,
                f"test_{name}",
                f"after_{name}",
            )
    add("reliance on distance (index)", "reliance", "reliance_test", "reliance_after")
    add("distance from the published table (points)", "misfit", None, "misfit_after")
    return [*lines, ""]


def _interval(row: dict[str, Any]) -> str:
    if not is_number(row["mean"]):
        return "–"
    half = f" ± {number((row['ci95'][1] - row['ci95'][0]) / 2, 2)}" if row["ci95"] else ""
    return f"{row['mean']:.2f}{half}"


def _mean(row: dict[str, Any] | None) -> str:
    return "–" if row is None else _plain(row["mean"])


def _plain(value: float | None) -> str:
    return f"{value:.2f}" if value is not None and is_number(value) else "–"


if __name__ == "__main__":
    main()
