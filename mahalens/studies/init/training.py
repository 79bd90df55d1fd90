"""Trains started networks with mini-batches of Adam, several learning rates at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mahalens.data import stream
from mahalens.studies.init.starting import HIDDEN, OUTPUT, Network
from mahalens.train import TrialStack, fit

BETAS = (0.9, 0.999)
_APPLY: dict[str, Callable[[Tensor], Tensor]] = {"ReLU": torch.relu, "Abs": torch.abs}


@dataclass(frozen=True)
class Trained:
    """What was seen of R trainings of one network on the way.

    Args:
        accuracy: in per cent ``[R, E + 1]``, before training and after every epoch.
        loss: mean training loss of every epoch ``[R, E]``; NaN from where it was not finite.
    """

    accuracy: Tensor
    loss: Tensor

    @property
    def mean_accuracy(self) -> Tensor:
        """Mean accuracy over the ends of all epochs ``[R]``."""
        return self.accuracy[:, 1:].mean(1)


def batch_size(samples: int) -> int:
    """How many samples go into a mini-batch: fewer of a small set, so that there are some steps.

    >>> batch_size(105), batch_size(1437), batch_size(60_000)
    (16, 32, 128)
    """
    return 16 if samples < 1_000 else 32 if samples < 5_000 else 128


def train(
    network: Network,
    data: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rates: Sequence[float],
    epochs: int,
    seed: int,
    *who: str | int,
) -> Trained:
    """Train a network once with each learning rate, and look at its accuracy on other samples.

    All see the same batches, whose order is drawn from the stream named by ``who``: also all
    models of a trial.
    """
    x, y = data
    order = int(torch.randint(2**62, (), generator=stream(seed, "order of batches", *who)))
    done = fit(
        TrialStack.from_modules(network.chain, [network.module] * len(rates)),
        x,
        y,
        epochs=epochs,
        loss="cross-entropy",
        solver="adam",
        batch_size=batch_size(len(y)),
        seeds=[order] * len(rates),
        metrics=lambda solver: {"accuracy": accuracy(solver.stack, *seen)},
        at=range(epochs + 1),
        lr=list(rates),
        betas=BETAS,
        curve_points=_all_of(epochs),
    )
    at, losses = done.curve
    assert at.tolist() == list(range(1, len(at) + 1))
    loss = torch.full((len(rates), epochs), torch.nan, dtype=torch.float64)
    loss[:, : len(at)] = losses.T.double()
    seen_at = done.history["accuracy"].T
    # If no training goes on, there are no epochs to look at: what they would show is known.
    missing = seen_at[:, -1:].expand(-1, epochs + 1 - seen_at.shape[1])
    return Trained(torch.cat((seen_at, missing), 1), loss.where(loss.isfinite(), torch.nan))


def accuracy(stack: TrialStack, x: Tensor, y: Tensor) -> Tensor:
    """Share of the samples whose class has the largest output ``[T]``, in per cent.

    Trial by trial, as one large product is faster than many small ones.
    """
    apply = _APPLY[stack.chain.layers[1].kind]
    own = stack.tensors()
    found = []
    for trial in range(len(stack)):
        layer: Any = [own[f"{at}.{name}"][trial] for at in (HIDDEN, OUTPUT) for name in _NAMES]
        hidden = apply(functional.linear(x, *layer[:2]))
        right = functional.linear(hidden, *layer[2:]).argmax(1) == y
        found.append(100 * right.double().mean())
    return torch.stack(found)


_NAMES = ("weight", "bias")


def _all_of(epochs: int) -> int:
    """So many points of a curve that, spaced evenly on a log scale, they leave out no epoch."""
    return 4 * epochs * max(1, epochs.bit_length())


def epochs_to(start: float, loss: Tensor, bound: float) -> float:
    """After how many epochs the training loss is down at ``bound``; NaN if it does not get there.

    The mean loss of an epoch, of ``[E]``, is taken for that in its middle, and ``start`` for that
    before the first; between them its logarithm is interpolated.

    >>> epochs_to(4.0, torch.tensor([2.0, 0.5, 0.1]), 1.0)
    1.0
    """
    below = (loss <= bound).nonzero()
    if start <= bound:
        return 0.0
    if not len(below):
        return math.nan
    first = int(below[0, 0])
    before, after = (start if not first else float(loss[first - 1])), float(loss[first])
    begun, width = (first - 0.5, 1.0) if first else (0.0, 0.5)
    # A loss of 0 has no logarithm; it is below any bound, and the middle of its epoch will do.
    share = math.log(before / bound) / math.log(before / after) if after > 0 else 1.0
    return begun + width * share
