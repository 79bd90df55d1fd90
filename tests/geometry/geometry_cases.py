"""Helpers of the geometry tests: every kind of ellipsoids, and its distances, slow and obvious."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mahalens.errors import InputError
from mahalens.geometry.ellipsoids import from_covariance

DTYPES = [torch.float32, torch.float64]
NAN = float("nan")
# How each is made from covariances.
OPTIONS = {
    "full": {"kind": "full"},
    "low-rank": {"kind": "low-rank", "rank": 2},
    "low-rank-ragged": {"kind": "low-rank", "rank": "auto", "explained": 0.8},
    "remainder": {"kind": "low-rank+remainder", "rank": 2},
    "remainder-ragged": {"kind": "low-rank+remainder", "rank": "auto", "explained": 0.8},
    "remainder-precision": {"kind": "low-rank+remainder", "rank": 2, "remainder": "precision"},
    "diagonal": {"kind": "diagonal"},
    "spherical": {"kind": "spherical"},
    "shared-basis": {"kind": "shared-basis", "rank": 2},
}
NAMES = list(OPTIONS)
ROWS = ["full", "low-rank", "low-rank-ragged"]
REMAINDERS = [name for name in NAMES if name.startswith("remainder")]
WITH_L1 = [*ROWS, "diagonal", "spherical"]
BOTH = [(name, "l2") for name in NAMES] + [(name, "l1") for name in WITH_L1]
WITH_DENSITY = [name for name in NAMES if not name.startswith("low-rank")]


def refused(call, message, kind=InputError):
    """Assert that the call raises this error, in one line and without a cause; return it."""
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is None
    return error.value


def normal(*shape, seed=0, dtype=torch.float64):
    """Return standard normal numbers, the same in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def norms_of(name):
    return ("l2", "l1") if name in WITH_L1 else ("l2",)


def leaves(ellipsoids):
    """Return copies of the tensors that ask for gradients."""
    return {n: t.clone().requires_grad_() for n, t in ellipsoids.tensors().items()}


def some_covariances(count, dim, seed=0, condition=None):
    """Return covariances [K, D, D], some with a flat spectrum and some with a steep one."""
    g = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(count, dim, dim, generator=g, dtype=torch.float64))[0]
    if condition is None:
        steepness = torch.linspace(0.3, 1.5, count, dtype=torch.float64)[:, None]
        values = torch.exp(-steepness * torch.arange(dim, dtype=torch.float64) * 5 / dim)
        values = values * (1 + 0.2 * torch.rand(count, dim, generator=g, dtype=torch.float64))
    else:
        values = torch.logspace(0, -float(np.log10(condition)), dim, dtype=torch.float64)
        values = values.expand(count, dim)
    matrix = turned * values[:, None] @ turned.mT
    return (matrix + matrix.mT) / 2


def some_means(count, dim, seed=1):
    return 2 * normal(count, dim, seed=seed)


def make(name, count=7, dim=5, dtype=torch.float64, *, seed=0, condition=None):
    """Return ellipsoids of the kind in this dtype, always the same ones."""
    options = dict(OPTIONS[name])
    if isinstance(options.get("rank"), int):
        options["rank"] = min(options["rank"], dim)
    covariances = some_covariances(count, dim, seed, condition)
    return from_covariance(some_means(count, dim, seed + 1), covariances, **options).to(dtype)


def points(ellipsoids, count=9, seed=2):
    """Return points among the means and around them."""
    return (3 * normal(count, ellipsoids.dim, seed=seed)).to(ellipsoids.dtype)


def case(name, *size, n=9, **options):
    """Return ellipsoids of the kind, and points."""
    ellipsoids = make(name, *size, **options)
    return ellipsoids, points(ellipsoids, n)


def numbers(tensor):
    """Return an array with 64 bits of mantissa where the machine has them."""
    return tensor.detach().numpy().astype(np.longdouble)


def slow_distance(ellipsoids, x, k, norm="l2", numbers=numbers):
    """Return the distance of one point to one ellipsoid, as the documentation defines it.

    ``numbers`` makes arrays of the numbers that it is computed with.
    """
    delta = numbers(x) - numbers(ellipsoids.means[k])
    if ellipsoids.kind == "full":
        whitening = numbers(ellipsoids.whitening[k])
        if norm == "l1":
            root = torch.from_numpy(whitening.astype(np.float64))
            covariance = torch.linalg.inv(root.T @ root)
            values, vectors = torch.linalg.eigh(covariance)
            z = numbers(vectors).T @ delta / np.sqrt(numbers(values))
        else:
            z = whitening @ delta
    elif ellipsoids.kind == "diagonal":
        z = delta / numbers(ellipsoids.spreads[k])
    elif ellipsoids.kind == "spherical":
        z = delta / numbers(ellipsoids.spreads)[k]
    elif ellipsoids.kind == "shared-basis":
        basis = numbers(ellipsoids.basis)
        within = numbers(ellipsoids.whitening[k]) @ (basis @ delta)
        z = np.append(within, across(basis, delta) / numbers(ellipsoids.remainder)[k])
    else:
        axes = numbers(ellipsoids.axes[k])
        z = axes @ delta / numbers(ellipsoids.spreads[k])
        if ellipsoids.remainder is not None:
            z = np.append(z, across(axes, delta) / numbers(ellipsoids.remainder)[k])
    return np.abs(z).sum() if norm == "l1" else np.sqrt((z * z).sum())


def across(axes, delta):
    """Return what is left of a vector without its part along the axes."""
    for _ in range(3):  # rounded axes are at right angles up to rounding only
        delta = delta - axes.T @ (axes @ delta)
    return delta


def slow_distances(ellipsoids, x, norm="l2"):
    """Return all distances in float64."""
    table = [[slow_distance(ellipsoids, row, k, norm) for k in range(len(ellipsoids))] for row in x]
    return torch.from_numpy(np.array(table).astype(np.float64))


def plain_distances(tensors, kind, x, norm="l2"):
    """Return the same by tensor operations on [N, K, D], which autograd differentiates."""
    delta = x[:, None] - tensors["means"]
    if kind in ("diagonal", "spherical"):
        spreads = tensors["spreads"]
        z = delta / (spreads if kind == "diagonal" else spreads[:, None])
    elif kind == "full":
        z = torch.einsum("kij,nkj->nki", tensors["whitening"], delta)
        if norm == "l1":
            _, precisions, vectors = torch.linalg.svd(tensors["whitening"])
            z = torch.einsum("kij,nkj->nki", vectors, delta) * precisions
    elif kind == "shared-basis":
        p = delta @ tensors["basis"].T
        rest = (delta - p @ tensors["basis"]) / tensors["remainder"][:, None]
        z = torch.cat([torch.einsum("kij,nkj->nki", tensors["whitening"], p), rest], dim=-1)
    else:
        along = torch.einsum("krd,nkd->nkr", tensors["axes"], delta)
        z = along / tensors["spreads"]
        if "remainder" in tensors:
            rest = delta - torch.einsum("nkr,krd->nkd", along, tensors["axes"])
            z = torch.cat([z, rest / tensors["remainder"][:, None]], dim=-1)
    return z.abs().sum(dim=-1) if norm == "l1" else z.square().sum(dim=-1).sqrt()


def relative(actual, wanted):
    """Return the largest relative difference; 0 has to be met exactly."""
    gap = (actual.detach().double() - wanted).abs()
    return float(torch.where(gap > 0, gap / wanted.abs(), gap).max())


def close(actual, wanted, scale=1.0):
    """Assert equality up to the rounding of the dtype."""
    wanted = torch.as_tensor(wanted).to(actual.dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-11}[actual.dtype] * scale
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance * 1e-2)
