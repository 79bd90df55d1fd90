"""Ellipsoids whose axes are those of the inputs: diagonal, and spherical."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.checks import require_norm, require_spreads
from mahalens.geometry.ellipsoids.products import Norm, least_values, unit_roundoff
from mahalens.geometry.ellipsoids.tangent import Tangent, inverse


def squared_gaps(x: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Squared Euclidean distances [N, K] by one product, and ||x||^2 + ||mean||^2 [N, K].

    The second times the unit roundoff is how far rounding may have moved the first.
    """
    of_x, of_means = x.square().sum(dim=1), means.square().sum(dim=1)
    sizes = of_x[:, None] + of_means
    return torch.addmm(sizes, x, means.T, alpha=-2), sizes


class DiagonalEllipsoids(Ellipsoids):
    """Means [K, D] and a spread along every input [K, D].

    >>> one = DiagonalEllipsoids(torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]))
    >>> one.distances(torch.tensor([[0.0, 6.0]]))
    tensor([[3.]])
    """

    kind = "diagonal"
    fields = ("means", "spreads")

    def __init__(self, means: Tensor, spreads: Tensor) -> None:
        super().__init__(means)
        require_spreads("spreads", spreads, means, means.shape)
        self.spreads = spreads

    @property
    def ranks(self) -> Tensor:
        """D for every ellipsoid [K]."""
        return torch.full((len(self),), self.dim, device=self.device)

    @property
    def covariances(self) -> Tensor:
        """Diagonal matrices of the squared spreads [K, D, D]."""
        return torch.diag_embed(self._along_inputs().square())

    @property
    def log_determinants(self) -> Tensor:
        """2 sum_d log spread_kd [K]."""
        return 2 * self._along_inputs().log().sum(dim=1)

    def _along_inputs(self) -> Tensor:
        return self.spreads

    def _least_values(self) -> Tensor | None:
        return least_values(self.dim, self.spreads, self.means.detach())

    def _steepest(self) -> Tensor:
        return 1 / self.spreads.detach().min()

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if norm == "l1":
            return self._absolute(x)
        centre = self.means.detach().mean(dim=0)
        near, means = x - centre, self.means - centre
        weights = self.spreads.square().reciprocal()
        of_x, of_means = near.square() @ weights.T, (means.square() * weights).sum(dim=1)
        sizes = of_x + of_means
        with torch.no_grad():
            errors = 2 * unit_roundoff(x.dtype) * sizes
        return torch.addmm(sizes, near, (means * weights).T, alpha=-2), errors

    def _absolute(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """From differences, one ellipsoid after the other: nothing cancels."""

        def one(x: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
            return ((x - mean) / spread).abs().sum(dim=1)

        columns = []
        for mean, spread in zip(self.means, self._along_inputs(), strict=True):
            if self._tracked(x):  # made again on the way back, rather than N x D kept for each
                columns.append(checkpoint(one, x, mean, spread, use_reentrant=False))
            else:
                columns.append(one(x, mean, spread))
        values = torch.stack(columns, dim=1)
        return values, torch.full_like(values.detach(), -1.0)

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        z = delta / self._along_inputs()[k].double()
        return z.square().sum(dim=1) if norm == "l2" else z.abs().sum(dim=1)

    def tangent(self, x: Tensor, norm: Norm = "l2") -> Tangent:
        """Give the distances of the rows of x [N, D] with their slopes."""
        x = self._ordinary_points(x)
        require_norm(norm)
        return _InputTangent(self, x, self._along_inputs().detach(), norm)


class SphericalEllipsoids(DiagonalEllipsoids):
    """Means [K, D] and one spread each [K]: spheres.

    >>> one = SphericalEllipsoids(torch.zeros(1, 2), torch.tensor([2.0]))
    >>> one.distances(torch.tensor([[0.0, 6.0]]))
    tensor([[3.]])
    """

    kind = "spherical"

    def __init__(self, means: Tensor, spreads: Tensor) -> None:
        Ellipsoids.__init__(self, means)
        require_spreads("spreads", spreads, means, means.shape[:1])
        self.spreads = spreads

    def _along_inputs(self) -> Tensor:
        return self.spreads[:, None].expand(-1, self.dim)

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if norm == "l1":
            return self._absolute(x)
        centre = self.means.detach().mean(dim=0)
        gaps, sizes = squared_gaps(x - centre, self.means - centre)
        variances = self.spreads.square()
        with torch.no_grad():
            errors = 2 * unit_roundoff(x.dtype) * sizes / variances
        return gaps / variances, errors

    def _absolute(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = torch.cdist(x, self.means, p=1) / self.spreads
        return values, torch.full_like(values.detach(), -1.0)


class _InputTangent(Tangent):
    """Slopes of distances along the inputs: (x - mean) / spread^2 / d, or sign(x - mean) / spread.

    Pulls are made of sums over ellipsoids, so that only :meth:`jacobian` and the L1 norm take
    [N, K, D] numbers.
    """

    def __init__(self, of: DiagonalEllipsoids, x: Tensor, spreads: Tensor, norm: Norm) -> None:
        with torch.no_grad():
            self.distances = of._measured(x, norm, squared=False)
        centre = of.means.detach().mean(dim=0)
        self._x, self._means = x - centre, of.means.detach() - centre
        self._spreads, self._norm = spreads, norm

    def pull(self, weights: Tensor) -> Tensor:
        """Give sum_k weights_nk grad d_k(x_n) [N, D] for weights [N, K]."""
        if self._norm == "l1":
            return torch.einsum("nk,nkd->nd", weights, self.jacobian())
        weights = weights * inverse(self.distances)
        precisions = self._spreads.square().reciprocal()
        return self._x * (weights @ precisions) - weights @ (precisions * self._means)

    def jacobian(self) -> Tensor:
        """Give grad d_k(x_n) for every n and k: [N, K, D]."""
        z = (self._x[:, None] - self._means) / self._spreads
        if self._norm == "l1":
            return z.sign() / self._spreads
        return z / self._spreads * inverse(self.distances)[..., None]
