"""The command line, called in this process or in its own, and small runs to call it for."""

import contextlib
import io
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch

import mahalens.report
from mahalens.cli import main

SMALL = ("--trials", "2", "--epochs", "300", "--samples", "30")
STUDY_WORDS = {
    "gaussian": "--models abs --trials 1 --samples 20",
    "ellipsoids": "--dim 4 --count 8 --ranks 2 --trials 1",
    "representation": "--models relu --trials 1 --pixels raw --train-size 60",
    "pixels": "--network relu --models raw,step --trials 1 --train-size 60",
    "perturbation": "--data digits --models relu-bias --trials 1 --train-size 60",
    "activations": "--data iris --models relu,abs --trials 1",
    "init": "--data iris --models abs-kaiming,abs-lsuv --trials 2",
    "hybrid": "--data iris --models abs-0,narrow-0 --trials 1",
    "heads": "--data digits --models softmax,distance --trials 1 --train-size 400",
    "detect": "--data digits --models auto,mahalanobis --trials 1",
    "transfer": "--data iris --models relu-linear,relu-l2 --trials 1",
    "clusters": "--data 2d-apart-round --models abs-classes,relu-classes --trials 1",
    "penalties": "--data iris --models abs-none,abs-white --trials 1",
    "mechanisms": "--models relu,relu2-of-2 --trials 1 --pixels raw --train-size 60",
}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Runs that are compared bit by bit must be made with the same number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """Keep the first line of a slow start away: it depends on how busy the machine is."""
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


def launch(*words, script=None, **options):
    """Start the command line in a process of its own; ``script`` is run in its place."""
    command = ["-m", "mahalens"] if script is None else ["-c", script]
    return subprocess.Popen(
        [sys.executable, *command, *map(str, words)],
        text=True,
        **{
            "env": {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
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


@pytest.fixture
def start_process():
    """Start the command line in a process of its own, which ends with the test at the latest."""
    begun = []

    def start(*words, **options):
        begun.append(launch(*words, **options))
        return begun[-1]

    yield start
    for running in begun:
        running.kill()
        running.communicate()


@pytest.fixture(scope="session")
def wait_for():
    """Wait until a condition holds, while a process is running."""

    def wait(condition, running=None):
        limit = time.monotonic() + 120
        while not (value := condition()):
            assert running is None or running.poll() is None, running.communicate()[1]
            assert time.monotonic() < limit
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture
def no_report(monkeypatch):
    """Build no report: drawing takes seconds, and most tests are about what comes before."""
    monkeypatch.setattr(mahalens.report, "build_report", lambda folder: folder / "report.html")


@pytest.fixture(scope="session")
def study_words():
    """Words of a small run of each study, but for its length."""
    return STUDY_WORDS


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


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """Make a run without report, once for the same words, and return its folder."""
    made = {}

    def make(study, words):
        if (study, words) not in made:
            path = tmp_path_factory.mktemp(study) / "run"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mahalens.report, "build_report", lambda folder: folder)
                outcome = call("run", study, *words.split(), "--quiet", "--out", path)
            assert outcome.code == 0, outcome.err
            made[study, words] = path
        return made[study, words]

    return make


@pytest.fixture(scope="session")
def recorded(make_run):
    """The folder of a finished run, without report."""
    return make_run("gaussian", f"{STUDY_WORDS['gaussian']} --epochs 10")


@pytest.fixture
def picture():
    """Everything below a path, to compare before and after."""

    def take(path):
        return {
            str(p.relative_to(path)): p.read_bytes() if p.is_file() else None
            for p in path.rglob("*")
        }

    return take


@pytest.fixture
def fails(cli, tmp_path, picture, monkeypatch):
    """Run a command that must fail and write nothing; return the line that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        before = picture(tmp_path)
        outcome = cli(*words)
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        assert outcome.err.startswith("mahalens: ")
        assert outcome.err.endswith("\n")
        assert outcome.err.count("\n") == 1
        assert picture(tmp_path) == before
        return outcome.err.removeprefix("mahalens: ").rstrip("\n")

    return run
