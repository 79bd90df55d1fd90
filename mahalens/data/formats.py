"""Readers of the file formats of data sets: IDX, CIFAR-10, ``.npz``, ``.safetensors`` and ``.ts``.

Nothing in a file is run or unpickled. Sizes are read from a file's header first: data that would
not fit in memory are refused before anything is unpacked. Every fault raises
:class:`~mahalens.errors.InputError` with one line that begins with the file's name.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.data.named import CIFAR_RECORD, PUBLISHED, SEQUENCE_SETS, batch_fault, find_set
from mahalens.errors import InputError
from mahalens.geometry._checks import dtype_name, require_memory

KINDS = (".npz", ".safetensors")
"""Endings of files of arrays."""
ARRAYS = ("x", "y", "test_x", "test_y")
SMALLER = "save fewer samples or inputs in it"
BATCH_LIMIT = 1 << 26  # bytes; a published file of CIFAR-10 has half as many
_IDX_WANTED = "an IDX file of unsigned bytes, plain or gzipped"
_IDX_UNSIGNED_BYTE = 0x08
_IDX_OTHER_TYPES = {
    0x09: "signed bytes",
    0x0B: "16-bit integers",
    0x0C: "32-bit integers",
    0x0D: "32-bit floats",
    0x0E: "64-bit floats",
}
_MOST_UNPACKED = 1100  # bytes that gzip can make of one, at most
_PIECE = 1 << 20


def require_file(file: Path, wanted: str) -> None:
    """Raise unless a path leads to a file that can be read to its end; say what is ``wanted``."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file, wanted {wanted}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file}: cannot be read, {reason}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{file}: this is a folder, wanted {wanted}")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer
        raise InputError(f"{file}: this is a pipe or a device, wanted {wanted}")


def unreadable(file: Path, error: Exception) -> InputError:
    """Return the one-line error for what opening or parsing a file raised."""
    if isinstance(error, MemoryError):
        return InputError(f"{file}: takes more memory than there is; {SMALLER}")
    if isinstance(error, OSError):
        return InputError(f"{file}: cannot be read, {error.strerror or error}")
    reason = str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"{file}: not readable as {file.suffix.lower()}, {reason}")


def read_idx(path: str | os.PathLike[str], sha256: str | None = None) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or gzipped, as uint8 with the axes of its header.

    MNIST and its relatives are published in this format. The content of a file tells whether it
    is gzipped, not its name. With ``sha256`` the unpacked content must have that checksum.
    """
    file = Path(path)
    require_file(file, _IDX_WANTED)
    try:
        with file.open("rb") as raw:
            gzipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            size = file.stat().st_size
            if gzipped:
                with gzip.open(raw) as unpacked:
                    shape, content, header = _read_idx(file, unpacked, _MOST_UNPACKED * size)
            else:
                shape, content, header = _read_idx(file, raw, size, exact=True)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{file}: the gzipped content is cut short or damaged ({error}); get the file again"
        ) from None
    except OSError as error:
        raise unreadable(file, error) from None
    if sha256 is not None and (digest := hashlib.sha256(content).hexdigest()) != sha256:
        raise InputError(
            f"{file}: not the published file, its unpacked content has SHA-256 {digest}, wanted "
            f"{sha256}; get it again, or give its folder as a path to use it as it is"
        )
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def _read_idx(
    file: Path, stream: IO[bytes] | gzip.GzipFile, length: int, *, exact: bool = False
) -> tuple[tuple[int, ...], bytearray, int]:
    """Read shape, whole content and length of the header; the content has at most ``length``."""
    content = bytearray()
    _extend(content, stream, 4)
    if len(content) < 4 or content[:2] != b"\0\0":
        start = f"begins with {content.hex(' ')}" if content else "is empty"
        raise InputError(f"{file}: not an IDX file, it {start}; wanted {_IDX_WANTED}")
    kind, axes = content[2], content[3]
    if kind != _IDX_UNSIGNED_BYTE:
        holds = _IDX_OTHER_TYPES.get(kind)
        what = f"an IDX file of {holds}" if holds else f"not an IDX file, type code 0x{kind:02x}"
        raise InputError(f"{file}: {what}; wanted {_IDX_WANTED}")
    header = 4 + 4 * axes
    _extend(content, stream, header)
    if len(content) < header:
        raise InputError(
            f"{file}: cut short in its header, {len(content)} of {header} bytes are there; "
            f"get the file again"
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    promised = header + math.prod(shape)
    if promised == header:
        raise InputError(
            f"{file}: holds nothing, its header says {list(shape)}; wanted {_IDX_WANTED}"
        )
    if length == promised or not exact:
        needed = 5 * min(promised, length)  # as bytes, and as floats of 32 bits
        require_memory(needed, f"{file}: {list(shape)} bytes", "take a smaller set")
        _extend(content, stream, promised + 1)
        length = len(content)
    if length != promised:
        fault = "is cut short" if length < promised else "is longer than its header says"
        there = f"{length}" if length < promised else "more"
        raise InputError(
            f"{file}: {fault}, {list(shape)} takes {promised} bytes and {there} are there; "
            f"get the file again"
        )
    return shape, content, header


def _extend(content: bytearray, stream: IO[bytes] | gzip.GzipFile, length: int) -> None:
    """Read on until ``content`` has ``length`` bytes or the stream ends.

    In pieces, because a single read would first take memory for all it is asked for.
    """
    while len(content) < length:
        piece = stream.read(min(_PIECE, length - len(content)))
        if not piece:
            return
        content += piece


def read_batch(file: Path, images: int | None = None) -> Tensor:
    """Read a binary file of CIFAR-10 as records of bytes [N, 3073]: a label, then 3072 pixels.

    Pixels are 32 x 32 of red, then of green, then of blue. With ``images`` the file must hold so
    many.
    """
    try:
        size = file.stat().st_size
        content = bytearray(file.read_bytes()) if size <= BATCH_LIMIT else bytearray()
    except OSError as error:
        raise unreadable(file, error) from None
    if size > BATCH_LIMIT:
        raise InputError(f"{file}: has {size:,} bytes; a batch of CIFAR-10 has at most 30,730,000")
    if fault := batch_fault(content, images):
        raise InputError(f"{file}: not a batch of CIFAR-10, it {fault}; get the file again")
    return torch.frombuffer(content, dtype=torch.uint8).view(-1, CIFAR_RECORD)


def read_arrays(file: Path, wanted: str) -> dict[str, Tensor]:
    """Read those of the arrays x, y, test_x and test_y that a file has; others are not opened.

    The file is an ``.npz`` or ``.safetensors`` file; ``wanted`` says in an error what it should
    hold.
    """
    kind = file.suffix.lower()
    if kind not in KINDS:
        raise InputError(
            f"{file}: the name ends in {kind or 'nothing'!r}; wanted an .npz or .safetensors file "
            f"with {wanted}"
        )
    require_file(file, wanted)
    try:
        if kind == ".npz":
            arrays = read_npz(file, ARRAYS)
            return {name: _tensor(name, array, file) for name, array in arrays.items()}
        return _read_safetensors(file)
    except InputError:
        raise
    except Exception as error:  # parsers of foreign bytes raise what they happen to raise
        raise unreadable(file, error) from None


def array_names(file: Path) -> list[str]:
    """Return the names of all arrays in an ``.npz`` or ``.safetensors`` file."""
    if file.suffix.lower() == ".npz":
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


class _Stored(NamedTuple):
    """The shape and dtype that the header of an array promises."""

    shape: Sequence[int]
    dtype: str
    bits: int


def _require_room(file: Path, stored: dict[str, _Stored]) -> None:
    """Refuse arrays that will not fit: as they are stored, in float32, and split in two."""
    sizes = {
        name: math.prod(array.shape) * (array.bits + 64) // 8 for name, array in stored.items()
    }
    if sizes:
        name = max(sizes, key=lambda key: sizes[key])
        what = f"{file}: {name} {list(stored[name].shape)} of {stored[name].dtype}"
        require_memory(sum(sizes.values()), what, SMALLER)


def read_npz(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read those of the named arrays that an ``.npz`` file has; others are not even opened.

    Their headers are read first: what is no array of numbers, or would not fit in memory, is
    refused before anything is unpacked.
    """
    with file.open("rb") as opened:
        if opened.read(2) != b"PK":
            raise InputError(f"{file}: not readable as .npz, it is no such archive")
        opened.seek(0)
        with zipfile.ZipFile(opened) as archive:
            members = {file.removesuffix(".npy"): file for file in archive.namelist()}
            members = {name: members[name] for name in names if name in members}
            stored = {}
            for name, member in members.items():
                with archive.open(member) as content:
                    shape, dtype = _npy_header(file, name, content)
                promised = math.prod(shape) * dtype.itemsize
                if archive.getinfo(member).file_size < promised:
                    raise InputError(f"{file}: not readable as .npz, {name} is cut short")
                stored[name] = _Stored(shape, str(dtype), 8 * dtype.itemsize)
            _require_room(file, stored)
            arrays = {}
            for name, member in members.items():
                with archive.open(member) as content:
                    arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
            return arrays


def _npy_header(file: Path, name: str, content: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Read shape and dtype of an array in an ``.npz`` file, if it is one of numbers."""
    start = content.read(6)
    if start != b"\x93NUMPY":
        what = f"begins with {start.hex(' ')}" if start else "is empty"
        raise InputError(
            f"{file}: {name} is not a NumPy array, it {what}; save arrays with numpy.savez"
        )
    version = tuple(content.read(2))
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise InputError(f"{file}: {name} is an array of an unknown version, {list(version)}")
    # Versions 2 and 3 differ in how names of fields are spelt, and only structures have these.
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(content)
    if dtype.hasobject:
        raise InputError(
            f"{file}: holds Python objects, which are not read as they could run code; save "
            "numbers, classes for example as np.unique(y, return_inverse=True)[1]"
        )
    if dtype.kind in "US":
        advice = "; np.unique(y, return_inverse=True)[1] numbers classes" if "y" in name else ""
        raise InputError(f"{file}: {name} is text, wanted numbers{advice}")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise InputError(f"{file}: {name} is {dtype}, wanted real numbers of up to 64 bits")
    if any(size < 0 for size in shape):
        raise InputError(f"{file}: not readable as .npz, {name} has shape {list(shape)}")
    return shape, dtype


def _tensor(name: str, array: np.ndarray, file: Path) -> Tensor:
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    made = torch.from_numpy(np.array(native) if not native.flags.writeable else native)
    return _usable(name, made, file)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        present = set(opened.keys())
        names = [name for name in ARRAYS if name in present]
        stored = {}
        for name in names:
            header = opened.get_slice(name)
            dtype = str(header.get_dtype())
            bits = re.search(r"\d+", dtype)
            stored[name] = _Stored(header.get_shape(), dtype, int(bits[0]) if bits else 8)
        _require_room(file, stored)
        return {name: _usable(name, opened.get_tensor(name), file) for name in names}


def _usable(name: str, values: Tensor, file: Path) -> Tensor:
    """Return the same numbers in a dtype that can be computed with."""
    if values.dtype == torch.uint64:
        signed = values.view(torch.int64)
        if not bool((signed < 0).any()):
            return signed
        if "y" in name:
            raise InputError(f"{file}: {name} has labels from 2^63 on; number the classes 0, 1, 2")
        return torch.from_numpy(values.numpy().astype(np.float64))
    if values.dtype in (torch.uint16, torch.uint32):
        return values.to(torch.int64)
    if values.is_floating_point() and values.dtype.itemsize < 2:
        try:
            return values.to(torch.float32)
        except (RuntimeError, TypeError):
            kind = dtype_name(values.dtype)
            raise InputError(f"{file}: {name} is {kind}, wanted numbers of 8 to 64 bits") from None
    return values


def open_package(name: str) -> zipfile.Path:
    """Return the content of a set that is a wheel, which must be the published one."""
    ((file, path),) = find_set(name).items()
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if digest != PUBLISHED[name].sha256[file]:
        raise InputError(
            f"{path}: not the published file, SHA-256 {digest}; get it again: "
            f"mahalens data fetch {name}"
        )
    return zipfile.Path(path)


SERIES_LIMIT = 1 << 28  # bytes; the largest named file has under 2 MB
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
            content = stream.read(SERIES_LIMIT + 1)
    except OSError as error:
        raise unreadable(file, error) from None
    if len(content) > SERIES_LIMIT:
        raise InputError(f"{file}: has more than {SERIES_LIMIT:,} bytes; give a smaller file")
    if sha256 is not None and (digest := hashlib.sha256(content).hexdigest()) != sha256:
        raise InputError(
            f"{file}: is not the published file (SHA-256 {digest}, wanted {sha256}); get it again"
        )
    try:
        return _parse(file, content.decode("utf-8-sig"))  # Windows puts a mark before it
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
        key, *value = words[1:].split(maxsplit=1) or [""]
        if key.lower() == "data":
            break
        head.setdefault(key.lower(), "".join(value))
    else:
        raise _FaultError(f"has no @data; wanted {_WANTED}")
    classes = _classes(head)
    rows, labels = [], []
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith(("#", "%")):
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
