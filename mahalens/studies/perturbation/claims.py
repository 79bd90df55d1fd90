"""The claims of arXiv 2411.17932, each put to raw and to normalised pixels, and some of our own.

Claims speak of ``lost``, the points of training accuracy that a perturbation costs a trial, so
that they can be put to networks whose unperturbed accuracy is not the paper's.
"""

from __future__ import annotations

from typing import Literal

from mahalens.studies.claims import (
    Average,
    Both,
    Claim,
    Every,
    Indistinguishable,
    Lower,
    Predicate,
)
from mahalens.studies.perturbation.levels import perturbed
from mahalens.studies.representation.claims import name_of
from mahalens.studies.representation.config import PIXELS

SOURCE = "arXiv 2411.17932"
LOST = "lost"
_BOTH = ("abs", "relu")
Side = Literal["below", "above"]


def after_name(name: str) -> str:
    """A network that was perturbed after its activation function, as claims call it.

    >>> after_name("abs-bias (raw)")
    'abs-bias (raw), after the activation'
    """
    return f"{name}, after the activation"


def claims_for(pixels: str) -> tuple[Claim, ...]:
    """The claims of the paper with one kind of pixels."""

    def of(model: str) -> str:
        return name_of(f"{model}-bias", pixels)

    def under(model: str, kind: str, level: float, place: str = "before") -> str:
        return perturbed(of(model), kind, level, place)

    def claim(key: str, statement: str, predicate: Predicate, source: str = SOURCE) -> Claim:
        start = "2411.17932" if source == SOURCE else "perturbation"
        return Claim(f"{start}/{key}/{pixels}", source, statement, predicate, pixels)

    def loses(model: str, kind: str, level: float, side: Side, points: float) -> Average:
        return Average(LOST, under(model, kind, level), side, points)

    def cheaper(first: str, second: str) -> Lower:
        return Lower(LOST, first, second)

    def both_lose_less(kind: str, levels: tuple[float, ...], points: float) -> Every:
        return Every(
            tuple(loses(model, kind, p, "below", points) for model in _BOTH for p in levels)
        )

    def offsets_cost_more(model: str) -> Every:
        scaled = under(model, "scale", 0.1)
        return Every(tuple(cheaper(scaled, under(model, "offset", p)) for p in (-0.1, 0.1)))

    return (
        claim(
            "abs-fits-better-and-generalises-worse",
            "Abs fits the training set better than ReLU and the test set worse.",
            Both(
                Lower("train_accuracy", of("relu"), of("abs")),
                Lower("test_accuracy", of("abs"), of("relu")),
            ),
        ),
        claim(
            "scale-10-costs-nothing",
            "Scaling to 10 % costs neither network half a point.",
            both_lose_less("scale", (0.1,), 0.5),
        ),
        claim(
            "scale-10-is-not-significant",
            "Scaling to 10 % changes neither network's accuracy significantly.",
            Every(
                tuple(
                    Indistinguishable("train_accuracy", under(m, "scale", 0.1), of(m), 0.5)
                    for m in _BOTH
                )
            ),
        ),
        claim(
            "scale-1-spares-abs",
            "Scaled to 1 %, Abs loses fewer than 6 points.",
            loses("abs", "scale", 0.01, "below", 6.0),
        ),
        claim(
            "scale-1-costs-relu",
            "Scaled to 1 %, ReLU loses more than 20 points.",
            loses("relu", "scale", 0.01, "above", 20.0),
        ),
        claim(
            "clip-50-costs-nothing",
            "Clipping at 50 % of the range costs neither network a point.",
            both_lose_less("clip", (0.5,), 1.0),
        ),
        claim(
            "clip-10-costs-both",
            "Clipping at 10 % of the range costs both networks: Abs more than 25 points, ReLU more "
            "than 10.",
            Every(
                (
                    loses("abs", "clip", 0.1, "above", 25.0),
                    loses("relu", "clip", 0.1, "above", 10.0),
                )
            ),
        ),
        claim(
            "clip-10-costs-abs-more",
            "Clipping at 10 % of the range costs Abs more than ReLU.",
            cheaper(under("relu", "clip", 0.1), under("abs", "clip", 0.1)),
        ),
        claim(
            "offset-1-costs-nothing",
            "Offsets of -1 % and +1 % cost neither network half a point.",
            both_lose_less("offset", (-0.01, 0.01), 0.5),
        ),
        claim(
            "offset-2-costs-abs",
            "Abs is sensitive beyond 1 %: offsets of -2 % and +2 % cost it more than a point.",
            Every(tuple(loses("abs", "offset", p, "above", 1.0) for p in (-0.02, 0.02))),
        ),
        claim(
            "offset-10-costs-abs",
            "Offsets of -10 % and +10 % cost Abs more than 10 points.",
            Every(tuple(loses("abs", "offset", p, "above", 10.0) for p in (-0.1, 0.1))),
        ),
        claim(
            "offset-25-ruins-abs-only",
            "An offset of +25 % ruins Abs (more than 60 points) and not ReLU (fewer than 30).",
            Every(
                (
                    loses("abs", "offset", 0.25, "above", 60.0),
                    loses("relu", "offset", 0.25, "below", 30.0),
                )
            ),
        ),
        claim(
            "relu-is-robuster-to-offsets",
            "Offsets of -10 %, +10 % and +25 % cost ReLU less than Abs.",
            Every(
                tuple(
                    cheaper(under("relu", "offset", p), under("abs", "offset", p))
                    for p in (-0.1, 0.1, 0.25)
                )
            ),
        ),
        claim(
            "positive-offsets-cost-more",
            "An offset of +10 % costs both networks more than one of -10 %.",
            Every(tuple(cheaper(under(m, "offset", -0.1), under(m, "offset", 0.1)) for m in _BOTH)),
        ),
        claim(
            "abs-offset-beats-scale",
            "Abs loses more to offsets of -10 % and +10 % than to scaling to 10 %.",
            offsets_cost_more("abs"),
        ),
        claim(
            "relu-offset-beats-scale",
            "ReLU loses more to offsets of -10 % and +10 % than to scaling to 10 %.",
            offsets_cost_more("relu"),
        ),
        claim(
            "abs-relies-on-distance",
            "Abs relies on distances: it loses more to the offsets of the table than to its scales "
            "and clips (index above 0).",
            Average("reliance", of("abs"), "above", 0.0),
        ),
        claim(
            "relu-relies-on-distance",
            "ReLU relies on distances: it loses more to the offsets of the table than to its "
            "scales and clips (index above 0).",
            Average("reliance", of("relu"), "above", 0.0),
        ),
        claim(
            "the-table-is-of-pre-activations",
            "The published table is that of values perturbed before the activation function: they "
            "come nearer to it than values perturbed after it.",
            Every(tuple(Lower("misfit", of(m), after_name(of(m))) for m in _BOTH)),
            "here",
        ),
        claim(
            "after-the-activation-offsets-spare-abs",
            "After the activation function, where an offset only adds a constant to every output, "
            "offsets of -10 %, +10 % and +25 % cost Abs less than before it.",
            Every(
                tuple(
                    cheaper(under("abs", "offset", p, "after"), under("abs", "offset", p))
                    for p in (-0.1, 0.1, 0.25)
                )
            ),
            "here",
        ),
        claim(
            "after-the-activation-abs-relies-on-intensity",
            "After the activation function, Abs relies on intensities (index below 0).",
            Average("reliance", after_name(of("abs")), "below", 0.0),
            "here",
        ),
    )


ACROSS: tuple[Claim, ...] = (
    Claim(
        "perturbation/the-table-is-of-raw-pixels",
        "here",
        "The published table is that of raw pixels: they come nearer to it than normalised ones.",
        Every(
            tuple(
                Lower("misfit", name_of(f"{m}-bias", "raw"), name_of(f"{m}-bias", "normalized"))
                for m in _BOTH
            )
        ),
    ),
)

CLAIMS: tuple[Claim, ...] = (*(c for way in PIXELS for c in claims_for(way)), *ACROSS)
