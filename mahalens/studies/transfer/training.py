"""Trains the networks of some trials: learning rate and epochs are chosen, then all is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mahalens.data import stream
from mahalens.nn.chain import Chain
from mahalens.studies.paired.samples import Samples
from mahalens.studies.transfer.config import TransferConfig
from mahalens.studies.transfer.samples import folds_of
from mahalens.train import SGD, Adam, Newton, TrialStack, fit

SHARES = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0)
"""Of the epochs at which training may end."""


@dataclass(frozen=True)
class Trained:
    """The networks of T trials, seen at E epochs: on test and training samples."""

    epochs: Tensor
    rates: Tensor
    chosen: Tensor
    """Which of the epochs each trial ends at ``[T]``."""
    outputs: Tensor
    """Of the test samples at the end, ``[T, M, C]``."""
    train_accuracy: Tensor
    curve: Tensor
    """Test accuracy by epoch ``[T, E]``, in percent."""
    weights: dict[str, Tensor]
    """Parameters at the end of each trial, trials first."""


def train(
    config: TransferConfig, chain: Chain, trials: Sequence[int], samples: Sequence[Samples]
) -> Trained:
    """Choose learning rate and epochs of each trial on held-out parts, then train on all samples.

    Every network is given the same choice. What is chosen has the lowest mean log loss on the
    parts held out; a run that turned non-finite is never chosen. Networks learn by Adam on the
    full batch, all trials at once.
    """
    seeds = [seed_of(config, trial) for trial in trials]
    rates, places = choose(config, chain, trials, samples, seeds)
    marks = milestones(config.epochs)
    x, y = torch.stack([s.x for s in samples]), torch.stack([s.y for s in samples])
    test_x = torch.stack([s.test_x for s in samples])
    test_y = torch.stack([s.test_y for s in samples])
    start = TrialStack.from_seeds(chain, seeds)
    outputs = torch.full((*test_x.shape[:2], samples[0].classes), torch.nan)
    known = torch.full((len(trials),), torch.nan, dtype=torch.float64)
    values = start.values.clone()
    ends = torch.tensor(marks)[places]

    def look(solver: SGD | Adam | Newton) -> dict[str, Tensor]:
        seen = solver.stack(test_x)
        due = ends == solver.epoch
        if due.any():
            outputs[due] = seen[due]
            known[due] = accuracy(solver.stack(x), y)[due]
            values[due] = solver.stack.values[due]
        return {"accuracy": accuracy(seen, test_y)}

    last = int(ends.max())
    at = [mark for mark in marks if mark <= last]
    done = fit(start, x, y, loss="cross-entropy", epochs=last, lr=rates, metrics=look, at=at)
    curve = torch.full((len(trials), len(marks)), torch.nan)
    for place, epoch in enumerate(done.history.epochs.tolist()):
        curve[:, marks.index(epoch)] = done.history["accuracy"][place].float()
    curve[torch.arange(len(marks)) > places[:, None]] = torch.nan
    return Trained(
        torch.tensor(marks),
        rates,
        places,
        outputs,
        known,
        curve,
        TrialStack(chain, values).tensors(),
    )


def choose(
    config: TransferConfig,
    chain: Chain,
    trials: Sequence[int],
    samples: Sequence[Samples],
    seeds: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Learning rate ``[T]`` and place among the milestones ``[T]`` with the least held-out loss."""
    folds = [
        folds_of(own.y, stream(config.seed, "folds", trial))
        for own, trial in zip(samples, trials, strict=True)
    ]
    pairs = [(own, fold) for own, parts in zip(samples, folds, strict=True) for fold in parts]
    x, y = (torch.stack([getattr(own, name)[fold.fit] for own, fold in pairs]) for name in "xy")
    held_x, held_y = (
        torch.stack([getattr(own, name)[fold.held] for own, fold in pairs]) for name in "xy"
    )
    count = len(folds[0])
    start = TrialStack.from_seeds(chain, [seed for seed in seeds for _ in range(count)])
    marks = milestones(config.epochs)

    def look(solver: SGD | Adam | Newton) -> dict[str, Tensor]:
        return {"loss": log_loss(solver.stack(held_x), held_y)}

    losses = torch.full((len(config.rates), len(marks), len(pairs)), torch.inf)
    for place, rate in enumerate(config.rates):
        done = fit(
            start,
            x,
            y,
            loss="cross-entropy",
            epochs=config.epochs,
            lr=rate,
            metrics=look,
            at=marks,
        )
        for epoch, seen in zip(done.history.epochs.tolist(), done.history["loss"], strict=True):
            losses[place, marks.index(epoch)] = seen.float().nan_to_num(torch.inf)
    mean = losses.reshape(len(config.rates), len(marks), len(trials), count).mean(-1)
    best = mean.flatten(0, 1).argmin(0)  # the first of equals: the smaller rate, the earlier end
    return torch.tensor(config.rates)[best // len(marks)], best % len(marks)


def milestones(epochs: int) -> list[int]:
    """The epochs at which training may end.

    >>> milestones(300)
    [3, 6, 11, 15, 22, 30, 45, 60, 90, 120, 165, 225, 300]
    """
    return sorted({max(1, round(share * epochs)) for share in SHARES})


def seed_of(config: TransferConfig, trial: int) -> int:
    """The seed of the starting weights of a trial: the same for all networks."""
    drawn = torch.randint(2**62, (1,), generator=stream(config.seed, "start", trial))
    return int(drawn)


def log_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean log loss ``[T]`` of outputs ``[T, N, C]``."""
    flat = cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
    return flat.reshape(y.shape).mean(1)


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Accuracy ``[T]`` in percent; NaN for a trial with non-finite outputs."""
    right = 100 * (outputs.argmax(-1) == y).double().mean(1)
    return torch.where(outputs.isfinite().flatten(1).all(1), right, torch.nan)
