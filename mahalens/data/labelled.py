"""Samples with a class each, split into those to train with and those to test with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import (
    dtype_name,
    require_count,
    require_finite,
    require_same_kind,
    require_tensor,
)


@dataclass(frozen=True, eq=False, repr=False)
class LabelledData:
    """Samples with a class each, split into N for training and M for testing.

    >>> x, y = torch.tensor([[0.0, 255.0], [51.0, 0.0]]), torch.tensor([0, 1])
    >>> data = LabelledData("mine", x, y, x, y, None, 255.0, "typed by hand")
    >>> data
    LabelledData('mine', 2 + 2 samples, inputs=2, classes=2, largest=255)
    >>> data.scaled().x.tolist()
    [[0.0, 1.0], [0.20000000298023224, 0.0]]
    """

    name: str
    x: Tensor
    """Training samples [N, D], float32 when loaded: the raw values of the pixels."""
    y: Tensor
    """Their classes [N], int64, from 0 to C - 1."""
    test_x: Tensor
    """Test samples [M, D]."""
    test_y: Tensor
    """Their classes [M]; none that training has not."""
    image_shape: tuple[int, ...] | None
    """The shape a sample had before it was flattened, such as (28, 28)."""
    largest: float
    """The largest value a pixel can have, such as 255; divided by it, pixels lie in 0 to 1."""
    source: str
    """Where the data came from, in words."""

    def __post_init__(self) -> None:
        for x_name, x, y_name, y in (
            ("x", self.x, "y", self.y),
            ("test_x", self.test_x, "test_y", self.test_y),
        ):
            _require_samples(x_name, x)
            _require_labels(y_name, y)
            if len(x) != len(y):
                raise InputError(
                    f"{x_name} has {len(x)} samples and {y_name} {len(y)} labels; wanted one "
                    f"label per sample"
                )
        require_same_kind("test_x", self.test_x, "x", self.x)
        if self.test_x.shape[1] != self.inputs:
            raise InputError(
                f"test_x has {self.test_x.shape[1]} inputs and x {self.inputs}; wanted as many"
            )
        if self.image_shape is not None and math.prod(self.image_shape) != self.inputs:
            raise InputError(
                f"image_shape is {self.image_shape}, wanted a shape of {self.inputs} pixels or None"
            )
        if not 0 < self.largest < math.inf:
            raise InputError(f"largest is {self.largest}, wanted a positive number, such as 255")
        if int(self.test_y.max()) >= self.classes:
            raise InputError(
                f"test_y has the label {int(self.test_y.max())}, wanted 0 to {self.classes - 1}, "
                f"the labels there are in training"
            )

    @property
    def inputs(self) -> int:
        """How many inputs D a sample has."""
        return self.x.shape[1]

    @property
    def classes(self) -> int:
        """How many classes C there are: one more than the largest label."""
        return int(self.y.max()) + 1

    def subset(self, n: int, generator: torch.Generator) -> LabelledData:
        """Draw n training samples without replacement and leave the test set as it is.

        Classes keep their shares as well as whole numbers allow, and each keeps at least one
        sample. The samples stay in their order, so that n = N gives the same data.

        >>> x, y = torch.zeros(10, 1), torch.tensor([0] * 6 + [1] * 4)
        >>> data = LabelledData("mine", x, y, x, y, None, 1.0, "typed by hand")
        >>> data.subset(5, torch.Generator().manual_seed(0)).y.tolist()
        [0, 0, 0, 1, 1]
        """
        require_count("n", n)
        sizes = torch.bincount(self.y).tolist()
        fewest = sum(size > 0 for size in sizes)
        if not fewest <= n <= len(self.y):
            raise InputError(
                f"n is {n}, wanted at least {fewest}, one sample for each class of {self.name}, "
                f"and at most {len(self.y)}, all its training samples"
            )
        drawn = []
        for label, count in enumerate(_shares(sizes, n)):
            members = (self.y == label).nonzero().squeeze(1)
            order = torch.randperm(len(members), generator=generator, device=generator.device)
            drawn.append(members[order[:count].to(members.device)])
        chosen = torch.cat(drawn).sort().values
        source = f"{self.source}, {n} of {len(self.y)} training samples drawn at random"
        return replace(self, x=self.x[chosen], y=self.y[chosen], source=source)

    def scaled(self) -> LabelledData:
        """The same with pixels divided by :attr:`largest`, which becomes 1."""
        x, test_x = self.x / self.largest, self.test_x / self.largest
        return replace(self, x=x, test_x=test_x, largest=1.0)

    def __repr__(self) -> str:
        return (
            f"LabelledData({self.name!r}, {len(self.y)} + {len(self.test_y)} samples, "
            f"inputs={self.inputs}, classes={self.classes}, largest={self.largest:g})"
        )


def _shares(sizes: list[int], n: int) -> list[int]:
    """Split n among classes in proportion to their sizes, at least 1 for each that has samples.

    Largest remainders, in whole numbers. A class raised to 1 is paid for by those that are most
    above their share; ties go to the smaller label.

    >>> _shares([60, 30, 10], 5)
    [3, 1, 1]
    >>> _shares([1000, 1, 0, 1], 3)
    [1, 1, 0, 1]
    """
    total = sum(sizes)
    counts = [max(n * size // total, min(size, 1)) for size in sizes]

    def above(label: int) -> int:
        """How far a class is above its exact share, times ``total``."""
        return counts[label] * total - n * sizes[label]

    while sum(counts) < n:
        counts[min(range(len(sizes)), key=above)] += 1
    while sum(counts) > n:
        counts[max((k for k in range(len(sizes)) if counts[k] > 1), key=above)] -= 1
    return counts


def _require_samples(name: str, x: Tensor) -> None:
    require_tensor(name, x, "[..., N, D]")
    if x.ndim != 2:
        raise InputError(f"{name} has shape {list(x.shape)}, wanted [N, D]; flatten each sample")
    require_finite(name, x)


def _require_labels(name: str, y: Tensor) -> None:
    if not isinstance(y, Tensor):
        raise InputError(
            f"{name} is a {type(y).__name__}, wanted a torch tensor [N]; "
            f"convert it with torch.as_tensor"
        )
    if y.dtype != torch.int64 or y.ndim != 1:
        raise InputError(
            f"{name} is {dtype_name(y.dtype)} of shape {list(y.shape)}, wanted int64 [N]"
        )
    if len(y) and int(y.min()) < 0:
        raise InputError(f"{name} has the label {int(y.min())}, wanted labels from 0 on")
