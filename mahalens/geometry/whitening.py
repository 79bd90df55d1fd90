"""Eigenstructure and whitening of a covariance, both read from its factor L.

Everything here takes the factor, not the covariance: the singular values of L are the square
roots of the eigenvalues of Sigma = L L^T, so the small ones keep twice as many digits.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mahalens.errors import InputError

WhiteningKind = Literal["pca", "zca", "cholesky"]
"""The whitenings of :func:`whitening_matrix`; any rotation of one is a whitening too."""


class Spectrum(NamedTuple):
    """Eigenvalues [..., D], descending, and eigenvectors [..., D, D] as columns in that order."""

    values: Tensor
    vectors: Tensor


def require_kind(kind: str) -> None:
    """Ask for one of the kinds of :data:`WhiteningKind`."""
    kinds = get_args(WhiteningKind)
    if kind not in kinds:
        raise InputError(f"whitening kind is {kind!r}, wanted one of {', '.join(kinds)}")


def spread_axes(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Give the axes of the ellipsoid: standard deviations [..., D], directions [..., D, D].

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


def spectrum(factor: Tensor) -> Spectrum:
    """Give eigenvalues and eigenvectors of L L^T without forming it.

    Their gradients are undefined where two eigenvalues coincide, as for every eigensolver.

    >>> values, vectors = spectrum(torch.tensor([[3.0, 0.0], [0.0, 5.0]]))
    >>> values
    tensor([25.,  9.])
    """
    deviations, directions = spread_axes(factor)
    return Spectrum(deviations.square(), directions)


def whitening_matrix(factor: Tensor, kind: WhiteningKind) -> Tensor:
    """Give W [..., D, D] with W Sigma W^T = I.

    ============  =================================================================
    ``pca``       Lambda^-1/2 V^T: row i is eigenvector i over its deviation
    ``zca``       V Lambda^-1/2 V^T: the symmetric one, nearest to the identity
    ``cholesky``  L^-1: lower triangular, unit i sees only inputs 1 to i
    ============  =================================================================

    Reference: Kessy, Lewin and Strimmer, "Optimal whitening and decorrelation", 2018.
    """
    require_kind(kind)
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


def unwhitening_matrix(factor: Tensor, kind: WhiteningKind) -> Tensor:
    """Give the inverse of :func:`whitening_matrix`, without inverting: V Lambda^1/2 and so on."""
    require_kind(kind)
    if kind == "cholesky":
        return factor
    deviations, directions = spread_axes(factor)
    inverse_pca = directions * deviations.unsqueeze(-2)
    return inverse_pca @ directions.mT if kind == "zca" else inverse_pca
