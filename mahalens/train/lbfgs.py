"""Limited-memory BFGS for T trials at once, where the parameters are many."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.train.objective import Objective
from mahalens.train.solver import StackedSolver, Status
from mahalens.train.stack import TrialStack
from mahalens.train.stationary import curves_down

_SUFFICIENT = 1e-4  # Armijo: this share of the decrease the slope promises
_CURVATURE = 0.9  # weak Wolfe: the slope must have lost this share
_MOST_TRIES = 30  # points tried along one line


class LBFGS(StackedSolver):
    """Batched L-BFGS (Liu and Nocedal 1989) with a bisecting weak-Wolfe line search.

    Every :meth:`advance` evaluates one point per running trial, all in one pass over the data:
    a trial whose point is good takes it and turns to a new direction, the others halve or double
    their step meanwhile. No trial waits for another's line search. The line search is that of
    Lewis and Overton (2013), which also copes with the kinks that ReLU distances have at 0.

    Meant for sample-whitened coordinates (see :class:`mahalens.train.WhitenedInputs`): on badly
    scaled inputs it stalls.
    """

    def __init__(
        self, objective: Objective, start: TrialStack, steps: int, *, memory: int = 20
    ) -> None:
        super().__init__(objective, start, steps)
        if memory < 1:
            raise InputError(f"a memory of {memory} steps; give at least 1")
        trials, width = start.values.shape
        new = start.values.new_zeros
        self.rows |= {
            "loss": new(trials) + torch.inf,
            "gradient": new(trials, width),
            "direction": new(trials, width),
            "slope": new(trials),
            "step": new(trials),
            "low": new(trials),
            "high": new(trials) + torch.inf,
            "tries": new(trials),
            "s": new(trials, memory, width),
            "y": new(trials, memory, width),
            "rho": new(trials, memory),
            "updates": torch.zeros(trials, dtype=torch.int64, device=start.values.device),
        }

    def advance(self) -> None:
        """Evaluate one point of every running trial's line search."""
        rows = self.rows
        point = rows["values"] + rows["step"][:, None] * rows["direction"]
        moved = TrialStack(self.objective.model, point, index=self.active)
        loss, gradient = self.objective.loss_and_gradient(moved)
        first = self.epoch == 0
        self.epoch += 1

        slope = (gradient * rows["direction"]).sum(1)
        enough = loss <= rows["loss"] + _SUFFICIENT * rows["step"] * rows["slope"]
        flat = slope >= _CURVATURE * rows["slope"]
        accepted = enough & flat & loss.isfinite()
        if first:
            accepted = torch.ones_like(accepted)
        self._bracket(enough & loss.isfinite())
        rows["tries"] += 1
        self._accept(accepted, point, loss, gradient, learn=not first)
        self.record(self.epoch, rows["loss"])
        self._end(first & ~loss.isfinite())

    def _bracket(self, enough: Tensor) -> None:
        """Halve the step where the loss did not fall enough, lengthen it where it fell too well."""
        rows = self.rows
        rows["high"] = torch.where(enough, rows["high"], rows["step"])
        rows["low"] = torch.where(enough, rows["step"], rows["low"])
        middle = (rows["low"] + rows["high"]) / 2
        rows["step"] = torch.where(rows["high"].isinf(), 2 * rows["step"], middle)

    def _accept(
        self, accepted: Tensor, point: Tensor, loss: Tensor, gradient: Tensor, *, learn: bool
    ) -> None:
        """Move the accepted trials to their point and choose their next direction."""
        rows = self.rows
        # A line that leads nowhere: forget the history and go down the gradient instead.
        lost = ~accepted & (rows["tries"] >= _MOST_TRIES) & (rows["updates"] > 0)
        turning = (accepted | lost).nonzero().squeeze(1)
        if not len(turning):
            return
        if learn:
            self._learn(accepted, point, gradient)
        rows["values"] = torch.where(accepted[:, None], point, rows["values"])
        rows["gradient"] = torch.where(accepted[:, None], gradient, rows["gradient"])
        rows["loss"] = torch.where(accepted, loss, rows["loss"])
        rows["updates"][lost] = 0
        rows["rho"][lost] = 0

        direction = self._direction(turning)
        slope = (direction * rows["gradient"][turning]).sum(1)
        uphill = ~(slope < 0)
        direction[uphill] = -rows["gradient"][turning][uphill]
        slope = (direction * rows["gradient"][turning]).sum(1)
        fresh = rows["updates"][turning] == 0
        length = direction.norm(dim=1).clamp_min(torch.finfo(direction.dtype).tiny)
        rows["direction"][turning] = direction
        rows["slope"][turning] = slope
        rows["step"][turning] = torch.where(fresh, (1 / length).clamp_max(1), 1.0)
        rows["low"][turning] = 0
        rows["high"][turning] = torch.inf
        rows["tries"][turning] = 0

    def _learn(self, accepted: Tensor, point: Tensor, gradient: Tensor) -> None:
        """Store the step and the change of gradient of the accepted trials."""
        rows = self.rows
        s, y = point - rows["values"], gradient - rows["gradient"]
        product = (s * y).sum(1)
        useful = accepted & (product > torch.finfo(s.dtype).eps * y.square().sum(1))
        index = useful.nonzero().squeeze(1)
        place = rows["updates"][index] % rows["s"].shape[1]
        rows["s"][index, place] = s[index]
        rows["y"][index, place] = y[index]
        rows["rho"][index, place] = 1 / product[index]
        rows["updates"][index] += 1

    def _direction(self, trials: Tensor) -> Tensor:
        """``-H g`` of these trials by the two-loop recursion; unused places have rho 0."""
        rows = self.rows
        memory = rows["s"].shape[1]
        updates = rows["updates"][trials]
        q = -rows["gradient"][trials]
        alphas = []
        newest_first = [(updates - 1 - age) % memory for age in range(memory)]
        for place in newest_first:
            alpha = rows["rho"][trials, place] * (rows["s"][trials, place] * q).sum(1)
            q -= alpha[:, None] * rows["y"][trials, place]
            alphas.append(alpha)
        y = rows["y"][trials, newest_first[0]]
        rho = rows["rho"][trials, newest_first[0]]
        scale = 1 / (rho * y.square().sum(1))
        q *= torch.where(rho > 0, scale, 1.0)[:, None]
        for place, alpha in zip(reversed(newest_first), reversed(alphas), strict=True):
            beta = rows["rho"][trials, place] * (rows["y"][trials, place] * q).sum(1)
            q += (alpha - beta)[:, None] * rows["s"][trials, place]
        return q

    def _end(self, broken: Tensor) -> None:
        rows = self.rows
        loss = rows["loss"]
        zero = self.is_zero(loss)
        stuck = (rows["tries"] >= _MOST_TRIES) & (rows["updates"] == 0)
        exhausted = loss <= (64 * torch.finfo(loss.dtype).eps) ** 2 * self.scale
        flat = ~zero & self.is_stationary(loss, rows["gradient"] / 2)
        self.finish_first(
            [
                (broken, Status.NON_FINITE),
                (zero & (stuck | exhausted), Status.ZERO_RESIDUAL),
                (curves_down(self.objective, self.running(), flat), Status.SADDLE),
                (flat, Status.LOCAL_MINIMUM),
                (stuck, Status.STALLED),
            ],
            loss,
        )
