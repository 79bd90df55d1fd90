"""An audit in the terminal: a line for each layer, and the network in a sentence."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.auditing.records.frames import shortened
from mahalens.report.audit.about import interval_of, signed, words_of
from mahalens.report.audit.compact import with_visible_text

_STYLES = {
    "distance-like": "green",
    "intensity-like": "yellow",
    "even": "blue",
    "too few units": "dim",
    "not judged": "dim",
    "broken": "red",
}
MOST_LAYERS = 60
"""More layers than this are in the tables and the page only."""


def layers_table(record: AuditRecord) -> Table:
    """A line for each layer: what it is, what is wrong with its units, and the verdict."""
    record = with_visible_text(record)
    perturbed = any(layer.perturbation is not None for layer in record.layers)
    shown = record.layers[:MOST_LAYERS]
    title = f"{record.model}: {record.data.samples:,} samples"
    if record.accuracy is not None:
        title += f", accuracy {record.accuracy:.2%}"
    legend = [f"{word['word']}: {word['meaning']}" for word in words_of(record) if word["meaning"]]
    if left := record.layers[MOST_LAYERS:]:
        words = Counter(layer.verdict.word for layer in left)
        counts = ", ".join(f"{count} {word}" for word, count in words.items())
        legend.insert(0, f"and {len(left)} more layers, in layers.csv: {counts}")
    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        caption=Text("\n".join([*legend, *shortened(record)])),
        caption_justify="left",
    )
    for name in ("layer", "kind"):
        table.add_column(name, overflow="fold")
    numbers = ("units", "dead", "rare", "saturated", "mirrored", "duplicate", "through", "chance")
    for name in numbers:
        table.add_column(name, justify="right")
    if perturbed:
        table.add_column("index", justify="right")
    table.add_column("score", justify="right")
    table.add_column("verdict")
    for layer in shown:
        table.add_row(*_cells(layer, perturbed))
    return table


def _cells(layer: LayerRecord, perturbed: bool) -> list[str | Text]:
    units, pairs, verdict = layer.units, layer.pairs, layer.verdict
    follows = "" if layer.activation == "none" else f" + {layer.activation}"
    rarest = max(units.rare, key=float, default=None)
    cells: list[str | Text] = [
        Text(layer.name),  # as it is: rich would take [b] for markup
        Text(f"{layer.kind}{follows}"),
        f"{layer.units_count:,}",
        _count(len(units.dead)),
        "" if rarest is None else _count(len(units.rare[rarest])),
        _count(len(units.saturated)),
        "" if pairs is None else _count(len(pairs.mirrored)),
        "" if pairs is None else _count(len(pairs.duplicate)),
        "–" if verdict.share is None else f"{verdict.share:.0%}",
        "–" if verdict.chance is None else f"{verdict.chance:.0%}",
    ]
    if perturbed:
        index = None if layer.perturbation is None else layer.perturbation.index
        cells.append("" if index is None else f"{index:+.2f}")
    between = interval_of(verdict)
    cells.append(signed(verdict.score) + (f" ({between})" if between else ""))
    return [*cells, Text(verdict.word, style=_STYLES.get(verdict.word, ""))]


def _count(number: int) -> str:
    return f"{number:,}" if number else "–"
