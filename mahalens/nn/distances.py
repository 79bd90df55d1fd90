"""Distances to prototypes: the layer :class:`OffsetL2`, and squared distances tile by tile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from mahalens.nn.chain import VARIANTS
from mahalens.nn.layers import (
    is_exporting,
    require_known,
    require_parameters,
    require_sizes,
    require_width,
    root,
)

_FLOOR = 1e-12  # the published code takes no root of less
_TILE = 2**18  # differences held at once: few enough to stay in the cache of a processor core
_UNITS = 16  # units of a tile where there are many samples


class OffsetL2(nn.Module):
    """Distances to K prototypes, each with a scale per input: ``yₖ = ‖αₖ (x − μₖ)‖₂``.

    ``mu`` holds the prototypes and starts at N(0, 0.1²), ``alpha`` the scales and starts at 1
    (arXiv 2502.02103, section 6.4). Where a distance is 0 its gradient and its second
    derivative are defined as 0, as in :class:`~mahalens.nn.Norm`.

    The code published with the paper computes something else: α enters unsquared, which makes
    its sign matter, and the sum is cut off below. ``variant="published-code"`` is
    ``yₖ = √max(Σᵢ αₖᵢ (xᵢ − μₖᵢ)², 10⁻¹²)``, whose gradient is 0 below the cut.

    Prototypes are subtracted before anything is squared: a distance keeps its digits near its
    prototype. Neither the outputs nor their gradient hold the ``[N, K, D]`` differences;
    only a gradient that is itself to be differentiated does. Half precision is computed in
    float32, because float16 holds neither the squares of distances above 255 nor the cut. Samples
    are scaled before they are squared: only distances whose squares leave the range of
    the dtype (1.8e19 in float32) become infinite, or 0 below 1e-23.

    Args:
        inputs: D.
        units: K.
        variant: "paper" or "published-code", see above.

    Shapes: ``[..., D]`` to ``[..., K]``; ``mu`` and ``alpha`` ``[K, D]``.

    >>> layer = OffsetL2(2, 1)
    >>> _ = layer.load_state_dict({"mu": torch.ones(1, 2), "alpha": torch.tensor([[3.0, 2.0]])})
    >>> layer(torch.tensor([[2.0, 3.0], [1.0, 1.0]])).tolist()
    [[5.0], [0.0]]
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        variant: str = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("OffsetL2", inputs=inputs, units=units)
        require_parameters(f"OffsetL2({inputs}, {units})", 2 * inputs * units, device, dtype)
        require_known("OffsetL2", "variant", variant, VARIANTS)
        self.inputs = inputs
        self.units = units
        self.variant = variant
        self.mu = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.alpha = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the prototypes anew and set every scale to 1."""
        nn.init.normal_(self.mu, std=0.1)
        nn.init.ones_(self.alpha)

    def forward(self, x: Tensor) -> Tensor:
        """Return the distance of each sample to each prototype."""
        require_width("OffsetL2", x, self.inputs)
        dtype = torch.promote_types(x.dtype, self.mu.dtype)
        exact = torch.promote_types(dtype, torch.float32)
        published = self.variant == "published-code"
        flat, mu, alpha = x.reshape(-1, self.inputs).to(exact), self.mu.to(exact), self.alpha
        square = weighted_squares(flat, mu, alpha.to(exact), inside=not published)
        distance = square.clamp(min=_FLOOR).sqrt() if published else root(square)
        return distance.to(dtype).reshape(*x.shape[:-1], self.units)

    def extra_repr(self) -> str:
        """Return the arguments: the printed layer can be pasted back."""
        sizes = f"inputs={self.inputs}, units={self.units}"
        return sizes if self.variant == "paper" else f"{sizes}, variant={self.variant!r}"


def weighted_squares(
    x: Tensor, mu: Tensor, weight: Tensor, *, inside: bool = False, tile: int = _TILE
) -> Tensor:
    """Return ``sₙₖ = Σᵢ wₖᵢ (xₙᵢ − μₖᵢ)²``, or with ``inside`` ``Σᵢ (wₖᵢ (xₙᵢ − μₖᵢ))²``.

    The expanded square ``x² − 2xμ + μ²`` would need no differences, but near a prototype it is a
    small remainder of large numbers. Weights ``inside`` bring differences of any size into range
    before they are squared. About ``tile`` differences are held at once.

    Shapes: x ``[N, D]``, mu and weight ``[K, D]`` to ``[N, K]``.
    """
    if is_exporting():  # tiles are cut by sizes that an exported graph does not know
        difference = x[:, None] - mu
        scaled = (difference * weight).square() if inside else difference.square() * weight
        return scaled.sum(-1)
    # PyTorch loses terms where forward derivatives of a Function are nested (its issue 197867).
    # Should the level ever have another name, it refuses forward derivatives instead.
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return _Squares.forward(x, mu, weight, inside, tile)
    result: Tensor = _Squares.apply(x, mu, weight, inside, tile)  # type: ignore[no-untyped-call]
    return result


class _Squares(torch.autograd.Function):
    """Squares with a gradient that makes the differences again.

    Autograd would keep those of every tile for the way back, ``[N, K, D]`` in all.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mu: Tensor, weight: Tensor, inside: bool, tile: int) -> Tensor:
        rows, units = _tile_shape(x, tile)
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
        *tensors, ctx.inside, ctx.tile = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mu, weight = ctx.saved_tensors
        for_x, for_mu, for_weight, *_ = ctx.needs_input_grad
        rows, units = _tile_shape(x, ctx.tile)
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
            None,
        )


def _tile_shape(x: Tensor, tile: int) -> tuple[int, int]:
    """Return the samples and units taken at once, which keep the differences of a tile few."""
    samples, inputs = x.shape
    # Tiles neither long nor flat: sums over samples and sums over units then both stay small.
    rows = max(1, min(samples, tile // (_UNITS * inputs)))
    return rows, max(1, tile // (rows * inputs))


def _add(sums: dict[int, Tensor], place: int, term: Tensor) -> None:
    """Add without changing a tensor in place, which vmap could not follow."""
    sums[place] = sums[place] + term if place in sums else term
