"""A linear layer in point-slope form: every unit has a point it is zero at."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.errors import InputError
from mahalens.nn.sizes import require_parameters, require_sizes


class PointSlope(nn.Module):
    """K linear units, each with a point in place of a bias: ``yₖ = Σᵢ wₖᵢ (xᵢ − pₖᵢ)``.

    ``weight`` holds the slopes and starts as that of ``nn.Linear``, number by number from the same
    seed; ``point`` starts at N(0, 0.1²), as the prototypes of :class:`~mahalens.nn.OffsetL2`.
    The layer is the linear one with the bias ``−Σᵢ wₖᵢ pₖᵢ``; only a point, unlike a bias, can be
    read in the space of the inputs, and gradients move it along the slope.

    No differences ``[N, K, D]`` are made. Samples and points are both taken relative to the mean
    point of all units, which changes nothing but rounding: far from the origin, outputs keep
    their digits near the points as long as these are near each other.

    Shapes: ``[..., D]`` to ``[..., K]``; ``weight`` and ``point`` ``[K, D]``.

    >>> layer = PointSlope(2, 1)
    >>> state = {"weight": torch.tensor([[3.0, 2.0]]), "point": torch.ones(1, 2)}
    >>> _ = layer.load_state_dict(state)
    >>> layer(torch.tensor([[2.0, 3.0], [1.0, 1.0]])).tolist()
    [[7.0], [0.0]]
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("PointSlope", inputs=inputs, units=units)
        require_parameters(f"PointSlope({inputs}, {units})", 2 * inputs * units, device, dtype)
        self.inputs = inputs
        self.units = units
        self.weight = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.point = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw slopes and points anew, slopes first."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # what nn.Linear does
        nn.init.normal_(self.point, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the slope of each unit times the way from its point to each sample."""
        if x.ndim < 1 or x.shape[-1] != self.inputs:
            raise InputError(
                f"PointSlope of {self.inputs} inputs was given an array of shape "
                f"{tuple(x.shape)}; give [..., {self.inputs}]"
            )
        # No gradient goes through the centre: the outputs are the same whatever it is.
        centre = self.point.detach().mean(0)
        start = (self.weight * (centre - self.point)).sum(-1)
        return functional.linear(x - centre, self.weight, start)

    def extra_repr(self) -> str:
        """Return the arguments, so that what is printed can be pasted back."""
        return f"inputs={self.inputs}, units={self.units}"
