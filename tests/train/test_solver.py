"""Driving a solver: saved states, stopping, going on."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch
from train_problems import assert_resumes, assert_same_end, draw_setting, through_file

from mahalens.errors import Interrupted
from mahalens.nn import md_abs
from mahalens.train import LBFGS, Adam, LevenbergMarquardt, Newton, Status, solve


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


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("mahalens.train.solver.time", clock)
    return clock


@pytest.mark.parametrize(
    ("until", "options", "wanted"),
    [
        (10, {"every": 1000}, [10]),
        (10, {"every": 3}, [3, 6, 9, 10]),
        (10, {"every": 0}, list(range(1, 11))),
        (50, {}, [20, 40, 50]),
        (0, {}, []),
    ],
)
def test_saves_every_so_many_seconds_and_at_the_end(clock, until, options, wanted):
    states = []
    solve(Counter(until, clock), save=lambda state: states.append(int(state["count"])), **options)
    assert states == wanted


def test_time_is_counted_but_not_for_saving_and_progress(clock):
    seen = []

    def slow(solver):
        clock.now += 100
        seen.append(solver)

    solver = Counter(7, clock)
    solver.seconds = 2.0  # from before it was resumed
    solve(solver, save=slow, every=0, on_progress=slow)
    assert solver.seconds == 9.0
    assert seen.count(solver) == 7  # progress after every step


def test_stopping_saves_first_unless_all_is_done(clock):
    states, solver = [], Counter(10, clock)
    options = {"save": lambda state: states.append(int(state["count"]))}
    with pytest.raises(Interrupted, match="stopped by the user"):
        solve(solver, should_stop=lambda: solver.count == 4, **options)
    assert (solver.count, states) == (4, [4])
    solve(solver, should_stop=lambda: solver.count == 10, **options)
    assert states == [4, 10]
    with pytest.raises(Interrupted):
        solve(Counter(10, clock), should_stop=lambda: True)


SOLVERS = {
    "adam": lambda *setting: Adam(*setting, 450, most_epochs=100),
    "levenberg": lambda *setting: LevenbergMarquardt(*setting, 40),
    "lbfgs": lambda *setting: LBFGS(*setting, 60),
    "newton": lambda *setting: Newton(*setting, 40),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_resumes_after_stops_and_kills(name):
    """Stopped again and again, or killed after any save, it ends as one that was let run."""
    setting = draw_setting(md_abs(3), 60, 3)

    def fresh():
        return SOLVERS[name](*setting)  # anew, as a resumed process does

    assert_resumes(fresh, restarts=5)
    whole = fresh()
    solve(whole)
    assert Status.RUNNING not in whole.statuses
    assert whole.seconds > 0
    stopped, saved = fresh(), []
    while not stopped.finished:
        stopped, advances = fresh(), itertools.count(1)
        if saved:
            stopped.restore(through_file(saved[-1]))
        with contextlib.suppress(Interrupted):
            solve(stopped, save=saved.append, should_stop=lambda count=advances: next(count) == 3)
    assert len(saved) > 1
    assert_same_end(stopped, whole)
