"""Jacobians and curvature matrices of a scalar chain's squared error, all trials at once."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.train.parameter_rules import LinearRule
from mahalens.train.passes import TorchEngine
from mahalens.train.rules import NormRule


def has_exact_curvature(engine: TorchEngine) -> bool:
    """Whether the Hessian is written out for this chain: one ``Linear``, then a norm."""
    kinds = [type(rule) for rule in engine.steps]
    return kinds == [LinearRule, NormRule]


def curvature(
    engine: TorchEngine, values: Tensor, exact: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss ``[T]``, ``Jᵀr/N`` ``[T, P]`` and a curvature matrix ``[T, P, P]``.

    With r the residuals and J their Jacobian, the gradient of the loss is ``2 Jᵀr/N`` and its
    Gauss-Newton curvature ``2 JᵀJ/N``; both are returned without the 2. Where ``exact``
    ``[T]`` is true, the matrix is half the Hessian instead. For one ``Linear`` and
    ``f = ‖a(z)‖`` that costs no more: with ``q = (a a')'``,
    ``H = 1/N Σₙ (yₙ/fₙ) Jₙ Jₙᵀ + 1/N Σₙ (rₙ qₙ/fₙ) x̃ₙ x̃ₙᵀ``, the last sum unit by unit.

    Meant for chains with few parameters.
    """
    trials, width = values.shape
    total = values.new_zeros(trials)
    slope = values.new_zeros(trials, width)
    matrix = values.new_zeros(trials, width, width)
    for columns, target in engine.blocks(trials, torch.arange(trials)):
        output = engine.forward(values, columns)  # [T, 1, n]
        residual = output - target
        total += (residual * residual).sum((1, 2))
        if exact is not None:
            rule = engine.steps[-1]
            if not isinstance(rule, NormRule):
                raise TypeError(f"{rule} is not a norm")
            bent = rule.bend() * torch.where(output == 0, 0, residual / output)
            bent = bent * exact[:, None, None]  # [T, K, n]
            blocks = (bent.unsqueeze(2) * columns) @ columns.T  # [T, K, D+1, D+1]
            _diagonal_blocks(matrix, blocks.shape[1]).add_(blocks)
        engine.backward(values, torch.ones_like(residual), None)
        jacobian = _jacobian(engine)  # [T, P, n]
        slope += torch.bmm(jacobian, residual.transpose(1, 2)).squeeze(-1)
        weighted = jacobian
        if exact is not None:
            bends = exact[:, None, None] & (output > 0)
            weighted = jacobian * torch.where(bends, target / output, 1)
        matrix.baddbmm_(weighted, jacobian.transpose(1, 2))
    return total / engine.samples, slope / engine.samples, matrix / engine.samples


def _jacobian(engine: TorchEngine) -> Tensor:
    """Slope of every sample's output in every parameter, ``[T, P, n]``, after a backward pass."""
    columns = []
    for rule in engine.steps:
        if not isinstance(rule, LinearRule):
            continue
        x = rule.x if rule.x.ndim == 3 else rule.x.unsqueeze(0)
        if rule.part.layer.bias and rule.x.ndim == 3:
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        columns.append((rule.grad.unsqueeze(2) * x.unsqueeze(1)).flatten(1, 2))
    return torch.cat(columns, 1) if len(columns) > 1 else columns[0]


def _diagonal_blocks(matrix: Tensor, count: int) -> Tensor:
    """View ``[T, count, B, B]`` of the blocks on the diagonal of ``[T, count·B, count·B]``."""
    size = matrix.shape[-1] // count
    blocks = matrix.unflatten(2, (count, size)).unflatten(1, (count, size))
    diagonal: Tensor = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    return diagonal
