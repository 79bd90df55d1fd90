"""Tables over trials: summaries with intervals, paired comparisons, shares. Needs no torch.

========================  ====================================================================
:func:`summarize`         mean, spread, range and Student t interval of one metric over trials
:func:`paired_lower`      is one model lower than another, trial by trial?
:func:`proportion`        a share of trials with its Wilson interval
========================  ====================================================================
"""

from mahalens.stats.comparisons import PairedComparison, Proportion, paired_lower, proportion
from mahalens.stats.summary import Summary, summarize

__all__ = [
    "PairedComparison",
    "Proportion",
    "Summary",
    "paired_lower",
    "proportion",
    "summarize",
]
