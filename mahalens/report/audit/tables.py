"""The table of layers, on the page and in the terminal, and the words and looks of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.auditing.record_tables import Row, layer_row, shortened
from mahalens.auditing.verdict import Verdict
from mahalens.progress import printable
from mahalens.report.tables import MISSING, is_number, number

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")

MOST_LAYERS = 60
"""More layers than this are not in the terminal, but in the CSV files and on the page."""
_LONGEST = 27  # characters of a name in a table


class Look(NamedTuple):
    """Colour, sign and meaning of a verdict."""

    kind: str
    """Its class in the style sheet."""
    symbol: str
    colour: str
    """In figures."""
    style: str = ""
    """In the terminal."""
    meaning: str = ""


VERDICTS = {
    "distance-like": Look(
        *("distance", "◎", "#0072B2", "green"),
        "Hyperplanes pass through classes clearly more often than by chance: the units measure how "
        "far an input is from a prototype.",
    ),
    "intensity-like": Look(
        *("intensity", "▲", "#D55E00", "yellow"),
        "Hyperplanes keep clear of the classes, more than by chance: the units measure how strong "
        "a feature is.",
    ),
    "mixed": Look(
        *("mixed", "◐", "#8a6d00", ""),
        "The signs point both ways, or are too weak to call: more samples could tip them.",
    ),
    "even": Look(
        *("even", "≈", "#5b4a9e", "blue"),
        "Hyperplanes pass through classes about as often as by chance.",
    ),
    "too few units": Look(
        *("few", "…", "#6b7480", "dim"), "The layer has too few live units to tell it from chance."
    ),
    "not judged": Look(
        *("unjudged", "?", "#6b7480", "dim"),
        "Nothing sets the layer apart from chance or from an untrained network, or there is "
        "nothing to judge it by.",
    ),
    "broken": Look(
        *("broken", "✕", "#9c0033", "red"),
        "Most units are dead or saturated, or no unit responds to most of the data.",
    ),
}


def look_of(word: str) -> Look:
    """Return the look of a verdict; a word from another version looks neutral.

    >>> look_of("distance-like").symbol
    '◎'
    """
    return VERDICTS.get(word, Look("unknown", "·", "#8a8a8a"))


def words_of(record: AuditRecord) -> list[dict[str, Any]]:
    """Return the verdicts that occur, in a fixed order: their look, count and meaning."""
    counts = Counter(layer.verdict.word for layer in record.layers)
    looks = {word: look_of(word) for word in {**VERDICTS, **counts} if word in counts}
    return [
        {
            "word": word,
            "kind": look.kind,
            "symbol": look.symbol,
            "count": counts[word],
            "meaning": look.meaning,
        }
        for word, look in looks.items()
    ]


def with_visible_text(value: T) -> T:
    """Return a record, or a part of one, in which every text is printable.

    Names of layers and classes come from files, and may hold what a terminal or a page obeys.
    """
    shown: Any = value
    if isinstance(value, str):
        shown = printable(value)
    elif isinstance(value, msgspec.Struct):
        parts = msgspec.structs.asdict(value).items()
        shown = type(value)(**{name: with_visible_text(part) for name, part in parts})
    elif isinstance(value, dict):
        shown = {printable(name): with_visible_text(part) for name, part in value.items()}
    elif isinstance(value, tuple) and not (value and isinstance(value[0], int)):
        shown = tuple(map(with_visible_text, value))
    result: T = shown
    return result


def rarest(layer: LayerRecord) -> tuple[str | None, tuple[int, ...]]:
    """Return the largest threshold of rarely active units, and these units."""
    threshold = max(layer.units.rare, key=float, default=None)
    return threshold, () if threshold is None else layer.units.rare[threshold]


def percent(share: float) -> str:
    """Return a share in per cent, with as many figures as tell something.

    >>> percent(0.12345), percent(1.0), percent(0.0004)
    ('12 %', '100 %', '0.04 %')
    """
    value = 100 * share
    if 0 < value < 1:
        return f"{number(value, figures=1)} %"
    if value != 100 and value >= 99.5:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.0f} %"


def signed(value: float | None) -> str:
    """Return a number between -1 and 1 with its sign.

    >>> signed(0.314), signed(-0.001), signed(None)
    ('+0.31', '0.00', '–')
    """
    if value is None or not is_number(value):
        return MISSING
    # Two decimals, and no "-0.00".
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−") if round(value, 2) else "0.00"


def interval_of(verdict: Verdict) -> str:
    """Return the interval of a score, empty if it was not measured."""
    low, high = verdict.interval or (None, None)
    if not is_number(low) or not is_number(high):
        return ""
    return f"{signed(low)} to {signed(high)}"


def short_name(name: str) -> str:
    """Return the end of a long name, which distinguishes the layers of one network.

    >>> short_name("encoder.layers.0.attention.self.query")
    '…ers.0.attention.self.query'
    """
    if not name:
        return "(no name)"
    return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :].lstrip(".")


# --- On the page --------------------------------------------------------------------------------


# By key in the row of ``layers.csv``, or ``rare``: label, help, and how a value is written.
_COLUMNS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "score": (
        "Score",
        "how much more often hyperplanes pass through classes than by chance, −1 to 1; "
        "below it its 95 % interval, where one was measured",
        signed,
    ),
    "share": (
        "Through a class",
        "share of the live units whose hyperplane passes through a class; the tick is chance",
        percent,
    ),
    "chance": (
        "By chance",
        "share expected if every hyperplane were moved to the row of a random sample",
        percent,
    ),
    "units": ("Units", "", number),
    "kind": ("Kind", "", str),
    "activation": ("Activation", "the function that follows", str),
    "dead": ("Dead", "units that are never active", number),
    "rare": ("Rare", "units that are rarely active, dead ones included", number),
    "mirrored_pairs": ("Mirrored pairs", "pairs of units with opposite directions", number),
    "duplicate_pairs": ("Duplicate pairs", "pairs of units with the same hyperplane", number),
    "sphericity": (
        "Sphericity",
        "how far the layer's output is from white: 0 is exact whitening",
        number,
    ),
    "perturbation_index": (
        "Perturbation index",
        "−1: relies on intensities only; 1: on distances only",
        signed,
    ),
}


def layer_table(record: AuditRecord) -> dict[str, Any]:
    """Return columns and rows of the table of layers, without columns in which all is missing."""
    rows = [_page_row(place, layer) for place, layer in enumerate(record.layers)]
    columns = zip(*(row["cells"] for row in rows), strict=True)
    known = [any(cell["text"] != MISSING for cell in column) for column in columns]
    for row in rows:
        row["cells"] = list(compress(row["cells"], known))
    heads = [
        {"label": "Layer", "help": "in the order of the network", "text": True},
        {"label": "Verdict", "help": "see the words and the rule below", "text": True},
    ]
    heads += [
        {"label": label, "help": text, "text": write is str}
        for label, text, write in compress(_COLUMNS.values(), known)
    ]
    return {"rows": rows, "columns": heads}


def _page_row(place: int, layer: LayerRecord) -> dict[str, Any]:
    """Return a line of the table: what is shown, and what it is sorted by."""
    row, verdict = _row(layer), layer.verdict
    look = look_of(verdict.word)
    return {
        "place": place,
        "name": layer.name,
        "shown": short_name(layer.name),
        "verdict": verdict.word,
        "verdict_kind": look.kind,
        "meaning": look.meaning,
        "symbol": look.symbol,
        **{name: _position(getattr(verdict, name)) for name in ("share", "chance")},
        "cells": [_cell(layer, name, row[name]) for name in _COLUMNS],
    }


def _cell(layer: LayerRecord, column: str, value: Any) -> dict[str, Any]:
    """Return a cell; one with a value that is missing or not finite is always sorted last."""
    write = _COLUMNS[column][2]
    known = write is str or is_number(value)
    return {
        "text": write(value) if known else MISSING,
        "sort": value if write is str else repr(value) if known else "",
        "numeric": write is not str,
        "bar": column == "share" and known,
        "below": interval_of(layer.verdict) if column == "score" else "",
    }


def _row(layer: LayerRecord) -> Row:
    """Return the row of ``layers.csv``, with the units below the largest threshold as ``rare``."""
    threshold, units = rarest(layer)
    return {**layer_row(layer), "rare": None if threshold is None else len(units)}


def _position(share: float | None) -> str | None:
    """Return a share as a place in a bar of 100."""
    if share is None or not is_number(share):
        return None
    return f"{100 * min(max(share, 0.0), 1.0):.1f}"


# --- In the terminal ----------------------------------------------------------------------------


_NUMBERS = ("units", "dead", "rare", "saturated", "mirrored", "duplicate", "through", "chance")


def layers_table(record: AuditRecord) -> Table:
    """Return a line for each layer: what it is, what is wrong with its units, and the verdict."""
    from rich.table import Column, Table
    from rich.text import Text

    record = with_visible_text(record)
    perturbed = any(layer.perturbation is not None for layer in record.layers)
    title = f"{record.model}: {record.data.samples:,} samples"
    if record.accuracy is not None:
        title += f", accuracy {record.accuracy:.2%}"
    legend = [f"{word['word']}: {word['meaning']}" for word in words_of(record) if word["meaning"]]
    if rest := record.layers[MOST_LAYERS:]:
        words = Counter(layer.verdict.word for layer in rest)
        counts = ", ".join(f"{count} {word}" for word, count in words.items())
        legend.insert(0, f"and {len(rest)} more layers, in layers.csv: {counts}")
    table = Table(
        *(Column(name, overflow="fold") for name in ("layer", "kind")),
        *(Column(name, justify="right") for name in (*_NUMBERS, *["index"][:perturbed], "score")),
        "verdict",
        title=Text(title),
        title_justify="left",
        title_style="bold",
        caption=Text("\n".join([*legend, *shortened(record)])),
        caption_justify="left",
    )
    for layer in record.layers[:MOST_LAYERS]:
        table.add_row(*_terminal_row(layer, perturbed))
    return table


def _terminal_row(layer: LayerRecord, perturbed: bool) -> list[str | Text]:
    from rich.text import Text

    row, verdict = _row(layer), layer.verdict
    follows = "" if layer.activation == "none" else f" + {layer.activation}"
    counts = [row[f"{n}{'_pairs' * (n in ('mirrored', 'duplicate'))}"] for n in _NUMBERS[1:6]]
    shares = (verdict.share, verdict.chance)
    cells: list[str | Text] = [
        Text(layer.name),  # as it is: rich would take [b] for markup
        Text(f"{layer.kind}{follows}"),
        f"{layer.units_count:,}",
        *("" if count is None else f"{count:,}" if count else MISSING for count in counts),
        *(MISSING if share is None else f"{share:.0%}" for share in shares),
    ]
    if perturbed:
        index = row["perturbation_index"]
        cells.append("" if index is None else f"{index:+.2f}")
    interval = interval_of(verdict)
    cells.append(signed(verdict.score) + (f" ({interval})" if interval else ""))
    return [*cells, Text(verdict.word, style=look_of(verdict.word).style)]
