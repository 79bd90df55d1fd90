"""What distance heads are to show beside linear + softmax, and what was published about rivals."""

from __future__ import annotations

from typing import Literal

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
from mahalens.studies.heads.config import HeadsConfig
from mahalens.studies.heads.models import DISTANCES
from mahalens.studies.heads.presentation import LABELS
from mahalens.studies.heads.published import SOURCE
from mahalens.studies.paired.config import name_of, part_of

GOAL, GOAL_AUROC = "layered", 0.96
"""Which head is to reach what; chosen on training samples, before the unknown set was looked at."""
MARGIN = 0.5
"""Points of accuracy that count as nothing."""
MAIN = "refitted"
"""The head that is put beside all rivals: one head for classes and for rejecting."""
SAME = 0.005
RIVALS = {
    "energy": "the energy",
    "knn": "nearest neighbours",
    "mahalanobis": "the Mahalanobis distance on softmax features",
    "relative-mahalanobis": "the relative Mahalanobis distance on softmax features",
    "duq": "a DUQ-like head",
    "ensemble": "five networks",
}
_RATE: tuple[tuple[Literal["above", "below"], float], ...] = (("above", 4.0), ("below", 6.0))


def claims_for(config: HeadsConfig) -> tuple[Claim, ...]:
    """All claims, put to each data set of a run."""
    return tuple(claim for data in config.data for claim in _claims_on(part_of(data)))


def _claims_on(part: str) -> list[Claim]:
    found = []

    def claim(key: str, statement: str, predicate: Predicate, source: str = "here") -> None:
        found.append(Claim(f"heads/{key}/{part}", source, f"{statement}.", predicate, part))

    def of(model: str) -> str:
        return name_of(model, part)

    def finds_more(model: str, rival: str) -> Predicate:
        return Lower("auroc", of(rival), of(model))

    if part == "fashion-mnist":
        claim(
            "goal",
            f"{LABELS[GOAL]}: AUROC above {GOAL_AUROC:g}, in at least half of the trials no less "
            "accurate than softmax",
            Both(
                Average("auroc", of(GOAL), "above", GOAL_AUROC),
                Lower("test_accuracy", of(GOAL), of("softmax")),
                negated=True,
            ),
        )
    for model in DISTANCES:
        claim(
            f"{model}-as-accurate",
            f"{LABELS[model]}: at most {MARGIN:g} points less accurate than softmax",
            Difference("test_accuracy", of(model), of("softmax"), "above", -MARGIN),
            "001",
        )
    for model in DISTANCES:
        claim(
            f"{model}-finds-more-than-softmax",
            f"{LABELS[model]}: finds more of the unknown than the largest softmax probability",
            finds_more(model, "softmax"),
        )
    for rival, said in RIVALS.items():
        claim(
            f"{MAIN}-finds-more-than-{rival}",
            f"{LABELS[MAIN]}: finds more of the unknown than {said}",
            finds_more(MAIN, rival),
        )
    claim(
        "fitted-is-mahalanobis",
        f"{LABELS['fitted']}: the AUROC of scikit-learn's Mahalanobis distance, within {SAME:g}",
        Within("auroc", of("fitted"), of("mahalanobis"), SAME),
    )
    claim(
        "distance-calibrated",
        f"{LABELS['distance']}: better calibrated than softmax, both without a temperature",
        Lower("ece", of("distance"), of("softmax")),
    )
    claim(
        f"{MAIN}-calibrated",
        f"{LABELS[MAIN]}: better calibrated than softmax, both with a temperature",
        Lower("ece_calibrated", of(MAIN), of("softmax")),
    )
    claim(
        "distance-more-likely",
        f"{LABELS['distance']}: test labels are likelier than with softmax, without a temperature",
        Lower("nll", of("distance"), of("softmax")),
    )
    claim(
        "rate-is-kept",
        "All distance heads reject 4 to 6 % of known samples where 5 % is asked for",
        Every(
            tuple(
                Average("rejected_known", of(model), side, bound)
                for model in DISTANCES
                for side, bound in _RATE
            )
        ),
    )
    claim(
        "refitting-helps",
        f"{LABELS['refitted']}: finds more of the unknown than as trained",
        finds_more("refitted", "distance"),
    )
    claim(
        "layers-help",
        f"{LABELS['layered']}: finds more of the unknown than the last features alone",
        finds_more("layered", "refitted"),
    )
    claim(
        "training-by-distance-helps",
        "An ellipsoid fitted to features that were trained by distance finds more of the unknown "
        "than one fitted to those of softmax",
        finds_more("refitted", "fitted"),
    )
    for metric, said in (("test_accuracy", "accuracy"), ("auroc", "AUROC")):
        claim(
            f"softmax-{metric}-varies-more",
            f"The {said} of softmax varies more between trials than that of the trained distance "
            "head, refitted",
            MoreVariable(metric, of("softmax"), of("refitted")),
        )
    claim(
        "duq-finds-more-than-softmax",
        "A DUQ-like head finds more of the unknown than the largest softmax probability",
        finds_more("duq", "softmax"),
        SOURCE,
    )
    claim(
        "duq-finds-more-than-ensemble",
        "A DUQ-like head finds more of the unknown than five networks",
        finds_more("duq", "ensemble"),
        SOURCE,
    )
    claim(
        "ensemble-finds-more-than-softmax",
        "Five networks find more of the unknown than one",
        finds_more("ensemble", "softmax"),
        SOURCE,
    )
    return found
