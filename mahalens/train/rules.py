"""Layer rules for stacked trials: what each layer computes, and its gradient written out.

Activations are kept feature-major, ``[T, K, n]``: sums over units then run along contiguous
samples, and the first layer of all trials is one matrix product. A rule keeps what its ``backward``
needs; ``backward`` may overwrite that and the gradient it is given: each is used once.
"""

from __future__ import annotations

import abc
import math
from typing import Protocol

import torch
from torch import Tensor

from mahalens.train.layout import Part


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


ELEMENTWISE: dict[str, type[Rule]] = {
    "Abs": AbsRule,
    "ReLU": ReLURule,
    "Sigmoid": SigmoidRule,
    "Tanh": TanhRule,
    "SiLU": SiLURule,
    "GELU": GELURule,
    "Neg": NegRule,
}


class ParameterRule(abc.ABC):
    """A layer with parameters: the columns ``part`` of the values ``[T, P]`` of the trials."""

    def __init__(self, part: Part) -> None:
        self.part = part

    @abc.abstractmethod
    def forward(self, x: Tensor, values: Tensor) -> Tensor:
        """Compute the output, without changing ``x``."""

    @abc.abstractmethod
    def backward(self, grad: Tensor, values: Tensor) -> Tensor:
        """Turn the gradient of the output into that of the input."""

    @abc.abstractmethod
    def add_gradient(self, grad: Tensor, values: Tensor, gradient: Tensor) -> None:
        """Add the parameters' gradient to ``gradient`` ``[T, P]``; ``grad`` is the output's."""


class LinearRule(ParameterRule):
    """``W x + b`` of every trial; the parameters are ``[T, K, D+1]``, or ``[T, K, D]`` without b.

    Where all trials share their input it comes as ``[D, n]``, with a row of ones below if there is
    a bias: then one matrix product serves all trials. Keeps ``x``, and ``grad`` for Jacobians.
    """

    x: Tensor
    grad: Tensor

    def forward(self, x: Tensor, values: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        view = self.part.view(values)
        if x.ndim == 2:
            product: Tensor = (view.flatten(0, 1) @ x).unflatten(0, view.shape[:2])
            return product
        if self.part.layer.bias:
            return torch.baddbmm(view[..., -1:], view[..., :-1], x)
        return torch.bmm(view, x)

    def backward(self, grad: Tensor, values: Tensor) -> Tensor:  # noqa: D102
        weight = self.part.view(values)[..., : self.part.inputs]
        return torch.bmm(weight.transpose(1, 2), grad)

    def add_gradient(self, grad: Tensor, values: Tensor, gradient: Tensor) -> None:  # noqa: D102
        to = self.part.view(gradient)
        if self.x.ndim == 2:
            to += (grad.flatten(0, 1) @ self.x.T).unflatten(0, grad.shape[:2])
            return
        width = self.part.inputs
        to[..., :width].baddbmm_(grad, self.x.transpose(1, 2))
        if self.part.layer.bias:
            to[..., width] += grad.sum(2)


class OffsetL2Rule(ParameterRule):
    """``‖αₖ (x - μₖ)‖`` of every trial and unit; the parameters are ``[T, 2, K, D]``.

    Unit by unit, so that no array of ``[T, K, D, n]`` is made. The published code's variant is
    ``√max(Σ α (x - μ)², 1e-12)``.
    """

    @property
    def code(self) -> bool:
        """Whether this is the published code's variant."""
        return self.part.layer.variant == "published-code"

    def forward(self, x: Tensor, values: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        squares = []
        for mu, weight in self._units(values):
            away = x - mu
            squares.append((away * away).mul_(weight).sum(1))
        square = torch.stack(squares, 1)  # [T, K, n]
        self.flat = square < 1e-12 if self.code else square == 0
        self.y = square.clamp_min(1e-12).sqrt_() if self.code else square.sqrt()
        return self.y

    def backward(self, grad: Tensor, values: Tensor) -> Tensor:  # noqa: D102
        slope = torch.where(self.flat, 0, grad / self.y)
        total = self.x.new_zeros(len(values), *self.x.shape[1:])
        for unit, (mu, weight) in enumerate(self._units(values)):
            total += (self.x - mu).mul_(slope[:, unit : unit + 1]).mul_(weight)
        return total

    def add_gradient(self, grad: Tensor, values: Tensor, gradient: Tensor) -> None:  # noqa: D102
        view, to = self.part.view(values), self.part.view(gradient)
        slope = torch.where(self.flat, 0, grad / self.y)
        for unit, (mu, weight) in enumerate(self._units(values)):
            away = self.x - mu
            pull = away * slope[:, unit : unit + 1]
            to[:, 0, unit] -= weight.squeeze(-1) * pull.sum(-1)
            factor = 0.5 if self.code else view[:, 1, unit]
            to[:, 1, unit] += factor * pull.mul_(away).sum(-1)

    def _units(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each unit mu and what multiplies its squares, ``[T, D, 1]``."""
        mu, alpha = self.part.view(values).unbind(1)
        weight = alpha if self.code else alpha.square()
        return [
            (m.unsqueeze(-1), w.unsqueeze(-1))
            for m, w in zip(mu.unbind(1), weight.unbind(1), strict=True)
        ]
