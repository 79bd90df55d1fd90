"""What the sources propose of mixed layers, put to every data set, and some claims of our own."""

from __future__ import annotations

from mahalens.studies.claims import (
    Average,
    Both,
    Claim,
    Difference,
    Every,
    Lower,
    MoreVariable,
    Predicate,
    Within,
)
from mahalens.studies.hybrid.config import HybridConfig
from mahalens.studies.hybrid.mixtures import MIXTURES, NARROW, REFERENCE, WIDE
from mahalens.studies.paired.config import name_of, part_of

ACCURACY = "test_accuracy"
MARGIN = 1.0
"""Points of test accuracy that count as no difference."""


def claims_for(config: HybridConfig) -> tuple[Claim, ...]:
    """What a run is to decide, data set by data set."""
    parts = map(part_of, config.data)
    return tuple(claim for part in parts for claim in _claims_on(part, config))


def _claims_on(part: str, config: HybridConfig) -> tuple[Claim, ...]:
    def of(model: str) -> str:
        return name_of(model, part)

    def claim(key: str, statement: str, predicate: Predicate, source: str = "here") -> Claim:
        return Claim(f"hybrid/{key}/{part}", source, statement, predicate, part)

    def beats(model: str, than: str, points: float = 0.0, metric: str = ACCURACY) -> Difference:
        return Difference(metric, of(model), of(than), "above", points)

    def faster(model: str, than: str) -> Lower:
        return Lower("fastest_epochs", of(model), of(than))

    mixed = [name for name, one in MIXTURES.items() if one.mixes and one.family == WIDE]
    found = [
        claim(
            "half-beats-relu",
            "A layer half of Abs units is more accurate than one of ReLU units alone.",
            beats("abs-50", "abs-0"),
            "001",
        ),
        claim(
            "half-beats-both",
            "A layer half of Abs units is more accurate than both pure layers.",
            Both(beats("abs-50", "abs-0"), beats("abs-50", "abs-100")),
            "001",
        ),
        claim(
            "narrow-half-beats-both",
            "So it is where units are scarce: a narrow layer half of Abs units is more accurate "
            "than both pure ones.",
            Both(beats("narrow-50", "narrow-0"), beats("narrow-50", "narrow-100")),
            "001",
        ),
        claim(
            "abs-equals-relu",
            "Abs units and ReLU units say the same: pure layers differ by less than a point.",
            Within(ACCURACY, of("abs-100"), of("abs-0"), MARGIN),
            "001",
        ),
        claim(
            "narrow-abs-beats-relu",
            "Where units are scarce, Abs units alone are more accurate than as many ReLU units.",
            beats("narrow-100", "narrow-0"),
            "001",
        ),
        claim(
            "one-abs-for-two-relu",
            "One Abs unit stands for two ReLU units: the narrow Abs layer is at most a point less "
            "accurate than twice as many ReLU units.",
            beats("narrow-100", "narrow-double", -MARGIN),
            "001",
        ),
        claim(
            "narrow-gains-more",
            "Abs units gain more over ReLU units in the narrow layer than in the wide one.",
            beats("narrow-100", "abs-100", metric="gain"),
            "001",
        ),
        claim(
            "mixing-costs-nothing",
            "Mixing costs nothing: no wide mixture is more than a point less accurate than ReLU "
            "units alone.",
            Every(tuple(beats(name, "abs-0", -MARGIN) for name in mixed)),
        ),
        claim(
            "more-abs-more-accurate",
            "The more Abs units, the more accurate: half beats none, and all beat half.",
            Every((beats("abs-50", "abs-0"), beats("abs-100", "abs-50"))),
        ),
        claim(
            "more-abs-faster",
            "The more Abs units, the faster: at its fastest learning rate, half gets to a tenth of "
            "the loss of guessing in fewer epochs than none, and all in fewer than half.",
            Every((faster("abs-50", "abs-0"), faster("abs-100", "abs-50"))),
        ),
        claim(
            "narrow-more-abs-faster",
            "Where units are scarce, too: half Abs units are faster than none, and all faster than "
            "half.",
            Every((faster("narrow-50", "narrow-0"), faster("narrow-100", "narrow-50"))),
        ),
        claim(
            "relu-varies-more",
            "Where units are scarce, the accuracy of ReLU units varies more from trial to trial "
            "than that of Abs units.",
            MoreVariable(ACCURACY, of("narrow-0"), of("narrow-100")),
        ),
        claim(
            "only-relu-units-die",
            "Units of the wide ReLU layer die (more than 1 %), those of the Abs layer do not "
            "(fewer than 1 %).",
            Every(
                (
                    Average("dead", of("abs-0"), "above", 1.0),
                    Average("dead", of("abs-100"), "below", 1.0),
                )
            ),
        ),
        claim(
            "outputs-lean-on-abs",
            "Given as many of both, outputs lean on Abs units: more than half of what moves them.",
            Average("abs_weight", of("abs-50"), "above", 50.0),
        ),
    ]
    for model, where in (("learned", "wide"), ("narrow-learned", "narrow")):
        if model in config.models:
            found.append(
                claim(
                    f"{model}-becomes-abs",
                    f"Units of a {where} layer that may choose become more of an Abs than of a "
                    "ReLU (above 0.5, where they start).",
                    Average("learned_abs", of(model), "above", 0.5),
                )
            )
    return tuple(found)


def pairs_of(config: HybridConfig) -> list[tuple[str, str]]:
    """Which layers are tested against each other: each with ReLU alone, and some with Abs alone.

    >>> pairs_of(HybridConfig.with_defaults(models=["abs-0", "abs-50", "narrow-0", "narrow-100"]))
    [('abs-50', 'abs-0'), ('narrow-100', 'narrow-0')]
    """
    with_relu = [(name, REFERENCE[one.family]) for name, one in MIXTURES.items()]
    pure = {WIDE: "abs-100", NARROW: "narrow-100"}
    with_abs = [("abs-50", pure[WIDE]), ("narrow-50", pure[NARROW])]
    doubled = [(pure[NARROW], "narrow-double")]
    return [
        (a, b)
        for a, b in (*with_relu, *with_abs, *doubled)
        if a != b and a in config.models and b in config.models
    ]
