"""Samples that are mostly background, packed so that only the rest of them is multiplied."""

from __future__ import annotations

from ctypes import Structure, c_void_p

import torch
from torch import Tensor

from mahalens.train.compiled.similar import MOST_INPUTS, similar_order

FEW = 4  # samples that share a list of columns, and columns that share a list of samples
_MOST_LEFT = 0.6  # of all numbers, up to where lists are faster
_FEWEST_SAMPLES, _FEWEST_INPUTS, _FEWEST_UNITS = 256, 128, 16
_LOOKED_AT = 1024  # samples that the background is taken from


class SparseView(Structure):
    """The lists as the library reads them; ``sparse.h`` tells their formats."""

    _fields_ = [
        (name, c_void_p)
        for name in (
            *("background", "column_starts", "columns", "column_numbers"),
            *("sample_starts", "samples", "sample_numbers"),
        )
    ]


class SparseSamples:
    """Samples ``[N, D]`` in another ``order``, as what differs from a background ``[D]``.

    Every ``FEW`` samples share a list of columns, and within each block of samples every ``FEW``
    columns share a list of samples. ``left`` is the share of the numbers that is on the lists.
    """

    def __init__(self, x: Tensor, panel: int, block: int) -> None:
        inputs = x.shape[1]
        background = background_of(x)
        self.order = similar_order(x, background, FEW)
        by_samples, by_columns = _Lists(), _Lists()
        for rows in self.order.split(block):
            rest = x.new_zeros(_up(len(rows), panel), _up(inputs, FEW))
            rest[: len(rows), :inputs] = x[rows] - background
            by_samples.add(rest[:, :inputs].unflatten(0, (-1, FEW)).transpose(1, 2))
            by_columns.add(rest.unflatten(1, (-1, FEW)).transpose(0, 1))
        self._tensors = background, *by_samples.joined(), *by_columns.joined()
        entries = len(self._tensors[2]) + len(self._tensors[5])
        self.left = entries * FEW / (2 * x.numel())

    def view(self) -> SparseView:
        """The lists as the library reads them; valid as long as these samples are kept."""
        return SparseView(*[tensor.data_ptr() for tensor in self._tensors])


class _Lists:
    """Groups of ``FEW`` numbers, row by row, without those that are all 0."""

    def __init__(self) -> None:
        self._counts: list[Tensor] = []
        self._places: list[Tensor] = []
        self._numbers: list[Tensor] = []

    def add(self, dense: Tensor) -> None:
        """Append rows of groups ``[rows, groups, FEW]``."""
        kept = (dense != 0).any(2)
        self._counts.append(kept.sum(1))
        self._places.append(kept.nonzero()[:, 1].int())
        self._numbers.append(dense[kept])

    def joined(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where each row begins ``[rows + 1]``, and of all groups place and numbers."""
        counts = torch.cat(self._counts)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        places, self._places = torch.cat(self._places), []
        numbers, self._numbers = torch.cat(self._numbers), []
        return starts, places, numbers


def sparse_samples(x: Tensor, units: int, panel: int, block: int) -> SparseSamples | None:
    """The samples ``[N, D]`` of a first layer as lists, or ``None`` where these would not pay."""
    samples, inputs = x.shape
    if samples < _FEWEST_SAMPLES or units < _FEWEST_UNITS:
        return None
    if not _FEWEST_INPUTS <= inputs <= MOST_INPUTS:
        return None
    # Neighbouring columns of some samples tell already whether there is a background.
    some = _looked_at(x) != background_of(x)
    if some[:, : inputs // FEW * FEW].unflatten(1, (-1, FEW)).any(2).float().mean() > _MOST_LEFT:
        return None
    found = SparseSamples(x, panel, block)
    return found if found.left <= _MOST_LEFT else None


def background_of(x: Tensor) -> Tensor:
    """The most frequent number of every column ``[D]``, by some of the samples ``[N, D]``."""
    return _looked_at(x).mode(0).values


def _looked_at(x: Tensor) -> Tensor:
    return x[:: -(-len(x) // _LOOKED_AT)]


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
