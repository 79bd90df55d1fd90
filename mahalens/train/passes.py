"""The torch engine: forward and backward through a chain, all trials at once, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mahalens.nn.chain import Chain
from mahalens.train.layout import parts
from mahalens.train.losses import Loss
from mahalens.train.parameter_rules import PARAMETRISED, LinearRule, ParameterRule
from mahalens.train.rules import NormRule, Rule, activation_rule

_BLOCK_BYTES = 1 << 22
"""Size of one block of activations: small enough to stay in the shared cache."""


class TorchEngine:
    """Loss and gradient of T trials of a chain, with gradients written out on stacked tensors.

    Samples are worked through in blocks that fit in the cache, so memory does not grow with N·T·K.

    Shapes: x ``[S, N, D]``; y ``[S, N, K]`` numbers or labels ``[S, N]``, with S = T where each
    trial has its own and S = 1 where they share.
    """

    name = "torch"

    def __init__(
        self, chain: Chain, loss: Loss, x: Tensor, y: Tensor, *, block: int | None = None
    ) -> None:
        self.chain, self._loss, self._x, self._y = chain, loss, x, y
        self.samples = x.shape[1]
        self._block = block
        self.steps = _steps(chain)
        # Nothing below the first layer with parameters needs a gradient.
        learns = [isinstance(rule, ParameterRule) for rule in self.steps]
        self._first = learns.index(True)
        first = chain.layers[0]
        self._shared = first.kind == "Linear" and len(x) == 1
        self._ones = self._shared and first.bias
        self._cut: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def loss(self, values: Tensor, index: Tensor, rows: Tensor | None = None) -> Tensor:
        """Loss ``[T]`` of the trials ``index`` with these values ``[T, P]``."""
        total = values.new_zeros(len(values))
        for columns, target in self.blocks(len(values), index, rows):
            total += self._loss.total(self.forward(values, columns), target)
        return total * self._loss.scale(self.chain.outputs, self._rows(rows))

    def loss_and_gradient(
        self, values: Tensor, index: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss ``[T]`` and gradient ``[T, P]``, of all samples or of the rows ``[T, n]`` alone."""
        gradient = torch.zeros_like(values)
        total = values.new_zeros(len(values))
        scale = self._loss.scale(self.chain.outputs, self._rows(rows))
        for columns, target in self.blocks(len(values), index, rows):
            output = self.forward(values, columns)
            part, slope = self._loss.total_and_slope(output, target, scale)
            total += part
            self.backward(values, slope, gradient)
        return total * scale, gradient

    def outputs(self, values: Tensor, index: Tensor) -> Tensor:
        """Outputs ``[T, N, K]``, one unit after a ``Norm``."""
        blocks = self.blocks(len(values), index)
        return torch.cat([self.forward(values, x).transpose(1, 2) for x, _ in blocks], 1)

    def _rows(self, rows: Tensor | None) -> int:
        return self.samples if rows is None else rows.shape[1]

    def blocks(
        self, trials: int, index: Tensor, rows: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Feature-major inputs and targets of one block of samples after the other.

        Inputs are ``[D, n]`` where trials share them and begin with a ``Linear`` (with a row of
        ones below for its bias), else ``[T, D, n]``.
        """
        widest = max([*self.chain.widths[1:], self.chain.outputs or 1])
        n = self._block or max(32, _BLOCK_BYTES // (trials * widest * self._x.element_size()))
        if rows is not None:
            for part in rows.split(n, 1):
                yield self._gathered(index, part)
        elif len(self._x) > 1 or len(self._y) > 1:
            for start in range(0, self.samples, n):
                stop = min(start + n, self.samples)
                x, y = self._x[:, start:stop], self._y[:, start:stop]
                x = x[index] if len(x) > 1 else x
                y = y[index] if len(y) > 1 else y
                yield self._columns(x, trials), self._loss.targets(y)
        else:
            n = min(n, self.samples)
            if n not in self._cut:
                self._cut = {
                    n: [
                        (self._columns(x, trials=1), self._loss.targets(y))
                        for x, y in zip(self._x.split(n, 1), self._y.split(n, 1), strict=True)
                    ]
                }
            for columns, target in self._cut[n]:
                whole = columns if self._shared else columns.expand(trials, -1, -1)
                yield whole, target

    def _gathered(self, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A mini-batch of every trial, ``rows`` ``[T, n]``."""
        if len(self._x) == 1 and len(self._y) == 1 and bool((rows == rows[:1]).all()):
            return self._columns(self._x[:, rows[0]], len(index)), self._loss.targets(
                self._y[:, rows[0]]
            )
        own = index[:, None]
        x = self._x[own if len(self._x) > 1 else torch.zeros_like(own), rows]
        y = self._y[own if len(self._y) > 1 else torch.zeros_like(own), rows]
        return self._columns(x, len(index)), self._loss.targets(y)

    def _columns(self, x: Tensor, trials: int) -> Tensor:
        """Samples ``[S, n, D]`` feature-major, as the first layer wants them."""
        if self._shared and len(x) == 1:
            rows = x[0]
            if self._ones:
                rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            return rows.T.contiguous()
        return x.transpose(1, 2).contiguous().expand(trials, -1, -1)

    def forward(self, values: Tensor, columns: Tensor) -> Tensor:
        """Outputs ``[T, K, n]``, one unit after a ``Norm``."""
        h = columns
        for rule in self.steps:
            h = rule.forward(h, values) if isinstance(rule, ParameterRule) else rule.forward(h)
        return h

    def backward(self, values: Tensor, grad: Tensor, gradient: Tensor | None) -> None:
        """Add the gradient ``[T, P]``, given that of the outputs.

        Without ``gradient``, every ``Linear`` is only left with the gradient of its output.
        """
        for place in reversed(range(self._first, len(self.steps))):
            rule = self.steps[place]
            if not isinstance(rule, ParameterRule):
                grad = rule.backward(grad)
                continue
            if gradient is not None:
                rule.add_gradient(grad, values, gradient)
            elif isinstance(rule, LinearRule):
                rule.grad = grad
            if place > self._first:
                grad = rule.backward(grad, values)


def _steps(chain: Chain) -> list[Rule | ParameterRule]:
    """A rule for every layer; an activation right before ``Norm`` joins it."""
    steps: list[Rule | ParameterRule] = []
    by_place = {part.place: part for part in parts(chain)}
    following = [*[layer.kind for layer in chain.layers[1:]], ""]
    before = ""
    for place, (layer, after) in enumerate(zip(chain.layers, following, strict=True)):
        if layer.kind in PARAMETRISED:
            steps.append(PARAMETRISED[layer.kind](by_place[place]))
        elif layer.kind == "Norm":
            steps.append(NormRule(before if before in ("ReLU", "Sigmoid") else None))
        # |x|² and (-x)² are x²: Abs and Neg need no work of their own before a Norm.
        elif not (after == "Norm" and layer.kind in ("Abs", "Neg", "ReLU", "Sigmoid")):
            steps.append(activation_rule(layer))
        before = layer.kind
    return steps
