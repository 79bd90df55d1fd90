"""What a layer is fed, row by row: inputs of a Linear, patches of a convolution."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mahalens.auditing.watch.trace import Use

_DOUBLE_UP_TO = 512
"""Inputs up to which products are in float64: small covariances keep all their digits."""


def rows_fed(use: Use, positions: int, generator: torch.Generator) -> Tensor:
    """Rows of a layer's input [n, D] that belong together with its weight's rows.

    All rows of a Linear; of a convolution the patches at ``positions`` places of the output,
    drawn at random for each batch (all, if there are no more), the same ones for each sample.
    """
    if not use.geometry:
        return use.input.detach().reshape(-1, use.input.shape[-1])
    return patches(use, positions, generator)


def patches(use: Use, positions: int, generator: torch.Generator) -> Tensor:
    """Patches [n, channels · kernel] at random places of a convolution's output (groups = 1)."""
    geometry, dims = use.geometry, len(use.geometry["kernel"])
    x = use.input.detach()
    x = x if x.ndim == dims + 2 else x[None]
    ends = geometry.get("padding_end", geometry["padding"])
    sides = list(zip(geometry["padding"], ends, strict=True))
    padding = [size for pair in reversed(sides) for size in pair]
    padded = functional.pad(x, padding) if any(padding) else x
    grid = use.output.shape[-dims:]
    total = math.prod(grid)
    chosen = torch.randperm(total, generator=generator)[:positions] if total > positions else None
    places = torch.arange(total) if chosen is None else chosen.sort().values
    found = []
    # numpy's: that of torch loads a library for symbols, which takes seconds.
    for place in zip(*np.unravel_index(places.numpy(), tuple(grid)), strict=True):
        window = [slice(None), slice(None)]
        for axis, at in enumerate(place):
            start = at * geometry["stride"][axis]
            step = geometry["dilation"][axis]
            window.append(slice(start, start + step * (geometry["kernel"][axis] - 1) + 1, step))
        found.append(padded[tuple(window)].flatten(1))
    return torch.cat(found)


class Covariance:
    """Mean and covariance of a stream of rows, as sums of outer products about the first mean."""

    def __init__(self, width: int) -> None:
        self.rows = 0
        self._width = width
        self._chunk: list[Tensor] = []
        self._waiting = 0
        self._centre: Tensor | None = None
        self._first = torch.zeros(width, dtype=torch.float64)
        self._second = torch.zeros(width, width, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows [n, D]."""
        values = rows.to(torch.float64 if self._width <= _DOUBLE_UP_TO else torch.float32)
        if self._centre is None:
            self._centre = values.mean(0)
        self._chunk.append(values - self._centre)
        self._waiting += len(values)
        self.rows += len(values)
        # Adding to the matrix costs D² a time: wait until a product costs more than that.
        if self._waiting >= max(256, self._width):
            self._flush()

    def _flush(self) -> None:
        if self._chunk:
            block = torch.cat(self._chunk) if len(self._chunk) > 1 else self._chunk[0]
            self._first += block.sum(0)
            self._second += block.T @ block
            self._chunk, self._waiting = [], 0

    def result(self) -> tuple[Tensor, Tensor]:
        """Mean [D] and covariance [D, D] (divided by the number of rows), float64."""
        self._flush()
        offset = self._first / max(1, self.rows)
        centre = torch.zeros(self._width) if self._centre is None else self._centre
        covariance = self._second / max(1, self.rows) - torch.outer(offset, offset)
        return centre.double() + offset, covariance
