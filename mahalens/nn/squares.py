"""Squared distances to prototypes, tile by tile, with a gradient that holds no differences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_TILE = 2**18  # differences held at once: few enough to stay in the cache of a processor core
_UNITS = 16  # how many units a tile has where there are many samples


def weighted_squares(x: Tensor, mu: Tensor, weight: Tensor, *, inside: bool = False) -> Tensor:
    """Return ``sₙₖ = Σᵢ wₖᵢ (xₙᵢ − μₖᵢ)²``, tile by tile; ``inside``, ``Σᵢ (wₖᵢ (xₙᵢ − μₖᵢ))²``.

    The expanded square ``x² − 2xμ + μ²`` would need no differences, but near a prototype it is a
    small remainder of large numbers. Weights ``inside`` bring differences of any size into range
    before they are squared.

    Shapes: x ``[N, D]``, mu and weight ``[K, D]`` to ``[N, K]``.
    """
    # PyTorch loses terms where forward derivatives of a Function are nested (its issue 197867).
    # Should the level ever have another name, it refuses forward derivatives instead.
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return _Squares.forward(x, mu, weight, inside)
    result: Tensor = _Squares.apply(x, mu, weight, inside)  # type: ignore[no-untyped-call]
    return result


class _Squares(torch.autograd.Function):
    """The same with a gradient that makes the differences again.

    Autograd would keep those of every tile for the way back, ``[N, K, D]`` in all.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mu: Tensor, weight: Tensor, inside: bool) -> Tensor:
        rows, units = _tile(x)
        bands = []
        for xs in x.split(rows):
            cut = zip(mu.split(units), weight.split(units), strict=True)
            if inside:
                parts = [((xs[:, None] - ms) * ws).square().sum(-1) for ms, ws in cut]
            else:
                parts = [((xs[:, None] - ms).square() * ws).sum(-1) for ms, ws in cut]
            bands.append(torch.cat(parts, 1))
        return torch.cat(bands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.inside = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mu, weight = ctx.saved_tensors
        for_x, for_mu, for_weight, _ = ctx.needs_input_grad
        rows, units = _tile(x)
        # Sums by tile of samples or of units, in the order of the tiles.
        d_x: dict[int, Tensor] = {}
        d_mu: dict[int, Tensor] = {}
        d_weight: dict[int, Tensor] = {}
        for i, (xs, gs) in enumerate(zip(x.split(rows), grad.split(rows), strict=True)):
            cut = zip(mu.split(units), weight.split(units), gs.split(units, 1), strict=True)
            for j, (ms, ws, g) in enumerate(cut):
                difference = xs[:, None] - ms
                pull = g[..., None] * (difference * ws if ctx.inside else difference)
                if for_x:
                    _add(d_x, i, (pull * ws).sum(1))
                if for_mu:
                    _add(d_mu, j, pull.sum(0))
                if for_weight:
                    _add(d_weight, j, (pull * difference).sum(0))
        return (
            2 * torch.cat(list(d_x.values())) if for_x else None,
            -2 * weight * torch.cat(list(d_mu.values())) if for_mu else None,
            (1 + ctx.inside) * torch.cat(list(d_weight.values())) if for_weight else None,
            None,
        )


def _tile(x: Tensor) -> tuple[int, int]:
    """How many samples and units are taken at once, so that their differences stay few."""
    samples, inputs = x.shape
    # Tiles neither long nor flat: sums over samples and sums over units then both stay small.
    rows = max(1, min(samples, _TILE // (_UNITS * inputs)))
    return rows, max(1, _TILE // (rows * inputs))


def _add(sums: dict[int, Tensor], place: int, term: Tensor) -> None:
    """Add without changing a tensor in place, which vmap could not follow."""
    sums[place] = sums[place] + term if place in sums else term
