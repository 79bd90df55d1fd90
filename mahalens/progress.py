"""Progress on a terminal, text from outside made safe for it, and Ctrl-C while work is under way.

Imports no torch. Other rooms hand a :class:`Display` the objects that compute; it only asks them
for their ``progress``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from mahalens._stopping import stop_now
from mahalens.errors import require_extra

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_LINE_EVERY = 10.0  # seconds between lines where there is no terminal
_BAR_EVERY = 0.2  # seconds between updates of a bar
_SPACES = "\u00a0\u202f"  # do no harm, and stand in numbers with units
_STOPPING = b"\r\nstops when what is under way is done; Ctrl-C again stops at once\r\n"


def printable(text: object) -> str:
    """Return text from outside so that a terminal shows it and obeys nothing in it.

    Control characters, escape sequences, characters that turn the direction of writing and lone
    surrogates become visible escapes. Everything else stays as it is. ``rich`` needs
    ``Text(printable(name))`` or ``markup=False`` besides, for its markup is made of ordinary
    characters.

    >>> printable("evil\\x1b[2J\\u202egnp.txt"), printable("Größe [/b] λ")
    ('evil\\\\x1b[2J\\\\u202egnp.txt', 'Größe [/b] λ')
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        char
        if char.isprintable() or char in _SPACES
        else char.encode("unicode_escape").decode("ascii")
        for char in plain
    )


class HasProgress(Protocol):
    """Work under way, as far as a display needs to know it: a solver, a download, a run."""

    @property
    def progress(self) -> tuple[float, float, str]:
        """Work done, total work and a status text."""


class Display:
    """A progress bar with the time left on a terminal, plain lines elsewhere, nothing if quiet.

    Writes to standard error, or to another ``console``. One display shows several stages:

    >>> class Work:
    ...     progress = (3, 10, "MSE 0.1")
    >>> with Display(quiet=True) as display:
    ...     update = display.stage("adam")
    ...     update(Work())  # as often as you like
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console: Console | None = None
        self._bars: Progress | None = None
        if not quiet:
            require_extra("report", "showing progress", "rich")
            from rich.console import Console

            self._console = console or Console(stderr=True, highlight=False)
            self._bars = _bars(self._console) if self._console.is_terminal else None

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def note(self, text: str) -> None:
        """Print a line."""
        if self._console is not None:
            self._console.print(printable(text), markup=False, soft_wrap=True)

    def stage(self, name: str) -> Callable[[HasProgress], None]:
        """Begin a stage of the work; call the returned function with whatever has progress."""
        if self._console is None:
            return lambda solver: None
        name = printable(name)
        return self._lines(name) if self._bars is None else self._bar(name, self._bars)

    def _bar(self, name: str, bars: Progress) -> Callable[[HasProgress], None]:
        task = bars.add_task(name, state="")
        shown = 0.0

        def update(solver: HasProgress) -> None:
            nonlocal shown
            moment = time.monotonic()
            done, total, state = solver.progress
            if moment - shown > _BAR_EVERY or done >= total:
                shown = moment
                bars.update(task, completed=done, total=total, state=printable(state))

        return update

    def _lines(self, name: str) -> Callable[[HasProgress], None]:
        began = time.monotonic()
        spoken = began
        first: float | None = None
        ended = False

        def update(solver: HasProgress) -> None:
            nonlocal spoken, first, ended
            moment = time.monotonic()
            done, total, state = solver.progress
            percent = getattr(solver, "percent", False)
            amount = f"{done / total:.1%}" if percent else f"{done} of {total}"
            if first is None:
                first = done
                self.note(f"{name}: starts" if not done else f"{name}: goes on at {amount}")
            elif done >= total and not ended:
                ended = True
                self.note(f"{name}: {amount}, {state}, took {moment - began:.0f} s")
            elif moment - spoken >= _LINE_EVERY and not ended:
                spoken = moment
                rate = (done - getattr(solver, "restored", first)) / (moment - began)
                left = "time left unknown"
                if rate > 0:
                    left = f"about {minutes((total - done) / rate)} left"
                self.note(f"{name}: {amount}, {state}, {left}")

        return update


def _bars(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description:<8}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
    )


def minutes(seconds: float) -> str:
    """Return a duration in the unit that people would use.

    >>> minutes(40), minutes(700), minutes(9000)
    ('40 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def catch_interrupts() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a wish to stop, so that the state can be saved first.

    Within, the yielded function returns whether somebody wishes to stop. A second Ctrl-C is not
    caught, and a line on the terminal says so: what is under way, such as a trial, may take minutes
    to end.
    """
    wished = False

    def wish(number: int, frame: FrameType | None) -> None:
        nonlocal wished
        if wished:
            stop_now()
        wished = True
        if sys.stderr is not None and sys.stderr.isatty():
            # Not by a stream that the interrupted code may be writing to.
            os.write(sys.stderr.fileno(), _STOPPING)

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: wished
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
