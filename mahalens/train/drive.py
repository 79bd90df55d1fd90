"""Drives a solver to its end, with metrics, progress, saved states and a way to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from torch import Tensor

from mahalens.errors import InputError, Interrupted
from mahalens.train.solver import Solver

SAVE_EVERY = 20.0
"""Seconds between saved states: what a killed process loses, at most, is little more."""

AnySolver = TypeVar("AnySolver", bound=Solver)
Metrics = Callable[[AnySolver], Mapping[str, Tensor] | None]


def solve(
    solver: AnySolver,
    *,
    metrics: Metrics[AnySolver] | None = None,
    at: Iterable[int] = (),
    save: Callable[[dict[str, Tensor]], None] | None = None,
    every: float | None = None,
    on_progress: Callable[[AnySolver], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Advance ``solver`` until it is finished.

    ``metrics`` is called with the solver at the epochs ``at`` (0: before training) and at the end;
    what it returns, a number per trial ``[T]`` for each name, is kept in ``solver.history``.
    Between these epochs nothing is called at all, so that looking costs only what the metrics
    themselves do.

    ``save`` is given the solver's state every so many seconds (by default :data:`SAVE_EVERY`), at
    the end, and when ``should_stop`` says so, in which case :class:`mahalens.errors.Interrupted`
    follows. A solver restored from any such state ends with the very same numbers.
    """
    every = SAVE_EVERY if every is None else every
    saved = time.monotonic()
    chosen = _milestones(at)
    if metrics is not None:
        solver.milestones = chosen
    while not solver.finished:
        if metrics is not None and solver.epoch in chosen:
            _measure(solver, metrics)
        began = time.monotonic()
        solver.advance()
        now = time.monotonic()
        solver.seconds += now - began
        if metrics is not None and (solver.finished or solver.epoch in chosen):
            _measure(solver, metrics)
        if on_progress is not None:
            on_progress(solver)
        stopping = should_stop is not None and should_stop() and not solver.finished
        if save is not None and (stopping or solver.finished or now - saved >= every):
            save(solver.state())
            saved = now
        if stopping:
            raise Interrupted("stopped by the user")


def _measure(solver: AnySolver, metrics: Metrics[AnySolver]) -> None:
    """Once per epoch, also for a solver that was restored at this very epoch."""
    if solver.epoch not in solver.history:
        solver.history.add(solver.epoch, metrics(solver), len(solver.stack))


def _milestones(at: Iterable[int]) -> tuple[int, ...]:
    chosen = tuple(sorted(set(at)))
    if chosen and chosen[0] < 0:
        raise InputError(f"metrics at epoch {chosen[0]}; give epochs of at least 0")
    return chosen
