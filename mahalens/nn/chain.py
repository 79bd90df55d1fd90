"""An architecture as data: a chain of layers that builds one module or a stack of trials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from mahalens.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

ELEMENTWISE = ("Abs", "ReLU", "Sigmoid", "Neg")
"""Layers that act on each unit alone."""

_LINEAR = re.compile(r"Linear\(\s*(\d+)\s*(?:,\s*bias\s*=\s*(True|False)\s*)?\)")
_SEPARATOR = re.compile(r",(?![^()]*\))")


class Layer(msgspec.Struct, frozen=True):
    """One link of a chain: ``Linear`` with its units and bias, an activation, or ``Norm``."""

    kind: str
    units: int | None = None
    bias: bool = True

    def __str__(self) -> str:
        if self.units is None:
            return self.kind
        return f"Linear({self.units})" if self.bias else f"Linear({self.units}, bias=False)"


class Chain(msgspec.Struct, frozen=True):
    """A named sequence of layers on ``inputs`` inputs.

    Its text can be pasted back, and is what run folders record:

    >>> chain = Chain.parse("Linear(4), ReLU, Norm", inputs=2)
    >>> print(chain)
    Linear(4), ReLU, Norm
    >>> import torch
    >>> chain.build()(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    inputs: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        if self.inputs < 1:
            raise InputError(f"a chain with {self.inputs} inputs; give at least 1")
        if not self.layers:
            raise InputError("a chain without layers; give at least one, such as 'Linear(4), Abs'")
        normed = False
        for place, layer in enumerate(self.layers):
            if layer.kind == "Linear":
                if layer.units is None or layer.units < 1:
                    raise InputError(f"layer {place}: Linear needs at least 1 unit")
                if normed:
                    raise InputError(f"layer {place}: Linear after Norm, which leaves no units")
            elif layer.kind == "Norm":
                if normed:
                    raise InputError(f"layer {place}: a second Norm; the first left no units")
                normed = True
            elif layer.kind not in ELEMENTWISE:
                known = ", ".join(("Linear(units)", *ELEMENTWISE, "Norm"))
                raise InputError(f"layer {place}: unknown layer {layer.kind!r}; known: {known}")
            if layer.kind != "Linear" and layer != Layer(layer.kind):
                raise InputError(f"layer {place}: {layer.kind} takes no units or bias of its own")

    @classmethod
    def parse(cls, text: str, *, inputs: int) -> Chain:
        """Read a chain from text such as ``"Linear(128), ReLU, Linear(10, bias=False)"``."""
        layers = []
        for part in (p.strip() for p in _SEPARATOR.split(text)):
            if match := _LINEAR.fullmatch(part):
                layers.append(Layer("Linear", int(match[1]), match[2] != "False"))
            elif part.startswith("Linear"):
                raise InputError(f"cannot read {part!r}; write Linear(4) or Linear(4, bias=False)")
            else:
                layers.append(Layer(part))
        return cls(inputs, tuple(layers))

    def __str__(self) -> str:
        return ", ".join(str(layer) for layer in self.layers)

    @property
    def scalar(self) -> bool:
        """Whether the chain ends in one number per sample (it has a ``Norm``)."""
        return any(layer.kind == "Norm" for layer in self.layers)

    def build(
        self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> nn.Sequential:
        """Make the plain module, with PyTorch's default starting weights.

        Shapes: ``[..., D]`` to ``[..., K]`` of the last ``Linear``, or to ``[...]`` with ``Norm``.
        """
        from torch import nn

        from mahalens.nn.layers import Abs, Neg, Norm

        makers = {"Abs": Abs, "ReLU": nn.ReLU, "Sigmoid": nn.Sigmoid, "Neg": Neg, "Norm": Norm}
        modules: list[nn.Module] = []
        width = self.inputs
        for layer in self.layers:
            if layer.units is not None:
                linear = nn.Linear(width, layer.units, layer.bias, device=device, dtype=dtype)
                modules.append(linear)
                width = layer.units
            else:
                modules.append(makers[layer.kind]())
        return nn.Sequential(*modules)
