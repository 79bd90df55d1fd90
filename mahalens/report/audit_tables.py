"""An audit in the terminal: a line for each layer, and the network in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mahalens.auditing.record import AuditRecord, LayerRecord

_STYLES = {"distance-like": "green", "intensity-like": "yellow", "broken": "red"}
MOST_LAYERS = 60
"""More layers than this are in the tables and the page only."""


def layers_table(record: AuditRecord) -> Table:
    """A line for each layer: what it is, what is wrong with its units, and the verdict."""
    perturbed = any(layer.perturbation is not None for layer in record.layers)
    shown = record.layers[:MOST_LAYERS]
    left = len(record.layers) - len(shown)
    table = Table(
        title=f"{record.model}: {record.data.samples:,} samples"
        + (f", accuracy {record.accuracy:.2%}" if record.accuracy is not None else ""),
        title_justify="left",
        title_style="bold",
        caption=f"and {left} more layers, in layers.csv" if left else None,
        caption_justify="left",
    )
    for name in ("layer", "kind"):
        table.add_column(name, overflow="fold")
    numbers = ("units", "dead", "rare", "saturated", "mirrored", "duplicate", "through", "chance")
    for name in numbers:
        table.add_column(name, justify="right")
    if perturbed:
        table.add_column("index", justify="right")
    table.add_column("verdict")
    for layer in shown:
        table.add_row(*_cells(layer, perturbed))
    return table


def _cells(layer: LayerRecord, perturbed: bool) -> list[str | Text]:
    units, pairs, verdict = layer.units, layer.pairs, layer.verdict
    follows = "" if layer.activation == "none" else f" + {layer.activation}"
    rarest = max(units.rare, key=float, default=None)
    cells: list[str | Text] = [
        layer.name,
        f"{layer.kind}{follows}",
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
    return [*cells, Text(verdict.word, style=_STYLES.get(verdict.word, ""))]


def _count(number: int) -> str:
    return f"{number:,}" if number else "–"
