"""What SGD and Adam share: epochs, mini-batches, learning rates, the end of a trial."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.train.batches import Batches
from mahalens.train.compiled.engine import NON_FINITE, PLATEAU, REACHED, RUNNING, Recipe
from mahalens.train.objective import Objective
from mahalens.train.solver import StackedSolver, Status
from mahalens.train.stack import TrialStack

_CHUNK_FLOPS = 1e10
"""Work between two looks at the clock, a fraction of a second."""
_MOST_EPOCHS = 1000
"""Epochs between two looks at the clock, however small the work."""
_SMALL_FLOPS = 1e8
"""Up to here an epoch of one trial is so short that several of them go into one call."""
_MOST_ORDERS = 1 << 22
"""Row numbers kept at a time for shuffled batches."""

_STATUSES = {NON_FINITE: Status.NON_FINITE, REACHED: Status.REACHED, PLATEAU: Status.PLATEAU}


class Descent(StackedSolver):
    """Gradient descent for T trials at once, full batch or with mini-batches.

    ``lr`` is one learning rate or one per trial. The loss of an epoch is the one before its update,
    as a plain training loop prints it (with mini-batches the mean over them); the final loss is
    that of a trial's last epoch.

    A trial ends on its own, and the others go on without it: when its loss turns non-finite; when
    its loss is ``target`` or less; when its loss has not fallen by a share ``gain`` of its lowest
    for ``patience`` epochs. A full-batch trial that ends so keeps the weights that had this loss.
    """

    def __init__(
        self,
        objective: Objective,
        start: TrialStack,
        epochs: int,
        *,
        lr: float | Sequence[float] | Tensor,
        batches: Batches | None,
        target: float | None,
        patience: int | None,
        gain: float,
        curve_points: int,
    ) -> None:
        super().__init__(objective, start, epochs)
        if batches is not None:
            batches.check(len(start))
        if target is not None and math.isnan(target):
            raise InputError(f"a target of {target}; give a loss to stop at")
        if patience is not None and patience < 1:
            raise InputError(f"a patience of {patience} epochs; give at least 1")
        if not 0 <= gain < 1:
            raise InputError(f"a gain of {gain}; give a share from 0 to below 1")
        if curve_points < 1:
            raise InputError(f"{curve_points} points of the curve; give at least 1")
        self.batches = batches
        self._recipe = self.recipe()._replace(
            batch=None if batches is None else batches.size,
            target=-math.inf if target is None else target,
            patience=patience or 0,
            gain=gain,
        )
        (trials, width), recipe = start.values.shape, self._recipe
        self.rows |= {
            "m": start.values.new_zeros(trials, width if recipe.momentum or recipe.adam else 0),
            "v": start.values.new_zeros(trials, width if recipe.adam else 0),
            "lr": _rates(lr, trials),
            "best": torch.full((trials,), torch.inf, dtype=torch.float64),
            "since": torch.zeros(trials, dtype=torch.int64),
        }
        self._schedule = np.unique(np.geomspace(1, epochs, curve_points).round().astype(int))

    @abc.abstractmethod
    def recipe(self) -> Recipe:
        """What is done with a gradient, as the compiled engine is told it."""

    @abc.abstractmethod
    def update(self, gradient: Tensor, step: int) -> None:
        """Move the running trials by their gradient ``[A, P]``; steps count from 1."""

    def advance(self) -> None:
        """Train some epochs; trials that end on the way leave."""
        if not len(self.active):
            return
        count = self.until_milestone(self._chunk())
        compiled = self.objective.compiled
        if compiled is not None and (
            self.batches is not None or self.objective.flops <= _SMALL_FLOPS
        ):
            self._compiled_epochs(count)
        else:
            for _ in range(count):
                self._epoch()
                if self.finished:
                    break
        if self.epoch == self.limit and not self.finished:
            everyone = torch.ones(len(self.active), dtype=torch.bool)
            self.finish(everyone, Status.DONE, self._last, self.epoch)

    def _chunk(self) -> int:
        chunk = int(_CHUNK_FLOPS // (self.objective.flops * len(self.active)))
        if self.batches is not None and self.batches.shuffle:
            chunk = min(chunk, _MOST_ORDERS // self.objective.samples)
        return min(_MOST_EPOCHS, max(1, chunk))

    def _compiled_epochs(self, count: int) -> None:
        engine = self.objective.compiled
        if engine is None:
            raise TypeError("there is no compiled engine")
        begun = self.epoch
        orders = None if self.batches is None else self._orders(self.batches, count)
        losses, done, left = engine.train(
            self.rows, self.active, self._recipe, begun, count, orders
        )
        losses = losses.to(self.values.dtype)
        self.epoch += count if bool((left == RUNNING).any()) else int(done.max())
        for epoch in self._scheduled(begun, self.epoch):
            self.record(epoch, losses[:, epoch - begun - 1])
        last = losses.gather(1, done[:, None] - 1).squeeze(1)
        for code, status in _STATUSES.items():
            ended = left == code
            self.finish(ended, status, last, begun + done)
            last, done, left = last[~ended], done[~ended], left[~ended]
        self._last = last

    def _orders(self, batches: Batches, count: int) -> Callable[[int], Tensor]:
        """Of any trial, the order of its samples in the next epochs ``[count, N]``."""
        epochs = range(self.epoch + 1, self.epoch + count + 1)
        samples = self.objective.samples
        return lambda trial: torch.stack([batches.order(trial, e, samples) for e in epochs])

    def _scheduled(self, after: int, until: int) -> list[int]:
        """Epochs of the curve in ``(after, until]``."""
        low, high = np.searchsorted(self._schedule, [after, until], side="right")
        chosen: list[int] = self._schedule[low:high].tolist()
        return chosen

    def _epoch(self) -> None:
        """One epoch by the engine's gradients, with the update in torch."""
        self.epoch += 1
        samples = self.objective.samples
        if self.batches is None or self.batches.size >= samples:
            loss, gradient = self.objective.loss_and_gradient(self.running())
            kept = self._judge(loss)
            if not self.finished:
                self._move(gradient if bool(kept.all()) else gradient[kept], self.epoch)
            return
        orders = [self.batches.split(int(t), self.epoch, samples) for t in self.active]
        step = (self.epoch - 1) * len(orders[0])
        total = self.values.new_zeros(len(self.active))
        for number, parts in enumerate(zip(*orders, strict=True), 1):
            rows = torch.stack(parts).to(self.values.device)
            loss, gradient = self.objective.loss_and_gradient(self.running(), rows)
            total += loss * (rows.shape[1] / samples)
            self._move(gradient, step + number)
        self._judge(total)

    def _move(self, gradient: Tensor, step: int) -> None:
        engine = self.objective.compiled
        if engine is None:
            self.update(gradient, step)
        else:
            engine.update(self.rows, gradient, self._recipe, step)

    def _judge(self, loss: Tensor) -> Tensor:
        """End the trials that end with this loss ``[A]``; returns which go on."""
        if self._scheduled(self.epoch - 1, self.epoch):
            self.record(self.epoch, loss)
        kept = torch.ones(len(loss), dtype=torch.bool)
        verdicts = [(~loss.isfinite(), Status.NON_FINITE)]
        if self._recipe.target > -math.inf:
            verdicts.append((loss <= self._recipe.target, Status.REACHED))
        if self._recipe.patience:
            best, now = self.rows["best"], loss.to("cpu", torch.float64)
            better = now < torch.where(best.isinf(), best, best - self._recipe.gain * best.abs())
            self.rows["best"] = torch.where(better, now, best)
            self.rows["since"] = torch.where(better, 0, self.rows["since"] + 1)
            verdicts.append((self.rows["since"] >= self._recipe.patience, Status.PLATEAU))
        if any(bool(holds.any()) for holds, _ in verdicts):
            for holds, status in verdicts:
                ended = holds.cpu() & kept
                self.finish(ended[kept], status, loss[kept], self.epoch)
                kept &= ~ended
        self._last = loss[kept]
        return kept


def _rates(lr: float | Sequence[float] | Tensor, trials: int) -> Tensor:
    """A learning rate per trial, ``[T]``."""
    given = torch.as_tensor(lr, dtype=torch.float64).detach().cpu()
    if given.ndim > 1 or (given.ndim == 1 and len(given) != trials):
        raise InputError(
            f"learning rates of shape {list(given.shape)} for {trials} trials; give one number, or "
            "one per trial"
        )
    for trial, rate in enumerate(given.reshape(-1).tolist()):
        if not (math.isfinite(rate) and rate > 0):
            whose = f"trial {trial}: " if given.ndim else ""
            raise InputError(f"{whose}a learning rate of {rate}; give a positive number")
    return given.expand(trials).clone()
