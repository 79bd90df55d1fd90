"""Checks of tensors and options at the edge of public functions; errors are one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError

SUPPORTED_DTYPES = (torch.float32, torch.float64)


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype without its module."""
    return str(dtype).removeprefix("torch.")


def tensor_of(name: str, value: Any, like: Tensor | None = None) -> Any:
    """Return an array (anything with ``__array__``) as a tensor, other values unchanged.

    An array takes dtype and device of ``like``. Without it floats of up to 32 bits become float32,
    other floats and whole numbers float64.

    >>> tensor_of("x", np.array([1, 2]))
    tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} is an array of {array.dtype}, wanted real numbers")
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    kind = like.dtype if like is not None else torch.float32 if small else torch.float64
    with np.errstate(over="ignore"):  # refused below
        wide = array.astype(np.float64 if kind == torch.float64 else np.float32, order="C")
    if not np.isfinite(wide).all() and np.isfinite(array).all():
        raise InputError(f"{name} has values too large for {dtype_name(kind)}; scale them")
    tensor = torch.from_numpy(wide)
    return tensor if like is None else tensor.to(like.device, like.dtype)


def whole_tensor_of(name: str, value: Any) -> Any:
    """Return an array of whole numbers as a tensor of int64, other values unchanged."""
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} are an array of {array.dtype}, wanted whole numbers")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{name} have {int(array.max())}, wanted numbers below 2^63")
    return torch.from_numpy(array.astype(np.int64, order="C", copy=True))


def labels_of(name: str, value: Any, samples: int) -> Tensor:
    """Return one whole number for each sample [N], or raise."""
    labels = whole_tensor_of(name, value)
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = dtype_name(labels.dtype) if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"{name} are {kind}, wanted a tensor of whole numbers [{samples}]")
    if tuple(labels.shape) != (samples,):
        raise InputError(
            f"{name} have shape {tuple(labels.shape)} for {samples} samples; give one label per "
            "sample"
        )
    return labels


def require_tensor(name: str, value: Tensor, shape: str) -> None:
    """Raise unless value is a float32 or float64 tensor with at least the named axes of ``shape``.

    ``shape`` is written as in the documentation, for example ``"[..., N, D]"``.
    """
    if not isinstance(value, Tensor):
        raise InputError(
            f"{name} is a {type(value).__name__}, wanted a torch tensor or a NumPy array {shape}; "
            f"convert it with torch.as_tensor"
        )
    if value.dtype not in SUPPORTED_DTYPES:
        raise InputError(
            f"{name} is {dtype_name(value.dtype)}, wanted float32 or float64; "
            f"convert it with {name}.double()"
        )
    axes = shape.strip("[]").split(", ")[1:]
    if value.ndim < len(axes) or 0 in value.shape[value.ndim - len(axes) :]:
        raise InputError(
            f"{name} has shape {list(value.shape)}, wanted {shape} with {' and '.join(axes)} "
            f"at least 1; a single point x of length D is x[None]"
        )


def require_count(name: str, value: int, least: int = 1) -> None:
    """Raise unless value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}, wanted a whole number of at least {least}")


def require_finite(name: str, value: Tensor) -> None:
    """Raise if a tensor has NaN or infinite values."""
    if not value.numel():
        return
    ends = torch.stack(torch.aminmax(value.detach()))  # NaN passes through; no second array
    if bool(torch.isfinite(ends).all()):
        return
    bad = (~torch.isfinite(value)).nonzero()
    raise InputError(
        f"{name} has {len(bad)} value(s) of {value.numel()} that are NaN or infinite, the first "
        f"at {bad[0].tolist()}; remove or repair them"
    )


def require_same_kind(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless two tensors have one dtype and one device."""
    if value.dtype != other.dtype:
        raise InputError(
            f"{name} is {dtype_name(value.dtype)} and {other_name} {dtype_name(other.dtype)}; "
            f"convert one of them with .to(dtype=...)"
        )
    if value.device != other.device:
        raise InputError(
            f"{name} is on {value.device} and {other_name} on {other.device}; "
            f"move one of them with .to(device=...)"
        )


def require_matching(name: str, matrix: Tensor, mean: Tensor) -> None:
    """Raise unless a matrix is square and as wide as the mean is long."""
    dim = mean.shape[-1]
    if tuple(matrix.shape[-2:]) != (dim, dim):
        raise InputError(
            f"mean has length {dim} and {name} is {matrix.shape[-2]} x {matrix.shape[-1]}, "
            f"wanted {dim} x {dim}"
        )


def common_batch(
    name: str, shape: Sequence[int], other_name: str, other_shape: Sequence[int]
) -> torch.Size:
    """Return two batch shapes broadcast, or raise an error that names them."""
    try:
        return torch.Size(np.broadcast_shapes(tuple(shape), tuple(other_shape)))
    except ValueError:
        raise InputError(
            f"{name} has batch shape {list(shape)} and {other_name} {list(other_shape)}, which "
            f"do not broadcast; make them equal or give one of them size 1"
        ) from None


def batch_entry(index: Sequence[int]) -> str:
    """Return the words that name an entry of a batch in a message; none without a batch."""
    return f" (batch entry {list(index)})" if len(index) else ""


def require_norm(norm: str) -> None:
    """Raise unless the norm is one of those over components."""
    if norm not in ("l2", "l1"):
        raise InputError(f'norm is {norm!r}, wanted "l2" or "l1"')


def require_spreads(name: str, value: Tensor, means: Tensor, shape: Sequence[int]) -> None:
    """Raise unless value has this shape and positive numbers, and dtype and device of the means."""
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
