"""IDX files, the format in which MNIST and its relatives are published."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import stat
import zlib
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.memory import require_memory

UNSIGNED_BYTE = 0x08
OTHER_TYPES = {
    0x09: "signed bytes",
    0x0B: "16-bit integers",
    0x0C: "32-bit integers",
    0x0D: "32-bit floats",
    0x0E: "64-bit floats",
}
WANTED = "an IDX file of unsigned bytes, plain or gzipped"
MOST_UNPACKED = 1100
"""How many bytes gzip can make of one, at most."""
_PIECE = 1 << 20


def read_idx(path: str | os.PathLike[str], sha256: str | None = None) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or gzipped: uint8, with the axes of its header.

    Whether the file is gzipped is told by its content, not its name. With ``sha256`` the unpacked
    content must have that checksum.

    Every fault of the file raises :class:`~mahalens.errors.InputError` with one line that names
    the file. What the header promises is compared with the length of a plain file, and with the
    memory there is, before anything is read.
    """
    file = Path(path)
    require_file(file, WANTED)
    try:
        with file.open("rb") as raw:
            gzipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not gzipped:
                length = file.stat().st_size
                shape, content, header = _read_stream(file, raw, length, exact=True)
            else:
                most = MOST_UNPACKED * file.stat().st_size
                with gzip.open(raw) as unpacked:
                    shape, content, header = _read_stream(file, unpacked, most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{file}: the gzipped content is cut short or damaged ({error}); get the file again"
        ) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read, {error.strerror or error}") from None
    if sha256 is not None:
        _require_checksum(file, content, sha256)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def require_file(file: Path, wanted: str) -> None:
    """Refuse what is no file that can be read to its end; the error says what is ``wanted``."""
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


def _read_stream(
    file: Path, stream: IO[bytes] | gzip.GzipFile, length: int, *, exact: bool = False
) -> tuple[tuple[int, ...], bytearray, int]:
    """Read shape, whole content and length of the header from the unpacked stream.

    ``length`` is that of the whole, or the most it can be.
    """
    content = bytearray()
    _extend(content, stream, 4)
    if len(content) < 4 or content[:2] != b"\0\0":
        start = f"begins with {content.hex(' ')}" if content else "is empty"
        raise InputError(f"{file}: not an IDX file, it {start}; wanted {WANTED}")
    kind, axes = content[2], content[3]
    if kind != UNSIGNED_BYTE:
        holds = OTHER_TYPES.get(kind)
        what = f"an IDX file of {holds}" if holds else f"not an IDX file, type code 0x{kind:02x}"
        raise InputError(f"{file}: {what}; wanted {WANTED}")
    header = 4 + 4 * axes
    _extend(content, stream, header)
    if len(content) < header:
        raise InputError(
            f"{file}: cut short in its header, {len(content)} of {header} bytes are there; "
            f"get the file again"
        )
    shape = tuple(
        int.from_bytes(content[start : start + 4], "big") for start in range(4, header, 4)
    )
    promised = header + math.prod(shape)
    if promised == header:
        raise InputError(f"{file}: holds nothing, its header says {list(shape)}; wanted {WANTED}")
    if length == promised or not exact:
        # As bytes, and as floats of 32 bits.
        needed = 5 * min(promised, length)
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


def _require_checksum(file: Path, content: bytearray, wanted: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise InputError(
            f"{file}: not the published file, its unpacked content has SHA-256 {found}, wanted "
            f"{wanted}; get it again, or give its folder as a path to use it as it is"
        )
