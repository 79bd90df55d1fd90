"""Principal axes of rows, without those along which nothing varies."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mahalens.geometry.covariance import centre, lower_factor
from mahalens.geometry.whitening import spread_axes

_MARGIN = 4
"""A spread of fewer than so many rounding errors of the rows is none."""


class Axes(NamedTuple):
    """Mean [D] of rows, and R principal axes, the longest first."""

    mean: Tensor
    deviations: Tensor
    """Standard deviation along each, of the unbiased covariance: √λ [R]."""
    directions: Tensor
    """Eigenvectors as rows [R, D]; of both signs the one whose largest entry is positive."""

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.deviations)

    def whitening(self) -> Tensor:
        """Rows ``λ^(-1/2) v`` [R, D]: along each the outputs have variance 1."""
        return self.directions / self.deviations[:, None]


def principal_axes(rows: Tensor, precision: float) -> Axes:
    """Mean and principal axes of rows [n, D], float64.

    An axis counts if its spread is more than what rounding makes of no spread: each input is
    known up to ``precision`` times its size. So an input that is constant has no axis and gets
    the weight 0, whatever its value; small inputs beside large ones keep theirs.

    >>> rows = torch.tensor([[9.0, 5.0], [1.0, 5.0], [2.0, 5.0]]).double()  # the last is constant
    >>> principal_axes(rows, 1e-16).directions
    tensor([[1., 0.]], dtype=torch.float64)
    """
    count, width = rows.shape
    mean, centred = centre(rows)
    if count < 2:
        return Axes(mean, rows.new_zeros(0), rows.new_zeros(0, width))
    scaled = centred / math.sqrt(count - 1)
    if count > width:
        deviations, columns = spread_axes(lower_factor(scaled))
    else:  # the axes lie in the span of the few rows: a small problem, however wide they are
        basis, small = torch.linalg.qr(scaled.T)
        left, deviations, _ = torch.linalg.svd(small)
        columns = basis @ left
        largest = columns.abs().argmax(0, keepdim=True)
        columns = columns * columns.gather(0, largest).sign()
    sizes = rows.square().mean(0).sqrt()
    noise = _MARGIN * precision * (columns * sizes[:, None]).norm(dim=0)
    solver = max(count, width) * torch.finfo(torch.float64).eps * deviations[0]
    kept = deviations > torch.maximum(noise, solver)
    return Axes(mean, deviations[kept], columns[:, kept].T)


def mirrored(weight: Tensor, units: int) -> Tensor:
    """Each row followed by its negative, cut to ``units`` rows: a pair of ReLU units is an Abs.

    >>> mirrored(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 3)
    tensor([[ 1.,  2.],
            [-1., -2.],
            [ 3.,  4.]])
    """
    return torch.stack([weight, -weight], 1).flatten(0, 1)[:units]
