"""Everything that is gathered about one layer while the data streams by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mahalens.auditing.site import Layout, Site
from mahalens.auditing.trace import EVEN, FLAT_BEYOND, Use

if TYPE_CHECKING:
    from mahalens.auditing.batches import Batch
    from mahalens.auditing.record import Settings
    from mahalens.auditing.runner import Runner

_BY_PRODUCT = 64  # classes up to which sums by class are a product with a matrix of memberships
_DOUBLE_UP_TO = 512  # inputs up to which products are in float64: they keep all their digits
_KEPT_VALUES = 2**21  # values that a layer keeps of its rows at most: 8 MB in float32
_FEWEST_KEPT = 512
_FEW_POSITIONS = 16
_BLOCK = 2**18  # values that are summed up at a time: a megabyte in float32
_SILENT_SHOWN = 16


def grown(sums: Tensor, classes: int) -> Tensor:
    """Return the same sums with room for at least ``classes`` classes."""
    if len(sums) >= classes:
        return sums
    more = torch.zeros(classes - len(sums), *sums.shape[1:], dtype=sums.dtype)
    return torch.cat([sums, more])


def _added(sums: Tensor, more: Tensor) -> Tensor:
    """Return sums by class with ``more`` added, which may have further classes."""
    sums = grown(sums, len(more))
    sums[: len(more)] += more
    return sums


class _Members:
    """The classes [B] of the samples of a block, each with P rows: adds rows up by class."""

    def __init__(
        self, labels: Tensor | None, samples: int, positions: int, dtype: torch.dtype
    ) -> None:
        self.labels, self.samples, self.positions = labels, samples, positions
        self.classes = 1 if labels is None else int(labels.max()) + 1
        self._matrix: Tensor | None = None
        if labels is not None and self.classes <= _BY_PRODUCT:
            self._matrix = (labels == torch.arange(self.classes)[:, None]).to(dtype)

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums of the rows of ``values`` [B · P, V] by class, float64 [C, V]."""
        if self.labels is None:
            return values.sum(0, keepdim=True).double()
        if self.positions > 1:
            values = values.view(self.samples, self.positions, -1).sum(1)
        if self._matrix is not None:
            return (self._matrix @ values).double()
        sums = torch.zeros(self.classes, values.shape[1], dtype=values.dtype)
        return sums.index_add_(0, self.labels, values).double()

    def counts(self) -> Tensor:
        """Return the number of rows of each class, float64 [C]."""
        if self.labels is None:
            return torch.tensor([self.samples * self.positions], dtype=torch.float64)
        return torch.bincount(self.labels).double() * self.positions


def _typical_spread(rows: Tensor) -> float:
    """Return the median over units of the standard deviation of rows [n, K].

    Units that do not vary count only if none does; then it is the root of the mean square.

    >>> _typical_spread(torch.tensor([[1.0, 0.0, 7.0], [3.0, 4.0, 7.0]]))
    1.0
    """
    if len(rows) > 1:
        spread = rows.double().std(0, correction=0)
        if bool((varying := spread[spread > 0]).any()):
            return float(varying.median())
    return float(rows.double().square().mean().sqrt())


class _Room:
    """Memory that is used again for every block: asking for it anew costs more than the sums."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, torch.dtype], Tensor] = {}

    def like(self, values: Tensor, number: int) -> Tensor:
        """Return a tensor of the shape of ``values``, not initialised; another for each number."""
        size, key = values.numel(), (number, values.dtype)
        if key not in self._taken or self._taken[key].numel() < size:
            self._taken[key] = torch.empty(size, dtype=values.dtype)
        return self._taken[key][:size].view(values.shape)


class _Moments(NamedTuple):
    """Moments of each unit [K] or of each class and unit [C, K]; NaN where there are no rows."""

    rows: Tensor
    mean: Tensor
    std: Tensor
    skewness: Tensor


class _MomentSums:
    """Sums of powers of z about the mean of the first rows, so that little cancels.

    With ``d = z - c``: ``m₁ = Σd/n``, ``σ² = Σd²/n - m₁²`` and
    ``skewness = (Σd³/n - 3 m₁ Σd²/n + 2 m₁³) / σ³``.
    """

    def __init__(self, units: int) -> None:
        self.centre: Tensor | None = None
        self._unit = 1.0
        self.powers = torch.zeros(1, 3, units, dtype=torch.float64)
        self.rows = torch.zeros(1, dtype=torch.float64)

    def add(self, z: Tensor, members: _Members, room: _Room) -> None:
        """Take in rows z [n, K]."""
        if self.centre is None:
            self.centre = z.mean(0)
            width = float((z - self.centre).abs().max())
            if width and not 1e-6 < width < 1e6:  # cubes of such numbers leave float32
                self._unit = 2.0 ** round(math.log2(width))
        d = torch.sub(z, self.centre, out=room.like(z, 0))
        if self._unit != 1.0:
            d.div_(self._unit)
        first, power = members.sums(d), torch.mul(d, d, out=room.like(z, 1))
        second, third = members.sums(power), members.sums(power.mul_(d))
        self.powers = _added(self.powers, torch.stack([first, second, third], 1))
        self.rows = _added(self.rows, members.counts())

    def by_class(self, classes: int) -> _Moments:
        """Moments within each class [C, K]."""
        return self._moments(grown(self.powers, classes), grown(self.rows, classes))

    def overall(self) -> _Moments:
        """Moments over all rows [K]."""
        whole = self._moments(self.powers.sum(0, keepdim=True), self.rows.sum(0, keepdim=True))
        return _Moments(*(part[0] for part in whole))

    def _moments(self, powers: Tensor, rows: Tensor) -> _Moments:
        first, second, third = (powers[:, p] / rows[:, None] for p in range(3))
        variance = (second - first**2).clamp_min(0)
        # What is left by rounding of the squares is no spread.
        variance = torch.where(variance <= 1e-12 * second, torch.zeros_like(variance), variance)
        std = variance.sqrt()
        skewness = (third - 3 * first * second + 2 * first**3) / std**3
        skewness = torch.where(std > 0, skewness, torch.zeros_like(skewness))
        centre = torch.zeros(powers.shape[2]) if self.centre is None else self.centre
        mean = first * self._unit + centre.double()
        return _Moments(rows, mean, std * self._unit, skewness)


class _ActivitySums:
    """Counts for each unit: active, on the positive side, at a flat end; rows without any."""

    def __init__(self, units: int) -> None:
        self.active = torch.zeros(1, units, dtype=torch.float64)
        self.positive = torch.zeros(units, dtype=torch.float64)
        self.flat = torch.zeros(units, dtype=torch.float64)
        self.silent = torch.zeros(1, dtype=torch.float64)
        self.silent_samples: list[int] = []

    def add(
        self, active: Tensor, positive: Tensor | None, flat: Tensor | None, members: _Members
    ) -> Tensor:
        """Take in which rows are active, positive (None: the active ones) and flat.

        All are [n, K] with 1 for yes and 0 for no. Returns the rows without an active unit.
        """
        by_class = members.sums(active)
        self.active = _added(self.active, by_class)
        self.positive += by_class.sum(0) if positive is None else positive.sum(0)
        if flat is not None:
            self.flat += flat.sum(0)
        # How many units are active on each row, as a product: much quicker than any().
        silent = active @ torch.ones(active.shape[1], dtype=active.dtype) == 0
        self.silent = grown(self.silent, members.classes)
        if bool(silent.any()):
            of_class = members.sums(silent[:, None].to(active.dtype))[:, 0]
            self.silent = _added(self.silent, of_class)
        return silent.nonzero()[:, 0]

    def note_silent(self, samples: Tensor) -> None:
        """Remember the first few samples [n] with a row that no unit is active on."""
        missing = dict.fromkeys([*self.silent_samples, *samples.tolist()])
        self.silent_samples = list(missing)[:_SILENT_SHOWN]


_Place = Callable[[Tensor, Tensor], Tensor]


class _Smallest:
    """For each unit the samples with the smallest keys, each sample at most once.

    Which of several samples with equal keys are kept is not said. Nothing is sorted for units
    that a batch does not change, so that later batches cost little more than one comparison.
    """

    def __init__(self, units: int, count: int) -> None:
        self.keys = torch.full((count, units), torch.inf)
        self.samples = torch.full((count, units), -1, dtype=torch.int64)
        self.positions = self.samples.clone()

    def add(
        self, keys: Tensor, start: int, place: _Place | None = None, after: int | None = None
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
        smallest, rows = candidates.topk(min(count, len(candidates)), dim=0, largest=False)
        together = torch.cat([self.keys[:, column], smallest.to(self.keys.dtype)])
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

    def _improved(self, keys: Tensor, start: int) -> Tensor:
        """Return the keys of samples that are not kept with a smaller one; others become inf.

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
            part.gather(0, order) for part in (self.samples, self.positions)
        )
        worse = torch.zeros_like(keys).scatter_add_(0, numbers, (here & ~better).to(keys))
        return keys.masked_fill(worse > 0, torch.inf)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Samples, positions and keys [K, count], the smallest first; -1, -1 and inf if fewer."""
        return self.samples.T.clone(), self.positions.T.clone(), self.keys.T.clone()


class _KeptRows:
    """Rows drawn at random from a stream, each with the same probability; all if they are few.

    Reservoir sampling: row number t replaces one of the ``count`` kept ones with probability
    count / (t + 1).
    """

    def __init__(self, units: int, count: int, seed: int) -> None:
        self.seen = 0
        self._generator = torch.Generator().manual_seed(seed)
        self.rows = torch.empty(0, units)
        """The kept rows [n, K]."""
        self.labels = torch.empty(0, dtype=torch.int64)
        """Their labels [n]; 0 without classes."""
        self._count = count

    def add(self, rows: Tensor, labels: Tensor | None, positions: int = 1) -> None:
        """Take in rows [n, K], ``positions`` of each sample, and the samples' labels."""

        def labels_of(taken: Tensor) -> Tensor:
            return torch.zeros_like(taken) if labels is None else labels[taken // positions]

        free = max(0, min(len(rows), self._count - len(self.rows)))
        if free > 0:
            self.rows = torch.cat([self.rows.to(rows.dtype), rows[:free]])
            self.labels = torch.cat([self.labels, labels_of(torch.arange(free))])
        numbers = torch.arange(self.seen + free + 1, self.seen + len(rows) + 1, dtype=torch.float64)
        self.seen += len(rows)
        drawn = torch.rand(len(numbers), generator=self._generator, dtype=torch.float64)
        places = drawn.mul_(numbers).long()
        chosen = (places < self._count).nonzero()[:, 0]
        # Of several for one place the last stays: as if they had come one after the other.
        last = dict(zip(places[chosen].tolist(), chosen.tolist(), strict=True))
        if last:
            where, taken = torch.tensor(list(last)), torch.tensor(list(last.values())) + free
            self.rows[where] = rows[taken]
            self.labels[where] = labels_of(taken)


def rows_fed(use: Use, positions: int, generator: torch.Generator) -> Tensor:
    """Return rows of a layer's input [n, D] that belong together with its weight's rows.

    All rows of a Linear; of a convolution (groups = 1) the patches [n, channels · kernel] at
    ``positions`` places of the output, drawn at random for each batch (all, if there are no
    more), the same ones for each sample.
    """
    x, geometry = use.input.detach(), use.geometry
    if not geometry:
        return x.reshape(-1, x.shape[-1])
    dims = len(geometry["kernel"])
    x = x if x.ndim == dims + 2 else x[None]
    ends = geometry.get("padding_end", geometry["padding"])
    sides = list(zip(geometry["padding"], ends, strict=True))
    padding = [size for pair in reversed(sides) for size in pair]
    padded = functional.pad(x, padding) if any(padding) else x
    grid = use.output.shape[-dims:]
    total = math.prod(grid)
    places = torch.arange(total)
    if total > positions:
        places = torch.randperm(total, generator=generator)[:positions].sort().values
    steps = list(zip(*(geometry[key] for key in ("stride", "dilation", "kernel")), strict=True))
    windows = []
    # numpy's: that of torch loads a library for symbols, which takes seconds.
    for place in zip(*np.unravel_index(places.numpy(), tuple(grid)), strict=True):
        window = [slice(None), slice(None)]
        for at, (stride, step, kernel) in zip(place, steps, strict=True):
            window.append(slice(at * stride, at * stride + step * (kernel - 1) + 1, step))
        windows.append(padded[tuple(window)].flatten(1))
    return torch.cat(windows)


class Covariance:
    """Mean and covariance of a stream of rows, as sums of outer products about the first mean."""

    def __init__(self, width: int) -> None:
        self.rows = 0
        self._width = width
        self._chunk: list[Tensor] = []
        self._waiting = 0
        self._centre: Tensor | None = None
        self._first = torch.zeros(width, dtype=torch.float64)
        self._second = torch.zeros(width, width, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows [n, D]."""
        values = rows.to(torch.float64 if self._width <= _DOUBLE_UP_TO else torch.float32)
        if self._centre is None:
            self._centre = values.mean(0)
        self._chunk.append(values - self._centre)
        self._waiting += len(values)
        self.rows += len(values)
        # Adding to the matrix costs D² a time: wait until a product costs more than that.
        if self._waiting >= max(256, self._width):
            self._flush()

    def _flush(self) -> None:
        if self._chunk:
            block = torch.cat(self._chunk)
            self._first += block.sum(0)
            self._second += block.T @ block
            self._chunk, self._waiting = [], 0

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean [D] and covariance [D, D] (divided by the number of rows), float64."""
        self._flush()
        offset = self._first / max(1, self.rows)
        centre = torch.zeros(self._width) if self._centre is None else self._centre
        covariance = self._second / max(1, self.rows) - torch.outer(offset, offset)
        return centre.double() + offset, covariance


class LayerGatherer:
    """Gathers a layer's rows: sums for its units, prototypes, kept rows, the input's covariance.

    Memory depends on the numbers of units, classes and inputs, and never on that of samples.
    """

    def __init__(
        self, site: Site, settings: Settings, number: int = 0, inputs_given: bool = True
    ) -> None:
        units = site.units
        self.site = site
        self.settings = settings
        self.notes: list[str] = list(site.notes)
        self.samples = 0
        """Samples seen so far."""
        self.by_sample = True
        """Whether it is known which sample every row belongs to."""
        self._start, self._call, self._position = -1, 0, 0
        self._fixed: dict[int, Tensor] = {}
        self.moments = _MomentSums(units)
        self.least = torch.full((units,), math.inf, dtype=torch.float64)
        self.greatest = torch.full((units,), -math.inf, dtype=torch.float64)
        self.activity = _ActivitySums(units)
        self._forget_samples()
        kept = min(settings.rows_kept, max(_FEWEST_KEPT, _KEPT_VALUES // units))
        seed = settings.seed + 7919 * number
        self.kept = _KeptRows(units, kept, seed)
        self.spread: float | None = None
        """Typical spread of a unit's z on the first rows, in which activity is measured."""
        self.faulty = torch.zeros(units, dtype=torch.bool)
        """Units that gave NaN or infinite values."""
        self._generator = torch.Generator().manual_seed(seed + 1)
        self._room = _Room()
        self._even = site.activation in EVEN
        self.inputs: Covariance | None = None
        self.outputs: Covariance | None = None
        if site.between is not None:
            self.notes.append(
                f"{site.folded} stands between the layer and its activation, so its units have no "
                f"hyperplanes"
            )
        self._choose_covariance(inputs_given and site.placed)

    def _forget_samples(self) -> None:
        self.near, self.strong = (
            _Smallest(self.site.units, self.settings.prototypes) for _ in range(2)
        )
        self.activity.silent_samples.clear()

    def _choose_covariance(self, inputs_given: bool) -> None:
        """Read whitening from the inputs, or from the outputs of a layer with too many."""
        width, units, widest = self.site.weight.shape[1], self.site.units, self.settings.widest
        grouped = self.site.geometry.get("groups", (1,)) != (1,)
        if inputs_given and width <= widest and not grouped:
            self.inputs = Covariance(width)
        elif units <= widest:
            self.outputs = Covariance(units)
            why = "its units see different channels" if grouped else f"it has {width} inputs"
            if inputs_given:
                self.notes.append(f"whitening is read from the outputs alone, as {why}")
        elif inputs_given:
            self.notes.append(f"whitening is not read, as it has {width} inputs and {units} units")

    def see(self, use: Use, batch: Batch, labels: Tensor | None) -> None:
        """Take in one use of the layer on a batch, whose samples are of classes ``labels`` [B].

        Where the layer has a row for each entry of the batch's mask [B, T], rows at which it is
        False, such as those of padding, are left out.
        """
        start, samples, mask = batch.start, batch.size, batch.mask
        self.samples = max(self.samples, start + samples)
        if not use.output.numel():
            return
        if type(use.output) is not Tensor or type(use.input) is not Tensor:  # a user's own kind
            plain = {name: getattr(use, name).as_subclass(Tensor) for name in ("input", "output")}
            use = replace(use, **plain)
        if self.site.between is not None:
            try:
                use = replace(use, output=self.site.between(use.output.detach()))
            except Exception:  # it was seen on another shape
                note = f"{self.site.folded} could not be applied to some rows, which are left out"
                if note not in self.notes:
                    self.notes.append(note)
                return
        call = self._call = self._call + 1 if start == self._start else 0
        self._start = start
        before = self._position if call else None
        z = _rows_by_sample(self.site, use.output, samples, call)
        if z is None:
            self._without_samples()
            # One batch says all about what is the same for all samples.
            fixed = self._fixed.get(call)
            if fixed is not None and torch.equal(fixed, use.output):
                return
            if start == 0:
                self._fixed[call] = use.output.detach().clone()
            z = _channels_last(self.site, use.output).reshape(1, -1, self.site.units)
            labels = mask = None
        if self.site.convolution or mask is None or mask.shape != z.shape[:2]:
            mask = None
        if self.inputs is not None:
            if mask is None:
                fed = rows_fed(use, self.settings.patches, self._generator)
            else:
                fed = _by_sample(use.input.detach(), self.site.layout(call), samples)[mask]
            self.inputs.add(fed.to("cpu"))
        self.take(z, labels, start, before, mask)
        self._position = (before or 0) + z.shape[1]

    def _without_samples(self) -> None:
        """From here on rows belong to no sample that could be named, and so to no class."""
        if self.by_sample:
            self.by_sample = False
            self._forget_samples()
            self.notes.append(
                "its rows do not belong to a sample each, so that it has no classes and prototypes"
            )

    def take(
        self,
        output: Tensor,
        labels: Tensor | None,
        start: int,
        before: int | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Take in outputs of the layer itself [B, P, K], before what is folded in.

        Where samples meet the layer several times, ``before`` says at how many positions they
        have met it already. Only rows at which ``mask`` [B, P] is True count.
        """
        z = self._folded(output.detach())
        owners = torch.arange(len(z))
        if mask is not None and bool(mask.all()):
            mask = None
        if mask is not None:
            owners = mask.nonzero()[:, 0]
            if not len(owners):
                return
            z = z.masked_fill(~mask[..., None], 0.0)  # padding may be anything, NaN too
        z = whole = self._clean(z)
        if mask is not None:
            z, labels = z[mask][:, None], None if labels is None else labels[owners]
        samples, positions, units = z.shape
        # In blocks that stay in the cache, as the rows are gone through several times.
        size = max(1, _BLOCK // (positions * units))
        if self.spread is None:
            self.spread = _typical_spread(z[:size].view(-1, units))
        ends = []
        for first in range(0, samples, size):
            part = slice(first, first + size)
            self._sum_up(z[part], None if labels is None else labels[part], owners[part] + start)
            ends.append(_ends(z[part], self._room))
        lows, highs, nearest = (torch.cat(parts) for parts in zip(*ends, strict=True))
        self.least = torch.minimum(self.least, lows.amin(0))
        self.greatest = torch.maximum(self.greatest, highs.amax(0))
        if self.by_sample and mask is None:
            strength = torch.maximum(lows.abs(), highs.abs()) if self._even else highs
            self._prototypes(z, z, nearest, strength, start, before)
        elif self.by_sample and mask is not None:
            # What does not count is as far from a hyperplane, and as weak, as can be.
            far = whole.masked_fill(~mask[..., None], math.inf)
            weak = whole.masked_fill(~mask[..., None], 0.0 if self._even else -math.inf)
            strength = (weak.abs() if self._even else weak).amax(1)
            strength = strength.masked_fill(~mask.any(1, keepdim=True), -math.inf)
            self._prototypes(far, weak, far.abs().amin(1), strength, start, before)
        rows = z.view(-1, units)
        self.kept.add(rows, labels, positions)
        if self.outputs is not None:
            several = len(whole) * self.settings.patches
            chosen = torch.randint(len(rows), (several,), generator=self._generator)
            self.outputs.add(rows if len(rows) <= several else rows[chosen])

    def _clean(self, z: Tensor) -> Tensor:
        """Values [B, P, K] with 0 in place of what is no number, which is noted."""
        if not math.isfinite(float(z.sum())) and not bool(z.isfinite().all()):
            self.faulty |= (~z.isfinite()).flatten(0, 1).any(0)
            z = torch.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0)
        return z

    def _folded(self, output: Tensor) -> Tensor:
        """Return the values in order in memory, with what follows the layer folded in."""
        z = output.to("cpu").contiguous()
        z = z if z.dtype in (torch.float32, torch.float64) else z.float()
        scale, shift = self.site.scale, self.site.shift
        if scale is None or shift is None:
            return z
        # Into the copy, where one was made; never into the model's own output.
        room = z if z.data_ptr() != output.data_ptr() else None
        return torch.addcmul(shift.to(z.dtype), z, scale.to(z.dtype), out=room)

    def _sum_up(self, z: Tensor, labels: Tensor | None, numbers: Tensor) -> None:
        """Add a block [B, P, K] of the samples with these ``numbers`` [B] to the sums."""
        samples, positions, units = z.shape
        rows = z.view(-1, units)
        members = _Members(labels, samples, positions, z.dtype)
        self.moments.add(rows, members, self._room)
        site, tolerance = self.site, self.least_activity
        mask = self._room.like(rows, 2)  # comparing into numbers is quicker than into truth values
        positive = flat = None
        if site.activation == "relu":
            active = torch.gt(rows, tolerance, out=mask)
        else:
            apply = None if site.activation in ("abs", "none") else site.apply
            values = rows if apply is None else apply(rows)
            size = torch.abs(values, out=self._room.like(rows, 1))
            active = torch.gt(size, tolerance, out=mask)
            positive = torch.gt(rows, tolerance, out=self._room.like(rows, 0))
        if site.activation in FLAT_BEYOND:
            low, high = FLAT_BEYOND[site.activation]
            flat = (rows < low) | (rows > high)
        silent = self.activity.add(active, positive, flat, members)
        self.activity.note_silent(numbers[silent // positions])

    @property
    def least_activity(self) -> float:
        """The size that an activation must exceed to count."""
        spread = self.spread or 0.0
        # Values of a bounded activation are of size 1, however far its input spreads.
        bounded = self.site.activation in FLAT_BEYOND
        return self.settings.tolerance * (min(spread, 1.0) if bounded else spread)

    def reorder(self, order: Tensor) -> None:
        """Put the classes in another order: [C] numbers that they have so far."""
        if not self.by_sample:
            return
        for part, names in (
            (self.moments, ("powers", "rows")),
            (self.activity, ("active", "silent")),
        ):
            for name in names:
                setattr(part, name, grown(getattr(part, name), len(order))[order])
        self.kept.labels = order.argsort()[self.kept.labels]

    def _prototypes(
        self,
        near: Tensor,
        strong: Tensor,
        nearest: Tensor,
        strength: Tensor,
        start: int,
        before: int | None,
    ) -> None:
        """Keep the samples nearest the zero set, and the most active ones, by values [B, P, K]."""

        def of_nearest(samples: Tensor, units: Tensor) -> Tensor:
            return near[samples, :, units].abs().argmin(1)

        def of_strongest(samples: Tensor, units: Tensor) -> Tensor:
            values = strong[samples, :, units]
            return (values.abs() if self._even else values).argmax(1)

        several = near.shape[1] > 1
        self.near.add(nearest, start, of_nearest if several else None, before)
        self.strong.add(-strength, start, of_strongest if several else None, before)


def gather_batch(
    runner: Runner, batch: Batch, labels: Tensor | None, gatherers: Mapping[str, LayerGatherer]
) -> tuple[Any, set[str]]:
    """Run a model on a batch and give each use of a layer to the layer's gatherer.

    Returns:
        The model's output, and the names of the layers that have no gatherer.
    """
    others: set[str] = set()

    def see(use: Use) -> None:
        if (gatherer := gatherers.get(use.name)) is not None:
            gatherer.see(use, batch, labels)
        else:
            others.add(use.name)

    output, _ = runner.run(batch, see)
    return output, others


def _ends(z: Tensor, room: _Room) -> tuple[Tensor, Tensor, Tensor]:
    """Return the least z, the greatest z and the least |z| over positions: [B, K] each."""
    size = torch.abs(z, out=room.like(z, 0))
    lows, highs = _over_positions(z, torch.minimum, room), _over_positions(z, torch.maximum, room)
    return lows, highs, _over_positions(size, torch.minimum, room)


def _over_positions(values: Tensor, pick: Callable[..., Tensor], room: _Room) -> Tensor:
    """Return the least (``torch.minimum``) or greatest values over positions [B, K].

    Halves are compared with each other while they are long: many times as quick as ``amin``.
    """
    number = 3
    while (count := values.shape[1]) > _FEW_POSITIONS:
        half = count // 2
        first, second = values[:, :half], values[:, half : 2 * half]
        picked = pick(first, second, out=room.like(first, number))
        if count % 2:
            pick(picked[:, 0], values[:, -1], out=picked[:, 0])
        values, number = picked, 7 - number  # two places in turn
    if values.shape[1] == 1:
        return values[:, 0].clone()
    return values.amin(1) if pick is torch.minimum else values.amax(1)


def _rows_by_sample(site: Site, output: Tensor, samples: int, call: int) -> Tensor | None:
    """Return the output as [B, P, K], P rows of each sample; None if it has no samples."""
    values = _channels_last(site, output)
    axis, sample_major = site.layout(call)
    if axis is None or axis >= values.ndim - 1 + site.convolution:
        return None
    if site.convolution and axis > 0:
        axis -= 1  # the channels, which stood before, have moved behind
    if values.shape[axis] % samples:
        return None
    return _by_sample(values, Layout(axis, sample_major), samples)


def _by_sample(values: Tensor, layout: Layout, samples: int) -> Tensor:
    """Values [..., D] as [B, P, D] with P rows of each of the B samples."""
    assert layout.axis is not None
    width = values.shape[-1]
    values = values.movedim(layout.axis, 0)
    if not layout.sample_major:
        values = values.unflatten(0, (-1, samples)).movedim(1, 0)
    return values.reshape(samples, -1, width)


def _channels_last(site: Site, output: Tensor) -> Tensor:
    return output.movedim(site.unit_axis(output), -1)
