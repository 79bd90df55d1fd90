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
    MeanSquaredError,
    Newton,
    Status,
    solve,
)


class Counter:
    """A solver that counts to a number, one a step, each taking a second of a given clock."""

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
        solver = Counter(until, clock)
        solve(solver, save=lambda state: states.append(int(state["count"])), **options)
        return states

    def test_saves_at_the_end(self, clock):
        assert self.saved(clock, every=1000) == [10]

    def test_saves_every_so_many_seconds_and_at_the_end(self, clock):
        assert self.saved(clock, every=3) == [3, 6, 9, 10]
        assert self.saved(clock, every=0) == list(range(1, 11))
        assert self.saved(clock, until=50) == [20, 40, 50]

    def test_time_is_counted(self, clock):
        solver = Counter(7, clock)
        solver.seconds = 2.0  # from before it was resumed
        solve(solver)
        assert solver.seconds == 9.0

    def test_time_for_saving_and_progress_is_not(self, clock):
        def slow(_):
            clock.now += 100

        solver = Counter(3, clock)
        solve(solver, save=slow, every=0, on_progress=slow)
        assert solver.seconds == 3.0

    def test_progress_after_every_step(self, clock):
        seen = []
        solve(Counter(4, clock), on_progress=lambda solver: seen.append(solver.progress[0]))
        assert seen == [1, 2, 3, 4]

    def test_a_finished_solver_is_left_alone(self, clock):
        assert self.saved(clock, until=0) == []

    def test_stopping_saves_first(self, clock):
        states = []
        solver = Counter(10, clock)
        with pytest.raises(Interrupted, match="stopped by the user"):
            solve(
                solver,
                save=lambda state: states.append(int(state["count"])),
                should_stop=lambda: solver.count == 4,
            )
        assert solver.count == 4
        assert states == [4]

    def test_stopping_without_saving(self, clock):
        with pytest.raises(Interrupted):
            solve(Counter(10, clock), should_stop=lambda: True)

    def test_what_is_finished_is_not_interrupted(self, clock):
        solver = Counter(5, clock)
        states = []
        solve(
            solver,
            save=lambda state: states.append(int(state["count"])),
            should_stop=lambda: solver.count == 5,
        )
        assert states == [5]

    def test_an_error_in_saving_is_not_swallowed(self, clock):
        def fail(_):
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            solve(Counter(5, clock), save=fail)


@pytest.fixture(params=["adam", "levenberg", "lbfgs", "newton"])
def fresh(request, draw_problem, draw_start, hundred_epochs_at_a_time):
    """Makes the same solver anew, as a resumed process does."""
    problem = draw_problem(3, 60)
    chain = md_abs(3)
    start = draw_start(chain, problem.x, 3)
    objective = MeanSquaredError(chain, problem.x, problem.y)
    return {
        "adam": lambda: Adam(objective, start, 450),
        "levenberg": lambda: LevenbergMarquardt(objective, start, 40),
        "lbfgs": lambda: LBFGS(objective, start, 60),
        "newton": lambda: Newton(objective, start, 40),
    }[request.param]


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
