"""Finds the layers of a model, and for each what follows it, by running a few samples."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.auditing.watch.functions import (
    ACROSS_UNITS,
    ELEMENTWISE,
    MAX_POOLED,
    MOVED,
    POOLED,
    RESHAPED,
    RISING,
    UNCHANGED,
    activation_of,
)
from mahalens.auditing.watch.site import Fold, Site
from mahalens.auditing.watch.trace import Use, tensors_in, weight_matrix

_State = Literal["before", "pooled", "active"]
"""Before the activation, before it and with only the largest values left, or after it."""


@dataclass
class _Mark:
    """Where a tensor comes from: a layer's output, with what was done to it so far."""

    ref: weakref.ref[Tensor]
    site: Site
    state: _State = "before"
    fold: Fold | None = None

    @property
    def active(self) -> bool:
        return self.state == "active"


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
                mark.site.is_followed("none", None, mark.fold)
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
        site.calls += 1
        site.outputs.append(use.output.detach().clone())  # what follows may work in place
        self._mark(use.output, _Mark(weakref.ref(use.output), site))

    def on_other(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note what a function does with the output of a layer."""
        outputs = list(tensors_in(result))
        if not outputs or name.startswith((".shape", ".grad", ".dtype", ".device")):
            return
        first = args[0] if args else kwargs.get("input")
        marked = False
        for mark in self._marks_in((args, kwargs)):
            own = isinstance(first, Tensor) and mark.ref() is first
            after = self._after(mark, func, name, args, kwargs, result) if own else None
            if after is None:
                self._unread(mark)
            else:
                after.ref = weakref.ref(outputs[0])
                self._mark(outputs[0], after)
                marked = True
        if not marked:
            # Functions that work in place return the tensor they were given, which is now another.
            for output in outputs:
                self._marks.pop(id(output), None)

    def finish(self, output: Any) -> None:
        """Note that the model's own output is read by the user."""
        for mark in self._marks_in(_plain(output)):
            mark.site.output = True
            self._unread(mark)
        self._marks.clear()
        for site in self.sites.values():
            site.settle()

    def _after(
        self, mark: _Mark, func: Any, name: str, args: Any, kwargs: Any, result: Any
    ) -> _Mark | None:
        """What the result is, or None if it is no longer the layer's own output."""
        site, source = mark.site, mark.ref()
        if name in UNCHANGED:
            return replace(mark)
        if mark.active:
            if name in POOLED and site.convolution:
                return replace(mark)
            if name not in RESHAPED or source is None or not isinstance(result, Tensor):
                return None
            return replace(mark) if _keeps_units(site, source, result) else None
        if name in ELEMENTWISE:
            called, function = activation_of(func, name, args, kwargs)
            if mark.state == "pooled":
                # The largest activation is that of the largest value only if it never falls.
                site.readers.add(None)
                if called not in RISING:
                    return None
            site.is_followed(called, function, mark.fold)
            return replace(mark, state="active")
        if name in ACROSS_UNITS:
            site.is_followed(name, None, mark.fold)
            site.readers.add(None)
            return replace(mark, state="active")
        if name in RESHAPED or name in MOVED:
            return replace(mark)
        if name in MAX_POOLED and site.convolution:
            return replace(mark, state="pooled")
        fold = None if mark.state == "pooled" else _affine(func, name, args, kwargs, site.units)
        if fold is None:
            return None
        return replace(mark, fold=fold if mark.fold is None else mark.fold.then(fold))

    def _unread(self, mark: _Mark) -> None:
        mark.site.readers.add(None)
        if not mark.active:
            mark.site.is_followed("none", None, mark.fold)

    def _mark(self, tensor: Tensor, mark: _Mark) -> None:
        self._marks[id(tensor)] = mark

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


def _affine(func: Any, name: str, args: Any, kwargs: Any, units: int) -> Fold | None:
    """Scale and shift [K] of a function that is affine in each unit: what can be folded in."""
    ones = torch.ones(units, dtype=torch.float64)
    if name == "neg":
        return Fold(-ones, torch.zeros_like(ones), "Neg")
    if name == "add" and len(args) == 2 and not kwargs:
        other = args[1]
        if isinstance(other, nn.Parameter) and other.shape == (units,):
            return Fold(ones, _vector(other, 0.0, units), "bias")
        return None
    read = _batch_norm(func, name, args, kwargs)
    if read is None:
        return None
    mean, variance, weight, bias, eps = read
    if not isinstance(mean, Tensor) or mean.shape != (units,):
        return None
    scale = _vector(weight, 1.0, units) / (_vector(variance, 1.0, units) + eps).sqrt()
    shift = _vector(bias, 0.0, units) - _vector(mean, 0.0, units) * scale
    return Fold(scale, shift, "BatchNorm")


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
