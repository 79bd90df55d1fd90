"""A Mahalanobis metric as a transformer."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from mahalens.estimators._samples import (
    Floats,
    classes_of,
    samples_to_fit,
    samples_to_use,
    units_of,
    whole_number,
    within_classes,
)
from mahalens.geometry.gaussian import Gaussian


class MahalanobisMetric(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Transform inputs so that Euclidean distances become Mahalanobis distances.

    With labels, Σ is the covariance within classes: directions in which samples of one class differ
    count for little, and neighbours are found by what tells classes apart. Without labels it is the
    covariance of all samples, and the transform is whitening. With rows W, Wᵀ W = Σ⁻¹::

        transform(x) = W (x − mean),    ‖transform(x) − transform(y)‖² = (x − y)ᵀ Σ⁻¹ (x − y)

    Put it before anything that measures distances, such as ``KNeighborsClassifier``, ``KMeans`` or
    ``DBSCAN``. Any rotation of W gives the same distances. Here the first directions are those
    along which class means differ most (the axes of linear discriminant analysis), without labels
    those along which samples do.

    Args:
        n_components: directions to keep, all if None. With C classes, at most C − 1 directions
            tell their means apart.
        shrinkage: weight from 0 to 1 of a sphere in the covariance, or ``"ledoit-wolf"`` to
            estimate it from the samples.
        ridge: share of its mean variance that is added to the covariance.
        standardise: whether inputs are divided by their spread (with labels: within classes) before
            the covariance is shrunk, so that their units do not matter.

    Attributes:
        mean_: mean of the samples [D].
        components_: W [n_components, D].
        covariance_: Σ [D, D].
        precision_: Wᵀ W [D, D]: the matrix of the metric, as the option ``VI`` of SciPy's
            ``mahalanobis``; Σ⁻¹ if all directions are kept.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = load_wine(return_X_y=True)
    >>> near = make_pipeline(MahalanobisMetric(), KNeighborsClassifier())
    >>> for model in (KNeighborsClassifier(), near):
    ...     print(f"{cross_val_score(model, X, y).mean():.3f}")
    0.691
    0.978
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        shrinkage: float | Literal["ledoit-wolf"] = "ledoit-wolf",
        ridge: float = 0.0,
        standardise: bool = True,
    ) -> None:
        self.n_components = n_components
        self.shrinkage = shrinkage
        self.ridge = ridge
        self.standardise = standardise

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to samples X [N, D], and to their classes y [N] if there are any.

        A pipeline hands its y over, so targets of a regression are refused: put the metric before
        classifiers and what needs no y.
        """
        x = samples_to_fit(self, X)
        kept = x.shape[1]
        if self.n_components is not None:
            kept = whole_number("n_components", self.n_components, kept, "the columns of X")
        mean = x.mean(0)
        between, within = None, x
        if y is not None:
            places = classes_of(y, len(x))[1]
            means, within = within_classes(x, places)
            between = (means - mean) * torch.bincount(places)[:, None].sqrt()
        scale = units_of(x, within, self.standardise)
        spread = Gaussian.from_data(within / scale, shrinkage=self.shrinkage, ridge=self.ridge)
        rows = spread.whitening("pca") / scale
        if between is not None:  # turned: directions that tell classes apart come first
            rows = torch.linalg.svd(between @ rows.mT).Vh @ rows
            # A sign left to the library would differ between machines.
            largest = (rows * scale).abs().argmax(1, keepdim=True)
            rows = rows * rows.gather(1, largest).sign()
        self.mean_: Floats = mean.numpy()
        self.covariance_: Floats = (spread.covariance * scale * scale[:, None]).numpy()
        self.components_: Floats = rows[:kept].numpy()
        self._n_features_out = kept
        return self

    @property
    def precision_(self) -> Floats:
        """The matrix of the metric [D, D]."""
        check_is_fitted(self, "components_")
        return self.components_.T @ self.components_

    def transform(self, X: Any) -> Floats:
        """Return X [N, D] in the new coordinates [N, n_components]."""
        x = samples_to_use(self, X, "components_").numpy()
        moved: Floats = (x - self.mean_) @ self.components_.T
        return moved
