"""Levenberg-Marquardt for T trials at once, where the parameters are few."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.train.objective import MeanSquaredError
from mahalens.train.solver import StackedSolver, Status
from mahalens.train.stack import TrialStack
from mahalens.train.stationary import curves_down

_DAMPING_START = 1e-2
_DAMPING_LEAST = 1e-20  # less would change nothing, and 0 could never grow again
_DAMPING_MOST = 1e16
_SLOW = 1e-2  # a step is slow if it gains less than this share of the loss
_PATIENCE = 30  # slow steps in a row before the exact Hessian takes over
_KICKS = 12  # lengths tried along a direction of negative curvature


class LevenbergMarquardt(StackedSolver):
    """Batched Levenberg-Marquardt that ends in true minima.

    Each step solves ``(C + λ diag|C|) δ = -Jᵀr/N`` by Cholesky and keeps δ if the loss falls. λ
    shrinks by ``max(1/3, 1 - (2ρ-1)³)`` after a good step, ρ being the actual over the predicted
    decrease, and grows by 2, 4, 8, ... after bad ones (Nielsen, IMM-REP-1999-05). C starts as the
    Gauss-Newton matrix ``JᵀJ/N``, which is exact where the residual goes to 0. A trial that slows
    down at a residual above 0 changes to the exact Hessian, for which it is at the foot of a
    valley or at a saddle, and finishes there with Newton's speed.

    A trial ends where its residual is 0 within rounding, or where its gradient is 0 and no
    direction curves down (a local minimum). At a saddle it goes on down the most negative
    curvature if the Hessian is written out for its chain, and ends otherwise. Where no step helps
    although the gradient is not 0 it has stalled.

    Every step starts from the rows alone, so a restored solver repeats it exactly.
    """

    objective: MeanSquaredError

    def __init__(self, objective: MeanSquaredError, start: TrialStack, steps: int) -> None:
        super().__init__(objective, start, steps)
        new = start.values.new_zeros(len(start))
        self.rows |= {
            "damping": new + _DAMPING_START,
            "growth": new + 2,
            "rejected": new.clone(),
            "slow": new.clone(),
            "exact": torch.zeros_like(new, dtype=torch.bool),
        }

    def advance(self) -> None:
        """Take one step with every running trial."""
        rows, stack = self.rows, self.running()
        exact = rows["exact"]
        loss, slope, matrix = self.objective.curvature(stack, exact if exact.any() else None)
        self.epoch += 1
        self.record(self.epoch, loss)

        flat = self.is_stationary(loss, slope) & ~self.is_zero(loss)
        rooted = flat & (exact | (not self.objective.has_exact_curvature))
        moved, predicted = self._newton(stack, slope, matrix)
        saddle = self._leave_saddles(stack, loss, matrix, rooted & exact, moved)
        new_loss = self._loss(moved, self.active)
        better = new_loss < loss  # false where the loss is not finite
        gain = (loss - new_loss) / predicted.clamp_min(torch.finfo(loss.dtype).tiny)
        shrink = (1 - (2 * gain.clamp(0, 1) - 1) ** 3).clamp_min(1 / 3)
        slow = ~self.is_zero(loss) & ~(loss - new_loss > _SLOW * loss)
        damping, growth = rows["damping"], rows["growth"]
        rows["values"] = torch.where(better[:, None], moved, stack.values)
        eased = (damping * shrink).clamp_min(_DAMPING_LEAST)
        rows["damping"] = torch.where(better, eased, damping * growth)
        rows["growth"] = torch.where(better, 2.0, 2 * growth)
        rows["rejected"] = torch.where(better, 0.0, rows["rejected"] + 1)
        if self.objective.has_exact_curvature:
            rows["slow"] = torch.where(slow, rows["slow"] + 1, 0.0)
            rows["exact"] = exact | (rows["slow"] >= _PATIENCE) | flat

        best = torch.where(better, new_loss, loss)
        escaped = saddle & better
        saddle |= curves_down(self.objective, stack, rooted & ~exact)
        self._end(best, rooted & ~escaped, saddle)

    def _loss(self, values: Tensor, index: Tensor) -> Tensor:
        """By the engine that the curvature comes from: another would round differently."""
        return self.objective.by_torch.loss(values, index)

    def _newton(self, stack: TrialStack, slope: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Where the damped step leads, and the decrease it predicts."""
        size = matrix.diagonal(dim1=-2, dim2=-1).abs()  # [A, P]
        size = size.maximum(1e-6 * size.amax(1, keepdim=True))
        damped = matrix + torch.diag_embed(self.rows["damping"][:, None] * size)
        factor, failure = torch.linalg.cholesky_ex(damped)
        step = -torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        solved = (failure == 0) & step.isfinite().all(1)
        step = torch.where(solved[:, None], step, 0)
        bend = torch.bmm(matrix, step.unsqueeze(-1)).squeeze(-1)
        return stack.values + step, -((2 * slope + bend) * step).sum(1)

    def _leave_saddles(
        self, stack: TrialStack, loss: Tensor, matrix: Tensor, rooted: Tensor, moved: Tensor
    ) -> Tensor:
        """Find the rooted trials on a saddle and write a lower point for them in ``moved``."""
        saddle = torch.zeros_like(rooted)
        if not rooted.any():
            return saddle
        # Trial by trial and in float64: one matrix that cannot be decomposed must not end the rest.
        chosen, directions = [], []
        for trial in rooted.nonzero().flatten().tolist():
            try:
                values, vectors = torch.linalg.eigh(matrix[trial].double())
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                continue
            if values[0] < -(torch.finfo(loss.dtype).eps ** 0.5) * values[-1].abs():
                chosen.append(trial)
                directions.append(vectors[:, 0])
        if not chosen:
            return saddle
        index = torch.tensor(chosen, device=loss.device)
        direction = torch.stack(directions).to(loss.dtype)
        saddle[index] = True
        base, lowest = stack.values[index], loss[index]
        for power in range(_KICKS):
            for sign in (1, -1):
                length = sign * base.norm(dim=1, keepdim=True) / 2**power
                point = base + length * direction
                new = self._loss(point, self.active[index.cpu()])
                lower = new < lowest
                lowest = torch.where(lower, new, lowest)
                moved[index[lower]] = point[lower]
        return saddle

    def _end(self, loss: Tensor, rooted: Tensor, saddle: Tensor) -> None:
        eps = torch.finfo(loss.dtype).eps
        zero = self.is_zero(loss)
        exhausted = (self.rows["rejected"] >= 3) | (loss <= (4 * eps) ** 2 * self.scale)
        self.finish_first(
            [
                (~loss.isfinite(), Status.NON_FINITE),
                (zero & exhausted, Status.ZERO_RESIDUAL),
                (rooted & saddle, Status.SADDLE),
                (rooted, Status.LOCAL_MINIMUM),
                (self.rows["damping"] > _DAMPING_MOST, Status.STALLED),
            ],
            loss,
        )
