"""The numbers of one piece of work: some trials of all layers of one width on one data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mahalens.studies.hybrid.config import HybridConfig
from mahalens.studies.hybrid.mixtures import MIXTURES, REFERENCE
from mahalens.studies.hybrid.reading import read_layer
from mahalens.studies.hybrid.training import Trained, train
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.measures import Measures
from mahalens.studies.paired.samples import Samples, samples_of

TENTH = 0.1
"""A loss is reached when it is so much of the loss of guessing, ``ln C``."""


def measure(config: HybridConfig, job: Job) -> dict[str, Measures]:
    """Train and read every layer of the family ``job.work`` in the job's trials."""
    sets = [
        samples_of(job.data, seed=config.seed, trial=trial, train_size=config.train_size)
        for trial in job.trials
    ]
    found = {
        name: measure_model(config, name, job.trials, sets)
        for name in config.models
        if MIXTURES[name].family == job.work
    }
    return with_gains(found, REFERENCE[job.work])


def measure_model(
    config: HybridConfig, model: str, trials: Sequence[int], sets: Sequence[Samples]
) -> Measures:
    """The measures of one model."""
    done = train(config, model, trials, sets)
    goal = TENTH * math.log(sets[0].classes)
    read = [read_layer(_layers(done, t), one.x) for t, one in enumerate(sets)]
    metrics = {
        "test_accuracy": done.accuracy[:, -1].double(),
        "area": area(done.at, done.accuracy),
        "train_loss": done.losses[:, -1].double(),
        "epochs_to_tenth": epochs_until(done.losses, goal),
        "fastest_epochs": epochs_until(done.tried.losses, goal).amin(1),
        "late_gain": late_gain(done.at, done.accuracy),
        **{name: torch.tensor([one[name] for one in read]).double() for name in read[0]},
        "rate": done.tried.rates,
        "seconds": torch.full((len(sets),), done.seconds / len(sets)).double(),
    }
    lost = ~metrics["test_accuracy"].isfinite()
    for name, values in metrics.items():
        metrics[name] = torch.where(lost, math.nan, values)
    before = done.losses.new_full((len(sets), 1), math.nan)  # no epoch, no loss
    losses = torch.cat([before, done.losses], 1)
    return Measures(
        metrics=metrics,
        seconds=done.tried.seconds + done.seconds,
        epochs=done.at,
        curves={"test_accuracy": done.accuracy, "train_loss": losses[:, done.at]},
        weights=done.stack.tensors(),
    )


def with_gains(found: Mapping[str, Measures], reference: str) -> dict[str, Measures]:
    """The measures with ``gain``: points of test accuracy more than ReLU units alone have."""
    if reference not in found:
        return dict(found)
    than = found[reference].metrics["test_accuracy"]
    return {
        name: replace(own, metrics={**own.metrics, "gain": own.metrics["test_accuracy"] - than})
        for name, own in found.items()
    }


def area(at: Tensor, accuracy: Tensor) -> Tensor:
    """The mean of a curve ``[T, L]`` over all epochs ``[T]``, straight between its points.

    >>> area(torch.tensor([0, 2, 4]), torch.tensor([[0.0, 100.0, 100.0]]))
    tensor([75.], dtype=torch.float64)
    """
    return torch.trapezoid(accuracy.double(), at.double()) / float(at[-1] - at[0])


def epochs_until(losses: Tensor, goal: float) -> Tensor:
    """The first epoch ``[...]`` with a loss ``[..., E]`` of at most ``goal``.

    One more than there are if none has.

    >>> epochs_until(torch.tensor([[3.0, 2.0, 1.0], [3.0, 3.0, 3.0]]), 2.0)
    tensor([2., 4.], dtype=torch.float64)
    """
    met = losses <= goal
    first = met.double().argmax(-1) + 1
    return torch.where(met.any(-1), first, losses.shape[-1] + 1).double()


def late_gain(at: Tensor, accuracy: Tensor) -> Tensor:
    """What a curve ``[T, L]`` gained in the last tenth of the epochs ``[T]``.

    >>> late_gain(torch.tensor([0, 9, 10]), torch.tensor([[0.0, 80.0, 81.0]]))
    tensor([1.], dtype=torch.float64)
    """
    last = int(at[-1])
    before = int((at <= last - max(1, last // 10)).sum()) - 1
    return (accuracy[:, -1] - accuracy[:, before]).double()


def _layers(done: Trained, trial: int) -> nn.Sequential:
    module = done.stack[trial]
    if not isinstance(module, nn.Sequential):
        raise TypeError("a network of the study is a sequence of layers")
    return module
