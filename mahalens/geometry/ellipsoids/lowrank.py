"""Ellipsoids by their longest axes, with or without a word on all the others."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite, require_same_kind, require_tensor
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.checks import require_norm, require_spreads
from mahalens.geometry.ellipsoids.products import (
    Norm,
    Panel,
    RowNorms,
    least_values,
    panels,
    root,
    row_norms,
    unit_roundoff,
)
from mahalens.geometry.ellipsoids.rows import RowTangent, descend_rows, product_errors, squares
from mahalens.geometry.ellipsoids.spheres import squared_gaps
from mahalens.geometry.ellipsoids.tangent import Tangent, inverse

LARGEST_TILT = 3e-5
MUCH_LEFT = 0.05


class LowRankEllipsoids(Ellipsoids):
    """Means [K, D], axes [K, R, D] of unit length, spreads [K, R] along them, and a remainder.

    ``remainder`` [K] is the spread in every direction that has no axis::

        d^2 = sum_r (v_r . (x - mean))^2 / spread_r^2  +  |rest of x - mean|^2 / remainder^2

    Without it the second term is left out, as in source 002: the distance is then one within the
    space of the axes, and 0 everywhere across. Axes of zeros fill up ellipsoids of smaller rank.

    >>> axes, spreads = torch.tensor([[[1.0, 0.0, 0.0]]]), torch.tensor([[2.0]])
    >>> x = torch.tensor([[4.0, 3.0, 0.0]])
    >>> LowRankEllipsoids(torch.zeros(1, 3), axes, spreads).distances(x)
    tensor([[2.]])
    >>> LowRankEllipsoids(torch.zeros(1, 3), axes, spreads, torch.ones(1)).distances(x)
    tensor([[3.6056]])
    """

    fields = ("means", "axes", "spreads", "remainder")

    def __init__(
        self, means: Tensor, axes: Tensor, spreads: Tensor, remainder: Tensor | None = None
    ) -> None:
        super().__init__(means)
        require_tensor("axes", axes, "[..., K, R, D]")
        require_same_kind("axes", axes, "means", means)
        count, dim = means.shape
        if axes.ndim != 3 or (axes.shape[0], axes.shape[2]) != (count, dim):
            raise InputError(
                f"axes have shape {list(axes.shape)}, wanted [{count}, R, {dim}] for means of "
                f"shape {list(means.shape)}"
            )
        if axes.shape[1] > dim:
            raise InputError(f"axes have rank {axes.shape[1]}, wanted at most D = {dim}")
        require_finite("axes", axes)
        require_spreads("spreads", spreads, means, axes.shape[:2])
        self.axes, self.spreads, self.remainder = axes, spreads, remainder
        self.kind = "low-rank" if remainder is None else "low-rank+remainder"
        self._require_orthonormal()
        if remainder is not None:
            require_spreads("remainder", remainder, means, (count,))
            self._require_longest()

    @property
    def ranks(self) -> Tensor:
        """How many axes each ellipsoid has [K]."""
        return self._keep("ranks", lambda: (self.axes.detach() != 0).any(dim=2).sum(dim=1))

    @property
    def covariances(self) -> Tensor:
        """sum_r spread_r^2 v_r v_r^T, plus remainder^2 across the axes if there is one."""
        variances = self.spreads.square()
        if self.remainder is None:
            return torch.einsum("kr,kri,krj->kij", variances, self.axes, self.axes)
        rest = self.remainder.square()
        identity = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        extra = torch.einsum("kr,kri,krj->kij", variances - rest[:, None], self.axes, self.axes)
        return extra + rest[:, None, None] * identity

    @property
    def log_determinants(self) -> Tensor:
        """2 sum_r log spread_r + 2 (D - R) log remainder [K]."""
        if self.remainder is None:
            raise InputError(
                "ellipsoids of low rank have no spread across their axes, so no density; "
                'give them a remainder: truncate(rank, remainder="variance")'
            )
        real = (self.axes.detach() != 0).any(dim=2)
        kept = torch.where(real, self.spreads, 1.0).log().sum(dim=1)
        return 2 * (kept + (self.dim - self.ranks) * self.remainder.log())

    def _more(self) -> str:
        return f", rank={int(self.ranks.max())}, remainder={self.remainder is not None}"

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        self._require_components(norm)
        centre = self.means.detach().mean(dim=0)
        near = x - centre
        means = self.means - centre
        tracked = self._tracked(x)
        if tracked:
            sums = self._norms(near, means, self.axes / self.spreads[..., None], norm)
        else:
            sums = row_norms(near, self._panels(), len(self), norm)
        if self.remainder is None:
            sizes = self._keep("sizes", lambda: squares(self._rows()))
            return sums, product_errors(near, means, sums, sizes, norm)
        gaps, sizes = squared_gaps(near, means)
        rest = self.remainder.square()
        with torch.no_grad():
            errors = sizes * (4 * unit_roundoff(x.dtype) / rest)
        if not tracked:
            return gaps.div_(rest).sub_(sums), errors
        # As _rows has it, slopes would be lost where a spread equals the remainder.
        along = self._norms(near, means, self.axes, norm)
        return sums + (gaps - along) / rest, errors

    def _least_values(self) -> Tensor | None:
        if self.remainder is None:
            return super()._least_values()
        every = torch.cat([self.spreads.detach(), self.remainder.detach()[:, None]], dim=1)
        return least_values(self.dim, every, self.means.detach())

    def _steepest(self) -> Tensor:
        shortest = self.spreads if self.remainder is None else self.remainder
        return 1 / shortest.detach().min()

    def _norms(self, near: Tensor, means: Tensor, rows: Tensor, norm: Norm) -> Tensor:
        found: Tensor = RowNorms.apply(  # type: ignore[no-untyped-call]
            near, means, rows, self.ranks, norm
        )
        return found

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        axes, spreads = self.axes[k].double(), self.spreads[k].double()
        along = delta @ axes.T
        if norm == "l1":
            return (along / spreads).abs().sum(dim=1)
        values = (along / spreads).square().sum(dim=1)
        if self.remainder is None:
            return values
        rest = self.remainder[k].double()
        if self.dtype == torch.float32:
            # float64 has digits to spare for a difference, but axes are at right angles only as
            # far as float32 goes: not where nearly all lies along them.
            whole = delta.square().sum(dim=1)
            left = whole - along.square().sum(dim=1)
            if bool((left.detach() > MUCH_LEFT * whole.detach()).all()):
                return values + left / rest.square()
        across = delta - along @ axes
        across = across - (across @ axes.T) @ axes
        return values + (across / rest).square().sum(dim=1)

    def tangent(self, x: Tensor, norm: Norm = "l2") -> Tangent:
        """Give the distances of the rows of x [N, D] with their slopes."""
        x = self._ordinary_points(x)
        require_norm(norm)
        self._require_components(norm)
        centre = self.means.detach().mean(dim=0)
        inner = RowTangent(x - centre, self._panels(), len(self), norm)
        if self.remainder is None:
            return inner
        rest = self.remainder.detach().square()
        return _RemainderTangent(x - centre, self.means.detach() - centre, rest, inner)

    def descend(self, x: Tensor, targets: Tensor, norm: Norm = "l2") -> Tensor:
        """Give the gradient [N, D] of ``1/2 sum_k (d_k(x) - target_k)^2`` for targets [N, K]."""
        if self.remainder is not None:
            return super().descend(x, targets, norm)
        x = self._ordinary_points(x)
        return descend_rows(x - self.means.detach().mean(dim=0), targets, self._panels(), norm)

    def _rows(self) -> Tensor:
        """What is multiplied: axes over spreads; with a remainder, what is to be taken off.

        ``d^2 = |x - mean|^2 / rest - sum_r (1 / rest - 1 / variance_r) (v_r . (x - mean))^2``
        """
        if self.remainder is None:
            return self.axes / self.spreads[..., None]
        inverse_variance = self.spreads.square().reciprocal()
        return self.axes * root(
            self.remainder.square().reciprocal()[:, None] - inverse_variance
        ).unsqueeze(-1)

    def _panels(self) -> list[Panel]:
        def make() -> list[Panel]:
            means = self.means.detach() - self.means.detach().mean(dim=0)
            return panels(means, self._rows().detach(), self.ranks)

        return self._keep("panels", make)

    def _require_components(self, norm: Norm) -> None:
        if norm == "l1" and self.remainder is not None:
            raise InputError(
                'norm is "l1" and these ellipsoids have a remainder, whose components are not '
                'known; truncate with remainder=None, or take norm="l2"'
            )

    @torch.no_grad()
    def _require_orthonormal(self) -> None:
        real = (self.axes != 0).any(dim=2)
        if bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise InputError("axes of zeros come before others; put them last")
        gram = self.axes @ self.axes.mT
        tilt = (gram - torch.diag_embed(real.to(self.dtype))).abs().max().item()
        if tilt > LARGEST_TILT:
            raise InputError(
                f"axes are off by {tilt:.3g} from unit length and right angles (or zeros, for "
                "axes that are not there); orthonormalise them, or give covariances"
            )

    @torch.no_grad()
    def _require_longest(self) -> None:
        assert self.remainder is not None
        real = (self.axes != 0).any(dim=2)
        shortest = torch.where(real, self.spreads, torch.inf).amin(dim=1)
        if bool((self.remainder > shortest * (1 + 1e-4)).any()):
            k = int((self.remainder / shortest).argmax())
            raise InputError(
                f"remainder of ellipsoid {k} is {self.remainder[k].item():.3g}, more than the "
                f"spread {shortest[k].item():.3g} along one of its axes; axes are the longest ones"
            )


class _RemainderTangent(Tangent):
    """Slopes of sqrt(|x - mean|^2 / rest - ||A (x - mean)||^2)."""

    def __init__(self, x: Tensor, means: Tensor, rest: Tensor, inner: RowTangent) -> None:
        self._x, self._means, self._rest, self._inner = x, means, rest, inner
        gaps, _ = squared_gaps(x, means)
        self.distances = root((gaps / rest - inner.distances.square()).clamp(min=0))

    def pull(self, weights: Tensor) -> Tensor:
        """Give sum_k weights_nk grad d_k(x_n) [N, D] for weights [N, K]."""
        weights = weights * inverse(self.distances)
        plain = weights / self._rest
        straight = plain.sum(dim=1, keepdim=True) * self._x - plain @ self._means
        return straight - self._inner.pull(weights * self._inner.distances)

    def jacobian(self) -> Tensor:
        """Give grad d_k(x_n) for every n and k: [N, K, D]."""
        straight = (self._x[:, None] - self._means) / self._rest[:, None]
        bent = self._inner.jacobian() * self._inner.distances[..., None]
        return (straight - bent) * inverse(self.distances)[..., None]
