"""An activation that is an absolute value for some units and a ReLU for the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mahalens.errors import InputError


class AbsReLU(nn.Module):
    """``|zₖ|`` for the units marked ``absolute``, ``max(zₖ, 0)`` for the others.

    Two mirrored ReLU units that are read with equal weights are one absolute value,
    ``relu(z) + relu(-z) = |z|``; a layer in which some units have such a mirror and others have
    none becomes, without its mirrors, a layer of both. :func:`mahalens.prune` makes these.

    Args:
        absolute: which units are absolute values, K times true or false.
        dim: the axis of the units: -1 for a Linear, -3 for a Conv2d (with a batch axis or
            without), -2 for a Conv1d.

    Shapes: any to the same; K along axis ``dim``. The buffer ``absolute`` is ``[K]``, bool.

    >>> AbsReLU([True, False])(torch.tensor([[-2.0, -3.0], [2.0, 3.0]]))
    tensor([[2., 0.],
            [2., 3.]])
    """

    absolute: Tensor

    def __init__(
        self,
        absolute: Tensor | Sequence[bool],
        *,
        dim: int = -1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        mask = torch.as_tensor(absolute, device=device)
        if mask.ndim != 1 or mask.dtype != torch.bool or not len(mask):
            raise InputError(
                f"AbsReLU was given {str(mask.dtype).removeprefix('torch.')} of shape "
                f"{tuple(mask.shape)}; give true or false for each unit"
            )
        if dim >= 0:
            raise InputError(
                f"AbsReLU with dim {dim}; count it from the end: -1 for a Linear, -3 for a Conv2d"
            )
        self.dim = dim
        self.register_buffer("absolute", mask.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        units = self.absolute.shape[0]
        if x.ndim < -self.dim or x.shape[self.dim] != units:
            raise InputError(
                f"AbsReLU of {units} units along axis {self.dim} was given an array of shape "
                f"{tuple(x.shape)}; give {units} along that axis"
            )
        mask = self.absolute.reshape(units, *[1] * (-self.dim - 1))
        return torch.where(mask, x.abs(), x.relu())

    def extra_repr(self) -> str:
        """How many units are of which kind."""
        if self.absolute.is_meta:  # a mask without values, as before weights are loaded
            return f"units={len(self.absolute)}, dim={self.dim}"
        marked = int(self.absolute.sum())
        return f"absolute={marked}, relu={len(self.absolute) - marked}, dim={self.dim}"


def first_units(absolute: int, units: int) -> Tensor:
    """The mask of a layer whose first units are absolute values, ``[K]`` bool.

    >>> first_units(1, 3)
    tensor([ True, False, False])
    """
    return torch.arange(units) < absolute
