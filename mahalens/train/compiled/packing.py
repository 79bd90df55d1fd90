"""The samples as the compiled engine reads them, packed once for all epochs.

Dense samples are laid out in panels and strips. Samples that are mostly background, as images are,
become lists of the other numbers: only these are multiplied. The lists are short if samples that
differ from the background in the same columns are neighbours, which :func:`similar_order` arranges.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_void_p, pointer
from typing import Any

import torch
from torch import Tensor

FEW = 4  # samples that share a list of columns, and columns that share a list of samples
_FEWEST_SAMPLES, _FEWEST_INPUTS, _FEWEST_UNITS = 256, 128, 16
_MOST_INPUTS = 2**13  # with more columns the sums of the similar order would not be exact
_BACKGROUND_SAMPLES = 1024  # the background is estimated from so many samples

_AXES_SAMPLES = 4096  # the axes of the similar order are computed from so many samples
_AXES = 16
_ROUNDS = 2  # of the power method
_CHUNK = 4096
_SIZE = 2**19  # whole numbers up to here: a sum of so many products of two of them is exact


class SparseView(Structure):
    """The lists as the library reads them; for their format see ``sparse.h``."""

    _fields_ = [
        (name, c_void_p)
        for name in (
            *("background", "column_starts", "columns", "column_numbers"),
            *("sample_starts", "samples", "sample_numbers"),
        )
    ]


SparsePointer = POINTER(SparseView)


class Packed:
    """Samples ``[S, N, D]`` and targets, in panels and strips or as lists.

    ``units`` are those of a ``Linear`` that is the first layer, otherwise 0; ``sparse`` forces
    lists or forbids them, by default they are used where they are faster: where they hold at most
    a share ``most_left`` of the numbers. Above ``small_bytes`` there are no strips if the rows
    themselves serve as well.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        panel: int,
        block: int,
        units: int,
        sparse: bool | None,
        most_left: float,
        small_bytes: int,
    ) -> None:
        self.lists: SparseSamples | None = None
        if sparse or (sparse is None and len(x) == 1 and _looks_sparse(x[0], units, most_left)):
            lists = SparseSamples(x[0], panel, block)
            self.lists = lists if sparse or lists.left <= most_left else None
        if self.lists is not None:
            y = y[:, self.lists.order]
        self._labels = None if y.dtype.is_floating_point else y
        self._goals = panels(y, panel) if self._labels is None else None
        self.panels = self.strips = None
        if self.lists is None:
            self.panels = panels(x, panel)
            # Large and in whole panels: the rows themselves serve as well as strips.
            if x.shape[2] % panel or x.nbytes <= small_bytes:
                self.strips = strips(x, panel)

    @property
    def left(self) -> float:
        """The share of the samples' numbers that is multiplied."""
        return 1.0 if self.lists is None else self.lists.left

    def fields(self, trial: int) -> dict[str, Any]:
        """Return the addresses of a trial's samples and targets, by field of the problem."""
        return {
            "panels": address(self.panels, trial),
            "strips": address(self.strips, trial),
            "target_panels": address(self._goals, trial),
            **({} if self._labels is None else {"targets": address(self._labels, trial)}),
            **({} if self.lists is None else {"sparse": pointer(self.lists.view())}),
        }


def address(tensor: Tensor | None, trial: int) -> int | None:
    """Return where a trial's part begins in a tensor ``[S, ...]``, S = 1 if trials share it."""
    if tensor is None:
        return None
    return tensor[trial if len(tensor) > 1 else 0].data_ptr()


def panels(x: Tensor, panel: int) -> Tensor:
    """Pack ``[S, N, D]`` as ``[S, N / panel, D, panel]``, filled up with zeros."""
    sets, samples, width = x.shape
    packed = x.new_zeros(sets, -(-samples // panel), width, panel)
    whole = samples // panel
    packed[:, :whole] = x[:, : whole * panel].unflatten(1, (whole, panel)).transpose(2, 3)
    if samples % panel:
        packed[:, whole, :, : samples % panel] = x[:, whole * panel :].transpose(1, 2)
    return packed


def strips(x: Tensor, panel: int) -> Tensor:
    """Pack ``[S, N, D]`` as ``[S, D / panel, N, panel]``, filled up with zeros."""
    sets, samples, width = x.shape
    packed = x.new_zeros(sets, -(-width // panel), _round_up(samples, panel), panel)
    for number, columns in enumerate(x.split(panel, 2)):
        packed[:, number, :samples, : columns.shape[2]] = columns
    return packed


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class SparseSamples:
    """Samples ``[N, D]`` in another ``order``, as differences from a background ``[D]``.

    Every ``FEW`` samples share a list of columns, and within each block of samples every ``FEW``
    columns share a list of samples. ``left`` is the share of the numbers that is on the lists.
    """

    def __init__(self, x: Tensor, panel: int, block: int) -> None:
        inputs = x.shape[1]
        background = background_of(x)
        self.order = similar_order(x, background, FEW)
        by_samples, by_columns = _Lists(x), _Lists(x)
        # Counted first: every list is then written to its final place.
        for counting in (True, False):
            for rows in self.order.split(block):
                rest = x.new_zeros(_round_up(len(rows), panel), _round_up(inputs, FEW))
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
        """Return the lists as the library reads them; valid as long as these samples exist."""
        return SparseView(*[tensor.data_ptr() for tensor in self._tensors])


class _Lists:
    """Groups of ``FEW`` numbers, row by row, without those that are all 0.

    Row i begins at ``starts[i]``, of ``[rows + 1]``; of every group there is its place in the row
    ``[E]`` and its numbers ``[E, FEW]``.
    """

    def __init__(self, like: Tensor) -> None:
        self.starts = torch.zeros(1, dtype=torch.int64)
        self.places = torch.empty(0, dtype=torch.int32)
        self.numbers = like.new_empty(0, FEW)
        self._counts: list[Tensor] = []
        self._filled = 0

    def count(self, dense: Tensor) -> None:
        """Count the groups of rows ``[rows, groups, FEW]`` that will be added."""
        self._counts.append((dense != 0).any(2).sum(1))

    def add(self, dense: Tensor) -> None:
        """Append these rows, once all were counted."""
        if self._counts:
            ends = torch.cat(self._counts).cumsum(0)
            self.starts = torch.cat([self.starts, ends])
            self.places = self.places.new_empty(int(ends[-1]))
            self.numbers = self.numbers.new_empty(int(ends[-1]), FEW)
            self._counts = []
        nonzero = (dense != 0).any(2)
        some = slice(self._filled, self._filled + int(nonzero.sum()))
        self.places[some] = nonzero.nonzero()[:, 1].int()
        self.numbers[some] = dense[nonzero]
        self._filled = some.stop


def _looks_sparse(x: Tensor, units: int, most_left: float) -> bool:
    """Whether lists of the samples ``[N, D]`` of a first layer may be faster."""
    samples, inputs = x.shape
    if samples < _FEWEST_SAMPLES or units < _FEWEST_UNITS:
        return False
    if not _FEWEST_INPUTS <= inputs <= _MOST_INPUTS:
        return False
    # Neighbouring columns of some samples show already whether there is a background.
    some = _every_nth(x, _BACKGROUND_SAMPLES) != background_of(x)
    groups = some[:, : inputs // FEW * FEW].unflatten(1, (-1, FEW)).any(2)
    return bool(groups.float().mean() <= most_left)


def background_of(x: Tensor) -> Tensor:
    """Return the most frequent number of every column ``[D]``, from some samples ``[N, D]``."""
    return _every_nth(x, _BACKGROUND_SAMPLES).mode(0).values


def _every_nth(x: Tensor, count: int) -> Tensor:
    """At most ``count`` samples, evenly spaced."""
    return x[:: -(-len(x) // count)]


def similar_order(x: Tensor, background: Tensor, leaf: int) -> Tensor:
    """Order ``[N]`` the samples ``[N, D]``: halved again and again, down to ``leaf`` samples.

    Every group is halved along the one of a few principal axes on which it is widest. Only which
    columns differ from the background matters.

    The order decides in which sequence numbers are added up, and must not depend on the number of
    threads, not even by rounding. All sums here are therefore over whole numbers, small enough to
    be exact in any sequence; everything else is computed element by element.
    """
    axes = principal_axes((_every_nth(x, _AXES_SAMPLES) != background).double())
    scores = torch.cat([(part != background).double() @ axes for part in x.split(_CHUNK)])
    scores /= (axes * axes).sum(0).sqrt().clamp_min(1)  # axes of length 1
    return _bisected(_whole(scores, 2**14).long(), leaf)


def principal_axes(pattern: Tensor) -> Tensor:
    """Return principal axes of 0s and 1s ``[n, D]`` as whole numbers ``[D, A]``."""
    counts = pattern.sum(0)
    covariance = len(pattern) * (pattern.T @ pattern) - counts[:, None] * counts
    covariance = _whole(covariance, _SIZE)
    # Begin with pseudo-random signs.
    mixed = torch.arange(len(covariance))[:, None] * _AXES + torch.arange(_AXES) + 1
    for _ in range(3):
        mixed = mixed * 6364136223846793005 + 1442695040888963407  # wraps around modulo 2^64
        mixed = mixed ^ (mixed >> 29)
    axes = ((mixed >> 32) % 2 * 2 - 1).double()
    for _ in range(_ROUNDS):
        orthogonal: list[Tensor] = []
        for axis in (covariance @ axes).T:
            left = _whole(axis, _SIZE)
            for other in orthogonal:
                share = (left * other).sum() / (other * other).sum().clamp_min(1)
                left = _whole(left - share * other, _SIZE)
            orthogonal.append(left)
        axes = torch.stack(orthogonal, 1)
    return axes


def _whole(numbers: Tensor, most: int) -> Tensor:
    """Scale the numbers to a largest of ``most``, and round them."""
    return (numbers * (most / numbers.abs().max().clamp_min(1))).round()


def _bisected(scores: Tensor, leaf: int) -> Tensor:
    """All groups of a level at once; a group is a run of the order."""
    order = torch.arange(len(scores))
    starts = torch.zeros(1, dtype=torch.int64)
    while True:
        stops = torch.cat([starts[1:], torch.tensor([len(order)])])
        sizes = stops - starts
        if int(sizes.max()) <= leaf:
            return order
        sorted_scores = scores[order]
        none = sorted_scores.new_zeros(1, scores.shape[1])
        sums = torch.cat([none, sorted_scores.cumsum(0)])
        squares = torch.cat([none, (sorted_scores * sorted_scores).cumsum(0)])
        sums, squares = sums[stops] - sums[starts], squares[stops] - squares[starts]
        mean = sums.double() / sizes[:, None]
        axis = (squares.double() / sizes[:, None] - mean * mean).argmax(1)
        group = torch.repeat_interleave(torch.arange(len(starts)), sizes)
        along = sorted_scores.gather(1, axis[group][:, None]).squeeze(1)
        # By group, within it along its axis.
        low, high = int(along.min()), int(along.max())
        order = order[(group * (high - low + 1) + along - low).argsort(stable=True)]
        halves = (-(-sizes // 2) + leaf - 1) // leaf * leaf
        middles = (starts + halves)[sizes > leaf]
        starts = torch.cat([starts, middles]).sort().values
