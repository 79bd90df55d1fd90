"""Reads and writes single files of a run folder; every fault is one line that names the file."""

from __future__ import annotations

import csv
import io
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.console import printable
from mahalens.errors import RunFolderError
from mahalens.files import name_of, read_file

T = TypeVar("T")

_REDO = "run the study again into a new folder, or bring the file back from a copy"


def damaged(path: Path, why: object) -> RunFolderError:
    """The error to raise for a record that is there but cannot be understood."""
    return RunFolderError(f"{path}: is damaged ({' '.join(str(why).split())}); {_REDO}")


def _mode(path: Path) -> int | None:
    """What there is at a path, None if nothing; a path that cannot be is an error."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(
            f"{path}: cannot be read ({reason}); give a path that exists and you may read"
        ) from None


def is_record(path: Path) -> bool:
    """Return whether there is a file at ``path``; refuse pipes and devices, which may hang."""
    mode = _mode(path)
    if mode is None:
        return False
    if not stat.S_ISREG(mode):
        raise RunFolderError(
            f"{path}: is {name_of(mode)}, not a file; bring the file back from a copy"
        )
    return True


def contents(path: Path) -> bytes:
    """The bytes of a record."""
    if not is_record(path):
        raise RunFolderError(f"{path}: is missing; {_REDO}")
    try:
        return read_file(path)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror}); check that it is a file you may read"
        ) from None


def _shown(value: Any) -> Any:
    """A JSON value with all its texts printable: they go to terminals and pages."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _shown(part) for name, part in value.items()}
    return [_shown(part) for part in value] if isinstance(value, list) else value


def read_json(path: Path, shape: type[msgspec.Struct]) -> dict[str, Any]:
    """A JSON record as it stands, its texts printable, once it is known to have a shape."""
    try:
        record: dict[str, Any] = msgspec.json.decode(contents(path))
        msgspec.convert(record, shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, error) from None
    shown: dict[str, Any] = _shown(record)
    return shown


def read_csv(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Each line of a CSV file as a dictionary, with its line number."""
    try:
        text = contents(path).decode("utf-8")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(reader, [])
        absent = [name for name in wanted if name not in header]
        if absent:
            raise damaged(path, f"no column {absent[0]!r}")
        for cells in reader:
            if len(cells) != len(header):
                raise damaged(
                    path, f"line {reader.line_num} has {len(cells)} of {len(header)} cells"
                )
            yield reader.line_num, dict(zip(header, map(printable, cells), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise damaged(path, error) from None


def parse_cell(path: Path, line: int, column: str, text: str, kind: Callable[[str], T]) -> T:
    """A cell of a CSV file as a number."""
    try:
        return kind(text)
    except ValueError:
        raise damaged(path, f"line {line}, column {column}: {text!r} is not a number") from None


def float_or_nan(text: str) -> float:
    """A number, or NaN for an empty cell."""
    return float(text) if text.strip() else np.nan


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(contents(path))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None
