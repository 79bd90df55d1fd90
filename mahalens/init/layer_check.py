"""What is wrong with the starting weights of one layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_SHOWN = 8


class LayerCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one layer; units by number."""

    name: str
    kind: str
    units: int
    activation: str
    dead: tuple[int, ...] = ()
    """Units that no input reaches: their activation is 0 on every row."""
    outside: tuple[int, ...] = ()
    """Units whose hyperplane misses the data: all rows are on one side of it. Not the dead ones.
    Of prototypes: those that no row is nearest to."""
    flat: tuple[int, ...] = ()
    """Units that are constant, or at a flat end of their activation on nearly all rows."""
    copies: tuple[tuple[int, int], ...] = ()
    """Pairs of units with the same hyperplane and side, which training cannot tell apart."""
    silent: float = 0.0
    """Share of the rows that no unit reaches."""
    silent_samples: tuple[int, ...] = ()
    """The first few samples with such a row."""
    faulty: tuple[int, ...] = ()
    """Units that are NaN or infinite on some row."""
    positions: int = 1
    """Rows of a sample: patches of a convolution, places in a sequence."""
    prototypes: bool = False
    """Whether the units are distances to prototypes, and not hyperplanes."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, in words."""
        found = []
        if self.faulty:
            found.append(f"{self._of(self.faulty)} NaN or infinite ({_few(self.faulty)})")
        if self.dead:
            found.append(f"{self._of(self.dead)} reached by no input ({_few(self.dead)})")
        if self.outside:
            place = (
                "that no input is nearest to" if self.prototypes else "with all data on one side"
            )
            found.append(f"{self._of(self.outside)} {place} ({_few(self.outside)})")
        if self.flat:
            found.append(f"{self._of(self.flat)} flat from the start ({_few(self.flat)})")
        if self.copies:
            pairs = [f"{i} = {j}" for i, j in self.copies]
            found.append(f"{len(self.copies)} pairs of copies ({_few(pairs)})")
        if self.silent and (self.positions == 1 or self.silent == 1):
            found.append(self._silence("inputs"))
        return tuple(found)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is no fault by itself: a blank patch may reach no unit, where others of it do."""
        if self.positions == 1 or not 0 < self.silent < 1:
            return ()
        return (self._silence("patches" if self.kind.startswith("Conv") else "rows"),)

    def _silence(self, rows: str) -> str:
        return f"{100 * self.silent:.3g} % of {rows} reach no unit ({_few(self.silent_samples)})"

    def _of(self, units: Sequence[int]) -> str:
        return f"{len(units)} of {self.units} {'prototypes' if self.prototypes else 'units'}"


def _few(items: Sequence[Any]) -> str:
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return f"{shown}, ..." if len(items) > _SHOWN else shown
