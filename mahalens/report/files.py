"""Reads and writes single files of a run folder; every fault is one line that names the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.errors import RunFolderError
from mahalens.files import read_file

T = TypeVar("T")

_REDO = "run the study again into a new folder, or bring the file back from a copy"


def damaged(path: Path, why: object) -> RunFolderError:
    """The error to raise for a record that is there but cannot be understood."""
    return RunFolderError(f"{path}: is damaged ({' '.join(str(why).split())}); {_REDO}")


def contents(path: Path) -> bytes:
    """The bytes of a record."""
    try:
        return read_file(path)
    except FileNotFoundError:
        raise RunFolderError(f"{path}: is missing; {_REDO}") from None
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror}); check that it is a file you may read"
        ) from None


def read_json(path: Path, shape: type[msgspec.Struct]) -> dict[str, Any]:
    """A JSON record as it stands, once it has been found to have the given shape."""
    try:
        record: dict[str, Any] = msgspec.json.decode(contents(path))
        msgspec.convert(record, shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(path, error) from None
    return record


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
            yield reader.line_num, dict(zip(header, cells, strict=True))
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
