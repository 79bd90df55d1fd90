"""Plans for pruning: which units can go without changing what a network computes.

A :class:`Planner` goes through the layers of a record. For each it follows the way from the layer
to its only reader (:class:`Paths`) and finds the units that are dead, repeat another, or make an
absolute value with it. Nothing is changed here; :mod:`mahalens.auditing.pruning` carries plans out.
"""

from __future__ import annotations

import copy
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx, jit, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens._show import Shown
from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.auditing.trace import ELEMENTWISE, HOMOGENEOUS, POOLED, UNCHANGED, Use, name_of
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

    def find(self, layer: str, reader: str | None) -> Path | str:
        """Return the path between two layers, or why there is none that can be relied on.

        The reader is None where the audit saw no layer that alone reads the output; the reason is
        then the first obstacle on the way.
        """
        inside = self._in_transformer(layer, reader)
        if not self.nodes and not inside:
            return f"the forward pass cannot be followed ({self.reason})"
        read = [f"{node.target}." for node in self.nodes if node.op == "get_attr"]
        names = [layer] if reader is None else [layer, reader]
        for name in () if inside else names:
            if len(self._calls({name})) != 1:
                return f"{name} is not called as a module exactly once in the forward pass"
            if any(target.startswith(f"{name}.") for target in read):
                return f"the parameters of {name} are also used outside of it"
        for name in names:
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
            if len(node.all_input_nodes) > 1 and node.args[:1] != (before,):
                return f"{node.name} combines its output with other tensors"
            if node.all_input_nodes.count(before) != 1 or node.args[:1] != (before,):
                return f"{node.name} reads it in a way that is not known"
            if node.op == "call_module" and node.target == reader:
                return self._misread(str(reader), path) or path
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
        elif not alone:
            return f"{name} combines its output with other tensors"
        elif name not in UNCHANGED:
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
        elif isinstance(module, _PLAIN):  # the audit saw another reader, too
            return "its activations are not read by one plain Linear or convolution alone"
        elif not isinstance(module, nn.Identity | nn.modules.dropout._DropoutNd):
            return f"{name}, a {kind}, reads its output"
        return ""

    def _used_once(self, module: nn.Module) -> bool:
        everywhere = self.model.named_modules(remove_duplicate=False)
        names = {name for name, other in everywhere if other is module}
        return len(names) == 1 and len(self._calls(names)) == 1

    def _in_transformer(self, layer: str, reader: str | None) -> bool:
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
        is_ours = type(m).__module__.startswith("mahalens.") and not isinstance(m, Abs | Neg)
        childless = self.opaque and not any(True for _ in m.children())
        return is_ours or childless or super().is_leaf_module(m, module_qualified_name)


def _nodes_of(model: nn.Module, opaque: bool) -> list[fx.Node]:
    # The forward pass may keep things on its modules, so it is followed through a copy of them.
    followed = copied(model, share=True)
    for part in followed.modules():
        for name, child in part._modules.items():
            part._modules[name] = getattr(child, "_orig_mod", child)  # what was compiled
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return list(_Tracer(opaque).trace(followed).nodes)


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


ACTIONS = ("dead", "duplicate", "mirrored")
_ROUNDING = 8  # units in the last place by which equal weights may differ
_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, repr=False)
class Done(Shown):
    """Something that was done to a layer."""

    layer: str
    action: str
    units: tuple[int, ...] | tuple[tuple[int, int], ...]


@dataclass(frozen=True, repr=False)
class Left(Done):
    """Units that were left as they are, and why."""

    reason: str


@dataclass
class LayerPlan:
    """A plan for a layer of K units.

    ``merges`` (i, j, a) adds a times what is read of unit j to what is read of unit i, and takes
    j away; ``folds`` (i, j) makes unit i an absolute value and takes j away.
    """

    layer: LayerRecord
    reader: str
    path: Path
    dead: list[int] = field(default_factory=list)
    merges: list[tuple[int, int, float]] = field(default_factory=list)
    folds: list[tuple[int, int]] = field(default_factory=list)
    pairs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Pairs in ``merges`` and ``folds``, by the action that they come from."""

    @property
    def kept(self) -> list[int]:
        """The units that stay, in order."""
        gone = {*self.dead, *(j for pairs in self.pairs.values() for _, j in pairs)}
        return [unit for unit in range(self.layer.units_count) if unit not in gone]

    def merge(self, action: str, i: int, j: int, factor: float, reads: Tensor) -> None:
        """Plan to add ``factor`` times what is read of unit j to what is read of unit i."""
        reads[:, i] += factor * reads[:, j]
        self.merges.append((i, j, factor))
        self.pairs.setdefault(action, []).append((i, j))

    def steps(self) -> list[Done]:
        """Return what the plan does, by action."""
        units: dict[str, Any] = {"dead": self.dead, **self.pairs}
        return [Done(self.layer.name, a, tuple(units[a])) for a in ACTIONS if units.get(a)]


class _Rows(NamedTuple):
    """Weights [K, D] and biases [K] of a layer, and what reads its units, all float64."""

    weight: Tensor
    bias: Tensor
    size: Tensor
    """Sum of the magnitudes that make up each bias [K]: its rounding is relative to it."""
    precision: float
    reads: Tensor
    """[O, K, S]: S numbers read a unit, kernel places of a convolution, or places of a flattened
    picture. What is merged is added here."""

    def factor(self, i: int, j: int) -> float | None:
        """Return the a of any sign with ``(w_j, b_j) = a (w_i, b_i)`` within rounding, or None."""
        first, second = self.weight[i], self.weight[j]
        square, length = float(first @ first), float(second.norm())
        if not square > 0 or not length > 0:
            return None
        factor = float(first @ second) / square
        apart = float((second - factor * first).norm())
        shifted = abs(float(self.bias[j] - factor * self.bias[i]))
        size = self.precision * float(self.size[j] + abs(factor) * self.size[i])
        return factor if apart <= self.precision * length and shifted <= size else None


class Planner:
    """Plans for the layers of a model; nothing is changed.

    Args:
        model: the model that was audited.
        record: what was found.
        actions: some of ``dead``, ``duplicate``, ``mirrored``.
        shapes: runs the model on some samples and returns the shapes of its layers.
    """

    def __init__(
        self,
        model: nn.Module,
        record: AuditRecord,
        actions: tuple[str, ...],
        shapes: Callable[[], Shapes],
    ) -> None:
        self.model, self.actions, self._shapes = model, actions, shapes
        self.layers = {layer.name: layer for layer in record.layers}
        self._listeners: set[str] = set()
        self._peaks: dict[str, Tensor] = {}
        self._left: dict[tuple[str, str, str], list[Any]] = {}
        self._owners: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._owners.setdefault(_memory(parameter), []).append(name.replace("_orig_mod.", ""))

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self.model, self._shapes())

    def plan(self, layer: LayerRecord) -> LayerPlan | None:
        """Return what can be done with a layer, or None; what cannot be is in ``left``."""
        wanted = self._wanted(layer)
        if not any(wanted.values()):
            return None
        path = self._obstacle(layer)
        if isinstance(path, str):
            for action, units in wanted.items():
                self._leave(layer, action, units, path)
            return None
        assert layer.feeds is not None
        plan = LayerPlan(layer, layer.feeds, path)
        rows = self._rows(plan)
        _require_same_weights(layer, rows.weight)
        self._plan_dead(plan, wanted["dead"])
        self._plan_duplicates(plan, wanted["duplicate"], rows)
        self._plan_mirrored(plan, wanted["mirrored"], rows)
        return plan if len(plan.kept) < layer.units_count else None

    def see(self, use: Use) -> None:
        """Note how large the inputs of a layer are, if it reads units that are to go as dead."""
        if use.name not in self._listeners or not use.input.numel():
            return
        places = use.weight.ndim - 2
        sizes = use.input.detach().abs().movedim(use.input.ndim - 1 - places, -1)
        peaks = as_double(sizes.reshape(-1, sizes.shape[-1]).amax(0))
        before = self._peaks.get(use.name)
        self._peaks[use.name] = peaks if before is None else torch.maximum(before, peaks)

    def drop_audible(self, plans: list[LayerPlan]) -> bool:
        """Take units out of the plans that are not dead to their reader, on what ``see`` saw.

        Unit u of a layer reaches output o of its reader with at most ``Σₛ |v_ous| max |h_us|``. It
        is dead to the reader if that is below rounding, ``ε`` times the largest such number of a
        unit that stays (or the bias), for every o: then no sum can show it.
        """
        dropped = False
        for plan in plans:
            if audible := self._audible(plan):
                reason = f"small, but {plan.reader} makes more than rounding of it"
                self._leave(plan.layer, "dead", audible, reason)
                plan.dead = [unit for unit in plan.dead if unit not in audible]
                dropped = True
        return dropped

    def _audible(self, plan: LayerPlan) -> list[int]:
        peaks = self._peaks.get(plan.reader)
        if peaks is None or not plan.dead:
            return plan.dead
        reader: Any = self.model.get_submodule(plan.reader)
        reads = as_double(reader.weight).abs()
        reads = reads.reshape(len(reads), plan.layer.units_count, -1)
        # In a convolution the places of a kernel share a channel.
        linear = len(peaks) == reads[0].numel()
        terms = (reads * (peaks.reshape(reads.shape[1:]) if linear else peaks[:, None])).sum(2)
        loudest = terms.index_fill(1, torch.tensor(plan.dead), 0).amax(1)
        if reader.bias is not None:
            loudest = loudest.maximum(as_double(reader.bias).abs())
        rounding = loudest * torch.finfo(reader.weight.dtype).eps / len(plan.dead)
        quiet = (terms <= rounding[:, None]).all(0).tolist()
        return [unit for unit in plan.dead if not quiet[unit]]

    def _wanted(self, layer: LayerRecord) -> dict[str, tuple[Any, ...]]:
        units = {"dead": layer.units.dead}
        units |= {kind: getattr(layer.pairs, kind, ()) for kind in ("duplicate", "mirrored")}
        return {action: units[action] if action in self.actions else () for action in ACTIONS}

    @property
    def left(self) -> list[Left]:
        """The units that stay, each with the reason."""
        return [
            Left(layer, action, tuple(units), reason)
            for (layer, action, reason), units in self._left.items()
        ]

    def _leave(self, layer: LayerRecord, action: str, units: Iterable[Any], reason: str) -> None:
        for unit in units:
            self._left.setdefault((layer.name, action, reason), []).append(unit)

    def _obstacle(self, layer: LayerRecord) -> Path | str:
        """Return the way to the layer's only reader, or why nothing can be taken from it."""
        if layer.calls != 1:
            return f"it is used {layer.calls} times in a forward pass"
        if layer.feeds is None:
            return self._paths.find(layer.name, None)
        reader = self.layers.get(layer.feeds)
        if reader is None or reader.calls != 1:
            return f"{layer.feeds} reads other things too"
        if layer.activation in ("mixed", "prelu"):
            return f"its activation ({layer.activation}) is not the same for all units"
        if layer.folded not in (None, "BatchNorm"):
            return f"{layer.folded} stands between it and its activation"
        if fault := self._size_fault(layer.name, layer.feeds):
            return fault
        path = self._paths.find(layer.name, layer.feeds)
        if isinstance(path, Path):
            if fault := self._size_fault(*path.norms):
                return fault
            if (layer.folded is None) != (not path.norms):
                return "the batch norm that the audit saw before its activation was not found"
            if (layer.activation == "none") == path.active:
                return "the activation that the audit saw was not found"
        return path

    def _size_fault(self, *names: str) -> str:
        """Return why one of these modules cannot be given another size; empty if all can."""
        faults = ((name, self._fixed(name)) for name in names)
        return next((f"{name} {fault}" for name, fault in faults if fault), "")

    def _fixed(self, name: str) -> str:
        """Return why a module's size is fixed; empty if it is not."""
        parts = name.split(".")
        above = [_submodule(self.model, ".".join(parts[:depth])) for depth in range(len(parts))]
        if any(isinstance(part, fx.GraphModule) for part in above):
            return "is part of an exported program, whose sizes are fixed"
        if any(isinstance(part, jit.ScriptModule) for part in above):
            return "is part of a TorchScript program, whose sizes are fixed"
        module = _submodule(self.model, name)
        if module is None:
            return "is not a separate module"
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

    def _rows(self, plan: LayerPlan) -> _Rows:
        """Return the rows of a layer with batch norms folded in."""
        layer: Any = self.model.get_submodule(plan.layer.name)
        weight = as_double(layer.weight).flatten(1)
        bias = weight.new_zeros(len(weight)) if layer.bias is None else as_double(layer.bias)
        size = bias.abs()
        for name in plan.path.norms:
            norm: Any = self.model.get_submodule(name)
            scale = (as_double(norm.running_var) + norm.eps).rsqrt()
            scale = scale if norm.weight is None else scale * as_double(norm.weight)
            mean = as_double(norm.running_mean)
            shift = torch.zeros_like(bias) if norm.bias is None else as_double(norm.bias)
            bias = (bias - mean) * scale + shift
            size = (size + mean.abs()) * scale.abs() + shift.abs()
            weight = weight * scale[:, None]
        reads = as_double(self.model.get_submodule(plan.reader).weight)
        reads = reads.reshape(len(reads), len(weight), -1).clone()
        return _Rows(weight, bias, size, self._precision(plan.layer.name), reads)

    def _plan_dead(self, plan: LayerPlan, units: Iterable[int]) -> None:
        plan.dead = list(units)
        if len(plan.dead) == plan.layer.units_count:
            self._leave(plan.layer, "dead", plan.dead[:1], "a layer needs at least one unit")
            plan.dead = plan.dead[1:]
        if plan.dead:
            self._listeners.add(plan.reader)

    def _plan_duplicates(
        self, plan: LayerPlan, pairs: Iterable[tuple[int, int]], rows: _Rows
    ) -> None:
        layer = plan.layer
        into: dict[int, int] = {}
        for first, j in sorted(pairs):
            i = into.get(first, first)
            if j in into or i in plan.dead or j in plan.dead:
                continue
            factor = rows.factor(i, j)
            if factor is None or factor < 0:
                self._leave(layer, "duplicate", [(i, j)], "equal only nearly, not within rounding")
            elif layer.activation not in HOMOGENEOUS and abs(factor - 1) > rows.precision:
                reason = f"{layer.activation} does not scale with its input, and they differ in it"
                self._leave(layer, "duplicate", [(i, j)], reason)
            else:
                into[j] = i
                plan.merge("duplicate", i, j, factor, rows.reads)

    def _plan_mirrored(
        self, plan: LayerPlan, pairs: Iterable[tuple[int, int]], rows: _Rows
    ) -> None:
        layer, reads = plan.layer, rows.reads
        into = {j: i for i, j, _ in plan.merges}
        used: set[int] = set()
        for pair in pairs:
            i, j = sorted(into.get(unit, unit) for unit in pair)
            if i == j or {i, j} & used or any(unit in plan.dead for unit in pair):
                continue
            factor, reason = rows.factor(i, j), ""
            if factor is None or factor > 0:
                reason = "not the same hyperplane within rounding"
            elif layer.activation == "abs":  # |-az| = a|z|
                plan.merge("mirrored", i, j, -factor, reads)
            elif layer.activation == "none" and plan.path.linear:
                plan.merge("mirrored", i, j, factor, reads)
            else:
                reason = self._no_absolute_value(plan, reads[:, i], -factor * reads[:, j])
                if not reason:
                    plan.folds.append((i, j))
                    plan.pairs.setdefault("mirrored", []).append((i, j))
            if reason:
                self._leave(layer, "mirrored", [(i, j)], reason)
            else:
                used |= {i, j}

    def _no_absolute_value(self, plan: LayerPlan, first: Tensor, second: Tensor) -> str:
        """Return why ``first relu(z) + second relu(-z)`` cannot be written as ``first |z|``."""
        path, activation = plan.path, plan.layer.activation
        if activation != "relu":
            return f"pairs are an absolute value under relu, not under {activation}"
        if path.activation is None:
            return "its ReLU is no module that is used once, so nothing can stand in its place"
        if type(self.model.get_submodule(path.activation)) is not nn.ReLU:
            return f"{path.activation} is no plain nn.ReLU"
        if not path.linear:
            return "max pooling follows, and the larger of two is not their sum"
        if (first - second).norm() > self._precision(plan.reader) * first.norm():
            return "the two are read with different weights, so they are no absolute value"
        return ""

    def _precision(self, name: str) -> float:
        module: Any = self.model.get_submodule(name)
        return _ROUNDING * torch.finfo(module.weight.dtype).eps


def require_fitting(model: nn.Module, record: AuditRecord) -> None:
    """Refuse a record that is of another model."""
    for layer in record.layers:
        if layer.kind == "features":
            raise InputError(
                f"{layer.name} was audited from activations alone; audit the model to prune it"
            )
        module = _submodule(model, layer.name)
        weight = getattr(module, "weight", None)
        if module is None or not isinstance(weight, Tensor):
            names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
            name = layer.name.removesuffix(" (transposed)")
            wanted = {f"{name}{end}" for end in ("_weight", ".weight", ".mu", ".distance.mu", "")}
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


def _require_same_weights(layer: LayerRecord, weight: Tensor) -> None:
    """Refuse weights that have changed since the audit: what was dead may have come to life."""
    if layer.hyperplanes is None:
        return
    lengths = layer.hyperplanes.length.double()
    if not torch.allclose(weight.norm(dim=1), lengths, rtol=1e-3, atol=1e-12, equal_nan=True):
        raise InputError(
            f"the weights of {layer.name} are not those that were audited; audit the model again"
        )


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module of a layer, or None if it is a tensor inside another module."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        # A model that is itself a layer goes by the name of its class.
        return model if name == type(model).__name__ and not list(model.children()) else None


def _memory(parameter: Tensor) -> int:
    """Return where a parameter's numbers lie: the same for tied ones and for views of one."""
    return parameter.untyped_storage().data_ptr() or id(parameter)


def as_double(tensor: Any) -> Tensor:
    """Return a parameter's numbers as float64 on the CPU."""
    plain: Tensor = tensor.detach().to("cpu").to(torch.float64)
    return plain
