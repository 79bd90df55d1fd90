"""Which of torch's functions are layers, activations, or leave values as they are.

Names are those that :func:`name_of` gives: the same for ``torch.relu``, ``F.relu``, ``x.relu_()``
and ``torch.ops.aten.relu.default``, so that modules, functions and exported programs read alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

LINEAR = {"linear", "addmm", "matmul", "mm", "einsum"}
CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3, "convolution": 0}
LAYERS = LINEAR | set(CONVOLUTIONS)
TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}

ELEMENTWISE = {
    "relu", "abs", "sigmoid", "tanh", "gelu", "silu", "softplus", "elu", "selu", "celu", "mish",
    "leaky_relu", "rrelu", "prelu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "softsign",
    "logsigmoid", "log_sigmoid", "threshold", "clamp", "square", "exp", "sin", "tanhshrink",
    "softshrink", "hardshrink", "erf",
}  # fmt: skip
"""Activations that treat each unit by itself."""

ACROSS_UNITS = {
    "softmax", "log_softmax", "softmin", "norm", "vector_norm", "linalg_vector_norm", "normalize",
    "glu", "logsumexp",
}  # fmt: skip
"""Activations that mix the units of a layer."""

EVEN = {"abs", "square"}
"""Activations with f(-z) = f(z): the most active inputs are those of largest |z|."""

RISING = {
    "relu", "sigmoid", "tanh", "softplus", "elu", "selu", "celu", "leaky_relu", "relu6", "hardtanh",
    "hardsigmoid", "softsign", "logsigmoid", "log_sigmoid", "exp", "erf",
}  # fmt: skip
"""Activations that never fall: the largest of several values stays the largest."""

FLAT_BEYOND: dict[str, tuple[float, float]] = {
    # |f'| below a hundredth of its largest value
    "sigmoid": (-5.989, 5.989),
    "tanh": (-2.993, 2.993),
    "hardsigmoid": (-3.0, 3.0),
    "hardtanh": (-1.0, 1.0),
    "softsign": (-9.0, 9.0),
    "relu6": (-float("inf"), 6.0),  # its lower end is that of relu: there units are inactive
    "erf": (-2.146, 2.146),
}
"""Where bounded activations are flat: below the first and above the second value of z."""

UNCHANGED = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
    "feature_alpha_dropout", "contiguous", "clone", "detach", "to", "float", "double", "half",
    "bfloat16", "type_as", "identity", "requires_grad", ".data", "alias", "lift_fresh_copy",
    "_to_copy",
}  # fmt: skip
"""Functions that leave every value where it is (dropout does when a model is evaluated)."""

RESHAPED = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view"}
MOVED = {"transpose", "permute", "movedim", "swapaxes", "t", ".T", ".mT", ".H", "swapdims"}
POOLED = {
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "boolean_dispatch",
}  # fmt: skip
"""Functions of a convolution's output that keep its channels apart."""
MAX_POOLED = {name for name in POOLED if "max_pool" in name}
ARITHMETIC = {
    "add", "sub", "rsub", "mul", "div", "neg", "maximum", "minimum", "where", "gt", "ge", "lt",
    "le",
}  # fmt: skip
"""Functions that treat each element by itself, whatever they are given."""
NO_VALUES = {
    "rand_like", "randn_like", "randint_like", "empty_like", "new_empty", "new_tensor", "new_full",
    "new_zeros", "new_ones", ".grad",
}  # fmt: skip
"""Functions that look at the shape of a tensor and at none of its values."""
FIRST_OF_SEVERAL = {
    "native_batch_norm_legit_no_training", "native_layer_norm", "native_group_norm",
} | MAX_POOLED  # fmt: skip
"""Functions that return what they make and, besides it, how they made it."""
_READABLE = {
    "layer_norm": "LayerNorm",
    "native_layer_norm": "LayerNorm",
    "group_norm": "GroupNorm",
    "native_group_norm": "GroupNorm",
    "rms_norm": "RMSNorm",
    "instance_norm": "InstanceNorm",
    "batch_norm": "BatchNorm",
    "getitem": "indexing",
    "setitem": "assignment",
}


def readable(name: str) -> str:
    """The name of a function as notes have it.

    >>> readable("layer_norm"), readable("add")
    ('LayerNorm', 'add')
    """
    return _READABLE.get(name, name)


@functools.lru_cache(maxsize=4096)
def name_of(func: Callable[..., Any]) -> str:
    """The name a function goes by here.

    >>> name_of(torch.relu), name_of(torch.Tensor.relu_), name_of(torch.ops.aten.relu_.default)
    ('relu', 'relu', 'relu')
    >>> name_of(torch.Tensor.T.__get__), name_of(torch.Tensor.__matmul__)
    ('.T', 'matmul')
    """
    if isinstance(func, torch._ops.OpOverload):
        name = func._schema.name.partition("::")[2]
    else:
        name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return f".{getattr(getattr(func, '__self__', None), '__name__', '?')}"
    name = name.strip("_")
    return {"rmatmul": "matmul", "absolute": "abs", "clamp_min": "clamp", "clip": "clamp"}.get(
        name, name
    )


def activation_of(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Callable[[Tensor], Tensor] | None]:
    """The name of an activation, and the function z -> f(z) with the same other arguments.

    ``clamp`` from 0 up is ``relu``, and limits to 0 and 6 are ``relu6``; other limits than -1 and
    1 have names of their own, as ``hardtanh(0, 4)``. The function is None for one that mixes
    units. It never works in place.
    """
    if name in ACROSS_UNITS:
        return name, None
    if name in ("clamp", "hardtanh"):
        low, high = _limits(name, args, kwargs)
        if (low, high) == (0, None):
            return "relu", torch.relu
        if (low, high) == (0, 6):
            return "relu6", functional.relu6
        if name == "hardtanh" and (low, high) != (-1, 1):
            name = f"hardtanh({low:g}, {high:g})"
    if name == "relu":
        return name, torch.relu
    if name == "abs":
        return name, torch.abs
    others = args[1:]
    named = {key: value for key, value in kwargs.items() if key not in ("inplace", "input")}

    def apply(z: Tensor) -> Tensor:
        # Slopes of a PReLU are learnt, and come in the model's precision.
        rest = [other.to(z) if isinstance(other, Tensor) else other for other in others]
        more = {key: v.to(z) if isinstance(v, Tensor) else v for key, v in named.items()}
        return func(z.clone(), *rest, **more)  # type: ignore[no-any-return]

    return name, apply


def _limits(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float | None, float | None]:
    """The least and the greatest value that a function lets through, as far as they are numbers."""
    keys, default = (("min", "max"), None) if name == "clamp" else (("min_val", "max_val"), 1.0)
    low = kwargs.get(keys[0], args[1] if len(args) > 1 else default and -default)
    high = kwargs.get(keys[1], args[2] if len(args) > 2 else default)
    # A tensor of limits is no number: such a clamp keeps its name.
    return tuple(v if v is None or isinstance(v, int | float) else math.nan for v in (low, high))  # type: ignore[return-value]
