"""Every study, stopped by SIGTERM or Ctrl-C at any moment, ends with 130 and one line."""

import os
import signal
import time

import pytest

ENDLESS = "1000000"
SMALL = {
    "gaussian": ("--trials", "1", "--samples", "20", "--models", "abs"),
    "ellipsoids": ("--dim", "4", "--count", "8", "--ranks", "2", "--trials", "1"),
    "representation": ("--models", "relu", "--trials", "1", "--pixels", "raw"),
    "perturbation": ("--data", "digits", "--models", "relu-bias", "--trials", "1"),
    "init": ("--data", "iris", "--models", "abs-kaiming,abs-lsuv", "--trials", "2"),
    "heads": ("--data", "digits", "--models", "softmax,distance", "--trials", "1"),
    "activations": ("--data", "iris", "--models", "relu,abs", "--trials", "1"),
    "transfer": ("--data", "iris", "--models", "relu-linear,relu-l2", "--trials", "1"),
    "hybrid": ("--data", "iris", "--models", "abs-0,narrow-0", "--trials", "1"),
}
LENGTH = {"ellipsoids": "--steps"}
PAIRED = tuple(SMALL)[4:]


def wait_for(path, running):
    limit = time.monotonic() + 120
    while not path.exists():
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.005)


def words_of(study, length, path):
    workers = ("--workers", "2") if study in PAIRED else ()
    count = (LENGTH.get(study, "--epochs"), length)
    return ("run", study, *SMALL[study], *count, *workers, "--quiet", "--out", path)


@pytest.fixture
def begun(start_process):
    """Start a study in a session of its own; whatever happens, it ends with the test."""
    running = []

    def begin(*words):
        running.append(start_process(*words, start_new_session=True))
        return running[-1]

    yield begin
    for one in running:
        one.kill()
        one.communicate()


def assert_stopped(running, path):
    out, said = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, ""), said
    assert said == f"mahalens: stopped; go on with: mahalens run --resume {path}\n"
    assert not (path / ".lock").exists()


@pytest.mark.parametrize("study", SMALL)
def test_while_it_computes(begun, tmp_path, study):
    """Also where the signal reaches all processes of the run, as from a terminal or a cluster."""
    path = tmp_path / "run"
    running = begun(*words_of(study, ENDLESS, path))
    wait_for(path / "config.json", running)
    wait_for(path / ".lock", running)
    time.sleep(0.3)
    number = (signal.SIGTERM, signal.SIGINT)[list(SMALL).index(study) % 2]
    os.killpg(running.pid, number)
    assert_stopped(running, path)
    assert not (path / "summary.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_it_draws_the_report(cli, begun, tmp_path, no_report, number):
    path = tmp_path / "run"
    running = begun(*words_of("gaussian", "10", path))
    wait_for(path / "summary.json", running)
    running.send_signal(number)
    assert_stopped(running, path)
    assert cli("run", "--resume", path, "--quiet").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["torch", "numpy", "click", "mahalens.studies.gaussian.run"])
def test_while_it_imports(start_process, tmp_path, number, module):
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
    path = tmp_path / "run"
    running = start_process(*words_of("gaussian", "10", path), script=script)
    out, said = running.communicate(timeout=120)
    assert (running.returncode, out, said) == (130, "", "mahalens: stopped\n")
    assert not path.exists()


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
cli._run = swallow
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
    out, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, "")
    assert out.startswith("Studies:")
