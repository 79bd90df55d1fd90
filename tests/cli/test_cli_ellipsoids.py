"""The ellipsoid study from the command line: options, bad input, kill and resume."""

import csv
import json
import signal
import time

import pytest

SMALL = ["--dim", "10", "--count", "16", "--ranks", "2,4", "--steps", "40", "--trials", "2"]

SLOW = """
import sys, time
import mahalens.studies.ellipsoids.search as search
from mahalens.geometry.reconstruction import AdamSearch

search.SAVE_EVERY = 0.0
advance = AdamSearch.advance

def slow(self, until=None):
    if until is None or until > 3:
        time.sleep(0.01)
    advance(self, until)

AdamSearch.advance = slow
from mahalens.cli import main
main()
"""


@pytest.fixture(scope="module")
def done(cli, tmp_path_factory):
    path = tmp_path_factory.mktemp("ellipsoids") / "run"
    outcome = cli("run", "ellipsoids", *SMALL, "--out", path)
    assert outcome.code == 0, outcome.err
    return path, outcome


def test_help_names_every_option(cli):
    text = cli("run", "ellipsoids", "--help").out
    options = (
        "dim count ranks methods solver steps trials noise seed published data clusters "
        "train-size shrinkage out force quiet"
    )
    assert [o for o in options.split() if f"--{o}" not in text] == []


def test_a_run_leaves_a_report_and_prints_a_line_per_model(done):
    path, outcome = done
    for word in ("Elliptical", "PCA-L2, 4", "PCA-L1, 2", "PCA-L2 + rest, 2", "Final error"):
        assert word in outcome.out
    assert f"report: {path / 'report.html'}" in outcome.out
    figures = {p.name for p in (path / "figures").iterdir()}
    assert figures == {"convergence.png", "ranks.png", "metrics.png"}
    page = (path / "report.html").read_text()
    assert "Ellipsoids study, 10-D, 16 ellipsoids, Adam" in page
    assert "lowest final error" in page
    assert "://" not in page


def test_the_same_seed_gives_the_same_numbers(done, cli, tmp_path):
    cli("run", "ellipsoids", *SMALL, "--out", tmp_path / "again")
    assert _numbers(tmp_path / "again") == _numbers(done[0])


def test_claims_and_report_know_the_study(done, cli):
    outcome = cli("claims", done[0])
    assert outcome.code == 0
    assert "002/rank-4-beats-full" in outcome.out
    assert cli("report", done[0]).code == 0


def test_data(cli, tmp_path):
    words = "--data digits --ranks 2,8 --clusters 2 --train-size 300 --trials 2"
    outcome = cli("run", "ellipsoids", *words.split(), "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "Rank 8 + rest" in outcome.out
    assert "scikit-learn's digits" in outcome.err
    figures = {p.name for p in (tmp_path / "run" / "figures").iterdir()}
    assert figures == {"classification.png", "metrics.png"}
    assert "Ellipsoids study, digits" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--dim 0", "--dim 0: give a whole number of at least 1"),
        ("--count 0", "--count 0: give a whole number of at least 1"),
        ("--ranks 200", "--ranks 200: is more than --dim 96"),
        ("--ranks 0", "--ranks 0: give a whole number of at least 1"),
        ("--ranks four", "'four' is no list of whole numbers such as 4,8,64"),
        ("--methods full", "--methods full: unknown; known: elliptical, spherical"),
        ("--solver sgd", "--solver sgd: unknown; known: adam, newton"),
        ("--noise -1", "--noise -1.0: give a number of at least 0"),
        ("--count 1000000 --dim 784", "leave out the full distance"),
        ("--data nowhere", "nowhere"),
        ("--data digits --ranks 65", "--ranks 65: is more than the 64 inputs"),
        ("--data digits --published", "leave one of them out"),
        ("--clusters 2", "--clusters without --data"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(cli, tmp_path, words, told):
    outcome = cli("run", "ellipsoids", *words.split(), "--out", tmp_path / "run")
    assert outcome.code == 2
    assert told in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_forced_run_with_bad_input_leaves_the_old_one(done, cli):
    path, _ = done
    before = (path / "summary.json").read_bytes()
    assert cli("run", "ellipsoids", "--dim", "0", "--out", path, "--force").code == 2
    assert cli("run", "ellipsoids", *SMALL, "--out", path).code == 2
    assert (path / "summary.json").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_goes_on(done, start_process, process, tmp_path, number):
    path = tmp_path / "run"
    with start_process("run", "ellipsoids", *SMALL, "--out", path, script=SLOW) as running:
        for _ in range(600):
            if len(list(path.glob("checkpoints/*"))) > 2 or running.poll() is not None:
                break
            time.sleep(0.05)
        assert running.poll() is None
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
    assert running.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    if number == signal.SIGINT:
        assert f"mahalens run --resume {path}" in err
    assert not (path / "summary.json").exists()
    outcome = process("run", "--resume", path)
    assert outcome.code == 0, outcome.err
    assert _numbers(path) == _numbers(done[0])


def _numbers(path):
    with (path / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row.pop("seconds")
    claims = json.loads((path / "summary.json").read_text())["claims"]
    verdicts = [c["verdict"] for c in claims if c["id"] != "002/rank-4-matches-full"]
    return rows, (path / "curves.csv").read_text(), verdicts
