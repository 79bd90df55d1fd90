"""Layers that speak in distances."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


class Abs(nn.Module):
    """Absolute value: how far a node is from its hyperplane, whichever side.

    A linear node followed by ``Abs`` is ``|w·x + b|``, the Mahalanobis distance of a
    one-dimensional Gaussian whose mean lies on the hyperplane and whose spread is ``1/‖w‖``
    (arXiv 2410.19352, section 3.3).

    Shapes: any to the same.

    >>> Abs()(torch.tensor([-2.0, 3.0]))
    tensor([2., 3.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``|x|``."""
        return x.abs()


class Neg(nn.Module):
    """Sign flip: turns a distance (small = near) into an intensity (large = near).

    Shapes: any to the same.

    >>> Neg()(torch.tensor([2.0]))
    tensor([-2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``-x``."""
        return -x


class Norm(nn.Module):
    """Euclidean norm over units, ``√(Σₖ xₖ²)``: square, sum and square root in one.

    The square root has an infinite slope at 0. There the gradient, and the second derivative, are
    defined as 0, so that a sample at which every unit is off leaves training alone instead of
    turning it into NaN. Half precision is computed in float32, whose squares do not overflow.

    Shapes: ``[..., K]`` to ``[...]``.

    >>> x = torch.zeros(2, requires_grad=True)
    >>> Norm()(x).backward(); x.grad
    tensor([0., 0.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of the last axis."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        length = root((exact * exact).sum(-1))
        return length.to(x.dtype) if x.is_floating_point() else length


def root(square: Tensor) -> Tensor:
    """Return ``√square``, with a slope defined as 0 where the square is 0.

    Shapes: any to the same.
    """
    zero = square == 0  # false for NaN, which must come out as NaN
    # The root is taken of 1 where the square is 0: no infinite slope ever enters the graph.
    length = torch.where(zero, torch.ones_like(square), square).sqrt()
    return torch.where(zero, torch.zeros_like(length), length)


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Keep products in the dtype that is asked for, on devices that would do otherwise."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


WITHOUT_PARAMETERS: dict[str, type[nn.Module]] = {
    "Abs": Abs,
    "ReLU": nn.ReLU,
    "Sigmoid": nn.Sigmoid,
    "Neg": Neg,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "Softplus": nn.Softplus,
    "LeakyReLU": nn.LeakyReLU,
    "Norm": Norm,
}
"""The class behind each name that stands for itself in a chain."""
