"""A published figure, to stand beside a measured one. Needs no torch."""

from __future__ import annotations

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """A published mean with what else was published about it."""

    mean: float
    variance: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None

    def detail(self) -> dict[str, float]:
        """All that was published besides the mean."""
        rest = {name: getattr(self, name) for name in ("variance", "std", "min", "max")}
        return {name: value for name, value in rest.items() if value is not None}
