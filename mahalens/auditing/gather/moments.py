"""Sums over a stream of pre-activations: moments, ranges and activity of every unit, by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BY_PRODUCT = 64
"""Classes up to which sums by class are a product with a matrix of memberships."""


class Members:
    """The class of each sample of a block, ready to add rows up by class.

    Args:
        labels: classes of the samples [B]; None if there are none.
        samples: how many samples B there are.
        positions: rows P that each sample has, one after the other.
        dtype: of the values to add up.
    """

    def __init__(
        self, labels: Tensor | None, samples: int, positions: int, dtype: torch.dtype
    ) -> None:
        self.labels = labels
        self.samples = samples
        self.positions = positions
        self.classes = 1 if labels is None else int(labels.max()) + 1
        self._matrix: Tensor | None = None
        if labels is not None and self.classes <= _BY_PRODUCT:
            self._matrix = (labels == torch.arange(self.classes)[:, None]).to(dtype)

    def sums(self, values: Tensor) -> Tensor:
        """Sums of the rows of ``values`` [B · P, V] by class, float64 [C, V]."""
        if self.labels is None:
            return values.sum(0, keepdim=True).double()
        if self.positions > 1:
            values = values.view(self.samples, self.positions, -1).sum(1)
        if self._matrix is not None:
            return (self._matrix @ values).double()
        sums = torch.zeros(self.classes, values.shape[1], dtype=values.dtype)
        return sums.index_add_(0, self.labels, values).double()

    def counts(self) -> Tensor:
        """Rows of each class, float64 [C]."""
        if self.labels is None:
            return torch.tensor([self.samples * self.positions], dtype=torch.float64)
        return torch.bincount(self.labels).double() * self.positions


def typical_spread(rows: Tensor) -> float:
    """Return the median over units of the standard deviation of rows [n, K].

    Units that do not vary count only if none does; then it is the root of the mean square.

    >>> typical_spread(torch.tensor([[1.0, 0.0, 7.0], [3.0, 4.0, 7.0]]))
    1.0
    """
    if len(rows) > 1:
        spread = rows.double().std(0, correction=0)
        if bool((varying := spread[spread > 0]).any()):
            return float(varying.median())
    return float(rows.double().square().mean().sqrt())


class Room:
    """Memory that is used again for every block: asking for it anew costs more than the sums."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, torch.dtype], Tensor] = {}

    def like(self, values: Tensor, number: int) -> Tensor:
        """A tensor of the shape of ``values``, with anything in it; another for each number."""
        return self._some(number, values.dtype, values.shape)

    def half(self, values: Tensor, number: int) -> Tensor:
        """A tensor with half as many positions as ``values`` [B, P, K]."""
        samples, positions, units = values.shape
        return self._some(number, values.dtype, (samples, positions // 2, units))

    def _some(self, number: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        size, key = math.prod(shape), (number, dtype)
        if key not in self._taken or self._taken[key].numel() < size:
            self._taken[key] = torch.empty(size, dtype=dtype)
        return self._taken[key][:size].view(shape)


@dataclass
class Moments:
    """Moments of each unit [K] or of each class and unit [C, K]; NaN where there are no rows."""

    rows: Tensor
    mean: Tensor
    std: Tensor
    skewness: Tensor


class MomentSums:
    """Sums of powers of z about the mean of the first rows, so that little cancels.

    With ``d = z - c``: ``m₁ = Σd/n``, ``σ² = Σd²/n - m₁²`` and
    ``skewness = (Σd³/n - 3 m₁ Σd²/n + 2 m₁³) / σ³``.
    """

    def __init__(self, units: int) -> None:
        self.centre: Tensor | None = None
        self._unit = 1.0
        self.powers = torch.zeros(1, 3, units, dtype=torch.float64)
        self.rows = torch.zeros(1, dtype=torch.float64)

    def add(self, z: Tensor, members: Members, room: Room) -> None:
        """Take in rows z [n, K]."""
        if self.centre is None:
            self.centre = z.mean(0)
            width = float((z - self.centre).abs().max())
            if width and not 1e-6 < width < 1e6:  # cubes of such numbers leave float32
                self._unit = 2.0 ** round(math.log2(width))
        self.powers = grown(self.powers, members.classes)
        self.rows = grown(self.rows, members.classes)
        d = torch.sub(z, self.centre, out=room.like(z, 0))
        if self._unit != 1.0:
            d.div_(self._unit)
        own = self.powers[: members.classes]
        own[:, 0] += members.sums(d)
        power = torch.mul(d, d, out=room.like(z, 1))
        own[:, 1] += members.sums(power)
        own[:, 2] += members.sums(power.mul_(d))
        self.rows[: members.classes] += members.counts()

    def reorder(self, order: Tensor) -> None:
        """Put the classes in another order: [C] numbers that they have so far."""
        self.powers, self.rows = (
            grown(part, len(order))[order] for part in (self.powers, self.rows)
        )

    def by_class(self, classes: int) -> Moments:
        """Moments within each class [C, K]."""
        return self._moments(grown(self.powers, classes), grown(self.rows, classes))

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
        mean = first * self._unit + centre.double()
        return Moments(rows, mean, std * self._unit, skewness)


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
        self, active: Tensor, positive: Tensor | None, flat: Tensor | None, members: Members
    ) -> Tensor:
        """Take in which rows are active, positive (None: the active ones) and flat.

        All are [n, K] with 1 for yes and 0 for no. Returns the rows without an active unit.
        """
        by_class = members.sums(active)
        self.active = grown(self.active, len(by_class))
        self.active[: len(by_class)] += by_class
        self.positive += by_class.sum(0) if positive is None else positive.sum(0)
        if flat is not None:
            self.flat += flat.sum(0)
        # How many units are active on each row, as a product: much quicker than any().
        answers = active @ torch.ones(active.shape[1], dtype=active.dtype)
        silent = answers == 0
        self.silent = grown(self.silent, members.classes)
        if not bool(silent.any()):
            return torch.empty(0, dtype=torch.int64)
        by_class = members.sums(silent[:, None].to(active.dtype))[:, 0]
        self.silent[: len(by_class)] += by_class
        return silent.nonzero()[:, 0]

    def reorder(self, order: Tensor) -> None:
        """Put the classes in another order: [C] numbers that they have so far."""
        self.active, self.silent = (
            grown(part, len(order))[order] for part in (self.active, self.silent)
        )

    def note_silent(self, samples: Tensor) -> None:
        """Remember the first few samples [n] with a row that no unit is active on."""
        for sample in samples.tolist():
            if len(self.silent_samples) >= self._shown:
                return
            if sample not in self.silent_samples:
                self.silent_samples.append(sample)


def grown(sums: Tensor, classes: int) -> Tensor:
    """The same sums with room for at least ``classes`` classes."""
    if len(sums) >= classes:
        return sums
    more = torch.zeros(classes - len(sums), *sums.shape[1:], dtype=sums.dtype)
    return torch.cat([sums, more])
