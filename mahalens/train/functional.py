"""The engine for any module: ``torch.func`` over stacked parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mahalens.train.template import Template


class FunctionalEngine:
    """Loss and gradient of T trials of a module that is no chain, by ``vmap`` over autograd.

    Slower than the engines for chains, but right for every module that ``torch.func`` can batch.
    Where trials share their samples, dropout and the like differ from trial to trial.

    Shapes: x ``[S, N, ...]``, y ``[S, N, ...]``, with S = T where each trial has its own and S = 1
    where they share.
    """

    name = "torch.func"

    def __init__(
        self, template: Template, mean: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
    ) -> None:
        self._template, self._x, self._y = template, x, y
        self.samples = x.shape[1]
        module = template.module

        def loss(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
            named = {name: tensor[0] for name, tensor in template.named(values[None]).items()}
            return mean(torch.func.functional_call(module, named, (x,)), y)

        self._loss, self._slope = loss, torch.func.grad_and_value(loss)

    def loss(self, values: Tensor, index: Tensor, rows: Tensor | None = None) -> Tensor:
        """Loss ``[T]`` of the trials ``index`` with these values ``[T, P]``."""
        with torch.no_grad():
            result: Tensor = self._batched(self._loss, values, index, rows)
        return result

    def loss_and_gradient(
        self, values: Tensor, index: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss ``[T]`` and gradient ``[T, P]``, of all samples or of the rows ``[T, n]`` alone."""
        gradient, loss = self._batched(self._slope, values, index, rows)
        return loss, gradient

    def _batched(
        self,
        function: Callable[..., Any],
        values: Tensor,
        index: Tensor,
        rows: Tensor | None,
    ) -> Any:
        x, x_axis = self._chosen(self._x, index, rows)
        y, y_axis = self._chosen(self._y, index, rows)
        batched = torch.func.vmap(function, in_dims=(0, x_axis, y_axis), randomness="different")
        return batched(values, x, y)

    @staticmethod
    def _chosen(data: Tensor, index: Tensor, rows: Tensor | None) -> tuple[Tensor, int | None]:
        """The samples of each trial, and the axis that counts trials if they do not share them."""
        if rows is not None:
            own = index[:, None] if len(data) > 1 else torch.zeros_like(index)[:, None]
            return data[own, rows], 0
        return (data[index], 0) if len(data) > 1 else (data[0], None)
