"""Claims of the sources: rows of data, with verdicts computed from runs and never typed.

A :class:`Claim` has a statement and a *predicate*: one of the classes below, each a kind of
statement about the trials of one or two models. :func:`judge` puts claims to the
:class:`Evidence` of a run. Needs no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

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

    def published_pair(self, metric: str, model: str, than: str, digits: int = 3) -> str | None:
        """Return both published means, for a sentence."""
        a, b = self.published(metric, model), self.published(metric, than)
        return None if a is None or b is None else f"{show(a, digits)} against {show(b, digits)}"

    def number(self, fact: str) -> float:
        """Return a fact of the run that is a number."""
        value = self.facts[fact]
        if not isinstance(value, (int, float)):
            raise TypeError(f"fact {fact!r} is {value!r}, not a number")
        return float(value)


@dataclass(frozen=True)
class Finding:
    """What a predicate says of the evidence.

    Attributes:
        holds: None if the numbers do not decide.
        measured: the number that decides.
        why: the numbers in a sentence.
        trials: how many trials it rests on.
    """

    holds: bool | None
    measured: float
    why: str
    trials: int = FEWEST_TRIALS

    @property
    def sentence(self) -> str:
        """The reason; an open one begins by saying so."""
        if self.holds is not None:
            return self.why
        few = self.trials < FEWEST_TRIALS
        return f"{'Too few trials to tell' if few else 'Undecided'}. {self.why}"


class Lower(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` lies below that of ``than``, trial by trial.

    Holds if the one-sided Wilcoxon signed-rank test over paired trials gives p < 0.05, fails if
    it is lower in at most half of them, and is undecided between. With fewer than 5 pairs no
    outcome could hold, so they decide nothing. ``measured`` is the share of trials in which it is
    lower.
    """

    metric: str
    model: str
    than: str

    def judge(self, evidence: Evidence) -> Finding | None:
        """Compare the two models over their shared trials."""
        pair = evidence.pair(self.metric, self.model, self.than)
        if pair is None:
            return None
        result = stats.paired_lower(*pair)
        a, b = (show(float(values.mean())) for values in pair)
        why = (
            f"{self.model} averages {a}, {self.than} {b}; lower in {result.wins} of {result.n} "
            f"trials, one-sided Wilcoxon p = {show(result.p_value)}."
        )
        holds = None
        if result.n >= FEWEST_TRIALS and result.p_value < SIGNIFICANT:
            holds = True
        elif result.n >= FEWEST_TRIALS and 2 * result.wins <= result.n:
            holds = False
        return Finding(holds, result.wins / result.n, why, result.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the two published means."""
        return evidence.published_pair(self.metric, self.model, self.than)


class Ratio(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` is below (or above) ``bound`` times that of ``than``.

    Judged by the geometric mean over paired trials: holds if its whole 95 % interval lies there,
    fails if none of it does.
    """

    metric: str
    model: str
    than: str
    side: Side
    bound: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean ratio beside the bound."""
        pair = evidence.pair(self.metric, self.model, self.than)
        if pair is None:
            return None
        a, b = pair
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where((a > 0) & (b > 0), np.log(a / b), np.nan)
        summary = stats.summarise(logs)
        if not summary.n:
            return None
        ends = ""
        if summary.ci95 is not None:
            low, high = (show(math.exp(end)) for end in summary.ci95)
            ends = f", 95 % interval {low} to {high}"
        ratio = math.exp(summary.mean)
        why = (
            f"{_METRICS.get(self.metric, self.metric)} of {self.model} over that of {self.than}: "
            f"{show(ratio)} (geometric mean{ends}); wanted {self.side} {show(self.bound)}."
        )
        holds = _lies(self.side, math.log(self.bound), summary)
        return Finding(holds, ratio, why, summary.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the published ratio."""
        a = evidence.published(self.metric, self.model)
        b = evidence.published(self.metric, self.than)
        return None if a is None or not b else show(a / b)


class Difference(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` minus that of ``than`` lies below (or above) ``bound``.

    Holds if the whole 95 % interval of the mean paired difference does, fails if none of it does.
    """

    metric: str
    model: str
    than: str
    side: Side
    bound: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean difference beside the bound."""
        pair = evidence.pair(self.metric, self.model, self.than)
        if pair is None:
            return None
        summary = stats.summarise(pair[0] - pair[1])
        mean = _without_rounding(summary.mean, pair)
        why = (
            f"{_means(self.model, self.than, pair)}: difference {show(mean)}, "
            f"{_interval(summary)}; wanted {self.side} {show(self.bound)}."
        )
        return Finding(_lies(self.side, self.bound, summary), mean, why, summary.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the two published means."""
        return evidence.published_pair(self.metric, self.model, self.than, 4)


class Within(msgspec.Struct, frozen=True):
    """``metric`` of ``model`` and of ``than`` differ by less than ``margin`` on average.

    Judged by two one-sided paired tests (t, or signed ranks where differences are far from
    normal): holds if both reject at 5 %, fails if the difference is shown to be larger.
    """

    metric: str
    model: str
    than: str
    margin: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Put the interval of the mean difference beside the margin."""
        pair = evidence.pair(self.metric, self.model, self.than)
        if pair is None:
            return None
        result = stats.equivalent(*pair, self.margin)
        mean = _without_rounding(float(np.mean(pair[0] - pair[1])), pair)
        ends = ""
        if result.ci90 is not None:
            ends = f", 90 % interval {show(result.ci90[0])} to {show(result.ci90[1])}"
        test = "" if result.preferred_test is None else f" ({result.preferred_test})"
        why = (
            f"{_means(self.model, self.than, pair)}: difference {show(mean)}{ends}; "
            f"wanted within {show(self.margin)}{test}."
        )
        outcomes = {"equivalent": True, "different": False, "undecided": None}
        holds = outcomes[result.verdict] if result.n >= FEWEST_TRIALS else None
        return Finding(holds, mean, why, result.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the two published means."""
        return evidence.published_pair(self.metric, self.model, self.than, 4)


class Indistinguishable(msgspec.Struct, frozen=True):
    """Two models do not differ: not significantly, and demonstrably by less than ``margin``.

    Fails if the paired test finds a difference (p < 0.05), however small; holds if it does not and
    the means are shown to lie within the margin; a mere lack of significance decides nothing.
    """

    metric: str
    model: str
    than: str
    margin: float

    def judge(self, evidence: Evidence) -> Finding | None:
        """Test for a difference, then for equivalence."""
        pair = evidence.pair(self.metric, self.model, self.than)
        near = Within(self.metric, self.model, self.than, self.margin).judge(evidence)
        if pair is None or near is None:
            return None
        result = stats.compare(*pair)
        p = result.preferred_p
        test = "no test possible" if p is None else f"{result.preferred_test} p = {show(p)}"
        why = f"{near.why} {test[0].upper()}{test[1:]}."
        differs = p is not None and p < SIGNIFICANT and near.trials >= FEWEST_TRIALS
        return Finding(False if differs else near.holds, near.measured, why, near.trials)

    def published(self, evidence: Evidence) -> str | None:
        """Return the two published means."""
        return evidence.published_pair(self.metric, self.model, self.than, 4)


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
        result = stats.spread_ratio(a, b)
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
        return Finding(holds, result.ratio, why, trials)

    def published(self, evidence: Evidence) -> str | None:
        """Return nothing: published spreads are not kept by metric."""
        del evidence
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
        gain, other = a - b, c - d
        shared = np.isfinite(gain) & np.isfinite(other)
        if not shared.any():
            return None
        gain, other = gain[shared], other[shared]
        summary = stats.summarise(gain - other)
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


class TrialShare(msgspec.Struct, frozen=True):
    """At least ``share`` of the trials have ``metric`` below (or above) ``bound``.

    ``measured`` is the share of the trials that do; a trial without a value does not. Fewer than
    ``fewest`` trials decide nothing.
    """

    metric: str
    model: str
    side: Side
    bound: float
    share: float = 0.9
    fewest: int = FEWEST_TRIALS

    def judge(self, evidence: Evidence) -> Finding | None:
        """Count the trials on the right side of the bound."""
        values = evidence.values(self.model, self.metric)
        if values is None:
            return None
        good = values < self.bound if self.side == "below" else values > self.bound
        result = stats.proportion(int(good.sum()), len(values))
        low, high = result.ci95
        why = (
            f"{self.side.capitalize()} {show(self.bound)} in {result.k} of {result.n} trials "
            f"({low:.0%} to {high:.0%} with 95 % confidence), wanted in {self.share:.0%}; "
            f"median {show(float(np.nanmedian(values)))}."
            + _misses(evidence.basins_of(self.model), good)
        )
        holds = None if result.n < self.fewest else result.share >= self.share
        return Finding(holds, result.share, why, result.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the published mean."""
        mean = evidence.published(self.metric, self.model)
        return None if mean is None else f"mean {show(mean)}"


class Average(msgspec.Struct, frozen=True):
    """The mean of ``metric``, divided by the fact ``per``, lies below (or above) ``bound``.

    Holds if its whole 95 % interval does, fails if none of it does, and is undecided between.
    """

    metric: str
    model: str
    side: Side
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
        summary = stats.summarise(values / unit)
        of = f" of the {_FACTS.get(self.per, self.per)}" if self.per else ""
        why = (
            f"Mean {show(summary.mean)}{of}, {_interval(summary)}; "
            f"wanted {self.side} {show(self.bound)}."
        )
        return Finding(_lies(self.side, self.bound, summary), summary.mean, why, summary.n)

    def published(self, evidence: Evidence) -> str | None:
        """Return the published mean in the same unit."""
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
        second = b.holds if b.holds is None else b.holds != self.negated
        trials = _fewest_of_open(a, b)
        return Finding(_all_hold([a.holds, second]), a.measured, f"{a.why} {b.why}", trials)

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
        return Finding(holds, share, why, _fewest_of_open(*(finding for _, finding in measured)))

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
    """One line of the ledger, as ``summary.json`` holds it."""

    id: str
    source: str
    statement: str
    data: str
    published: str | None
    measured: float | None
    verdict: Verdict
    why: str


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
    lines = [
        _judge(claim, evidence.on(variant), study, variant, sources)
        for variant in variants
        for claim in asked
        if claim.each and (not claim.on or variant in claim.on)
    ]
    whole = [claim for claim in asked if not claim.each]
    return lines + [_judge(claim, evidence.on(None), study, "", sources) for claim in whole]


def _judge(
    claim: Claim, evidence: Evidence, study: str, variant: str, sources: Mapping[str, str]
) -> Judgement:
    missing = [
        f"{fact} {wanted}" for fact, wanted in claim.needs.items() if evidence.facts[fact] != wanted
    ]
    finding = None if missing else claim.predicate.judge(evidence)
    verdict: Verdict = "not measured"
    measured = None
    if missing:
        why = f"Needs a run with {' and '.join(missing)}."
    elif finding is None:
        why = "This run has no numbers for it."
    else:
        why = finding.sentence
        measured = None if finding.holds is None else is_finite(finding.measured)
        verdict = "undecided" if finding.holds is None else "holds" if finding.holds else "fails"
    return Judgement(
        id="/".join(filter(None, (study, claim.key, variant))),
        source=sources.get(claim.source, claim.source),
        statement=claim.statement,
        data=variant,
        # Nothing was published about our own claims, though their parts may have figures.
        published=None if claim.source == OURS else claim.predicate.published(evidence),
        measured=measured,
        verdict=verdict,
        why=why,
    )


def show(value: float, digits: int = 3) -> str:
    """Write a number for a sentence."""
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def is_finite(value: float) -> float | None:
    """Return the value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def _lies(side: str, bound: float, summary: Summary) -> bool | None:
    """Say whether a mean lies on a side of a bound; None if its interval does not tell."""
    if summary.ci95 is None or summary.n < FEWEST_TRIALS:
        return None
    low, high = summary.ci95 if side == "below" else (-summary.ci95[1], -summary.ci95[0])
    limit = bound if side == "below" else -bound
    return True if high < limit else False if low >= limit else None


def _all_hold(outcomes: Sequence[bool | None]) -> bool | None:
    return False if False in outcomes else None if None in outcomes else True


def _fewest_of_open(*findings: Finding) -> int:
    """Count the trials behind what is open, the fewest first: too few are the plainer reason."""
    return min((f.trials for f in findings if f.holds is None), default=FEWEST_TRIALS)


def _with_model(part: Predicate, why: str) -> str:
    """Put the model's name before a reason that does not name it, for where there are several."""
    if isinstance(part, TrialShare | Average | AboveChance):
        return f"{part.model}: {why[0].lower()}{why[1:]}"
    return why


def _means(model: str, than: str, pair: tuple[Values, Values]) -> str:
    a, b = (show(float(values.mean()), 4) for values in pair)
    return f"{model} averages {a}, {than} {b}"


def _interval(summary: Summary) -> str:
    if summary.ci95 is None:
        return "of a single trial, so without an interval"
    return f"95 % interval {show(summary.ci95[0])} to {show(summary.ci95[1])}"


def _without_rounding(mean: float, pair: tuple[Values, Values]) -> float:
    """Return 0 for a mean difference that is nothing but rounding."""
    size = max(float(np.abs(values).max()) for values in pair)
    return mean if abs(mean) > 1e-13 * size else 0.0


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
