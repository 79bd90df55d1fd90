"""Runs the notebooks of the gallery when the site is built, and makes a page of each.

Code cells are run as Jupyter runs them, without Jupyter: the value of the last line is shown, and
so are the figures. Pages are written to ``docs/_notebooks``, which is not committed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from sphinx.application import Sphinx


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook with its output."""

    kind: str
    """``markdown`` or ``code``."""
    source: str
    text: str = ""
    """What it printed, and its value where that has no HTML."""
    html: str = ""
    figures: tuple[bytes, ...] = ()
    """PNG files."""


def run_notebook(path: Path) -> list[Cell]:
    """Return the cells of a notebook, run from top to bottom in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    with mpl.rc_context(), plt.ioff():
        plt.switch_backend("agg")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            is_code = cell["cell_type"] == "code"
            cells.append(_run(source, path, names) if is_code else Cell("markdown", source))
    return cells


def _run(source: str, path: Path, names: dict[str, Any]) -> Cell:
    """Run a code cell; the value of a last expression counts as output."""
    tree = ast.parse(source, str(path))
    silent = not tree.body or source.rstrip().endswith(";")
    last = None if silent or not isinstance(tree.body[-1], ast.Expr) else tree.body.pop()
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        exec(compile(tree, str(path), "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)
    html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
    text = printed.getvalue() + ("" if value is None or html else f"{value!r}\n")
    return Cell("code", source, text, html or "", tuple(_figures()))


def _figures() -> Iterator[bytes]:
    """Yield the open figures as PNG, and close them."""
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="png", dpi=150)
        plt.close(number)
        yield buffer.getvalue()


def page_of(name: str, cells: list[Cell], folder: Path) -> str:
    """Return the page of a notebook in MyST Markdown; its figures are written to ``folder``."""
    parts = []
    for place, cell in enumerate(cells):
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.text:
            parts.append(f"```text\n{cell.text.rstrip()}\n```")
        if cell.html:
            table = f'<div class="table-wrapper">\n{cell.html}\n</div>'  # scrolls on a phone
            parts.append(f"``````{{raw}} html\n{table}\n``````")
        for number, figure in enumerate(cell.figures):
            file = f"{name}-{place}-{number}.png"
            (folder / file).write_bytes(figure)
            parts.append(f"![Figure drawn by the cell above]({file})")
    parts.append(f"{{download}}`Download this notebook <../gallery/notebooks/{name}.ipynb>`")
    return "\n\n".join(parts) + "\n"


def write_pages(app: Sphinx) -> None:
    """Run every notebook and write its page, unless the page is newer than the notebook."""
    docs = Path(app.srcdir)
    folder = docs / "_notebooks"
    folder.mkdir(exist_ok=True)
    for path in sorted((docs / "gallery" / "notebooks").glob("*.ipynb")):
        page = folder / f"{path.stem}.md"
        if not page.exists() or page.stat().st_mtime < path.stat().st_mtime:
            page.write_text(page_of(path.stem, run_notebook(path), folder), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", write_pages)
    return {"version": "1", "parallel_read_safe": True}
