"""Data sets as values: :class:`LabelledData`, split for training and testing, and :class:`Samples`.

A study trains on :class:`LabelledData`: flat samples [N, D] with a class each. It is split anew,
reduced and standardised by methods that return another value. An audit feeds a network with
:class:`Samples`, which keep the shape of a sample and may have no labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mahalens._show import facts_html, quoted, table_html
from mahalens.data.draws import stream
from mahalens.errors import InputError
from mahalens.geometry._checks import (
    count_of,
    dtype_name,
    require_finite,
    require_same_kind,
    require_tensor,
)

TEST_SHARE = 0.3
"""The share of each class of a table that is kept for testing."""


@dataclass(frozen=True, eq=False, repr=False)
class LabelledData:
    """Samples with a class each, split into N for training and M for testing.

    Values are checked once, when it is made: finite floats [N, D] and [M, D] of one dtype, int64
    labels from 0 on, and no test label above those of training.

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
                raise unequal_lengths(x_name, len(x), y_name, len(y))
        require_same_kind("test_x", self.test_x, "x", self.x)
        if self.test_x.shape[1] != self.inputs:
            raise InputError(
                f"test_x has {self.test_x.shape[1]} inputs but x has {self.inputs}; give both the "
                f"same inputs"
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
        """The number of inputs D of a sample."""
        return self.x.shape[1]

    @property
    def classes(self) -> int:
        """The number of classes C: one more than the largest label."""
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
        n = count_of("n", n)
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
        """Return the same with pixels divided by :attr:`largest`, which becomes 1."""
        x, test_x = self.x / self.largest, self.test_x / self.largest
        return replace(self, x=x, test_x=test_x, largest=1.0)

    def resplit(self, share: float, generator: torch.Generator) -> LabelledData:
        """Return the same samples split anew, with ``share`` of each class for testing.

        Training and test samples are put together, and :func:`held_out` draws the new test set.
        Use it for sets that are too small for one split to decide anything.

        >>> x, y = torch.arange(10.0)[:, None], torch.tensor([0] * 6 + [1] * 4)
        >>> data = LabelledData("mine", x[:7], y[:7], x[7:], y[7:], None, 9.0, "typed by hand")
        >>> data.resplit(0.5, torch.Generator().manual_seed(0))
        LabelledData('mine', 5 + 5 samples, inputs=1, classes=2, largest=9)
        """
        x, y = torch.cat((self.x, self.test_x)), torch.cat((self.y, self.test_y))
        test = held_out(y, share, generator)
        return replace(self, x=x[~test], y=y[~test], test_x=x[test], test_y=y[test])

    def standardised(self) -> LabelledData:
        """Return float32 samples with mean 0 and spread 1, by those of training.

        Pixels of images are standardised by one mean and one spread, as a number means the same in
        each; all other features one by one. See :func:`standardise`.
        """
        x, test_x = standardise(self.x, self.test_x, self.image_shape is not None)
        return replace(self, x=x, test_x=test_x, largest=float(x.abs().max()) or 1.0)

    def require_learnable(self, called: str) -> None:
        """Raise if there is nothing to learn: one class, a label without samples, equal values.

        ``called`` begins the message, such as ``"--data mine.npz"``.
        """
        if self.classes < 2:
            raise InputError(f"{called}: has one class; there is nothing to tell apart")
        empty = (torch.bincount(self.y, minlength=self.classes) == 0).nonzero()
        if len(empty):
            label = int(empty[0])
            advice = (
                "number the classes without gaps, for example with numpy.unique(y, "
                "return_inverse=True)[1]"
            )
            if bool((self.test_y == label).any()):
                advice = "test samples have it; give more samples of this class"
            raise InputError(
                f"{called}: no training sample has the label {label}, and there are labels up to "
                f"{self.classes - 1}; {advice}"
            )
        if float(self.x.min()) == float(self.x.max()):
            raise InputError(f"{called}: all values are equal; nothing can be learned")

    def samples(self, split: str = "test", pixels: str = "scaled") -> Samples:
        """Return the samples of one split, or of both with ``"all"``, to feed a network with.

        ``pixels`` is one of :data:`mahalens.data.named.PIXELS`.
        """
        splits = {"train": (self.x, self.y), "test": (self.test_x, self.test_y)}
        chosen = splits.values() if split == "all" else [splits[split]]
        x, y = (torch.cat(tensors) for tensors in zip(*chosen, strict=True))
        x, scale = scale_pixels(x, self.largest, pixels)
        shape = self.image_shape
        return Samples(
            x=x,
            y=y,
            classes=tuple(map(str, range(self.classes))),
            image=shape if shape is not None and len(shape) in (2, 3) else None,
            source=f"{self.source}, {split} samples, {scale}",
        )

    def _repr_html_(self) -> str:
        """Return the samples of each class."""
        counts = [torch.bincount(y, minlength=self.classes).tolist() for y in (self.y, self.test_y)]
        rows = [(label, *pair) for label, pair in enumerate(zip(*counts, strict=True))]
        shape = f"images of {list(self.image_shape)}, " if self.image_shape else ""
        sizes = f"{len(self.y):,} training and {len(self.test_y):,} test samples"
        caption = f"{self.name}: {sizes}, {shape}{self.inputs:,} inputs"
        return table_html(caption, ("class", "training", "test"), rows, [self.source])

    def __repr__(self) -> str:
        return (
            f"LabelledData({quoted(self.name)}, {len(self.y)} + {len(self.test_y)} samples, "
            f"inputs={self.inputs}, classes={self.classes}, largest={self.largest:g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Samples x [N, ...] in the shape they are stored in, with or without a class each.

    >>> Samples(torch.zeros(5, 1, 8, 8), None, (), (8, 8), "typed by hand")
    Samples(5 of shape [1, 8, 8], no labels, image (8, 8))
    """

    x: Tensor
    """[N, ...]; float32, float64 or half precision, or int64 for whole numbers such as tokens."""
    y: Tensor | None
    """Their classes [N], int64, from 0 on."""
    classes: tuple[str, ...]
    """Names of the classes; empty without labels."""
    image: tuple[int, ...] | None
    """The shape [H, W] or [C, H, W] to draw a sample as, where it is an image."""
    source: str
    """Where they came from and how they were scaled, in words."""

    def __post_init__(self) -> None:
        if self.x.ndim < 1 or len(self.x) == 0:
            raise InputError("there are no samples; give at least one")
        if self.y is not None and len(self.y) != len(self.x):
            raise unequal_lengths("x", len(self.x), "y", len(self.y))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def reshaped(self, shape: tuple[int, ...]) -> Samples:
        """Return the same with every sample in another shape of as many values.

        >>> Samples(torch.zeros(5, 64), None, (), None, "typed").reshaped((1, 8, 8)).shape
        (1, 8, 8)
        """
        if math.prod(shape) != math.prod(self.shape) or any(size < 1 for size in shape):
            raise InputError(
                f"samples of shape {list(self.shape)} cannot take the shape {list(shape)}: "
                f"{math.prod(self.shape)} values for {math.prod(shape)}"
            )
        return replace(self, x=self.x.reshape(len(self.x), *shape))

    def first(self, count: int) -> Samples:
        """Return the first ``count`` samples."""
        y = None if self.y is None else self.y[:count]
        return replace(self, x=self.x[:count], y=y)

    def drawn(self, limit: int | None, seed: int) -> Samples:
        """Return at most ``limit`` samples, drawn without replacement and kept in their order."""
        chosen = draw_indices(len(self.x), limit, seed)
        if len(chosen) == len(self.x):
            return self
        y = None if self.y is None else self.y[chosen]
        source = f"{self.source}, {limit} of {len(self.x)} drawn at random"
        return replace(self, x=self.x[chosen], y=y, source=source)

    def _repr_html_(self) -> str:
        """Return the number, shape and origin of the samples."""
        facts = {"samples": len(self.x), "shape": list(self.shape), "type": str(self.x.dtype)}
        classes = ", ".join(self.classes[:20]) + ", …" * (len(self.classes) > 20)
        more = {"classes": classes or "no labels", "source": self.source}
        return facts_html("Samples", facts | more)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ", no labels"
        image = f", image {self.image}" if self.image else ""
        return f"Samples({len(self.x)} of shape {list(self.shape)}{classes}{image})"


def draw_indices(count: int, limit: int | None, seed: int) -> Tensor:
    """Return ``limit`` of ``count`` indices, drawn without replacement, in order; all if fewer."""
    if limit is None or limit >= count:
        return torch.arange(count)
    order = torch.randperm(count, generator=stream(seed, "samples", count))
    return order[:limit].sort().values


def scale_pixels(x: Tensor, largest: float, pixels: str) -> tuple[Tensor, str]:
    """Return pixels as float32 on a scale of :data:`mahalens.data.named.PIXELS`, and its name."""
    values = x.to(torch.float32)
    if pixels == "raw":
        return values, "raw pixels"
    values = values / largest
    if pixels == "scaled":
        return values, "pixels from 0 to 1"
    spread, mean = torch.std_mean(values, correction=0)
    if not spread > 0:
        raise InputError("all pixels are equal, so they cannot be normalised; give raw ones")
    return (values - mean) / spread, "pixels of mean 0 and spread 1"


def standardise(x: Tensor, other: Tensor, pixels: bool = False) -> tuple[Tensor, Tensor]:
    """Standardise both by the first [N, D]: ``(x - mean) / spread`` of each feature, as float32.

    With ``pixels`` mean and spread are those of all features together. A feature that is constant
    in ``x`` becomes 0 in both.

    >>> standardise(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[5.0, 9.0]]))[1].tolist()
    [[3.0, 0.0]]
    """
    values = x.double()
    over = (0, 1) if pixels else (0,)
    mean = values.mean(over)
    spread = (values - mean).square().mean(over).sqrt()
    # Of a feature that is constant, rounding leaves a spread that must not be blown up.
    varies = spread > 1e-9 * values.abs().amax(over)
    factor = torch.where(varies, 1 / spread, 0.0)
    return ((values - mean) * factor).float(), ((other.double() - mean) * factor).float()


def held_out(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Draw the samples to keep for testing, a mask [N]: ``share`` of each class, rounded down.

    A class keeps at least one sample to train with.

    >>> y = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> test = held_out(y, 0.5, torch.Generator().manual_seed(0))
    >>> y[test].tolist(), y[~test].tolist()
    ([0, 0, 1], [0, 0, 1])
    """
    chosen = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique().tolist():
        members = (y == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator)
        chosen[members[order[: min(int(share * len(members)), len(members) - 1)]]] = True
    return chosen


def unequal_lengths(x_name: str, samples: int, y_name: str, labels: int) -> InputError:
    """Return the error for samples and labels that differ in number."""
    return InputError(
        f"{x_name} has {samples} samples but {y_name} has {labels} labels; give one label per "
        f"sample"
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
        """Return how far a class is above its exact share, times ``total``."""
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
