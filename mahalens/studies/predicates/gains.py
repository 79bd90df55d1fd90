"""Whether one change is worth more than another, over paired trials."""

from __future__ import annotations

import msgspec
import numpy as np

from mahalens.stats import summarize
from mahalens.studies.evidence import Evidence, Finding, show
from mahalens.studies.predicates.verdicts import finding, interval, lies


class GainsMore(msgspec.Struct, frozen=True):
    """``metric`` gains more from ``base`` to ``model`` than from ``than_base`` to ``than``.

    A gain is the difference within a trial. Holds if the whole 95 % interval of the mean of
    ``(model - base) - (than - than_base)`` lies above 0, fails if none of it does.
    """

    metric: str
    model: str
    base: str
    than: str
    than_base: str

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean difference of both gains beside 0."""
        names = (self.model, self.base, self.than, self.than_base)
        columns = [evidence.values(name, self.metric) for name in names]
        if any(column is None for column in columns):
            return None
        a, b, c, d = (np.asarray(column) for column in columns)
        gain, other = a - b, c - d
        shared = np.isfinite(gain) & np.isfinite(other)
        if not shared.any():
            return None
        gain, other = gain[shared], other[shared]
        summary = summarize(gain - other)
        why = (
            f"{self.model} gains {show(float(gain.mean()))} on {self.base}, {self.than} "
            f"{show(float(other.mean()))} on {self.than_base}: difference {show(summary.mean)}, "
            f"{interval(summary)}; wanted above 0."
        )
        return finding(lies("above", 0.0, summary), summary.n, summary.mean, why)

    def published(self, evidence: Evidence) -> str | None:
        """Both published gains."""
        pairs = ((self.model, self.base), (self.than, self.than_base))
        gains = []
        for one, start in pairs:
            a, b = (evidence.published(self.metric, name) for name in (one, start))
            if a is None or b is None:
                return None
            gains.append(show(a - b))
        return " against ".join(gains)
