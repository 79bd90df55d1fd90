"""Norms of rows_k (x - mean_k) for many points and ellipsoids, as blocked matrix products.

With points relative to a common centre, ``rows_k (x - mean_k) = rows_k x - rows_k mean_k``: one
product with the rows of all ellipsoids under each other, cut into panels that stay in the cache,
each reduced to its norms before the next is made. The subtraction needs no extra pass: the points
get a first input that is always 1, the rows a first column ``-rows_k mean_k``.

Also here: slopes of such norms (:class:`RowTangent`, :func:`descend_rows`), how far rounding may
have moved them (:func:`product_errors`), and the range in which a dtype can square numbers.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mahalens.geometry.covariance import root

Norm = Literal["l2", "l1"]


class Blocks(NamedTuple):
    """Sizes of the blocks into which products are cut; results do not depend on them.

    A panel of 1,600 rows times 1,024 points takes 6 MB in float32, which caches hold.
    """

    points: int = 1024
    rows: int = 1600
    """Rows in a panel, about: at least one ellipsoid is taken whole."""
    stripes: int = 4
    """Bands into which a triangular factor is cut; the zeros to their right are not multiplied."""
    smallest_stripe: int = 16
    small_matrix: int = 2**15
    """Matrices with fewer entries are multiplied in batches, larger ones one after the other."""


BLOCKS = Blocks()


@dataclass(frozen=True)
class Panel:
    """Rows of some ellipsoids, under each other, with their offsets in the first column.

    ``columns`` has the numbers of the ellipsoids; ``rows`` is [len(columns) height, 1 + width] and
    is multiplied with the first ``width`` inputs of a point only.
    """

    rows: Tensor
    columns: Tensor
    height: int


def panels(means: Tensor, rows: Tensor, ranks: Tensor, *, triangular: bool = False) -> list[Panel]:
    """Arrange rows [K, R, D] of ellipsoids with means [K, D] for :func:`row_norms`.

    Ellipsoids of similar rank share a panel, because those of smaller rank are filled up with rows
    of zeros. Triangular rows are cut into stripes; the stripes of the same ellipsoids follow each
    other and have the same ``columns`` object.
    """
    dim = rows.shape[-1]
    offsets = -torch.einsum("krd,kd->kr", rows, means)
    order = torch.argsort(ranks, descending=True, stable=True)
    arranged = []
    start = 0
    while start < len(order):
        stripes = [(0, max(1, int(ranks[order[start]])))]
        if triangular:
            count = max(1, min(BLOCKS.stripes, dim // BLOCKS.smallest_stripe))
            stripes = list(itertools.pairwise(round(dim * i / count) for i in range(count + 1)))
        tallest = max(bottom - top for top, bottom in stripes)
        columns = order[start : start + max(1, BLOCKS.rows // tallest)]
        start += len(columns)
        for top, bottom in stripes:
            width = bottom if triangular else dim
            offset, band = offsets[columns, top:bottom, None], rows[columns, top:bottom, :width]
            joined = torch.cat([offset, band], dim=-1).reshape(-1, 1 + width)
            arranged.append(Panel(joined, columns, bottom - top))
    return arranged


def row_norms(x: Tensor, arranged: Sequence[Panel], count: int, norm: Norm) -> Tensor:
    """Return the sum of squares (``"l2"``) or absolute values (``"l1"``) over rows: [N, count].

    x [N, D] is relative to the same centre as the means were.
    """
    result = x.new_zeros(len(x), count)
    points = torch.cat([x.new_ones(len(x), 1), x], dim=1)
    for panel in arranged:
        size, width = panel.rows.shape
        buffer = x.new_empty(min(BLOCKS.points, len(x)), size)
        for start in range(0, len(x), BLOCKS.points):
            block = points[start : start + BLOCKS.points, :width]
            product = torch.mm(block, panel.rows.T, out=buffer[: len(block)])
            parts = product.view(len(block), len(panel.columns), panel.height)
            norms: Tensor
            if norm == "l2":
                norms = torch.linalg.vector_norm(parts, dim=-1).square_()
            else:
                norms = torch.linalg.vector_norm(parts, ord=1, dim=-1)
            result[start : start + BLOCKS.points].index_add_(1, panel.columns, norms)
    return result


def row_products(x: Tensor, arranged: Sequence[Panel]) -> list[Tensor]:
    """Return the products themselves, [N, ellipsoids of the panel, height] for each panel."""
    points = torch.cat([x.new_ones(len(x), 1), x], dim=1)
    return [
        (points[:, : panel.rows.shape[1]] @ panel.rows.T).view(len(x), -1, panel.height)
        for panel in arranged
    ]


def pull_rows(weighted: Sequence[Tensor], arranged: Sequence[Panel], dim: int) -> Tensor:
    """Return ``Σ_k rows_kᵀ z_nk`` [N, dim] for products z of :func:`row_products`, weighted."""
    result = weighted[0].new_zeros(len(weighted[0]), dim)
    for z, panel in zip(weighted, arranged, strict=True):
        width = panel.rows.shape[1] - 1
        result[:, :width] += z.reshape(len(z), -1) @ panel.rows[:, 1:]
    return result


def pull_rows_each(
    products: Sequence[Tensor], arranged: Sequence[Panel], count: int, dim: int
) -> Tensor:
    """Return ``rows_kᵀ z_nk`` for each ellipsoid: [N, count, dim]."""
    result = products[0].new_zeros(len(products[0]), count, dim)
    for z, panel in zip(products, arranged, strict=True):
        width = panel.rows.shape[1] - 1
        rows = panel.rows[:, 1:].view(-1, panel.height, width)
        if panel.height * width < BLOCKS.small_matrix:
            pulled = torch.bmm(z.transpose(0, 1), rows).transpose(0, 1)
            result[:, :, :width].index_add_(1, panel.columns, pulled)
        else:  # one after the other: batched products with few points are slow
            for place, k in enumerate(panel.columns.tolist()):
                result[:, k, :width] += z[:, place] @ rows[place]
    return result


class _RowNorms(torch.autograd.Function):
    """:func:`row_norms` with gradients for points, means and rows, in as little memory.

    The backward pass computes the products again instead of storing them: [N, K R] numbers would
    be R times as many as the answer.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, means: Tensor, rows: Tensor, ranks: Tensor, norm: Norm
    ) -> Tensor:
        ctx.save_for_backward(x, means, rows)
        ctx.norm = norm
        return row_norms(x, panels(means, rows, ranks), len(means), norm)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, means, rows = ctx.saved_tensors
        slopes: tuple[Tensor | None, ...]
        if torch.is_grad_enabled():  # a gradient of this gradient will be asked for
            slopes = _differentiable_slopes(grad, x, means, rows, ctx.norm)
        else:
            slopes = _slopes(grad, x, means, rows, ctx.norm, ctx.needs_input_grad)
        return (*slopes, None, None)


def tracked_row_norms(x: Tensor, means: Tensor, rows: Tensor, ranks: Tensor, norm: Norm) -> Tensor:
    """Return :func:`row_norms` [N, K] for centred x and means, with gradients for all tensors."""
    values: Tensor = _RowNorms.apply(x, means, rows, ranks, norm)  # type: ignore[no-untyped-call]
    return values


def _slopes(
    grad: Tensor, x: Tensor, means: Tensor, rows: Tensor, norm: Norm, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    count, rank, dim = rows.shape
    of_x = torch.zeros_like(x) if needed[0] else None
    of_means = torch.zeros_like(means) if needed[1] else None
    of_rows = torch.zeros_like(rows) if needed[2] else None
    group = max(1, BLOCKS.rows // rank)
    for k in range(0, count, group):
        weight = rows[k : k + group].reshape(-1, dim)
        mean = means[k : k + group]
        offset = torch.einsum("krd,kd->kr", rows[k : k + group], mean).reshape(-1)
        total = weight.new_zeros(len(weight))
        of_weight = torch.zeros_like(weight) if of_rows is not None else None
        for start in range(0, len(x), BLOCKS.points):
            here = slice(start, start + BLOCKS.points)
            z = (x[here] @ weight.T).sub_(offset).view(len(x[here]), -1, rank)
            z = z.mul_(2) if norm == "l2" else z.sign_()
            pull = z.mul_(grad[here, k : k + group, None]).view(len(z), -1)
            if of_x is not None:
                of_x[here].addmm_(pull, weight)
            if of_weight is not None:
                of_weight.addmm_(pull.T, x[here])
            total += pull.sum(dim=0)
        spread = total.view(-1, rank, 1)
        if of_means is not None:
            of_means[k : k + group] = -(spread * weight.view(-1, rank, dim)).sum(dim=1)
        if of_rows is not None and of_weight is not None:
            of_rows[k : k + group] = of_weight.view(-1, rank, dim) - spread * mean[:, None]
    return of_x, of_means, of_rows


def _differentiable_slopes(
    grad: Tensor, x: Tensor, means: Tensor, rows: Tensor, norm: Norm
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same by differentiable operations; takes [N, K R] numbers."""
    z = torch.einsum("nd,krd->nkr", x, rows) - torch.einsum("krd,kd->kr", rows, means)
    pull = (2 * z if norm == "l2" else z.sign()) * grad[..., None]
    total = pull.sum(dim=0)
    of_rows = torch.einsum("nkr,nd->krd", pull, x) - total[..., None] * means[:, None]
    return (
        torch.einsum("nkr,krd->nd", pull, rows),
        -torch.einsum("kr,krd->kd", total, rows),
        of_rows,
    )


class Tangent(ABC):
    """The distances [N, K] of N points, and how they change with the points.

    Searches for points need it. The slope at distance 0, where there is a kink, is 0.
    """

    distances: Tensor

    @abstractmethod
    def pull(self, weights: Tensor) -> Tensor:
        """Return ``Σ_k weights_nk grad d_k(x_n)`` [N, D] for weights [N, K]."""

    @abstractmethod
    def jacobian(self) -> Tensor:
        """Return ``grad d_k(x_n)`` for every n and k: [N, K, D]."""


def inverse(distances: Tensor) -> Tensor:
    """Return 1 / d, and 0 at 0: the slope at the kink."""
    return torch.where(distances > 0, 1 / torch.where(distances > 0, distances, 1.0), 0.0)


@torch.no_grad()
def descend_rows(x: Tensor, targets: Tensor, arranged: Sequence[Panel], norm: Norm) -> Tensor:
    """Return the gradient [N, D] of ``½ Σ_k (d_k(x) - target_k)²``, a group of panels at a time.

    Both passes over a group happen while its rows are in the cache, which reads them from memory
    once instead of twice: reading is what takes the time for few points and many ellipsoids.
    """
    result = torch.zeros_like(x)
    for _, group in itertools.groupby(arranged, key=lambda panel: id(panel.columns)):
        members = list(group)
        wanted = targets[:, members[0].columns]
        products = row_products(x, members)
        if norm == "l2":
            distances = root(torch.stack([z.square().sum(dim=-1) for z in products]).sum(dim=0))
            weights = (distances - wanted) * inverse(distances)
        else:
            weights = torch.stack([z.abs().sum(dim=-1) for z in products]).sum(dim=0) - wanted
            products = [z.sign_() for z in products]
        result += pull_rows([z.mul_(weights[..., None]) for z in products], members, x.shape[1])
    return result


class RowTangent(Tangent):
    """Slopes of ``‖W_k (x - mean_k)‖``: ``W_kᵀ z / ‖z‖``, or ``W_kᵀ sign(z)`` for the L1 norm.

    ``x`` [N, D] is relative to the same centre as the panels.
    """

    def __init__(self, x: Tensor, arranged: Sequence[Panel], count: int, norm: Norm) -> None:
        self._arranged, self._count, self._dim, self._norm = arranged, count, x.shape[1], norm
        self._products = row_products(x, arranged)
        total = x.new_zeros(len(x), count)
        for z, panel in zip(self._products, arranged, strict=True):
            part = z.square() if norm == "l2" else z.abs()
            total.index_add_(1, panel.columns, part.sum(dim=-1))
        self.distances = root(total) if norm == "l2" else total

    def pull(self, weights: Tensor) -> Tensor:  # noqa: D102
        if self._norm == "l2":
            weights = weights * inverse(self.distances)
        weighted = [
            self._slope(z) * weights[:, panel.columns, None]
            for z, panel in zip(self._products, self._arranged, strict=True)
        ]
        return pull_rows(weighted, self._arranged, self._dim)

    def jacobian(self) -> Tensor:  # noqa: D102
        slopes = [self._slope(z) for z in self._products]
        pulled = pull_rows_each(slopes, self._arranged, self._count, self._dim)
        return pulled * inverse(self.distances)[..., None] if self._norm == "l2" else pulled

    def _slope(self, z: Tensor) -> Tensor:
        return z if self._norm == "l2" else z.sign()


@torch.no_grad()
def squares(rows: Tensor) -> Tensor:
    """Return the sum of the squares of all entries of each of rows [K, R, D]: [K]."""
    return torch.stack([matrix.square().sum() for matrix in rows.detach()])


@torch.no_grad()
def product_errors(x: Tensor, means: Tensor, values: Tensor, sizes: Tensor, norm: Norm) -> Tensor:
    """Return how far rounding may have moved the norms [N, K] of rows times centred x [N, D].

    A product w · x is off by about u ‖w‖ ‖x‖ with the unit roundoff u, and so is w · mean;
    the vector of products is then off by e = u ‖W‖ √(‖x‖² + ‖mean‖²), and its squared norm v by
    2 e √v + e².
    """
    reach = reaches(x, means)
    # Never below the root of the smallest number: sizes of less have lost digits themselves.
    error = reach * ((sizes + torch.finfo(x.dtype).tiny).sqrt() * unit_roundoff(x.dtype))
    return error if norm == "l1" else error.square().addcmul_(error, values.sqrt(), value=2)


@torch.no_grad()
def reaches(x: Tensor, means: Tensor) -> Tensor:
    """Return √(‖x‖² + ‖mean‖²) for every point and mean [N, K]."""
    of_x = x.square().sum(dim=1) + torch.finfo(x.dtype).tiny
    return (of_x[:, None] + means.square().sum(dim=1)).sqrt_()


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return how far rounding moves a number at most, relative to it."""
    return float(torch.finfo(dtype).eps) / 2


def wanted_accuracy(dtype: torch.dtype) -> float:
    """Return how far a distance may be off, relative to it."""
    return 5e-6 if dtype == torch.float32 else 1e-12


def widest(dtype: torch.dtype) -> float:
    """Return the largest spread that products may square; its inverse is the smallest."""
    return 2.0**30 if dtype == torch.float32 else 2.0**300


def least_values(dim: int, spreads: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the squared distances [K] below which underflow may cost digits.

    Products lose up to the smallest normal number per input, over the squared ``spreads`` [K, ...]
    that they are divided by. ``None`` where the squares of those would themselves be out of range.
    """
    lost = dim * torch.finfo(like.dtype).tiny / wanted_accuracy(like.dtype)
    if spreads is None:
        return like.new_full((len(like),), lost)
    low, high = torch.aminmax(spreads.detach().reshape(len(like), -1), dim=1)
    limit = widest(like.dtype)
    if not (float(low.min()) >= 1 / limit and float(high.max()) <= limit):
        return None
    return lost / low.clamp(max=1).square()
