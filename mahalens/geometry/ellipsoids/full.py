"""Ellipsoids with a covariance of their own each, in all directions."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite, require_same_kind, require_tensor
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.checks import require_norm
from mahalens.geometry.ellipsoids.lowrank import LowRankEllipsoids
from mahalens.geometry.ellipsoids.products import Norm, Panel, RowNorms, panels, row_norms
from mahalens.geometry.ellipsoids.rows import RowTangent, descend_rows, product_errors, squares
from mahalens.geometry.ellipsoids.tangent import Tangent


class FullEllipsoids(Ellipsoids):
    """Means [K, D] and whitening matrices [K, D, D], lower triangular with a positive diagonal.

    With Sigma_k = L_k L_k^T, ``whitening`` is L_k^-1, the ``"cholesky"`` whitening of
    :class:`~mahalens.geometry.Gaussian`; the distance is ||L_k^-1 (x - mean_k)||.

    >>> one = FullEllipsoids(torch.zeros(1, 2), torch.tensor([[[0.5, 0.0], [0.0, 2.0]]]))
    >>> one.distances(torch.tensor([[2.0, 0.0], [2.0, 1.0]]))
    tensor([[1.0000],
            [2.2361]])
    """

    kind = "full"
    fields = ("means", "whitening")

    def __init__(self, means: Tensor, whitening: Tensor) -> None:
        super().__init__(means)
        require_tensor("whitening", whitening, "[..., K, D, D]")
        require_same_kind("whitening", whitening, "means", means)
        count, dim = means.shape
        if tuple(whitening.shape) != (count, dim, dim):
            raise InputError(
                f"whitening has shape {list(whitening.shape)}, wanted [{count}, {dim}, {dim}] for "
                f"means of shape {list(means.shape)}"
            )
        require_finite("whitening", whitening)
        with torch.no_grad():
            above = any(bool(one.triu(1).any()) for one in whitening)
            least = whitening.diagonal(dim1=-2, dim2=-1).min().item()
        if above or least <= 0:
            fault = "entries above its diagonal" if above else f"{least:.3g} on its diagonal"
            raise InputError(
                f"whitening has {fault}, wanted lower triangular with a positive diagonal; "
                "covariances go to from_covariance"
            )
        self.whitening = whitening

    @property
    def ranks(self) -> Tensor:
        """D for every ellipsoid [K]."""
        return torch.full((len(self),), self.dim, device=self.device)

    @property
    def covariances(self) -> Tensor:
        """Sigma_k = W_k^-1 W_k^-T [K, D, D]."""
        identity = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        factor: Tensor = torch.linalg.solve_triangular(self.whitening, identity, upper=False)
        return factor @ factor.mT

    @property
    def log_determinants(self) -> Tensor:
        """log det Sigma_k = -2 sum_i log W_kii [K]."""
        return -2 * self.whitening.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)

    def principal(self) -> LowRankEllipsoids:
        """Give the same ellipsoids by their principal axes, all D of them."""
        from mahalens.geometry.ellipsoids.axes import principal_axes

        axes, spreads = principal_axes(self.whitening)
        return LowRankEllipsoids(self.means, axes, spreads)

    def truncate(
        self, rank: int | str = "auto", *, remainder: str | None = "variance", **targets: float
    ) -> LowRankEllipsoids:
        """Keep the longest axes only; see :func:`mahalens.geometry.ellipsoids.build.truncate`."""
        from mahalens.geometry.ellipsoids.build import truncate

        return truncate(self, rank, remainder=remainder, **targets)

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        centre = self.means.detach().mean(dim=0)
        if self._tracked(x):
            values: Tensor = RowNorms.apply(  # type: ignore[no-untyped-call]
                x - centre, self.means - centre, self.whitening.tril(), self.ranks, norm
            )
        else:
            values = row_norms(x - centre, self._panels(), len(self), norm)
        sizes = self._keep("sizes", lambda: squares(self.whitening))
        return values, product_errors(x - centre, self.means - centre, values, sizes, norm)

    def _steepest(self) -> Tensor:
        return self.whitening.detach().abs().max()

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        return (delta @ self.whitening[k].tril().double().T).square().sum(dim=1)

    def _measured(self, x: Tensor, norm: Norm, *, squared: bool) -> Tensor:
        if norm == "l1":  # components are along principal axes; a triangle's rows are not
            return self._principal()._measured(x, norm, squared=squared)
        return super()._measured(x, norm, squared=squared)

    def tangent(self, x: Tensor, norm: Norm = "l2") -> Tangent:
        """Give the distances of the rows of x [N, D] with their slopes."""
        x = self._ordinary_points(x)
        require_norm(norm)
        if norm == "l1":
            return self._principal().tangent(x, norm)
        centre = self.means.detach().mean(dim=0)
        return RowTangent(x - centre, self._panels(), len(self), norm)

    def descend(self, x: Tensor, targets: Tensor, norm: Norm = "l2") -> Tensor:
        """Give the gradient [N, D] of ``1/2 sum_k (d_k(x) - target_k)^2`` for targets [N, K]."""
        if norm == "l1":
            return self._principal().descend(x, targets, norm)
        x = self._ordinary_points(x)
        return descend_rows(x - self.means.detach().mean(dim=0), targets, self._panels(), norm)

    def _panels(self) -> list[Panel]:
        def make() -> list[Panel]:
            means = self.means.detach() - self.means.detach().mean(dim=0)
            return panels(means, self.whitening.detach(), self.ranks, triangular=True)

        return self._keep("panels", make)

    def _principal(self) -> LowRankEllipsoids:
        return self.principal() if self._tracked() else self._keep("principal", self.principal)
