"""Stochastic gradient descent for T trials at once, the protocol of source 003."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mahalens.errors import InputError
from mahalens.train.batches import Batches
from mahalens.train.compiled.engine import Recipe
from mahalens.train.descent import Descent
from mahalens.train.objective import Objective
from mahalens.train.stack import TrialStack


class SGD(Descent):
    """Gradient descent with momentum, equal to ``torch.optim.SGD`` per trial.

    ``m ← μ m + g``, ``θ ← θ - lr · m``; without momentum ``θ ← θ - lr · g``.

    Mini-batches, learning rates per trial and the ways a trial ends: see :class:`Descent`.
    """

    def __init__(
        self,
        objective: Objective,
        start: TrialStack,
        epochs: int,
        *,
        lr: float | Sequence[float] | Tensor = 1e-3,
        momentum: float = 0.0,
        batches: Batches | None = None,
        target: float | None = None,
        patience: int | None = None,
        gain: float = 0.0,
        curve_points: int = 400,
    ) -> None:
        if not 0 <= momentum < 1:
            raise InputError(f"a momentum of {momentum}; give a number in [0, 1)")
        self.momentum = momentum
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
        return Recipe(adam=False, momentum=self.momentum)

    def update(self, gradient: Tensor, step: int) -> None:  # noqa: D102
        m = gradient
        if self.momentum:
            m = self.rows["m"].mul_(self.momentum).add_(gradient)
        self.rows["values"].sub_(m * self.rows["lr"].to(m)[:, None])
