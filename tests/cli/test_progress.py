"""Progress as a bar, plain lines or nothing, and signals that become a wish to stop."""

import os
import pty
import re
import signal
import time

import pytest

from mahalens.progress import Display, catch_interrupts
from mahalens.studies.run import _Tally
from mahalens.studies.study import Job


class Solver:
    def __init__(self, done=0):
        self.done = done

    @property
    def progress(self):
        return self.done, 100, f"MSE {self.done}"


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize(
    "steps",  # the time, how much is done then, and what is printed
    [
        [
            (0, 0, ["abs: starts"]),
            (9, 10, []),  # not every moment
            (10, 20, ["abs: 20 of 100, MSE 20, about 40 s left"]),
            (50, 100, ["abs: 100 of 100, MSE 100, took 50 s"]),
            (50, 100, []),
        ],
        [
            (0, 50, ["abs: goes on at 50 of 100"]),
            (20, 50, ["abs: 50 of 100, MSE 50, time left unknown"]),
            (100, 75, ["abs: 75 of 100, MSE 75, about 2 min left"]),
        ],
    ],
)
def test_plain_lines(capsys, monkeypatch, steps):
    moment = 0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    with Display() as display:
        update = display.stage("abs")
        for moment, done, printed in steps:  # noqa: B007 (the clock reads it)
            update(Solver(done))
            assert lines(capsys) == printed


def test_the_time_left_of_a_resumed_run_counts_only_the_work_since(capsys, monkeypatch):
    moment = 0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    done, half, new = (Job("", model, 0, 1) for model in ("relu", "abs", "relu2"))
    with Display() as display:
        tally = _Tally([done, half, new, Job("", "abs2", 0, 1)], [half, new], display.stage("jobs"))
        moment = 9
        tally.update(half, 0.5)  # a checkpoint had this much
        moment = 100
        tally.update(half, 0.75)
    assert lines(capsys) == [
        "jobs: goes on at 50.0%",
        "jobs: 68.8%, abs, trial 0, about 8 min left",
    ]


def test_names_are_neither_markup_nor_escape_sequences(capsys):
    with Display() as display:
        display.note("[/b]\x1b[2J\nnext")
        display.stage("[/b]\x1b[2J")(Solver())
        display.note("[bold]abs[/bold]: " + "long " * 60)
    first, second, third = lines(capsys)
    assert (first, second) == (r"[/b]\x1b[2J\nnext", r"[/b]\x1b[2J: starts")
    assert third.startswith("[bold]abs[/bold]: long long")
    assert len(third) > 300


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_prints_nothing(capsys, monkeypatch, terminal):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with Display(quiet=True) as display:
        display.note("a note")
        update = display.stage("abs")
        update(Solver())
        update(Solver(100))
    assert lines(capsys) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_becomes_a_wish_and_a_second_one_is_not_waited_for(capfd, number):
    before = signal.getsignal(number)
    with catch_interrupts() as wished:
        assert not wished()
        os.kill(os.getpid(), number)
        assert wished()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert capfd.readouterr() == ("", "")


def test_somebody_at_a_terminal_reads_that_it_may_take_a_while(monkeypatch):
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        with catch_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
    text = os.read(ours, 200).decode()
    os.close(ours)
    assert "Ctrl-C again stops at once" in text


def test_handlers_are_restored_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="x"), catch_interrupts():
        raise ValueError("x")
    assert signal.getsignal(signal.SIGTERM) is before


SCRIPT = """
import time
from mahalens.progress import Display

class Solver:
    progress = (0, 100, "")

with Display() as display:
    update = display.stage("abs")
    for done in (0, 50, 100):
        Solver.progress = (done, 100, "MSE 1")
        update(Solver)
        time.sleep(0.3)
"""


def test_a_terminal_gets_a_bar(start_process):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    running = start_process(script=SCRIPT, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # what Linux says when the other end is closed
        pass
    finally:
        os.close(ours)
    assert running.wait(60) == 0
    assert b"\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "━" in plain
    assert re.search(r"abs\s.*100%", plain)
    assert re.search(r"\d:\d\d:\d\d", plain)  # the time
    assert "abs: starts" not in plain
