"""``mahalens run activations`` by the command line."""

from __future__ import annotations

import csv
import json

import pytest

SMALL = ("--models", "relu,relu2,gelu,gelu2", "--trials", 2, "--train-size", 60, "--epochs", 3)


def test_a_run_and_its_report(cli, tmp_path):
    path = tmp_path / "run"
    outcome = cli("run", "activations", *SMALL, "--workers", 1, "--pixels", "raw", "--out", path)
    assert outcome.code == 0, outcome.err
    config = json.loads((path / "config.json").read_text())
    assert config["study"] == "activations"
    assert config["options"]["pixels"] == "raw"
    assert config["protocol"] == "scaled"
    with (path / "trials.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["model"] for row in rows] == [m for m in SMALL[1].split(",") for _ in range(2)]
    assert list((path / "figures").glob("*.png"))
    page = (path / "report.html").read_text()
    assert "GELU2" in page
    assert "ReLU2 collapses" in page
    assert cli("claims", path).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--models", "gelu,swish"), "--models swish: unknown"),
        (("--pixels", "both"), "--pixels both: unknown; give one of normalized, raw"),
        (("--solver", "newton"), "--solver newton: unknown; give one of sgd, adam"),
        (("--data", "nowhere.npz"), "nowhere.npz"),
        (("--epochs", "0"), "--epochs 0"),
        (("--train-size", "3"), "--train-size 3: digits has 10 classes"),
        (("--published", "--trials", "3"), "--published with --trials 3"),
        (("--published", "--data", "digits"), "--published with --data digits"),
        (("--workers", "0"), "--workers 0"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(cli, tmp_path, words, told):
    outcome = cli("run", "activations", *words, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert told in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_models_are_listed(cli):
    outcome = cli("list")
    assert "Linear(128), LeakyReLU, Linear(C, bias=False), LeakyReLU, Neg" in outcome.out
    assert "  activations " in outcome.out
