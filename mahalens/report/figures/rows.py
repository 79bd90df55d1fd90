"""Rows of models, for figures with a row per model; of networks, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes

from mahalens.report.networks import families_of

_GAP = 0.6  # between families, in rows


@dataclass(frozen=True)
class Rows:
    """Where each model stands, from the top down, and how far down it goes."""

    places: dict[str, float]
    depth: float

    def label(self, ax: Axes, name: Callable[[str], str]) -> None:
        """Write the names beside the axis and let it begin at the top."""
        ax.set_yticks(list(self.places.values()), [name(model) for model in self.places])
        ax.set_ylim(self.depth - 0.4, -0.6)
        for panel in ax.figure.axes:
            panel.grid(visible=False, axis="y")
            panel.tick_params(axis="y", length=0)


def family_rows(models: Iterable[str]) -> Rows:
    """Rows in the order of families, with some room between two of them.

    >>> family_rows(["relu", "abs", "relu-bias"]).places
    {'relu': 0.0, 'abs': 1.0, 'relu-bias': 2.6}
    """
    places: dict[str, float] = {}
    place = 0.0
    for own in families_of(models).values():
        for model in own:
            places[model] = place
            place += 1.0
        place = round(place + _GAP, 6)
    return Rows(places, place - _GAP)


def plain_rows(names: Iterable[str]) -> Rows:
    """Rows in the given order, evenly spaced.

    >>> plain_rows(["b", "a"])
    Rows(places={'b': 0.0, 'a': 1.0}, depth=2.0)
    """
    places = {name: float(place) for place, name in enumerate(names)}
    return Rows(places, float(len(places)))


def room_for_rows(rows: Rows, each: float = 0.27) -> float:
    """The height in inches of a panel with these rows."""
    return 0.9 + each * max(rows.depth, 2.0)


def jitter(trial: int, trials: int) -> float:
    """An offset that is the same on every drawing; the golden ratio spreads trials evenly."""
    return 0.0 if trials == 1 else 0.44 * ((trial * 0.6180339887) % 1.0 - 0.5)
