"""Ellipsoids fitted to a labelled data set: the run around :mod:`.real`, trial by trial."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mahalens.data import LabelledData, load_set
from mahalens.data.catalogue import SETS
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.studies.ellipsoids.claims import DATA_CLAIMS
from mahalens.studies.ellipsoids.config import EllipsoidConfig
from mahalens.studies.ellipsoids.metrics import DATA_METRICS
from mahalens.studies.ellipsoids.real import RealTrial
from mahalens.studies.ellipsoids.real_options import TRAINING_SHARE, RealOptions, model_names
from mahalens.studies.ellipsoids.records import summarise, write_trials
from mahalens.studies.folder import SUMMARY, RunFolder
from mahalens.studies.running import Progress, Watcher

Numbers = dict[str, dict[str, float]]


def options_of(config: EllipsoidConfig) -> RealOptions:
    """What the trials are told."""
    return RealOptions(
        ranks=config.ranks,
        clusters=config.clusters,
        train_size=config.train_size,
        shrinkage=config.shrinkage,
        seed=config.seed,
        rivals=config.rivals,
    )


def check_data(config: EllipsoidConfig) -> None:
    """Ask for data that are there and fit what is asked of them."""
    data = _load(config)
    if (above := max(config.ranks)) > data.inputs:
        raise InputError(
            f"--ranks {above}: is more than the {data.inputs} inputs of {data.name}; give ranks of "
            "at most that"
        )
    RealTrial(data, options_of(config), 0)


def run_fitted(
    folder: RunFolder,
    config: EllipsoidConfig,
    watcher: Watcher,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Fit and measure what is not measured yet, and write the records."""
    data, options = _load(config), options_of(config)
    names = model_names(options, data.classes)
    watcher.note(f"data: {data.name}, {data.source}")
    report = watcher.stage("fitting")
    total = config.trials * len(names)
    report(Progress(0, total))
    began = time.perf_counter()
    trials: list[Numbers] = []
    for t in range(config.trials):
        numbers = _saved(folder, t, names)
        if numbers is None:
            trial, numbers = RealTrial(data, options, t), {}
            for name in names:
                numbers[name] = trial.measure(name)
                report(Progress(t * len(names) + len(numbers), total, name))
                if should_stop is not None and should_stop():
                    raise Interrupted("stopped by the user")
            _save(folder, t, numbers)
        trials.append(numbers)
        report(Progress((t + 1) * len(names), total, f"trial {t}"))
    _write(folder, config, data, names, trials, time.perf_counter() - began)


def _write(
    folder: RunFolder,
    config: EllipsoidConfig,
    data: LabelledData,
    names: list[str],
    trials: list[Numbers],
    seconds: float,
) -> None:
    by_model = {name: [numbers[name] for numbers in trials] for name in names}
    statuses = {name: ["done"] * len(trials) for name in names}
    write_trials(folder, by_model, statuses, list(DATA_METRICS))
    facts = {
        "data": data.source,
        "classes": data.classes,
        "inputs": data.inputs,
        "training_samples": config.train_size or round(TRAINING_SHARE * len(data.y)),
        "test_samples": len(data.test_y),
        "seconds": seconds,
    }
    each = {
        name: math.fsum(n["fit_seconds"] + n["score_seconds"] for n in numbers)
        for name, numbers in by_model.items()
    }
    summary = summarise(
        folder.config.protocol,
        by_model,
        statuses,
        facts=facts,
        group={"data": data.name},
        seconds=each,
        primary="error_density",
        claims=DATA_CLAIMS,
        published=lambda metric, model: None,
    )
    folder.write_json(SUMMARY, summary)


def _load(config: EllipsoidConfig) -> LabelledData:
    assert config.data is not None
    return load_set(config.data if config.data in SETS else Path(config.data))


def _save(folder: RunFolder, trial: int, numbers: Numbers) -> None:
    rows = [[one[name] for name in DATA_METRICS] for one in numbers.values()]
    path = folder.checkpoint(f"trial-{trial}").relative_to(folder.path)
    folder.write_tensors(str(path), {"numbers": torch.tensor(rows, dtype=torch.float64)})


def _saved(folder: RunFolder, trial: int, names: list[str]) -> Numbers | None:
    path = folder.checkpoint(f"trial-{trial}")
    if not path.exists():
        return None
    rows = folder.read_tensors(path).get("numbers", torch.empty(0)).tolist()
    if len(rows) != len(names) or any(len(row) != len(DATA_METRICS) for row in rows):
        raise RunFolderError(f"{path}: does not fit this run; delete it to measure the trial again")
    return {
        n: dict(zip(DATA_METRICS, row, strict=True)) for n, row in zip(names, rows, strict=True)
    }
