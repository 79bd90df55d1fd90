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

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.estimators._samples import (
    Array,
    Floats,
    samples_to_fit,
    samples_to_use,
    scaled,
    size_of,
    units_of,
    whole_number,
)
from mahalens.geometry.ellipsoids import DiagonalEllipsoids, Ellipsoids, SphericalEllipsoids
from mahalens.geometry.ellipsoids.base import joint_density
from mahalens.geometry.ellipsoids.fit import from_covariance

KINDS = ("full", "low-rank+remainder", "diagonal", "spherical")
_ADVICE = "give fewer n_components or a ridge such as 1e-3"
_NO_SPREAD = 1e-28
"""A variance below this share of the mean variance of the samples is rounding."""


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
    Gaussian R axes and one spread for all other directions (a mixture of probabilistic principal
    component analysers), so that a Gaussian in D dimensions has about D R instead of D² / 2 free
    numbers. Two steps take turns until the likelihood no longer grows::

        r_nk = π_k N(x_n; μ_k, Σ_k) / Σ_j π_j N(x_n; μ_j, Σ_j)
        π_k, μ_k, Σ_k = share, mean and covariance of the samples, weighted by r_nk

    Args:
        n_components: K, the number of Gaussians.
        kind: ``"full"``, ``"low-rank+remainder"``, ``"diagonal"`` or ``"spherical"``: the shape of
            the Gaussians of ``X / scale_``.
        rank: R, for the kind that has one.
        ridge: share of the mean variance of the inputs that is added to every variance.
        tol: growth of the mean log-likelihood at which a fit has converged.
        max_iter: largest number of steps.
        n_init: starts from k-means with different seeds; the most likely result is kept.
        standardise: whether inputs are divided by their spread first, so that their units do not
            matter to k-means, to ``ridge`` and to axes of low rank.
        random_state: seed of k-means and of :meth:`sample`.

    Attributes:
        weights_: share of each Gaussian [K].
        means_: [K, D].
        covariances_: [K, D, D].
        ellipsoids_: the Gaussians of ``X / scale_``, as :class:`~mahalens.geometry.Ellipsoids`.
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
        self._check_options(*x.shape)
        scale = units_of(x, x, self.standardise)
        random = check_random_state(self.random_state)
        seeds = [int(random.randint(2**31 - 1)) for _ in range(int(self.n_init))]
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

    def _check_options(self, count: int, width: int) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind is {self.kind!r}; give one of {', '.join(KINDS)}")
        if (self.rank is None) == (self.kind == "low-rank+remainder"):
            raise InputError(
                f"kind is {self.kind!r} and rank {self.rank!r}; give a rank with "
                '"low-rank+remainder", and with no other kind'
            )
        if self.rank is not None:
            whole_number("rank", self.rank, width, "the columns of X")
        whole_number("n_components", self.n_components, count, "the number of samples")
        whole_number("max_iter", self.max_iter)
        whole_number("n_init", self.n_init)
        size_of("ridge", self.ridge)
        size_of("tol", self.tol)

    def _fit(self, x: Tensor, seed: int) -> _Fit:
        count = int(self.n_components)
        clusters = KMeans(count, n_init=1, random_state=seed).fit_predict(x.numpy())
        shares = torch.nn.functional.one_hot(torch.from_numpy(clusters).long(), count)
        added = float(self.ridge) * float(x.var(0, correction=0).mean())
        ellipsoids, weights = self._maximised(x, shares.double(), added)
        bound = -math.inf
        for step in range(1, int(self.max_iter) + 1):
            joint = ellipsoids.log_density(x) + weights.log()
            likelihood = torch.logsumexp(joint, 1)
            before, bound = bound, float(likelihood.mean())
            if abs(bound - before) < self.tol:
                return _Fit(ellipsoids, weights, bound, step, converged=True)
            shares = (joint - likelihood[:, None]).exp()
            ellipsoids, weights = self._maximised(x, shares, added)
        bound = float(ellipsoids.log_likelihood(x, weights).mean())
        return _Fit(ellipsoids, weights, bound, int(self.max_iter), converged=False)

    def _maximised(self, x: Tensor, shares: Tensor, added: float) -> tuple[Ellipsoids, Tensor]:
        """Return the Gaussians and their weights for shares [N, K] of the samples x [N, D]."""
        sizes = shares.sum(0) + 10 * torch.finfo(x.dtype).eps
        means = shares.mT @ x / sizes[:, None]
        shares, weights = shares / sizes, sizes / sizes.sum()
        each = zip(means, shares.mT, strict=True)
        variances = torch.stack([share @ (x - mean).square() for mean, share in each]) + added
        if not bool((variances > _NO_SPREAD * x.var(0).mean()).all()):
            raise InputError(f"a Gaussian has an input without spread; {_ADVICE}")
        if self.kind == "diagonal":
            return DiagonalEllipsoids(means, variances.sqrt()), weights
        if self.kind == "spherical":
            return SphericalEllipsoids(means, variances.mean(1).sqrt()), weights
        covariances = []
        for mean, share in zip(means, shares.mT, strict=True):
            rows = (x - mean) * share.sqrt()[:, None]
            covariances.append(rows.mT @ rows + added * torch.eye(x.shape[1], dtype=x.dtype))
        rank = None if self.rank is None else int(self.rank)
        try:
            fitted = from_covariance(means, torch.stack(covariances), kind=self.kind, rank=rank)
        except SingularCovarianceError:
            raise SingularCovarianceError(
                f"a Gaussian has directions without spread; {_ADVICE}"
            ) from None
        return fitted, weights

    @property
    def covariances_(self) -> Floats:
        """Σ_k [K, D, D]."""
        check_is_fitted(self, "n_iter_")
        covariances: Floats = self.ellipsoids_.covariances.numpy()
        return covariances * self.scale_ * self.scale_[:, None]

    def _scaled(self, X: Any) -> Tensor:
        return scaled(samples_to_use(self, X, "n_iter_"), self.scale_)

    def distances(self, X: Any) -> Floats:
        """Return the Mahalanobis distance of each sample to each Gaussian [N, K]."""
        x = self._scaled(X)
        return self.ellipsoids_.distances(x).numpy()

    def _joint(self, X: Any) -> tuple[Tensor, Tensor]:
        x = self._scaled(X)
        return joint_density(self.ellipsoids_, x, torch.from_numpy(self.weights_).log())

    def score_samples(self, X: Any) -> Floats:
        """Return the logarithm of the density at each sample [N]."""
        joint, square = self._joint(X)
        density = torch.logsumexp(joint, 1) - 0.5 * square
        return density.numpy() - float(np.log(self.scale_).sum())

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean logarithm of the density at the samples."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: Any) -> Floats:
        """Return the share of each Gaussian in each sample [N, K]."""
        return torch.softmax(self._joint(X)[0], 1).numpy()

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
        check_is_fitted(self, "n_iter_")
        n_samples = whole_number("n_samples", n_samples)
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
            "low-rank+remainder": int(
                (ranks * dim - ranks * (ranks - 1) // 2 + (ranks < dim).long()).sum()
            ),
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
