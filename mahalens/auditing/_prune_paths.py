"""What stands between a layer and the one that reads it.

``torch.fx`` writes down what the forward pass does, module by module; the shapes come from a run on
data. A path is only taken for known if every step treats each unit by itself, keeps their order and
works for any number of them. So the axis of the units is followed from the layer to its reader.
"""

from __future__ import annotations

import copy
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens.auditing.trace import ELEMENTWISE, POOLED, UNCHANGED, name_of
from mahalens.errors import InputError
from mahalens.nn.layers import Abs, Neg

M = TypeVar("M", bound=nn.Module)

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Shapes of the input and the output of each layer on some samples."""
_AVERAGES = (nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd)
_MAX_POOLS = (nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd)
_ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn, name)
    for name in (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid"),
        *("Tanh", "Softplus", "Softsign", "Hardtanh", "Hardswish", "Hardsigmoid", "LogSigmoid"),
        *("Tanhshrink", "Softshrink", "Hardshrink", "Threshold"),
    )
)
_TRANSFORMERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


@dataclass
class Path:
    """The way from a layer to its only reader, as far as it has been followed."""

    shape: tuple[int, ...]
    """Shape of the tensor that carries the units."""
    axis: int
    """Axis of the units."""
    block: int = 1
    """Number of places of a unit that follow one another along that axis, after flattening."""
    norms: list[str] = field(default_factory=list)
    """Batch norms before the activation, by name."""
    activation: str | None = None
    """The activation's module, where it is one that is used once; else None."""
    dim: int = -1
    """Axis of the units where the activation is, counted from the end."""
    active: bool = False
    """Whether there is an activation at all."""
    linear: bool = True
    """Whether all that follows it is linear: dropout, average pooling, flattening."""

    def flatten(self, start: int, end: int) -> str:
        """Follow a flattening; return what is wrong with it."""
        sizes, count = self.shape, len(self.shape)
        start, end = start % count, end % count
        if start <= self.axis <= end:
            if math.prod(sizes[start : self.axis]) != 1:
                return "flattening mixes its units with other axes"
            self.block *= math.prod(sizes[self.axis + 1 : end + 1])
            self.axis = start
        elif self.axis > end:
            self.axis -= end - start
        self.shape = (*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :])
        return ""

    def pool(self, function: Any, dims: int) -> str:
        """Follow a pooling over the last axes; return what is wrong with it."""
        if self.axis >= len(self.shape) - dims:
            return "pooling takes several of its units together"
        self.shape = tuple(function(torch.empty(self.shape, device="meta")).shape)
        return ""


class Paths:
    """The paths between the layers of a model, given the shapes of what they read and give."""

    def __init__(self, model: nn.Module, shapes: Shapes) -> None:
        self.model, self.shapes = model, shapes
        self.nodes: list[fx.Node] = []
        self.reason = ""
        # Modules that a proxy cannot get through are taken as they are in a second attempt.
        for opaque in (False, True):
            try:
                self.nodes = _nodes_of(model, opaque)
                return
            except Exception as error:  # forward passes fail in any way when given proxies
                self.reason = " ".join(str(error).split())[:120] or type(error).__name__

    def find(self, layer: str, reader: str) -> Path | str:
        """Return the path between two layers, or why there is none that can be relied on."""
        inside = self._in_transformer(layer, reader)
        if not self.nodes and not inside:
            return f"the forward pass cannot be followed ({self.reason})"
        read = [f"{node.target}." for node in self.nodes if node.op == "get_attr"]
        for name in () if inside else (layer, reader):
            if len(self._calls({name})) != 1:
                return f"{name} is not called as a module exactly once in the forward pass"
            if any(target.startswith(f"{name}.") for target in read):
                return f"the parameters of {name} are also used outside of it"
        for name in (layer, reader):
            if name not in self.shapes:
                return f"{name} is not called on the first samples of the data"
        output = self.shapes[layer][1]
        path = Path(output, len(output) - 1 - self._places(layer))
        if inside:
            path.active = True
            return path
        before = self._calls({layer})[0]
        while True:
            users = [user for user in before.users if not _asks_batch_size(before, user)]
            if len(users) != 1:
                return f"{len(users)} parts of the network read the output of {before.name}"
            node = users[0]
            if node.op == "output":
                return "it is part of the model's own output"
            if node.all_input_nodes.count(before) != 1 or node.args[:1] != (before,):
                return f"{node.name} reads it in a way that is not known"
            if node.op == "call_module" and node.target == reader:
                return self._misread(reader, path) or path
            fault = self._step(node, path)
            if fault:
                return fault
            before = node

    def _calls(self, names: set[str]) -> list[fx.Node]:
        return [n for n in self.nodes if n.op == "call_module" and n.target in names]

    def _places(self, name: str) -> int:
        """Return how many axes of positions follow the axis of a layer's units or inputs."""
        weight: Any = self.model.get_submodule(name).weight
        return int(weight.ndim - 2)

    def _misread(self, reader: str, path: Path) -> str:
        """Return why the reader does not sum over the units; empty if it does."""
        shape = self.shapes[reader][0]
        if shape != path.shape:
            return f"{reader} reads {list(shape)}, wanted {list(path.shape)} after what is known"
        places = self._places(reader)
        if path.axis != len(shape) - 1 - places or (places and path.block > 1):
            return f"{reader} reads along another axis than that of its units"
        return ""

    def _step(self, node: fx.Node, path: Path) -> str:
        """Take one step; return what is wrong with it, if it cannot be taken."""
        if node.op == "call_module":
            return self._module_step(str(node.target), path)
        name = name_of(node.target) if callable(node.target) else str(node.target).strip("_")
        alone = len(node.all_input_nodes) == 1
        if name in ("view", "reshape"):
            if not _free_of_size(node):
                return f"{name} gives its output a fixed size"
            return path.flatten(1, -1)
        if name in ELEMENTWISE and alone and not path.active:
            path.active = True
        elif name in POOLED and alone and path.active and (dims := re.search(r"(\d)d$", name)):
            path.linear = path.linear and "avg" in name
            rest, options = node.args[1:], node.kwargs
            function: Any = node.target
            return path.pool(lambda h: function(h, *rest, **options), int(dims[1]))
        elif alone and name == "flatten":
            ends: Any = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))
            ends |= node.kwargs
            return path.flatten(ends.get("start_dim", 0), ends.get("end_dim", -1))
        elif not (alone and name in UNCHANGED):
            return f"{name} reads its output"
        return ""

    def _module_step(self, name: str, path: Path) -> str:
        module: Any = self.model.get_submodule(name)
        if reason := not_as_written(module):
            return f"{name} {reason}"
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) and not path.active:
            if not self._used_once(module):
                return f"{name} follows several layers"
            if path.axis != 1 or path.block > 1:
                return f"{name}, a {kind}, works along another axis than that of its units"
            path.norms.append(name)
        elif isinstance(module, _ACTIVATIONS) and not path.active:
            path.active, path.dim = True, path.axis - len(path.shape)
            path.activation = name if self._used_once(module) and path.block == 1 else None
        elif isinstance(module, _AVERAGES):
            return path.pool(module, int(kind[-2]))
        elif isinstance(module, _MAX_POOLS) and path.active and not module.return_indices:
            path.linear = False
            return path.pool(module, int(kind[-2]))
        elif isinstance(module, nn.Flatten):
            return path.flatten(module.start_dim, module.end_dim)
        elif not isinstance(module, nn.Identity | nn.modules.dropout._DropoutNd):
            return f"{name}, a {kind}, reads its output"
        return ""

    def _used_once(self, module: nn.Module) -> bool:
        everywhere = self.model.named_modules(remove_duplicate=False)
        names = {name for name, other in everywhere if other is module}
        return len(names) == 1 and len(self._calls(names)) == 1

    def _in_transformer(self, layer: str, reader: str) -> bool:
        """Return whether the two are the feed-forward part of a transformer layer of torch."""
        path, _, first = layer.rpartition(".")
        if first != "linear1" or reader != f"{path}.linear2".lstrip("."):
            return False
        block: Any = self.model.get_submodule(path)
        if type(block) not in _TRANSFORMERS or "forward" in vars(block):
            return False
        between = (block.dropout, block.activation)
        return not any(isinstance(part, nn.Module) and not_as_written(part) for part in between)


class _Tracer(fx.Tracer):
    def __init__(self, opaque: bool) -> None:
        super().__init__()
        self.opaque = opaque

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Our own modules look at the shape of what they are given, which a proxy does not have.
        own = type(m).__module__.startswith("mahalens.") and not isinstance(m, Abs | Neg)
        childless = self.opaque and not any(True for _ in m.children())
        return own or childless or super().is_leaf_module(m, module_qualified_name)


def _nodes_of(model: nn.Module, opaque: bool) -> list[fx.Node]:
    # The forward pass may keep things on its modules, so it is followed through a copy of them.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return list(_Tracer(opaque).trace(copied(model, share=True)).nodes)


def _asks_batch_size(node: fx.Node, user: fx.Node) -> bool:
    """Return whether ``user`` is ``x.size(0)`` or ``x.shape[0]``, the same for any units."""
    if user.op == "call_method" and user.target == "size":
        return user.args == (node, 0)
    if user.target is getattr and user.args == (node, "shape"):
        return all(n.target is operator.getitem and n.args == (user, 0) for n in user.users)
    return False


def _free_of_size(node: fx.Node) -> bool:
    """Return whether a view is ``(N, -1)`` with the batch size N of a tensor: any width fits."""
    sizes: Any = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = sizes[0]
    return len(sizes) == 2 and isinstance(sizes[0], fx.Node) and sizes[1] == -1


def not_as_written(module: nn.Module) -> str:
    """Return why a module may do something other than its class in torch; empty if it cannot."""
    if not type(module).__module__.startswith("torch.nn"):
        return f"is a {type(module).__name__}, not a module of torch"
    if "forward" in vars(module):
        return "has been given another forward"
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return "has a hook, which may read or change single units"
    if any(getattr(nn.modules.module, hooks, None) for hooks in _GLOBAL_HOOKS):
        return "is called with a hook on all modules, which may read or change single units"
    return ""


def copied(model: M, share: bool = False) -> M:
    """Return a copy of a model; it may share parameters and buffers, which may be large."""
    shared: dict[int, Any] = {}
    if share:
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    try:
        return copy.deepcopy(model, shared)
    except Exception as error:  # any, from the user's own modules
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model cannot be copied ({reason}); it was not changed") from error
