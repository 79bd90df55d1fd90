"""Layers of a chain for stacked trials: their columns in a trial's row, outputs and gradients.

Activations are feature-major, ``[T, K, n]``: sums over units run along contiguous samples, and the
first layer of all trials is one matrix product. A rule stores what its ``backward`` needs;
``backward`` may overwrite that and the gradient it receives, as each is used once.

A new layer needs a rule here and a case in ``compiled/layers.h``.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mahalens.nn import Chain, Layer

_PAIRS = {"OffsetL2": ("mu", "alpha"), "PointSlope": ("weight", "point")}
"""Layers with two parameters of the same shape."""


@dataclass(frozen=True)
class Part:
    """The parameters of one layer: columns ``start`` to ``stop`` of the values ``[T, P]``.

    A ``Linear`` of K units on D inputs is stored as ``[K, D+1]``, weight and bias side by side, for
    one matrix product to cover both (without bias: ``[K, D]``). ``OffsetL2`` is ``[2, K, D]``, mu
    before alpha, and so is ``PointSlope``, weight before point.
    """

    place: int
    layer: Layer
    inputs: int
    start: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the layer's parameters taken together."""
        units = self.layer.units or 0
        if self.layer.kind in _PAIRS:
            return (2, units, self.inputs)
        return (units, self.inputs + self.layer.bias)

    @property
    def stop(self) -> int:
        """The column after the last."""
        return self.start + math.prod(self.shape)

    def view(self, values: Tensor) -> Tensor:
        """Return these parameters of all trials, a view ``[T, *shape]`` of ``values``."""
        view: Tensor = values[:, self.start : self.stop].unflatten(1, self.shape)
        return view

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """Return the same views under their ``state_dict`` names."""
        view = self.view(values)
        if self.layer.kind in _PAIRS:
            pair = zip(_PAIRS[self.layer.kind], view.unbind(1), strict=True)
            return {f"{self.place}.{name}": tensor for name, tensor in pair}
        if not self.layer.bias:
            return {f"{self.place}.weight": view}
        return {f"{self.place}.weight": view[..., :-1], f"{self.place}.bias": view[..., -1]}

    def packed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Pack stacked parameters by name into columns of values, ``[T, stop - start]``."""
        if self.layer.kind in _PAIRS:
            pair = [tensors[f"{self.place}.{name}"] for name in _PAIRS[self.layer.kind]]
            return torch.stack(pair, 1).flatten(1)
        weight = tensors[f"{self.place}.weight"]
        if not self.layer.bias:
            return weight.flatten(1)
        return torch.cat([weight, tensors[f"{self.place}.bias"].unsqueeze(-1)], -1).flatten(1)


def parts(chain: Chain) -> list[Part]:
    """List the layers of a chain that have parameters, in order."""
    listed: list[Part] = []
    for place, (layer, width) in enumerate(zip(chain.layers, chain.widths, strict=True)):
        if layer.units is not None:
            listed.append(Part(place, layer, width, listed[-1].stop if listed else 0))
    return listed


def parameter_count(chain: Chain) -> int:
    """Count the parameters P of one trial."""
    return sum(math.prod(part.shape) for part in parts(chain))


def parameter_shapes(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of the plain module.

    >>> parameter_shapes(Chain.parse("Linear(4), ReLU", inputs=2))
    {'0.weight': (4, 2), '0.bias': (4,)}
    """
    empty = torch.empty(1, parameter_count(chain))
    return {
        name: tuple(tensor.shape[1:])
        for part in parts(chain)
        for name, tensor in part.named(empty).items()
    }


_Backward = Callable[[Tensor], Tensor]


class ActivationRule:
    """A layer that acts on each unit alone.

    ``function`` returns the output, without changing its input, and how to turn the gradient of
    the output into that of the input.
    """

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, _Backward]]) -> None:
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output, without changing ``x``."""
        y, self._backward = self._function(x)
        return y

    def backward(self, grad: Tensor) -> Tensor:
        """Turn the gradient of the output into that of the input."""
        return self._backward(grad)


def _abs(x: Tensor) -> tuple[Tensor, _Backward]:
    """``|x|``, slope ``sign(x)``, 0 at 0."""
    return x.abs(), lambda grad: grad.mul_(x.sign())


def _relu(x: Tensor) -> tuple[Tensor, _Backward]:
    """``max(x, 0)``, slope 0 at 0."""
    y = x.relu()
    return y, lambda grad: grad.masked_fill_(y <= 0, 0)


def _abs_relu(x: Tensor, absolute: int) -> tuple[Tensor, _Backward]:
    """``|x|`` for the first ``absolute`` units, ``max(x, 0)`` for the others."""
    y = x.relu()
    y[:, :absolute] = x[:, :absolute].abs()

    def backward(grad: Tensor) -> Tensor:
        grad[:, :absolute].mul_(x[:, :absolute].sign())
        grad[:, absolute:].masked_fill_(x[:, absolute:] <= 0, 0)
        return grad

    return y, backward


def _sigmoid(x: Tensor) -> tuple[Tensor, _Backward]:
    """``1 / (1 + exp(-x))``, slope ``y (1 - y)``."""
    y = x.sigmoid()
    return y, lambda grad: grad.mul_(y).mul_(1 - y)


def _tanh(x: Tensor) -> tuple[Tensor, _Backward]:
    """``tanh(x)``, slope ``1 - tanh²``."""
    y = x.tanh()
    return y, lambda grad: grad.mul_(1 - y * y)


def _silu(x: Tensor) -> tuple[Tensor, _Backward]:
    """``x s`` with ``s = sigmoid(x)``, slope ``s (1 + x (1 - s))``."""
    s = x.sigmoid()
    return x * s, lambda grad: grad.mul_(s).mul_((1 - s).mul_(x).add_(1))


def _gelu(x: Tensor) -> tuple[Tensor, _Backward]:
    """``x Φ(x)`` with the normal distribution function, slope ``Φ(x) + x φ(x)``."""
    cdf = (x * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)

    def backward(grad: Tensor) -> Tensor:
        density = (x * x).mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        return grad.mul_(density.mul_(x).add_(cdf))

    return x * cdf, backward


def _softplus(x: Tensor) -> tuple[Tensor, _Backward]:
    """``log(1 + exp(x))``, slope ``sigmoid(x)``; as in PyTorch ``x`` itself above 20."""
    return functional.softplus(x), lambda grad: grad.mul_(x.sigmoid().masked_fill_(x > 20, 1))


def _leaky_relu(x: Tensor, slope: float) -> tuple[Tensor, _Backward]:
    """``x`` above 0, ``slope x`` below and at 0."""
    return functional.leaky_relu(x, slope), lambda grad: torch.where(x > 0, grad, slope * grad)


def _neg(x: Tensor) -> tuple[Tensor, _Backward]:
    """``-x``, slope -1."""
    return x.neg(), lambda grad: grad.neg_()


_PLAIN = {
    "Abs": _abs,
    "ReLU": _relu,
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
    "SiLU": _silu,
    "GELU": _gelu,
    "Softplus": _softplus,
    "Neg": _neg,
}
"""Activations without settings."""


def activation_rule(layer: Layer) -> ActivationRule:
    """Make the rule for a layer that acts on each unit alone."""
    if layer.absolute is not None:
        return ActivationRule(functools.partial(_abs_relu, absolute=layer.absolute))
    if layer.kind == "LeakyReLU":
        return ActivationRule(functools.partial(_leaky_relu, slope=layer.slope))
    return ActivationRule(_PLAIN[layer.kind])


class NormRule:
    """``√Σₖ a(xₖ)²``, including the activation ``a`` before it: ``[T, K, n]`` to ``[T, 1, n]``.

    Its gradient is ``a(xₖ) a'(xₖ) / norm``; the product ``a a'`` is cheaper than its factors: ``x``
    for Abs (or without activation) and ``max(x, 0)`` for ReLU. Where the norm is 0 the gradient is
    0.
    """

    def __init__(self, activation: str | None) -> None:
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output, without changing ``x``."""
        if self.activation == "ReLU":
            x = x.relu()
        elif self.activation == "Sigmoid":
            x = x.sigmoid()
        self.x = x
        # Not linalg.vector_norm: over a middle axis it is 10 to 80 times slower on the CPU.
        self.norm = (x * x).sum(1, keepdim=True).sqrt_()
        return self.norm

    def backward(self, grad: Tensor) -> Tensor:
        """Turn the gradient of the output into that of the input."""
        weight = torch.where(self.norm == 0, 0, grad / self.norm)
        if self.activation == "Sigmoid":
            return (1 - self.x).mul_(self.x).mul_(self.x).mul_(weight)
        return self.x * weight

    def bend(self) -> Tensor:
        """Return ``(a a')'`` at the last input ``[T, K, n]``, which second derivatives need."""
        if self.activation == "ReLU":
            return (self.x > 0).to(self.x.dtype)
        if self.activation == "Sigmoid":
            return self.x.square() * (1 - self.x) * (2 - 3 * self.x)
        return torch.ones_like(self.x)


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

    An input that all trials share comes as ``[D, n]``, with a row of ones below if there is a bias:
    then one matrix product serves all trials. Stores ``x``, and ``grad`` for Jacobians.
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

    def jacobian(self) -> Tensor:
        """Return the slope of every sample's output in the parameters, ``[T, K·(D+1), n]``.

        For chains with one output, after a forward and a backward pass.
        """
        x = self.x if self.x.ndim == 3 else self.x.unsqueeze(0)
        if self.part.layer.bias and self.x.ndim == 3:
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        return (self.grad.unsqueeze(2) * x.unsqueeze(1)).flatten(1, 2)


class _OffsetL2Rule(ParameterRule):
    """``‖αₖ (x - μₖ)‖`` of every trial and unit; the parameters are ``[T, 2, K, D]``.

    Unit by unit, which avoids an array of ``[T, K, D, n]``. The published code's variant is
    ``√max(Σ α (x - μ)², 1e-12)``.
    """

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.as_published = part.layer.variant == "published-code"

    def forward(self, x: Tensor, values: Tensor) -> Tensor:
        self.x = x
        squares = []
        for mu, weight in self._units(values):
            away = x - mu
            squares.append((away * away).mul_(weight).sum(1))
        square = torch.stack(squares, 1)  # [T, K, n]
        self.flat = square < 1e-12 if self.as_published else square == 0
        self.y = square.clamp_min(1e-12).sqrt_() if self.as_published else square.sqrt()
        return self.y

    def backward(self, grad: Tensor, values: Tensor) -> Tensor:
        slope = torch.where(self.flat, 0, grad / self.y)
        total = self.x.new_zeros(len(values), *self.x.shape[1:])
        for unit, (mu, weight) in enumerate(self._units(values)):
            total += (self.x - mu).mul_(slope[:, unit : unit + 1]).mul_(weight)
        return total

    def add_gradient(self, grad: Tensor, values: Tensor, gradient: Tensor) -> None:
        view, to = self.part.view(values), self.part.view(gradient)
        slope = torch.where(self.flat, 0, grad / self.y)
        for unit, (mu, weight) in enumerate(self._units(values)):
            away = self.x - mu
            pull = away * slope[:, unit : unit + 1]
            to[:, 0, unit] -= weight.squeeze(-1) * pull.sum(-1)
            factor = 0.5 if self.as_published else view[:, 1, unit]
            to[:, 1, unit] += factor * pull.mul_(away).sum(-1)

    def _units(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Mu of each unit and the factor of its squares, ``[T, D, 1]``."""
        mu, alpha = self.part.view(values).unbind(1)
        weight = alpha if self.as_published else alpha.square()
        columns = zip(mu.unbind(1), weight.unbind(1), strict=True)
        return [(m.unsqueeze(-1), w.unsqueeze(-1)) for m, w in columns]


class _PointSlopeRule(ParameterRule):
    """``wₖ · (x - pₖ)`` of every trial and unit; the parameters are ``[T, 2, K, D]``.

    Computed as ``wₖ · x - wₖ · pₖ``. With ``g`` the gradient of the output and ``s = Σₙ g``, that
    of w is ``Σₙ g xᵀ - s p``, and that of p is ``-s w``.
    """

    def forward(self, x: Tensor, values: Tensor) -> Tensor:
        self.x = x
        weight, point = self.part.view(values).unbind(1)
        return torch.baddbmm(-(weight * point).sum(-1, keepdim=True), weight, x)

    def backward(self, grad: Tensor, values: Tensor) -> Tensor:
        return torch.bmm(self.part.view(values)[:, 0].transpose(1, 2), grad)

    def add_gradient(self, grad: Tensor, values: Tensor, gradient: Tensor) -> None:
        weight, point = self.part.view(values).unbind(1)
        to = self.part.view(gradient)
        pull = grad.sum(2, keepdim=True)  # [T, K, 1]
        to[:, 0].baddbmm_(grad, self.x.transpose(1, 2)).sub_(pull * point)
        to[:, 1].sub_(pull * weight)


Rule = ActivationRule | NormRule | ParameterRule

_PARAMETRISED: dict[str, type[ParameterRule]] = {
    "Linear": LinearRule,
    "OffsetL2": _OffsetL2Rule,
    "PointSlope": _PointSlopeRule,
}


def chain_rules(chain: Chain) -> list[Rule]:
    """Make a rule for every layer; an activation right before ``Norm`` joins it."""
    rules: list[Rule] = []
    by_place = {part.place: part for part in parts(chain)}
    following = [*[layer.kind for layer in chain.layers[1:]], ""]
    before = ""
    for place, (layer, after) in enumerate(zip(chain.layers, following, strict=True)):
        if layer.kind in _PARAMETRISED:
            rules.append(_PARAMETRISED[layer.kind](by_place[place]))
        elif layer.kind == "Norm":
            rules.append(NormRule(before if before in ("ReLU", "Sigmoid") else None))
        # |x|² and (-x)² are x²: Abs and Neg need no rule before a Norm.
        elif not (after == "Norm" and layer.kind in ("Abs", "Neg", "ReLU", "Sigmoid")):
            rules.append(activation_rule(layer))
        before = layer.kind
    return rules
