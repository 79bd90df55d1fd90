"""Whether a record is of a model, and whether a module's size may be changed."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, jit, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.errors import InputError

M = TypeVar("M", bound=nn.Module)

_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


class Changes:
    """Says which modules of a model can be given another size."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._owners: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._owners.setdefault(_memory(parameter), []).append(name)

    def fault(self, name: str) -> str:
        """What speaks against changing a module's size; empty if nothing does."""
        parts = name.split(".")
        for depth in range(len(parts)):
            above = submodule(self.model, ".".join(parts[:depth]))
            if isinstance(above, fx.GraphModule):
                return "is part of an exported program, whose sizes are fixed"
            if isinstance(above, jit.ScriptModule):
                return "is part of a TorchScript program, whose sizes are fixed"
        module = submodule(self.model, name)
        if module is None:
            return "is no module of its own"
        if nn.utils.parametrize.is_parametrized(module):
            return "has parametrised weights"
        norm = isinstance(module, _BatchNorm)
        if type(module) not in _PLAIN and not norm:
            return f"is a {type(module).__name__}, not a plain Linear or convolution"
        if module._parameters.get("weight") is None and not norm:
            return "has weights that are computed from others"
        if reason := not_as_written(module):
            return reason
        if getattr(module, "groups", 1) != 1:
            return "is a convolution in groups"
        for key, parameter in module.named_parameters(recurse=False):
            others = [o for o in self._owners[_memory(parameter)] if o != f"{name}.{key}"]
            if others:
                return f"shares its {key} with {others[0]}"
            if not parameter.is_floating_point():
                return f"has a {key} of type {parameter.dtype}"
        return ""


def not_as_written(module: nn.Module) -> str:
    """Why a module may do something other than its class in torch; empty if it cannot."""
    if not type(module).__module__.startswith("torch.nn"):
        return f"is a {type(module).__name__}, not a module of torch"
    if "forward" in vars(module):
        return "has been given another forward"
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return "has a hook, which may read or change single units"
    if any(getattr(nn.modules.module, hooks, None) for hooks in _GLOBAL_HOOKS):
        return "is called with a hook on all modules, which may read or change single units"
    return ""


def require_fitting(model: nn.Module, record: AuditRecord) -> None:
    """Refuse a record that is of another model."""
    for layer in record.layers:
        if layer.kind == "features":
            raise InputError(
                f"{layer.name} was audited from activations alone; audit the model to prune it"
            )
        module = submodule(model, layer.name)
        weight = getattr(module, "weight", None)
        if module is None or not isinstance(weight, Tensor):
            names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
            own = layer.name.removesuffix(" (transposed)")
            wanted = {f"{own}{end}" for end in ("_weight", ".weight", ".mu", ".distance.mu", "")}
            if not names & wanted and not isinstance(getattr(module, "mu", None), Tensor):
                raise InputError(
                    f"the model has no layer {layer.name!r}, but the record does; "
                    "give the model that was audited"
                )
            continue
        size = (weight.shape[0], weight[:1].numel())
        if size != (layer.units_count, layer.inputs):
            raise InputError(
                f"layer {layer.name} has {size[0]} units of {size[1]} inputs in the model and "
                f"{layer.units_count} of {layer.inputs} in the record; give the model that was "
                "audited, or audit this one"
            )


def require_same_weights(layer: LayerRecord, weight: Tensor) -> None:
    """Refuse weights that have changed since the audit: what was dead may have come to life."""
    if layer.hyperplanes is None:
        return
    lengths = layer.hyperplanes.length.double()
    if not torch.allclose(weight.norm(dim=1), lengths, rtol=1e-3, atol=1e-12, equal_nan=True):
        raise InputError(
            f"the weights of {layer.name} are not those that were audited; audit the model again"
        )


def copied(model: M, share: bool = False) -> M:
    """A copy of a model; it may share parameters and buffers, which may be large."""
    shared: dict[int, Any] = {}
    if share:
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    try:
        return copy.deepcopy(model, shared)
    except Exception as error:  # any, from the user's own modules
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model cannot be copied ({reason}); it was not changed") from error


def submodule(model: nn.Module, name: str) -> nn.Module | None:
    """The module of a layer, or None if the layer is none of its own."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        # A model that is itself a layer goes by the name of its class.
        return model if name == type(model).__name__ and not list(model.children()) else None


def _memory(parameter: Tensor) -> int:
    """Where a parameter's numbers lie: the same for tied ones and for views of one."""
    return parameter.untyped_storage().data_ptr() or id(parameter)


def double(tensor: Any) -> Tensor:
    """A parameter's numbers as float64 on the CPU."""
    plain: Tensor = tensor.detach().to("cpu").to(torch.float64)
    return plain
