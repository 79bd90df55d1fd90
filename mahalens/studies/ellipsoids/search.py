"""Searches for the points of a run with one method, and reads what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.errors import Interrupted, RunFolderError
from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch, Problem
from mahalens.studies.ellipsoids.config import split_model
from mahalens.studies.ellipsoids.problem import Drawn
from mahalens.studies.folder import RunFolder
from mahalens.studies.running import Progress, Watcher, one_thread

CURVE_POINTS = 150
SAVE_EVERY = 20.0
CHUNK_SECONDS = 0.5
TIMED_SECONDS = 0.1
TIMED_STEPS = 3
CROSS_STEPS = 25
LARGE_STEP = 1e9
"""Multiplications of a step from which a second thread is worth its while."""


@dataclass
class SearchReading:
    """What one method found in all trials: numbers per trial [T], curves [S, T].

    ``seconds`` is for each point alone, ``all_seconds`` what the search for all of them took.
    """

    model: str
    x: Tensor
    final_error: Tensor
    residual: Tensor
    seconds: Tensor
    steps: Tensor
    converged: Tensor
    distance_error: Tensor
    cross_error: Tensor
    curve_steps: Tensor
    curve_errors: Tensor
    all_seconds: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the name."""
        return {name: value for name, value in vars(self).items() if name != "model"}


def milestones(steps: int) -> list[int]:
    """Steps at which the error is noted: 0, the last, and between them evenly on a log scale.

    >>> milestones(4)
    [0, 1, 2, 3, 4]
    """
    grid = torch.logspace(0, torch.log10(torch.tensor(float(steps))).item(), CURVE_POINTS)
    return sorted({0, steps, *(int(step) for step in grid.round().clamp(max=steps))})


def run_search(
    folder: RunFolder,
    drawn: Drawn,
    model: str,
    watcher: Watcher,
    should_stop: Callable[[], bool] | None = None,
) -> SearchReading:
    """Search with one method from the start, or from its saved state, and read the result."""
    path = folder.checkpoint(model)
    saved = folder.read_tensors(path) if path.exists() else {}
    if "final_error" in saved:
        return _restored(model, saved, str(path))
    if _work(drawn, model) < LARGE_STEP:
        with one_thread():
            return _search(folder, drawn, model, watcher, should_stop, saved)
    return _search(folder, drawn, model, watcher, should_stop, saved)


def _work(drawn: Drawn, model: str) -> float:
    config = drawn.config
    rank = split_model(model)[1] or (config.dim if model == "elliptical" else 1)
    return float(config.trials * config.count * rank * config.dim)


def _search(
    folder: RunFolder,
    drawn: Drawn,
    model: str,
    watcher: Watcher,
    should_stop: Callable[[], bool] | None,
    saved: dict[str, Tensor],
) -> SearchReading:
    path = folder.checkpoint(model)
    report = watcher.stage(model)
    ellipsoids, norm = drawn.metric(model)
    problem = drawn.problem(ellipsoids, norm, model)
    search = drawn.search(problem)
    noted: dict[int, Tensor] = {}
    spent = 0.0
    if saved and isinstance(search, AdamSearch):
        try:
            steps, errors = saved.pop("curve_steps"), saved.pop("curve_errors")
            spent = float(saved.pop("all_seconds"))
            search.restore(saved)
            noted = dict(zip(steps.tolist(), errors, strict=True))
        except (KeyError, RuntimeError, ValueError) as error:
            raise RunFolderError(
                f"{path}: does not fit this run ({error}); delete it to search with {model} from "
                "the start"
            ) from None
    file = str(path.relative_to(folder.path))

    def save() -> None:
        if isinstance(search, AdamSearch):
            state = search.state() | _curve(noted) | {"all_seconds": torch.tensor(spent)}
            folder.write_tensors(file, state)

    def look() -> None:
        noted[search.step] = _errors(search.x, drawn.truth)

    marks = set(milestones(search.steps))
    last_save, pace = time.monotonic(), 1
    if search.step == 0:
        look()
    report(_progress(search, noted))
    while not search.finished:
        ahead = min((m for m in marks if m > search.step), default=search.steps)
        if isinstance(search, NewtonSearch):
            ahead = search.step + 1
        began = time.perf_counter()
        search.advance(min(ahead, search.step + pace))
        took = time.perf_counter() - began
        spent += took
        pace = 2 * pace if took < CHUNK_SECONDS / 2 else max(1, pace // 2) if took > 1 else pace
        if search.step in marks or isinstance(search, NewtonSearch):
            look()
        report(_progress(search, noted))
        stopping = should_stop is not None and should_stop() and not search.finished
        if stopping or time.monotonic() - last_save > SAVE_EVERY:
            save()
            last_save = time.monotonic()
        if stopping:
            raise Interrupted("stopped by the user")
    report(Progress(search.steps, search.steps, _state(noted)))
    reading = _read(drawn, model, problem, search, noted, spent)
    folder.write_tensors(file, reading.tensors())
    return reading


def _read(
    drawn: Drawn,
    model: str,
    problem: Problem,
    search: AdamSearch | NewtonSearch,
    noted: dict[int, Tensor],
    spent: float,
) -> SearchReading:
    trials = len(search.x)
    gaps = problem.tangent(search.x).distances - problem.targets
    steps, converged = torch.full((trials,), search.step), torch.zeros(trials, dtype=torch.bool)
    if isinstance(search, NewtonSearch):
        steps, converged = search.taken, search.converged
    seconds = torch.tensor([_time_alone(drawn, problem, t) for t in range(trials)])
    curve = _curve(noted)
    return SearchReading(
        model=model,
        x=search.x,
        final_error=_errors(search.x, drawn.truth),
        residual=gaps.double().square().mean(dim=1).sqrt(),
        seconds=seconds.double(),
        steps=steps,
        converged=converged,
        distance_error=_distance_error(drawn, problem),
        cross_error=_cross_error(drawn, problem),
        curve_steps=curve["curve_steps"],
        curve_errors=curve["curve_errors"],
        all_seconds=torch.tensor(spent, dtype=torch.float64),
    )


def _time_alone(drawn: Drawn, problem: Problem, trial: int) -> float:
    """Seconds of the search for one point: Adam's by some steps, Newton's as a whole."""
    alone = problem.some(slice(trial, trial + 1))
    start = drawn.start[trial : trial + 1]
    if drawn.config.solver == "newton":
        newton = NewtonSearch(alone, start, steps=drawn.config.steps)
        began = time.perf_counter()
        newton.advance()
        return time.perf_counter() - began
    adam = AdamSearch(alone, start, steps=10**9)
    adam.advance(1)
    began = time.perf_counter()
    while adam.step < 1 + TIMED_STEPS or time.perf_counter() - began < TIMED_SECONDS:
        adam.advance(adam.step + 1)
    return (time.perf_counter() - began) / (adam.step - 1) * drawn.config.steps


def _distance_error(drawn: Drawn, problem: Problem) -> Tensor:
    """Median relative error of the distances of the true points, without noise [T]."""
    full = drawn.full_distances
    if full is None:
        return torch.full((len(problem),), torch.nan, dtype=torch.float64)
    own = problem.ellipsoids.distances(drawn.truth, norm=problem.norm)
    return (own.double() / full.double() - 1).abs().median(dim=1).values


def _cross_error(drawn: Drawn, problem: Problem) -> Tensor:
    """Error when full distances are read with this method's ellipsoids [T]."""
    full = drawn.full_distances
    if full is None or problem.norm == "l1":
        return torch.full((len(problem),), torch.nan, dtype=torch.float64)
    other = Problem.of(problem.ellipsoids, full, norm=problem.norm)
    search = NewtonSearch(other, drawn.start, steps=CROSS_STEPS)
    search.advance()
    return _errors(search.x, drawn.truth)


def _errors(x: Tensor, truth: Tensor) -> Tensor:
    errors: Tensor = torch.linalg.vector_norm(x.double() - truth.double(), dim=1)
    return errors


def _curve(noted: dict[int, Tensor]) -> dict[str, Tensor]:
    return {
        "curve_steps": torch.tensor(list(noted)),
        "curve_errors": torch.stack(list(noted.values())),
    }


def _progress(search: AdamSearch | NewtonSearch, noted: dict[int, Tensor]) -> Progress:
    return Progress(search.step, search.steps, _state(noted))


def _state(noted: dict[int, Tensor]) -> str:
    newest = noted[max(noted)] if noted else None
    return "" if newest is None else f"error {float(newest.mean()):.2g}"


def _restored(model: str, saved: dict[str, Tensor], path: str) -> SearchReading:
    try:
        return SearchReading(model=model, **saved)
    except TypeError as error:
        raise RunFolderError(
            f"{path}: does not fit this run ({error}); delete it to search with {model} from the "
            "start"
        ) from None
