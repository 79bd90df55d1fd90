"""Labelled data sets: scikit-learn's digits, MNIST, Fashion-MNIST, and folders of IDX files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mahalens.data.catalogue import (
    PUBLISHED,
    SETS,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
)
from mahalens.data.idx import read_idx
from mahalens.data.places import files_in, find_set
from mahalens.errors import InputError
from mahalens.geometry.checks import (
    dtype_name,
    require_count,
    require_finite,
    require_same_kind,
    require_tensor,
)

DIGITS_TEST = 360  # the last fifth, in scikit-learn's order


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


def load_set(name: str | os.PathLike[str]) -> LabelledData:
    """Load a labelled data set by name, or from a folder with four IDX files.

    Names are ``"digits"``, ``"mnist"`` and ``"fashion-mnist"``
    (:data:`mahalens.data.catalogue.SETS`). The files of the last two must be the published ones;
    they are looked for in ``$MAHALENS_DATA`` (``<name>``, then torchvision's ``MNIST/raw`` or
    ``FashionMNIST/raw``) or else in the user's cache folder, and then, for Fashion-MNIST, in
    Debian's package. Any other text, and every ``Path``, is a folder, whose files
    ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
    ``t10k-labels-idx1-ubyte``, plain or gzipped, are taken as they are.

    Nothing is downloaded: when a set is missing, the error says how to get it.

    >>> load_set("digits")
    LabelledData('digits', 1437 + 360 samples, inputs=64, classes=10, largest=16)
    """
    if isinstance(name, str) and name in SETS:
        return _digits() if name == "digits" else _published(name)
    folder = Path(name)
    try:
        files = files_in(folder)
    except InputError as error:
        raise InputError(
            f"{error}; wanted one of {', '.join(SETS)}, or a folder with four IDX files, "
            f"{TRAIN_IMAGES} and so on"
        ) from None
    return _from_files(folder.absolute().name, files, {}, str(folder))


def _digits() -> LabelledData:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise  # scikit-learn is there and lacks something else
        raise InputError(
            "digits comes with scikit-learn, which is not installed; pip install scikit-learn"
        ) from None
    bunch = load_digits()
    x = torch.from_numpy(bunch.data).float()
    y = torch.from_numpy(bunch.target).long()
    return LabelledData(
        name="digits",
        x=x[:-DIGITS_TEST],
        y=y[:-DIGITS_TEST],
        test_x=x[-DIGITS_TEST:],
        test_y=y[-DIGITS_TEST:],
        image_shape=(8, 8),
        largest=16.0,
        source="scikit-learn's digits",
    )


def _published(name: str) -> LabelledData:
    files = find_set(name)
    source = f"the published files in {files[TRAIN_IMAGES].parent}"
    return _from_files(name, files, PUBLISHED[name].sha256, source)


def _from_files(
    name: str, files: Mapping[str, Path], sha256: Mapping[str, str], source: str
) -> LabelledData:
    """Load the four files, whose unpacked content must have the checksums given."""
    arrays = {usual: read_idx(path, sha256.get(usual)) for usual, path in files.items()}
    for images, labels in ((TRAIN_IMAGES, TRAIN_LABELS), (TEST_IMAGES, TEST_LABELS)):
        if arrays[images].ndim < 2:
            raise InputError(
                f"{files[images]}: has shape {list(arrays[images].shape)}, wanted images, one "
                f"after another"
            )
        if arrays[labels].ndim != 1:
            raise InputError(
                f"{files[labels]}: has shape {list(arrays[labels].shape)}, wanted labels, a "
                f"single axis"
            )
        if len(arrays[images]) != len(arrays[labels]):
            raise InputError(
                f"{files[images]}: holds {len(arrays[images])} images and "
                f"{files[labels].name} {len(arrays[labels])} labels; wanted one label per image"
            )
    shape, test_shape = (tuple(arrays[key].shape[1:]) for key in (TRAIN_IMAGES, TEST_IMAGES))
    if shape != test_shape:
        raise InputError(
            f"{files[TEST_IMAGES]}: holds images of shape {list(test_shape)} and "
            f"{files[TRAIN_IMAGES].name} of {list(shape)}; wanted one shape"
        )
    try:
        return LabelledData(
            name=name,
            x=arrays[TRAIN_IMAGES].flatten(1).float(),
            y=arrays[TRAIN_LABELS].long(),
            test_x=arrays[TEST_IMAGES].flatten(1).float(),
            test_y=arrays[TEST_LABELS].long(),
            image_shape=shape if len(shape) > 1 else None,
            largest=255.0,
            source=source,
        )
    except InputError as error:
        raise InputError(f"{files[TEST_LABELS].parent}: {error}") from None


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
