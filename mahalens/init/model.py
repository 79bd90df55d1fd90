"""Starting weights of a whole model, layer by layer: :func:`initialise`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.forward import Forward, Runner
from mahalens.auditing.watch.untouched import untouched
from mahalens.errors import InputError
from mahalens.init.methods import Method, check_generator, labels_for, start_layer
from mahalens.init.norms import carriers, carry_offset, settled_norms
from mahalens.init.plan import Methods, Plan
from mahalens.init.rows import ROWS, Layer, RowDraw, Rows
from mahalens.init.targets import Hyperplanes

_UNUSED = "is not used on the first batch"


class Initialised(msgspec.Struct, frozen=True, kw_only=True):
    """What :func:`initialise` did."""

    started: dict[str, str]
    """The layers that were started, in the order of their use, with the method of each."""
    left: dict[str, str]
    """The layers that were left as they were, with the reason."""
    norms: dict[str, str] = {}
    """Layers without a bias, with the batch norm whose weight and bias place their hyperplanes."""

    def __str__(self) -> str:
        """The layers by method, and those left alone."""
        methods = dict.fromkeys(self.started.values())
        parts = [
            f"{method}: {', '.join(n for n, m in self.started.items() if m == method)}"
            for method in methods
        ]
        count = len(self.started)
        head = f"started {count} of {count + len(self.left)} layers"
        return "\n".join([head, *parts, *(f"left {n}: {why}" for n, why in self.left.items())])

    __repr__ = __str__


def initialise(
    model: nn.Module,
    data: Any = None,
    method: Methods = "cluster_pca",
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
    bias to where the hyperplanes pass, so that the two together give ``w·x - w·p``.

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
        **options: of the method, such as ``mirror=True``; see :mod:`mahalens.init.layers`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU())
        >>> initialise(model, torch.randn(100, 2), "whiten")
        started 1 of 1 layers
        whiten: 0
    """
    check_generator(generator)
    runner = Runner(model, forward)
    batches = None if data is None else Batches(data, batch_size)

    def find(bare: list[nn.Module]) -> Mapping[nn.Module, nn.Module | str]:
        return {} if batches is None else carriers(bare, runner, batches)

    try:
        plan = Plan(runner.model, method, layers, options, find)
        if data is None and (name := plan.needs_data()) is not None:
            raise InputError(f"{name} looks at the data, but data is None; give x or (x, y)")
        done = _carry_out(plan, runner, batches, rows, generator)
    finally:
        if batches is not None:
            batches.restore()
    if done.left:
        name, why = next(iter(done.left.items()))
        more = f" and {len(done.left) - 1} more" if len(done.left) > 1 else ""
        count = len(done.started) + len(done.left)
        warnings.warn(
            f"{len(done.left)} of {count} layers were not started: {name!r} ({why}){more}; the "
            f"returned value lists all reasons, and layers= names those to start",
            stacklevel=2,
        )
    return done


def _carry_out(
    plan: Plan,
    runner: Runner,
    batches: Batches | None,
    limit: int | None,
    generator: torch.Generator | None,
) -> Initialised:
    """Start the layers in the order of their use; after an error put everything back."""
    saved = [(parameter, parameter.detach().clone()) for parameter in plan.parameters()]
    order = list(plan.chosen) if batches is None else _order_of_use(runner, batches, plan)
    unused = [name for name in plan.chosen if name not in order]
    name = ""
    try:
        for name in order:
            layer, way = plan.chosen[name]
            rows = None
            if batches is not None and way.data:
                rows = _gather(runner, batches, layer, way, limit)
            start = start_layer(layer, way, rows, generator, plan.options_for(layer, way))
            if name in plan.norms and batches is not None and isinstance(start, Hyperplanes):
                offset = start.offset(next(layer.parameters()).dtype)
                carry_offset(plan.norms[name], offset, runner, batches)
    except BaseException as error:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)
        if isinstance(error, InputError):
            raise InputError(f"layer {name!r}: {error} (no weights were changed)") from None
        raise
    started = {name: plan.chosen[name][1].name for name in order}
    paths = {module: path for path, module in runner.model.named_modules()}
    return Initialised(
        started=started,
        left=plan.left | dict.fromkeys(unused, _UNUSED),
        norms={name: paths[plan.norms[name]] for name in order if name in plan.norms},
    )


def _order_of_use(runner: Runner, batches: Batches, plan: Plan) -> list[str]:
    """The layers in the order in which the model first calls them."""
    seen: dict[str, None] = {}
    modules = {name: plan.chosen[name][0] for name in plan.chosen}

    def note(name: str, x: Tensor) -> None:
        seen.setdefault(name)

    with untouched(runner.model):
        first = next(iter(batches), None)
        if first is None:
            raise InputError("the data has no samples; wanted at least one batch")
        with _watching(modules, note):
            runner.run(first, lambda use: None)
    if not seen:
        raise InputError("the model calls none of the layers to start, so that nothing is fed them")
    return list(seen)


def _gather(runner: Runner, batches: Batches, layer: Layer, way: Method, limit: int | None) -> Rows:
    """The rows that a layer is fed, with classes where the method uses them."""
    draw = RowDraw(layer, limit)
    labels: Tensor | None = None
    # Classes are the clusters only where the method, or the layer, is about classes.
    needed = labels_for(way, layer) == "needed"

    def take(name: str, x: Tensor) -> None:
        draw.add(x, None if labels is None else _spread_over(labels, x))

    with settled_norms(runner, batches), untouched(runner.model):
        for batch in batches:
            labels = batch.labels if needed else None
            if needed and labels is None:
                by = way.name if way.labels == "needed" else type(layer).__name__
                raise InputError(
                    f"{by} wants the classes of the samples; give a pair (x, y), y "
                    "whole numbers [N]"
                )
            with _watching({"": layer}, take):
                runner.run(batch, lambda use: None)
    return draw.result()


def _spread_over(labels: Tensor, x: Tensor) -> Tensor:
    """The classes of what a layer is fed, if the rows of each sample stand together."""
    if not len(labels) or len(x) % len(labels):
        raise InputError(
            f"its input of shape {list(x.shape)} does not have the {len(labels)} samples along the "
            f"first axis, so that their classes cannot be told"
        )
    return labels.repeat_interleave(len(x) // len(labels))


@contextmanager
def _watching(modules: Mapping[str, nn.Module], see: Any) -> Iterator[None]:
    """Show the input of each call of these modules; the hooks are always taken away."""

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            see(name, args[0] if args else next(iter(kwargs.values())))

        return hook

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_pre_hook(hook_for(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
