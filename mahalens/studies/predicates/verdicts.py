"""From numbers to a verdict and its words, for all predicates."""

from __future__ import annotations

import math

from mahalens.stats import Summary
from mahalens.studies.evidence import Finding, show

SIGNIFICANT = 0.05
FEWEST_TRIALS = 5
"""With fewer, nothing is decided: five out of five is the first outcome with p < 0.05."""


def lies(side: str, bound: float, summary: Summary) -> bool | None:
    """Whether a mean lies on a side of a bound; None if its interval does not tell."""
    if summary.ci95 is None or summary.n < FEWEST_TRIALS:
        return None
    low, high = summary.ci95 if side == "below" else (-summary.ci95[1], -summary.ci95[0])
    limit = bound if side == "below" else -bound
    return True if high < limit else False if low >= limit else None


def finding(holds: bool | None, trials: int, measured: float, why: str) -> Finding:
    """A finding; one that is open says why."""
    if holds is None:
        reason = "Too few trials to tell" if trials < FEWEST_TRIALS else "Undecided"
        why = f"{reason}. {why}"
    return Finding(holds, measured, why)


def interval(summary: Summary) -> str:
    """The interval of a mean, for a sentence."""
    if summary.ci95 is None:
        return "of a single trial, so without an interval"
    return f"95 % interval {show(summary.ci95[0])} to {show(summary.ci95[1])}"


def is_finite(value: float) -> float | None:
    """The value, or ``None`` where JSON has no number for it."""
    return value if math.isfinite(value) else None
