"""``mahalens run init`` by the command line."""

from __future__ import annotations

import csv
import json

import pytest

SMALL = ("--data", "iris", "--models", "abs-kaiming,abs-cluster-pca", "--trials", "2")


def test_a_run_and_its_report(cli, tmp_path):
    path = tmp_path / "run"
    outcome = cli("run", "init", *SMALL, "--epochs", 2, "--workers", 1, "--out", path)
    assert outcome.code == 0, outcome.err
    summary = json.loads((path / "summary.json").read_text())
    assert summary["study"] == "init"
    assert (path / "report.html").exists()
    assert list((path / "figures").glob("*.png"))
    with (path / "trials.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["model"] for row in rows} == {"abs-kaiming", "abs-cluster-pca"}
    page = (path / "report.html").read_text()
    assert "Cluster PCA" in page
    assert "init/cluster-pca-faster-than-kaiming-abs/iris" in page or "Cluster PCA trains" in page
    assert cli("claims", path).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--models", "abs-best"), "--models abs-best: unknown"),
        (("--data", "nowhere.npz"), "nowhere.npz"),
        (("--trials", "0"), "--trials 0"),
        (("--published", "--epochs", "3"), "--published with --epochs"),
        (("--data", "digits", "--train-size", "100"), "hidden layer of 128 units"),
        (("--data", "iris", "--workers", "0"), "--workers 0"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(cli, tmp_path, words, told):
    outcome = cli("run", "init", *words, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert told in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_models_are_listed(cli):
    outcome = cli("list")
    assert "abs-cluster-pca" in outcome.out
    assert "  init " in outcome.out
