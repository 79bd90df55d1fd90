"""One Gaussian, or a batch of them: a mean and a factor L, and everything derived from the two.

Spectrum and whitening are read from the factor and not from the covariance: the singular values of
L are the square roots of the eigenvalues of Σ = L Lᵀ, and small ones keep twice as many digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mahalens._show import facts_html, table_html
from mahalens.errors import InputError
from mahalens.geometry import covariance as estimation
from mahalens.geometry._checks import (
    common_batch,
    count_of,
    dtype_name,
    require_finite,
    require_matching,
    require_same_kind,
    require_tensor,
    tensor_of,
    untouched_by_autocast,
)

WhiteningKind = Literal["pca", "zca", "cholesky"]
"""The whitenings of :func:`whitening_matrix`; any rotation of one is a whitening too."""


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of a covariance, the largest first.

    ``values`` [..., D], descending; ``vectors`` [..., D, D] as columns in the same order.
    """

    values: Tensor
    vectors: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Gaussian:
    """A normal distribution N(mean, Σ) with Σ = L Lᵀ: mean [..., D] and factor L [..., D, D].

    L is lower triangular with a positive diagonal. The batch shapes ``...`` of the two are
    broadcast. Tensors are float32 or float64 on any device and are copied, so a Gaussian never
    changes. Covariance, precision, whitening and distance are derived from the factor; the
    covariance is never inverted.

    Use :meth:`from_data` to fit one to samples and :meth:`from_covariance` if you have the matrix.
    For many Gaussians and one set of points, :mod:`mahalens.geometry.ellipsoids` is faster.

    >>> gaussian = Gaussian(torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> gaussian
    Gaussian(dim=2, batch_shape=[], dtype=float32, device=cpu)
    >>> gaussian.covariance
    tensor([[ 9.,  0.],
            [ 0., 16.]])
    >>> gaussian.mahalanobis(torch.tensor([[1.0, 2.0], [4.0, 2.0], [4.0, 6.0]]))
    tensor([0.0000, 1.0000, 1.4142])
    """

    mean: Tensor
    factor: Tensor

    def __post_init__(self) -> None:
        mean, factor = tensor_of("mean", self.mean), tensor_of("factor", self.factor)
        require_tensor("mean", mean, "[..., D]")
        require_tensor("factor", factor, "[..., D, D]")
        require_same_kind("mean", mean, "factor", factor)
        require_matching("factor", factor, mean)
        require_finite("mean", mean)
        require_finite("factor", factor)
        if bool(factor.detach().triu(1).any()):
            raise InputError(
                "factor has entries above its diagonal, wanted lower triangular; "
                "a covariance goes to Gaussian.from_covariance"
            )
        smallest = factor.detach().diagonal(dim1=-2, dim2=-1).amin(dim=-1)
        if bool((smallest <= 0).any()):
            raise InputError(
                f"factor has {smallest.min().item():.6g} on its diagonal, wanted all positive"
            )
        batch = common_batch("mean", mean.shape[:-1], "factor", factor.shape[:-2])
        # One memory layout for all: products of equal factors are then equal to the last bit.
        for name, part, axes in (("mean", mean, 1), ("factor", factor, 2)):
            owned = part.clone(memory_format=torch.contiguous_format)
            object.__setattr__(self, name, owned.expand(*batch, *part.shape[-axes:]))

    @classmethod
    def from_covariance(cls, mean: Tensor, covariance: Tensor) -> Gaussian:
        """Make a Gaussian from mean [..., D] and covariance [..., D, D].

        The covariance must be symmetric up to rounding and positive definite. Raises
        :class:`~mahalens.errors.InputError` (:class:`~mahalens.errors.SingularCovarianceError`
        where there is no spread) and warns with
        :class:`~mahalens.errors.IllConditionedWarning` when rounding leaves few digits.

        >>> Gaussian.from_covariance(torch.zeros(2), torch.tensor([[4.0, 2.0], [2.0, 5.0]])).factor
        tensor([[2., 0.],
                [1., 2.]])
        """
        mean, covariance = tensor_of("mean", mean), tensor_of("covariance", covariance)
        require_tensor("mean", mean, "[..., D]")
        require_tensor("covariance", covariance, "[..., D, D]")
        require_same_kind("mean", mean, "covariance", covariance)
        require_matching("covariance", covariance, mean)
        require_finite("mean", mean)
        return cls(mean, estimation.factor_covariance(covariance))

    @classmethod
    def from_data(
        cls, x: Tensor, *, ridge: float = 0.0, shrinkage: float | Literal["ledoit-wolf"] = 0.0
    ) -> Gaussian:
        """Fit a Gaussian to samples x [..., N, D], with the unbiased covariance S (over N - 1).

        When samples are few or inputs repeat each other, S is singular and this raises
        :class:`~mahalens.errors.SingularCovarianceError`. Two remedies, with the mean variance
        m = trace(S) / D and the shrinkage a in [0, 1]::

            Σ = (1 - a) S + (a + ridge) m I

        ``shrinkage="ledoit-wolf"`` chooses a (see
        :func:`~mahalens.geometry.ledoit_wolf_shrinkage`).

        >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]])
        >>> fitted = Gaussian.from_data(x)
        >>> fitted.mean, fitted.covariance.diagonal()
        (tensor([1., 2.]), tensor([1.3333, 5.3333]))
        """
        return cls(*estimation.estimate(x, ridge=ridge, shrinkage=shrinkage))

    @classmethod
    def stack(cls, gaussians: Sequence[Gaussian]) -> Gaussian:
        """Put Gaussians of equal shape into one batch, as ``torch.stack`` does.

        >>> Gaussian.stack([Gaussian(torch.zeros(2), torch.eye(2))] * 3).batch_shape
        torch.Size([3])
        """
        if not gaussians:
            raise InputError("no Gaussians to stack, wanted at least 1")
        kinds = {repr(gaussian) for gaussian in gaussians}
        if len(kinds) > 1:
            raise InputError(f"cannot stack unlike Gaussians: {' and '.join(sorted(kinds))}")
        means, factors = zip(*((g.mean, g.factor) for g in gaussians), strict=True)
        return cls(torch.stack(means), torch.stack(factors))

    @property
    def dim(self) -> int:
        """D, the number of inputs."""
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """The ``...`` of mean [..., D]; empty for a single Gaussian."""
        return self.mean.shape[:-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of mean and factor."""
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        """The device of mean and factor."""
        return self.mean.device

    @property
    @untouched_by_autocast
    def covariance(self) -> Tensor:
        """Σ = L Lᵀ [..., D, D], exactly symmetric."""
        product = self.factor @ self.factor.mT
        return self._in_range("covariance", (product + product.mT) / 2)

    @property
    @untouched_by_autocast
    def precision(self) -> Tensor:
        """Σ⁻¹ = L⁻ᵀ L⁻¹ [..., D, D], exactly symmetric."""
        inverse = whitening_matrix(self.factor, "cholesky")
        product = inverse.mT @ inverse
        return self._in_range("precision", (product + product.mT) / 2)

    @property
    def spectrum(self) -> Spectrum:
        """Eigenvalues and eigenvectors of Σ from one singular value decomposition of L.

        Their gradients are undefined where two eigenvalues coincide, as for every eigensolver.

        >>> gaussian = Gaussian(torch.zeros(2), torch.tensor([[3.0, 0.0], [0.0, 5.0]]))
        >>> gaussian.spectrum.values
        tensor([25.,  9.])
        """
        deviations, directions = spread_axes(self.factor)
        return Spectrum(deviations.square(), directions)

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of Σ [..., D], descending."""
        return self.spectrum.values

    @property
    def eigenvectors(self) -> Tensor:
        """Eigenvectors of Σ [..., D, D]: columns, in the order of the eigenvalues.

        Of the two signs, the one that makes the largest entry of the column positive.
        """
        return self.spectrum.vectors

    @property
    def condition_number(self) -> Tensor:
        """Largest over smallest eigenvalue of Σ [...]."""
        deviations: Tensor = torch.linalg.svdvals(self.factor)
        return (deviations[..., 0] / deviations[..., -1]).square()

    @untouched_by_autocast
    def whitening(self, kind: WhiteningKind = "pca") -> Tensor:
        """Return W [..., D, D] with W Σ Wᵀ = I; :func:`whitening_matrix` has the three kinds.

        With b = -W mean, the distance of x is ‖W x + b‖: a linear layer measures it.

        >>> Gaussian(torch.zeros(2), torch.tensor([[2.0, 0.0], [0.0, 4.0]])).whitening("zca")
        tensor([[0.5000, 0.0000],
                [0.0000, 0.2500]])
        """
        return whitening_matrix(self.factor, kind)

    @untouched_by_autocast
    def whiten(self, x: Tensor, kind: WhiteningKind = "pca") -> Tensor:
        """Return W (x - mean) for each row of x [..., N, D], the same shape."""
        _require_kind(kind)
        centred = self._rows("x", x) - self.mean.unsqueeze(-2)
        if kind == "cholesky":
            white: Tensor = torch.linalg.solve_triangular(self.factor, centred.mT, upper=False)
            return white.mT
        return centred @ whitening_matrix(self.factor, kind).mT

    @untouched_by_autocast
    def unwhiten(self, z: Tensor, kind: WhiteningKind = "pca") -> Tensor:
        """Undo :meth:`whiten`: return mean + W⁻¹ z for each row of z [..., N, D]."""
        rows = self._rows("z", z) @ _unwhitening_matrix(self.factor, kind).mT
        return rows + self.mean.unsqueeze(-2)

    def mahalanobis(self, x: Tensor, squared: bool = False) -> Tensor:
        """Return √((x - mean)ᵀ Σ⁻¹ (x - mean)) for each row of x [..., N, D]: [..., N].

        The distance is in units of spread: 1 is one standard deviation in whichever direction.
        It comes from one triangular solve, ‖L⁻¹ (x - mean)‖; its gradients at the mean are 0.
        The batch shapes of x and of the Gaussian are broadcast; a NaN in a row of x stays in
        that row's distance. A NumPy array takes the dtype of the Gaussian. A distance, or a
        square, too large for the dtype is infinite.
        """
        white = self.whiten(x, kind="cholesky")
        if squared:
            return white.square().sum(dim=-1)
        unit = estimation.units(white, (-1,))  # or squares would overflow where distances do not
        # The norm is taken of 1 at the mean: its second slope at 0 would be NaN.
        at_mean = (white == 0).all(dim=-1, keepdim=True)
        length = torch.linalg.vector_norm(torch.where(at_mean, 1.0, white / unit), dim=-1)
        return torch.where(at_mean.squeeze(-1), 0.0, length * unit.squeeze(-1))

    def log_density(self, x: Tensor) -> Tensor:
        """Return log N(x; mean, Σ) for each row of x [..., N, D]: [..., N].

        ``-½ (distance² + D log 2π) - Σᵢ log Lᵢᵢ``

        >>> standard = Gaussian(torch.zeros(1), torch.eye(1))
        >>> standard.log_density(torch.zeros(1, 1))
        tensor([-0.9189])
        """
        volume = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)  # [...]
        constant = self.dim * math.log(2 * math.pi)
        return -0.5 * (self.mahalanobis(x, squared=True) + constant) - volume.unsqueeze(-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n points from each Gaussian: mean + L z with z standard normal, [..., n, D].

        z is drawn on the CPU in float64 whatever the Gaussian's dtype and device: one seed gives
        the same points, up to rounding, everywhere.

        >>> generator = torch.Generator().manual_seed(0)
        >>> Gaussian(torch.zeros(2), torch.eye(2)).sample(5, generator).shape
        torch.Size([5, 2])
        """
        n = count_of("number of samples", n)
        if generator is not None and generator.device.type != "cpu":
            raise InputError(
                f"generator is on {generator.device}, wanted one on the CPU: torch.Generator()"
            )
        shape = (*self.batch_shape, n, self.dim)
        z = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.unwhiten(z.to(dtype=self.dtype).to(device=self.device), kind="cholesky")

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Gaussian:
        """Return the same Gaussian in another dtype or on another device."""
        return Gaussian(*(part.to(device, dtype) for part in (self.mean, self.factor)))

    def __getitem__(self, index: Any) -> Gaussian:
        if not self.batch_shape:
            raise IndexError(f"{self!r} is a single Gaussian, it has no batch to index")
        rows = (*(index if isinstance(index, tuple) else (index,)), slice(None))
        return Gaussian(self.mean[rows], self.factor[(*rows, slice(None))])

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError(f"{self!r} is a single Gaussian, it has no length")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator[Gaussian]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"Gaussian(dim={self.dim}, batch_shape={list(self.batch_shape)}, "
            f"dtype={dtype_name(self.dtype)}, device={self.device})"
        )

    def _repr_html_(self) -> str:
        """Return the mean and spread of each input; of several Gaussians their sizes."""
        if self.batch_shape:
            facts = {"Gaussians": math.prod(self.batch_shape), "dimensions": self.dim}
            return facts_html(repr(self), facts)
        spreads = torch.linalg.vector_norm(self.factor.detach(), dim=1).tolist()
        rows = zip(range(self.dim), self.mean.tolist(), spreads, strict=True)
        return table_html(repr(self), ("input", "mean", "spread"), rows)

    def _in_range(self, name: str, matrix: Tensor) -> Tensor:
        if not bool(torch.isfinite(matrix.detach()).all()):
            raise InputError(
                f"the {name} of this Gaussian has entries too large for {dtype_name(self.dtype)}; "
                "take gaussian.to(torch.float64), or scale the inputs"
            )
        return matrix

    def _rows(self, name: str, x: Tensor) -> Tensor:
        """Check that x is [..., N, D] of this Gaussian's D, kind and batch shape."""
        x = tensor_of(name, x, self.mean)
        require_tensor(name, x, "[..., N, D]")
        if x.shape[-1] != self.dim:
            raise InputError(
                f"{name} has shape {list(x.shape)}, so {x.shape[-1]} inputs; this Gaussian has "
                f"{self.dim}, wanted [..., N, {self.dim}]"
            )
        require_same_kind(name, x, "this Gaussian", self.mean)
        common_batch(name, x.shape[:-2], "this Gaussian", self.batch_shape)
        return x


def _require_kind(kind: str) -> None:
    kinds = get_args(WhiteningKind)
    if kind not in kinds:
        raise InputError(f"whitening kind is {kind!r}, wanted one of {', '.join(kinds)}")


def spread_axes(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the axes of the ellipsoid of Σ: deviations [..., D] and directions [..., D, D].

    The directions are columns, longest axis first. Each is turned so that its largest entry is
    positive, because a sign left to the library would differ between machines. Of entries that
    are equal within 0.1 %, as in the diagonals of a square, the first decides.
    """
    directions, deviations, _ = torch.linalg.svd(factor)
    size = directions.detach().abs()
    is_largest = size >= 0.999 * size.amax(dim=-2, keepdim=True)
    deciding = is_largest.to(torch.uint8).argmax(dim=-2, keepdim=True)  # the first of them
    signs = torch.gather(directions.detach(), -2, deciding).sign()
    return deviations, directions * signs


def whitening_matrix(factor: Tensor, kind: WhiteningKind) -> Tensor:
    """Return W [..., D, D] with W Σ Wᵀ = I, for Σ = L Lᵀ = V Λ Vᵀ with the factor L.

    ============  =================================================================
    ``pca``       Λ^(-½) Vᵀ: row i is eigenvector i over its deviation
    ``zca``       V Λ^(-½) Vᵀ: the symmetric one, nearest to the identity
    ``cholesky``  L⁻¹: lower triangular, unit i sees only inputs 1 to i
    ============  =================================================================

    Reference: Kessy, Lewin and Strimmer, "Optimal whitening and decorrelation", 2018.
    """
    _require_kind(kind)
    if kind == "cholesky":
        identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
        return inverse
    deviations, directions = spread_axes(factor)
    pca = directions.mT / deviations.unsqueeze(-1)
    if kind == "pca":
        return pca
    zca = directions @ pca
    return (zca + zca.mT) / 2  # symmetric to the last bit


def _unwhitening_matrix(factor: Tensor, kind: WhiteningKind) -> Tensor:
    """Return the inverse of :func:`whitening_matrix`, without inverting: V Λ^½ and so on."""
    _require_kind(kind)
    if kind == "cholesky":
        return factor
    deviations, directions = spread_axes(factor)
    inverse_pca = directions * deviations.unsqueeze(-2)
    return inverse_pca @ directions.mT if kind == "zca" else inverse_pca
