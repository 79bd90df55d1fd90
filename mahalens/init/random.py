"""Starting weights drawn at random, placed by the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mahalens.errors import InputError


def kaiming_through_samples(
    x: Tensor, units: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw Kaiming-normal weights and put every hyperplane through a random sample.

    ``w ~ N(0, 2/D)`` and ``b = -w·x_s`` with ``s`` uniform over the samples, so that each
    hyperplane ``w·x + b = 0`` crosses the data from the start (source 000). The draw is made on
    the CPU in float64 whatever the dtype and device of ``x``: a seed means the same start
    everywhere.

    Shapes: x ``[N, D]``; returns weight ``[K, D]`` and bias ``[K]``.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> weight, bias = kaiming_through_samples(x, 4, torch.Generator().manual_seed(0))
    >>> (x @ weight.T + bias).abs().min(0).values.max() < 1e-6
    tensor(True)
    """
    if x.ndim != 2 or not x.numel():
        raise InputError(f"samples of shape {tuple(x.shape)}; give a non-empty [N, D] tensor")
    if not x.is_floating_point():
        raise InputError(f"samples of {x.dtype}; give a float dtype, which the weights will have")
    if units < 1:
        raise InputError(f"{units} units; give at least 1")
    weight, through = kaiming_and_samples(x, units, generator)
    bias = -(weight * through).sum(-1)
    return weight.to(x), bias.to(x)


def kaiming_and_samples(
    x: Tensor, units: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Kaiming-normal rows [K, D], and a random sample for each [K, D]; float64 on the CPU."""
    weight = kaiming_rows(units, x.shape[1], generator)
    chosen = torch.randint(len(x), (units,), generator=generator)
    return weight, x[chosen.to(x.device)].to("cpu", torch.float64)


def kaiming_rows(units: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """``w ~ N(0, 2/D)`` [K, D], float64 on the CPU."""
    weight = torch.empty(units, width, dtype=torch.float64)
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    return weight
