"""Rows in clusters or classes: their means, principal axes and spreads, and shapes from these."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from mahalens.errors import InputError, require_extra
from mahalens.geometry._checks import require_count
from mahalens.geometry.covariance import centre, lower_factor
from mahalens.geometry.gaussian import spread_axes
from mahalens.init.targets import Ellipsoidal, Ellipsoids, Prototypes, Rows
from mahalens.nn.distances import OffsetL2
from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import REST_SHARE, Mahalanobis

_MARGIN = 4  # a spread of fewer rounding errors of the rows is none
_TRIES = 3  # k-means is started so often, and the best result taken
_STEPS = 30  # and goes on for so long at most: a start needs no last digits

Generator = torch.Generator | None
Distances = Ellipsoids | Prototypes


class Axes(NamedTuple):
    """Mean [D] of rows, and R principal axes, the longest first."""

    mean: Tensor
    deviations: Tensor
    """Standard deviation along each, of the unbiased covariance: √λ [R]."""
    directions: Tensor
    """Eigenvectors as rows [R, D]; of both signs the one whose largest entry is positive."""

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.deviations)

    def whitening(self) -> Tensor:
        """Return rows ``λ^(-1/2) v`` [R, D]: along each the outputs have variance 1."""
        return self.directions / self.deviations[:, None]


def principal_axes(rows: Tensor, precision: float) -> Axes:
    """Return mean and principal axes of rows [n, D], float64.

    An axis counts if its spread is more than what rounding makes of no spread: each input is
    known up to ``precision`` times its size. A constant input therefore has no axis and gets
    the weight 0, whatever its value; small inputs beside large ones keep theirs.

    >>> rows = torch.tensor([[9.0, 5.0], [1.0, 5.0], [2.0, 5.0]]).double()  # the last is constant
    >>> principal_axes(rows, 1e-16).directions
    tensor([[1., 0.]], dtype=torch.float64)
    """
    count, width = rows.shape
    mean, centred = centre(rows)
    if count < 2:
        return Axes(mean, rows.new_zeros(0), rows.new_zeros(0, width))
    scaled = centred / math.sqrt(count - 1)
    if count > width:
        deviations, columns = spread_axes(lower_factor(scaled))
    else:  # the axes lie in the span of the few rows: a small problem, however wide they are
        basis, small = torch.linalg.qr(scaled.T)
        left, deviations, _ = torch.linalg.svd(small)
        columns = basis @ left
        largest = columns.abs().argmax(0, keepdim=True)
        columns = columns * columns.gather(0, largest).sign()
    sizes = rows.square().mean(0).sqrt()
    noise = _MARGIN * precision * (columns * sizes[:, None]).norm(dim=0)
    solver = max(count, width) * torch.finfo(torch.float64).eps * deviations[0]
    spread = deviations > torch.maximum(noise, solver)
    return Axes(mean, deviations[spread], columns[:, spread].T)


def mirrored(weight: Tensor, units: int) -> Tensor:
    """Return each row, then its negative, cut to ``units`` rows: two ReLU units are an Abs."""
    return torch.stack([weight, -weight], 1).flatten(0, 1)[:units]


def k_means(rows: Rows, clusters: int, generator: Generator) -> list[Tensor]:
    """Return the row numbers of each cluster; the seed of k-means is drawn from ``generator``."""
    require_count("clusters", clusters)
    if clusters > rows.count:
        raise InputError(
            f"{clusters} clusters are wanted of {rows.count} samples; give more samples, fewer "
            f"clusters or fewer units"
        )
    require_extra("sklearn", "k-means", "sklearn")
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    if clusters == 1:
        return [torch.arange(rows.count)]
    # Single precision is twice as fast and tells clusters apart as well, once there is no offset.
    centred = rows.values - rows.values.mean(0)
    near_zero = (centred / centred.abs().max().clamp_min(1e-300)).float().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # raised below, as an error
        model = KMeans(clusters, n_init=_TRIES, max_iter=_STEPS, random_state=seed).fit(near_zero)
    labels = torch.from_numpy(model.labels_).long()
    groups = [(labels == c).nonzero()[:, 0] for c in range(clusters)]
    if not all(len(group) for group in groups):
        distinct = len(torch.unique(rows.values, dim=0))
        raise InputError(
            f"{clusters} clusters are wanted of {distinct} samples that differ; give more samples, "
            f"fewer clusters or fewer units"
        )
    return groups


def by_class(rows: Rows) -> list[Tensor]:
    """Return the row numbers of each class, in the order of the classes."""
    if rows.labels is None:
        raise InputError("the classes of the samples are wanted; give y, or data as a pair (x, y)")
    groups = []
    for label, seen in sorted(rows.seen.items()):
        group = (rows.labels == label).nonzero()[:, 0]
        if len(group) < 2:
            advice = "give more of it, or leave it out"
            if seen > 1:
                advice = f"it has {seen} in all, so take more rows, or rows=None for all"
            raise InputError(
                f"class {label} has {len(group)} row among the {rows.count} used, wanted at least "
                f"2 to see any spread; {advice}"
            )
        groups.append(group)
    return groups


def class_groups(rows: Rows, units: int, generator: Generator) -> list[Tensor]:
    """Return the row numbers of each unit, unit k for class k.

    With more units than classes these begin again: a class with several units is divided into as
    many clusters, for two prototypes at one place would stay together for ever.
    """
    classes = by_class(rows)
    parts = []
    for number, group in enumerate(classes):
        count = len(range(number, units, len(classes)))
        members = Rows(rows.values[group], None, rows.precision)
        parts.append([group[part] for part in k_means(members, max(1, count), generator)])
    turns = max(len(part) for part in parts)
    return [part[turn] for turn in range(turns) for part in parts if turn < len(part)]


def means_of(rows: Rows, groups: list[Tensor]) -> Tensor:
    """Return the mean of each group [groups, D]."""
    return torch.stack([rows.values[group].mean(0) for group in groups])


def prototypes_of(rows: Rows, groups: list[Tensor], units: int) -> Prototypes:
    """Return a prototype at the mean of each group, whose spread makes the mean square distance 1.

    With more units than groups these begin again. Groups without spread get that of all.
    """
    points = means_of(rows, groups)
    squares = torch.stack(
        [(rows.values[g] - p).square().sum(1).mean() for g, p in zip(groups, points, strict=True)]
    )
    sizes = torch.tensor([len(group) for group in groups], dtype=squares.dtype)
    pooled = (squares * sizes).sum() / sizes.sum()
    _check_spread(pooled, rows, groups)
    least = pooled * torch.finfo(squares.dtype).eps
    spread = torch.where(squares > least, squares, pooled).sqrt()
    chosen = torch.arange(units) % len(groups)
    return Prototypes(points[chosen], spread[chosen])


def within_groups(rows: Rows, groups: list[Tensor]) -> Tensor:
    """Return all rows relative to the mean of their group, scaled to their degrees of freedom.

    A variance divides by one less than the number of rows, but each group has lost its mean.
    """
    parts = [rows.values[group] - rows.values[group].mean(0) for group in groups]
    count = sum(map(len, groups))
    return torch.cat(parts) * math.sqrt((count - 1) / max(1, count - len(groups)))


def pooled_spread(rows: Rows, groups: list[Tensor]) -> Tensor:
    """Return the root mean variance of an input within groups []."""
    spread = within_groups(rows, groups).var(0).mean().sqrt()
    _check_spread(spread, rows, groups)
    return spread


def _check_spread(spread: Tensor, rows: Rows, groups: list[Tensor]) -> None:
    if not float(spread) > 0:
        raise InputError(
            f"the {rows.count} rows have no spread within {len(groups)} clusters; give more "
            f"samples that differ, or fewer units"
        )


def distance_of(layer: Ellipsoidal) -> Mahalanobis | OffsetL2:
    """Return the layer that measures distances: that of a head, or the layer itself."""
    return layer.distance if isinstance(layer, DistanceHead) else layer


def groups_for(layer: Ellipsoidal, rows: Rows, generator: Generator) -> list[Tensor]:
    """Return the rows of each unit: its class in a head, or its cluster, or part of a class."""
    if isinstance(layer, DistanceHead):
        return groups_by_number(layer, rows)
    if rows.labels is None:
        return k_means(rows, layer.classes, generator)
    groups = class_groups(rows, layer.classes, generator)
    return [groups[unit % len(groups)] for unit in range(layer.classes)]


def groups_by_number(head: DistanceHead, rows: Rows) -> list[Tensor]:
    """Return the rows of each class of a head, or raise where these are other classes."""
    groups, labels = by_class(rows), sorted(rows.seen)
    if labels != list(range(head.classes)):
        wanted = set(range(head.classes))
        odd = next((f"has class {label}" for label in labels if label not in wanted), "")
        odd = odd or f"has no class {min(wanted.difference(labels))}"
        raise InputError(
            f"y {odd}, but the head has a prototype for each of the classes 0 to "
            f"{head.classes - 1}; give samples of just these"
        )
    return groups


def spheres(layer: Ellipsoidal, point: Tensor, spread: Tensor, generator: Generator) -> Distances:
    """Return prototypes with one spread each [K]; axes are drawn, with its length on average."""
    distance = distance_of(layer)
    if isinstance(distance, OffsetL2):
        return Prototypes(point, spread)
    shapes = len(distance.axes)
    axes = torch.randn(distance.axes.shape, generator=generator, dtype=torch.float64)
    scale = spread[:shapes] / distance.inputs**0.5
    return Ellipsoids(point, axes * scale[:, None, None], spread[:shapes])


def shape_of(axes: Axes, rank: int) -> tuple[Tensor, Tensor] | None:
    """Return the R longest axes [R, D] of a layer and the spread across []; None if too few.

    Along an axis the layer has the variance ``s² + ‖b‖²``. Where nothing is left across, s is
    below the shortest axis, as in :func:`~mahalens.nn.mahalanobis.fit_mahalanobis`.
    """
    if axes.rank < rank:
        return None
    long, rest = axes.deviations[:rank], axes.deviations[rank:]
    others = max(1, axes.directions.shape[1] - rank)
    across = (rest.square().sum() / others).sqrt()
    across = across if len(rest) else REST_SHARE * long[-1]
    lengths = (long.square() - across.square()).clamp(min=0).sqrt()
    return axes.directions[:rank] * lengths[:, None], across


def shaped(
    layer: Mahalanobis, rows: Rows, means: Tensor, shapes: list[tuple[Tensor, Tensor] | None]
) -> Ellipsoids:
    """Return ellipsoids of these shapes, or raise where the rows had too few axes for one."""
    complete = [shape for shape in shapes if shape is not None]
    if len(complete) < len(shapes):
        raise InputError(
            f"{layer.rank} axes are wanted, but the {rows.count} rows of {rows.width} inputs "
            f"vary along fewer within {len(means)} clusters; give more samples, or a lower rank"
        )
    axes, spreads = (torch.stack(list(parts)) for parts in zip(*complete, strict=True))
    return Ellipsoids(means, axes, spreads)
