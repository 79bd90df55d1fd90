"""Layers without parameters, for stacked trials: what each computes, and its gradient written out.

Activations are kept feature-major, ``[T, K, n]``: sums over units then run along contiguous
samples, and the first layer of all trials is one matrix product. A rule keeps what its ``backward``
needs; ``backward`` may overwrite that and the gradient it is given: each is used once.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from mahalens.nn.chain import Layer


class Rule(Protocol):
    """A layer without parameters, applied to all trials at once."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output, without changing ``x``."""

    def backward(self, grad: Tensor) -> Tensor:
        """Turn the gradient of the output into that of the input."""


class AbsRule:
    """``|x|``, slope ``sign(x)``, 0 at 0."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        return x.abs()

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(self.x.sign())


class ReLURule:
    """``max(x, 0)``, slope 0 at 0."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.y = x.relu()
        return self.y

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.masked_fill_(self.y <= 0, 0)


class AbsReLURule:
    """``|x|`` for the first ``absolute`` units, ``max(x, 0)`` for the others."""

    def __init__(self, absolute: int) -> None:
        self.absolute = absolute

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        y = x.relu()
        y[:, : self.absolute] = x[:, : self.absolute].abs()
        return y

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        grad[:, : self.absolute].mul_(self.x[:, : self.absolute].sign())
        grad[:, self.absolute :].masked_fill_(self.x[:, self.absolute :] <= 0, 0)
        return grad


class SigmoidRule:
    """``1 / (1 + exp(-x))``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.y = x.sigmoid()
        return self.y

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(self.y).mul_(1 - self.y)


class TanhRule:
    """``tanh(x)``, slope ``1 - tanh²``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.y = x.tanh()
        return self.y

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(1 - self.y * self.y)


class SiLURule:
    """``x s`` with ``s = sigmoid(x)``, slope ``s (1 + x (1 - s))``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x, self.s = x, x.sigmoid()
        return x * self.s

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(self.s).mul_((1 - self.s).mul_(self.x).add_(1))


class GELURule:
    """``x Φ(x)`` with the normal distribution function, slope ``Φ(x) + x φ(x)``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        self.cdf = (x * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
        return x * self.cdf

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        density = (self.x * self.x).mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        return grad.mul_(density.mul_(self.x).add_(self.cdf))


class SoftplusRule:
    """``log(1 + exp(x))``, slope ``sigmoid(x)``; as in PyTorch ``x`` itself above 20."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        return functional.softplus(x)

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.mul_(self.x.sigmoid().masked_fill_(self.x > 20, 1))


class LeakyReLURule:
    """``x`` above 0, ``slope x`` below and at 0."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        return functional.leaky_relu(x, self.slope)

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return torch.where(self.x > 0, grad, self.slope * grad)


class NegRule:
    """``-x``."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return x.neg()

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        return grad.neg_()


class NormRule:
    """``√Σₖ a(xₖ)²`` with the activation ``a`` before it taken in: ``[T, K, n]`` to ``[T, 1, n]``.

    Its gradient is ``a(xₖ) a'(xₖ) / norm``; taken together, the product ``a a'`` is cheaper than
    its factors: ``x`` for Abs (or for no activation) and ``max(x, 0)`` for ReLU. Where the norm
    is 0 the gradient is 0.
    """

    def __init__(self, activation: str | None) -> None:
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.activation == "ReLU":
            x = x.relu()
        elif self.activation == "Sigmoid":
            x = x.sigmoid()
        self.x = x
        # Not linalg.vector_norm: over a middle axis it is 10 to 80 times slower on the CPU.
        self.norm = (x * x).sum(1, keepdim=True).sqrt_()
        return self.norm

    def backward(self, grad: Tensor) -> Tensor:  # noqa: D102
        weight = torch.where(self.norm == 0, 0, grad / self.norm)
        if self.activation == "Sigmoid":
            return (1 - self.x).mul_(self.x).mul_(self.x).mul_(weight)
        return self.x * weight

    def bend(self) -> Tensor:
        """``(a a')'`` at the last input ``[T, K, n]``: the slope of what ``backward`` scales."""
        if self.activation == "ReLU":
            return (self.x > 0).to(self.x.dtype)
        if self.activation == "Sigmoid":
            return self.x.square() * (1 - self.x) * (2 - 3 * self.x)
        return torch.ones_like(self.x)


PLAIN: dict[str, type[Rule]] = {
    "Abs": AbsRule,
    "ReLU": ReLURule,
    "Sigmoid": SigmoidRule,
    "Tanh": TanhRule,
    "SiLU": SiLURule,
    "GELU": GELURule,
    "Softplus": SoftplusRule,
    "Neg": NegRule,
}
"""Rules that need to be told nothing."""


def activation_rule(layer: Layer) -> Rule:
    """A rule for a layer that acts on each unit alone."""
    if layer.absolute is not None:
        return AbsReLURule(layer.absolute)
    return LeakyReLURule(layer.slope) if layer.kind == "LeakyReLU" else PLAIN[layer.kind]()
