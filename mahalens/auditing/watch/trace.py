"""Watches a model run: every use of a Linear or a convolution, however it is written.

A :class:`torch.overrides.TorchFunctionMode` sees each of torch's functions that Python code
calls. So ``nn.Linear``, ``F.linear``, ``x @ weight.T``, the projections inside
``nn.MultiheadAttention`` and the operations of an exported program are all read alike, and no
hook is left on any module.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mahalens.auditing.watch.calls import read_convolution, read_linear
from mahalens.auditing.watch.functions import (
    CONVOLUTIONS,
    LAYERS,
    LINEAR,
    MOVED,
    TRANSPOSED,
    UNCHANGED,
    name_of,
)
from mahalens.auditing.watch.names import Names


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

    @property
    def units(self) -> int:
        """How many units K the layer has."""
        return self.weight.shape[0]


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
            use_of = self._layer_before(name, args, kwargs) if name in LAYERS else None
            if self.on_before is not None:
                self.on_before((args, kwargs))
        result = func(*args, **kwargs)
        with self._own():
            replaced = self._after(func, name, args, kwargs, use_of, result)
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

    def _after(self, func: Any, name: str, args: Any, kwargs: Any, use_of: Any, result: Any) -> Any:
        if args and (name in MOVED or name in UNCHANGED):
            self.names.copied(args[0], result, name in MOVED)
        if name in TRANSPOSED and len(args) > 1 and isinstance(args[1], Tensor):
            layer = self.names.layer_of(args[1], across=True)
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
        reader = read_linear if name in LINEAR else read_convolution
        read = reader(name, args, kwargs)
        if read is None:
            return None
        kind, x, weight, bias, geometry = read
        turned = name in ("addmm", "matmul", "mm") or "turned" in geometry
        across = turned or "transposed" in geometry
        layer = self.names.layer_of(weight, name == "linear" or name in CONVOLUTIONS, across)
        if layer is None:
            return None
        if reason := _why_not(x, weight, geometry):
            self.unread[layer] = reason
            return None
        matrix = weight.t() if turned else weight

        def use(result: Tensor) -> Use:
            of_conv = {} if kind == "Linear" else geometry
            called = "PointSlope" if self.names.point_slope(weight) else kind
            return Use(layer, called, x, matrix, bias, result, of_conv)

        return use


def _why_not(x: Tensor, weight: Tensor, geometry: Mapping[str, Any]) -> str | None:
    """Why a layer cannot be read, if it cannot."""
    if geometry.get("transposed"):
        return "a transposed convolution has no patches to measure"
    if x.is_complex() or weight.is_complex():
        return "is complex: its hyperplanes have no two sides"
    if any(torch._C._functorch.is_functorch_wrapped_tensor(part) for part in (x, weight)):
        return "is used inside a transform of torch.func, where its values cannot be seen"
    return None


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
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)


def weight_matrix(use: Use) -> Tensor:
    """The layer's rows [K, D] as float64 on the CPU."""
    return use.weight.detach().to("cpu").to(torch.float64).flatten(1)
