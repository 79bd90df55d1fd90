"""Where each parameter of a chain sits in a trial's row of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.nn.chain import Chain, Layer

PAIRS = {"OffsetL2": ("mu", "alpha"), "PointSlope": ("weight", "point")}
"""Layers with two parameters of the same shape."""


@dataclass(frozen=True)
class Part:
    """The parameters of one layer: columns ``start`` to ``stop`` of the values.

    A ``Linear`` of K units on D inputs is kept as ``[K, D+1]``, weight and bias side by side, so
    that one matrix product covers both (without bias: ``[K, D]``). ``OffsetL2`` is ``[2, K, D]``,
    mu before alpha, and so is ``PointSlope``, weight before point.
    """

    place: int
    layer: Layer
    inputs: int
    start: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the layer's parameters taken together."""
        units = self.layer.units or 0
        if self.layer.kind in PAIRS:
            return (2, units, self.inputs)
        return (units, self.inputs + self.layer.bias)

    @property
    def stop(self) -> int:
        """The column after the last."""
        return self.start + torch.Size(self.shape).numel()

    def view(self, values: Tensor) -> Tensor:
        """These parameters of all trials, ``[T, *shape]``, sharing memory with ``values``."""
        view: Tensor = values[:, self.start : self.stop].unflatten(1, self.shape)
        return view

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """The same under their ``state_dict`` names."""
        view = self.view(values)
        if self.layer.kind in PAIRS:
            pair = zip(PAIRS[self.layer.kind], view.unbind(1), strict=True)
            return {f"{self.place}.{name}": tensor for name, tensor in pair}
        if not self.layer.bias:
            return {f"{self.place}.weight": view}
        return {f"{self.place}.weight": view[..., :-1], f"{self.place}.bias": view[..., -1]}

    def packed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Stacked parameters by name as columns of values, ``[T, stop - start]``."""
        if self.layer.kind in PAIRS:
            pair = [tensors[f"{self.place}.{name}"] for name in PAIRS[self.layer.kind]]
            return torch.stack(pair, 1).flatten(1)
        weight = tensors[f"{self.place}.weight"]
        if not self.layer.bias:
            return weight.flatten(1)
        return torch.cat([weight, tensors[f"{self.place}.bias"].unsqueeze(-1)], -1).flatten(1)


def parts(chain: Chain) -> list[Part]:
    """The layers of a chain that have parameters, in order."""
    found: list[Part] = []
    for place, (layer, width) in enumerate(zip(chain.layers, chain.widths, strict=True)):
        if layer.units is not None:
            found.append(Part(place, layer, width, found[-1].stop if found else 0))
    return found


def parameter_count(chain: Chain) -> int:
    """How many parameters one trial has.

    >>> parameter_count(Chain.parse("Linear(4), ReLU, OffsetL2(3)", inputs=2))
    36
    """
    return sum(torch.Size(part.shape).numel() for part in parts(chain))


def parameter_shapes(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of the plain module.

    >>> parameter_shapes(Chain.parse("Linear(4), ReLU", inputs=2))
    {'0.weight': (4, 2), '0.bias': (4,)}
    """
    empty = torch.empty(1, parameter_count(chain))
    return {
        name: tuple(tensor.shape[1:])
        for part in parts(chain)
        for name, tensor in part.named(empty).items()
    }
