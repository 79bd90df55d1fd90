"""The few rows of a stream that matter to a unit, and a random few that stand for all."""

from __future__ import annotations

import torch
from torch import Tensor


class Smallest:
    """For each unit the samples with the smallest keys, each sample at most once.

    A sample stands with the best of its positions. Nothing is sorted for units that a batch does
    not change, so that later batches cost little more than one comparison.
    """

    def __init__(self, units: int, count: int) -> None:
        self.keys = torch.full((count, units), torch.inf)
        self.samples = torch.full((count, units), -1, dtype=torch.int64)
        self.positions = torch.full((count, units), -1, dtype=torch.int64)

    def add(self, keys: Tensor, start: int) -> None:
        """Take in keys [B, P, K] of samples numbered from ``start`` on."""
        if keys.shape[1] == 1:
            best, place = keys[:, 0], None
            changed = (best.amin(0) < self.keys[-1]).nonzero()[:, 0]
        else:
            best, place = keys.min(dim=1)
            changed = (best.amin(0) < self.keys[-1]).nonzero()[:, 0]
        if not len(changed):
            return
        count = len(self.keys)
        whole = len(changed) == keys.shape[2]
        column = slice(None) if whole else changed
        candidates = best[:, column]
        taken = min(count, len(candidates))
        found, rows = candidates.topk(taken, dim=0, largest=False)
        where = torch.zeros_like(rows) if place is None else place[:, column].gather(0, rows)
        together = torch.cat([self.keys[:, column], found.to(self.keys.dtype)])
        keep = together.sort(dim=0, stable=True)
        order = keep.indices[:count]
        self.keys[:, column] = keep.values[:count]
        for mine, new in ((self.samples, rows + start), (self.positions, where)):
            mine[:, column] = torch.cat([mine[:, column], new]).gather(0, order)

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

    def add(self, rows: Tensor, labels: Tensor | None) -> None:
        """Take in rows [n, K] and the label of each [n]."""
        given = torch.zeros(len(rows), dtype=torch.int64) if labels is None else labels
        free = self._count - len(self._rows)
        if free > 0:
            self._rows = torch.cat([self._rows.to(rows.dtype), rows[:free]])
            self._labels = torch.cat([self._labels, given[:free]])
            self.seen += min(free, len(rows))
            rows, given = rows[free:], given[free:]
        if not len(rows):
            return
        numbers = torch.arange(self.seen + 1, self.seen + len(rows) + 1, dtype=torch.float64)
        drawn = torch.rand(len(rows), generator=self._generator, dtype=torch.float64)
        places = (drawn * numbers).long()
        chosen = (places < self._count).nonzero()[:, 0]
        # Of several for one place the last stays: as if they had come one after the other.
        last = {int(place): int(row) for row, place in zip(chosen, places[chosen], strict=True)}
        if last:
            where = torch.tensor(list(last))
            taken = torch.tensor(list(last.values()))
            self._rows[where] = rows[taken]
            self._labels[where] = given[taken]
        self.seen += len(rows)

    @property
    def rows(self) -> Tensor:
        """The kept rows [n, K]."""
        return self._rows

    @property
    def labels(self) -> Tensor:
        """Their labels [n]; 0 without classes."""
        return self._labels
