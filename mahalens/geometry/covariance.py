"""From data, or from a covariance matrix, to a factor L with Σ = L Lᵀ, and can it be trusted?

The factor comes from the data directly where there are data. Both ways ask for spread in all
directions and warn when rounding leaves few digits. They judge after scaling every input to unit
variance: the answer then does not depend on the units of the inputs, and triangular solves do not
either.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import IllConditionedWarning, InputError, SingularCovarianceError
from mahalens.geometry._checks import (
    batch_entry,
    dtype_name,
    require_finite,
    require_tensor,
    tensor_of,
    without_autocast,
)

ADVICE = "add a multiple of the identity"
"""What to do about a singular covariance matrix, unless a caller knows better."""

_TOLERATED_LOSS = 1e-3  # distances with fewer than 3 correct digits are worth a warning
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *torch.__path__))


def lower_factor(rows: Tensor) -> Tensor:
    """Return the lower-triangular L with L Lᵀ = rowsᵀ rows and no negative diagonal entry.

    ``rows`` is [..., M, D] with M >= D. QR works on the rows themselves; forming rowsᵀ rows
    first would square the condition number.

    >>> lower_factor(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]]))
    tensor([[5., 0.],
            [0., 2.]])
    """
    mode = "reduced" if rows.requires_grad else "r"  # the derivative needs Q
    upper: Tensor = torch.linalg.qr(rows, mode=mode).R
    diagonal = upper.detach().diagonal(dim1=-2, dim2=-1)
    signs = torch.where(diagonal < 0, -1.0, 1.0).to(rows.dtype)
    # Adding 0 turns the -0.0 that the signs leave above the diagonal into 0.0.
    return (upper * signs.unsqueeze(-1)).mT + 0.0


@torch.no_grad()
def units(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return powers of 2 to divide x by where its squares would leave the range of its dtype.

    They are near the largest value over ``dims``, which stay with size 1; elsewhere they are 1.
    """
    size = x.detach().abs().amax(dim=dims, keepdim=True)
    limit = 2.0**30 if x.dtype == torch.float32 else 2.0**300
    odd = ((size > limit) | (size < 1 / limit)) & (size > 0) & torch.isfinite(size)
    exponents = torch.frexp(torch.where(odd, size, 1.0)).exponent - 1
    return torch.ldexp(torch.ones_like(size), exponents)


def root(values: Tensor) -> Tensor:
    """Return the square root, with slope 0 at 0, where the true slope is infinite."""
    positive = values > 0
    # Two choices: a slope of infinity times 0 in the first would be NaN. The product keeps NaN.
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), values.detach() * 0)


def centre(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean [..., D] of x [..., N, D], and the centred data [..., N, D].

    Centring is done twice: the second pass removes what rounding left of the mean in the first.
    """
    mean = x.mean(dim=-2, keepdim=True)
    left_over = (x - mean).mean(dim=-2, keepdim=True)
    return (mean + left_over).squeeze(-2), x - mean - left_over


def ledoit_wolf_shrinkage(x: Tensor) -> Tensor:
    """Return the weight in [0, 1] of the scaled identity that Ledoit and Wolf recommend.

    For x [..., N, D] with sample covariance S (divided by N) and m = trace(S) / D::

        weight = min(b², d²) / d²,   d² = ‖S - m I‖²,
        b² = Σₙ ‖xₙ xₙᵀ - S‖² / N²   over the centred samples xₙ, all norms Frobenius'

    The result has the batch shape [...].
    Reference: Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance
    matrices", 2004.

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 1.0], [4.0, 2.5], [6.0, 2.5]])
    >>> round(float(ledoit_wolf_shrinkage(x)), 4)
    0.3068
    """
    x = tensor_of("x", x)
    require_tensor("x", x, "[..., N, D]")
    n, dim = x.shape[-2:]
    if dim == 1:  # S is its own target
        return x.new_zeros(x.shape[:-2])
    _, centred = centre(x / units(x, (-2, -1)))
    variance = centred.square().mean(dim=(-2, -1), keepdim=True)
    unit = centred / root(torch.where(variance > 0, variance, 1.0))  # now m = 1
    with without_autocast(x.device.type):
        covariance = unit.mT @ unit / n
    identity = torch.eye(dim, dtype=x.dtype, device=x.device)
    d2 = (covariance - identity).square().sum(dim=(-2, -1))
    fourth = unit.square().sum(dim=-1).square().mean(dim=-1)
    b2 = (fourth - covariance.square().sum(dim=(-2, -1))) / n
    return torch.minimum(b2.clamp(min=0), d2) / torch.where(d2 > 0, d2, 1.0)


def estimate(x: Tensor, *, ridge: float, shrinkage: float | str) -> tuple[Tensor, Tensor]:
    """Return the mean [..., D] and the factor [..., D, D] of the samples x [..., N, D].

    With the unbiased covariance S, m = trace(S) / D and the weight a of the shrinkage::

        Σ = (1 - a) S + (a + ridge) m I

    The identity enters as further rows under the centred data, which makes this one more QR.
    """
    x = tensor_of("x", x)
    require_tensor("x", x, "[..., N, D]")
    n, dim = x.shape[-2:]
    if n < 2:
        raise InputError(f"x has {n} sample of {dim} inputs, wanted at least 2 to see any spread")
    require_finite("x", x)
    require_added(ridge, shrinkage)
    # Inputs have scales of their own, unless something is added to the variances of all.
    unit = units(x, (-2, -1) if ridge or shrinkage else (-2,))
    mean, centred = centre(x / unit)
    rows = centred / math.sqrt(n - 1)
    if n > dim:
        rows = lower_factor(rows).mT
    if ridge or shrinkage:
        if isinstance(shrinkage, str):
            weight = ledoit_wolf_shrinkage(x)[..., None, None]
        else:
            weight = x.new_tensor(shrinkage)
        variance = rows.square().sum(dim=(-2, -1), keepdim=True) / dim
        identity = torch.eye(dim, dtype=x.dtype, device=x.device)
        added = root((weight + ridge) * variance) * identity
        rows = lower_factor(torch.cat([root(1 - weight) * rows, added], dim=-2)).mT
    _require_data_spread(rows, mean, n, ridge=ridge, shrinkage=shrinkage)
    return mean * unit.squeeze(-2), rows.mT * unit.mT


def factor_covariance(covariance: Tensor, advice: str = ADVICE) -> Tensor:
    """Return the Cholesky factor of a covariance [..., D, D], or raise an error that says why not.

    An asymmetry that rounding can explain (half the digits of the dtype, relative to the two
    standard deviations) is averaged away. ``advice`` ends the error about a singular covariance.
    """
    require_finite("covariance", covariance)
    require_symmetric(covariance)
    symmetric = (covariance + covariance.mT) / 2
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(symmetric)
    _require_positive_definite(symmetric.detach(), factor.detach(), failed > 0, advice)
    return factor


def symmetric_tolerance(covariance: Tensor) -> Tensor:
    """Return how far each entry ij may be off: √eps times the standard deviations of i and j."""
    deviations = covariance.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    scale = torch.maximum(
        deviations.unsqueeze(-1) * deviations.unsqueeze(-2),
        torch.maximum(covariance.abs(), covariance.mT.abs()),
    )
    return scale * math.sqrt(torch.finfo(covariance.dtype).eps)


def require_added(ridge: object, shrinkage: object) -> None:
    """Raise unless the ridge is at least 0 and the shrinkage is 0 to 1 or ``"ledoit-wolf"``."""
    if not (isinstance(ridge, Real) and 0 <= float(ridge) < math.inf):
        raise InputError(f"ridge is {ridge!r}, wanted a finite number of at least 0, such as 1e-6")
    if isinstance(shrinkage, str):
        if shrinkage != "ledoit-wolf":
            raise InputError(f'shrinkage is {shrinkage!r}, wanted "ledoit-wolf" or a number')
    elif not (isinstance(shrinkage, Real) and 0 <= float(shrinkage) <= 1):
        raise InputError(f'shrinkage is {shrinkage!r}, wanted 0 to 1 or "ledoit-wolf"')


@torch.no_grad()
def require_symmetric(covariance: Tensor) -> None:
    """Raise unless a covariance [..., D, D] is symmetric up to rounding."""
    difference = (covariance - covariance.mT).abs()
    excess = difference - symmetric_tolerance(covariance)
    if bool((excess <= 0).all()):
        return
    *where, i, j = map(int, np.unravel_index(int(excess.argmax()), tuple(excess.shape)))
    upper, lower = covariance[(*where, i, j)].item(), covariance[(*where, j, i)].item()
    raise InputError(
        f"covariance {list(covariance.shape)} is not symmetric{batch_entry(where)}: entry "
        f"[{i}, {j}] is {upper:.6g} but [{j}, {i}] is {lower:.6g} (the worst "
        f"of {int((excess > 0).sum()) // 2} pairs); make them equal"
    )


@torch.no_grad()
def _require_data_spread(
    rows: Tensor, mean: Tensor, n: int, *, ridge: float, shrinkage: float | str
) -> None:
    """Raise or warn unless n samples spread more along every direction than rounding does.

    ``rows`` is [..., M, D] with Σ = rowsᵀ rows: the centred data, or their triangular factor when
    n > D or when something was added. There are two sources of noise: the factorisation, eps times
    the largest spread, and the numbers themselves, eps |mean| / deviation, because they were
    rounded at the scale of the mean.
    """
    eps, dim = torch.finfo(rows.dtype).eps, rows.shape[-1]
    deviations = torch.linalg.vector_norm(rows, dim=-2)
    scale = torch.where(deviations > 0, deviations, 1.0)
    unit = rows / scale.unsqueeze(-2)
    offset = torch.hypot(mean / scale, torch.ones_like(mean))
    added = bool(ridge or shrinkage)
    if added or n > dim:  # then rows are triangular, and most often plainly good
        most_noise = eps * offset.amax(dim=-1).clamp(min=math.sqrt(dim))
        if bool((most_noise <= _TOLERATED_LOSS * _least_spread(unit.mT)).all()):
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
    if bool((rank < dim).any()):
        raise _no_spread(rank, dim, n, ridge=ridge, shrinkage=shrinkage)
    loss = torch.maximum(of_numbers, of_factorisation) / spread
    _warn_if_lost(loss.amax(dim=-1), rows.dtype, "compute in float64 or pass a larger ridge")


def _no_spread(
    rank: Tensor, dim: int, n: int, *, ridge: float, shrinkage: float | str
) -> SingularCovarianceError:
    where = _first(rank < dim)
    count = int(rank[where])
    if count == 0:
        remedy = "give samples that differ"
    elif ridge or shrinkage:
        remedy = (
            f"ridge={ridge!r} with shrinkage={shrinkage!r} adds too little, pass "
            f"ridge={max(1e-6, 100 * ridge):.3g} or more"
        )
    elif n == 2:  # Ledoit and Wolf see no noise in 2 samples and shrink by 0
        remedy = "pass ridge=1e-6"
    else:
        remedy = 'pass ridge=1e-6 or shrinkage="ledoit-wolf"'
    return SingularCovarianceError(
        f"covariance of N={n} samples with D={dim} inputs is singular{batch_entry(where)}: "
        f"{count} of {dim} directions have spread; {remedy}"
    )


@torch.no_grad()
def _require_positive_definite(
    covariance: Tensor, factor: Tensor, failed: Tensor, advice: str
) -> None:
    """Raise or warn unless a covariance [..., D, D] has spread in all directions.

    ``factor`` is its Cholesky factor where that has not ``failed``. The eigenvalues of the
    correlation matrix decide; the error reports those of the covariance.
    """
    eps, dim = torch.finfo(covariance.dtype).eps, covariance.shape[-1]
    deviations = covariance.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    scale = torch.where(deviations > 0, deviations, 1.0)
    if not bool(failed.any()):
        least = _least_spread(factor / scale.unsqueeze(-1)).square()
        if bool((eps * dim <= _TOLERATED_LOSS * least).all()):  # the largest is at most D
            return
    values = torch.linalg.eigvalsh(covariance / scale.unsqueeze(-1) / scale.unsqueeze(-2))
    noise = (10 + math.sqrt(dim)) * eps * values[..., -1:].abs()
    rank = (values > noise).sum(dim=-1)
    if covariance.dtype != torch.float64:
        advice = f"give it in float64 or {advice}"
    bad = failed | (rank < dim)
    if bool(bad.any()):
        where = _first(bad)
        raw = torch.linalg.eigvalsh(covariance[where])
        facts = f"smallest eigenvalue {raw[0].item():.3g}, largest {raw[-1].item():.3g}"
        shape = f"covariance {list(covariance.shape)}"
        if bool(values[(*where, 0)] < -noise[(*where, 0)]):
            raise InputError(
                f"{shape} is not positive definite{batch_entry(where)}: {facts}; "
                f"no spread is negative, check the entries"
            )
        count = min(int(rank[where]), dim - 1)
        raise SingularCovarianceError(
            f"{shape} is singular, so not positive definite{batch_entry(where)}: {count} of "
            f"{dim} directions have spread, {facts}; {advice}"
        )
    loss = eps * values[..., -1] / values[..., 0]
    _warn_if_lost(loss, covariance.dtype, advice)


def _least_spread(unit: Tensor) -> Tensor:
    """Return a lower bound [...] of the singular values of lower-triangular factors [..., D, D].

    The smallest is at least 1 / ‖unit⁻¹‖ (Frobenius), which costs far less than the value itself.
    """
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    inverse = torch.linalg.solve_triangular(unit, identity, upper=False)
    bound: Tensor = 1 / torch.linalg.matrix_norm(inverse)
    return bound


def _first(flags: Tensor) -> tuple[int, ...]:
    """Return the index of the first true flag of a batch."""
    return tuple(flags.nonzero()[0].tolist())


def _warn_if_lost(loss: Tensor, dtype: torch.dtype, advice: str) -> None:
    """Warn when rounding, ``loss`` relative to the smallest spread, leaves too few digits."""
    worst = float(loss.max()) if loss.numel() else 0.0
    if worst > _TOLERATED_LOSS:
        warnings.warn(
            f"covariance is nearly singular in {dtype_name(dtype)}: distances along its "
            f"narrowest direction keep about {max(0.0, -math.log10(worst)):.1f} digits; {advice}",
            IllConditionedWarning,
            stacklevel=_users_level(),
        )


def _users_level() -> int:
    """Return the ``stacklevel`` at which a warning of the caller names a line of the user.

    That is the first frame outside this package and torch, however deep the call came from.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level
