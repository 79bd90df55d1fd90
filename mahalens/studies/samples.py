"""The samples of one trial: split, drawn and standardised alike for all models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mahalens.data import LabelledData, load_set, stream
from mahalens.data.dataset import TEST_SHARE as TEST_SHARE
from mahalens.data.dataset import standardise as standardise
from mahalens.data.named import TABLES
from mahalens.errors import InputError
from mahalens.studies.study import remember, variant_name


@dataclass(frozen=True)
class Samples:
    """Training and test samples of a trial, standardised: float32 ``[N, D]`` and int64 ``[N]``."""

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

    def to(self, device: str) -> Samples:
        """Return the same samples on a device."""
        if device == "cpu":
            return self
        moved = {n: getattr(self, n).to(device) for n in ("x", "y", "test_x", "test_y")}
        return replace(self, **moved)


@remember(8)
def whole_set(data: str) -> LabelledData:
    """Return a data set by name or file, kept in memory for the next trial."""
    return load_set(data)


def is_split_anew(data: str) -> bool:
    """Return whether every trial splits a set anew: the tables are too small to be split once."""
    return data in TABLES


def samples_of(data: str, *, seed: int, trial: int, train_size: int | None) -> Samples:
    """Return the samples of one trial, the same for all models.

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
        whole = whole.resplit(TEST_SHARE, stream(seed, "split", trial))
    if train_size is not None and train_size < len(whole.y):
        whole = whole.subset(train_size, stream(seed, "subset", trial))
    x, test_x = standardise(whole.x, whole.test_x, whole.image_shape is not None)
    return Samples(whole.name, x, whole.y, test_x, whole.test_y, whole.classes, whole.image_shape)


def check_sets(data: Sequence[str], train_size: int | None) -> dict[str, dict[str, Any]]:
    """Load every set and return facts about each, by the name that records call it.

    Raises :class:`~mahalens.errors.InputError` for a set that is not there (the message says which
    command gets it), has one class, labels with gaps, or more classes than ``train_size``.
    """
    facts: dict[str, dict[str, Any]] = {}
    for name in data:
        whole = whole_set(name)
        whole.require_learnable(f"--data {name}")
        if train_size is not None and train_size < whole.classes:
            raise InputError(
                f"--train-size {train_size}: {name} has {whole.classes} classes; give at least "
                "one sample for each"
            )
        record = variant_name(name)
        if record in facts:
            raise InputError(f"--data: two sets are called {record!r}; rename a file")
        facts[record] = {
            "training_samples": min(train_size or len(whole.y), len(whole.y)),
            "test_samples": len(whole.test_y),
            "inputs": whole.inputs,
            "classes": whole.classes,
            "source": whole.source,
        }
    return facts


def option_of(data: str, train_size: int | None) -> str:
    """Return the options that decide how many samples there are, for a message.

    >>> option_of("iris", None), option_of("iris", 30)
    ('--data iris', '--data iris --train-size 30')
    """
    return f"--data {data}" + ("" if train_size is None else f" --train-size {train_size}")
