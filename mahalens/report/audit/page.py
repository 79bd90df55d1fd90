"""Writes the page of an audit and, on demand, its figures."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from mahalens.auditing.record import AuditRecord
from mahalens.files import write_file
from mahalens.report.audit import about
from mahalens.report.audit.compact import with_visible_text
from mahalens.report.audit.payload import as_script, page_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCRIPTS = ("base", "charts", "tables", "strips", "node", "panels", "main")
"""The parts of the page's script in ``templates/audit``, in the order they are read."""
DRAWN_LAYERS = 60
"""Layers that get a figure of their own; each takes half a second to draw."""
_DPI = 150
_LAYER_FIGURE = re.compile(r"layer-\d+-[\w.-]*\.png")


def write_audit_report(
    record: AuditRecord, folder: str | os.PathLike[str], *, figures: bool = False
) -> Path:
    """Write ``report.html`` of an audit into a folder; return the page.

    The page is one file that opens without a network and draws its pictures itself. With
    ``figures`` the pictures of the network and of its layers are written as ``figures/*.png``
    too, for papers and slides, which takes about half a second each; those that an earlier record
    left in the folder are then removed. Every file is written under a temporary name and moved
    into place.

    Args:
        record: what :func:`mahalens.audit` or :func:`mahalens.load_audit` gave.
        folder: made if it is missing.
        figures: whether to draw ``figures/*.png``.

    Raises:
        InputError: if ``record`` is something else.
        RunFolderError: if the folder cannot be written.
    """
    from mahalens.errors import InputError

    if not isinstance(record, AuditRecord):
        raise InputError(
            f"a record of an audit is wanted, but {type(record).__name__} was given; "
            "mahalens.audit(model, data) and mahalens.load_audit(path) give one"
        )
    page = Path(folder) / "report.html"
    write_file(page, render_audit_page(record).encode("utf-8", errors="replace"))
    if figures:
        _write_figures(with_visible_text(record), page.parent / "figures")
    return page


def _write_figures(record: AuditRecord, folder: Path) -> None:
    """Draw the network and its first layers; remove figures of an earlier record."""
    from mahalens.report.audit.overview import draw_overview
    from mahalens.report.audit.strips import draw_strips
    from mahalens.report.figures.style import styled

    written = set()
    with styled():
        if record.layers:
            write_file(folder / "overview.png", as_png(draw_overview(record)))
            written.add("overview.png")
        for number, layer in enumerate(record.layers[:DRAWN_LAYERS], start=1):
            name = figure_name(number, layer.name)
            write_file(folder / name, as_png(draw_strips(record, layer)))
            written.add(name)
    # Figures of an earlier record would show what this one does not hold.
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _LAYER_FIGURE.fullmatch(path.name) and path.name not in written:
                path.unlink()


def render_audit_page(record: AuditRecord) -> str:
    """The page as text: one HTML document that refers to nothing outside itself."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from mahalens.auditing.verdicts import RULE

    environment = Environment(
        loader=PackageLoader("mahalens.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    record = with_visible_text(record)
    script = page_script()
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("audit/page.html.j2").render(
        title=record.model,
        headline=record.verdict,
        lead=about.lead(record),
        **about.layer_table(record),
        rule=RULE,
        words=about.words_of(record),
        skipped=record.skipped,
        notes=record.notes,
        settings=about.settings_of(record),
        again=about.again(record),
        most_drawn=DRAWN_LAYERS,
        # Only this very script may run, whatever a name in the record holds.
        script=Markup(script),
        script_hash=f"'sha256-{digest}'",
        data=Markup(as_script(page_data(record))),
    )


def page_script() -> str:
    """The script of the page: its parts in order, with nothing left in the global scope."""
    folder = files("mahalens.report") / "templates" / "audit"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"


def as_png(figure: Figure) -> bytes:
    """A figure as PNG, for there may be many: compressed quickly rather than well."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, pil_kwargs={"compress_level": 3})
    return buffer.getvalue()


def figure_name(number: int, layer: str) -> str:
    """The file name of a layer's figure.

    >>> figure_name(3, "encoder/block.0 <q>")
    'layer-003-encoder_block.0_q_.png'
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", layer)[:60]
    return f"layer-{number:03d}-{safe}.png"
