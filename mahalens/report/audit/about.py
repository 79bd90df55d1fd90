"""What stands around the pictures: headline, table of layers, settings, how to do it again."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import Any

from mahalens.auditing.readings import Verdict
from mahalens.auditing.record import AuditRecord, LayerRecord, Settings
from mahalens.auditing.records.frames import shortened
from mahalens.report.audit.marks import MEANINGS, VERDICTS, verdict_mark
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

_COLUMNS = (
    ("Layer", "in the order of the network"),
    ("Verdict", "see the words and the rule below"),
    (
        "Score",
        "how much more often hyperplanes pass through classes than by chance, −1 to 1; "
        "below it its 95 % interval, where one was measured",
    ),
    (
        "Through a class",
        "share of the live units whose hyperplane passes through a class; the tick is chance",
    ),
    ("By chance", "share expected if every hyperplane were moved to the row of a random sample"),
    ("Units", ""),
    ("Kind", ""),
    ("Activation", "the function that follows"),
    ("Dead", "units that are never active"),
    ("Rare", "units that are rarely active, dead ones included"),
    ("Mirrored pairs", "pairs of units with opposite directions"),
    ("Duplicate pairs", "pairs of units with the same hyperplane"),
    ("Sphericity", "how far the layer's output is from white: 0 is exact whitening"),
    ("Perturbation index", "−1: relies on intensities only; 1: on distances only"),
)
_TEXTS = ("Layer", "Verdict", "Kind", "Activation")


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


def layer_table(record: AuditRecord) -> dict[str, Any]:
    """Columns and rows of the table of layers; a column in which all is missing is left out."""
    rows = [layer_row(place, layer) for place, layer in enumerate(record.layers)]
    cells = zip(*(row["cells"] for row in rows), strict=True)
    told = [any(cell["text"] != MISSING for cell in column) for column in cells]
    for row in rows:
        row["cells"] = list(compress(row["cells"], told))
    columns = compress(_COLUMNS, [True, True, *told])
    return {
        "rows": rows,
        "columns": [
            {"label": label, "told": words, "text": label in _TEXTS} for label, words in columns
        ],
    }


def layer_row(place: int, layer: LayerRecord) -> dict[str, Any]:
    """A line of the table of layers: what is shown, and what it is sorted by."""
    verdict, pairs, white = layer.verdict, layer.pairs, layer.whitening
    kind, symbol, _ = verdict_mark(verdict.word)
    index = None if layer.perturbation is None else layer.perturbation.index
    return {
        "place": place,
        "name": layer.name,
        "shown": short_name(layer.name),
        "verdict": verdict.word,
        "verdict_kind": kind,
        "meaning": MEANINGS.get(verdict.word, ""),
        "symbol": symbol,
        "share": _position(verdict.share),
        "chance": _position(verdict.chance),
        "cells": [
            _cell(verdict.score, signed(verdict.score), below=interval_of(verdict)),
            _cell(verdict.share, percent(verdict.share), bar=True),
            _cell(verdict.chance, percent(verdict.chance)),
            _cell(layer.units_count),
            _cell(layer.kind),
            _cell(layer.activation),
            _cell(len(layer.units.dead)),
            _cell(len(rarest(layer)[1]) if layer.units.rare else None),
            _cell(None if pairs is None else len(pairs.mirrored)),
            _cell(None if pairs is None else len(pairs.duplicate)),
            _cell(None if white is None else white.sphericity),
            _cell(index, signed(index)),
        ],
    }


def interval_of(verdict: Verdict) -> str:
    """The interval of a score, empty if it was not measured.

    Records of earlier versions have none.
    """
    low, high = getattr(verdict, "interval", None) or (None, None)
    if low is None or high is None or not is_number(low) or not is_number(high):
        return ""
    return f"{signed(low)} to {signed(high)}"


def evidence(verdict: Verdict) -> list[tuple[str, str]]:
    """The numbers behind a verdict: its score, and how far it is from chance and from untrained."""
    facts = []
    if verdict.score is not None:
        between = interval_of(verdict)
        facts.append(("Score", signed(verdict.score) + (f" ({between})" if between else "")))
    for name, field in (
        ("Different from chance", "p_chance"),
        ("Different from untrained", "p_baseline"),
    ):
        p = getattr(verdict, field, None)
        if p is not None and is_number(p):
            facts.append((name, "p < 0.001" if p < 0.001 else f"p = {number(p, figures=2)}"))
    baseline = getattr(verdict, "baseline_score", None)
    if baseline is not None and is_number(baseline):
        facts.append(("Score when untrained", signed(baseline)))
    return facts


def _cell(
    value: Any, text: str | None = None, bar: bool = False, below: str = ""
) -> dict[str, Any]:
    """A cell; one whose value is missing or not finite comes last however it is sorted."""
    if isinstance(value, str):
        return {"text": value, "sort": value, "numeric": False, "bar": False, "below": ""}
    known = value is not None and is_number(value)
    shown = (text if text is not None else number(value)) if known else MISSING
    sort = repr(value) if known else ""
    return {"text": shown, "sort": sort, "numeric": True, "bar": bar and known, "below": below}


def signed(value: float | None) -> str:
    """A number between -1 and 1 with its sign.

    >>> signed(0.314), signed(-0.001), signed(None)
    ('+0.31', '0.00', '–')
    """
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


def words_of(record: AuditRecord) -> list[dict[str, Any]]:
    """The verdicts that occur, in a fixed order: how they look, how often, what they mean."""
    counts = Counter(layer.verdict.word for layer in record.layers)
    order = [*(word for word in VERDICTS if word in counts)]
    order += [word for word in counts if word not in VERDICTS]
    found = []
    for word in order:
        kind, symbol, _ = verdict_mark(word)
        meaning = MEANINGS.get(word, "")
        count = counts[word]
        found.append(
            {"word": word, "kind": kind, "symbol": symbol, "count": count, "meaning": meaning}
        )
    return found


def again(record: AuditRecord) -> dict[str, Any]:
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
        "shortened": shortened(record),
    }
