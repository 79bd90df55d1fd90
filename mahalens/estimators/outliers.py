"""A detector of samples unlike the known ones, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state
from torch import Tensor

from mahalens.detection.base import Detector
from mahalens.detection.choose import METHODS, Choice, choose_features
from mahalens.detection.distances import Neighbours
from mahalens.detection.threshold import Calibration, check_rate
from mahalens.errors import InputError
from mahalens.estimators._samples import (
    Array,
    Floats,
    classes_of,
    samples_to_fit,
    samples_to_use,
    scaled,
    units_of,
    whole_number,
    within_classes,
)

NAMES = tuple(n for n, kind in METHODS.items() if kind.__module__ == Neighbours.__module__)
"""The methods by distance: those that need neither logits nor several layers."""

_CLEARLY = 0.5
"""Logarithm of the odds by which plain inputs must beat standardised ones; less is chance."""


class MahalanobisOutliers(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Reject samples that are unlike the known ones, at a stated rate of false alarms.

    The methods are the detectors by distance of :mod:`mahalens.detection`. ``"auto"`` chooses by
    the known samples alone: without classes between one Gaussian and neighbours; with classes among
    Gaussians within classes, of low rank, relative to all samples, neighbours, a linear
    classifier's energy, and averages of them.

    The known samples are cut into folds, and a detector is fitted without each fold. A known sample
    is scored by the detector that has not seen it, a new one by the mean of all detectors. A new
    sample is rejected if its score is above all but the share ``rate`` of those of the known ones.
    So about this share of *new* known samples is rejected, and all samples serve for the fit and
    for the threshold. The rate is not guaranteed: samples with many ties, or distances to
    neighbours in small clusters, can be rejected less often. :func:`mahalens.detect_features` holds
    samples out and guarantees its rate.

    Args:
        method: ``"auto"``; ``"marginal"`` (one Gaussian) or ``"neighbours"``; with classes also
            ``"mahalanobis"`` (one covariance within classes), ``"class-gaussians"``,
            ``"low-rank"``, ``"relative"`` and ``"mahavar"``.
        options: options of the method's detector, by name. Two have other defaults here: samples
            are not brought to length 1 (``normalise="none"``), and neighbours are at most 10
            (``k``), or a fifth of the samples.
        rate: share of known samples to reject. N samples can set no rate below 1 / (N + 1); that
            one is then used, with a warning.
        folds: number of folds.
        standardise: whether inputs are divided by their spread (with classes: within classes)
            first, so that their units do not matter. ``"auto"`` does so if a method is named. If
            not, it tries both, and known samples decide: pixels have one unit, and those that
            hardly vary should not count as much as the others.
        random_state: seed of folds and choices.

    Attributes:
        parts_: of each fold, scale and mean of the inputs and the fitted
            :class:`~mahalens.detection.Detector`.
        calibration_: the scores of the known samples and their threshold, a
            :class:`~mahalens.detection.Calibration`.
        offset_: the score below which a sample is rejected.
        choice_: method and options, and why they were chosen.
        standardise_: whether inputs are divided by their spread.
        rate_: the rate that the threshold was set for.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> outliers = MahalanobisOutliers("marginal").fit(X[y == 0])
    >>> outliers.predict(X[[60, 100, 150]])  # wines of other growers
    array([-1, -1, -1])
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        options: dict[str, Any] | None = None,
        rate: float = 0.05,
        folds: int = 5,
        standardise: bool | str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.options = options
        self.rate = rate
        self.folds = folds
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to known samples X [N, D], and to their classes y [N] if there are any.

        Labels -1 and 1, by which scikit-learn marks outliers, are refused: all samples are known.
        """
        x = samples_to_fit(self, X)
        if bool((x == x[0]).all()):
            raise InputError("all samples of X are the same; give samples that differ")
        places = None if y is None else self._places(y, len(x))
        folds = whole_number("folds", self.folds, len(x), "the number of samples")
        if folds < 2:
            raise InputError("folds is 1; give 2 or more")
        self.rate_ = self._possible_rate(len(x))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = self._options(len(x), folds, places)
        self.standardise_, self.choice_ = self._choose(x, places, seed, options)
        scores = x.new_empty(len(x))
        self.parts_: list[_Part] = []
        for fit, held in _folds(x, places, folds, seed):
            y_fit = None if places is None else places[fit]
            scale, mean = _scale_and_mean(x[fit], y_fit, self.standardise_)
            detector = METHODS[self.choice_.method](**self.choice_.options)
            detector.fit_features(scaled(x[fit], scale, mean), y_fit, hold_out=0.0, seed=seed)
            part = _Part(scale, mean, detector)
            scores[held] = part.score(x[held])
            self.parts_.append(part)
        self.calibration_ = Calibration(scores, rate=self.rate_)
        self.offset_ = -float(self.calibration_.threshold)
        return self

    def _choose(
        self, x: Tensor, places: Tensor | None, seed: int, options: dict[str, Any]
    ) -> tuple[bool, Choice]:
        """Return whether to standardise, and the method: by known samples if neither is given."""
        if self.standardise not in (True, False, "auto"):
            raise InputError(f'standardise is {self.standardise!r}; give True, False or "auto"')

        def choice(standardise: bool) -> Choice:
            moved = scaled(x, *_scale_and_mean(x, places, standardise))
            return choose_features(moved, places, self.method, seed=seed, **options)

        first = bool(self.standardise)  # "auto" begins with True
        best = choice(first)
        if self.standardise != "auto" or self.method != "auto":
            return first, best
        try:
            plain = choice(False)
        except InputError:  # without units of their own the numbers are too large or too small
            return True, best
        better = plain.trials[0].worth - best.trials[0].worth
        return (False, plain) if better > _CLEARLY else (True, best)

    def _places(self, y: Any, count: int) -> Tensor:
        classes, places = classes_of(y, count)
        if classes.dtype.kind in "if" and set(classes.tolist()) == {-1, 1}:
            raise InputError(
                "y has the labels -1 and 1, which mark outliers in scikit-learn; give the classes "
                "of known samples, or no y"
            )
        sizes = torch.bincount(places)
        if self.method in NAMES and METHODS[self.method].needs_labels and int(sizes.min()) < 2:
            lone = classes[int(sizes.argmin())]
            raise InputError(
                f"class {lone} has one sample, which has no spread; give more samples of it, or "
                'method="marginal" or "neighbours"'
            )
        return places

    def _options(self, count: int, folds: int, places: Tensor | None) -> dict[str, Any]:
        given = {} if self.options is None else self.options
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise InputError(f'options are {given!r}; give a dict such as {{"rank": 4}}')
        if reserved := sorted({"z", "y", "method", "seed"} & set(given)):
            raise InputError(f"options have {reserved[0]!r}, which is no option of a detector")
        if self.method == "auto":
            return dict(given)
        if self.method not in NAMES:
            names = ", ".join(f'"{name}"' for name in NAMES)
            raise InputError(f'method is {self.method!r}; give "auto" or one of {names}')
        if METHODS[self.method].needs_labels and places is None:
            raise InputError(
                f"method {self.method!r} needs classes; give fit(X, y), or "
                'method="marginal" or "neighbours"'
            )
        usual: dict[str, Any] = {"normalise": "none"}
        if self.method == Neighbours.method:
            usual["k"] = max(1, min(10, (count - count // folds) // 5))
        return {**usual, **given}

    def _possible_rate(self, count: int) -> float:
        rate = check_rate(self.rate)
        if rate * (count + 1) >= 1 - 1e-9:
            return rate
        least = 1 / (count + 1)
        warnings.warn(
            f"a rate of {rate:g} cannot be set from {count} samples; {least:.2g} is used, the "
            f"smallest they can set. Give {1 / rate - 1:.4g} samples or a higher rate",
            stacklevel=3,
        )
        return least

    def score_samples(self, X: Any) -> Floats:
        """Return the score of each sample [N]: the lower, the less it is like the known ones."""
        x = samples_to_use(self, X, "offset_")
        return -torch.stack([part.score(x) for part in self.parts_]).mean(0).numpy()

    def decision_function(self, X: Any) -> Floats:
        """Return the score less the threshold [N]: negative for samples to reject."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Array:
        """Return -1 for samples to reject, 1 for the others [N]."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def p_values(self, X: Any) -> Floats:
        """Return how unusual each sample is [N]: about the share of known samples that are as much.

        It is the p-value of :class:`~mahalens.detection.Calibration`; samples at or below ``rate_``
        are rejected.
        """
        scores = -self.score_samples(X)
        return self.calibration_.p_value(torch.from_numpy(scores)).numpy()


class _Part(NamedTuple):
    """A detector fitted without a fold, and scale and mean [D] of the samples it was fitted to."""

    scale: Tensor
    mean: Tensor
    detector: Detector

    def score(self, x: Tensor) -> Tensor:
        """Return the score of each row [N]."""
        return self.detector.score_features(scaled(x, self.scale, self.mean))


def _scale_and_mean(x: Tensor, places: Tensor | None, standardise: bool) -> tuple[Tensor, Tensor]:
    within = x if places is None else within_classes(x, places)[1]
    return units_of(x, within, standardise), x.mean(0)


def _folds(
    x: Tensor, places: Tensor | None, count: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows to fit to and those held out, of each fold."""
    largest = 0 if places is None else int(torch.bincount(places).max())
    kind = KFold if largest < count else StratifiedKFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes smaller than the folds
        cut = list(kind(count, shuffle=True, random_state=seed).split(x, places))
    for fit, held in cut:
        yield torch.from_numpy(fit), torch.from_numpy(held)
