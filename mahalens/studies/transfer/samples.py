"""The samples of one trial: tables and sequences are split anew, alike for all models."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mahalens.data import stream
from mahalens.data.catalogue import TABLES
from mahalens.data.series import load_series
from mahalens.errors import InputError
from mahalens.studies.paired.config import part_of
from mahalens.studies.paired.samples import (
    Samples,
    check_sets,
    option_of,
    standardise,
    whole_set,
)
from mahalens.studies.transfer.config import TransferConfig, is_sequence

FOLDS = 4
"""Parts of the training samples; held out in turn, or only the first where there are many."""
MANY = 200
"""Training samples from which on one part held out tells enough."""


@dataclass(frozen=True)
class Fold:
    """Which training samples are trained with and which held out, as indices."""

    fit: Tensor
    held: Tensor


@functools.lru_cache(maxsize=8)
def series_shape(data: str) -> tuple[int, int] | None:
    """Channels and steps of a set of sequences; ``None`` for any other set."""
    if not is_sequence(data):
        return None
    train, _ = load_series(data)
    return int(train.x.shape[1]), int(train.x.shape[2])


def trial_samples(config: TransferConfig, data: str, trial: int) -> Samples:
    """The samples of one trial, standardised.

    Tables, digits and sequences by name are split anew by every trial, with as many training
    samples of each class as their own split has. Other sets keep their own. Features of a table
    are standardised one by one, the pixels of images all as one, and sequences channel by
    channel, over all steps: by the training samples of the trial.
    """
    whole = whole_set(data)
    x, y, test_x, test_y = whole.x, whole.y, whole.test_x, whole.test_y
    if is_resampled(data):
        train = _drawn(y, test_y, stream(config.seed, "split", trial))
        every, labels = torch.cat((x, test_x)), torch.cat((y, test_y))
        x, y, test_x, test_y = every[train], labels[train], every[~train], labels[~train]
    if config.train_size is not None and config.train_size < len(y):
        kept = _subset(y, config.train_size, stream(config.seed, "subset", trial))
        x, y = x[kept], y[kept]
    shape = series_shape(data)
    if shape is None:
        x, test_x = standardise(x, test_x, whole.image_shape is not None)
    else:
        x, test_x = by_channel(x, test_x, shape)
    return Samples(whole.name, x, y, test_x, test_y, whole.classes, shape or whole.image_shape)


def is_resampled(data: str) -> bool:
    """Whether every trial splits a set anew: those by name that are too small to be split once."""
    return data in TABLES or data == "digits" or (is_sequence(data) and not data.endswith(".ts"))


def by_channel(x: Tensor, other: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Both flattened series with mean 0 and spread 1 in each channel, by the first ``[N, C L]``."""

    def steps(flat: Tensor) -> Tensor:
        return flat.reshape(-1, *shape).transpose(1, 2).reshape(-1, shape[0])  # [N L, C]

    def back(columns: Tensor, like: Tensor) -> Tensor:
        return columns.reshape(len(like), shape[1], shape[0]).transpose(1, 2).flatten(1)

    one, two = standardise(steps(x), steps(other))
    return back(one, x), back(two, other)


def folds_of(y: Tensor, generator: torch.Generator) -> list[Fold]:
    """Equal parts of the training samples to hold out in turn, each class spread over them.

    >>> [fold.held.tolist() for fold in folds_of(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
    ...     torch.Generator().manual_seed(0))]
    [[0, 4], [3, 7], [2, 5], [1, 6]]
    """
    order = torch.randperm(len(y), generator=generator)
    order = order[y[order].argsort(stable=True)]
    size = len(y) // FOLDS
    if not size:
        raise InputError(f"{len(y)} training samples; give at least {FOLDS}")
    found = []
    for first in range(FOLDS if len(y) < MANY else 1):
        held = order[first::FOLDS][:size]
        kept = torch.ones(len(y), dtype=torch.bool)
        kept[held] = False
        found.append(Fold(kept.nonzero().squeeze(1), held))
    return found


def check(config: TransferConfig) -> dict[str, dict[str, Any]]:
    """Load what a run needs; what the summary says of each data set."""
    facts = check_sets(config.data, config.train_size)
    for data in config.data:
        told = facts[part_of(data)]
        if told["training_samples"] < FOLDS:
            raise InputError(
                f"{option_of(data, config.train_size)}: {told['training_samples']} training "
                f"samples; wanted at least {FOLDS}, some to be held out"
            )
        shape = series_shape(data)
        if shape is not None:
            told |= {"channels": shape[0], "steps": shape[1]}
        if is_resampled(data):
            told["source"] += ", split anew by every trial"
    return facts


def _drawn(y: Tensor, test_y: Tensor, generator: torch.Generator) -> Tensor:
    """Which of all samples ``[N + M]`` to train with: of each class as many as in ``y``."""
    labels = torch.cat((y, test_y))
    train = torch.zeros(len(labels), dtype=torch.bool)
    for label in y.unique().tolist():
        members = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator)
        train[members[order[: int((y == label).sum())]]] = True
    return train


def _subset(y: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Which of the samples to keep: evenly over an order by class, so that shares stay."""
    order = torch.randperm(len(y), generator=generator)
    order = order[y[order].argsort(stable=True)]
    places = (torch.arange(size) * len(y)) // size
    return order[places].sort().values
