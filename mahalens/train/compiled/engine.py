"""Calls of the compiled engine: one trial, or one range of its samples, per call and thread."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, byref, c_double, c_longlong, c_void_p
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from mahalens.nn import Chain
from mahalens.train.compiled.build import library
from mahalens.train.compiled.packing import Packed, SparsePointer, address
from mahalens.train.layers import parameter_count, parts

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
    """How :meth:`CompiledEngine.train` uses a gradient, and when a trial ends."""

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
        rows = -(-self.samples // (ranges * self._block)) * self._block
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
        """The samples of one trial, packed once for all epochs or taken row by row."""
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
    """The chain as the library reads it."""
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
