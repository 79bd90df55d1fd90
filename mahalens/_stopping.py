"""Stop the command line on Ctrl-C and SIGTERM. Imports no other module, as it is loaded first.

Whenever a command is stopped, it ends with exit code 130 and one line. A signal raises
``KeyboardInterrupt`` wherever the command is. Some libraries swallow it or turn it into another
error, as extensions do while they are imported: the command ends all the same. While a study
computes, :func:`mahalens.progress.catch_interrupts` takes over and saves its state first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

CODE = 130
GRACE = 10
"""Seconds from a signal to the end of a process that does not heed it."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)

_commands = 0  # that are under way, one in the other
_stopped = False


def stopped() -> bool:
    """Return whether the user has stopped the command, even if a library hid the interrupt."""
    return _stopped


def stop_now(number: int = 0, frame: FrameType | None = None) -> NoReturn:
    """Raise ``KeyboardInterrupt``; within a command, also make sure that the process ends."""
    del number, frame
    global _stopped
    if not _commands:
        raise KeyboardInterrupt
    if _stopped:
        _end()
    _stopped = True
    # Destructors and callbacks cannot pass the exception on and would print it.
    sys.unraisablehook = lambda _: None
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, lambda *_: _end())
        signal.alarm(GRACE)
    raise KeyboardInterrupt


def _end() -> NoReturn:
    os.write(2, b"mahalens: stopped\n")
    os._exit(CODE)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the command within; outside the main thread change nothing."""
    global _commands, _stopped
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hook = sys.unraisablehook
    _commands += 1
    before = {number: signal.signal(number, stop_now) for number in SIGNALS}
    try:
        yield
    finally:
        _commands -= 1
        if not _commands:
            if _stopped and hasattr(signal, "SIGALRM"):
                signal.alarm(0)
            _stopped, sys.unraisablehook = False, hook
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command() -> None:
    """Run the command line from the first import to the last moment of the process."""
    global _commands
    _commands += 1
    for number in SIGNALS:
        signal.signal(number, stop_now)
    code: object = CODE
    try:
        from mahalens.errors import COMMAND_LINE, InputError, require_extra

        try:
            require_extra("cli", "the command line", *COMMAND_LINE)
        except InputError as error:
            print(f"mahalens: {error}", file=sys.stderr)
            sys.exit(2)
        from mahalens.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        if not _stopped:
            raise
        os.write(2, b"mahalens: stopped\n")
    # The work is done, or has been stopped: nothing that comes now can change that.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if _stopped:
        # Extensions that were interrupted while they were imported may crash when they are ended.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(CODE)
    sys.exit(code)  # type: ignore[arg-type]
