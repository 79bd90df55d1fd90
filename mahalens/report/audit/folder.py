"""An audit as a folder: the record, its tables, figures and page.

Only :func:`write_audit` and :func:`load_audit_folder` need torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mahalens.errors import RunFolderError
from mahalens.files import LEFT_OVER, contents, is_folder, write_file
from mahalens.report.records import is_record

if TYPE_CHECKING:
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
    from mahalens.report.audit.page import write_audit_report

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
    files = [folder / name for name in _OWN if name != JSON]
    files += [file for file in folder.glob(".*.tmp") if LEFT_OVER.fullmatch(file.name)]
    files += [
        file for file in (folder / FIGURES).glob("*.png") if _OWN_FIGURES.fullmatch(file.name)
    ]
    for file in files:
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
