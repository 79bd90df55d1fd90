"""Tests between two models as lines of ``comparisons.csv``. Needs no torch."""

from __future__ import annotations

from typing import Any

import msgspec


def flat(result: msgspec.Struct) -> dict[str, Any]:
    """A comparison as one line of a table: nested parts and intervals spread out."""
    line: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(result).items():
        if isinstance(value, msgspec.Struct):
            line |= flat(value)
        elif name.endswith("ci95") or isinstance(value, tuple):
            low, high = value if value is not None else (None, None)
            line |= {f"{name}_low": low, f"{name}_high": high}
        else:
            line[name] = value
    return line
