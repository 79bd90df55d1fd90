"""An order in which samples that differ from the background in the same columns are neighbours.

The order decides in which sequence numbers are added up, so it must not depend on the number of
threads, not even by rounding. All sums here are therefore over whole numbers, small enough to be
exact in any sequence; only element by element is anything else computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

_AXES = 16
_ROUNDS = 2  # of the power method
_LOOKED_AT = 4096  # samples that the axes are found from
_CHUNK = 4096
MOST_INPUTS = 2**13
"""Of more columns the sums would not be exact."""
_SIZE = 2**19  # whole numbers up to here: a sum of so many products of two of them is exact


def similar_order(x: Tensor, background: Tensor, leaf: int) -> Tensor:
    """Order ``[N]`` of the samples ``[N, D]``: halved again and again, down to ``leaf`` samples.

    Every group is halved along the one of a few principal axes on which it is widest. What is
    looked at is only which columns differ from the background.
    """
    axes = _principal_axes((x[:: -(-len(x) // _LOOKED_AT)] != background).double())
    scores = torch.cat([(part != background).double() @ axes for part in x.split(_CHUNK)])
    scores /= (axes * axes).sum(0).sqrt().clamp_min(1)  # axes of length 1
    return _bisected(_whole(scores, 2**14).long(), leaf)


def _principal_axes(pattern: Tensor) -> Tensor:
    """Principal axes of 0s and 1s ``[n, D]`` as whole numbers ``[D, A]``, by the power method."""
    counts = pattern.sum(0)
    covariance = len(pattern) * (pattern.T @ pattern) - counts[:, None] * counts
    covariance = _whole(covariance, _SIZE)
    # Begin with signs in no particular pattern.
    mixed = torch.arange(len(covariance))[:, None] * _AXES + torch.arange(_AXES) + 1
    for _ in range(3):
        mixed = mixed * 6364136223846793005 + 1442695040888963407  # round and round, modulo 2^64
        mixed = mixed ^ (mixed >> 29)
    axes = ((mixed >> 32) % 2 * 2 - 1).double()
    for _ in range(_ROUNDS):
        axes = covariance @ axes
        found: list[Tensor] = []
        for axis in axes.T:
            left = _whole(axis, _SIZE)
            for other in found:
                share = (left * other).sum() / (other * other).sum().clamp_min(1)
                left = _whole(left - share * other, _SIZE)
            found.append(left)
        axes = torch.stack(found, 1)
    return axes


def _whole(numbers: Tensor, most: int) -> Tensor:
    """The numbers, scaled so that the largest is ``most``, and rounded."""
    return (numbers * (most / numbers.abs().max().clamp_min(1))).round()


def _bisected(scores: Tensor, leaf: int) -> Tensor:
    """All groups of a level at once; a group is a run of the order."""
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
