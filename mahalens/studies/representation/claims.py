"""The claims of source 003, each put to normalised and to raw pixels, and some of our own."""

from __future__ import annotations

from mahalens.studies.claims import (
    Average,
    Both,
    Claim,
    Difference,
    Every,
    Indistinguishable,
    Lower,
    MoreVariable,
    Predicate,
    Within,
)
from mahalens.studies.representation.config import PIXELS
from mahalens.studies.representation.models import PRIMARY

ACCURACY = "test_accuracy"
FAILS = -20.0
"""Points below the baseline from which on a model counts as failed."""


def name_of(model: str, pixels: str) -> str:
    """A model with its pixels, as claims and comparisons call it.

    >>> name_of("relu2", "raw")
    'relu2 (raw)'
    """
    return f"{model} ({pixels})"


def untrained(model: str, pixels: str) -> str:
    """A model with its starting weights, as claims call it."""
    return name_of(f"untrained {model}", pixels)


def claims_for(pixels: str) -> tuple[Claim, ...]:
    """The claims of source 003 with one kind of pixels."""

    def of(model: str) -> str:
        return name_of(model, pixels)

    def claim(key: str, statement: str, predicate: Predicate) -> Claim:
        return Claim(f"003/{key}/{pixels}", "003", statement, predicate, pixels)

    def lower(model: str, than: str) -> Lower:
        return Lower(ACCURACY, of(model), of(than))

    def within(model: str, than: str, margin: float) -> Within:
        return Within(ACCURACY, of(model), of(than), margin)

    living = ("relu2-neg", "abs", "abs2", "abs2-neg")
    return (
        claim(
            "relu-equals-abs",
            "ReLU and Abs do not differ: within half a point, and not significantly.",
            Indistinguishable(ACCURACY, of("relu"), of("abs"), 0.5),
        ),
        claim(
            "relu2-fails",
            "Held to intensities, ReLU2 fails: more than 20 points below ReLU.",
            Difference(ACCURACY, of("relu2"), of("relu"), "below", FAILS),
        ),
        claim(
            "relu2-neg-recovers",
            "Held to distances, ReLU2-Neg recovers: better than ReLU2, and within 2 points of "
            "ReLU.",
            Both(lower("relu2", "relu2-neg"), within("relu2-neg", "relu", 2.0)),
        ),
        claim(
            "abs2-equals-abs",
            "Abs2 equals Abs: within half a point, and not significantly different.",
            Indistinguishable(ACCURACY, of("abs2"), of("abs"), 0.5),
        ),
        claim(
            "abs2-neg-is-worse",
            "Abs2-Neg is worse than Abs2.",
            lower("abs2-neg", "abs2"),
        ),
        claim(
            "abs2-neg-is-more-variable",
            "Abs2-Neg varies more from trial to trial than Abs2.",
            MoreVariable(ACCURACY, of("abs2-neg"), of("abs2")),
        ),
        claim(
            "bias-changes-nothing",
            "An output bias changes nothing: each of the six stays within a point.",
            Every(tuple(within(f"{model}-bias", model, 1.0) for model in PRIMARY)),
        ),
        claim(
            "bias-does-not-save-relu2",
            "ReLU2 fails with an output bias too: more than 20 points below ReLU.",
            Difference(ACCURACY, of("relu2-bias"), of("relu-bias"), "below", FAILS),
        ),
        claim(
            "l2-removes-the-gap",
            "OffsetL2 removes the gap between a model and its negation: within half a point.",
            Every((within("relu-l2-neg", "relu-l2", 0.5), within("abs-l2-neg", "abs-l2", 0.5))),
        ),
        claim(
            "l2-avoids-the-failure",
            "ReLU-L2 avoids the failure of ReLU2: better by more than 20 points.",
            Difference(ACCURACY, of("relu2"), of("relu-l2"), "below", FAILS),
        ),
        claim(
            "l2-beats-the-baselines",
            "OffsetL2 beats the baselines: ReLU-L2 beats ReLU, Abs-L2 beats Abs.",
            Every((lower("relu", "relu-l2"), lower("abs", "abs-l2"))),
        ),
        claim(
            "l2-has-the-smallest-spread",
            "OffsetL2 has the smallest spread: each of the six varies more than Abs-L2.",
            Every(tuple(MoreVariable(ACCURACY, of(m), of("abs-l2")) for m in PRIMARY)),
        ),
        claim(
            "relu2-outputs-die",
            "Output nodes of ReLU2 die: more than a tenth is never active.",
            Average("dead_outputs", of("relu2"), "above", 10.0),
        ),
        claim(
            "training-kills-outputs",
            "It is training that kills ReLU2's outputs: more are dead after it than before.",
            Lower("dead_outputs", untrained("relu2", pixels), of("relu2")),
        ),
        claim(
            "other-outputs-live",
            "ReLU2-Neg and the Abs models have no dead outputs: fewer than 1 %.",
            Every(tuple(Average("dead_outputs", of(m), "below", 1.0) for m in living)),
        ),
        claim(
            "dead-outputs-explain-the-failure",
            "Dead outputs explain ReLU2's failure: they cost at least half of what it lacks "
            "against ReLU.",
            Average("gap_from_dead", of("relu2"), "above", 0.5),
        ),
        claim(
            "hidden-nodes-live",
            "Hidden ReLU nodes hardly die: fewer than 1 % are active on fewer than 5 % of the "
            "inputs.",
            Average("rare5_hidden", of("relu"), "below", 1.0),
        ),
        claim(
            "distance-models-pass-through-their-class",
            "Hyperplanes of distance models lie nearer to their own class than to the others.",
            Every(tuple(Average("centre_ratio", of(f"{m}2-neg"), "below", 1.0) for m in _BOTH)),
        ),
        claim(
            "intensity-models-pass-through-other-classes",
            "Hyperplanes of intensity models lie nearer to the other classes than to their own.",
            Every(tuple(Average("centre_ratio", of(f"{m}2"), "above", 1.0) for m in _BOTH)),
        ),
    )


_BOTH = ("relu", "abs")

ACROSS: tuple[Claim, ...] = (
    Claim(
        "representation/raw-pixels-cause-the-failure",
        "here",
        "ReLU2 fails with raw pixels only: with normalised ones it stays within 20 points of ReLU.",
        Both(
            Difference(ACCURACY, "relu2 (raw)", "relu (raw)", "below", FAILS),
            Difference(ACCURACY, "relu2 (normalized)", "relu (normalized)", "below", FAILS),
            negated=True,
        ),
    ),
    Claim(
        "representation/raw-pixels-kill-outputs",
        "here",
        "More of ReLU2's outputs die with raw than with normalised pixels.",
        Lower("dead_outputs", "relu2 (normalized)", "relu2 (raw)"),
    ),
    Claim(
        "representation/l2-code-equals-formula",
        "here",
        "The published code's OffsetL2 and the paper's formula reach the same accuracy: within "
        "half a point (Abs-L2, normalised pixels).",
        Within(ACCURACY, "abs-l2-code (normalized)", "abs-l2 (normalized)", 0.5),
    ),
    Claim(
        "representation/point-slope-changes-nothing",
        "here",
        "An output layer in point-slope form reaches the accuracy of a linear one: within a point "
        "(ReLU, Abs, normalised pixels).",
        Every(
            tuple(
                Within(ACCURACY, f"{m}-point (normalized)", f"{m} (normalized)", 1.0)
                for m in ("relu", "abs")
            )
        ),
    ),
)

CLAIMS: tuple[Claim, ...] = (*(c for way in PIXELS for c in claims_for(way)), *ACROSS)
