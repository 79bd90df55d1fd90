"""What kinds that are rows have in common: rounding, slopes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from mahalens.geometry.ellipsoids.products import (
    Norm,
    Panel,
    pull_rows,
    pull_rows_each,
    root,
    row_products,
    unit_roundoff,
)
from mahalens.geometry.ellipsoids.tangent import Tangent, inverse


@torch.no_grad()
def squares(rows: Tensor) -> Tensor:
    """Sum of the squares of all entries of each of rows [K, R, D]: [K]."""
    return torch.stack([one.square().sum() for one in rows.detach()])


@torch.no_grad()
def product_errors(x: Tensor, means: Tensor, values: Tensor, sizes: Tensor, norm: Norm) -> Tensor:
    """How far rounding may have moved the norms [N, K] of rows times centred x [N, D].

    A product w . x is off by about u ||w|| ||x|| with the unit roundoff u, and so is w . mean;
    the vector of products is then off by e = u ||W||_F sqrt(||x||^2 + ||mean||^2), and its squared
    norm v by 2 e sqrt(v) + e^2.
    """
    reach = reaches(x, means)
    # Never below the root of the smallest number: sizes of less have lost digits themselves.
    error = reach * ((sizes + torch.finfo(x.dtype).tiny).sqrt() * unit_roundoff(x.dtype))
    return error if norm == "l1" else error.square().addcmul_(error, values.sqrt(), value=2)


@torch.no_grad()
def reaches(x: Tensor, means: Tensor) -> Tensor:
    """sqrt(||x||^2 + ||mean||^2) for every point and mean [N, K]."""
    of_x = x.square().sum(dim=1) + torch.finfo(x.dtype).tiny
    return (of_x[:, None] + means.square().sum(dim=1)).sqrt_()


@torch.no_grad()
def descend_rows(x: Tensor, targets: Tensor, arranged: Sequence[Panel], norm: Norm) -> Tensor:
    """Give the gradient [N, D] of ``1/2 sum_k (d_k(x) - target_k)^2``, a group of panels at a time.

    Going there and back within a group, while its rows are in the cache, reads them from memory
    once instead of twice. That is what counts for few points and many ellipsoids.
    """
    result = torch.zeros_like(x)
    for _, group in itertools.groupby(arranged, key=lambda panel: id(panel.columns)):
        some = list(group)
        wanted = targets[:, some[0].columns]
        products = row_products(x, some)
        if norm == "l2":
            distances = root(torch.stack([z.square().sum(dim=-1) for z in products]).sum(dim=0))
            weights = (distances - wanted) * inverse(distances)
        else:
            weights = torch.stack([z.abs().sum(dim=-1) for z in products]).sum(dim=0) - wanted
            products = [z.sign_() for z in products]
        result += pull_rows([z.mul_(weights[..., None]) for z in products], some, x.shape[1])
    return result


class RowTangent(Tangent):
    """Slopes of ||W_k (x - mean_k)||: W_k^T z / ||z||, or W_k^T sign(z) for the L1 norm.

    ``x`` [N, D] is relative to the same centre as the panels.
    """

    def __init__(self, x: Tensor, arranged: Sequence[Panel], count: int, norm: Norm) -> None:
        self._arranged, self._count, self._dim = arranged, count, x.shape[1]
        self._norm = norm
        self._products = row_products(x, arranged)
        total = x.new_zeros(len(x), count)
        for z, panel in zip(self._products, arranged, strict=True):
            part = z.square() if norm == "l2" else z.abs()
            total.index_add_(1, panel.columns, part.sum(dim=-1))
        self.distances = root(total) if norm == "l2" else total

    def pull(self, weights: Tensor) -> Tensor:
        """Give sum_k weights_nk grad d_k(x_n) [N, D] for weights [N, K]."""
        if self._norm == "l2":
            weights = weights * inverse(self.distances)
        weighted = [
            self._slope(z) * weights[:, panel.columns, None]
            for z, panel in zip(self._products, self._arranged, strict=True)
        ]
        return pull_rows(weighted, self._arranged, self._dim)

    def jacobian(self) -> Tensor:
        """Give grad d_k(x_n) for every n and k: [N, K, D]."""
        slopes = [self._slope(z) for z in self._products]
        found = pull_rows_each(slopes, self._arranged, self._count, self._dim)
        return found * inverse(self.distances)[..., None] if self._norm == "l2" else found

    def _slope(self, z: Tensor) -> Tensor:
        return z if self._norm == "l2" else z.sign()
