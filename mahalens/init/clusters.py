"""Starting weights from clusters and their principal axes (arXiv 2410.19352, section 5)."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.init.axes import Axes, mirrored, principal_axes
from mahalens.init.rows import Rows
from mahalens.init.targets import Hyperplanes, Prototypes

_TRIES = 3  # k-means is started so often, and the best result taken
_STEPS = 30  # and goes on for so long at most: a start needs no last digits


def cluster_pca(
    units: int,
    rows: Rows,
    generator: torch.Generator | None,
    *,
    clusters: int | None = None,
    axes: int | None = None,
    mirror: bool = False,
) -> Hyperplanes:
    """Hyperplanes through the means of clusters, across their principal axes.

    See :func:`mahalens.init.cluster_pca_`.
    """
    needed = (units + 1) // 2 if mirror else units
    if axes is not None:
        _check_axes(axes)
    if rows.labels is None:
        wanted = _clusters_for(needed, rows.width, clusters, axes)
    else:
        wanted = len(by_class(rows))
        if clusters is not None and clusters != wanted:
            raise InputError(
                f"clusters is {clusters}, but y has {wanted} classes, which are the clusters then; "
                f"leave out one of both"
            )
    fixed = clusters is not None or rows.labels is not None
    if fixed and axes is not None and wanted * axes < needed:
        raise InputError(
            f"{wanted} clusters with {axes} axes each give {wanted * axes} hyperplanes, wanted "
            f"{needed}; ask for more of either, or leave one to be found"
        )
    while True:
        groups = k_means(rows, wanted, generator) if rows.labels is None else by_class(rows)
        # The largest cluster first: where units are few, they go where most of the data is.
        groups.sort(key=len, reverse=True)
        found = [principal_axes(rows.values[group], rows.precision) for group in groups]
        dealt = _deal(found, needed, axes)
        missing = needed - len(dealt)
        if not missing:
            break
        # A sample far from all others is a cluster without axes. Others make up for it, as long
        # as there can be two samples in each.
        if fixed or 2 * (wanted + missing) > rows.count:
            raise InputError(
                f"{needed} axes are wanted, but the {rows.count} rows of {rows.width} inputs in "
                f"{wanted} clusters have only {len(dealt)} with spread; give more samples, fewer "
                f"units or other clusters"
            )
        wanted += missing
    weight = torch.stack([found[c].directions[a] / found[c].deviations[a] for c, a in dealt])
    point = torch.stack([found[c].mean for c, _ in dealt])
    if mirror:
        weight, point = mirrored(weight, units), point.repeat_interleave(2, 0)[:units]
    return Hyperplanes(weight, point)


def cluster_prototypes(
    units: int, rows: Rows, generator: torch.Generator | None, *, clusters: int | None = None
) -> Prototypes:
    """A prototype at the mean of each of K clusters."""
    if clusters is not None and clusters != units:
        raise InputError(
            f"clusters is {clusters}, but the layer has {units} prototypes, one for each cluster; "
            f"leave it out"
        )
    if rows.labels is not None:
        return class_prototypes(units, rows, generator)
    return prototypes_of(rows, k_means(rows, units, generator), units)


def class_prototypes(units: int, rows: Rows, generator: torch.Generator | None) -> Prototypes:
    """Prototypes at the means of the classes, unit k for class k; see :func:`class_groups`."""
    return prototypes_of(rows, class_groups(units, rows, generator), units)


def class_groups(units: int, rows: Rows, generator: torch.Generator | None) -> list[Tensor]:
    """The rows of each unit, unit k for class k.

    With more units than classes these begin again: a class with several units is divided into as
    many clusters, for two prototypes at one place would stay together for ever.
    """
    classes = by_class(rows)
    parts = []
    for number, group in enumerate(classes):
        count = len(range(number, units, len(classes)))
        own = Rows(rows.values[group], None, rows.precision)
        parts.append([group[part] for part in k_means(own, max(1, count), generator)])
    turns = max(len(part) for part in parts)
    return [part[turn] for turn in range(turns) for part in parts if turn < len(part)]


def prototypes_of(rows: Rows, groups: list[Tensor], units: int) -> Prototypes:
    """A prototype at the mean of each group, whose spread makes the mean square distance 1.

    With more units than groups these begin again. Groups without spread get that of all.
    """
    points = torch.stack([rows.values[group].mean(0) for group in groups])
    squares = torch.stack(
        [(rows.values[g] - p).square().sum(1).mean() for g, p in zip(groups, points, strict=True)]
    )
    sizes = torch.tensor([len(group) for group in groups], dtype=squares.dtype)
    pooled = (squares * sizes).sum() / sizes.sum()
    if not float(pooled) > 0:
        raise InputError(
            f"the {rows.count} rows have no spread within {len(groups)} clusters; give more "
            f"samples that differ, or fewer units"
        )
    least = pooled * torch.finfo(squares.dtype).eps
    spread = torch.where(squares > least, squares, pooled).sqrt()
    chosen = torch.arange(units) % len(groups)
    return Prototypes(points[chosen], spread[chosen])


def k_means(rows: Rows, clusters: int, generator: torch.Generator | None) -> list[Tensor]:
    """The rows of each cluster, as numbers; the seed of k-means is drawn from ``generator``."""
    if isinstance(clusters, bool) or not isinstance(clusters, int) or clusters < 1:
        raise InputError(f"clusters is {clusters!r}, wanted a whole number of at least 1")
    if clusters > rows.count:
        raise InputError(
            f"{clusters} clusters are wanted of {rows.count} samples; give more samples, fewer "
            f"clusters or fewer units"
        )
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    if clusters == 1:
        return [torch.arange(rows.count)]
    # Single precision is twice as fast and tells clusters apart as well, once there is no offset.
    centred = rows.values - rows.values.mean(0)
    near_zero = (centred / centred.abs().max().clamp_min(1e-300)).float().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said below, as an error
        found = KMeans(clusters, n_init=_TRIES, max_iter=_STEPS, random_state=seed).fit(near_zero)
    labels = torch.from_numpy(found.labels_).long()
    groups = [(labels == c).nonzero()[:, 0] for c in range(clusters)]
    if not all(len(group) for group in groups):
        distinct = len(torch.unique(rows.values, dim=0))
        raise InputError(
            f"{clusters} clusters are wanted of {distinct} samples that differ; give more samples, "
            f"fewer clusters or fewer units"
        )
    return groups


def by_class(rows: Rows) -> list[Tensor]:
    """The rows of each class, as numbers, in the order of the classes."""
    if rows.labels is None:
        raise InputError("the classes of the samples are wanted; give y, or data as a pair (x, y)")
    groups = []
    for known, seen in sorted(rows.seen.items()):
        group = (rows.labels == known).nonzero()[:, 0]
        if len(group) < 2:
            advice = "give more of it, or leave it out"
            if seen > 1:
                advice = f"it has {seen} in all, so take more rows, or rows=None for all"
            raise InputError(
                f"class {known} has {len(group)} row among the {rows.count} used, wanted at least "
                f"2 to see any spread; {advice}"
            )
        groups.append(group)
    return groups


def _clusters_for(units: int, width: int, clusters: int | None, axes: int | None) -> int:
    """How many clusters: as many as axes of each, unless the rows have fewer axes."""
    if clusters is not None:
        return clusters
    if axes is not None:
        return math.ceil(units / axes)
    return max(round(math.sqrt(units)), math.ceil(units / width))


def _check_axes(axes: int) -> None:
    if isinstance(axes, bool) or not isinstance(axes, int) or axes < 1:
        raise InputError(f"axes is {axes!r}, wanted a whole number of at least 1")


def _deal(found: list[Axes], units: int, axes: int | None) -> list[tuple[int, int]]:
    """Cluster and axis of each unit: the first axis of every cluster, then the second, ..."""
    most = max(one.rank for one in found)
    rounds = range(most if axes is None else min(most, axes))
    dealt = [(c, a) for a in rounds for c, one in enumerate(found) if a < one.rank]
    return dealt[:units]
