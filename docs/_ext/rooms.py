"""Draws the picture of the rooms, which docs/architecture.md writes in mermaid's language.

Sites that know mermaid draw the block themselves with a script from the network. Here it becomes an
SVG, so that the page works offline and follows light and dark.
"""

from __future__ import annotations

import html
import re
import textwrap
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PLACES = {
    "cli": (1, 0),
    "report": (1, 1),
    "studies": (1, 2),
    "estimators": (2, 2),
    "train": (0, 3),
    "detection": (2, 3),
    "init": (1, 4),
    "auditing": (1.5, 5),
    "data": (0, 6),
    "nn": (1, 6),
    "stats": (2, 6),
    "geometry": (0.5, 7),
}
"""Column and row of each room. A new room needs a place at which no arrow crosses a box."""

_STEP, _WIDTH, _ROW, _HEIGHT = 260, 220, 96, 62  # columns and rows with their boxes, in pixels


def draw(text: str) -> str:
    """Return the SVG of a flowchart of rooms."""
    rooms = dict(re.findall(r'^\s*(\w+)\["<b>\w+</b><br/>(.*)"\]$', text, re.M))
    arrows = re.findall(r"^\s*(\w+) (-->|-\. on call \.->) (\w+)$", text, re.M)
    missing = sorted(set(rooms) - set(PLACES))
    if missing:
        raise ValueError(
            f"no place for {', '.join(missing)}; add one to PLACES in docs/_ext/rooms.py"
        )
    parts = [_arrow(start, end, kind) for start, kind, end in arrows]
    parts += [_box(name, line) for name, line in rooms.items()]
    width = 2 * _STEP + _WIDTH + 4
    height = max(PLACES[name][1] for name in rooms) * _ROW + _HEIGHT + 4
    head = f'<svg class="rooms" role="img" aria-label="Rooms and their imports" width="{width}"'
    return (
        f'<div class="wide">{head} viewBox="-2 -2 {width} {height}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{''.join(parts)}</svg></div>"
    )


def _corner(name: str) -> tuple[float, float]:
    column, row = PLACES[name]
    return column * _STEP, row * _ROW


def _box(name: str, line: str) -> str:
    x, y = _corner(name)
    rows = textwrap.wrap(html.unescape(line), 32)
    words = "".join(
        f'<text x="{x + _WIDTH / 2}" y="{y + 38 + 15 * place}">{html.escape(row)}</text>'
        for place, row in enumerate(rows)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>'
        f'<text class="name" x="{x + _WIDTH / 2}" y="{y + 20}">{name}</text>{words}'
    )


def _arrow(start: str, end: str, kind: str) -> str:
    (x1, y1), (x2, y2) = _corner(start), _corner(end)
    if y1 - y2 > 2 * _ROW:  # far up: through the corridor left of the middle column
        left, half = _STEP - (_STEP - _WIDTH) / 2, _HEIGHT / 2
        way = f"M{x1} {y1 + half}H{left}V{y2 + half}H{x2 - 1}"
        return f'<path class="on-call" d="{way}" marker-end="url(#tip)"/>'
    down = y2 > y1
    y1, y2 = (y1 + _HEIGHT, y2 - 1) if down else (y1, y2 + _HEIGHT + 1)
    dotted = "" if kind == "-->" else ' class="on-call"'
    middle = _WIDTH / 2
    return f'<path{dotted} d="M{x1 + middle} {y1}L{x2 + middle} {y2}" marker-end="url(#tip)"/>'


class Picture(SphinxDirective):
    """The directive ``mermaid``, for the one picture that the pages have."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing."""
        try:
            return [nodes.raw("", draw("\n".join(self.content)), format="html")]
        except ValueError as error:
            raise self.error(str(error)) from None


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known."""
    app.add_directive("mermaid", Picture)
    return {"version": "1", "parallel_read_safe": True}
