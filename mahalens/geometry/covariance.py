"""From data, or from a covariance matrix, to a factor L with Sigma = L L^T.

The factor comes from the data directly where there are data; whether it can be trusted is
decided in :mod:`mahalens.geometry.conditioning`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import batch_entry, require_finite, require_tensor, tensor_of
from mahalens.geometry.conditioning import require_data_spread, require_positive_definite


def lower_factor(rows: Tensor) -> Tensor:
    """Give the lower-triangular L with L L^T = rows^T rows and a diagonal that is not negative.

    ``rows`` is [..., M, D] with M >= D. QR works on the rows themselves; forming rows^T rows
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

    They are near the largest value over ``dims``, which are kept with size 1; elsewhere they are 1.
    """
    size = x.detach().abs().amax(dim=dims, keepdim=True)
    limit = 2.0**30 if x.dtype == torch.float32 else 2.0**300
    odd = ((size > limit) | (size < 1 / limit)) & (size > 0) & torch.isfinite(size)
    exponents = torch.frexp(torch.where(odd, size, 1.0)).exponent - 1
    return torch.ldexp(torch.ones_like(size), exponents)


def centre(x: Tensor) -> tuple[Tensor, Tensor]:
    """Give mean [..., D] and centred data [..., N, D].

    Done twice: the second pass removes what rounding left of the mean in the first.
    """
    mean = x.mean(dim=-2, keepdim=True)
    left_over = (x - mean).mean(dim=-2, keepdim=True)
    return (mean + left_over).squeeze(-2), x - mean - left_over


def ledoit_wolf_shrinkage(x: Tensor) -> Tensor:
    """Give the weight in [0, 1] of the scaled identity that Ledoit and Wolf recommend.

    For x [..., N, D] with sample covariance S (divided by N) and m = trace(S) / D::

        weight = min(b2, d2) / d2,   d2 = ||S - m I||_F^2,
        b2 = sum_n ||x_n x_n^T - S||_F^2 / N^2   over the centred samples x_n

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
    unit = centred / _root(torch.where(variance > 0, variance, 1.0))  # now m = 1
    covariance = unit.mT @ unit / n
    identity = torch.eye(dim, dtype=x.dtype, device=x.device)
    d2 = (covariance - identity).square().sum(dim=(-2, -1))
    fourth = unit.square().sum(dim=-1).square().mean(dim=-1)
    b2 = (fourth - covariance.square().sum(dim=(-2, -1))) / n
    return torch.minimum(b2.clamp(min=0), d2) / torch.where(d2 > 0, d2, 1.0)


def estimate(x: Tensor, *, ridge: float, shrinkage: float | str) -> tuple[Tensor, Tensor]:
    """Give mean [..., D] and factor [..., D, D] of the samples x [..., N, D].

    With the unbiased covariance S, m = trace(S) / D and the weight a of the shrinkage::

        Sigma = (1 - a) S + (a + ridge) m I

    The identity enters as further rows under the centred data, so that this too is one QR.
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
        added = _root((weight + ridge) * variance) * identity
        rows = lower_factor(torch.cat([_root(1 - weight) * rows, added], dim=-2)).mT
    require_data_spread(rows, mean, n, ridge=ridge, shrinkage=shrinkage)
    return mean * unit.squeeze(-2), rows.mT * unit.mT


ADVICE = "add a multiple of the identity"


def factor_covariance(covariance: Tensor, advice: str = ADVICE) -> Tensor:
    """Give the Cholesky factor of a covariance [..., D, D], or say why there is none.

    ``advice`` is what to do about a singular one.
    An asymmetry that rounding can explain (half the digits of the dtype, relative to the two
    standard deviations) is averaged away.
    """
    require_finite("covariance", covariance)
    require_symmetric(covariance)
    symmetric = (covariance + covariance.mT) / 2
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(symmetric)
    require_positive_definite(symmetric.detach(), factor.detach(), failed > 0, advice)
    return factor


def symmetric_tolerance(covariance: Tensor) -> Tensor:
    """Give how far entry ij may be off: sqrt(eps) times the two standard deviations."""
    deviations = covariance.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    scale = torch.maximum(
        deviations.unsqueeze(-1) * deviations.unsqueeze(-2),
        torch.maximum(covariance.abs(), covariance.mT.abs()),
    )
    return scale * math.sqrt(torch.finfo(covariance.dtype).eps)


def _root(value: Tensor) -> Tensor:
    """Square root whose slope at 0 is 0 and not infinite."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)


def require_added(ridge: float, shrinkage: float | str) -> None:
    """Ask for a ridge of at least 0 and a shrinkage from 0 to 1, or its name."""
    if not (math.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge is {ridge!r}, wanted a finite number of at least 0, such as 1e-6")
    if isinstance(shrinkage, str):
        if shrinkage != "ledoit-wolf":
            raise InputError(f'shrinkage is {shrinkage!r}, wanted "ledoit-wolf" or a number')
    elif not 0 <= shrinkage <= 1:
        raise InputError(f'shrinkage is {shrinkage!r}, wanted 0 to 1 or "ledoit-wolf"')


@torch.no_grad()
def require_symmetric(covariance: Tensor) -> None:
    """Ask for a covariance [..., D, D] that is symmetric up to rounding."""
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
