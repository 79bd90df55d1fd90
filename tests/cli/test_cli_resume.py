"""Runs that are really killed, and go on to the numbers of a run that never was."""

import csv
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from mahalens.train import Adam, Newton

OPTIONS = {
    "adam": ["--models", "abs,relu", "--trials", "3", "--epochs", "300", "--samples", "50"],
    "newton": ["--models", "abs,relu", "--trials", "3", "--samples", "50", "--solver", "newton"],
}

# The real command line, with a state saved after every step and steps short but slow enough to be
# hit: so small a run would otherwise be over after one.
SCRIPT = """
import sys, time
import mahalens.train as train
import mahalens.train.descent as descent
import mahalens.train.solver as drive

drive.SAVE_EVERY = 0.0
descent.Descent.most_epochs = 100
pause = float(sys.argv.pop(1))

def slowed(advance):
    def slow(self):
        time.sleep(pause)
        advance(self)
    return slow

for solver in (train.Adam, train.Newton):
    solver.advance = slowed(solver.advance)

from mahalens.cli import main
main()
"""


def results(path):
    """What must not depend on how often a run was stopped."""
    names = [p for p in path.rglob("*") if p.suffix in (".csv", ".safetensors")]
    found = {p.relative_to(path).as_posix(): p.read_bytes() for p in names}
    found["gaussian.json"] = (path / "gaussian.json").read_bytes()
    summary = json.loads((path / "summary.json").read_text())
    summary["facts"].pop("seconds")
    for outcome in summary["outcomes"]:
        outcome.pop("seconds")
    found["summary.json"] = json.dumps(summary)
    return found


def same(a, b):
    a, b = results(a), results(b)
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []


def wait_for(condition, running):
    """Wait until something has come about in the folder of a running process."""
    limit = time.monotonic() + 60
    while not condition():
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.005)


def steps_of(path):
    """Steps that were taken together: those of the longest trial of each model."""
    rows = list(csv.DictReader((path / "trials.csv").read_text().splitlines()))
    models = {row["model"] for row in rows}
    return sum(max(int(r["steps"]) for r in rows if r["model"] == m) for m in models)


def epoch_of(checkpoint):
    return int(load_file(checkpoint)["epoch"])


@pytest.fixture(scope="session")
def whole(cli, tmp_path_factory):
    """Runs that were never stopped, by solver."""
    made = {}

    def make(solver):
        if solver not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("mahalens.report.build_report", lambda folder: folder)
                path = tmp_path_factory.mktemp("whole") / solver
                outcome = cli("run", "gaussian", *OPTIONS[solver], "--quiet", "--out", path)
                assert outcome.code == 0, outcome.err
            made[solver] = path
        return made[solver]

    return make


@pytest.fixture
def slow_run(start_process):
    """Start the slowed command line; whatever happens, it ends with the test."""
    begun = []

    def begin(*words, pause=0.25):
        running = start_process(pause, *words, script=SCRIPT)
        begun.append(running)
        return running

    yield begin
    for running in begun:
        running.kill()
        running.communicate()


@pytest.fixture
def advances(monkeypatch):
    """How often the solvers of this process go a step further, Adam by 100 epochs at a time."""
    monkeypatch.setattr("mahalens.train.descent.Descent.most_epochs", 100)
    counted = dict.fromkeys(("adam", "newton"), 0)

    def count(name, advance):
        def counting(self):
            counted[name] += 1
            advance(self)

        return counting

    monkeypatch.setattr(Adam, "advance", count("adam", Adam.advance))
    monkeypatch.setattr(Newton, "advance", count("newton", Newton.advance))
    return counted


@pytest.mark.parametrize(("solver", "during"), [("adam", "relu"), ("newton", "abs")])
def test_killed_in_training(cli, slow_run, whole, tmp_path, no_report, advances, solver, during):
    path = tmp_path / "run"
    wanted = whole(solver)
    advances.update(dict.fromkeys(advances, 0))
    running = slow_run("run", "gaussian", *OPTIONS[solver], "--out", path)
    checkpoint = path / "checkpoints" / f"{during}.safetensors"
    wait_for(checkpoint.exists, running)
    running.send_signal(signal.SIGKILL)
    _, said = running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert "Traceback" not in said
    assert not (path / "summary.json").exists()
    epoch = epoch_of(checkpoint)
    assert 0 < epoch < 300

    outcome = cli("run", "--resume", path)
    assert outcome.code == 0, outcome.err
    assert f"report: {path / 'report.html'}\n" in outcome.out
    # What was done before is not done again.
    if solver == "adam":
        assert "abs: goes on at 300 of 300" in outcome.err
        assert f"relu: goes on at {epoch} of 300" in outcome.err
        assert advances["adam"] == (300 - epoch) / 100
    else:
        assert advances["newton"] == steps_of(path) - epoch
    same(path, wanted)
    assert not (path / "checkpoints").exists()
    assert not (path / ".lock").exists()


@pytest.mark.parametrize(
    ("solver", "number"), [("adam", signal.SIGINT), ("newton", signal.SIGTERM)]
)
def test_stopped_politely(cli, slow_run, whole, tmp_path, no_report, solver, number):
    path = tmp_path / "my run"
    running = slow_run("run", "gaussian", *OPTIONS[solver], "--out", path)
    wait_for((path / "checkpoints" / "abs.safetensors").exists, running)
    running.send_signal(number)
    out, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    *progress, last = said.splitlines()
    assert all(re.match(r"(gaussian|abs|relu)(-basin)?: ", line) for line in progress), said
    assert last == f"mahalens: stopped; go on with: mahalens run --resume '{path}'"
    assert not (path / "summary.json").exists()
    assert not (path / ".lock").exists()

    # What it says to type is what works.
    command = shlex.split(last.partition("go on with: ")[2])
    assert command[0] == "mahalens"
    outcome = cli(*command[1:], "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    same(path, whole(solver))


def test_killed_again_and_again(cli, slow_run, whole, tmp_path, no_report):
    """Three times, at moments that nobody chose; the first may come before any state."""
    path = tmp_path / "run"
    moments = random.Random(os.urandom(8))
    words = ["run", "gaussian", *OPTIONS["adam"], "--out", path]
    killed = 0
    for _ in range(3):
        running = slow_run(*words, pause=0.1)
        # It holds the folder from here on: not in the midst of importing libraries.
        wait_for(lambda: (path / "config.json").exists() and (path / ".lock").exists(), running)
        time.sleep(moments.uniform(0, 0.5))
        running.send_signal(signal.SIGKILL)
        _, said = running.communicate()
        assert "Traceback" not in said
        killed += running.returncode == -signal.SIGKILL
        # A killed process leaves its lock file; its lock is gone with it.
        (path / ".lock").unlink(missing_ok=True)
        words = ["run", "--resume", path]
    assert killed
    outcome = cli("run", "--resume", path, "--quiet")
    assert outcome.code == 0, outcome.err
    same(path, whole("adam"))


def test_the_lock_of_a_killed_process_is_no_obstacle(cli, whole, tmp_path, no_report):
    path = tmp_path / "run"
    shutil.copytree(whole("adam"), path)
    (path / ".lock").touch()
    assert cli("run", "--resume", path, "--quiet").code == 0


def test_a_run_that_is_going_on_elsewhere(cli, slow_run, tmp_path, picture, no_report):
    path = tmp_path / "run"
    running = slow_run("run", "gaussian", *OPTIONS["adam"], "--out", path, pause=30)
    wait_for(lambda: (path / "gaussian.json").exists(), running)
    before = picture(path)
    for words in (["run", "--resume", path], ["run", "gaussian", "--out", path, "--force"]):
        outcome = cli(*words)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == (
            f"mahalens: {path}: another process is working in it; wait for it or stop it first\n"
        )
    assert picture(path) == before


def test_killed_between_the_results_and_the_tidying(cli, whole, tmp_path, no_report):
    path = tmp_path / "run"
    shutil.copytree(whole("adam"), path)
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "abs.safetensors").write_bytes(b"left over")
    assert cli("run", "--resume", path, "--quiet").code == 0
    same(path, whole("adam"))
    assert not (path / "checkpoints").exists()


def test_resume_of_a_finished_run_makes_its_report_again(
    cli, finished, tmp_path, picture, monkeypatch
):
    def build(folder):
        (folder / "report.html").write_text("new")
        return folder / "report.html"

    monkeypatch.setattr("mahalens.report.build_report", build)
    path = tmp_path / "run"
    shutil.copytree(finished[0], path)
    before = picture(path)
    outcome = cli("run", "--resume", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{path}: the run is complete; making its report again\n")
    assert outcome.out.endswith(f"report: {path / 'report.html'}\n")
    assert picture(path) == {**before, "report.html": b"new"}


@pytest.mark.usefixtures("no_report")
def test_resume_of_a_finished_run_can_be_quiet(cli, finished):
    outcome = cli("run", "--resume", finished[0], "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"report: {finished[0] / 'report.html'}\n"


def test_states_are_saved_often_enough():
    """A killed process may lose a minute of training, not more."""
    from mahalens.train import solver as drive

    assert 0 < drive.SAVE_EVERY <= 60


def test_the_program_on_the_path_is_the_same(tmp_path):
    """``mahalens`` as pip installs it, where it is installed."""
    program = shutil.which("mahalens", path=os.path.dirname(sys.executable))
    if program is None:
        pytest.skip("the package is not installed here")
    done = subprocess.run([program, "run", "--resume", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mahalens: {tmp_path}: holds no run; start one with")
