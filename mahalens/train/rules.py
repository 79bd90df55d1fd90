"""Layer rules for stacked trials: what each layer computes, and its gradient written out.

Activations are kept feature-major, ``[T, K, n]``: sums over units then run along contiguous
samples, and the first layer of all trials is one matrix product. A rule's ``backward`` may
overwrite what its ``forward`` saved and the gradient it is given: each is used once.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mahalens.nn.chain import Chain, Layer


class Rule(Protocol):
    """A layer without parameters, applied to all trials at once."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output and keep what ``backward`` needs; may overwrite ``x``."""

    def backward(self, grad: Tensor) -> Tensor:
        """Turn the gradient of the output into that of the input."""


class AbsRule:
    """``|x|``, slope ``sign(x)``, 0 at 0."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        return x.abs()

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(self.x.sign_())


class ReLURule:
    """``max(x, 0)``, slope 0 at 0."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.y = x.relu_()
        return self.y

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.masked_fill_(self.y <= 0, 0)


class SigmoidRule:
    """``1 / (1 + exp(-x))``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.y = x.sigmoid_()
        return self.y

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(self.y).mul_(1 - self.y)


class NegRule:
    """``-x``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return x.neg()

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.neg_()


class NormRule:
    """``√Σₖ a(xₖ)²`` with the activation ``a`` before it taken in: ``[T, K, n]`` to ``[T, n]``.

    Its gradient is ``a(xₖ) a'(xₖ) / norm``; taken together, the product ``a a'`` is cheaper than
    its factors: ``x`` for Abs (or for no activation) and ``max(x, 0)`` for ReLU. Where the norm
    is 0 the gradient is 0.
    """

    def __init__(self, activation: str | None) -> None:
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.activation == "ReLU":
            x = x.relu_()
        elif self.activation == "Sigmoid":
            x = x.sigmoid_()
        self.x = x
        # Not linalg.vector_norm: over a middle axis it is 10 to 80 times slower on the CPU.
        self.norm = (x * x).sum(1).sqrt_()
        return self.norm.clone()

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        weight = torch.where(self.norm > 0, grad / self.norm, 0).unsqueeze(1)
        if self.activation == "Sigmoid":
            return (1 - self.x).mul_(self.x).mul_(self.x).mul_(weight)
        return self.x.mul_(weight)

    def bend(self) -> Tensor:
        """``(a a')'`` at the last input ``[T, K, n]``: the slope of what ``backward`` scales."""
        if self.activation == "ReLU":
            return (self.x > 0).to(self.x.dtype)
        if self.activation == "Sigmoid":
            return self.x.square() * (1 - self.x) * (2 - 3 * self.x)
        return torch.ones_like(self.x)


_ELEMENTWISE: dict[str, type[Rule]] = {
    "Abs": AbsRule,
    "ReLU": ReLURule,
    "Sigmoid": SigmoidRule,
    "Neg": NegRule,
}


class Segment:
    """One ``Linear`` and the rules up to the next one."""

    def __init__(self, linear: Layer, rules: list[Rule]) -> None:
        self.linear = linear
        self.rules = rules


def segments(chain: Chain) -> list[Segment]:
    """Cut a chain at its ``Linear`` layers; an activation right before ``Norm`` joins it."""
    cut: list[Segment] = []
    layers = chain.layers
    for place, layer in enumerate(layers):
        following = layers[place + 1].kind if place + 1 < len(layers) else None
        before = layers[place - 1].kind if place else None
        if layer.kind == "Linear":
            cut.append(Segment(layer, []))
        elif layer.kind == "Norm":
            # |x|² and (-x)² are x²: Abs and Neg need no work of their own before a Norm.
            cut[-1].rules.append(NormRule(before if before in ("ReLU", "Sigmoid") else None))
        elif following != "Norm":
            cut[-1].rules.append(_ELEMENTWISE[layer.kind]())
    return cut
