"""Where the hyperplanes of a layer lie in the data, read from the moments of z = w·x + b.

The mean of a class lies ``mean(z) / ‖w‖`` from the hyperplane ``z = 0``, and the spread of the
class along the normal is ``std(z) / ‖w‖``. So the moments of z say all of it, and the rows
themselves are not needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mahalens.auditing.readings import HyperplaneReading
from mahalens.errors import InputError

# Entries of one intermediate array: classes x units of a chunk.
_CHUNK = 2**21

# Resampling: draws, rows whose deviations are mixed, and most comparisons of a class and a unit.
_DRAWS, _ROWS, _COMPARED = 200, 256, 2**24
_FEWEST_UNITS, _MOST_UNITS = 64, 1024


def read_hyperplanes(
    length: Tensor,
    mean: Tensor,
    std: Tensor,
    positive: Tensor,
    grid: Tensor,
    class_mean: Tensor | None = None,
    class_std: Tensor | None = None,
    through: float = 0.5,
) -> HyperplaneReading:
    """Distances of the data's means to every hyperplane, and which class it passes through.

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

    Example:
        >>> one, zero = torch.ones(1), torch.zeros(1)
        >>> grid = torch.tensor([[-2.0, -1.0, 0.0, 1.0]])
        >>> means, stds = torch.tensor([[-1.5], [0.1]]), torch.tensor([[0.5], [0.5]])
        >>> reading = read_hyperplanes(2 * one, -0.5 * one, one, zero, grid, means, stds)
        >>> reading.nearest, reading.through, reading.chance  # only t = 0 is near a class's mean
        (tensor([1]), tensor([True]), tensor([0.2500], dtype=torch.float64))
        >>> reading.class_distance.T
        tensor([[-0.7500,  0.0500]], dtype=torch.float64)
    """
    units = _units(length)
    if not (through >= 0 and math.isfinite(through)):
        raise InputError(f"through is {through}, but a number of spreads from 0 up is wanted")
    lengths = _as_vector(length, "length", units)
    means, stds = _as_vector(mean, "mean", units), _as_vector(std, "std", units)
    values = _as_matrix(grid, "grid", units, 0)
    given = class_mean is not None and class_std is not None
    if (class_mean is None) != (class_std is None):
        raise InputError("one of class_mean and class_std is given; pass both or neither")
    if class_mean is not None and class_std is not None:
        centres = _as_matrix(class_mean, "class_mean", units, 1)
        spreads = _as_matrix(class_std, "class_std", units, 1)
        if centres.shape != spreads.shape:
            raise InputError(
                f"class_mean has shape {list(centres.shape)} and class_std {list(spreads.shape)}; "
                "pass both of the same classes"
            )
    else:
        centres, spreads = means[None], stds[None]

    directed = (lengths > 0) & lengths.isfinite() & means.isfinite()
    varying = directed & (stds > 0) & stds.isfinite()
    in_spreads = _kept(_in_spreads(centres, spreads), varying)
    nearest = _nearest(in_spreads)
    within, limit = (in_spreads.abs() <= through).sum(0), _limit(centres, spreads)
    return HyperplaneReading(
        length=lengths,
        mean_distance=_kept(means / lengths, directed),
        mean_spreads=_kept(means / stds, varying),
        class_distance=_kept(centres / lengths, directed) if given else None,
        class_spreads=in_spreads if given else None,
        nearest=nearest if given else None,
        through=(within > 0) & (within <= limit),
        common=within > limit,
        chance=_kept(_chance(values, centres, through * spreads), varying),
        positive=_as_vector(positive, "positive", units),
    )


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


def _share(near: Tensor, limit: Tensor) -> Tensor:
    """Share of the units near at least one class and at most ``limit``, [R, U] -> [R]."""
    passing = ((near > 0) & (near <= limit)).sum(1)
    return passing.double() / (near <= limit).sum(1).clamp_min(1)


def _in_spreads(centres: Tensor, spreads: Tensor) -> Tensor:
    """``centres / spreads``, where 0 / 0 is 0: a class without spread that lies on the plane."""
    on_plane = (centres == 0) & (spreads == 0)
    return torch.where(on_plane, torch.zeros_like(centres), centres / spreads)


def _nearest(in_spreads: Tensor) -> Tensor:
    """The class the fewest spreads away [K]; -1 for none."""
    away = in_spreads.abs().nan_to_num(nan=math.inf, posinf=math.inf)
    least, index = away.min(dim=0)
    return torch.where(least.isfinite(), index, torch.full_like(index, -1))


def _limit(centres: Tensor, spreads: Tensor) -> Tensor:
    """How many classes a hyperplane may be within reach of and still be said to single one out."""
    known = (centres.isfinite() & spreads.isfinite()).sum(0)
    return (known // 2).clamp_min(1)


def _chance(grid: Tensor, centres: Tensor, reach: Tensor) -> Tensor:
    """Share of the grid values at which a hyperplane would pass through a class [K].

    Values at which it would be common do not count.

    Every class covers a run of the sorted grid. Counting where runs begin and end gives what
    they cover together, in C log G steps per unit instead of C · G comparisons.
    """
    units, points = grid.shape
    classes = centres.shape[0]
    chance = torch.full((units,), math.nan, dtype=torch.float64)
    step = max(1, _CHUNK // max(classes, points))
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
        chance[part] = _kept(share, values.isfinite().all(dim=1))
    return chance


def _kept(values: Tensor, where: Tensor) -> Tensor:
    """The values, NaN where they have no meaning."""
    return torch.where(where, values, torch.full_like(values, math.nan))


def _units(length: Tensor) -> int:
    if length.dim() != 1 or len(length) == 0:
        raise InputError(
            f"length has shape {list(length.shape)}, but one number per unit [K] is wanted"
        )
    return len(length)


def _as_vector(values: Tensor, name: str, units: int) -> Tensor:
    if values.shape != (units,):
        raise InputError(
            f"{name} has shape {list(values.shape)}, but the layer has {units} units and wants "
            f"[{units}]; pass one number per unit"
        )
    return values.detach().to("cpu").to(torch.float64)


def _as_matrix(values: Tensor, name: str, units: int, axis: int) -> Tensor:
    """A float64 matrix with the units along ``axis`` and at least one entry along the other."""
    if values.dim() != 2 or values.shape[axis] != units or values.shape[1 - axis] == 0:
        wanted = f"[{units}, G]" if axis == 0 else f"[C, {units}]"
        raise InputError(
            f"{name} has shape {list(values.shape)}, but the layer has {units} units and wants "
            f"{wanted}"
        )
    return values.detach().to("cpu").to(torch.float64)
