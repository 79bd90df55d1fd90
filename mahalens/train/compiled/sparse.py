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
        by_samples, by_columns = _Lists(x), _Lists(x)
        # Counted first, so that every list is written where it stays.
        for counting in (True, False):
            for rows in self.order.split(block):
                rest = x.new_zeros(_up(len(rows), panel), _up(inputs, FEW))
                rest[: len(rows), :inputs] = x[rows] - background
                for lists, dense in (
                    (by_samples, rest[:, :inputs].unflatten(0, (-1, FEW)).transpose(1, 2)),
                    (by_columns, rest.unflatten(1, (-1, FEW)).transpose(0, 1)),
                ):
                    lists.count(dense) if counting else lists.add(dense)
        self._tensors = (
            background,
            *(by_samples.starts, by_samples.places, by_samples.numbers),
            *(by_columns.starts, by_columns.places, by_columns.numbers),
        )
        entries = len(self._tensors[2]) + len(self._tensors[5])
        self.left = entries * FEW / (2 * x.numel())

    def view(self) -> SparseView:
        """The lists as the library reads them; valid as long as these samples are kept."""
        return SparseView(*[tensor.data_ptr() for tensor in self._tensors])


class _Lists:
    """Groups of ``FEW`` numbers, row by row, without those that are all 0.

    ``starts`` ``[rows + 1]`` tells where each row begins; of every group there is its place in the
    row ``[E]`` and its numbers ``[E, FEW]``.
    """

    def __init__(self, like: Tensor) -> None:
        self.starts = torch.zeros(1, dtype=torch.int64)
        self.places = torch.empty(0, dtype=torch.int32)
        self.numbers = like.new_empty(0, FEW)
        self._counts: list[Tensor] = []
        self._filled = 0

    def count(self, dense: Tensor) -> None:
        """Take note of rows of groups ``[rows, groups, FEW]`` that will be added."""
        self._counts.append((dense != 0).any(2).sum(1))

    def add(self, dense: Tensor) -> None:
        """Append these rows, once all were counted."""
        if self._counts:
            ends = torch.cat(self._counts).cumsum(0)
            self.starts = torch.cat([self.starts, ends])
            self.places = self.places.new_empty(int(ends[-1]))
            self.numbers = self.numbers.new_empty(int(ends[-1]), FEW)
            self._counts = []
        kept = (dense != 0).any(2)
        some = slice(self._filled, self._filled + int(kept.sum()))
        self.places[some] = kept.nonzero()[:, 1].int()
        self.numbers[some] = dense[kept]
        self._filled = some.stop


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
