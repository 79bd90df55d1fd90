"""Random ellipsoids as source 002 draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from mahalens.data.streams import stream
from mahalens.errors import InputError
from mahalens.geometry import Ellipsoids, ellipsoids
from mahalens.geometry.checks import require_count

FLOOR = 0.5


class DrawnCovariances(Sequence[Tensor]):
    """Sigma_k = A_k A_k^T + 0.5 I with A_k standard normal [D, D]: drawn when asked for, not kept.

    At the size of source 002, 1024 matrices of 784 x 784, they would take 5 GB in float64.
    Matrix k depends on seed, D and k alone.
    """

    def __init__(self, dim: int, count: int, seed: int = 0) -> None:
        require_count("dim", dim)
        require_count("count", count)
        self.dim, self.seed = dim, seed
        self._length = count

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, k: int) -> Tensor: ...
    @overload
    def __getitem__(self, k: slice) -> list[Tensor]: ...
    def __getitem__(self, k: int | slice) -> Tensor | list[Tensor]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(self._length))]
        if not -self._length <= k < self._length:
            raise IndexError(f"covariance {k} of {self._length}")
        generator = stream(self.seed, "ellipsoid", k % self._length)
        a = torch.randn(self.dim, self.dim, generator=generator).double()
        return a @ a.T + FLOOR * torch.eye(self.dim, dtype=torch.float64)


def draw_points(dim: int, count: int, seed: int, purpose: str, dtype: torch.dtype) -> Tensor:
    """Standard normal points [N, D]; point n depends on seed, purpose, D and n alone."""
    rows = [
        torch.randn(dim, generator=stream(seed, purpose, n), dtype=torch.float64)
        for n in range(count)
    ]
    return torch.stack(rows).to(dtype)


def draw_ellipsoids(
    dim: int, count: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any
) -> Ellipsoids:
    """Draw ellipsoids as in source 002: means N(0, I), Sigma_k = A_k A_k^T + 0.5 I.

    ``options`` are those of :func:`mahalens.geometry.ellipsoids.from_covariance`.

    >>> draw_ellipsoids(5, 3, kind="low-rank+remainder", rank=2)
    LowRankEllipsoids(count=3, dim=5, rank=2, remainder=True, dtype=float32, device=cpu)
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype is {dtype}, wanted torch.float32 or torch.float64")
    means = draw_points(dim, count, seed, "means", dtype)
    return ellipsoids.from_covariance(means, DrawnCovariances(dim, count, seed), **options)
