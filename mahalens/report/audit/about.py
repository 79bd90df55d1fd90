"""What stands around the pictures: headline, table of layers, settings, how to do it again."""

from __future__ import annotations

from typing import Any

from mahalens.auditing.record import AuditRecord, LayerRecord, Settings
from mahalens.report.audit.marks import verdict_mark
from mahalens.report.audit.units import rarest
from mahalens.report.numbers import MISSING, is_number, number

_LONGEST = 27  # characters of a name in a table
_SETTINGS = {
    "tolerance": "Activity begins above",
    "rare": "Rarely active below (shares of the rows)",
    "through": "Passes through a class within (spreads)",
    "cosine": "Pairs beyond a cosine of",
    "quantiles": "Quantiles",
    "bins": "Bins of a histogram",
    "rows_kept": "Rows kept for quantiles and histograms",
    "patches": "Patches per sample for covariances",
    "widest": "Widest input with a covariance",
    "prototypes": "Prototypes per unit and reading",
    "clusters": "Clusters asked for",
    "seed": "Seed",
}


def percent(share: float | None) -> str:
    """A share in per cent, with as many figures as tell something.

    >>> percent(0.12345), percent(1.0), percent(0.0004), percent(None)
    ('12 %', '100 %', '0.04 %', '–')
    """
    if share is None or not is_number(share):
        return MISSING
    value = 100 * share
    if 0 < value < 1:
        return f"{number(value, figures=1)} %"
    if value != 100 and value >= 99.5:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.0f} %"


def lead(record: AuditRecord) -> list[tuple[str, str]]:
    """Short facts under the headline."""
    data = record.data
    facts = [("Network", record.model)]
    if record.accuracy is not None:
        facts.append(("Accuracy", f"{100 * record.accuracy:.2f} %"))
    shape = " × ".join(str(size) for size in data.shape) or "one number"
    told = f"{data.samples:,} samples of {shape}"
    facts.append(("Data", f"{data.source}, {told}" if data.source else told))
    if data.labels == "given":
        facts.append(("Classes", f"{len(data.classes):,}"))
    elif data.labels == "clusters":
        facts.append(("Clusters", f"{len(data.classes):,}, found by k-means: there were no labels"))
    else:
        facts.append(("Classes", "none: the data has no labels"))
    units = sum(layer.units_count for layer in record.layers)
    layers = len(record.layers)
    facts.append(("Read", f"{layers:,} layer{'' if layers == 1 else 's'}, {units:,} units"))
    return facts


def short_name(name: str) -> str:
    """The end of a long name, which tells the layers of one network apart.

    >>> short_name("encoder.layers.0.attention.self.query")
    '…ers.0.attention.self.query'
    """
    if not name:
        return "(no name)"
    return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :].lstrip(".")


def layer_row(place: int, layer: LayerRecord) -> dict[str, Any]:
    """A line of the table of layers: what is shown, and what it is sorted by."""
    kind, symbol, _ = verdict_mark(layer.verdict.word)
    pairs, white = layer.pairs, layer.whitening
    index = None if layer.perturbation is None else layer.perturbation.index
    return {
        "place": place,
        "name": layer.name,
        "shown": short_name(layer.name),
        "verdict": layer.verdict.word,
        "verdict_kind": kind,
        "symbol": symbol,
        "share": _position(layer.verdict.share),
        "chance": _position(layer.verdict.chance),
        "cells": [
            _cell(layer.kind),
            _cell(layer.units_count),
            _cell(layer.activation),
        ],
        "numbers": [
            _cell(layer.verdict.score, _signed(layer.verdict.score)),
            _cell(layer.verdict.share, percent(layer.verdict.share), bar=True),
            _cell(layer.verdict.chance, percent(layer.verdict.chance)),
            _cell(len(layer.units.dead)),
            _cell(len(rarest(layer)[1]) if layer.units.rare else None),
            _cell(None if pairs is None else len(pairs.mirrored)),
            _cell(None if pairs is None else len(pairs.duplicate)),
            _cell(None if white is None else white.sphericity),
            _cell(index, _signed(index)),
        ],
    }


def _cell(value: Any, text: str | None = None, bar: bool = False) -> dict[str, Any]:
    """A cell; one whose value is missing or not finite comes last however it is sorted."""
    if isinstance(value, str):
        return {"text": value, "sort": value, "numeric": False, "bar": False}
    known = value is not None and is_number(value)
    shown = (text if text is not None else number(value)) if known else MISSING
    sort = repr(value) if known else ""
    return {"text": shown, "sort": sort, "numeric": True, "bar": bar and known}


def _signed(value: float | None) -> str:
    if value is None or not is_number(value):
        return MISSING
    # Two decimals, and no "-0.00".
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−") if round(value, 2) else "0.00"


def _position(share: float | None) -> str | None:
    """A share as a place in a bar of 100."""
    if share is None or not is_number(share):
        return None
    return f"{100 * min(max(share, 0.0), 1.0):.1f}"


def settings_of(record: AuditRecord) -> list[tuple[str, str]]:
    """The settings in words."""
    shown = []
    for name in record.settings.__struct_fields__:
        value = getattr(record.settings, name)
        if isinstance(value, tuple):
            text = ", ".join(f"{item:g}" for item in value) or "none"
        elif isinstance(value, float):
            text = f"{value:g}"
        else:
            text = "none" if value is None else f"{value:,}"
        shown.append((_SETTINGS.get(name, name), text))
    return shown


def again(record: AuditRecord) -> dict[str, str]:
    """How to make the record and the page again."""
    usual = Settings()
    changed = [
        f", {name}={getattr(record.settings, name)!r}"
        for name in record.settings.__struct_fields__
        if getattr(record.settings, name) != getattr(usual, name)
    ]
    return {
        "code": (
            f"record = mahalens.audit(model, data{''.join(changed)})\n"
            'record.save("audit.safetensors")'
        ),
        "page": "mahalens report FOLDER",
        "versions": f"mahalens {record.mahalens} and torch {record.torch}",
    }
