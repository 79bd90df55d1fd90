"""Which units of a layer the page carries, when all would make it too heavy for a browser."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

import numpy as np

from mahalens.auditing.record import LayerRecord
from mahalens.report.audit.compact import Floats, array

SHOWN_CLASSES = 30
"""Classes up to which the page has every class's mean; beyond, those that matter to a unit."""


def nearness(layer: LayerRecord) -> Floats:
    """How far each hyperplane is from the mean it is nearest to, in spreads [K]; NaN if unknown."""
    planes = layer.hyperplanes
    unknown = np.full(layer.units_count, np.nan)
    if planes is None:
        return unknown
    if planes.class_spreads is None or planes.nearest is None:
        return np.abs(array(planes.mean_spreads))
    spreads, nearest = array(planes.class_spreads), planes.nearest.numpy()
    if not len(spreads):
        return unknown
    mine = np.abs(spreads[np.clip(nearest, 0, None), np.arange(layer.units_count)])
    return np.where(nearest >= 0, mine, np.nan)


def interesting(layer: LayerRecord) -> list[int]:
    """All units of a layer, those with most to tell first.

    Taken in turn: units with a histogram, hyperplanes nearest a class, dead units, members of
    pairs, saturated units, hyperplanes furthest from every class, the widest, and by number.
    """
    units, near = layer.units, nearness(layer)
    near = np.where(np.isnan(near), np.inf, near)
    far = np.where(np.isinf(near), -np.inf, near)
    pairs = layer.pairs
    paired = chain.from_iterable(pairs.duplicate + pairs.mirrored) if pairs else ()
    wide = np.nan_to_num(array(units.std), nan=-1.0)
    orders: tuple[Sequence[int], ...] = (
        layer.histograms.units if layer.histograms else (),
        np.argsort(near, kind="stable").tolist(),
        units.dead,
        tuple(paired),
        units.saturated,
        np.argsort(-far, kind="stable").tolist(),
        np.argsort(-wide, kind="stable").tolist(),
        range(layer.units_count),
    )
    in_turn = chain.from_iterable(zip_longest(*orders))
    return list(dict.fromkeys(int(unit) for unit in in_turn if unit is not None))


def shares(wanted: Sequence[int], budget: int, least: int) -> list[int]:
    """Split a budget fairly: who wants less than an equal share leaves the rest to others.

    Everyone gets ``least``, or what it wants if that is less.

    >>> shares([10, 1000, 1000], budget=410, least=5)
    [10, 200, 200]
    """
    given = [0] * len(wanted)
    left = budget
    by_size = sorted(range(len(wanted)), key=lambda place: wanted[place])
    for done, place in enumerate(by_size):
        equal = max(left, 0) // (len(wanted) - done)
        given[place] = min(wanted[place], max(equal, least))
        left -= given[place]
    return given
