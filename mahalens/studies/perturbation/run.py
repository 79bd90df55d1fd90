"""Runs the perturbation study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mahalens.console import minutes
from mahalens.errors import InputError, Interrupted
from mahalens.studies.folder import RunFolder
from mahalens.studies.perturbation.config import PerturbationConfig
from mahalens.studies.perturbation.measured import measured_file
from mahalens.studies.perturbation.measuring import measure
from mahalens.studies.perturbation.networks import network_files, read_networks
from mahalens.studies.perturbation.records import write_records
from mahalens.studies.representation.costs import estimate, measure_costs, within_budget
from mahalens.studies.representation.local import label, run_locally
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.studies.running import (
    Progress,
    Watcher,
    check_inputs,
    compare_engines,
    compare_inputs,
    compare_versions,
    engine_here,
    fingerprints,
    input_files,
    run_config,
)
from mahalens.train import TrialStack

Stop = Callable[[], bool]


def start(
    config: PerturbationConfig, out: Path, *, force: bool = False, command: str = ""
) -> RunFolder:
    """Check everything a run needs and make its folder; nothing is written before that."""
    problem = Problem.from_config(config.training())
    results = {}
    if config.networks is not None:
        source = Path(config.networks)
        if source.resolve() == out.resolve():
            raise InputError(f"--from and --out are both {out}; give --out another folder")
        results = read_networks(source, problem)
    if config.budget is not None:
        cut = within_budget(problem.config, measure_costs(problem), len(problem.data.y))
        config = msgspec.structs.replace(
            config,
            trials=cut.trials,
            train_size=cut.train_size,
            epochs=cut.epochs,
            shortened=cut.shortened,
        )
    files = input_files([config.data])
    if config.networks is not None:
        files |= network_files(Path(config.networks), problem.groups())
    inputs = fingerprints(files)
    record = run_config("perturbation", config, command, engine=engine_here(), inputs=inputs)
    folder = RunFolder.create(out, record, force=force)
    try:
        for name, result in results.items():
            folder.write_tensors(name, result)
    except BaseException:
        folder.close()
        raise
    return folder


def carry_on(folder: RunFolder, watcher: Watcher, should_stop: Stop | None = None) -> None:
    """Train what is not trained yet, perturb all networks and write the records."""
    config = folder.options(PerturbationConfig)
    compare_versions(folder, watcher)
    compare_inputs(folder, input_files([config.data]), watcher)
    problem = Problem.from_config(config.training())
    data = problem.data
    watcher.note(
        f"data: {data.name}, {len(data.y):,} training and {len(data.test_y):,} test samples "
        f"({data.source})"
    )
    if config.instead:
        watcher.note(config.instead)
    groups = problem.groups()
    if config.networks is None:
        _train(folder, problem, groups, watcher, should_stop)
    else:
        watcher.note(f"networks: from {config.networks}, trained for {config.epochs:,} epochs")
        _adopt(folder, problem, groups, Path(config.networks))
    _perturb(folder, problem, groups, watcher, should_stop)
    write_records(folder, config, problem, groups)
    folder.drop_checkpoints()


def _train(
    folder: RunFolder,
    problem: Problem,
    groups: Sequence[Group],
    watcher: Watcher,
    should_stop: Stop | None,
) -> None:
    """Have the representation study train the networks that have no result yet."""
    if all(folder.has(folder.path / result_file(group)) for group in groups):
        return
    config = problem.config
    compare_engines(folder, watcher)
    watcher.note("timing a few epochs of each model")
    costs = measure_costs(problem, should_stop)
    seconds = estimate(config, costs, len(problem.data.y))
    watcher.note(
        f"{len(config.models)} models, pixels {' and '.join(config.pixels)}, {config.trials} "
        f"trials, {config.epochs:,} epochs: about {minutes(seconds)} by a few timed epochs"
    )
    for change in config.shortened:
        watcher.note(change)
    engine = engine_here() if folder.config.engine == "compiled" else "torch"
    run_locally(folder, problem, groups, costs, watcher, should_stop, engine=engine)


def _adopt(folder: RunFolder, problem: Problem, groups: Sequence[Group], source: Path) -> None:
    """Take networks over that a process which was killed in its first moment had not."""
    if all(folder.has(folder.path / result_file(group)) for group in groups):
        return
    check_inputs(folder.config, network_files(source, groups))
    for name, result in read_networks(source, problem).items():
        folder.write_tensors(name, result)


def _perturb(
    folder: RunFolder,
    problem: Problem,
    groups: Sequence[Group],
    watcher: Watcher,
    should_stop: Stop | None,
) -> None:
    report = watcher.stage("perturbing")
    for place, group in enumerate(groups):
        report(Progress(place, len(groups), label(group)))
        if should_stop is not None and should_stop():
            raise Interrupted("stopped by the user")
        if folder.has(folder.path / measured_file(group)):
            continue
        trained = folder.read_tensors(folder.path / result_file(group))
        stack = TrialStack(problem.chain(group.model), trained["values"])
        folder.write_tensors(measured_file(group), measure(problem, group, stack, should_stop))
    report(Progress(len(groups), len(groups), "done"))
