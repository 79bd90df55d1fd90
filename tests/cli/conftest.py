import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import mahalens.report
from mahalens.cli import main

SMALL = ("--trials", "2", "--epochs", "300", "--samples", "30")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Runs that are compared bit by bit must be made with the same number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """What a slow start prints depends on how busy the machine is; its test asks for it."""
    monkeypatch.setattr(sys.modules["mahalens.cli.run"], "SILENCE", 60.0)


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def call(*words):
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["mahalens", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code or 0
    finally:
        sys.argv = before
    return Outcome(code, out.getvalue(), err.getvalue())


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def launch(*words, script=None, **options):
    """Start the command line in a process of its own; ``script`` is run in its place."""
    command = ["-m", "mahalens"] if script is None else ["-c", script]
    return subprocess.Popen(
        [sys.executable, *command, *map(str, words)],
        text=True,
        **{
            "env": environment(),
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        },
    )


@pytest.fixture(scope="session")
def cli():
    return call


@pytest.fixture(scope="session")
def process():
    """Run the command line in a process of its own and wait for its end."""

    def run(*words, **options):
        with launch(*words, **options) as running:
            out, err = running.communicate(timeout=120)
        return Outcome(running.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def start_process():
    return launch


@pytest.fixture
def no_report(monkeypatch):
    """Drawing takes seconds; most tests are about what comes before."""
    monkeypatch.setattr(mahalens.report, "build_report", lambda folder: folder / "report.html")


@pytest.fixture(scope="session")
def small():
    """Options of a run that takes a moment."""
    return SMALL


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A whole run with its report, by the command line, and what was printed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    outcome = call("run", "gaussian", *SMALL, "--models", "abs,ground-truth", "--out", path)
    assert outcome.code == 0, outcome.err
    return path, outcome


@pytest.fixture
def picture():
    """Everything below a path, to compare before and after."""

    def take(path):
        return {
            str(p.relative_to(path)): p.read_bytes() if p.is_file() else None
            for p in path.rglob("*")
        }

    return take
