"""Samples to feed a network, with or without classes: a named set, a file or a folder of images."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mahalens.data.catalogue import PIXELS, SETS, SPLITS
from mahalens.data.labelled import LabelledData
from mahalens.data.streams import stream
from mahalens.errors import InputError
from mahalens.geometry.memory import refusing_memory

WANTED = (
    f"one of {', '.join(SETS)}, an .npz or .safetensors file with x and perhaps y, or a folder "
    f"with a folder of images for each class"
)


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Samples x [N, ...] in the shape they are stored in, with or without a class each.

    >>> load_samples("digits", limit=100)
    Samples(100 of shape [64], 10 classes, image (8, 8))
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
    """Where they came from and what was done to them, in words."""

    def __post_init__(self) -> None:
        if self.x.ndim < 1 or len(self.x) == 0:
            raise InputError("there are no samples; wanted at least one")
        if self.y is not None and len(self.y) != len(self.x):
            raise InputError(
                f"x has {len(self.x)} samples and y {len(self.y)} labels; wanted as many"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def reshaped(self, shape: tuple[int, ...]) -> Samples:
        """The same with every sample in another shape of as many values.

        >>> load_samples("digits", limit=5).reshaped((1, 8, 8)).shape
        (1, 8, 8)
        """
        if math.prod(shape) != math.prod(self.shape) or any(size < 1 for size in shape):
            raise InputError(
                f"samples of shape {list(self.shape)} cannot take the shape {list(shape)}: "
                f"{math.prod(self.shape)} values for {math.prod(shape)}"
            )
        return replace(self, x=self.x.reshape(len(self.x), *shape))

    def first(self, count: int) -> Samples:
        """The first so many of the samples."""
        y = None if self.y is None else self.y[:count]
        return replace(self, x=self.x[:count], y=y)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ", no labels"
        image = f", image {self.image}" if self.image else ""
        return f"Samples({len(self.x)} of shape {list(self.shape)}{classes}{image})"


def load_samples(
    spec: str | os.PathLike[str],
    split: str = "test",
    limit: int | None = None,
    *,
    pixels: str = "scaled",
    image_size: tuple[int, int] | None = None,
    seed: int = 0,
) -> Samples:
    """Load the samples of a named set, of a file or of a folder of images.

    - A name of :data:`mahalens.data.catalogue.SETS`: its ``"test"`` or ``"train"`` samples, or
      ``"all"``; flat [D], with the image's shape beside.
    - An ``.npz`` or ``.safetensors`` file with ``x`` [N, ...] and perhaps ``y`` [N]; with
      ``test_x`` (and ``test_y``) these are the test samples, else all samples are in every split.
    - A folder of folders of images, one for each class.

    ``pixels`` says what unsigned bytes, and the pixels of named sets, become: ``"scaled"`` to 0
    to 1, ``"raw"``, or ``"normalised"`` to mean 0 and spread 1 over all pixels of the samples
    loaded. Other values in a file are taken as they are. With a ``limit``, so many are drawn
    without replacement, the same for the same ``seed``, and kept in their order.
    """
    if split not in SPLITS:
        raise InputError(f"split is {split!r}, wanted one of {', '.join(SPLITS)}")
    if pixels not in PIXELS:
        raise InputError(f"pixels is {pixels!r}, wanted one of {', '.join(PIXELS)}")
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, wanted a positive number of samples")
    if image_size is not None and (len(image_size) != 2 or min(image_size) < 1):
        raise InputError(f"image size is {list(image_size)}, wanted H,W such as 32,32")
    if isinstance(spec, str) and spec in SETS:
        return _limited(_of_set(spec, split, pixels), limit, seed)
    path = Path(spec)
    try:
        folder, there = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name that no file can have
        folder = there = False
    if not there:
        raise InputError(f"{spec}: there is no such set, file or folder; wanted {WANTED}")
    if folder:
        return _of_folder(path, split, pixels, limit, image_size, seed)
    from mahalens.data.sample_files import read_sample_file
    from mahalens.data.user_files import SMALLER

    x, y, image = read_sample_file(path, split)
    text = str(path)
    with refusing_memory(f"{path}: x", SMALLER):
        if x.dtype == torch.uint8:
            x, said = _pixels(x, 255.0, pixels)
            text = f"{text}, {said}"
        elif not x.is_floating_point():
            x = x.to(torch.int64)
    samples = Samples(x=x, y=y, classes=_numbers(y), image=image, source=text)
    return _limited(samples, limit, seed)


def _of_set(name: str, split: str, pixels: str) -> Samples:
    from mahalens.data.sets import load_set

    data = load_set(name)
    # Where a cache lies on this machine says nothing to those who are shown a report.
    published = data.source.startswith("the published files")
    said = f"{name} as published" if published else data.source
    return from_labelled(replace(data, source=said), split, pixels)


def from_labelled(data: LabelledData, split: str = "test", pixels: str = "scaled") -> Samples:
    """The samples of labelled data, of one split or of both."""
    parts = {"train": (data.x, data.y), "test": (data.test_x, data.test_y)}
    chosen = parts.values() if split == "all" else [parts[split]]
    x, y = (torch.cat(both) for both in zip(*chosen, strict=True))
    x, said = _pixels(x, data.largest, pixels)
    shape = data.image_shape
    image = shape if shape is not None and len(shape) in (2, 3) else None
    what = "all samples" if split == "all" else f"{split} samples"
    source = f"{data.source}, {what}, {said}"
    classes = tuple(map(str, range(data.classes)))
    return Samples(x=x, y=y, classes=classes, image=image, source=source)


def _of_folder(
    path: Path,
    split: str,
    pixels: str,
    limit: int | None,
    image_size: tuple[int, int] | None,
    seed: int,
) -> Samples:
    from mahalens.data.image_folder import find_images, read_images

    try:
        names, files, labels = find_images(path)
    except InputError as error:
        try:  # a folder with IDX files or CIFAR's batches
            from mahalens.data.sets import load_set

            return _limited(from_labelled(load_set(path), split, pixels), limit, seed)
        except InputError:
            raise error from None
    y = torch.tensor(labels)
    chosen = _chosen(len(files), limit, seed)
    x = read_images([files[i] for i in chosen.tolist()], image_size)
    scaled, said = _pixels(x, 255.0, pixels)
    source = f"{len(x)} images in {path}, {said}"
    if len(x) < len(files):
        source = f"{len(x)} of {len(files)} images in {path}, drawn at random, {said}"
    shape = tuple(x.shape[1:])
    image = shape if shape[0] == 3 else shape[1:]
    return Samples(x=scaled, y=y[chosen], classes=tuple(names), image=image, source=source)


def _pixels(x: Tensor, largest: float, pixels: str) -> tuple[Tensor, str]:
    """Pixels as float32 on the scale wanted, and what was done in words."""
    values = x.to(torch.float32)
    if pixels == "raw":
        return values, "raw pixels"
    values = values / largest
    if pixels == "scaled":
        return values, "pixels from 0 to 1"
    spread, mean = torch.std_mean(values, correction=0)
    if not spread > 0:
        raise InputError("all pixels are alike, so that they cannot be normalised; give raw ones")
    return (values - mean) / spread, "pixels of mean 0 and spread 1"


def _limited(samples: Samples, limit: int | None, seed: int) -> Samples:
    count = len(samples.x)
    if limit is None or limit >= count:
        return samples
    chosen = _chosen(count, limit, seed)
    y = None if samples.y is None else samples.y[chosen]
    source = f"{samples.source}, {limit} of {count} drawn at random"
    return replace(samples, x=samples.x[chosen], y=y, source=source)


def _chosen(count: int, limit: int | None, seed: int) -> Tensor:
    if limit is None or limit >= count:
        return torch.arange(count)
    order = torch.randperm(count, generator=stream(seed, "samples", count))
    return order[:limit].sort().values


def _numbers(y: Tensor | None) -> tuple[str, ...]:
    return () if y is None else tuple(map(str, range(int(y.max()) + 1)))
