"""Trains the trials of one model: the learning rate by a part of the training data, then all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.data import stream
from mahalens.data.tables import held_out
from mahalens.nn import Chain
from mahalens.studies.hybrid.config import (
    BATCH,
    FEW,
    RATES,
    SMALL_BATCH,
    SMALL_DRAWS,
    VALIDATION,
    HybridConfig,
)
from mahalens.studies.hybrid.mixtures import MIXTURES
from mahalens.studies.paired.samples import Samples
from mahalens.train import TrialStack, fit
from mahalens.train.solver import Metrics

HALF_WAY = -0.5
"""The slope for negative numbers that units of a learned mixture start with."""
POINTS = 25
"""How often a network is tested while it trains."""


@dataclass(frozen=True)
class Tried:
    """Which learning rate each trial chose ``[T]``, and its training losses with all of them.

    ``losses`` is ``[T, R, E]`` with R over rates, and over draws of held-out samples.
    """

    rates: Tensor
    losses: Tensor
    seconds: float


@dataclass(frozen=True)
class Trained:
    """T trained networks, and what was seen on the way.

    ``losses`` ``[T, E]`` is the training loss of every epoch, ``accuracy`` ``[T, L]`` the test
    accuracy in percent at the epochs ``at`` ``[L]``. ``tried`` tells how learning rates did.
    """

    stack: TrialStack
    tried: Tried
    losses: Tensor
    at: Tensor
    accuracy: Tensor
    seconds: float


@dataclass(frozen=True)
class _Row:
    """One network of a stack: from the start of which trial, on which samples, how fast."""

    trial: int
    x: Tensor
    y: Tensor
    rate: float


def train(
    config: HybridConfig, model: str, trials: Sequence[int], sets: Sequence[Samples]
) -> Trained:
    """Train a model in some trials, each on its own samples."""
    tried = try_rates(config, model, trials, sets)
    rows = [
        _Row(trial, one.x, one.y, rate)
        for trial, one, rate in zip(trials, sets, tried.rates.tolist(), strict=True)
    ]

    def tested(solver: Any) -> dict[str, Tensor]:
        stack = solver.stack
        scores = [judged(stack[t], one.test_x, one.test_y) for t, one in enumerate(sets)]
        return {"accuracy": torch.stack([accuracy for accuracy, _ in scores])}

    at = tested_epochs(config.epochs)
    done = _fitted(config, model, rows, sets[0], tested, at)
    # Where all trials ran away and training ended early, there is nothing to be seen.
    accuracy = torch.full((len(sets), len(at)), math.nan)
    reached = [at.index(epoch) for epoch in done.history.epochs.tolist() if epoch in at]
    accuracy[:, reached] = done.history["accuracy"].T[:, : len(reached)]
    return Trained(
        done.stack, tried, _losses(done, config.epochs), torch.tensor(at), accuracy, done.seconds
    )


def tested_epochs(epochs: int) -> list[int]:
    """When networks are tested: before training, ever more rarely on the way, near and at the end.

    >>> tested_epochs(20)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 16, 18, 20]
    """
    places = np.geomspace(1, epochs, POINTS).round().astype(int).tolist()
    return sorted({0, *places, epochs - max(1, epochs // 10)})


def try_rates(
    config: HybridConfig, model: str, trials: Sequence[int], sets: Sequence[Samples]
) -> Tried:
    """Choose the learning rate of each trial by samples that are held out of its training.

    The best is the one with the highest accuracy on them, and the lowest loss among equals. All
    rates of all trials train as one stack.
    """
    draws = SMALL_DRAWS if len(sets[0].y) < FEW else 1
    rows, kept = [], []
    for trial, one in zip(trials, sets, strict=True):
        for draw in range(draws):
            out = held_out(one.y, VALIDATION, stream(config.seed, "validation", trial, draw))
            x, y = one.x[~out], one.y[~out]
            rows += [_Row(trial, x, y, rate) for rate in RATES]
            kept += [(one.x[out], one.y[out])] * len(RATES)
    done = _fitted(config, model, rows, sets[0])
    stack = done.stack
    scores = [judged(stack[place], *held) for place, held in enumerate(kept)]
    accuracy, loss = (
        torch.stack(part).double().reshape(len(trials), draws, len(RATES)).mean(1)
        for part in zip(*scores, strict=True)
    )
    losses = _losses(done, config.epochs).reshape(len(trials), -1, config.epochs)
    return Tried(best_rates(accuracy, loss), losses, done.seconds)


def best_rates(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Of each trial the rate with the highest accuracy, and of equals the lowest loss ``[T, R]``.

    >>> best_rates(torch.tensor([[90.0, 95, 95, 95, math.nan]]), torch.tensor([[1.0, 3, 2, 4, 0]]))
    tensor([0.0100], dtype=torch.float64)
    """
    accuracy = accuracy.nan_to_num(-1.0)  # a network that ran away is taken last
    best = accuracy == accuracy.max(1, keepdim=True).values
    place = torch.where(best, loss.nan_to_num(math.inf), math.inf).argmin(1)
    return torch.tensor(RATES, dtype=torch.float64)[place]


def _losses(done: Any, epochs: int) -> Tensor:
    """The training loss of every epoch ``[T, E]``, NaN after the end of a trial."""
    losses = torch.full((len(done.stack), epochs), math.nan)
    at, curve = done.curve
    losses[:, at - 1] = curve.T
    return losses


def _fitted(
    config: HybridConfig,
    model: str,
    rows: Sequence[_Row],
    like: Samples,
    metrics: Metrics[Any] | None = None,
    at: Iterable[int] = (),
) -> Any:
    """Train all rows at once; ``like`` tells the shapes."""
    trials = [row.trial for row in rows]
    shared = all(row.x is rows[0].x for row in rows)  # then one copy serves all
    x = rows[0].x if shared else torch.stack([row.x for row in rows])
    y = rows[0].y if shared else torch.stack([row.y for row in rows])
    return fit(
        started(config, model, trials, like),
        x,
        y,
        epochs=config.epochs,
        loss="cross-entropy",
        solver="adam",
        batch_size=SMALL_BATCH if len(like.y) < FEW else BATCH,
        seeds=[number(config, "order", trial) for trial in trials],
        own=not shared,
        metrics=metrics,
        at=at,
        lr=[row.rate for row in rows],
        betas=(0.9, 0.999),
        curve_points=10**6,
    )


def started(config: HybridConfig, model: str, trials: Sequence[int], like: Samples) -> TrialStack:
    """Untrained networks; all models of one width start from the same weights in a trial."""
    units, mixture = config.units(model, like.image_shape is not None), MIXTURES[model]
    seeds = [number(config, "start", trial) for trial in trials]
    if mixture.share is None:
        return TrialStack.from_seeds(
            lambda: nn.Sequential(
                nn.Linear(like.inputs, units),
                nn.PReLU(units, HALF_WAY),
                nn.Linear(units, like.classes),
            ),
            seeds,
        )
    text = f"Linear({units}), AbsReLU(absolute={mixture.absolute(units)}), Linear({like.classes})"
    return TrialStack.from_seeds(Chain.parse(text, inputs=like.inputs), seeds)


def number(config: HybridConfig, purpose: str, trial: int) -> int:
    """A seed for one purpose of one trial."""
    return int(torch.randint(2**31, (1,), generator=stream(config.seed, purpose, trial)))


@torch.no_grad()
def judged(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracy in percent and loss; NaN both if an output is not finite."""
    output = module(x)
    if not bool(output.isfinite().all()):
        return torch.tensor(math.nan), torch.tensor(math.nan)
    return 100 * (output.argmax(1) == y).float().mean(), functional.cross_entropy(output, y)
