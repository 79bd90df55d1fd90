"""Samples with or without classes from an ``.npz`` or a ``.safetensors`` file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mahalens.data.user_files import SMALLER, array_names, labels_of, read_arrays, samples_of
from mahalens.errors import InputError
from mahalens.geometry.memory import refusing_memory

MOST_CLASSES = 1 << 16
WANTED = "an array x [N, ...] with the samples, and perhaps y [N] with their classes"


def read_sample_file(
    path: Path, split: str = "test"
) -> tuple[Tensor, Tensor | None, tuple[int, ...] | None]:
    """Read x [N, ...], y [N] or None, and the shape to draw a sample as, or None.

    With ``test_x`` in the file, the split says whether it, ``x`` or both are taken; without, it
    is ``x``. Every fault raises :class:`~mahalens.errors.InputError` with one line that begins
    with the file's name. Nothing in it is unpickled.
    """
    arrays = read_arrays(path, WANTED)
    try:
        if "x" not in arrays:
            raise InputError(f"has no x; wanted {WANTED}{_instead(path)}")
        with refusing_memory("x", SMALLER):
            return _taken(arrays, split)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _taken(
    arrays: dict[str, Tensor], split: str
) -> tuple[Tensor, Tensor | None, tuple[int, ...] | None]:
    pairs = {"train": ("x", "y"), "test": ("test_x", "test_y")}
    names = [pairs["train"], pairs["test"]] if split == "all" else [pairs[split]]
    if "test_x" not in arrays:
        names = [pairs["train"]]
    xs = [samples_of(name, arrays[name]) for name, _ in names]
    kinds = {(x.dtype, tuple(x.shape[1:])) for x in xs}
    if len(kinds) > 1:
        raise InputError("x and test_x differ in dtype or in the shape of a sample")
    labelled = [labels in arrays for _, labels in names]
    if len(set(labelled)) > 1:
        raise InputError("has labels for one of x and test_x only; add the others, or leave them")
    x = torch.cat(xs)
    if not all(labelled):
        return x, None, image_shape(x)
    sized = zip(names, xs, strict=True)
    y = torch.cat([labels_of(of, arrays[of], len(one), MOST_CLASSES) for (_, of), one in sized])
    return x, y, image_shape(x)


def _instead(path: Path) -> str:
    """What a file has that has no x."""
    names = array_names(path)
    if not names:
        return ""
    several = ", and an audit feeds a network one" if len(names) > 1 else ""
    return f"; it has {', '.join(names[:4])}{several}"


def image_shape(x: Tensor) -> tuple[int, ...] | None:
    """The shape to draw a sample of x [N, ...] as: [H, W], or [C, H, W] with 1 or 3 colours.

    >>> image_shape(torch.zeros(5, 1, 8, 8)), image_shape(torch.zeros(5, 3, 8, 9))
    ((8, 8), (3, 8, 9))
    >>> image_shape(torch.zeros(5, 64))
    """
    shape = tuple(x.shape[1:])
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return None
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 3 and shape[0] != 3:
        return None
    return shape if len(shape) in (2, 3) and min(shape[-2:]) > 3 else None
