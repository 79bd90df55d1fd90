"""scikit-learn's models of the same classes, for comparison."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mahalens.errors import InputError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Samples = tuple[Floats, Labels]

MIXTURE_ROUNDS = 100
"""Rounds of expectation and maximisation at most; a mixture that still moves is taken as it is."""
LEAST_ADDED = 1e-6
"""scikit-learn's own default of what is added to the variances of a mixture."""


def require_sklearn() -> None:
    """Ask for scikit-learn, and load what is used of it, which no fit shall pay for."""
    try:
        import sklearn.discriminant_analysis
        import sklearn.mixture  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise  # scikit-learn is there and lacks something else
        raise InputError(
            "comparison with scikit-learn is asked for, which is not installed; "
            "pip install scikit-learn, or leave it out"
        ) from None


def mean_variance(x: Floats, y: Labels) -> float:
    """The variance of an input within a class, on average over inputs and classes."""
    return float(np.mean([x[y == label].var(axis=0, ddof=1).mean() for label in np.unique(y)]))


def measure_rival(
    model: str, train: Samples, test: Samples, *, shrinkage: float, seed: int
) -> dict[str, float]:
    """Measure ``qda`` or ``mixture-M``; samples are x [N, D] and their classes y [N].

    scikit-learn shrinks towards the identity, whatever the unit of the data; ellipsoids shrink
    towards their mean variance. So the samples are first divided by the root of the mean variance
    within a class (no part of the time): then the mean variance of the classes is 1 on average,
    and the identity is what ellipsoids shrink to, on average. Decisions do not depend on the unit
    otherwise. ``reg_param`` of QDA is the shrinkage a; a mixture has no such weight and adds
    a / (1 - a) to all variances, which is (1 - a) S + a I up to the factor 1 - a.
    """
    require_sklearn()
    (x, y), (test_x, test_y) = train, test
    unit = math.sqrt(mean_variance(x, y)) or 1.0
    x, test_x = x / unit, test_x / unit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mixtures that have not converged
        start = perf_counter()
        if model == "qda":
            fitted = _discriminant(x, y, shrinkage)
        else:
            fitted = _Mixtures(x, y, int(model.removeprefix("mixture-")), shrinkage, seed)
        fit_seconds = perf_counter() - start
        if fitted is None:
            return dict.fromkeys(("error_density", "fit_seconds", "score_seconds"), math.nan)
        start = perf_counter()
        predicted = fitted.predict(test_x)
        score_seconds = perf_counter() - start
    return {
        "error_density": float(np.mean(predicted != test_y)),
        "fit_seconds": fit_seconds,
        "score_seconds": score_seconds,
        "parameters": float(_discriminant_size(fitted) if model == "qda" else fitted.size),
    }


def _discriminant(x: Floats, y: Labels, shrinkage: float) -> Any:
    """QDA by its usual solver, or None where scikit-learn has no way to fit it.

    That solver leaves out the directions a class has no samples in, and refuses (in older
    releases: warns and goes on) where a class has no more samples than inputs. There
    scikit-learn's other solver is taken, as its message says, whose shrinkage is that of
    ellipsoids; older releases have none.
    """
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    usual = int(np.unique(y, return_counts=True)[1].min()) > x.shape[1]
    options: dict[str, object] = {"reg_param": shrinkage}
    if not usual:
        if "solver" not in inspect.signature(QuadraticDiscriminantAnalysis).parameters:
            return None
        options = {"solver": "eigen", "shrinkage": shrinkage}
    try:
        return QuadraticDiscriminantAnalysis(tol=0.0, **options).fit(x, y)
    except np.linalg.LinAlgError as error:
        raise InputError(f"scikit-learn's QDA: {error}; give more shrinkage") from None


def _discriminant_size(fitted: Any) -> int:
    """Means, rotations and scalings: what QDA's predictions are made of."""
    parts = (fitted.means_, *fitted.rotations_, *fitted.scalings_)
    return sum(int(part.size) for part in parts)


class _Mixtures:
    """One mixture of ``count`` full components for each class; the likeliest class is chosen."""

    def __init__(self, x: Floats, y: Labels, count: int, shrinkage: float, seed: int) -> None:
        from sklearn.mixture import GaussianMixture

        make: Callable[..., Any] = GaussianMixture
        self.labels, sizes = np.unique(y, return_counts=True)
        self.log_shares = np.log(sizes / len(y))
        self.mixtures = [
            make(
                count,
                reg_covar=max(shrinkage / (1 - shrinkage), LEAST_ADDED),
                max_iter=MIXTURE_ROUNDS,
                random_state=seed,
            ).fit(x[y == label])
            for label in self.labels
        ]
        dim = x.shape[1]
        self.size = len(self.labels) * count * (dim + dim * (dim + 1) // 2)
        """Means and triangular factors."""

    def predict(self, x: Floats) -> Labels:
        """Give the class [N] with the largest share times density."""
        densities = np.stack([mixture.score_samples(x) for mixture in self.mixtures], axis=1)
        predicted: Labels = self.labels[(densities + self.log_shares).argmax(axis=1)]
        return predicted
