"""Labelled sequences of equal length, in the text format ``.ts`` of the UCR and UEA archives."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.data.dataset import LabelledData
from mahalens.data.formats import require_file, unreadable
from mahalens.data.named import SEQUENCE_SETS, find_set
from mahalens.errors import InputError

FILE_LIMIT = 1 << 28  # bytes; the largest named file has under 2 MB
TRAIN, TEST = "_TRAIN.ts", "_TEST.ts"
_WANTED = "a .ts file of labelled series"


@dataclass(frozen=True, eq=False, repr=False)
class Series:
    """Series with a class each: x ``[N, C, L]`` float32, C channels of L steps, y ``[N]`` int64."""

    problem: str
    """Its name in the archive."""
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    """The names of the classes, in the order in which the file declares them."""

    def __repr__(self) -> str:
        count, channels, steps = self.x.shape
        sizes = f"{count} series, channels={channels}, steps={steps}"
        return f"Series({self.problem[:40]!r}, {sizes}, classes={len(self.classes)})"


def load_series(name: str | os.PathLike[str]) -> tuple[Series, Series]:
    """Load the training and the test series of a named set, or of a user's ``X_TRAIN.ts``.

    Names are those of :data:`mahalens.data.named.SEQUENCES`; their files must be the published
    ones. Beside ``X_TRAIN.ts`` there must be ``X_TEST.ts``, with the same classes and shape.
    """
    if isinstance(name, str) and name in SEQUENCE_SETS:
        checksums = SEQUENCE_SETS[name].sha256
        train, test = (read_ts(path, checksums[file]) for file, path in find_set(name).items())
        return train, test
    first = Path(name)
    if not first.name.endswith(TRAIN):
        raise InputError(
            f"{first}: wanted a file whose name ends in {TRAIN}, with one beside it that ends in "
            f"{TEST}"
        )
    second = first.with_name(first.name.removesuffix(TRAIN) + TEST)
    train, test = read_ts(first), read_ts(second)
    if train.classes != test.classes:
        raise InputError(
            f"{second}: has the classes {', '.join(test.classes)} but {first.name} has "
            f"{', '.join(train.classes)}; give the same in the same order"
        )
    if train.x.shape[1:] != test.x.shape[1:]:
        raise InputError(
            f"{second}: has series of shape {list(test.x.shape[1:])} but {first.name} has "
            f"{list(train.x.shape[1:])}; give one shape"
        )
    return train, test


def load_sequences(name: str | os.PathLike[str]) -> LabelledData:
    """Load the same flattened, ``[N, C * L]``: all steps of the first channel, then of the next.

    ``image_shape`` is ``None``, as series are not to be drawn as images; their shape is that of
    :func:`load_series`. ``largest`` is the largest absolute value.
    """
    train, test = load_series(name)
    x = train.x.flatten(1)
    largest = float(x.abs().max())
    if largest == 0:
        raise InputError(f"{name}: has nothing but zeros; give series that differ")
    title, source = Path(name).name.removesuffix(TRAIN), str(name)
    if isinstance(name, str) and name in SEQUENCE_SETS:
        title, source = name, f"the published files of {SEQUENCE_SETS[name].stem}"
    try:
        return LabelledData(title, x, train.y, test.x.flatten(1), test.y, None, largest, source)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def read_ts(path: str | os.PathLike[str], sha256: str | None = None) -> Series:
    """Read a ``.ts`` file of labelled series of equal length, without time stamps and gaps.

    A file has lines ``@key value`` (``problemName``, ``classLabel true A B`` and others), then
    ``@data`` and a series per line: the steps of a channel are separated by commas, channels by
    colons, and the class comes last. Lines that start with ``#`` or ``%`` are comments. With
    ``sha256`` the file must have that checksum.

    Every fault raises :class:`~mahalens.errors.InputError` with one line that names file and line.
    """
    file = Path(path)
    require_file(file, _WANTED)
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise unreadable(file, error) from None
    if len(content) > FILE_LIMIT:
        raise InputError(f"{file}: has more than {FILE_LIMIT:,} bytes; give a smaller file")
    if sha256 is not None and (digest := hashlib.sha256(content).hexdigest()) != sha256:
        raise InputError(
            f"{file}: is not the published file (SHA-256 {digest}, wanted {sha256}); get it again"
        )
    try:
        return _parse(file, content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{file}: is not text; wanted {_WANTED}") from None
    except _FaultError as fault:
        raise InputError(f"{file}: {fault}") from None


class _FaultError(Exception):
    """A fault in a file, in words, without the name of the file."""


def _parse(file: Path, text: str) -> Series:
    head: dict[str, str] = {}
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        words = line.strip()
        if not words or words.startswith(("#", "%")):
            continue
        if not words.startswith("@"):
            raise _FaultError(f"line {number} is neither @key value nor a comment, before @data")
        key, _, value = words[1:].partition(" ")
        if key.lower() == "data":
            break
        head.setdefault(key.lower(), value.strip())
    else:
        raise _FaultError(f"has no @data; wanted {_WANTED}")
    classes = _classes(head)
    rows, labels = [], []
    for number, line in lines:
        if not line.strip():
            continue
        *channels, label = line.strip().split(":")
        if label.strip() not in classes:
            wanted = ", ".join(classes)
            raise _FaultError(f"line {number} ends in {label[:40]!r}; wanted a class of {wanted}")
        labels.append(classes.index(label.strip()))
        rows.append(_row(number, channels))
        if rows[-1].shape != rows[0].shape:
            raise _FaultError(
                f"line {number} has {_sizes(rows[-1])}, the first series {_sizes(rows[0])}; wanted "
                "series of equal shape"
            )
    if not rows:
        raise _FaultError("has no series after @data")
    for key, size in zip(("dimensions", "serieslength"), rows[0].shape, strict=True):
        if key in head and head[key] != str(size):
            raise _FaultError(f"has {_sizes(rows[0])}, but its @{key} is {head[key]}")
    x = torch.from_numpy(np.stack(rows)).float()
    if not bool(x.isfinite().all()):
        raise _FaultError("has values too large for float32; divide them by a common number")
    return Series(head.get("problemname", file.stem), x, torch.tensor(labels), classes)


def _classes(head: Mapping[str, str]) -> tuple[str, ...]:
    """Return the declared classes; refuse files whose header declares what cannot be read."""
    for key, wanted in (("timestamps", "false"), ("missing", "false"), ("equallength", "true")):
        if head.get(key, wanted).lower() != wanted:
            raise _FaultError(
                f"has @{key} {head[key]}; wanted series of equal length without time stamps and "
                "gaps"
            )
    flag, *classes = (head.get("classlabel") or "false").split()
    if flag.lower() != "true" or len(classes) < 2:
        raise _FaultError("declares no classes; wanted a line such as @classLabel true A B")
    if len(set(classes)) < len(classes):
        raise _FaultError("declares a class twice in @classLabel; wanted each once")
    return tuple(classes)


def _row(number: int, channels: list[str]) -> NDArray[np.float64]:
    """Return the channels of a series ``[C, L]``."""
    if not channels:
        raise _FaultError(f"line {number} has a class and no series")
    try:
        values = [np.array(channel.split(","), dtype=np.float64) for channel in channels]
    except ValueError:
        raise _FaultError(
            f"line {number} has a value that is not a number; fill gaps first"
        ) from None
    if len({len(channel) for channel in values}) > 1:
        raise _FaultError(f"line {number} has channels of unequal length")
    row = np.stack(values)
    if not np.isfinite(row).all():
        raise _FaultError(f"line {number} has NaN or infinite values; repair or remove the series")
    return row


def _sizes(row: NDArray[np.float64]) -> str:
    return f"{row.shape[0]} channel(s) of {row.shape[1]} steps"
