"""Whether a covariance has spread in all directions, and how many digits rounding leaves.

Both are judged after scaling every input to unit variance, so that the answer does not depend
on the units the inputs are measured in: triangular solves do not mind such a scaling either.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from mahalens.errors import IllConditionedWarning, InputError, SingularCovarianceError
from mahalens.geometry.checks import batch_entry, dtype_name

TOLERATED_LOSS = 1e-3  # distances with fewer than 3 correct digits are worth a warning


@torch.no_grad()
def require_data_spread(
    rows: Tensor, mean: Tensor, n: int, *, ridge: float, shrinkage: float | str
) -> None:
    """Compare the spread of n samples along every direction with the rounding noise along it.

    ``rows`` is [..., M, D] with Sigma = rows^T rows: the centred data, or their triangular
    factor when n > D or when something was added. Two sources of noise count: that of the
    factorisation, eps times the largest spread, and that of the numbers themselves, of which
    rounding at the scale of the mean has left a share eps |mean| / deviation.
    """
    eps, dim = torch.finfo(rows.dtype).eps, rows.shape[-1]
    deviations = torch.linalg.vector_norm(rows, dim=-2)
    scale = torch.where(deviations > 0, deviations, 1.0)
    unit = rows / scale.unsqueeze(-2)
    offset = torch.hypot(mean / scale, torch.ones_like(mean))
    added = bool(ridge or shrinkage)
    if added or n > dim:  # then rows are triangular, and most often plainly good
        most_noise = eps * offset.amax(dim=-1).clamp(min=math.sqrt(dim))
        if bool((most_noise <= TOLERATED_LOSS * _least_spread(unit.mT)).all()):
            return
    _, spread, directions = torch.linalg.svd(unit, full_matrices=False)
    of_numbers = eps * torch.linalg.vector_norm(directions * offset.unsqueeze(-2), dim=-1)
    of_factorisation = eps * spread[..., :1]
    noise = ((10 + math.sqrt(dim)) * of_factorisation).expand_as(spread)
    if not added:  # what was added is no noise of the numbers, however small
        noise = torch.maximum(noise, of_numbers)
    rank = (spread > noise).sum(dim=-1)
    if not added:
        rank = rank.clamp(max=n - 1)  # centring takes one direction away
    worst = _first(rank < dim)
    if worst is not None:
        found = int(rank[tuple(worst)])
        remedy = 'pass ridge=1e-6 or shrinkage="ledoit-wolf"'
        if n == 2:  # Ledoit and Wolf see no noise in 2 samples and shrink by 0
            remedy = "pass ridge=1e-6"
        if added:
            given = f"ridge={ridge!r} with shrinkage={shrinkage!r}"
            remedy = f"{given} adds too little, pass ridge={max(1e-6, 100 * ridge):.3g} or more"
        if found == 0:
            remedy = "give samples that differ"
        raise SingularCovarianceError(
            f"covariance of N={n} samples with D={dim} inputs is singular{batch_entry(worst)}: "
            f"{found} of {dim} directions have spread; {remedy}"
        )
    loss = torch.maximum(of_numbers, of_factorisation) / spread
    _warn_if_lost(loss.amax(dim=-1), rows.dtype, "compute in float64 or pass a larger ridge")


@torch.no_grad()
def require_positive_definite(
    covariance: Tensor, factor: Tensor, failed: Tensor, advice: str
) -> None:
    """Ask for a covariance [..., D, D] with spread in all directions.

    ``factor`` is its Cholesky factor where that has not ``failed``. The eigenvalues of the
    correlation matrix decide; those of the covariance are reported.
    """
    eps, dim = torch.finfo(covariance.dtype).eps, covariance.shape[-1]
    deviations = covariance.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    scale = torch.where(deviations > 0, deviations, 1.0)
    if not bool(failed.any()):
        least = _least_spread(factor / scale.unsqueeze(-1)).square()
        if bool((eps * dim <= TOLERATED_LOSS * least).all()):  # the largest is at most D
            return
    values = torch.linalg.eigvalsh(covariance / scale.unsqueeze(-1) / scale.unsqueeze(-2))
    noise = (10 + math.sqrt(dim)) * eps * values[..., -1:].abs()
    rank = (values > noise).sum(dim=-1)
    if covariance.dtype != torch.float64:
        advice = f"give it in float64 or {advice}"
    worst = _first(failed | (rank < dim))
    if worst is not None:
        raw = torch.linalg.eigvalsh(covariance[tuple(worst)])
        facts = f"smallest eigenvalue {raw[0].item():.3g}, largest {raw[-1].item():.3g}"
        shape = f"covariance {list(covariance.shape)}"
        if bool(values[(*worst, 0)] < -noise[(*worst, 0)]):
            raise InputError(
                f"{shape} is not positive definite{batch_entry(worst)}: {facts}; "
                f"no spread is negative, check the entries"
            )
        found = min(int(rank[tuple(worst)]), dim - 1)
        raise SingularCovarianceError(
            f"{shape} is singular, so not positive definite{batch_entry(worst)}: {found} of "
            f"{dim} directions have spread, {facts}; {advice}"
        )
    loss = eps * values[..., -1] / values[..., 0]
    _warn_if_lost(loss, covariance.dtype, advice)


def _least_spread(unit: Tensor) -> Tensor:
    """Give a lower bound [...] of the singular values of lower-triangular factors [..., D, D].

    The smallest is at least 1 / ||unit^-1||_F, which costs far less than the value itself.
    """
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    inverse = torch.linalg.solve_triangular(unit, identity, upper=False)
    bound: Tensor = 1 / torch.linalg.matrix_norm(inverse)
    return bound


def _first(flags: Tensor) -> list[int] | None:
    """Index of the first true flag of a batch; None if there is none."""
    found: list[list[int]] = flags.nonzero().tolist()
    return found[0] if found else None


def _warn_if_lost(loss: Tensor, dtype: torch.dtype, advice: str) -> None:
    """Warn when rounding, ``loss`` relative to the smallest spread, leaves too few digits."""
    worst = float(loss.max()) if loss.numel() else 0.0
    if worst > TOLERATED_LOSS:
        warnings.warn(
            f"covariance is nearly singular in {dtype_name(dtype)}: distances along its "
            f"narrowest direction keep about {max(0.0, -math.log10(worst)):.1f} digits; {advice}",
            IllConditionedWarning,
            stacklevel=6,  # the caller of Gaussian.from_data or from_covariance
        )
