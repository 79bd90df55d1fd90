"""The detect study: which detector knows best what a network does not know?

Every detector is fitted to features of known samples alone, and then scores known and unknown
ones: other classes, other data sets, defects, noise. ``auto`` is :func:`mahalens.detect_features`,
which chooses a method and its options from the known samples. Cases and features are in
:mod:`.detect_cases`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mahalens import data, detection
from mahalens.errors import InputError
from mahalens.studies import study, torch
from mahalens.studies.claims import Average, Claim, Difference, Every, Lower, TrialShare
from mahalens.studies.plots import Dots, Scatter
from mahalens.studies.study import (
    DONE,
    Config,
    Job,
    Measures,
    Metric,
    Model,
    Option,
    Results,
    Study,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.studies.detect_cases import Draw
    from mahalens.studies.run import Context

# --- Models -----------------------------------------------------------------------------------

_BLUE, _GREY, _GREEN = "#0072b2", "#8a8a8a", "#009e73"  # distances, logits, neighbours
AUTO = "auto"

MODELS = {
    AUTO: Model("Auto", "method and options chosen from the known samples alone", "#d55e00", "D"),
    "mahalanobis": Model(
        "Mahalanobis", "distance to the nearest class mean, one covariance (Lee et al. 2018)", _BLUE
    ),
    "mahalanobis++": Model("Mahalanobis++", "the same on features of length 1", _BLUE, "s"),
    "relative": Model(
        "Relative", "the same, less the distance to all samples (Ren et al. 2021)", _BLUE, "^"
    ),
    "relative++": Model("Relative++", "the same on features of length 1", _BLUE, "v"),
    "class-gaussians": Model("Gaussians", "a covariance for each class", _BLUE, "P"),
    "low-rank": Model("Low rank", "16 axes and a remainder for each class", _BLUE, "X"),
    "marginal": Model("Marginal", "one Gaussian, without labels", _BLUE, "<"),
    "mahavar": Model(
        "MahaVar", "distance, and the variance of the distances over classes", _BLUE, ">"
    ),
    "knn": Model("Neighbours", "distance to the 50th nearest sample, length 1", _GREEN, "o"),
    "vim": Model("ViM", "what the principal axes leave over, beside the energy", _GREEN, "s"),
    "energy": Model("Energy", "-log sum exp of the logits of a linear probe", _GREY, "s"),
    "max-softmax": Model("Softmax", "largest probability of the same probe", _GREY, "o"),
    "max-logit": Model("Logit", "largest logit of the same probe", _GREY, "^"),
    "gen": Model("GEN", "generalised entropy of the same probe", _GREY, "v"),
}
SIX = ("mahalanobis", "mahalanobis++", "relative", "relative++", "knn", "energy")
"""The detectors that ``auto`` has to keep up with."""
_PLAIN, _UNIT = {"normalise": "none"}, {"normalise": "unit"}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mahalanobis": ("Mahalanobis", _PLAIN),
    "mahalanobis++": ("Mahalanobis", _UNIT),
    "relative": ("Relative", _PLAIN),
    "relative++": ("Relative", _UNIT),
    "class-gaussians": ("ClassGaussians", _UNIT),
    "low-rank": ("LowRank", _UNIT),
    "marginal": ("Marginal", _UNIT),
    "mahavar": ("MahaVar", _UNIT),
    "knn": ("Neighbours", _UNIT),
    "vim": ("ViM", {}),
    "energy": ("Energy", {}),
    "max-softmax": ("MaxSoftmax", {}),
    "max-logit": ("MaxLogit", {}),
    "gen": ("GEN", {}),
}
"""The class and the options of each detector in :mod:`mahalens.detection`."""

# --- Options ----------------------------------------------------------------------------------

FULL_DATA = (
    "cifar10-classes",
    "cifar10-mnist",
    "cifar10-fashion-mnist",
    "cifar10-digits",
    "cifar10-letters",
    "cifar10-textiles",
    "cifar10-noise",
    "cifar10-mobilenet",
    "mnist",
    "fashion-mnist",
    "elpv",
    "textiles",
    "questions",
)


class DetectConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[
        tuple[str, ...],
        Option(
            "Cases of docs/studies/detect.md; or sets and files, of which classes are left out.",
            ("digits", "wine"),
            published=FULL_DATA,
            metavar="CASE|NAME|FILE,...",
        ),
    ]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    trials: Annotated[int, study.count_option("Draws of classes or samples.", 5)]
    reject_rate: Annotated[
        float,
        Option("Share of known samples to reject.", 0.05, published=0.05, least=0.001, most=0.5),
    ] = 0.05
    resamples: Annotated[
        int,
        study.count_option("Times that 50 or 100 samples set a threshold, in each trial.", 40),
    ] = 40


# --- Metrics ----------------------------------------------------------------------------------

METRICS = {
    "auroc": Metric(
        "AUROC",
        "Probability that an unknown sample has a larger score than a known test sample: 50 % by "
        "guessing.",
        unit="%",
        better="high",
    ),
    "fpr95": Metric(
        "Missed at 95 %",
        "Share of the unknown samples that pass for known where 95 % of the known ones do.",
        unit="%",
    ),
    "aupr_unknown": Metric(
        "AUPR, unknown", "Average precision in finding the unknown.", unit="%", better="high"
    ),
    "aupr_known": Metric(
        "AUPR, known", "Average precision in finding the known.", unit="%", better="high"
    ),
    "rejected_unknown": Metric(
        "Unknown rejected",
        "Share of the unknown samples beyond the threshold for the reject rate.",
        unit="%",
        better="high",
    ),
    "rejected_known": Metric(
        "Known rejected",
        "Share of the known test samples beyond it; the threshold was set on held-out samples.",
        unit="%",
        better=None,
    ),
    "rejected_known_50": Metric(
        "Known rejected, 50 held out",
        "The same with thresholds set on 50 known test samples and tried on the others, mean of "
        "--resamples times.",
        unit="%",
        better=None,
    ),
    "rejected_known_100": Metric(
        "Known rejected, 100 held out", "The same with 100.", unit="%", better=None
    ),
    "seconds": Metric("Time of fitting", "On one core.", unit="s", better=None),
}
REFUSED = "refused"
"""The status of a trial whose samples a detector cannot be fitted to."""

# --- Claims -----------------------------------------------------------------------------------

BEST = "best of six"


def _near(rate: float, metric: str) -> tuple[Average, Average]:
    below = Average(metric, AUTO, "below", rate + 1)
    return Average(metric, AUTO, "above", rate - 1), below


def claims(config: DetectConfig) -> tuple[Claim, ...]:
    """Return what ``auto`` promises, on every case and over all of them."""
    rate = 100 * config.reject_rate
    return (
        Claim(
            "auto-is-near-the-best",
            "Auto: the AUROC is at most 1 point below that of the best of six detectors.",
            Difference("auroc", AUTO, BEST, "above", -1.0),
        ),
        Claim(
            "auto-beats-guessing",
            "Auto: the AUROC is above 50 % in every trial.",
            TrialShare("auroc", AUTO, "above", 50.0, share=1.0),
        ),
        Claim(
            "auto-keeps-its-rate",
            "Auto: the reject rate is kept within 1 point, on average over thresholds that 50 or "
            "100 samples set.",
            Every((*_near(rate, "rejected_known_50"), *_near(rate, "rejected_known_100"))),
        ),
        Claim(
            "auto-keeps-its-rate-as-fitted",
            "Auto: the reject rate is kept within 1 point, on average over the trials.",
            Every(_near(rate, "rejected_known")),
        ),
        Claim(
            "auto-ranks-best",
            "Auto: the best mean rank of all detectors over the cases.",
            Lower("rank", AUTO, "best other"),
            each=False,
        ),
    )


# --- Measure ----------------------------------------------------------------------------------


def present(config: DetectConfig) -> list[str]:
    """Return the cases whose data are on this machine."""
    from mahalens.studies import detect_cases as cases

    return [name for name in config.data if name not in cases.CASES or not cases.missing(name)]


def check(config: DetectConfig, folder: Path | None) -> dict[str, Any]:
    """Refuse a run without data, and sets with too few classes to leave one out."""
    from mahalens.studies import detect_cases as cases
    from mahalens.studies.samples import check_sets, whole_set

    names = present(config)
    if not names:
        ways = " and ".join(dict.fromkeys(map(cases.missing, config.data)))
        raise InputError(f"--data {','.join(config.data)}: not on this machine; run {ways}")
    own = [name for name in names if name not in cases.CASES]
    facts = check_sets(own, None)
    for name in own:
        if (classes := whole_set(name).classes) < 3:
            raise InputError(
                f"--data {name}: has {classes} classes; give at least 3, of which some are unknown"
            )
    return {"data": facts, "missing": _missing(config)}


def _missing(config: DetectConfig) -> dict[str, str]:
    """Return how to get the data of the cases that are left out."""
    from mahalens.studies import detect_cases as cases

    return {name: cases.missing(name) for name in config.data if name not in present(config)}


def jobs(config: DetectConfig) -> list[Job]:
    """Cut the work: one detector on one trial of a case.

    Cases that share their known samples follow each other, so that a detector is fitted once.
    """
    trials, names = range(config.trials), present(config)
    return [Job(name, model, t, 1) for t in trials for model in config.models for name in names]


def measure(config: DetectConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Fit a detector to the known samples of a trial, and score the others."""
    from mahalens.studies import detect_cases as cases

    def report(share: float, text: str) -> None:
        context.look()
        context.report(share, text)

    cases.prepare(job.variant, report)
    draw = cases.draw(job.variant, config.seed, job.first)
    values, choice, status = {"seconds": 0.0}, "", DONE
    try:
        twin = cases.twin_of(job.variant)
        detector, seconds = _fitted(twin, job.work, config.reject_rate, config.seed, job.first)
    except InputError as error:  # such as one that compares classes, where there is one
        choice, status = str(error), REFUSED
    else:
        values = {"seconds": seconds} | measured(detector, draw, config, job.first, context.look)
        choice = choice_of(detector) if job.work == AUTO else ""
    metrics = {name: torch.tensor([values.get(name, torch.nan)]) for name in METRICS}
    columns = {"choice": [choice]}
    own = Measures(metrics, values["seconds"], columns=columns, statuses=[status])
    return {job.work: own}


def choice_of(detector: Any) -> str:
    """Return what ``auto`` chose, in words: ``"mahalanobis shrinkage=0.1 + neighbours k=10"``."""
    method, options = detector.choice.method, dict(detector.choice.options)
    parts = options.pop("parts", [(method, options)])  # of several methods combined
    return " + ".join(
        " ".join([name, *(f"{key}={value}" for key, value in own.items())]) for name, own in parts
    )


@study.remember(2)
def _fitted(name: str, model: str, rate: float, seed: int, trial: int) -> tuple[Any, float]:
    """Return a detector fitted to the known samples of a case, and how long it took."""
    from mahalens.studies import detect_cases as cases

    draw = cases.draw(name, seed, trial)
    began = time.process_time()
    detector = fit(model, draw.z, draw.y, rate)
    return detector, time.process_time() - began


def fit(model: str, z: Tensor, y: Tensor, rate: float) -> Any:
    """Return a detector fitted to features [N, D] of classes [N]."""
    held = held_share(len(z))
    if model == AUTO:
        return detection.detect_features(z, y, method="auto", rate=rate, hold_out=held)
    kind, options = _KINDS[model]
    return getattr(detection, kind)(**options).fit_features(z, y, hold_out=held).set_reject(rate)


def held_share(samples: int) -> float:
    """Return the share of the known samples that sets the threshold: more of few.

    >>> held_share(1000), held_share(90)
    (0.2, 0.4)
    """
    return max(0.2, min(0.5, 36 / samples))


def measured(
    detector: Any, draw: Draw, config: DetectConfig, trial: int, look: Callable[[], object] = int
) -> dict[str, float]:
    """Return the metrics of a detector on one draw, in per cent; ``look`` is called often."""
    known = detector.score_features(draw.test_z).double()
    unknown = detector.score_features(draw.unknown).double()
    shares = {
        "auroc": detection.auroc(known, unknown),
        "fpr95": detection.fpr_at(known, unknown),
        "aupr_unknown": detection.aupr(known, unknown),
        "aupr_known": detection.aupr(-unknown, -known),
        "rejected_unknown": float(detector.reject_features(draw.unknown).double().mean()),
        "rejected_known": float(detector.reject_features(draw.test_z).double().mean()),
    }
    for count in (50, 100):
        if len(known) >= 2 * count:
            shares[f"rejected_known_{count}"] = by_few(known, count, config, trial, look)
    return {name: 100 * share for name, share in shares.items()}


def by_few(
    scores: Tensor, count: int, config: DetectConfig, trial: int, look: Callable[[], object]
) -> float:
    """Return the share that is rejected where ``count`` of the scores set the threshold."""
    generator = data.stream(config.seed, "calibrate", count, trial)
    rates = []
    for resample in range(config.resamples):
        look()
        order = torch.randperm(len(scores), generator=generator)
        held, rest = scores[order[:count]], scores[order[count:]]
        calibration = detection.Calibration(held, rate=config.reject_rate, seed=resample)
        rates.append(calibration.reject(rest).double().mean())
    return float(torch.stack(rates).mean())


def finish(config: DetectConfig, results: Results) -> None:
    """Rank the detectors on every case, and find the best of six."""
    import numpy as np
    from scipy.stats import rankdata

    cases = list(dict.fromkeys(case for case, _ in results.measures))
    ranks = {model: np.full(len(cases), np.nan) for model in config.models}
    for place, case in enumerate(cases):
        means = {
            model: float(np.nanmean(own.values("auroc")))
            for (name, model), own in results.measures.items()
            if name == case and np.isfinite(own.values("auroc")).any()
        }
        for model, rank in zip(means, rankdata([-mean for mean in means.values()]), strict=True):
            ranks[model][place] = rank
        if rivals := {model: mean for model, mean in means.items() if model in SIX}:
            best = max(rivals, key=lambda model: rivals[model])
            results.evidence[case, BEST, "auroc"] = results.measures[case, best].values("auroc")
            results.facts.setdefault("best_of_six", {})[case] = best
    mean_ranks = {m: float(np.nanmean(own)) for m, own in ranks.items() if np.isfinite(own).any()}
    others = {model: rank for model, rank in mean_ranks.items() if model != AUTO}
    for model, own in ranks.items():
        results.evidence["", model, "rank"] = own
    if others:
        results.evidence["", "best other", "rank"] = ranks[min(others, key=lambda m: others[m])]
    results.facts["mean_rank"] = mean_ranks
    rows = [[m, mean_ranks[m], *own] for m, own in ranks.items() if m in mean_ranks]
    results.tables["ranks.csv"] = (("model", "mean", *cases), rows)
    for name, way in _missing(config).items():
        results.cautions.append(f"{name} was left out, its data are not here: {way}")


def reads(config: DetectConfig) -> list[str]:
    """Return the sets and weights behind all cases."""
    from mahalens.studies import detect_cases as cases

    return list(dict.fromkeys(each for name in present(config) for each in cases.reads_of(name)))


STUDY = Study(
    name="detect",
    question="Which detector knows best what a network does not know?",
    source="here",
    config=DetectConfig,
    models=MODELS,
    metrics=METRICS,
    claims=claims,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    reads=reads,
    primary="auroc",
    thing="detector",
    length="resamples",
    pairs=tuple((AUTO, model) for model in MODELS if model != AUTO),
    tested=("auroc",),
    columns=("choice",),
    shown=("auroc", "fpr95", "rejected_unknown", "rejected_known", "seconds"),
    remark="All detectors of a trial see the same features, and none sees an unknown sample. "
    "Detectors of logits read a linear probe that is fitted to the known samples. A "
    "detector that cannot be fitted, such as one that compares classes where there is one, has no "
    "numbers; trials.csv says why.",
    titles={
        "cifar10-classes": "CIFAR-10, 6 classes: the other 4",
        "cifar10-mnist": "CIFAR-10: MNIST",
        "cifar10-fashion-mnist": "CIFAR-10: Fashion-MNIST",
        "cifar10-digits": "CIFAR-10: digits",
        "cifar10-letters": "CIFAR-10: letters",
        "cifar10-textiles": "CIFAR-10: textiles",
        "cifar10-noise": "CIFAR-10: noise",
        "cifar10-mobilenet": "CIFAR-10, MobileNetV2: the other 4",
        "mnist": "MNIST: Fashion-MNIST",
        "fashion-mnist": "Fashion-MNIST: MNIST",
        "elpv": "Solar cells: defects",
        "textiles": "Textiles: defects",
        "questions": "Questions, 30 categories: the other 10",
    },
    plots=(
        Dots(
            name="compared",
            title="How well does each detector find the unknown?",
            caption="A dot is a draw of classes or samples, alike for all detectors.",
            metric="auroc",
        ),
        Scatter(
            name="threshold",
            title="What does the threshold reject?",
            caption="Each mark is the mean of a detector, lines are 95 % intervals. Left and right "
            "of the stated reject rate, more or fewer known samples are rejected than was asked.",
            x="rejected_known",
            y="rejected_unknown",
            average=True,
        ),
    ),
)
