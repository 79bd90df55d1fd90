"""Ellipsoids that share their directions: points are projected once, not once for each."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite, require_same_kind, require_tensor
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.checks import require_norm, require_spreads
from mahalens.geometry.ellipsoids.full import FullEllipsoids
from mahalens.geometry.ellipsoids.lowrank import LARGEST_TILT
from mahalens.geometry.ellipsoids.products import Norm, least_values, root, unit_roundoff, widest
from mahalens.geometry.ellipsoids.rows import reaches, squares
from mahalens.geometry.ellipsoids.spheres import SphericalEllipsoids
from mahalens.geometry.ellipsoids.tangent import Tangent, inverse


class SharedBasisEllipsoids(Ellipsoids):
    """Means [K, D], a basis [Q, D] for all, whitening [K, Q, Q] within it, remainder [K] across.

    With p = basis (x - mean_k), the distance is that of p under the covariance of ellipsoid k
    within the basis, and of what is left of x - mean_k in units of its remainder::

        d^2 = ||W_k p||^2 + ||(x - mean_k) - basis^T p||^2 / remainder_k^2

    Points are projected once: N D Q + N K (Q^2 + D) operations instead of N K D R.
    """

    kind = "shared-basis"
    fields = ("means", "basis", "whitening", "remainder")
    shared = ("basis",)

    def __init__(self, means: Tensor, basis: Tensor, whitening: Tensor, remainder: Tensor) -> None:
        super().__init__(means)
        require_tensor("basis", basis, "[..., Q, D]")
        require_same_kind("basis", basis, "means", means)
        require_finite("basis", basis)
        if basis.ndim != 2 or basis.shape[1] != self.dim or len(basis) > self.dim:
            raise InputError(
                f"basis has shape {list(basis.shape)}, wanted [Q, {self.dim}] with Q at most "
                f"{self.dim}"
            )
        identity = torch.eye(len(basis), dtype=self.dtype, device=self.device)
        tilt = (basis.detach() @ basis.detach().T - identity).abs().max().item()
        if tilt > LARGEST_TILT:
            raise InputError(
                f"basis is off by {tilt:.3g} from unit length and right angles; orthonormalise it"
            )
        require_spreads("remainder", remainder, means, (len(means),))
        self.basis, self.whitening, self.remainder = basis, whitening, remainder
        FullEllipsoids(means.new_zeros(len(means), len(basis)), whitening)  # checks the whitening

    @property
    def ranks(self) -> Tensor:
        """Q for every ellipsoid [K]."""
        return torch.full((len(self),), len(self.basis), device=self.device)

    @property
    def covariances(self) -> Tensor:
        """basis^T S_k basis, plus remainder^2 across the basis [K, D, D]."""
        within = self._inner().covariances
        identity = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        across = identity - self.basis.T @ self.basis
        return self.basis.T @ within @ self.basis + self.remainder.square()[:, None, None] * across

    @property
    def log_determinants(self) -> Tensor:
        """log det S_k + 2 (D - Q) log remainder_k [K]."""
        dropped = self.dim - len(self.basis)
        return self._inner().log_determinants + 2 * dropped * self.remainder.log()

    def _more(self) -> str:
        return f", basis={len(self.basis)}"

    def _inner(self) -> FullEllipsoids:
        """The ellipsoids within the basis, relative to the centre of the means."""
        centre = self.means.detach().mean(dim=0)
        return FullEllipsoids((self.means - centre) @ self.basis.T, self.whitening)

    def _outer(self) -> SphericalEllipsoids:
        """What is left of the means across the basis, as spheres."""
        means = self.means - self.means.detach().mean(dim=0)
        return SphericalEllipsoids(means - means @ self.basis.T @ self.basis, self.remainder)

    def _parts(self) -> tuple[FullEllipsoids, SphericalEllipsoids]:
        if self._tracked():
            return self._inner(), self._outer()
        return self._keep("inner", self._inner), self._keep("outer", self._outer)

    def _least_values(self) -> Tensor | None:
        if float(self.means.detach().abs().max()) > widest(self.dtype) ** 2:
            return None
        return least_values(self.dim, self.remainder, self.means.detach())

    def _steepest(self) -> Tensor:
        whitening = self.whitening.detach().abs().max()
        return torch.maximum(whitening, 1 / self.remainder.detach().min())

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        self._require_components(norm)
        inner, outer = self._parts()
        near = x - self.means.detach().mean(dim=0)
        p = near @ self.basis.T
        within, within_errors = inner._values(p, norm)
        across, across_errors = outer._values(near - p @ self.basis, norm)
        with torch.no_grad():
            # Projections are off by u ||x - centre||, which the parts know nothing of.
            means = self.means - self.means.mean(dim=0)
            reach = unit_roundoff(x.dtype) * reaches(near, means)
            sizes = inner._keep("sizes", lambda: squares(self.whitening))
            off = reach * (sizes + torch.finfo(x.dtype).tiny).sqrt()
            more = off * (2 * within.sqrt() + off)
            stray = reach / self.remainder
            more = more + stray * (2 * across.clamp(min=0).sqrt() + stray)
        return within + across, within_errors + across_errors + more

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        basis = self.basis.double()
        p = delta @ basis.T
        across = delta - p @ basis
        across = across - (across @ basis.T) @ basis  # orthogonal within rounding only
        within = (p @ self.whitening[k].tril().double().T).square().sum(dim=1)
        return within + (across / self.remainder[k].double()).square().sum(dim=1)

    def tangent(self, x: Tensor, norm: Norm = "l2") -> Tangent:
        """Give the distances of the rows of x [N, D] with their slopes."""
        x = self._ordinary_points(x)
        require_norm(norm)
        self._require_components(norm)
        inner, outer = self._parts()
        near = x - self.means.detach().mean(dim=0)
        p = near @ self.basis.T
        parts = inner.tangent(p), outer.tangent(near - p @ self.basis)
        return _SharedTangent(self.basis.detach(), *parts)

    def _require_components(self, norm: Norm) -> None:
        if norm == "l1":
            raise InputError(
                'norm is "l1" and these ellipsoids have a remainder, whose components are not '
                'known; take norm="l2"'
            )


class _SharedTangent(Tangent):
    """Slopes of sqrt(a^2 + b^2), a within the basis and b across."""

    def __init__(self, basis: Tensor, within: Tangent, across: Tangent) -> None:
        self._basis, self._within, self._across = basis, within, across
        self.distances = root(within.distances.square() + across.distances.square())

    def pull(self, weights: Tensor) -> Tensor:
        """Give sum_k weights_nk grad d_k(x_n) [N, D] for weights [N, K]."""
        weights = weights * inverse(self.distances)
        along = self._within.pull(weights * self._within.distances) @ self._basis
        return along + self._leave(self._across.pull(weights * self._across.distances))

    def jacobian(self) -> Tensor:
        """Give grad d_k(x_n) for every n and k: [N, K, D]."""
        along = (self._within.jacobian() * self._within.distances[..., None]) @ self._basis
        across = self._leave(self._across.jacobian() * self._across.distances[..., None])
        return (along + across) * inverse(self.distances)[..., None]

    def _leave(self, slopes: Tensor) -> Tensor:
        return slopes - slopes @ self._basis.T @ self._basis
