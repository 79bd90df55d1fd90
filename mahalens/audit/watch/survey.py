"""Finds the layers of a model, and for each what follows it, by running a few samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.audit.watch.functions import (
    ACROSS_UNITS,
    ELEMENTWISE,
    MOVED,
    POOLED,
    RESHAPED,
    UNCHANGED,
    activation_of,
)
from mahalens.audit.watch.trace import Use, tensors_in, weight_matrix

Activation = Callable[[Tensor], Tensor]


@dataclass
class Site:
    """A layer as the survey found it."""

    name: str
    kind: str
    weight: Tensor
    """[K, D], float64, CPU; what is folded in is not in it."""
    bias: Tensor
    shape: tuple[int, ...]
    """Of the weight as the model has it."""
    geometry: dict[str, tuple[int, ...]]
    calls: int = 0
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    """Of the output, in each call of one forward pass."""
    batch_axis: int | None = 0
    """Axis of the output that grows with the number of samples; None if none does."""
    sample_major: bool = True
    """Where that axis holds several rows of each sample: whether those of one stand together."""
    first_output: Tensor | None = None
    followed: dict[str, Activation | None] = field(default_factory=dict)
    """Functions that follow, by name; "none" for one that is no activation."""
    scale: Tensor | None = None
    shift: Tensor | None = None
    folded: str | None = None
    readers: set[str | None] = field(default_factory=set)
    """Layers that read the activations as they are; None for any other reader."""

    @property
    def units(self) -> int:
        """How many units K the layer has."""
        return self.weight.shape[0]

    @property
    def convolution(self) -> bool:
        """Whether units are along axis 1 of the output, and not along the last."""
        return self.kind.startswith("Conv")

    @property
    def activation(self) -> str:
        """The activation that follows; ``none``, or ``mixed`` where several functions do."""
        names = [name for name in self.followed if name != "none"]
        if not names:
            return "none"
        return names[0] if len(self.followed) == 1 else "mixed"

    @property
    def apply(self) -> Activation | None:
        """z -> f(z), where the activation treats each unit by itself."""
        return self.followed.get(self.activation)

    @property
    def feeds(self) -> str | None:
        """The one layer that reads the activations, if nothing else does."""
        return next(iter(self.readers)) if len(self.readers) == 1 else None

    def feeds_into(self, use: Use) -> bool:
        """Whether inputs of ``use`` are this layer's units, in order, each with equal share."""
        units = self.units
        if use.kind == "Linear":
            width = use.weight.shape[1]
            return width % units == 0 if self.convolution else width == units
        return self.convolution and use.weight.shape[1] == units and use.geometry["groups"] == (1,)

    def rows(self) -> Tensor:
        """The weights [K, D] with what follows folded in."""
        return self.weight if self.scale is None else self.weight * self.scale[:, None]

    def offsets(self) -> Tensor:
        """The biases [K] with what follows folded in."""
        scaled = self.bias if self.scale is None else self.bias * self.scale
        return scaled if self.shift is None else scaled + self.shift


@dataclass
class _Mark:
    """Where a tensor comes from: a layer's output before (``pre``) or after its activation."""

    ref: weakref.ref[Tensor]
    site: Site
    active: bool


class Survey:
    """Follows the outputs of layers to the functions that use them."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        self._marks: dict[int, _Mark] = {}

    def on_layer(self, use: Use) -> None:
        """Note a use of a layer; its input may be the output of another."""
        for mark in self._marks_in(use.input):
            mark.site.readers.add(use.name if mark.site.feeds_into(use) else None)
            if not mark.active:
                mark.site.followed.setdefault("none", None)
        for extra in (use.weight, use.bias):
            for mark in self._marks_in(extra):
                mark.site.readers.add(None)
        site = self.sites.get(use.name)
        if site is None:
            bias = torch.zeros(use.units, dtype=torch.float64)
            if use.bias is not None:
                bias = use.bias.detach().to("cpu").to(torch.float64)
            shape = tuple(use.weight.shape)
            site = Site(use.name, use.kind, weight_matrix(use), bias, shape, use.geometry)
            self.sites[use.name] = site
            site.first_output = use.output.detach().clone()  # what follows may work in place
        site.calls += 1
        site.shapes.append(tuple(use.output.shape))
        self._mark(use.output, site, active=False)

    def on_other(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note what a function does with the output of a layer."""
        outputs = list(tensors_in(result))
        if not outputs or name.startswith((".shape", ".grad", ".dtype", ".device")):
            return
        first = args[0] if args else kwargs.get("input")
        for mark in self._marks_in((args, kwargs)):
            own = isinstance(first, Tensor) and mark.ref() is first
            after = self._after(mark, func, name, args, kwargs, result) if own else None
            if after is None:
                self._unread(mark)
            else:
                self._mark(outputs[0], mark.site, active=after)

    def finish(self, output: Any) -> None:
        """Note that the model's own output is read by the user."""
        for mark in self._marks_in(_plain(output)):
            self._unread(mark)
        self._marks.clear()

    def _after(
        self, mark: _Mark, func: Any, name: str, args: Any, kwargs: Any, result: Any
    ) -> bool | None:
        """Whether the result is activated, or None if it is no longer the layer's own output."""
        site, source = mark.site, mark.ref()
        if name in UNCHANGED:
            return mark.active
        if mark.active:
            if name in POOLED and site.convolution:
                return True
            kept = name in RESHAPED and source is not None and isinstance(result, Tensor)
            return True if kept and _keeps_units(site, source, result) else None
        if name in ELEMENTWISE:
            called, function = activation_of(func, name, args, kwargs)
            site.followed[called] = function
            return True
        if name in ACROSS_UNITS:
            site.followed[name] = None
            site.readers.add(None)
            return None
        if name in RESHAPED or name in MOVED:
            return False
        folded = _affine(func, name, args, kwargs, site.units)
        if folded is None or (site.calls > 1 and site.scale is None):
            return None
        if site.calls == 1:
            scale, shift, called = folded
            before = site.shift if site.shift is not None else torch.zeros_like(shift)
            site.scale = scale if site.scale is None else site.scale * scale
            site.shift = before * scale + shift
            site.folded = called if site.folded is None else f"{site.folded}, {called}"
        return False

    def _unread(self, mark: _Mark) -> None:
        mark.site.readers.add(None)
        if not mark.active:
            mark.site.followed.setdefault("none", None)

    def _mark(self, tensor: Tensor, site: Site, active: bool) -> None:
        self._marks[id(tensor)] = _Mark(weakref.ref(tensor), site, active)

    def _marks_in(self, value: Any) -> list[_Mark]:
        found = []
        for tensor in tensors_in(value):
            mark = self._marks.get(id(tensor))
            if mark is not None and mark.ref() is tensor:
                found.append(mark)
        return found


def _keeps_units(site: Site, source: Tensor, result: Tensor) -> bool:
    """Whether a reshaped output still has a unit at each place, or a unit's block after another."""
    if not site.convolution:
        return result.shape[-1] == source.shape[-1]
    if result.shape[:2] == source.shape[:2]:
        return True
    return source.ndim > 2 and result.shape == source.flatten(1).shape


def _affine(
    func: Any, name: str, args: Any, kwargs: Any, units: int
) -> tuple[Tensor, Tensor, str] | None:
    """Scale and shift [K] of a function that is affine in each unit: what can be folded in."""
    ones = torch.ones(units, dtype=torch.float64)
    if name == "neg":
        return -ones, torch.zeros_like(ones), "Neg"
    if name == "add" and len(args) == 2 and not kwargs:
        other = args[1]
        if isinstance(other, nn.Parameter) and other.shape == (units,):
            return ones, _vector(other, 0.0, units), "bias"
        return None
    read = _batch_norm(func, name, args, kwargs)
    if read is None:
        return None
    mean, variance, weight, bias, eps = read
    if not isinstance(mean, Tensor) or mean.shape != (units,):
        return None
    scale = _vector(weight, 1.0, units) / (_vector(variance, 1.0, units) + eps).sqrt()
    return scale, _vector(bias, 0.0, units) - _vector(mean, 0.0, units) * scale, "BatchNorm"


def _batch_norm(func: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Mean, variance, weight, bias and eps of a batch norm that uses its running statistics."""
    if func is functional.batch_norm:
        order = ["input", "mean", "variance", "weight", "bias", "training", "momentum", "eps"]
        renamed = {"running_mean": "mean", "running_var": "variance"}
        given = dict(zip(order, args, strict=False))
        given |= {renamed.get(key, key): value for key, value in kwargs.items()}
    elif name == "batch_norm":
        order = ["input", "weight", "bias", "mean", "variance", "training", "momentum", "eps"]
        given = dict(zip(order, args, strict=False))
    elif name == "native_batch_norm_legit_no_training":
        order = ["input", "weight", "bias", "mean", "variance", "momentum", "eps"]
        given = dict(zip(order, args, strict=False))
    else:
        return None
    if given.get("training"):
        return None
    wanted = ("mean", "variance", "weight", "bias")
    return (*(given.get(key) for key in wanted), float(given.get("eps", 1e-5)))


def _vector(value: Any, default: float, units: int) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to("cpu").to(torch.float64)
    return torch.full((units,), default, dtype=torch.float64)


def _plain(output: Any) -> Any:
    """The tensors of a model's output, also of one that is an object with attributes."""
    if isinstance(output, Tensor | list | tuple | dict):
        return output
    return getattr(output, "__dict__", {})
