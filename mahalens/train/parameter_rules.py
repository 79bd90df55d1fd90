"""Layers with parameters, for stacked trials: what each computes, and its gradient written out.

As in :mod:`mahalens.train.rules`, activations are feature-major, ``[T, K, n]``.
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from mahalens.train.layout import Part


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


class PointSlopeRule(ParameterRule):
    """``wₖ · (x - pₖ)`` of every trial and unit; the parameters are ``[T, 2, K, D]``.

    Computed as ``wₖ · x - wₖ · pₖ``. With ``g`` the gradient of the output and ``s = Σₙ g``, that
    of w is ``Σₙ g xᵀ - s p``, and that of p is ``-s w``.
    """

    def forward(self, x: Tensor, values: Tensor) -> Tensor:  # noqa: D102
        self.x = x
        weight, point = self.part.view(values).unbind(1)
        return torch.baddbmm(-(weight * point).sum(-1, keepdim=True), weight, x)

    def backward(self, grad: Tensor, values: Tensor) -> Tensor:  # noqa: D102
        return torch.bmm(self.part.view(values)[:, 0].transpose(1, 2), grad)

    def add_gradient(self, grad: Tensor, values: Tensor, gradient: Tensor) -> None:  # noqa: D102
        weight, point = self.part.view(values).unbind(1)
        to = self.part.view(gradient)
        pull = grad.sum(2, keepdim=True)  # [T, K, 1]
        to[:, 0].baddbmm_(grad, self.x.transpose(1, 2)).sub_(pull * point)
        to[:, 1].sub_(pull * weight)


PARAMETRISED: dict[str, type[ParameterRule]] = {
    "Linear": LinearRule,
    "OffsetL2": OffsetL2Rule,
    "PointSlope": PointSlopeRule,
}
