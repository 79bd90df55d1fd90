"""Mirrored pairs: two ReLU units that together measure what one absolute value measures."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mahalens.audit._inputs import as_weight, unit_rows
from mahalens.errors import InputError

# Cosines closer than this count as equal, so that rounding does not decide between exact mirrors.
_COSINE_DECIMALS = 12


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
    cosine = torch.round(unit @ unit.T, decimals=_COSINE_DECIMALS)
    # A zero row has cosine 0 with all others, which a positive threshold would let through.
    directed = lengths > 0
    opposite = (cosine < threshold) & directed & directed[:, None]
    first, second = torch.nonzero(torch.triu(opposite, diagonal=1), as_tuple=True)
    # The candidates come in order of (i, j); a stable sort keeps it among equal cosines.
    order = torch.argsort(cosine[first, second], stable=True)
    free = [True] * weight.shape[0]
    pairs = []
    for i, j in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if free[i] and free[j]:
            free[i] = free[j] = False
            pairs.append((i, j))
    return pairs


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
