"""Makes the tables of docs/results/representation.md from run folders.

    python docs/representation_results.py RUN...

Prints Markdown: for each run its command and versions, accuracy beside the published figures, dead
outputs and centres, the tests between models, and the claims with the verdict for each kind of
pixels. Nothing in those tables is typed by hand.
"""

from __future__ import annotations

from typing import Any

from result_lines import claims, head, print_runs

from mahalens.report.numbers import is_number, number
from mahalens.report.records import RunRecords

PIXELS = ("normalized", "raw")


def main() -> None:
    """Print the tables."""
    print_runs(__doc__, _page)


def _page(run: RunRecords) -> list[str]:
    facts, summary = run.summary["facts"], run.summary
    told = (
        f"{facts['training_samples']:,} training samples of {facts['data']}, "
        f"{facts['epochs']:,} epochs"
    )
    columns = {way: way for way in PIXELS}
    return [
        *head(run, told),
        *_accuracy(summary),
        *_readings(summary),
        *_tests(summary),
        *claims(run, columns, source=False),
    ]


def _cells(summary: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(r["model"], r["group"]["pixels"], r["metric"]): r for r in summary["rows"]}


def _models(summary: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in summary["rows"]))


def _with_sd(row: dict[str, Any] | None, places: int = 2) -> str:
    """Mean, standard deviation and the interval of the mean, as the paper gives the first two."""
    if row is None or not is_number(row["mean"]):
        return "–"
    text = f"{row['mean']:.{places}f}"
    if is_number(row.get("std")):
        low, high = row["ci95"]
        text += f" ± {row['std']:.{places}f} ({low:.{places}f} to {high:.{places}f})"
    return text


def _accuracy(summary: dict[str, Any]) -> list[str]:
    cells = _cells(summary)
    lines = [
        "Test accuracy in percent: mean ± standard deviation over trials (95 % interval of the "
        "mean).",
        "",
        "| model | normalized | raw | published |",
        "|---|---:|---:|---:|",
    ]
    for model in _models(summary):
        rows = [cells.get((model, way, "test_accuracy")) for way in PIXELS]
        given = next((row for row in rows if row and is_number(row["published"])), None)
        told = "–"
        if given is not None:
            detail = given["published_detail"] or {}
            told = f"{given['published']:.2f} ± {detail.get('std', 0):.2f}"
        lines.append(f"| {model} | {_with_sd(rows[0])} | {_with_sd(rows[1])} | {told} |")
    return [*lines, ""]


def _readings(summary: dict[str, Any]) -> list[str]:
    cells = _cells(summary)
    metrics = {
        "dead_outputs": "outputs never active, %",
        "rare1_outputs": "on < 1 %",
        "rare5_outputs": "on < 5 %",
        "silent_inputs": "inputs without an active output, %",
        "rare5_hidden": "hidden on < 5 %, %",
        "centre_ratio": "own / other centre",
        "late_gain": "last tenth, points",
    }
    lines = [
        "Means over trials, normalized / raw.",
        "",
        "| model | " + " | ".join(metrics.values()) + " |",
        "|---|" + "---:|" * len(metrics),
    ]
    for model in _models(summary):
        texts = []
        for metric in metrics:
            rows = [cells.get((model, way, metric)) for way in PIXELS]
            texts.append(" / ".join("–" if row is None else number(row["mean"]) for row in rows))
        lines.append(f"| {model} | " + " | ".join(texts) + " |")
    return [*lines, ""]


def _tests(summary: dict[str, Any]) -> list[str]:
    families: dict[str, list[dict[str, Any]]] = {}
    for line in summary["comparisons"]:
        families.setdefault(line["family"], []).append(line)
    lines = [
        "Differences of test accuracy over paired trials, in points; p with Holm's correction over "
        "the family, by the test to lean on.",
        "",
        "| pixels | pair | difference (95 % interval) | p | test | Welch p | Cohen's d |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for family, members in families.items():
        for line in members:
            low, high = line["difference_ci95_low"], line["difference_ci95_high"]
            ends = f" ({low:.2f} to {high:.2f})" if is_number(low) else ""
            difference = line["mean_difference"]
            shown = f"{difference:+.2f}{ends}" if is_number(difference) else "–"
            pair = " − ".join(line[side].replace(f" ({family})", "") for side in "ab")
            lines.append(
                f"| {family} | {pair} | {shown} | {number(line['holm_preferred'], 2)} | "
                f"{line['preferred_test'] or '–'} | {number(line['holm_welch'], 2)} | "
                f"{number(line['cohens_d'], 3)} |"
            )
    return [*lines, ""]


if __name__ == "__main__":
    main()
