"""From what was gathered about a layer to its readings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mahalens.auditing.gather.layer import LayerGatherer
from mahalens.auditing.placing import read_hyperplanes
from mahalens.auditing.readings import (
    HistogramReading,
    HyperplaneReading,
    PrototypeReading,
    UnitReading,
)
from mahalens.auditing.record import Settings
from mahalens.auditing.watch.functions import EVEN, RISING

_GRID = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
"""Levels of the quantiles that stand for the rows when chance is worked out."""
_MOST_CLASS_QUANTILES = 2**22
_MOST_COUNTS = 2**21
_SATURATED = 0.95
_CONSTANT = 1e-6


def read_units(
    gathered: LayerGatherer,
    classes: int,
    sorted_rows: Tensor,
    reader: LayerGatherer | None = None,
) -> UnitReading:
    """How each unit responds; ``sorted_rows`` [K, n] are the kept rows, ascending.

    ``reader`` is the one layer that reads the activations: a unit that is nearly silent is dead
    only if it makes no difference there.
    """
    settings, activity = gathered.settings, gathered.activity
    classes = classes if gathered.by_sample else 0
    whole = gathered.moments.overall()
    rows = float(whole.rows)
    active = activity.active.sum(0) / rows
    flat = activity.flat / rows
    dead = (active == 0) & ~gathered.faulty
    if reader is not None and bool(dead.any()):
        dead &= ~_matters(gathered, reader)
    size = torch.maximum(gathered.least.abs(), gathered.greatest.abs())
    width = gathered.greatest - gathered.least
    constant = width <= _CONSTANT * size
    saturated = ((flat >= _SATURATED) | constant) & ~dead & ~gathered.faulty
    by_class = gathered.moments.by_class(classes) if classes else None
    counts = activity.active.shape[0]
    return UnitReading(
        dead=_indices(dead),
        rare={f"{share:g}": _indices(active < share) for share in settings.rare},
        always=_indices(active == 1),
        saturated=_indices(saturated),
        active=active,
        flat=flat,
        mean=_marked(whole.mean, gathered.faulty),
        std=_marked(whole.std, gathered.faulty),
        skewness=_marked(whole.skewness, gathered.faulty),
        least=gathered.least,
        greatest=gathered.greatest,
        quantiles=quantiles_of(sorted_rows, torch.tensor(settings.quantiles)),
        class_active=None if by_class is None else _shares(activity.active, by_class.rows[:, None]),
        class_mean=None if by_class is None else _marked(by_class.mean, gathered.faulty),
        class_std=None if by_class is None else _marked(by_class.std, gathered.faulty),
        class_skewness=None if by_class is None else _marked(by_class.skewness, gathered.faulty),
        class_quantiles=_class_quantiles(gathered, classes, settings) if counts else None,
        silent_share=float(activity.silent.sum()) / rows,
        silent_samples=tuple(activity.silent_samples),
        silent_by_class=None if by_class is None else _shares(activity.silent, by_class.rows),
    )


def activation_range(gathered: LayerGatherer) -> tuple[Tensor, Tensor]:
    """The least and the greatest activation of each unit over the data [K], float64.

    Both are values of the activation at the ends of z's range, or, for one that is not monotone,
    at the kept rows too; an even one is least where z is nearest 0.
    """
    least, greatest = gathered.least, gathered.greatest
    apply = gathered.site.apply
    if apply is None:
        return least, greatest
    ends = [least, greatest]
    if gathered.site.activation not in RISING:
        ends += gathered.kept.rows.double()
    if gathered.site.activation in EVEN:
        ends.append(gathered.near.keys[0].double())
    values = apply(torch.stack(ends).float()).double()
    return values.amin(0), values.amax(0)


def _matters(gathered: LayerGatherer, reader: LayerGatherer) -> Tensor:
    """Which units move the z of the layer that reads them by more than the tolerance [K].

    Unit k moves it by at most ``max |a_k| √m ‖V_k‖_F``, with V_k the m columns of the reader that
    belong to the unit: one in a Linear, one for each place of the kernel in a convolution.
    """
    columns = reader.site.rows()
    units = gathered.site.units
    if not units or columns.shape[1] % units:
        return torch.zeros(units, dtype=torch.bool)
    each = columns.shape[1] // units
    weight = torch.linalg.vector_norm(columns.view(len(columns), units, each), dim=(0, 2))
    low, high = activation_range(gathered)
    moved = torch.maximum(low.abs(), high.abs()) * weight * math.sqrt(each)
    matters: Tensor = moved > gathered.settings.tolerance * (reader.spread or 0.0)
    return matters


def read_places(
    gathered: LayerGatherer, units: UnitReading, sorted_rows: Tensor
) -> HyperplaneReading:
    """Where the hyperplanes lie in the data."""
    rows = float(gathered.moments.overall().rows)
    return read_hyperplanes(
        length=torch.linalg.vector_norm(gathered.site.rows(), dim=1),
        mean=units.mean,
        std=units.std,
        positive=gathered.activity.positive / rows,
        grid=quantiles_of(sorted_rows, _GRID),
        class_mean=units.class_mean,
        class_std=units.class_std,
        through=gathered.settings.through,
    )


def read_prototypes(gathered: LayerGatherer, length: Tensor) -> PrototypeReading:
    """The inputs nearest each unit's zero set, and the most active ones."""
    near_sample, near_position, near = gathered.near.found()
    strong_sample, strong_position, strong = gathered.strong.found()
    known = torch.where(length > 0, length, torch.full_like(length, torch.nan))
    values = -strong.double()
    apply = gathered.site.apply
    if apply is not None:
        finite = torch.nan_to_num(values, posinf=0.0, neginf=0.0)
        applied = apply(finite.T.float()).double().T  # units along axis 1, as some want them
        values = torch.where(strong_sample >= 0, applied, values)
    return PrototypeReading(
        near_sample=near_sample,
        near_position=near_position,
        near_distance=near.double() / known[:, None],
        active_sample=strong_sample,
        active_position=strong_position,
        active_value=torch.where(strong_sample >= 0, values, torch.full_like(values, torch.nan)),
    )


def read_histograms(
    gathered: LayerGatherer, classes: int, nodes: Sequence[int] | None
) -> HistogramReading:
    """Histograms of the kept rows by class; of all units, or as many as there is room for."""
    groups, bins = max(1, classes if gathered.by_sample else 0), gathered.settings.bins
    count = gathered.site.units
    chosen = list(range(min(count, max(1, _MOST_COUNTS // (groups * bins)))))
    if nodes is not None:
        chosen = [node for node in nodes if 0 <= node < count]
    if len(chosen) < count and nodes is None:
        gathered.notes.append(f"histograms of the first {len(chosen)} of {count} units")
    rows = gathered.kept.rows[:, chosen].double()
    labels = gathered.kept.labels if gathered.by_sample else gathered.kept.labels * 0
    low, high = rows.amin(0), rows.amax(0)
    high = torch.where(high > low, high, low + torch.clamp(low.abs(), min=1.0) * 1e-6)
    place = ((rows - low) / (high - low) * bins).long().clamp(0, bins - 1)
    unit = torch.arange(len(chosen))
    flat = (unit * groups + labels[:, None]) * bins + place
    total = len(chosen) * groups * bins
    counts = torch.bincount(flat.flatten(), minlength=total).view(len(chosen), groups, bins)
    steps = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    return HistogramReading(
        units=tuple(chosen),
        edges=low[:, None] + (high - low)[:, None] * steps,
        counts=counts,
        overlap=overlaps(counts),
    )


def overlaps(counts: Tensor) -> Tensor:
    """Share that each class's histogram has in common with that of all others: [U, C, B] -> [U, C].

    ``Σ_b min(p_cb, q_cb)`` with p the class's shares by bin and q those of the other classes
    together: 1 for equal distributions, 0 for disjoint ones, NaN where one of them has no rows.

    >>> overlaps(torch.tensor([[[2, 2, 0], [0, 2, 2]]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    own = counts.double()
    others = own.sum(1, keepdim=True) - own
    shares, rest = own / own.sum(2, keepdim=True), others / others.sum(2, keepdim=True)
    return torch.minimum(shares, rest).sum(2)


def quantiles_of(ascending: Tensor, levels: Tensor) -> Tensor:
    """Quantiles of each row of sorted values [K, n], interpolated as numpy does: [K, Q]."""
    place = levels.double() * (ascending.shape[1] - 1)
    low = place.floor().long()
    high = place.ceil().long()
    share = place - low
    return ascending[:, low].double() * (1 - share) + ascending[:, high].double() * share


def ascending_rows(rows: Tensor) -> Tensor:
    """The values of each unit in ascending order: [n, K] -> [K, n]."""
    values = rows.T.contiguous().numpy()
    return torch.from_numpy(np.sort(values, axis=1))  # many times as quick as torch's


def _class_quantiles(gathered: LayerGatherer, classes: int, settings: Settings) -> Tensor | None:
    units, levels = gathered.site.units, len(settings.quantiles)
    if not classes * levels or classes * units * levels > _MOST_CLASS_QUANTILES:
        return None
    found = torch.full((classes, units, levels), torch.nan, dtype=torch.float64)
    for label in range(classes):
        rows = gathered.kept.rows[gathered.kept.labels == label]
        if len(rows):
            found[label] = quantiles_of(ascending_rows(rows), torch.tensor(settings.quantiles))
    return found


def _shares(counts: Tensor, rows: Tensor) -> Tensor:
    """Counts by class divided by the rows of the class; classes that came late have none."""
    missing = len(rows) - len(counts)
    if missing:
        counts = torch.cat([counts, torch.zeros(missing, *counts.shape[1:], dtype=counts.dtype)])
    return counts / rows


def _marked(values: Tensor, faulty: Tensor) -> Tensor:
    """NaN for units that gave values which are no numbers."""
    return torch.where(faulty, torch.full_like(values, torch.nan), values)


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())
