"""What a layer is fed, as rows: inputs of a Linear, patches of a convolution.

All starting weights are computed from such rows, in float64 on the CPU.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite
from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.point_slope import PointSlope

ROWS = 20_000
"""Rows that starting weights are computed from, if there are so many."""

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
    """How many rows of each class there were before these were drawn."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.values)

    @property
    def width(self) -> int:
        """How many inputs D a row has."""
        return self.values.shape[1]

    def group(self, number: int, groups: int) -> Rows:
        """What one of several groups of a convolution sees: its own channels of every patch."""
        return replace(self, values=self.values.chunk(groups, 1)[number])


class RowDraw:
    """Draws at most ``limit`` rows, each as likely as any other, from data seen block by block.

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
        source = _Patches(self.layer, x) if isinstance(self.layer, Convolution) else _Inputs(x)
        each = source.count // len(x)  # rows of a sample
        if labels is not None:
            known, counts = torch.unique(labels, return_counts=True)
            self._seen.update(dict(zip(known.tolist(), (each * counts).tolist(), strict=True)))
        keys = torch.rand(source.count, generator=self._generator, dtype=torch.float64)
        chosen = (keys < self._highest).nonzero()[:, 0]
        if not len(chosen):
            return
        self._precision = max(self._precision, torch.finfo(x.dtype).eps)
        self._keys.append(keys[chosen])
        self._values.append(source.take(chosen.to(x.device)).to("cpu").to(torch.float64))
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
            kept = keys <= self._highest
            keys, values = keys[kept], values[kept]
            labels = None if labels is None else labels[kept]
        self._keys, self._values = [keys], [values]
        self._labels = [] if labels is None else [labels]
        self._kept = len(keys)

    def result(self) -> Rows:
        """The rows drawn."""
        if not self._kept:
            raise InputError("the layer was given no rows; wanted at least one sample")
        self._cut()
        values = self._values[0]
        require_finite("the layer's input", values)
        labels = self._labels[0] if self._labels else None
        return Rows(values, labels, self._precision, dict(self._seen))


def rows_of(layer: Layer, x: Tensor, y: Tensor | None = None, limit: int | None = ROWS) -> Rows:
    """The rows that ``layer`` makes of its input x.

    Shapes: x ``[N, ..., D]`` of a Linear, ``[N, channels, *size]`` of a convolution; y ``[N]``.

    >>> rows_of(nn.Conv1d(1, 3, 2), torch.tensor([[[1.0, 2.0, 4.0]]])).values
    tensor([[1., 2.],
            [2., 4.]], dtype=torch.float64)
    """
    draw = RowDraw(layer, limit)
    check_input(layer, x)
    draw.add(x, None if y is None else check_labels(y, len(x)))
    return draw.result()


def width_of(layer: Layer) -> int:
    """How many inputs D a row of the layer has: channels x kernel of a convolution, all groups."""
    if isinstance(layer, Convolution):
        return layer.in_channels * math.prod(layer.kernel_size)
    return layer.in_features if isinstance(layer, nn.Linear) else layer.inputs


def check_input(layer: Layer, x: Tensor) -> None:
    """Ask for an input that the layer can take, with an axis of samples."""
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


def check_labels(y: Tensor, samples: int) -> Tensor:
    """Ask for a class of each sample; they are returned as int64 on the CPU."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex() or y.ndim != 1:
        given = f"{y.dtype} {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"y is {given}, wanted whole numbers [N], a class for each sample")
    if len(y) != samples:
        raise InputError(f"x has {samples} samples and y {len(y)} classes; wanted one per sample")
    return y.detach().to("cpu").to(torch.int64)


class _Inputs:
    """The rows of a layer that takes them as they are."""

    def __init__(self, x: Tensor) -> None:
        self._rows = x.reshape(-1, x.shape[-1])
        self.count = len(self._rows)

    def take(self, chosen: Tensor) -> Tensor:
        """Some of them [n, D]."""
        return self._rows[chosen]


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
        """Some of them [n, channels · kernel]."""
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
