"""The representation study from the command line: options, bad input, kill and resume."""

import csv
import json
import signal
import time

import numpy as np
import pytest

SMALL = ["--train-size", "60", "--trials", "2", "--epochs", "12", "--models", "relu,relu2,abs-l2"]

SLOW = """
import time
import mahalens.train.solver as drive
from mahalens.train import SGD

drive.SAVE_EVERY = 0.0
advance = SGD.advance

def slow(self):
    time.sleep(0.02)
    self.milestones = (*self.milestones, self.epoch + 1)
    advance(self)

SGD.advance = slow
from mahalens.cli import main
main()
"""


@pytest.fixture(scope="module")
def done(cli, tmp_path_factory):
    path = tmp_path_factory.mktemp("representation") / "run"
    outcome = cli("run", "representation", *SMALL, "--out", path)
    assert outcome.code == 0, outcome.err
    return path, outcome


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_help_names_every_option(cli):
    text = cli("run", "representation", "--help").out
    options = (
        "data models bias pixels epochs trials train-size budget published engine scheduler "
        "group nodes tensorboard seed out force quiet"
    )
    assert [o for o in options.split() if f"--{o}" not in text] == []


def test_a_run_keeps_the_contract(done):
    path, outcome = done
    for name in ("config.json", "trials.csv", "curves.csv", "comparisons.csv", "summary.json"):
        assert (path / name).exists()
    assert (path / "report.html").exists()
    assert list((path / "figures").glob("*.png"))
    assert len(list((path / "weights").glob("*.safetensors"))) == 6
    assert f"report: {path / 'report.html'}" in outcome.out
    assert "data: digits, 60 training and 360 test samples" in outcome.err
    summary = json.loads((path / "summary.json").read_text())
    assert summary["study"] == "representation"
    assert summary["protocol"] == "scaled"
    wanted = {"group", "model", "metric", "mean", "std", "min", "max", "n", "ci95", "published"}
    assert all(wanted <= set(row) for row in summary["rows"])
    assert {row["group"]["pixels"] for row in summary["rows"]} == {"raw", "normalized"}
    assert len(table(path / "trials.csv")) == 3 * 2 * 2


def test_the_tables_say_what_was_scaled(done):
    _, outcome = done
    assert "epochs: 12 instead of 5,000" in " ".join(outcome.out.split())
    assert "digits" in outcome.out


def test_networks_that_are_still_learning_are_told_in_terminal_and_page(cli, tmp_path):
    path = tmp_path / "run"
    words = "--train-size 300 --trials 1 --epochs 30 --models relu,abs --pixels raw"
    outcome = cli("run", "representation", *words.split(), "--out", path)
    (caution,) = json.loads((path / "summary.json").read_text())["cautions"]
    assert "networks still gained more than 1 point in the last tenth" in caution
    assert f"Mind: {caution}." in " ".join(outcome.out.split())
    assert f"Mind: {caution}." in (path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "nosuch"], "wanted one of digits, mnist, fashion-mnist, cifar10"),
        (["--models", "foo"], "--models foo: unknown model; known: all, primary"),
        (["--train-size", "99999"], "--train-size 99999: digits has 1,437 training samples"),
        (["--budget", "soon"], "--budget soon: give a time such as 90s, 20m"),
        (["--budget", "1s"], "--budget of 1 s: one epoch of"),
        (["--bias", "perhaps"], "--bias perhaps: give no, yes or both"),
        (["--pixels", "grey"], "--pixels grey: give normalized, raw or both"),
        (["--trials", "0"], "--trials 0: give a whole number of at least 1"),
        (["--nodes", "3,x"], "'3,x' is no list of whole numbers"),
        (["--nodes", "128"], "--nodes 128: give a whole number of at most 127"),
        (["--scheduler", "tcp://127.0.0.1:1"], "--scheduler without --engine dask"),
        (["--published", "--trials", "3"], "--published with --trials 3"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(cli, tmp_path, words, said):
    path = tmp_path / "run"
    given = [] if "--models" in words or "--published" in words else ["--models", "relu"]
    outcome = cli("run", "representation", *given, *words, "--out", path)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert said in outcome.err
    assert not path.exists()


def test_a_folder_that_holds_a_run_is_left_alone(cli, done):
    path, _ = done
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    outcome = cli("run", "representation", *SMALL, "--out", path)
    assert outcome.code == 2
    assert "already holds a run" in outcome.err
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_file_of_ones_own(cli, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    file = tmp_path / "mine.npz"
    np.savez(file, x=rng.normal(size=(90, 2, 3)) + y[:, None, None], y=y)
    words = ["--data", file, "--models", "relu,abs2-neg", "--trials", "2", "--epochs", "5"]
    outcome = cli("run", "representation", *words, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "data: mine, 72 training and 18 test samples" in outcome.err
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_goes_on_to_the_same_numbers(done, start_process, process, tmp_path, how):
    whole, _ = done
    path = tmp_path / "run"
    words = ["run", "representation", *SMALL, "--out", path]
    with start_process(*words, script=SLOW) as running:
        deadline = time.monotonic() + 240
        while not list((path / "checkpoints").glob("*.result.safetensors")):
            assert running.poll() is None
            if time.monotonic() > deadline:
                running.kill()
                pytest.fail("no group was finished in time")
            time.sleep(0.02)
        running.send_signal(how)
        _, err = running.communicate(timeout=120)
    assert running.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
    if how is signal.SIGINT:
        assert f"mahalens run --resume {path}" in err
    assert not (path / "summary.json").exists()
    outcome = process("run", "--resume", path)
    assert outcome.code == 0, outcome.err
    for name in ("trials.csv", "curves.csv", "comparisons.csv", "plots.safetensors"):
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name
    assert (path / "report.html").exists()


def test_other_studies_have_no_engines(cli, tmp_path):
    path = tmp_path / "run"
    small = ["--trials", "1", "--epochs", "2", "--samples", "10", "--models", "abs"]
    assert cli("run", "gaussian", *small, "--out", path, "--quiet").code == 0
    outcome = cli("run", "--resume", path, "--engine", "dask")
    assert outcome.code == 2
    assert "representation" in outcome.err


def test_the_study_and_its_models_are_listed(cli):
    text = cli("list").out
    assert "representation" in text
    assert "relu2-neg" in text
    assert "Linear(128), ReLU, Linear(C, bias=False), ReLU, Neg" in text
