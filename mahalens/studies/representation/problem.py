"""The study's data and starting points, all from one seed, and the work cut into groups."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mahalens.data import stream
from mahalens.data.sets import LabelledData, load_set
from mahalens.errors import InputError
from mahalens.geometry.memory import require_memory
from mahalens.nn.chain import Chain
from mahalens.studies.folder import CHECKPOINTS
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.models import chain_of
from mahalens.train import SGD, CrossEntropy, TrialStack

MNIST_MEAN, MNIST_SPREAD = 0.1307, 0.3081
"""Of MNIST's pixels between 0 and 1, as source 003 has them."""


@dataclass(frozen=True)
class Group:
    """Some trials of one model with one kind of pixels: what is trained together."""

    pixels: str
    model: str
    first: int
    count: int

    @property
    def name(self) -> str:
        """A file name for it."""
        return f"{self.pixels}-{self.model}-{self.first:04d}"

    @property
    def trials(self) -> range:
        """The numbers of its trials."""
        return range(self.first, self.first + self.count)


def result_file(group: Group) -> str:
    """Where the result of a group is kept until the run is complete, in its folder."""
    return f"{CHECKPOINTS}/{group.name}.result.safetensors"


@dataclass(frozen=True)
class Problem:
    """One training set and one test set, shared by all trials and models."""

    config: RepresentationConfig
    data: LabelledData

    @classmethod
    def from_config(cls, config: RepresentationConfig) -> Problem:
        """Load the data of a run and draw the training samples it asks for."""
        data = load_set(config.data)
        if data.classes < 2:
            raise InputError(f"--data {config.data}: has one class; there is nothing to tell apart")
        if config.train_size is not None:
            if not data.classes <= config.train_size <= len(data.y):
                raise InputError(
                    f"--train-size {config.train_size}: {config.data} has {len(data.y):,} training "
                    f"samples of {data.classes} classes; give {data.classes} to {len(data.y):,}"
                )
            data = data.subset(config.train_size, stream(config.seed, "subset"))
        if "normalized" in config.pixels and float(data.x.min()) == float(data.x.max()):
            raise InputError(
                f"--data {config.data}: all pixels are equal; nothing can be learned from them"
            )
        # Samples, both packed copies of the engine, and the test set.
        size = 4 * (3 * data.x.numel() + 2 * data.test_x.numel())
        require_memory(size, f"--data {config.data}", "give a smaller --train-size")
        # Where every output lies to the centre of every class, in all trials.
        results = 8 * data.classes**2 * config.trials * len(config.models) * len(config.pixels)
        what = f"--data {config.data} with {data.classes:,} classes"
        require_memory(results, what, "give fewer --trials or --models")
        return cls(config, data)

    def chain(self, model: str) -> Chain:
        """The architecture of a model on these data."""
        return chain_of(model, self.data.inputs, self.data.classes, self.config.hidden)

    def inputs(self, pixels: str) -> tuple[Tensor, Tensor]:
        """Training and test samples, raw or normalised by the data set's mean and spread."""
        return pixel_inputs(self.data, pixels)

    def start(self, group: Group) -> TrialStack:
        """Starting weights: PyTorch's own, trial i from the same first layer in every model."""
        seeds = [seed_of_trial(self.config.seed, trial) for trial in group.trials]
        return TrialStack.from_seeds(self.chain(group.model), seeds)

    def solver(self, group: Group, *, engine: str = "auto", epochs: int | None = None) -> SGD:
        """The published training of a group: full-batch gradient descent on cross-entropy."""
        x, _ = self.inputs(group.pixels)
        start = self.start(group)
        objective = CrossEntropy(start.model, x, self.data.y, engine=engine)
        return SGD(objective, start, epochs or self.config.epochs, lr=self.config.learning_rate)

    def groups(self) -> list[Group]:
        """All work, in the order it is done."""
        config = self.config
        return [
            Group(pixels, model, first, min(config.group, config.trials - first))
            for pixels in config.pixels
            for model in config.models
            for first in range(0, config.trials, config.group)
        ]


def seed_of_trial(seed: int, trial: int) -> int:
    """The seed that trial starts from, whatever the model and the number of trials."""
    return int(torch.randint(2**62, (), generator=stream(seed, "start", trial)))


def facts_of(data: LabelledData, epochs: int, seconds: float) -> dict[str, Any]:
    """What a summary says of the data and the training."""
    mean, spread = scale_of(data)
    return {
        "data": data.name,
        "source": data.source,
        "training_samples": len(data.y),
        "test_samples": len(data.test_y),
        "inputs": data.inputs,
        "classes": data.classes,
        "epochs": epochs,
        "largest_pixel": data.largest,
        "pixel_mean": mean,
        "pixel_spread": spread,
        "seconds": seconds,
    }


def scale_of(data: LabelledData) -> tuple[float, float]:
    """Mean and spread of the pixels, divided by the largest, that normalising takes out."""
    if data.name == "mnist":
        return MNIST_MEAN, MNIST_SPREAD
    scaled = data.x.double() / data.largest
    return float(scaled.mean()), float(scaled.std(correction=0))


@functools.lru_cache(maxsize=1)
def pixel_inputs(data: LabelledData, pixels: str) -> tuple[Tensor, Tensor]:
    """Training and test samples, ``raw`` or ``normalized`` by the data set's mean and spread."""
    if pixels == "raw":
        return data.x, data.test_x
    mean, spread = scale_of(data)
    return (data.x / data.largest - mean) / spread, (data.test_x / data.largest - mean) / spread
