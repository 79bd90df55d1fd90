"""The verdict on a layer: distance-like, intensity-like, mixed, ..., with the numbers behind it.

:func:`layer_evidence` weighs the readings of one layer, :func:`judge_layers` judges all layers of a
network together, against chance and against the same network untrained, and :func:`summarise` says
it in one sentence. :data:`RULE` is the rule in words. :func:`suggest` says what to do about it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from mahalens._show import Shown
from mahalens.auditing.pairs import PairReading
from mahalens.auditing.readings import HyperplaneReading, UnitReading, resampled_shares
from mahalens.auditing.trace import ELEMENTWISE, HOMOGENEOUS
from mahalens.auditing.whitening import WhiteningReading

if TYPE_CHECKING:
    from mahalens.auditing.gather import LayerGatherer
    from mahalens.auditing.perturb import PerturbationReading
    from mahalens.auditing.record import LayerRecord


WORDS = (
    *("distance-like", "intensity-like", "mixed", "even"),
    *("too few units", "not judged", "broken"),
)
"""The words of a verdict."""

DECIDED = 1 / 3
"""A score or an index of at least this size decides."""

LEVEL = 0.05
"""A layer differs from chance, or from its baseline, if the corrected p is below this."""

FEWEST = 5
"""Live units with a place below which a layer is not judged by its hyperplanes."""

_UNMARKED = ("none", "softmax", "log_softmax")
"""Functions after an output layer that treat z = 0 like any other value."""

# So that (2/3 - 1/2) / (1/2) is a third.
_ROUNDING = 1e-9

# Units up to which the distribution of the number that passes is exact; a normal one beyond.
_EXACT = 5_000

# Draws of the share of units, for each draw of the samples.
_UNIT_DRAWS = 10


RULE = (
    "A unit is live if it is neither dead nor saturated and its numbers are finite; in the output "
    "layer saturated ones are live too, for a network that is sure saturates them. "
    "A layer is broken if fewer than half of its units are live, or if no unit is active on more "
    "than half of the rows. "
    "A hyperplane passes through a class if the class's mean is within half a spread of it. If it "
    "is so near to more than half of all classes, it is common: it singles none out, and is left "
    "aside. "
    "Of the other live units p is the share whose hyperplane passes through a class (without "
    "classes: the mean of the data), and q the share that would if each were moved along its "
    "normal to a random row. The score is (p - q) / (1 - q) if p >= q, and (p - q) / q if not: 1 "
    "if all pass, 0 as by chance, -1 if none does. Its 95 % interval is over samples and units. "
    "A layer is not judged if no hyperplane is known and no perturbation costs accuracy, if more "
    "than half of its live units are left aside, or if it is the output layer and no activation "
    "marks z = 0. It has too few units if fewer than 5 are left, or so few that no outcome would "
    "differ from chance. It is even if the interval lies between -1/3 and 1/3. Otherwise it is not "
    "judged unless it differs from chance (exact test, p below 0.05 after Holm's correction over "
    "the layers) and from the same network untrained: its score is further from 0 by 1/3 or more "
    "than those of three copies with new starting weights, and Welch's test over units, corrected "
    "likewise, has p below 0.05 for each. "
    "It is mixed if the interval reaches across 1/3 or -1/3, or if the perturbations say the "
    "opposite; else distance-like from a score of 1/3 up and intensity-like from -1/3 down. "
    "Where there are no hyperplanes, the index of the perturbations decides by the same "
    "thresholds. Layers that measure distances by construction are distance-like."
)
"""The rule that :func:`judge_layers` follows, in words."""


class Verdict(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Kind of a layer, and the numbers that decide it."""

    word: str
    """``distance-like``, ``intensity-like``, ``mixed``, ``even``, ``too few units``,
    ``not judged`` or ``broken``."""
    score: float | None
    """-1 to 1: how much more often hyperplanes pass through classes than by chance."""
    share: float | None
    """Share of the live units that pass through a class."""
    chance: float | None
    reason: str
    interval: tuple[float, float] | None = None
    """95 % interval of the score, over samples and units; None where it is not known."""
    p_chance: float | None = None
    """Of a layer no different from chance, Holm-corrected over the judged layers."""
    p_baseline: float | None = None
    """Of a layer no different from the same layer untrained, corrected likewise."""
    baseline_score: float | None = None
    """The score of the same layer untrained."""


@dataclass
class Evidence:
    """Evidence for the verdict on one layer, before layers are corrected for one another."""

    damage: list[str]
    """Why the layer is broken, if it is."""
    chance: float | None
    """Share of the placed units that would pass by chance; None without any."""
    passing: int
    placed: int
    """Live units whose hyperplane has a chance and is not common."""
    common: int
    where: str
    """What hyperplanes pass through."""
    excess: Tensor
    """Passing (0 or 1) less chance of each live unit; 0 for common ones."""
    p_chance: float | None
    least_p: float
    """The smallest p that any number of passing units would have."""
    interval: tuple[float, float] | None
    perturbation: PerturbationReading | None
    unmarked: bool
    by_construction: bool

    @property
    def share(self) -> float | None:
        """Share of the placed units that pass; None without any."""
        return self.passing / self.placed if self.placed else None

    @property
    def score(self) -> float | None:
        """The score; None without hyperplanes."""
        if self.share is None or self.chance is None:
            return None
        return score_of(self.share, self.chance)

    @property
    def tested(self) -> bool:
        """Whether the layer takes part in the tests against chance and baseline."""
        judged = not (self.damage or self.unmarked or self.by_construction)
        return judged and self.score is not None and self.common <= self.placed and not self.few

    @property
    def few(self) -> bool:
        """Whether there are too few units to tell."""
        return self.placed < FEWEST or self.least_p >= LEVEL


def judge_layers(
    layers: Sequence[Evidence], baseline: Sequence[Sequence[Evidence]] | None = None
) -> list[Verdict]:
    """Return the verdicts on the layers of a network, by :data:`RULE`.

    Args:
        layers: the evidence for each layer.
        baseline: for each layer the same layer in untrained copies of the network, of which the
            one most alike counts; without it layers are judged by chance alone.

    Example:
        >>> one = torch.ones(6)
        >>> units = UnitReading(
        ...     dead=(), rare={}, always=(), saturated=(), active=one, flat=0 * one, mean=0 * one,
        ...     std=one, skewness=0 * one, least=-one, greatest=one, quantiles=one[:, None])
        >>> planes = HyperplaneReading(
        ...     length=one, mean_distance=0 * one, mean_spreads=0 * one, through=one > 0,
        ...     chance=0.4 * one, positive=0.5 * one)
        >>> [verdict] = judge_layers([weigh(units, planes, None)])
        >>> verdict.word, verdict.score, round(verdict.p_chance, 4)
        ('distance-like', 1.0, 0.0082)
        >>> verdict.reason
        "6 of 6 live units pass through the data's mean (100 %, 40 % by chance)"
    """
    from mahalens.stats import holm

    untrained: Sequence[Sequence[Evidence]] = baseline or [()] * len(layers)
    by_chance = holm([layer.p_chance if layer.tested else None for layer in layers])
    by_baseline = holm(
        [
            max((welch_test(layer.excess, copy.excess) for copy in copies), default=None)
            if layer.tested
            else None
            for layer, copies in zip(layers, untrained, strict=True)
        ]
    )
    return [
        _verdict(layer, copies, p_chance, p_baseline, baseline is not None)
        for layer, copies, p_chance, p_baseline in zip(
            layers, untrained, by_chance, by_baseline, strict=True
        )
    ]


def layer_evidence(
    gathered: LayerGatherer,
    units: UnitReading,
    hyperplanes: HyperplaneReading | None,
    perturbation: PerturbationReading | None = None,
    resampled: bool = False,
) -> Evidence:
    """Return the evidence for the verdict on a layer; ``resampled`` with the score's interval."""
    site, settings = gathered.site, gathered.settings
    shares = None
    _, chosen, _ = _live(units, hyperplanes, site.output)
    if resampled and hyperplanes is not None and bool(chosen.any()):
        labels, moments = gathered.kept.labels, gathered.moments
        mean, std = units.mean[None], units.std[None]
        counts = moments.overall().rows[None]
        if units.class_mean is not None and units.class_std is not None:
            mean, std = units.class_mean, units.class_std
            counts = moments.by_class(len(mean)).rows
        else:
            labels = torch.zeros_like(labels)
        # Rows of one sample are taken to say the same: fewer samples, a wider interval.
        samples = counts * (gathered.samples / max(1, gathered.kept.seen))
        rows, through, seed = gathered.kept.rows, settings.through, settings.seed
        shares = resampled_shares(rows, labels, mean, std, samples, chosen, through, seed)
    return weigh(
        units,
        hyperplanes,
        perturbation,
        output=site.output,
        unmarked=site.output and site.activation in _UNMARKED,
        by_construction=site.distance,
        shares=shares,
        seed=settings.seed,
    )


def weigh(
    units: UnitReading,
    hyperplanes: HyperplaneReading | None,
    perturbation: PerturbationReading | None,
    *,
    output: bool = False,
    unmarked: bool = False,
    by_construction: bool = False,
    shares: Tensor | None = None,
    seed: int = 0,
) -> Evidence:
    """Collect the evidence for a verdict on one layer.

    If every hyperplane would pass wherever it stood (q = 1), passing says nothing: the score is
    0. Live units without a chance (their z does not vary) count in neither share. ``shares`` are
    of the units that pass in resampled data (:func:`~mahalens.auditing.readings.resampled_shares`).
    """
    live, placed, shared = _live(units, hyperplanes, output)
    number, passing = int(placed.sum()), 0
    chance = p_chance = interval = None
    least_p, where, excess = 1.0, "a class", torch.zeros(0, dtype=torch.float64)
    if hyperplanes is not None:
        excess = (hyperplanes.through.double() - hyperplanes.chance.double()).masked_fill(shared, 0)
        excess = excess[placed | shared]
        where = "the data's mean" if hyperplanes.nearest is None else "a class"
    if hyperplanes is not None and number:
        chances = hyperplanes.chance[placed].double().clamp(0, 1)
        passing, chance = int((hyperplanes.through & placed).sum()), float(chances.mean())
        p_chance, least_p = chance_test(passing, chances)
        if shares is not None:
            low, high = _interval(shares, chance, number, seed)
            score = score_of(passing / number, chance)
            interval = min(low, score), max(high, score)
    return Evidence(
        damage=_damage(units, int(live.sum())),
        chance=chance,
        passing=passing,
        placed=number,
        common=int(shared.sum()),
        where=where,
        excess=excess,
        p_chance=p_chance,
        least_p=least_p,
        interval=interval,
        perturbation=perturbation,
        unmarked=unmarked,
        by_construction=by_construction,
    )


def chance_test(passing: int, chances: Tensor) -> tuple[float, float]:
    """Return the two-sided p of so many passing units, and the least p of any number.

    The number that passes is Poisson-binomial if unit i passes with probability ``chances[i]``
    independently of the others. p is twice the smaller tail. Beyond 5,000 units the distribution
    is taken as normal, with a continuity correction. Units of a layer share their input and so
    are not quite independent; the comparison with the untrained layer guards against that.

    Example:
        >>> chance_test(6, torch.full((6,), 0.5))
        (0.03125, 0.03125)
    """
    q = chances.numpy()
    if len(q) > _EXACT:
        mean, std = float(q.sum()), math.sqrt(float((q * (1 - q)).sum()))

        def tail(distance: float) -> float:
            if std == 0:
                return float(distance <= 0.5)
            return math.erfc((distance - 0.5) / std / math.sqrt(2)) / 2

        ends = [min(1.0, 2 * min(tail(k - mean), tail(mean - k))) for k in (passing, 0, len(q))]
        return ends[0], min(ends[1:])
    from scipy.stats import poisson_binom

    share = np.asarray(poisson_binom.pmf(np.arange(len(q) + 1), q), dtype=np.float64)
    p = 2 * min(float(share[: passing + 1].sum()), float(share[passing:].sum()))
    return min(1.0, p), min(1.0, 2 * float(share[0]), 2 * float(share[-1]))


def welch_test(trained: Tensor, untrained: Tensor) -> float:
    """Return Welch's two-sided p for equal means over units; 1 for equal constants, 0 for others.

    >>> round(welch_test(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])), 4)
    0.0213
    """
    from scipy.stats import ttest_ind_from_stats

    if min(len(trained), len(untrained)) < 2:
        return 1.0
    one, other = trained.double(), untrained.double()
    apart = float((one.mean() - other.mean()).abs())
    if float(one.var() + other.var()) <= 1e-24:
        return 1.0 if apart <= 1e-12 else 0.0
    parts = [(float(x.mean()), float(x.std()), len(x)) for x in (one, other)]
    return float(ttest_ind_from_stats(*parts[0], *parts[1], equal_var=False).pvalue)


def _verdict(
    layer: Evidence,
    untrained: Sequence[Evidence],
    p_chance: float | None,
    p_baseline: float | None,
    compared: bool,
) -> Verdict:
    """Return the verdict on one layer, with corrected p-values."""
    reasons: list[str] = []
    other = _nearest(layer, untrained)
    if layer.damage:
        word, reasons = "broken", layer.damage
    elif layer.by_construction:
        word, reasons = "distance-like", ["measures distances to its prototypes by construction"]
    elif layer.unmarked:
        word = "not judged"
        reasons = [
            "it is the output layer, and no activation marks z = 0: adding a constant to all "
            "outputs moves every hyperplane and changes no prediction"
        ]
    else:
        if layer.share is not None and layer.chance is not None:
            reasons.append(
                f"{layer.passing} of {layer.placed} live units pass through {layer.where} "
                f"({_percent(layer.share)}, {_percent(layer.chance)} by chance)"
            )
        if layer.common:
            are = ("is", "are")[layer.common > 1]
            reasons.append(f"{layer.common} {are} near most classes at once and left aside")
        word, why = _by_place(layer, other, p_chance, p_baseline, compared)
        reasons += [*why, *_behaviour(layer.perturbation)]
    numbers: dict[str, Any] = {
        name: None if layer.unmarked else getattr(layer, name)  # a constant would change them
        for name in ("score", "share", "chance", "interval")
    }
    tests: dict[str, Any] = {
        "p_chance": p_chance,
        "p_baseline": p_baseline,
        "baseline_score": other,
    }
    return Verdict(word=word, reason="; ".join(reasons), **numbers, **tests)


def _nearest(layer: Evidence, untrained: Sequence[Evidence]) -> float | None:
    """Return the score of the untrained layer most like this one; 0 for one without a score."""
    scores = [copy.score or 0.0 for copy in untrained]
    return min(scores, key=lambda score: abs(score - (layer.score or 0.0)), default=None)


def _by_place(
    layer: Evidence,
    untrained: float | None,
    p_chance: float | None,
    p_baseline: float | None,
    compared: bool,
) -> tuple[str, list[str]]:
    """Return the word that hyperplanes and perturbations give, and additions to the reason."""
    index = None if layer.perturbation is None else layer.perturbation.index
    behaviour, score = _kind(index), layer.score
    if score is None and not layer.common:
        if behaviour is not None:
            return behaviour, []
        nothing = "there are no hyperplanes and no perturbations to judge by"
        return "not judged", [nothing] if layer.perturbation is None else []
    if layer.common > layer.placed:
        return "not judged", ["the few that are left speak for no layer"]
    if layer.few or score is None:
        return "too few units", [f"{_plural(layer.placed, 'unit')} cannot tell it from chance"]
    low, high = layer.interval or (score, score)
    numbers = f"score {score:.2f}" + (f", 95 % {low:.2f} to {high:.2f}" if layer.interval else "")
    if layer.interval is not None and max(-low, high) < DECIDED:
        return "even", [f"about as often as by chance ({numbers})"]
    if p_chance is None or p_chance >= LEVEL:
        return "not judged", [f"that does not differ from chance (p = {_p(p_chance)})"]
    added = []
    if untrained is not None and p_baseline is not None:
        further = (score - untrained) * (1 if score > 0 else -1)
        if p_baseline >= LEVEL or further < DECIDED - _ROUNDING:
            same = f"(score {score:.2f}, untrained {untrained:.2f}, p = {_p(p_baseline)})"
            return "not judged", [f"that differs little from the same network untrained {same}"]
        added.append(f"untrained it scores {untrained:.2f}")
    elif compared:
        added.append("the baseline has no such layer, so that chance alone decides")
    kind = _kind(score)
    if kind == "even" and layer.interval is None:
        return "even", added
    if min(abs(low), abs(high)) < DECIDED - _ROUNDING or low * high < 0:
        return "mixed", [f"more samples or units could overturn it ({numbers})", *added]
    if {kind, behaviour} == {"distance-like", "intensity-like"}:
        return "mixed", added
    return kind or "mixed", added


def _interval(shares: Tensor, chance: float, units: int, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the score.

    ``shares`` [R] are of the same units in resampled data. To each, units are drawn anew from
    Jeffreys' distribution of a share, Beta(x + 1/2, K - x + 1/2), which also has a width where
    all units pass or none does.
    """
    passing = shares.double().numpy().clip(0, 1) * units
    generator = np.random.default_rng(seed)
    drawn = generator.beta(passing + 0.5, units - passing + 0.5, (_UNIT_DRAWS, len(passing)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return score_of(float(low), chance), score_of(float(high), chance)


def score_of(share: float, chance: float) -> float:
    """Return how much more often hyperplanes pass than by chance, -1 to 1.

    ``(p - q) / (1 - q)`` if ``p >= q`` and ``(p - q) / q`` if not; 0 if p = q = 1.

    Example:
        >>> score_of(0.75, 0.5), score_of(0.25, 0.5)
        (0.5, -0.5)
    """
    if share < chance:
        return (share - chance) / chance
    return (share - chance) / (1 - chance) if chance < 1 else 0.0


def summarise(layers: Sequence[LayerRecord]) -> str:
    """Return one sentence on a network: its layers by verdict, dead units, the largest finding.

    The largest finding is the one that touches the largest share of a layer's units, of: dead,
    saturated, spare by mirrored pairs (one of each pair), spare by duplicates, no numbers.

    Example:
        >>> summarise([])
        'There is no layer to judge.'
    """
    if not layers:
        return "There is no layer to judge."
    kinds = Counter(layer.verdict.word for layer in layers)
    parts = []
    for word in (word for word in WORDS if kinds[word]):
        verb = ("has", "have") if word == "too few units" else ("is", "are")
        parts.append(f"{_plural(kinds[word], 'layer')} {verb[kinds[word] > 1]} {word}")
    total = sum(layer.units_count for layer in layers)
    dead = sum(len(layer.units.dead) for layer in layers)
    text = f"{_listed(parts)}{_reliance(layers)}; {dead} of {total} units are dead"
    share, words = max((_largest(layer) for layer in layers), key=lambda finding: finding[0])
    most = max(layers, key=lambda layer: len(layer.units.dead))
    if dead and len(most.units.dead) == dead and words.endswith("are dead"):
        return f"{text}, all in layer {most.name}."
    if share:
        return f"{text}; the largest finding is that {words}."
    return f"{text}, and none is saturated or repeats another."


def _live(
    units: UnitReading, hyperplanes: HyperplaneReading | None, output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which units are live, which of them are placed, and which are common [K]."""
    live = units.mean.isfinite() & units.std.isfinite()
    live[[*units.dead, *(() if output else units.saturated)]] = False
    if hyperplanes is None:
        return live, torch.zeros_like(live), torch.zeros_like(live)
    common = torch.zeros_like(live) if hyperplanes.common is None else hyperplanes.common
    return live, live & hyperplanes.chance.isfinite() & ~common, live & common


def _kind(value: float | None) -> str | None:
    """Return the word for a score or an index; None if there is none."""
    if value is None or math.isnan(value):
        return None
    if abs(value) < DECIDED - _ROUNDING:
        return "even"
    return "distance-like" if value > 0 else "intensity-like"


def _damage(units: UnitReading, live: int) -> list[str]:
    """Return why the layer is broken, if it is."""
    reasons, count = [], len(units.mean)
    faulty = _faulty(units)
    if live < count / 2:
        reasons.append(
            f"only {live} of {count} units are live ({_percent(live / count)}); "
            f"{len(units.dead)} are dead and {len(units.saturated)} saturated"
            + (f", {faulty} give NaN or infinite values" if faulty else "")
        )
    if units.silent_share > 0.5 and faulty < count:
        reasons.append(f"no unit is active on {_percent(units.silent_share)} of the rows")
    return reasons


def _faulty(units: UnitReading) -> int:
    """Return how many units gave NaN or infinite values."""
    return int((~(units.mean.isfinite() & units.std.isfinite())).sum())


def _behaviour(perturbation: PerturbationReading | None) -> list[str]:
    """Describe the effect of the perturbations."""
    if perturbation is None:
        return []
    kind = _kind(perturbation.index)
    if kind is None:
        return ["no perturbation costs accuracy"]
    words = {
        "distance-like": "offsets cost more accuracy than scaling and clipping",
        "intensity-like": "scaling and clipping cost more accuracy than offsets",
        "even": "offsets cost about as much accuracy as scaling and clipping",
    }
    return [f"{words[kind]} (index {perturbation.index:.2f})"]


def _largest(layer: LayerRecord) -> tuple[float, str]:
    """Return the layer's largest finding: the share of its units, and a clause about it."""
    count, units, pairs = layer.units_count, layer.units, layer.pairs
    mirrored = len(pairs.mirrored) if pairs else 0
    duplicate = len({j for _, j in pairs.duplicate}) if pairs else 0
    # Units that are spare, units that are named, and a clause about them.
    findings = [
        (len(units.dead), len(units.dead), "are dead"),
        (len(units.saturated), len(units.saturated), "are saturated"),
        (mirrored, 2 * mirrored, "stand in mirrored pairs"),
        (duplicate, duplicate, "repeat another"),
        (_faulty(units), _faulty(units), "give no numbers"),
    ]
    spare, named, clause = max(findings, key=lambda finding: finding[0])
    return spare / count, f"{named} of {count} units of layer {layer.name} {clause}"


def _reliance(layers: Sequence[LayerRecord]) -> str:
    """Describe what the perturbed layers rely on."""
    kinds = [_kind(layer.perturbation.index) for layer in layers if layer.perturbation is not None]
    clauses = []
    for kind, what in (("distance-like", "distances"), ("intensity-like", "intensities")):
        if count := kinds.count(kind):
            clauses.append(f"{count} {'relies' if count == 1 else 'rely'} on {what}")
    return f"; perturbed, {_listed(clauses)}" if clauses else ""


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _p(p: float | None) -> str:
    return "unknown" if p is None else f"{p:.2g}" if p >= 1e-4 else "below 0.0001"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Suggestion(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Something to do about a layer."""

    action: str
    """``remove dead``, ``restart dead``, ``merge duplicates``, ``fold mirrored``,
    ``normalise input``, ``lower saturation``."""
    units: tuple[int, ...]
    effect: str
    """What is expected of it, in words and numbers."""
    exact: bool
    """Whether :func:`mahalens.prune` may apply it without changing the outputs."""


_TOLD = 1e9

CONDITION = 1e6
"""From this ratio of the largest to the smallest variance on, an input is worth normalising."""

OFFSET = 3.0
"""From this many spreads between its mean and 0 on, an input is worth normalising."""

SPREADS = 100.0
"""From this ratio of wide to narrow spreads of single inputs on, an input is worth normalising."""

# Units under these can be taken out one by one; prelu may have a slope for each unit.
_PER_UNIT = (ELEMENTWISE | {"none"}) - {"prelu"}


def suggest(
    *,
    activation: str,
    feeds: str | None,
    inputs: int,
    units: UnitReading,
    pairs: PairReading | None = None,
    whitening: WhiteningReading | None = None,
    input_mean: Tensor | None = None,
    input_std: Tensor | None = None,
) -> tuple[Suggestion, ...]:
    """Return suggestions about a layer, with the effect to expect.

    ===================  ==================================================================
    ``remove dead``      if there are dead units. Exact where they act one by one and are
                         read by one known layer
    ``restart dead``     the same units, the other way. Changes the outputs
    ``merge duplicates`` if there are duplicates. Exact under the same conditions; under an
                         activation that does not scale, only for copies of equal length
    ``fold mirrored``    if there are mirrored pairs under relu or abs. Exact for the pairs
                         that share a hyperplane and, under relu, are read alike
    ``normalise input``  if variances reach over a factor of :data:`CONDITION` or more, the
                         mean lies :data:`OFFSET` spreads or more from 0, or the spreads of
                         single inputs reach over a factor of :data:`SPREADS` or more
    ``lower saturation`` if there are saturated units
    ===================  ==================================================================

    ``exact`` says that :func:`mahalens.prune` may apply a suggestion; it checks every unit and
    leaves those for which the outputs would change. The variances are the eigenvalues of the
    input's covariance (``whitening.spectrum``). The mean's distance from 0 is
    ``‖mean‖ / √(Σ std²)``, and the spreads of single inputs are compared at their 5th and 95th
    percentiles, constant inputs apart.

    Args:
        activation: name of the function that follows.
        feeds: the one layer that reads the activations, if there is one.
        inputs: D, inputs of a row.
        units: how the units respond.
        pairs: units that repeat one another; None where the weights are not known.
        whitening: for the spectrum of the input.
        input_mean: mean of each input [D].
        input_std: its standard deviation [D].

    Example:
        >>> one = torch.ones(4)
        >>> units = UnitReading(
        ...     dead=(2,), rare={}, always=(), saturated=(), active=one, flat=0 * one, mean=one,
        ...     std=one, skewness=one, least=one, greatest=one, quantiles=one[:, None])
        >>> remove, restart = suggest(activation="relu", feeds="out", inputs=7, units=units)
        >>> remove.action, remove.units, remove.exact
        ('remove dead', (2,), True)
        >>> remove.effect.partition(";")[0]
        'saves 1 of 4 units (25 %), 7 weights here and the column of out that reads each'
    """
    exact = feeds is not None and activation in _PER_UNIT
    count, dead, stuck = len(units.active), units.dead, units.saturated
    copies = tuple(sorted({j for _, j in pairs.duplicate})) if pairs else ()
    mirrored = pairs.mirrored if pairs and activation in ("relu", "abs") else ()
    rows: list[tuple[str, tuple[int, ...], str, bool]] = []  # the fields of a suggestion
    if dead:
        readers = f"the column of {feeds} that reads each" if feeds else "whatever reads them"
        effect = f"saves {_saved(len(dead), count, inputs)} and {readers}; the outputs on the "
        rows.append(("remove dead", dead, f"{effect}audited data stay as they are", exact))
        some = "one unit has" if len(dead) == 1 else f"{len(dead)} units have"
        effect = (
            f"{some} something to measure again, if new weights place the hyperplane in the data "
            f"({_share(len(dead), count)} of the layer); the outputs change, so training must go on"
        )
        rows.append(("restart dead", dead, effect, False))
    if copies:
        where = "once what reads a copy is added to the original's"
        if activation not in HOMOGENEOUS:
            where = f"where copies have equal length, for {activation} does not scale with its "
            where += "input; prune checks this"
        effect = f"saves {_saved(len(copies), count, inputs)}; the outputs stay as they are {where}"
        rows.append(("merge duplicates", copies, effect, exact))
    if mirrored:
        effect = _folded(len(mirrored), activation, _saved(len(mirrored), count, inputs))
        both = tuple(sorted(unit for pair in mirrored for unit in pair))
        rows.append(("fold mirrored", both, effect, exact))
    if reasons := _scales(whitening, input_mean, input_std):
        effect = "; ".join(reasons) + "; gradient steps then suit all directions alike"
        rows.append(("normalise input", (), effect, False))
    if stuck:
        flat = 100 * float(units.flat[list(stuck)].mean())
        effect = (
            f"{len(stuck)} of {count} units pass on gradients again: they are constant or at a "
            f"flat end of {activation} (on {flat:.0f} % of the rows); smaller weights, or a bias "
            "that brings their mean to the middle, change the outputs, so training must go on"
        )
        rows.append(("lower saturation", stuck, effect, False))
    return tuple(Suggestion(action=a, units=u, effect=e, exact=x) for a, u, e, x in rows)


def _folded(number: int, activation: str, saved: str) -> str:
    what = "1 pair becomes one unit" if number == 1 else f"{number} pairs become one unit each"
    absolute, and_read, checked = "", ", since |-z| = |z|", "this"
    if activation == "relu":
        absolute, checked = " with an absolute value", "both"
        and_read = " and are read with equal weights"
    return (
        f"up to {what}{absolute}, which saves {saved}; the outputs stay as they are for pairs that "
        f"share a hyperplane{and_read}; prune checks {checked}"
    )


def _scales(
    whitening: WhiteningReading | None, mean: Tensor | None, std: Tensor | None
) -> list[str]:
    """Return what is wrong with the spectrum, the place and the spreads of the input."""
    reasons = []
    if whitening is not None and len(whitening.spectrum) > 1:
        condition = float(whitening.spectrum[0] / whitening.spectrum[-1])
        if condition >= CONDITION:
            # Where rounding hides the number, a bound.
            size = f"{condition:.1e}" if condition < _TOLD else f"above {_TOLD:.0e}"
            reasons.append(
                f"whitening it would bring its condition number from {size} to 1, and normalising "
                "each input brings it nearer"
            )
    if mean is None or std is None:
        return reasons
    mean, std = mean.to(torch.float64), std.to(torch.float64)
    varying = torch.sort(std[(std > 0) & std.isfinite()]).values
    if len(varying) == 0 or not bool(mean.isfinite().all()):
        return reasons
    offset = float(torch.linalg.vector_norm(mean) / torch.linalg.vector_norm(varying))
    if offset >= OFFSET:
        reasons.append(f"its mean lies {offset:.1f} spreads from 0 and would lie at 0")
    last = len(varying) - 1
    narrow, wide = varying[round(0.05 * last)], varying[round(0.95 * last)]
    ratio = float(wide / narrow)
    if ratio >= SPREADS and math.isfinite(ratio):
        reasons.append(
            f"spreads of single inputs differ by a factor of {ratio:.3g} and would be equal"
        )
    return reasons


def _saved(spare: int, count: int, inputs: int) -> str:
    noun = "weight" if spare * inputs == 1 else "weights"
    return f"{spare} of {count} units ({_share(spare, count)}), {spare * inputs} {noun} here"


def _share(part: int, count: int) -> str:
    return f"{100 * part / count:.0f} %"
