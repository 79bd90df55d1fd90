"""Asking for numbers of inputs and units, and for the memory that they take."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from mahalens.errors import InputError

if TYPE_CHECKING:
    import torch


def require_sizes(owner: str, **sizes: object) -> None:
    """Ask for whole numbers of at least 1.

    >>> require_sizes("OffsetL2", inputs=4, units=0)
    Traceback (most recent call last):
    mahalens.errors.InputError: OffsetL2 with 0 units; give at least 1
    """
    for name, size in sizes.items():
        if not is_whole(size):
            raise InputError(f"{owner} with {size!r} {name}; give a whole number of at least 1")
        if not size >= 1:  # type: ignore[operator]
            raise InputError(f"{owner} with {size} {name}; give at least 1")


def require_parameters(
    owner: str, count: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> None:
    """Ask for the memory of so many parameters, where they are to be made on the CPU."""
    import torch

    from mahalens.geometry.memory import require_memory

    if torch.device(device or "cpu").type == "cpu":
        size = count * (dtype or torch.get_default_dtype()).itemsize
        require_memory(size, owner, "give fewer inputs, units or axes")


def is_whole(value: object) -> bool:
    """Whether it is a whole number, of Python or of NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)
