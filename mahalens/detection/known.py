"""Known samples, gathered in one pass with bounded memory: moments, a sample, a held-out part."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry._checks import count_of

BETAS = (0.0, 0.5, 1.0)
"""Exponents of the normalisation that ``normalise="auto"`` chooses from."""

MOST_HELD_OUT = 5_000
"""Held-out samples that calibrate a threshold, at most."""

MOST_ROWS = 50_000
MOST_NUMBERS = 2**25
"""Bounds of the sample that is remembered as it is: rows, and numbers in them."""

BLOCK = 2**22  # numbers that are worked on at once
_MOST_SQUARES = 2**26  # numbers in one second moment per class


class Wanted(NamedTuple):
    """The statistics of known samples that a detector needs.

    ``betas``: exponents of the normalisation to have moments of; ``per_class``: with a second
    moment for each class; ``sample``: a bounded, class-balanced sample of the rows themselves.
    """

    betas: tuple[float, ...] = ()
    per_class: bool = False
    sample: bool = False

    def __or__(self, other: Wanted) -> Wanted:
        betas = tuple(sorted({*self.betas, *other.betas}))
        return Wanted(betas, self.per_class or other.per_class, self.sample or other.sample)


def scaled(z: Tensor, beta: float | Tensor) -> Tensor:
    """Return ``z / ‖z‖^beta`` for rows of z [N, D]: 0 changes nothing, 1 gives length 1.

    >>> scaled(torch.tensor([[3.0, 4.0]]), 1.0)
    tensor([[0.6000, 0.8000]])
    """
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    length = length.clamp(min=torch.finfo(z.dtype).tiny)
    return z / torch.pow(length, beta)


def betas_of(normalise: str | float) -> tuple[float, ...]:
    """Return the exponents that an option ``normalise`` allows.

    >>> betas_of("unit"), betas_of(0.3), betas_of("auto")
    ((1.0,), (0.3,), (0.0, 0.5, 1.0))
    """
    named = {"none": (0.0,), "unit": (1.0,), "auto": BETAS}
    if isinstance(normalise, str) and normalise in named:
        return named[normalise]
    if is_number(normalise) and math.isfinite(float(normalise)):
        return (float(normalise),)
    raise InputError(
        f'normalise is {normalise!r}; give "auto", "none", "unit" or the exponent of the length '
        "that features are divided by"
    )


def square_distances(z: Tensor, means: Tensor) -> Tensor:
    """Return squared distances between rows [N, R] and means [C, R], [N, C].

    They are ‖z‖² + ‖μ‖² − 2 z·μ, one product for all. Where distances are small beside the lengths,
    the three terms cancel: :func:`precision_for` then asks for float64.
    """
    lengths = z.square().sum(1, keepdim=True) + means.square().sum(1)
    return (lengths - 2 * z @ means.mT).clamp(min=0)


def precision_for(
    dtype: torch.dtype, largest: float, usual: float, share: float = 1e-4
) -> torch.dtype:
    """Return float64 where squared distances would lose digits in ``dtype``, else ``dtype``.

    Rounding errors of ‖z‖² + ‖μ‖² − 2 z·μ are about eps ‖μ‖². They may be at most a small share of
    the squared distances that matter. Buffers in the returned precision then decide in which one a
    detector works, so that ordinary features cost no more than before.

    Args:
        dtype: of the features.
        largest: the largest squared length ‖μ‖².
        usual: squared distance of a usual known sample.
        share: largest error, as a share of ``usual``.

    >>> precision_for(torch.float32, 100.0, 8.0), precision_for(torch.float32, 1e8, 8.0)
    (torch.float32, torch.float64)
    """
    return torch.float64 if torch.finfo(dtype).eps * largest > share * usual else dtype


def root(squares: Tensor) -> Tensor:
    """Return the square root, with the slope 0 at 0."""
    tiny = torch.finfo(squares.dtype).tiny
    return torch.where(squares > tiny, squares, tiny).sqrt() * (squares > tiny)


def is_number(value: object) -> bool:
    """Return whether a value is a real number."""
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class Rows:
    """Some samples: features [n, D], classes [n] by number, logits [n, L], random numbers [n]."""

    z: Tensor
    y: Tensor
    logits: Tensor | None
    draw: Tensor

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, rows: Tensor | slice) -> Rows:
        logits = None if self.logits is None else self.logits[rows]
        return Rows(self.z[rows], self.y[rows], logits, self.draw[rows])

    def drawn(self, most: int) -> Rows:
        """Return at most so many rows, drawn at random: those with the smallest random numbers."""
        return self if len(self) <= most else self[self.draw.argsort()[:most]]

    @staticmethod
    def join(parts: list[Rows]) -> Rows:
        """Return all rows, in order."""
        if len(parts) == 1:
            return parts[0]
        logits = [part.logits for part in parts if part.logits is not None]
        return Rows(
            torch.cat([part.z for part in parts]),
            torch.cat([part.y for part in parts]),
            torch.cat(logits) if logits else None,
            torch.cat([part.draw for part in parts]),
        )


class Reservoir:
    """At most ``most`` rows: those with the smallest random numbers, so a random subset.

    With ``balanced``, of each class as many as there is room for: all rows of small classes, and
    the same number of each larger one. Which rows stay does not depend on how they were batched.
    """

    def __init__(self, most: int, *, balanced: bool) -> None:
        self.most = most
        self.balanced = balanced
        self._parts: list[Rows] = []
        self._bar = torch.zeros(0, dtype=torch.float64)  # numbers above it cannot stay, by class
        self._seen = torch.zeros(0, dtype=torch.long)

    def add(self, rows: Rows) -> Rows:
        """Take rows in; return those that dropped out."""
        groups = self._groups(rows)
        count = int(groups.max()) + 1 if len(rows) else 0
        if count > len(self._bar):
            more = self._bar.new_full((count - len(self._bar),), math.inf)
            self._bar = torch.cat((self._bar, more))
            self._seen = torch.cat((self._seen, torch.zeros(len(more), dtype=torch.long)))
        self._seen += torch.bincount(groups, minlength=len(self._seen))
        enter = rows.draw < self._bar[groups]
        self._parts.append(rows[enter])
        out = [rows[~enter]]
        if sum(map(len, self._parts)) > 1.25 * self.most:
            out.append(self._trim())
        return Rows.join(out)

    def finish(self) -> tuple[Rows, Rows]:
        """Return the rows that stay, and those that dropped out since the last call of add."""
        out = self._trim()
        return self._parts[0], out

    def _groups(self, rows: Rows) -> Tensor:
        return rows.y if self.balanced else torch.zeros_like(rows.y)

    def _trim(self) -> Rows:
        rows = Rows.join(self._parts)
        groups = self._groups(rows)
        order = rows.draw.argsort()
        order = order[groups[order].argsort(stable=True)]
        sizes = torch.bincount(groups, minlength=len(self._bar))
        starts = sizes.cumsum(0) - sizes
        rank = torch.arange(len(rows)) - starts[groups[order]]
        room = _room(self._seen.tolist(), self.most)
        full = (sizes >= room).nonzero()[:, 0]
        self._bar[full] = rows.draw[order[starts[full] + room - 1]]
        stays = order[rank < room].sort().values
        leaves = torch.ones(len(rows), dtype=torch.bool)
        leaves[stays] = False
        self._parts = [rows[stays]]
        return rows[leaves]


def _room(sizes: list[int], most: int) -> int:
    """Return the largest t with Σ min(size, t) ≤ most, at least 1.

    >>> _room([2, 10, 10], 12), _room([2, 3], 12)
    (5, 12)
    """
    left, waiting = most, len(sizes)
    for size in sorted(sizes):
        if size * waiting > left:
            return max(1, left // waiting)
        left, waiting = left - size, waiting - 1
    return most


class Moments:
    """Counts [C], means [C, D] and second moments within classes of ``z / ‖z‖^beta``.

    Rows are shifted by a first guess of their class mean, multiplied in their own precision block
    by block and added up in float64, so that neither large offsets nor many blocks cost digits.
    """

    def __init__(self, beta: float, *, per_class: bool = False) -> None:
        self.beta = beta
        self.per_class = per_class
        self._shift = self._sums = self._squares = torch.zeros(0)
        self.counts = torch.zeros(0, dtype=torch.float64)

    def add(self, z: Tensor, y: Tensor, classes: int) -> None:
        """Take in rows z [n, D] of classes y [n], numbered from 0 to ``classes`` - 1."""
        z = scaled(z, self.beta)
        y = y.to(z.device)
        sizes = torch.bincount(y, minlength=classes).double()
        sums = z.new_zeros(classes, z.shape[1]).index_add_(0, y, z)
        if classes > len(self.counts):
            self._grow(classes, z)
        new = (self.counts == 0) & (sizes > 0)
        self._shift[new] = sums[new] / sizes[new, None].to(z.dtype)
        z = z - self._shift[y]
        self.counts += sizes
        self._sums += z.new_zeros(classes, z.shape[1]).index_add_(0, y, z)
        if not self.per_class:
            self._squares += _gram(z)
            return
        for c in y.unique().tolist():
            self._squares[c] += _gram(z[y == c])

    def _grow(self, classes: int, like: Tensor) -> None:
        """Make room for more classes."""
        old, dim = len(self.counts), like.shape[1]
        more = like.new_zeros((classes - old, dim), dtype=torch.float64)
        if not old:
            self.counts, self._sums, self._shift = more[:0, 0], more[:0], like[:0]
            self._squares = more.new_zeros((0, dim, dim) if self.per_class else (dim, dim))
        self.counts = torch.cat((self.counts, more[:, 0]))
        self._sums = torch.cat((self._sums, more))
        self._shift = torch.cat((self._shift, more.to(like.dtype)))
        if self.per_class:
            if classes * dim**2 > _MOST_SQUARES:
                raise InputError(
                    f"a covariance for each of {classes} classes of {dim} features is too large; "
                    "use LowRank, or Mahalanobis, which has one for all"
                )
            self._squares = torch.cat((self._squares, more.new_zeros(classes - old, dim, dim)))

    def reorder(self, order: Tensor) -> None:
        """Put classes into another order [C]."""
        order = order.to(self.counts.device)
        self.counts, self._sums = self.counts[order], self._sums[order]
        self._shift = self._shift[order]
        if self.per_class:
            self._squares = self._squares[order]

    @property
    def count(self) -> int:
        """N, the number of samples."""
        return round(float(self.counts.sum()))

    @property
    def means(self) -> Tensor:
        """Class means μ_c [C, D], float64."""
        return self._shift.double() + self._away

    @property
    def _away(self) -> Tensor:
        """How far class means are from the first guess [C, D]."""
        return self._sums / self.counts.clamp(min=1)[:, None]

    @property
    def mean(self) -> Tensor:
        """Mean of all samples [D]."""
        return self.counts @ self.means / self.counts.sum()

    @property
    def covariance(self) -> Tensor:
        """Covariance within classes, Σ_c Σ_i (z_i − μ_c)(z_i − μ_c)ᵀ / N [D, D]."""
        squares = self._squares.sum(0) if self.per_class else self._squares
        return (squares - self._away.mT @ (self.counts[:, None] * self._away)) / self.counts.sum()

    @property
    def covariances(self) -> Tensor:
        """Covariance of each class [C, D, D]; only where second moments are per class."""
        away = self._away
        counts = self.counts[:, None, None]
        return self._squares / counts - away[:, :, None] * away[:, None, :]

    @property
    def between(self) -> Tensor:
        """Covariance of the class means, Σ_c (N_c / N)(μ_c − μ)(μ_c − μ)ᵀ [D, D]."""
        away = self.means - self.mean
        return away.mT @ (self.counts[:, None] * away) / self.counts.sum()


def _gram(z: Tensor, panels: int = 4) -> Tensor:
    """Return zᵀz in float64, by its lower half: 5/8 of the work of the whole product."""
    dim = z.shape[1]
    if dim < 64 * panels:
        return (z.mT @ z).double()
    result = z.new_zeros((dim, dim), dtype=torch.float64)
    edges = [dim * i // panels for i in range(panels + 1)]
    for start, stop in itertools.pairwise(edges):
        part = z[:, start:stop].mT @ z[:, :stop]
        result[start:stop, :stop] = part
        result[:start, start:stop] = part[:, :start].mT
    return result


@dataclass(frozen=True)
class Known:
    """Everything a detector is fitted to; made by :class:`Gatherer`.

    ``classes`` [C] are the labels in ascending order, ``counts`` [C] their samples without those
    held out; classes in rows and moments are places among them. ``linear`` is the layer that makes
    the logits from the features, where there is one.
    """

    classes: Tensor
    counts: Tensor
    labelled: bool
    moments: dict[float, Moments]
    sample: Rows | None
    held: Rows
    width: int
    dtype: torch.dtype
    device: torch.device
    linear: tuple[Tensor, Tensor] | None = None

    @property
    def some(self) -> Rows:
        """The sample of the rows that detectors may be fitted to."""
        if self.sample is None:
            raise AssertionError("no sample was asked for")
        return self.sample


def moments_of(known: Known, wanted: Wanted) -> Known:
    """Return known samples with the moments of their sample in place of all others."""
    rows = known.some
    counts = torch.bincount(rows.y, minlength=len(known.classes))
    moments = {beta: Moments(beta, per_class=wanted.per_class) for beta in wanted.betas}
    for each in moments.values():
        for some in blocks(len(rows), rows.z.shape[1]):
            each.add(rows.z[some], rows.y[some], len(counts))
    return replace(known, moments=moments, counts=counts, width=rows.z.shape[1])


class Gatherer:
    """Goes through known samples once: a share is held out, the rest becomes moments and a sample.

    A random number per sample, from ``seed``, decides what is held out: those below ``hold_out``,
    and of these at most 5,000 with the smallest numbers. Memory does not grow with the samples, and
    the result does not depend on how they were batched.
    """

    def __init__(self, wanted: Wanted, *, hold_out: float, seed: int, labelled: bool) -> None:
        self.wanted = wanted
        self.hold_out = _check_share(hold_out)
        self.labelled = labelled
        self.moments = {
            beta: Moments(beta, per_class=wanted.per_class and labelled) for beta in wanted.betas
        }
        self._random = np.random.default_rng(count_of("seed", seed, 0))
        self._held = Reservoir(MOST_HELD_OUT, balanced=False)
        self._sample: Reservoir | None = None
        self._numbers: dict[int, int] = {}
        self._waiting: list[Rows] = []
        self._counts = torch.zeros(0, dtype=torch.long)
        self._seen = 0
        self.width = 0

    def add(self, z: Any, y: Any = None, logits: Any = None) -> None:
        """Take in samples: features [n, D], labels [n], logits [n, L]."""
        z = check_features(z, first=self._seen)
        if self.width and z.shape[1] != self.width:
            raise InputError(
                f"features have {z.shape[1]} columns, but those before had {self.width}; give "
                "batches of one width"
            )
        y = check_labels(y, len(z)) if self.labelled else torch.zeros(len(z), dtype=torch.long)
        logits = None if logits is None else check_features(logits, "logits", rows=len(z))
        self.width = z.shape[1]
        self._seen += len(z)
        draws = torch.from_numpy(self._random.random((len(z), 2)))
        y = self._numbered(y)
        held = draws[:, 0] < self.hold_out
        out = self._held.add(Rows(z, y, logits, draws[:, 0])[held])
        rest = Rows(z, y, logits, draws[:, 1])[~held]
        self._wait(rest, out)  # what dropped out is as good as any other row for the fit

    def _numbered(self, y: Tensor) -> Tensor:
        values, places = y.unique(return_inverse=True)
        numbers = [self._numbers.setdefault(v, len(self._numbers)) for v in values.tolist()]
        return torch.tensor(numbers, dtype=torch.long)[places]

    def _wait(self, *parts: Rows) -> None:
        """Work on full blocks only: batches of any size then give the same sums."""
        self._waiting += [part for part in parts if len(part)]
        size = max(256, BLOCK // self.width)
        if sum(map(len, self._waiting)) < size:
            return
        rows = Rows.join(self._waiting)
        full = len(rows) // size * size
        for start in range(0, full, size):
            self._use(rows[start : start + size])
        self._waiting = [rows[full:]] if full < len(rows) else []

    def _use(self, rows: Rows) -> None:
        counts = torch.bincount(rows.y, minlength=len(self._numbers))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        for moments in self.moments.values():
            moments.add(rows.z, rows.y, len(counts))
        if self.wanted.sample:
            if self._sample is None:
                most = max(100, min(MOST_ROWS, MOST_NUMBERS // self.width))
                self._sample = Reservoir(most, balanced=True)
            self._sample.add(rows)

    def finish(self, linear: tuple[Tensor, Tensor] | None = None) -> Known:
        """Return what was gathered, with classes in the order of their labels.

        A class all of whose samples were held out is not known.
        """
        if not self._seen:
            raise InputError("there are no samples; give features [N, D] or a loader with batches")
        held, out = self._held.finish()
        self._wait(out)
        if self._waiting:
            self._use(Rows.join(self._waiting))
        labels = torch.tensor(list(self._numbers), dtype=torch.long)
        order = labels.argsort()
        order = order[self._counts[order] > 0]
        if not len(order):
            raise InputError("all samples were held out; give more samples, or a smaller hold_out")
        places = torch.full((len(labels),), -1)
        places[order] = torch.arange(len(order))
        for moments in self.moments.values():
            moments.reorder(order)
        sample = None if self._sample is None else self._sample.finish()[0]
        return Known(
            classes=labels[order],
            counts=self._counts[order],
            labelled=self.labelled,
            moments=self.moments,
            sample=None if sample is None else replace(sample, y=places[sample.y]),
            held=replace(held, y=places[held.y]),
            width=self.width,
            dtype=held.z.dtype,
            device=held.z.device,
            linear=linear,
        )


def blocks(count: int, width: int) -> Iterator[slice]:
    """Yield slices of rows that are worked on at once."""
    size = max(256, BLOCK // max(width, 1))
    for start in range(0, count, size):
        yield slice(start, start + size)


# --- Checks at the edge -----------------------------------------------------------------------


def _check_share(hold_out: Any) -> float:
    if not isinstance(hold_out, Real) or not 0 <= float(hold_out) < 1:
        raise InputError(
            f"hold_out is {hold_out!r}; give the share of samples that sets the threshold, from 0 "
            "to less than 1"
        )
    return float(hold_out)


def tensor_of(value: Any, name: str) -> Tensor:
    """Return an array, a list or a tensor as a tensor."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{name} are rows of different lengths; give rows of one length") from None
    if array.dtype.kind not in "biufc":
        hint = " (np.unique(names, return_inverse=True) numbers the names of classes)"
        raise InputError(
            f"{name} have type {array.dtype}; give numbers{hint if name == 'labels' else ''}"
        )
    with warnings.catch_warnings():  # nothing here writes into what the caller gave
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(_for_torch(array))


def _for_torch(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array in a type, byte order and layout that torch has; the same one if it can."""
    wide = {np.longdouble: np.float64, np.clongdouble: np.complex128}
    kind = np.dtype(wide.get(array.dtype.type, array.dtype)).newbyteorder("=")
    array = array.astype(kind, copy=False)
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def check_features(
    z: Any,
    name: str = "features",
    *,
    width: int | None = None,
    rows: int | None = None,
    first: int = 0,
) -> Tensor:
    """Return features [N, D] as float32 or float64, finite; ``first`` numbers the first row."""
    z = tensor_of(z, name)
    if z.ndim != 2 or z.shape[1] == 0 or z.is_complex() or z.dtype == torch.bool:
        raise InputError(
            f"{name} have shape {list(z.shape)} and type {z.dtype}; give numbers [N, D], one row "
            "per sample"
        )
    if width is not None and z.shape[1] != width:
        raise InputError(
            f"{name} have {z.shape[1]} columns, but the detector was fitted to {width}; give "
            f"{name} of the same layer"
        )
    if rows is not None and len(z) != rows:
        raise InputError(
            f"there are {rows} samples but {len(z)} rows of {name}; give one per sample"
        )
    z = z if z.dtype == torch.float64 else z.float()
    # The length is one quick pass, and finite for all but faulty or enormous numbers.
    if z.numel() and not math.isfinite(float(torch.linalg.vector_norm(z))):
        bad = (~z.isfinite()).any(1)
        faults, remedy = "have NaN or infinite values", "remove or repair them"
        if not bool(bad.any()):
            bad = ~torch.linalg.vector_norm(z, dim=1).isfinite()
            faults = f"are so long that {str(z.dtype)[6:]} cannot hold the square of their length"
            remedy = f"divide all {name} by a constant"
        if bool(bad.any()):
            where = first + int(bad.nonzero()[0])
            raise InputError(
                f"{int(bad.sum())} of {len(z)} rows of {name} {faults}, first row {where}; {remedy}"
            )
    checked: Tensor = z
    return checked


def check_labels(y: Any, count: int) -> Tensor:
    """Return labels [N] as int64 on the CPU."""
    if y is None:
        raise InputError(
            "this method needs labels; give whole numbers y [N] (or a loader of (x, y) batches), "
            "or use Marginal or Neighbours, which need none"
        )
    y = tensor_of(y, "labels").cpu()
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.ndim != 1:
        raise InputError(
            f"labels have shape {list(y.shape)} and type {y.dtype}; give whole numbers [N]"
        )
    if len(y) != count:
        raise InputError(f"there are {count} samples but {len(y)} labels; give one per sample")
    labels: Tensor = y.long()
    return labels
