"""Checks at the edge of public functions: tensors, options, and whether the memory is enough.

Errors are one line each.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError

SUPPORTED_DTYPES = (torch.float32, torch.float64)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def without_autocast(device: str) -> contextlib.AbstractContextManager[None]:
    """Keep products in the dtype that is asked for, on devices that would change it."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


def untouched_by_autocast(
    method: Callable[Concatenate[Any, _P], _T],
) -> Callable[Concatenate[Any, _P], _T]:
    """Let a method of an object with a device compute as if ``torch.autocast`` were off."""

    @functools.wraps(method)
    def exact(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with without_autocast(self.device.type):
            return method(self, *args, **kwargs)

    return exact


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


def count_of(name: str, value: object, least: int = 1) -> int:
    """Return a whole number of at least ``least`` as an int, whatever its kind; or raise.

    NumPy's whole numbers have a fixed width, in which sums and products would overflow.

    >>> count_of("k", np.int8(100)) * 2
    200
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{name} is {value!r}, wanted a whole number of at least {least}")
    return int(value)


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


def spreads_of(name: str, value: Tensor, means: Tensor, shape: Sequence[int]) -> Tensor:
    """Return positive numbers of this shape, and of dtype and device of the means, or raise."""
    value = tensor_of(name, value, means)
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
    return value


UNASKED = 2**28
"""Fewer bytes are granted without a look at the machine."""

_CONTAINER = Path("/sys/fs/cgroup")
_REFUSALS = ("allocate memory", "not enough memory", "out of memory")


def available_memory(container: Path = _CONTAINER) -> int | None:
    """Return the bytes that are free: of the machine, the container or the process.

    ``None`` where the system does not tell. ``container`` is the folder with the limits of a
    control group.
    """
    free = []
    readers = (_of_machine, _of_process, lambda: _of_container(container))
    for reader in (*readers, lambda: _of_older_container(container / "memory")):
        with contextlib.suppress(OSError, StopIteration, ValueError, ImportError):
            free.append(reader())
    if not free:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            free.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(free)) if free else None


def _of_machine() -> int:
    return _entry(Path("/proc/meminfo"), "MemAvailable") * 1024


def _of_process() -> int:
    """Return what ``ulimit -v`` leaves."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        raise ValueError("no limit")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _of_container(folder: Path) -> int:
    limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
    return limit - used + _entry(folder / "memory.stat", "inactive_file")


def _of_older_container(folder: Path) -> int:
    """Return the same for the first version of control groups."""
    limit = int((folder / "memory.limit_in_bytes").read_text())
    return limit - int((folder / "memory.usage_in_bytes").read_text())


def _entry(path: Path, name: str) -> int:
    lines = path.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def require_memory(size: int, what: str, remedy: str) -> None:
    """Raise unless ``size`` bytes are free; the error names what needs them and what to do."""
    if size < UNASKED:
        return
    available = available_memory()
    if available is not None and size > available:
        raise InputError(
            f"{what}: would take {in_gigabytes(size)} of memory and {in_gigabytes(available)} are "
            f"free; {remedy}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or torch is a failed allocation."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in text for part in _REFUSALS)
    )


@contextlib.contextmanager
def refusing_memory(what: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation into one line with what needed it and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        free = available_memory()
        rest = "" if free is None else f"; {in_gigabytes(free)} are free"
        raise InputError(f"{what}: takes more memory than there is{rest}; {remedy}") from None


def in_gigabytes(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"


def as_weight(weight: Tensor, finite: bool = True) -> Tensor:
    """Return the weight [K, D] as a detached float64 matrix on the CPU.

    With ``finite=False`` the caller deals with NaN and infinite entries.
    """
    if weight.dim() != 2 or 0 in weight.shape:
        raise InputError(
            f"weight has shape {list(weight.shape)}; give one layer's matrix [K, D] with at least "
            "one row and one column, and the layers of a stack one at a time"
        )
    return in_float64(weight, "weight", finite)


def as_bias(bias: Tensor, weight: Tensor, finite: bool = True) -> Tensor:
    """Return the bias [K] of ``weight`` [K, D] as a detached float64 vector on the CPU."""
    units = weight.shape[0]
    if bias.shape != (units,):
        raise InputError(
            f"bias has shape {list(bias.shape)}, but the weight {list(weight.shape)} wants "
            f"[{units}]; give the bias of the same layer, or zeros if it has none"
        )
    return in_float64(bias, "bias", finite)


def in_float64(tensor: Tensor, name: str, finite: bool = True) -> Tensor:
    """Return a tensor of real numbers, detached, as float64 on the CPU."""
    if not tensor.is_floating_point():
        raise InputError(
            f"{name} has dtype {tensor.dtype}; give real floating point numbers, for example with "
            ".float() or .double()"
        )
    moved = tensor.detach().to("cpu").to(torch.float64)  # in this order: not all devices have it
    if finite and not bool(moved.isfinite().all()):
        raise InputError(
            f"{name} has {int((~moved.isfinite()).sum())} entries that are NaN or infinite; give "
            "finite numbers, without what has diverged"
        )
    return moved
