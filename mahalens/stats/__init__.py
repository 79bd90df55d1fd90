"""Statistics over trials: summaries with intervals, paired comparisons, equivalence, shares.

Thin over ``scipy.stats`` and without torch. Each metric is a vector ``[T]``, one number per trial;
``None``, NaN and infinities mark trials without a value. They are left out and counted.

========================  ====================================================================
:func:`summarise`         mean, spread, range and Student t interval of one metric over trials
:func:`proportion`        a share of trials with its Wilson interval
:func:`spread_ratio`      which of two models varies more from trial to trial?
:func:`paired_lower`      is one model lower than another, trial by trial?
:func:`compare`           two models: t-tests, Cohen's d, signed ranks, which of them to use
:func:`compare_family`    many pairs of models, p-values adjusted over all of them
:func:`holm`              Holm's adjusted p-values
:func:`equivalent`        do two models differ by less than a margin?
========================  ====================================================================
"""

from mahalens.stats.comparisons import (
    Comparison,
    FamilyComparison,
    PairedComparison,
    compare,
    compare_family,
    holm,
    paired_lower,
)
from mahalens.stats.equivalence import Equivalence, equivalent
from mahalens.stats.summaries import (
    Proportion,
    SpreadRatio,
    Summary,
    proportion,
    spread_ratio,
    summarise,
    summarize,  # noqa: F401  the old spelling, deprecated
)

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
    "summarise",
]
