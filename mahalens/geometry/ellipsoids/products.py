"""Norms of rows_k (x - mean_k) for many points and ellipsoids, as blocked matrix products.

With points relative to a common centre, ``rows_k (x - mean_k) = rows_k x - rows_k mean_k``: one
product with the rows of all ellipsoids under each other, cut into panels that stay in the cache,
each reduced to its norms before the next is made. The subtraction costs no pass of its own: the
points get a first input that is always 1, the rows a first column ``-rows_k mean_k``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Norm = Literal["l2", "l1"]

POINTS = 1024
"""Points in a panel."""
ROWS = 1600
"""Rows in a panel, about: with as many points it takes 6 MB in float32, which caches hold."""
STRIPES = 4
"""Into how many bands a triangular factor is cut; what lies right of a band is never multiplied."""
SMALLEST_STRIPE = 16
SMALL_MATRIX = 2**15


@dataclass(frozen=True)
class Panel:
    """Rows of some ellipsoids, under each other, with their offsets in the first column.

    ``columns`` says which ellipsoids; ``rows`` is [len(columns) height, 1 + width] and meets the
    first ``width`` inputs of a point only.
    """

    rows: Tensor
    columns: Tensor
    height: int


def panels(means: Tensor, rows: Tensor, ranks: Tensor, *, triangular: bool = False) -> list[Panel]:
    """Arrange rows [K, R, D] of ellipsoids with means [K, D] for :func:`row_norms`.

    Ellipsoids of similar rank share a panel, so that little is multiplied by the zero rows that
    fill up those of smaller rank. Triangular rows are cut into stripes; those of the same
    ellipsoids come after each other, with the very same ``columns``.
    """
    dim = rows.shape[-1]
    offsets = -torch.einsum("krd,kd->kr", rows, means)
    order = torch.argsort(ranks, descending=True, stable=True)
    found = []
    start = 0
    while start < len(order):
        stripes = [(0, max(1, int(ranks[order[start]])))]
        if triangular:
            stripes = _stripes(dim)
        tallest = max(bottom - top for top, bottom in stripes)
        some = order[start : start + max(1, ROWS // tallest)]
        start += len(some)
        for top, bottom in stripes:
            width = bottom if triangular else dim
            offset, part = offsets[some, top:bottom, None], rows[some, top:bottom, :width]
            joined = torch.cat([offset, part], dim=-1).reshape(-1, 1 + width)
            found.append(Panel(joined, some, bottom - top))
    return found


def _stripes(height: int) -> list[tuple[int, int]]:
    count = max(1, min(STRIPES, height // SMALLEST_STRIPE))
    edges = [round(height * i / count) for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def row_norms(x: Tensor, arranged: Sequence[Panel], count: int, norm: Norm) -> Tensor:
    """Give sum of squares (``"l2"``) or of absolute values (``"l1"``) over rows: [N, count].

    x [N, D] is relative to the same centre as the means were.
    """
    result = x.new_zeros(len(x), count)
    points = torch.cat([x.new_ones(len(x), 1), x], dim=1)
    for panel in arranged:
        size, wide = panel.rows.shape
        buffer = x.new_empty(min(POINTS, len(x)), size)
        for start in range(0, len(x), POINTS):
            some = points[start : start + POINTS, :wide]
            product = torch.mm(some, panel.rows.T, out=buffer[: len(some)])
            parts = product.view(len(some), len(panel.columns), panel.height)
            found: Tensor
            if norm == "l2":
                found = torch.linalg.vector_norm(parts, dim=-1).square_()
            else:
                found = torch.linalg.vector_norm(parts, ord=1, dim=-1)
            result[start : start + POINTS].index_add_(1, panel.columns, found)
    return result


def row_products(x: Tensor, arranged: Sequence[Panel]) -> list[Tensor]:
    """Give the products themselves, [N, ellipsoids of the panel, height] for each panel."""
    points = torch.cat([x.new_ones(len(x), 1), x], dim=1)
    return [
        (points[:, : panel.rows.shape[1]] @ panel.rows.T).view(len(x), -1, panel.height)
        for panel in arranged
    ]


def pull_rows(weighted: Sequence[Tensor], arranged: Sequence[Panel], dim: int) -> Tensor:
    """Give sum_k rows_k^T z_nk [N, dim] for weighted products z as of :func:`row_products`."""
    result = weighted[0].new_zeros(len(weighted[0]), dim)
    for z, panel in zip(weighted, arranged, strict=True):
        width = panel.rows.shape[1] - 1
        result[:, :width] += z.reshape(len(z), -1) @ panel.rows[:, 1:]
    return result


def pull_rows_each(
    products: Sequence[Tensor], arranged: Sequence[Panel], count: int, dim: int
) -> Tensor:
    """Give rows_k^T z_nk for each ellipsoid apart: [N, count, dim]."""
    result = products[0].new_zeros(len(products[0]), count, dim)
    for z, panel in zip(products, arranged, strict=True):
        width = panel.rows.shape[1] - 1
        rows = panel.rows[:, 1:].view(-1, panel.height, width)
        if panel.height * width < SMALL_MATRIX:
            pulled = torch.bmm(z.transpose(0, 1), rows).transpose(0, 1)
            result[:, :, :width].index_add_(1, panel.columns, pulled)
        else:  # one after the other: batched products with few points are slow
            for place, k in enumerate(panel.columns.tolist()):
                result[:, k, :width] += z[:, place] @ rows[place]
    return result


class RowNorms(torch.autograd.Function):
    """:func:`row_norms` with gradients for points, means and rows, in as little memory.

    The products are made again on the way back instead of being kept: [N, K R] numbers would
    be more than the answer by a factor of R.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, means: Tensor, rows: Tensor, ranks: Tensor, norm: Norm
    ) -> Tensor:
        """Give the norms [N, K] for centred x [N, D] and means [K, D]."""
        ctx.save_for_backward(x, means, rows)
        ctx.norm = norm
        return row_norms(x, panels(means, rows, ranks), len(means), norm)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Give the gradients of x, means and rows from that of the norms."""
        x, means, rows = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient will be asked for
            return (*_slopes_for_more(grad, x, means, rows, ctx.norm), None, None)
        return (*_slopes(grad, x, means, rows, ctx.norm, ctx.needs_input_grad), None, None)


def _slopes(
    grad: Tensor, x: Tensor, means: Tensor, rows: Tensor, norm: Norm, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    count, rank, dim = rows.shape
    of_x = torch.zeros_like(x) if needed[0] else None
    of_means = torch.zeros_like(means) if needed[1] else None
    of_rows = torch.zeros_like(rows) if needed[2] else None
    group = max(1, ROWS // rank)
    for k in range(0, count, group):
        weight = rows[k : k + group].reshape(-1, dim)
        mean = means[k : k + group]
        offset = torch.einsum("krd,kd->kr", rows[k : k + group], mean).reshape(-1)
        total = weight.new_zeros(len(weight))
        of_weight = torch.zeros_like(weight) if of_rows is not None else None
        for start in range(0, len(x), POINTS):
            some = x[start : start + POINTS]
            z = (some @ weight.T).sub_(offset).view(len(some), -1, rank)
            z = z.mul_(2) if norm == "l2" else z.sign_()
            pull = z.mul_(grad[start : start + POINTS, k : k + group, None]).view(len(some), -1)
            if of_x is not None:
                of_x[start : start + POINTS].addmm_(pull, weight)
            if of_weight is not None:
                of_weight.addmm_(pull.T, some)
            total += pull.sum(dim=0)
        spread = total.view(-1, rank, 1)
        if of_means is not None:
            of_means[k : k + group] = -(spread * weight.view(-1, rank, dim)).sum(dim=1)
        if of_rows is not None and of_weight is not None:
            of_rows[k : k + group] = of_weight.view(-1, rank, dim) - spread * mean[:, None]
    return of_x, of_means, of_rows


def _slopes_for_more(
    grad: Tensor, x: Tensor, means: Tensor, rows: Tensor, norm: Norm
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by differentiable operations; takes [N, K R] numbers."""
    z = torch.einsum("nd,krd->nkr", x, rows) - torch.einsum("krd,kd->kr", rows, means)
    pull = (2 * z if norm == "l2" else z.sign()) * grad[..., None]
    total = pull.sum(dim=0)
    of_rows = torch.einsum("nkr,nd->krd", pull, x) - total[..., None] * means[:, None]
    return (
        torch.einsum("nkr,krd->nd", pull, rows),
        -torch.einsum("kr,krd->kd", total, rows),
        of_rows,
    )


def root(squared: Tensor) -> Tensor:
    """Square root with slope 0 at 0, where the true one is infinite.

    >>> x = torch.zeros(1, requires_grad=True)
    >>> root(x).backward()
    >>> x.grad
    tensor([0.])
    """
    positive = squared > 0
    # Two choices: a slope of infinity times 0 in the first would be NaN.
    # The product keeps NaN what it is.
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), squared.detach() * 0)


def unit_roundoff(dtype: torch.dtype) -> float:
    """How far rounding moves a number, relative to it, at most."""
    return float(torch.finfo(dtype).eps) / 2


def wanted_accuracy(dtype: torch.dtype) -> float:
    """How far a distance may be off, relative to it."""
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
