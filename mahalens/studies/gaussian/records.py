"""From readings to the records of a run folder: tables, summary, arrays for the figures."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mahalens.auditing import chance_cosine
from mahalens.data import stream
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.folder import CURVES, PLOTS, SUMMARY, TRIALS, WEIGHTS, RunFolder
from mahalens.studies.gaussian.claims import CLAIMS
from mahalens.studies.gaussian.metrics import METRICS
from mahalens.studies.gaussian.problem import Problem
from mahalens.studies.gaussian.published import PUBLISHED, published_mean
from mahalens.studies.gaussian.reading import ModelReading
from mahalens.studies.rows import summary_row

GRID = 161
SHOWN_SAMPLES = 400


def write_records(folder: RunFolder, problem: Problem, readings: list[ModelReading]) -> None:
    """Write everything the report needs; the summary last, as it marks the run as finished."""
    for reading in readings:
        folder.write_tensors(
            f"{WEIGHTS}/{reading.model}.safetensors",
            reading.stack.tensors(),
            chain=str(reading.stack.chain),
        )
    columns = ("model", "trial", "status", "basin", "steps", *METRICS)
    folder.write_csv(TRIALS, columns, _trial_rows(readings))
    folder.write_csv(CURVES, ("model", "trial", "epoch", "train_mse"), _curve_rows(readings))
    folder.write_tensors(PLOTS, _plots(problem, readings))
    folder.write_json(SUMMARY, summarise(problem, readings, folder.config.protocol))


def summarise(problem: Problem, readings: list[ModelReading], protocol: str) -> dict[str, Any]:
    """The contents of ``summary.json``."""
    config = problem.config
    facts = _facts(problem, readings)
    evidence = Evidence(
        trials={
            (reading.model, name): np.array([m[name] for m in reading.metrics])
            for reading in readings
            for name in METRICS
        },
        facts=facts,
        basins={reading.model: reading.basins for reading in readings},
        published=lambda metric, model: published_mean(metric, model, config.dim),
    )
    return {
        "study": "gaussian",
        "protocol": protocol,
        "facts": facts,
        "outcomes": [_outcome(reading) for reading in readings],
        "rows": [_row(problem, reading, name) for reading in readings for name in METRICS],
        "claims": judge(CLAIMS, evidence),
    }


def _facts(problem: Problem, readings: list[ModelReading]) -> dict[str, Any]:
    gaussian, config = problem.gaussian, problem.config
    chance = chance_cosine(gaussian, generator=stream(config.seed, "chance"))
    methods = {reading.method for reading in readings} - {"analytic"}
    return {
        "dim": config.dim,
        "solver": config.solver,
        "method": ", ".join(sorted(methods)) or "none",
        "condition_number": float(gaussian.condition_number),
        "largest_eigenvalue": float(gaussian.eigenvalues[0]),
        "smallest_eigenvalue": float(gaussian.eigenvalues[-1]),
        "target_variance": float(problem.y.double().var(correction=0)),
        "row_cosine_chance": [chance.low, chance.high],
        "seconds": sum(reading.seconds for reading in readings),
    }


def _outcome(reading: ModelReading) -> dict[str, Any]:
    return {
        "model": reading.model,
        "trials": len(reading.statuses),
        "statuses": dict(Counter(reading.statuses)),
        "basins": dict(Counter(filter(None, reading.basins))),
        "non_finite": [t for t, status in enumerate(reading.statuses) if status == "non-finite"],
        "best_trial": reading.best,
        "seconds": reading.seconds,
    }


def _row(problem: Problem, reading: ModelReading, name: str) -> dict[str, Any]:
    figure = PUBLISHED.get((name, reading.model, problem.config.dim))
    return summary_row(
        {"dim": problem.config.dim, "solver": problem.config.solver},
        reading.model,
        name,
        [metrics[name] for metrics in reading.metrics],
        best=reading.best,
        published=None if figure is None else figure.mean,
        published_detail=None if figure is None else figure.detail(),
    )


def _trial_rows(readings: list[ModelReading]) -> list[list[Any]]:
    return [
        [
            reading.model,
            trial,
            reading.statuses[trial],
            reading.basins[trial],
            reading.steps[trial],
            *metrics.values(),
        ]
        for reading in readings
        for trial, metrics in enumerate(reading.metrics)
    ]


def _curve_rows(readings: list[ModelReading]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for reading in readings:
        if reading.curve is None:
            continue
        epochs, losses = reading.curve
        for trial, curve in enumerate(losses.T.tolist()):
            rows += [
                [reading.model, trial, epoch, loss]
                for epoch, loss in zip(epochs.tolist(), curve, strict=True)
                if math.isfinite(loss)
            ]
    return rows


def _plots(problem: Problem, readings: list[ModelReading]) -> dict[str, Tensor]:
    """Arrays behind the figures; models whose trials all failed have none."""
    arrays = {"eigenvalues/true": problem.gaussian.eigenvalues}
    plane = _plane(problem) if problem.config.dim == 2 else None
    if plane is not None:
        arrays |= plane
    for reading in readings:
        arrays[f"eigenvalues/{reading.model}/rows"] = reading.rows
        arrays[f"eigenvalues/{reading.model}/gram"] = reading.gram
        if reading.best is None:
            continue
        module = reading.stack[reading.best].double().cpu()
        x = problem.gaussian.sample(
            problem.config.test_samples, stream(problem.config.seed, "fit", reading.model)
        )
        with torch.no_grad():
            arrays[f"fit/{reading.model}/true"] = problem.gaussian.mahalanobis(x)
            arrays[f"fit/{reading.model}/learned"] = module(x)
            if plane is not None:
                points = torch.cartesian_prod(plane["plane/grid_y"], plane["plane/grid_x"])
                distance = module(points.flip(1)).reshape(GRID, GRID)
                arrays[f"plane/{reading.model}/distance"] = distance
                weight, bias = reading.stack.tensors().values()
                arrays[f"plane/{reading.model}/weight"] = weight[reading.best].double()
                arrays[f"plane/{reading.model}/bias"] = bias[reading.best].double()
    return arrays


def _plane(problem: Problem) -> dict[str, Tensor]:
    """A square around the mean that shows four spreads in every direction."""
    gaussian = problem.gaussian
    reach = 4 * gaussian.eigenvalues[0].sqrt()
    across = torch.linspace(-1, 1, GRID, dtype=torch.float64) * reach
    grid_x, grid_y = gaussian.mean[0] + across, gaussian.mean[1] + across
    points = torch.cartesian_prod(grid_y, grid_x).flip(1)
    return {
        "plane/mean": gaussian.mean,
        "plane/samples": problem.x[:SHOWN_SAMPLES].to("cpu", torch.float64),
        "plane/grid_x": grid_x,
        "plane/grid_y": grid_y,
        "plane/true": gaussian.mahalanobis(points).reshape(GRID, GRID),
    }
