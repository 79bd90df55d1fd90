"""Computes some trials of one model of the transfer study."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mahalens.data import stream
from mahalens.studies.paired.config import Job, jobs_of
from mahalens.studies.paired.measures import Measures
from mahalens.studies.paired.samples import Samples
from mahalens.studies.transfer.config import TransferConfig, models_on
from mahalens.studies.transfer.kernels import features_of
from mahalens.studies.transfer.models import YARDSTICKS, chain_of, split
from mahalens.studies.transfer.samples import trial_samples
from mahalens.studies.transfer.training import accuracy, log_loss, train
from mahalens.studies.transfer.yardsticks import Judged, boosted, nearest, warped

AT_ONCE = 5
"""Trials of a job: enough to share what samples cost, few enough to lose little when stopped."""
_JUDGES = {"boosting": boosted, "knn": nearest, "dtw": warped}


def jobs(config: TransferConfig) -> list[Job]:
    """All work: a few trials of one model on one set; models that a set is not for are left out."""
    every = jobs_of(config, config.models, AT_ONCE)
    return [job for job in every if job.work in models_on(config, job.data)]


def measure(config: TransferConfig, job: Job) -> Mapping[str, Measures]:
    """Train or fit the trials of a job and test them."""
    began = time.perf_counter()
    samples = [trial_samples(config, job.data, trial) for trial in job.trials]
    if job.work in YARDSTICKS:
        judge = _JUDGES[job.work]
        judged = [judge(config, own, t) for own, t in zip(samples, job.trials, strict=True)]
        metrics = _of_yardstick(judged, samples)
        return {job.work: Measures(metrics=metrics, seconds=time.perf_counter() - began)}
    if split(job.work)[0] == "kernels":
        samples = [_through_kernels(config, own, t) for own, t in _zip(samples, job)]
    first = samples[0]
    chain = chain_of(job.work, first.inputs, first.classes, config.hidden)
    done = train(config, chain, job.trials, samples)
    test_y = torch.stack([own.test_y for own in samples])
    ends = done.epochs[done.chosen]
    metrics = {
        "test_accuracy": accuracy(done.outputs, test_y),
        "balanced_accuracy": _balanced(done.outputs.argmax(-1), test_y),
        "log_loss": log_loss(done.outputs, test_y).double(),
        "train_accuracy": done.train_accuracy.double(),
        "chosen_rate": done.rates.double(),
        "chosen_epochs": ends.double(),
        "at_limit": (ends == config.epochs).double(),
    }
    # A trial whose numbers ran away has no reading.
    lost = ~done.outputs.isfinite().flatten(1).all(1)
    measures = Measures(
        metrics={name: torch.where(lost, torch.nan, own) for name, own in metrics.items()},
        seconds=time.perf_counter() - began,
        epochs=done.epochs,
        curves={"test_accuracy": done.curve.double()},
        weights=done.weights,
    )
    return {job.work: measures}


def _zip(samples: Sequence[Samples], job: Job) -> list[tuple[Samples, int]]:
    return list(zip(samples, job.trials, strict=True))


def _through_kernels(config: TransferConfig, samples: Samples, trial: int) -> Samples:
    """The same with features of random kernels in place of the series; all heads get the same."""
    assert samples.image_shape is not None, "kernels are for sequences"
    generator = stream(config.seed, "kernels", trial)
    x, test_x = features_of(
        samples.x, samples.test_x, samples.image_shape, config.kernels, generator
    )
    return replace(samples, x=x, test_x=test_x, image_shape=None)


def _of_yardstick(judged: Sequence[Judged], samples: Sequence[Samples]) -> dict[str, Tensor]:
    predicted = torch.stack([one.predicted for one in judged])
    test_y = torch.stack([own.test_y for own in samples])
    metrics = {
        "test_accuracy": 100 * (predicted == test_y).double().mean(1),
        "balanced_accuracy": _balanced(predicted, test_y),
    }
    both = list(zip(judged, samples, strict=True))
    known = [
        100 * (one.train_predicted == own.y).double().mean()
        for one, own in both
        if one.train_predicted is not None
    ]
    if known:
        metrics["train_accuracy"] = torch.stack(known)
    given = [
        -one.probabilities.clamp_min(1e-15).log().gather(1, own.test_y[:, None]).mean()
        for one, own in both
        if one.probabilities is not None
    ]
    if given:
        metrics["log_loss"] = torch.stack(given)
    if judged[0].neighbours is not None:
        metrics["neighbours"] = torch.tensor([float(one.neighbours or 0) for one in judged])
    return metrics


def _balanced(predicted: Tensor, y: Tensor) -> Tensor:
    """Accuracy of each class, averaged over those that are there ``[T]``, in percent."""
    found = []
    for own, truth in zip(predicted, y, strict=True):
        there = truth.unique().tolist()
        right = [(own[truth == label] == label).double().mean() for label in there]
        found.append(100 * torch.stack(right).mean())
    return torch.stack(found)
