"""Watches a model run: every use of a Linear or a convolution, however it is written.

A :class:`torch.overrides.TorchFunctionMode` sees each of torch's functions that Python code
calls. So ``nn.Linear``, ``F.linear``, ``x @ weight.T``, the projections inside
``nn.MultiheadAttention`` and the operations of an exported program are all read alike, and no
hook is left on any module.
"""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from mahalens.nn.head import DistanceHead
from mahalens.nn.layers import OffsetL2, PointSlope
from mahalens.nn.mahalanobis import Mahalanobis

_LINEAR = {"linear", "addmm", "matmul", "mm", "einsum"}
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}
_TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
_NO_PATCHES = "a transposed convolution has no patches to measure"

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

HOMOGENEOUS = {"relu", "abs", "leaky_relu", "none"}
"""Activations with f(s z) = s f(z) for s > 0: a unit and a multiple of it say the same."""

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

READABLE = {
    "layer_norm": "LayerNorm", "native_layer_norm": "LayerNorm", "group_norm": "GroupNorm",
    "native_group_norm": "GroupNorm", "rms_norm": "RMSNorm", "instance_norm": "InstanceNorm",
    "batch_norm": "BatchNorm", "getitem": "indexing", "setitem": "assignment",
}  # fmt: skip
"""Functions that notes call by another name."""


@functools.lru_cache(maxsize=4096)
def name_of(func: Callable[..., Any]) -> str:
    """Return the one name of a function, however it is called.

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
) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return the name of an activation, and z -> f(z) with the same other arguments.

    ``clamp`` from 0 up is ``relu``, and limits to 0 and 6 are ``relu6``; other limits than -1 and
    1 have names of their own, as ``hardtanh(0, 4)``. The function never works in place.
    """
    if name in ("clamp", "hardtanh"):
        limits = low, high = _limits(name, args, kwargs)
        if limits == (0, None):
            return "relu", torch.relu
        if limits == (0, 6):
            return "relu6", functional.relu6
        if name == "hardtanh" and limits != (-1, 1):
            name = f"hardtanh({low:g}, {high:g})"
    if name in ("relu", "abs"):
        return name, getattr(torch, name)
    named = {key: value for key, value in kwargs.items() if key not in ("inplace", "input")}

    def apply(z: Tensor) -> Tensor:
        # Slopes of a PReLU are learnt, and come in the model's precision.
        others = (args[1:], named)
        rest, more = mapped(others, lambda v: v.to(z) if isinstance(v, Tensor) else v)
        return func(z.clone(), *rest, **more)  # type: ignore[no-any-return]

    return name, apply


def _limits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return the least and the greatest value that a function lets through."""
    clamped = name == "clamp"
    rows = {"min": None, "max": None} if clamped else {"min_val": -1.0, "max_val": 1.0}
    values = [
        kwargs.get(key, args[place] if len(args) > place else default)
        for place, (key, default) in enumerate(rows.items(), 1)
    ]
    # A tensor of limits is no number: such a clamp keeps its name.
    low, high = (v if v is None or isinstance(v, int | float) else math.nan for v in values)
    return low, high


@dataclass
class Use:
    """One use of a layer in a forward pass, seen after it was computed."""

    name: str
    kind: str
    input: Tensor
    weight: Tensor
    """[K, D], or [K, D / groups, *kernel] of a convolution."""
    bias: Tensor | None
    output: Tensor
    geometry: dict[str, tuple[int, ...]] = field(default_factory=dict)
    distance: bool = False
    """Whether the outputs are distances by construction: no linear map, and no bias."""
    turned: bool = False
    """Whether the columns of the matrix that the function was given are the units."""

    @property
    def units(self) -> int:
        """How many units K the layer has."""
        return self.weight.shape[0]


def _read_linear(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Use | None:
    """Return a product with a matrix as a use of a layer, or None if there is no such matrix."""
    turned = name != "linear"
    if name == "einsum":
        return _read_einsum(list(args))
    if name == "addmm":
        if len(args) < 3 or kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1:
            return None
        bias, x, weight = args[:3]
    else:
        other = "other" if turned else "weight"
        x = args[0] if args else kwargs.get("input")
        weight = args[1] if len(args) > 1 else kwargs.get(other, kwargs.get("mat2"))
        bias = None if turned else args[2] if len(args) > 2 else kwargs.get("bias")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and weight.ndim == 2):
        return None
    vector = bias if isinstance(bias, Tensor) and bias.ndim == 1 else None
    return Use("", "Linear", x, weight, vector, x, turned=turned)


def _read_einsum(args: list[Any]) -> Use | None:
    """``einsum("...d,kd->...k", x, w)`` or with w's letters in the other order."""
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if len(operands) != 2 or not isinstance(args[0], str):
        return None
    (x, weight), (left, _, out) = operands, args[0].replace(" ", "").partition("->")
    of_x, _, of_weight = left.partition(",")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and len(of_weight) == 2):
        return None
    inputs = of_x[-1:]
    unit = of_weight.replace(inputs, "", 1)
    if len(unit) != 1 or unit in of_x or out != of_x[:-1] + unit or weight.ndim != 2:
        return None
    return Use("", "Linear", x, weight, None, x, turned=of_weight[0] == inputs)


def _read_convolution(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Use | None:
    """Return a convolution as a use of a layer, with its geometry."""
    order = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    if name == "convolution":
        order[6:] = ["transposed", "output_padding", "groups"]
    named = dict(zip(order, args, strict=False)) | kwargs
    x, weight = named.get("input"), named.get("weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return None
    kernel, padding = tuple(weight.shape[2:]), named.get("padding", 0)
    geometry = {
        "kernel": kernel,
        "stride": _each(named.get("stride", 1), len(kernel)),
        "dilation": _each(named.get("dilation", 1), len(kernel)),
        "groups": (int(named.get("groups", 1)),),
    }
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(geometry["dilation"], kernel, strict=True)]
        geometry["padding"] = tuple(span // 2 for span in spans)
        geometry["padding_end"] = tuple(span - span // 2 for span in spans)
    else:
        geometry["padding"] = _each(0 if padding == "valid" else padding, len(kernel))
    if named.get("transposed"):
        geometry["transposed"] = (1,)
    return Use("", f"Conv{len(kernel)}d", x, weight, named.get("bias"), x, geometry)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(int(v) for v in value) if isinstance(value, list | tuple) else (int(value),)
    return values * dims if len(values) == 1 else values


# What watches a module that measures distances: its name, the module, its inputs and outputs.
Measured = Callable[[str, nn.Module, Any, Tensor], Any]


class Names:
    """Says which layer a weight belongs to: by the tensor itself, or by the module at work."""

    def __init__(self, model: nn.Module) -> None:
        # The first name of a tied weight counts. What torch.compile wraps keeps its own name.
        tensors = [*model.named_buffers(), *model.named_parameters()]
        self.weights = {id(t): name.replace("_orig_mod.", "") for name, t in tensors}
        modules = [(m, name.replace("_orig_mod", "")) for name, m in model.named_modules()]
        self.modules = {id(m): name.replace("..", ".").strip(".") for m, name in modules}
        self.at_work: list[nn.Module] = []
        self.measuring = 0
        """Modules at work that measure distances: nothing inside them is a layer of its own."""
        self.used: set[str] = set()
        """Names of the weights that layers were seen to use."""
        self._copies: dict[int, tuple[weakref.ref[Tensor], str, bool]] = {}
        # Which way round a weight is used where it gives its layer the name: as the module has
        # it, or else as it is used first.
        self._way: dict[str, bool] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | _ConvNd):
                known = self.weights.get(id(module._parameters.get("weight")))
                if known is not None and known == f"{name}.weight".lstrip("."):
                    self._way[known] = False

    def copied(self, source: Any, result: Any, moved: bool) -> None:
        """Remember that ``result`` is a weight: transposed, if ``moved``, or in other memory."""
        if not isinstance(result, Tensor) or not isinstance(source, Tensor):
            return
        known, turned = self._origin(source)
        if known is None or result is source or result.ndim != source.ndim:
            return
        if moved and result.ndim == 2:
            turned ^= result.stride() == source.stride()[::-1] or result.shape != source.shape
        key = id(result)
        self._copies[key] = (weakref.ref(result, lambda _: self._copies.pop(key)), known, turned)

    def _origin(self, weight: Tensor) -> tuple[str | None, bool]:
        """Return the name of the parameter that a tensor is, and whether it is transposed."""
        known = self.weights.get(id(weight))
        if known is None and (copy := self._copies.get(id(weight))) is not None:
            ref, name, turned = copy
            if ref() is weight:
                return name, turned
        return known, False

    def point_slope(self, weight: Tensor) -> bool:
        """Return whether a weight is that of the :class:`~mahalens.nn.PointSlope` at work."""
        module = self.at_work[-1] if self.at_work else None
        return isinstance(module, PointSlope) and module.weight is weight

    def was_used(self, weight: Tensor) -> bool:
        """Return whether a layer was seen to use this parameter."""
        return self.weights.get(id(weight)) in self.used

    def layer_of(self, weight: Tensor, computed: bool = False, across: bool = False) -> str | None:
        """Return the layer's name, or None for a matrix that is no weight of the model.

        A weight that is used both ways round, as that of an encoder in its decoder, makes two
        layers, of which the second is called ``name (transposed)``.

        Args:
            weight: as a function is given it.
            computed: whether it may be one that the module at work makes of its own.
            across: whether its columns, and not its rows, are the units.
        """
        known, turned = self._origin(weight)
        module = self.at_work[-1] if self.at_work else None
        if isinstance(module, PointSlope) and self.point_slope(weight):
            self.used.add(self.weights.get(id(module.point), ""))  # its bias is made of it
        if module is not None and id(module) in self.modules:
            module_name = self.modules[id(module)] or type(module).__name__
            if isinstance(module, nn.Linear | _ConvNd) and (
                module._parameters.get("weight") is weight
            ):
                self.used.add(known or "")
                return module_name
            if known is None and computed and (made_of := _made_of(module, weight)):
                self.used |= {self.weights.get(id(part), "") for part in made_of}
                return module_name
        if known is None:
            return self._part_of(weight)
        self.used.add(known)
        path, _, last = known.rpartition(".")
        name = path or "weight"
        if last != "weight":
            last = last.removesuffix("_weight")
            name = f"{path}.{last}" if path else last
        way = turned != across
        return name if self._way.setdefault(known, way) == way else f"{name} (transposed)"

    def _part_of(self, weight: Tensor) -> str | None:
        """Return the name of some rows of a weight, as attention cuts them from a large matrix."""
        whole = weight._base
        known = None if whole is None else self.weights.get(id(whole))
        if whole is None or known is None or weight.shape[1:] != whole.shape[1:]:
            return None
        if weight.ndim < 2 or weight.stride() != whole.stride():
            return None
        self.used.add(known)
        first = weight.storage_offset() // whole.stride(0)
        stem = known.removesuffix(".weight").removesuffix("_weight")
        return f"{stem}[{first}:{first + len(weight)}]"

    @contextmanager
    def following(self, measured: Measured) -> Iterator[None]:
        """Keep track of the module at work, by two global hooks that are always taken away.

        ``measured`` is shown the distances that our own layers measure, and may return others.
        """

        def enter(module: nn.Module, args: Any) -> None:
            self.at_work.append(module)
            self.measuring += isinstance(module, OffsetL2 | Mahalanobis)

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            if self.at_work:
                self.at_work.pop()
            if not isinstance(module, OffsetL2 | Mahalanobis):
                return None
            try:
                owner = self.at_work[-1] if self.at_work else module
                owner = owner if isinstance(owner, DistanceHead) else module
                if not isinstance(output, Tensor) or id(owner) not in self.modules:
                    return None
                self.used |= {self.weights.get(id(part), "") for part in module.parameters()}
                name = self.modules[id(owner)] or type(owner).__name__
                return measured(name, owner, args, output)
            finally:
                self.measuring -= 1

        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.at_work.clear()
            self.measuring = 0


def _made_of(module: nn.Module, weight: Tensor) -> list[Tensor]:
    """Parameters that a module makes a weight from, as by weight norm; empty if it does not."""
    linear = isinstance(module, nn.Linear | _ConvNd)
    parameters: list[Tensor] = list(module.parameters(recurse=False))
    parts = module._modules.get("parametrizations")
    hidden: list[Tensor] = [] if parts is None else list(parts.parameters())
    wanted = module.weight.shape if linear else None
    fits = weight.shape == wanted or any(weight.shape == part.shape for part in parameters)
    return parameters + hidden if fits and not weight._is_view() else []


class Tracer(TorchFunctionMode):
    """Calls ``on_layer`` after each use of a layer, and ``on_other`` after any other function.

    ``on_layer(use)`` and ``on_other(func, name, args, kwargs, result)`` may return a value to go
    on with instead of the one computed; None keeps it. ``on_before`` is shown the arguments of
    each function before it is called.
    """

    def __init__(
        self,
        names: Names,
        on_layer: Callable[[Use], Any],
        on_other: Callable[..., Any] | None = None,
        on_before: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.names = names
        self.on_layer = on_layer
        self.on_other = on_other
        self.on_before = on_before
        self.unread: dict[str, str] = {}
        """Layers that were used in a way that is not read, and why."""
        self.fault: Exception | None = None
        """An error of the reading itself, which is not the model's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See one function."""
        kwargs = kwargs or {}
        if self.names.measuring:
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:
                return _opened(func)(*args, **kwargs)
        name = name_of(func)
        with self._own():
            layer = name in _LINEAR or name in _CONVOLUTIONS
            use = self._layer_before(name, args, kwargs) if layer else None
            if self.on_before is not None:
                self.on_before((args, kwargs))
        result = func(*args, **kwargs)
        with self._own():
            replaced = self._after(func, name, args, kwargs, use, result)
        return result if replaced is None else replaced

    def measured(self, name: str, module: Any, args: tuple[Any, ...], output: Tensor) -> Any:
        """See the distances of a layer that measures them."""
        prototypes = getattr(module, "distance", module).mu
        x = args[0] if args and isinstance(args[0], Tensor) else output
        kind = type(module).__name__
        with self._own():
            return self.on_layer(Use(name, kind, x, prototypes, None, output, distance=True))

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Tell faults of the reading from those of the model."""
        try:
            yield
        except Exception as error:
            self.fault = error
            raise

    def _after(
        self, func: Any, name: str, args: Any, kwargs: Any, use: Use | None, result: Any
    ) -> Any:
        if args and (name in MOVED or name in UNCHANGED):
            self.names.copied(args[0], result, name in MOVED)
        if name in _TRANSPOSED and len(args) > 1 and isinstance(args[1], Tensor):
            layer = self.names.layer_of(args[1], across=True)
            if layer is not None:
                self.unread[layer] = _NO_PATCHES
        if use is not None and isinstance(result, Tensor):
            return self.on_layer(replace(use, output=result))
        if self.on_other is not None:
            return self.on_other(func, name, args, kwargs, result)
        return None

    def _layer_before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Use | None:
        """Return a use of a layer without its output, if the matrix is a weight of the model."""
        read = _read_linear if name in _LINEAR else _read_convolution
        use = read(name, args, kwargs)
        if use is None:
            return None
        weight, across = use.weight, use.turned or "transposed" in use.geometry
        layer = self.names.layer_of(weight, name == "linear" or name in _CONVOLUTIONS, across)
        if layer is None:
            return None
        if reason := _why_not(use):
            self.unread[layer] = reason
            return None
        kind = "PointSlope" if self.names.point_slope(weight) else use.kind
        return replace(use, name=layer, kind=kind, weight=weight.t() if use.turned else weight)


def _why_not(use: Use) -> str | None:
    """Return why a layer cannot be read, if it cannot."""
    if use.geometry.get("transposed"):
        return _NO_PATCHES
    if use.input.is_complex() or use.weight.is_complex():
        return "is complex: its hyperplanes have no two sides"
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (use.input, use.weight))):
        return "is used inside a transform of torch.func, where its values cannot be seen"
    return None


def _opened(func: Any) -> Any:
    """Return the function without its check for overrides, so that we see inside."""
    inside = {**func.__globals__, "has_torch_function": lambda tensors: False}
    made = types.FunctionType(func.__code__, inside, func.__name__, func.__defaults__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Return the tensors in a value, inside lists, tuples and dicts too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with everything in it changed, inside lists, tuples and dicts too."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(part, change) for part in value)
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    return change(value)
