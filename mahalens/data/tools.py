"""Runs programs that bring packages, such as npm and pip. Needs neither torch nor numpy."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from mahalens.data.download import SourceError


def run_tool(
    command: list[str],
    folder: Path,
    *,
    called: str,
    seconds: float,
    reason: Callable[[bytes], str],
) -> None:
    """Run a command that may hang and may have started others, in a folder.

    ``called`` is what to call it in an error, and ``reason`` finds in its output why it failed.
    """
    with (folder / "output").open("w+b") as output:
        try:
            running = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            name = called.split(maxsplit=1)[0]
            raise SourceError(f"{name} cannot be run, {error.strerror}") from None
        try:
            code = running.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SourceError(f"{called} took more than {seconds:g} s") from None
        finally:
            if running.poll() is None:
                _stop(running)
        if code:
            output.seek(0)
            raise SourceError(f"{called} failed{reason(output.read(1 << 16))}")


def _stop(running: subprocess.Popen[bytes]) -> None:
    """End a process and those it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    else:
        running.kill()
    running.wait()
