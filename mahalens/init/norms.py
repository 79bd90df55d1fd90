"""Batch norms that have seen no data yet, as they will be in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.forward import Runner
from mahalens.auditing.watch.untouched import untouched


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
