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

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__all__.remove("summarize")  # the old spelling, deprecated
