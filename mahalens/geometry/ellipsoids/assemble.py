"""From one covariance at a time to ellipsoids of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry import covariance as estimation
from mahalens.geometry.checks import require_finite, require_tensor, tensor_of
from mahalens.geometry.ellipsoids.axes import (
    Floats,
    RankChoice,
    longest_axes,
    pad_axes,
    top_eigenpairs,
)
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.full import FullEllipsoids
from mahalens.geometry.ellipsoids.lowrank import LowRankEllipsoids
from mahalens.geometry.ellipsoids.shared import SharedBasisEllipsoids
from mahalens.geometry.ellipsoids.spheres import DiagonalEllipsoids, SphericalEllipsoids
from mahalens.geometry.memory import require_memory
from mahalens.geometry.whitening import whitening_matrix

Kind = Literal["full", "low-rank", "low-rank+remainder", "diagonal", "spherical", "shared-basis"]
"""The kinds of ellipsoids."""

ADVICE = "pass ridge=1e-6 or more"
_WITH_RANK = ("low-rank", "low-rank+remainder", "shared-basis")


class Part(NamedTuple):
    """A covariance [D, D] in float64, and what is to be added to its diagonal."""

    covariance: Floats
    shift: float

    @property
    def whole(self) -> Floats:
        """The two together."""
        return self.covariance + self.shift * np.eye(len(self.covariance))


def check_choice(
    kind: str,
    rank: int | str | None,
    remainder: str,
    dim: int,
    explained: float | None,
    error: float | None,
) -> RankChoice | None:
    """Ask for a kind there is, and for a rank where it needs one."""
    if kind not in get_args(Kind):
        raise InputError(f"kind is {kind!r}, wanted one of {', '.join(get_args(Kind))}")
    if remainder not in ("variance", "precision"):
        raise InputError(f'remainder is {remainder!r}, wanted "variance" or "precision"')
    if kind not in _WITH_RANK:
        if rank is not None or explained is not None or error is not None:
            raise InputError(
                f"a rank is given for kind {kind!r}, which has none; leave it out or take "
                'kind="low-rank+remainder"'
            )
        return None
    if rank is None:
        raise InputError(f'kind {kind!r} needs a rank: a number from 1 to {dim}, or "auto"')
    if kind == "shared-basis" and rank == "auto" and error is not None:
        raise InputError('kind "shared-basis" takes rank="auto" by explained variance only')
    return RankChoice.of(rank, None if kind == "low-rank" else remainder, dim, explained, error)


def covariance_of(given: Tensor, means: Tensor) -> Floats:
    """Check one covariance and give it in float64, exactly symmetric."""
    given = tensor_of("covariance", given)
    require_tensor("covariance", given, "[..., D, D]")
    dim = means.shape[1]
    if tuple(given.shape) != (dim, dim):
        raise InputError(
            f"means have length {dim} and a covariance is {list(given.shape)}, wanted "
            f"[{dim}, {dim}]"
        )
    require_finite("covariance", given)
    estimation.require_symmetric(given.detach())
    matrix = given.detach().double().cpu().numpy()
    symmetric: Floats = (matrix + matrix.T) / 2
    _require_semidefinite(symmetric, torch.finfo(given.dtype).eps)
    return symmetric


def _require_semidefinite(matrix: Floats, eps: float) -> None:
    """Ask for no negative spread, but for what rounding can explain."""
    slack = len(matrix) * eps * float(np.abs(np.diag(matrix)).max())
    try:
        np.linalg.cholesky(matrix + max(slack, 1e-300) * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(matrix)[0])
        if least < -slack:
            raise InputError(
                f"covariance is not positive definite: smallest eigenvalue {least:.3g}; no spread "
                "is negative, check the entries"
            ) from None


@contextmanager
def naming(k: int) -> Iterator[None]:
    """Say which ellipsoid an error is about."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"ellipsoid {k}: {error}") from None


def assemble(
    means: Tensor, part_of: Callable[[int], Part], kind: str, choice: RankChoice | None
) -> Ellipsoids:
    """Make ellipsoids of ``kind`` from the covariance of each, asked for one after the other."""

    def parts() -> Iterator[tuple[int, Part]]:
        for k in range(len(means)):
            with naming(k):
                yield k, part_of(k)

    dtype, device = means.dtype, means.device
    count, dim = means.shape
    if kind == "full":
        require_room(count, dim, means)
        whitening = means.new_empty(count, dim, dim)
        for k, part in parts():
            with naming(k):
                factor = estimation.factor_covariance(torch.from_numpy(part.whole), ADVICE)
            whitening[k] = whitening_matrix(factor, "cholesky")
        return FullEllipsoids(means, whitening)
    if kind == "shared-basis":
        assert choice is not None
        return _shared(means, parts, choice)
    if choice is not None:
        found = []
        for k, part in parts():
            with naming(k):
                found.append(longest_axes(part.covariance, choice, part.shift))
        return LowRankEllipsoids(means, **pad_axes(found, dtype, device))
    variances = np.stack([np.diag(part.covariance) + part.shift for _, part in parts()])
    spherical = kind == "spherical"
    if spherical:
        variances = variances.mean(axis=1)
    if not (variances > 0).all():
        k, *where = map(int, np.argwhere(variances <= 0)[0])
        place = f" along input {where[0]}" if where else ""
        raise SingularCovarianceError(
            f"ellipsoid {k} has no spread{place}; drop that input, or pass ridge=1e-6 or more"
        )
    spreads = torch.from_numpy(np.sqrt(variances)).to(device, dtype)
    return SphericalEllipsoids(means, spreads) if spherical else DiagonalEllipsoids(means, spreads)


def require_room(count: int, dim: int, like: Tensor) -> None:
    """Ask for the memory of full ellipsoids, and of what distances make of them."""
    # The factors, their stripes for products, and some matrices in float64 on the way.
    size = count * dim * dim * like.element_size() * 17 // 10 + 8 * dim * dim * 8
    require_memory(
        size,
        f"{count} full ellipsoids in {dim} dimensions",
        'take kind="low-rank+remainder" with a rank, or fewer ellipsoids',
    )


def _shared(
    means: Tensor, parts: Callable[[], Iterator[tuple[int, Part]]], choice: RankChoice
) -> SharedBasisEllipsoids:
    count, dim = means.shape
    average = np.zeros((dim, dim))
    for _, part in parts():
        average += part.whole / count
    if choice.rank is None:
        free = RankChoice(None, None, choice.explained, choice.error)
        basis = longest_axes(average, free).axes
    else:
        _, basis = top_eigenpairs(average, choice.rank)
    size = len(basis)
    whitening = means.new_empty(count, size, size)
    remainder = means.new_empty(count)
    for k, part in parts():
        with naming(k):
            whole = part.whole
            inside = basis @ whole @ basis.T
            factor = estimation.factor_covariance(torch.from_numpy((inside + inside.T) / 2), ADVICE)
            whitening[k] = whitening_matrix(factor, "cholesky")
            if size == dim:  # nothing is left across but rounding, which must not count
                remainder[k] = float(np.sqrt(np.trace(whole)))
                continue
            if choice.remainder == "precision":
                inverse = np.linalg.inv(whole)
                rest = (np.trace(inverse) - np.trace(basis @ inverse @ basis.T)) / (dim - size)
                rest = 1 / rest
            else:
                rest = (np.trace(whole) - np.trace(inside)) / (dim - size)
            if not rest > 1e-12 * np.trace(whole) / dim:
                raise SingularCovarianceError(
                    "covariance has no spread beyond the shared basis, so the remainder would be "
                    "0; pass ridge=1e-6 or more"
                )
            remainder[k] = float(np.sqrt(rest))
    shared = torch.from_numpy(np.ascontiguousarray(basis)).to(means.device, means.dtype)
    return SharedBasisEllipsoids(means, shared, whitening, remainder)
