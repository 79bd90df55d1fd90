"""A classifier by the Mahalanobis distance to each class."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

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
from mahalens.geometry.ellipsoids import Ellipsoids
from mahalens.geometry.ellipsoids.base import joint_density
from mahalens.geometry.ellipsoids.fit import Kind, from_data


class MahalanobisClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify by one Gaussian per class, with the distances to all of them in standard deviations.

    With means μ_c, covariances Σ_c and shares π_c of the classes, a sample belongs to the class
    with the largest

        log π_c − ½ (d_c² + log det Σ_c),    d_c² = (x − μ_c)ᵀ Σ_c⁻¹ (x − μ_c)

    ``kind="full"`` is quadratic discriminant analysis, with ``shared=True`` linear discriminant
    analysis. Covariances of low rank (``kind="low-rank+remainder"``) need R (D + 1) + 1 numbers per
    class instead of D (D + 1) / 2. Shrinkage lets all kinds work with fewer samples than inputs.

    A class needs two samples, and three where Ledoit and Wolf's shrinkage is to help it.

    Args:
        kind: ``"full"``, ``"low-rank+remainder"``, ``"diagonal"``, ``"spherical"`` or
            ``"shared-basis"``; see :func:`mahalens.geometry.ellipsoids.from_covariance`.
        rank: number of axes for the kinds that have one, or ``"auto"`` for 95 % of the variance.
        shared: whether all classes share the covariance within classes.
        shrinkage: weight from 0 to 1 of a sphere in each covariance, or ``"ledoit-wolf"`` to
            estimate it from the samples.
        ridge: share of its mean variance that is added to each covariance.
        standardise: whether inputs are divided by their spread within classes first, so that their
            units do not matter.
        priors: shares of the classes [C]; None for those of the samples, ``"equal"`` for equal
            ones.

    Attributes:
        classes_: labels in ascending order [C].
        scale_: the number that each input is divided by [D].
        ellipsoids_: the Gaussians of ``X / scale_``, as :class:`~mahalens.geometry.Ellipsoids`.
        priors_: shares of the classes [C].

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = MahalanobisClassifier().fit(X, y)
    >>> classifier.distances(X[:1]).round(1)  # near class 0, far from the others
    array([[ 0.6, 10.2, 12.1]])
    """

    def __init__(
        self,
        kind: Kind = "full",
        *,
        rank: int | Literal["auto"] | None = None,
        shared: bool = False,
        shrinkage: float | Literal["ledoit-wolf"] = "ledoit-wolf",
        ridge: float = 0.0,
        standardise: bool = True,
        priors: Any = None,
    ) -> None:
        self.kind = kind
        self.rank = rank
        self.shared = shared
        self.shrinkage = shrinkage
        self.ridge = ridge
        self.standardise = standardise
        self.priors = priors

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a Gaussian to the samples X [N, D] of each class of y [N]."""
        if self.kind == "low-rank":
            raise InputError(
                'kind is "low-rank", whose Gaussians are infinitely wide across their axes; give '
                '"low-rank+remainder"'
            )
        x = samples_to_fit(self, X)
        self.classes_, places = classes_of(y, len(x))
        counts = torch.bincount(places, minlength=len(self.classes_))
        if len(counts) < 2:
            raise InputError(f"y has one class, {self.classes_[0]}; give samples of two or more")
        if self.shared not in (True, False):
            raise InputError(f"shared is {self.shared!r}; give True or False")
        if not self.shared and int(counts.min()) < 2:
            lone = self.classes_[int(counts.argmin())]
            raise InputError(
                f"class {lone} has one sample, which has no spread; give more samples of it, or "
                "shared=True"
            )
        means, within = within_classes(x, places)
        scale = units_of(x, within, self.standardise)
        rank = self.rank
        if rank is not None and rank != "auto":
            rank = whole_number("rank", rank, x.shape[1], "the columns of X")
        options: dict[str, Any] = {
            "kind": self.kind,
            "rank": rank,
            "ridge": self.ridge,
            "shrinkage": self.shrinkage,
        }
        self.scale_: Floats = scale.numpy()
        if self.shared:
            spread = from_data(within / scale, torch.zeros_like(places), **options)
            self.ellipsoids_ = _moved(spread, means / scale)
        else:
            self.ellipsoids_ = from_data(x / scale, places, **options)
        self.priors_ = self._priors(counts)
        return self

    def _priors(self, counts: Tensor) -> Floats:
        count = len(counts)
        if self.priors is None:
            return (counts.double() / counts.sum()).numpy()
        if isinstance(self.priors, str):
            priors = np.full(count, 1 / count) if self.priors == "equal" else np.zeros(0)
        else:
            try:
                priors = np.asarray(self.priors, dtype=np.float64)
            except (TypeError, ValueError):
                priors = np.zeros(0)
        if priors.shape != (count,) or not (priors > 0).all() or abs(priors.sum() - 1) > 1e-6:
            raise InputError(
                f'priors are {self.priors!r}; give None, "equal", or {count} positive shares that '
                "sum to 1, in the order of classes_"
            )
        return priors

    def distances(self, X: Any) -> Floats:
        """Return the Mahalanobis distance of each sample of X [N, D] to each class [N, C]."""
        x = self._scaled(X)
        return self.ellipsoids_.distances(x).numpy()

    def _scaled(self, X: Any) -> Tensor:
        return scaled(samples_to_use(self, X, "priors_"), self.scale_)

    def _joint(self, X: Any) -> tuple[Tensor, Tensor]:
        x = self._scaled(X)
        return joint_density(self.ellipsoids_, x, torch.from_numpy(self.priors_).log())

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each sample [N]."""
        places = self._joint(X)[0].argmax(1).numpy()
        labels: Array = self.classes_[places]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class [N, C]; rows sum to 1, also far from all classes."""
        return torch.softmax(self._joint(X)[0], 1).numpy()

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of :meth:`predict_proba` [N, C], without rounding to 0."""
        return torch.log_softmax(self._joint(X)[0], 1).numpy()

    def decision_function(self, X: Any) -> Floats:
        """Return log(π_c N(x; μ_c, Σ_c)) [N, C]; of two classes the second less the first [N].

        The densities are those of ``X / scale_``.
        """
        joint, square = self._joint(X)
        if joint.shape[1] == 2:
            return (joint[:, 1] - joint[:, 0]).numpy()
        return (joint - 0.5 * square[:, None]).numpy()


def _moved(ellipsoid: Ellipsoids, means: Tensor) -> Ellipsoids:
    """Return an ellipsoid like this one about each of the means [C, D]."""
    tensors = {
        name: value if name in ellipsoid.shared else value.expand(len(means), *value.shape[1:])
        for name, value in ellipsoid.tensors().items()
    }
    return type(ellipsoid).from_tensors({**tensors, "means": means})
