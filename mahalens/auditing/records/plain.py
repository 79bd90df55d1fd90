"""The content of ``audit.json``: a record for readers without this package.

Its keys are listed in ``docs/audit-json.md`` and stay as they are; new ones may be added.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec
from torch import Tensor

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.auditing.verdicts import RULE

MOST_NUMBERS, MOST_IN_ALL = 200_000, 1_000_000
"""An array of more numbers stays out of ``audit.json``, and so do the largest ones of those that
are left if all have more than a million; the ``.safetensors`` file has them."""
DIGITS = 7
"""Significant digits of the numbers in arrays."""
_WIDTH = 100
_PARTS = ("units", "hyperplanes", "whitening", "prototypes", "histograms", "perturbation")


def audit_json(record: AuditRecord) -> dict[str, Any]:
    """A record as plain dictionaries, lists, strings and numbers; what is not finite is None.

    Quantiles by class, arrays of more than 200,000 numbers and the samples themselves are only in
    the ``.safetensors`` file, and so are the largest of the other arrays where all have more than
    a million numbers; ``left_out`` has their names there. Numbers in arrays are rounded to seven
    digits, single ones are not.

    Example:
        >>> audit_json(record)["layers"][0]["mirrored_pairs"]  # doctest: +SKIP
        [[0, 4], [1, 3]]
    """
    left_out = _left_out(record)
    return {
        "format": record.format,
        "mahalens": record.mahalens,
        "torch": record.torch,
        "model": record.model,
        "verdict": record.verdict,
        "baseline": record.baseline,
        "accuracy": _number(record.accuracy),
        "rule": RULE,
        "data": _struct(record.data, "data", {}),
        "settings": _struct(record.settings, "settings", {}),
        "layers": [_layer(layer, f"layers.{i}", left_out) for i, layer in enumerate(record.layers)],
        "skipped": [_struct(part, "", {}) for part in record.skipped],
        "notes": list(record.notes),
        "example_samples": _plain(record.example_samples, "example_samples", left_out),
        "example_labels": _plain(record.example_labels, "example_labels", left_out),
        "left_out": list(left_out),
    }


def audit_text(record: AuditRecord) -> str:
    """The text of ``audit.json``: indented, with short lists on one line each."""
    text = _indented(audit_json(record), "") + "\n"
    # A class may be called after a folder whose name is no UTF-8; JSON has escapes for that.
    return text.encode("utf-8", "backslashreplace").decode()


def _left_out(record: AuditRecord) -> dict[str, None]:
    """The tensors that stay out, by the path that leads to them, in the order of the record."""
    sizes: dict[str, int] = {}
    for name in ("examples", "example_samples", "example_labels"):
        if isinstance(tensor := getattr(record, name), Tensor):
            sizes[name] = tensor.numel()
    for place, layer in enumerate(record.layers):
        for part in _PARTS:
            reading = getattr(layer, part)
            for name in () if reading is None else reading.__struct_fields__:
                if isinstance(tensor := getattr(reading, name), Tensor):
                    sizes[f"layers.{place}.{part}.{name}"] = tensor.numel()
    most, total = MOST_NUMBERS, 0
    never = {path for path in sizes if path == "examples" or path.endswith(".class_quantiles")}
    counts = Counter(size for path, size in sizes.items() if path not in never)
    for size in sorted(counts):  # arrays of the same size all stay or all go
        total += size * counts[size]
        if total > MOST_IN_ALL:
            most = min(most, size - 1)
            break
    return {path: None for path, size in sizes.items() if path in never or size > most}


def _layer(layer: LayerRecord, within: str, left_out: Collection[str]) -> dict[str, Any]:
    whitening, pairs = layer.whitening, layer.pairs

    def part(name: str, without: tuple[str, ...] = ()) -> Any:
        reading = getattr(layer, name)
        if reading is None:
            return None
        return _struct(reading, f"{within}.{name}", left_out, without)

    # First what most readers come for, in the order that was agreed on; then every reading.
    return {
        "name": layer.name,
        "kind": layer.kind,
        "units": layer.units_count,
        "activation": layer.activation,
        "dead": list(layer.units.dead),
        "rare": {threshold: list(units) for threshold, units in layer.units.rare.items()},
        "mirrored_pairs": [] if pairs is None else [list(pair) for pair in pairs.mirrored],
        "duplicate_pairs": [] if pairs is None else [list(pair) for pair in pairs.duplicate],
        "parallel_pairs": [] if pairs is None else [list(pair) for pair in pairs.parallel],
        "parallel_pairs_left_out": 0 if pairs is None else pairs.parallel_left_out,
        "kept": None if pairs is None else list(pairs.kept),
        "sphericity": None if whitening is None else _number(whitening.sphericity),
        "verdict": layer.verdict.word,
        "verdict_details": _struct(layer.verdict, within, left_out, ("word",)),
        "suggestions": [_struct(one, within, left_out) for one in layer.suggestions],
        "notes": list(layer.notes),
        "inputs": layer.inputs,
        "folded": layer.folded,
        "calls": layer.calls,
        "positions": layer.positions,
        "rows": layer.rows,
        "feeds": layer.feeds,
        "geometry": {name: list(sizes) for name, sizes in layer.geometry.items()},
        "always": list(layer.units.always),
        "saturated": list(layer.units.saturated),
        "responses": part("units", ("dead", "rare", "always", "saturated")),
        "hyperplanes": part("hyperplanes"),
        "whitening": part("whitening", ("sphericity",)),
        "prototypes": part("prototypes"),
        "histograms": part("histograms"),
        "perturbation": part("perturbation"),
    }


def _struct(
    struct: msgspec.Struct, path: str, left_out: Collection[str], without: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        name: _plain(getattr(struct, name), f"{path}.{name}", left_out)
        for name in struct.__struct_fields__
        if name not in without
    }


def _plain(value: Any, path: str, left_out: Collection[str]) -> Any:
    if isinstance(value, Tensor):
        return None if path in left_out else _rounded(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(part, f"{path}.{name}", left_out) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, path, left_out) for part in value]
    return _number(value)


def _number(value: Any) -> Any:
    """The value as it is, None for a number that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    first, last = "[]" if isinstance(value, list) else "{}"
    if isinstance(value, list):
        parts = [_indented(part, deeper) for part in value]
    else:
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {_indented(part, deeper)}"
            for name, part in value.items()
        ]
    # Where a part takes several lines, it is too long for one.
    length = len(indent) + sum(map(len, parts)) + 2 * max(len(parts), 1)
    if length <= _WIDTH and not any("\n" in part for part in parts):
        return first + ", ".join(parts) + last
    return f"{first}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{last}"
