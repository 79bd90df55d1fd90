"""What ellipsoids ask of the tensors they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite, require_same_kind, require_tensor


def require_norm(norm: str) -> None:
    """Ask for one of the norms over components."""
    if norm not in ("l2", "l1"):
        raise InputError(f'norm is {norm!r}, wanted "l2" or "l1"')


def require_spreads(name: str, value: Tensor, means: Tensor, shape: Sequence[int]) -> None:
    """Ask for positive finite numbers of this shape, of the dtype and device of the means."""
    require_tensor(name, value, "[..., K]")
    require_same_kind(name, value, "means", means)
    if tuple(value.shape) != tuple(shape):
        raise InputError(
            f"{name} have shape {list(value.shape)}, wanted {list(shape)} for means of shape "
            f"{list(means.shape)}"
        )
    require_finite(name, value)
    if not bool((value.detach() > 0).all()):
        raise InputError(
            f"{name} are as small as {value.detach().min().item():.3g}, wanted all positive"
        )
