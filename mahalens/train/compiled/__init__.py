"""The compiled engine: chains trained without leaving the processor's cache.

The machine's compiler builds its C++ on first use and stores the result in the user's cache folder.
Without a compiler, or with ``MAHALENS_COMPILE=0``, torch computes the same.

A call trains one trial, or one range of its samples, in one thread. Samples are packed once for all
epochs. Dense samples are laid out in panels and strips. Samples that are mostly background, as
images are, become lists of the other numbers: only these are used. The lists are short if samples
that differ from the background in the same columns are neighbours, which :func:`similar_order`
arranges.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, byref, c_double, c_longlong, c_void_p, pointer
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mahalens.nn import Chain
from mahalens.train.compiled.build import library, why_not
from mahalens.train.layers import parameter_count, parts

__all__ = ["CompiledEngine", "library", "why_not"]

FEW = 2  # samples that share a list of columns, and columns that share a list of samples
LEAF = 4  # samples are ordered by similarity down to groups of so many
_FEWEST_SAMPLES, _FEWEST_INPUTS, _FEWEST_UNITS = 256, 128, 16
_MOST_INPUTS = 2**13  # with more columns the sums of the similar order would not be exact
_PART = 200  # columns at once on the way forward: their weights fit in the first-level cache
_MOST_BLOCK = 128  # samples at once on the way back: as many of their gradients as fit there too
_BACKGROUND_SAMPLES = 1024  # the background is estimated from so many samples

_AXES_SAMPLES = 4096  # the axes of the similar order are computed from so many samples
_AXES = 16
_ROUNDS = 2  # of the power method
_CHUNK = 4096
_SIZE = 2**19  # whole numbers up to here: a sum of so many products of two of them is exact


class SparseView(Structure):
    """The lists as the library reads them; for their format see ``sparse.h``."""

    _fields_ = [
        (name, c_void_p)
        for name in (
            *("background", "column_starts", "columns", "column_numbers"),
            *("sample_starts", "samples", "sample_numbers"),
        )
    ] + [("parts", c_longlong), ("part", c_longlong)]


SparsePointer = POINTER(SparseView)


class Packed:
    """Samples ``[S, N, D]`` and targets, in panels and strips or as lists.

    ``units`` are those of a ``Linear`` that is the first layer, otherwise 0; ``sparse`` forces
    lists or forbids them, by default they are used where they are faster: where they hold at most
    a share ``most_left`` of the numbers. ``block`` is of so many samples, in lists at most of 128.
    Above ``small_bytes`` there are no strips if the rows themselves serve as well.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        panel: int,
        block: int,
        units: int,
        sparse: bool | None,
        most_left: float,
        small_bytes: int,
    ) -> None:
        self.lists: SparseSamples | None = None
        self.block = block
        if sparse or (sparse is None and len(x) == 1 and _looks_sparse(x[0], units, most_left)):
            few = min(block, _MOST_BLOCK)
            lists = SparseSamples(x[0], panel, few)
            if sparse or lists.left <= most_left:
                self.lists, self.block = lists, few
        if self.lists is not None:
            y = y[:, self.lists.order]
        self._labels = None if y.dtype.is_floating_point else y
        self._goals = panels(y, panel) if self._labels is None else None
        self.panels = self.strips = None
        if self.lists is None:
            self.panels = panels(x, panel)
            # Large and in whole panels: the rows themselves serve as well as strips.
            if x.shape[2] % panel or x.nbytes <= small_bytes:
                self.strips = strips(x, panel)

    @property
    def left(self) -> float:
        """The share of the samples' numbers that is multiplied."""
        return 1.0 if self.lists is None else self.lists.left

    def fields(self, trial: int) -> dict[str, Any]:
        """Return the addresses of a trial's samples and targets, by field of the problem."""
        return {
            "block": self.block,
            "panels": address(self.panels, trial),
            "strips": address(self.strips, trial),
            "target_panels": address(self._goals, trial),
            **({} if self._labels is None else {"targets": address(self._labels, trial)}),
            **({} if self.lists is None else {"sparse": pointer(self.lists.view())}),
        }


def address(tensor: Tensor | None, trial: int) -> int | None:
    """Return where a trial's part begins in a tensor ``[S, ...]``, S = 1 if trials share it."""
    if tensor is None:
        return None
    return tensor[trial if len(tensor) > 1 else 0].data_ptr()


def panels(x: Tensor, panel: int) -> Tensor:
    """Pack ``[S, N, D]`` as ``[S, N / panel, D, panel]``, filled up with zeros."""
    sets, samples, width = x.shape
    packed = x.new_zeros(sets, -(-samples // panel), width, panel)
    whole = samples // panel
    packed[:, :whole] = x[:, : whole * panel].unflatten(1, (whole, panel)).transpose(2, 3)
    if samples % panel:
        packed[:, whole, :, : samples % panel] = x[:, whole * panel :].transpose(1, 2)
    return packed


def strips(x: Tensor, panel: int) -> Tensor:
    """Pack ``[S, N, D]`` as ``[S, D / panel, N, panel]``, filled up with zeros."""
    sets, samples, width = x.shape
    packed = x.new_zeros(sets, -(-width // panel), _round_up(samples, panel), panel)
    for number, columns in enumerate(x.split(panel, 2)):
        packed[:, number, :samples, : columns.shape[2]] = columns
    return packed


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class SparseSamples:
    """Samples ``[N, D]`` in another ``order``, as differences from a background ``[D]``.

    Within each block of samples every ``FEW`` samples share a list of columns for each part of the
    columns, and every ``FEW`` columns a list of samples. ``left`` is the share of the numbers that
    is on the lists.
    """

    def __init__(self, x: Tensor, panel: int, block: int) -> None:
        inputs = x.shape[1]
        count = -(-inputs // _PART)
        self._parts = (count, _round_up(-(-inputs // count), FEW))
        background = background_of(x)
        self.order = similar_order(x, background, LEAF)
        by_samples, by_columns = _Lists(x), _Lists(x)
        # Counted first: every list is then written to its final place.
        for counting in (True, False):
            for rows in self.order.split(block):
                rest = x.new_zeros(_round_up(len(rows), panel), math.prod(self._parts))
                rest[: len(rows), :inputs] = x[rows] - background
                pairs = rest.unflatten(1, self._parts).unflatten(0, (-1, FEW))
                strips = rest[:, : _round_up(inputs, FEW)].unflatten(1, (-1, FEW))
                for lists, dense in (
                    (by_samples, pairs.permute(2, 0, 3, 1).flatten(0, 1)),
                    (by_columns, strips.transpose(0, 1)),
                ):
                    lists.count(dense) if counting else lists.add(dense)
        self._tensors = (
            background,
            *(by_samples.starts, by_samples.places, by_samples.numbers),
            *(by_columns.starts, by_columns.places, by_columns.numbers),
        )
        entries = len(self._tensors[2]) + len(self._tensors[5])
        self.left = entries * FEW / (2 * x.numel())

    def view(self) -> SparseView:
        """Return the lists as the library reads them; valid as long as these samples exist."""
        return SparseView(*[tensor.data_ptr() for tensor in self._tensors], *self._parts)


class _Lists:
    """Groups of ``FEW`` numbers, row by row, without those that are all 0.

    Row i begins at ``starts[i]``, of ``[rows + 1]``; of every group there is its place in the row
    ``[E]`` and its numbers ``[E, FEW]``.
    """

    def __init__(self, like: Tensor) -> None:
        self.starts = torch.zeros(1, dtype=torch.int64)
        self.places = torch.empty(0, dtype=torch.int32)
        self.numbers = like.new_empty(0, FEW)
        self._counts: list[Tensor] = []
        self._filled = 0

    def count(self, dense: Tensor) -> None:
        """Count the groups of rows ``[rows, groups, FEW]`` that will be added."""
        self._counts.append((dense != 0).any(2).sum(1))

    def add(self, dense: Tensor) -> None:
        """Append these rows, once all were counted."""
        if self._counts:
            ends = torch.cat(self._counts).cumsum(0)
            self.starts = torch.cat([self.starts, ends])
            self.places = self.places.new_empty(int(ends[-1]))
            self.numbers = self.numbers.new_empty(int(ends[-1]), FEW)
            self._counts = []
        nonzero = (dense != 0).any(2)
        some = slice(self._filled, self._filled + int(nonzero.sum()))
        self.places[some] = nonzero.nonzero()[:, 1].int()
        self.numbers[some] = dense[nonzero]
        self._filled = some.stop


def _looks_sparse(x: Tensor, units: int, most_left: float) -> bool:
    """Return whether lists of the samples ``[N, D]`` of a first layer may be faster."""
    samples, inputs = x.shape
    if samples < _FEWEST_SAMPLES or units < _FEWEST_UNITS:
        return False
    if not _FEWEST_INPUTS <= inputs <= _MOST_INPUTS:
        return False
    # Neighbouring columns of some samples show already whether there is a background.
    some = _every_nth(x, _BACKGROUND_SAMPLES) != background_of(x)
    groups = some[:, : inputs // FEW * FEW].unflatten(1, (-1, FEW)).any(2)
    return bool(groups.float().mean() <= most_left)


def background_of(x: Tensor) -> Tensor:
    """Return the most frequent number of every column ``[D]``, from some samples ``[N, D]``."""
    return _every_nth(x, _BACKGROUND_SAMPLES).mode(0).values


def _every_nth(x: Tensor, count: int) -> Tensor:
    """At most ``count`` samples, evenly spaced."""
    return x[:: -(-len(x) // count)]


def similar_order(x: Tensor, background: Tensor, leaf: int) -> Tensor:
    """Order ``[N]`` the samples ``[N, D]``: halved again and again, down to ``leaf`` samples.

    Every group is halved along the one of a few principal axes on which it is widest. Only which
    columns differ from the background matters.

    The order decides in which sequence numbers are added up, and must not depend on the number of
    threads, not even by rounding. All sums here are therefore over whole numbers, small enough to
    be exact in any sequence; everything else is computed element by element.
    """
    axes = principal_axes((_every_nth(x, _AXES_SAMPLES) != background).double())
    scores = torch.cat([(part != background).double() @ axes for part in x.split(_CHUNK)])
    scores /= (axes * axes).sum(0).sqrt().clamp_min(1)  # axes of length 1
    return _bisected(_whole(scores, 2**14).long(), leaf)


def principal_axes(pattern: Tensor) -> Tensor:
    """Return principal axes of 0s and 1s ``[n, D]`` as whole numbers ``[D, A]``."""
    counts = pattern.sum(0)
    covariance = len(pattern) * (pattern.T @ pattern) - counts[:, None] * counts
    covariance = _whole(covariance, _SIZE)
    # Begin with pseudo-random signs.
    mixed = torch.arange(len(covariance))[:, None] * _AXES + torch.arange(_AXES) + 1
    for _ in range(3):
        mixed = mixed * 6364136223846793005 + 1442695040888963407  # wraps around modulo 2^64
        mixed = mixed ^ (mixed >> 29)
    axes = ((mixed >> 32) % 2 * 2 - 1).double()
    for _ in range(_ROUNDS):
        orthogonal: list[Tensor] = []
        for axis in (covariance @ axes).T:
            left = _whole(axis, _SIZE)
            for other in orthogonal:
                share = (left * other).sum() / (other * other).sum().clamp_min(1)
                left = _whole(left - share * other, _SIZE)
            orthogonal.append(left)
        axes = torch.stack(orthogonal, 1)
    return axes


def _whole(numbers: Tensor, most: int) -> Tensor:
    """Scale the numbers to a largest of ``most``, and round them."""
    return (numbers * (most / numbers.abs().max().clamp_min(1))).round()


def _bisected(scores: Tensor, leaf: int) -> Tensor:
    """Return the order that halves groups until they are small; a group is a run of the order."""
    order = torch.arange(len(scores))
    starts = torch.zeros(1, dtype=torch.int64)
    while True:
        stops = torch.cat([starts[1:], torch.tensor([len(order)])])
        sizes = stops - starts
        if int(sizes.max()) <= leaf:
            return order
        sorted_scores = scores[order]
        none = sorted_scores.new_zeros(1, scores.shape[1])
        sums = torch.cat([none, sorted_scores.cumsum(0)])
        squares = torch.cat([none, (sorted_scores * sorted_scores).cumsum(0)])
        sums, squares = sums[stops] - sums[starts], squares[stops] - squares[starts]
        mean = sums.double() / sizes[:, None]
        axis = (squares.double() / sizes[:, None] - mean * mean).argmax(1)
        group = torch.repeat_interleave(torch.arange(len(starts)), sizes)
        along = sorted_scores.gather(1, axis[group][:, None]).squeeze(1)
        # By group, within it along its axis.
        low, high = int(along.min()), int(along.max())
        order = order[(group * (high - low + 1) + along - low).argsort(stable=True)]
        halves = (-(-sizes // 2) + leaf - 1) // leaf * leaf
        middles = (starts + halves)[sizes > leaf]
        starts = torch.cat([starts, middles]).sort().values


KINDS = (
    *("Linear", "Abs", "ReLU", "AbsReLU", "Sigmoid", "GELU", "SiLU", "Tanh"),
    *("Softplus", "LeakyReLU", "Neg", "Norm"),
    *("OffsetL2", "OffsetL2 by the published code", "PointSlope"),
)
"""Layers, in the order in which the library numbers them."""
LOSSES = {"mse": 0, "cross-entropy": 1}
DTYPES = {torch.float32: "float32", torch.float64: "float64"}
RUNNING, NON_FINITE, REACHED, PLATEAU, NO_MEMORY = range(5)
"""Outcomes of a trial in a call of ``train``."""

_BLOCK_BYTES = 1 << 17  # gradients held until the end of a block, within the second-level cache
_WAVE = 8  # ranges processed at a time, each with a separate gradient

Task = TypeVar("Task")

_pools: dict[int, ThreadPoolExecutor] = {}


def _spread(work: Callable[[Task], None], tasks: Sequence[Task]) -> None:
    """Run the tasks in as many threads as torch may use; the library releases Python's lock."""
    threads = torch.get_num_threads()
    if threads == 1 or len(tasks) == 1:
        for task in tasks:
            work(task)
        return
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="mahalens")
    list(_pools[threads].map(work, tasks))


# A forked process inherits the pools, but not their threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


class _Layer(Structure):
    _fields_ = [
        *[(n, c_longlong) for n in ("kind", "inputs", "outputs", "offset", "bias", "absolute")],
        ("slope", c_double),
    ]


class _Problem(Structure):
    _fields_ = [
        ("layers", POINTER(_Layer)),
        *[(name, c_longlong) for name in ("depth", "loss", "block", "samples")],
        *[(name, c_void_p) for name in ("rows", "panels", "strips", "targets", "target_panels")],
        ("sparse", SparsePointer),
    ]


class _Training(Structure):
    _fields_ = [
        *[(name, c_longlong) for name in ("adam", "batch", "epoch", "epochs", "patience")],
        *[(n, c_double) for n in ("lr", "momentum", "beta2", "eps", "target", "gain")],
        ("order", c_void_p),
    ]


class Recipe(NamedTuple):
    """The step that :meth:`CompiledEngine.train` makes of a gradient, and the end of a trial."""

    adam: bool
    momentum: float
    beta2: float = 0.0
    eps: float = 0.0
    batch: int | None = None
    target: float = -math.inf
    patience: int = 0
    gain: float = 0.0

    def at(self, rate: float, batch: int = 0) -> _Training:
        """Return the same for the library, with a trial's learning rate."""
        return _Training(lr=rate, **self._replace(batch=batch)._asdict())


class CompiledEngine:
    """Loss and gradient of the trials of a chain, and whole epochs of their training.

    Every call of the library works on one trial in one thread: numbers depend neither on the
    number of threads nor on which other trials are run. Memory: two packed copies of x, and per
    thread the activations of one block of samples.

    Where a ``Linear`` comes first and samples shared by all trials are mostly background, as images
    are, full batches multiply only the rest: where that is at most a share ``most_left`` of the
    numbers, by default (``sparse`` forces or forbids it). Up to ``small_bytes`` of samples a second
    packed copy does not matter.

    A pass is cut into ranges of samples for threads to share. A range has at least ``range_flops``
    of a trial's work, some milliseconds of one core, unless all of it is ``range_bytes``, which
    stay in the shared cache for all trials.

    Shapes: x ``[S, N, D]``; y ``[S, N, K]`` numbers or labels ``[S, N]``, with S = T where each
    trial has different ones and S = 1 where they share.
    """

    name = "compiled"

    def __init__(
        self,
        chain: Chain,
        loss: str,
        x: Tensor,
        y: Tensor,
        *,
        block: int | None = None,
        sparse: bool | None = None,
        most_left: float = 0.6,
        small_bytes: int = 1 << 26,
        range_flops: float = 2.5e8,
        range_bytes: int = 1 << 23,
    ) -> None:
        functions = library()
        if functions is None:
            raise RuntimeError("there is no compiled engine here")
        self.width = parameter_count(chain)
        self.samples = x.shape[1]
        self._loss = loss
        self._layers = _layers(chain)
        self._outputs = int(self._layers[-1].outputs)
        self._x, self._y = x.detach().contiguous(), y.detach().contiguous()
        kind = DTYPES[x.dtype]
        self._train: Callable[..., int] = getattr(functions, f"train_{kind}")
        self._range: Callable[..., int] = getattr(functions, f"range_{kind}")
        self._update: Callable[..., None] = getattr(functions, f"update_{kind}")
        self._panel = 64 // x.element_size()
        widest = max(layer.outputs for layer in self._layers)
        fitting = _BLOCK_BYTES // (widest * x.element_size())
        block = block or min(512, max(192, fitting))
        self._block = -(-block // self._panel) * self._panel
        first = chain.layers[0]
        self._first_units = (first.units or 0) if first.kind == "Linear" else 0
        if sparse and not (self._first_units and len(x) == 1):
            raise ValueError("sparse samples want a Linear first, and to be shared by all trials")
        self._packing = (sparse, most_left, small_bytes)
        self._range_flops, self._range_bytes = range_flops, range_bytes

    @functools.cached_property
    def packed(self) -> Packed:
        """The samples as the library reads them in full batches."""
        block = self._block
        return Packed(self._x, self._y, self._panel, block, self._first_units, *self._packing)

    @functools.cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """Start and length of the ranges that a pass is cut into, for threads to share."""
        left = max(0.1, self.packed.left)
        flops = 4 * self.width * left  # of one sample: forward and back
        cached = int(self._range_bytes / (2 * self._x.shape[2] * self._x.element_size() * left))
        rows = max(int(self._range_flops / flops), min(cached, -(-self.samples // _WAVE)))
        ranges = max(1, self.samples // max(1, rows))  # of about equal length, in whole blocks
        block = self.packed.block
        rows = -(-self.samples // (ranges * block)) * block
        return [(s, min(rows, self.samples - s)) for s in range(0, self.samples, rows)]

    def loss(self, values: Tensor, index: Tensor) -> Tensor:
        """Return the loss ``[T]`` of the trials ``index`` with these values ``[T, P]``."""
        return self._pass(values, index, None)

    def loss_and_gradient(self, values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss ``[T]`` and its gradient ``[T, P]``."""
        # A sum per place in a wave of ranges, added up in a fixed order: equal for any number of
        # threads.
        sums = values.new_zeros(len(values), min(_WAVE, len(self.ranges)), self.width)
        loss = self._pass(values, index, sums)
        return loss, sums[:, 0] if sums.shape[1] == 1 else sums.sum(1)

    def _pass(self, values: Tensor, index: Tensor, sums: Tensor | None) -> Tensor:
        values, which = values.contiguous(), index.tolist()
        losses = torch.zeros(len(values), len(self.ranges), dtype=torch.float64)
        scale = 1 / (self.samples * self._per_sample)
        problems = [self._problem(trial, packed=True) for trial in which]

        def work(task: tuple[int, int]) -> None:
            number, row = task
            start, count = self.ranges[number]
            at = None if sums is None else sums[row, number % _WAVE].data_ptr()
            outcome = self._range(
                byref(problems[row]),
                c_longlong(start),
                c_longlong(count),
                c_double(scale),
                c_void_p(values[row].data_ptr()),
                c_void_p(at),
                c_void_p(losses[row, number].data_ptr()),
            )
            _check(outcome)

        # Range by range, not trial by trial: all trials use the same samples while they are cached.
        for first in range(0, len(self.ranges), _WAVE):
            wave = range(first, min(first + _WAVE, len(self.ranges)))
            _spread(work, [(number, row) for number in wave for row in range(len(values))])
        return (losses.sum(1) * scale).to(values.dtype)

    def update(self, rows: dict[str, Tensor], gradient: Tensor, recipe: Recipe, step: int) -> None:
        """Move values ``[A, P]`` by their gradient, in one pass over them and their moments."""
        rates = rows["lr"].tolist()

        def work(row: int) -> None:
            self._update(
                byref(recipe.at(rates[row])),
                c_longlong(step),
                c_longlong(self.width),
                c_void_p(gradient[row].data_ptr()),
                *[c_void_p(rows[name][row].data_ptr()) for name in ("values", "m", "v")],
            )

        _spread(work, range(len(gradient)))

    def train(
        self,
        rows: dict[str, Tensor],
        index: Tensor,
        recipe: Recipe,
        epoch: int,
        epochs: int,
        orders: Callable[[int], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train the trials ``index`` for some epochs in place.

        ``rows`` holds values, m, v ``[A, P]`` and lr, best, since ``[A]``; ``orders`` returns the
        order of the samples of a trial in these epochs, ``[epochs, N]``. Returns the losses
        ``[A, epochs]``, the number of epochs each trial was trained ``[A]``, and its outcome.
        """
        which = index.tolist()
        losses = torch.full((len(which), epochs), torch.nan, dtype=torch.float64)
        done = torch.zeros(len(which), dtype=torch.int64)
        outcomes = torch.zeros(len(which), dtype=torch.int64)
        rates = rows["lr"].tolist()
        problems = [self._problem(trial, packed=orders is None) for trial in which]

        def work(row: int) -> None:
            order = None if orders is None else orders(which[row]).contiguous()
            training = recipe.at(rates[row], batch=recipe.batch or self.samples)
            training.epoch, training.epochs = epoch, epochs
            training.order = None if order is None else order.data_ptr()
            outcomes[row] = self._train(
                byref(problems[row]),
                byref(training),
                c_longlong(self.width),
                c_longlong(self._per_sample),
                *[c_void_p(rows[name][row].data_ptr()) for name in ("values", "m", "v")],
                c_void_p(losses[row].data_ptr()),
                *[c_void_p(rows[name][row].data_ptr()) for name in ("best", "since")],
                c_void_p(done[row].data_ptr()),
            )

        _spread(work, range(len(which)))
        _check(int(outcomes.max()))
        return losses, done, outcomes

    @property
    def _per_sample(self) -> int:
        """Squares that a sample adds to the mean."""
        return self._outputs if self._loss == "mse" else 1

    def _problem(self, trial: int, *, packed: bool) -> _Problem:
        """Return the samples of one trial, packed once for all epochs or taken row by row."""
        fields = {
            "layers": self._layers,
            "depth": len(self._layers),
            "loss": LOSSES[self._loss],
            "block": self._block,
            "samples": self.samples,
            "rows": address(self._x, trial),
            "targets": address(self._y, trial),
        }
        return _Problem(**fields | (self.packed.fields(trial) if packed else {}))


def _layers(chain: Chain) -> ctypes.Array[_Layer]:
    """Return the chain as the library reads it."""
    offsets = {part.place: part.start for part in parts(chain)}
    layers = []
    for place, (layer, width) in enumerate(zip(chain.layers, chain.widths, strict=True)):
        kind = KINDS.index(layer.kind) + (layer.variant == "published-code")
        outputs = 1 if layer.kind == "Norm" else layer.units or width
        has_bias = layer.kind == "Linear" and layer.bias
        start, marked = offsets.get(place, 0), layer.absolute or 0
        layers.append(_Layer(kind, width, outputs, start, has_bias, marked, layer.slope))
    return (_Layer * len(layers))(*layers)


def _check(outcome: int) -> None:
    if outcome == NO_MEMORY:
        raise MemoryError("not enough memory for a block of samples")
