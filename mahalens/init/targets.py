"""Layers that can be given starting weights, and how these are put into them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from mahalens.errors import InputError
from mahalens.init.rows import Convolution, Layer
from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.point_slope import PointSlope

WANTED = (
    "wanted nn.Linear, nn.Conv1d, Conv2d, Conv3d, PointSlope, OffsetL2, Mahalanobis or DistanceHead"
)


@dataclass(frozen=True)
class Hyperplanes:
    """K hyperplanes, each by its normal and a point on it: ``zₖ = wₖ·(x − pₖ)``.

    ``weight`` and ``point`` are [K, D], float64 on the CPU.
    """

    weight: Tensor
    point: Tensor

    def offset(self, dtype: torch.dtype) -> Tensor:
        """Biases ``-w·p`` [K] of the rounded weight, so that p stays on the hyperplane."""
        return -(self.weight.to(dtype).double() * self.point).sum(1)


@dataclass(frozen=True)
class Prototypes:
    """K points [K, D] and how far from each is near: ``yₖ = ‖(x − μₖ) / sₖ‖``.

    ``spread`` is [K], or [K, D] where it differs by input.
    """

    point: Tensor
    spread: Tensor


@dataclass(frozen=True)
class Ellipsoids:
    """K points [K, D] with long axes [K, R, D] and the spread across them [K].

    As in :class:`~mahalens.nn.Mahalanobis`; the last two with 1 in place of K where all share them.
    """

    point: Tensor
    axes: Tensor
    spread: Tensor


Start = Hyperplanes | Prototypes | Ellipsoids

_STARTED: dict[type[nn.Module], tuple[str, ...]] = {
    OffsetL2: ("mu", "alpha"),
    Mahalanobis: ("mu", "axes", "log_spread"),
}
_ROWS = ("weight",)


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
    holder = layer.distance if isinstance(layer, DistanceHead) else layer
    names = next((names for made, names in _STARTED.items() if isinstance(holder, made)), _ROWS)
    for name in names:
        held = holder._parameters.get(name)
        if held is None:  # as by the older weight_norm, or quantisation
            raise InputError(f"{kind} has no parameter {name!r} of its own to start; {WANTED}")
        if isinstance(held, UninitializedParameter) or held.is_meta:
            raise InputError(f"{kind} has no values yet; run it once on data, or load its weights")
        if not held.is_floating_point():
            raise InputError(f"{kind} has a {name} of {held.dtype}, wanted a float dtype")
    return layer


def units_of(layer: Layer) -> int:
    """How many units K the layer has."""
    if isinstance(layer, DistanceHead | Mahalanobis):
        return layer.classes
    return len(layer.mu if isinstance(layer, OffsetL2) else layer.weight)


def groups_of(layer: Layer) -> int:
    """How many groups of a convolution see channels of their own; 1 for all other layers."""
    return layer.groups if isinstance(layer, Convolution) else 1


def has_bias(layer: Layer) -> bool:
    """Whether what the units measure from can lie anywhere."""
    return not isinstance(layer, nn.Linear | Convolution) or layer.bias is not None


def parameters_of(layer: Layer) -> list[Tensor]:
    """What a start sets: parameters, and of a head also what was set for other distances."""
    if isinstance(layer, DistanceHead):
        return [*layer.distance.parameters(), *layer.buffers(recurse=False)]
    return [p for p in layer.parameters(recurse=False) if p is not None]


def put(layer: Layer, start: Start) -> None:
    """Set the layer's parameters; dtype, device and ``requires_grad`` stay.

    Everything is computed and checked before the first parameter is changed.
    """
    target = layer.distance if isinstance(layer, DistanceHead) else layer
    values: list[tuple[Tensor, Tensor]]
    if isinstance(start, Prototypes):
        assert isinstance(target, OffsetL2)
        exponent = -2 if target.variant == "published-code" else -1  # alpha unsquared, or squared
        spread = start.spread if start.spread.ndim == 2 else start.spread[:, None]
        alpha = spread.pow(exponent).expand_as(start.point)
        values = [(target.mu, start.point), (target.alpha, alpha)]
    elif isinstance(start, Ellipsoids):
        assert isinstance(target, Mahalanobis)
        logs = start.spread.log()[:, None].expand_as(target.log_spread)
        values = [(target.mu, start.point), (target.axes, start.axes), (target.log_spread, logs)]
    else:
        assert isinstance(layer, nn.Linear | Convolution | PointSlope)
        values = [(layer.weight, start.weight.reshape(layer.weight.shape))]
        if isinstance(layer, PointSlope):
            values.append((layer.point, start.point))
        elif layer.bias is not None:
            values.append((layer.bias, start.offset(layer.weight.dtype)))
    made = [(old, new.to(device=old.device, dtype=old.dtype)) for old, new in values]
    if not all(bool(new.isfinite().all()) for _, new in made):
        dtype = str(made[0][0].dtype).removeprefix("torch.")
        raise InputError(f"the starting weights are too large for {dtype}; scale the inputs first")
    with torch.no_grad():
        for old, new in made:
            old.copy_(new)
        if isinstance(layer, DistanceHead):
            layer.forget()
