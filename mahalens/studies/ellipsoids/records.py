"""From readings to the records of a run folder: tables, summary, arrays for the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mahalens.studies.claims import Claim, Evidence, judge
from mahalens.studies.ellipsoids.claims import CLAIMS
from mahalens.studies.ellipsoids.config import EllipsoidConfig
from mahalens.studies.ellipsoids.metrics import SEARCH_METRICS
from mahalens.studies.ellipsoids.problem import Drawn
from mahalens.studies.ellipsoids.published import DETAILS, published_figure
from mahalens.studies.ellipsoids.search import SearchReading
from mahalens.studies.folder import CURVES, PLOTS, SUMMARY, TRIALS, WEIGHTS, RunFolder
from mahalens.studies.rows import summary_row

Trials = Mapping[str, Sequence[Mapping[str, float]]]
"""Numbers by model, trial and metric."""


def write_search_records(
    folder: RunFolder,
    drawn: Drawn,
    readings: list[SearchReading],
    by_rank: dict[str, NDArray[np.float64]],
    drawing_seconds: float,
) -> None:
    """Write everything the report needs; the summary last, as it marks the run as finished."""
    config = drawn.config
    points = {"truth": drawn.truth, "start": drawn.start}
    folder.write_tensors(f"{WEIGHTS}/points.safetensors", points)
    for reading in readings:
        folder.write_tensors(f"{WEIGHTS}/{reading.model}.safetensors", {"x": reading.x})
    trials = {reading.model: _numbers(reading) for reading in readings}
    statuses = {reading.model: _statuses(config, reading) for reading in readings}
    write_trials(folder, trials, statuses, list(SEARCH_METRICS))
    folder.write_csv(CURVES, ("model", "trial", "step", "error"), _curve_rows(readings))
    folder.write_tensors(PLOTS, {name: torch.from_numpy(a) for name, a in by_rank.items()})
    facts = {
        "dim": config.dim,
        "count": config.count,
        "solver": config.solver,
        "drawing_seconds": drawing_seconds,
        "seconds": drawing_seconds + sum(float(r.all_seconds) for r in readings),
    }
    group = {"dim": config.dim, "count": config.count, "solver": config.solver}
    full_size = config.dim == 784 and config.count == 1024

    def published(metric: str, model: str) -> float | None:
        # The source's figures are those of its size; beside a smaller run they would mislead.
        return published_figure(metric, model) if full_size else None

    seconds = {reading.model: float(reading.all_seconds) for reading in readings}
    summary = summarise(
        folder.config.protocol,
        trials,
        statuses,
        facts=facts,
        group=group,
        seconds=seconds,
        primary="final_error",
        claims=CLAIMS,
        published=published,
    )
    folder.write_json(SUMMARY, summary)


def summarise(
    protocol: str,
    trials: Trials,
    statuses: Mapping[str, Sequence[str]],
    *,
    facts: Mapping[str, Any],
    group: Mapping[str, Any],
    seconds: Mapping[str, float],
    primary: str,
    claims: Sequence[Claim],
    published: Callable[[str, str], float | None],
) -> dict[str, Any]:
    """The contents of ``summary.json``; ``primary`` is the metric that says which trial is best."""
    metrics = list(next(iter(trials.values()))[0])
    columns = {
        (model, metric): np.array([trial[metric] for trial in rows], dtype=np.float64)
        for model, rows in trials.items()
        for metric in metrics
    }
    evidence = Evidence(trials=columns, facts=facts, published=published)
    best = {model: _best(columns[model, primary]) for model in trials}
    rows = []
    for (model, metric), values in columns.items():
        figure, detail = published(metric, model), DETAILS.get((metric, model))
        row = summary_row(
            group,
            model,
            metric,
            values,
            best=best[model],
            published=figure,
            published_detail=detail,
        )
        rows.append(row)
    outcomes = [
        {
            "model": model,
            "trials": len(statuses[model]),
            "statuses": dict(Counter(statuses[model])),
            "non_finite": [t for t, s in enumerate(statuses[model]) if s == "non-finite"],
            "best_trial": best[model],
            "seconds": seconds[model],
        }
        for model in trials
    ]
    return {
        "study": "ellipsoids",
        "protocol": protocol,
        "facts": facts,
        "outcomes": outcomes,
        "rows": rows,
        "claims": judge(claims, evidence),
    }


def write_trials(
    folder: RunFolder, trials: Trials, statuses: Mapping[str, Sequence[str]], metrics: list[str]
) -> None:
    """Write one row per model and trial."""
    rows = [
        [model, t, statuses[model][t], *(numbers[name] for name in metrics)]
        for model, several in trials.items()
        for t, numbers in enumerate(several)
    ]
    folder.write_csv(TRIALS, ("model", "trial", "status", *metrics), rows)


def _best(values: NDArray[np.float64]) -> int | None:
    return int(np.nanargmin(values)) if np.isfinite(values).any() else None


def _numbers(reading: SearchReading) -> list[dict[str, float]]:
    columns = {name: getattr(reading, name).double().tolist() for name in SEARCH_METRICS}
    return [{name: column[t] for name, column in columns.items()} for t in range(len(reading.x))]


def _statuses(config: EllipsoidConfig, reading: SearchReading) -> list[str]:
    found = []
    for error, converged in zip(
        reading.final_error.tolist(), reading.converged.tolist(), strict=True
    ):
        if not math.isfinite(error):
            found.append("non-finite")
        elif config.solver == "adam":
            found.append("done")
        else:
            found.append("converged" if converged else "not converged")
    return found


def _curve_rows(readings: list[SearchReading]) -> list[list[Any]]:
    return [
        [reading.model, trial, step, error]
        for reading in readings
        for trial, errors in enumerate(reading.curve_errors.T.tolist())
        for step, error in zip(reading.curve_steps.tolist(), errors, strict=True)
    ]
