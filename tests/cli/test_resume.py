"""Runs that are stopped or killed, and go on to the numbers of a run that never was."""

import csv
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mahalens.errors import InputError
from mahalens.studies.registry import STUDIES
from mahalens.train import Adam

# The real command line, with short steps and a pause after each state that it saves: so small a
# run would otherwise be over after one.
SLOW = """
import sys, time
import mahalens.train.solver
from mahalens.studies import ellipsoids
from mahalens.studies.folder import RunFolder
from mahalens.train import Descent

mahalens.train.solver.SAVE_EVERY = ellipsoids.SAVE_EVERY = 0.0
Descent.most_epochs = 100
pause = float(sys.argv.pop(1))
write = RunFolder.write_tensors

def write_slowly(*words):
    write(*words)
    time.sleep(pause)

RunFolder.write_tensors = write_slowly
from mahalens.cli import main
main()
"""

DIGITS = "--data digits --train-size 60 --trials 2 --epochs 300"
GAUSSIAN = "--models abs,relu --trials 3 --samples 50"
ADAM = ("gaussian", f"{GAUSSIAN} --epochs 300")
ELLIPSOIDS = "--dim 10 --count 16 --ranks 2,4 --steps 40 --trials 2"
TRANSFER = "--data wine --models relu-l2,knn --trials 2 --epochs 5 --workers 1"
CASES = [
    (*ADAM, "relu-0000.training.state", signal.SIGKILL),
    ("gaussian", f"{GAUSSIAN} --solver newton", "abs-0000.training.state", signal.SIGTERM),
    ("ellipsoids", ELLIPSOIDS, "elliptical-0000.search.state", signal.SIGINT),
    ("representation", f"{DIGITS} --models relu", "raw-relu-0000.training.state", signal.SIGKILL),
    ("perturbation", DIGITS, "raw-relu-bias-0000.training.state", signal.SIGINT),
    ("transfer", TRANSFER, "wine-relu-l2-0000", signal.SIGKILL),
]


def without_times(measures):
    """Return what was measured, but for how long it took."""
    contents = {}
    for name, tensor in measures.items():
        content = tensor.numpy().tobytes()
        if "|about|" in name:
            content = {key: v for key, v in json.loads(content).items() if key != "seconds"}
        if "second" not in name:
            contents[name] = content
    return contents


def results(path):
    """Return all records of a run but its times."""
    records = {}
    for file in sorted(path.rglob("*.csv")):
        with file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        records[file.name] = [
            {name: cell for name, cell in row.items() if "second" not in name} for row in rows
        ]
    for file in path.rglob("*.safetensors"):
        timed = file.name == "measures.safetensors"
        content = without_times(load_file(file)) if timed else file.read_bytes()
        records[file.relative_to(path).as_posix()] = content
    summary = json.loads((path / "summary.json").read_text())
    records["rows"] = [row for row in summary["rows"] if "second" not in row["metric"]]
    return records


def assert_same(path, other):
    records, others = results(path), results(other)
    assert records.keys() == others.keys()
    assert [name for name in records if records[name] != others[name]] == []


# --- Stopped and killed while computing -------------------------------------------------------


def assert_stopped(running, path):
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, ""), err
    place = shlex.quote(str(path))
    assert err == f"mahalens: stopped; go on with: mahalens run --resume {place}\n"
    assert not (path / ".lock").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[3].name}")
@pytest.mark.usefixtures("no_report")
def test_stopped_while_it_computes(
    cli, start_process, wait_for, make_run, tmp_path, monkeypatch, case
):
    study, words, state, number = case
    path = tmp_path / "my run"
    command = ("run", study, *words.split(), "--quiet", "--out", path)
    running = start_process(0.5, *command, script=SLOW)
    checkpoint = path / "checkpoints" / f"{state}.safetensors"
    wait_for(checkpoint.exists, running)
    running.send_signal(number)
    if number == signal.SIGKILL:
        assert running.communicate() == ("", "")
    else:
        assert_stopped(running, path)
    assert not (path / "summary.json").exists()
    saved = load_file(checkpoint)
    advance, epochs = Adam.advance, []
    monkeypatch.setattr(Adam, "advance", lambda self: (epochs.append(self.epoch), advance(self)))
    outcome = cli("run", "--resume", path, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    if epochs:  # those that were saved are not trained again
        assert epochs[0] == int(saved["epoch"]) > 0
    assert_same(path, make_run(study, words))
    assert not (path / "checkpoints").exists()
    assert not (path / ".lock").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_killed_again_and_again(cli, start_process, wait_for, make_run, tmp_path):
    """Three times, at moments that nobody chose; the first may come before any state."""
    path = tmp_path / "run"
    moments = random.Random(os.urandom(8))
    words = ["run", ADAM[0], *ADAM[1].split(), "--out", path]
    for _ in range(3):
        running = start_process(0.1, *words, script=SLOW)
        # It holds the folder from here on: not in the midst of importing libraries.
        wait_for(lambda: (path / "config.json").exists() and (path / ".lock").exists(), running)
        time.sleep(moments.uniform(0, 0.5))
        running.kill()
        assert "Traceback" not in running.communicate()[1]
        # A killed process leaves its lock file; its lock is gone with it.
        (path / ".lock").unlink(missing_ok=True)
        words = ["run", "--resume", path]
    outcome = cli("run", "--resume", path, "--quiet")
    assert outcome.code == 0, outcome.err
    assert_same(path, make_run(*ADAM))


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_a_signal_to_all_processes_of_a_run(start_process, wait_for, study_words, tmp_path, study):
    """As from a terminal or a cluster; the run would take for ever."""
    path = tmp_path / "run"
    option = {"ellipsoids": "--steps", "detect": "--resamples"}.get(study, "--epochs")
    length = (option, 1_000_000, "--workers", 2)
    words = ("run", study, *study_words[study].split(), *length, "--quiet", "--out", path)
    running = start_process(*words, start_new_session=True)
    wait_for(lambda: (path / "config.json").exists() and (path / ".lock").exists(), running)
    time.sleep(0.3)
    os.killpg(running.pid, (signal.SIGTERM, signal.SIGINT)[STUDIES.index(study) % 2])
    assert_stopped(running, path)
    assert not (path / "summary.json").exists()


# --- Stopped at other moments -----------------------------------------------------------------


@pytest.mark.slow
def test_stopped_while_it_draws_the_report(start_process, wait_for, study_words, tmp_path):
    script = """
import time, mahalens.report
mahalens.report.build_report = lambda folder: time.sleep(60)
from mahalens.cli import main
main()
"""
    path = tmp_path / "run"
    words = (*study_words["gaussian"].split(), "--epochs", 10, "--quiet", "--out", path)
    running = start_process("run", "gaussian", *words, script=script)
    wait_for((path / "summary.json").exists, running)
    running.send_signal(signal.SIGTERM)
    assert_stopped(running, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("torch", signal.SIGINT),
        ("numpy", signal.SIGTERM),
        ("click", signal.SIGINT),
        ("mahalens.studies.run", signal.SIGTERM),
    ],
)
def test_stopped_while_it_imports(start_process, tmp_path, module, number):
    """Where an import turns the interruption into an error of its own, too."""
    script = f"""
import builtins, os, sys
plain = builtins.__import__
def importing(name, *rest, **more):
    if name == {module!r} and {module!r} not in sys.modules:
        try:
            os.kill(os.getpid(), {int(number)})
            plain(name, *rest, **more)
        except KeyboardInterrupt:
            raise ImportError("initialisation failed") from None
    return plain(name, *rest, **more)
builtins.__import__ = importing
from mahalens._stopping import run_command
run_command()
"""
    running = start_process("run", "gaussian", "--out", tmp_path / "run", script=script)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out, err) == (130, "", "mahalens: stopped\n")
    assert not (tmp_path / "run").exists()


def test_an_interruption_that_is_swallowed_ends_the_process_all_the_same(start_process):
    script = """
import os, signal, time
import mahalens._stopping as stopping
stopping.GRACE = 1
from mahalens import cli
def swallow():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except KeyboardInterrupt:
        time.sleep(60)
cli.main = swallow
stopping.run_command()
"""
    running = start_process(script=script)
    assert running.communicate(timeout=60) == ("", "mahalens: stopped\n")
    assert running.returncode == 130


def test_a_signal_after_the_end_changes_nothing(start_process):
    script = """
import atexit, os, signal
from mahalens._stopping import run_command
atexit.register(lambda: [os.kill(os.getpid(), n) for n in (signal.SIGINT, signal.SIGTERM)])
run_command()
"""
    running = start_process("list", script=script)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, "")
    assert "hybrid" in out


def _interrupt(*words, **options):
    raise KeyboardInterrupt


def _signal(*words, **options):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("mahalens.train.Adam.advance", _interrupt),  # as the second Ctrl-C does
        ("mahalens.studies.run.execute", _signal),  # too late for the study
        ("mahalens.report.build_report", _interrupt),
    ],
)
def test_ctrl_c_in_this_process(cli, small, tmp_path, monkeypatch, where, how):
    monkeypatch.setattr(where, how)
    path = tmp_path / "my run"
    outcome = cli("run", "gaussian", *small, "--models", "abs", "--quiet", "--out", path)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == f"mahalens: stopped; go on with: mahalens run --resume '{path}'\n"


def test_ctrl_c_before_anything_was_made(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("mahalens.studies.run.start", _interrupt)
    outcome = cli("run", "gaussian", "--out", tmp_path / "run")
    assert (outcome.code, outcome.err) == (130, "mahalens: stopped\n")


# --- Worker processes -------------------------------------------------------------------------

has_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")


def children(pid):
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def is_worker(pid):
    """Return whether a process computes, rather than look after resources."""
    return b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def with_workers(start_process, wait_for, tmp_path):
    """An endless run with two workers, and the ids of all processes that it started."""
    words = "--data iris,wine --models narrow-0,narrow-100 --trials 2 --epochs 10000000"
    words = (*words.split(), "--workers", 2, "--quiet", "--out", tmp_path / "run")
    running = start_process("run", "hybrid", *words)
    wait_for(lambda: sum(map(is_worker, children(running.pid))) == 2, running)
    time.sleep(2.0)  # time to begin with something
    return running, children(running.pid)


@has_proc
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_no_process_behind(with_workers, wait_for, tmp_path, number):
    running, processes = with_workers
    running.send_signal(number)
    if number == signal.SIGINT:
        assert_stopped(running, tmp_path / "run")
    wait_for(lambda: not any(map(is_alive, processes)))
    assert not (tmp_path / "run" / "summary.json").exists()


@has_proc
@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_line(with_workers, tmp_path):
    """As by the system, for want of memory."""
    running, processes = with_workers
    os.kill(next(filter(is_worker, processes)), signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err.count("\n")) == (2, 1)
    assert err.startswith("mahalens: a worker process was killed, possibly because memory ran out")
    assert (tmp_path / "run" / "config.json").exists()


# --- Folders ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_going_on_elsewhere(cli, start_process, wait_for, tmp_path, picture):
    path = tmp_path / "run"
    running = start_process(60, "run", ADAM[0], *ADAM[1].split(), "--out", path, script=SLOW)
    wait_for(lambda: list(path.glob("checkpoints/*.safetensors")), running)
    before = picture(path)
    for words in (["run", "--resume", path], ["run", "gaussian", "--out", path, "--force"]):
        outcome = cli(*words)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == (
            f"mahalens: {path}: another process is working in it; wait for it or stop it first\n"
        )
    assert picture(path) == before


@pytest.mark.usefixtures("no_report")
def test_a_finished_run_is_resumed(cli, recorded, tmp_path):
    """Also one that was killed between its results and the tidying."""
    path = shutil.copytree(recorded, tmp_path / "run")
    (path / ".lock").touch()  # of a killed process, which is no obstacle
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "abs.safetensors").write_bytes(b"left over")
    outcome = cli("run", "--resume", path, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"report: {path / 'report.html'}\n"
    assert_same(path, recorded)
    assert not (path / "checkpoints").exists()


def test_a_finished_run_only_makes_its_report_again(cli, recorded, picture, monkeypatch):
    def build(folder):
        raise InputError(f"report of {folder}")

    monkeypatch.setattr("mahalens.report.build_report", build)
    before = picture(recorded)
    outcome = cli("run", "--resume", recorded)
    assert outcome.out == f"{recorded}: the run is complete; making its report again\n"
    assert (outcome.code, outcome.err) == (2, f"mahalens: report of {recorded}\n")
    assert picture(recorded) == before


def test_states_are_saved_often_enough():
    """A killed process may lose a minute of training, not more."""
    from mahalens.studies import ellipsoids
    from mahalens.train import solver

    assert 0 < solver.SAVE_EVERY <= 60
    assert 0 < ellipsoids.SAVE_EVERY <= 60


@pytest.mark.slow
def test_the_program_on_the_path_is_the_same(tmp_path):
    """``mahalens`` as pip installs it, where it is installed."""
    program = shutil.which("mahalens", path=os.path.dirname(sys.executable))
    if program is None:
        pytest.skip("the package is not installed here")
    done = subprocess.run([program, "run", "--resume", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mahalens: {tmp_path}: holds no run; start one with")
