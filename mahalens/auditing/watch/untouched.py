"""Runs a model without leaving a trace on it or on the random state."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluate a model; afterwards its modes, values and the random state are as before.

    No gradients are recorded. Every module is in evaluation mode meanwhile; the flag is set
    module by module, because exported programs and some users' models do not take ``eval()``.
    Parameters and buffers that the forward pass writes to (a counter, an embedding with
    ``max_norm``) get their values back, attributes that it sets (a hidden state, a cache) their
    old objects, also after an error. What was compiled runs as it was written.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]  # scripted modules keep it elsewhere
    attributes = [_attributes(module) for module in modules]
    tensors = [*model.parameters(), *model.buffers()]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    state, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (a user's own state)
    try:
        with torch.random.fork_rng(devices=list(devices)), torch.no_grad(), _as_written():
            for module in modules:
                module.training = False
            yield
    finally:
        for module, mode, (plain, tables) in zip(modules, modes, attributes, strict=True):
            _put_back(module, plain, tables)
            module.training = mode
        for tensor, value in values:
            # NaN is equal to nothing: a tensor with NaN is put back in any case.
            if tensor.shape != value.shape:
                tensor.data = value
            elif not torch.equal(tensor, value):
                tensor.data.copy_(value)
        random.setstate(state)
        np.random.set_state(numbers)  # noqa: NPY002


def _attributes(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A module's attributes, and the entries of its tables of tensors and parts."""
    own = dict(vars(module))
    return own, {name: dict(own[name]) for name in _TABLES if isinstance(own.get(name), dict)}


def _put_back(module: nn.Module, plain: dict[str, Any], tables: dict[str, dict[str, Any]]) -> None:
    now = vars(module)
    for name in [name for name in now if name not in plain]:
        del now[name]
    now.update(plain)
    for name, entries in tables.items():
        table = now[name]
        if list(table) != list(entries) or any(table[key] is not entries[key] for key in entries):
            table.clear()
            table.update(entries)


def _as_written() -> AbstractContextManager[Any]:
    """Run compiled parts as Python, where they can be watched."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
