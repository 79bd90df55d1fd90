"""A layer as the survey of a model finds it, and the functions of its output that follow.

A model may spell an activation in any way: ``relu(z)``, ``(z + |z|) / 2``, ``z * (z > 0)``. So a
function that was seen is written down as it is computed. It is not judged by its name but replayed
on values of our choice, in float64, and compared with the functions that are known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.auditing.trace import mapped

Activation = Callable[[Tensor], Tensor]

_FAR = 2.0**20

_PROBES = (0.0, _FAR, -_FAR, 1.0, -1.0, 0.5, 3.7, -2.9, 1e-3, -1e-3, 97.0, -103.0, 1e4, -1e4)
"""Values at which affine functions are recognised: 0 and two far ends give scale and shift."""

_HALF_GRID = (
    *(1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5),
    *(3.0, 4.0, 5.0, 6.0, 7.0, 10.0, 30.0),
)
_GRID = (0.0, *(sign * value for value in _HALF_GRID for sign in (1, -1)))
"""Values at which activations are compared; neighbours are of opposite sign."""

_EXACT = 1e-9
"""Relative error up to which values in float64 count as equal."""

_NAMED = (
    *("relu", "abs", "sigmoid", "tanh", "gelu", "gelu (tanh)", "silu", "softplus", "relu6"),
    *("hardtanh", "elu", "selu", "mish", "hardswish", "hardsigmoid", "softsign", "logsigmoid"),
    *("square", "exp", "sin", "erf", "tanhshrink", "softshrink", "hardshrink"),
)
_KNOWN: dict[str, Activation] = {
    name: getattr(torch, name, None) or getattr(functional, name.partition(" ")[0])
    for name in _NAMED
}
_KNOWN["gelu (tanh)"] = functools.partial(functional.gelu, approximate="tanh")
"""Activations that are recognised by their values."""


class Fold(NamedTuple):
    """An affine map of each unit [K], between a layer and its activation."""

    scale: Tensor
    shift: Tensor
    called: str

    @property
    def identity(self) -> bool:
        """Whether nothing is changed, up to rounding."""
        return bool(((self.scale - 1).abs() <= 1e-12).all()) and not bool(self.shift.any())

    def then(self, other: Fold) -> Fold:
        """Return this fold followed by ``other``."""
        scale = self.scale * other.scale
        called = ", ".join(dict.fromkeys([*self.called.split(", "), other.called]))
        return Fold(scale, self.shift * other.scale + other.shift, called)

    def same(self, other: Fold | None) -> bool:
        """Return whether ``other`` does the same to every unit."""
        return (
            other is not None
            and torch.equal(self.scale, other.scale)
            and torch.equal(self.shift, other.shift)
        )


class Layout(NamedTuple):
    """The place of the samples in the output of one use of a layer."""

    axis: int | None
    """Axis of the output that grows with the number of samples; None if none does."""
    sample_major: bool = True
    """Where that axis holds several rows of each sample: whether those of one stand together."""


@dataclass
class Site:
    """A layer as the survey found it."""

    name: str
    kind: str
    weight: Tensor
    """[K, D], float64, CPU; what is folded in is not in it."""
    bias: Tensor
    geometry: dict[str, tuple[int, ...]]
    calls: int = 0
    outputs: list[Tensor] = field(default_factory=list)
    """Of each call on the few samples of the survey; emptied when the layouts are known."""
    layouts: list[Layout] = field(default_factory=list)
    """Of each call."""
    followed: dict[str, Activation | None] = field(default_factory=dict)
    """Functions that follow, by name; "none" for one that is no activation."""
    folds: list[Fold | None] = field(default_factory=list)
    """What was folded in before each of them."""
    betweens: list[tuple[str, Any, Any] | None] = field(default_factory=list)
    """What mixes units before each of them: its name, and the nodes it begins and ends at."""
    between: Activation | None = None
    """Makes of the layer's output what enters the activation, where that mixes units."""
    distance: bool = False
    """Whether the units are distances by construction, as in :class:`mahalens.nn.OffsetL2`."""
    scale: Tensor | None = None
    shift: Tensor | None = None
    folded: str | None = None
    output: bool = False
    """Whether the model's output has its units."""
    readers: set[str | None] = field(default_factory=set)
    """Layers that read the activations as they are; None for any other reader."""
    notes: list[str] = field(default_factory=list)

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

    def layout(self, call: int) -> Layout:
        """Return where the samples are in the output of a call; later calls are like the last."""
        if not self.layouts:
            return Layout(0)
        return self.layouts[min(call, len(self.layouts) - 1)]

    def unit_axis(self, output: Tensor) -> int:
        """Return the axis of an output along which the units are."""
        return output.ndim - 1 - (len(self.geometry["kernel"]) if self.convolution else 0)

    @property
    def placed(self) -> bool:
        """Whether each unit has a hyperplane: z = w·x + b enters its activation."""
        return self.between is None and not self.distance and self.weight.shape[1] > 0

    def is_followed(
        self,
        name: str,
        function: Activation | None,
        fold: Fold | None,
        between: tuple[str, Any, Any] | None = None,
    ) -> None:
        """Note what follows the layer in one place, and what stands between."""
        if self.distance:
            name, function, fold, between = "none", None, None, None  # the units are distances
        self.followed.setdefault(name, function)
        self.folds.append(fold)
        self.betweens.append(between)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def settle(self) -> None:
        """Fold in what stands between the layer and what follows, if it is the same everywhere."""
        mixed = [between for between in self.betweens if between is not None]
        if mixed:
            if len({between[2] for between in mixed}) == 1 and len(mixed) == len(self.betweens):
                name, first, last = mixed[0]
                self.between = lambda z: last.value({first: z.clone()})
                self.folded = name
            else:
                self._unfold(f"{mixed[0][0]} stands before only some uses of its output")
                return
        if all(fold is None for fold in self.folds):
            return
        first_fold = self.folds[0]
        if first_fold is not None and all(first_fold.same(fold) for fold in self.folds):
            self.scale, self.shift, called = first_fold
            self.folded = called if self.folded is None else f"{self.folded}, {called}"
            return
        # The activation applies to something else than this layer's own output.
        self._unfold(
            "uses of its output differ in what stands before the activation, such as a batch "
            "norm, which is therefore not folded in"
        )

    def _unfold(self, why: str) -> None:
        """Read the layer's own output, with nothing that follows it."""
        self.followed = {"none": None}
        self.scale = self.shift = self.folded = self.between = None
        self.readers.add(None)
        self.note(why)

    def compare(self, other: Site | None) -> None:
        """Unfold what other samples were not treated by in the same way."""
        if other is None or (self.folded is None and other.folded is None):
            return
        pairs = ((self.scale, other.scale), (self.shift, other.shift))
        same = self.folded == other.folded and all(
            a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
        )
        if same and self.between is not None and other.between is not None:
            same = all(_same_values(self.between, other.between, z) for z in other.outputs)
        if not same:
            self._unfold(
                f"what stands before its activation ({self.folded or other.folded}) depends on "
                f"the samples of a batch, and is therefore not folded in"
            )

    def rows(self) -> Tensor:
        """Return the weights [K, D] with what follows folded in."""
        return self.weight if self.scale is None else self.weight * self.scale[:, None]

    def offsets(self) -> Tensor:
        """Return the biases [K] with what follows folded in."""
        scaled = self.bias if self.scale is None else self.bias * self.scale
        return scaled if self.shift is None else scaled + self.shift


def _same_values(one: Activation, two: Activation, z: Tensor) -> bool:
    """Return whether two functions make the same of an output."""
    try:
        made, wanted = one(z), two(z)
    except Exception:  # one that was made for another number of samples
        return False
    return made.shape == wanted.shape and torch.allclose(made, wanted, 1e-4, 1e-5, equal_nan=True)


def find_layouts(
    site: Site, fewer: Site | None, turned: Site | None, samples: int, fewer_samples: int
) -> None:
    """Set the layouts of a layer: where the samples are in each call's output.

    ``fewer`` is the same layer with the first ``fewer_samples`` of the ``samples``, ``turned`` with
    all in reverse order, in which their rows must come out in reverse too.
    """
    site.layouts = []
    for call, output in enumerate(site.outputs):
        other, back = (
            of.outputs[call] if of is not None and call < len(of.outputs) else None
            for of in (fewer, turned)
        )
        axes = [axis for axis in range(output.ndim) if axis != site.unit_axis(output)]
        if other is not None and other.ndim == output.ndim:
            grown = [a for a in axes if output.shape[a] * fewer_samples == other.shape[a] * samples]
        else:
            grown = [a for a in axes if output.shape[a] % samples == 0]
        tried = [
            Layout(axis, major)
            for axis in grown
            for major in (True, False)
            if output.shape[axis] and (major or output.shape[axis] > samples > 1)
        ]
        if len(tried) > 1 and back is not None and back.shape == output.shape:
            misses = [_miss(layout, output, back, samples) for layout in tried]
            tried = [tried[misses.index(min(misses))]]
        layout = tried[0] if tried else Layout(None)
        site.layouts.append(layout)
        if site.between is not None and not _samples_apart(site.between, output, layout, samples):
            site._unfold(f"{site.folded} mixes samples before its activation")
    site.outputs = []


def _samples_apart(between: Activation, output: Tensor, layout: Layout, samples: int) -> bool:
    """Return whether a function of an output keeps samples when the first one changes."""
    if layout.axis is None or output.shape[layout.axis] != samples or samples < 2:
        return True
    other = output.clone()
    other.select(layout.axis, 0).mul_(-1.5).add_(1)
    one, two = (between(z).narrow(layout.axis, 1, samples - 1) for z in (output, other))
    return torch.allclose(one, two, 1e-4, 1e-5, equal_nan=True)


def _miss(layout: Layout, output: Tensor, back: Tensor, samples: int) -> float:
    """Return how far the rows of reversed samples are from the reversed rows."""
    assert layout.axis is not None
    shape, axis = ((samples, -1), 0) if layout.sample_major else ((-1, samples), 1)
    first, second = (
        o.movedim(layout.axis, 0).unflatten(0, shape).double().nan_to_num() for o in (output, back)
    )
    return float((first.flip(axis) - second).abs().sum())


# --- What follows a layer -------------------------------------------------------------------------


class Node:
    """A value that depends on a layer's output: a function, and other nodes among its arguments.

    A node without a function stands for a value that is given when others are evaluated.
    """

    __slots__ = ("args", "func", "kwargs", "name")

    def __init__(
        self,
        func: Callable[..., Any] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.func = func
        self.name = name
        self.args = args
        self.kwargs = {k: v for k, v in (kwargs or {}).items() if k != "out"}

    def value(self, values: dict[Node, Tensor]) -> Tensor:
        """Evaluate the node, where the values of some nodes are given."""
        value = values.get(self)
        if value is not None:
            return value
        assert self.func is not None, "a value is missing"
        like = next(iter(values.values()))

        def fill(part: Any) -> Any:
            """Copies of values for nodes, and numbers as precise as these."""
            if isinstance(part, Node):
                return part.value(values).clone()
            if not isinstance(part, Tensor):
                return part
            floats = part.is_floating_point() and like.is_floating_point()
            return part.to(like) if floats else part.to(like.device)

        args, kwargs = mapped((self.args, self.kwargs), fill)
        result = self.func(*args, **kwargs)
        if result is None:  # z[:, 5] = 0
            result = args[0]
        elif not isinstance(result, Tensor):
            result = result[0]  # a norm that gives its statistics too
        values[self] = result
        return result  # type: ignore[no-any-return]


def recorded(value: Any, nodes: Mapping[int, Node]) -> Any:
    """Return arguments with followed tensors replaced by their nodes, and others copied."""

    def record(part: Any) -> Any:
        if not isinstance(part, Tensor) or id(part) in nodes:
            return nodes.get(id(part), part)
        plain = part.detach().as_subclass(Tensor)
        return plain if isinstance(part, nn.Parameter) else plain.clone()

    return mapped(value, record)


def written(taken: Node, whole: Node) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that writes a part, as ``taken`` takes it, back into its tensor."""

    def write(tensor: Tensor, part: Tensor) -> Tensor:
        parts = (taken.args, taken.kwargs)
        args, kwargs = mapped(parts, lambda value: tensor if value is whole else value)
        taken.func(*args, **kwargs).copy_(part)  # type: ignore[misc]
        return tensor

    return write


@dataclass(frozen=True, eq=False)
class Recognised:
    """The function behind a layer: ``scale · f(u) + shift`` of the folded values u."""

    name: str
    function: Activation | None
    fold: Fold | None
    plain: bool
    """Whether nothing else is done to f(u)."""
    node: Node | None = None
    """Where f(u) is among what was seen, and how it was reshaped until there."""
    origin: Tensor | None = None


@dataclass(eq=False)
class Root:
    """A tensor with a unit at each place, from which per-unit functions are followed.

    The output of a layer itself; or what a norm or a maximum over positions made of it.
    """

    values: Tensor
    units: int
    axis: int
    """Along which the units are."""
    node: Node = field(default_factory=Node)

    @property
    def rows(self) -> int:
        """How many rows [K] the tensor holds."""
        return self.values.numel() // max(1, self.units)

    def unit_index(self, origin: Tensor | None) -> Tensor:
        """Return the unit of each element of a tensor that is the root's own, or reshaped."""
        shape = [1] * self.values.ndim
        shape[self.axis] = self.units
        index = torch.arange(self.units).view(shape).expand(self.values.shape)
        return index if origin is None else index.reshape(-1)[origin]

    def spread(self, rows: Tensor, origin: Tensor | None = None) -> Tensor:
        """Return rows [R, K] in the root's shape, or reshaped."""
        lead = [size for axis, size in enumerate(self.values.shape) if axis != self.axis]
        whole = rows.reshape(*lead, self.units).movedim(-1, self.axis)
        return whole.contiguous() if origin is None else whole.reshape(-1)[origin]

    def collect(self, tensor: Tensor, origin: Tensor | None = None) -> Tensor:
        """Return the rows [R, K] of a tensor that is in the root's shape, or reshaped."""
        tensor = tensor.detach().to("cpu")
        if origin is not None:
            whole = tensor.new_empty(self.values.numel())
            whole[origin.flatten()] = tensor.flatten()
            tensor = whole.view(self.values.shape)
        return tensor.movedim(self.axis, -1).reshape(-1, self.units)

    def alone(self, node: Node, generator: torch.Generator) -> bool:
        """Return whether a node of the root's shape treats each element by itself."""

        def value(tensor: Tensor) -> Tensor:
            return node.value({self.node: tensor})

        return alone(value, (self.values,), {}, [self.values], generator)

    def grid(self) -> Tensor:
        """Return a few values for each unit [7, K], at which functions are compared."""
        return torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None].expand(-1, self.units)

    def table(
        self, node: Node, origin: Tensor | None, values: Tensor, after: Recognised | None = None
    ) -> Tensor | None:
        """Return the node's values [G, K] where the root, or ``after``, has ``values`` [G, K].

        None if they are not the same in all rows, as where something was added that depends on
        the sample or the position; or if the function does not work.
        """
        if self.values.is_floating_point():
            for dtype in (torch.float64, self.values.dtype):
                try:
                    return self._table(node, origin, values.to(dtype), after)
                except Exception:  # any function of torch, in a precision not its own
                    continue
        return None

    def _table(
        self, node: Node, origin: Tensor | None, values: Tensor, after: Recognised | None
    ) -> Tensor | None:
        start, start_origin = (self.node, None) if after is None else (after.node, after.origin)
        assert start is not None
        count, rows = len(values), self.rows
        table = torch.full(values.shape, torch.nan, dtype=torch.float64)
        low = torch.full(values.shape, torch.inf, dtype=torch.float64)
        high = -low
        # Each row takes another value; a second time shifted by one, so that rows are compared.
        for shift in (0, 1):
            for first in range(0, count, rows):
                taken = (torch.arange(rows) + first + shift) % count
                probes = self.spread(values[taken], start_origin).to(self.values.device)
                got = self.collect(node.value({start: probes}), origin).double()
                index = taken[:, None].expand_as(got)
                table[taken] = got
                safe = torch.nan_to_num(got, nan=0.0, posinf=1e300, neginf=-1e300)
                low.scatter_reduce_(0, index, safe, "amin")
                high.scatter_reduce_(0, index, safe, "amax")
        size = torch.maximum(low.abs(), high.abs())
        error = _EXACT if values.dtype == torch.float64 else 1e-3
        return table if bool((high - low <= error * size).all()) else None


def affine_of(
    root: Root, node: Node, origin: Tensor | None, called: str, after: Recognised | None = None
) -> Fold | Literal[False] | None:
    """Return scale and shift [K] of a node that is affine in each unit of the root or ``after``.

    False for a node that is not affine, None for one that is not the same in all rows.
    """
    probes = torch.tensor(_PROBES, dtype=torch.float64)[:, None].expand(-1, root.units)
    table = root.table(node, origin, probes, after)
    if table is None:
        return None
    shift, far, back = table[:3]
    scale = (far - back) / (probes[1] - probes[2])
    miss = (table - (scale * probes + shift)).abs()
    affine = _small(miss, (scale * probes).abs() + shift.abs())
    return Fold(scale, shift, called) if affine and bool(table.isfinite().all()) else False


def _small(miss: Tensor, size: Tensor) -> bool:
    return bool((miss <= _EXACT * size).all())


def recognise(
    root: Root, node: Node, origin: Tensor | None, folds: tuple[Fold | None, ...]
) -> Recognised | None:
    """Return which known function a node is of the values before it; None if it is unknown.

    ``folds`` are the affine functions of the root that the node is made of, one of which enters
    the activation.
    """
    best = None
    if all(fold is not None for fold in folds):
        folds = (*folds, None)
    grid = torch.tensor(_GRID, dtype=torch.float64)
    for fold in folds:
        values = grid[:, None].expand(-1, root.units)
        live = torch.ones(root.units, dtype=torch.bool)
        if fold is not None:
            live = fold.scale != 0
            values = torch.where(live, (values - fold.shift) / fold.scale, values)
        table = root.table(node, origin, values)
        if table is None or not bool(live.any()) or not bool(table[:, live].isfinite().all()):
            continue
        match = _two_lines(grid, table[:, live], live, fold) or _in_list(grid, table[:, live], fold)
        if match is not None and (match.plain or best is None):
            best = match
        if best is not None and best.plain:
            break
    return best


def _two_lines(grid: Tensor, table: Tensor, live: Tensor, fold: Fold | None) -> Recognised | None:
    """Recognise a function with one slope below 0 and another above: relu, abs, leaky_relu."""
    one, minus = _GRID.index(1.0), _GRID.index(-1.0)
    middle = table[0]
    right, left = table[one] - middle, middle - table[minus]
    below = (grid < 0)[:, None]
    drawn = middle + torch.where(below, left, right) * grid[:, None]
    size = middle.abs() + right.abs() + left.abs()
    if not _small((table - drawn).abs(), (1 + grid.abs())[:, None] * size):
        return None
    none = _EXACT * size

    def fold_of(scale: Tensor, shift: Tensor, called: str) -> Fold | None:
        """Return the fold so far, followed by scale and shift of the live units."""
        scales, shifts = torch.ones_like(live, dtype=torch.float64), torch.zeros_like(live).double()
        scales[live], shifts[live] = scale, shift
        after = Fold(scales, shifts, called)
        after = after if fold is None else fold.then(after)
        return None if after.identity else after

    def known(name: str, function: Activation, scale: Tensor, fold: Fold | None) -> Recognised:
        exact = bool(((scale - 1).abs() <= _EXACT).all()) and bool((middle.abs() <= none).all())
        return Recognised(name, function, fold, exact)

    if bool(((right - left).abs() <= none).all()):
        return Recognised("none", None, fold_of(right, middle, "affine"), True)
    if bool((left.abs() <= none).all()):
        return known("relu", torch.relu, right, fold)
    if bool((right.abs() <= none).all()):
        return known("relu", torch.relu, -left, fold_of(0 * right - 1, 0 * right, "Neg"))
    if bool(((left + right).abs() <= none).all()):
        return known("abs", torch.abs, right, fold)
    slope = float(left[0] / right[0]) if float(right[0]) else 0.0
    if slope and bool(((left - slope * right).abs() <= none).all()):
        leaky = functools.partial(functional.leaky_relu, negative_slope=slope)
        return known("leaky_relu", leaky, right, fold)
    return None


def _in_list(grid: Tensor, table: Tensor, fold: Fold | None) -> Recognised | None:
    for name, function in _KNOWN.items():
        values = function(grid)
        low, high = int(values.argmin()), int(values.argmax())
        scale = (table[high] - table[low]) / (values[high] - values[low])
        shift = table[low] - scale * values[low]
        miss = (table - (scale * values[:, None] + shift)).abs()
        # Tails that are differences of larger numbers, as those of a gelu, keep few digits.
        size = (
            (scale * values[:, None]).abs() + shift.abs() + scale.abs() * (1 + grid.abs())[:, None]
        )
        if _small(miss, size) and bool((scale != 0).all()):
            plain = bool(((scale - 1).abs() <= _EXACT).all()) and bool(
                (shift.abs() <= _EXACT).all()
            )
            return Recognised(name.partition(" ")[0], function, fold, plain)
    return None


def by_unit(root: Root, node: Node, origin: Tensor | None) -> Activation:
    """Return the function of rows [n, K] that a node is, in pieces of the root's shape."""
    rows, dtype, device = root.rows, root.values.dtype, root.values.device

    def whole(values: Tensor) -> Tensor:
        return node.value({root.node: values.to(device=device, dtype=dtype)}).to(values)

    def pieces(values: Tensor) -> Tensor:
        results = torch.empty_like(values)
        for first in range(0, len(values), rows):
            part = values[first : first + rows].to(dtype)
            missing = rows - len(part)
            padded = torch.cat([part, part[-1:].expand(missing, -1)]) if missing else part
            made = node.value({root.node: root.spread(padded).to(device)})
            results[first : first + rows] = root.collect(made, origin)[: len(part)].to(values)
        return results

    rows_seen = root.collect(root.values)
    doubled = torch.cat([rows_seen, rows_seen])
    wanted = pieces(doubled)
    try:  # at once, if nothing in it has the shape of the survey's few samples
        if torch.equal(whole(doubled), wanted):
            return whole
    except Exception:  # then in pieces
        pass
    return pieces


def alone(func: Any, args: Any, kwargs: Any, marked: list[Tensor], generator: Any) -> bool:
    """Return whether a function treats each element of some tensors by itself, by trying.

    A random half of the elements is changed; nothing may change at the others.
    """
    shape = marked[0].shape
    part = (torch.rand(shape, generator=generator) < 0.5).to(marked[0].device)
    nodes = {id(tensor): Node() for tensor in marked}
    node = Node(func, "", recorded(args, nodes), recorded(kwargs, nodes))
    before, after = {}, {}
    for tensor in marked:
        plain = tensor.detach().as_subclass(Tensor)
        if plain.is_floating_point():
            noise = torch.randn(shape, generator=generator).to(plain) * (1 + plain.abs())
            other = plain + noise
        else:
            other = ~plain if plain.dtype == torch.bool else plain + 1
        before[nodes[id(tensor)]] = plain
        after[nodes[id(tensor)]] = torch.where(part, other, plain)
    try:
        one, two = node.value(before), node.value(after)
    except Exception:
        return False
    if one.shape != shape or two.shape != shape:
        return False
    return torch.equal(one[~part].nan_to_num(), two[~part].nan_to_num())
