"""Reading regular files only, writing files whole or not at all, and fingerprints of content."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from mahalens.errors import InputError, RunFolderError

_BLOCK = 1 << 20


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises :class:`~mahalens.errors.InputError` for a pipe, a device or a socket, which might never
    end, and :class:`OSError` as :func:`open` does.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # open() itself refuses a folder
        raise InputError(f"{path}: is {name_of(mode)}, not a file; put a regular file in its place")
    # Should a pipe take its place right now, opening it does not wait for a writer.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))


_AT_ONCE = getattr(os, "O_NONBLOCK", 0)


def name_of(mode: int) -> str:
    """Return in words what a mode says a path leads to, if not to a file."""
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def is_folder(path: Path) -> bool:
    """Return whether a path leads to a folder; raise if the system does not accept the name."""
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        name = str(path) if len(str(path)) < 100 else f"{str(path)[:97]}..."
        raise RunFolderError(f"{name}: cannot be a folder ({reason}); give another name") from None


def read_file(path: Path) -> bytes:
    """Read a regular file as :func:`open_file` opens it."""
    with open_file(path) as stream:
        return stream.read()


class Fingerprint(msgspec.Struct, frozen=True):
    """SHA-256 and length of a file's content."""

    sha256: str
    bytes: int


def fingerprint_of(content: bytes) -> Fingerprint:
    """Return the fingerprint of some bytes."""
    return Fingerprint(hashlib.sha256(content).hexdigest(), len(content))


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a file, of its unpacked content if its name ends in ``.gz``.

    A file that a browser unpacked under its old name is read as it is. Files are read in blocks,
    and again only after they have changed. The fingerprint of a folder covers names and contents of
    all files below it.
    """
    if path.is_dir():
        below = sorted(file for file in path.rglob("*") if file.is_file())
        files = {file.relative_to(path).as_posix(): fingerprint(file) for file in below}
        whole = fingerprint_of(msgspec.json.encode(files))
        return Fingerprint(whole.sha256, sum(file.bytes for file in files.values()))
    status = os.stat(path)
    return _fingerprint(path, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _fingerprint(path: Path, *version: int) -> Fingerprint:
    del version  # distinguishes a changed file from the one that was read before
    digest, length = hashlib.sha256(), 0
    try:
        with open_file(path) as raw:
            packed = path.suffix == ".gz" and raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else raw as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
                    length += len(block)
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be unpacked ({error})") from None
    return Fingerprint(digest.hexdigest(), length)


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` under a temporary name beside ``path``, then move it into place.

    The folder is made if it is missing. After a crash at any moment the old file or the new one
    is there, whole.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


LEFT_OVER = re.compile(r"\..+\.\d+\.tmp")
"""Names of temporary files that a process killed while writing leaves behind."""


def contents(folder: Path, *, apart_from: str = "") -> list[str]:
    """List the names in a folder for results, sorted; none if the folder does not exist yet."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        fault = "is a file" if folder.exists() else "lies below a file"
        raise RunFolderError(f"{folder}: {fault}; give --out a folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{folder}: cannot be read ({reason})") from None
    return [name for name in names if name != apart_from and not LEFT_OVER.fullmatch(name)]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to; the file written there is then moved to ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            # Some writers, safetensors among them, put a file that only its owner may read there.
            temporary.chmod(mode)
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}); check the folder's permissions and "
            "the space left on the disk"
        ) from None
