"""What the terminal shows: a bar, plain lines or nothing; and how a stop is heard."""

import os
import pty
import re
import signal
import sys
import time

import pytest

from mahalens import console
from mahalens.console import Display, catch_interrupts
from mahalens.errors import InputError


class Solver:
    def __init__(self, total=100):
        self.done, self.total = 0, total

    @property
    def progress(self):
        return self.done, self.total, f"MSE {self.done}"


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_plain_lines(clock, capsys):
    solver = Solver()
    with Display() as display:
        update = display.stage("abs")
        update(solver)
        assert lines(capsys) == ["abs: starts"]
        solver.done, clock.now = 10, clock.now + 9
        update(solver)
        assert lines(capsys) == []  # not every moment
        solver.done, clock.now = 20, clock.now + 1
        update(solver)
        assert lines(capsys) == ["abs: 20 of 100, MSE 20, about 40 s left"]
        solver.done, clock.now = 100, clock.now + 40
        update(solver)
        update(solver)
        assert lines(capsys) == ["abs: 100 of 100, MSE 100, took 50 s"]


def test_plain_lines_of_a_resumed_run_tell_the_time_of_what_is_left(clock, capsys):
    solver = Solver()
    solver.done = 50
    with Display() as display:
        update = display.stage("abs")
        update(solver)
        assert lines(capsys) == ["abs: goes on at 50 of 100"]
        clock.now += 20
        update(solver)
        assert lines(capsys) == ["abs: 50 of 100, MSE 50, time left unknown"]
        solver.done, clock.now = 75, clock.now + 80
        update(solver)
        assert lines(capsys) == ["abs: 75 of 100, MSE 75, about 2 min left"]


def test_names_are_no_markup_and_no_escape_sequences(capsys):
    with Display() as display:
        display.note("[/b]\x1b[2J\nnext")
        display.stage("[/b]\x1b[2J")(Solver())
    assert lines(capsys) == [r"[/b]\x1b[2J\nnext", r"[/b]\x1b[2J: starts"]


def test_quiet_says_nothing(capsys):
    solver = Solver()
    with Display(quiet=True) as display:
        display.note("a note")
        update = display.stage("abs")
        update(solver)
        solver.done = 100
        update(solver)
    assert lines(capsys) == []


def test_quiet_says_nothing_on_a_terminal_either(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    solver = Solver()
    with Display(quiet=True) as display:
        assert display.console.is_terminal
        display.note("a note")
        update = display.stage("abs")
        solver.done = 100
        update(solver)
    assert lines(capsys) == []


def test_notes_are_printed_as_they_are(capsys):
    with Display() as display:
        display.note("[bold]abs[/bold]: " + "long " * 60)
    (line,) = lines(capsys)
    assert line.startswith("[bold]abs[/bold]: long long")
    assert len(line) > 300


# Stops


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_becomes_a_wish(number):
    before = signal.getsignal(number)
    with catch_interrupts() as wished:
        assert not wished()
        os.kill(os.getpid(), number)
        assert wished()
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_is_not_waited_for(second):
    before = signal.getsignal(signal.SIGINT)
    with catch_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
    assert signal.getsignal(signal.SIGINT) is before


def test_somebody_at_a_terminal_is_told_that_it_may_take_a_while(monkeypatch):
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        with catch_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
    told = os.read(ours, 200).decode()
    os.close(ours)
    assert "Ctrl-C again stops at once" in told


def test_nobody_else_is(capfd):
    with catch_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr() == ("", "")


def test_handlers_are_restored_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="x"), catch_interrupts():
        raise ValueError("x")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("where", ["training", "report"])
def test_an_impatient_user_is_told_how_to_go_on(cli, small, tmp_path, monkeypatch, where):
    """Ctrl-C that arrives as an exception: the second one, or one while the report is made."""

    def interrupt(*_):
        raise KeyboardInterrupt

    import mahalens.report
    import mahalens.train

    if where == "training":
        monkeypatch.setattr(mahalens.train.Adam, "advance", interrupt)
    monkeypatch.setattr(mahalens.report, "build_report", interrupt)
    path = tmp_path / "my run"
    outcome = cli("run", "gaussian", *small, "--models", "abs", "--quiet", "--out", path)
    assert outcome.code == 130
    assert outcome.out == ""
    assert outcome.err == f"mahalens: stopped; go on with: mahalens run --resume '{path}'\n"


def test_ctrl_c_before_anything_was_made(cli, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mahalens.studies.gaussian.run.start", interrupt)
    outcome = cli("run", "gaussian", "--out", tmp_path / "run")
    assert outcome.code == 130
    assert outcome.err.strip() == "mahalens: stopped"


# A real terminal

SLOW = """
import time
import mahalens.report, mahalens.train
mahalens.report.build_report = lambda folder: folder / "report.html"
advance = mahalens.train.Adam.advance
def slow(self):
    time.sleep(0.15)
    advance(self)
mahalens.train.Adam.advance = slow
from mahalens.cli import main
main()
"""


def test_a_terminal_gets_a_bar(start_process, small, tmp_path):
    ours, theirs = pty.openpty()
    words = ["run", "gaussian", *small, "--models", "abs", "--out", tmp_path / "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    running = start_process(*words, script=SLOW, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # what Linux says when the other end is closed
        pass
    finally:
        os.close(ours)
        out, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    assert out.splitlines()[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    text = shown.decode()
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "━" in plain
    assert re.search(r"abs\s.*100%", plain)
    assert re.search(r"\d:\d\d:\d\d", plain)  # the time
    assert "abs: starts" not in plain


class TestTheFirstLine:
    """Comes before data are read, unless nobody would have to wait for it."""

    @pytest.fixture
    def slow(self, monkeypatch):
        def load(name):
            time.sleep(0.5)
            raise InputError(f"{name}: read at last")

        monkeypatch.setattr("mahalens.studies.representation.problem.load_set", load)
        monkeypatch.setattr(sys.modules["mahalens.cli.run"], "SILENCE", 0.1)

    @pytest.mark.usefixtures("slow")
    def test_comes_while_data_are_read(self, tmp_path, cli):
        done = cli("run", "representation", "--data", "a\x1b[1mb.npz", "--out", tmp_path / "run")
        first, last = done.err.splitlines()
        assert first == "representation: reading a?[1mb.npz"
        assert last.startswith("mahalens: ")
        assert done.code == 2

    @pytest.mark.usefixtures("slow")
    def test_stays_away_if_quiet(self, tmp_path, cli):
        for words in (("run", "--quiet", "representation"), ("run", "representation", "--quiet")):
            done = cli(*words, "--data", "mine.npz", "--out", tmp_path / "run")
            assert done.err.splitlines() == ["mahalens: mine.npz: read at last"]


def test_an_allocation_that_fails_is_one_line(tmp_path, monkeypatch, cli):
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: ...")):

        def fail(name, error=error):
            raise error

        monkeypatch.setattr("mahalens.studies.representation.problem.load_set", fail)
        done = cli("run", "representation", "--data", "mine.npz", "--out", tmp_path / "run")
        assert done.code == 2
        assert done.err.startswith("mahalens: this takes more memory than there is; give fewer")
        assert done.err.count("\n") == 1
