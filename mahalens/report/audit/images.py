"""Samples as small pictures, lines or words for the page, as many as a page can carry."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mahalens.auditing.record import AuditRecord
from mahalens.report.audit.compact import Floats, array

LARGEST = 64  # pixels of a side
BUDGET = 3_000_000  # bytes of all pictures together, as they stand in the page
_POINTS = 64  # of a line
_WORDS = 10


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Grey [H, W] or colour [H, W, 3] as a PNG file.

    >>> png(np.zeros((2, 3), dtype=np.uint8))[:4]
    b'\\x89PNG'
    """
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, -1)
    raw = np.hstack([np.zeros((height, 1), dtype=np.uint8), lines]).tobytes()  # 0: no filter

    def part(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    content = zlib.compress(raw, 9)
    return (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", content) + part(b"IEND", b"")
    )


def as_pixels(sample: Floats, shape: tuple[int, ...], low: float, high: float) -> Any:
    """A sample between ``low`` (black) and ``high`` (white) as bytes [h, w] or [h, w, 3].

    Large pictures are thinned to at most 64 pixels a side. Pictures of one channel are grey,
    of three in colour, of others the mean over their channels.
    """
    picture = sample.reshape(shape)
    if picture.ndim == 2:
        picture = picture[None]
    step = max(1, -(-max(picture.shape[1:]) // LARGEST))
    picture = picture[:, ::step, ::step]
    if picture.shape[0] not in (1, 3):
        picture = picture.mean(axis=0, keepdims=True)
    level = np.nan_to_num((picture - low) / (high - low if high > low else 1.0))
    pixels = np.round(255 * np.clip(level, 0, 1)).astype(np.uint8)
    return pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)


def samples_of(record: AuditRecord, wanted: Iterable[int]) -> dict[str, Any]:
    """What the page shows of the wanted samples, the first ones first, until the budget is spent.

    ``form`` says how: ``picture`` (data addresses), ``line`` (whole numbers 0 to 99), ``words``
    (text) or ``number`` when the record holds no samples; ``shown`` has them by sample number.
    """
    examples, numbers = record.examples, record.example_samples
    if examples is None or numbers is None or not len(numbers):
        return {"form": "number", "shown": {}, "labels": {}, "left_out": 0}
    place = {int(number): row for row, number in enumerate(numbers.tolist())}
    rows = {sample: place[sample] for sample in dict.fromkeys(wanted) if sample in place}
    form, draw = _drawer(record, examples)
    shown: dict[str, Any] = {}
    spent = left_out = 0
    for sample, row in rows.items():
        if spent >= BUDGET:
            left_out += 1
            continue
        shown[str(sample)] = draw(row)
        spent += len(str(shown[str(sample)])) + 10
    labels = {}
    if record.example_labels is not None:
        labels = {str(s): int(record.example_labels[row]) for s, row in rows.items()}
    return {"form": form, "shown": shown, "labels": labels, "left_out": left_out}


def _drawer(record: AuditRecord, examples: Tensor) -> tuple[str, Any]:
    shape = record.data.image
    size = int(np.prod(examples.shape[1:]))
    if shape is not None and len(shape) in (2, 3) and size == int(np.prod(shape)):
        low, high = _ends(examples)

        def picture(row: int) -> str:
            pixels = as_pixels(array(examples[row]), shape, low, high)
            return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")

        return "picture", picture
    if not examples.is_floating_point():

        def words(row: int) -> str:
            values = examples[row].flatten()
            more = " …" if len(values) > _WORDS else ""
            return " ".join(str(v) for v in values[:_WORDS].tolist()) + more

        return "words", words
    low, high = _ends(examples)

    def line(row: int) -> list[int]:
        values = array(examples[row]).ravel()
        values = values[np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int)]
        level = np.nan_to_num((values - low) / (high - low if high > low else 1.0))
        heights: list[int] = np.round(99 * np.clip(level, 0, 1)).astype(int).tolist()
        return heights

    return ("line", line) if size > 1 else ("words", lambda row: f"{float(examples[row]):.4g}")


def _ends(examples: Tensor) -> tuple[float, float]:
    """Black and white for all pictures alike; a few stray values do not set them."""
    values = array(examples.flatten()[:: max(1, examples.numel() // 1_000_000)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = (float(v) for v in np.quantile(values, (0.005, 0.995)))
    return (low, high) if high > low else (float(values.min()), float(values.max()))
