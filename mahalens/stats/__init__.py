"""Tables over trials: summaries with intervals, paired comparisons, shares. Needs no torch.

========================  ====================================================================
:func:`summarize`         mean, spread, range and Student t interval of one metric over trials
:func:`paired_lower`      is one model lower than another, trial by trial?
:func:`compare`           two models: t-tests, Cohen's d, signed ranks, which of them to lean on
:func:`compare_family`    many pairs of models, p-values adjusted over all of them
:func:`holm`              Holm's adjusted p-values
:func:`equivalent`        do two models differ by less than a margin?
:func:`spread_ratio`      which of two models varies more from trial to trial?
:func:`proportion`        a share of trials with its Wilson interval
========================  ====================================================================
"""

from mahalens.stats.comparisons import PairedComparison, Proportion, paired_lower, proportion
from mahalens.stats.equivalence import Equivalence, equivalent
from mahalens.stats.family import FamilyComparison, compare_family, holm
from mahalens.stats.spread import SpreadRatio, spread_ratio
from mahalens.stats.summary import Summary, summarize
from mahalens.stats.two_models import Comparison, compare

__all__ = [
    "Comparison",
    "Equivalence",
    "FamilyComparison",
    "PairedComparison",
    "Proportion",
    "SpreadRatio",
    "Summary",
    "compare",
    "compare_family",
    "equivalent",
    "holm",
    "paired_lower",
    "proportion",
    "spread_ratio",
    "summarize",
]
