"""One model on one data set: choose its learning rate, then start, train and measure trials."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mahalens.data import stream
from mahalens.data.tables import held_out
from mahalens.errors import InputError
from mahalens.studies.init.config import InitConfig
from mahalens.studies.init.metrics import METRICS
from mahalens.studies.init.starting import hidden_units, look, start
from mahalens.studies.init.training import epochs_to, train
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.measures import Measures
from mahalens.studies.paired.samples import (
    Samples,
    check_sets,
    is_split_anew,
    option_of,
    samples_of,
    whole_set,
)

VALIDATION = 0.25
"""Share of the training samples of each class that a learning rate is chosen by."""


def check(config: InitConfig) -> Mapping[str, Mapping[str, Any]]:
    """Load all data, and see that every start can be computed from them."""
    facts = check_sets(config.data, config.train_size)
    for data in config.data:
        samples, given = _samples(config, data, 0), option_of(data, config.train_size)
        units = hidden_units(samples)
        if len(samples.y) < 2 * units:
            raise InputError(
                f"{given}: {len(samples.y)} training samples for a hidden layer of {units} "
                f"units; give at least {2 * units}"
            )
        sizes = torch.bincount(samples.y, minlength=samples.classes)
        if int(sizes.min()) < 2:
            raise InputError(
                f"{given}: class {int(sizes.argmin())} has "
                f"{int(sizes.min())} of the {len(samples.y)} training samples; give at least 2 of "
                "each"
            )
    return facts


def measure(config: InitConfig, job: Job) -> dict[str, Measures]:
    """Measure some trials of the model that the job names, each with a rate of its own."""
    began = time.monotonic()
    found = [_trial(config, job, trial, choose_rate(config, job, trial)) for trial in job.trials]
    numbers, accuracies, losses = zip(*found, strict=True)
    return {
        job.work: Measures(
            metrics={
                name: torch.tensor([own[name] for own in numbers], dtype=torch.float64)
                for name in METRICS
            },
            seconds=time.monotonic() - began,
            epochs=torch.arange(config.epochs + 1),
            curves={"test_accuracy": torch.stack(accuracies), "train_loss": torch.stack(losses)},
        )
    }


def choose_rate(config: InitConfig, job: Job, trial: int) -> float:
    """The learning rate with the highest mean accuracy on the way on held-out training samples.

    Every trial chooses for itself, from its own training samples, so that what a choice by few
    samples gets wrong is part of the spread over trials. There is one training with each rate
    on images; on other data, where few samples are held out, ``config.tunings`` of them are
    averaged, each with a start, a split and an order of its own. Of equal rates the lowest is
    taken. Test samples are not looked at.
    """
    samples = _samples(config, job.data, trial)
    rates = _rates(config, samples)
    total = torch.zeros(len(rates), dtype=torch.float64)
    for run in range(config.tunings if samples.image_shape is None else 1):
        who = ("tuning", trial, run)
        out = held_out(samples.y, VALIDATION, stream(config.seed, "validation", trial, run))
        x, y = samples.x[~out], samples.y[~out]
        network = start(job.work, samples, x, y, config.start_rows, config.seed, *who)
        seen = (samples.x[out], samples.y[out])
        done = train(network, (x, y), seen, rates, config.epochs, config.seed, *who)
        total += done.mean_accuracy
    return rates[int(total.argmax())]


def _trial(
    config: InitConfig, job: Job, trial: int, rate: float
) -> tuple[dict[str, float], Tensor, Tensor]:
    """The metrics of one trial, and its curves of accuracy and loss ``[E + 1]``."""
    samples = _samples(config, job.data, trial)
    who = ("trial", trial)
    x, y, rows, seed = samples.x, samples.y, config.start_rows, config.seed
    network = start(job.work, samples, x, y, rows, seed, *who)
    first = look(network, x[:rows], y[:rows])
    seen = (samples.test_x, samples.test_y)
    done = train(network, (x, y), seen, [rate], config.epochs, seed, *who)
    accuracy, loss = done.accuracy[0], done.loss[0]
    losses = torch.cat((torch.tensor([first["start_loss"]], dtype=torch.float64), loss))
    reached = epochs_to(first["start_loss"], loss, math.log(samples.classes) / 10)
    numbers = {
        "mean_accuracy": float(done.mean_accuracy),
        "test_accuracy": float(accuracy[-1]),
        "first_accuracy": float(accuracy[1]),
        "epochs_to_tenth": reached,
        "reached": 0.0 if math.isnan(reached) else 100.0,
        "train_loss": float(loss[-1]),
        **first,
        "start_seconds": network.seconds,
        "learning_rate": rate,
        "rate_at_end": 100.0 * (rate in (_rates(config, samples)[0], _rates(config, samples)[-1])),
    }
    if not math.isfinite(numbers["train_loss"]):  # weights that are no numbers classify nothing
        numbers = dict.fromkeys(numbers, math.nan)
    return numbers, accuracy, losses


def _rates(config: InitConfig, samples: Samples) -> list[float]:
    """The learning rates to choose from, the lowest first."""
    return sorted(config.table_rates if samples.image_shape is None else config.image_rates)


def _samples(config: InitConfig, data: str, trial: int) -> Samples:
    """The samples of a trial; kept where all trials have the same ones, as these are large."""
    taken = config.train_size
    drawn = is_split_anew(data) or (taken is not None and taken < len(whole_set(data).y))
    return _kept_samples(data, config.seed, trial if drawn else 0, taken)


@functools.lru_cache(maxsize=2)
def _kept_samples(data: str, seed: int, trial: int, train_size: int | None) -> Samples:
    return samples_of(data, seed=seed, trial=trial, train_size=train_size)
