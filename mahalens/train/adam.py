"""Adam for T trials at once, the protocol of source 000."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.train.objective import MeanSquaredError
from mahalens.train.solver import StackedSolver, Status
from mahalens.train.stack import TrialStack, parameter_count

_CHUNK_FLOPS = 4e9
"""Work between two looks at the clock, a fraction of a second on two cores."""


class Adam(StackedSolver):
    """Full-batch Adam (Kingma and Ba, arXiv 1412.6980), equal to ``torch.optim.Adam`` per trial.

    ``m ← β₁ m + (1-β₁) g``, ``v ← β₂ v + (1-β₂) g²``,
    ``θ ← θ - lr · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε)``.

    The loss of an epoch is the one before its update, as a plain training loop prints it; the
    final loss is that of the last epoch. A trial whose loss turns non-finite is ended with
    :attr:`Status.NON_FINITE` and the epoch at which it happened; the others go on.
    """

    def __init__(
        self,
        objective: MeanSquaredError,
        start: TrialStack,
        epochs: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        curve_points: int = 400,
    ) -> None:
        super().__init__(objective, start, epochs)
        if not (math.isfinite(lr) and lr > 0):
            raise InputError(f"a learning rate of {lr}; give a positive number")
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"betas of {betas}; give two numbers in [0, 1)")
        self.lr, self.betas, self.eps = lr, betas, eps
        self.rows["m"] = torch.zeros_like(start.values)
        self.rows["v"] = torch.zeros_like(start.values)
        self._schedule = set(np.geomspace(1, epochs, curve_points).round().astype(int).tolist())
        flops = 4 * objective.samples * len(start) * parameter_count(objective.chain)
        # Fixed by the size of the problem, not by the clock: when a trial drops out must not
        # depend on how fast the machine is, or a resumed run would differ in its last digits.
        self._chunk = int(min(100, max(1, _CHUNK_FLOPS // flops)))

    def advance(self) -> None:
        """Train a chunk of epochs, then let non-finite trials go."""
        losses: list[Tensor] = []
        for _ in range(min(self._chunk, self.limit - self.epoch)):
            losses.append(self._step())
            if self.epoch in self._schedule:
                self.record(self.epoch, losses[-1])
        history = torch.stack(losses)  # [chunk, A]
        broken = ~history.isfinite()
        first = self.epoch - len(losses) + 1 + broken.to(torch.int8).argmax(0)
        self.finish(broken.any(0), Status.NON_FINITE, history[-1], first)
        if self.epoch == self.limit:
            last = history[-1][~broken.any(0)]
            everyone = torch.ones(len(self.active), dtype=torch.bool)
            self.finish(everyone, Status.DONE, last, self.epoch)

    def _step(self) -> Tensor:
        loss, gradient = self.objective.loss_and_gradient(self.running())
        self.epoch += 1
        beta1, beta2 = self.betas
        m, v = self.rows["m"], self.rows["v"]
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = v.sqrt().div_(math.sqrt(1 - beta2**self.epoch)).add_(self.eps)
        rate = self.lr / (1 - beta1**self.epoch)
        self.rows["values"].addcdiv_(m, denominator, value=-rate)
        return loss
