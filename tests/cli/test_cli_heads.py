"""``mahalens run heads`` by the command line."""

from __future__ import annotations

import csv
import json

import pytest

SMALL = ("--models", "softmax,refitted", "--trials", 2, "--epochs", 1, "--train-size", 400)


def test_a_run_and_its_report(cli, tmp_path):
    path = tmp_path / "run"
    outcome = cli("run", "heads", *SMALL, "--workers", 1, "--out", path)
    assert outcome.code == 0, outcome.err
    summary = json.loads((path / "summary.json").read_text())
    assert summary["study"] == "heads"
    drawn = {file.stem for file in (path / "figures").glob("*.png")}
    assert drawn == {"compared", "known_unknown", "compared-ece_calibrated"}
    with (path / "trials.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["model"] for row in rows] == ["softmax"] * 2 + ["refitted"] * 2
    page = (path / "report.html").read_text()
    assert "Distance head, trained and refitted" in page
    assert "models: without energy" in page
    assert cli("claims", path).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--models", "best"), "--models best: unknown; give some of softmax, energy"),
        (("--data", "breast-cancer"), "has 2 classes, and one is left out"),
        (
            ("--data", "iris"),
            "70 training samples of 2 known classes, of which 14 would be held out, and 40 are "
            "wanted to set a temperature",
        ),
        (("--resume", "runs/x"), "--resume belongs to run itself, as a run knows its study"),
        (("--reject-rate", "0"), "--reject-rate 0.0: give a number between 0 and 1"),
        (("--compactness", "-1"), "--compactness -1.0: give a number of at least 0"),
        (("--published", "--trials", "3"), "--published with --trials 3"),
        (("--epochs", "0"), "--epochs 0"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(cli, tmp_path, words, told):
    outcome = cli("run", "heads", *words, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert told in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_a_set_that_is_not_here(cli, tmp_path, monkeypatch, name):
    from mahalens.data import places
    from mahalens.studies.paired.samples import whole_set

    whole_set.cache_clear()
    monkeypatch.setattr(places, "_places", lambda name: [])
    outcome = cli("run", "heads", "--data", name, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert f"mahalens data fetch {name}" in outcome.err
    assert not (tmp_path / "run").exists()


def test_models_are_listed(cli):
    outcome = cli("list")
    assert "relative-mahalanobis" in outcome.out
    assert "  heads " in outcome.out
