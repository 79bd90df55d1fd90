"""The kinds of ellipsoids: what is stored of each, and how its distances follow from it.

============================  ==================================================================
:class:`SphericalEllipsoids`    one spread each
:class:`DiagonalEllipsoids`     a spread along every input
:class:`LowRankEllipsoids`      the longest axes, optionally with one spread for the remaining
                                directions
:class:`FullEllipsoids`         a triangular factor: a spread along every direction
:class:`SharedBasisEllipsoids`  a covariance each within directions that all share, and a remainder
============================  ==================================================================
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.files import open_file
from mahalens.geometry._checks import (
    require_finite,
    require_same_kind,
    require_tensor,
    spreads_of,
    tensor_of,
    untouched_by_autocast,
    without_autocast,
)
from mahalens.geometry.covariance import root
from mahalens.geometry.ellipsoids.base import KIND_KEY, Ellipsoids
from mahalens.geometry.ellipsoids.products import (
    Norm,
    Panel,
    RowTangent,
    Tangent,
    descend_rows,
    inverse,
    least_values,
    panels,
    product_errors,
    reaches,
    row_norms,
    squares,
    tracked_row_norms,
    unit_roundoff,
    widest,
)

_LARGEST_TILT = 3e-5
_MUCH_LEFT = 0.05


class DiagonalEllipsoids(Ellipsoids):
    """Ellipsoids along the inputs: means [K, D] and a spread along every input [K, D].

    ``d² = Σ_i ((x_i - mean_i) / spread_i)²``

    >>> ellipsoids = DiagonalEllipsoids(torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]))
    >>> ellipsoids.distances(torch.tensor([[0.0, 6.0]]))
    tensor([[3.]])
    """

    kind = "diagonal"
    fields = ("means", "spreads")

    def __init__(self, means: Tensor, spreads: Tensor) -> None:
        super().__init__(means)
        self.spreads = spreads_of("spreads", spreads, self.means, self.means.shape)

    @property
    def covariances(self) -> Tensor:
        """Diagonal matrices of the squared spreads [K, D, D]."""
        return torch.diag_embed(self._along_inputs().square())

    @property
    def log_determinants(self) -> Tensor:
        """``2 Σ_i log spread_ki`` [K]."""
        return 2 * self._along_inputs().log().sum(dim=1)

    def _along_inputs(self) -> Tensor:
        """Return the spreads along every input [K, D]."""
        return self.spreads

    def _least_values(self) -> Tensor | None:
        return least_values(self.dim, self.spreads, self.means.detach())

    def _steepest(self) -> Tensor:
        return 1 / self.spreads.detach().min()

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if norm == "l1":
            values = self._absolute(x)
            return values, torch.full_like(values.detach(), -1.0)
        near, means = self._centred(x)
        weights = self.spreads.square().reciprocal()
        of_x, of_means = near.square() @ weights.T, (means.square() * weights).sum(dim=1)
        sizes = of_x + of_means
        with torch.no_grad():
            errors = 2 * unit_roundoff(x.dtype) * sizes
        return torch.addmm(sizes, near, (means * weights).T, alpha=-2), errors

    def _absolute(self, x: Tensor) -> Tensor:
        """Return L1 distances [N, K] from differences, where nothing cancels."""

        def measure(x: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
            return ((x - mean) / spread).abs().sum(dim=1)

        pairs = zip(self.means, self._along_inputs(), strict=True)
        tracked = self._tracked(x)
        columns = [self._remade(measure, x, *p) if tracked else measure(x, *p) for p in pairs]
        return torch.stack(columns, dim=1)

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        z = delta / self._along_inputs()[k].double()
        return z.square().sum(dim=1) if norm == "l2" else z.abs().sum(dim=1)

    def _tangent(self, x: Tensor, norm: Norm) -> Tangent:
        with torch.no_grad():
            distances = self._measured(x, norm, squared=False)
        near, means = self._centred(x)
        return _InputTangent(near, means.detach(), self._along_inputs().detach(), distances, norm)


class SphericalEllipsoids(DiagonalEllipsoids):
    """Spheres: means [K, D] and one spread each [K]; ``d = ‖x - mean‖ / spread``.

    >>> spheres = SphericalEllipsoids(torch.zeros(1, 2), torch.tensor([2.0]))
    >>> spheres.distances(torch.tensor([[0.0, 6.0]]))
    tensor([[3.]])
    """

    kind = "spherical"

    def __init__(self, means: Tensor, spreads: Tensor) -> None:
        Ellipsoids.__init__(self, means)
        self.spreads = spreads_of("spreads", spreads, self.means, self.means.shape[:1])

    def _along_inputs(self) -> Tensor:
        return self.spreads[:, None].expand(-1, self.dim)

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if norm == "l1":
            return super()._values(x, norm)
        gaps, sizes = _squared_gaps(*self._centred(x))
        variances = self.spreads.square()
        with torch.no_grad():
            errors = 2 * unit_roundoff(x.dtype) * sizes / variances
        return gaps / variances, errors

    def _absolute(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.means, p=1) / self.spreads


def _squared_gaps(x: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared Euclidean distances [N, K] by one product, and ‖x‖² + ‖mean‖² [N, K].

    The second times the unit roundoff is how far rounding may have moved the first.
    """
    of_x, of_means = x.square().sum(dim=1), means.square().sum(dim=1)
    sizes = of_x[:, None] + of_means
    return torch.addmm(sizes, x, means.T, alpha=-2), sizes


class _InputTangent(Tangent):
    """Slopes along the inputs: ``(x - mean) / spread² / d``, or ``sign(x - mean) / spread``.

    Pulls are made of sums over ellipsoids; only :meth:`jacobian` and the L1 norm take [N, K, D]
    numbers.
    """

    def __init__(
        self, x: Tensor, means: Tensor, spreads: Tensor, distances: Tensor, norm: Norm
    ) -> None:
        self.distances = distances
        self._x, self._means, self._spreads, self._norm = x, means, spreads, norm

    def pull(self, weights: Tensor) -> Tensor:
        if self._norm == "l1":
            return torch.einsum("nk,nkd->nd", weights, self.jacobian())
        weights = weights * inverse(self.distances)
        precisions = self._spreads.square().reciprocal()
        return self._x * (weights @ precisions) - weights @ (precisions * self._means)

    def jacobian(self) -> Tensor:
        z = (self._x[:, None] - self._means) / self._spreads
        if self._norm == "l1":
            return z.sign() / self._spreads
        return z / self._spreads * inverse(self.distances)[..., None]


class _RowEllipsoids(Ellipsoids):
    """Kinds with ``d_k = ‖rows_k (x - mean_k)‖`` for rows [K, R, D]."""

    _triangular = False

    @abstractmethod
    def _rows(self) -> Tensor:
        """Return the matrices [K, R, D] that points are multiplied with."""

    def _panels(self) -> list[Panel]:
        def make() -> list[Panel]:
            means = self.means.detach() - self.means.detach().mean(dim=0)
            return panels(means, self._rows().detach(), self.ranks, triangular=self._triangular)

        return self._cached("panels", make)

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        near, means = self._centred(x)
        if self._tracked(x):
            values = tracked_row_norms(near, means, self._rows(), self.ranks, norm)
        else:
            values = row_norms(near, self._panels(), len(self), norm)
        sizes = self._cached("sizes", lambda: squares(self._rows()))
        return values, product_errors(near, means, values, sizes, norm)

    def _tangent(self, x: Tensor, norm: Norm) -> Tangent:
        return RowTangent(self._centred(x)[0], self._panels(), len(self), norm)

    def _descend(self, x: Tensor, targets: Tensor, norm: Norm) -> Tensor:
        return descend_rows(self._centred(x)[0], targets, self._panels(), norm)


class LowRankEllipsoids(_RowEllipsoids):
    """Means [K, D], axes [K, R, D] of unit length, spreads [K, R] along them, and a remainder.

    ``remainder`` [K] is the spread in every direction that has no axis::

        d² = Σ_r (axis_r · (x - mean))² / spread_r²  +  ‖rest of x - mean‖² / remainder²

    Without it the second term is left out, as in the study of distances to ellipsoids: the distance
    is then measured within the space of the axes, and 0 everywhere across. Axes of zeros fill up
    ellipsoids of smaller rank.

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
        means, axes = self.means, tensor_of("axes", axes, self.means)
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
        self.axes, self.spreads = axes, spreads_of("spreads", spreads, means, axes.shape[:2])
        self.kind = "low-rank" if remainder is None else "low-rank+remainder"
        self._require_orthonormal()
        if remainder is not None:
            self.remainder = spreads_of("remainder", remainder, means, (count,))
            self._require_longest(self.remainder)

    @property
    def ranks(self) -> Tensor:
        """Number of axes of each ellipsoid [K]."""
        return self._cached("ranks", lambda: self._has_axis().sum(dim=1))

    @property
    @untouched_by_autocast
    def covariances(self) -> Tensor:
        """``Σ_r spread_r² axis_r axis_rᵀ``, plus remainder² across the axes if there is one."""
        variances = self.spreads.square()
        if self.remainder is None:
            return torch.einsum("kr,kri,krj->kij", variances, self.axes, self.axes)
        rest = self.remainder.square()
        identity = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        extra = torch.einsum("kr,kri,krj->kij", variances - rest[:, None], self.axes, self.axes)
        return extra + rest[:, None, None] * identity

    @property
    def log_determinants(self) -> Tensor:
        """``2 Σ_r log spread_r + 2 (D - R) log remainder`` [K]."""
        if self.remainder is None:
            raise InputError(
                "ellipsoids of low rank have no spread across their axes, so no density; "
                'give them a remainder: truncate(rank, remainder="variance")'
            )
        along = torch.where(self._has_axis(), self.spreads, 1.0).log().sum(dim=1)
        return 2 * (along + (self.dim - self.ranks) * self.remainder.log())

    def _has_axis(self) -> Tensor:
        """Return [K, R]: False for the axes of zeros that fill up."""
        return (self.axes.detach() != 0).any(dim=2)

    def _more(self) -> str:
        return f", rank={int(self.ranks.max())}, remainder={self.remainder is not None}"

    def _rows(self) -> Tensor:
        """Return axes over spreads; with a remainder, the rows of what is to be subtracted.

        ``d² = ‖x - mean‖² / rest - Σ_r (1 / rest - 1 / variance_r) (axis_r · (x - mean))²``
        """
        if self.remainder is None:
            return self.axes / self.spreads[..., None]
        inverse_variance = self.spreads.square().reciprocal()
        return self.axes * root(
            self.remainder.square().reciprocal()[:, None] - inverse_variance
        ).unsqueeze(-1)

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if self.remainder is None:
            return super()._values(x, norm)
        near, means = self._centred(x)
        tracked = self._tracked(x)
        if tracked:
            scaled = self.axes / self.spreads[..., None]
            sums = tracked_row_norms(near, means, scaled, self.ranks, norm)
        else:
            sums = row_norms(near, self._panels(), len(self), norm)
        gaps, sizes = _squared_gaps(near, means)
        rest = self.remainder.square()
        with torch.no_grad():
            errors = sizes * (4 * unit_roundoff(x.dtype) / rest)
        if not tracked:
            return gaps.div_(rest).sub_(sums), errors
        # With the rows of _rows, slopes would be lost where a spread equals the remainder.
        along = tracked_row_norms(near, means, self.axes, self.ranks, norm)
        return sums + (gaps - along) / rest, errors

    def _least_values(self) -> Tensor | None:
        if self.remainder is None:
            return super()._least_values()
        every = torch.cat([self.spreads.detach(), self.remainder.detach()[:, None]], dim=1)
        return least_values(self.dim, every, self.means.detach())

    def _steepest(self) -> Tensor:
        shortest = self.spreads if self.remainder is None else self.remainder
        return 1 / shortest.detach().min()

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
            if bool((left.detach() > _MUCH_LEFT * whole.detach()).all()):
                return values + left / rest.square()
        return values + (_across(delta, along, axes) / rest).square().sum(dim=1)

    def _tangent(self, x: Tensor, norm: Norm) -> Tangent:
        near, means = self._centred(x)
        inner = RowTangent(near, self._panels(), len(self), norm)
        if self.remainder is None:
            return inner
        return _RemainderTangent(near, means.detach(), self.remainder.detach().square(), inner)

    def _descend(self, x: Tensor, targets: Tensor, norm: Norm) -> Tensor:
        if self.remainder is None:
            return super()._descend(x, targets, norm)
        return Ellipsoids._descend(self, x, targets, norm)

    @torch.no_grad()
    def _require_orthonormal(self) -> None:
        real = self._has_axis()
        if bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise InputError("axes of zeros come before others; put them last")
        remedy = "(or zeros, for axes that are not there); orthonormalise them, or give covariances"
        _require_upright("axes are", self.axes, real.to(self.dtype), f" {remedy}")

    @torch.no_grad()
    def _require_longest(self, remainder: Tensor) -> None:
        shortest = torch.where(self._has_axis(), self.spreads, torch.inf).amin(dim=1)
        if bool((remainder > shortest * (1 + 1e-4)).any()):
            k = int((remainder / shortest).argmax())
            raise InputError(
                f"remainder of ellipsoid {k} is {remainder[k].item():.3g}, more than the "
                f"spread {shortest[k].item():.3g} along one of its axes; axes are the longest ones"
            )


@torch.no_grad()
def _require_upright(subject: str, rows: Tensor, squares: Tensor, remedy: str) -> None:
    """Raise unless rows [..., R, D] are at right angles and have these squared lengths [..., R]."""
    with without_autocast(rows.device.type):
        tilt = (rows @ rows.mT - torch.diag_embed(squares)).abs().max().item()
    if tilt > _LARGEST_TILT:
        raise InputError(f"{subject} off by {tilt:.3g} from unit length and right angles{remedy}")


def _across(delta: Tensor, along: Tensor, axes: Tensor) -> Tensor:
    """Return what is left of delta [P, D] without its components ``along`` the axes [R, D]."""
    across = delta - along @ axes
    return across - (across @ axes.T) @ axes  # again: axes are orthogonal within rounding only


class _RemainderTangent(Tangent):
    """Slopes of ``√(‖x - mean‖² / rest - ‖A (x - mean)‖²)``."""

    def __init__(self, x: Tensor, means: Tensor, rest: Tensor, inner: RowTangent) -> None:
        self._x, self._means, self._rest, self._inner = x, means, rest, inner
        gaps, _ = _squared_gaps(x, means)
        self.distances = root((gaps / rest - inner.distances.square()).clamp(min=0))

    def pull(self, weights: Tensor) -> Tensor:
        weights = weights * inverse(self.distances)
        plain = weights / self._rest
        straight = plain.sum(dim=1, keepdim=True) * self._x - plain @ self._means
        return straight - self._inner.pull(weights * self._inner.distances)

    def jacobian(self) -> Tensor:
        straight = (self._x[:, None] - self._means) / self._rest[:, None]
        bent = self._inner.jacobian() * self._inner.distances[..., None]
        return (straight - bent) * inverse(self.distances)[..., None]


class FullEllipsoids(_RowEllipsoids):
    """Means [K, D] and whitening matrices [K, D, D], lower triangular with a positive diagonal.

    With ``Σ_k = L_k L_kᵀ``, ``whitening`` is ``L_k⁻¹``, the ``"cholesky"`` whitening of
    :class:`~mahalens.geometry.Gaussian`; the distance is ``‖L_k⁻¹ (x - mean_k)‖``.

    >>> ellipsoids = FullEllipsoids(torch.zeros(1, 2), torch.tensor([[[0.5, 0.0], [0.0, 2.0]]]))
    >>> ellipsoids.distances(torch.tensor([[2.0, 0.0], [2.0, 1.0]]))
    tensor([[1.0000],
            [2.2361]])
    """

    kind = "full"
    fields = ("means", "whitening")
    _triangular = True

    def __init__(self, means: Tensor, whitening: Tensor) -> None:
        super().__init__(means)
        self.whitening = _whitening_of(whitening, self.means, self.dim)

    @property
    @untouched_by_autocast
    def covariances(self) -> Tensor:
        """``Σ_k = W_k⁻¹ W_k⁻ᵀ`` [K, D, D]."""
        identity = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        factor: Tensor = torch.linalg.solve_triangular(self.whitening, identity, upper=False)
        return factor @ factor.mT

    @property
    def log_determinants(self) -> Tensor:
        """``log det Σ_k = -2 Σ_i log W_kii`` [K]."""
        return -2 * self.whitening.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)

    def principal(self) -> LowRankEllipsoids:
        """Return the same ellipsoids by their principal axes, all D of them, longest first."""
        _, precisions, vectors = torch.linalg.svd(self.whitening.double())
        axes = vectors.flip(-2).to(self.whitening)
        return LowRankEllipsoids(
            self.means, axes, precisions.flip(-1).reciprocal().to(self.whitening)
        )

    def truncate(
        self, rank: int | str = "auto", *, remainder: str | None = "variance", **targets: float
    ) -> LowRankEllipsoids:
        """Keep the longest axes only; see :func:`mahalens.geometry.ellipsoids.truncate`."""
        from mahalens.geometry.ellipsoids.fit import truncate

        return truncate(self, rank, remainder=remainder, **targets)

    def _rows(self) -> Tensor:
        return self.whitening.tril() if self._tracked() else self.whitening

    def _steepest(self) -> Tensor:
        return self.whitening.detach().abs().max()

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        return (delta @ self.whitening[k].tril().double().T).square().sum(dim=1)

    # L1 components are along principal axes; the rows of a triangle are not.

    def _principal(self) -> LowRankEllipsoids:
        return self.principal() if self._tracked() else self._cached("principal", self.principal)

    def _measured(self, x: Tensor, norm: Norm, *, squared: bool) -> Tensor:
        if norm == "l1":
            return self._principal()._measured(x, norm, squared=squared)
        return super()._measured(x, norm, squared=squared)

    def _tangent(self, x: Tensor, norm: Norm) -> Tangent:
        if norm == "l1":
            return self._principal().tangent(x, norm)
        return super()._tangent(x, norm)

    def _descend(self, x: Tensor, targets: Tensor, norm: Norm) -> Tensor:
        if norm == "l1":
            return self._principal().descend(x, targets, norm)
        return super()._descend(x, targets, norm)


def _whitening_of(whitening: Tensor, means: Tensor, size: int) -> Tensor:
    """Return whitening [K, size, size], lower triangular with a positive diagonal, or raise."""
    whitening = tensor_of("whitening", whitening, means)
    require_tensor("whitening", whitening, "[..., K, D, D]")
    require_same_kind("whitening", whitening, "means", means)
    shape = [len(means), size, size]
    if list(whitening.shape) != shape:
        raise InputError(
            f"whitening has shape {list(whitening.shape)}, wanted {shape} for means of shape "
            f"{list(means.shape)}"
        )
    require_finite("whitening", whitening)
    with torch.no_grad():
        above = any(bool(matrix.triu(1).any()) for matrix in whitening)
        least = whitening.diagonal(dim1=-2, dim2=-1).min().item()
    if above or least <= 0:
        fault = "entries above its diagonal" if above else f"{least:.3g} on its diagonal"
        raise InputError(
            f"whitening has {fault}, wanted lower triangular with a positive diagonal; "
            "covariances go to from_covariance"
        )
    return whitening


class SharedBasisEllipsoids(Ellipsoids):
    """Means [K, D], a basis [Q, D] for all, whitening [K, Q, Q] within it, remainder [K] across.

    With ``p = basis (x - mean_k)``, the distance is that of p under the covariance of ellipsoid k
    within the basis, and of what is left of ``x - mean_k`` in units of its remainder::

        d² = ‖W_k p‖² + ‖(x - mean_k) - basisᵀ p‖² / remainder_k²

    Points are projected once: N D Q + N K (Q² + D) operations instead of N K D R.

    >>> basis, whitening = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[[0.5]], [[1.0]]])
    >>> pair = SharedBasisEllipsoids(torch.zeros(2, 3), basis, whitening, torch.tensor([1.0, 3.0]))
    >>> pair.distances(torch.tensor([[4.0, 3.0, 0.0]]))
    tensor([[3.6056, 4.1231]])
    """

    kind = "shared-basis"
    fields = ("means", "basis", "whitening", "remainder")
    shared = ("basis",)
    remainder: Tensor

    def __init__(self, means: Tensor, basis: Tensor, whitening: Tensor, remainder: Tensor) -> None:
        super().__init__(means)
        means, basis = self.means, tensor_of("basis", basis, self.means)
        require_tensor("basis", basis, "[..., Q, D]")
        require_same_kind("basis", basis, "means", means)
        require_finite("basis", basis)
        if basis.ndim != 2 or basis.shape[1] != self.dim or len(basis) > self.dim:
            raise InputError(
                f"basis has shape {list(basis.shape)}, wanted [Q, {self.dim}] with Q at most "
                f"{self.dim}"
            )
        _require_upright("basis is", basis, basis.new_ones(len(basis)), "; orthonormalise it")
        self.remainder = spreads_of("remainder", remainder, means, means.shape[:1])
        self.whitening = _whitening_of(whitening, means, len(basis))
        self.basis = basis

    @property
    def ranks(self) -> Tensor:
        """Q for every ellipsoid [K]."""
        return torch.full((len(self),), len(self.basis), device=self.device)

    @property
    @untouched_by_autocast
    def covariances(self) -> Tensor:
        """``basisᵀ S_k basis``, plus remainder² across the basis [K, D, D]."""
        within = self._inner().covariances
        identity = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        across = identity - self.basis.T @ self.basis
        return self.basis.T @ within @ self.basis + self.remainder.square()[:, None, None] * across

    @property
    def log_determinants(self) -> Tensor:
        """``log det S_k + 2 (D - Q) log remainder_k`` [K]."""
        dropped = self.dim - len(self.basis)
        return self._inner().log_determinants + 2 * dropped * self.remainder.log()

    def _more(self) -> str:
        return f", basis={len(self.basis)}"

    @untouched_by_autocast
    def _inner(self) -> FullEllipsoids:
        """Return the ellipsoids within the basis, relative to the centre of the means."""
        centre = self.means.detach().mean(dim=0)
        return FullEllipsoids((self.means - centre) @ self.basis.T, self.whitening)

    @untouched_by_autocast
    def _outer(self) -> SphericalEllipsoids:
        """Return what is left of the means across the basis, as spheres."""
        means = self.means - self.means.detach().mean(dim=0)
        return SphericalEllipsoids(means - means @ self.basis.T @ self.basis, self.remainder)

    def _parts(self) -> tuple[FullEllipsoids, SphericalEllipsoids]:
        if self._tracked():
            return self._inner(), self._outer()
        return self._cached("inner", self._inner), self._cached("outer", self._outer)

    def _least_values(self) -> Tensor | None:
        if float(self.means.detach().abs().max()) > widest(self.dtype) ** 2:
            return None
        return least_values(self.dim, self.remainder, self.means.detach())

    def _steepest(self) -> Tensor:
        whitening = self.whitening.detach().abs().max()
        return torch.maximum(whitening, 1 / self.remainder.detach().min())

    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        inner, outer = self._parts()
        near, means = self._centred(x)
        p = near @ self.basis.T
        within, within_errors = inner._values(p, norm)
        across, across_errors = outer._values(near - p @ self.basis, norm)
        with torch.no_grad():
            # Projections are off by u ‖x - centre‖, which the two parts do not count.
            reach = unit_roundoff(x.dtype) * reaches(near, means)
            sizes = inner._cached("sizes", lambda: squares(self.whitening))
            off = reach * (sizes + torch.finfo(x.dtype).tiny).sqrt()
            more = off * (2 * within.sqrt() + off)
            stray = reach / self.remainder
            more = more + stray * (2 * across.clamp(min=0).sqrt() + stray)
        return within + across, within_errors + across_errors + more

    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        basis = self.basis.double()
        p = delta @ basis.T
        across = _across(delta, p, basis)
        within = (p @ self.whitening[k].tril().double().T).square().sum(dim=1)
        return within + (across / self.remainder[k].double()).square().sum(dim=1)

    def _tangent(self, x: Tensor, norm: Norm) -> Tangent:
        inner, outer = self._parts()
        near, _ = self._centred(x)
        p = near @ self.basis.T
        within, across = inner.tangent(p), outer.tangent(near - p @ self.basis)
        return _SharedTangent(self.basis.detach(), within, across)


class _SharedTangent(Tangent):
    """Slopes of ``√(a² + b²)``, a within the basis and b across."""

    def __init__(self, basis: Tensor, within: Tangent, across: Tangent) -> None:
        self._basis, self._within, self._across = basis, within, across
        self.distances = root(within.distances.square() + across.distances.square())

    def pull(self, weights: Tensor) -> Tensor:
        weights = weights * inverse(self.distances)
        along = self._within.pull(weights * self._within.distances) @ self._basis
        return along + self._leave(self._across.pull(weights * self._across.distances))

    def jacobian(self) -> Tensor:
        along = (self._within.jacobian() * self._within.distances[..., None]) @ self._basis
        across = self._leave(self._across.jacobian() * self._across.distances[..., None])
        return (along + across) * inverse(self.distances)[..., None]

    def _leave(self, slopes: Tensor) -> Tensor:
        return slopes - slopes @ self._basis.T @ self._basis


KINDS: dict[str, type[Ellipsoids]] = {
    "full": FullEllipsoids,
    "low-rank": LowRankEllipsoids,
    "low-rank+remainder": LowRankEllipsoids,
    "diagonal": DiagonalEllipsoids,
    "spherical": SphericalEllipsoids,
    "shared-basis": SharedBasisEllipsoids,
}


def load_ellipsoids(path: str | Path) -> Ellipsoids:
    """Read the ellipsoids that :meth:`Ellipsoids.save` wrote.

    A file that is not one of these raises :class:`~mahalens.errors.InputError` with one line that
    names the file and the fault.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        with open_file(path), safe_open(path, "pt") as file:
            kind = (file.metadata() or {}).get(KIND_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({reason}); give a file made by save") from None
    if kind not in KINDS:
        content = "no ellipsoids" if kind is None else f"ellipsoids of kind {kind!r}"
        raise InputError(f"{path}: holds {content}; give a file made by save")
    cls = KINDS[kind]
    needed = set(cls.fields) - ({"remainder"} if kind == "low-rank" else set())
    if set(tensors) != needed:
        raise InputError(
            f"{path}: holds {', '.join(sorted(tensors)) or 'nothing'} where kind {kind!r} has "
            f"{', '.join(sorted(needed))}"
        )
    try:
        return cls.from_tensors(tensors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
