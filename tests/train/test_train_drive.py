"""Driving a solver: saved states, stopping, going on."""

from types import SimpleNamespace

import pytest
import torch

from mahalens.errors import Interrupted
from mahalens.nn import md_abs
from mahalens.train import (
    LBFGS,
    Adam,
    LevenbergMarquardt,
    Newton,
    Status,
    solve,
)


class Counter:
    """A solver that counts to a number, one a step, each taking a second of the clock."""

    def __init__(self, until, clock):
        self.until, self.clock, self.count, self.seconds = until, clock, 0, 0.0

    @property
    def finished(self):
        return self.count == self.until

    @property
    def progress(self):
        return self.count, self.until, ""

    def advance(self):
        self.count += 1
        self.clock.now += 1

    def state(self):
        return {"count": torch.tensor(self.count)}

    def restore(self, state):
        self.count = int(state["count"])


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("mahalens.train.solver.time", clock)
    return clock


class TestCounter:
    def saved(self, clock, until=10, **options):
        states = []
        solve(
            Counter(until, clock), save=lambda state: states.append(int(state["count"])), **options
        )
        return states

    def test_saves_every_so_many_seconds_and_at_the_end(self, clock):
        assert self.saved(clock, every=1000) == [10]
        assert self.saved(clock, every=3) == [3, 6, 9, 10]
        assert self.saved(clock, every=0) == list(range(1, 11))
        assert self.saved(clock, until=50) == [20, 40, 50]
        assert self.saved(clock, until=0) == []

    def test_time_is_counted_but_not_for_saving_and_progress(self, clock):
        def slow(_):
            clock.now += 100

        solver = Counter(7, clock)
        solver.seconds = 2.0  # from before it was resumed
        solve(solver, save=slow, every=0, on_progress=slow)
        assert solver.seconds == 9.0

    def test_progress_after_every_step(self, clock):
        seen = []
        solve(Counter(4, clock), on_progress=lambda solver: seen.append(solver.progress[0]))
        assert seen == [1, 2, 3, 4]

    def test_stopping_saves_first_unless_all_is_done(self, clock):
        states, solver = [], Counter(10, clock)
        options = {"save": lambda state: states.append(int(state["count"]))}
        with pytest.raises(Interrupted, match="stopped by the user"):
            solve(solver, should_stop=lambda: solver.count == 4, **options)
        assert (solver.count, states) == (4, [4])
        solve(solver, should_stop=lambda: solver.count == 10, **options)
        assert states == [4, 10]
        with pytest.raises(Interrupted):
            solve(Counter(10, clock), should_stop=lambda: True)

    def test_an_error_in_saving_is_not_swallowed(self, clock):
        def fail(_):
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            solve(Counter(5, clock), save=fail)


SOLVERS = {
    "adam": (Adam, 450),
    "levenberg": (LevenbergMarquardt, 40),
    "lbfgs": (LBFGS, 60),
    "newton": (Newton, 40),
}


@pytest.fixture(params=SOLVERS)
def fresh(request, draw_setting, hundred_epochs_at_a_time):
    """Makes the same solver anew, as a resumed process does."""
    setting = draw_setting(md_abs(3), 60, 3)
    kind, steps = SOLVERS[request.param]
    return lambda: kind(*setting, steps)


class TestSolvers:
    def test_driven_to_the_end(self, fresh, run, assert_same_end):
        solver = fresh()
        solve(solver)
        assert solver.finished
        assert Status.RUNNING not in solver.statuses
        assert solver.seconds > 0
        assert_same_end(solver, run(fresh()))

    def test_stopped_and_resumed_again_and_again(self, fresh, through_file, assert_same_end):
        whole = fresh()
        solve(whole)
        kept = {}
        stops = 0
        while True:
            solver = fresh()
            if kept:
                solver.restore(through_file(kept["state"]))
            advances = iter(range(1, 10**6))
            try:
                solve(
                    solver,
                    save=lambda state: kept.update(state=state),
                    should_stop=lambda counter=advances: next(counter) == 3,
                )
                break
            except Interrupted:
                stops += 1
        assert stops >= 1
        assert_same_end(solver, whole)
        assert solver.seconds > 0

    def test_killed_after_any_save(self, fresh, through_file, assert_same_end):
        states = []
        whole = fresh()
        solve(whole, save=lambda state: states.append(through_file(state)), every=0)
        for state in states[:: max(1, len(states) // 5)]:
            solver = fresh()
            solver.restore(state)
            solve(solver)
            assert_same_end(solver, whole)
