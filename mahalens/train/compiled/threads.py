"""Shares tasks out among threads. The library holds no lock of Python while it works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")

_pools: dict[int, ThreadPoolExecutor] = {}


def spread(work: Callable[[Task], None], tasks: Iterable[Task]) -> None:
    """Run the tasks in as many threads as torch may use."""
    threads = torch.get_num_threads()
    tasks = list(tasks)
    if threads == 1 or len(tasks) == 1:
        for task in tasks:
            work(task)
        return
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="mahalens")
    list(_pools[threads].map(work, tasks))


# A forked process has the pools, but not their threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)
