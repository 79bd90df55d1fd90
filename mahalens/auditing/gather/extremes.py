"""The few rows of a stream that matter to a unit, and a random few that stand for all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Place = Callable[[Tensor, Tensor], Tensor]


class Smallest:
    """For each unit the samples with the smallest keys, each sample at most once.

    Which of several samples with equal keys are kept is not said. Nothing is sorted for units
    that a batch does not change, so that later batches cost little more than one comparison.
    """

    def __init__(self, units: int, count: int) -> None:
        self.keys = torch.full((count, units), torch.inf)
        self.samples = torch.full((count, units), -1, dtype=torch.int64)
        self.positions = torch.full((count, units), -1, dtype=torch.int64)

    def add(
        self, keys: Tensor, start: int, place: Place | None = None, after: int | None = None
    ) -> None:
        """Take in keys [B, K] of samples numbered from ``start`` on.

        ``place(samples, units)`` says at which position of a sample its key was found; without it
        a sample has one position only. Samples that come once more, with further positions, say
        how many came ``after`` which these do.
        """
        if after is not None:
            keys = self._improved(keys.to(self.keys.dtype), start)
        changed = (keys.amin(0) < self.keys[-1]).nonzero()[:, 0]
        if not len(changed):
            return
        count = len(self.keys)
        column = slice(None) if len(changed) == keys.shape[1] else changed
        candidates = keys[:, column]
        found, rows = candidates.topk(min(count, len(candidates)), dim=0, largest=False)
        together = torch.cat([self.keys[:, column], found.to(self.keys.dtype)])
        self.keys[:, column], order = together.topk(count, dim=0, largest=False)
        where = torch.zeros_like(rows)
        if place is not None:
            # Only those that are kept are looked up.
            new = torch.zeros(len(together), len(changed), dtype=torch.bool)
            new.scatter_(0, order, True)
            kept, of = new[count:].nonzero(as_tuple=True)
            where[kept, of] = place(rows[kept, of], changed[of])
        where += after or 0
        for mine, fresh in ((self.samples, rows + start), (self.positions, where)):
            mine[:, column] = torch.cat([mine[:, column], fresh]).gather(0, order)

    def clear(self) -> None:
        """Forget everything."""
        self.keys.fill_(torch.inf)
        self.samples.fill_(-1)
        self.positions.fill_(-1)

    def _improved(self, keys: Tensor, start: int) -> Tensor:
        """The keys of samples that do not stand here with a smaller one; others become inf.

        A sample that is to stand with a new key is taken out with its old one.
        """
        here = (self.samples >= start) & (self.samples < start + len(keys))
        numbers = torch.where(here, self.samples - start, torch.zeros_like(self.samples))
        new = keys.gather(0, numbers)
        better = here & (new < self.keys)
        self.keys[better], self.samples[better] = torch.inf, -1
        # In order again, so that the last is the largest.
        self.keys, order = self.keys.sort(dim=0, stable=True)
        self.samples, self.positions = (
            self.samples.gather(0, order),
            self.positions.gather(0, order),
        )
        worse = torch.zeros_like(keys).scatter_add_(0, numbers, (here & ~better).to(keys))
        return torch.where(worse > 0, torch.full_like(keys, torch.inf), keys)

    def found(self) -> tuple[Tensor, Tensor, Tensor]:
        """Samples, positions and keys [K, count], the smallest first; -1, -1 and inf if fewer."""
        return self.samples.T.clone(), self.positions.T.clone(), self.keys.T.clone()


class KeptRows:
    """Rows drawn at random from a stream, each with the same probability; all if they are few.

    Reservoir sampling: row number t replaces one of the ``count`` kept ones with probability
    count / (t + 1).
    """

    def __init__(self, units: int, count: int, seed: int) -> None:
        self.seen = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._rows = torch.empty(0, units)
        self._labels = torch.empty(0, dtype=torch.int64)
        self._count = count

    def add(self, rows: Tensor, labels: Tensor | None, positions: int = 1) -> None:
        """Take in rows [n, K], ``positions`` of each sample, and the samples' labels."""
        free = max(0, min(len(rows), self._count - len(self._rows)))
        if free > 0:
            first = torch.arange(free)
            self._rows = torch.cat([self._rows.to(rows.dtype), rows[:free]])
            self._labels = torch.cat([self._labels, _label(first, labels, positions)])
            self.seen += free
        rest = len(rows) - free
        if rest <= 0:
            return
        numbers = torch.arange(self.seen + 1, self.seen + rest + 1, dtype=torch.float64)
        drawn = torch.rand(rest, generator=self._generator, dtype=torch.float64)
        places = drawn.mul_(numbers).long()
        chosen = (places < self._count).nonzero()[:, 0]
        # Of several for one place the last stays: as if they had come one after the other.
        last = dict(zip(places[chosen].tolist(), chosen.tolist(), strict=True))
        if last:
            where, taken = torch.tensor(list(last)), torch.tensor(list(last.values())) + free
            self._rows[where] = rows[taken]
            self._labels[where] = _label(taken, labels, positions)
        self.seen += rest

    def reorder(self, order: Tensor) -> None:
        """Put the classes in another order: [C] numbers that they have so far."""
        self._labels = order.argsort()[self._labels]

    @property
    def rows(self) -> Tensor:
        """The kept rows [n, K]."""
        return self._rows

    @property
    def labels(self) -> Tensor:
        """Their labels [n]; 0 without classes."""
        return self._labels


def _label(rows: Tensor, labels: Tensor | None, positions: int) -> Tensor:
    """The labels of some rows, of which every sample has so many."""
    return torch.zeros_like(rows) if labels is None else labels[rows // positions]
