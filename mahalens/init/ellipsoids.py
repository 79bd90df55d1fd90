"""Starting weights of layers that measure distances in ellipsoids: Mahalanobis, DistanceHead.

A ``Mahalanobis`` is started like other layers of prototypes: they are at cluster means, class means
or samples. The prototype of a ``DistanceHead`` stands for the class of its own number, so there
every start that looks at data is given classes. What a start says of rows it says of shapes here:

- ``sample_point_bias`` and ``class_mean`` place prototypes only: shapes are spheres of the size of
  the data, with axes drawn at random as the layer draws them;
- ``cluster_pca`` takes the R longest principal axes of each cluster, and its mean variance across
  them; a head gets what ``fit_prototypes`` computes;
- ``whiten`` gives all the shape of all rows together: one whitening of the whole input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.init.axes import Axes, principal_axes
from mahalens.init.clusters import by_class, class_groups, k_means
from mahalens.init.placed import drawn_prototypes
from mahalens.init.rows import Ellipsoidal, Rows
from mahalens.init.targets import Ellipsoids, Prototypes
from mahalens.nn.fitting import SMALLER
from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2

Generator = torch.Generator | None
Distances = Ellipsoids | Prototypes


def drawn(layer: Ellipsoidal, width: int, generator: Generator) -> Distances:
    """As the layer draws itself: prototypes about the origin, spreads of 1."""
    at = drawn_prototypes(layer.classes, width, generator)
    return _spheres(layer, at.point, at.spread, generator)


def at_samples(layer: Ellipsoidal, rows: Rows, generator: Generator) -> Distances:
    """Prototypes at random rows, of their own class in a head."""
    if isinstance(layer, DistanceHead):
        groups = _by_number(layer, rows)
        chosen = torch.stack([_one_of(group, generator) for group in groups])
    else:
        groups = [torch.arange(rows.count)]
        chosen = torch.randint(rows.count, (layer.classes,), generator=generator)
    spread = _pooled_spread(rows, groups).expand(layer.classes)
    return _spheres(layer, rows.values[chosen], spread, generator)


def at_classes(layer: Ellipsoidal, rows: Rows, generator: Generator) -> Distances:
    """Prototypes at class means, with the mean spread within classes."""
    groups = _groups(layer, rows, generator)
    spread = _pooled_spread(rows, groups).expand(layer.classes)
    return _spheres(layer, _means(rows, groups), spread, generator)


def of_clusters(
    layer: Ellipsoidal, rows: Rows, generator: Generator, *, clusters: int | None = None
) -> Distances:
    """Prototypes at the means of clusters, or classes, with the shape of each.

    Clusters with fewer axes than the rank, such as a single sample, get the shape of all of them
    pooled; so do inputs that are constant in a class, where each has a spread of its own.
    """
    if clusters is not None and clusters != layer.classes:
        raise InputError(
            f"clusters is {clusters}, but the layer has {layer.classes} prototypes, one for each "
            f"cluster; leave it out"
        )
    groups = _groups(layer, rows, generator)
    means = _means(rows, groups)
    distance = _distance(layer)
    if isinstance(distance, OffsetL2):
        spread = _pooled_spread(rows, groups)
        if isinstance(layer, DistanceHead) and layer.metric == "diagonal":
            by_input = torch.stack([rows.values[group].std(0) for group in groups])
            nothing = by_input <= torch.finfo(by_input.dtype).eps * spread
            return Prototypes(means, torch.where(nothing, spread, by_input))
        return Prototypes(means, spread.expand(layer.classes))
    pooled = _shape(principal_axes(_within(rows, groups), rows.precision), distance.rank)
    shapes = (
        [pooled]
        if distance.shared
        else [
            _shape(principal_axes(rows.values[group], rows.precision), distance.rank) or pooled
            for group in groups
        ]
    )
    return _ellipsoids(layer, rows, means, shapes)


def whitening(layer: Ellipsoidal, rows: Rows, generator: Generator) -> Distances:
    """Prototypes at the means of clusters, or classes, all with the shape of all rows."""
    distance = _distance(layer)
    assert isinstance(distance, Mahalanobis)
    means = _means(rows, _groups(layer, rows, generator))
    shape = _shape(principal_axes(rows.values, rows.precision), distance.rank)
    return _ellipsoids(layer, rows, means, [shape] * (1 if distance.shared else layer.classes))


def _distance(layer: Ellipsoidal) -> Mahalanobis | OffsetL2:
    return layer.distance if isinstance(layer, DistanceHead) else layer


def _groups(layer: Ellipsoidal, rows: Rows, generator: Generator) -> list[Tensor]:
    """The rows of each unit: its class in a head, else its cluster, or part of a class."""
    if isinstance(layer, DistanceHead):
        return _by_number(layer, rows)
    if rows.labels is None:
        return k_means(rows, layer.classes, generator)
    groups = class_groups(layer.classes, rows, generator)
    return [groups[unit % len(groups)] for unit in range(layer.classes)]


def _by_number(head: DistanceHead, rows: Rows) -> list[Tensor]:
    """The rows of each class of a head; they must be those that it has."""
    groups, known = by_class(rows), sorted(rows.seen)
    if known != list(range(head.classes)):
        wanted = set(range(head.classes))
        odd = next((f"has class {k}" for k in known if k not in wanted), "")
        odd = odd or f"has no class {min(wanted.difference(known))}"
        raise InputError(
            f"y {odd}, but the head has a prototype for each of the classes 0 to "
            f"{head.classes - 1}; give samples of just these"
        )
    return groups


def _one_of(group: Tensor, generator: Generator) -> Tensor:
    return group[torch.randint(len(group), (), generator=generator)]


def _means(rows: Rows, groups: list[Tensor]) -> Tensor:
    return torch.stack([rows.values[group].mean(0) for group in groups])


def _within(rows: Rows, groups: list[Tensor]) -> Tensor:
    """All rows relative to the mean of their group, with as many degrees of freedom as they have.

    An axis divides by one less than the number of rows, but a mean of each group was taken off.
    """
    parts = [rows.values[group] - rows.values[group].mean(0) for group in groups]
    count = sum(map(len, groups))
    return torch.cat(parts) * math.sqrt((count - 1) / max(1, count - len(groups)))


def _pooled_spread(rows: Rows, groups: list[Tensor]) -> Tensor:
    """Root mean variance of an input within groups []."""
    spread = _within(rows, groups).var(0).mean().sqrt()
    if not float(spread) > 0:
        raise InputError(
            f"the {rows.count} rows have no spread within {len(groups)} clusters; give more "
            f"samples that differ, or fewer units"
        )
    return spread


def _spheres(layer: Ellipsoidal, point: Tensor, spread: Tensor, generator: Generator) -> Distances:
    """Prototypes with one spread each [K]; axes are drawn, with its length on average."""
    distance = _distance(layer)
    if isinstance(distance, OffsetL2):
        return Prototypes(point, spread)
    shapes = len(distance.axes)
    axes = torch.randn(distance.axes.shape, generator=generator, dtype=torch.float64)
    scale = spread[:shapes] / distance.inputs**0.5
    return Ellipsoids(point, axes * scale[:, None, None], spread[:shapes])


def _shape(found: Axes, rank: int) -> tuple[Tensor, Tensor] | None:
    """The R longest axes [R, D] as a layer has them, and the spread across []; None if too few.

    Along an axis the layer has the variance ``s² + ‖b‖²``. Where nothing is left across, s is
    below the shortest axis, as in :func:`~mahalens.nn.fitting.fit_mahalanobis`.
    """
    if found.rank < rank:
        return None
    long, rest = found.deviations[:rank], found.deviations[rank:]
    others = max(1, found.directions.shape[1] - rank)
    across = (rest.square().sum() / others).sqrt()
    across = across if len(rest) else SMALLER * long[-1]
    lengths = (long.square() - across.square()).clamp(min=0).sqrt()
    return found.directions[:rank] * lengths[:, None], across


def _ellipsoids(
    layer: Ellipsoidal, rows: Rows, means: Tensor, shapes: list[tuple[Tensor, Tensor] | None]
) -> Ellipsoids:
    found = [shape for shape in shapes if shape is not None]
    if len(found) < len(shapes):
        distance = _distance(layer)
        assert isinstance(distance, Mahalanobis)
        raise InputError(
            f"{distance.rank} axes are wanted, but the {rows.count} rows of {rows.width} inputs "
            f"vary along fewer within {len(means)} clusters; give more samples, or a lower rank"
        )
    axes, spreads = (torch.stack(list(parts)) for parts in zip(*found, strict=True))
    return Ellipsoids(means, axes, spreads)
