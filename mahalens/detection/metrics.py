"""Measures of how well scores tell unknown samples from known ones: intervals, paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mahalens._show import Shown
from mahalens.errors import InputError

Vector = NDArray[np.float64]
_Z = float(stats.norm.ppf(0.975))


class Separation(Shown, msgspec.Struct, frozen=True):
    """Separation of unknown samples from known ones by a score. All numbers are shares.

    ``auroc`` is the probability that an unknown sample has the larger score (a tie counts half).
    ``aupr_unknown`` and ``aupr_known`` are average precisions in finding the unknown or the known
    samples. ``fpr95`` is the share of unknown samples that pass a threshold which 95 % of the known
    samples pass. Each has its 95 % interval: DeLong's for the AUROC, on the logit scale, and a
    stratified bootstrap for the others.
    """

    auroc: float
    auroc_ci95: tuple[float, float]
    aupr_unknown: float
    aupr_unknown_ci95: tuple[float, float]
    aupr_known: float
    aupr_known_ci95: tuple[float, float]
    fpr95: float
    fpr95_ci95: tuple[float, float]
    known: int
    unknown: int


class SeparationDifference(msgspec.Struct, frozen=True):
    """Difference of two AUROC on the same samples, a − b, with DeLong's interval and test.

    ``difference`` is positive if a separates better; ``ci95`` is its 95 % interval; ``p`` that of
    the two-sided test of equality. Made by :func:`compare_separation`.
    """

    difference: float
    ci95: tuple[float, float]
    p: float


class Coverage(Shown, msgspec.Struct, frozen=True):
    """Accuracy of the samples that are kept, when the most unusual ones are rejected first.

    ``coverage`` [N] rises from 1/N to 1; ``accuracy`` [N] is that of the samples kept so far.
    ``area`` is the mean of ``accuracy``; ``area_ci95`` its bootstrap interval.
    """

    coverage: Vector
    accuracy: Vector
    area: float
    area_ci95: tuple[float, float]


def separation(
    known: ArrayLike, unknown: ArrayLike, *, resamples: int = 400, seed: int = 0
) -> Separation:
    """Measure how well a score tells unknown samples [M] from known ones [N].

    >>> result = separation([0.1, 0.2, 0.4, 0.6], [0.5, 0.7, 0.9])
    >>> round(result.auroc, 3), round(result.fpr95, 3)
    (0.917, 0.333)
    """
    a, b = _scores("known", known), _scores("unknown", unknown)
    measures: dict[str, Callable[[Vector, Vector], float]] = {
        "aupr_unknown": aupr,
        "aupr_known": lambda of_known, of_unknown: aupr(-of_unknown, -of_known),
        "fpr95": fpr_at,
    }
    rng = np.random.default_rng(seed)
    draws = [
        (rng.integers(len(a), size=len(a)), rng.integers(len(b), size=len(b)))
        for _ in range(resamples)
    ]
    values: dict[str, Any] = {}
    for name, measure in measures.items():
        values[name] = measure(a, b)
        values[f"{name}_ci95"] = _percentiles([measure(a[i], b[j]) for i, j in draws])
    area, variance = _delong(a, b)
    return Separation(
        auroc=area,
        auroc_ci95=_logit_interval(area, variance, len(a), len(b)),
        known=len(a),
        unknown=len(b),
        **values,
    )


def auroc(known: ArrayLike, unknown: ArrayLike) -> float:
    """Return the probability that an unknown sample has the larger score; a tie counts half.

    >>> auroc([0.0, 1.0], [1.0, 2.0])
    0.875
    """
    return _delong(_scores("known", known), _scores("unknown", unknown))[0]


def aupr(known: ArrayLike, unknown: ArrayLike) -> float:
    """Return the average precision in finding the unknown samples: Σ (Rₖ − Rₖ₋₁) Pₖ.

    Swap the arguments and change the sign of the scores for that of finding the known ones.
    """
    a, b = np.asarray(known, float), np.asarray(unknown, float)
    scores = np.concatenate([a, b])
    order = np.argsort(-scores, kind="stable")
    hits = (order >= len(a)).cumsum()
    last = np.append(scores[order][1:] != scores[order][:-1], True)  # ties are one threshold
    hits, taken = hits[last], np.flatnonzero(last) + 1
    return float((np.diff(hits, prepend=0) / len(b) * hits / taken).sum())


def fpr_at(known: ArrayLike, unknown: ArrayLike, share: float = 0.95) -> float:
    """Return the share of unknown samples below the threshold that keeps ``share`` of the known.

    >>> fpr_at([1.0, 2.0, 3.0, 4.0], [0.5, 3.5, 9.0], share=0.75)
    0.3333333333333333
    """
    a, b = np.sort(np.asarray(known, float)), np.asarray(unknown, float)
    threshold = a[math.ceil(round(share * len(a), 9)) - 1]
    return float((b <= threshold).mean())


def compare_separation(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]
) -> SeparationDifference:
    """Compare the AUROC of two scores of the same samples: each (known [N], unknown [M]).

    DeLong, DeLong and Clarke-Pearson (1988): the structural components of both areas give the
    variance of their difference. With no variance at all (two scores that order all samples alike)
    p is 1.
    """
    (a, b), (c, d) = (
        (_scores("known", known), _scores("unknown", unknown)) for known, unknown in (first, second)
    )
    if len(a) != len(c) or len(b) != len(d):
        raise InputError(
            f"scores of {len(a)} + {len(b)} and of {len(c)} + {len(d)} samples; give both scores "
            "of the same samples"
        )
    of_known, of_unknown = (
        one - other for one, other in zip(_components(a, b), _components(c, d), strict=True)
    )
    difference = float(of_known.mean())
    variance = _variance(of_known) + _variance(of_unknown)
    half = _Z * math.sqrt(variance)
    p = float(2 * stats.norm.sf(abs(difference) / math.sqrt(variance))) if variance > 0 else 1.0
    return SeparationDifference(difference, (difference - half, difference + half), p)


def accuracy_coverage(
    scores: ArrayLike, correct: ArrayLike, *, resamples: int = 400, seed: int = 0
) -> Coverage:
    """Return the accuracy at every coverage when samples [N] are rejected by falling score.

    ``correct`` [N] says for each sample whether the answer is right; an unknown sample never is.

    >>> accuracy_coverage([0.1, 0.2, 0.9, 0.3], [True, True, False, True]).accuracy.tolist()
    [1.0, 1.0, 1.0, 0.75]
    """
    values, right = _scores("scores", scores), np.asarray(correct, float)
    if right.shape != values.shape:
        raise InputError(f"{len(values)} scores but {right.size} answers; give one for each")
    count = np.arange(1, len(values) + 1)

    def curve(which: NDArray[np.intp]) -> Vector:
        order = which[np.argsort(values[which], kind="stable")]
        return np.asarray(right[order].cumsum() / count)

    rng = np.random.default_rng(seed)
    n = len(values)
    areas = [curve(rng.integers(n, size=n)).mean() for _ in range(resamples)]
    accuracy = curve(np.arange(n))
    return Coverage(count / n, accuracy, float(accuracy.mean()), _percentiles(areas))


def _scores(name: str, values: Any) -> Vector:
    """Return scores as a vector of floats, or raise."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    vector = np.asarray(values, float)
    if vector.ndim != 1 or not vector.size:
        raise InputError(f"{name} has shape {vector.shape}; give the scores of samples [N]")
    if np.isnan(vector).any():
        raise InputError(f"{int(np.isnan(vector).sum())} of {vector.size} {name} scores are NaN")
    return vector


def _components(known: Vector, unknown: Vector) -> tuple[Vector, Vector]:
    """Return, for each sample, the share of the other kind that it is ordered right with."""
    n, m = len(known), len(unknown)
    joint = stats.rankdata(np.concatenate([known, unknown]))
    of_known = 1 - (joint[:n] - stats.rankdata(known)) / m
    of_unknown = (joint[n:] - stats.rankdata(unknown)) / n
    return of_known, of_unknown


def _variance(components: Vector) -> float:
    return float(components.var(ddof=1)) / len(components) if len(components) > 1 else 0.0


def _delong(known: Vector, unknown: Vector) -> tuple[float, float]:
    """Return the AUROC and DeLong's variance of it."""
    of_known, of_unknown = _components(known, unknown)
    return float(of_unknown.mean()), _variance(of_known) + _variance(of_unknown)


def _logit_interval(area: float, variance: float, n: int, m: int) -> tuple[float, float]:
    """Return the 95 % interval of an AUROC, inside [0, 1]."""
    if area in (0.0, 1.0):
        # Every pair is ordered right: as for a share, Wilson's bound with the smaller sample.
        bound = min(n, m) / (min(n, m) + _Z**2)
        return (bound, 1.0) if area == 1.0 else (0.0, 1 - bound)
    half = _Z * math.sqrt(variance) / (area * (1 - area))
    middle = math.log(area / (1 - area))
    low, high = (
        1 / (1 + math.exp(-min(max(end, -700), 700))) for end in (middle - half, middle + half)
    )
    return low, high


def _percentiles(values: list[Any]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    low, high = np.quantile(np.asarray(values, float), [0.025, 0.975])
    return float(low), float(high)
