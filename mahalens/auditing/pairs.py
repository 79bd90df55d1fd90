"""Redundant units: mirrored, duplicate and parallel rows of a layer.

Two ReLU units of opposite direction together measure what one absolute value measures.
:func:`mirrored_pairs` finds them the plain way, :func:`read_pairs` in layers of any size, with
duplicates and parallel units besides.

All cosines of K rows are a K x K matrix, too large to keep for many rows. So blocks of it are
computed in float32 to find candidates, and the candidates again in float64. Of the pairs only the
best are kept, so that memory stays bounded when most rows point in one direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mahalens._show import Shown
from mahalens.errors import InputError
from mahalens.geometry._checks import as_weight

DUPLICATE_TOLERANCE = 1e-6
"""Largest distance between the directions of duplicates, and relative one between their offsets:
about ten roundings of float32, so that a row and a multiple of it are duplicates."""
PARALLEL_LISTED = 10_000
"""Parallel pairs that :func:`read_pairs` lists at most."""

# Cosines closer than this count as equal, so that rounding does not decide between exact mirrors.
_COSINE_DECIMALS = 12

# Rows that are converted to float64 at once.
_ROWS = 256

# Pairs that are turned into Python numbers at once.
_LISTED = 2**16

# Random directions that rows are told apart by before they are compared in full.
_SHADOWS = 4


class PairReading(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Units that repeat one another. Each list holds pairs (i, j) with i < j."""

    mirrored: tuple[tuple[int, int], ...]
    """Opposite directions, the most opposite first; a unit pairs once."""
    duplicate: tuple[tuple[int, int], ...]
    """Same direction and same hyperplane: w and b equal up to a positive factor."""
    parallel: tuple[tuple[int, int], ...]
    """Same or opposite direction, other hyperplane, the most parallel first."""
    kept: tuple[int, ...]
    """The deduplicated layer: one unit of each mirrored pair and of each set of duplicates."""
    parallel_left_out: int = 0
    """Parallel pairs beyond those listed."""


def mirrored_pairs(weight: Tensor, threshold: float = -0.999) -> list[tuple[int, int]]:
    """Return pairs of units whose weights point in opposite directions.

    ``|z| = relu(z) + relu(-z)``: a layer of ReLU units can stand in for absolute values by
    pairing rows with ``cos(wᵢ, wⱼ) < threshold``. Pairs are taken greedily, the most opposite
    first and lower indices first among equals; each unit pairs at most once. Only directions
    are compared: the lengths and the biases of the two may differ. A row of zeros, or one that
    is not finite, has no direction and never pairs.

    Args:
        weight: rows of the layer [K, D].
        threshold: cosine below which two rows count as mirrored, from -1 to 1.

    Returns:
        Pairs (i, j) with i < j, the most opposite first.

    Example:
        >>> mirrored_pairs(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-3.0, 0.0]]))
        [(0, 2)]
    """
    if not -1 <= threshold <= 1:
        raise InputError(f"threshold is {threshold}; give a cosine from -1 to 1")
    unit, lengths = unit_rows(as_weight(weight, finite=False))
    cosine = torch.round(unit @ unit.T, decimals=_COSINE_DECIMALS)
    # A zero row has cosine 0 with all others, which a positive threshold would let through.
    directed = lengths > 0
    opposite = (cosine < threshold) & directed & directed[:, None]
    first, second = torch.nonzero(torch.triu(opposite, diagonal=1), as_tuple=True)
    # The candidates come in order of (i, j); a stable sort keeps it among equal cosines.
    order = torch.argsort(cosine[first, second], stable=True)
    return _matched(first[order], second[order], directed.clone())


def deduplicate(weight: Tensor, pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Return the units that are left when each pair keeps only its lower index.

    Args:
        weight: rows of the layer [K, D].
        pairs: pairs of unit indices, as :func:`mirrored_pairs` gives them.

    Returns:
        Indices of the units to keep, ascending [at most K], to be used as ``weight[kept]``.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
        >>> deduplicate(weight, mirrored_pairs(weight))
        tensor([0, 1])
    """
    units = len(as_weight(weight, finite=False))
    pairs = list(pairs)
    for i, j in pairs:
        if not (0 <= i < units and 0 <= j < units and i != j):
            raise InputError(
                f"pair ({i}, {j}) does not name two units of a layer with {units}; "
                "pass the pairs that mirrored_pairs found in the same weight"
            )
    return _kept(units, pairs)


def read_pairs(
    weight: Tensor,
    bias: Tensor,
    cosine: float = 0.999,
    *,
    block: int = 1024,
    held: int = 2**22,
    listed: int = PARALLEL_LISTED,
) -> PairReading:
    """Find mirrored, duplicate and parallel units of a layer, block by block.

    - ``mirrored``: ``cos(wᵢ, wⱼ) < -cosine``, paired greedily as :func:`mirrored_pairs` does,
      with the same answer. Only directions count: lengths and hyperplanes may differ.
    - ``duplicate``: w and b equal up to a positive factor, but for rounding:
      ``‖uᵢ - uⱼ‖ <= 1e-6`` of the directions ``u = w / ‖w‖``, and the offsets ``b / ‖w‖`` within
      1e-6 of the larger. A set of more than two is listed as pairs with its lowest unit.
    - ``parallel``: ``|cos(wᵢ, wⱼ)| > cosine`` and neither duplicate nor in ``mirrored``, the
      most parallel first. An opposite pair that is left over because one of the two found a
      better or earlier partner is listed here, wherever its hyperplanes lie. Of a set of
      duplicates only the lowest unit counts, for the others only repeat its pairs.
      ``parallel_left_out`` says how many more there are than are listed.
    - ``kept``: one unit of each mirrored pair and of each set of duplicates, the lowest.

    A row of zeros, or one whose weight or bias is not finite, never pairs. Time goes into the
    matrix products, K² D multiplications in float32 at least; memory is one float32 copy of the
    weight, some blocks, and a bounded number of pairs, however many rows are alike.

    Args:
        weight: rows of the layer [K, D].
        bias: their offsets [K].
        cosine: beyond this ``|cosine|`` two rows are mirrored or parallel, 0 to 1.
        block: rows that are compared with as many others at once.
        held: opposite pairs that are held at once; more are found in further rounds.
        listed: parallel pairs to list at most.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> reading = read_pairs(weight, torch.tensor([1.0, 5.0, 3.0, 0.0, 1.0]))
        >>> reading.mirrored, reading.duplicate, reading.parallel, reading.kept
        (((0, 1),), ((0, 2),), ((3, 4),), (0, 3, 4))
    """
    directions = _Directions(weight, bias)
    units = len(directions)
    duplicate = _duplicate_pairs(directions, block)
    leads = torch.ones(units, dtype=torch.bool)
    leads[[j for _, j in duplicate]] = False

    free = directions.usable.clone()
    # Up to K / 2 of the best parallel pairs may turn out to be mirrored ones.
    parallel = _BestPairs(units, listed + units // 2)
    mirrored: list[tuple[int, int]] = []
    first_round = True
    while True:
        opposite = _BestPairs(units, held)
        paired = torch.zeros(units, dtype=torch.bool)
        members = torch.nonzero(free).squeeze(1)
        for first, second, cosines in directions.near_pairs(members, cosine, block):
            mirrors = cosines < 0
            paired[first[mirrors]] = paired[second[mirrors]] = True
            opposite.add(cosines[mirrors], first[mirrors], second[mirrors])
            if first_round:
                distinct = leads[first] & leads[second]
                parallel.add(-cosines[distinct].abs(), first[distinct], second[distinct])
        mirrored += _matched(*opposite.sorted(), free)
        # All pairs that were let go are worse than those seen, so the greedy choice among the
        # units that are left goes on with them.
        if not opposite.dropped:
            break
        free &= paired
        first_round = False

    taken = set(mirrored)
    others = [pair for pair in _listed(*parallel.sorted()) if pair not in taken][:listed]
    counted = sum(bool(leads[i] and leads[j]) for i, j in mirrored)
    return PairReading(
        mirrored=tuple(mirrored),
        duplicate=tuple(duplicate),
        parallel=tuple(others),
        parallel_left_out=parallel.seen - counted - len(others),
        kept=tuple(_kept(units, [*mirrored, *duplicate]).tolist()),
    )


def read_grouped_pairs(
    weight: Tensor, bias: Tensor, groups: int, *, cosine: float = 0.999
) -> PairReading:
    """Find pairs within each of ``groups`` equal runs of the rows [K, D].

    Units of different groups are fed different channels: rows that look alike are no pair there.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> read_grouped_pairs(weight, torch.zeros(4), 2).mirrored
        ((0, 1),)
        >>> read_grouped_pairs(weight, torch.zeros(4), 4).mirrored
        ()
    """
    if groups == 1:
        return read_pairs(weight, bias, cosine=cosine)
    size = len(weight) // groups
    if size == 1:
        return PairReading(mirrored=(), duplicate=(), parallel=(), kept=tuple(range(len(weight))))
    parts = zip(weight.split(size), bias.split(size), strict=True)
    readings = list(enumerate(read_pairs(*part, cosine=cosine) for part in parts))
    pairs: dict[str, Any] = {
        name: tuple(
            (size * at + i, size * at + j) for at, part in readings for i, j in getattr(part, name)
        )
        for name in ("mirrored", "duplicate", "parallel")
    }
    kept = tuple(size * at + unit for at, part in readings for unit in part.kept)
    left_out = sum(part.parallel_left_out for _, part in readings)
    return PairReading(**pairs, kept=kept, parallel_left_out=left_out)


def _matched(first: Tensor, second: Tensor, free: Tensor) -> list[tuple[int, int]]:
    """Return the pairs, best first, whose units are both free, and mark these as taken."""
    available = free.tolist()
    pairs = []
    for i, j in _listed(first, second):
        if available[i] and available[j]:
            available[i] = available[j] = False
            pairs.append((i, j))
    free.copy_(torch.tensor(available))
    return pairs


def _listed(first: Tensor, second: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the pairs as numbers, in parts: millions of tuples at once would fill the memory."""
    for i, j in zip(first.split(_LISTED), second.split(_LISTED), strict=True):
        yield from zip(i.tolist(), j.tolist(), strict=True)


def _kept(units: int, pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Return the units that remain if each pair keeps only its lower index."""
    keep = torch.ones(units, dtype=torch.bool)
    keep[[max(pair) for pair in pairs]] = False
    return torch.nonzero(keep).squeeze(1)


def _duplicate_pairs(directions: _Directions, block: int) -> list[tuple[int, int]]:
    """Return pairs (i, j) of duplicates, i the lowest of its set, in order.

    Rows i and j are duplicates if their directions ``u = w / ‖w‖`` and their offsets
    ``β = b / ‖w‖`` are equal but for rounding: ``‖uᵢ - uⱼ‖ <= τ`` and
    ``|βᵢ - βⱼ| <= τ max(|βᵢ|, |βⱼ|)`` with τ = :data:`DUPLICATE_TOLERANCE`. The lowest row leads
    a set of all rows that are its duplicates, then the lowest row that is left leads the next.

    Rows are first sorted by their offset and their shadows on random directions: duplicates
    agree in all of them, so only rows that do are compared in full.
    """
    pairs = []
    for group in _groups(directions):
        pairs += _led(directions, group, block)
    return sorted(pairs)


def _groups(directions: _Directions) -> list[Tensor]:
    """Return rows that may be duplicates of one another: all that are lie in the same group."""
    rows = torch.nonzero(directions.usable).squeeze(1).numpy()
    offset, shadows = directions.offset.numpy()[rows], directions.shadows.numpy()[rows]
    label: npt.NDArray[np.int64] = np.zeros(len(rows), dtype=np.int64)
    for key, relative in [(offset, True), *((shadow, False) for shadow in shadows.T)]:
        order = np.lexsort((key, label))
        value, group = key[order], label[order]
        size = np.maximum(np.abs(value[1:]), np.abs(value[:-1])) if relative else 1.0
        # Twice the tolerance: the size of a value in between may be a little less.
        with np.errstate(invalid="ignore"):  # infinite offsets: they differ by NaN
            apart = np.diff(value) > 2 * DUPLICATE_TOLERANCE * size
        label[order[1:]] = np.cumsum(apart | (np.diff(group) > 0))
        label[order[:1]] = 0
    order = np.lexsort((rows, label))
    cuts = np.nonzero(np.diff(label[order]))[0] + 1
    groups = np.split(rows[order], cuts)
    return [torch.from_numpy(group) for group in groups if len(group) > 1]


def _led(directions: _Directions, group: Tensor, block: int) -> list[tuple[int, int]]:
    """Return the pairs within one group, its rows ascending."""
    pairs = []
    origin = directions.exact(group[:1])
    step = 1  # leaders that are compared with the group at once; more after each turn
    while len(group) > 1:
        leaders = group[:step]
        parts = [_same(directions, leaders, part, origin) for part in group.split(block)]
        near = torch.cat(parts, dim=1)
        free = torch.ones(len(group), dtype=torch.bool)
        for leader in range(len(leaders)):
            if free[leader]:
                followers = near[leader] & free
                followers[: leader + 1] = False
                pairs += [(int(group[leader]), j) for j in group[followers].tolist()]
                free &= ~followers
        free[: len(leaders)] = False
        group = group[free]
        step = min(16 * step, block)
    return pairs


def _same(directions: _Directions, leaders: Tensor, rows: Tensor, origin: Tensor) -> Tensor:
    """Return which rows are duplicates of which leaders [len(leaders), len(rows)]."""
    # ‖a - b‖² = ‖a‖² + ‖b‖² - 2 a·b keeps its digits where a and b are small, as they are here
    # when counted from a row of the group.
    left, right = directions.exact(leaders) - origin, directions.exact(rows) - origin
    squares = (left**2).sum(dim=1)[:, None] + (right**2).sum(dim=1) - 2 * left @ right.T
    a, b = directions.offset[leaders][:, None], directions.offset[rows]
    level = (a - b).abs() <= DUPLICATE_TOLERANCE * torch.maximum(a.abs(), b.abs())
    return (squares <= DUPLICATE_TOLERANCE**2) & level


class _Directions:
    """The directions of a layer's rows, in float32; exact ones are computed where asked for.

    Attributes:
        usable: which rows have a direction: not zero, weight and bias finite [K].
        offset: ``b / ‖w‖``, where the hyperplane lies along the normal [K], float64.
        shadows: the direction along some fixed random ones [K, S], float64.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        offsets = bias.detach().to("cpu").to(torch.float64)
        units, columns = weight.shape
        self._weight = weight
        self.usable = torch.zeros(units, dtype=torch.bool)
        self.offset = torch.zeros(units, dtype=torch.float64)
        self.shadows = torch.zeros(units, _SHADOWS, dtype=torch.float64)
        self._unit = torch.zeros(units, columns, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        axes = torch.randn(columns, _SHADOWS, generator=generator, dtype=torch.float64)
        axes = axes / torch.linalg.vector_norm(axes, dim=0)
        for start in range(0, units, _ROWS):
            part = slice(start, start + _ROWS)
            unit, length = _exact_rows(weight[part])
            usable = (length > 0) & unit.isfinite().all(dim=1) & offsets[part].isfinite()
            unit[~usable] = 0
            self.usable[part] = usable
            self.offset[part] = torch.where(usable, offsets[part] / length, 0.0)
            self.shadows[part] = unit @ axes
            self._unit[part] = unit

    def __len__(self) -> int:
        return len(self._unit)

    def exact(self, rows: Tensor) -> Tensor:
        """Return these rows at unit length [n, D], float64."""
        return _exact_rows(self._weight[rows.to(self._weight.device)])[0]

    def near_pairs(
        self, members: Tensor, cosine: float, block: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield pairs i < j of the members with ``|cos(wᵢ, wⱼ)| > cosine``, a block at a time.

        Args:
            members: usable rows, ascending [n].
            cosine: the threshold, 0 to 1.
            block: rows and columns of a block.

        Yields:
            i, j, and the cosine in float64, rounded to :data:`_COSINE_DECIMALS` decimals.
        """
        # A float32 product of unit vectors of length D is off by at most D roundings of 2⁻²⁴, in
        # whatever order it is summed, and by two more for the rounding of the vectors.
        bound = cosine - 1.01 * (self._unit.shape[1] + 4) * 2.0**-24
        for top in range(0, len(members), block):
            rows = members[top : top + block]
            left = self._unit[rows].numpy()
            for side in range(top, len(members), block):
                columns = members[side : side + block]
                # numpy, since torch may be told to multiply float32 in fewer digits.
                cosines = left @ self._unit[columns].numpy().T
                if side == top:
                    np.fill_diagonal(cosines, 0.0)
                if cosines.max() <= bound and cosines.min() >= -bound:
                    continue  # nearly always, and much quicker than looking for places
                near = np.abs(cosines) > bound
                if side == top:
                    near = np.triu(near, 1)
                first, second = (torch.from_numpy(axis) for axis in np.nonzero(near))
                if len(first):
                    exact = self._cosines(rows, columns, first, second)
                    sure = exact.abs() > cosine
                    yield rows[first[sure]], columns[second[sure]], exact[sure]

    def _cosines(self, rows: Tensor, columns: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return cosines of ``rows[first]`` and ``columns[second]`` in float64 [n]."""
        used_rows, first = first.unique(return_inverse=True)
        used_columns, second = second.unique(return_inverse=True)
        left, right = self.exact(rows[used_rows]), self.exact(columns[used_columns])
        # One product of matrices costs as much per entry as some hundredth of a lone product.
        if 128 * len(first) > len(left) * len(right):
            cosines = (left @ right.T)[first, second]
        else:
            parts = zip(first.split(_ROWS), second.split(_ROWS), strict=True)
            cosines = torch.cat([(left[i] * right[j]).sum(dim=1) for i, j in parts])
        return torch.round(cosines, decimals=_COSINE_DECIMALS)


def _exact_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows at unit length [n, D] and their lengths [n], float64."""
    return unit_rows(weight.detach().to("cpu").to(torch.float64))


class _BestPairs:
    """The pairs of least value among all that are added, lower indices first among equals.

    At most twice ``capacity`` pairs are held at any time, and ``capacity`` at the end.
    """

    def __init__(self, units: int, capacity: int) -> None:
        self.seen = 0
        self._units, self._capacity = units, capacity
        self._values = torch.zeros(0, dtype=torch.float64)
        self._codes = torch.zeros(0, dtype=torch.int64)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._held = 0
        self._last: tuple[float, int] | None = None

    @property
    def dropped(self) -> bool:
        """Whether pairs had to be let go."""
        return self.seen > self._capacity

    def add(self, values: Tensor, first: Tensor, second: Tensor) -> None:
        """Offer pairs (first, second) with their values [n]."""
        self.seen += len(values)
        codes = first * self._units + second
        if self._last is not None:  # what is worse than the worst of a full house need not wait
            value, code = self._last
            better = (values < value) | ((values == value) & (codes < code))
            values, codes = values[better], codes[better]
        self._waiting.append((values, codes))
        self._held += len(values)
        if self._held > self._capacity:
            self._sort()

    def sorted(self) -> tuple[Tensor, Tensor]:
        """Return the pairs (first [n], second [n]), best first."""
        self._sort()
        first = torch.div(self._codes, self._units, rounding_mode="floor")
        return first, self._codes % self._units

    def _sort(self) -> None:
        values = torch.cat([self._values, *(value for value, _ in self._waiting)])
        codes = torch.cat([self._codes, *(code for _, code in self._waiting)])
        codes, order = codes.sort()
        values, by_value = values[order].sort(stable=True)
        self._values = values[: self._capacity]
        self._codes = codes[by_value][: self._capacity]
        if len(self._codes) == self._capacity:
            self._last = (float(self._values[-1]), int(self._codes[-1]))
        self._waiting, self._held = [], 0


def unit_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows at unit length [K, D] and their lengths [K]; a zero row stays zero.

    Each row is first divided by its largest entry, so that squares neither overflow nor vanish.
    """
    largest = weight.abs().amax(dim=1, keepdim=True)
    scaled = weight / torch.where(largest > 0, largest, torch.ones_like(largest))
    lengths = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    unit = scaled / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    return unit, (largest * lengths).squeeze(1)
