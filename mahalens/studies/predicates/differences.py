"""How far apart two models are, over paired trials: far, near, equal, or more variable."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.stats import compare, equivalent, spread_ratio, summarize
from mahalens.studies.evidence import Evidence, Finding, show
from mahalens.studies.predicates.verdicts import (
    FEWEST_TRIALS,
    SIGNIFICANT,
    finding,
    interval,
    lies,
)

Values = NDArray[np.float64]


class _Pairwise(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` beside that of ``than``."""

    metric: str
    model: str
    than: str

    def pair(self, evidence: Evidence) -> tuple[Values, Values] | None:
        """The trials that both models have a value for."""
        a = evidence.values(self.model, self.metric)
        b = evidence.values(self.than, self.metric)
        if a is None or b is None:
            return None
        shared = np.isfinite(a) & np.isfinite(b)
        return (a[shared], b[shared]) if shared.any() else None

    def means(self, pair: tuple[Values, Values]) -> str:
        """The two means, for a sentence."""
        a, b = (show(float(values.mean()), 4) for values in pair)
        return f"{self.model} averages {a}, {self.than} {b}"

    def published(self, evidence: Evidence) -> str | None:
        """The two published means."""
        a = evidence.published(self.metric, self.model)
        b = evidence.published(self.metric, self.than)
        return None if a is None or b is None else f"{show(a, 4)} against {show(b, 4)}"


class Difference(_Pairwise, frozen=True):
    """``metric`` of ``model`` minus that of ``than`` lies below (or above) ``bound``.

    Holds if the whole 95 % interval of the mean paired difference does, fails if none of it does.
    """

    side: Literal["below", "above"]
    bound: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean difference beside the bound."""
        pair = self.pair(evidence)
        if pair is None:
            return None
        summary = summarize(pair[0] - pair[1])
        mean = _settled(summary.mean, pair)
        why = (
            f"{self.means(pair)}: difference {show(mean)}, "
            f"{interval(summary)}; wanted {self.side} {show(self.bound)}."
        )
        holds = lies(self.side, self.bound, summary)
        return finding(holds, summary.n, mean, why)


class Within(_Pairwise, frozen=True):
    """``metric`` of ``model`` and of ``than`` differ by less than ``margin`` on average.

    Judged by two one-sided paired tests (t, or signed ranks where differences are far from
    normal): holds if both reject at 5 %, fails if the difference is shown to be larger.
    """

    margin: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean difference beside the margin."""
        pair = self.pair(evidence)
        if pair is None:
            return None
        result = equivalent(*pair, self.margin)
        mean = _settled(float(np.mean(pair[0] - pair[1])), pair)
        ends = "" if result.ci90 is None else _ends("90 %", result.ci90)
        test = "" if result.preferred_test is None else f" ({result.preferred_test})"
        why = (
            f"{self.means(pair)}: difference {show(mean)}{ends}; "
            f"wanted within {show(self.margin)}{test}."
        )
        enough = result.n >= FEWEST_TRIALS
        holds = _OUTCOMES[result.verdict] if enough else None
        return finding(holds, result.n, mean, why)


class Indistinguishable(_Pairwise, frozen=True):
    """Two models do not differ: not significantly, and demonstrably by less than ``margin``.

    Fails if the paired test finds a difference (p < 0.05), however small; holds if it does not and
    the means are shown to lie within the margin; a mere lack of significance decides nothing.
    """

    margin: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Test for a difference, then for equivalence."""
        pair = self.pair(evidence)
        near = Within(self.metric, self.model, self.than, self.margin).judge(evidence)
        if pair is None or near is None:
            return None
        result = compare(*pair)
        p = result.preferred_p
        told = "no test possible" if p is None else f"{result.preferred_test} p = {show(p)}"
        why = f"{near.why.removeprefix('Undecided. ')} {told[0].upper()}{told[1:]}."
        if len(pair[0]) < FEWEST_TRIALS:
            return Finding(None, near.measured, why)
        holds = False if p is not None and p < SIGNIFICANT else near.holds
        return finding(holds, len(pair[0]), near.measured, why)


class MoreVariable(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` varies more from trial to trial than that of ``than``.

    Holds if its standard deviation is larger and Brown and Forsythe's test gives p < 0.05, fails
    if it is not larger, and is undecided between. ``measured`` is the ratio of the deviations.
    """

    metric: str
    model: str
    than: str

    def judge(self, evidence: Evidence) -> Finding | None:
        """Compare the two spreads."""
        a = evidence.values(self.model, self.metric)
        b = evidence.values(self.than, self.metric)
        if a is None or b is None:
            return None
        result = spread_ratio(a, b)
        if result.ratio is None:
            return None
        p = "" if result.p_value is None else f", Brown-Forsythe p = {show(result.p_value)}"
        why = (
            f"Standard deviation {show(result.std_a)} of {self.model}, {show(result.std_b)} of "
            f"{self.than}{p}."
        )
        trials = min(result.n_a, result.n_b)
        holds = None
        if trials >= FEWEST_TRIALS and result.std_a <= result.std_b:
            holds = False
        elif trials >= FEWEST_TRIALS and (result.p_value or 0.0) < SIGNIFICANT:
            holds = True
        return finding(holds, trials, result.ratio, why)

    def published(self, evidence: Evidence) -> str | None:
        """Published spreads are not kept by metric."""
        del evidence
        return None


_OUTCOMES = {"equivalent": True, "different": False, "undecided": None}


def _settled(mean: float, pair: tuple[Values, Values]) -> float:
    """A mean difference that is nothing but rounding is 0, for people to read."""
    size = max(float(np.abs(values).max()) for values in pair)
    return mean if abs(mean) > 1e-13 * size else 0.0


def _ends(level: str, ends: tuple[float, float]) -> str:
    return f", {level} interval {show(ends[0])} to {show(ends[1])}"
