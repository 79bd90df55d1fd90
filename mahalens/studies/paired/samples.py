"""The samples of one trial: split, drawn and standardised alike for all models."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mahalens.data import LabelledData, load_set, stream
from mahalens.data.catalogue import TABLES
from mahalens.data.tables import TEST_SHARE, held_out
from mahalens.errors import InputError


@dataclass(frozen=True)
class Samples:
    """What a trial trains and is tested on, standardised: float32 ``[N, D]`` and int64 ``[N]``."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    image_shape: tuple[int, ...] | None

    @property
    def inputs(self) -> int:
        """How many inputs D a sample has."""
        return self.x.shape[1]


@functools.lru_cache(maxsize=8)
def whole_set(data: str) -> LabelledData:
    """A data set by name or file, kept in memory for the next trial."""
    return load_set(data)


def is_split_anew(data: str) -> bool:
    """Whether a set is split by every trial anew: the tables are, too small to be split once."""
    return data in TABLES


def samples_of(data: str, *, seed: int, trial: int, train_size: int | None) -> Samples:
    """The samples of one trial, the same for all models.

    Images and sets of the user keep their own test samples. Tables are split anew by every
    trial, 7 to 3 within each class. At most ``train_size`` training samples are drawn, classes in
    their shares. Pixels are standardised by mean and spread over all of them, as one number means
    the same in each; the features of all other sets one by one, ``(x - mean) / spread``, by the
    training samples of the trial. A feature that is constant there becomes 0.

    >>> one = samples_of("wine", seed=0, trial=0, train_size=None)
    >>> one.x.shape, one.test_x.shape, bool(one.x.mean(0).abs().max() < 1e-6)
    (torch.Size([126, 13]), torch.Size([52, 13]), True)
    """
    whole = whole_set(data)
    if is_split_anew(data):
        whole = _split(whole, stream(seed, "split", trial))
    if train_size is not None and train_size < len(whole.y):
        whole = whole.subset(train_size, stream(seed, "subset", trial))
    x, test_x = standardise(whole.x, whole.test_x, whole.image_shape is not None)
    return Samples(whole.name, x, whole.y, test_x, whole.test_y, whole.classes, whole.image_shape)


def standardise(x: Tensor, other: Tensor, pixels: bool = False) -> tuple[Tensor, Tensor]:
    """Both with mean 0 and spread 1 by the first ``[N, D]``: each feature, or all pixels as one.

    >>> standardise(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[5.0, 9.0]]))[1].tolist()
    [[3.0, 0.0]]
    """
    known = x.double()
    over = (0, 1) if pixels else (0,)
    mean = known.mean(over)
    spread = (known - mean).square().mean(over).sqrt()
    # Of a feature that is constant, rounding leaves a spread that must not be blown up.
    varies = spread > 1e-9 * known.abs().amax(over)
    factor = torch.where(varies, 1 / spread, 0.0)
    return ((known - mean) * factor).float(), ((other.double() - mean) * factor).float()


def check_sets(data: Sequence[str], train_size: int | None) -> dict[str, dict[str, Any]]:
    """Load every set and see that a study can be made with it; what a summary says of each.

    Raises :class:`~mahalens.errors.InputError` for a set that is not there (the message says which
    command gets it), has one class, labels with gaps, or more classes than ``train_size``.
    """
    from mahalens.studies.paired.config import part_of

    facts: dict[str, dict[str, Any]] = {}
    for name in data:
        whole = whole_set(name)
        if whole.classes < 2:
            raise InputError(f"--data {name}: has one class; there is nothing to tell apart")
        empty = (torch.bincount(whole.y, minlength=whole.classes) == 0).nonzero()
        if len(empty):
            label = int(empty[0])
            advice = (
                "number the classes without gaps, for example with numpy.unique(y, "
                "return_inverse=True)[1]"
            )
            if bool((whole.test_y == label).any()):
                advice = "test samples have it; give more samples of this class"
            raise InputError(
                f"--data {name}: no training sample has the label {label}, and there are labels up "
                f"to {whole.classes - 1}; {advice}"
            )
        if float(whole.x.min()) == float(whole.x.max()):
            raise InputError(f"--data {name}: all values are equal; nothing can be learned")
        if train_size is not None and train_size < whole.classes:
            raise InputError(
                f"--train-size {train_size}: {name} has {whole.classes} classes; give at least "
                "one sample for each"
            )
        taken = len(whole.y) if train_size is None else min(train_size, len(whole.y))
        facts[part_of(name)] = {
            "training_samples": taken,
            "test_samples": len(whole.test_y),
            "inputs": whole.inputs,
            "classes": whole.classes,
            "source": whole.source,
        }
    return facts


def option_of(data: str, train_size: int | None) -> str:
    """The options that decide how many samples there are, for a message.

    >>> option_of("iris", None), option_of("iris", 30)
    ('--data iris', '--data iris --train-size 30')
    """
    return f"--data {data}" + ("" if train_size is None else f" --train-size {train_size}")


def _split(whole: LabelledData, generator: torch.Generator) -> LabelledData:
    x, y = torch.cat((whole.x, whole.test_x)), torch.cat((whole.y, whole.test_y))
    test = held_out(y, TEST_SHARE, generator)
    return LabelledData(
        name=whole.name,
        x=x[~test],
        y=y[~test],
        test_x=x[test],
        test_y=y[test],
        image_shape=whole.image_shape,
        largest=whole.largest,
        source=whole.source,
    )
