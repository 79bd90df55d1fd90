"""Everything that is gathered about one layer while the data streams by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from mahalens.auditing.gather.extremes import KeptRows, Smallest
from mahalens.auditing.gather.input_rows import Covariance, rows_fed
from mahalens.auditing.gather.moments import (
    ActivitySums,
    Members,
    MomentSums,
    Room,
    typical_spread,
)
from mahalens.auditing.record import Settings
from mahalens.auditing.watch.functions import EVEN, FLAT_BEYOND
from mahalens.auditing.watch.site import Layout, Site
from mahalens.auditing.watch.trace import Use
from mahalens.errors import InputError

Pick = Callable[..., Tensor]
_KEPT_VALUES = 2**21
"""Values that a layer keeps of its rows at most: 8 MB in float32."""
_FEWEST_KEPT = 512
_FEW_POSITIONS = 16
_BLOCK = 2**18
"""Values that are summed up at a time: a megabyte in float32."""


class LayerGatherer:
    """Gathers a layer's rows: sums for its units, prototypes, kept rows, the input's covariance.

    Memory depends on the numbers of units, classes and inputs, and never on that of samples.
    """

    def __init__(
        self, site: Site, settings: Settings, number: int = 0, inputs_given: bool = True
    ) -> None:
        units = site.units
        if not units or (inputs_given and not site.weight.shape[1]):
            raise InputError(
                f"the layer {site.name!r} has no {'inputs' if units else 'units'}; build it with "
                f"some, or read other layers"
            )
        self.site = site
        self.settings = settings
        self.notes: list[str] = list(site.notes)
        self.samples = 0
        """Samples seen so far."""
        self.by_sample = True
        """Whether it is known which sample every row belongs to."""
        self._start, self._call, self._position = -1, 0, 0
        self._fixed: dict[int, Tensor] = {}
        self.moments = MomentSums(units)
        self.least = torch.full((units,), math.inf, dtype=torch.float64)
        self.greatest = torch.full((units,), -math.inf, dtype=torch.float64)
        self.activity = ActivitySums(units)
        self.near = Smallest(units, settings.prototypes)
        self.strong = Smallest(units, settings.prototypes)
        kept = min(settings.rows_kept, max(_FEWEST_KEPT, _KEPT_VALUES // units))
        seed = settings.seed + 7919 * number
        self.kept = KeptRows(units, kept, seed)
        self.spread: float | None = None
        """Typical spread of a unit's z on the first rows, in which activity is measured."""
        self.faulty = torch.zeros(units, dtype=torch.bool)
        """Units that gave NaN or infinite values."""
        self._generator = torch.Generator().manual_seed(seed + 1)
        self._room = Room()
        self._even = site.activation in EVEN
        self._scale, self._shift = site.scale, site.shift
        self.inputs: Covariance | None = None
        self.outputs: Covariance | None = None
        width = site.weight.shape[1]
        grouped = site.geometry.get("groups", (1,)) != (1,)
        if site.between is not None:
            self.notes.append(
                f"{site.folded} stands between the layer and its activation, so its units have no "
                f"hyperplanes"
            )
        inputs_given = inputs_given and site.placed
        if inputs_given and width <= settings.widest and not grouped:
            self.inputs = Covariance(width)
        elif units <= settings.widest:
            self.outputs = Covariance(units)
            why = "its units see different channels" if grouped else f"it has {width} inputs"
            if inputs_given:
                self.notes.append(f"whitening is read from the outputs alone, as {why}")
        elif inputs_given:
            self.notes.append(f"whitening is not read, as it has {width} inputs and {units} units")

    def see(
        self,
        use: Use,
        labels: Tensor | None,
        start: int,
        samples: int,
        mask: Tensor | None = None,
    ) -> None:
        """Take in one use of the layer on a batch of ``samples`` samples.

        Where the layer has a row for each entry of a ``mask`` [B, T], rows at which it is False,
        such as those of padding, are left out.
        """
        self.samples = max(self.samples, start + samples)
        if not use.output.numel():
            return
        if type(use.output) is not Tensor or type(use.input) is not Tensor:  # a user's own kind
            plain = {name: getattr(use, name).as_subclass(Tensor) for name in ("input", "output")}
            use = replace(use, **plain)
        if self.site.between is not None:
            try:
                use = replace(use, output=self.site.between(use.output.detach()))
            except Exception:  # it was found on another shape
                note = f"{self.site.folded} could not be applied to some rows, which are left out"
                if note not in self.notes:
                    self.notes.append(note)
                return
        call = self._call = self._call + 1 if start == self._start else 0
        self._start = start
        before = self._position if call else None
        z = rows_by_sample(self.site, use.output, samples, call)
        if z is None:
            self._without_samples()
            # One batch says all about what is the same for all samples.
            if _alike(use.output, self._fixed.get(call)):
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
                fed = by_sample(use.input.detach(), self.site.layout(call), samples)[mask]
            self.inputs.add(fed.to("cpu"))
        self.take(z, labels, start, before, mask)
        self._position = (before or 0) + z.shape[1]

    def _without_samples(self) -> None:
        """From here on rows belong to no sample that could be named, and so to no class."""
        if self.by_sample:
            self.by_sample = False
            for kept in (self.near, self.strong):
                kept.clear()
            self.activity.silent_samples.clear()
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
        owners = None
        if mask is not None and not bool(mask.all()):
            mask = mask.to("cpu")
            owners = mask.nonzero()[:, 0]
            if not len(owners):
                return
            z = z.masked_fill(~mask[..., None], 0.0)  # padding may be anything, NaN too
        z = whole = self._clean(z)
        if mask is not None and owners is not None:
            z, labels = z[mask][:, None], None if labels is None else labels[owners]
        samples, positions, units = z.shape
        # In blocks that stay in the cache, as the rows are gone through several times.
        size = max(1, _BLOCK // (positions * units))
        if self.spread is None:
            self.spread = typical_spread(z[:size].view(-1, units))
        ends = []
        for first in range(0, samples, size):
            part = slice(first, first + size)
            block = z[part]
            own = None if labels is None else labels[part]
            if owners is None:
                self._sum_up(block, own, start + first)
            else:
                self._sum_up(block, own, start, owners[part])
            ends.append(_ends(block, self._room))
        lows, highs, nearest = (torch.cat(parts) for parts in zip(*ends, strict=True))
        self.least = torch.minimum(self.least, lows.amin(0))
        self.greatest = torch.maximum(self.greatest, highs.amax(0))
        if self.by_sample and (owners is None or mask is None):
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
        """The values in order in memory, with what follows the layer folded in."""
        z = output.to("cpu").contiguous()
        z = z if z.dtype in (torch.float32, torch.float64) else z.float()
        if self._scale is None or self._shift is None:
            return z
        # Into the copy, where one was made; never into the model's own output.
        room = z if z.data_ptr() != output.data_ptr() else None
        return torch.addcmul(self._shift.to(z.dtype), z, self._scale.to(z.dtype), out=room)

    def _sum_up(
        self, z: Tensor, labels: Tensor | None, start: int, owners: Tensor | None = None
    ) -> None:
        """Add a block [B, P, K] to the sums; ``owners`` [B] are the samples' numbers in a batch."""
        samples, positions, units = z.shape
        rows = z.view(-1, units)
        members = Members(labels, samples, positions, z.dtype)
        self.moments.add(rows, members, self._room)
        site, tolerance = self.site, self.least_activity
        mask = self._room.like(rows, 2)  # comparing into numbers is quicker than into truth values
        positive = flat = None
        if site.activation == "relu":
            active = torch.gt(rows, tolerance, out=mask)
        else:
            values = rows if site.activation in ("abs", "none") else self._activated(rows)
            size = torch.abs(values, out=self._room.like(rows, 1))
            active = torch.gt(size, tolerance, out=mask)
            positive = torch.gt(rows, tolerance, out=self._room.like(rows, 0))
        if site.activation in FLAT_BEYOND:
            low, high = FLAT_BEYOND[site.activation]
            flat = (rows < low) | (rows > high)
        silent = self.activity.add(active, positive, flat, members)
        if len(silent):
            numbers = silent // positions
            self.activity.note_silent((numbers if owners is None else owners[numbers]) + start)

    @property
    def least_activity(self) -> float:
        """The size that an activation must exceed to count."""
        spread = self.spread or 0.0
        # Values of a bounded activation are of size 1, however far its input spreads.
        bounded = self.site.activation in FLAT_BEYOND
        return self.settings.tolerance * (min(spread, 1.0) if bounded else spread)

    def reorder(self, order: Tensor) -> None:
        """Put the classes in another order: [C] numbers that they have so far."""
        if self.by_sample:
            for part in (self.moments, self.activity, self.kept):
                part.reorder(order)

    def _activated(self, rows: Tensor) -> Tensor:
        """The activations of rows [n, K]; the rows themselves where the function is not known."""
        return rows if self.site.apply is None else self.site.apply(rows)

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
        several = near.shape[1] > 1

        def of_nearest(samples: Tensor, units: Tensor) -> Tensor:
            return near[samples, :, units].abs().argmin(1)

        def of_strongest(samples: Tensor, units: Tensor) -> Tensor:
            values = strong[samples, :, units]
            return (values.abs() if self._even else values).argmax(1)

        self.near.add(nearest, start, of_nearest if several else None, before)
        self.strong.add(-strength, start, of_strongest if several else None, before)


def _ends(z: Tensor, room: Room) -> tuple[Tensor, Tensor, Tensor]:
    """The least z, the greatest z and the least |z| over positions, [B, P, K] -> [B, K]."""
    size = torch.abs(z, out=room.like(z, 0))
    lows, highs = over_positions(z, torch.minimum, room), over_positions(z, torch.maximum, room)
    return lows, highs, over_positions(size, torch.minimum, room)


def over_positions(values: Tensor, pick: Pick, room: Room) -> Tensor:
    """The least (``torch.minimum``) or greatest values over positions, [B, P, K] -> [B, K].

    Halves are compared with each other while they are long: many times as quick as ``amin``.
    """
    number = 3
    while (count := values.shape[1]) > _FEW_POSITIONS:
        half = count // 2
        picked = pick(values[:, :half], values[:, half : 2 * half], out=room.half(values, number))
        if count % 2:
            pick(picked[:, 0], values[:, -1], out=picked[:, 0])
        values, number = picked, 7 - number  # two places in turn
    if values.shape[1] == 1:
        return values[:, 0].clone()
    return values.amin(1) if pick is torch.minimum else values.amax(1)


def rows_by_sample(site: Site, output: Tensor, samples: int, call: int = 0) -> Tensor | None:
    """The output as [B, P, K] with P rows of each of the B samples; None if it has no samples."""
    values = _channels_last(site, output)
    axis, sample_major = site.layout(call)
    if axis is None or axis >= values.ndim - 1 + site.convolution:
        return None
    if site.convolution and axis > 0:
        axis -= 1  # the channels, which stood before, have moved behind
    if values.shape[axis] % samples:
        return None
    return by_sample(values, Layout(axis, sample_major), samples)


def by_sample(values: Tensor, layout: Layout, samples: int) -> Tensor:
    """Values [..., D] as [B, P, D] with P rows of each of the B samples."""
    assert layout.axis is not None
    width = values.shape[-1]
    values = values.movedim(layout.axis, 0)
    if not layout.sample_major:
        values = values.unflatten(0, (-1, samples)).movedim(1, 0)
    return values.reshape(samples, -1, width)


def _alike(output: Tensor, known: Tensor | None) -> bool:
    return known is not None and known.shape == output.shape and torch.equal(known, output)


def _channels_last(site: Site, output: Tensor) -> Tensor:
    if not site.convolution:
        return output
    dims = len(site.geometry["kernel"])
    return output.movedim(-dims - 1, -1)
