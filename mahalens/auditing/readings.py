"""Readings of one layer: how its units respond, and where their hyperplanes lie in the data.

Each type stands with the function that makes it from what a
:class:`~mahalens.auditing.gather.LayerGatherer` has summed up. K units, C classes (or clusters), Q
quantile levels, B bins, P prototypes per unit. *Rows* are what a layer is fed: one per sample for a
Linear, one per sample and position for a convolution (its patches) or a sequence. All tensors are
on the CPU. A unit's pre-activation is ``z = w·x + b``, with a batch norm that stands between the
layer and its activation folded into w and b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from mahalens._show import Shown
from mahalens.auditing.gather import LayerGatherer, grown
from mahalens.auditing.trace import EVEN, RISING

GRID = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
"""Levels of the quantiles that stand for the rows when chance is worked out."""
_MOST_CLASS_QUANTILES = 2**22
_MOST_COUNTS = 2**21
_SATURATED = 0.95
_CONSTANT = 1e-6

# Resampling: draws, rows whose deviations are mixed, and most comparisons of a class and a unit.
_DRAWS, _ROWS, _COMPARED = 200, 256, 2**24
_FEWEST_UNITS, _MOST_UNITS = 64, 1024

_CHUNK = 2**21
"""Entries of one intermediate array: classes x units."""


def read_where(
    gathered: LayerGatherer, classes: int, reader: LayerGatherer | None = None
) -> tuple[UnitReading, HyperplaneReading | None]:
    """Return how the units respond, and where their hyperplanes lie if they have any.

    ``reader`` is the one layer that reads the activations: a unit that is nearly silent is dead
    only if it makes no difference there.
    """
    ascending = ascending_rows(gathered.kept.rows)
    units = _read_units(gathered, classes, ascending, reader)
    if not gathered.site.placed:
        return units, None
    return units, read_hyperplanes(
        length=torch.linalg.vector_norm(gathered.site.rows(), dim=1),
        mean=units.mean,
        std=units.std,
        positive=gathered.activity.positive / float(gathered.moments.overall().rows),
        grid=quantiles_of(ascending, GRID),
        class_mean=units.class_mean,
        class_std=units.class_std,
        through=gathered.settings.through,
    )


class UnitReading(Shown, msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Response of each unit over all rows; quantiles are over the rows that were kept."""

    dead: tuple[int, ...]
    """Never active: ``|activation|`` at most ``tolerance`` of the layer's spread on every row, and
    too small to matter to the layer that reads it, where one is known."""
    rare: dict[str, tuple[int, ...]]
    """By threshold (``"0.05"``): active on a smaller share of the rows; dead ones included."""
    always: tuple[int, ...]
    """Active on every row."""
    saturated: tuple[int, ...]
    """Constant or at the flat end of the activation on nearly all rows, and not dead."""
    active: Tensor
    """Share of the rows on which the unit is active [K]."""
    flat: Tensor
    """Share of the rows at a flat end of the activation [K]; 0 where it has none but zero."""
    mean: Tensor
    std: Tensor
    skewness: Tensor
    least: Tensor
    greatest: Tensor
    """Moments and range of z [K]."""
    quantiles: Tensor
    """Of z [K, Q]."""
    class_active: Tensor | None = None
    class_mean: Tensor | None = None
    class_std: Tensor | None = None
    class_skewness: Tensor | None = None
    """The same within each class [C, K]."""
    class_quantiles: Tensor | None = None
    """[C, K, Q]; absent where classes x units x bins would be too many."""
    silent_share: float = 0.0
    """Share of the rows on which no unit of the layer is active."""
    silent_samples: tuple[int, ...] = ()
    """The first few samples with such a row."""
    silent_by_class: Tensor | None = None
    """Share of the rows of each class on which no unit is active [C]."""


def _read_units(
    gathered: LayerGatherer, classes: int, ascending: Tensor, reader: LayerGatherer | None
) -> UnitReading:
    """Return how each unit responds; ``ascending`` [K, n] are the kept rows, sorted."""
    activity, faulty = gathered.activity, gathered.faulty
    whole = gathered.moments.overall()
    rows = float(whole.rows)
    active = activity.active.sum(0) / rows
    flat = activity.flat / rows
    dead = (active == 0) & ~faulty
    if reader is not None and bool(dead.any()):
        dead &= ~_matters(gathered, reader)
    size = torch.maximum(gathered.least.abs(), gathered.greatest.abs())
    constant = gathered.greatest - gathered.least <= _CONSTANT * size
    return UnitReading(
        dead=_indices(dead),
        rare={f"{share:g}": _indices(active < share) for share in gathered.settings.rare},
        always=_indices(active == 1),
        saturated=_indices(((flat >= _SATURATED) | constant) & ~dead & ~faulty),
        active=active,
        flat=flat,
        mean=_known(whole.mean, ~faulty),
        std=_known(whole.std, ~faulty),
        skewness=_known(whole.skewness, ~faulty),
        least=gathered.least,
        greatest=gathered.greatest,
        quantiles=quantiles_of(ascending, torch.tensor(gathered.settings.quantiles)),
        silent_share=float(activity.silent.sum()) / rows,
        silent_samples=tuple(activity.silent_samples),
        **_read_classes(gathered, classes if gathered.by_sample else 0),
    )


def _read_classes(gathered: LayerGatherer, classes: int) -> dict[str, Tensor | None]:
    """Return the fields of a :class:`UnitReading` that are by class; none without classes."""
    if not classes:
        return {}
    moments, activity = gathered.moments.by_class(classes), gathered.activity
    return {
        "class_active": grown(activity.active, classes) / moments.rows[:, None],
        "class_mean": _known(moments.mean, ~gathered.faulty),
        "class_std": _known(moments.std, ~gathered.faulty),
        "class_skewness": _known(moments.skewness, ~gathered.faulty),
        "class_quantiles": _class_quantiles(gathered, classes),
        "silent_by_class": grown(activity.silent, classes) / moments.rows,
    }


def _class_quantiles(gathered: LayerGatherer, classes: int) -> Tensor | None:
    """Return quantiles of z by class [C, K, Q]; None where they would be too many."""
    units, levels = gathered.site.units, torch.tensor(gathered.settings.quantiles)
    if not len(levels) or classes * units * len(levels) > _MOST_CLASS_QUANTILES:
        return None
    quantiles = torch.full((classes, units, len(levels)), torch.nan, dtype=torch.float64)
    for label in range(classes):
        rows = gathered.kept.rows[gathered.kept.labels == label]
        if len(rows):
            quantiles[label] = quantiles_of(ascending_rows(rows), levels)
    return quantiles


def activation_range(gathered: LayerGatherer) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest activation of each unit over the data [K], float64.

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
    """Return which units move the z of the layer that reads them by more than the tolerance [K].

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


class HyperplaneReading(Shown, msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Places of the hyperplanes ``z = 0`` in the data. Distances are signed: + where z > 0."""

    length: Tensor
    """‖w‖ [K]."""
    mean_distance: Tensor
    """Of the mean of all rows, in input units: ``mean(z) / ‖w‖`` [K]; NaN where w = 0."""
    mean_spreads: Tensor
    """The same in spreads of all rows along the normal: ``mean(z) / std(z)`` [K]."""
    class_distance: Tensor | None = None
    """Of the mean of each class, in input units [C, K]."""
    class_spreads: Tensor | None = None
    """The same in spreads of that class along the normal [C, K]."""
    nearest: Tensor | None = None
    """The class whose mean is the fewest of its spreads away [K], int64; -1 if there is none."""
    through: Tensor
    """Whether the hyperplane passes through a class: is near one, but not more than half, of the
    classes; without classes, whether it passes through the data's mean [K]."""
    chance: Tensor
    """How often it would if it were moved along its normal to the row of a random sample, where
    it would not be common [K]; NaN if it would be everywhere."""
    positive: Tensor
    """Share of the rows with z > tolerance · spread [K]; the rest is on the other side or on the
    plane."""
    common: Tensor | None = None
    """Whether it is near more than half of the classes at once, and so through none of them [K]."""


def read_hyperplanes(
    length: Tensor,
    mean: Tensor,
    std: Tensor,
    positive: Tensor,
    grid: Tensor,
    class_mean: Tensor | None = None,
    class_std: Tensor | None = None,
    through: float = 0.5,
    chunk: int = _CHUNK,
) -> HyperplaneReading:
    """Return how far the means of the data lie from every hyperplane, and which it passes through.

    The mean of a class lies ``mean(z) / ‖w‖`` from the hyperplane ``z = 0``, and the spread of the
    class along the normal is ``std(z) / ‖w‖``: the moments of z suffice, without the rows.

    A hyperplane is *within reach* of a class if ``|class_mean| <= through · class_std``, and
    *passes through* one if it is within reach of at least one class, but of no more than half of
    them. One that is near more than half is *common*: it lies in the middle of the data, where the
    means of classes that do not differ along its normal coincide, and singles none of them out. The
    nearest class is the one with the least ``|class_mean| / class_std``, the first among equals.
    ``chance`` is the share of the ``grid`` values t for which the hyperplane moved to ``z = t``
    (from where a class is ``|class_mean - t|`` away) would pass through a class, among those
    where it would not be common. Without classes the mean and the spread of all rows take the
    place of a class's.

    A class that is constant along a normal has no spread there: its distance in spreads is 0 if
    its mean lies exactly on the hyperplane, and infinite otherwise. A class whose mean or spread
    is NaN (it has no rows) is skipped. A unit has no reading, NaN and no class, where z is not
    finite; if ``length`` is 0 it has no hyperplane; if ``std`` is 0 only its distances in input
    units are defined.

    Args:
        length: ‖w‖ [K].
        mean: mean of z over all rows [K].
        std: its standard deviation [K].
        positive: share of the rows with z > 0 [K].
        grid: equally likely values of z, such as its quantiles [K, G].
        class_mean: mean of z over the rows of each class [C, K].
        class_std: its standard deviation [C, K].
        through: spreads within which a hyperplane passes through a class.
        chunk: entries of one intermediate array.

    All tensors are float64.

    Example:
        >>> one, zero = torch.ones(1).double(), torch.zeros(1).double()
        >>> grid = torch.tensor([[-2.0, -1.0, 0.0, 1.0]]).double()
        >>> means, stds = torch.tensor([[-1.5], [0.1]]).double(), torch.full((2, 1), 0.5).double()
        >>> reading = read_hyperplanes(2 * one, -0.5 * one, one, zero, grid, means, stds)
        >>> reading.nearest, reading.through, reading.chance  # only t = 0 is near a class's mean
        (tensor([1]), tensor([True]), tensor([0.2500], dtype=torch.float64))
        >>> reading.class_distance.T
        tensor([[-0.7500,  0.0500]], dtype=torch.float64)
    """
    by_class = class_mean is not None
    centres = mean[None] if class_mean is None else class_mean
    spreads = std[None] if class_std is None else class_std
    directed = (length > 0) & length.isfinite() & mean.isfinite()
    varying = directed & (std > 0) & std.isfinite()
    in_spreads = _known(_in_spreads(centres, spreads), varying)
    within, limit = (in_spreads.abs() <= through).sum(0), _limit(centres, spreads)
    return HyperplaneReading(
        length=length,
        mean_distance=_known(mean / length, directed),
        mean_spreads=_known(mean / std, varying),
        class_distance=_known(centres / length, directed) if by_class else None,
        class_spreads=in_spreads if by_class else None,
        nearest=_nearest(in_spreads) if by_class else None,
        through=(within > 0) & (within <= limit),
        common=within > limit,
        chance=_known(_chance(grid, centres, through * spreads, chunk), varying),
        positive=positive,
    )


def _share(near: Tensor, limit: Tensor) -> Tensor:
    """Return the share of units near one class or more, up to ``limit``: [R, U] -> [R]."""
    passing = ((near > 0) & (near <= limit)).sum(1)
    return passing.double() / (near <= limit).sum(1).clamp_min(1)


def _in_spreads(centres: Tensor, spreads: Tensor) -> Tensor:
    """Return ``centres / spreads``; 0 / 0 is 0, as a class without spread lies on the plane."""
    on_plane = (centres == 0) & (spreads == 0)
    return torch.where(on_plane, torch.zeros_like(centres), centres / spreads)


def _nearest(in_spreads: Tensor) -> Tensor:
    """Return the class the fewest spreads away [K]; -1 for none."""
    away = in_spreads.abs().nan_to_num(nan=math.inf, posinf=math.inf)
    least, index = away.min(dim=0)
    return torch.where(least.isfinite(), index, torch.full_like(index, -1))


def _limit(centres: Tensor, spreads: Tensor) -> Tensor:
    """Return how many classes a hyperplane may be within reach of and still single one out."""
    known = (centres.isfinite() & spreads.isfinite()).sum(0)
    return (known // 2).clamp_min(1)


def _chance(grid: Tensor, centres: Tensor, reach: Tensor, chunk: int) -> Tensor:
    """Return the share of the grid values at which a hyperplane would pass through a class [K].

    Values at which it would be common do not count. Every class covers a run of the sorted grid.
    Counting where runs begin and end gives what they cover together, in C log G steps per unit
    instead of C · G comparisons.
    """
    units, points = grid.shape
    classes = centres.shape[0]
    chance = torch.full((units,), math.nan, dtype=torch.float64)
    step = max(1, chunk // max(classes, points))
    for start in range(0, units, step):
        part = slice(start, start + step)
        values = grid[part].sort(dim=1).values.contiguous()
        centre, half = centres[:, part].T, reach[:, part].T  # [k, C]
        begin = torch.searchsorted(values, (centre - half).contiguous())
        end = torch.searchsorted(values, (centre + half).contiguous(), right=True)
        # A class without rows covers nothing: NaN must not open a run.
        counted = (centre.isfinite() & half.isfinite()).to(torch.int64)
        open_runs = torch.zeros(len(values), points + 1, dtype=torch.int64)
        open_runs.scatter_add_(1, begin, counted).scatter_add_(1, end, -counted)
        limit = _limit(centres[:, part], reach[:, part])[:, None]
        within = open_runs.cumsum(dim=1)[:, :points]
        passing = ((within > 0) & (within <= limit)).sum(dim=1).to(torch.float64)
        share = passing / (within <= limit).sum(dim=1)  # NaN where all places are common
        chance[part] = _known(share, values.isfinite().all(dim=1))
    return chance


def resampled_shares(
    rows: Tensor,
    labels: Tensor,
    class_mean: Tensor,
    class_std: Tensor,
    samples: Tensor,
    chosen: Tensor,
    through: float = 0.5,
    seed: int = 0,
) -> Tensor:
    """Return the share of units that pass through a class, for each of 200 draws of the samples.

    A multiplier bootstrap. In data drawn anew the mean of class c moves by ``Σ g r / √(n N_c)``
    spreads, and its spread by the factor ``1 + Σ g (r² - 1) / (2 √(n N_c))``, with g from a
    standard normal distribution for each of n rows, and r the deviation of the row from the mean
    of its class, in spreads of the class. All units see the same g, so that they move together
    as far as they are correlated. Units that become common in a draw are left aside there. At
    most 256 rows and 1,024 units (fewer with many classes), drawn at random, stand for all. The
    shares are centred on that of the data itself.

    Args:
        rows: some rows of z [n, K].
        labels: their classes [n].
        class_mean: mean of z over the rows of each class [C, K].
        class_std: its standard deviation [C, K].
        samples: number of samples N of each class [C].
        chosen: which units count [K].
        through: spreads within which a hyperplane passes through a class.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    classes = len(class_mean)
    units = chosen.nonzero()[:, 0]
    most = min(_MOST_UNITS, max(_FEWEST_UNITS, _COMPARED // (_DRAWS * classes)))
    if len(units) > most:
        units = units[torch.randperm(len(units), generator=generator)[:most]]
    if len(rows) > _ROWS:
        some = torch.randperm(len(rows), generator=generator)[:_ROWS]
        rows, labels = rows[some], labels[some]
    mean, std = class_mean[:, units], class_std[:, units]
    r = ((rows[:, units] - mean[labels]) / std[labels]).nan_to_num(0.0, 0.0, 0.0).float()
    both = torch.cat([r, (r**2 - 1) / 2], dim=1) / math.sqrt(max(1, len(r)))  # [n, 2 U]
    places, many = _in_spreads(mean, std).float(), len(units)
    limit = _limit(mean, std)
    near = torch.zeros(_DRAWS, many, dtype=torch.int32)
    step = max(1, _CHUNK // (_DRAWS * max(1, 2 * many)))
    for start in range(0, classes, step):
        size = samples[start : start + step].float().clamp_min(1).rsqrt()
        g = torch.randn(len(size) * _DRAWS, len(r), generator=generator)
        moved = (g @ both).view(len(size), _DRAWS, 2 * many) * size[:, None, None]
        centre = places[start : start + step, None] + moved[..., :many]
        near += (centre.abs() <= through * (1 + moved[..., many:])).sum(0, dtype=torch.int32)
    shares = _share(near, limit)
    # Noise on noise brings hyperplanes to pass or to miss on average; that is no uncertainty.
    return shares - shares.mean() + _share((places.abs() <= through).sum(0)[None], limit)


class PrototypeReading(Shown, msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The inputs that explain each unit under both readings, best first."""

    near_sample: Tensor
    near_position: Tensor
    near_distance: Tensor
    """Rows nearest the zero set: sample, position and |z| / ‖w‖ [K, P]; -1 where there are none."""
    active_sample: Tensor
    active_position: Tensor
    active_value: Tensor
    """Rows with the largest activation: sample, position and activation [K, P]."""


def read_prototypes(gathered: LayerGatherer, length: Tensor) -> PrototypeReading:
    """Return the inputs nearest each unit's zero set, and the most active ones."""
    near_sample, near_position, near = gathered.near.result()
    strong_sample, strong_position, strong = gathered.strong.result()
    divisor = torch.where(length > 0, length, torch.full_like(length, torch.nan))
    values = -strong.double()
    apply = gathered.site.apply
    if apply is not None:
        finite = torch.nan_to_num(values, posinf=0.0, neginf=0.0)
        applied = apply(finite.T.float()).double().T  # units along axis 1, as some want them
        values = torch.where(strong_sample >= 0, applied, values)
    return PrototypeReading(
        near_sample=near_sample,
        near_position=near_position,
        near_distance=near.double() / divisor[:, None],
        active_sample=strong_sample,
        active_position=strong_position,
        active_value=torch.where(strong_sample >= 0, values, torch.full_like(values, torch.nan)),
    )


class HistogramReading(Shown, msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Histograms of z over the kept rows, by class, for chosen units."""

    units: tuple[int, ...]
    edges: Tensor
    """[U, B + 1]."""
    counts: Tensor
    """[U, C, B], whole numbers; C is 1 without classes."""
    overlap: Tensor
    """Share that the histogram of each class has in common with all others' [U, C]."""


def read_histograms(
    gathered: LayerGatherer, classes: int, nodes: Sequence[int] | None
) -> HistogramReading:
    """Return histograms of the kept rows by class, of all units or as many as there is room for."""
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
        overlap=_overlaps(counts),
    )


def _overlaps(counts: Tensor) -> Tensor:
    """Return what each class's histogram shares with all others': [U, C, B] -> [U, C].

    ``Σ_b min(p_cb, q_cb)`` with p the class's shares by bin and q those of the other classes
    together: 1 for equal distributions, 0 for disjoint ones, NaN where one of them has no rows.

    >>> _overlaps(torch.tensor([[[2, 2, 0], [0, 2, 2]]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    by_class = counts.double()
    others = by_class.sum(1, keepdim=True) - by_class
    shares, rest = by_class / by_class.sum(2, keepdim=True), others / others.sum(2, keepdim=True)
    return torch.minimum(shares, rest).sum(2)


def quantiles_of(ascending: Tensor, levels: Tensor) -> Tensor:
    """Return quantiles of each row of sorted values [K, n], interpolated as numpy does: [K, Q]."""
    place = levels.double() * (ascending.shape[1] - 1)
    low = place.floor().long()
    high = place.ceil().long()
    share = place - low
    return ascending[:, low].double() * (1 - share) + ascending[:, high].double() * share


def ascending_rows(rows: Tensor) -> Tensor:
    """Return the values of each unit in ascending order: [n, K] -> [K, n]."""
    values = rows.T.contiguous().numpy()
    return torch.from_numpy(np.sort(values, axis=1))  # many times as quick as torch's


def _known(values: Tensor, where: Tensor) -> Tensor:
    """Return the values, NaN where they have no meaning."""
    return torch.where(where, values, torch.full_like(values, torch.nan))


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())
