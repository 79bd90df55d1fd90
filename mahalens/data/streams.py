"""Independent streams of random numbers, named by what they are for."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from mahalens.errors import InputError


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator for one purpose of one run, such as ``stream(0, "start", trial)``.

    Streams of different purposes are independent, and none depends on how many others there are:
    trial 3 starts from the same weights whether 5 or 500 trials are run.

    >>> a, b = stream(0, "start", 1), stream(0, "start", 2)
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).any())
    False
    """
    if seed < 0:
        raise InputError(f"a seed of {seed}; give a whole number of at least 0")
    key = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose]
    state = np.random.SeedSequence(entropy=seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))
