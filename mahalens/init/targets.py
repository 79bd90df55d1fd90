"""Layers that can be given starting weights, and how these are put into them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from mahalens.errors import InputError
from mahalens.init.rows import Convolution, Layer
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.point_slope import PointSlope

WANTED = "wanted nn.Linear, nn.Conv1d, Conv2d, Conv3d, PointSlope or OffsetL2"


@dataclass(frozen=True)
class Hyperplanes:
    """K hyperplanes, each by its normal and a point on it: ``zₖ = wₖ·(x − pₖ)``.

    ``weight`` and ``point`` are [K, D], float64 on the CPU.
    """

    weight: Tensor
    point: Tensor


@dataclass(frozen=True)
class Prototypes:
    """K points [K, D] and how far from each is near [K]: ``yₖ = ‖x − μₖ‖ / sₖ``."""

    point: Tensor
    spread: Tensor


Start = Hyperplanes | Prototypes


def check_layer(layer: nn.Module) -> Layer:
    """The layer, if starting weights can be put into it; otherwise say why not.

    >>> check_layer(nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)
    """
    kind = type(layer).__name__
    if not isinstance(layer, Layer):
        raise InputError(f"{kind} cannot be started; {WANTED}")
    if parametrize.is_parametrized(layer):
        raise InputError(
            f"{kind} has parametrizations, which make its weights; start it before these are put on"
        )
    for name in ("mu", "alpha") if isinstance(layer, OffsetL2) else ("weight",):
        held = layer._parameters.get(name)
        if held is None:  # as by the older weight_norm, or quantisation
            raise InputError(f"{kind} has no parameter {name!r} of its own to start; {WANTED}")
        if isinstance(held, UninitializedParameter) or held.is_meta:
            raise InputError(f"{kind} has no values yet; run it once on data, or load its weights")
        if not held.is_floating_point():
            raise InputError(f"{kind} has a {name} of {held.dtype}, wanted a float dtype")
    if isinstance(layer, Convolution) and layer.groups != 1:
        raise InputError(
            f"{kind} has {layer.groups} groups, wanted 1: its units see no same patches"
        )
    return layer


def units_of(layer: Layer) -> int:
    """How many units K the layer has."""
    return len(layer.mu if isinstance(layer, OffsetL2) else layer.weight)


def has_bias(layer: Layer) -> bool:
    """Whether hyperplanes of the layer can lie anywhere."""
    return isinstance(layer, PointSlope | OffsetL2) or layer.bias is not None


def parameters_of(layer: Layer) -> list[nn.Parameter]:
    """The parameters that a start sets."""
    return [p for p in layer.parameters(recurse=False) if p is not None]


def put(layer: Layer, start: Start) -> None:
    """Set the layer's parameters; dtype, device and ``requires_grad`` stay.

    A bias is ``-w·p`` of the weight as it is after rounding, so that the point stays on the
    hyperplane. Everything is computed and checked before the first parameter is changed.
    """
    if isinstance(start, Prototypes):
        assert isinstance(layer, OffsetL2)
        exponent = -2 if layer.variant == "published-code" else -1  # alpha unsquared, or squared
        alpha = start.spread.pow(exponent)[:, None].expand_as(start.point)
        values: list[tuple[Tensor, Tensor]] = [(layer.mu, start.point), (layer.alpha, alpha)]
    else:
        assert not isinstance(layer, OffsetL2)
        values = [(layer.weight, start.weight.reshape(layer.weight.shape))]
        if isinstance(layer, PointSlope):
            values.append((layer.point, start.point))
        elif layer.bias is not None:
            rounded = start.weight.to(layer.weight.dtype).double()
            values.append((layer.bias, -(rounded * start.point).sum(1)))
    made = [(old, new.to(device=old.device, dtype=old.dtype)) for old, new in values]
    if not all(bool(new.isfinite().all()) for _, new in made):
        dtype = str(made[0][0].dtype).removeprefix("torch.")
        raise InputError(f"the starting weights are too large for {dtype}; scale the inputs first")
    with torch.no_grad():
        for old, new in made:
            old.copy_(new)
