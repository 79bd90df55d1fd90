"""What a run will cost, from a few timed epochs, and what a budget leaves of it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mahalens.errors import InputError
from mahalens.studies.study import C, Job, Study, variant_name

FEWEST_TRIALS = 5
"""With fewer, no claim is decided."""
FEWEST_SAMPLES = 1_000
SHARE_OF_SAMPLES = 4
"""A budget cuts a training set to a quarter at most before it cuts epochs."""
OVERHEAD = 20.0
"""Seconds for starting, records, figures and the report."""
CAUTION = 1.15
TIMED_SECONDS = 0.3
_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0}


def read_time(text: str) -> float:
    """Return seconds from text such as ``90``, ``20m``, ``1.5h`` or ``1h30m``.

    >>> read_time("20m"), read_time("1h30m"), read_time("45")
    (1200.0, 5400.0, 45.0)
    """
    wanted = f"--budget {text}: give a time such as 90s, 20m, 1.5h or 1h30m"
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        plain += "s"
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", plain):
        raise InputError(wanted)
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", plain)
    seconds = sum(float(amount) * _TIMES[unit] for amount, unit in parts)
    if not 0 < seconds < math.inf:
        raise InputError(wanted)
    return seconds


@dataclass(frozen=True)
class Cost:
    """Seconds of one trial of one job: what it takes anyway, and what every epoch adds."""

    fixed: float
    epoch: float
    samples: int


def within_budget(study: Study[C], config: C, facts: Mapping[str, Any], speed: float = 1.0) -> C:
    """Return what a budget leaves: fewer trials, then fewer training samples, then fewer epochs.

    ``speed`` is how many times as fast as this process the run will go.
    """
    if config.budget is None:
        return config
    seconds = config.budget * speed
    costs = measure_costs(study, config, facts)
    samples = max(cost.samples for cost in costs)

    def fits(tried: C) -> bool:
        return estimate(study, tried, costs) <= seconds

    if fits(config):
        return config
    cut = config
    has_size = hasattr(config, "train_size")
    lengths = {"trials": min(FEWEST_TRIALS, config.trials)}
    if has_size and samples:
        lengths["train_size"] = min(samples, max(FEWEST_SAMPLES, samples // SHARE_OF_SAMPLES))
    lengths[study.length] = 1
    for name, least in lengths.items():
        most = getattr(config, name)
        cut = _largest(cut, name, least, samples if most is None else most, fits)
        if fits(cut):
            break
    else:
        needed = estimate(study, cut, costs) / speed
        raise InputError(
            f"--budget of {config.budget:.0f} s: the shortest run takes about {needed:.0f} s here; "
            "give a larger budget or fewer --models"
        )
    changes = []
    for name in lengths:
        before, after = getattr(config, name), getattr(cut, name)
        before = samples if before is None else before
        if after is not None and after != before:
            label = {"train_size": "training samples"}.get(name, name)
            changes.append(f"{label} cut from {before:,} to {after:,}")
    note = f"budget of {config.budget:.0f} s: {', '.join(changes)}"
    return msgspec.structs.replace(cut, shortened=(*config.shortened, note))


def _largest(config: C, name: str, least: int, most: int, fits: Callable[[C], bool]) -> C:
    """Return the configuration with the largest value that fits; the least if none does."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        tried = msgspec.structs.replace(config, **{name: middle})
        low, high = (middle, high) if fits(tried) else (low, middle - 1)
    if name == "train_size" and low == most:
        return config
    return msgspec.structs.replace(config, **{name: low})


def estimate(study: Study[C], config: C, costs: Sequence[Cost]) -> float:
    """Return the seconds of a whole run, one job after another in this process."""
    size = getattr(config, "train_size", None)
    epochs = getattr(config, study.length)
    trial = 0.0
    for cost in costs:
        share = 1.0 if size is None or not cost.samples else min(1.0, size / cost.samples)
        trial += cost.fixed + cost.epoch * epochs * share
    return OVERHEAD + CAUTION * trial * config.trials


def measure_costs(study: Study[C], config: C, facts: Mapping[str, Any]) -> list[Cost]:
    """Time every kind of job with one trial and few epochs, more of them until it takes a while."""
    from mahalens.studies.run import Context

    data = facts.get("data")
    costs = []
    for variant, work in dict.fromkeys((job.variant, job.work) for job in study.jobs(config)):
        about = data.get(variant_name(variant), {}) if isinstance(data, dict) else facts
        job = Job(variant, work, 0, 1)

        def timed(epochs: int, job: Job = job) -> float:
            few = {"trials": 1, study.length: epochs, "budget": None}
            began = time.perf_counter()
            study.measure(msgspec.structs.replace(config, **few), job, Context())
            return time.perf_counter() - began

        most = getattr(config, study.length)
        timed(1)  # the first time, programs are loaded and samples prepared
        short, epochs = timed(1), 1
        longer = short
        while epochs < most and longer - short < TIMED_SECONDS:
            epochs = min(most, 4 * epochs)
            longer = timed(epochs)
        step = max(0.0, (longer - short) / max(1, epochs - 1))
        costs.append(Cost(max(0.0, short - step), step, int(about.get("training_samples", 0))))
    return costs
