"""Trains some trials of one network by the protocol of source 003, and reads them."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mahalens.data import LabelledData, stream
from mahalens.geometry.memory import require_memory
from mahalens.studies.activations.config import ActivationsConfig
from mahalens.studies.activations.models import chain_of
from mahalens.studies.activations.reading import UseReading
from mahalens.studies.paired.config import Job, jobs_of
from mahalens.studies.paired.measures import Measures
from mahalens.studies.paired.samples import check_sets, standardise, whole_set
from mahalens.studies.representation.problem import pixel_inputs, seed_of_trial
from mahalens.studies.representation.training import accuracies, curve_metrics, measured_epochs
from mahalens.train import SGD, Adam, CrossEntropy, Status, TrialStack, solve

AT_ONCE = 5
"""Trials of a job: enough to share what samples cost, few enough to lose little when stopped."""


def check(config: ActivationsConfig) -> dict[str, dict[str, Any]]:
    """Load what a run needs; what the summary says of each data set."""
    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        data = training_set(name, config.train_size, config.seed)
        # Samples, both packed copies of the engine, and the test set.
        size = 4 * (3 * data.x.numel() + 2 * data.test_x.numel())
        require_memory(size, f"--data {name}", "give a smaller --train-size")
    return facts


def jobs(config: ActivationsConfig) -> list[Job]:
    """All work: a few trials of one network each."""
    return jobs_of(config, config.models, AT_ONCE)


@functools.lru_cache(maxsize=2)
def training_set(name: str, train_size: int | None, seed: int) -> LabelledData:
    """A set with at most ``train_size`` training samples, the same ones in all trials.

    As in source 003, trials differ in their starting weights alone.
    """
    whole = whole_set(name)
    if train_size is None or train_size >= len(whole.y):
        return whole
    return whole.subset(train_size, stream(seed, "subset"))


def inputs_of(data: LabelledData, pixels: str) -> tuple[Tensor, Tensor]:
    """Training and test samples as the networks see them.

    Pixels are normalised as one, by the data set's mean and spread; features of a table one by one.
    """
    if pixels == "normalized" and data.image_shape is None:
        return standardise(data.x, data.test_x)
    return pixel_inputs(data, pixels)


def measure(config: ActivationsConfig, job: Job) -> Mapping[str, Measures]:
    """Train the trials of a job and read them, before and after."""
    began = time.perf_counter()
    data = training_set(job.data, config.train_size, config.seed)
    x, test_x = inputs_of(data, config.pixels)
    chain = chain_of(job.work, data.inputs, data.classes, config.hidden)
    seeds = [seed_of_trial(config.seed, trial) for trial in job.trials]
    start = TrialStack.from_seeds(chain, seeds)
    before = UseReading(start, x, data.y, data.classes).outputs()
    kind = Adam if config.solver == "adam" else SGD
    objective = CrossEntropy(chain, x, data.y)
    solver = kind(objective, start, config.epochs, lr=config.learning_rate)
    planned = measured_epochs(config.epochs)

    def accuracy(running: SGD | Adam) -> dict[str, Tensor]:
        return {"accuracy": accuracies(running.stack, test_x, data.test_y)}

    solve(solver, metrics=accuracy, at=planned)
    reached = solver.history.epochs
    seen = solver.history["accuracy"].T.double()
    read = UseReading(solver.stack, x, data.y, data.classes)
    after = read.outputs()
    metrics = {
        "test_accuracy": accuracies(solver.stack, test_x, data.test_y),
        "train_accuracy": read.accuracy,
        "train_loss": solver.final_loss.double(),
        **after,
        **{f"{name}_start": values for name, values in before.items()},
        "outputs_lost": after["flat_outputs"] - before["flat_outputs"],
        **read.hidden(),
        **curve_metrics(reached, seen),
    }
    # A trial whose numbers ran away has no reading.
    lost = solver.codes == Status.NON_FINITE.code
    measures = Measures(
        metrics={n: torch.where(lost, torch.nan, v.double()) for n, v in metrics.items()},
        seconds=time.perf_counter() - began,
        epochs=torch.tensor(planned),
        curves={"test_accuracy": _on(planned, reached, seen)},
        weights=solver.stack.tensors(),
    )
    return {job.work: measures}


def _on(planned: Sequence[int], reached: Tensor, seen: Tensor) -> Tensor:
    """Curves ``[T, E]`` at the planned epochs; NaN from where all trials had ended."""
    found = seen.new_full((len(seen), len(planned)), torch.nan)
    for place, epoch in enumerate(reached.tolist()):
        if epoch in planned:
            found[:, planned.index(epoch)] = seen[:, place]
    return found
