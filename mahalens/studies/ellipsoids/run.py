"""Runs the ellipsoid study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from mahalens.errors import Interrupted
from mahalens.studies.ellipsoids.config import EllipsoidConfig
from mahalens.studies.ellipsoids.problem import Drawn, check_memory, draw
from mahalens.studies.ellipsoids.ranks import distance_errors
from mahalens.studies.ellipsoids.records import write_search_records
from mahalens.studies.ellipsoids.search import run_search
from mahalens.studies.folder import RunFolder
from mahalens.studies.running import (
    Progress,
    Watcher,
    compare_inputs,
    compare_versions,
    fingerprints,
    input_files,
    run_config,
)

Stop = Callable[[], bool]


def start(
    config: EllipsoidConfig, out: Path, *, force: bool = False, command: str = ""
) -> RunFolder:
    """Check everything a run needs and make its folder; nothing is written before that."""
    if config.data is None:
        check_memory(config)
    else:
        from mahalens.studies.ellipsoids.fitted import check_data

        check_data(config)
    files = input_files([config.data] if config.data else [])
    record = run_config("ellipsoids", config, command, inputs=fingerprints(files))
    return RunFolder.create(out, record, force=force)


def carry_on(folder: RunFolder, watcher: Watcher, should_stop: Stop | None = None) -> None:
    """Do what is not done yet and write the records."""
    config = folder.options(EllipsoidConfig)
    compare_versions(folder, watcher)
    compare_inputs(folder, input_files([config.data] if config.data else []), watcher)
    before = torch.get_num_threads()
    torch.set_num_threads(folder.config.threads)  # another number may round differently
    try:
        if config.data is None:
            _search(folder, config, watcher, should_stop)
        else:
            from mahalens.studies.ellipsoids.fitted import run_fitted

            run_fitted(folder, config, watcher, should_stop)
    finally:
        torch.set_num_threads(before)
    folder.drop_checkpoints()


def _search(
    folder: RunFolder, config: EllipsoidConfig, watcher: Watcher, should_stop: Stop | None
) -> None:
    began = time.perf_counter()
    drawn = _draw(config, watcher, should_stop)
    drawing = time.perf_counter() - began
    readings = [run_search(folder, drawn, m, watcher, should_stop) for m in config.models]
    watcher.note("measuring distances against rank")
    write_search_records(folder, drawn, readings, distance_errors(config), drawing)


def _draw(config: EllipsoidConfig, watcher: Watcher, should_stop: Stop | None) -> Drawn:
    report = watcher.stage("drawing")
    report(Progress(0, config.count))

    def each(done: int) -> None:
        report(Progress(done, config.count, "ellipsoids"))
        if should_stop is not None and should_stop():
            raise Interrupted("stopped by the user")

    return draw(config, each)
