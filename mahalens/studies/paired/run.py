"""Runs a paired study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from mahalens.studies.folder import RunFolder
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.records import write_records
from mahalens.studies.paired.study import C, PairedStudy
from mahalens.studies.paired.workers import Stop, check_workers, compute_all, result_file
from mahalens.studies.running import (
    Progress,
    Watcher,
    compare_engines,
    compare_inputs,
    compare_versions,
    engine_here,
    fingerprints,
    input_files,
    run_config,
)


class Start(Protocol):
    """Begins a run."""

    def __call__(
        self, config: C, out: Path, *, force: bool = False, command: str = ""
    ) -> RunFolder:
        """Check everything a run needs and make its folder; nothing is written before that."""


class CarryOn(Protocol):
    """Finishes a run."""

    def __call__(
        self,
        folder: RunFolder,
        watcher: Watcher,
        should_stop: Stop | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        """Compute what is not computed yet and write the records."""


def runner(study: PairedStudy[C]) -> tuple[Start, CarryOn]:
    """What the command line calls to begin a run of ``study`` and to finish it."""
    return partial(start, study), partial(carry_on, study)


def start(
    study: PairedStudy[C], config: C, out: Path, *, force: bool = False, command: str = ""
) -> RunFolder:
    """Check everything a run needs and make its folder; nothing is written before that."""
    study.check(config)
    inputs = fingerprints(input_files(study.reads(config)))
    record = run_config(study.name, config, command, threads=1, engine=engine_here(), inputs=inputs)
    return RunFolder.create(out, record, force=force)


def carry_on(
    study: PairedStudy[C],
    folder: RunFolder,
    watcher: Watcher,
    should_stop: Stop | None = None,
    *,
    workers: int | None = None,
) -> None:
    """Compute the jobs that have no result yet, in ``workers`` processes, and write the records."""
    config = folder.options(study.config)
    count = check_workers(workers)
    compare_versions(folder, watcher)
    compare_engines(folder, watcher)
    compare_inputs(folder, input_files(study.reads(config)), watcher)
    facts = study.check(config)
    for part, told in facts.items():
        watcher.note(
            f"data: {part}, {told['training_samples']:,} training and "
            f"{told['test_samples']:,} test samples ({told['source']})"
        )
    jobs = list(study.jobs(config))
    waiting = [job for job in jobs if not folder.has(folder.path / result_file(job))]
    report = watcher.stage("jobs")
    done = len(jobs) - len(waiting)
    report(Progress(done, len(jobs), f"in {count} processes"))
    options = msgspec.to_builtins(config)
    for job in compute_all(study.name, options, waiting, folder.path, count, should_stop):
        done += 1
        report(Progress(done, len(jobs), label(job)))
    results = [(job, folder.read_tensors(folder.path / result_file(job))) for job in jobs]
    write_records(study, config, folder, facts, results)
    folder.drop_checkpoints()


def label(job: Job) -> str:
    """A job for people.

    >>> label(Job("digits", "abs-50", 0, 5))
    'abs-50 on digits, trials 0 to 4'
    """
    last = job.first + job.count - 1
    trials = f"trial {last}" if job.count == 1 else f"trials {job.first} to {last}"
    return f"{job.work} on {job.part}, {trials}"
