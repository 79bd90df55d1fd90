"""Adam for T trials at once, the protocol of source 000."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from mahalens.errors import InputError
from mahalens.train.batches import Batches
from mahalens.train.compiled.engine import Recipe
from mahalens.train.descent import Descent
from mahalens.train.objective import Objective
from mahalens.train.stack import TrialStack


class Adam(Descent):
    """Adam (Kingma and Ba, arXiv 1412.6980), equal to ``torch.optim.Adam`` per trial.

    ``m ← β₁ m + (1-β₁) g``, ``v ← β₂ v + (1-β₂) g²``,
    ``θ ← θ - lr · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε)``.

    Mini-batches, learning rates per trial and the ways a trial ends: see :class:`Descent`.
    """

    def __init__(
        self,
        objective: Objective,
        start: TrialStack,
        epochs: int,
        *,
        lr: float | Sequence[float] | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        batches: Batches | None = None,
        target: float | None = None,
        patience: int | None = None,
        gain: float = 0.0,
        curve_points: int = 400,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"betas of {betas}; give two numbers in [0, 1)")
        if not (math.isfinite(eps) and eps >= 0):
            raise InputError(f"an eps of {eps}; give a small number, not below 0")
        self.betas, self.eps = betas, eps
        super().__init__(
            objective,
            start,
            epochs,
            lr=lr,
            batches=batches,
            target=target,
            patience=patience,
            gain=gain,
            curve_points=curve_points,
        )

    def recipe(self) -> Recipe:  # noqa: D102
        return Recipe(adam=True, momentum=self.betas[0], beta2=self.betas[1], eps=self.eps)

    def update(self, gradient: Tensor, step: int) -> None:  # noqa: D102
        beta1, beta2 = self.betas
        m, v = self.rows["m"], self.rows["v"]
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = v.sqrt().div_(math.sqrt(1 - beta2**step)).add_(self.eps)
        rate = (self.rows["lr"] / (1 - beta1**step)).to(m)[:, None]
        self.rows["values"].sub_((m / denominator).mul_(rate))
