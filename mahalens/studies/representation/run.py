"""Runs the representation study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from mahalens.console import minutes
from mahalens.errors import InputError
from mahalens.studies.folder import RunFolder
from mahalens.studies.representation.cluster import check_scheduler, run_on_cluster
from mahalens.studies.representation.config import ENGINES, RepresentationConfig
from mahalens.studies.representation.costs import Costs, estimate, measure_costs, within_budget
from mahalens.studies.representation.local import run_locally
from mahalens.studies.representation.problem import Problem
from mahalens.studies.representation.records import write_records
from mahalens.studies.running import (
    Watcher,
    compare_engines,
    compare_inputs,
    compare_versions,
    engine_here,
    fingerprints,
    input_files,
    run_config,
)

Stop = Callable[[], bool]


def start(
    config: RepresentationConfig, out: Path, *, force: bool = False, command: str = ""
) -> RunFolder:
    """Check everything a run needs and make its folder; nothing is written before that."""
    speed = check_scheduler(config)
    problem = Problem.from_config(config)
    if config.budget is not None:
        config = within_budget(config, measure_costs(problem), len(problem.data.y), speed=speed)
    inputs = fingerprints(input_files([config.data]))
    record = run_config("representation", config, command, engine=engine_here(), inputs=inputs)
    return RunFolder.create(out, record, force=force)


def carry_on(
    folder: RunFolder,
    watcher: Watcher,
    should_stop: Stop | None = None,
    *,
    engine: str | None = None,
    scheduler: str | None = None,
) -> None:
    """Train what is not trained yet, read all models and write the records.

    ``engine`` and ``scheduler`` say where, if not there where the run was begun; what the run
    records of itself stays as it is.
    """
    config = folder.options(RepresentationConfig)
    place = _placed(config, engine, scheduler)
    check_scheduler(place)
    compare_versions(folder, watcher)
    compare_engines(folder, watcher)
    compare_inputs(folder, input_files([config.data]), watcher)
    problem = Problem.from_config(config)
    data = problem.data
    watcher.note(
        f"data: {data.name}, {len(data.y):,} training and {len(data.test_y):,} test samples "
        f"({data.source})"
    )
    groups = problem.groups()
    watcher.note("timing a few epochs of each model")
    costs = measure_costs(problem, should_stop, watcher.note)
    _tell(problem, costs, watcher)
    passes = engine_here() if folder.config.engine == "compiled" else "torch"
    work = (folder, problem, groups, costs, watcher, should_stop)
    if place.engine == "dask":
        run_on_cluster(*work, engine=passes, scheduler=place.scheduler)
    else:
        run_locally(*work, engine=passes)
    watcher.note("comparing the models")
    write_records(folder, problem, groups)
    folder.drop_checkpoints()


def _placed(
    config: RepresentationConfig, engine: str | None, scheduler: str | None
) -> RepresentationConfig:
    """The configuration with another place to compute; a new engine forgets the old scheduler."""
    config = msgspec.structs.replace(config, budget=None)  # it was kept when the run was begun
    if engine is None and scheduler is None:
        return config
    if engine is not None and engine not in ENGINES:
        raise InputError(f"--engine {engine}: unknown; known: {', '.join(ENGINES)}")
    return msgspec.structs.replace(config, engine=engine or config.engine, scheduler=scheduler)


def _tell(problem: Problem, costs: Costs, watcher: Watcher) -> None:
    config = problem.config
    seconds = estimate(config, costs, len(problem.data.y))
    watcher.note(
        f"{len(config.models)} models, pixels {' and '.join(config.pixels)}, {config.trials} "
        f"trials, {config.epochs:,} epochs: about {minutes(seconds)} by a few timed epochs"
    )
    for change in config.shortened:
        watcher.note(change)
