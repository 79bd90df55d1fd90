"""Rows that have the same hyperplane and see it from the same side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mahalens.auditing.repeats.blocks import Directions

DUPLICATE_TOLERANCE = 1e-6
"""How far the directions of duplicates may be apart, and relatively their offsets: some ten
roundings of float32, so that a row and a multiple of it are duplicates in spite of rounding."""

# Rows that are compared with all others of their group at once; more after each turn.
_FIRST_LEADERS, _MOST_LEADERS = 1, 1024


def duplicate_pairs(directions: Directions) -> list[tuple[int, int]]:
    """Pairs (i, j) of duplicates, i the lowest of its set, in order.

    Rows i and j are duplicates if their directions ``u = w / ‖w‖`` and their offsets
    ``β = b / ‖w‖`` are equal but for rounding: ``‖uᵢ - uⱼ‖ <= τ`` and
    ``|βᵢ - βⱼ| <= τ max(|βᵢ|, |βⱼ|)`` with τ = :data:`DUPLICATE_TOLERANCE`. The lowest row leads
    a set of all rows that are its duplicates, then the lowest row that is left leads the next.

    Rows are first sorted by their offset and their shadows on random directions: duplicates
    agree in all of them, so only rows that do are compared in full.
    """
    pairs = []
    for group in _groups(directions):
        pairs += _led(directions, group)
    return sorted(pairs)


def _groups(directions: Directions) -> list[Tensor]:
    """Rows that may be duplicates of one another: all that are lie in the same group."""
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


def _led(directions: Directions, group: Tensor) -> list[tuple[int, int]]:
    """The pairs within one group, its rows ascending."""
    pairs = []
    origin = directions.exact(group[:1])
    step = _FIRST_LEADERS
    while len(group) > 1:
        leaders = group[:step]
        near = _same(directions, leaders, group, origin)
        free = torch.ones(len(group), dtype=torch.bool)
        for leader in range(len(leaders)):
            if free[leader]:
                followers = near[leader] & free
                followers[: leader + 1] = False
                pairs += [(int(group[leader]), j) for j in group[followers].tolist()]
                free &= ~followers
        free[: len(leaders)] = False
        group = group[free]
        step = min(16 * step, _MOST_LEADERS)
    return pairs


def _same(directions: Directions, leaders: Tensor, group: Tensor, origin: Tensor) -> Tensor:
    """Which rows of the group are duplicates of which leaders [len(leaders), len(group)]."""
    # ‖a - b‖² = ‖a‖² + ‖b‖² - 2 a·b keeps its digits where a and b are small, as they are here
    # when counted from a row of the group.
    near = torch.zeros(len(leaders), len(group), dtype=torch.bool)
    left = directions.exact(leaders) - origin
    for start in range(0, len(group), _MOST_LEADERS):
        part = slice(start, start + _MOST_LEADERS)
        right = directions.exact(group[part]) - origin
        squares = (left**2).sum(dim=1)[:, None] + (right**2).sum(dim=1) - 2 * left @ right.T
        a, b = directions.offset[leaders][:, None], directions.offset[group[part]]
        level = (a - b).abs() <= DUPLICATE_TOLERANCE * torch.maximum(a.abs(), b.abs())
        near[:, part] = (squares <= DUPLICATE_TOLERANCE**2) & level
    return near
