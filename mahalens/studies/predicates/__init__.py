"""The kinds of statement a claim can make, as data that computes its own verdict.

Each predicate has ``judge``, which gives a :class:`Finding` or ``None`` where the run did not
measure what it needs, and ``published``, the source's own numbers for the same comparison.
"""

from mahalens.studies.predicates.combined import Both, Every
from mahalens.studies.predicates.differences import (
    Difference,
    Indistinguishable,
    MoreVariable,
    Within,
)
from mahalens.studies.predicates.gains import GainsMore
from mahalens.studies.predicates.pairs import Lower, Ratio
from mahalens.studies.predicates.single import AboveChance, Average, TrialShare
from mahalens.studies.predicates.verdicts import FEWEST_TRIALS, SIGNIFICANT, is_finite

Predicate = (
    Lower
    | TrialShare
    | Average
    | Ratio
    | AboveChance
    | Difference
    | Within
    | Indistinguishable
    | MoreVariable
    | GainsMore
    | Both
    | Every
)

__all__ = [
    "FEWEST_TRIALS",
    "SIGNIFICANT",
    "AboveChance",
    "Average",
    "Both",
    "Difference",
    "Every",
    "GainsMore",
    "Indistinguishable",
    "Lower",
    "MoreVariable",
    "Predicate",
    "Ratio",
    "TrialShare",
    "Within",
    "is_finite",
]
