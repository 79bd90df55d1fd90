"""Everything that is gathered about one layer while the data streams by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mahalens.audit.gather.extremes import KeptRows, Smallest
from mahalens.audit.gather.input_rows import Covariance, rows_fed
from mahalens.audit.gather.moments import ActivitySums, MomentSums
from mahalens.audit.record import Settings
from mahalens.audit.watch.functions import EVEN, FLAT_BEYOND
from mahalens.audit.watch.survey import Activation, Site
from mahalens.audit.watch.trace import Use

_KEPT_VALUES = 2**21
"""Values that a layer keeps of its rows at most: 8 MB in float32."""
_FEWEST_KEPT = 512


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
        self.notes: list[str] = []
        self.samples = 0
        """Samples seen so far."""
        self.moments = MomentSums(units)
        self.activity = ActivitySums(units)
        self.near = Smallest(units, settings.prototypes)
        self.strong = Smallest(units, settings.prototypes)
        kept = min(settings.rows_kept, max(_FEWEST_KEPT, _KEPT_VALUES // units))
        seed = settings.seed + 7919 * number
        self.kept = KeptRows(units, kept, seed)
        self.faulty = torch.zeros(units, dtype=torch.bool)
        """Units that gave NaN or infinite values."""
        self._generator = torch.Generator().manual_seed(seed + 1)
        self._scale = None if site.scale is None else site.scale.float()
        self._shift = None if site.shift is None else site.shift.float()
        self.inputs: Covariance | None = None
        self.outputs: Covariance | None = None
        width = site.weight.shape[1]
        grouped = site.geometry.get("groups", (1,)) != (1,)
        if inputs_given and width <= settings.widest and not grouped:
            self.inputs = Covariance(width)
        elif units <= settings.widest:
            self.outputs = Covariance(units)
            why = "its units see different channels" if grouped else f"it has {width} inputs"
            if inputs_given:
                self.notes.append(f"whitening is read from the outputs alone, as {why}")
        elif inputs_given:
            self.notes.append(f"whitening is not read, as it has {width} inputs and {units} units")

    def see(self, use: Use, labels: Tensor | None, start: int, samples: int) -> None:
        """Take in one use of the layer on a batch of ``samples`` samples."""
        self.samples = max(self.samples, start + samples)
        z = rows_by_sample(self.site, use.output, samples)
        if z is None:
            # Fed something that is the same for all samples: one batch says all.
            if start:
                return
            z = _channels_last(self.site, use.output).reshape(1, -1, self.site.units)
            labels = None
        if self.inputs is not None:
            fed = rows_fed(use, self.settings.patches, self._generator)
            self.inputs.add(fed.to("cpu"))
        self.take(z, labels, start)

    def take(self, output: Tensor, labels: Tensor | None, start: int) -> None:
        """Take in outputs of the layer itself [B, P, K], before what is folded in."""
        z = output.detach().to("cpu")
        z = z if z.dtype in (torch.float32, torch.float64) else z.float()
        if self._scale is not None:
            z = z * self._scale.to(z.dtype)
        if self._shift is not None:
            z = z + self._shift.to(z.dtype)
        if not math.isfinite(float(z.sum())) and not bool(z.isfinite().all()):
            self.faulty |= (~z.isfinite()).flatten(0, 1).any(0)
            z = torch.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0)
        samples, positions, units = z.shape
        size = z.abs()
        activation = self.site.activation
        active = active_rows(z, size, activation, self.site.apply, self.settings.tolerance)
        low, high = FLAT_BEYOND.get(activation, (-math.inf, math.inf))
        bounded = activation in FLAT_BEYOND
        flat = ((z < low) | (z > high)) if bounded else None
        self.moments.add(z, labels)
        self.activity.add(z, active, flat, labels, start)
        self.near.add(size, start)
        self.strong.add(-size if activation in EVEN else -z, start)
        rows = z.reshape(-1, units)
        repeated = None if labels is None else labels.repeat_interleave(positions)
        self.kept.add(rows, repeated)
        if self.outputs is not None:
            take = torch.randperm(len(rows), generator=self._generator)
            several = samples * self.settings.patches
            self.outputs.add(rows if len(rows) <= several else rows[take[:several]])


def active_rows(
    z: Tensor, size: Tensor, activation: str, apply: Activation | None, tolerance: float
) -> Tensor:
    """Where ``|f(z)| > tolerance``; of an unknown f, where ``|z|`` is."""
    if activation == "relu":
        return z > tolerance
    if activation in ("abs", "none") or apply is None:
        return size > tolerance
    shaped = apply(z.reshape(-1, z.shape[-1])).reshape(z.shape)
    return shaped.abs() > tolerance


def rows_by_sample(site: Site, output: Tensor, samples: int) -> Tensor | None:
    """The output as [B, P, K] with P rows of each of the B samples; None if it has no samples."""
    values = _channels_last(site, output)
    axis = site.batch_axis
    if axis is None:
        return None
    if site.convolution and axis > 0:
        axis -= 1  # the channels, which stood before, have moved behind
    if values.shape[axis] % samples:
        return None
    values = values.movedim(axis, 0)
    if not site.sample_major:
        values = values.unflatten(0, (-1, samples)).movedim(1, 0)
    return values.reshape(samples, -1, site.units)


def _channels_last(site: Site, output: Tensor) -> Tensor:
    if not site.convolution:
        return output
    dims = len(site.geometry["kernel"])
    return output.movedim(-dims - 1, -1)
