"""Runs a model without leaving a trace on it or on the random state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluate a model; afterwards its modes, buffers and the random state are as before.

    No gradients are recorded. Every module is in evaluation mode meanwhile; the flag is set
    module by module, because exported programs and some users' models do not take ``eval()``.
    Buffers that the forward pass writes to get their values back, also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    state, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (a user's own state)
    try:
        with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
            for module, _ in modes:
                module.training = False
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        random.setstate(state)
        np.random.set_state(numbers)  # noqa: NPY002
