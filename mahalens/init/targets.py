"""Rows that a layer is fed, alone and in clusters or classes, and weights that are put into it.

Rows are inputs of a Linear or patches of a convolution. All starting weights are computed from
them, in float64 on the CPU.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from mahalens.errors import InputError, require_extra
from mahalens.geometry._checks import (
    count_of,
    dtype_name,
    labels_of,
    require_finite,
    tensor_of,
)
from mahalens.geometry.covariance import centre, lower_factor
from mahalens.geometry.gaussian import spread_axes
from mahalens.nn.head import DistanceHead
from mahalens.nn.layers import OffsetL2, PointSlope, set_parameters
from mahalens.nn.mahalanobis import REST_SHARE, Mahalanobis

ROWS = 20_000
"""Rows that starting weights are computed from, if there are so many."""

_WANTED = (
    "wanted nn.Linear, nn.Conv1d, Conv2d, Conv3d, PointSlope, OffsetL2, Mahalanobis or DistanceHead"
)
_BLOCK = 512  # samples looked at in one go
_SEED = 0  # which rows are drawn does not depend on the seed of the start

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Ellipsoidal = Mahalanobis | DistanceHead
Layer = nn.Linear | Convolution | PointSlope | OffsetL2 | Ellipsoidal


@dataclass(frozen=True)
class Rows:
    """Rows [n, D] that a layer is fed, float64 on the CPU, with their classes [n] if known."""

    values: Tensor
    labels: Tensor | None
    precision: float
    """Relative rounding error of the values: epsilon of the dtype they came in."""
    seen: dict[int, int] = field(default_factory=dict)
    """Number of rows of each class before these were drawn."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of inputs D of a row."""
        return self.values.shape[1]

    def group(self, number: int, groups: int) -> Rows:
        """Return the channels of every patch that one group of a convolution sees."""
        return replace(self, values=self.values.chunk(groups, 1)[number])


class RowDraw:
    """Draw of at most ``limit`` rows, each as likely as any other, from data seen block by block.

    Every row is given a random number, and those with the smallest are kept. Without a limit, or
    with no more rows than that, all are kept in their order.
    """

    def __init__(self, layer: Layer, limit: int | None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InputError(f"rows is {limit!r}, wanted a whole number of at least 1, or None")
        self.layer = layer
        self.limit = limit
        self._generator = torch.Generator().manual_seed(_SEED)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._kept = 0
        self._highest = math.inf
        self._precision = 0.0
        self._seen: Counter[int] = Counter()

    def add(self, x: Tensor, labels: Tensor | None = None) -> None:
        """Take in what the layer is fed: samples along the first axis, and their classes."""
        check_input(self.layer, x)
        for start in range(0, len(x), _BLOCK):
            part = x.detach()[start : start + _BLOCK]
            self._add(part, None if labels is None else labels[start : start + _BLOCK])

    def _add(self, x: Tensor, labels: Tensor | None) -> None:
        take: Callable[[Tensor], Tensor]
        if isinstance(self.layer, Convolution):
            patches = _Patches(self.layer, x)
            count, take = patches.count, patches.take
        else:
            rows = x.reshape(-1, x.shape[-1])
            count, take = len(rows), rows.__getitem__
        each = count // len(x)  # rows of a sample
        if labels is not None:
            classes, counts = torch.unique(labels, return_counts=True)
            self._seen.update(dict(zip(classes.tolist(), (each * counts).tolist(), strict=True)))
        keys = torch.rand(count, generator=self._generator, dtype=torch.float64)
        chosen = (keys < self._highest).nonzero()[:, 0]
        if not len(chosen):
            return
        self._precision = max(self._precision, torch.finfo(x.dtype).eps)
        self._keys.append(keys[chosen])
        self._values.append(take(chosen.to(x.device)).to("cpu").to(torch.float64))
        if labels is not None:
            self._labels.append(labels[chosen // each])
        self._kept += len(chosen)
        if self.limit is not None and self._kept > 2 * self.limit:
            self._cut()

    def _cut(self) -> None:
        """Keep those with the smallest numbers only, in their order."""
        keys, values = torch.cat(self._keys), torch.cat(self._values)
        labels = torch.cat(self._labels) if self._labels else None
        if self.limit is not None and len(keys) > self.limit:
            self._highest = float(keys.kthvalue(self.limit).values)
            low = keys <= self._highest
            keys, values = keys[low], values[low]
            labels = None if labels is None else labels[low]
        self._keys, self._values = [keys], [values]
        self._labels = [] if labels is None else [labels]
        self._kept = len(keys)

    def result(self) -> Rows:
        """Return the rows drawn, or raise where there are none."""
        if not self._kept:
            raise InputError("the layer was given no rows; wanted at least one sample")
        self._cut()
        values = self._values[0]
        require_finite("the layer's input", values)
        labels = self._labels[0] if self._labels else None
        return Rows(values, labels, self._precision, dict(self._seen))


def rows_of(layer: Layer, x: Tensor, y: Tensor | None = None, limit: int | None = ROWS) -> Rows:
    """Return the rows that ``layer`` makes of its input x.

    Shapes: x ``[N, ..., D]`` of a Linear, ``[N, channels, *size]`` of a convolution; y ``[N]``.

    >>> rows_of(nn.Conv1d(1, 3, 2), torch.tensor([[[1.0, 2.0, 4.0]]])).values
    tensor([[1., 2.],
            [2., 4.]], dtype=torch.float64)
    """
    draw = RowDraw(layer, limit)
    x = tensor_of("x", x)
    check_input(layer, x)
    labels = None if y is None else labels_of("labels", y, len(x))
    draw.add(x, None if labels is None else labels.detach().to("cpu").to(torch.int64))
    return draw.result()


def width_of(layer: Layer) -> int:
    """Return the inputs D of a row: channels x kernel of a convolution, all groups."""
    if isinstance(layer, Convolution):
        return layer.in_channels * math.prod(layer.kernel_size)
    return layer.in_features if isinstance(layer, nn.Linear) else layer.inputs


def check_input(layer: Layer, x: Tensor) -> None:
    """Raise unless the layer can take this input, with an axis of samples."""
    if not isinstance(x, Tensor):
        raise InputError(f"x is a {type(x).__name__}, wanted a torch tensor; use torch.as_tensor")
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}, wanted real floating point numbers; use x.float()")
    shape = list(x.shape)
    if isinstance(layer, Convolution):
        sizes = len(layer.kernel_size)
        if x.ndim != sizes + 2 or x.shape[1] != layer.in_channels or 0 in shape:
            axes = ", ".join("DHW"[-sizes:])
            raise InputError(
                f"x has shape {shape}, but {type(layer).__name__} of {layer.in_channels} channels "
                f"wants [N, {layer.in_channels}, {axes}]"
            )
    elif x.ndim < 2 or x.shape[-1] != width_of(layer) or 0 in shape:
        raise InputError(
            f"x has shape {shape}, but {type(layer).__name__} of {width_of(layer)} inputs wants "
            f"[N, {width_of(layer)}]"
        )


class _Patches:
    """The patches that a convolution multiplies with its weight: sample by sample, in raster order.

    Only those asked for are made: all would be as many times the input as the kernel has places.
    """

    def __init__(self, layer: Convolution, x: Tensor) -> None:
        self._layer = layer
        around = list(layer._reversed_padding_repeated_twice)
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        self._x = functional.pad(x, around, mode=mode) if any(around) else x
        spans = zip(self._x.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True)
        self._grid = [(size - gap * (side - 1) - 1) // step + 1 for size, side, step, gap in spans]
        if min(self._grid) < 1:
            raise InputError(
                f"x has shape {list(x.shape)}, smaller than the kernel {list(layer.kernel_size)} "
                f"of {type(layer).__name__}; give larger inputs"
            )
        self.count = len(x) * math.prod(self._grid)

    def take(self, chosen: Tensor) -> Tensor:
        """Return some of them [n, channels · kernel]."""
        layer, dims = self._layer, len(self._grid)
        places = []
        for axis in reversed(range(dims)):
            at = chosen % self._grid[axis]
            chosen = chosen // self._grid[axis]
            offsets = torch.arange(layer.kernel_size[axis], device=chosen.device)
            steps = at[:, None] * layer.stride[axis] + offsets * layer.dilation[axis]
            shape = [1] * (dims + 2)
            shape[0], shape[axis + 2] = steps.shape
            places.append(steps.reshape(shape))
        samples = chosen.reshape(-1, *[1] * (dims + 1))
        channels = torch.arange(layer.in_channels, device=chosen.device)
        channels = channels.reshape(1, -1, *[1] * dims)
        return self._x[(samples, channels, *reversed(places))].flatten(1)


@dataclass(frozen=True)
class Hyperplanes:
    """K hyperplanes, each by its normal and a point on it: ``zₖ = wₖ·(x − pₖ)``.

    ``weight`` and ``point`` are [K, D], float64 on the CPU.
    """

    weight: Tensor
    point: Tensor

    def offset(self, dtype: torch.dtype) -> Tensor:
        """Biases ``-w·p`` [K] of the rounded weight, so that p stays on the hyperplane."""
        return -(self.weight.to(dtype).double() * self.point).sum(1)


@dataclass(frozen=True)
class Prototypes:
    """K points [K, D] and how far from each is near: ``yₖ = ‖(x − μₖ) / sₖ‖``.

    ``spread`` is [K], or [K, D] where it differs by input.
    """

    point: Tensor
    spread: Tensor


@dataclass(frozen=True)
class Ellipsoids:
    """K points [K, D] with long axes [K, R, D] and the spread across them [K].

    As in :class:`~mahalens.nn.Mahalanobis`; the last two with 1 in place of K where all share them.
    """

    point: Tensor
    axes: Tensor
    spread: Tensor


Weights = Hyperplanes | Prototypes | Ellipsoids
"""Starting weights of a layer."""

_STARTED: dict[type[nn.Module], tuple[str, ...]] = {
    OffsetL2: ("mu", "alpha"),
    Mahalanobis: ("mu", "axes", "log_spread"),
}
_ROWS = ("weight",)


def check_layer(layer: nn.Module) -> Layer:
    """Return the layer if starting weights can be put into it, or raise."""
    kind = type(layer).__name__
    if not isinstance(layer, Layer):
        raise InputError(f"{kind} cannot be started; {_WANTED}")
    if parametrize.is_parametrized(layer):
        raise InputError(
            f"{kind} has parametrizations, which make its weights; start it before these are put on"
        )
    holder = layer.distance if isinstance(layer, DistanceHead) else layer
    names = next((names for made, names in _STARTED.items() if isinstance(holder, made)), _ROWS)
    for name in names:
        held = holder._parameters.get(name)
        if held is None:  # as by the older weight_norm, or quantisation
            raise InputError(f"{kind} has no parameter {name!r} of its own to start; {_WANTED}")
        if isinstance(held, UninitializedParameter) or held.is_meta:
            raise InputError(f"{kind} has no values yet; run it once on data, or load its weights")
        if not held.is_floating_point():
            raise InputError(f"{kind} has a {name} of {held.dtype}, wanted a float dtype")
    return layer


def units_of(layer: Layer) -> int:
    """Return the number of units K."""
    if isinstance(layer, DistanceHead | Mahalanobis):
        return layer.classes
    return len(layer.mu if isinstance(layer, OffsetL2) else layer.weight)


def groups_of(layer: Layer) -> int:
    """Return the number of groups of a convolution; 1 for all other layers."""
    return layer.groups if isinstance(layer, Convolution) else 1


def has_bias(layer: Layer) -> bool:
    """Return whether units can be placed anywhere."""
    return not isinstance(layer, nn.Linear | Convolution) or layer.bias is not None


def parameters_of(layer: Layer) -> list[Tensor]:
    """Return the tensors that a start sets: parameters, and of a head also its calibration."""
    if isinstance(layer, DistanceHead):
        return [*layer.distance.parameters(), *layer.buffers(recurse=False)]
    return [p for p in layer.parameters(recurse=False) if p is not None]


def put(layer: Layer, weights: Weights) -> None:
    """Set the layer's parameters; dtype, device and ``requires_grad`` stay.

    Everything is computed and checked before the first parameter is changed.
    """
    target = layer.distance if isinstance(layer, DistanceHead) else layer
    values: list[tuple[Tensor, Tensor]]
    if isinstance(weights, Prototypes):
        assert isinstance(target, OffsetL2)
        exponent = -2 if target.variant == "published-code" else -1  # alpha unsquared, or squared
        spread = weights.spread if weights.spread.ndim == 2 else weights.spread[:, None]
        alpha = spread.pow(exponent).expand_as(weights.point)
        values = [(target.mu, weights.point), (target.alpha, alpha)]
    elif isinstance(weights, Ellipsoids):
        assert isinstance(target, Mahalanobis)
        logs = weights.spread.log()[:, None].expand_as(target.log_spread)
        values = [
            (target.mu, weights.point),
            (target.axes, weights.axes),
            (target.log_spread, logs),
        ]
    else:
        assert isinstance(layer, nn.Linear | Convolution | PointSlope)
        values = [(layer.weight, weights.weight.reshape(layer.weight.shape))]
        if isinstance(layer, PointSlope):
            values.append((layer.point, weights.point))
        elif layer.bias is not None:
            values.append((layer.bias, weights.offset(layer.weight.dtype)))
    dtype = dtype_name(values[0][0].dtype)
    set_parameters(
        values, f"the starting weights are too large for {dtype}; scale the inputs first"
    )
    if isinstance(layer, DistanceHead):
        layer.reset_calibration()


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
    clusters = count_of("clusters", clusters)
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
