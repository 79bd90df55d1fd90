"""A column of a run, for people. Needs no torch."""

from __future__ import annotations

from typing import Literal

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """One number of a trial: its name, what it means, its unit, which way is good."""

    label: str
    explanation: str
    unit: str = ""
    better: Literal["low", "high"] | None = "low"
    log: bool = False
