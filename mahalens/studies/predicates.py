"""The kinds of statement a claim can make, as data that computes its own verdict.

Each predicate has ``judge``, which gives a :class:`Finding` or ``None`` where the run did not
measure what it needs, and ``published``, the source's own numbers for the same comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.stats import Summary, paired_lower, proportion, summarize
from mahalens.studies.evidence import Evidence, Finding, show

SIGNIFICANT = 0.05
FEWEST_TRIALS = 5
"""With fewer, nothing is decided: five out of five is the first outcome with p < 0.05."""


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
        return _finding(holds, result.n, result.wins / result.n, why)

    def published(self, evidence: Evidence) -> str | None:
        """The two published means."""
        a = evidence.published(self.metric, self.model)
        b = evidence.published(self.metric, self.than)
        return None if a is None or b is None else f"{show(a)} against {show(b)}"


class TrialShare(msgspec.Struct, frozen=True):
    """At least ``share`` of the trials have ``metric`` below (or above) ``bound``.

    ``measured`` is the share of the trials that do; a trial without a value does not. Fewer than
    ``fewest`` trials decide nothing.
    """

    metric: str
    model: str
    side: Literal["below", "above"]
    bound: float
    share: float = 0.9
    fewest: int = FEWEST_TRIALS

    def judge(self, evidence: Evidence) -> Finding | None:
        """Count the trials on the right side of the bound."""
        values = evidence.values(self.model, self.metric)
        if values is None:
            return None
        good = values < self.bound if self.side == "below" else values > self.bound
        result = proportion(int(good.sum()), len(values))
        low, high = result.ci95
        why = (
            f"{self.side.capitalize()} {show(self.bound)} in {result.k} of {result.n} trials "
            f"({low:.0%} to {high:.0%} with 95 % confidence), wanted in {self.share:.0%}; "
            f"median {show(float(np.nanmedian(values)))}."
            + _where(evidence.basins.get(self.model, ()), good)
        )
        holds = None if result.n < self.fewest else result.share >= self.share
        return _finding(holds, result.n, result.share, why)

    def published(self, evidence: Evidence) -> str | None:
        """The published mean."""
        mean = evidence.published(self.metric, self.model)
        return None if mean is None else f"mean {show(mean)}"


class Average(msgspec.Struct, frozen=True):
    """The mean of ``metric``, divided by the fact ``per``, lies below (or above) ``bound``.

    Holds if its whole 95 % interval does, fails if none of it does, and is undecided between.
    """

    metric: str
    model: str
    side: Literal["below", "above"]
    bound: float
    per: str | None = None

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean beside the bound."""
        values = evidence.values(self.model, self.metric)
        if values is None:
            return None
        unit = evidence.number(self.per) if self.per else 1.0
        if not unit > 0:
            return None
        summary = summarize(values / unit)
        holds = _lies(self.side, self.bound, summary)
        of = f" of the {_UNITS.get(self.per, self.per)}" if self.per else ""
        why = (
            f"Mean {show(summary.mean)}{of}, {_interval(summary)}; "
            f"wanted {self.side} {show(self.bound)}."
        )
        return _finding(holds, summary.n, summary.mean, why)

    def published(self, evidence: Evidence) -> str | None:
        """The published mean in the same unit."""
        mean = evidence.published(self.metric, self.model)
        if mean is None:
            return None
        return f"mean {show(mean / (evidence.number(self.per) if self.per else 1.0))}"


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
        holds = _lies(self.side, math.log(self.bound), summary)
        name = _NAMES.get(self.metric, self.metric)
        ends = ""
        if summary.ci95 is not None:
            low, high = (show(math.exp(end)) for end in summary.ci95)
            ends = f", 95 % interval {low} to {high}"
        why = (
            f"{name} of {self.model} over that of {self.than}: {show(math.exp(summary.mean))} "
            f"(geometric mean{ends}); wanted {self.side} {show(self.bound)}."
        )
        return _finding(holds, summary.n, math.exp(summary.mean), why)

    def published(self, evidence: Evidence) -> str | None:
        """The published ratio."""
        a = evidence.published(self.metric, self.model)
        b = evidence.published(self.metric, self.than)
        return None if a is None or not b else show(a / b)


class AboveChance(msgspec.Struct, frozen=True):
    """``metric`` is at least ``bound`` on average and above what chance gives.

    ``chance`` names a fact with the 2.5 % and 97.5 % points of the metric under chance. Where
    chance alone reaches ``bound``, high values say nothing, and the claim cannot hold.
    """

    metric: str
    model: str
    bound: float
    chance: str

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean beside chance and bound."""
        values = evidence.values(self.model, self.metric)
        band = evidence.facts.get(self.chance)
        if values is None or not isinstance(band, (list, tuple)):
            return None
        summary = summarize(values)
        holds = _lies("above", max(self.bound, float(band[1])), summary)
        why = (
            f"Mean {show(summary.mean)}, {_interval(summary)}; random "
            f"rotations of the true whitening give {show(float(band[0]))} to "
            f"{show(float(band[1]))}, and {show(self.bound)} was wanted."
        )
        return _finding(holds, summary.n, summary.mean, why)

    def published(self, evidence: Evidence) -> str | None:
        """No figure was published."""
        del evidence
        return None


class Both(msgspec.Struct, frozen=True):
    """Two predicates hold, the second one if ``negated`` fails. ``measured`` is the first's."""

    first: Predicate
    second: Predicate
    negated: bool = False

    def judge(self, evidence: Evidence) -> Finding | None:
        """Judge both."""
        a, b = self.first.judge(evidence), self.second.judge(evidence)
        if a is None or b is None:
            return None
        parts = (a.holds, b.holds if b.holds is None else b.holds != self.negated)
        holds = False if False in parts else None if None in parts else True
        return Finding(holds, a.measured, f"{a.why} {b.why}")

    def published(self, evidence: Evidence) -> str | None:
        """What was published about the first."""
        return self.first.published(evidence)


def _lies(side: str, bound: float, summary: Summary) -> bool | None:
    """Whether a mean lies on a side of a bound; None if its interval does not tell."""
    if summary.ci95 is None or summary.n < FEWEST_TRIALS:
        return None
    low, high = summary.ci95 if side == "below" else (-summary.ci95[1], -summary.ci95[0])
    limit = bound if side == "below" else -bound
    return True if high < limit else False if low >= limit else None


def _finding(holds: bool | None, trials: int, measured: float, why: str) -> Finding:
    if holds is None:
        reason = "Too few trials to tell" if trials < FEWEST_TRIALS else "Undecided"
        why = f"{reason}. {why}"
    return Finding(holds, measured, why)


def _interval(summary: Summary) -> str:
    if summary.ci95 is None:
        return "of a single trial, so without an interval"
    return f"95 % interval {show(summary.ci95[0])} to {show(summary.ci95[1])}"


def _where(basins: Sequence[str], good: NDArray[np.bool_]) -> str:
    """A sentence on where the trials that missed lie, if that is known."""
    missed = Counter(b for b, fine in zip(basins, good.tolist(), strict=False) if b and not fine)
    if not missed:
        return ""
    parts = [f"{count} {_PLACES.get(basin, basin)}" for basin, count in missed.most_common()]
    return f" Of the {missed.total()} that miss: {', '.join(parts)}."


_UNITS = {"dim": "number of dimensions", "target_variance": "variance of the targets"}

_PLACES = {
    "zero residual": "in the basin of the perfect fit",
    "local minimum": "at a local minimum",
    "saddle point": "at a saddle point",
    "not converged": "not converged",
    "stalled": "stalled",
    "non-finite": "non-finite",
}


_NAMES = {"final_error": "Error", "seconds": "Time", "error_density": "Test error"}


Predicate = Lower | TrialShare | Average | Ratio | AboveChance | Both


def is_finite(value: float) -> float | None:
    """The value, or ``None`` where JSON has no number for it."""
    return value if math.isfinite(value) else None
