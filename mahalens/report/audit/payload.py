"""The one object that the page's script draws from, cut to what a browser takes with ease."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.report.audit import about, details, images, marks, units
from mahalens.report.audit.choice import SHOWN_CLASSES, interesting, shares
from mahalens.report.audit.compact import one, short

NUMBERS = 450_000
"""Numbers about units in one page, about 3 MB; what is beyond stays in the record's files."""
HISTOGRAM_NUMBERS = 250_000
LEAST_UNITS = 40
"""Units of a layer that are in the page however many layers there are."""
_LISTED = 60  # units named by a suggestion


def page_data(record: AuditRecord) -> dict[str, Any]:
    """Everything the script needs; see ``templates/audit/base.js`` for who reads it."""
    classes = len(record.data.classes)
    orders = [interesting(layer) for layer in record.layers]
    room = shares([layer.units_count * _cost(record, layer) for layer in record.layers], NUMBERS, 0)
    histograms = max(1, len([layer for layer in record.layers if layer.histograms]))
    layers, chosen = [], []
    for layer, order, numbers in zip(record.layers, orders, room, strict=True):
        most = max(numbers // _cost(record, layer), LEAST_UNITS)
        chosen.append(order[:most])
        per_unit = min(max(classes, 1), SHOWN_CLASSES) * (record.settings.bins + 1)
        most_histograms = max(1, HISTOGRAM_NUMBERS // histograms // per_unit)
        layers.append(_layer(record, layer, chosen[-1], most_histograms))
    low, _, high = units.levels(record)
    levels = record.settings.quantiles or (0.5,)
    return {
        "classes": list(record.data.classes),
        "counts": list(record.data.counts),
        "labels": record.data.labels,
        "through": record.settings.through,
        "band": [levels[low], levels[high]],
        "marks": {"colours": marks.COLOURS, "shapes": marks.SHAPES, "most": SHOWN_CLASSES},
        "words": about.words_of(record),
        "image": _height_and_width(record),
        "samples": images.samples_of(record, _wanted_samples(record, chosen)),
        "layers": layers,
    }


def as_script(data: dict[str, Any]) -> str:
    """The object as JSON that nothing inside a script element can end; NaN becomes null.

    >>> as_script({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return msgspec.json.encode(data).decode("utf-8").replace("<", "\\u003c")


def _cost(record: AuditRecord, layer: LayerRecord) -> int:
    """Numbers that one unit of a layer takes in the page."""
    per_class = 2 if len(record.data.classes) <= SHOWN_CLASSES else 3
    prototypes = 0 if layer.prototypes is None else layer.prototypes.near_sample.shape[-1]
    return 17 + per_class * min(len(record.data.classes), 14) + 6 * int(prototypes)


def _layer(
    record: AuditRecord, layer: LayerRecord, chosen: list[int], most_histograms: int
) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "count": layer.units_count,
        "activation": layer.activation,
        "positions": layer.positions,
        "grid": _grid(record, layer),
        "verdict": _verdict(layer),
        "suggestions": [
            {
                "action": s.action,
                "units": list(s.units[:_LISTED]),
                "count": len(s.units),
                "effect": s.effect,
                "exact": s.exact,
            }
            for s in layer.suggestions
        ],
        "facts": facts_of(layer),
        "notes": list(layer.notes),
        "rare": units.rarest(layer)[0],
        "silent": _silent(record, layer),
        "columns": units.columns(record, layer, chosen),
        "partners": units.partners(layer.pairs, chosen),
        "histograms": details.histograms(layer, chosen, most_histograms),
        "prototypes": details.prototypes(layer.prototypes, chosen),
        "whitening": details.whitening(layer.whitening),
        "perturbation": details.perturbation(layer.perturbation),
    }


def _verdict(layer: LayerRecord) -> dict[str, Any]:
    kind, symbol, _ = marks.verdict_mark(layer.verdict.word)
    return {
        "word": layer.verdict.word,
        "kind": kind,
        "symbol": symbol,
        "score": one(layer.verdict.score),
        "share": one(layer.verdict.share),
        "chance": one(layer.verdict.chance),
        "reason": layer.verdict.reason,
    }


def facts_of(layer: LayerRecord) -> list[tuple[str, str]]:
    """What stands beside a layer's verdict: its form, in words."""
    facts = [
        *about.evidence(layer.verdict),
        ("Units", f"{layer.units_count:,} on {layer.inputs:,} inputs"),
        ("Activation", layer.activation),
        ("Rows seen", f"{layer.rows:,}"),
    ]
    if layer.positions != 1:
        facts.append(("Rows per sample", f"{layer.positions:,}"))
    if layer.calls != 1:
        facts.append(("Uses in a forward pass", f"{layer.calls:,}"))
    if layer.folded:
        facts.append(("Folded in", layer.folded))
    if layer.feeds:
        facts.append(("Feeds", layer.feeds))
    for name, sizes in layer.geometry.items():
        plain = name in ("stride", "dilation", "groups") and all(size == 1 for size in sizes)
        if not plain and any(sizes):
            facts.append((name.capitalize(), " × ".join(str(size) for size in sizes)))
    return facts


def _silent(record: AuditRecord, layer: LayerRecord) -> dict[str, Any] | None:
    """Rows that no unit of the layer responds to."""
    reading = layer.units
    if not reading.silent_share:
        return None
    by_class: list[tuple[str, float]] = []
    if reading.silent_by_class is not None:
        named = zip(record.data.classes, short(reading.silent_by_class), strict=False)
        by_class = sorted((pair for pair in named if pair[1] > 0), key=lambda pair: -pair[1])[:5]
    return {
        "share": one(reading.silent_share),
        "samples": list(reading.silent_samples),
        "by_class": by_class,
    }


def _height_and_width(record: AuditRecord) -> tuple[int, int] | None:
    image = record.data.image
    return (image[-2], image[-1]) if image is not None and len(image) in (2, 3) else None


def _grid(record: AuditRecord, layer: LayerRecord) -> tuple[int, int] | None:
    """Rows and columns of a convolution's positions, where they cover the image as they stand."""
    size = _height_and_width(record)
    if size is None or layer.kind != "Conv2d" or layer.calls != 1:
        return None
    high, wide = size
    columns = round(math.sqrt(layer.positions * wide / high))
    if columns < 1 or layer.positions % columns:
        return None
    rows = layer.positions // columns
    return (rows, columns) if abs(rows * wide - columns * high) <= max(wide, high) else None


def _wanted_samples(record: AuditRecord, chosen: list[list[int]]) -> Iterator[int]:
    """Samples that prototypes name: of the first unit of every layer, then of the second, ..."""
    readings = [layer.prototypes for layer in record.layers]
    for turn in range(max(map(len, chosen), default=0)):
        for reading, order in zip(readings, chosen, strict=True):
            if reading is not None and turn < len(order):
                yield from reading.near_sample[order[turn]].tolist()
                yield from reading.active_sample[order[turn]].tolist()
