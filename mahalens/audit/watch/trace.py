"""Watches a model run: every use of a Linear or a convolution, however it is written.

A :class:`torch.overrides.TorchFunctionMode` sees each of torch's functions that Python code
calls. So ``nn.Linear``, ``F.linear``, ``x @ weight.T``, the projections inside
``nn.MultiheadAttention`` and the operations of an exported program are all read alike, and no
hook is left on any module.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from mahalens.audit.watch.functions import CONVOLUTIONS, LAYERS, LINEAR, MOVED, TRANSPOSED, name_of


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

    @property
    def units(self) -> int:
        """How many units K the layer has."""
        return self.weight.shape[0]


class Names:
    """Says which layer a weight belongs to: by the tensor itself, or by the module at work."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {id(t): name for name, t in model.named_parameters(remove_duplicate=False)}
        self.weights |= {id(t): name for name, t in model.named_buffers(remove_duplicate=False)}
        self.modules = {id(m): name for name, m in model.named_modules()}
        self.at_work: list[nn.Module] = []
        self.used: set[str] = set()
        """Names of the weights that layers were seen to use."""
        self._turned: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def turn(self, source: Any, result: Any) -> None:
        """Remember that ``result`` is a transposed weight."""
        if isinstance(result, Tensor) and (known := self.weights.get(id(source))) is not None:
            self._turned[id(result)] = (weakref.ref(result), known)

    def layer_of(self, weight: Tensor) -> str | None:
        """The layer's name, or None for a matrix that is no weight of the model."""
        known = self.weights.get(id(weight))
        if known is None and (turned := self._turned.get(id(weight))) is not None:
            known = turned[1] if turned[0]() is weight else None
        module = self.at_work[-1] if self.at_work else None
        if isinstance(module, nn.Linear | _ConvNd) and id(module) in self.modules:
            own = self.modules[id(module)]
            computed = known is None and weight.shape == module.weight.shape  # as by weight_norm
            if computed or module._parameters.get("weight") is weight:
                self.used.add(known or f"{own}.weight")
                return own or type(module).__name__
        if known is None:
            return None
        self.used.add(known)
        path, _, last = known.rpartition(".")
        if last == "weight":
            return path or "weight"
        return f"{path}.{last.removesuffix('_weight')}" if path else last.removesuffix("_weight")

    @contextmanager
    def following(self) -> Iterator[None]:
        """Keep track of the module at work, by two global hooks that are always taken away."""

        def enter(module: nn.Module, args: Any) -> None:
            self.at_work.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self.at_work:
                self.at_work.pop()

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


class Tracer(TorchFunctionMode):
    """Calls ``on_layer`` after each use of a layer, and ``on_other`` after any other function.

    ``on_layer(use)`` and ``on_other(func, name, args, kwargs, result)`` may return a value to go
    on with instead of the one computed; None keeps it.
    """

    def __init__(
        self,
        names: Names,
        on_layer: Callable[[Use], Any],
        on_other: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.names = names
        self.on_layer = on_layer
        self.on_other = on_other
        self.unread: dict[str, str] = {}
        """Layers that were used in a way that is not read, and why."""
        self.fault: Exception | None = None
        """An error of the reading itself, which is not the model's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See one function."""
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self:
                return _opened(func)(*args, **kwargs)
        name = name_of(func)
        with self._own():
            use_of = self._layer_before(name, args, kwargs) if name in LAYERS else None
        result = func(*args, **kwargs)
        with self._own():
            replaced = self._after(func, name, args, kwargs, use_of, result)
        return result if replaced is None else replaced

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Tell faults of the reading from those of the model."""
        try:
            yield
        except Exception as error:
            self.fault = error
            raise

    def _after(self, func: Any, name: str, args: Any, kwargs: Any, use_of: Any, result: Any) -> Any:
        if name in MOVED and args:
            self.names.turn(args[0], result)
        if name in TRANSPOSED and len(args) > 1 and isinstance(args[1], Tensor):
            layer = self.names.layer_of(args[1])
            if layer is not None:
                self.unread[layer] = "a transposed convolution has no patches to measure"
        if use_of is not None and isinstance(result, Tensor):
            return self.on_layer(use_of(result))
        if self.on_other is not None:
            return self.on_other(func, name, args, kwargs, result)
        return None

    def _layer_before(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Tensor], Use] | None:
        """What the function is a use of, if its matrix is a weight of the model."""
        reader = _read_linear if name in LINEAR else _read_conv
        read = reader(name, args, kwargs)
        if read is None:
            return None
        kind, x, weight, bias, geometry = read
        layer = self.names.layer_of(weight)
        if layer is None:
            return None
        if geometry.get("transposed"):
            self.unread[layer] = "a transposed convolution has no patches to measure"
            return None
        matrix = weight.t() if name in ("addmm", "matmul", "mm") else weight

        def use(result: Tensor) -> Use:
            return Use(layer, kind, x, matrix, bias, result, geometry)

        return use


_Read = tuple[str, Tensor, Tensor, Tensor | None, dict[str, tuple[int, ...]]]


def _read_linear(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Read | None:
    given = list(args)
    if name == "addmm":
        if len(given) < 3 or kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1:
            return None
        bias, x, weight = given[:3]
    else:
        names = ("input", "weight") if name == "linear" else ("input", "other")
        x = given[0] if given else kwargs.get(names[0])
        weight = given[1] if len(given) > 1 else kwargs.get(names[1], kwargs.get("mat2"))
        bias = (given[2] if len(given) > 2 else kwargs.get("bias")) if name == "linear" else None
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and weight.ndim == 2):
        return None
    vector = bias if isinstance(bias, Tensor) and bias.ndim == 1 else None
    return "Linear", x, weight, vector, {}


def _read_conv(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Read | None:
    order = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    if name == "convolution":
        order[6:] = ["transposed", "output_padding", "groups"]
    given = dict(zip(order, args, strict=False)) | kwargs
    x, weight = given.get("input"), given.get("weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return None
    dims = CONVOLUTIONS[name] or weight.ndim - 2
    padding = given.get("padding", 0)
    geometry = {
        "kernel": tuple(weight.shape[2:]),
        "stride": _each(given.get("stride", 1), dims),
        "dilation": _each(given.get("dilation", 1), dims),
        "groups": (int(given.get("groups", 1)),),
    }
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(geometry["dilation"], weight.shape[2:], strict=True)]
        geometry["padding"] = tuple(span // 2 for span in spans)
        geometry["padding_end"] = tuple(span - span // 2 for span in spans)
    else:
        geometry["padding"] = _each(0 if padding == "valid" else padding, dims)
    if given.get("transposed"):
        geometry["transposed"] = (1,)
    return f"Conv{dims}d", x, weight, given.get("bias"), geometry


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(int(v) for v in value) if isinstance(value, list | tuple) else (int(value),)
    return values * dims if len(values) == 1 else values


def _opened(func: Any) -> Any:
    """The function without its question whether something overrides it, so that we see inside."""
    inside = {**func.__globals__, "has_torch_function": lambda tensors: False}
    made = types.FunctionType(func.__code__, inside, func.__name__, func.__defaults__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, inside lists, tuples and dicts too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def weight_matrix(use: Use) -> Tensor:
    """The layer's rows [K, D] as float64 on the CPU."""
    return use.weight.detach().to("cpu").to(torch.float64).flatten(1)
