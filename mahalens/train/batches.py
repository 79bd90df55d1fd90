"""Mini-batches: which samples each trial sees when."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.data.streams import stream
from mahalens.errors import InputError


@dataclass(frozen=True)
class Batches:
    """Mini-batches of ``size`` samples; the last of an epoch may be smaller.

    Every epoch a trial goes through all samples in an order drawn from its own seed, or in the
    order they came in without ``shuffle``. The order depends on seed and epoch alone: a resumed run
    sees the same batches. ``seeds`` is one per trial, or one number from which each trial gets its
    own.

    >>> Batches(2, shuffle=False).split(trial=0, epoch=1, samples=5)
    (tensor([0, 1]), tensor([2, 3]), tensor([4]))
    """

    size: int
    seeds: int | Sequence[int] = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        # Whole numbers of numpy and torch are whole numbers too.
        object.__setattr__(self, "seeds", _whole(self.seeds))
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
        """The order ``[N]`` in which a trial sees the samples in an epoch (1 is the first)."""
        if not self.shuffle:
            return torch.arange(samples)
        if isinstance(self.seeds, int):
            generator = stream(self.seeds, "batches", trial, epoch)
        else:
            generator = stream(self.seeds[trial], "batches", epoch)
        return torch.randperm(samples, generator=generator)

    def split(self, trial: int, epoch: int, samples: int) -> tuple[Tensor, ...]:
        """The batches of a trial's epoch."""
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
