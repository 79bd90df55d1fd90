"""Ask for memory before a computation starts, and say in one line where it was not enough."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mahalens.errors import InputError

_GROUP = Path("/sys/fs/cgroup")
_REFUSALS = ("allocate memory", "not enough memory", "out of memory")
UNASKED = 2**28
"""Smaller wishes are granted without a look at the machine."""


def available_memory() -> int | None:
    """Bytes that can be had now; ``None`` where the system does not tell."""
    found = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, StopIteration, ValueError):  # the limit of a container
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (_GROUP / "memory.stat").read_text().splitlines()
        cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file"))
        found.append(limit - used + cached)
    with contextlib.suppress(OSError, ValueError):  # the same of the first version
        older = _GROUP / "memory"
        limit = int((older / "memory.limit_in_bytes").read_text())
        found.append(limit - int((older / "memory.usage_in_bytes").read_text()))
    with contextlib.suppress(OSError, ValueError, ImportError):  # ulimit -v
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    if not found:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found)) if found else None


def require_memory(size: int, what: str, remedy: str) -> None:
    """Ask for so many bytes to be free, or say what would need them and what to do instead."""
    if size < UNASKED:
        return
    available = available_memory()
    if available is not None and size > available:
        raise InputError(
            f"{what}: would take {in_gigabytes(size)} of memory and {in_gigabytes(available)} are "
            f"free; {remedy}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory could not be had, in Python or in torch."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in text for part in _REFUSALS)
    )


@contextlib.contextmanager
def refusing_memory(what: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation into one line that says what needed it and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        free = available_memory()
        there = "" if free is None else f"; {in_gigabytes(free)} are free"
        raise InputError(f"{what}: takes more memory than there is{there}; {remedy}") from None


def in_gigabytes(size: int) -> str:
    """A size for people.

    >>> in_gigabytes(2_500_000_000), in_gigabytes(3_000_000)
    ('2.5 GB', '0.003 GB')
    """
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"
