"""A trial that turns non-finite is stopped, named and counted; the others go on."""

import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from mahalens.studies.gaussian.problem import Problem


def poison(monkeypatch, trials, value, model=None):
    """Let some trials (of one model) start from broken weights."""
    start = Problem.start

    def poisoned(self, name):
        stack = start(self, name)
        if model in (None, name):
            stack.values[list(trials)] = value
        return stack

    monkeypatch.setattr(Problem, "start", poisoned)


# NaN breaks the loss and the weights; 1e25 only the loss, which is too large for float32.
@pytest.mark.parametrize("value", [math.nan, 1e25], ids=str)
def test_one_trial_is_lost_and_the_others_are_not(runner, adam_run, tmp_path, monkeypatch, value):
    poison(monkeypatch, [1], value, model="abs")
    run = runner(tmp_path / "run", epochs=300)

    rows = run.of("abs")
    assert [row["status"] for row in rows] == ["done", "non-finite", "done"]
    assert rows[1]["steps"] == "1"
    assert {rows[1][metric] for metric in list(rows[1])[5:]} == {""}
    # The others, and the other models, are as if nothing had been.
    assert [rows[0], rows[2]] == [adam_run.of("abs")[t] for t in (0, 2)]
    assert run.of("relu") == adam_run.of("relu")

    outcome = run.outcome("abs")
    assert outcome["non_finite"] == [1]
    assert outcome["statuses"] == {"done": 2, "non-finite": 1}
    assert outcome["trials"] == 3
    assert outcome["best_trial"] in (0, 2)
    for row in run.summary["rows"]:
        wanted = {"abs": 2, "ground-truth": 1}.get(row["model"], 3)
        if (row["model"], row["metric"]) != ("ground-truth", "late_decrease"):
            assert row["n"] == wanted, (row["model"], row["metric"])
    losses = [float(rows[t]["train_mse"]) for t in (0, 2)]
    assert run.row("abs", "train_mse")["mean"] == pytest.approx(np.mean(losses))
    assert run.row("abs", "train_mse")["max"] == max(losses)

    named = [note for note in run.watcher.notes if "non-finite" in note]
    assert "abs: trial 1 turned non-finite at step 1 and was stopped" in named
    assert all("trial 1 " in note for note in named)
    assert not [p for p in run.curves if (p["model"], p["trial"]) == ("abs", "1")]
    (claim,) = (c for c in run.summary["claims"] if c["id"] == "000/abs-beats-sigmoid")
    assert "of 2 trials" in claim["why"]


@pytest.mark.parametrize("solver", ["adam", "newton"])
def test_all_trials_of_a_model_lost(runner, tmp_path, monkeypatch, solver):
    poison(monkeypatch, range(3), math.nan, model="abs")
    run = runner(tmp_path / "run", epochs=50, solver=solver, models=("abs", "relu"))
    outcome = run.outcome("abs")
    assert outcome["statuses"] == {"non-finite": 3}
    assert outcome["non_finite"] == [0, 1, 2]
    assert outcome["best_trial"] is None
    assert run.outcome("relu")["non_finite"] == []
    for row in run.summary["rows"]:
        if row["model"] == "abs":
            assert (row["n"], row["mean"], row["best"], row["ci95"]) == (0, None, None, None)
    for claim in run.summary["claims"]:
        if claim["id"].startswith("000/abs"):
            assert claim["verdict"] == "not measured"
    arrays = load_file(run.path / "plots.safetensors")
    assert np.isnan(arrays["eigenvalues/abs/rows"]).all()
    assert "fit/abs/learned" not in arrays
    assert "plane/relu/distance" in arrays


def test_a_run_of_lost_trials_only_has_a_report(runner, tmp_path, monkeypatch):
    from mahalens.report import build_report

    poison(monkeypatch, range(2), math.nan)
    run = runner(tmp_path / "run", epochs=5, trials=2, samples=20)
    page = build_report(run.path)
    assert "non-finite" in page.read_text("utf-8")


@pytest.mark.parametrize("model", ["abs", "relu", "sigmoid"])
def test_newton_loses_one_trial_and_not_the_others(
    runner, newton_run, tmp_path, monkeypatch, model
):
    poison(monkeypatch, [2], math.nan, model=model)
    run = runner(tmp_path / "run", trials=6, solver="newton", seed=1, models=(model,))
    assert run.outcome(model)["non_finite"] == [2]
    assert run.of(model)[2]["basin"] == "non-finite"
    for trial in (0, 1, 3, 4, 5):
        ours, wanted = run.of(model)[trial], newton_run.of(model)[trial]
        assert (ours["status"], ours["basin"]) == (wanted["status"], wanted["basin"])
        for metric in list(ours)[5:]:
            if wanted[metric]:
                ends = float(ours[metric]), float(wanted[metric])
                assert ends[0] == pytest.approx(ends[1], rel=1e-3, abs=1e-9), metric
