"""An audit as a folder: the record, its tables, figures and page.

torch is loaded by the functions that take or give a record, because the command line asks
:func:`require_free` before it loads anything heavy.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout

from mahalens.errors import InputError, RunFolderError, require_extra
from mahalens.files import LEFT_OVER, contents, is_folder, write_file
from mahalens.report.records import is_record
from mahalens.report.tables import environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mahalens.auditing.record import AuditRecord

JSON, RECORD, PAGE, FIGURES, LOCK = (
    "audit.json",
    "audit.safetensors",
    "report.html",
    "figures",
    ".lock",
)
TABLES = ("layers", "units", "classes", "pairs", "perturbation")
_OWN = (JSON, RECORD, PAGE, *(f"{name}.csv" for name in TABLES))
_OWN_FIGURES = re.compile(r"(overview|layer-\d+-[\w.-]*)\.png")

SCRIPTS = ("base", "charts", "tables", "strips", "node", "panels", "main")
"""The parts of the page's script in ``templates/audit``, in the order they are read."""
DRAWN_LAYERS = 60
"""Layers that get a figure of their own; each takes half a second to draw."""
_DPI = 150
_LAYER_FIGURE = re.compile(r"layer-\d+-[\w.-]*\.png")

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


def require_free(path: Path, *, force: bool = False) -> None:
    """Refuse a folder that holds other things, or an audit unless it is to be replaced."""
    content = contents(path, apart_from=LOCK)
    if not content:
        return
    if JSON not in content:
        raise RunFolderError(
            f"{path}: already holds other files ({content[0]}); give --out a new or empty folder"
        )
    if not force:
        raise RunFolderError(
            f"{path}: already holds an audit; replace it with --force, or give --out another folder"
        )


def write_audit(record: AuditRecord, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write everything there is to an audit into a new or empty folder; return its page.

    That is ``audit.json`` for people and programs, ``audit.safetensors`` for
    :func:`mahalens.load_audit`, the tables ``layers.csv``, ``units.csv``, ``classes.csv``,
    ``pairs.csv`` and ``perturbation.csv`` as far as they have rows, ``figures/*.png`` and
    ``report.html``. With ``force`` an older audit is replaced, and nothing else. Every file is
    written under a temporary name and moved into place.
    """
    from mahalens.auditing.record_tables import audit_text, write_tables

    folder = Path(path)
    require_free(folder, force=force)
    with _locked(folder):
        require_free(folder, force=force)  # again: another process may have been here meanwhile
        _clear(folder)
        # First, for it makes the folder one of an audit.
        write_file(folder / JSON, audit_text(record).encode())
        record.save(folder / RECORD)
        write_tables(record, folder)
        return write_audit_report(record, folder)


def load_audit_folder(path: Path) -> AuditRecord:
    """Return the record in an audit's folder, or in the file itself."""
    from mahalens.auditing.record import load_audit

    if not is_folder(path):
        if path.suffix == ".safetensors":
            return load_audit(path)
        what = "not a folder" if path.exists() else "there is no such folder"
        raise RunFolderError(f"{path}: {what}; give the folder of an audit")
    if not is_record(path / RECORD):
        raise RunFolderError(
            f"{path}: holds no audit; make one with 'mahalens audit MODEL --data DATA --out {path}'"
        )
    return load_audit(path / RECORD)


def _clear(folder: Path) -> None:
    """Remove the files of an older audit, and nothing else.

    Its ``audit.json`` stays until the new one is moved into its place.
    """
    old = [folder / name for name in _OWN if name != JSON]
    old += [file for file in folder.glob(".*.tmp") if LEFT_OVER.fullmatch(file.name)]
    old += [file for file in (folder / FIGURES).glob("*.png") if _OWN_FIGURES.fullmatch(file.name)]
    for file in old:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{file}: cannot be removed ({error.strerror}); give --out another folder"
            ) from None
    with contextlib.suppress(OSError):  # it is not there, or holds files of the user
        (folder / FIGURES).rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise RunFolderError(
            f"{folder}: another process is working in it; wait for it or stop it first"
        ) from None
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written ({error.strerror}); give --out a folder you may write to"
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()


# --- The page ---------------------------------------------------------------------------------


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
    from mahalens.auditing.record import AuditRecord
    from mahalens.report.audit.tables import with_visible_text

    if not isinstance(record, AuditRecord):
        raise InputError(
            f"a record of an audit is wanted, but {type(record).__name__} was given; "
            "mahalens.audit(model, data) and mahalens.load_audit(path) give one"
        )
    modules = ("PIL", "jinja2", *(["matplotlib"] if figures else []))
    require_extra("report", "the page of an audit", *modules)
    page = Path(folder) / PAGE
    write_file(page, render_audit_page(record).encode("utf-8", errors="replace"))
    if figures:
        _write_figures(with_visible_text(record), page.parent / FIGURES)
    return page


def _write_figures(record: AuditRecord, folder: Path) -> None:
    """Draw the network and its first layers; remove figures of an earlier record."""
    from mahalens.report.audit.strips import draw_overview, draw_strips
    from mahalens.report.style import styled

    written = []
    with styled():
        if record.layers:
            write_file(folder / "overview.png", _as_png(draw_overview(record)))
        for place, layer in enumerate(record.layers[:DRAWN_LAYERS], start=1):
            written.append(figure_name(place, layer.name))
            write_file(folder / written[-1], _as_png(draw_strips(record, layer)))
    # Figures of an earlier record would show what this one does not hold.
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _LAYER_FIGURE.fullmatch(path.name) and path.name not in written:
                path.unlink()


def render_audit_page(record: AuditRecord) -> str:
    """Return the page as text: one HTML document that refers to nothing outside itself."""
    from markupsafe import Markup

    from mahalens.auditing.verdict import RULE
    from mahalens.report.audit.payload import as_script, page_data
    from mahalens.report.audit.tables import layer_table, with_visible_text, words_of

    record = with_visible_text(record)
    folder = files("mahalens.report") / "templates" / "audit"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    script = "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        environment()
        .get_template("audit/page.html.j2")
        .render(
            title=record.model,
            headline=record.verdict,
            lead=lead(record),
            **layer_table(record),
            rule=RULE,
            words=words_of(record),
            skipped=record.skipped,
            notes=record.notes,
            settings=settings_of(record),
            again=again(record),
            most_drawn=DRAWN_LAYERS,
            # Only this very script may run, whatever a name in the record holds.
            script=Markup(script),
            script_hash=f"'sha256-{digest}'",
            data=Markup(as_script(page_data(record))),
        )
    )


def lead(record: AuditRecord) -> list[tuple[str, str]]:
    """Return short facts that stand under the headline."""
    data, layers = record.data, len(record.layers)
    shape = " × ".join(str(size) for size in data.shape) or "one number"
    samples = f"{data.samples:,} samples of {shape}"
    units = sum(layer.units_count for layer in record.layers)
    classes = {
        "given": ("Classes", f"{len(data.classes):,}"),
        "clusters": ("Clusters", f"{len(data.classes):,}, found by k-means: there were no labels"),
    }
    accuracy = record.accuracy
    return [
        ("Network", record.model),
        *([] if accuracy is None else [("Accuracy", f"{100 * accuracy:.2f} %")]),
        ("Data", f"{data.source}, {samples}" if data.source else samples),
        classes.get(data.labels, ("Classes", "none: the data has no labels")),
        ("Read", f"{layers:,} layer{'' if layers == 1 else 's'}, {units:,} units"),
    ]


def settings_of(record: AuditRecord) -> list[tuple[str, str]]:
    """Return the settings in words."""

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return ", ".join(f"{item:g}" for item in value) or "none"
        return "none" if value is None else f"{value:g}" if type(value) is float else f"{value:,}"

    return [(_SETTINGS[name], text(getattr(record.settings, name))) for name in _SETTINGS]


def again(record: AuditRecord) -> dict[str, Any]:
    """Return how to make the record and the page again."""
    from mahalens.auditing.record import Settings
    from mahalens.auditing.record_tables import shortened

    usual = msgspec.structs.asdict(Settings())
    settings = msgspec.structs.asdict(record.settings).items()
    changed = "".join(f", {name}={value!r}" for name, value in settings if value != usual[name])
    return {
        "code": f'record = mahalens.audit(model, data{changed})\nrecord.save("audit.safetensors")',
        "page": "mahalens report FOLDER",
        "versions": f"mahalens {record.mahalens} and torch {record.torch}",
        "shortened": shortened(record),
    }


def _as_png(figure: Figure) -> bytes:
    """Return a figure as PNG, compressed quickly rather than well: there may be many."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, pil_kwargs={"compress_level": 3})
    return buffer.getvalue()


def figure_name(number: int, layer: str) -> str:
    """Return the file name of a layer's figure.

    >>> figure_name(3, "encoder/block.0 <q>")
    'layer-003-encoder_block.0_q_.png'
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", layer)[:60]
    return f"layer-{number:03d}-{safe}.png"
