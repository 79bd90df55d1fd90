"""Tensors as short numbers for the page."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
