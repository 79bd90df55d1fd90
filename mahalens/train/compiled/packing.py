"""The samples as the compiled engine reads them, packed once for all epochs."""

from __future__ import annotations

from ctypes import POINTER, pointer
from typing import Any

from torch import Tensor

from mahalens.train.compiled.sparse import SparseSamples, SparseView, sparse_samples

_SMALL_BYTES = 1 << 26  # up to here a second packed copy of the samples does not matter

SparsePointer = POINTER(SparseView)


class Packed:
    """Samples ``[S, N, D]`` and targets, in panels and strips or as lists of what is no background.

    ``units`` are those of a ``Linear`` that is the first layer, else 0; ``sparse`` forces lists or
    forbids them, by default they are used where they pay.
    """

    def __init__(
        self, x: Tensor, y: Tensor, panel: int, block: int, units: int, sparse: bool | None
    ) -> None:
        self.lists: SparseSamples | None = None
        if sparse:
            self.lists = SparseSamples(x[0], panel, block)
        elif sparse is None and units and len(x) == 1:
            self.lists = sparse_samples(x[0], units, panel, block)
        if self.lists is not None:
            y = y[:, self.lists.order]
        self._labels = None if y.dtype.is_floating_point else y
        self._goals = panels(y, panel) if self._labels is None else None
        self.panels = self.strips = None
        if self.lists is None:
            self.panels, self.strips = panels(x, panel), None
            # Large and in whole panels: the rows themselves serve as well as strips.
            if x.shape[2] % panel or x.nbytes <= _SMALL_BYTES:
                self.strips = strips(x, panel)

    @property
    def left(self) -> float:
        """The share of the samples' numbers that is multiplied."""
        return 1.0 if self.lists is None else self.lists.left

    def fields(self, trial: int) -> dict[str, Any]:
        """Where the library finds the samples and targets of a trial."""
        return {
            "panels": address(self.panels, trial),
            "strips": address(self.strips, trial),
            "target_panels": address(self._goals, trial),
            **({} if self._labels is None else {"targets": address(self._labels, trial)}),
            **({} if self.lists is None else {"sparse": pointer(self.lists.view())}),
        }


def address(tensor: Tensor | None, trial: int) -> int | None:
    """Where the part of a trial begins, in a tensor with one for each or one for all."""
    if tensor is None:
        return None
    return tensor[trial if len(tensor) > 1 else 0].data_ptr()


def panels(x: Tensor, panel: int) -> Tensor:
    """``[S, N, D]`` as ``[S, N / panel, D, panel]``, filled up with zeros."""
    sets, samples, width = x.shape
    packed = x.new_zeros(sets, -(-samples // panel), width, panel)
    whole = samples // panel
    packed[:, :whole] = x[:, : whole * panel].unflatten(1, (whole, panel)).transpose(2, 3)
    if samples % panel:
        packed[:, whole, :, : samples % panel] = x[:, whole * panel :].transpose(1, 2)
    return packed


def strips(x: Tensor, panel: int) -> Tensor:
    """``[S, N, D]`` as ``[S, D / panel, N, panel]``, filled up with zeros."""
    sets, samples, width = x.shape
    packed = x.new_zeros(sets, -(-width // panel), -(-samples // panel) * panel, panel)
    for number, columns in enumerate(x.split(panel, 2)):
        packed[:, number, :samples, : columns.shape[2]] = columns
    return packed
