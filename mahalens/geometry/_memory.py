"""Compare a computation with the memory that is free, and report in one line what does not fit.

Without torch: the command line asks :func:`is_out_of_memory` when loading torch itself has failed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mahalens.errors import InputError

UNASKED = 2**28
"""Fewer bytes are granted without a look at the machine."""

_CONTAINER = Path("/sys/fs/cgroup")
_REFUSALS = ("allocate memory", "not enough memory", "out of memory")


def available_memory(container: Path = _CONTAINER) -> int | None:
    """Return the bytes that are free: of the machine, the container or the process.

    ``None`` where the system does not tell. ``container`` is the folder with the limits of a
    control group.
    """
    free = []
    readers = (_of_machine, _of_process, lambda: _of_container(container))
    for reader in (*readers, lambda: _of_older_container(container / "memory")):
        with contextlib.suppress(OSError, StopIteration, ValueError, ImportError):
            free.append(reader())
    if not free:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            free.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(free)) if free else None


def _of_machine() -> int:
    return _entry(Path("/proc/meminfo"), "MemAvailable") * 1024


def _of_process() -> int:
    """Return what ``ulimit -v`` leaves."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        raise ValueError("no limit")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _of_container(folder: Path) -> int:
    limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
    return limit - used + _entry(folder / "memory.stat", "inactive_file")


def _of_older_container(folder: Path) -> int:
    """Return the same for the first version of control groups."""
    limit = int((folder / "memory.limit_in_bytes").read_text())
    return limit - int((folder / "memory.usage_in_bytes").read_text())


def _entry(path: Path, name: str) -> int:
    lines = path.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def require_memory(size: int, what: str, remedy: str) -> None:
    """Raise unless ``size`` bytes are free; the error names what needs them and what to do."""
    if size < UNASKED:
        return
    available = available_memory()
    if available is not None and size > available:
        raise InputError(
            f"{what}: would take {in_gigabytes(size)} of memory and {in_gigabytes(available)} are "
            f"free; {remedy}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or torch is a failed allocation."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in text for part in _REFUSALS)
    )


@contextlib.contextmanager
def refusing_memory(what: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation into one line with what needed it and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        free = available_memory()
        rest = "" if free is None else f"; {in_gigabytes(free)} are free"
        raise InputError(f"{what}: takes more memory than there is{rest}; {remedy}") from None


def in_gigabytes(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"
