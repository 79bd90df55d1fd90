"""The numbers of a layer's units, as columns for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from mahalens.auditing.readings import HyperplaneReading, PairReading
from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.report.audit.choice import SHOWN_CLASSES, nearness
from mahalens.report.audit.compact import array, short

DEAD, RARE, ALWAYS, SATURATED = 1, 2, 4, 8
_NEAREST, _OUTERMOST = 8, 3  # classes shown of a unit when there are too many for all


def levels(record: AuditRecord) -> tuple[int, int, int]:
    """Places of the quantiles nearest to 5 %, 50 % and 95 % among those that were taken."""
    taken = np.array(record.settings.quantiles or (0.5,))
    low, middle, high = (int(np.abs(taken - level).argmin()) for level in (0.05, 0.5, 0.95))
    return low, middle, high


def rarest(layer: LayerRecord) -> tuple[str | None, tuple[int, ...]]:
    """The largest threshold of rarely active units, and these units."""
    if not layer.units.rare:
        return None, ()
    threshold = max(layer.units.rare, key=float)
    return threshold, layer.units.rare[threshold]


def columns(record: AuditRecord, layer: LayerRecord, chosen: Sequence[int]) -> dict[str, Any]:
    """What is known of the chosen units, a list per column in their order."""
    units, planes, mine = layer.units, layer.hyperplanes, np.array(chosen, dtype=np.int64)
    low, middle, high = levels(record)
    quantiles = array(units.quantiles)[mine]
    if quantiles.shape[1] <= max(low, middle, high):
        quantiles = np.full((len(mine), max(low, middle, high) + 1), np.nan)
    found: dict[str, Any] = {
        "unit": [int(unit) for unit in chosen],
        "flags": _flags(layer, chosen),
        "active": short(array(units.active)[mine]),
        "mean": short(array(units.mean)[mine]),
        "std": short(array(units.std)[mine]),
        "skewness": short(array(units.skewness)[mine]),
        "least": short(array(units.least)[mine]),
        "greatest": short(array(units.greatest)[mine]),
        "low": short(quantiles[:, low]),
        "median": short(quantiles[:, middle]),
        "high": short(quantiles[:, high]),
        "near": short(nearness(layer)[mine]),
    }
    if planes is not None:
        found |= {
            "through": _through(planes)[mine].tolist(),
            "chance": short(array(planes.chance)[mine]),
            "positive": short(array(planes.positive)[mine]),
            "length": short(array(planes.length)[mine]),
            "distance": short(array(planes.mean_distance)[mine]),
        }
        if planes.nearest is not None:
            found["nearest"] = planes.nearest[mine].tolist()
    return found | _class_means(layer, mine)


def _flags(layer: LayerRecord, chosen: Sequence[int]) -> list[int]:
    units = layer.units
    groups = (
        (DEAD, set(units.dead)),
        (RARE, set(rarest(layer)[1])),
        (ALWAYS, set(units.always)),
        (SATURATED, set(units.saturated)),
    )
    return [sum(bit for bit, group in groups if unit in group) for unit in chosen]


def _class_means(layer: LayerRecord, mine: Any) -> dict[str, Any]:
    """Means and spreads of z by class [unit][class], and whose they are if not of all in order."""
    units = layer.units
    if units.class_mean is None or not len(units.class_mean):
        return {}
    means = array(units.class_mean)[:, mine].T
    spread = np.full_like(means, np.nan)
    if units.class_std is not None:
        spread = array(units.class_std)[:, mine].T
    if means.shape[1] <= SHOWN_CLASSES:
        return {"class_mean": short(means), "class_std": short(spread)}
    with np.errstate(divide="ignore", invalid="ignore"):
        nearest = np.argsort(np.abs(means / spread), axis=1, kind="stable")[:, :_NEAREST]
    placed = np.argsort(means, axis=1, kind="stable")  # NaN comes last
    known = np.maximum(np.isfinite(means).sum(axis=1), 1)
    rows = []
    for row, count in enumerate(known):
        outer = [*placed[row, :_OUTERMOST], *placed[row, max(count - _OUTERMOST, 0) : count]]
        rows.append(list(dict.fromkeys(int(c) for c in [*nearest[row], *outer])))
    return {
        "class_index": rows,
        "class_mean": [short(means[row, which]) for row, which in enumerate(rows)],
        "class_std": [short(spread[row, which]) for row, which in enumerate(rows)],
    }


def partners(pairs: PairReading | None, chosen: Sequence[int]) -> dict[str, dict[str, list[int]]]:
    """For each kind of pair, the partners of those chosen units that have one."""
    if pairs is None:
        return {}
    mine = set(chosen)
    found: dict[str, dict[str, list[int]]] = {}
    for kind in ("mirrored", "duplicate", "parallel"):
        of: dict[str, list[int]] = {}
        for first, second in getattr(pairs, kind):
            for unit, other in ((first, second), (second, first)):
                partner = of.setdefault(str(unit), []) if unit in mine else []
                if len(partner) < _NEAREST:
                    partner.append(int(other))
        found[kind] = of
    return found


def _through(planes: HyperplaneReading) -> Tensor:
    """0 for no class, 1 for one or a few, 2 for near most of them at once [K]."""
    through = planes.through.long()
    return through if planes.common is None else through + 2 * planes.common.long()
