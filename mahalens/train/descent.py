"""Gradient descent for T trials at once: SGD and Adam, full batch or with mini-batches."""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from mahalens.data import stream
from mahalens.errors import InputError
from mahalens.train.compiled import NON_FINITE, PLATEAU, REACHED, RUNNING, CompiledEngine, Recipe
from mahalens.train.objective import Objective
from mahalens.train.solver import StackedSolver, Status, real, whole
from mahalens.train.stack import TrialStack

_MOST_ORDERS = 1 << 22  # row numbers held at a time for shuffled batches
_STATUSES = {NON_FINITE: Status.NON_FINITE, REACHED: Status.REACHED, PLATEAU: Status.PLATEAU}


@dataclass(frozen=True)
class Batches:
    """Mini-batches of ``size`` samples; the last of an epoch may be smaller.

    Every epoch a trial goes through all samples in an order drawn from its seed, or in the order
    of the data without ``shuffle``. The order depends on seed and epoch alone: a resumed run sees
    the same batches. ``seeds`` is one per trial, or one number from which each trial derives its
    seed.

    >>> Batches(2, shuffle=False).split(trial=0, epoch=1, samples=5)
    (tensor([0, 1]), tensor([2, 3]), tensor([4]))
    """

    size: int
    seeds: int | Sequence[int] = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        # Whole numbers of numpy and torch are whole numbers too.
        object.__setattr__(self, "seeds", _whole(self.seeds))
        object.__setattr__(self, "size", whole("batch size", self.size))
        if self.size < 1:
            raise InputError(f"a batch size of {self.size}; give at least 1")
        seeds = [self.seeds] if isinstance(self.seeds, int) else list(self.seeds)
        for trial, seed in enumerate(seeds):
            if seed < 0:
                raise InputError(f"trial {trial}: a seed of {seed}; give at least 0")

    def check(self, trials: int) -> None:
        """Refuse a list of seeds that is not one per trial."""
        if not isinstance(self.seeds, int) and len(self.seeds) != trials:
            raise InputError(f"{len(self.seeds)} seeds for {trials} trials; give one per trial")

    def order(self, trial: int, epoch: int, samples: int) -> Tensor:
        """Return the order ``[N]`` in which a trial sees the samples in an epoch (from 1)."""
        if not self.shuffle:
            return torch.arange(samples)
        if isinstance(self.seeds, int):
            generator = stream(self.seeds, "batches", trial, epoch)
        else:
            generator = stream(self.seeds[trial], "batches", epoch)
        return torch.randperm(samples, generator=generator)

    def split(self, trial: int, epoch: int, samples: int) -> tuple[Tensor, ...]:
        """Return the batches of a trial's epoch, as row numbers."""
        batches: tuple[Tensor, ...] = self.order(trial, epoch, samples).split(self.size)
        return batches


def _whole(seeds: int | Sequence[int] | Tensor) -> int | tuple[int, ...]:
    if isinstance(seeds, Tensor):
        seeds = seeds.tolist()
    try:
        if isinstance(seeds, Iterable):
            return tuple(operator.index(seed) for seed in seeds)
        return operator.index(seeds)
    except TypeError:
        raise InputError(f"seeds of {seeds}; give a whole number, or one per trial") from None


class DescentOptions(TypedDict, total=False):
    """Options that :class:`SGD` and :class:`Adam` share; see :class:`Descent`."""

    lr: float | Sequence[float] | Tensor
    batches: Batches | None
    target: float | None
    patience: int | None
    gain: float
    curve_points: int
    most_epochs: int
    chunk_flops: float
    small_flops: float


class Descent(StackedSolver):
    """Gradient descent for T trials at once, full batch or with mini-batches.

    ``lr`` is one learning rate or one per trial. The loss of an epoch is the one before its update,
    as a plain training loop prints it (with mini-batches the mean over them); the final loss is
    that of a trial's last epoch. The curve has about ``curve_points`` epochs, evenly spaced on a
    logarithmic scale.

    Trials end one by one: when the loss turns non-finite; when it is ``target`` or less; when it
    has not fallen by a share ``gain`` of its lowest value for ``patience`` epochs. A full-batch
    trial that ends early keeps the weights that had this loss.

    :meth:`advance` trains at most ``most_epochs`` epochs and ``chunk_flops`` of work, a fraction of
    a second. The compiled engine takes several epochs in one call where one epoch of a trial is at
    most ``small_flops``. None of the three changes a number.
    """

    most_epochs = 1000

    def __init__(
        self,
        objective: Objective,
        start: TrialStack,
        epochs: int,
        recipe: Recipe,
        *,
        lr: float | Sequence[float] | Tensor = 1e-3,
        batches: Batches | None = None,
        target: float | None = None,
        patience: int | None = None,
        gain: float = 0.0,
        curve_points: int = 400,
        most_epochs: int | None = None,
        chunk_flops: float = 1e10,
        small_flops: float = 1e8,
    ) -> None:
        super().__init__(objective, start, epochs)
        if batches is not None:
            batches.check(len(start))
        gain = real("gain", gain)
        target = None if target is None else real("target", target)
        patience = None if patience is None else whole("patience", patience)
        if target is not None and math.isnan(target):
            raise InputError(f"a target of {target}; give a loss to stop at")
        if patience is not None and patience < 1:
            raise InputError(f"a patience of {patience} epochs; give at least 1")
        if not 0 <= gain < 1:
            raise InputError(f"a gain of {gain}; give a share from 0 to below 1")
        if curve_points < 1:
            raise InputError(f"{curve_points} points of the curve; give at least 1")
        self.batches = batches
        self.most_epochs = most_epochs or self.most_epochs
        self._chunk_flops = chunk_flops
        self._in_one_call = batches is not None or objective.flops <= small_flops
        self._recipe = recipe._replace(
            batch=None if batches is None else batches.size,
            target=-math.inf if target is None else target,
            patience=patience or 0,
            gain=gain,
        )
        trials, width = start.values.shape
        self.rows |= {
            "m": start.values.new_zeros(trials, width if recipe.momentum or recipe.adam else 0),
            "v": start.values.new_zeros(trials, width if recipe.adam else 0),
            "lr": _rates(lr, trials),
            "best": torch.full((trials,), torch.inf, dtype=torch.float64),
            "since": torch.zeros(trials, dtype=torch.int64),
        }
        self._schedule = np.unique(np.geomspace(1, epochs, curve_points).round().astype(int))

    @abc.abstractmethod
    def update(self, gradient: Tensor, step: int) -> None:
        """Move the running trials by their gradient ``[A, P]``; steps count from 1."""

    def advance(self) -> None:
        """Train some epochs; trials that end on the way leave."""
        if not len(self.active):
            return
        count = self.until_milestone(self._chunk())
        compiled = self.objective.compiled
        if compiled is not None and self._in_one_call:
            self._compiled_epochs(compiled, count)
        else:
            for _ in range(count):
                self._epoch()
                if self.finished:
                    break
        if self.epoch == self.limit and not self.finished:
            everyone = torch.ones(len(self.active), dtype=torch.bool)
            self.finish(everyone, Status.DONE, self._last, self.epoch)

    def _chunk(self) -> int:
        chunk = int(self._chunk_flops // (self.objective.flops * len(self.active)))
        if self.batches is not None and self.batches.shuffle:
            chunk = min(chunk, _MOST_ORDERS // self.objective.samples)
        return min(self.most_epochs, max(1, chunk))

    def _compiled_epochs(self, engine: CompiledEngine, count: int) -> None:
        begun = self.epoch
        orders = None if self.batches is None else self._orders(self.batches, count)
        losses, done, outcomes = engine.train(
            self.rows, self.active, self._recipe, begun, count, orders
        )
        losses = losses.to(self.values.dtype)
        self.epoch += count if bool((outcomes == RUNNING).any()) else int(done.max())
        for epoch in self._scheduled(begun, self.epoch):
            self.record(epoch, losses[:, epoch - begun - 1])
        last = losses.gather(1, done[:, None] - 1).squeeze(1)
        for code, status in _STATUSES.items():
            ended = outcomes == code
            self.finish(ended, status, last, begun + done)
            last, done, outcomes = last[~ended], done[~ended], outcomes[~ended]
        self._last = last

    def _orders(self, batches: Batches, count: int) -> Callable[[int], Tensor]:
        """For any trial, the order of its samples in the next epochs ``[count, N]``."""
        epochs = range(self.epoch + 1, self.epoch + count + 1)
        samples = self.objective.samples
        return lambda trial: torch.stack([batches.order(trial, e, samples) for e in epochs])

    def _scheduled(self, after: int, until: int) -> list[int]:
        """Epochs of the curve in ``(after, until]``."""
        low, high = np.searchsorted(self._schedule, [after, until], side="right")
        epochs: list[int] = self._schedule[low:high].tolist()
        return epochs

    def _epoch(self) -> None:
        """Train for one epoch by the engine's gradients, with the update in torch."""
        self.epoch += 1
        samples = self.objective.samples
        if self.batches is None or self.batches.size >= samples:
            loss, gradient = self.objective.loss_and_gradient(self.running())
            running = self._judge(loss)
            if not self.finished:
                self._move(gradient if bool(running.all()) else gradient[running], self.epoch)
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
        running = torch.ones(len(loss), dtype=torch.bool)
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
                ended = holds.cpu() & running
                self.finish(ended[running], status, loss[running], self.epoch)
                running &= ~ended
        self._last = loss[running]
        return running


def _rates(lr: float | Sequence[float] | Tensor, trials: int) -> Tensor:
    """Return a learning rate per trial, ``[T]``."""
    try:
        rates = torch.as_tensor(lr, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"a learning rate of {lr!r}; give one number, or one per trial") from None
    if rates.ndim > 1 or (rates.ndim == 1 and len(rates) != trials):
        raise InputError(
            f"learning rates of shape {list(rates.shape)} for {trials} trials; give one number, or "
            "one per trial"
        )
    for trial, rate in enumerate(rates.reshape(-1).tolist()):
        if not (math.isfinite(rate) and rate > 0):
            place = f"trial {trial}: " if rates.ndim else ""
            raise InputError(f"{place}a learning rate of {rate}; give a positive number")
    return rates.expand(trials).clone()


class SGD(Descent):
    """Gradient descent with momentum, equal to ``torch.optim.SGD`` per trial.

    ``m ← μ m + g``, ``θ ← θ - lr · m``; without momentum ``θ ← θ - lr · g``.

    For ``options`` see :class:`mahalens.train.Descent`.
    """

    def __init__(
        self,
        objective: Objective,
        start: TrialStack,
        epochs: int,
        *,
        momentum: float = 0.0,
        **options: Unpack[DescentOptions],
    ) -> None:
        momentum = real("momentum", momentum)
        if not 0 <= momentum < 1:
            raise InputError(f"a momentum of {momentum}; give a number in [0, 1)")
        self.momentum = momentum
        recipe = Recipe(adam=False, momentum=momentum)
        super().__init__(objective, start, epochs, recipe, **options)

    def update(self, gradient: Tensor, step: int) -> None:  # noqa: D102
        m = gradient
        if self.momentum:
            m = self.rows["m"].mul_(self.momentum).add_(gradient)
        self.rows["values"].sub_(m * self.rows["lr"].to(m)[:, None])


class Adam(Descent):
    """Adam (Kingma and Ba, arXiv 1412.6980), equal to ``torch.optim.Adam`` per trial.

    ``m ← β₁ m + (1-β₁) g``, ``v ← β₂ v + (1-β₂) g²``,
    ``θ ← θ - lr · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε)``. Mind the default ``betas``: PyTorch's second
    one is 0.999.

    For ``options`` see :class:`mahalens.train.Descent`.
    """

    def __init__(
        self,
        objective: Objective,
        start: TrialStack,
        epochs: int,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        **options: Unpack[DescentOptions],
    ) -> None:
        pair = [real("betas", beta) for beta in betas] if isinstance(betas, Iterable) else []
        if len(pair) != 2 or not all(0 <= beta < 1 for beta in pair):
            raise InputError(f"betas of {betas}; give two numbers in [0, 1)")
        if not (math.isfinite(real("eps", eps)) and eps >= 0):
            raise InputError(f"an eps of {eps}; give a small number, not below 0")
        self.betas, self.eps = betas, eps
        recipe = Recipe(adam=True, momentum=betas[0], beta2=betas[1], eps=eps)
        super().__init__(objective, start, epochs, recipe, **options)

    def update(self, gradient: Tensor, step: int) -> None:  # noqa: D102
        beta1, beta2 = self.betas
        m, v = self.rows["m"], self.rows["v"]
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = v.sqrt().div_(math.sqrt(1 - beta2**step)).add_(self.eps)
        rate = (self.rows["lr"] / (1 - beta1**step)).to(m)[:, None]
        self.rows["values"].sub_((m / denominator).mul_(rate))
