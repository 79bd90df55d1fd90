"""Tensors as short numbers for the page, and texts as ones that can be shown."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mahalens.console import printable

T = TypeVar("T")
Floats = NDArray[np.float64]

DIGITS = 4
"""Significant digits of the numbers in the page; the record's files have them all."""


def array(values: Tensor) -> Floats:
    """A tensor of any number type as float64."""
    import torch

    return values.detach().to("cpu", torch.float64).numpy()


def short(values: Tensor | Floats, digits: int = DIGITS) -> list[Any]:
    """Numbers rounded to ``digits`` significant digits, in lists as nested as the array.

    NaN and infinities stay; JSON has null for them.

    >>> short(np.array([[0.123456, 98765.4], [1e-7, 0.0]]))
    [[0.1235, 98770.0], [1e-07, 0.0]]
    """
    numbers = array(values) if isinstance(values, Tensor) else np.asarray(values, dtype=np.float64)
    usable = np.isfinite(numbers) & (numbers != 0)
    sizes = np.abs(np.where(usable, numbers, 1.0))
    places = np.clip(digits - 1 - np.floor(np.log10(sizes)), -300, 300)
    # Division by a whole power of ten gives the float that prints shortest.
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.round(numbers / down * up) / up * down
    result: list[Any] = np.where(usable & np.isfinite(rounded), rounded, numbers).tolist()
    return result


def one(value: float | None) -> float | None:
    """A single number in the same way.

    >>> one(0.123456), one(None)
    (0.1235, None)
    """
    rounded: float | None = None if value is None else short(np.array([value]))[0]
    return rounded


def with_visible_text(value: T) -> T:
    """Return a record, or a part of one, in which every text is printable.

    Names of layers and classes come from files, and may hold what a terminal or a page obeys.
    """
    shown: Any = value
    if isinstance(value, str):
        shown = printable(value)
    elif isinstance(value, msgspec.Struct):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: with_visible_text(part) for name, part in parts.items()}
        shown = msgspec.structs.replace(value, **changed)
    elif isinstance(value, dict):
        shown = {printable(name): with_visible_text(part) for name, part in value.items()}
    elif isinstance(value, tuple) and not (value and isinstance(value[0], int)):
        shown = tuple(map(with_visible_text, value))
    result: T = shown
    return result
