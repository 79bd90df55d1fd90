"""Makes the tables of README.md and of docs/results from run folders.

    python docs/results.py [--readme | --draws | --claims | --models] RUN...

Prints Markdown: for each run its command, versions, outcomes, figures beside the published ones
and claims. With ``--readme``, one line per published figure, with a column per run. With
``--draws``, one line per run: how MD_Abs fares on its draw of the Gaussian. With ``--claims``, one
line per claim with the verdict of each run. With ``--models``, for studies that compare many models
(ellipsoids): for each run its command, a line per model with a column per metric, and its claims.
Nothing in those tables is typed by hand.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mahalens.report.catalogue import (
    in_order,
    metric_view,
    metrics_of,
    model_label,
    models_in_order,
)
from mahalens.report.numbers import interval, is_number, number, with_interval
from mahalens.report.records import RunRecords, load_run
from mahalens.report.tables import statuses_line


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--readme", dest="form", action="store_const", const=readme_table)
    form.add_argument("--draws", dest="form", action="store_const", const=draws_table)
    form.add_argument("--claims", dest="form", action="store_const", const=claims_table)
    form.add_argument("--models", dest="form", action="store_const", const=models_page)
    parser.set_defaults(form=results_page)
    arguments = parser.parse_args()
    lines = arguments.form([load_run(folder) for folder in arguments.runs])
    sys.stdout.write("\n".join(lines) + "\n")


def title(run: RunRecords) -> str:
    """Dimension, solver and seed of a run."""
    options = run.config["options"]
    return f"{options['dim']}-D, {options['solver'].capitalize()}, seed {options['seed']}"


def readme_table(runs: list[RunRecords]) -> list[str]:
    """One line per published figure: ours, theirs, and what explains the difference."""
    known = metrics_of("gaussian")
    head = [f"{run.config['options']['dim']}-D" for run in runs]
    lines = [
        "| | model | " + " | ".join(f"{d} here | published | differs by" for d in head) + " |",
        "|---|---|" + "---:|---:|---|" * len(runs),
    ]
    order = [
        (metric, model) for metric in known for model in ("abs", "relu", "sigmoid", "ground-truth")
    ]
    for metric, model in order:
        rows = [run.row(model, metric) for run in runs]
        if not any(row and is_number(row["published"]) for row in rows):
            continue
        cells = []
        for run, row in zip(runs, rows, strict=True):
            cells += [with_interval(row["mean"], row["ci95"]), number(row["published"])]
            cells.append(_difference(run, row))
        label = metric_view(known, metric).label
        lines.append(f"| {label} | {model_label(model)} | " + " | ".join(cells) + " |")
    for model in ("abs", "relu"):
        cells = []
        for run in runs:
            basins = run.outcomes[model]["basins"]
            text = ", ".join(f"{count} {basin}" for basin, count in sorted(basins.items()))
            cells += [text, "–", ""]
        lines.append(f"| Trials lie at | {model_label(model)} | " + " | ".join(cells) + " |")
    return lines


def _difference(run: RunRecords, row: dict[str, Any]) -> str:
    """Letters for what may explain a difference from the published mean.

    Nothing if the published mean lies in our 95 % interval. D: the draw of the Gaussian is another,
    which is always so. Measured in our run: L, trials at a local minimum; N, trials that have not
    arrived although the converging solver leads from them to the perfect fit.
    """
    low, high = row["ci95"] or (row["mean"], row["mean"])
    if low <= row["published"] <= high:
        return "–"
    letters = "D"
    if run.outcomes[row["model"]].get("basins", {}).get("local minimum"):
        letters += "L"
    losses = run.trials.of(row["model"], "train_mse").values()
    basins = run.outcomes[row["model"]].get("basins", {})
    arrived = sum(loss < 1e-3 * run.summary["facts"]["target_variance"] for loss in losses)
    if arrived < basins.get("zero residual", 0):
        letters += "N"
    return letters


def draws_table(runs: list[RunRecords]) -> list[str]:
    """How MD_Abs fares on each draw, ordered by condition number."""
    lines = [
        "| seed | condition number of Σ | training MSE, mean | min to max | sphericity norm | "
        "trials lie at |",
        "|---:|---:|---:|---:|---:|---|",
    ]
    for run in sorted(runs, key=lambda run: float(run.summary["facts"]["condition_number"])):
        loss, shape = run.row("abs", "train_mse"), run.row("abs", "sphericity")
        cells = [
            number(run.config["seed"]),
            number(run.summary["facts"]["condition_number"]),
            with_interval(loss["mean"], loss["ci95"]),
            f"{number(loss['min'])} to {number(loss['max'])}",
            with_interval(shape["mean"], shape["ci95"]),
            ", ".join(f"{n} {basin}" for basin, n in run.outcomes["abs"]["basins"].items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def claims_table(runs: list[RunRecords]) -> list[str]:
    """The verdict on each claim in each run."""
    head = [f"{run.config['options']['dim']}-D {run.config['options']['solver']}" for run in runs]
    lines = [f"| claim | {' | '.join(head)} |", "|---|" + "---|" * len(runs)]
    verdicts = [{c["id"]: _word(c) for c in run.summary["claims"]} for run in runs]
    for claim in runs[0].summary["claims"]:
        cells = [verdict[claim["id"]] for verdict in verdicts]
        lines.append(f"| {claim['statement']} | {' | '.join(cells)} |")
    return lines


def models_page(runs: list[RunRecords]) -> list[str]:
    """For each run a line per model, mean and interval of every metric, and the claims."""
    lines: list[str] = []
    for run in runs:
        known = metrics_of(run.study)
        config = run.config
        names = in_order((row["metric"] for row in run.summary["rows"]), known)
        names = [n for n in names if n != "steps" or config["options"].get("solver") == "newton"]
        scaled = "; ".join(config["scaled"])
        heads = [metric_view(known, name).label_with_unit for name in names]
        lines += [
            f"    {config['command']}",
            "",
            f"mahalens {config['mahalens']}, torch {config['torch']}, threads: "
            f"{config['threads']}. Protocol: {config['protocol']}"
            f"{f' ({scaled})' if scaled else ''}. "
            f"{config['options']['trials']} trials, seed {config['seed']}.",
            "",
            f"| model | {' | '.join(heads)} |",
            "|---|" + "---:|" * len(heads),
        ]
        for model in models_in_order(row["model"] for row in run.summary["rows"]):
            cells = []
            for name in names:
                row = run.row(model, name)
                told = with_interval(row["mean"], row["ci95"])
                if is_number(row["published"]):
                    told += f" (published {number(row['published'])})"
                cells.append(told)
            lines.append(f"| {model_label(model)} | {' | '.join(cells)} |")
        lines += ["", "| claim | published | verdict | why |", "|---|---|---|---|"]
        for claim in run.summary["claims"]:
            told = claim["published"] or "–"
            lines.append(f"| {claim['statement']} | {told} | {_word(claim)} | {claim['why']} |")
        lines.append("")
    return lines[:-1]


def _word(claim: dict[str, Any]) -> str:
    return "–" if claim["verdict"] == "not measured" else str(claim["verdict"])


def results_page(runs: list[RunRecords]) -> list[str]:
    """Everything about each run."""
    lines: list[str] = []
    for run in runs:
        lines += [f"## {title(run)}", "", *_about(run), "", *_outcomes(run), ""]
        lines += [*_figures(run), "", *_claims(run), ""]
    return lines[:-1]


def _about(run: RunRecords) -> list[str]:
    config, facts = run.config, run.summary["facts"]
    scaled = "; ".join(config["scaled"])
    return [
        f"    {config['command']}",
        "",
        f"mahalens {config['mahalens']}, torch {config['torch']}, threads: {config['threads']}, "
        f"engine: {config.get('engine', 'torch')}, "
        f"{config['options']['dtype']}. Protocol: {config['protocol']}"
        + (f" ({scaled})" if scaled else "")
        + f". Condition number of this draw of Σ: {number(facts['condition_number'])}; variance of "
        f"the targets {number(facts['target_variance'])}; random rotations of the true whitening "
        f"score a row cosine of {interval(facts['row_cosine_chance'])}.",
    ]


def _outcomes(run: RunRecords) -> list[str]:
    return [
        f"- {model_label(model)}: {statuses_line(run.outcomes[model])}"
        for model in models_in_order(run.outcomes)
    ]


def _figures(run: RunRecords) -> list[str]:
    known = metrics_of(run.study)
    lines = [
        "| metric | model | mean | 95 % interval | sd | min | max | best trial | published |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for metric, view in known.items():
        for model in models_in_order(run.outcomes):
            row = run.row(model, metric)
            if not row or not is_number(row["mean"]):
                continue
            cells = [number(row[key]) for key in ("std", "min", "max", "best")]
            lines.append(
                f"| {view.label_with_unit} | {model_label(model)} | {number(row['mean'])} | "
                f"{interval(row['ci95'])} | {' | '.join(cells)} | {_published(row)} |"
            )
    return lines


def _published(row: dict[str, Any]) -> str:
    if not is_number(row["published"]):
        return "–"
    detail = ", ".join(f"{k} {number(v)}" for k, v in (row["published_detail"] or {}).items())
    return number(row["published"]) + (f" ({detail})" if detail else "")


def _claims(run: RunRecords) -> list[str]:
    measured = [claim for claim in run.summary["claims"] if _word(claim) != "–"]
    lines = [f"| {c['statement']} | **{_word(c)}** | {c['why']} |" for c in measured]
    return ["| claim | verdict | why |", "|---|---|---|", *lines]


if __name__ == "__main__":
    main()
