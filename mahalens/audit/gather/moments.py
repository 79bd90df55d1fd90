"""Sums over a stream of pre-activations: moments, ranges and activity of every unit, by class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Moments:
    """Moments of each unit [K] or of each class and unit [C, K]; NaN where there are no rows."""

    rows: Tensor
    mean: Tensor
    std: Tensor
    skewness: Tensor


class MomentSums:
    """Sums of powers of z about the mean of the first batch, so that little cancels.

    With ``d = z - c``: ``m₁ = Σd/n``, ``σ² = Σd²/n - m₁²`` and
    ``skewness = (Σd³/n - 3 m₁ Σd²/n + 2 m₁³) / σ³``.
    """

    def __init__(self, units: int) -> None:
        self.centre: Tensor | None = None
        self.powers = torch.zeros(1, 3, units, dtype=torch.float64)
        self.rows = torch.zeros(1, dtype=torch.float64)
        self.least = torch.full((units,), torch.inf, dtype=torch.float64)
        self.greatest = torch.full((units,), -torch.inf, dtype=torch.float64)

    def add(self, z: Tensor, labels: Tensor | None) -> None:
        """Take in rows z [B, P, K] of B samples, with a label each [B] if there are classes."""
        samples, positions, units = z.shape
        if self.centre is None:
            self.centre = z.mean(dim=(0, 1))
        flat = z.reshape(-1, units)
        low, high = torch.aminmax(flat, dim=0)
        self.least = torch.minimum(self.least, low)
        self.greatest = torch.maximum(self.greatest, high)
        d = flat - self.centre
        square = d * d
        sums = torch.empty(samples, 3, units, dtype=z.dtype)
        for power, values in enumerate((d, square, square * d)):
            if positions == 1:
                sums[:, power] = values
            else:
                torch.sum(values.view(samples, positions, units), dim=1, out=sums[:, power])
        groups = add_by_class(sums.view(samples, -1), labels).view(-1, 3, units)
        self.powers = _grown(self.powers, len(groups))
        self.powers[: len(groups)] += groups
        counts = _counts(labels, samples) * positions
        self.rows = _grown(self.rows, len(counts))
        self.rows[: len(counts)] += counts

    def by_class(self, classes: int) -> Moments:
        """Moments within each class [C, K]."""
        return self._moments(_grown(self.powers, classes), _grown(self.rows, classes))

    def overall(self) -> Moments:
        """Moments over all rows [K]."""
        whole = self._moments(self.powers.sum(0, keepdim=True), self.rows.sum(0, keepdim=True))
        return Moments(whole.rows[0], whole.mean[0], whole.std[0], whole.skewness[0])

    def _moments(self, powers: Tensor, rows: Tensor) -> Moments:
        first, second, third = (powers[:, p] / rows[:, None] for p in range(3))
        variance = (second - first**2).clamp_min(0)
        # What is left by rounding of the squares is no spread.
        variance = torch.where(variance <= 1e-12 * second, torch.zeros_like(variance), variance)
        std = variance.sqrt()
        skewness = (third - 3 * first * second + 2 * first**3) / std**3
        skewness = torch.where(std > 0, skewness, torch.zeros_like(skewness))
        centre = torch.zeros(powers.shape[2]) if self.centre is None else self.centre
        return Moments(rows, first + centre.double(), std, skewness)


class ActivitySums:
    """How often each unit is active, on the positive side or at a flat end; rows without any."""

    def __init__(self, units: int, shown: int = 16) -> None:
        self.active = torch.zeros(1, units, dtype=torch.float64)
        self.positive = torch.zeros(units, dtype=torch.float64)
        self.flat = torch.zeros(units, dtype=torch.float64)
        self.silent = torch.zeros(1, dtype=torch.float64)
        self.silent_samples: list[int] = []
        self._shown = shown

    def add(
        self, z: Tensor, active: Tensor, flat: Tensor | None, labels: Tensor | None, start: int
    ) -> None:
        """Take in rows z [B, P, K] and which of them are ``active`` and ``flat`` [B, P, K]."""
        samples, positions, units = z.shape
        counts = count_true(active) if positions > 1 else active.view(samples, units).float()
        groups = add_by_class(counts, labels)
        self.active = _grown(self.active, len(groups))
        self.active[: len(groups)] += groups
        self.positive += count_true((z > 0).view(1, -1, units))[0]
        if flat is not None:
            self.flat += count_true(flat.view(1, -1, units))[0]
        silent = (~active.any(dim=2)).sum(1).float()
        groups = add_by_class(silent[:, None], labels)[:, 0]
        self.silent = _grown(self.silent, len(groups))
        self.silent[: len(groups)] += groups
        if len(self.silent_samples) < self._shown and bool(silent.any()):
            found = (silent.nonzero()[:, 0] + start).tolist()
            self.silent_samples += found[: self._shown - len(self.silent_samples)]


def add_by_class(values: Tensor, labels: Tensor | None) -> Tensor:
    """Sums of the rows of ``values`` [B, V] by label, float64 [C, V]; [1, V] without labels."""
    if labels is None:
        return values.sum(0, keepdim=True).double()
    classes = int(labels.max()) + 1
    if classes <= 64:
        # A product with the membership matrix is faster than adding row by row.
        member = torch.zeros(classes, len(labels), dtype=values.dtype)
        member[labels, torch.arange(len(labels))] = 1
        return (member @ values).double()
    sums = torch.zeros(classes, values.shape[1], dtype=values.dtype)
    return sums.index_add_(0, labels, values).double()


def count_true(mask: Tensor) -> Tensor:
    """How often each unit is true, for each sample: [B, P, K] -> float [B, K]."""
    return mask.sum(dim=1, dtype=torch.float32) if mask.shape[1] < 2**24 else mask.sum(1).float()


def _counts(labels: Tensor | None, samples: int) -> Tensor:
    if labels is None:
        return torch.tensor([samples], dtype=torch.float64)
    return torch.bincount(labels).double()


def _grown(sums: Tensor, classes: int) -> Tensor:
    """The same sums with room for at least ``classes`` classes."""
    if len(sums) >= classes:
        return sums
    more = torch.zeros(classes - len(sums), *sums.shape[1:], dtype=sums.dtype)
    return torch.cat([sums, more])
