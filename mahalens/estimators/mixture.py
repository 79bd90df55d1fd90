"""A mixture of Gaussians, also of low rank."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mahalens.errors import InputError
from mahalens.estimators._samples import (
    Array,
    Floats,
    samples_to_fit,
    samples_to_use,
    units_of,
)
from mahalens.geometry.ellipsoids import Ellipsoids
from mahalens.geometry.ellipsoids.fit import from_covariance

KINDS = ("full", "low-rank+remainder", "diagonal", "spherical")


class _Fit(NamedTuple):
    """A mixture after EM: its Gaussians, their shares [K], and the mean log-likelihood."""

    ellipsoids: Ellipsoids
    weights: Tensor
    bound: float
    steps: int
    converged: bool


class MahalanobisMixture(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a mixture of K Gaussians by expectation and maximisation.

    As scikit-learn's ``GaussianMixture``, with one more kind: ``"low-rank+remainder"`` gives every
    Gaussian R axes of its own and one spread for all other directions (a mixture of probabilistic
    principal component analysers), so that a Gaussian in D dimensions has D R instead of D² / 2
    free numbers. Two steps take turns until the likelihood no longer grows::

        r_nk = π_k N(x_n; μ_k, Σ_k) / Σ_j π_j N(x_n; μ_j, Σ_j)
        π_k, μ_k, Σ_k = share, mean and covariance of the samples, weighted by r_nk

    Args:
        n_components: K, the number of Gaussians.
        kind: ``"full"``, ``"low-rank+remainder"``, ``"diagonal"`` or ``"spherical"``.
        rank: R, for the kind that has one.
        ridge: share of the variance of all samples that is added to every covariance.
        tol: growth of the mean log-likelihood at which a fit has converged.
        max_iter: most steps.
        n_init: starts from k-means with different seeds; the most likely result is kept.
        standardise: whether inputs are divided by their spread first, so that their units do not
            matter to k-means, to ``ridge`` and to axes of low rank.
        random_state: seed of k-means and of :meth:`sample`.

    Attributes:
        weights_: share of each Gaussian [K].
        means_: [K, D].
        covariances_: [K, D, D].
        ellipsoids_: the Gaussians of X / scale_, as :class:`~mahalens.geometry.Ellipsoids`.
        scale_: the number that each input is divided by [D].
        lower_bound_: mean log-likelihood of the samples.
        converged_, n_iter_: how the best fit ended, and after how many steps.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> mixture = MahalanobisMixture(10, "low-rank+remainder", rank=8, ridge=0.01).fit(X)
    >>> mixture.predict(X).shape, mixture.distances(X).shape
    ((1797,), (1797, 10))
    """

    def __init__(
        self,
        n_components: int = 1,
        kind: Literal["full", "low-rank+remainder", "diagonal", "spherical"] = "full",
        *,
        rank: int | None = None,
        ridge: float = 1e-6,
        tol: float = 1e-3,
        max_iter: int = 100,
        n_init: int = 1,
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.kind = kind
        self.rank = rank
        self.ridge = ridge
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to samples X [N, D]; y is ignored."""
        x = samples_to_fit(self, X)
        self._check_options(len(x))
        scale = units_of(x, self.standardise)
        random = check_random_state(self.random_state)
        seeds = [int(random.randint(2**31 - 1)) for _ in range(self.n_init)]
        best = max((self._fit(x / scale, seed) for seed in seeds), key=lambda fit: fit.bound)
        if not best.converged:
            warnings.warn(
                f"the mixture has not converged after {best.steps} steps; raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.scale_: Floats = scale.numpy()
        self.ellipsoids_ = best.ellipsoids
        self.weights_: Floats = best.weights.numpy()
        self.means_: Floats = (best.ellipsoids.means * scale).numpy()
        self.lower_bound_ = best.bound - float(scale.log().sum())
        self.converged_, self.n_iter_ = best.converged, best.steps
        return self

    def _check_options(self, count: int) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind is {self.kind!r}; give one of {', '.join(KINDS)}")
        for name, most in (("n_components", count), ("max_iter", None), ("n_init", None)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1 or (most and value > most):
                end = f" to {most}, the number of samples" if most else " up"
                raise InputError(f"{name} is {value!r}; give a whole number from 1{end}")
        for name in ("ridge", "tol"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InputError(f"{name} is {value!r}; give a number of at least 0")

    def _fit(self, x: Tensor, seed: int) -> _Fit:
        clusters = KMeans(self.n_components, n_init=1, random_state=seed).fit_predict(x.numpy())
        shares = torch.nn.functional.one_hot(torch.from_numpy(clusters).long(), self.n_components)
        ellipsoids, weights = self._maximised(x, shares.double())
        bound = -math.inf
        for step in range(1, self.max_iter + 1):
            joint = ellipsoids.log_density(x) + weights.log()
            likelihood = torch.logsumexp(joint, 1)
            before, bound = bound, float(likelihood.mean())
            if abs(bound - before) < self.tol:
                return _Fit(ellipsoids, weights, bound, step, converged=True)
            ellipsoids, weights = self._maximised(x, (joint - likelihood[:, None]).exp())
        bound = float(ellipsoids.log_likelihood(x, weights).mean())
        return _Fit(ellipsoids, weights, bound, self.max_iter, converged=False)

    def _maximised(self, x: Tensor, shares: Tensor) -> tuple[Ellipsoids, Tensor]:
        """Return the Gaussians and their weights for shares [N, K] of the samples x [N, D]."""
        sizes = shares.sum(0) + 10 * torch.finfo(x.dtype).eps
        means = shares.mT @ x / sizes[:, None]
        covariances = torch.stack(
            [self._covariance(x - means[k], shares[:, k] / sizes[k]) for k in range(len(means))]
        )
        ellipsoids = from_covariance(means, covariances, kind=self.kind, rank=self.rank)
        return ellipsoids, sizes / sizes.sum()

    def _covariance(self, centred: Tensor, shares: Tensor) -> Tensor:
        """Return the weighted covariance [D, D] of centred samples, with the ridge."""
        if self.kind in ("diagonal", "spherical"):
            return torch.diag(shares @ centred.square() + self.ridge)
        rows = centred * shares.sqrt()[:, None]
        covariance = rows.mT @ rows
        covariance.diagonal().add_(self.ridge)
        return covariance

    @property
    def covariances_(self) -> Floats:
        """Σ_k [K, D, D]."""
        check_is_fitted(self)
        covariances: Floats = self.ellipsoids_.covariances.numpy()
        return covariances * self.scale_ * self.scale_[:, None]

    def _scaled(self, X: Any) -> Tensor:
        return samples_to_use(self, X) / torch.from_numpy(self.scale_)

    def distances(self, X: Any) -> Floats:
        """Return the Mahalanobis distance of each sample to each Gaussian [N, K]."""
        x = self._scaled(X)
        return self.ellipsoids_.distances(x).numpy()

    def score_samples(self, X: Any) -> Floats:
        """Return the logarithm of the density at each sample [N]."""
        x = self._scaled(X)
        density = self.ellipsoids_.log_likelihood(x, torch.from_numpy(self.weights_))
        return density.numpy() - float(np.log(self.scale_).sum())

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean logarithm of the density at the samples."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: Any) -> Floats:
        """Return the share of each Gaussian in each sample [N, K]."""
        x = self._scaled(X)
        return self.ellipsoids_.responsibilities(x, torch.from_numpy(self.weights_)).numpy()

    def predict(self, X: Any) -> Array:
        """Return the number of the Gaussian that each sample most likely comes from [N]."""
        labels: Array = self.predict_proba(X).argmax(1)
        return labels

    def fit_predict(self, X: Any, y: Any = None) -> Array:
        """Fit to X [N, D] and return the number of each sample's Gaussian [N]."""
        labels: Array = self.fit(X).predict(X)
        return labels

    def sample(self, n_samples: int = 1) -> tuple[Floats, Array]:
        """Draw samples [n, D], and return them with the numbers of their Gaussians [n]."""
        check_is_fitted(self)
        if not isinstance(n_samples, int | np.integer) or n_samples < 1:
            raise InputError(f"n_samples is {n_samples!r}; give a whole number from 1 up")
        random = check_random_state(self.random_state)
        sizes = random.multinomial(n_samples, self.weights_ / self.weights_.sum())
        factors = np.linalg.cholesky(self.covariances_)
        parts = [
            mean + random.standard_normal((size, len(mean))) @ factor.T
            for mean, factor, size in zip(self.means_, factors, sizes, strict=True)
        ]
        return np.concatenate(parts), np.repeat(np.arange(len(sizes)), sizes)

    def _free_numbers(self) -> int:
        count, dim = self.ellipsoids_.means.shape
        ranks = self.ellipsoids_.ranks
        free = {
            "full": count * dim * (dim + 1) // 2,
            "low-rank+remainder": int((ranks * dim - ranks * (ranks - 1) // 2 + 1).sum()),
            "diagonal": count * dim,
            "spherical": count,
        }[self.kind]
        return free + count * dim + count - 1

    def aic(self, X: Any) -> float:
        """Return Akaike's criterion for the samples; lower is better."""
        return -2 * float(self.score_samples(X).sum()) + 2 * self._free_numbers()

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion for the samples; lower is better."""
        densities = self.score_samples(X)
        return -2 * float(densities.sum()) + self._free_numbers() * math.log(len(densities))
