"""The files of CIFAR-10, in either layout, as records of bytes. Needs neither torch nor numpy.

A record is a label from 0 to 9 and 3072 pixels: 32 x 32 of red, then of green, then of blue. The
binary layout has just these; the python layout is turned into them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mahalens.data.catalogue import CIFAR_TEST, PUBLISHED
from mahalens.data.python_batches import CLASSES, RECORD, NotABatchError, records_of_pickle
from mahalens.errors import InputError

PER_BATCH = 10_000
"""Records in each of the six published files."""
LIMIT = 1 << 26
"""No file of either layout has half as many bytes."""


def read_records(file: Path, *, published: bool) -> bytearray:
    """The records of one file; with ``published`` it must be the published one.

    Which layout it has is told by its name: the binary one ends in ``.bin``.
    """
    try:
        if file.stat().st_size > LIMIT:
            raise InputError(f"{file}: has {file.stat().st_size:,} bytes, no batch of CIFAR-10 has")
        content = file.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{file}: cannot be read, {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        return to_records(file.name, content, published=published)
    except NotABatchError as error:
        raise InputError(f"{file}: no batch of CIFAR-10, it {error}; get the file again") from None


def to_records(name: str, content: bytes, *, published: bool) -> bytearray:
    """The records in the content of a file of that name, or :class:`NotABatchError`."""
    if name.endswith(".bin"):
        records = bytearray(content)
        if not records or len(records) % RECORD:
            raise NotABatchError(f"has {len(records)} bytes, wanted records of {RECORD}")
        if max(records[::RECORD]) >= CLASSES:
            raise NotABatchError(
                f"has the label {max(records[::RECORD])}, wanted 0 to {CLASSES - 1}"
            )
    else:
        wanted = PUBLISHED["cifar10"].md5.get(name) if published else None
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if wanted is not None and found != wanted:
            raise NotABatchError(f"is not the published file: MD5 {found}, wanted {wanted}")
        records = records_of_pickle(content)
        if not records:
            raise NotABatchError("is empty")
    if published and len(records) != PER_BATCH * RECORD:
        raise NotABatchError(f"has {len(records) // RECORD} images, wanted {PER_BATCH}")
    return records


def require_published_labels(labels: Mapping[str, bytes]) -> None:
    """Ask for as many images of each class as were published, given the labels of each file.

    For the binary layout no checksums of the files were published, only one of the archive:
    sizes and labels are what a file by itself can be held to.
    """
    counts = {"train": Counter[int](), "test": Counter[int]()}
    for name, given in labels.items():
        counts["test" if name == CIFAR_TEST else "train"].update(given)
    for part, files in (("train", 5), ("test", 1)):
        each = files * PER_BATCH // CLASSES
        if counts[part] != dict.fromkeys(range(CLASSES), each):
            raise NotABatchError(
                f"does not have {each} images of each class to {part}, as the published one has"
            )
