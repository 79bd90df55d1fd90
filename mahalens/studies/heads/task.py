"""What one trial is about: known classes to learn, and unknown samples to tell from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.data import stream
from mahalens.data.tables import held_out
from mahalens.studies.heads.config import OTHER, HeadsConfig
from mahalens.studies.paired.samples import samples_of, standardise, whole_set

KNOWN_SHARE = 0.7
"""How many of the classes are known where some are left out: 7 of 10."""


@dataclass(frozen=True)
class Task:
    """The samples of one trial, standardised by those to train with, float32 ``[N, D]``.

    ``held`` are training samples that no network is trained with: temperatures and reject
    thresholds are set on them. ``unknown`` is of no class that is known, ``shuffled`` are the test
    samples with the values of each in an order of its own.
    """

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    test_x: Tensor
    test_y: Tensor
    unknown: Tensor
    shuffled: Tensor
    classes: int
    image_shape: tuple[int, ...] | None


def task_of(config: HeadsConfig, data: str, trial: int) -> Task:
    """The task of one trial, the same for all models.

    Where another set is the unknown one, all classes are known and its test samples are unknown.
    Else a share of the classes is drawn to be known, and all samples of the others are unknown.
    """
    if data in OTHER:
        parts = _against_other(config, data, trial)
    else:
        parts = _against_left_out(config, data, trial)
    x, y, test_x, test_y, unknown, shape = parts
    held = held_out(y, held_share(len(y)), stream(config.seed, "held out", trial))
    return Task(
        x=x[~held],
        y=y[~held],
        held_x=x[held],
        held_y=y[held],
        test_x=test_x,
        test_y=test_y,
        unknown=unknown,
        shuffled=shuffle(test_x, stream(config.seed, "shuffled", trial)),
        classes=int(y.max()) + 1,
        image_shape=shape,
    )


_Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[int, ...] | None]


def _against_other(config: HeadsConfig, data: str, trial: int) -> _Parts:
    whole, other = whole_set(data), whole_set(OTHER[data])
    if config.train_size is not None and config.train_size < len(whole.y):
        whole = whole.subset(config.train_size, stream(config.seed, "subset", trial))
    tested = len(whole.test_y)
    x, rest = standardise(whole.x, torch.cat((whole.test_x, other.test_x)), pixels=True)
    return x, whole.y, rest[:tested], whole.test_y, rest[tested:], whole.image_shape


def _against_left_out(config: HeadsConfig, data: str, trial: int) -> _Parts:
    own = samples_of(data, seed=config.seed, trial=trial, train_size=config.train_size)
    labels = draw_known(own.y, stream(config.seed, "known classes", trial))
    y, test_y = labels[own.y], labels[own.test_y]
    known, test_known = y >= 0, test_y >= 0
    unknown = torch.cat((own.x[~known], own.test_x[~test_known]))
    test_x = own.test_x[test_known]
    # What is left out must not have a say in what mean and spread are.
    pixels, tested = own.image_shape is not None, len(test_x)
    x, rest = standardise(own.x[known], torch.cat((test_x, unknown)), pixels)
    return x, y[known], rest[:tested], test_y[test_known], rest[tested:], own.image_shape


def draw_known(y: Tensor, generator: torch.Generator) -> Tensor:
    """Draw which classes are known: the new number of each class, -1 where it is unknown.

    >>> labels = draw_known(torch.arange(10), torch.Generator().manual_seed(0))
    >>> int((labels < 0).sum()), labels[labels >= 0].tolist()
    (3, [0, 1, 2, 3, 4, 5, 6])
    """
    present = y.unique()
    count = known_of(len(present))
    drawn = present[torch.randperm(len(present), generator=generator)[:count]].sort().values
    labels = torch.full((int(present.max()) + 1,), -1)
    labels[drawn] = torch.arange(count)
    return labels


def known_of(classes: int) -> int:
    """How many of so many classes are known: at least 2, and one is left out.

    >>> [known_of(classes) for classes in (3, 4, 10)]
    [2, 3, 7]
    """
    return min(max(round(KNOWN_SHARE * classes), 2), classes - 1)


def held_share(samples: int) -> float:
    """A fifth of few samples, and less of many: 5,000 tell a temperature well enough."""
    return min(0.2, 5_000 / samples)


def shuffle(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each sample with its own values in an order of its own: nothing but their spread is left."""
    order = torch.rand(x.shape, generator=generator).argsort(1)
    return x.gather(1, order)
