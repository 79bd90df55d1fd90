"""Samples, labels and options as scikit-learn hands them over, checked and as tensors."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from mahalens.errors import InputError

Array = NDArray[Any]
Floats = NDArray[np.float64]

_LARGEST = 1e290
"""Sums of larger numbers would leave float64."""
_FAR = 1e100
"""Standardised inputs beyond this are cut off there: no distance changes its meaning."""
_NO_SPREAD = 16 * torch.finfo(torch.float64).eps
"""A spread below this share of the largest number in its column is rounding."""


def samples_to_fit(estimator: Any, X: Any) -> Tensor:
    """Return X [N, D] of a fit as a tensor, and note its columns in the estimator."""
    x = _tensor(validate_data(estimator, X, dtype=np.float64, ensure_min_samples=2))
    if (largest := float(x.abs().max())) > _LARGEST:
        raise InputError(f"X has a number of size {largest:.3g}; divide X by a constant")
    return x


def samples_to_use(estimator: Any, X: Any, fitted: str) -> Tensor:
    """Return X [N, D] as a tensor, if a fit has set the attribute and had the same columns."""
    check_is_fitted(estimator, fitted)
    return _tensor(validate_data(estimator, X, dtype=np.float64, reset=False))


def _tensor(x: Floats) -> Tensor:
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


def classes_of(y: Any, count: int) -> tuple[Array, Tensor]:
    """Return the classes [C] in ascending order, and the place of each label y [N] among them."""
    if y is None:
        raise InputError(
            "a fit requires y to be passed, but the target y is None; give the class of each sample"
        )
    y = column_or_1d(y, warn=True)
    if len(y) != count:
        raise InputError(f"X has {count} samples but y has {len(y)} labels; give one per sample")
    kind = type_of_target(y, input_name="y", raise_unknown=True)
    if kind not in ("binary", "multiclass"):
        raise InputError(
            f"y has {kind} values, but y is taken for classes; Unknown label type: give the class "
            "of each sample"
        )
    classes, places = np.unique(y, return_inverse=True)
    return classes, torch.from_numpy(places.astype(np.int64))


def within_classes(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class means [C, D], and x [N, D] less the mean of its class.

    The differences are scaled so that their sample covariance (over N - 1) is the pooled covariance
    (over N - C).
    """
    sizes = torch.bincount(places)
    count = len(sizes)
    means = x.new_zeros(count, x.shape[1]).index_add_(0, places, x) / sizes.clamp(min=1)[:, None]
    if len(x) <= count:
        raise InputError(
            f"y has {count} classes in {len(x)} samples, which leaves no spread within classes; "
            "give more samples of each class"
        )
    return means, (x - means[places]) * ((len(x) - 1) / (len(x) - count)) ** 0.5


def units_of(x: Tensor, within: Tensor, standardise: bool) -> Tensor:
    """Return the spread [D] within classes of each column of x, or 1 where it has none.

    All are 1 unless inputs are to be standardised.
    """
    if standardise not in (True, False):
        raise InputError(f"standardise is {standardise!r}; give True or False")
    if not standardise:
        return torch.ones_like(x[0])
    size = x.abs().amax(0)
    size = torch.where(size > 0, size, 1.0)
    spread = (within / size).std(0)
    return torch.where(spread > _NO_SPREAD, spread * size, 1.0)


def scaled(x: Tensor, scale: Floats | Tensor, mean: Floats | Tensor | float = 0.0) -> Tensor:
    """Return (x - mean) / scale; enormous numbers are cut off, so that distances stay finite."""
    mean, scale = torch.as_tensor(mean), torch.as_tensor(scale)
    return ((x - mean) / scale).clamp(-_FAR, _FAR)


def whole_number(name: str, value: Any, most: int | None = None, of: str = "") -> int:
    """Return an option that is a whole number from 1 to ``most``, or raise."""
    number = int(value) if _is(Integral, value) else 0
    if number < 1 or (most is not None and number > most):
        end = " up" if most is None else f" to {most}, {of}"
        raise InputError(f"{name} is {value!r}; give a whole number from 1{end}")
    return number


def size_of(name: str, value: Any) -> float:
    """Return an option that is a number of at least 0, or raise."""
    number = float(value) if _is(Real, value) else -1.0
    if not 0 <= number < math.inf:
        raise InputError(f"{name} is {value!r}; give a number of at least 0")
    return number


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
