"""Claims of the sources: rows of data, with verdicts computed from runs and never typed.

A :class:`Claim` has a statement and a *predicate*: one of the classes below, each a kind of
statement about the trials of one or two models. :func:`judge` puts claims to the
:class:`Evidence` of a run. Needs no torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens import stats

if TYPE_CHECKING:
    from mahalens.stats import Summary

Verdict = Literal["holds", "fails", "undecided", "not measured"]
Side = Literal["below", "above"]
Values = NDArray[np.float64]

SIGNIFICANT = 0.05
FEWEST_TRIALS = 5
"""Fewer trials decide nothing: five out of five is the first outcome with p < 0.05."""
_TIMES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
_FEWEST_TO_REPEAT, _MOST_TRIALS = 3, 2_000
OURS = "here"
"""The source of claims that no paper makes: those of this project."""


@dataclass(frozen=True)
class Evidence:
    """The numbers of all trials of a run, for claims to be put to.

    Args:
        trials: one number per trial ``[T]``, by variant, model and metric.
        facts: facts about the run.
        published: the published mean for a metric of a model on a variant.
        basins: where each trial ended, by variant and model.
        variant: the variant that a claim is put to. Models go by their plain names then; in a
            claim about the whole run by full ones, such as ``"relu2 (raw)"``.
    """

    trials: Mapping[tuple[str, str, str], Values]
    facts: Mapping[str, object]
    published_mean: Callable[[str, str, str], float | None]
    basins: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    variant: str | None = None

    def on(self, variant: str | None) -> Evidence:
        """Return the same evidence, seen by claims about one variant (None: about the run)."""
        return replace(self, variant=variant)

    def repeated(self, times: int) -> Evidence:
        """Return evidence of as many times the trials, which look exactly like these."""
        trials = {key: np.tile(values, times) for key, values in self.trials.items()}
        basins = {key: list(places) * times for key, places in self.basins.items()}
        return replace(self, trials=trials, basins=basins)

    def _key(self, name: str) -> tuple[str, str]:
        if self.variant is not None:
            return self.variant, name
        return self._names.get(name, ("", name))

    @cached_property
    def _names(self) -> dict[str, tuple[str, str]]:
        keys = {(variant, model) for variant, model, _ in self.trials}
        return {
            f"{model} ({variant})" if variant else model: (variant, model)
            for variant, model in keys
        }

    def values(self, model: str, metric: str) -> Values | None:
        """Return one number per trial ``[T]``, NaN where it has none; None if not measured."""
        column = self.trials.get((*self._key(model), metric))
        return column if column is not None and np.isfinite(column).any() else None

    def lost(self, model: str, metric: str) -> Values | None:
        """Return NaN for each trial ``[T]`` of a model that lost all of them; None for others.

        A lost trial has no number in any metric. If other metrics have numbers, this one was not
        measured: the study does not compute it for this model or this run.
        """
        key = self._key(model)
        column = self.trials.get((*key, metric))
        if column is None or column.size == 0:
            return None
        own = [values for (*place, _), values in self.trials.items() if tuple(place) == key]
        return None if any(np.isfinite(v).any() for v in own) else np.full(column.shape, np.nan)

    @property
    def longest(self) -> int:
        """The largest number of trials that a claim may rest on."""
        lengths = [
            len(values)
            for (variant, _, _), values in self.trials.items()
            if self.variant in (None, variant)
        ]
        return max(lengths, default=0)

    def basins_of(self, model: str) -> Sequence[str]:
        """Return where each trial of a model ended; nothing where that is unknown."""
        return self.basins.get(self._key(model), ())

    def pair(self, metric: str, model: str, than: str) -> tuple[Values, Values] | None:
        """Return the trials for which both models have a number; None if there are none."""
        a, b = self.values(model, metric), self.values(than, metric)
        if a is None or b is None:
            return None
        shared = np.isfinite(a) & np.isfinite(b)
        return (a[shared], b[shared]) if shared.any() else None

    def published(self, metric: str, model: str) -> float | None:
        """Return the published mean, if there is one."""
        variant, name = self._key(model)
        return self.published_mean(metric, name, variant)

    def number(self, fact: str) -> float:
        """Return a fact of the run that is a number."""
        value = self.facts[fact]
        if not isinstance(value, (int, float)):
            raise TypeError(f"fact {fact!r} is {value!r}, not a number")
        return float(value)


@dataclass(frozen=True)
class Finding:
    """The answer of a predicate to the evidence.

    Attributes:
        holds: None if undecided.
        measured: the number that decides.
        why: the numbers in a sentence.
        trials: how many trials it rests on.
        more_help: whether more trials like these may decide it.
    """

    holds: bool | None
    measured: float
    why: str
    trials: int = FEWEST_TRIALS
    more_help: bool = True

    @property
    def sentence(self) -> str:
        """The reason; an open one begins by saying so."""
        if self.holds is not None:
            return self.why
        few = self.trials < FEWEST_TRIALS
        return f"{'Too few trials to tell' if few else 'Undecided'}. {self.why}"


def _decide(trials: int, holds: bool, fails: bool) -> bool | None:
    """Return the outcome; None if it is neither, or rests on too few trials."""
    return None if trials < FEWEST_TRIALS or not (holds or fails) else holds


class _OfPair(msgspec.Struct, frozen=True):
    """A statement about ``metric`` of ``model`` and of ``than`` in the trials that both have."""

    metric: str
    model: str
    than: str
    _digits: ClassVar[int] = 4

    def judge(self, evidence: Evidence) -> Finding | None:
        """Compare the two models over their shared trials; None if there are none."""
        pair = evidence.pair(self.metric, self.model, self.than)
        return None if pair is None else self._find(*pair)

    @abstractmethod
    def _find(self, a: Values, b: Values) -> Finding | None:
        """Judge the trials that both models have."""

    def published(self, evidence: Evidence) -> str | None:
        """Return the two published means."""
        means = [evidence.published(self.metric, name) for name in (self.model, self.than)]
        shown = [show(mean, self._digits) for mean in means if mean is not None]
        return " against ".join(shown) if len(shown) == 2 else None

    def _difference(self, a: Values, b: Values) -> tuple[float, str]:
        """Return the mean difference, 0 if it is nothing but rounding, and the means in words."""
        mean = float(np.mean(a - b))
        if abs(mean) <= 1e-13 * max(float(np.abs(values).max()) for values in (a, b)):
            mean = 0.0
        means = [show(float(values.mean()), 4) for values in (a, b)]
        averages = f"{self.model} averages {means[0]}, {self.than} {means[1]}"
        return mean, f"{averages}: difference {show(mean)}"


class _OfModel(msgspec.Struct, frozen=True):
    """A statement about ``metric`` of the trials of ``model``."""

    metric: str
    model: str

    def judge(self, evidence: Evidence) -> Finding | None:
        """Judge the trials of the model; None if it has none."""
        values = evidence.values(self.model, self.metric)
        return None if values is None else self._find(values, evidence)

    @abstractmethod
    def _find(self, values: Values, evidence: Evidence) -> Finding | None:
        """Judge the trials of the model."""

    def _unit(self, evidence: Evidence) -> float:
        return 1.0

    def published(self, evidence: Evidence) -> str | None:
        """Return the published mean, in the same unit."""
        mean = evidence.published(self.metric, self.model)
        return None if mean is None else f"mean {show(mean / self._unit(evidence))}"


class Lower(_OfPair, frozen=True):
    """``metric`` of ``model`` lies below that of ``than``, trial by trial.

    Holds if the one-sided Wilcoxon signed-rank test over paired trials gives p < 0.05, fails if
    the reverse test gives the same p or a smaller one, as trials do not even lean that way then,
    and is undecided between. With fewer than 5 pairs no outcome could hold, so they decide
    nothing. ``measured`` is the share of trials in which it is lower.
    """

    _digits: ClassVar[int] = 3

    def _find(self, a: Values, b: Values) -> Finding:
        result = stats.paired_lower(a, b)
        why = (
            f"{self.model} averages {show(float(a.mean()))}, {self.than} "
            f"{show(float(b.mean()))}; lower in {result.wins} of {result.n} trials, one-sided "
            f"Wilcoxon p = {show(result.p_value)}."
        )
        p = result.p_value
        # Both p-values together are at least 1, so only 0.5 or more can be the larger one.
        fails = p >= 0.5 and stats.paired_lower(b, a).p_value <= p
        holds = _decide(result.n, p < SIGNIFICANT, fails)
        return Finding(holds, result.wins / result.n, why, result.n)


class Ratio(_OfPair, frozen=True):
    """``metric`` of ``model`` is below (or above) ``bound`` times that of ``than``.

    Judged by the geometric mean over paired trials: holds if its whole 95 % interval lies there,
    fails if none of it does. A ratio that is not above 0 has no logarithm and leaves it undecided.
    """

    side: Side
    bound: float

    def _find(self, a: Values, b: Values) -> Finding:
        with np.errstate(all="ignore"):
            logs = np.where((a > 0) & (b > 0), np.log(a / b), np.nan)
        without = int(np.count_nonzero(~np.isfinite(logs)))
        of = f"{_METRICS.get(self.metric, self.metric)} of {self.model} over that of {self.than}"
        wanted = f"wanted {self.side} {show(self.bound)}."
        if without:
            why = (
                f"{of}: {without} of {len(logs)} ratios have no logarithm, so there is no "
                f"geometric mean; {wanted}"
            )
            return Finding(None, math.nan, why, len(logs), more_help=False)
        summary = stats.summarise(_total(logs, scale=1.0))
        ends = ""
        if summary.ci95 is not None:
            low, high = (show(_exp(end)) for end in summary.ci95)
            ends = f", 95 % interval {low} to {high}"
        ratio = _exp(summary.mean)
        why = f"{of}: {show(ratio)} (geometric mean{ends}); {wanted}"
        beyond = stats.summarise(_total(logs, -math.log(self.bound), scale=1.0))
        return Finding(_lies(self.side, 0.0, beyond), ratio, why, summary.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the published ratio."""
        a, b = (evidence.published(self.metric, name) for name in (self.model, self.than))
        return None if a is None or not b else show(a / b)


class Difference(_OfPair, frozen=True):
    """``metric`` of ``model`` minus that of ``than`` lies below (or above) ``bound``.

    Holds if the whole 95 % interval of the mean paired difference does, fails if none of it does.
    """

    side: Side
    bound: float

    def _find(self, a: Values, b: Values) -> Finding:
        summary = stats.summarise(_total(a, -b))
        mean, means = self._difference(a, b)
        why = f"{means}, {_interval(summary)}; wanted {self.side} {show(self.bound)}."
        beyond = stats.summarise(_total(a, -b, -self.bound))
        return Finding(_lies(self.side, 0.0, beyond), mean, why, summary.n)


class Within(_OfPair, frozen=True):
    """``metric`` of ``model`` and of ``than`` differ by less than ``margin`` on average.

    Judged by two one-sided paired tests (t, or signed ranks where differences are far from
    normal): holds if both reject at 5 %, fails if the difference is shown to be larger.
    """

    margin: float

    def _find(self, a: Values, b: Values) -> Finding:
        result = stats.equivalent(a, b, self.margin)
        mean, means = self._difference(a, b)
        ends = ""
        if result.ci90 is not None:
            ends = f", 90 % interval {show(result.ci90[0])} to {show(result.ci90[1])}"
        test = "" if result.preferred_test is None else f" ({result.preferred_test})"
        why = f"{means}{ends}; wanted within {show(self.margin)}{test}."
        verdict = result.verdict
        holds = _decide(result.n, verdict == "equivalent", verdict == "different")
        return Finding(holds, mean, why, result.n)


class Indistinguishable(Within, frozen=True):
    """Two models do not differ: not significantly, and demonstrably by less than ``margin``.

    Fails if the paired test finds a difference (p < 0.05), however small; holds if it does not and
    the means are shown to lie within the margin; a mere lack of significance decides nothing.
    """

    def _find(self, a: Values, b: Values) -> Finding:
        near = super()._find(a, b)
        result = stats.compare(a, b)
        p = result.preferred_p
        test = "no test possible" if p is None else f"{result.preferred_test} p = {show(p)}"
        why = f"{near.why} {test[0].upper()}{test[1:]}."
        differs = p is not None and p < SIGNIFICANT and near.trials >= FEWEST_TRIALS
        return replace(near, holds=False if differs else near.holds, why=why)


class MoreVariable(_OfPair, frozen=True):
    """``metric`` of ``model`` varies more from trial to trial than that of ``than``.

    Holds if its standard deviation is larger and Brown and Forsythe's test gives p < 0.05, fails
    if it is not larger, and is undecided between. ``measured`` is the ratio of the deviations.
    """

    def judge(self, evidence: Evidence) -> Finding | None:
        """Compare the two spreads, each over all trials of its model."""
        a, b = (evidence.values(name, self.metric) for name in (self.model, self.than))
        return None if a is None or b is None else self._find(a, b)

    def _find(self, a: Values, b: Values) -> Finding:
        result = stats.spread_ratio(a, b)
        trials, larger = min(result.n_a, result.n_b), result.std_a > result.std_b
        if trials < 2:
            name = self.model if result.n_a < 2 else self.than
            return Finding(None, math.nan, f"A single trial of {name} has no spread.", trials)
        p = "" if result.p_value is None else f", Brown-Forsythe p = {show(result.p_value)}"
        why = (
            f"Standard deviation {show(result.std_a)} of {self.model}, {show(result.std_b)} of "
            f"{self.than}{p}."
        )
        holds = _decide(trials, larger and (result.p_value or 0.0) < SIGNIFICANT, not larger)
        # Two models without any spread have no ratio.
        return Finding(holds, math.nan if result.ratio is None else result.ratio, why, trials)

    def published(self, evidence: Evidence) -> str | None:
        """Return nothing: published spreads are not kept by metric."""
        return None


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
        shared = np.isfinite(a - b) & np.isfinite(c - d)
        if not shared.any():
            return None
        gain, other = (a - b)[shared], (c - d)[shared]
        summary = stats.summarise(_total(*(column[shared] for column in (a, -b, -c, d))))
        why = (
            f"{self.model} gains {show(float(gain.mean()))} on {self.base}, {self.than} "
            f"{show(float(other.mean()))} on {self.than_base}: difference {show(summary.mean)}, "
            f"{_interval(summary)}; wanted above 0."
        )
        return Finding(_lies("above", 0.0, summary), summary.mean, why, summary.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return both published gains."""
        gains = []
        for model, base in ((self.model, self.base), (self.than, self.than_base)):
            a, b = (evidence.published(self.metric, name) for name in (model, base))
            if a is None or b is None:
                return None
            gains.append(show(a - b))
        return " against ".join(gains)


class TrialShare(_OfModel, frozen=True):
    """At least ``share`` of the trials have ``metric`` below (or above) ``bound``.

    ``measured`` is the share of the trials that do; a trial without a value does not. Fewer than
    ``fewest`` trials decide nothing.
    """

    side: Side
    bound: float
    share: float = 0.9
    fewest: int = FEWEST_TRIALS

    def judge(self, evidence: Evidence) -> Finding | None:
        """Judge the trials of the model; if all of them were lost, none does."""
        lost = evidence.lost(self.model, self.metric)
        return super().judge(evidence) if lost is None else self._find(lost, evidence)

    def _find(self, values: Values, evidence: Evidence) -> Finding:
        good = values < self.bound if self.side == "below" else values > self.bound
        result = stats.proportion(int(good.sum()), len(values))
        low, high = result.ci95
        known = values[~np.isnan(values)]
        median = f"median {show(float(np.median(known)))}" if known.size else "no trial has a value"
        why = (
            f"{self.side.capitalize()} {show(self.bound)} in {result.k} of {result.n} trials "
            f"({low:.0%} to {high:.0%} with 95 % confidence), wanted in {self.share:.0%}; {median}."
            + _misses(evidence.basins_of(self.model), good)
        )
        holds = None if result.n < self.fewest else result.share >= self.share
        return Finding(holds, result.share, why, result.n)


class Average(_OfModel, frozen=True):
    """The mean of ``metric``, divided by the fact ``per``, lies below (or above) ``bound``.

    Holds if its whole 95 % interval does, fails if none of it does, and is undecided between.
    """

    side: Side
    bound: float
    per: str | None = None

    def _unit(self, evidence: Evidence) -> float:
        return evidence.number(self.per) if self.per else 1.0

    def _find(self, values: Values, evidence: Evidence) -> Finding | None:
        unit = self._unit(evidence)
        if not unit > 0:
            return None
        summary = stats.summarise(values / unit)
        of = f" of the {_FACTS.get(self.per, self.per)}" if self.per else ""
        why = (
            f"Mean {show(summary.mean)}{of}, {_interval(summary)}; "
            f"wanted {self.side} {show(self.bound)}."
        )
        return Finding(_lies(self.side, self.bound, summary), summary.mean, why, summary.n)


class AboveChance(_OfModel, frozen=True):
    """``metric`` is at least ``bound`` on average and above what chance gives.

    ``chance`` names a fact with the 2.5 % and 97.5 % points of the metric under chance. Where
    chance alone reaches ``bound``, high values say nothing, and the claim cannot hold.
    """

    bound: float
    chance: str

    def _find(self, values: Values, evidence: Evidence) -> Finding | None:
        band = evidence.facts.get(self.chance)
        if not isinstance(band, (list, tuple)):
            return None
        summary = stats.summarise(values)
        holds = _lies("above", max(self.bound, float(band[1])), summary)
        why = (
            f"Mean {show(summary.mean)}, {_interval(summary)}; random rotations of the true "
            f"whitening give {show(float(band[0]))} to {show(float(band[1]))}, and "
            f"{show(self.bound)} was wanted."
        )
        return Finding(holds, summary.mean, why, summary.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return nothing: no figure was published."""
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
        second = b.holds if b.holds is None else b.holds != self.negated
        holds, why = _all_hold([a.holds, second]), f"{a.why} {b.why}"
        return Finding(holds, a.measured, why, *_of_open(holds, a, b))

    def published(self, evidence: Evidence) -> str | None:
        """Return what was published about the first."""
        return self.first.published(evidence)


class Every(msgspec.Struct, frozen=True):
    """All predicates hold; it fails if one does. ``measured`` is the share that hold."""

    parts: tuple[Predicate, ...]

    def judge(self, evidence: Evidence) -> Finding | None:
        """Judge each; what was not measured is left out if something else was."""
        findings = [(part, part.judge(evidence)) for part in self.parts]
        measured = [(part, finding) for part, finding in findings if finding is not None]
        if not measured:
            return None
        outcomes = [finding.holds for _, finding in measured]
        missing = len(self.parts) - len(measured)
        holds = _all_hold(outcomes)
        if holds and missing:
            holds = None
        share = outcomes.count(True) / len(self.parts)
        why = " ".join(_with_model(part, finding.why) for part, finding in measured)
        if missing:
            why += f" {missing} of {len(self.parts)} parts have no numbers here."
        return Finding(holds, share, why, *_of_open(holds, *(finding for _, finding in measured)))

    def published(self, evidence: Evidence) -> str | None:
        """Return what was published about each."""
        figures = [part.published(evidence) for part in self.parts]
        return "; ".join(figure for figure in figures if figure) or None


Predicate = (
    Lower
    | TrialShare
    | Average
    | Ratio
    | AboveChance
    | Difference
    | Within
    | Indistinguishable
    | MoreVariable
    | GainsMore
    | Both
    | Every
)


class Claim(msgspec.Struct, frozen=True):
    """A statement of a source, and the predicate that decides it: one row of a study's table.

    Attributes:
        key: its name within the study.
        statement: one sentence.
        predicate: decides it.
        source: the key of its source in :data:`~mahalens.studies.study.SOURCES`.
        each: whether it is put to every variant of a run (data set or kind of pixels), or once to
            the whole run, where models go by full names such as ``"relu2 (raw)"``.
        needs: facts that the run must have for the claim to apply, such as the solver.
        only: models that a run must have for the claim to be asked at all.
        on: the variants that it is put to; by default all.
    """

    key: str
    statement: str
    predicate: Predicate
    source: str = OURS
    each: bool = True
    needs: dict[str, str] = {}
    only: tuple[str, ...] = ()
    on: tuple[str, ...] = ()


def every(parts: Iterable[Predicate]) -> Every:
    """Return that all of some predicates hold."""
    return Every(tuple(parts))


Rows = Mapping[str, tuple[str, Predicate]]
"""The statements and predicates of claims, by key."""


def from_rows(source: str, rows: Rows, *, each: bool = True) -> tuple[Claim, ...]:
    """Return the claims of one source."""
    return tuple(Claim(key, *row, source=source, each=each) for key, row in rows.items())


class Judgement(msgspec.Struct, frozen=True):
    """One line of the ledger, as ``summary.json`` holds it.

    ``trials_to_decide`` is how many trials would decide an undecided claim if further ones looked
    exactly like those of the run; None if none would, up to 100 times as many or 2,000.
    """

    id: str
    source: str
    statement: str
    data: str
    published: str | None
    measured: float | None
    verdict: Verdict
    why: str
    trials_to_decide: int | None = None


def claims_from(source: str, *claims: Claim) -> tuple[Claim, ...]:
    """Return claims as those of one source, which each row then need not name."""
    return tuple(msgspec.structs.replace(claim, source=source) for claim in claims)


def judge(
    claims: Sequence[Claim],
    evidence: Evidence,
    *,
    study: str,
    variants: Sequence[str],
    sources: Mapping[str, str],
) -> list[Judgement]:
    """Put every claim to the evidence of one run, variant by variant.

    Lines have the id ``study/key/variant``; those about the whole run come last, without one.
    """
    models = {model for _, model, _ in evidence.trials}
    asked = [claim for claim in claims if models.issuperset(claim.only)]
    repeated = cache(evidence.repeated)
    put: list[tuple[Claim, str | None]] = [
        (claim, variant)
        for variant in variants
        for claim in asked
        if claim.each and (not claim.on or variant in claim.on)
    ]
    put += [(claim, None) for claim in asked if not claim.each]
    return [
        _judge(claim, evidence.on(variant), repeated, study, variant, sources)
        for claim, variant in put
    ]


def _judge(
    claim: Claim,
    evidence: Evidence,
    repeated: Callable[[int], Evidence],
    study: str,
    variant: str | None,
    sources: Mapping[str, str],
) -> Judgement:
    missing = [
        f"{fact} {wanted}" for fact, wanted in claim.needs.items() if evidence.facts[fact] != wanted
    ]
    finding = None if missing else claim.predicate.judge(evidence)
    verdict: Verdict = "not measured"
    measured = needed = None
    if missing:
        why = f"Needs a run with {' and '.join(missing)}."
    elif finding is None:
        why = "This run has no numbers for it."
    else:
        why = finding.sentence
        measured = None if finding.holds is None else is_finite(finding.measured)
        verdict = "undecided" if finding.holds is None else "holds" if finding.holds else "fails"
        if finding.holds is None:
            needed = _trials_to_decide(claim.predicate, finding, evidence, repeated)
            why += f" About {needed:,} trials like these would decide it." if needed else ""
    return Judgement(
        id="/".join(filter(None, (study, claim.key, variant))),
        source=sources.get(claim.source, claim.source),
        statement=claim.statement,
        data=variant or "",
        # Nothing was published about our own claims, though their parts may have figures.
        published=None if claim.source == OURS else claim.predicate.published(evidence),
        measured=measured,
        verdict=verdict,
        why=why,
        trials_to_decide=needed,
    )


def _trials_to_decide(
    predicate: Predicate,
    undecided: Finding,
    evidence: Evidence,
    repeated: Callable[[int], Evidence],
) -> int | None:
    """Return the number of trials like these that would decide; None if none is known to."""
    if undecided.trials < _FEWEST_TO_REPEAT or not undecided.more_help:
        return None
    for times in _TIMES:
        if evidence.longest * times > _MOST_TRIALS:
            break
        finding = predicate.judge(repeated(times).on(evidence.variant))
        if finding is not None and finding.holds is not None:
            return undecided.trials * times
    return None


def show(value: float, digits: int = 3) -> str:
    """Write a number for a sentence.

    >>> show(0.122), show(1234.5), show(9.1e-7), show(1e-12)
    ('0.122', '1.23e3', '9.1e-7', '1e-12')
    """
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def is_finite(value: float) -> float | None:
    """Return the value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def _lies(side: str, bound: float, summary: Summary) -> bool | None:
    """Say whether a mean lies on a side of a bound; None if its interval does not tell."""
    if summary.ci95 is None:
        return None
    low, high = summary.ci95
    if side == "above":
        low, high, bound = -high, -low, -bound
    return _decide(summary.n, high < bound, low >= bound)


def _exp(logarithm: float) -> float:
    """Return the number with this logarithm, infinite where it is too large for a float."""
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def _all_hold(outcomes: Sequence[bool | None]) -> bool | None:
    return False if False in outcomes else None if None in outcomes else True


def _of_open(holds: bool | None, *findings: Finding) -> tuple[int, bool]:
    """Return ``trials`` and ``more_help`` of a finding from those of its parts.

    Trials are those of the undecided part with the fewest: too few trials is the simpler
    explanation. More of them do not help if all measured parts hold and the others are missing.
    """
    undecided = [finding for finding in findings if finding.holds is None]
    fewest = min((finding.trials for finding in undecided), default=FEWEST_TRIALS)
    return fewest, holds is not None or any(finding.more_help for finding in undecided)


def _total(*terms: Values | float, scale: float = 0.0) -> Values:
    """Return the sum of terms per trial ``[T]``; rounding of the terms decides no tie or zero.

    ``scale`` is the least size of the numbers that were rounded.
    """
    from mahalens.stats.comparisons import without_rounding

    columns = np.stack(np.broadcast_arrays(*terms))
    return without_rounding(columns.sum(0), np.abs(columns).max(0, initial=scale))


def _with_model(part: Predicate, why: str) -> str:
    """Put the model's name before a reason that does not name it, for where there are several."""
    if isinstance(part, _OfModel):
        return f"{part.model}: {why[0].lower()}{why[1:]}"
    return why


def _interval(summary: Summary) -> str:
    if summary.ci95 is None:
        return "of a single trial, so without an interval"
    return f"95 % interval {show(summary.ci95[0])} to {show(summary.ci95[1])}"


def _misses(basins: Sequence[str], good: NDArray[np.bool_]) -> str:
    """Say where the trials that missed lie, if that is known."""
    missed = Counter(b for b, fine in zip(basins, good.tolist(), strict=False) if b and not fine)
    if not missed:
        return ""
    parts = [f"{count} {_PLACES.get(basin, basin)}" for basin, count in missed.most_common()]
    return f" Of the {missed.total()} that miss: {', '.join(parts)}."


_METRICS = {"final_error": "Error", "seconds": "Time", "error_density": "Test error"}
_FACTS = {"dim": "number of dimensions", "target_variance": "variance of the targets"}
_PLACES = {
    "zero residual": "in the basin of the perfect fit",
    "local minimum": "at a local minimum",
    "saddle point": "at a saddle point",
    "not converged": "not converged",
    "stalled": "stalled",
    "non-finite": "non-finite",
}
