"""What a claim can say of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.stats import proportion, summarize
from mahalens.studies.evidence import Evidence, Finding, show
from mahalens.studies.predicates.verdicts import FEWEST_TRIALS, finding, interval, lies


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
        return finding(holds, result.n, result.share, why)

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
        holds = lies(self.side, self.bound, summary)
        of = f" of the {_UNITS.get(self.per, self.per)}" if self.per else ""
        why = (
            f"Mean {show(summary.mean)}{of}, {interval(summary)}; "
            f"wanted {self.side} {show(self.bound)}."
        )
        return finding(holds, summary.n, summary.mean, why)

    def published(self, evidence: Evidence) -> str | None:
        """The published mean in the same unit."""
        mean = evidence.published(self.metric, self.model)
        if mean is None:
            return None
        return f"mean {show(mean / (evidence.number(self.per) if self.per else 1.0))}"


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
        holds = lies("above", max(self.bound, float(band[1])), summary)
        why = (
            f"Mean {show(summary.mean)}, {interval(summary)}; random "
            f"rotations of the true whitening give {show(float(band[0]))} to "
            f"{show(float(band[1]))}, and {show(self.bound)} was wanted."
        )
        return finding(holds, summary.n, summary.mean, why)

    def published(self, evidence: Evidence) -> str | None:
        """No figure was published."""
        del evidence
        return None


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
