"""What stands between a layer and the one that reads it, found without running the model.

``torch.fx`` writes down what the forward pass does, module by module. A path is only taken for
known if every step treats each unit by itself, keeps their order and works for any number of them.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens.auditing.watch.functions import ELEMENTWISE, POOLED, UNCHANGED, name_of
from mahalens.nn.layers import Abs, Neg

_LINEAR_STEPS: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Flatten,
    nn.modules.dropout._DropoutNd,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.modules.pooling._AdaptiveAvgPoolNd,
)
_MAX_POOLS: tuple[type[nn.Module], ...] = (
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
_ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn, name)
    for name in (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid"),
        *("Tanh", "Softplus", "Softsign", "Hardtanh", "Hardswish", "Hardsigmoid", "LogSigmoid"),
        *("Tanhshrink", "Softshrink", "Hardshrink", "Threshold"),
    )
)
_TRANSFORMERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


@dataclass
class Path:
    """The way from a layer to its only reader."""

    norms: list[str] = field(default_factory=list)
    """Batch norms before the activation, by name."""
    activation: str | None = None
    """The activation's module, where it is one that is used once; else None."""
    active: bool = False
    """Whether there is an activation at all."""
    linear: bool = True
    """Whether all that follows it is linear: dropout, average pooling, flattening."""


class Paths:
    """The paths of a model.

    Args:
        model: a model; it is left as it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.graph: fx.Graph | None = None
        self.reason = ""
        # Modules that a proxy cannot get through are taken as they are in a second attempt.
        for opaque in (False, True):
            try:
                self.graph = _graph_of(model, opaque)
                return
            except Exception as error:  # forward passes fail in any way when given proxies
                self.reason = " ".join(str(error).split())[:120] or type(error).__name__

    def find(self, layer: str, reader: str) -> Path | str:
        """The path between two layers, or why there is none that can be relied on."""
        if self._in_transformer(layer, reader):
            return Path(active=True)
        if self.graph is None:
            return f"the forward pass cannot be followed ({self.reason})"
        for name in (layer, reader):
            if len(self._calls({name})) != 1:
                return f"{name} is not called as a module exactly once in the forward pass"
            if any(n.op == "get_attr" and f"{n.target}.".startswith(f"{name}.") for n in self._all):
                return f"the parameters of {name} are also used outside of it"
        path = Path()
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
                return path
            fault = self._step(node, path)
            if fault:
                return fault
            before = node

    @property
    def _all(self) -> list[fx.Node]:
        return [] if self.graph is None else list(self.graph.nodes)

    def _calls(self, names: set[str]) -> list[fx.Node]:
        return [n for n in self._all if n.op == "call_module" and n.target in names]

    def _step(self, node: fx.Node, path: Path) -> str:
        """Take one step, and say what is wrong with it if it cannot be taken."""
        if node.op == "call_module":
            return self._module_step(str(node.target), path)
        name = name_of(node.target) if callable(node.target) else str(node.target).strip("_")
        alone = len(node.all_input_nodes) == 1
        if name in ("view", "reshape"):
            return "" if _free_of_size(node) else f"{name} gives its output a fixed size"
        if name in ELEMENTWISE and alone and not path.active:
            path.active = True
        elif name in POOLED and alone and path.active:
            path.linear = path.linear and "avg" in name
        elif not (alone and (name in UNCHANGED or name == "flatten")):
            return f"{name} reads its output"
        return ""

    def _module_step(self, name: str, path: Path) -> str:
        module = self.model.get_submodule(name)
        if isinstance(module, _BatchNorm) and not path.active:
            path.norms.append(name)
        elif isinstance(module, _ACTIVATIONS) and not path.active:
            path.active = True
            path.activation = name if self._used_once(module) else None
        elif isinstance(module, _MAX_POOLS) and path.active and not module.return_indices:
            path.linear = False
        elif not isinstance(module, _LINEAR_STEPS):
            return f"{name}, a {type(module).__name__}, reads its output"
        return ""

    def _used_once(self, module: nn.Module) -> bool:
        everywhere = self.model.named_modules(remove_duplicate=False)
        names = {name for name, other in everywhere if other is module}
        return len(names) == 1 and len(self._calls(names)) == 1

    def _in_transformer(self, layer: str, reader: str) -> bool:
        """Whether the two are the feed-forward part of a transformer layer of torch."""
        path, _, first = layer.rpartition(".")
        if first != "linear1" or reader != f"{path}.linear2".lstrip("."):
            return False
        return type(self.model.get_submodule(path)) in _TRANSFORMERS


class _Tracer(fx.Tracer):
    def __init__(self, opaque: bool) -> None:
        super().__init__()
        self.opaque = opaque

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Our own modules look at the shape of what they are given, which a proxy does not have.
        own = type(m).__module__.startswith("mahalens.") and not isinstance(m, Abs | Neg)
        childless = self.opaque and not any(True for _ in m.children())
        return own or childless or super().is_leaf_module(m, module_qualified_name)


def _graph_of(model: nn.Module, opaque: bool) -> fx.Graph:
    # The forward pass may keep things on its modules, so it is followed through a copy of them;
    # parameters and buffers are shared, for they may be large and are not changed.
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return _Tracer(opaque).trace(twin)


def _asks_batch_size(node: fx.Node, user: fx.Node) -> bool:
    """Whether ``user`` is ``x.size(0)`` or ``x.shape[0]``, which no number of units changes."""
    if user.op == "call_method" and user.target == "size":
        return user.args == (node, 0)
    if user.target is getattr and user.args == (node, "shape"):
        return all(n.target is operator.getitem and n.args == (user, 0) for n in user.users)
    return False


def _free_of_size(node: fx.Node) -> bool:
    """Whether a view is ``(N, -1)`` with a batch size N that was asked for: any width fits."""
    sizes: Any = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = sizes[0]
    return len(sizes) == 2 and isinstance(sizes[0], fx.Node) and sizes[1] == -1
