"""Records of audits as rows, data frames and CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.errors import InputError
from mahalens.files import replacing

if TYPE_CHECKING:
    import os

    import pandas as pd

Row = dict[str, Any]

MOST_UNITS, MOST_CLASS_ROWS, MOST_PAIRS = 40_000, 80_000, 200_000
"""Rows of ``units.csv``, ``classes.csv`` and ``pairs.csv``: some 10 MB each."""

_WHITENING = (
    "sphericity",
    "isotropy",
    "precision_error",
    "precision_scale",
    "precision_cosine",
    "input_rank",
    "output_rank",
)
_MOMENTS = ("active", "flat", "mean", "std", "skewness", "least", "greatest")
_PLACES = ("length", "mean_distance", "mean_spreads")
# The columns of tables that may have no rows to take them from.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "classes": (
        *("layer", "unit", "class", "active", "mean", "std", "skewness"),
        *("distance", "spreads", "nearest"),
    ),
    "pairs": ("layer", "kind", "first", "second"),
    "suggestions": ("layer", "action", "count", "units", "effect", "exact"),
    "perturbation": ("layer", "kind", "level", "accuracy", "baseline", "index"),
}


def rows_of(record: AuditRecord, what: str = "units") -> list[Row]:
    """A record as a list of flat dictionaries with the same keys each.

    Args:
        record: what :func:`mahalens.audit` found.
        what: ``units`` (a row per unit of every layer), ``layers``, ``classes`` (a row per unit
            and class), ``pairs``, ``suggestions`` or ``perturbation`` (a row per layer,
            perturbation and level).

    Returns:
        The rows, in the order of the layers; what is not known is None.

    Example:
        >>> [row["unit"] for row in rows_of(record) if row["dead"]]  # doctest: +SKIP
        [6]
    """
    return list(_rows(record, what))


def frame_of(record: AuditRecord, what: str = "units") -> pd.DataFrame:
    """The rows of :func:`rows_of` as a data frame; needs pandas, which is not a dependency."""
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            "a data frame needs pandas, which is not installed; pip install pandas, or use "
            "mahalens.auditing.records.frames.rows_of, which gives the same rows as dictionaries"
        ) from None
    rows = rows_of(record, what)
    columns = list(rows[0]) if rows else list(_COLUMNS.get(what, ()))
    return pd.DataFrame(rows, columns=columns)


def write_tables(record: AuditRecord, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``layers.csv``, ``units.csv``, ``classes.csv``, ``pairs.csv``, ``perturbation.csv``.

    Only those with rows. What is not known is an empty cell; numbers have nine digits, which is
    all that a float32 has. Tables that would be larger than some 10 MB have the rows that tell
    most; :func:`shortened` names them, and :meth:`AuditRecord.to_frame` has every row.

    Returns:
        The files that were written.
    """
    written = []
    for what in ("layers", "units", "classes", "pairs", "perturbation"):
        rows = _bounded_rows(record, what)
        first = next(rows, None)
        if first is None:
            continue
        path = Path(folder) / f"{what}.csv"
        # Line by line: the table of units by classes may not fit into memory as dictionaries.
        # A class may be called after a folder whose name is no UTF-8, so that is escaped.
        with (
            replacing(path) as temporary,
            temporary.open("w", -1, "utf-8", "backslashreplace", newline="") as out,
        ):
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(first)
            writer.writerow(map(_cell, first.values()))
            writer.writerows(map(_cell, row.values()) for row in rows)
        written.append(path)
    return written


def shortened(record: AuditRecord) -> list[str]:
    """Say of each CSV file that has not all rows which it has, and where the others are."""
    told = []
    units = sum(layer.units_count for layer in record.layers)
    share, nearest = _room(record)
    if share < 1:
        told.append(
            f"units.csv has {share:.0%} of the {units:,} units, the same share of each layer, "
            'those that are dead, saturated or paired first; record.to_frame("units") has all'
        )
    classes = len(record.data.classes)
    if nearest < classes:
        told.append(
            f"classes.csv has for each {'of these units' if share < 1 else 'unit'} the {nearest} "
            f'of {classes:,} classes nearest its hyperplane; record.to_frame("classes") has all'
        )
    pairs = sum(_pairs_count(layer) for layer in record.layers)
    if pairs > MOST_PAIRS:
        told.append(
            f"pairs.csv has about {MOST_PAIRS:,} of {pairs:,} pairs, the first of each layer; "
            'record.to_frame("pairs") has all'
        )
    return told


def _room(record: AuditRecord) -> tuple[float, int]:
    """The share of the units, and the classes of each, that the CSV files have room for."""
    units = max(1, sum(layer.units_count for layer in record.layers))
    share = min(1.0, MOST_UNITS / units)
    nearest = max(1, int(MOST_CLASS_ROWS // (units * share)))
    return share, min(nearest, len(record.data.classes))


def _bounded_rows(record: AuditRecord, what: str) -> Iterator[Row]:
    """The rows of a table, cut to what a CSV file has room for."""
    share, nearest = _room(record)
    pairs = sum(_pairs_count(layer) for layer in record.layers)
    for layer in record.layers:
        if what == "units" and share < 1:
            mine = set(_telling(layer, share))
            yield from (row for row in _units(record, layer) if row["unit"] in mine)
        elif what == "classes" and (share < 1 or nearest < len(record.data.classes)):
            yield from _nearest_classes(record, layer, _telling(layer, share), nearest)
        elif what == "pairs" and pairs > MOST_PAIRS:
            yield from islice(_pairs(record, layer), MOST_PAIRS * _pairs_count(layer) // pairs)
        else:
            yield from _TABLES[what](record, layer)


def _pairs_count(layer: LayerRecord) -> int:
    kinds = ("mirrored", "duplicate", "parallel") if layer.pairs is not None else ()
    return sum(len(getattr(layer.pairs, kind)) for kind in kinds)


def _telling(layer: LayerRecord, share: float) -> list[int]:
    """A share of a layer's units in order: those with a fault or a partner, then the first."""
    if share >= 1:
        return list(range(layer.units_count))
    paired = chain(layer.pairs.mirrored, layer.pairs.duplicate) if layer.pairs else ()
    first = chain(layer.units.dead, layer.units.saturated, chain.from_iterable(paired))
    order = dict.fromkeys(chain(first, range(layer.units_count)))
    return sorted(islice(order, max(1, int(share * layer.units_count))))


def _nearest_classes(
    record: AuditRecord, layer: LayerRecord, units: list[int], most: int
) -> Iterator[Row]:
    """Of each of these units the classes nearest its hyperplane, in their order."""
    reading, planes = layer.units, layer.hyperplanes
    if reading.class_mean is None or reading.class_std is None:
        return
    away = getattr(planes, "class_spreads", None)
    away = reading.class_mean / reading.class_std if away is None else away
    size = away[:, units].double().abs().nan_to_num(nan=math.inf)
    which = size.argsort(dim=0, stable=True)[:most].sort(dim=0).values  # [most, U]
    parts = [
        None if tensor is None else tensor[:, units].gather(0, which).T.tolist()
        for tensor in (
            reading.class_active,
            reading.class_mean,
            reading.class_std,
            reading.class_skewness,
            getattr(planes, "class_distance", None),
            getattr(planes, "class_spreads", None),
        )
    ]
    nearest = _list(getattr(planes, "nearest", None), layer.units_count)
    for place, (unit, labels) in enumerate(zip(units, which.T.tolist(), strict=True)):
        for column, label in enumerate(labels):
            cells = [None if part is None else part[place][column] for part in parts]
            values = (layer.name, unit, record.data.classes[label], *cells, nearest[unit] == label)
            yield dict(zip(_COLUMNS["classes"], values, strict=True))


def _rows(record: AuditRecord, what: str) -> Iterator[Row]:
    if what not in _TABLES:
        raise InputError(f"there is no table {what!r} of an audit; there are {', '.join(_TABLES)}")
    make = _TABLES[what]
    return (row for layer in record.layers for row in make(record, layer))


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    return "" if value is None else value


def _list(tensor: Tensor | None, length: int) -> list[Any]:
    return [None] * length if tensor is None else tensor.tolist()


def _layers(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    units, pairs, verdict = layer.units, layer.pairs, layer.verdict
    yield {
        "layer": layer.name,
        "kind": layer.kind,
        "units": layer.units_count,
        "inputs": layer.inputs,
        "activation": layer.activation,
        "folded": layer.folded,
        "calls": layer.calls,
        "positions": layer.positions,
        "rows": layer.rows,
        "feeds": layer.feeds,
        "dead": len(units.dead),
        **{f"rare_{level}": len(units.rare.get(level, ())) for level in _thresholds(record)},
        "always": len(units.always),
        "saturated": len(units.saturated),
        "mirrored_pairs": None if pairs is None else len(pairs.mirrored),
        "duplicate_pairs": None if pairs is None else len(pairs.duplicate),
        "parallel_pairs": None if pairs is None else len(pairs.parallel),
        "silent_share": units.silent_share,
        **{name: getattr(layer.whitening, name, None) for name in _WHITENING},
        "perturbation_index": None if layer.perturbation is None else layer.perturbation.index,
        "verdict": verdict.word,
        "score": verdict.score,
        "share": verdict.share,
        "chance": verdict.chance,
        "interval_low": None if verdict.interval is None else verdict.interval[0],
        "interval_high": None if verdict.interval is None else verdict.interval[1],
        "p_chance": verdict.p_chance,
        "p_baseline": verdict.p_baseline,
        "baseline_score": verdict.baseline_score,
        "reason": verdict.reason,
    }


def _units(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    count, units, planes = layer.units_count, layer.units, layer.hyperplanes
    columns: dict[str, list[Any]] = {"layer": [layer.name] * count, "unit": list(range(count))}

    def mark(name: str, chosen: tuple[int, ...]) -> None:
        among = set(chosen)
        columns[name] = [unit in among for unit in range(count)]

    mark("dead", units.dead)
    for level in _thresholds(record):
        mark(f"rare_{level}", units.rare.get(level, ()))
    mark("always", units.always)
    mark("saturated", units.saturated)
    for name in _MOMENTS:
        columns[name] = getattr(units, name).tolist()
    for index, share in enumerate(record.settings.quantiles):
        columns[f"quantile_{share:g}"] = units.quantiles[:, index].tolist()
    for name in _PLACES:
        columns[name] = _list(getattr(planes, name, None), count)
    nearest = _list(getattr(planes, "nearest", None), count)
    columns["nearest"] = [_class_name(record, index) for index in nearest]
    for name in ("through", "chance", "positive"):
        columns[name] = _list(getattr(planes, name, None), count)
    if layer.pairs is None:
        columns["mirrors"] = columns["repeats"] = columns["kept"] = [None] * count
    else:
        mirrors = dict(layer.pairs.mirrored) | {j: i for i, j in layer.pairs.mirrored}
        repeats: dict[int, int] = {}
        for i, j in sorted(layer.pairs.duplicate):
            repeats.setdefault(j, i)  # the lowest of a set of duplicates
        columns["mirrors"] = [mirrors.get(unit) for unit in range(count)]
        columns["repeats"] = [repeats.get(unit) for unit in range(count)]
        mark("kept", layer.pairs.kept)
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _classes(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    units, planes = layer.units, layer.hyperplanes
    if units.class_mean is None:
        return
    count = layer.units_count
    nearest = _list(getattr(planes, "nearest", None), count)
    for index, name in enumerate(record.data.classes):
        parts = [
            None if tensor is None else tensor[index]
            for tensor in (
                units.class_active,
                units.class_mean,
                units.class_std,
                units.class_skewness,
                getattr(planes, "class_distance", None),
                getattr(planes, "class_spreads", None),
            )
        ]
        for unit, cells in enumerate(zip(*(_list(part, count) for part in parts), strict=True)):
            values = (layer.name, unit, name, *cells, nearest[unit] == index)
            yield dict(zip(_COLUMNS["classes"], values, strict=True))


def _pairs(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    for kind in ("mirrored", "duplicate", "parallel") if layer.pairs is not None else ():
        for pair in getattr(layer.pairs, kind):
            yield dict(zip(_COLUMNS["pairs"], (layer.name, kind, *pair), strict=True))


def _suggestions(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    for one in layer.suggestions:
        units = " ".join(map(str, one.units))
        values = (layer.name, one.action, len(one.units), units, one.effect, one.exact)
        yield dict(zip(_COLUMNS["suggestions"], values, strict=True))


def _perturbation(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    found = layer.perturbation
    if found is None:
        return
    for kind in ("scale", "clip", "offset"):
        for level, accuracy in getattr(found, kind).items():
            values = (layer.name, kind, float(level), accuracy, found.baseline, found.index)
            yield dict(zip(_COLUMNS["perturbation"], values, strict=True))


def _thresholds(record: AuditRecord) -> list[str]:
    """The thresholds of rarely active units, as the layers write them."""
    return list(dict.fromkeys(level for layer in record.layers for level in layer.units.rare))


def _class_name(record: AuditRecord, index: int | None) -> str | None:
    return None if index is None or index < 0 else record.data.classes[index]


_TABLES: dict[str, Callable[[AuditRecord, LayerRecord], Iterator[Row]]] = {
    "units": _units,
    "layers": _layers,
    "classes": _classes,
    "pairs": _pairs,
    "suggestions": _suggestions,
    "perturbation": _perturbation,
}
