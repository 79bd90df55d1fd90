"""The perturbation study from the command line: options, bad input, kill and resume."""

import csv
import json
import signal
import time

import pytest

SMALL = ["--data", "digits", "--train-size", "60", "--trials", "2", "--epochs", "12"]

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
    path = tmp_path_factory.mktemp("perturbation") / "run"
    outcome = cli("run", "perturbation", *SMALL, "--out", path)
    assert outcome.code == 0, outcome.err
    return path, outcome


def test_help_names_every_option(cli):
    text = cli("run", "perturbation", "--help").out
    options = (
        "from data models pixels epochs trials train-size budget published seed out force quiet"
    )
    assert [o for o in options.split() if f"--{o}" not in text] == []


def test_a_run_keeps_the_contract(done):
    path, outcome = done
    for name in ("config.json", "trials.csv", "levels.csv", "summary.json", "report.html"):
        assert (path / name).exists()
    assert {p.name for p in (path / "figures").glob("*.png")} == {"levels.png", "places.png"}
    assert len(list((path / "weights").glob("*.safetensors"))) == 2
    assert f"report: {path / 'report.html'}" in outcome.out
    assert "data: digits, 60 training and 360 test samples" in outcome.err
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["study"], summary["protocol"]) == ("perturbation", "scaled")
    wanted = {"group", "model", "metric", "mean", "std", "min", "max", "n", "ci95", "published"}
    assert all(wanted <= set(row) for row in summary["rows"])
    with (path / "trials.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 2 * 2
    page = (path / "report.html").read_text()
    assert "offset +25 %" in page
    assert "epochs: 12 instead of 5,000" in page
    assert "data: digits instead of mnist" in page


def test_the_tables_say_what_was_scaled(done):
    _, outcome = done
    text = " ".join(outcome.out.split())
    assert "epochs: 12 instead of 5,000" in text
    assert "reliance on distance" in text
    assert "in brackets" not in text  # nothing was published about digits


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "nosuch"], "wanted one of digits, mnist, fashion-mnist, cifar10"),
        (["--data", "digits", "--models", "foo"], "--models foo: unknown model"),
        (["--data", "digits", "--train-size", "99999"], "digits has 1,437 training samples"),
        (["--data", "digits", "--pixels", "grey"], "--pixels grey: give normalized, raw or both"),
        (["--published", "--trials", "3"], "--published with --trials 3"),
        (["--from", "nowhere"], "nowhere: there is no such folder"),
        (["--from", "nowhere", "--epochs", "3"], "--from with --epochs: its networks are trained"),
        (["--from", "nowhere", "--published"], "--from with --published"),
        (["--from", "nowhere", "--train-size", "9"], "--from with --train-size"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(cli, tmp_path, words, said):
    path = tmp_path / "run"
    outcome = cli("run", "perturbation", *words, "--out", path)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert said in outcome.err
    assert not path.exists()


def test_a_folder_that_holds_a_run_is_left_alone(cli, done):
    path, _ = done
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    outcome = cli("run", "perturbation", *SMALL, "--out", path)
    assert outcome.code == 2
    assert "already holds a run" in outcome.err
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_networks_of_a_representation_run(cli, done, tmp_path):
    networks, path = tmp_path / "networks", tmp_path / "run"
    words = [*SMALL, "--models", "relu-bias,abs-bias", "--pixels", "raw", "--quiet"]
    assert cli("run", "representation", *words, "--out", networks).code == 0
    outcome = cli("run", "perturbation", "--from", networks, "--out", path)
    assert outcome.code == 0, outcome.err
    assert (path / "trials.csv").read_bytes() == (done[0] / "trials.csv").read_bytes()
    assert str(networks) in (path / "report.html").read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_goes_on_to_the_same_numbers(done, start_process, process, tmp_path, how):
    whole, _ = done
    path = tmp_path / "run"
    with start_process("run", "perturbation", *SMALL, "--out", path, script=SLOW) as running:
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
    for name in ("trials.csv", "levels.csv", "plots.safetensors"):
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name
    assert (path / "report.html").exists()


def test_the_ledger_shows_its_claims(cli, done):
    outcome = cli("claims", done[0])
    assert outcome.code == 0
    assert "2411.17932/relu-relies-on-distance" in "".join(outcome.out.split())


def test_the_study_is_listed(cli):
    assert "perturbation" in cli("list").out
