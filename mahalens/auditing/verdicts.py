"""What kind of layer it is, in a word, with the numbers that say so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mahalens.auditing.readings import HyperplaneReading, PerturbationReading, UnitReading, Verdict
from mahalens.errors import InputError

if TYPE_CHECKING:
    from mahalens.auditing.record import LayerRecord

WORDS = ("distance-like", "intensity-like", "mixed", "broken")
"""The words of a verdict."""

DECIDED = 1 / 3
"""A score or an index of at least this size decides."""

# So that (2/3 - 1/2) / (1/2) is a third.
_ROUNDING = 1e-9

RULE = (
    "A unit is live if it is neither dead nor saturated and its numbers are finite; in the output "
    "layer saturated ones are live too, for a network that is sure saturates them. "
    "A layer is broken if fewer than half of its units are live, or if no unit is active on more "
    "than half of the rows. "
    "A hyperplane passes through a class if the class's mean is within half a spread of it. If it "
    "is so near to more than half of all classes, it is common: it singles none out, and is left "
    "aside. "
    "Of the other live units p is the share whose hyperplane passes through a class (without "
    "classes: the mean of the data), and q the share that would if each were moved along its "
    "normal to a random row. The score is (p - q) / (1 - q) if p >= q, and (p - q) / q if not: 1 "
    "if all pass, 0 as by chance, -1 if none does. "
    "The geometry is distance-like from a score of 1/3 up, intensity-like from -1/3 down, and "
    "mixed between, or if more than half of the live units are left aside. Where perturbations "
    "were measured, their index says in the same way what the behaviour is. The verdict is what "
    "the geometry says, or mixed if the behaviour says the opposite; without hyperplanes it is "
    "what the behaviour says."
)
"""The rule that :func:`judge` follows, in words."""


def judge(
    units: UnitReading,
    hyperplanes: HyperplaneReading | None,
    perturbation: PerturbationReading | None,
    count: int,
    output: bool = False,
) -> Verdict:
    """The verdict on a layer, by :data:`RULE`.

    If every hyperplane would pass wherever it stood (q = 1), passing says nothing: the score is
    0. Live units without a chance (their z does not vary) count in neither share. If nothing is
    there to judge by, the verdict is ``mixed`` and the reason says so.

    Args:
        units: how the units respond.
        hyperplanes: where their hyperplanes lie; None where the weights are not known.
        perturbation: None if it was not measured.
        count: number of units of the layer.
        output: whether its units are outputs of the network.

    Example:
        >>> one = torch.ones(4)
        >>> units = UnitReading(
        ...     dead=(), rare={}, always=(), saturated=(), active=one, flat=0 * one, mean=0 * one,
        ...     std=one, skewness=0 * one, least=-one, greatest=one, quantiles=one[:, None])
        >>> planes = HyperplaneReading(
        ...     length=one, mean_distance=0 * one, mean_spreads=0 * one, through=one > 0,
        ...     chance=0.4 * one, positive=0.5 * one)
        >>> verdict = judge(units, planes, None, 4)
        >>> verdict.word, verdict.score
        ('distance-like', 1.0)
        >>> verdict.reason
        "4 of 4 live units pass through the data's mean (100 %, 40 % by chance)"
    """
    if count < 1 or units.mean.shape != (count,):
        raise InputError(
            f"count is {count}, but the reading has {list(units.mean.shape)} units; "
            "pass the number of units of the same layer"
        )
    live = _live(units, output)
    share, chance, passing, placed = _shares(hyperplanes, live)
    score = None if share is None or chance is None else score_of(share, chance)
    index = None if perturbation is None else perturbation.index

    reasons = _damage(units, int(live.sum()), count)
    word = "broken"
    if not reasons:
        common = 0 if hyperplanes is None else int((_common(hyperplanes) & live).sum())
        geometry, behaviour = _kind(score), _kind(index)
        if common > placed:  # a few that are left speak for no layer
            geometry = "mixed"
        word = geometry or behaviour or "mixed"
        if {geometry, behaviour} == {"distance-like", "intensity-like"}:
            word = "mixed"
        if share is not None and chance is not None and hyperplanes is not None:
            reasons.append(
                f"{passing} of {placed} live units pass through {_place(hyperplanes)} "
                f"({_percent(share)}, {_percent(chance)} by chance)"
            )
        if common:
            are = "is" if common == 1 else "are"
            reasons.append(f"{common} {are} near most classes at once and left aside")
        reasons += _behaviour(perturbation)
        if geometry is None and behaviour is None:
            reasons.insert(0, "there are no hyperplanes and no perturbations to judge by")
    return Verdict(word=word, score=score, share=share, chance=chance, reason="; ".join(reasons))


def score_of(share: float, chance: float) -> float:
    """How much more often hyperplanes pass than by chance, -1 to 1.

    ``(p - q) / (1 - q)`` if ``p >= q`` and ``(p - q) / q`` if not; 0 if p = q = 1.

    Example:
        >>> score_of(0.75, 0.5), score_of(0.25, 0.5)
        (0.5, -0.5)
    """
    if share < chance:
        return (share - chance) / chance
    return (share - chance) / (1 - chance) if chance < 1 else 0.0


def summarise(layers: Sequence[LayerRecord]) -> str:
    """One sentence on a whole network: its layers by verdict, dead units, the largest finding.

    The largest finding is the one that touches the largest share of a layer's units, of: dead,
    saturated, spare by mirrored pairs (one of each pair), spare by duplicates, no numbers.

    Example:
        >>> summarise([])
        'There is no layer to judge.'
    """
    if not layers:
        return "There is no layer to judge."
    kinds = Counter(layer.verdict.word for layer in layers)
    parts = [
        f"{kinds[word]} {'layer is' if kinds[word] == 1 else 'layers are'} {word}"
        for word in WORDS
        if kinds[word]
    ]
    total = sum(layer.units_count for layer in layers)
    dead = sum(len(layer.units.dead) for layer in layers)
    text = f"{_listed(parts)}{_reliance(layers)}; {dead} of {total} units are dead"
    share, words = max((_largest(layer) for layer in layers), key=lambda finding: finding[0])
    most = max(layers, key=lambda layer: len(layer.units.dead))
    if dead and len(most.units.dead) == dead and words.endswith("are dead"):
        return f"{text}, all in layer {most.name}."
    if share:
        return f"{text}; the largest finding is that {words}."
    return f"{text}, and none is saturated or repeats another."


def _live(units: UnitReading, output: bool = False) -> Tensor:
    """Which units are live [K]."""
    live = units.mean.isfinite() & units.std.isfinite()
    live[list(units.dead)] = False
    if not output:
        live[list(units.saturated)] = False
    return live


def _shares(
    hyperplanes: HyperplaneReading | None, live: Tensor
) -> tuple[float | None, float | None, int, int]:
    """p, q, and the numbers of units that pass and that could."""
    if hyperplanes is None:
        return None, None, 0, 0
    placed = live & hyperplanes.chance.isfinite() & ~_common(hyperplanes)
    number = int(placed.sum())
    if number == 0:
        return None, None, 0, 0
    passing = int((hyperplanes.through & placed).sum())
    chance = float(hyperplanes.chance[placed].to(torch.float64).mean())
    return passing / number, min(max(chance, 0.0), 1.0), passing, number


def _common(hyperplanes: HyperplaneReading) -> Tensor:
    """Which hyperplanes are near most classes at once [K]."""
    if hyperplanes.common is None:
        return torch.zeros_like(hyperplanes.through)
    return hyperplanes.common


def _kind(value: float | None) -> str | None:
    """What a score or an index says; None if there is none."""
    if value is None or math.isnan(value):
        return None
    if abs(value) < DECIDED - _ROUNDING:
        return "mixed"
    return "distance-like" if value > 0 else "intensity-like"


def _damage(units: UnitReading, live: int, count: int) -> list[str]:
    """Why the layer is broken, if it is."""
    reasons = []
    faulty = _faulty(units)
    if live < count / 2:
        reasons.append(
            f"only {live} of {count} units are live ({_percent(live / count)}); "
            f"{len(units.dead)} are dead and {len(units.saturated)} saturated"
            + (f", {faulty} give NaN or infinite values" if faulty else "")
        )
    if units.silent_share > 0.5 and faulty < count:
        reasons.append(f"no unit is active on {_percent(units.silent_share)} of the rows")
    return reasons


def _faulty(units: UnitReading) -> int:
    """How many units gave values that are no numbers."""
    return int((~(units.mean.isfinite() & units.std.isfinite())).sum())


def _behaviour(perturbation: PerturbationReading | None) -> list[str]:
    """What the perturbations say, in words."""
    if perturbation is None:
        return []
    index, kind = perturbation.index, _kind(perturbation.index)
    if index is None or kind is None:
        return ["no perturbation costs accuracy"]
    if kind == "distance-like":
        words = "offsets cost more accuracy than scaling and clipping"
    elif kind == "intensity-like":
        words = "scaling and clipping cost more accuracy than offsets"
    else:
        words = "offsets cost about as much accuracy as scaling and clipping"
    return [f"{words} (index {index:.2f})"]


def _place(hyperplanes: HyperplaneReading) -> str:
    return "the data's mean" if hyperplanes.nearest is None else "a class"


def _largest(layer: LayerRecord) -> tuple[float, str]:
    """The layer's largest finding: the share of its units, and what is to be said."""
    count, pairs = layer.units_count, layer.pairs
    mirrored = len(pairs.mirrored) if pairs else 0
    duplicate = len({j for _, j in pairs.duplicate}) if pairs else 0
    of_layer = f"of {count} units of layer {layer.name}"
    findings = [
        (len(layer.units.dead) / count, f"{len(layer.units.dead)} {of_layer} are dead"),
        (
            len(layer.units.saturated) / count,
            f"{len(layer.units.saturated)} {of_layer} are saturated",
        ),
        (mirrored / count, f"{2 * mirrored} {of_layer} stand in mirrored pairs"),
        (duplicate / count, f"{duplicate} {of_layer} repeat another"),
        (_faulty(layer.units) / count, f"{_faulty(layer.units)} {of_layer} give no numbers"),
    ]
    return max(findings, key=lambda finding: finding[0])


def _reliance(layers: Sequence[LayerRecord]) -> str:
    """What the perturbations say of the whole network."""
    kinds = [_kind(layer.perturbation.index) for layer in layers if layer.perturbation is not None]
    told = []
    for kind, what in (("distance-like", "distances"), ("intensity-like", "intensities")):
        if count := kinds.count(kind):
            told.append(f"{count} {'relies' if count == 1 else 'rely'} on {what}")
    return f"; perturbed, {_listed(told)}" if told else ""


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
