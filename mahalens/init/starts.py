"""Starting weights of one layer, set in place, from the data that the layer is fed.

Each start is a :class:`Method` (what it computes for hyperplanes, prototypes and ellipsoids) and a
function that applies it to a layer: an ``nn.Linear``, a convolution (its rows are patches; each
group is started by itself), or a ``PointSlope``, ``OffsetL2``, ``Mahalanobis`` or ``DistanceHead``.
A function checks and computes everything before it changes anything, keeps dtype, device and
``requires_grad``, and returns the layer.

A ``Mahalanobis`` is started like other layers of prototypes: these are at cluster means, class
means or samples. A prototype of a ``DistanceHead`` stands for the class of its number, so every
start that looks at data needs classes there. For the shapes of both,

- ``sample_point_bias`` and ``class_mean`` place prototypes only: shapes are spheres of the size of
  the data, with axes drawn at random as the layer draws them;
- ``cluster_pca`` takes the R longest principal axes of each cluster, and its mean variance across
  them; a head gets what ``fit_prototypes`` computes;
- ``whiten`` gives all the shape of all rows together: one whitening of the whole input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.geometry._checks import count_of, tensor_of
from mahalens.init.targets import (
    ROWS,
    Axes,
    Distances,
    Ellipsoidal,
    Generator,
    Hyperplanes,
    Layer,
    Prototypes,
    Rows,
    Weights,
    by_class,
    check_layer,
    class_groups,
    distance_of,
    groups_by_number,
    groups_for,
    groups_of,
    has_bias,
    k_means,
    means_of,
    mirrored,
    pooled_spread,
    principal_axes,
    prototypes_of,
    put,
    rows_of,
    shape_of,
    shaped,
    spheres,
    units_of,
    width_of,
    within_groups,
)
from mahalens.nn.head import DistanceHead
from mahalens.nn.layers import OffsetL2
from mahalens.nn.mahalanobis import Mahalanobis

M = TypeVar("M", bound=nn.Module)


class Method:
    """One way to start a layer.

    A subclass computes starting weights from the number of units (of ellipsoids: from the layer),
    from rows (without ``data``: from their width) and from a generator, with options.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    """Options for hyperplanes."""
    prototype_options: ClassVar[tuple[str, ...]] = ()
    """Options for prototypes and ellipsoids."""
    places: ClassVar[bool] = True
    """Whether hyperplanes are placed in the data, for which a layer needs a bias."""
    data: ClassVar[bool] = True
    """Whether it looks at data at all."""
    labels: ClassVar[str] = "unused"
    """``unused``, ``optional`` or ``needed``."""

    hyperplanes: Callable[..., Hyperplanes]
    prototypes: Callable[..., Prototypes] | None = None
    ellipsoids: Callable[..., Distances] | None = None

    def maker(self, layer: Layer) -> Callable[..., Weights] | None:
        """Return what computes the start of such a layer, ``None`` if there is no such thing."""
        if isinstance(layer, DistanceHead) and isinstance(layer.distance, OffsetL2):
            return self.ellipsoids if self.prototypes is not None else None
        if isinstance(layer, Ellipsoidal):
            return self.ellipsoids
        return self.prototypes if isinstance(layer, OffsetL2) else self.hyperplanes

    def options_for(self, layer: Layer) -> tuple[str, ...]:
        """Return the options that it has for such a layer."""
        of_prototypes = isinstance(layer, OffsetL2 | Ellipsoidal)
        return self.prototype_options if of_prototypes else self.options

    def labels_for(self, layer: Layer) -> str:
        """Return ``unused``, ``optional`` or ``needed``; prototypes of a head stand for classes."""
        of_classes = isinstance(layer, DistanceHead) and self.data
        return "needed" if of_classes else self.labels


class _Kaiming(Method):
    name = "kaiming"
    places = False
    data = False

    def hyperplanes(self, units: int, width: int, generator: Generator) -> Hyperplanes:
        weight = _kaiming_rows(units, width, generator)
        return Hyperplanes(weight, torch.zeros_like(weight))

    def prototypes(self, units: int, width: int, generator: Generator) -> Prototypes:
        """Draw as :class:`~mahalens.nn.OffsetL2` does: about the origin, spreads of 1."""
        point = 0.1 * torch.randn(units, width, generator=generator, dtype=torch.float64)
        return Prototypes(point, torch.ones(units, dtype=torch.float64))

    def ellipsoids(self, layer: Ellipsoidal, width: int, generator: Generator) -> Distances:
        at = self.prototypes(layer.classes, width, generator)
        return spheres(layer, at.point, at.spread, generator)


def kaiming_(layer: M, *, generator: torch.Generator | None = None) -> M:
    """Draw Kaiming-normal rows: ``w ~ N(0, 2/D)`` and ``b = 0`` (He et al. 2015).

    The usual start that looks at no data. An ``OffsetL2`` is drawn as it draws itself.
    """
    return _start(layer, "kaiming", None, None, None, generator, {})


class _SamplePointBias(Method):
    name = "sample_point_bias"

    def hyperplanes(self, units: int, rows: Rows, generator: Generator) -> Hyperplanes:
        return Hyperplanes(*_kaiming_and_samples(rows.values, units, generator))

    def prototypes(self, units: int, rows: Rows, generator: Generator) -> Prototypes:
        spread = prototypes_of(rows, [torch.arange(rows.count)], units).spread
        chosen = torch.randint(rows.count, (units,), generator=generator)
        return Prototypes(rows.values[chosen], spread)

    def ellipsoids(self, layer: Ellipsoidal, rows: Rows, generator: Generator) -> Distances:
        if isinstance(layer, DistanceHead):
            groups = groups_by_number(layer, rows)
            chosen = torch.stack(
                [group[torch.randint(len(group), (), generator=generator)] for group in groups]
            )
        else:
            groups = [torch.arange(rows.count)]
            chosen = torch.randint(rows.count, (layer.classes,), generator=generator)
        spread = pooled_spread(rows, groups).expand(layer.classes)
        return spheres(layer, rows.values[chosen], spread, generator)


def sample_point_bias_(
    layer: M, x: Tensor, *, rows: int | None = ROWS, generator: torch.Generator | None = None
) -> M:
    """Draw Kaiming-normal rows and put each hyperplane through a random sample.

    ``w ~ N(0, 2/D)`` and ``b = -w·x_s``. For ``OffsetL2`` the samples are the prototypes.

    Args:
        layer: the layer to start.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default.
    """
    return _start(layer, "sample_point_bias", x, None, rows, generator, {})


def kaiming_through_samples(
    x: Tensor, units: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw Kaiming-normal weights and put every hyperplane through a random sample.

    ``w ~ N(0, 2/D)`` and ``b = -w·x_s`` with ``s`` uniform over the samples: each hyperplane
    ``w·x + b = 0`` crosses the data from the start, as in the Gaussian study. The draw is made on
    the CPU in float64 whatever the dtype and device of ``x``: a seed means the same start
    everywhere.

    Shapes: x ``[N, D]``; returns weight ``[K, D]`` and bias ``[K]``.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> weight, bias = kaiming_through_samples(x, 4, torch.Generator().manual_seed(0))
    >>> (x @ weight.T + bias).abs().min(0).values.max() < 1e-6
    tensor(True)
    """
    x = tensor_of("samples", x)
    if x.ndim != 2 or not x.numel():
        raise InputError(f"samples of shape {tuple(x.shape)}; give a non-empty [N, D] tensor")
    if not x.is_floating_point():
        raise InputError(f"samples of {x.dtype}; give a float dtype, which the weights will have")
    if units < 1:
        raise InputError(f"{units} units; give at least 1")
    weight, through = _kaiming_and_samples(x, units, generator)
    bias = -(weight * through).sum(-1)
    return weight.to(x), bias.to(x)


class _Whiten(Method):
    name = "whiten"
    options = ("kind", "rank", "mirror")

    def hyperplanes(
        self,
        units: int,
        rows: Rows,
        generator: Generator,
        *,
        kind: str = "pca",
        rank: int | None = None,
        mirror: bool = False,
    ) -> Hyperplanes:
        if kind not in ("pca", "zca"):
            raise InputError(f"kind is {kind!r}, wanted 'pca' or 'zca'")
        needed = (units + 1) // 2 if mirror else units
        axes = principal_axes(rows.values, rows.precision)
        if not axes.rank:
            raise InputError(
                f"the {rows.count} rows are constant in all {rows.width} inputs, so there is "
                f"nothing to whiten; give samples that differ"
            )
        wanted = min(needed, rows.width) if rank is None else count_of("rank", rank)
        if wanted > rows.width:
            raise InputError(f"rank is {rank!r}, wanted at most {rows.width}, the inputs there are")
        # Inputs that are constant lower the rank rightly; too few rows lower it by accident.
        if axes.rank < wanted and (rank is not None or rows.count <= wanted):
            raise InputError(
                f"a rank of {wanted} is asked, but the {rows.count} rows of {rows.width} inputs "
                f"vary along {axes.rank} axes only; give more samples, or rank={axes.rank}"
            )
        count = axes.rank if rank is None else rank
        white = axes.whitening()[:count]
        if kind == "zca":
            if count < rows.width or needed < rows.width:
                raise InputError(
                    f"zca has an output for each of the {rows.width} inputs, but {needed} units "
                    f"are wanted and the rows vary along {count} axes; take kind='pca'"
                )
            white = axes.directions.T @ white
        weight = _rotated_copies(white, needed, generator)
        weight = mirrored(weight, units) if mirror else weight
        return Hyperplanes(weight, axes.mean.expand_as(weight))

    def ellipsoids(self, layer: Ellipsoidal, rows: Rows, generator: Generator) -> Distances:
        distance = distance_of(layer)
        assert isinstance(distance, Mahalanobis)
        means = means_of(rows, groups_for(layer, rows, generator))
        shape = shape_of(principal_axes(rows.values, rows.precision), distance.rank)
        return shaped(distance, rows, means, [shape] * (1 if distance.shared else layer.classes))


def whiten_(
    layer: M,
    x: Tensor,
    *,
    kind: str = "pca",
    rank: int | None = None,
    mirror: bool = False,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
) -> M:
    """Whiten the whole input: ``W Σ Wᵀ = I`` and ``b = -W μ``, mean and covariance of the rows.

    With R axes along which the rows vary, λ₁ ≥ ... ≥ λ_R, and K units:

    - K ≤ R: row k is ``λₖ^(-1/2) vₖ``, the leading axes;
    - K > R: all R, then copies ``Q W`` of them, each with an orthogonal ``Q`` of its own drawn at
      random, the last one cut to fit. Every copy is a whitening again.

    An input that is constant gets the weight 0.

    Args:
        layer: the layer to start; it needs a bias.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        kind: ``pca``, or ``zca`` for ``V Λ^(-1/2) Vᵀ``, which needs K ≥ D and spread in every
            direction.
        rank: use only so many leading axes, and copies of these.
        mirror: units in pairs w, -w, which together are an absolute value behind ReLU.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default. Drawn from only for copies.

    Example:
        >>> x = torch.randn(100, 3) @ torch.randn(3, 3)
        >>> z = whiten_(nn.Linear(3, 2), x)(x)
        >>> torch.allclose(torch.cov(z.T), torch.eye(2), atol=1e-3)
        True
    """
    # The default of an option is not asked of layers that do not have it.
    options = {"kind": None if kind == "pca" else kind, "rank": rank, "mirror": mirror}
    return _start(layer, "whiten", x, None, rows, generator, options)


class _ClusterPCA(Method):
    name = "cluster_pca"
    options = ("clusters", "axes", "mirror")
    prototype_options = ("clusters",)
    labels = "optional"

    def hyperplanes(
        self,
        units: int,
        rows: Rows,
        generator: Generator,
        *,
        clusters: int | None = None,
        axes: int | None = None,
        mirror: bool = False,
    ) -> Hyperplanes:
        needed = (units + 1) // 2 if mirror else units
        if axes is not None:
            axes = count_of("axes", axes)
        count = self._count(needed, rows, clusters, axes)
        fixed = clusters is not None or rows.labels is not None
        if fixed and axes is not None and count * axes < needed:
            raise InputError(
                f"{count} clusters with {axes} axes each give {count * axes} hyperplanes, wanted "
                f"{needed}; ask for more of either, or leave one out"
            )
        while True:
            groups = k_means(rows, count, generator) if rows.labels is None else by_class(rows)
            # The largest cluster first: where units are few, they go where most of the data is.
            groups.sort(key=len, reverse=True)
            shapes = [principal_axes(rows.values[group], rows.precision) for group in groups]
            dealt = self._deal(shapes, needed, axes)
            missing = needed - len(dealt)
            if not missing:
                break
            # A sample far from all others is a cluster without axes. Others make up for it, as
            # long as there can be two samples in each.
            if fixed or 2 * (count + missing) > rows.count:
                raise InputError(
                    f"{needed} axes are wanted, but the {rows.count} rows of {rows.width} inputs "
                    f"in {count} clusters have only {len(dealt)} with spread; give more samples, "
                    f"fewer units or other clusters"
                )
            count += missing
        weight = torch.stack([shapes[c].directions[a] / shapes[c].deviations[a] for c, a in dealt])
        point = torch.stack([shapes[c].mean for c, _ in dealt])
        if mirror:
            weight, point = mirrored(weight, units), point.repeat_interleave(2, 0)[:units]
        return Hyperplanes(weight, point)

    def prototypes(
        self, units: int, rows: Rows, generator: Generator, *, clusters: int | None = None
    ) -> Prototypes:
        self._check_clusters(clusters, units)
        grouped = k_means if rows.labels is None else class_groups
        return prototypes_of(rows, grouped(rows, units, generator), units)

    def ellipsoids(
        self, layer: Ellipsoidal, rows: Rows, generator: Generator, *, clusters: int | None = None
    ) -> Distances:
        """Place prototypes at the means of clusters, or classes, with the shape of each.

        Clusters with fewer axes than the rank, such as a single sample, get the shape of all of
        them pooled; so do inputs that are constant in a class, where each has its own spread.
        """
        self._check_clusters(clusters, layer.classes)
        groups = groups_for(layer, rows, generator)
        means = means_of(rows, groups)
        distance = distance_of(layer)
        if isinstance(distance, OffsetL2):
            spread = pooled_spread(rows, groups)
            if isinstance(layer, DistanceHead) and layer.metric == "diagonal":
                by_input = torch.stack([rows.values[group].std(0) for group in groups])
                constant = by_input <= torch.finfo(by_input.dtype).eps * spread
                return Prototypes(means, torch.where(constant, spread, by_input))
            return Prototypes(means, spread.expand(layer.classes))
        pooled = shape_of(
            principal_axes(within_groups(rows, groups), rows.precision), distance.rank
        )
        if distance.shared:
            return shaped(distance, rows, means, [pooled])
        axes = [principal_axes(rows.values[group], rows.precision) for group in groups]
        return shaped(distance, rows, means, [shape_of(a, distance.rank) or pooled for a in axes])

    def _count(self, units: int, rows: Rows, clusters: int | None, axes: int | None) -> int:
        """Return how many clusters: as many as axes of each, unless the rows have fewer axes."""
        if rows.labels is not None:
            classes = len(by_class(rows))
            if clusters is not None and clusters != classes:
                raise InputError(
                    f"clusters is {clusters}, but y has {classes} classes, which are the clusters "
                    f"then; leave out one of both"
                )
            return classes
        if clusters is not None:
            return clusters
        if axes is not None:
            return math.ceil(units / axes)
        return max(round(math.sqrt(units)), math.ceil(units / rows.width))

    def _check_clusters(self, clusters: int | None, prototypes: int) -> None:
        if clusters is not None and clusters != prototypes:
            raise InputError(
                f"clusters is {clusters}, but the layer has {prototypes} prototypes, one for each "
                f"cluster; leave it out"
            )

    def _deal(self, shapes: list[Axes], units: int, axes: int | None) -> list[tuple[int, int]]:
        """Return cluster and axis of each unit: the first axis of all clusters, then the second."""
        most = max(shape.rank for shape in shapes)
        rounds = range(most if axes is None else min(most, axes))
        dealt = [(c, a) for a in rounds for c, shape in enumerate(shapes) if a < shape.rank]
        return dealt[:units]


def cluster_pca_(
    layer: M,
    x: Tensor,
    y: Tensor | None = None,
    *,
    clusters: int | None = None,
    axes: int | None = None,
    mirror: bool = False,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
) -> M:
    """Put hyperplanes through the means of clusters, across their principal axes.

    Clusters are found by k-means. The unit of axis a of cluster c, with mean μ_c and covariance
    Σ_c = V Λ Vᵀ of its rows, is ``w = λₐ^(-1/2) vₐ`` and ``b = -w·μ_c``: ``|w·x + b|`` is the
    distance from the cluster along that axis, in spreads (arXiv 2410.19352). Units are dealt out:
    the first axis of every cluster, the largest first, then the second of every one, and so on.
    A cluster that runs out of axes with spread is passed over.

    For ``OffsetL2`` there are as many clusters as units: their means are the prototypes, with
    scales that make the mean square distance within a cluster 1.

    Args:
        layer: the layer to start; it needs a bias.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        y: classes ``[N]`` to take as the clusters, in the place of k-means.
        clusters: how many; by default ``√K``, more where the rows have too few axes.
        axes: how many of each at most; by default as many as it takes.
        mirror: units in pairs w, -w, which together are an absolute value behind ReLU.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default. The seed of k-means is drawn from it.

    Example:
        >>> x = torch.cat([torch.randn(50, 2) - 5, torch.randn(50, 2) + 5])
        >>> layer = cluster_pca_(nn.Linear(2, 4), x, clusters=2)
        >>> means = torch.stack([x[:50].mean(0), x[50:].mean(0)])
        >>> (layer(means).abs() < 1e-3).sum(1)  # each cluster has two units that are zero there
        tensor([2, 2])
    """
    options: dict[str, Any] = {"clusters": clusters, "axes": axes, "mirror": mirror}
    return _start(layer, "cluster_pca", x, y, rows, generator, options)


class _ClassMean(Method):
    name = "class_mean"
    labels = "needed"

    def hyperplanes(
        self, units: int, rows: Rows, generator: Generator, *, first: int = 0
    ) -> Hyperplanes:
        """Place unit k, counted from ``first`` in a group of a layer, at the mean of class k."""
        means = means_of(rows, by_class(rows))
        weight = _kaiming_rows(units, rows.width, generator)
        return Hyperplanes(weight, means[(first + torch.arange(units)) % len(means)])

    def prototypes(self, units: int, rows: Rows, generator: Generator) -> Prototypes:
        return prototypes_of(rows, class_groups(rows, units, generator), units)

    def ellipsoids(self, layer: Ellipsoidal, rows: Rows, generator: Generator) -> Distances:
        groups = groups_for(layer, rows, generator)
        spread = pooled_spread(rows, groups).expand(layer.classes)
        return spheres(layer, means_of(rows, groups), spread, generator)


def class_mean_(
    layer: M,
    x: Tensor,
    y: Tensor,
    *,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
) -> M:
    """Draw Kaiming-normal rows and put unit k through the mean of class k.

    ``w ~ N(0, 2/D)`` and ``b = -w·μ_c``; with more units than classes these begin again. For
    ``OffsetL2`` the means are the prototypes, with scales that make the mean square distance
    within a class 1; a class with several units is divided into as many clusters.

    Args:
        layer: the layer to start; it needs a bias.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        y: classes ``[N]``, at least two samples of each.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default.
    """
    return _start(layer, "class_mean", x, y, rows, generator, {})


class _LSUV(Method):
    name = "lsuv"
    places = False

    def hyperplanes(self, units: int, rows: Rows, generator: Generator) -> Hyperplanes:
        weight = torch.empty(units, rows.width, dtype=torch.float64)
        nn.init.orthogonal_(weight, generator=generator)
        outputs = rows.values @ weight.T
        variance = float(outputs.var(correction=0))
        size = float(outputs.square().mean())
        if not variance > (4 * rows.precision) ** 2 * size:
            raise InputError(
                f"the outputs of {units} units on {rows.count} rows are constant, so no scale "
                f"gives them variance 1; give samples that differ"
            )
        weight = weight / variance**0.5
        return Hyperplanes(weight, torch.zeros_like(weight))


def lsuv_(
    layer: M, x: Tensor, *, rows: int | None = ROWS, generator: torch.Generator | None = None
) -> M:
    """Set orthonormal rows, scaled to outputs of variance 1; ``b = 0``.

    One layer of LSUV (Mishkin & Matas, "All you need is a good init", 2016): rows orthonormal
    (columns, if K > D), divided by the standard deviation of all outputs of all units on the
    data. :func:`initialise` goes through a network layer by layer.

    Args:
        layer: the layer to start.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default.
    """
    return _start(layer, "lsuv", x, None, rows, generator, {})


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _Kaiming(),
        _SamplePointBias(),
        _Whiten(),
        _ClusterPCA(),
        _ClassMean(),
        _LSUV(),
    )
}
"""The methods of :func:`mahalens.init.initialise`, by name."""


def method_of(name: str) -> Method:
    """Return the method of that name, or raise."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"there is no start {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name]


def check_fit(method: Method, layer: nn.Module, carrier: nn.Module | str | None = None) -> Layer:
    """Return the layer if this method can start it, or raise.

    A ``carrier`` is the batch norm that stands in for a missing bias, or why there is none.
    """
    fit = check_layer(layer)
    kind = type(layer).__name__
    if method.maker(fit) is None:
        others = ", ".join(m.name for m in METHODS.values() if m.maker(fit) is not None)
        raise InputError(f"{kind} has prototypes and no rows for {method.name}; take {others}")
    if method.places and not has_bias(fit) and not isinstance(carrier, nn.Module):
        free = ", ".join(m.name for m in METHODS.values() if not m.places)
        why = "" if carrier is None else f", {carrier}"
        raise InputError(
            f"{kind} has no bias, which {method.name} places its hyperplanes with{why}; build it "
            f"with bias=True, or take {free}"
        )
    return fit


def check_options(method: Method, options: Mapping[str, Any], layer: Layer | None = None) -> None:
    """Raise unless the method has these options, for such a layer if one is given."""
    known = method.options if layer is None else method.options_for(layer)
    if unknown := [name for name in options if name not in known]:
        kind = "" if known == method.options else f" for {type(layer).__name__}"
        have = f"has {', '.join(known)}" if known else "has none"
        raise InputError(f"{method.name}{kind} has no option {unknown[0]!r}; it {have}")


def check_generator(generator: Generator) -> None:
    """Raise unless the generator is of the CPU: a seed then means the same start everywhere."""
    if generator is not None and not hasattr(generator, "device"):
        raise InputError(f"the generator is {generator!r}, wanted a torch.Generator, or None")
    if generator is not None and generator.device.type != "cpu":
        raise InputError(
            f"the generator is on {generator.device}, wanted one on the CPU, whatever the layer's "
            f"device; use torch.Generator()"
        )


def start_layer(
    layer: Layer,
    method: Method,
    rows: Rows | None,
    generator: Generator,
    options: Mapping[str, Any],
) -> Weights:
    """Compute starting weights from rows, put them into the layer, and return them."""
    make = method.maker(layer)
    assert make is not None
    source = rows if method.data else width_of(layer)
    if rows is not None and method.data and bool((rows.values == rows.values[0]).all()):
        raise InputError(
            f"the {rows.count} rows are constant in all {rows.width} inputs, so they say nothing "
            f"about where to start; give samples that differ"
        )
    weights: Weights
    if isinstance(layer, Ellipsoidal):
        weights = make(layer, source, generator, **options)
    elif groups_of(layer) == 1:
        weights = make(units_of(layer), source, generator, **options)
    else:
        weights = _start_groups(layer, method, source, generator, options)
    put(layer, weights)
    return weights


def _start_groups(
    layer: Layer,
    method: Method,
    source: Rows | int | None,
    generator: Generator,
    options: Mapping[str, Any],
) -> Hyperplanes:
    """Start each group of a convolution as a layer by itself."""
    groups = groups_of(layer)
    units = units_of(layer) // groups
    parts = []
    for number in range(groups):
        part = (
            source.group(number, groups) if isinstance(source, Rows) else width_of(layer) // groups
        )
        # Classes go on from one group to the next: often a group has a single unit.
        turn = {"first": number * units} if isinstance(method, _ClassMean) else {}
        try:
            parts.append(method.hyperplanes(units, part, generator, **options, **turn))
        except InputError as error:
            raise InputError(f"group {number} of {groups}: {error}") from None
    return Hyperplanes(
        torch.cat([part.weight for part in parts]), torch.cat([part.point for part in parts])
    )


def _start(
    layer: M,
    name: str,
    x: Tensor | None,
    y: Tensor | None,
    limit: int | None,
    generator: Generator,
    options: dict[str, Any],
) -> M:
    """Check everything, then start one layer from its input; see :mod:`mahalens.init.starts`."""
    method = METHODS[name]
    fit = check_fit(method, layer)
    check_generator(generator)
    # Options left at their default are not asked of layers that do not know them.
    options = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    check_options(method, options, fit)
    if method.data and method.labels_for(fit) == "needed" and y is None:
        if method.labels == "unused":
            raise InputError(
                f"{type(layer).__name__} has a prototype for each class, so {name} wants the "
                f"classes too; take initialise(layer, (x, y), {name!r})"
            )
        raise InputError(f"{name} wants the classes y of the samples, but y is None")
    rows = None if x is None else rows_of(fit, x, y, limit)
    start_layer(fit, method, rows, generator, options)
    return layer


def _kaiming_and_samples(
    x: Tensor, units: int, generator: Generator = None
) -> tuple[Tensor, Tensor]:
    """Draw Kaiming-normal rows [K, D], and a sample for each [K, D]; float64 on the CPU."""
    weight = _kaiming_rows(units, x.shape[1], generator)
    chosen = torch.randint(len(x), (units,), generator=generator)
    return weight, x[chosen.to(x.device)].to("cpu", torch.float64)


def _kaiming_rows(units: int, width: int, generator: Generator = None) -> Tensor:
    """Draw ``w ~ N(0, 2/D)`` [K, D], float64 on the CPU."""
    weight = torch.empty(units, width, dtype=torch.float64)
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    return weight


def _rotated_copies(white: Tensor, units: int, generator: Generator) -> Tensor:
    """Return the R rows, and copies of them turned at random within their span, ``units`` in all.

    ``Q W`` of a whitening W is one for every orthogonal Q. Each copy has a Q of its own.
    """
    rank = len(white)
    copies = [white[:units]]
    for start in range(rank, units, rank):
        turn = torch.empty(rank, rank, dtype=torch.float64)
        nn.init.orthogonal_(turn, generator=generator)
        copies.append((turn @ white)[: units - start])
    return torch.cat(copies)
