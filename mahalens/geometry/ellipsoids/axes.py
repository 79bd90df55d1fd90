"""The longest axes of a covariance, how many to keep, and what to say of the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.errors import InputError, SingularCovarianceError

Floats = NDArray[np.float64]
Remainder = Literal["variance", "precision"]

LANCZOS_SHARE = 32
"""Lanczos is tried for at most D / 32 axes."""
LANCZOS_RESTARTS = 4
FIRST_RANK = 8


@dataclass(frozen=True)
class RankChoice:
    """How many axes to keep: a number, or as many as a target takes.

    ``explained`` is the share of the variance along the kept axes. ``error`` is how far the
    distance may be off, relative to it (root mean square over points of the ellipsoid itself;
    formula in :func:`expected_error`). ``remainder`` says what the other directions get: their
    mean variance, the inverse of their mean precision, or nothing.
    """

    rank: int | None
    remainder: Remainder | None
    explained: float | None = None
    error: float | None = None

    @classmethod
    def of(
        cls,
        rank: int | str | None,
        remainder: str | None,
        dim: int,
        explained: float | None = None,
        error: float | None = None,
    ) -> RankChoice:
        """Check what the user asks for."""
        if remainder not in ("variance", "precision", None):
            raise InputError(f'remainder is {remainder!r}, wanted "variance", "precision" or None')
        if rank == "auto":
            if explained is not None and error is not None:
                raise InputError("explained and error are both given; give one target of the rank")
            target = error if error is not None else explained
            if target is not None and not 0 < target < 1:
                name = "explained" if error is None else "error"
                raise InputError(f"{name} is {target!r}, wanted a number between 0 and 1")
            if error is None and explained is None:
                explained = 0.95
            return cls(None, remainder, explained, error)  # type: ignore[arg-type]
        if explained is not None or error is not None:
            raise InputError(f'a target is given with rank {rank!r}; it needs rank="auto"')
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= dim:
            raise InputError(
                f'rank is {rank!r}, wanted a whole number from 1 to D = {dim}, or "auto"'
            )
        return cls(rank, remainder)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Axes:
    """Axes [R, D] with spreads [R], longest first, and the spread across them (or None)."""

    axes: Floats
    spreads: Floats
    remainder: float | None


def expected_error(
    dim: int, rank: Floats, tail: Floats, tail_squares: Floats, rest: Floats | None
) -> Floats:
    """How far the distance is off, relative to it, for points of the ellipsoid itself.

    With the dropped variances l_i and their stand-in s, the squared distance of a normal point is
    off by sum_i (l_i / s - 1) chi_i^2. Its root mean square, over twice the mean squared distance
    D, needs only the sums ``tail`` of l_i and ``tail_squares`` of l_i^2; both follow from trace
    and Frobenius norm of the covariance, without the dropped axes. Without a stand-in the distance
    is too short by the factor sqrt(R / D).
    """
    if rest is None:
        return 1 - np.sqrt(rank / dim)
    dropped = dim - rank
    safe = np.where(rest > 0, rest, 1.0)
    bias = tail / safe - dropped
    spread = np.maximum(tail_squares / safe**2 - 2 * tail / safe + dropped, 0)
    return np.where(dropped > 0, np.sqrt(bias**2 + 2 * spread) / (2 * dim), 0.0)


def longest_axes(covariance: Floats, choice: RankChoice, shift: float = 0.0) -> Axes:
    """Give the axes of a covariance [D, D] that ``choice`` asks for.

    ``shift`` is added to all variances.
    """
    dim = len(covariance)
    trace = float(np.trace(covariance)) + dim * shift
    # ||S + c I||^2 = ||S||^2 + 2 c tr S + D c^2
    squares = float(np.vdot(covariance, covariance))
    squares += shift * (2 * (trace - dim * shift) + dim * shift)
    rank = choice.rank or min(FIRST_RANK, dim)
    while True:
        values, vectors = top_eigenpairs(covariance, rank)
        values = values + shift
        kept = _kept(values, choice, dim, trace, squares, covariance, shift)
        if kept is not None or rank == dim:
            break
        rank = dim if 4 * rank >= dim else 2 * rank
    count = len(values) if kept is None else kept
    _require_spread(values[:count], trace, dim)
    rest = _stand_in(values[:count], choice, dim, trace, covariance, shift)
    return Axes(vectors[:count], np.sqrt(values[:count]), None if rest is None else math.sqrt(rest))


def axes_of_rows(rows: Floats, choice: RankChoice, shift: float = 0.0) -> Axes:
    """Give the longest axes of rows^T rows + shift I for rows [n, D], of centred data.

    Where there are fewer rows than inputs, from the smaller matrix rows rows^T: its eigenvalues
    are the same, and an eigenvector u gives the axis rows^T u / |rows^T u|.
    """
    count, dim = rows.shape
    if (
        count >= dim
        or choice.rank is None
        or choice.rank >= count
        or choice.remainder == "precision"
    ):
        return longest_axes(rows.T @ rows, choice, shift)
    values, vectors = top_eigenpairs(rows @ rows.T, choice.rank)
    trace = float(np.vdot(rows, rows)) + dim * shift
    _require_spread(values + shift, trace, dim)
    axes = vectors @ rows
    axes = _signed(axes / np.linalg.norm(axes, axis=1, keepdims=True))
    rest = _stand_in(values + shift, choice, dim, trace, rows, shift)
    return Axes(axes, np.sqrt(values + shift), None if rest is None else math.sqrt(rest))


def top_eigenpairs(covariance: Floats, rank: int) -> tuple[Floats, Floats]:
    """Give the largest eigenvalues [R], descending, and their eigenvectors as rows [R, D].

    Few of many come from Lanczos' method, unless the spectrum is too flat for it to converge
    soon; more of them from LAPACK's tridiagonal form, of which only R vectors are made; all from
    the full decomposition. Signs are such that the largest entry of a vector is positive.
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackError, eigsh

    dim = len(covariance)
    found = None
    if rank * LANCZOS_SHARE <= dim:
        try:
            found = eigsh(
                covariance,
                k=rank,
                ncv=min(dim, max(2 * rank + 1, 24)),
                v0=np.random.default_rng(0).standard_normal(dim),  # at right angles to no axis
                maxiter=LANCZOS_RESTARTS,
            )
        except ArpackError:  # also where it has not converged
            found = None
    if found is None:
        # Beyond a quarter of them, the faster method for all is faster than this one for some.
        subset = None if 4 * rank > dim else (dim - rank, dim - 1)
        found = eigh(covariance, subset_by_index=subset, check_finite=False)
    order = np.argsort(found[0])[::-1][:rank]
    values, vectors = found[0][order], found[1][:, order].T
    return values, _signed(vectors)


def _signed(vectors: Floats) -> Floats:
    """Turn every row so that its largest entry is positive."""
    largest = np.abs(vectors).argmax(axis=1)
    signs = np.sign(vectors[np.arange(len(vectors)), largest])
    return np.ascontiguousarray(vectors * signs[:, None])


def principal_axes(whitening: Tensor) -> tuple[Tensor, Tensor]:
    """Give all axes [K, D, D] and spreads [K, D], longest first, of Sigma_k = (W_k^T W_k)^-1."""
    _, precisions, vectors = torch.linalg.svd(whitening.double())
    return vectors.flip(-2).to(whitening), precisions.flip(-1).reciprocal().to(whitening)


def _kept(
    values: Floats,
    choice: RankChoice,
    dim: int,
    trace: float,
    squares: float,
    covariance: Floats,
    shift: float,
) -> int | None:
    """How many of the first axes are enough; None if more are needed."""
    if choice.rank is not None:
        return choice.rank
    ranks = np.arange(1, len(values) + 1, dtype=np.float64)
    if choice.explained is not None:
        good = np.cumsum(values) >= choice.explained * trace * (1 - 1e-12)
    else:
        tail = np.maximum(trace - np.cumsum(values), 0)
        tail_squares = np.maximum(squares - np.cumsum(values**2), 0)
        rest = None
        if choice.remainder == "variance":
            rest = tail / np.maximum(dim - ranks, 1)
        elif choice.remainder == "precision":
            total = _precision_trace(covariance, shift)
            inverse = np.maximum(total - np.cumsum(1 / values), 1e-12 * total)
            rest = np.maximum(dim - ranks, 1) / inverse
        good = expected_error(dim, ranks, tail, tail_squares, rest) <= (choice.error or 0)
    return int(good.argmax()) + 1 if good.any() else None


def _stand_in(
    values: Floats, choice: RankChoice, dim: int, trace: float, covariance: Floats, shift: float
) -> float | None:
    """The variance to give to the directions without an axis."""
    dropped = dim - len(values)
    if choice.remainder is None:
        return None
    if not dropped:
        return float(values[-1])
    if choice.remainder == "precision":
        rest = dropped / (_precision_trace(covariance, shift) - float(np.sum(1 / values)))
    else:
        rest = (trace - float(values.sum())) / dropped
    if not rest > 1e-12 * trace / dim:
        raise SingularCovarianceError(
            f"covariance has no spread beyond its {len(values)} longest axes, so the remainder "
            "would be 0; pass ridge=1e-6 or more, or remainder=None"
        )
    return min(float(rest), float(values[-1]))


def _precision_trace(covariance: Floats, shift: float) -> float:
    from scipy.linalg import LinAlgError, cholesky, lapack

    try:
        factor = cholesky(covariance + shift * np.eye(len(covariance)), lower=True)
    except LinAlgError:
        raise SingularCovarianceError(
            'covariance is singular, so it has no mean precision; take remainder="variance", or '
            "pass ridge=1e-6 or more"
        ) from None
    inverse, _ = lapack.dtrtri(factor, lower=1)
    return float(np.vdot(np.tril(inverse), np.tril(inverse)))


def _require_spread(values: Floats, trace: float, dim: int) -> None:
    noise = 100 * np.finfo(np.float64).eps * max(trace, 0.0)
    found = int((values > noise).sum())
    if found < len(values):
        raise SingularCovarianceError(
            f"rank {len(values)} is more than the {found} of {dim} directions that have spread; "
            f"keep fewer axes, or pass ridge=1e-6 or more"
        )


def pad_axes(
    found: list[Axes], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Put axes of several ellipsoids into tensors; zeros fill up those with fewer."""
    rank, dim = max(len(one.axes) for one in found), found[0].axes.shape[1]
    axes = torch.zeros(len(found), rank, dim, dtype=dtype)
    spreads = torch.ones(len(found), rank, dtype=dtype)
    for k, one in enumerate(found):
        axes[k, : len(one.axes)] = torch.from_numpy(one.axes)
        spreads[k, : len(one.axes)] = torch.from_numpy(one.spreads)
    tensors = {"axes": axes, "spreads": spreads}
    if found[0].remainder is not None:
        tensors["remainder"] = torch.tensor([one.remainder for one in found], dtype=dtype)
    return {name: tensor.to(device) for name, tensor in tensors.items()}
