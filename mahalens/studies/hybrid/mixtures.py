"""What is compared: hidden layers with more and more Abs units, wide and narrow. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from mahalens.errors import InputError

WIDE, NARROW = "wide", "narrow"


@dataclass(frozen=True)
class Mixture:
    """A hidden layer: how wide it is, and which share of its units are absolute values.

    Args:
        family: ``"wide"`` or ``"narrow"``.
        share: of the units that are Abs, the others being ReLU; ``None`` if every unit learns
            its own slope for negative numbers, from half-way between ReLU (0) and Abs (-1).
        times: how many times as wide as its family it is.
        text: a line for a list.
    """

    family: str
    share: float | None
    text: str
    times: int = 1

    def absolute(self, units: int) -> int:
        """How many of so many units are absolute values.

        >>> MIXTURES["abs-75"].absolute(32), MIXTURES["narrow-100"].absolute(4)
        (24, 4)
        """
        return round((self.share or 0.0) * units)

    @property
    def mixes(self) -> bool:
        """Whether it has units of both kinds."""
        return self.share is not None and 0 < self.share < 1


def _said(share: float) -> str:
    parts = {0.125: "1/8", 0.25: "1/4", 0.5: "half", 0.75: "3/4", 0.875: "7/8"}
    if share in (0, 1):
        return "all units Abs" if share else "all units ReLU"
    return f"{parts[share]} of the units Abs, the others ReLU"


SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0)
NARROW_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

MIXTURES: dict[str, Mixture] = {
    **{f"abs-{round(100 * s)}": Mixture(WIDE, s, f"a wide layer, {_said(s)}") for s in SHARES},
    "learned": Mixture(WIDE, None, "a wide layer, every unit learns how much of an Abs it is"),
    **{
        f"narrow-{round(100 * s)}": Mixture(NARROW, s, f"a narrow layer, {_said(s)}")
        for s in NARROW_SHARES
    },
    "narrow-learned": Mixture(
        NARROW, None, "a narrow layer, every unit learns how much of an Abs it is"
    ),
    "narrow-double": Mixture(NARROW, 0.0, "ReLU units, twice as many as in the narrow layer", 2),
}
"""All models of the study, in the order in which they are shown."""

MODELS = {name: mixture.text for name, mixture in MIXTURES.items()}
"""The same for ``mahalens list``."""

REFERENCE = {WIDE: "abs-0", NARROW: "narrow-0"}
"""The layer of each family that has ReLU units alone."""


def check_units(option: str, units: int, parts: int) -> None:
    """Refuse a width of which the shares are not whole units.

    >>> check_units("narrow", 6, 4)
    Traceback (most recent call last):
    mahalens.errors.InputError: --narrow 6: give 4 or a multiple of it, so that shares are whole
    """
    if units < parts or units % parts:
        raise InputError(
            f"--{option} {units}: give {parts} or a multiple of it, so that shares are whole"
        )
