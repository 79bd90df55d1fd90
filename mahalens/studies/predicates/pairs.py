"""What a claim can say of two models, trial by trial."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from mahalens.stats import paired_lower, summarize
from mahalens.studies.evidence import Evidence, Finding, show
from mahalens.studies.predicates.verdicts import FEWEST_TRIALS, SIGNIFICANT, finding, lies


class Lower(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` lies below that of ``than``, trial by trial.

    Holds if the one-sided Wilcoxon signed-rank test over paired trials gives p < 0.05, fails if it
    is lower in at most half of them, and is undecided between. With fewer than 5 pairs no outcome
    could hold, so that they decide nothing.
    ``measured`` is the share of trials in which it is lower.
    """

    metric: str
    model: str
    than: str

    def judge(self, evidence: Evidence) -> Finding | None:
        """Compare the two models over their shared trials."""
        a = evidence.values(self.model, self.metric)
        b = evidence.values(self.than, self.metric)
        if a is None or b is None:
            return None
        result = paired_lower(a, b)
        if not result.n:
            return None
        shared = np.isfinite(a) & np.isfinite(b)
        why = (
            f"{self.model} averages {show(float(a[shared].mean()))}, {self.than} "
            f"{show(float(b[shared].mean()))}; lower in {result.wins} of {result.n} trials, "
            f"one-sided Wilcoxon p = {show(result.p_value)}."
        )
        holds = None
        if result.n >= FEWEST_TRIALS and result.p_value < SIGNIFICANT:
            holds = True
        elif result.n >= FEWEST_TRIALS and 2 * result.wins <= result.n:
            holds = False
        return finding(holds, result.n, result.wins / result.n, why)

    def published(self, evidence: Evidence) -> str | None:
        """The two published means."""
        a = evidence.published(self.metric, self.model)
        b = evidence.published(self.metric, self.than)
        return None if a is None or b is None else f"{show(a)} against {show(b)}"


class Ratio(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` is below (or above) ``bound`` times that of ``than``.

    Judged by the geometric mean over paired trials: holds if its whole 95 % interval lies there.
    """

    metric: str
    model: str
    than: str
    side: Literal["below", "above"]
    bound: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean ratio beside the bound."""
        a = evidence.values(self.model, self.metric)
        b = evidence.values(self.than, self.metric)
        if a is None or b is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where((a > 0) & (b > 0), np.log(a / b), np.nan)
        summary = summarize(logs)
        if not summary.n:
            return None
        holds = lies(self.side, math.log(self.bound), summary)
        name = _NAMES.get(self.metric, self.metric)
        ends = ""
        if summary.ci95 is not None:
            low, high = (show(math.exp(end)) for end in summary.ci95)
            ends = f", 95 % interval {low} to {high}"
        why = (
            f"{name} of {self.model} over that of {self.than}: {show(math.exp(summary.mean))} "
            f"(geometric mean{ends}); wanted {self.side} {show(self.bound)}."
        )
        return finding(holds, summary.n, math.exp(summary.mean), why)

    def published(self, evidence: Evidence) -> str | None:
        """The published ratio."""
        a = evidence.published(self.metric, self.model)
        b = evidence.published(self.metric, self.than)
        return None if a is None or not b else show(a / b)


_NAMES = {"final_error": "Error", "seconds": "Time", "error_density": "Test error"}
