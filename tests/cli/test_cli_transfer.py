"""``mahalens run transfer``: a whole small run, one that goes on, and what it refuses."""

import csv
import json

import pytest

SMALL = ("--trials", "2", "--epochs", "5", "--workers", "1")
MODELS = "relu-linear,relu-l2-neg,kernels-linear,knn"
HEAD = "@classLabel true up down\n@data\n"


@pytest.fixture
def series(tmp_path):
    """A set of the user, of 8 + 8 series."""
    for end in ("TRAIN", "TEST"):
        lines = [f"{n},{n % 2},{n % 3},{1 + n % 2}:{('up', 'down')[n % 2]}" for n in range(8)]
        (tmp_path / f"mine_{end}.ts").write_text(HEAD + "\n".join(lines))
    return tmp_path / "mine_TRAIN.ts"


def trials(folder):
    with (folder / "trials.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_a_run(cli, tmp_path, series):
    out = tmp_path / "run"
    outcome = cli("run", "transfer", "--data", f"wine,{series}", "--models", MODELS, *SMALL,
                  "--out", out)  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "ReLU-L2-Neg" in outcome.out
    rows = trials(out)
    found = {(row["data"], row["model"]) for row in rows}
    assert ("mine_TRAIN", "kernels-linear") in found
    assert ("wine", "kernels-linear") not in found
    assert len(rows) == 2 * len(found)
    assert all(row["status"] == "done" for row in rows)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["study"] == "transfer"
    assert summary["protocol"] == "scaled"
    assert any("their training sets overlap" in told for told in summary["cautions"])
    assert {row["metric"] for row in summary["comparisons"]} == {"test_accuracy", "log_loss"}
    # Neighbours give no probabilities, so that there is nothing to compare.
    losses = [row for row in summary["comparisons"] if row["metric"] == "log_loss"]
    assert losses
    assert not any("knn" in json.dumps(row) for row in losses)
    assert (out / "report.html").exists()


def test_a_run_that_goes_on_ends_with_the_same_numbers(cli, tmp_path, monkeypatch):
    from mahalens.studies.paired import workers

    words = ("run", "transfer", "--data", "wine", "--models", "relu-l2,knn", *SMALL, "--quiet")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert cli(*words, "--out", whole).code == 0
    real, calls = workers.compute, []

    def failing(study, options, job, folder):
        calls.append(job)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(study, options, job, folder)

    monkeypatch.setattr(workers, "compute", failing)
    assert cli(*words, "--out", stopped).code == 130
    monkeypatch.undo()
    assert cli("run", "--resume", stopped, "--workers", "1", "--quiet").code == 0
    assert trials(stopped) == trials(whole)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--data", "nowhere.npz"], "nowhere.npz: there is no such set, folder or file"),
        (["--data", "gunpoint"], "mahalens data fetch sequences"),
        (["--models", "relu"], "--models relu: unknown; give some of relu-linear"),
        (["--data", "wine", "--models", "dtw"], "these are for sequences"),
        (["--data", "wine", "--train-size", "2"], "--train-size 2: wine has 3 classes"),
        (["--data", "wine", "--train-size", "3"], "3 training samples; wanted at least 4"),
        (["--data", "wine", "--trials", "0"], "--trials 0: give a whole number"),
        (["--published", "--trials", "3"], "--published with --trials"),
    ],
)
def test_bad_input(cli, tmp_path, monkeypatch, words, text):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    outcome = cli("run", "transfer", *words, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert text in outcome.err.splitlines()[-1]
    assert outcome.err.splitlines()[-1].startswith("mahalens: ")
    assert not (tmp_path / "run").exists()


def test_list_knows_it(cli):
    out = cli("list").out
    assert "transfer" in out
    assert "kernels-l2-neg" in out
    assert "gunpoint" in out
