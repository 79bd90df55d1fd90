"""Distances between series that may run at different speeds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHARE = 0.1
"""How far a series may be ahead of another, as a share of their length."""
_PAIRS = 4096  # at once: their rows stay in the cache


def warped_distances(a: Tensor, b: Tensor, share: float = SHARE) -> Tensor:
    """Squared distances by dynamic time warping between series, ``[N, M]``.

    ``d(i, j) = ‖aᵢ − bⱼ‖² + min(d(i−1, j), d(i, j−1), d(i−1, j−1))`` within a band of
    ``|i − j| ≤ share · L`` (Sakoe and Chiba 1978); the distance is d(L, L). All channels are
    warped together. The cells of an anti-diagonal depend on the two before it alone, so that each
    is one step for all pairs.

    Shapes: a ``[N, C, L]``, b ``[M, C, L]``.

    >>> late = torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]]])
    >>> warped_distances(late.roll(1, 2), late, 0.2).item(), warped_distances(late, late).item()
    (0.0, 0.0)
    """
    rows, columns = (
        index.flatten()
        for index in torch.meshgrid(torch.arange(len(a)), torch.arange(len(b)), indexing="ij")
    )
    pieces = [
        _pairs(a[one], b[two], math.ceil(share * a.shape[-1]))
        for one, two in zip(rows.split(_PAIRS), columns.split(_PAIRS), strict=True)
    ]
    return torch.cat(pieces).reshape(len(a), len(b))


def _pairs(a: Tensor, b: Tensor, band: int) -> Tensor:
    """The distance of each pair ``[P]`` of series ``[P, C, L]``."""
    pairs, _, steps = a.shape
    # Steps first, so that a diagonal is a run of whole rows; b backwards, as j falls where i rises.
    left = a.permute(2, 0, 1).contiguous()  # [L, P, C]
    right = b.permute(2, 0, 1).flip(0).contiguous()
    # Row i + 1 of a diagonal holds d(i, diagonal - i); what lies outside the band is out of reach.
    # Of it only the rows beside the band are ever read, as that moves by a row at a time.
    before, last, here = (left.new_full((steps + 1, pairs), torch.inf) for _ in range(3))
    for diagonal in range(2 * steps - 1):
        low = max(0, diagonal - steps + 1, math.ceil((diagonal - band) / 2))
        high = min(steps - 1, diagonal, (diagonal + band) // 2)
        first = steps - 1 - (diagonal - low)  # where b's step j = diagonal - low lies
        cost = (left[low : high + 1] - right[first : first + high - low + 1]).square().sum(-1)
        if diagonal:
            reach = torch.minimum(last[low : high + 1], last[low + 1 : high + 2])
            cost += torch.minimum(reach, before[low : high + 1])
        here[low + 1 : high + 2] = cost
        here[low], here[high + 2 : high + 3] = torch.inf, torch.inf
        before, last, here = last, here, before
    return last[steps]
