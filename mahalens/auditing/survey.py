"""Finds the layers of a model, and for each what follows it, by running a few samples.

Every tensor that is computed from a layer's output is marked with how it was computed. What
follows the layer is decided where such a tensor is used by something else: the next layer, a sum
with another tensor, the model's output. Until then a unit may go through any number of functions.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from mahalens.auditing.site import (
    Fold,
    Node,
    Recognised,
    Root,
    Site,
    affine_of,
    alone,
    by_unit,
    recognise,
    recorded,
    written,
)
from mahalens.auditing.trace import (
    ACROSS_UNITS,
    ARITHMETIC,
    ELEMENTWISE,
    FIRST_OF_SEVERAL,
    MAX_POOLED,
    MOVED,
    NO_VALUES,
    POOLED,
    READABLE,
    RESHAPED,
    RISING,
    UNCHANGED,
    Use,
    activation_of,
    tensors_in,
)

_Kind = Literal["affine", "active", "other", "part", "read"]
"""Affine in each unit; an activation, with at most a scale and a shift after it; another function
of each unit; something that mixes units; or activations, noted, on their way to a reader."""

_CALLED = {
    "add": "bias",
    "sub": "bias",
    "mul": "scale",
    "div": "scale",
    "neg": "Neg",
    "rsub": "Neg, bias",
    "setitem": "assignment",
}


@dataclass
class _Mark:
    """The origin of a tensor: a layer's output, and what was done to it so far."""

    site: Site
    start: Root
    """The layer's output itself."""
    root: Root
    """What the functions of each unit are functions of: the same, or what a norm made of it."""
    node: Node
    kind: _Kind = "affine"
    fold: Fold | None = None
    """What is folded in so far."""
    origin: Tensor | None = None
    """Which element of the root stands at each place of the tensor, if it was reshaped."""
    core: Recognised | None = None
    """The activation, with its node and origin."""
    plain: bool = True
    """Whether nothing was done to the activations."""
    folds: tuple[Fold | None, ...] = ()
    """Affine functions that another function of each unit is made of."""
    pooled: bool = False
    """Whether only the largest values over positions are left."""
    mixer: str = ""
    """The function that mixed units on the way to the root."""
    before: Fold | None = None
    """What was folded in before the root."""
    view: tuple[weakref.ref[Tensor], Node] | None = None
    """Of a part that lies in the memory of another tensor: that one, and how it is taken of it."""
    ref: weakref.ref[Tensor] | None = None
    version: int = 0


@dataclass
class _Call:
    """A call of a function on tensors that come from layers."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marked: list[tuple[Tensor, _Mark]]
    target: Tensor
    """The result, or the tensor that was written to."""

    def __post_init__(self) -> None:
        self.tensor, self.mark = self.marked[0]  # the first, and where it comes from
        self.marks = [mark for _, mark in self.marked]

    def node(self, nodes: dict[int, Node] | None = None) -> Node:
        """Return the call as a node of the nodes of its tensors."""
        nodes = nodes or {id(tensor): mark.node for tensor, mark in self.marked}
        return Node(self.func, self.name, recorded(self.args, nodes), recorded(self.kwargs, nodes))


class Survey:
    """Follows the outputs of layers to the functions that use them."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        self._marks: dict[int, _Mark] = {}
        self._open: dict[int, _Mark] = {}
        """Marks of which nothing has been noted, by their id."""
        self._generator = torch.Generator().manual_seed(0)

    def on_layer(self, use: Use) -> None:
        """Note a use of a layer; its input may be the output of another."""
        self.on_before((use.input, use.weight, use.bias))
        for tensor, mark in self._marked(use.input):
            self._follow(mark, tensor)
            honest = mark.plain and mark.kind != "part" and not (mark.mixer or mark.pooled)
            honest = honest and not mark.site.distance
            mark.site.readers.add(use.name if honest and _reads(mark, tensor, use) else None)
        for tensor, mark in self._marked((use.weight, use.bias)):
            self._consume(mark, tensor, "a layer's weight")
        site = self.sites.get(use.name)
        if site is None:
            bias = torch.zeros(use.units, dtype=torch.float64)
            if use.bias is not None:
                bias = use.bias.detach().to("cpu").to(torch.float64)
            weight = use.weight.detach().to("cpu").to(torch.float64).flatten(1)
            site = Site(use.name, use.kind, weight, bias, use.geometry, distance=use.distance)
            self.sites[use.name] = site
        site.calls += 1
        values = use.output.detach().as_subclass(Tensor).clone()  # what follows may work in place
        site.outputs.append(values)
        root = Root(values, site.units, site.unit_axis(values))
        self._put(use.output, _Mark(site, root, root, root.node))

    def on_before(self, value: Any) -> None:
        """Look, before a function is called, whether tensors were changed by something unseen."""
        for tensor, mark in self._marked(value):
            if _version(tensor) != mark.version:
                self._forget(tensor)
                mark.site.readers.add(None)
                if mark.kind != "read":
                    mark.site.is_followed("none", None, None)
                    mark.site.note(
                        "its output is changed in place in a way that could not be followed"
                    )

    def on_other(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note what a function does with the output of a layer."""
        marked = self._marked((args, kwargs))
        if not marked or name in NO_VALUES:
            return
        outputs = list(tensors_in(result))
        target = result if isinstance(result, Tensor) else None
        changed = [tensor for tensor, mark in marked if _version(tensor) != mark.version]
        if name == "setitem":
            target = args[0]
        elif not outputs and not changed:
            return  # a question about shapes or types
        elif name in FIRST_OF_SEVERAL and outputs:
            target = outputs[0]
        after = None
        if target is not None and all(_one_memory(tensor, target) for tensor in changed):
            # What cannot be replayed, of all that there is in torch, ends the following.
            with contextlib.suppress(Exception):
                after = self._after(_Call(func, name, args, kwargs, marked, target))
        for tensor, mark in marked:
            self._open.pop(id(mark), None)
            if after is None:
                self._consume(mark, None if any(tensor is t for t in changed) else tensor, name)
        views = [mark.view for tensor, mark in marked if changed and tensor is target]
        for tensor in changed:
            self._forget(tensor)
        if after is not None and target is not None:
            after.view = views[0] if views else _view(marked, target, after.node)
            self._put(target, after)
            self._write_back(after)

    def _write_back(self, part: _Mark) -> None:
        """Follow a tensor of which a part was changed in place, as by ``z[:, 5] *= 0``."""
        if part.view is None:
            return
        ref, taken = part.view
        whole = ref()
        mark = None if whole is None else self._marks.get(id(whole))
        if whole is None or mark is None or mark.ref is None or mark.ref() is not whole:
            return
        if _version(whole) == mark.version or taken.func is None or mark.node not in taken.args:
            return
        node = Node(written(taken, mark.node), "setitem", (mark.node, part.node))
        with contextlib.suppress(Exception):
            after = self._again("setitem", mark, node, whole)
            if after is not None:
                self._forget(whole)
                self._put(whole, after)

    def finish(self, output: Any) -> None:
        """Note that the model's own output is read by the user."""
        output = _plain(output)
        self.on_before(output)
        for tensor, mark in self._marked(output):
            if mark.kind != "part" and not mark.mixer:
                mark.site.output = True
            self._consume(mark, tensor, "")
        for mark in list(self._open.values()):
            if not mark.site.followed:
                self._follow(mark, None)
        self._marks.clear()
        self._open.clear()
        for site in self.sites.values():
            site.settle()

    def _after(self, call: _Call) -> _Mark | None:
        """Return what the result is, or None if it is no longer the layer's own output."""
        name, mark, target = call.name, call.mark, call.target
        same = all(other.start is mark.start for other in call.marks)
        foreign = name == "setitem" and call.tensor is not call.args[0]
        if not same or target.is_complex() or foreign:
            return None
        single = len(call.marked) == 1
        if single and name in UNCHANGED:
            return _unchanged(call)
        if single and (name in RESHAPED or name in MOVED or _keeps_all(call)):
            return _reshaped(call)
        if mark.kind == "read":
            return self._pooled(call) if single else None
        node = call.node()
        together = all(other.root is mark.root for other in call.marks) and _one_origin(call.marks)
        alike = {tensor.shape for tensor, _ in call.marked} == {target.shape}
        if alike and together and mark.kind != "part":
            norm = _batch_norm(call) if single else None
            if norm is not None and mark.kind == "affine":
                return replace(mark, node=node, fold=norm, ref=None)
            tensors = [tensor for tensor, _ in call.marked]
            known = name in ELEMENTWISE or name in ARITHMETIC
            if known or alone(call.func, call.args, call.kwargs, tensors, self._generator):
                return self._by_unit(call, node)
        if single and name in POOLED:
            return self._pooled(call)
        if single and name in ACROSS_UNITS and mark.kind == "affine" and not mark.mixer:
            mark.site.is_followed(name, None, mark.fold)
            mark.site.readers.add(None)
            return replace(mark, kind="read", plain=False)
        return self._mixed(call, node)

    def _by_unit(self, call: _Call, node: Node) -> _Mark | None:
        """Return the result of a function that treats each unit by itself."""
        mark, marks = call.mark, call.marks
        made = replace(mark, node=node, ref=None)
        if all(other.kind == "affine" for other in marks):
            if call.name in ELEMENTWISE and len(marks) == 1:
                core = _named(call, node)
                if core is not None:
                    return replace(made, kind="active", core=core)
            others = [other.fold.called for other in marks if other.fold is not None]
            called = ", ".join(dict.fromkeys([*others, _CALLED.get(call.name, "affine")]))
            probed = affine_of(mark.root, node, mark.origin, called)
            if probed is None:
                return None
            if probed is False:
                parts = tuple({id(other.fold): other.fold for other in marks}.values())
                return replace(made, kind="other", folds=parts, core=None)
            return replace(made, fold=None if probed.identity else probed)
        folds = [f for m in marks for f in (m.folds or ((m.core or m).fold,))]
        unique = tuple({id(fold): fold for fold in folds}.values())[:4]
        shared = mark.core
        if shared is not None and all(other.core is shared for other in marks):
            probed = affine_of(mark.root, node, mark.origin, "", shared)
            if probed is None:
                return None
            if probed is False:
                return replace(made, kind="other", plain=True, folds=unique)
            return replace(made, kind="active", plain=probed.identity, folds=unique)
        return replace(made, kind="other", core=None, folds=unique)

    def _pooled(self, call: _Call) -> _Mark | None:
        """Return the result of a pooling over positions, which keeps channels apart."""
        mark = call.mark
        if call.name not in POOLED or not mark.site.convolution or not _channels_apart(call):
            return None
        values = call.target.detach().as_subclass(Tensor).clone()
        root = Root(values, mark.root.units, mark.site.unit_axis(values))
        made = replace(mark, root=root, node=root.node, origin=None, ref=None)
        if mark.kind == "affine":
            if call.name not in MAX_POOLED or mark.mixer or mark.pooled:
                return None
            return replace(made, pooled=True, before=mark.fold, fold=None)
        if mark.kind == "active":
            self._follow(mark, call.tensor)
            honest = mark.plain and not mark.pooled and not mark.mixer
            return replace(made, kind="read", plain=honest)
        return made if mark.kind == "read" else None

    def _mixed(self, call: _Call, node: Node) -> _Mark | None:
        """Return the result of a function that mixes units, or parts of them, of one layer."""
        mark, target = call.mark, call.target
        if any(other.kind not in ("affine", "part") or other.pooled for other in call.marks):
            return None
        if not target.is_floating_point():
            return None
        mark.site.readers.add(None)
        mixer = next(
            (other.mixer for other in call.marks if other.mixer), READABLE.get(call.name, call.name)
        )
        before = mark.before if mark.mixer else mark.fold
        if (again := self._again(call.name, mark, node, target)) is not None:
            return again
        made = replace(mark, node=node, mixer=mixer, before=before, fold=None, ref=None)
        if target.shape != mark.start.values.shape or mark.origin is not None:
            return replace(made, kind="part", origin=None)
        values = target.detach().as_subclass(Tensor).clone()
        root = Root(values, mark.start.units, mark.start.axis, node)
        return replace(made, kind="affine", root=root)

    def _again(self, name: str, mark: _Mark, node: Node, target: Tensor) -> _Mark | None:
        """Return what parts of an output become, if it is a function of each unit again."""
        start = mark.start
        if target.shape != start.values.shape or not start.alone(node, self._generator):
            return None
        made = _Mark(mark.site, start, start, node)
        probed = affine_of(start, node, None, _CALLED.get(name, "affine"))
        if probed is None:
            return None
        if probed is False:
            return replace(made, kind="other", folds=(None,))
        return replace(made, fold=None if probed.identity else probed)

    def _consume(self, mark: _Mark, tensor: Tensor | None, name: str) -> None:
        """Note that something else than a layer reads a tensor."""
        mark.site.readers.add(None)
        if mark.kind != "read":
            self._follow(mark, tensor, name)

    def _follow(self, mark: _Mark, tensor: Tensor | None, name: str = "") -> None:
        """Note what a layer is followed by, up to a tensor that is used by something else."""
        self._open.pop(id(mark), None)
        site = mark.site
        if mark.kind == "read":
            return
        if tensor is not None and mark.kind != "part" and not _agrees(mark, tensor):
            site.is_followed("none", None, None)
            site.note("its output is changed in a way that could not be seen")
            mark.plain = False
            return
        outcome = _outcome(mark)
        unread = outcome is None or outcome.name == "none"
        end = (mark.mixer or READABLE.get(name, name)) if unread else ""
        if outcome is None or (outcome.name == "none" and (mark.mixer or mark.pooled)):
            mark.plain = False
            fold = mark.before if mark.mixer or mark.pooled else None
            site.is_followed("none", None, fold)
        else:
            mark.plain = mark.plain and outcome.plain
            between = (mark.mixer, mark.start.node, mark.root.node) if mark.mixer else None
            fold = outcome.fold
            if mark.pooled and mark.before is not None:
                fold = mark.before if fold is None else mark.before.then(fold)
            site.is_followed(outcome.name, outcome.function, fold, between)
        if end:
            site.note(f"its output could be followed as far as {end}, and no further")

    def _put(self, tensor: Tensor, mark: _Mark) -> None:
        key = id(tensor)

        def gone(ref: weakref.ref[Tensor]) -> None:
            if (known := self._marks.get(key)) is not None and known.ref is ref:
                del self._marks[key]

        mark.ref, mark.version = weakref.ref(tensor, gone), _version(tensor)
        self._marks[key] = mark
        if mark.kind in ("active", "other"):
            self._open[id(mark)] = mark

    def _forget(self, tensor: Tensor) -> None:
        if (mark := self._marks.pop(id(tensor), None)) is not None:
            self._open.pop(id(mark), None)

    def _marked(self, value: Any) -> list[tuple[Tensor, _Mark]]:
        marked: dict[int, tuple[Tensor, _Mark]] = {}
        for tensor in tensors_in(value):
            mark = self._marks.get(id(tensor))
            if mark is not None and mark.ref is not None and mark.ref() is tensor:
                marked[id(tensor)] = (tensor, mark)
        return list(marked.values())


def _view(
    marked: list[tuple[Tensor, _Mark]], target: Tensor, node: Node
) -> tuple[weakref.ref[Tensor], Node] | None:
    """Return the tensor in whose memory a new one lies, and the function that takes it."""
    tensor = marked[0][0]
    if len(marked) > 1 or target is tensor or target.is_inference():
        return None
    return (weakref.ref(tensor), node) if _one_memory(tensor, target) else None


def _one_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are one, or views of one."""
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a tensor of another kind
        return one is other


def _outcome(mark: _Mark) -> Recognised | None:
    """Return what a tensor is of the layer's output; None if it mixes units."""
    if mark.kind == "affine":
        return Recognised("none", None, mark.fold, True)
    if mark.kind == "part":
        return None
    inner, outcome = mark.core, None
    if mark.kind == "active" and inner is not None:
        outcome = replace(inner, plain=mark.plain)
    else:
        outcome = recognise(mark.root, mark.node, mark.origin, mark.folds)
        if inner is not None and inner.name == "abs" and outcome and outcome.name == "square":
            outcome = inner  # a norm takes squares of what abs has made
        outcome = outcome or inner or _unknown(mark)
    if outcome is None:
        return None
    if mark.pooled:
        # The largest activation is that of the largest value only if it never falls.
        rising = outcome.fold is None or bool((outcome.fold.scale > 0).all())
        return replace(outcome, plain=False) if rising and outcome.name in RISING else None
    return outcome


def _unknown(mark: _Mark) -> Recognised | None:
    """Return a function of each unit that has no name of an activation."""
    if mark.root.table(mark.node, mark.origin, mark.root.grid()) is None:
        return None  # it is another function at each position, or for each sample
    single = sum(isinstance(arg, Node) for arg in mark.node.args) == 1
    first = mark.node.args[0] if mark.node.args else None
    name = mark.node.name if single and first is mark.root.node else "elementwise"
    try:
        return Recognised(name, by_unit(mark.root, mark.node, mark.origin), None, True)
    except Exception:  # it works in float64 alone
        return None


def _agrees(mark: _Mark, tensor: Tensor) -> bool:
    """Return whether a tensor has the values that the functions seen so far give."""
    actual = tensor.detach().as_subclass(Tensor)
    try:
        value = mark.node.value({mark.root.node: mark.root.values})
    except Exception:
        return False
    if value.shape != actual.shape:
        return False
    if value.dtype == actual.dtype and torch.equal(value, actual):
        return True
    one, two = value.double().nan_to_num(), actual.double().nan_to_num()
    kind = actual.dtype if actual.is_floating_point() else torch.float32
    size = float(one.abs().max()) if one.numel() else 0.0
    return bool(((one - two).abs() <= 64 * torch.finfo(kind).eps * size).all())


def _unchanged(call: _Call) -> _Mark | None:
    """Return the result of a function that keeps values; dropout may be left switched on."""
    mark, tensor, target = call.mark, call.tensor, call.target
    if target.shape != tensor.shape or ("dropout" in call.name and not torch.equal(tensor, target)):
        return None
    if tensor.is_floating_point() and target.is_floating_point():
        return replace(mark, ref=None)
    node = Node(lambda value: value.to(target.dtype), call.name, (mark.node,))
    return replace(mark, node=node, ref=None)


def _keeps_all(call: _Call) -> bool:
    """Return whether an index takes every element once, as in ``z[:, None]``."""
    if call.name != "getitem" or not isinstance(call.args[0], Tensor):
        return False
    indexed = any(True for _ in tensors_in(call.args[1]))
    return call.args[0].numel() == call.target.numel() and not indexed


def _reshaped(call: _Call) -> _Mark | None:
    """Return the result of a function that gives values another place."""
    mark, tensor, target = call.mark, call.tensor, call.target
    if target.dtype != tensor.dtype or target.numel() != tensor.numel():
        return None
    node = call.node()
    if mark.kind == "part":
        return replace(mark, node=node, ref=None)
    origin = mark.origin
    if origin is None:
        origin = torch.arange(mark.root.values.numel()).view(mark.root.values.shape)
    origin = node.value({mark.node: origin})
    return replace(mark, node=node, origin=origin.contiguous(), ref=None)


def _channels_apart(call: _Call) -> bool:
    """Return whether a pooling leaves the units of a convolution apart, each at its channel."""
    mark, tensor, target = call.mark, call.tensor, call.target
    axis = mark.site.unit_axis(target)
    if target.ndim != tensor.ndim or axis < 0 or target.shape[axis] != mark.site.units:
        return False
    index = mark.root.unit_index(mark.origin)
    wanted = torch.arange(mark.site.units)
    if not bool((index.movedim(axis, -1) == wanted).all()):
        return False
    # Where only some units are not 0, only those may be so after the pooling.
    node = Node()
    pool = call.node({id(tensor): node})
    shape = [-1 if at == axis else 1 for at in range(target.ndim)]
    for some in (wanted % 2 == 0, wanted % 2 == 1, wanted % 4 < 2, wanted % 4 >= 2):
        made = pool.value({node: some[index].to(tensor)})
        if bool(((made != 0) & ~some.view(shape).to(made.device)).any()):
            return False
    return True


def _one_origin(marks: list[_Mark]) -> bool:
    first = marks[0].origin
    for mark in marks[1:]:
        if mark.origin is first:
            continue
        if mark.origin is None or first is None or not torch.equal(mark.origin, first):
            return False
    return True


def _reads(mark: _Mark, tensor: Tensor, use: Use) -> bool:
    """Return whether inputs of ``use`` are a layer's units, in order, with equal shares."""
    site, index = mark.site, mark.root.unit_index(mark.origin)
    if index.shape != tensor.shape or use.distance or not site.units:
        return False
    units = torch.arange(site.units)
    if not use.geometry:
        width = tensor.shape[-1]
        if width != site.units and (not site.convolution or width % site.units):
            return False
        return bool((index == units.repeat_interleave(width // site.units)).all())
    if not site.convolution or use.geometry["groups"] != (1,):
        return False
    axis = tensor.ndim - 1 - len(use.geometry["kernel"])
    return tensor.shape[axis] == site.units and bool((index.movedim(axis, -1) == units).all())


def _named(call: _Call, node: Node) -> Recognised | None:
    """Return the activation of that name; None if it must be recognised by its values."""
    mark, args, kwargs = call.mark, call.args, call.kwargs
    if (node.args[0] if node.args else node.kwargs.get("input")) is not mark.node:
        return None
    activation = activation_of(call.func, call.name, args, kwargs)
    # Limits may be those of a relu, or none at all.
    if call.name in ("threshold", "clamp", "hardtanh"):
        match = recognise(mark.root, node, mark.origin, (mark.fold,))
        if match is not None and match.name == "none":
            return None
        if match is not None and match.name in ("relu", "abs") and match.plain:
            activation = match.name, getattr(torch, match.name)
    name, function = activation
    several = [part for part in tensors_in((args, kwargs)) if part.numel() > 1]
    if len(several) > 1:
        # Slopes and limits must be the same at all positions, as the function of a row has them.
        grid, fold = mark.root.grid(), mark.fold
        table = mark.root.table(node, mark.origin, grid)
        try:
            rows = function(grid if fold is None else grid * fold.scale + fold.shift)
        except Exception:
            return None
        if table is None or rows.shape != table.shape or not torch.allclose(rows.double(), table):
            return None
    return Recognised(name, function, mark.fold, False, node, mark.origin)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


_NORM_ARGUMENTS = {
    "functional": "input mean variance weight bias training momentum eps",
    "batch_norm": "input weight bias mean variance training momentum eps",
    "native_batch_norm_legit_no_training": "input weight bias mean variance momentum eps",
}
"""The order of a batch norm's arguments, by the function that computes it."""


def _batch_norm(call: _Call) -> Fold | None:
    """Return scale and shift [K] of a batch norm with running statistics, and what was before."""
    mark = call.mark
    name = "functional" if call.func is functional.batch_norm else call.name
    if name not in _NORM_ARGUMENTS:
        return None
    renamed = {"running_mean": "mean", "running_var": "variance"}
    arguments = dict(zip(_NORM_ARGUMENTS[name].split(), call.args, strict=False))
    arguments |= {renamed.get(key, key): value for key, value in call.kwargs.items()}
    units = mark.site.units
    mean, variance = arguments.get("mean"), arguments.get("variance")
    if arguments.get("training") or not isinstance(mean, Tensor) or mean.shape != (units,):
        return None
    if not bool((mark.root.unit_index(mark.origin).movedim(1, -1) == torch.arange(units)).all()):
        return None
    eps = float(arguments.get("eps", 1e-5))
    deviation = (_vector(variance, 1.0, units) + eps).sqrt()
    scale = _vector(arguments.get("weight"), 1.0, units) / deviation
    shift = _vector(arguments.get("bias"), 0.0, units) - _vector(mean, 0.0, units) * scale
    fold = Fold(scale, shift, "BatchNorm")
    return fold if mark.fold is None else mark.fold.then(fold)


def _vector(value: Any, default: float, units: int) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to("cpu").to(torch.float64)
    return torch.full((units,), default, dtype=torch.float64)


def _plain(output: Any) -> Any:
    """Return the tensors of a model's output, also of an object with attributes."""
    if isinstance(output, Tensor | list | tuple | dict):
        return output
    return getattr(output, "__dict__", {})
