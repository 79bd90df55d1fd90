"""What every reading does first: check the shapes and move everything to float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian


def as_weight(weight: Tensor, finite: bool = True) -> Tensor:
    """The weight [K, D] as a detached float64 matrix on the CPU.

    With ``finite=False`` the caller deals with NaN and infinite entries.
    """
    if weight.dim() != 2 or 0 in weight.shape:
        raise InputError(
            f"weight has shape {list(weight.shape)}, but one layer's matrix [K, D] with at least "
            "one row and one column is wanted; pass the layers of a stack one at a time"
        )
    return _in_float64(weight, "weight", finite)


def as_bias(bias: Tensor, weight: Tensor, finite: bool = True) -> Tensor:
    """The bias [K] that goes with ``weight`` [K, D], as a detached float64 vector on the CPU."""
    units = weight.shape[0]
    if bias.shape != (units,):
        raise InputError(
            f"bias has shape {list(bias.shape)}, but the weight {list(weight.shape)} wants "
            f"[{units}]; pass the bias of the same layer, or zeros if it has none"
        )
    return _in_float64(bias, "bias", finite)


def as_point(point: Tensor, weight: Tensor) -> Tensor:
    """A point [D] of the input space of ``weight`` [K, D], detached, float64, on the CPU."""
    if point.shape != (weight.shape[1],):
        raise InputError(
            f"point has shape {list(point.shape)}, but the weight {list(weight.shape)} wants "
            f"[{weight.shape[1]}]; pass one point of the layer's input space"
        )
    return _in_float64(point, "point", finite=True)


def as_inputs(inputs: Tensor, weight: Tensor) -> Tensor:
    """Samples [N, D] of the input space of ``weight`` [K, D], detached, float64, on the CPU."""
    if inputs.dim() != 2 or inputs.shape[0] == 0 or inputs.shape[1] != weight.shape[1]:
        raise InputError(
            f"inputs have shape {list(inputs.shape)}, but the weight {list(weight.shape)} wants "
            f"[N, {weight.shape[1]}] with N >= 1; pass the samples that the layer is fed"
        )
    return _in_float64(inputs, "inputs", finite=True)


def as_gaussian(gaussian: Gaussian, columns: int | None = None) -> Gaussian:
    """One Gaussian in float64 on the CPU, in ``columns`` dimensions if that is given.

    A Gaussian that is already so is returned as it is.
    """
    if gaussian.batch_shape:
        raise InputError(
            f"the Gaussian is a batch {list(gaussian.batch_shape)}, but a single one is wanted; "
            "read the members of the batch one at a time"
        )
    if columns is not None and gaussian.dim != columns:
        raise InputError(
            f"the Gaussian has {gaussian.dim} dimensions and the weight {columns} columns; "
            "pass the Gaussian of the layer's inputs"
        )
    mean, factor = gaussian.mean, gaussian.factor
    plain = not (mean.requires_grad or factor.requires_grad)
    if plain and gaussian.dtype == torch.float64 and gaussian.device.type == "cpu":
        return gaussian
    return Gaussian(mean.detach(), factor.detach()).to(torch.float64, "cpu")


def unit_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rows at unit length [K, D] and their lengths [K]; a zero row stays zero.

    Each row is first divided by its largest entry, so that squares neither overflow nor vanish.
    """
    largest = weight.abs().amax(dim=1, keepdim=True)
    scaled = weight / torch.where(largest > 0, largest, torch.ones_like(largest))
    lengths = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    unit = scaled / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    return unit, (largest * lengths).squeeze(1)


def _in_float64(tensor: Tensor, name: str, finite: bool) -> Tensor:
    if not tensor.is_floating_point():
        raise InputError(
            f"{name} has dtype {tensor.dtype}, but real floating point numbers are wanted; "
            "convert it with .float() or .double()"
        )
    moved = tensor.detach().to("cpu").to(torch.float64)  # in this order: not all devices have it
    if finite and not bool(moved.isfinite().all()):
        raise InputError(
            f"{name} has {int((~moved.isfinite()).sum())} entries that are NaN or infinite, but "
            "finite numbers are wanted; leave out what has diverged"
        )
    return moved
