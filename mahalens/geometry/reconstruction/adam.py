"""The published search: Adam with a gradient written by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.geometry.reconstruction.problem import Problem

PUBLISHED_STEPS = 10_000


class AdamSearch:
    """Minimises ``1/2 sum_k (d_k(x) - target_k)^2`` for every point, as source 002 does.

    Adam with betas (0.9, 0.999) and eps 1e-8, learning rate 1 / K unless given; the gradient is
    ``sum_k (d_k - target_k) grad d_k``, without autograd. All points go together, each as if
    it were alone.
    """

    betas = (0.9, 0.999)
    eps = 1e-8

    def __init__(
        self, problem: Problem, start: Tensor, *, steps: int, lr: float | None = None
    ) -> None:
        self.problem = problem
        self.steps = steps
        self.lr = 1 / problem.count if lr is None else lr
        self.step = 0
        self.x = start.clone()
        self._first = torch.zeros_like(start)
        self._second = torch.zeros_like(start)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.steps

    @torch.no_grad()
    def advance(self, until: int | None = None) -> None:
        """Go on to step ``until``, or to the end."""
        until = self.steps if until is None else min(until, self.steps)
        one, two = self.betas
        while self.step < until:
            self.step += 1
            gradient = self.problem.gradient(self.x)
            self._first.mul_(one).add_(gradient, alpha=1 - one)
            self._second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
            size = self.lr / (1 - one**self.step)
            root = (self._second / (1 - two**self.step)).sqrt_().add_(self.eps)
            self.x.addcdiv_(self._first, root, value=-size)

    def state(self) -> dict[str, Tensor]:
        """Everything that the rest of the search depends on."""
        step = torch.tensor(self.step)
        tensors = {"x": self.x, "first": self._first, "second": self._second}
        return {name: tensor.clone() for name, tensor in tensors.items()} | {"step": step}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        self.x, self._first, self._second = (
            state[name].clone() for name in ("x", "first", "second")
        )
        self.step = int(state["step"])
