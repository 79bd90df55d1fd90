"""Pairs of units in a convolution with groups, where only units of one group see the same."""

from __future__ import annotations

from torch import Tensor

from mahalens.auditing.readings import PairReading
from mahalens.auditing.repeats.pairs import read_pairs

Pairs = tuple[tuple[int, int], ...]


def read_grouped_pairs(
    weight: Tensor, bias: Tensor, groups: int, *, cosine: float = 0.999
) -> PairReading:
    """Pairs within each of ``groups`` equal runs of the rows [K, D].

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
    found = [
        (first, read_pairs(weight[first : first + size], bias[first : first + size], cosine=cosine))
        for first in range(0, len(weight), size)
    ]

    def together(name: str) -> Pairs:
        return tuple(
            (first + i, first + j) for first, reading in found for i, j in getattr(reading, name)
        )

    return PairReading(
        mirrored=together("mirrored"),
        duplicate=together("duplicate"),
        parallel=together("parallel"),
        kept=tuple(first + unit for first, reading in found for unit in reading.kept),
        parallel_left_out=sum(reading.parallel_left_out for _, reading in found),
    )
