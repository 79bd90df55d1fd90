"""The converging search: Gauss-Newton steps, held back by Levenberg and Marquardt's damping."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.geometry.ellipsoids import Tangent
from mahalens.geometry.reconstruction.problem import Problem

STEPS = 200
FIRST_DAMPING = 1e-3
LARGEST_DAMPING = 1e12
ROUNDINGS = 2.0
"""By how many units of rounding a distance is off, about."""


class NewtonSearch:
    """Minimises ``1/2 ||d(x) - target||^2`` for every point.

    A step solves ``(J^T J + damping m I) step = -J^T r`` with the slopes J [K, D], the residuals r
    and m the mean diagonal of J^T J; in K unknowns where there are fewer distances than
    inputs, so that what they leave open stays as it was at the start. It is taken if it lowers
    the sum; the damping follows from how well the step was predicted.
    Reference: Nielsen, "Damping parameter in Marquardt's method", 1999.
    """

    def __init__(self, problem: Problem, start: Tensor, *, steps: int = STEPS) -> None:
        self.problem = problem
        self.steps = steps
        self.step = 0
        self.x = start.clone()
        count = len(start)
        self.taken = torch.zeros(count, dtype=torch.int64)
        self.converged = torch.zeros(count, dtype=torch.bool)
        self._active = torch.ones(count, dtype=torch.bool)
        self._damping = torch.full((count,), FIRST_DAMPING, dtype=torch.float64)
        self._growth = torch.full((count,), 2.0, dtype=torch.float64)
        self._tolerance = 1e-7 if start.dtype == torch.float32 else 1e-13

    @property
    def finished(self) -> bool:
        """Whether all points have ended."""
        return self.step >= self.steps or not bool(self._active.any())

    @torch.no_grad()
    def advance(self, until: int | None = None) -> None:
        """Go on to step ``until``, or to the end."""
        until = self.steps if until is None else min(until, self.steps)
        while self.step < until and not self.finished:
            self.step += 1
            for block in self.problem.blocks():
                here = torch.arange(len(self.x))[block]
                active = here[self._active[here]]
                if len(active):
                    self._improve(active)

    def _improve(self, points: Tensor) -> None:
        """One step for some points; where it fails, shorter ones within the same slopes."""
        problem = self.problem.some(points)
        x = self.x[points]
        tangent = problem.tangent(x)
        residual = (tangent.distances - problem.targets).double()
        cost = residual.square().sum(dim=1) / 2
        jacobian = tangent.jacobian().double()
        system = _System(jacobian, residual)
        off = ROUNDINGS * torch.finfo(x.dtype).eps * problem.targets.double()
        rounding = off.square().sum(dim=1) / 2
        waiting = torch.ones(len(points), dtype=torch.bool)
        while bool(waiting.any()):
            damping = self._damping[points]
            step, predicted = system.solve(damping)
            step[~waiting] = 0
            trial = (x.double() + step).to(x)
            new_cost = _cost(problem.tangent(trial), problem.targets)
            gain = (cost - new_cost) / predicted.clamp(min=1e-300)
            better = waiting & (new_cost < cost) & torch.isfinite(new_cost)
            self.x[points[better]] = trial[better]
            self.taken[points[better]] += 1
            factor = (1 - (2 * gain - 1).clamp(-1, 1) ** 3).clamp(min=1 / 3)
            self._damping[points[better]] = (damping * factor)[better].clamp(min=1e-15)
            self._growth[points[better]] = 2.0
            worse = waiting & ~better
            self._damping[points[worse]] *= self._growth[points[worse]]
            self._growth[points[worse]] *= 2
            length = torch.linalg.vector_norm(step, dim=1)
            reach = torch.linalg.vector_norm(x.double(), dim=1) + 1e-300
            # A step this short, or one that should gain less than rounding takes, changes nothing.
            short = (length <= self._tolerance * reach) | (predicted <= rounding)
            arrived = waiting & short
            stuck = worse & (self._damping[points] > LARGEST_DAMPING)
            self.converged[points[arrived | stuck]] = True
            self._active[points[arrived | stuck]] = False
            waiting = worse & ~arrived & ~stuck


class _System:
    """The equations of a step, for any damping."""

    def __init__(self, jacobian: Tensor, residual: Tensor) -> None:
        self._jacobian, self._residual = jacobian, residual
        self._wide = jacobian.shape[1] < jacobian.shape[2]
        self._gram = jacobian @ jacobian.mT if self._wide else jacobian.mT @ jacobian
        self._gradient = torch.einsum("nkd,nk->nd", jacobian, residual)
        trace = self._gram.diagonal(dim1=-2, dim2=-1).sum(dim=1)
        self._unit = trace / jacobian.shape[2] + 1e-300

    def solve(self, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Steps [n, D], and by how much they should lower the cost [n]."""
        added = damping * self._unit
        identity = torch.eye(self._gram.shape[-1], dtype=torch.float64)
        matrix = self._gram + added[:, None, None] * identity
        right = self._residual if self._wide else self._gradient
        factor, failed = torch.linalg.cholesky_ex(matrix)
        solved = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        step = -torch.einsum("nkd,nk->nd", self._jacobian, solved) if self._wide else -solved
        step[failed > 0] = 0  # more damping will mend it
        predicted = (step * (added[:, None] * step - self._gradient)).sum(dim=1) / 2
        return step, predicted


def _cost(tangent: Tangent, targets: Tensor) -> Tensor:
    return (tangent.distances - targets).double().square().sum(dim=1) / 2
