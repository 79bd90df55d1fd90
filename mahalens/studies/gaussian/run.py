"""Runs the Gaussian study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import torch

from mahalens.data import load_gaussian, save_gaussian
from mahalens.data.gaussians import gaussian_text
from mahalens.errors import IllConditionedWarning, InputError, Interrupted, RunFolderError
from mahalens.files import fingerprint_of
from mahalens.geometry import Gaussian
from mahalens.studies.folder import GAUSSIAN, RunFolder
from mahalens.studies.gaussian.config import GaussianConfig
from mahalens.studies.gaussian.problem import Problem
from mahalens.studies.gaussian.reading import (
    ModelReading,
    analytic_loss,
    read_ground_truth,
    read_trained,
)
from mahalens.studies.gaussian.records import write_records
from mahalens.studies.running import (
    Watcher,
    check_inputs,
    compare_engines,
    compare_versions,
    engine_here,
    run_config,
)
from mahalens.train import Adam, Newton, Status, solve

T = TypeVar("T", bound=Adam | Newton)

DISTANCE_MODELS = ("abs", "relu")

SMALL_FLOPS = 1e8

MOST_ROUNDING = 1e-2
"""A run is refused where rounding alone leaves more than this share of the variance."""


def start(
    config: GaussianConfig,
    out: Path,
    *,
    gaussian_file: Path | None = None,
    force: bool = False,
    command: str = "",
) -> RunFolder:
    """Check everything a run needs and make its folder; nothing is written before that."""
    given = None
    if gaussian_file is not None:
        given = load_gaussian(gaussian_file)
        if given.dim != config.dim:
            raise InputError(
                f"{gaussian_file}: has {given.dim} dimensions, but --dim is {config.dim}; "
                "leave --dim out or make them equal"
            )
    problem = _make_problem(config, given)
    record = run_config(
        "gaussian",
        config,
        command,
        device=config.device,
        threads=_threads(config),
        engine=_engine(config),
        inputs={GAUSSIAN: fingerprint_of(gaussian_text(problem.gaussian).encode())},
    )
    folder = RunFolder.create(out, record, force=force)
    try:
        save_gaussian(out / GAUSSIAN, problem.gaussian)
    except BaseException:
        folder.close()
        raise
    return folder


def carry_on(
    folder: RunFolder, watcher: Watcher, should_stop: Callable[[], bool] | None = None
) -> None:
    """Train what is not trained yet, read all models and write the records."""
    config = folder.options(GaussianConfig)
    _compare_versions(folder, watcher)
    available = torch.get_num_threads()
    torch.set_num_threads(folder.config.threads)  # another number may round differently
    engine = _engine(config) if folder.config.engine == "compiled" else "torch"
    problem = _make_problem(config, _saved_gaussian(folder), engine)
    if not (folder.path / GAUSSIAN).exists():
        save_gaussian(folder.path / GAUSSIAN, problem.gaussian)
        check_inputs(folder.config, {GAUSSIAN: folder.path / GAUSSIAN})

    def train(name: str, solver: T) -> T:
        # The compiled engine's numbers do not depend on how many threads share the trials.
        alone = isinstance(solver, Adam) and solver.objective.engine == "compiled"
        torch.set_num_threads(available if alone else folder.config.threads)
        try:
            return _train(folder, name, solver, watcher, should_stop)
        finally:
            torch.set_num_threads(folder.config.threads)

    trained = {model: train(model, problem.solver(model)) for model in config.trained_models}
    basins = {model: _basins(problem, model, solver, train) for model, solver in trained.items()}
    for model, solver in trained.items():
        _name_lost_trials(model, solver, watcher)
    watcher.note("reading the trained models")
    readings: list[ModelReading] = []
    for model in config.models:
        if should_stop is not None and should_stop():
            raise Interrupted("stopped by the user")
        readings.append(
            read_trained(problem, model, trained[model], basins[model])
            if model in trained
            else read_ground_truth(problem)
        )
    write_records(folder, problem, readings)
    folder.drop_checkpoints()


def _basins(
    problem: Problem, model: str, solver: Adam | Newton, train: Callable[[str, Newton], Newton]
) -> list[str]:
    """Where the trials of a model lie: what the converging solver finds when it goes on from them.

    Only models that can be distances have a perfect fit to find; for others nothing is said.
    """
    if isinstance(solver, Newton):
        return [status.value for status in solver.statuses]
    if model not in DISTANCE_MODELS:
        return [""] * len(solver.statuses)
    continued = train(f"{model}-basin", problem.continued(solver.stack))
    return [status.value for status in continued.statuses]


def _train(
    folder: RunFolder,
    name: str,
    solver: T,
    watcher: Watcher,
    should_stop: Callable[[], bool] | None,
) -> T:
    """Drive a solver to its end, from its checkpoint if there is one."""
    checkpoint = folder.checkpoint(name)
    if checkpoint.exists():
        state = folder.read_tensors(checkpoint)
        try:
            solver.restore(state)
        except (KeyError, InputError) as error:
            raise RunFolderError(
                f"{checkpoint}: does not fit this run ({error}); delete it to train "
                f"{name} from the start"
            ) from None
    report = watcher.stage(name)
    report(solver)
    file = str(checkpoint.relative_to(folder.path))
    solve(
        solver,
        save=lambda state: folder.write_tensors(file, state),
        on_progress=report,
        should_stop=should_stop,
    )
    return solver


def _name_lost_trials(model: str, solver: Adam | Newton, watcher: Watcher) -> None:
    for trial, status in enumerate(solver.statuses):
        if status is Status.NON_FINITE:
            watcher.note(
                f"{model}: trial {trial} turned non-finite at step {int(solver.steps[trial])} "
                "and was stopped"
            )


def _compare_versions(folder: RunFolder, watcher: Watcher) -> None:
    compare_versions(folder, watcher)
    compare_engines(folder, watcher)


def _saved_gaussian(folder: RunFolder) -> Gaussian | None:
    """The Gaussian of the run; ``None`` if it was stopped before it was saved and can be drawn."""
    path = folder.path / GAUSSIAN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IllConditionedWarning)  # said when the run began
        if path.exists():
            check_inputs(folder.config, {GAUSSIAN: path})
            return load_gaussian(path)
    if folder.options(GaussianConfig).gaussian is not None:
        raise RunFolderError(f"{path}: is missing; start the run again with --gaussian and --force")
    return None


def _make_problem(
    config: GaussianConfig, gaussian: Gaussian | None, engine: str = "torch"
) -> Problem:
    """Draw the data, or say why this machine cannot."""
    _check_device(config)
    try:
        problem = Problem.from_config(config, gaussian, engine=engine)
        _check_range(problem)
        return problem
    except (RuntimeError, MemoryError) as error:
        # torch has no type of its own for this on the CPU
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            f"--dim {config.dim} with --samples {config.samples}: does not fit in the memory "
            "of this machine; give smaller numbers"
        ) from None


def _check_range(problem: Problem) -> None:
    """The numbers of a user's Gaussian may be too large or too small for the dtype of the run."""
    kind = problem.config.dtype
    scales = problem.gaussian.eigenvalues.sqrt().to(getattr(torch, kind))
    if not (problem.x.isfinite().all() and scales.isfinite().all() and (scales > 0).all()):
        raise InputError(
            f"--dtype {kind}: cannot hold the samples of this Gaussian; "
            "give --dtype float64, or a Gaussian in other units"
        )
    floor = analytic_loss(problem)
    if not floor <= MOST_ROUNDING * problem.y.double().var(correction=0):
        raise InputError(
            f"--dtype {kind}: too coarse for this Gaussian, whose exact model already misses the "
            f"distances by an MSE of {floor:.3g}; give --dtype float64, or centre and scale it"
        )


def _threads(config: GaussianConfig) -> int:
    """How many threads to compute with.

    Small tensors gain little from a second thread and lose much when the other core is busy: the
    threads wait for each other at every operation.
    """
    flops = 4 * config.samples * config.trials * 2 * config.dim * (config.dim + 1)  # per epoch
    return 1 if flops < SMALL_FLOPS else torch.get_num_threads()


def _engine(config: GaussianConfig) -> Literal["compiled", "torch"]:
    """Which engine trains: the compiled one on the CPU of a machine with a compiler."""
    return engine_here() if config.device == "cpu" else "torch"


def _check_device(config: GaussianConfig) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch thinks of old device types
            torch.empty(1, device=config.device, dtype=getattr(torch, config.dtype)).sum().item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise InputError(
            f"--device {config.device}: cannot be used here ({reason}); try --device cpu"
        ) from None
