"""Checks of a layer that a user gives: its shapes, and everything in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError


def as_weight(weight: Tensor, finite: bool = True) -> Tensor:
    """Return the weight [K, D] as a detached float64 matrix on the CPU.

    With ``finite=False`` the caller deals with NaN and infinite entries.
    """
    if weight.dim() != 2 or 0 in weight.shape:
        raise InputError(
            f"weight has shape {list(weight.shape)}; give one layer's matrix [K, D] with at least "
            "one row and one column, and the layers of a stack one at a time"
        )
    return in_float64(weight, "weight", finite)


def as_bias(bias: Tensor, weight: Tensor, finite: bool = True) -> Tensor:
    """Return the bias [K] of ``weight`` [K, D] as a detached float64 vector on the CPU."""
    units = weight.shape[0]
    if bias.shape != (units,):
        raise InputError(
            f"bias has shape {list(bias.shape)}, but the weight {list(weight.shape)} wants "
            f"[{units}]; give the bias of the same layer, or zeros if it has none"
        )
    return in_float64(bias, "bias", finite)


def unit_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows at unit length [K, D] and their lengths [K]; a zero row stays zero.

    Each row is first divided by its largest entry, so that squares neither overflow nor vanish.
    """
    largest = weight.abs().amax(dim=1, keepdim=True)
    scaled = weight / torch.where(largest > 0, largest, torch.ones_like(largest))
    lengths = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    unit = scaled / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    return unit, (largest * lengths).squeeze(1)


def in_float64(tensor: Tensor, name: str, finite: bool = True) -> Tensor:
    """Return a tensor of real numbers, detached, as float64 on the CPU."""
    if not tensor.is_floating_point():
        raise InputError(
            f"{name} has dtype {tensor.dtype}; give real floating point numbers, for example with "
            ".float() or .double()"
        )
    moved = tensor.detach().to("cpu").to(torch.float64)  # in this order: not all devices have it
    if finite and not bool(moved.isfinite().all()):
        raise InputError(
            f"{name} has {int((~moved.isfinite()).sum())} entries that are NaN or infinite; give "
            "finite numbers, without what has diverged"
        )
    return moved
