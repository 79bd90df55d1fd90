"""How levels of perturbation are called: in columns, in claims, for people. Needs no torch."""

from __future__ import annotations

KINDS = {"scale": "Intensity scale", "clip": "Intensity clip", "offset": "Distance offset"}

TABLE: dict[str, tuple[float, ...]] = {
    "scale": (0.01, 0.1),
    "clip": (0.1, 0.5),
    "offset": (-0.1, -0.01, 0.01, 0.1, 0.25),
}
"""The levels that a run has a column for: those of :mod:`mahalens.auditing.perturbation`."""


def column(kind: str, level: float) -> str:
    """The name of a level in ``trials.csv``.

    >>> column("offset", -0.1), column("scale", 0.01)
    ('offset_-0.1', 'scale_0.01')
    """
    return f"{kind}_{level:g}"


def percent(kind: str, level: float) -> str:
    """A level for people; of an offset with its sign.

    >>> percent("scale", 0.01), percent("offset", 0.1), percent("offset", -0.01)
    ('1 %', '+10 %', '-1 %')
    """
    return f"{100 * level:+g} %" if kind == "offset" and level else f"{100 * level:g} %"


def perturbed(name: str, kind: str, level: float, place: str = "before") -> str:
    """A network under a perturbation, as claims call it.

    >>> perturbed("abs (raw)", "offset", 0.1), perturbed("abs (raw)", "clip", 0.5, "after")
    ('abs (raw), offset +10 %', 'abs (raw), clip 50 % after the activation')
    """
    told = "" if place == "before" else " after the activation"
    return f"{name}, {kind} {percent(kind, level)}{told}"
