"""What a run will cost, from a few timed epochs, and what a budget leaves of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from mahalens.data import stream
from mahalens.data.sets import LabelledData
from mahalens.errors import InputError, Interrupted
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.problem import Group, Problem
from mahalens.studies.representation.training import accuracies, measured_epochs, read_group

TIMED_SAMPLES = 4_000
TIMED_SECONDS = 0.1
SPOKEN_EVERY = 5.0
FEWEST_TRIALS = 5
"""With fewer, no claim is decided."""
FEWEST_SAMPLES = 1_000
SHARE_OF_SAMPLES = 4
"""A budget cuts the training set to a quarter at most before it cuts epochs."""
OVERHEAD = 20.0
"""Seconds for starting, records, figures and the report."""
CAUTION = 1.15


@dataclass(frozen=True)
class Cost:
    """Seconds of one trial of a model: per training sample and epoch, and to look at it."""

    step: float
    look: float
    read: float

    def of_trial(self, samples: int, epochs: int) -> float:
        """Seconds of a whole trial."""
        return self.step * samples * epochs + self.look * len(measured_epochs(epochs)) + self.read


Costs = dict[str, Cost]


def measure_costs(
    problem: Problem,
    should_stop: Callable[[], bool] | None = None,
    note: Callable[[str], None] | None = None,
) -> Costs:
    """Time some epochs of every model with as many trials as a group has, on part of the data.

    ``note`` is called with a line every few seconds.
    """
    config = problem.config
    few = replace(problem, data=_part(problem))
    costs: Costs = {}
    spoken = time.monotonic()
    for model in config.models:
        if note is not None and time.monotonic() - spoken > SPOKEN_EVERY:
            spoken = time.monotonic()
            note(f"timing: {len(costs)} of {len(config.models)} models")
        if should_stop is not None and should_stop():
            raise Interrupted("stopped by the user")
        costs[model] = _measure(few, problem, model, config.group)
    return costs


def _measure(few: Problem, problem: Problem, model: str, count: int) -> Cost:
    group = Group(problem.config.pixels[0], model, 0, min(count, problem.config.trials))
    solver = few.solver(group, epochs=10**6)
    solver.milestones = (1,)  # the first epoch prepares the samples and does not count
    solver.advance()
    began, first = time.perf_counter(), solver.epoch
    while not solver.finished:
        solver.advance()  # as many epochs at once as in the run
        if time.perf_counter() - began > TIMED_SECONDS:
            break
    epochs = max(1, solver.epoch - first)
    step = (time.perf_counter() - began) / epochs / group.count / len(few.data.y)
    _, test_x = problem.inputs(group.pixels)
    rows = min(len(test_x), TIMED_SAMPLES)
    began = time.perf_counter()
    accuracies(solver.stack, test_x[:rows], problem.data.test_y[:rows])
    look = (time.perf_counter() - began) / group.count * len(test_x) / rows
    began = time.perf_counter()
    read_group(few, group, solver.stack)
    shown = len(few.data.y) + len(few.data.test_y)
    every = len(problem.data.y) + len(problem.data.test_y)
    read = (time.perf_counter() - began) / group.count * every / shown
    return Cost(step, look, read)


def _part(problem: Problem) -> LabelledData:
    """Few enough samples to be quick, of every class."""
    data = problem.data
    if len(data.y) > TIMED_SAMPLES:
        data = data.subset(max(TIMED_SAMPLES, data.classes), stream(0, "timing"))
    return replace(data, test_x=data.test_x[:TIMED_SAMPLES], test_y=data.test_y[:TIMED_SAMPLES])


def estimate(config: RepresentationConfig, costs: Costs, samples: int) -> float:
    """Seconds of a whole run, one group after another on this machine."""
    one = sum(costs[model].of_trial(samples, config.epochs) for model in config.models)
    return OVERHEAD + CAUTION * one * config.trials * len(config.pixels)


def within_budget(
    config: RepresentationConfig, costs: Costs, samples: int, *, speed: float = 1.0
) -> RepresentationConfig:
    """What a budget leaves: fewer trials, then fewer training samples, then fewer epochs.

    ``speed`` is how many times as fast as the timing the run will go, on several machines say.
    """
    if config.budget is None:
        return config
    seconds = config.budget * speed

    def fits(trial: RepresentationConfig) -> bool:
        return estimate(trial, costs, trial.train_size or samples) <= seconds

    if fits(config):
        return config

    def largest(field: str, least: int, most: int) -> RepresentationConfig:
        """The largest value that fits; the least if none does."""
        low, high = least, most
        while low < high:
            middle = (low + high + 1) // 2
            tried = msgspec.structs.replace(cut, **{field: middle})
            low, high = (middle, high) if fits(tried) else (low, middle - 1)
        return msgspec.structs.replace(cut, **{field: low})

    cut = config
    cut = largest("trials", min(FEWEST_TRIALS, config.trials), config.trials)
    if not fits(cut):
        least = min(samples, max(FEWEST_SAMPLES, samples // SHARE_OF_SAMPLES))
        cut = largest("train_size", least, samples)
    if not fits(cut):
        cut = largest("epochs", 1, config.epochs)
    if not fits(cut):
        needed = estimate(cut, costs, cut.train_size or samples) / speed
        raise InputError(
            f"--budget of {config.budget:.0f} s: one epoch of {cut.trials} trials of "
            f"{len(cut.models)} models takes about {needed:.0f} s here; give a larger budget or "
            "fewer --models"
        )
    if cut.train_size == samples and config.train_size is None:
        cut = msgspec.structs.replace(cut, train_size=None)
    changes = _changes(config, cut, samples)
    told = f"budget of {config.budget:.0f} s: {', '.join(changes)}"
    return msgspec.structs.replace(
        cut, group=min(cut.group, cut.trials), shortened=(*config.shortened, told)
    )


def _changes(before: RepresentationConfig, after: RepresentationConfig, samples: int) -> list[str]:
    pairs = {
        "trials": (before.trials, after.trials),
        "training samples": (before.train_size or samples, after.train_size or samples),
        "epochs": (before.epochs, after.epochs),
    }
    return [f"{name} cut from {a:,} to {b:,}" for name, (a, b) in pairs.items() if a != b]
