"""Samples and labels as scikit-learn checks them, and as the rest of the package wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from mahalens.errors import InputError

Array = NDArray[Any]
Floats = NDArray[np.float64]


def samples_to_fit(estimator: Any, X: Any, least: int = 2) -> Tensor:
    """Return X [N, D] of a fit as a tensor, and note its columns in the estimator."""
    return _tensor(validate_data(estimator, X, dtype=np.float64, ensure_min_samples=least))


def samples_to_use(estimator: Any, X: Any) -> Tensor:
    """Return X [N, D] of a fitted estimator as a tensor; it must have the columns of the fit."""
    check_is_fitted(estimator)
    return _tensor(validate_data(estimator, X, dtype=np.float64, reset=False))


def _tensor(x: Floats) -> Tensor:
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


def classes_of(y: Any, count: int) -> tuple[Array, Tensor]:
    """Return the classes [C] in ascending order, and the place of each label y [N] among them."""
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    if len(y) != count:
        raise InputError(f"X has {count} samples but y has {len(y)} labels; give one per sample")
    classes, places = np.unique(y, return_inverse=True)
    return classes, torch.from_numpy(places.astype(np.int64))


def units_of(within: Tensor, standardise: bool) -> Tensor:
    """Return the spread of each input [D], or 1 where it has none or is to stay as it is."""
    spread = within.std(0)
    return torch.where(spread > 0, spread, 1.0) if standardise else torch.ones_like(spread)


def within_classes(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class means [C, D], and x [N, D] less the mean of its class.

    The differences are scaled so that their covariance, divided by N - 1 as of any samples, is the
    pooled one: the sum of squares divided by N - C.
    """
    count = int(places.max()) + 1
    means = torch.stack([x[places == place].mean(0) for place in range(count)])
    if len(x) <= count:
        raise InputError(
            f"y has {count} classes in {len(x)} samples, which leaves no spread within classes; "
            "give more samples of each class"
        )
    return means, (x - means[places]) * ((len(x) - 1) / (len(x) - count)) ** 0.5
