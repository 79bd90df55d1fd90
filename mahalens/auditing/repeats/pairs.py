"""Units that repeat one another, above all mirrored pairs.

Two ReLU units of opposite direction together measure what one absolute value measures.
:func:`mirrored_pairs` finds them the plain way, :func:`read_pairs` in layers of any size, with
duplicates and parallel units besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mahalens.auditing._inputs import as_weight, unit_rows
from mahalens.auditing.readings import PairReading
from mahalens.auditing.repeats.blocks import COSINE_DECIMALS, BestPairs, Directions
from mahalens.auditing.repeats.duplicates import duplicate_pairs
from mahalens.errors import InputError

PARALLEL_LISTED = 10_000
"""Parallel pairs that :func:`read_pairs` lists at most."""

# Opposite pairs that are held at once. More are found in further rounds over what is left.
_OPPOSITE_HELD = 2**22

# Pairs that are turned into Python numbers at once.
_LISTED = 2**16

# Random directions that rows are told apart by before they are compared in full.
_SHADOWS = 4


def mirrored_pairs(weight: Tensor, threshold: float = -0.999) -> list[tuple[int, int]]:
    """Pairs of units whose weights point in opposite directions.

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
        raise InputError(f"threshold is {threshold}, but a cosine from -1 to 1 is wanted")
    unit, lengths = unit_rows(as_weight(weight, finite=False))
    cosine = torch.round(unit @ unit.T, decimals=COSINE_DECIMALS)
    # A zero row has cosine 0 with all others, which a positive threshold would let through.
    directed = lengths > 0
    opposite = (cosine < threshold) & directed & directed[:, None]
    first, second = torch.nonzero(torch.triu(opposite, diagonal=1), as_tuple=True)
    # The candidates come in order of (i, j); a stable sort keeps it among equal cosines.
    order = torch.argsort(cosine[first, second], stable=True)
    return _matched(first[order], second[order], directed.clone())


def deduplicate(weight: Tensor, pairs: Iterable[tuple[int, int]]) -> Tensor:
    """The units that are left when each pair keeps only its lower index.

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
    units = as_weight(weight, finite=False).shape[0]
    keep = torch.ones(units, dtype=torch.bool)
    for i, j in pairs:
        if not (0 <= i < units and 0 <= j < units and i != j):
            raise InputError(
                f"pair ({i}, {j}) does not name two units of a layer with {units}; "
                "pass the pairs that mirrored_pairs found in the same weight"
            )
        keep[max(i, j)] = False
    return torch.nonzero(keep).squeeze(1)


def read_pairs(
    weight: Tensor, bias: Tensor, cosine: float = 0.999, block: int = 1024
) -> PairReading:
    """Mirrored, duplicate and parallel units of a layer, found block by block.

    - ``mirrored``: ``cos(wᵢ, wⱼ) < -cosine``, paired greedily as :func:`mirrored_pairs` does,
      with the same answer. Only directions count: lengths and hyperplanes may differ.
    - ``duplicate``: w and b equal up to a positive factor, but for rounding:
      ``‖uᵢ - uⱼ‖ <= 1e-6`` of the directions ``u = w / ‖w‖``, and the offsets ``b / ‖w‖`` within
      1e-6 of the larger. A set of more than two is listed as pairs with its lowest unit.
    - ``parallel``: ``|cos(wᵢ, wⱼ)| > cosine`` and neither duplicate nor in ``mirrored``, the
      most parallel first. An opposite pair that is left over because one of the two found a
      better or earlier partner is listed here, wherever its hyperplanes lie. Of a set of
      duplicates only the lowest unit counts, for the others only repeat its pairs. At most
      :data:`PARALLEL_LISTED` pairs are listed, and ``parallel_left_out`` says how many more
      there are.
    - ``kept``: one unit of each mirrored pair and of each set of duplicates, the lowest.

    A row of zeros, or one whose weight or bias is not finite, never pairs. Time goes into the
    matrix products, K² D multiplications in float32 at least; memory is one float32 copy of the
    weight, some blocks, and a bounded number of pairs, however many rows are alike.

    Args:
        weight: rows of the layer [K, D].
        bias: their offsets [K].
        cosine: beyond this |cosine| two rows are mirrored or parallel, 0 to 1.
        block: rows that are compared with as many others at once.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> reading = read_pairs(weight, torch.tensor([1.0, 5.0, 3.0, 0.0, 1.0]))
        >>> reading.mirrored, reading.duplicate, reading.parallel, reading.kept
        (((0, 1),), ((0, 2),), ((3, 4),), (0, 3, 4))
    """
    if not 0 <= cosine <= 1:
        raise InputError(f"cosine is {cosine}, but a number from 0 to 1 is wanted")
    if block < 1:
        raise InputError(f"block is {block}, but at least one row at a time is wanted")
    directions = Directions(weight, bias, _SHADOWS)
    units = len(directions)
    duplicate = duplicate_pairs(directions)
    leads = torch.ones(units, dtype=torch.bool)
    leads[[j for _, j in duplicate]] = False

    free = directions.usable.clone()
    # Up to K / 2 of the best parallel pairs may turn out to be mirrored ones.
    parallel = BestPairs(units, PARALLEL_LISTED + units // 2)
    mirrored: list[tuple[int, int]] = []
    first_round = True
    while True:
        opposite = BestPairs(units, _OPPOSITE_HELD)
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
    others = [pair for pair in _listed(*parallel.sorted()) if pair not in taken]
    counted = sum(bool(leads[i] and leads[j]) for i, j in mirrored)
    listed = others[:PARALLEL_LISTED]
    return PairReading(
        mirrored=tuple(mirrored),
        duplicate=tuple(duplicate),
        parallel=tuple(listed),
        parallel_left_out=parallel.seen - counted - len(listed),
        kept=tuple(deduplicate(weight[:, :1], [*mirrored, *duplicate]).tolist()),
    )


def _matched(first: Tensor, second: Tensor, free: Tensor) -> list[tuple[int, int]]:
    """The pairs, best first, whose units are both free; they are then no longer."""
    available = free.tolist()
    pairs = []
    for i, j in _listed(first, second):
        if available[i] and available[j]:
            available[i] = available[j] = False
            pairs.append((i, j))
    free.copy_(torch.tensor(available))
    return pairs


def _listed(first: Tensor, second: Tensor) -> Iterator[tuple[int, int]]:
    """The pairs as numbers, made in parts: millions of tuples at once would fill the memory."""
    for i, j in zip(first.split(_LISTED), second.split(_LISTED), strict=True):
        yield from zip(i.tolist(), j.tolist(), strict=True)
