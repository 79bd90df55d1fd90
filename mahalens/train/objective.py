"""The mean squared error of all trials on one data set, with gradients and Jacobians."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.nn.chain import Chain
from mahalens.train.rules import NormRule, segments
from mahalens.train.stack import TrialStack, parameter_count

_BLOCK_BYTES = 1 << 22
"""Size of one block of activations: small enough to stay in the shared cache."""


class MeanSquaredError:
    """``L_t = 1/N Σₙ (f_t(xₙ) - yₙ)²`` for T trials of a scalar chain at once.

    Samples are worked through in blocks that fit in the cache, so memory does not grow with N·T·K.

    Shapes: x ``[N, D]``, y ``[N]``; per trial results are ``[T]``, gradients ``[T, P]`` in the
    layout of :class:`TrialStack`.
    """

    def __init__(self, chain: Chain, x: Tensor, y: Tensor, *, block: int | None = None) -> None:
        if not chain.scalar or chain.layers[0].kind != "Linear":
            raise InputError(f"the chain {chain} has no scalar output; start with Linear, end Norm")
        if x.ndim != 2 or x.shape[1] != chain.inputs or y.shape != x.shape[:1]:
            raise InputError(
                f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; "
                f"give [N, {chain.inputs}] and [N]"
            )
        if not len(x):
            raise InputError("no samples; give at least 1")
        if block is not None and block < 1:
            raise InputError(f"a block of {block} samples; give at least 1")
        self.chain = chain
        self.samples = len(x)
        self.x = x
        self.y = y
        self._block = block
        self._segments = segments(chain)
        self._blocks: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def _cut(self, trials: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Blocks of inputs ``[D(+1), n]``, their transposes and targets, for this many trials."""
        widest = max(layer.units or 1 for layer in self.chain.layers)
        n = self._block or max(32, _BLOCK_BYTES // (trials * widest * self.x.element_size()))
        n = min(n, self.samples)
        if n not in self._blocks:
            rows = self.x
            if self._segments[0].linear.bias:
                rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            self._blocks = {
                n: [
                    (part.T.contiguous(), part, target)
                    for part, target in zip(rows.split(n), self.y.split(n), strict=True)
                ]
            }
        return self._blocks[n]

    def _forward(self, stack: TrialStack, columns: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs ``[T, n]`` and the input of every ``Linear`` after the first."""
        inputs: list[Tensor] = []
        h = columns
        for segment, affine in zip(self._segments, stack.affine(), strict=True):
            if h.ndim == 2:
                h = (affine.flatten(0, 1) @ h).unflatten(0, affine.shape[:2])
            else:
                inputs.append(h)
                if segment.linear.bias:
                    h = torch.baddbmm(affine[..., -1:], affine[..., :-1], h)
                else:
                    h = torch.bmm(affine, h)
            for number, rule in enumerate(segment.rules):
                # A rule may overwrite what it is given, but not what the rule before it has kept.
                h = rule.forward(h.clone() if number else h)
        return h, inputs

    def _backward(self, stack: TrialStack, inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
        """Gradient ``[T, K, n]`` of every ``Linear``'s output, given that of the chain's."""
        grads: list[Tensor] = []
        for place in reversed(range(len(self._segments))):
            segment, affine = self._segments[place], stack.affine()[place]
            for rule in reversed(segment.rules):
                grad = rule.backward(grad)
            grads.append(grad)
            if place:
                weight = affine[..., :-1] if segment.linear.bias else affine
                grad = torch.bmm(weight.transpose(1, 2), grad)
        return grads[::-1]

    def loss(self, stack: TrialStack) -> Tensor:
        """Loss ``[T]``."""
        total = stack.values.new_zeros(len(stack))
        for columns, _, target in self._cut(len(stack)):
            residual = self._forward(stack, columns)[0] - target
            total += residual.square_().sum(1)
        return total / self.samples

    def loss_and_gradient(self, stack: TrialStack) -> tuple[Tensor, Tensor]:
        """Loss ``[T]`` and its gradient ``[T, P]``."""
        gradient = TrialStack(self.chain, torch.zeros_like(stack.values))
        parts = gradient.affine()
        total = stack.values.new_zeros(len(stack))
        for columns, rows, target in self._cut(len(stack)):
            output, inputs = self._forward(stack, columns)
            residual = output - target
            total += (residual * residual).sum(1)
            grads = self._backward(stack, inputs, residual.mul_(2 / self.samples))
            parts[0] += (grads[0].flatten(0, 1) @ rows).unflatten(0, grads[0].shape[:2])
            for part, grad, h in zip(parts[1:], grads[1:], inputs, strict=True):
                width = h.shape[1]
                part[..., :width].baddbmm_(grad, h.transpose(1, 2))
                if part.shape[2] > width:
                    part[..., width] += grad.sum(2)
        return total / self.samples, gradient.values

    def curvature(
        self, stack: TrialStack, exact: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss ``[T]``, ``Jᵀr/N`` ``[T, P]`` and a curvature matrix ``[T, P, P]``.

        With r the residuals and J their Jacobian, the gradient of the loss is ``2 Jᵀr/N`` and its
        Gauss-Newton curvature ``2 JᵀJ/N``; both are returned without the 2. Where ``exact``
        ``[T]`` is true, the matrix is half the Hessian instead. For one ``Linear`` and
        ``f = ‖a(z)‖`` that costs no more: with ``q = (a a')'``,
        ``H = 1/N Σₙ (yₙ/fₙ) Jₙ Jₙᵀ + 1/N Σₙ (rₙ qₙ/fₙ) x̃ₙ x̃ₙᵀ``, the last sum unit by unit.

        Meant for chains with few parameters.
        """
        if exact is not None and not self.has_exact_curvature:
            raise InputError(f"no exact curvature for the chain {self.chain}; leave exact out")
        trials, width = len(stack), parameter_count(self.chain)
        total = stack.values.new_zeros(trials)
        slope = stack.values.new_zeros(trials, width)
        matrix = stack.values.new_zeros(trials, width, width)
        for columns, rows, target in self._cut(trials):
            output, inputs = self._forward(stack, columns)
            residual = output - target
            total += (residual * residual).sum(1)
            if exact is not None:
                bent = self._norm.bend() * torch.where(output > 0, residual / output, 0)[:, None]
                bent = bent * exact[:, None, None]  # [T, K, n]
                blocks = (bent.unsqueeze(2) * columns) @ rows  # [T, K, D+1, D+1]
                _diagonal_blocks(matrix, blocks.shape[1]).add_(blocks)
            grads = self._backward(stack, inputs, torch.ones_like(residual))
            jacobian = self._jacobian(columns, inputs, grads)  # [T, P, n]
            slope += torch.bmm(jacobian, residual.unsqueeze(-1)).squeeze(-1)
            weighted = jacobian
            if exact is not None:
                bends = exact[:, None] & (output > 0)
                weighted = jacobian * torch.where(bends, target / output, 1).unsqueeze(1)
            matrix.baddbmm_(weighted, jacobian.transpose(1, 2))
        return total / self.samples, slope / self.samples, matrix / self.samples

    @property
    def has_exact_curvature(self) -> bool:
        """Whether the Hessian is written out for this chain: one ``Linear``, then a norm."""
        return len(self._segments) == 1 and len(self._segments[0].rules) == 1

    @property
    def _norm(self) -> NormRule:
        rule = self._segments[0].rules[0]
        if not isinstance(rule, NormRule):  # a scalar chain of one rule is a norm
            raise TypeError(f"{rule} is not a norm")
        return rule

    def _jacobian(self, columns: Tensor, inputs: list[Tensor], grads: list[Tensor]) -> Tensor:
        """Slope of every sample's output in every parameter, ``[T, P, n]``."""
        parts = []
        for place, grad in enumerate(grads):
            h = columns.unsqueeze(0) if place == 0 else inputs[place - 1]
            if place and self._segments[place].linear.bias:
                h = torch.cat([h, torch.ones_like(h[:, :1])], 1)
            parts.append((grad.unsqueeze(2) * h.unsqueeze(1)).flatten(1, 2))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _diagonal_blocks(matrix: Tensor, count: int) -> Tensor:
    """View ``[T, count, B, B]`` of the blocks on the diagonal of ``[T, count·B, count·B]``."""
    size = matrix.shape[-1] // count
    blocks = matrix.unflatten(2, (count, size)).unflatten(1, (count, size))
    diagonal: Tensor = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    return diagonal
