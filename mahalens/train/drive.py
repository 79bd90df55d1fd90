"""Drives a solver to its end, with progress, saved states and a way to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from mahalens.errors import Interrupted
from mahalens.train.solver import Solver

SAVE_EVERY = 20.0
"""Seconds between saved states: what a killed process loses, at most, is little more."""


def solve(
    solver: Solver,
    *,
    save: Callable[[dict[str, Tensor]], None] | None = None,
    every: float | None = None,
    on_progress: Callable[[Solver], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Advance ``solver`` until it is finished.

    ``save`` is given the solver's state every so many seconds (by default :data:`SAVE_EVERY`), at
    the end, and when ``should_stop`` says so, in which case :class:`mahalens.errors.Interrupted`
    follows. A solver restored from any such state ends with the very same numbers.
    """
    every = SAVE_EVERY if every is None else every
    saved = time.monotonic()
    while not solver.finished:
        began = time.monotonic()
        solver.advance()
        now = time.monotonic()
        solver.seconds += now - began
        if on_progress is not None:
            on_progress(solver)
        stopping = should_stop is not None and should_stop() and not solver.finished
        if save is not None and (stopping or solver.finished or now - saved >= every):
            save(solver.state())
            saved = now
        if stopping:
            raise Interrupted("stopped by the user")
