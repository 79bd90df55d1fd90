"""The methods by name, and the choice among them from known samples alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain, combinations
from typing import Any, NamedTuple

import torch
from torch import nn

from mahalens._show import one_line, table_html
from mahalens.detection.base import Detector, gathered
from mahalens.detection.distances import (
    ClassGaussians,
    LowRank,
    Mahalanobis,
    MahaVar,
    Marginal,
    Neighbours,
    Relative,
)
from mahalens.detection.features import Source
from mahalens.detection.known import Gatherer, Known, Wanted
from mahalens.detection.layered import Combined, Judge, Layered, Scores, area
from mahalens.detection.logits import GEN, Energy, MaxLogit, MaxSoftmax, ViM
from mahalens.detection.threshold import check_rate, require_enough
from mahalens.errors import InputError

METHODS: dict[str, type[Detector]] = {
    kind.method: kind
    for kind in (
        Mahalanobis,
        ClassGaussians,
        LowRank,
        Marginal,
        Relative,
        MahaVar,
        Neighbours,
        Energy,
        MaxSoftmax,
        MaxLogit,
        GEN,
        ViM,
        Combined,
        Layered,
    )
}
"""All detectors by the name of their method."""

_UNIT: dict[str, Any] = {"normalise": "unit"}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mahalanobis": ("mahalanobis", {**_UNIT, "shrinkage": 0.1}),
    "neighbours": ("neighbours", {**_UNIT, "k": 10}),
    "relative": ("relative", {**_UNIT, "shrinkage": 0.1}),
    "energy": ("energy", {}),
    "low-rank": ("low-rank", _UNIT),
    "plain mahalanobis": ("mahalanobis", {"normalise": "none"}),
    "marginal": ("marginal", {**_UNIT, "shrinkage": 0.1}),
}
"""Detectors that ``method="auto"`` tries: each alone, and all averages of several.

``"unit"`` becomes ``"none"`` where features lie around 0: length 1 makes sense of features whose
origin means something, such as that no unit is active, not of those whose mean was moved there.
"""

NAMED = "the caller named it"
"""The reason of a choice that was none."""

FAILED, SOUND = 0.8, 0.97
"""AUROC against made-up unknowns: below the first a part is useless, from the second on sound."""

CERTAIN = 0.999
"""A larger AUROC counts as this one: the rest is chance."""


class Trial(NamedTuple):
    """The AUROC of a candidate on known samples alone.

    ``classes``: with classes held out as unknown, in the worst fold (None below 3 classes);
    ``made``: against each kind of made-up unknowns, in the order of ``Choice.kinds``.
    """

    parts: tuple[str, ...]
    classes: float | None
    made: tuple[float, ...]

    @property
    def worth(self) -> float:
        """The odds a : 1 − a of the worst fold, times those of the worst kind, as a logarithm."""
        areas = (min(self.made),) if self.classes is None else (self.classes, min(self.made))
        odds = (min(max(area, 1 - CERTAIN), CERTAIN) for area in areas)
        return round(sum(math.log(area / (1 - area)) for area in odds), 2)

    @property
    def made_up(self) -> float:
        """The mean over kinds of made-up unknowns, to two digits: the rest is chance."""
        return round(sum(self.made) / len(self.made), 2)


class Choice(NamedTuple):
    """Method that :func:`detect` chose, and the grounds for it.

    ``method`` and ``options`` make the detector; ``reason`` is a sentence; ``trials`` has a
    :class:`Trial` for each candidate, that of the chosen one first; ``notes`` says why some parts
    were not tried; ``kinds`` names the made-up unknowns.
    """

    method: str
    options: dict[str, Any]
    reason: str
    trials: tuple[Trial, ...]
    notes: dict[str, str]
    kinds: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return one_line(self)

    @property
    def shown(self) -> list[Trial]:
        """The chosen candidate, and each detector alone."""
        return [t for place, t in enumerate(self.trials) if not place or len(t.parts) == 1]

    def _repr_html_(self) -> str:
        """Return a row for the chosen candidate and for each detector alone."""
        rows = [
            (" + ".join(trial.parts), trial.classes, *trial.made, trial.made_up)
            for trial in self.shown
        ]
        kinds = [f"{kind} unknowns" for kind in self.kinds]
        columns = ("candidate", "held-out classes", *kinds, "mean of the unknowns")
        notes = [self.reason, *(f"{name}: {note}" for name, note in self.notes.items())]
        return table_html(f"Chosen: {self.method} (AUROC of candidates)", columns, rows, notes)


def detect(
    model: nn.Module,
    known: Any,
    method: str = "auto",
    *,
    layers: str | Sequence[str] | None = None,
    rate: float = 0.05,
    hold_out: float = 0.2,
    seed: int = 0,
    **options: Any,
) -> Detector:
    """Return a detector of samples unlike the known ones, fitted and with its threshold set.

    One pass over the data, in memory that does not grow with the samples; the model is left as it
    was. See :class:`~mahalens.detection.Detector` for what can be asked of the result:
    ``score(x)``, ``p_value(x)``, ``reject(x)``, ``explain(x)``, ``save(path)``.

    ``method="auto"`` chooses among the detectors in :data:`PARTS` and all averages of them, by
    known samples alone: at most 8,000 of those not held out for the threshold, three quarters of
    them to fit, the rest to judge (:class:`~mahalens.detection.layered.Judge`):

    1. With three classes or more, the classes are divided into three folds. In turn each fold is
       unknown: candidates are fitted without it, and judged by the AUROC of its samples against
       those of the other classes.
    2. Candidates fitted to all classes are judged by the AUROC of made-up unknowns: features with
       every column shuffled, the same shorter, the same longer; or noise far away in place of the
       last two, where features lie around 0 or differ much in length.
    3. Detectors below 0.8 on any kind of 2 are out, alone and combined. Candidates with 0.97 or
       more on every kind of 2 are compared where they are worst, because what is unknown tomorrow
       may be like any of them: the largest product of two odds a : 1 − a wins, with a the AUROC
       of the worst fold in 1 and of the worst kind in 2, but at most 0.999. So unknowns that are
       near and those that are far count alike.
       Where there is none, or where there are fewer than three classes, the best one in 2 wins, to
       two digits; of equals the one with the largest product, if there are three classes. Of equals
       the simplest wins.

    ``detector.choice`` has the table of candidates and the reason.

    Args:
        model: any network.
        known: a DataLoader of (x, y) batches of known samples; also a Dataset, or tensors.
        method: "auto", or a name in :data:`METHODS`.
        layers: name of the module whose output is the feature. By default what the last
            ``nn.Linear`` is fed if it makes the model's output, otherwise the output. Several
            names make a :class:`~mahalens.detection.Layered` detector with this method
            (Mahalanobis for "auto").
        rate: share of known samples to reject.
        hold_out: share of known samples that sets the threshold, at most 5,000.
        seed: of all draws.
        options: of the method, if it is not "auto".
    """
    makers = _makers(method, options)
    share = check_rate(rate)
    names = [layers] if isinstance(layers, str) else None if layers is None else list(layers)
    if names is not None and len(names) > 1:
        each = "mahalanobis" if method == "auto" else method
        layered = Layered(names, method=each, **options)
        return layered.fit(model, known, hold_out=hold_out, seed=seed).set_reject(share)
    source = Source(model, names)
    gatherer = Gatherer(_wanted(makers), hold_out=hold_out, seed=seed, labelled=True)
    for place, reading in enumerate(source.read(known)):
        if not place:
            gatherer.labelled = reading.labels is not None or _needs_labels(makers)
        gatherer.add(torch.cat(reading.features, 1), reading.labels, reading.logits)
    detector = _chosen(gatherer.finish(source.linear), makers, method, share, seed)
    return detector.bind(source)


def detect_features(
    z: Any,
    y: Any = None,
    method: str = "auto",
    *,
    logits: Any = None,
    rate: float = 0.05,
    hold_out: float = 0.2,
    seed: int = 0,
    **options: Any,
) -> Detector:
    """Return a detector of features unlike the known ones, fitted and with its threshold set.

    As :func:`detect`, for features z [N, D] one already has, with labels y [N] and logits [N, L]
    if there are any. Arrays or tensors.

    >>> draw = torch.Generator().manual_seed(0)
    >>> y = torch.arange(600) % 4
    >>> z = torch.randn(600, 8, generator=draw) + 6 * torch.eye(8)[y]
    >>> detector = detect_features(z, y, method="mahalanobis")
    >>> detector.reject_features(6 * torch.eye(8)[[0, 3, 7]])
    tensor([False, False,  True])
    """
    makers = _makers(method, options)
    share = check_rate(rate)
    labelled = y is not None or _needs_labels(makers)
    gatherer = Gatherer(_wanted(makers), hold_out=hold_out, seed=seed, labelled=labelled)
    known = gathered(gatherer, z, y, logits).finish()
    return _chosen(known, makers, method, share, seed)


def choose_features(
    z: Any, y: Any = None, method: str = "auto", *, seed: int = 0, **options: Any
) -> Choice:
    """Return the method that :func:`detect_features` would choose, without fitting a detector.

    It chooses by all samples z [N, D] with labels y [N], if there are any: none is held out.
    """
    makers = _makers(method, options)
    if method != "auto":
        return Choice(method, options, NAMED, (), {})
    gatherer = Gatherer(_wanted(makers), hold_out=0.0, seed=seed, labelled=y is not None)
    return choose(gathered(gatherer, z, y, None).finish(), seed=seed)


def _makers(method: str, options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if method == "auto":
        if options:
            raise InputError(
                f'method "auto" chooses its options, but {", ".join(options)} was given; name a '
                "method, or leave it out"
            )
        return [pair for centred in (False, True) for pair in _parts(centred).values()]
    if not isinstance(method, str) or method not in METHODS or method == "layered":
        usual = ", ".join(name for name in METHODS if name != "layered")
        raise InputError(f'method is {method!r}; give "auto" or one of {usual}')
    try:
        METHODS[method](**options)
    except TypeError as error:  # an option that is missing, or that the method does not have
        name, reason = METHODS[method].__name__, str(error).partition("() ")[2]
        raise InputError(
            f"method {method!r}: {reason}; see help(mahalens.detection.{name})"
        ) from None
    return [(method, options)]


def _wanted(makers: Sequence[tuple[str, dict[str, Any]]]) -> Wanted:
    wanted = Wanted(sample=len(makers) > 1)  # to choose by
    for method, options in makers:
        wanted = wanted | METHODS[method](**options).wanted
    return wanted


def _needs_labels(makers: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    return len(makers) == 1 and METHODS[makers[0][0]].needs_labels


def _chosen(
    known: Known,
    makers: Sequence[tuple[str, dict[str, Any]]],
    method: str,
    rate: float,
    seed: int,
) -> Detector:
    """Choose if there is a choice, then fit to all known samples and set the threshold."""
    held = len(known.held)
    require_enough(held, rate, held + int(known.counts.sum()))
    name, options = makers[0]
    choice = Choice(name, options, NAMED, (), {})
    if method == "auto":
        choice = choose(known, seed=seed)
    detector = METHODS[choice.method](**choice.options)
    detector.learn(known)
    detector.calibrate(known)
    detector.choice = choice
    return detector.set_reject(rate)


def _parts(centred: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return :data:`PARTS`, for features that lie around 0 or elsewhere."""
    if not centred:
        return PARTS
    plain = {"normalise": "none"}
    return {
        name: (method, {**options, **(plain if "normalise" in options else {})})
        for name, (method, options) in PARTS.items()
    }


def choose(known: Known, *, seed: int = 0) -> Choice:
    """Choose a method and its options from known samples alone; see :func:`detect`."""
    judge = Judge(known, seed=seed)
    parts = _parts(judge.centred)
    scores: dict[str, list[Scores]] = {}
    notes: dict[str, str] = {}
    for name, (method, options) in parts.items():
        try:
            _require_use(METHODS[method], known)
            scores[name] = _require_numbers(judge.scores(partial(METHODS[method], **options)))
        except InputError as error:
            notes[name] = str(error)
    if not scores:
        raise InputError(f"no method can be fitted to these samples: {next(iter(notes.values()))}")
    trials = []
    for names in chain.from_iterable(combinations(scores, n + 1) for n in range(len(scores))):
        areas = [area(task) for task in zip(*(scores[name] for name in names), strict=True)]
        folds, made = areas[: judge.folds], areas[judge.folds :]
        trials.append(Trial(names, min(folds, default=None), tuple(made)))
    best, reason = _best(trials)
    pairs = [parts[name] for name in best.parts]
    method, options = pairs[0] if len(pairs) == 1 else ("combined", {"parts": pairs})
    others = (trial for trial in trials if trial is not best)
    return Choice(method, options, reason, (best, *others), notes, judge.kinds)


def _require_use(kind: type[Detector], known: Known) -> None:
    if kind.needs_labels and not known.labelled:
        raise InputError("there are no labels")
    if kind is Marginal and len(known.classes) > 1:
        raise InputError("there are several classes, which Mahalanobis tells apart")


def _require_numbers(tasks: list[Scores]) -> list[Scores]:
    if not all(bool(side.isfinite().all()) for task in tasks for side in task):
        raise InputError(
            "its scores are not finite numbers; give features that vary within classes"
        )
    return tasks


def _best(trials: Sequence[Trial]) -> tuple[Trial, str]:
    """Return the best candidate, and why it is."""
    alone = {trial.parts[0]: min(trial.made) for trial in trials if len(trial.parts) == 1}
    useful = [t for t in trials if min(alone[part] for part in t.parts) >= FAILED] or trials
    classes = trials[0].classes is not None
    if sound := [t for t in useful if min(t.made) >= SOUND and classes]:
        best = max(sound, key=lambda trial: trial.worth)
    else:
        best = max(useful, key=lambda trial: (trial.made_up, trial.worth if classes else 0))
    reason = f"{min(best.made):.3f} or more against made-up unknowns"
    if best.classes is not None:
        reason = f"{best.classes:.3f} or more with classes held out as unknown, {reason}"
    return best, f"chosen from {len(trials)} candidates by known samples alone: AUROC {reason}"
