"""A layer whose units are distances to prototypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.nn.chain import VARIANTS
from mahalens.nn.layers import root
from mahalens.nn.sizes import require_parameters, require_sizes
from mahalens.nn.squares import weighted_squares

_FLOOR = 1e-12  # the published code takes no root of less


class OffsetL2(nn.Module):
    """Distances to K prototypes, each with a scale per input: ``yₖ = ‖αₖ (x − μₖ)‖₂``.

    ``mu`` holds the prototypes and starts at N(0, 0.1²), ``alpha`` the scales and starts at 1
    (arXiv 2502.02103, section 6.4). Where a distance is 0 its gradient, and its second
    derivative, are defined as 0, as in :class:`~mahalens.nn.Norm`.

    The code published with the paper computes something else: α enters unsquared, so that its
    sign matters, and the sum is cut off below. ``variant="published-code"`` is
    ``yₖ = √max(Σᵢ αₖᵢ (xᵢ − μₖᵢ)², 10⁻¹²)``, whose gradient is 0 below the cut.

    Prototypes are subtracted before anything is squared, so that a distance keeps its digits near
    its prototype. Neither the outputs nor their gradient hold the ``[N, K, D]`` differences;
    only a gradient that is itself to be differentiated does. Half precision is computed in
    float32: the squares of distances above 255 are no numbers of float16, nor is the cut. Samples
    are scaled before they are squared, so that only distances whose squares leave the range of
    the dtype (1.8e19 in float32) become infinite, or 0 below 1e-23.

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
        if variant not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise InputError(f"unknown variant {variant!r} of OffsetL2; known: {known}")
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
        if x.ndim < 1 or x.shape[-1] != self.inputs:
            raise InputError(
                f"OffsetL2 of {self.inputs} inputs was given an array of shape {tuple(x.shape)}; "
                f"give [..., {self.inputs}]"
            )
        kind = torch.promote_types(x.dtype, self.mu.dtype)
        exact = torch.promote_types(kind, torch.float32)
        published = self.variant == "published-code"
        flat, mu, alpha = x.reshape(-1, self.inputs).to(exact), self.mu.to(exact), self.alpha
        square = weighted_squares(flat, mu, alpha.to(exact), inside=not published)
        distance = square.clamp(min=_FLOOR).sqrt() if published else root(square)
        return distance.to(kind).reshape(*x.shape[:-1], self.units)

    def extra_repr(self) -> str:
        """Return the arguments, so that what is printed can be pasted back."""
        sizes = f"inputs={self.inputs}, units={self.units}"
        return sizes if self.variant == "paper" else f"{sizes}, variant={self.variant!r}"
