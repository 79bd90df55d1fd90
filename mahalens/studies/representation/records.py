"""From the results of all groups to the records of a run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from mahalens.stats import compare_family
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.comparison_lines import flat
from mahalens.studies.folder import (
    COMPARISONS,
    CURVES,
    PLOTS,
    SUMMARY,
    TRIALS,
    WEIGHTS,
    RunFolder,
)
from mahalens.studies.representation.claims import CLAIMS, untrained
from mahalens.studies.representation.comparisons import families
from mahalens.studies.representation.events import write_events
from mahalens.studies.representation.metrics import METRICS
from mahalens.studies.representation.problem import Group, Problem, facts_of
from mahalens.studies.representation.published import published_figure
from mahalens.studies.representation.trained import PLOTTED, Trained, gather
from mahalens.studies.rows import summary_row
from mahalens.studies.still_learning import still_learning


def write_records(folder: RunFolder, problem: Problem, groups: Sequence[Group]) -> None:
    """Write everything the report needs; the summary last, as it marks the run as finished."""
    trained = gather(folder, problem, groups)
    for one in trained:
        file = f"{WEIGHTS}/{one.pixels}-{one.model}.safetensors"
        folder.write_tensors(file, one.stack.tensors(), chain=str(one.stack.chain))
    columns = ("model", "pixels", "trial", "status", "steps", *METRICS)
    folder.write_csv(TRIALS, columns, _trial_rows(trained))
    curve = ("model", "pixels", "trial", "epoch", "train_loss", "test_accuracy")
    folder.write_csv(CURVES, curve, _curve_rows(trained))
    compared = _compare(trained, problem)
    if compared:
        folder.write_csv(COMPARISONS, list(compared[0]), [list(c.values()) for c in compared])
    folder.write_tensors(PLOTS, _plots(trained))
    if problem.config.tensorboard:
        write_events(folder, trained)
    summary = summarise(problem, trained, compared, folder.config.protocol)
    told = {"scaled": folder.config.scaled, "cautions": _still_learning(trained)}
    folder.write_json(SUMMARY, summary | told)


def _still_learning(trained: list[Trained]) -> list[str]:
    """A warning if networks were still gaining when training ended: verdicts may change later."""
    done = [one for one in trained if one.best is not None]
    return still_learning({one.name: float(np.nanmean(one.metrics["late_gain"])) for one in done})


def summarise(
    problem: Problem, trained: list[Trained], compared: list[dict[str, Any]], protocol: str
) -> dict[str, Any]:
    """The contents of ``summary.json``."""
    config, data = problem.config, problem.data

    def published(metric: str, name: str) -> float | None:
        figure = published_figure(metric, name.split(" (")[0], data.name, config.epochs)
        return None if figure is None else figure.mean

    evidence = Evidence(
        trials={(one.name, metric): v for one in trained for metric, v in one.metrics.items()}
        | {
            (untrained(one.model, one.pixels), "dead_outputs"): one.metrics["dead_outputs_start"]
            for one in trained
        },
        facts={},
        published=published,
    )
    facts = facts_of(data, config.epochs, sum(one.seconds for one in trained))
    return {
        "study": "representation",
        "protocol": protocol,
        "facts": facts,
        "outcomes": [_outcome(one) for one in trained],
        "rows": [_row(problem, one, metric) for one in trained for metric in METRICS],
        "comparisons": compared,
        "claims": judge(CLAIMS, evidence),
    }


def _outcome(one: Trained) -> dict[str, Any]:
    return {
        "model": one.model,
        "group": {"pixels": one.pixels},
        "trials": len(one.statuses),
        "statuses": dict(Counter(one.statuses)),
        "non_finite": [t for t, status in enumerate(one.statuses) if status == "non-finite"],
        "best_trial": one.best,
        "seconds": one.seconds,
    }


def _row(problem: Problem, one: Trained, metric: str) -> dict[str, Any]:
    figure = published_figure(metric, one.model, problem.data.name, problem.config.epochs)
    return summary_row(
        {"pixels": one.pixels},
        one.model,
        metric,
        one.metrics[metric],
        best=one.best,
        published=None if figure is None else figure.mean,
        published_detail=None if figure is None else figure.detail(),
    )


def _compare(trained: list[Trained], problem: Problem) -> list[dict[str, Any]]:
    """All tests between models, family by family, as flat lines."""
    values = {one.name: one.metrics["test_accuracy"] for one in trained}
    lines: list[dict[str, Any]] = []
    for family, pairs in families(problem.config.models, problem.config.pixels).items():
        found = compare_family(values, pairs)
        lines += [{"family": family, "metric": "test_accuracy"} | flat(result) for result in found]
    return lines


def _trial_rows(trained: list[Trained]) -> list[list[Any]]:
    return [
        [
            *(one.model, one.pixels, trial, one.statuses[trial], int(one.tensors["steps"][trial])),
            *(float(values[trial]) for values in one.metrics.values()),
        ]
        for one in trained
        for trial in range(len(one.statuses))
    ]


def _curve_rows(trained: list[Trained]) -> list[list[Any]]:
    """Loss and accuracy side by side; an epoch may have one of them alone."""
    rows: list[list[Any]] = []
    for one in trained:
        loss_at = one.tensors["loss.epochs"].tolist()
        seen_at = one.tensors["accuracy.epochs"].tolist()
        for trial in range(len(one.statuses)):
            losses = dict(zip(loss_at, one.tensors["losses"][trial].tolist(), strict=True))
            seen = dict(zip(seen_at, one.tensors["accuracies"][trial].tolist(), strict=True))
            for epoch in sorted({*losses, *seen}):
                loss, accuracy = losses.get(epoch), seen.get(epoch)
                rows.append([one.model, one.pixels, trial, epoch, loss, accuracy])
    return rows


def _plots(trained: list[Trained]) -> dict[str, Tensor]:
    """Arrays behind the figures, under ``pixels/model/name``."""
    return {
        f"{one.pixels}/{one.model}/{name}": tensor
        for one in trained
        for name, tensor in one.tensors.items()
        if name in PLOTTED or name.startswith("latent.")
    }
