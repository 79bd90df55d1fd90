"""A record as ``audit.json`` and as tables of rows.

:func:`audit_json` and :func:`audit_text` are for readers without this package; the keys are listed
in ``docs/reference/audit-json.md`` and stay as they are, new ones may be added. :func:`rows_of`
gives flat rows, :func:`frame_of` the same as a data frame, and :func:`write_tables` writes them as
CSV files of some 10 MB at most.
Which field is a column of which table stands in :data:`mahalens.auditing.record.FIELDS`.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from mahalens.auditing.record import FIELDS, AuditRecord, LayerRecord, fields_in, to_plain
from mahalens.auditing.verdict import RULE
from mahalens.errors import InputError
from mahalens.files import replacing

if TYPE_CHECKING:
    import os

    import pandas as pd

Row = dict[str, Any]

DIGITS = 7
"""Significant digits of the numbers in arrays of ``audit.json``."""
_WIDTH = 100


# --- audit.json ---------------------------------------------------------------------------------


def audit_json(
    record: AuditRecord, *, most_numbers: int = 200_000, most_in_all: int = 1_000_000
) -> dict[str, Any]:
    """Return a record as plain dictionaries, lists, strings and numbers.

    Numbers that are not finite are None. Quantiles by class, arrays of more than ``most_numbers``
    numbers and the samples themselves are only in the ``.safetensors`` file, and so are the largest
    of the other arrays where all have more than ``most_in_all`` numbers; ``left_out`` has their
    names there. Numbers in arrays are rounded to seven digits, single ones are not.

    Example:
        >>> audit_json(record)["layers"][0]["mirrored_pairs"]  # doctest: +SKIP
        [[0, 4], [1, 3]]
    """
    left_out = _left_out(record, most_numbers, most_in_all)

    def numbers(path: str, tensor: Tensor) -> Any:
        return None if path in left_out else _rounded(tensor.tolist())

    plain = to_plain(record, numbers, lambda number: None)
    first = ("format", "mahalens", "torch", "model", "verdict", "baseline", "accuracy")
    then = ("skipped", "notes", "example_samples", "example_labels")
    return {
        **{name: plain[name] for name in first},
        "rule": RULE,
        **{name: plain[name] for name in ("data", "settings")},
        "layers": [_layer_json(layer) for layer in plain["layers"]],
        **{name: plain[name] for name in then},
        "left_out": left_out,
    }


def audit_text(record: AuditRecord) -> str:
    """Return the text of ``audit.json``: indented, with short lists on one line each."""
    text = _indented(audit_json(record), "") + "\n"
    # A class may be called after a folder whose name is no UTF-8; JSON has escapes for that.
    return text.encode("utf-8", "backslashreplace").decode()


def _left_out(record: AuditRecord, most_numbers: int, most_in_all: int) -> list[str]:
    """Return the paths of the tensors that stay out: samples first, then layer by layer."""
    values: dict[str, Tensor] = {}
    to_plain(record, values.__setitem__, lambda number: None)
    paths = sorted(values, key=lambda path: path.startswith("layers."))
    sizes = {path: values[path].numel() for path in paths}
    never = {path for path in sizes if path == "examples" or path.endswith(".class_quantiles")}
    counts = Counter(size for path, size in sizes.items() if path not in never)
    total = 0
    for size in sorted(counts):  # arrays of the same size all stay or all go
        total += size * counts[size]
        if total > most_in_all:
            most_numbers = min(most_numbers, size - 1)
            break
    return [path for path, size in sizes.items() if path in never or size > most_numbers]


def _layer_json(layer: dict[str, Any]) -> dict[str, Any]:
    """Arrange a layer: first what most readers come for, in the agreed order; then all readings."""
    pairs, whitening, listed = layer["pairs"] or {}, layer["whitening"] or {}, FIELDS["units"]
    units = {
        name: value
        for name, value in layer["units"].items()
        if name not in listed or listed[name].kind != "units"
    }
    verdict = layer["verdict"]
    return {
        "name": layer["name"],
        "kind": layer["kind"],
        "units": layer["units_count"],
        "activation": layer["activation"],
        "dead": layer["units"]["dead"],
        "rare": layer["units"]["rare"],
        **{f"{kind}_pairs": pairs.get(kind, []) for kind in fields_in("pairs", "pairs")},
        "parallel_pairs_left_out": pairs.get("parallel_left_out", 0),
        "kept": pairs.get("kept"),
        "sphericity": whitening.pop("sphericity", None),
        "verdict": verdict.pop("word"),
        "verdict_details": verdict,
        **{name: layer[name] for name in ("suggestions", "notes", "inputs", "folded", "calls")},
        **{name: layer[name] for name in ("positions", "rows", "feeds", "geometry")},
        **{name: layer["units"][name] for name in ("always", "saturated")},
        "responses": units,
        **{name: layer[name] for name in FIELDS if name not in ("units", "pairs")},
        "perturbation": layer["perturbation"],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _indented(value: Any, indent: str) -> str:
    # A list of plain numbers or strings stays on one line, however long.
    flat = isinstance(value, list) and not any(isinstance(part, list | dict) for part in value)
    if flat or not isinstance(value, list | dict):
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    deeper = indent + "  "
    if isinstance(value, list):
        first, last, parts = "[", "]", [_indented(part, deeper) for part in value]
    else:
        names = [json.dumps(name, ensure_ascii=False) for name in value]
        texts = [_indented(part, deeper) for part in value.values()]
        first, last, parts = "{", "}", list(map(": ".join, zip(names, texts, strict=True)))
    # Where a part takes several lines, it is too long for one.
    length = len(indent) + sum(map(len, parts)) + 2 * max(len(parts), 1)
    if length <= _WIDTH and not any("\n" in part for part in parts):
        return first + ", ".join(parts) + last
    return f"{first}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{last}"


# --- Tables -------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """The most rows of ``units.csv``, ``classes.csv`` and ``pairs.csv``: some 10 MB each."""

    units: int = 40_000
    class_rows: int = 80_000
    pairs: int = 200_000

    def room(self, record: AuditRecord) -> tuple[float, int]:
        """Return the share of the units, and the number of classes of each, that fit."""
        units = max(1, sum(layer.units_count for layer in record.layers))
        share = min(1.0, self.units / units)
        nearest = max(1, int(self.class_rows // (units * share)))
        return share, min(nearest, len(record.data.classes))


LIMITS = Limits()


def rows_of(record: AuditRecord, what: str = "units") -> list[Row]:
    """Return a record as a list of flat dictionaries with the same keys each.

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
    if what not in _TABLES:
        raise InputError(f"there is no table {what!r} of an audit; there are {', '.join(_TABLES)}")
    return [row for layer in record.layers for row in _TABLES[what](record, layer)]


def frame_of(record: AuditRecord, what: str = "units") -> pd.DataFrame:
    """Return the rows of :func:`rows_of` as a data frame; needs pandas, which is optional."""
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            "a data frame needs pandas; pip install 'mahalens[frames]', or use "
            "mahalens.auditing.record_tables.rows_of, which gives the same rows as dictionaries"
        ) from None
    rows = rows_of(record, what)
    return pd.DataFrame(rows, columns=list(rows[0] if rows else _COLUMNS.get(what, ())))


def write_tables(
    record: AuditRecord, folder: str | os.PathLike[str], limits: Limits = LIMITS
) -> list[Path]:
    """Write ``layers.csv``, ``units.csv``, ``classes.csv``, ``pairs.csv``, ``perturbation.csv``.

    Only those with rows. What is not known is an empty cell; numbers have nine digits, which is
    all that a float32 has. Tables beyond the limits have the rows that tell most;
    :func:`shortened` names them, and :meth:`AuditRecord.to_frame` has every row.

    Returns:
        The files that were written.
    """
    written = []
    for what in ("layers", "units", "classes", "pairs", "perturbation"):
        rows = _limited_rows(record, what, limits)
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
            writer.writerows(map(_cell, row.values()) for row in chain([first], rows))
        written.append(path)
    return written


def shortened(record: AuditRecord, limits: Limits = LIMITS) -> list[str]:
    """Return a sentence for each CSV file that lacks rows: which it has, where the others are."""
    notes = []
    units = sum(layer.units_count for layer in record.layers)
    share, nearest = limits.room(record)
    if share < 1:
        notes.append(
            f"units.csv has {share:.0%} of the {units:,} units, the same share of each layer, "
            'those that are dead, saturated or paired first; record.to_frame("units") has all'
        )
    classes = len(record.data.classes)
    if nearest < classes:
        notes.append(
            f"classes.csv has for each {'of these units' if share < 1 else 'unit'} the {nearest} "
            f'of {classes:,} classes nearest its hyperplane; record.to_frame("classes") has all'
        )
    pairs = sum(_pairs_count(layer) for layer in record.layers)
    if pairs > limits.pairs:
        notes.append(
            f"pairs.csv has about {limits.pairs:,} of {pairs:,} pairs, the first of each layer; "
            'record.to_frame("pairs") has all'
        )
    return notes


def layer_row(layer: LayerRecord, thresholds: list[str] | None = None) -> Row:
    """Return the row of a layer in ``layers.csv``: what it is, and every number about it as one."""
    units, pairs, verdict = layer.units, layer.pairs, layer.verdict
    levels = list(units.rare) if thresholds is None else thresholds
    low, high = verdict.interval or (None, None)
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "units": layer.units_count,
        **{name: getattr(layer, name) for name in ("inputs", "activation", "folded", "calls")},
        **{name: getattr(layer, name) for name in ("positions", "rows", "feeds")},
        "dead": len(units.dead),
        **{f"rare_{level}": len(units.rare.get(level, ())) for level in levels},
        "always": len(units.always),
        "saturated": len(units.saturated),
        **{
            f"{kind}_pairs": None if pairs is None else len(getattr(pairs, kind))
            for kind in fields_in("pairs", "pairs")
        },
        "silent_share": units.silent_share,
        **{name: getattr(layer.whitening, name, None) for name in fields_in("layers", "whitening")},
        "perturbation_index": getattr(layer.perturbation, "index", None),
        "verdict": verdict.word,
        **{name: getattr(verdict, name) for name in ("score", "share", "chance")},
        "interval_low": low,
        "interval_high": high,
        **{name: getattr(verdict, name) for name in ("p_chance", "p_baseline", "baseline_score")},
        "reason": verdict.reason,
    }


def _layers(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    yield layer_row(layer, _thresholds(record))


def _units(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    every = range(layer.units_count)
    columns: dict[str, Any] = {"layer": [layer.name] * len(every), "unit": every}

    def mark(units: tuple[int, ...]) -> list[bool]:
        chosen = set(units)
        return [unit in chosen for unit in every]

    for part in ("units", "hyperplanes"):
        for name, field in fields_in("units", part).items():
            value: Any = getattr(getattr(layer, part), name, None)
            if name == "rare":
                levels = _thresholds(record)
                columns |= {f"rare_{level}": mark(value.get(level, ())) for level in levels}
            elif name == "quantiles":
                shares = enumerate(record.settings.quantiles)
                columns |= {f"quantile_{s:g}": value[:, index].tolist() for index, s in shares}
            else:
                columns[name] = mark(value) if field.kind == "units" else _list(value, len(every))
    nearest, classes, pairs = columns["nearest"], record.data.classes, layer.pairs
    columns["nearest"] = [None if c is None or c < 0 else classes[c] for c in nearest]
    mirrored, duplicate = (pairs.mirrored, pairs.duplicate) if pairs else ((), ())
    mirrors = dict(mirrored) | {j: i for i, j in mirrored}
    # The lowest of a set of duplicates comes last, and stays.
    repeats = {j: i for i, j in sorted(duplicate, reverse=True)}
    columns["mirrors"], columns["repeats"] = map(mirrors.get, every), map(repeats.get, every)
    columns["kept"] = mark(pairs.kept) if pairs else [None] * len(every)
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _classes(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    if layer.units.class_mean is None:
        return
    parts, every = _by_class(layer), range(layer.units_count)
    nearest = _list(getattr(layer.hyperplanes, "nearest", None), len(every))
    for label, name in enumerate(record.data.classes):
        columns = [_list(None if part is None else part[label], len(every)) for part in parts]
        for unit, *cells in zip(every, *columns, strict=True):
            yield _row("classes", layer.name, unit, name, *cells, nearest[unit] == label)


def _nearest_classes(
    record: AuditRecord, layer: LayerRecord, units: list[int], most: int
) -> Iterator[Row]:
    """Yield for each of these units the classes nearest its hyperplane, in their order."""
    reading, planes = layer.units, layer.hyperplanes
    if reading.class_mean is None or reading.class_std is None:
        return
    away = getattr(planes, "class_spreads", None)
    away = reading.class_mean / reading.class_std if away is None else away
    size = away[:, units].double().abs().nan_to_num(nan=math.inf)
    which = size.argsort(dim=0, stable=True)[:most].sort(dim=0).values  # [most, U]
    parts = [
        None if part is None else part[:, units].gather(0, which).T.tolist()
        for part in _by_class(layer)
    ]
    nearest = _list(getattr(planes, "nearest", None), layer.units_count)
    for place, (unit, labels) in enumerate(zip(units, which.T.tolist(), strict=True)):
        for column, label in enumerate(labels):
            cells = [None if part is None else part[place][column] for part in parts]
            name = record.data.classes[label]
            yield _row("classes", layer.name, unit, name, *cells, nearest[unit] == label)


def _pairs(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    for kind in fields_in("pairs", "pairs") if layer.pairs is not None else ():
        for pair in getattr(layer.pairs, kind):
            yield _row("pairs", layer.name, kind, *pair)


def _suggestions(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    for entry in layer.suggestions:
        units = " ".join(map(str, entry.units))
        cells = (entry.action, len(entry.units), units, entry.effect, entry.exact)
        yield _row("suggestions", layer.name, *cells)


def _perturbation(record: AuditRecord, layer: LayerRecord) -> Iterator[Row]:
    reading = layer.perturbation
    if reading is None:
        return
    for kind in ("scale", "clip", "offset"):
        for level, accuracy in getattr(reading, kind).items():
            cells = (kind, float(level), accuracy, reading.baseline, reading.index)
            yield _row("perturbation", layer.name, *cells)


_TABLES: dict[str, Callable[[AuditRecord, LayerRecord], Iterator[Row]]] = {
    "units": _units,
    "layers": _layers,
    "classes": _classes,
    "pairs": _pairs,
    "suggestions": _suggestions,
    "perturbation": _perturbation,
}
_CLASS_FIELDS = [(part, name) for part in FIELDS for name in fields_in("classes", part)]
# The columns of tables that may have no rows to take them from.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "classes": (
        *("layer", "unit", "class"),
        *(name.removeprefix("class_") for _, name in _CLASS_FIELDS),
        "nearest",
    ),
    "pairs": ("layer", "kind", "first", "second"),
    "suggestions": ("layer", "action", "count", "units", "effect", "exact"),
    "perturbation": ("layer", "kind", "level", "accuracy", "baseline", "index"),
}


def _row(table: str, *cells: Any) -> Row:
    return dict(zip(_COLUMNS[table], cells, strict=True))


def _by_class(layer: LayerRecord) -> list[Tensor | None]:
    """Return what is known by class, each [C, K] or None."""
    return [getattr(getattr(layer, part), name, None) for part, name in _CLASS_FIELDS]


def _limited_rows(record: AuditRecord, what: str, limits: Limits) -> Iterator[Row]:
    """Yield the rows of a table, cut to what a CSV file has room for."""
    share, nearest = limits.room(record)
    pairs = sum(_pairs_count(layer) for layer in record.layers)
    for layer in record.layers:
        if what == "units" and share < 1:
            chosen = set(_telling(layer, share))
            yield from (row for row in _units(record, layer) if row["unit"] in chosen)
        elif what == "classes" and (share < 1 or nearest < len(record.data.classes)):
            yield from _nearest_classes(record, layer, _telling(layer, share), nearest)
        elif what == "pairs" and pairs > limits.pairs:
            yield from islice(_pairs(record, layer), limits.pairs * _pairs_count(layer) // pairs)
        else:
            yield from _TABLES[what](record, layer)


def _pairs_count(layer: LayerRecord) -> int:
    kinds = fields_in("pairs", "pairs") if layer.pairs is not None else ()
    return sum(len(getattr(layer.pairs, kind)) for kind in kinds)


def _telling(layer: LayerRecord, share: float) -> list[int]:
    """Return a share of a layer's units in order: those with a fault or partner, then the first."""
    if share >= 1:
        return list(range(layer.units_count))
    paired = chain(layer.pairs.mirrored, layer.pairs.duplicate) if layer.pairs else ()
    first = chain(layer.units.dead, layer.units.saturated, chain.from_iterable(paired))
    order = dict.fromkeys(chain(first, range(layer.units_count)))
    return sorted(islice(order, max(1, int(share * layer.units_count))))


def _thresholds(record: AuditRecord) -> list[str]:
    """Return the thresholds of rarely active units, as the layers write them."""
    return list(dict.fromkeys(level for layer in record.layers for level in layer.units.rare))


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    return "" if value is None else value


def _list(tensor: Tensor | None, length: int) -> list[Any]:
    return [None] * length if tensor is None else tensor.tolist()
