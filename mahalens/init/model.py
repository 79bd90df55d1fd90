"""Starting weights of a whole model, layer by layer: :func:`initialise`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from mahalens._show import table_html
from mahalens.auditing.batches import DataBatches as Batches
from mahalens.auditing.runner import Forward, Runner, untouched
from mahalens.auditing.trace import Use, tensors_in
from mahalens.errors import InputError
from mahalens.init.starts import (
    Method,
    check_fit,
    check_generator,
    check_options,
    method_of,
    start_layer,
)
from mahalens.init.targets import (
    ROWS,
    Convolution,
    Hyperplanes,
    Layer,
    RowDraw,
    Rows,
    has_bias,
    parameters_of,
)
from mahalens.nn.head import DistanceHead
from mahalens.nn.layers import OffsetL2, PointSlope, set_parameters
from mahalens.nn.mahalanobis import Mahalanobis


class Initialised(msgspec.Struct, frozen=True, kw_only=True):
    """Record of what :func:`initialise` did, layer by layer.

    ``print`` shows a line for each layer: its method, or the reason why it was left.
    """

    started: dict[str, str]
    """The layers that were started, in the order of their use, with the method of each."""
    left: dict[str, str]
    """The layers that were left as they were, with the reason."""
    norms: dict[str, str] = {}
    """Layers without a bias, with the batch norm whose weight and bias place their hyperplanes."""

    def __str__(self) -> str:
        """Return the layers by method, and those left alone."""
        methods = dict.fromkeys(self.started.values())
        parts = [
            f"{method}: {', '.join(n for n, m in self.started.items() if m == method)}"
            for method in methods
        ]
        count = len(self.started)
        head = f"started {count} of {count + len(self.left)} layers"
        return "\n".join([head, *parts, *(f"left {n}: {why}" for n, why in self.left.items())])

    def __repr__(self) -> str:
        return f"Initialised({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return a row for each layer: its method, or why it was left as it was."""
        rows = [(name, method, "") for name, method in self.started.items()]
        rows += [(name, "left as it was", reason) for name, reason in self.left.items()]
        return table_html(str(self).splitlines()[0], ("layer", "method", "reason"), rows)


def initialise(
    model: nn.Module,
    data: Any = None,
    method: str | Mapping[str, str] = "cluster_pca",
    *,
    layers: Sequence[str] | None = None,
    batch_size: int = 512,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
    forward: Forward | None = None,
    **options: Any,
) -> Initialised:
    """Start the layers of a model in the order of their use, each from what it is fed.

    For each layer the data goes through the model once, with all layers before it already
    started. Modules are in evaluation mode meanwhile, and batch norms that have seen nothing yet
    have the statistics of the data, as in training. Nothing but the weights is changed: no
    hook stays, modes and buffers are as before; the random state moves on only by what the
    starts draw. After an error all weights are as they were.

    The hyperplanes of a layer without a bias are placed by the batch norm behind it, if that is
    fresh and reads nothing else: its weight is set to the spread of the layer's outputs and its
    bias to where the hyperplanes pass; the two together give ``w·x - w·p``.

    Without ``layers``, every layer is started that the method can start. The rest is left alone,
    with a warning; the returned value has the reason for each layer.

    Args:
        model: any ``nn.Module``; started are ``nn.Linear``, convolutions, ``PointSlope``,
            ``OffsetL2``, ``Mahalanobis`` and ``DistanceHead`` modules that are called.
        data: as for :func:`mahalens.audit`: x, (x, y), a Dataset or a DataLoader. ``kaiming``
            needs none.
        method: a name of :data:`~mahalens.init.METHODS`, or names by layer: the layers not in
            it are left alone.
        layers: names of the layers to start, such as ``"0"`` or ``"features.conv1"``.
        batch_size: samples per batch, where the data does not come in batches.
        rows: how many rows are used at most for a layer, drawn at random; None for all.
        generator: of the CPU; the global one by default.
        forward: how to call the model: ``forward(model, *inputs)``.
        **options: of the method, such as ``mirror=True``; see :mod:`mahalens.init.starts`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU())
        >>> print(initialise(model, torch.randn(100, 2), "whiten"))
        started 1 of 1 layers
        whiten: 0
    """
    check_generator(generator)
    runner = Runner(model, forward)
    batches = None if data is None else Batches(data, batch_size)
    try:
        plan = _make_plan(runner, batches, method, layers, options)
        result = _carry_out(plan, runner, batches, rows, generator)
    finally:
        if batches is not None:
            batches.restore()
    if result.left:
        name, why = next(iter(result.left.items()))
        more = f" and {len(result.left) - 1} more" if len(result.left) > 1 else ""
        count = len(result.started) + len(result.left)
        warnings.warn(
            f"{len(result.left)} of {count} layers were not started: {name!r} ({why}){more}; the "
            f"returned value lists all reasons, and layers= names those to start",
            stacklevel=2,
        )
    return result


@dataclass
class _Plan:
    """Layers to start, each with its method, and those to leave alone, each with the reason."""

    options: Mapping[str, Any]
    chosen: dict[str, tuple[Layer, Method]] = field(default_factory=dict)
    norms: dict[str, nn.Module] = field(default_factory=dict)
    """Batch norms that place the hyperplanes of layers without a bias, by layer."""
    left: dict[str, str] = field(default_factory=dict)

    def parameters(self) -> list[Tensor]:
        """Return all tensors that will be changed."""
        parameters = [p for layer, _ in self.chosen.values() for p in parameters_of(layer)]
        return [*parameters, *(p for norm in self.norms.values() for p in norm.parameters())]


def _make_plan(
    runner: Runner,
    batches: Batches | None,
    method: str | Mapping[str, str],
    layers: Sequence[str] | None,
    options: Mapping[str, Any],
) -> _Plan:
    """Choose layers and methods, or raise.

    Layers that the caller named must fit; of the others, those that do not fit are left alone.
    """
    model = runner.model
    # A model that is itself a layer goes by its class, as in an audit.
    modules = {name or type(part).__name__: part for name, part in model.named_modules()}
    heads = {name: part for name, part in modules.items() if isinstance(part, DistanceHead)}
    inside = {id(head.distance): name for name, head in heads.items()}
    with_weights = [
        name for name, part in modules.items() if _is_layer(part) and id(part) not in inside
    ]
    ways = _methods_by_layer(method, layers, options, with_weights)
    named = layers is not None or isinstance(method, Mapping)
    if missing := [name for name in ways if name not in modules]:
        known = ", ".join(with_weights) or "none"
        raise InputError(f"the model has no layer {missing[0]!r}; those with weights: {known}")
    bare = [modules[name] for name, way in ways.items() if way.places and _is_bare(modules[name])]
    carriers = _find_carriers(bare, runner, batches) if bare and batches is not None else {}
    plan = _Plan(options)
    owners: dict[int, str] = {}
    for name, way in ways.items():
        carrier = carriers.get(modules[name])
        try:
            if (head := inside.get(id(modules[name]))) is not None:
                raise InputError(f"is part of the DistanceHead {head!r}; start that one")
            layer = check_fit(way, modules[name], carrier)
            parameters = parameters_of(layer)
            for owner in (owners[id(p)] for p in parameters if id(p) in owners):
                raise InputError(f"shares its weights with layer {owner!r}; start one of them")
        except InputError as error:
            if named:
                raise InputError(f"layer {name!r}: {error}") from None
            plan.left[name] = str(error)
            continue
        owners |= {id(parameter): name for parameter in parameters}
        plan.chosen[name] = layer, way
        if isinstance(carrier, nn.Module):
            plan.norms[name] = carrier
    if not plan.chosen:
        why = next((f": {reason}" for reason in plan.left.values()), "")
        raise InputError(f"the model has no layer that can be started{why}")
    for _, way in plan.chosen.values():
        if batches is None and way.data:
            raise InputError(f"{way.name} looks at the data, but data is None; give x or (x, y)")
    return plan


def _methods_by_layer(
    method: str | Mapping[str, str],
    layers: Sequence[str] | None,
    options: Mapping[str, Any],
    with_weights: list[str],
) -> dict[str, Method]:
    """Return the method of each layer that is named, or of each with weights, or raise."""
    by_layer = method if isinstance(method, Mapping) else None
    if by_layer is not None and layers is not None:
        raise InputError("layers and methods by layer are both given; give one of them")
    if by_layer is not None and not by_layer:
        raise InputError("the methods by layer are empty; name at least one layer")
    names = [method] if by_layer is None else list(by_layer.values())
    methods = [method_of(name) for name in names]  # type: ignore[arg-type]
    # With several methods an option may be for one of them only.
    for name, value in options.items():
        if not any(name in way.options for way in methods):
            check_options(methods[0], {name: value})
    if by_layer is not None:
        return dict(zip(by_layer, methods, strict=True))
    return dict.fromkeys(with_weights if layers is None else layers, methods[0])


def _is_layer(module: nn.Module) -> bool:
    """Return whether one would look for a module among those started or left alone."""
    kinds = nn.Linear | _ConvNd | PointSlope | OffsetL2 | Mahalanobis | DistanceHead
    return isinstance(module, kinds)


def _is_bare(module: nn.Module) -> bool:
    """Return whether a module is a layer of hyperplanes without a bias."""
    return isinstance(module, nn.Linear | Convolution) and not has_bias(module)


def _carry_out(
    plan: _Plan,
    runner: Runner,
    batches: Batches | None,
    limit: int | None,
    generator: torch.Generator | None,
) -> Initialised:
    """Start the layers in the order of their use; after an error put everything back."""
    saved = [(parameter, parameter.detach().clone()) for parameter in plan.parameters()]
    order = list(plan.chosen) if batches is None else _order_of_use(runner, batches, plan)
    name = ""
    try:
        for name in order:
            layer, way = plan.chosen[name]
            rows = None
            if batches is not None and way.data:
                rows = _gather(runner, batches, layer, way, limit)
            # One call may meet layers of several kinds, with several options.
            options = {
                key: plan.options[key] for key in way.options_for(layer) if key in plan.options
            }
            weights = start_layer(layer, way, rows, generator, options)
            if name in plan.norms and batches is not None and isinstance(weights, Hyperplanes):
                offset = weights.offset(next(layer.parameters()).dtype)
                _carry_offset(plan.norms[name], offset, runner, batches)
    except BaseException as error:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)
        if isinstance(error, InputError):
            raise InputError(f"layer {name!r}: {error} (no weights were changed)") from None
        raise
    unused = [name for name in plan.chosen if name not in order]
    paths = {module: path for path, module in runner.model.named_modules()}
    return Initialised(
        started={name: plan.chosen[name][1].name for name in order},
        left=plan.left | dict.fromkeys(unused, "is not used on the first batch"),
        norms={name: paths[plan.norms[name]] for name in order if name in plan.norms},
    )


def _order_of_use(runner: Runner, batches: Batches, plan: _Plan) -> list[str]:
    """Return the layers in the order in which the model first calls them."""
    seen: dict[str, None] = {}
    modules = {name: layer for name, (layer, _) in plan.chosen.items()}
    with untouched(runner.model):
        first = _first_batch(batches)
        with watch_calls(modules, lambda name, x, output: seen.setdefault(name)):
            runner.run(first, lambda use: None)
    if not seen:
        raise InputError("the model calls none of the layers to start, so nothing is fed to them")
    return list(seen)


def _first_batch(batches: Batches) -> Any:
    first = next(iter(batches), None)
    if first is None:
        raise InputError("the data has no samples; wanted at least one batch")
    return first


def _gather(runner: Runner, batches: Batches, layer: Layer, way: Method, limit: int | None) -> Rows:
    """Return the rows that a layer is fed, with classes where the method uses them."""
    draw = RowDraw(layer, limit)
    labels: Tensor | None = None
    # Classes are the clusters only where the method, or the layer, is about classes.
    needed = way.labels_for(layer) == "needed"

    def take(name: str, x: Tensor, output: Any) -> None:
        draw.add(x, None if labels is None else _spread_over(labels, x))

    with settled_norms(runner, batches), untouched(runner.model):
        for batch in batches:
            labels = batch.labels if needed else None
            if needed and labels is None:
                owner = way.name if way.labels == "needed" else type(layer).__name__
                raise InputError(
                    f"{owner} wants the classes of the samples; give a pair (x, y), y "
                    "whole numbers [N]"
                )
            with watch_calls({"": layer}, take):
                runner.run(batch, lambda use: None)
    return draw.result()


def _spread_over(labels: Tensor, x: Tensor) -> Tensor:
    """Return the class of each row that a layer is fed, if rows of a sample stand together."""
    if not len(labels) or len(x) % len(labels):
        raise InputError(
            f"its input of shape {list(x.shape)} does not have the {len(labels)} samples along the "
            f"first axis, which leaves their classes unknown"
        )
    return labels.repeat_interleave(len(x) // len(labels))


@contextmanager
def watch_calls(
    modules: Mapping[str, nn.Module], see: Callable[[str, Tensor, Any], None]
) -> Iterator[None]:
    """Call ``see(name, input, output)`` after each call of these modules."""

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            see(name, args[0] if args else next(iter(kwargs.values())), output)

        return hook

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(hook_for(name), with_kwargs=True))
        yield


@contextmanager
def settled_norms(runner: Runner, batches: Batches) -> Iterator[None]:
    """Give fresh batch norms the mean and variance of the data meanwhile.

    In evaluation mode a batch norm that was never trained does nothing, while training divides by
    the spread of each batch from its first step on: the layers behind it would be fed something
    else. So the data goes through once with all of them in training mode, and they keep the
    average over the batches. Trained ones are left alone.
    """
    fresh = fresh_norms(runner.model)
    if not fresh:
        yield
        return
    before = _statistics(fresh)
    measured = _measure(fresh, runner, batches)
    try:
        _set(fresh, measured)
        yield
    finally:
        _set(fresh, before)


def fresh_norms(model: nn.Module) -> list[Any]:
    """Return the batch norms of a model that have seen no data."""
    return [module for module in model.modules() if _is_fresh(module)]


def _is_fresh(module: nn.Module) -> bool:
    # Norms synchronised between machines have no training mode on one processor.
    if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
        return False
    seen = module.num_batches_tracked if module.track_running_stats else None
    return seen is not None and not seen.is_meta and int(seen) == 0


def _measure(fresh: list[Any], runner: Runner, batches: Batches) -> list[tuple[Tensor, Tensor]]:
    """Return mean and variance of the inputs of each norm, averaged over the batches."""
    with ExitStack() as hooks:
        for module in fresh:
            hooks.enter_context(module.register_forward_pre_hook(_as_in_training))
        with untouched(runner.model):
            for module in fresh:
                module.momentum = None  # the plain average
            for batch in batches:
                runner.run(batch, lambda use: None)
            return _statistics(fresh)


def _as_in_training(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Take the statistics of the batch, unless it is one sample, which has no spread."""
    module.training = bool(args) and args[0].numel() > args[0].shape[1]


def _statistics(norms: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]


def _set(norms: list[Any], values: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for norm, (mean, variance) in zip(norms, values, strict=True):
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)


class _Flow:
    """Batch norms that are fed the output of a layer, and other readers of it, in one pass."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.norms: dict[nn.Module, list[nn.Module]] = {layer: [] for layer in layers}
        self.outputs: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
        self.readers = dict.fromkeys(layers, 0)
        self.calls: dict[nn.Module, int] = {}
        self._source: dict[int, nn.Module] = {}

    def give(self, layer: nn.Module, args: Any, output: Tensor) -> None:
        self._source[id(output)] = layer
        self.outputs[layer].append(output)  # held: no other tensor gets its id

    def feed(self, norm: nn.Module, args: tuple[Any, ...]) -> None:
        self.calls[norm] = self.calls.get(norm, 0) + 1
        if args and (layer := self._source.get(id(args[0]))) is not None:
            self.norms[layer].append(norm)

    def read(self, inputs: Any, result: Any) -> None:
        if any(True for _ in tensors_in(result)):
            for tensor in tensors_in(inputs):
                if (layer := self._source.get(id(tensor))) is not None:
                    self.readers[layer] += 1

    def carrier(self, layer: nn.Module) -> Any:
        """Return the norm that can carry the offset of a layer, or why there is none."""
        outputs, norms = self.outputs[layer], self.norms[layer]
        if not norms:
            return "and no batch norm directly behind it can carry one"
        norm: Any = norms[0]
        if len(outputs) != 1 or self.calls[norm] != 1 or self.readers[layer] != 1:
            return "and the batch norm behind it is not for it alone"
        places = len(layer.kernel_size) if isinstance(layer, _ConvNd) else 0
        if outputs[0].ndim != places + 2:
            return "and the batch norm behind it works along another axis than its units"
        if norm.weight is None or norm.bias is None:
            return "and the batch norm behind it has no weight and bias"
        if not _is_fresh(norm):
            return "and the batch norm behind it is trained (reset_running_stats() makes it fresh)"
        return norm


def _find_carriers(
    layers: list[nn.Module], runner: Runner, batches: Batches
) -> dict[nn.Module, nn.Module | str]:
    """Find the fresh batch norm that alone reads a layer's output, or say why there is none.

    Such a norm can place the hyperplanes of a layer without a bias; see :func:`_carry_offset`.
    """
    flow = _Flow(layers)

    def on_layer(use: Use) -> None:
        flow.read(use.input, use.output)

    def on_other(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        flow.read((args, kwargs), result)

    with ExitStack() as hooks, untouched(runner.model):
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(flow.give))
        for part in runner.model.modules():
            if isinstance(part, _BatchNorm):
                hooks.enter_context(part.register_forward_pre_hook(flow.feed))
        output, _ = runner.run(_first_batch(batches), on_layer, on_other)
        flow.read(output, output)
    return {layer: flow.carrier(layer) for layer in layers}


def _carry_offset(norm: Any, offset: Tensor, runner: Runner, batches: Batches) -> None:
    """Let a fresh batch norm add ``offset`` [K] to the layer before it, and do nothing else.

    With mean m and variance v of its inputs, ``γ = √(v + ε)`` and ``β = m + offset`` make
    ``γ (z - m) / √(v + ε) + β = z + offset``: the hyperplanes are where a bias would place them,
    and the norm trains on from there.
    """
    with settled_norms(runner, batches):
        mean, variance = (part.double() for part in _statistics([norm])[0])
    set_parameters(
        [(norm.weight, (variance + norm.eps).sqrt()), (norm.bias, mean + offset.to(mean))],
        "its batch norm would get weights that are not finite; scale the inputs",
    )
