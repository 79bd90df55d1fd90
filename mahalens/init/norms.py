"""Batch norms that have seen no data yet, as they will be in training, and what they can carry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.forward import Runner
from mahalens.auditing.watch.trace import Use, tensors_in
from mahalens.auditing.watch.untouched import untouched
from mahalens.errors import InputError


@contextmanager
def settled_norms(runner: Runner, batches: Batches) -> Iterator[None]:
    """Meanwhile, fresh batch norms have the mean and variance of the data; then none again.

    In evaluation mode a batch norm that was never trained does nothing, while training divides by
    the spread of each batch from its first step on: what the layers behind it are fed would be
    something else. So the data goes through once with all of them in training mode, and they keep
    the average over the batches. Trained ones are left alone.
    """
    fresh = fresh_norms(runner.model)
    if not fresh:
        yield
        return
    before = _statistics(fresh)
    found = _measured(fresh, runner, batches)
    try:
        _set(fresh, found)
        yield
    finally:
        _set(fresh, before)


class _Flow:
    """Which batch norms are fed the output of a layer, and what else reads it, in one pass."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.norms: dict[nn.Module, list[nn.Module]] = {layer: [] for layer in layers}
        self.outputs: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
        self.readers = dict.fromkeys(layers, 0)
        self.calls: dict[nn.Module, int] = {}
        self._source: dict[int, nn.Module] = {}

    def give(self, layer: nn.Module, args: Any, output: Tensor) -> None:
        self._source[id(output)] = layer
        self.outputs[layer].append(output)  # held, so that no other tensor gets its id

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
        """The norm that can carry the offset of a layer, or why there is none."""
        outputs, norms = self.outputs[layer], self.norms[layer]
        if not norms:
            return "and no batch norm directly behind it can carry one"
        norm: Any = norms[0]
        if len(outputs) != 1 or self.calls[norm] != 1 or self.readers[layer] != 1:
            return "and the batch norm behind it is not for it alone"
        places = len(layer.kernel_size) if isinstance(layer, nn.modules.conv._ConvNd) else 0
        if outputs[0].ndim != places + 2:
            return "and the batch norm behind it works along another axis than its units"
        if norm.weight is None or norm.bias is None:
            return "and the batch norm behind it has no weight and bias"
        if not _is_fresh(norm):
            return "and the batch norm behind it is trained (reset_running_stats() makes it fresh)"
        return norm


def carriers(
    layers: list[nn.Module], runner: Runner, batches: Batches
) -> dict[nn.Module, nn.Module | str]:
    """Find the fresh batch norm that alone reads a layer's output, or say why there is none.

    Such a norm can place the hyperplanes of a layer without a bias; see :func:`carry_offset`.
    """
    flow = _Flow(layers)
    norms = [part for part in runner.model.modules() if isinstance(part, _BatchNorm)]
    hooks = [layer.register_forward_hook(flow.give) for layer in layers]
    hooks += [norm.register_forward_pre_hook(flow.feed) for norm in norms]
    try:
        with untouched(runner.model):
            first = next(iter(batches), None)
            if first is None:
                raise InputError("the data has no samples; wanted at least one batch")

            def on_layer(use: Use) -> None:
                flow.read(use.input, use.output)

            def on_other(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
                flow.read((args, kwargs), result)

            output, _ = runner.run(first, on_layer, on_other)
            flow.read(output, output)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: flow.carrier(layer) for layer in layers}


def carry_offset(norm: Any, offset: Tensor, runner: Runner, batches: Batches) -> None:
    """Let a fresh batch norm add ``offset`` [K] to the layer before it, and do nothing else.

    With mean m and variance v of its inputs, ``γ = √(v + ε)`` and ``β = m + offset`` make
    ``γ (z - m) / √(v + ε) + β = z + offset``: the hyperplanes are where a bias would place them,
    and the norm trains on from there.
    """
    with settled_norms(runner, batches):
        mean, variance = (part.double() for part in _statistics([norm])[0])
    values = ((norm.weight, (variance + norm.eps).sqrt()), (norm.bias, mean + offset.to(mean)))
    made = [(old, new.to(old.dtype)) for old, new in values]
    if not all(bool(new.isfinite().all()) for _, new in made):
        raise InputError("its batch norm would get weights that are not finite; scale the inputs")
    with torch.no_grad():
        for old, new in made:
            old.copy_(new)


def fresh_norms(model: nn.Module) -> list[Any]:
    """The batch norms of a model that have seen no data."""
    return [module for module in model.modules() if _is_fresh(module)]


def _is_fresh(module: nn.Module) -> bool:
    # What is synchronised between machines has no training mode on one processor.
    if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
        return False
    seen = module.num_batches_tracked if module.track_running_stats else None
    return seen is not None and not seen.is_meta and int(seen) == 0


def _measured(fresh: list[Any], runner: Runner, batches: Batches) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of what each norm is fed, averaged over the batches."""
    hooks = [module.register_forward_pre_hook(_as_in_training) for module in fresh]
    try:
        with untouched(runner.model):
            for module in fresh:
                module.momentum = None  # the plain average
            for batch in batches:
                runner.run(batch, lambda use: None)
            return _statistics(fresh)
    finally:
        for hook in hooks:
            hook.remove()


def _as_in_training(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Take the batch's own statistics, unless it is one sample, which has no spread."""
    module.training = bool(args) and args[0].numel() > args[0].shape[1]


def _statistics(norms: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]


def _set(norms: list[Any], values: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for norm, (mean, variance) in zip(norms, values, strict=True):
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)
