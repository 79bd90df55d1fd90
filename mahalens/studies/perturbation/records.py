"""From trained and perturbed networks to the records of a run folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mahalens.auditing.perturbation import GRID_LEVELS
from mahalens.stats import summarise as summary_of
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.folder import LEVELS, PLOTS, SUMMARY, TRIALS, WEIGHTS, RunFolder
from mahalens.studies.perturbation.claims import CLAIMS
from mahalens.studies.perturbation.config import PerturbationConfig
from mahalens.studies.perturbation.measured import Floats, Measured, gather, published_of
from mahalens.studies.perturbation.metrics import METRICS
from mahalens.studies.perturbation.published import published_figure, published_levels
from mahalens.studies.representation.config import PIXELS
from mahalens.studies.representation.problem import Group, Problem, facts_of
from mahalens.studies.rows import summary_row
from mahalens.studies.still_learning import still_learning


def write_records(
    folder: RunFolder, config: PerturbationConfig, problem: Problem, groups: Sequence[Group]
) -> None:
    """Write everything the report needs; the summary last, as it marks the run as finished."""
    measured = gather(folder, problem, groups)
    data = problem.data.name
    for one in measured:
        file = f"{WEIGHTS}/{one.pixels}-{one.model}.safetensors"
        folder.write_tensors(file, one.stack.tensors(), chain=str(one.stack.chain))
    columns = ("model", "pixels", "trial", "status", "steps", *METRICS)
    folder.write_csv(TRIALS, columns, _trial_rows(measured, data))
    levels = ("model", "pixels", "trial", "kind", "level", "train", "test", "after")
    folder.write_csv(LEVELS, levels, _level_rows(measured))
    folder.write_tensors(PLOTS, _plots(measured, data))
    summary = summarise(config, problem, measured, folder.config.protocol)
    told = {"scaled": folder.config.scaled, "cautions": _cautions(measured)}
    folder.write_json(SUMMARY, summary | told)


def summarise(
    config: PerturbationConfig, problem: Problem, measured: list[Measured], protocol: str
) -> dict[str, Any]:
    """The contents of ``summary.json``."""
    data = problem.data
    evidence = Evidence(
        trials={key: values for one in measured for key, values in one.evidence(data.name)},
        facts={},
        published=published_of(data.name, tuple(PIXELS)),
    )
    seconds = sum(one.seconds for one in measured)
    facts = facts_of(data, config.epochs, seconds)
    facts["networks"] = config.networks or "trained here"
    return {
        "study": "perturbation",
        "protocol": protocol,
        "facts": facts,
        "outcomes": [_outcome(one) for one in measured],
        "rows": [row for one in measured for row in _rows(one, data.name)],
        "claims": judge(CLAIMS, evidence),
    }


def _outcome(one: Measured) -> dict[str, Any]:
    return {
        "model": one.model,
        "group": {"pixels": one.pixels},
        "trials": len(one.statuses),
        "statuses": dict(Counter(one.statuses)),
        "non_finite": [t for t, status in enumerate(one.statuses) if status == "non-finite"],
        "best_trial": one.best,
        "seconds": one.seconds,
    }


def _rows(one: Measured, data: str) -> Iterator[dict[str, Any]]:
    for metric, values in one.metrics(data).items():
        figure = published_figure(metric, one.model, data)
        yield summary_row(
            {"pixels": one.pixels},
            one.model,
            metric,
            values,
            best=one.best,
            published=None if figure is None else figure.mean,
            published_detail=None if figure is None else figure.detail(),
        )


def _cautions(measured: list[Measured]) -> list[str]:
    """A warning if networks were still gaining when training ended: verdicts may change later."""
    done = [one for one in measured if np.isfinite(one.late_gain).any()]
    return still_learning({one.name: float(np.nanmean(one.late_gain)) for one in done})


def _trial_rows(measured: list[Measured], data: str) -> Iterator[list[Any]]:
    for one in measured:
        columns = one.metrics(data)
        for trial, status in enumerate(one.statuses):
            yield [
                *(one.model, one.pixels, trial, status, one.steps[trial]),
                *(float(values[trial]) for values in columns.values()),
            ]


def _level_rows(measured: list[Measured]) -> Iterator[list[Any]]:
    for one in measured:
        for trial in range(len(one.statuses)):
            for kind, levels in GRID_LEVELS.items():
                for level in levels:
                    accuracies = (one.at(w, kind, level)[trial] for w in ("train", "test", "after"))
                    yield [one.model, one.pixels, trial, kind, level, *map(float, accuracies)]


def _plots(measured: list[Measured], data: str) -> dict[str, Tensor]:
    """Arrays behind the figures, under ``pixels/model/name``: mean and interval [3, L] by level."""
    found = {}
    for one in measured:
        start = f"{one.pixels}/{one.model}"
        for name, values in one.accuracies.items():
            what, kind = name.split("/")
            if kind != "unperturbed":
                found[f"{start}/{kind}.{what}"] = _bands(values)
        for kind, levels in GRID_LEVELS.items():
            found[f"{start}/{kind}.levels"] = torch.tensor(levels, dtype=torch.float64)
            known = published_levels(one.model, kind) if data == "mnist" else {}
            given = [known.get(level, float("nan")) for level in levels]
            found[f"{start}/{kind}.published"] = torch.tensor(given, dtype=torch.float64)
    return found


def _bands(values: Floats) -> Tensor:
    """Mean and ends of its 95 % interval at every level, from accuracies [T, L]."""
    found = []
    for summary in (summary_of(values[:, place]) for place in range(values.shape[1])):
        low, high = summary.ci95 or (math.nan, math.nan)
        found.append([summary.mean, low, high])
    return torch.tensor(found, dtype=torch.float64).T
