"""A detector of samples unlike the known ones, as scikit-learn wants it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state
from torch import Tensor

from mahalens.detection.base import Detector
from mahalens.detection.choose import METHODS, choose_features
from mahalens.detection.distances import (
    ClassGaussians,
    LowRank,
    Mahalanobis,
    MahaVar,
    Marginal,
    Neighbours,
    Relative,
)
from mahalens.detection.threshold import Calibration, check_rate
from mahalens.errors import InputError
from mahalens.estimators._samples import (
    Array,
    Floats,
    classes_of,
    samples_to_fit,
    samples_to_use,
    units_of,
    within_classes,
)

NAMES = tuple(
    kind.method
    for kind in (Mahalanobis, ClassGaussians, LowRank, Marginal, Relative, MahaVar, Neighbours)
)


class MahalanobisOutliers(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Reject samples that are unlike the known ones, at a stated rate of false alarms.

    The methods are the detectors by distance of :mod:`mahalens.detection`. ``"auto"`` tries
    Gaussians, Gaussians of low rank and neighbours, and averages of them, and chooses by the known
    samples alone.

    The known samples are cut into folds, and a detector is fitted without each fold. A known sample
    is scored by the detector that has not seen it, a new one by the mean of all detectors. The new
    one is rejected if its score is among the share ``rate`` of the largest. So about this share of
    *new* known samples is rejected, and all samples serve for the fit and for the threshold. The
    rate is not guaranteed as that of :func:`mahalens.detect_features`, which holds samples out.

    Args:
        method: ``"auto"``; ``"marginal"`` (one Gaussian), ``"neighbours"``; with classes also
            ``"mahalanobis"`` (one covariance within classes), ``"class-gaussians"``,
            ``"low-rank"``, ``"relative"`` and ``"mahavar"``.
        options: options of the method's detector, by name. Samples are not brought to length 1
            unless ``normalise`` asks for it.
        rate: share of known samples to reject. N samples can set no rate below 1 / (N + 1); that
            one is then used, with a warning.
        folds: parts of the cross-validation.
        standardise: whether inputs are divided by their spread (with labels: within classes) first,
            so that their units do not matter.
        random_state: seed of folds and choices.

    Attributes:
        detectors_: a :class:`~mahalens.detection.Detector` of (X - mean_) / scale_ for each fold.
        mean_: the mean of the known samples [D].
        scale_: the number that each input is divided by [D].
        calibration_: the scores of the cross-validation and their threshold.
        offset_: the score below which a sample is rejected.
        choice_: method and options, and why they were chosen.
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
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.options = options
        self.rate = rate
        self.folds = folds
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to known samples X [N, D], and to their classes y [N] if there are any."""
        x = samples_to_fit(self, X)
        places, within = None, x
        if y is not None:
            places = classes_of(y, len(x))[1]
            within = within_classes(x, places)[1]
        self.rate_ = self._possible_rate(len(x))
        if not isinstance(self.folds, int) or not 2 <= self.folds <= len(x):
            raise InputError(f"folds is {self.folds!r}; give a number from 2 to {len(x)}")
        mean, scale = x.mean(0), units_of(within, self.standardise)
        x = (x - mean) / scale
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = dict(self.options or {})
        if self.method != "auto":
            if self.method not in NAMES:
                raise InputError(f'method is {self.method!r}; give "auto", {", ".join(NAMES)}')
            options.setdefault("normalise", "none")
        self.choice_ = choose_features(x, places, self.method, seed=seed, **options)
        scores = x.new_empty(len(x))
        self.detectors_: list[Detector] = []
        for fit, held in self._folds(x, places, seed):
            detector = METHODS[self.choice_.method](**self.choice_.options)
            y_fit = None if places is None else places[fit]
            detector.fit_features(x[fit], y_fit, hold_out=0.0, seed=seed)
            scores[held] = detector.score_features(x[held])
            self.detectors_.append(detector)
        self.mean_: Floats = mean.numpy()
        self.scale_: Floats = scale.numpy()
        self.calibration_ = Calibration(scores, rate=self.rate_)
        self.offset_ = -float(self.calibration_.threshold)
        return self

    def _possible_rate(self, count: int) -> float:
        rate = check_rate(self.rate)
        if rate * (count + 1) >= 1 - 1e-9:
            return rate
        least = 1 / (count + 1)
        warnings.warn(
            f"a rate of {rate:g} cannot be set from {count} samples; {least:.2g} is used, the "
            f"smallest they can set. Give {math.ceil(1 / rate) - 1} samples or a higher rate",
            stacklevel=3,
        )
        return least

    def _folds(
        self, x: Tensor, places: Tensor | None, seed: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        smallest = 0 if places is None else int(torch.bincount(places).min())
        kind = KFold if smallest < self.folds else StratifiedKFold
        cut = kind(self.folds, shuffle=True, random_state=seed)
        for fit, held in cut.split(x, places):
            yield torch.from_numpy(fit), torch.from_numpy(held)

    def score_samples(self, X: Any) -> Floats:
        """Return the score of each sample [N]: the lower, the less it is like the known ones."""
        x = samples_to_use(self, X) - torch.from_numpy(self.mean_)
        x /= torch.from_numpy(self.scale_)
        scores = [detector.score_features(x) for detector in self.detectors_]
        return -torch.stack(scores).mean(0).numpy()

    def decision_function(self, X: Any) -> Floats:
        """Return the score less the threshold [N]: negative for samples to reject."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Array:
        """Return -1 for samples to reject, 1 for the others [N]."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def p_values(self, X: Any) -> Floats:
        """Return the share of known samples that are as unusual as each sample [N]."""
        return self.calibration_.p_value(torch.from_numpy(-self.score_samples(X))).numpy()
