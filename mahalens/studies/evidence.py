"""What a claim is judged by: the numbers of all trials, and facts about the run. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Evidence:
    """Per trial numbers of a run by model and metric, its facts, and the published means."""

    trials: Mapping[tuple[str, str], NDArray[np.float64]]
    facts: Mapping[str, object]
    published: Callable[[str, str], float | None]
    basins: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def values(self, model: str, metric: str) -> NDArray[np.float64] | None:
        """One number per trial ``[T]``, NaN where it has none; ``None`` if it was not measured."""
        column = self.trials.get((model, metric))
        return column if column is not None and np.isfinite(column).any() else None

    def number(self, fact: str) -> float:
        """A fact of the run that is a number."""
        value = self.facts[fact]
        if not isinstance(value, (int, float)):
            raise TypeError(f"fact {fact!r} is {value!r}, not a number")
        return float(value)


@dataclass(frozen=True)
class Finding:
    """The outcome of putting one predicate to the evidence; ``holds`` is None if it cannot tell."""

    holds: bool | None
    measured: float
    why: str


def show(value: float, figures: int = 3) -> str:
    """A number for a sentence."""
    return f"{value:.{figures}g}".replace("e-0", "e-").replace("e+0", "e")
