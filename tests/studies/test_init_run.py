"""Runs of the study of starting weights as a stranger reads them: records, resuming, verdicts."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from mahalens.errors import InputError, Interrupted
from mahalens.studies.folder import RunFolder
from mahalens.studies.init.config import InitConfig
from mahalens.studies.init.metrics import METRICS
from mahalens.studies.init.run import STUDY, carry_on, cautions, jobs, start
from mahalens.studies.paired.measures import Measures

MODELS = ("abs-kaiming", "abs-cluster-pca", "relu-kaiming", "relu-cluster-pca")
TIMES = ("start_seconds",)


def options(**changes):
    small = {"data": ["iris", "wine"], "models": MODELS, "trials": 6, "epochs": 3}
    made = InitConfig.with_defaults(**{**small, **changes})
    return replace(made, table_rates=(0.01, 0.1), tunings=1)


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def numbers(path):
    """All trials without what the clock says."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in table(path / "trials.csv")]


@pytest.fixture(scope="module")
def done(tmp_path_factory, watcher):
    path = tmp_path_factory.mktemp("init") / "run"
    with start(options(), path, command="mahalens run init") as folder:
        carry_on(folder, watcher(), workers=1)
    return path


def column(path, model, data, metric):
    rows = [r for r in table(path / "trials.csv") if (r["model"], r["data"]) == (model, data)]
    return np.array([float(row[metric] or "nan") for row in rows])


def test_records_have_every_trial_and_every_epoch(done):
    rows = table(done / "trials.csv")
    assert len(rows) == 4 * 2 * 6
    assert set(METRICS) < set(rows[0])
    curves = table(done / "curves.csv")
    assert len(curves) == len(rows) * 4
    for model in MODELS:
        own = [r for r in curves if (r["model"], r["data"], r["trial"]) == (model, "wine", "3")]
        assert [int(r["epoch"]) for r in own] == [0, 1, 2, 3]
        seen = [float(r["test_accuracy"]) for r in own]
        assert column(done, model, "wine", "mean_accuracy")[3] == pytest.approx(np.mean(seen[1:]))
        assert column(done, model, "wine", "test_accuracy")[3] == pytest.approx(seen[-1])
        rates = column(done, model, "wine", "learning_rate")
        assert set(rates) <= {0.01, 0.1}
    summary = json.loads((done / "summary.json").read_text())
    config = json.loads((done / "config.json").read_text())
    assert (summary["study"], summary["protocol"]) == ("init", "scaled")
    assert any("without digits" in told for told in config["scaled"])
    assert len({claim["id"] for claim in summary["claims"]}) == len(summary["claims"])


def test_verdicts_follow_from_the_trials(done):
    claims = {c["id"]: c for c in json.loads((done / "summary.json").read_text())["claims"]}
    for part in ("iris", "wine"):
        slow, fast = (
            column(done, f"abs-{start}", part, "mean_accuracy")
            for start in ("kaiming", "cluster-pca")
        )
        found = claims[f"init/cluster-pca-faster-than-kaiming-abs/{part}"]
        assert found["source"] == "001"
        if found["verdict"] in ("holds", "fails"):
            assert found["measured"] == pytest.approx(np.mean(fast > slow))
        assert claims[f"init/cluster-pca-faster-than-lsuv-abs/{part}"]["verdict"] == "not measured"
        idle = claims[f"init/no-idle-units/{part}"]
        assert idle["verdict"] == "undecided"  # a whitening was not among the models
        relu = column(done, "relu-cluster-pca", part, "mean_accuracy")
        other = column(done, "relu-kaiming", part, "mean_accuracy")
        more = claims[f"init/abs-gains-more-on-kaiming/{part}"]
        if more["measured"] is not None:
            assert more["measured"] == pytest.approx(np.mean((fast - slow) - (relu - other)))


def test_trials_are_paired_by_their_samples(done):
    # The output layer of Kaiming and the order of batches do not show; the samples do.
    for part in ("iris", "wine"):
        rows = [column(done, f"{a}-kaiming", part, "longest_row") for a in ("abs", "relu")]
        assert np.array_equal(*rows)
        assert len(set(rows[0])) == 6


def test_a_stopped_run_ends_with_the_same_numbers(done, tmp_path, watcher):
    path = tmp_path / "run"
    calls = iter([False, False, True])
    with (
        start(options(), path) as folder,
        pytest.raises(Interrupted),
    ):
        carry_on(folder, watcher(), lambda: next(calls), workers=1)
    assert not (path / "summary.json").exists()
    with RunFolder.open(path) as folder:
        carry_on(folder, watcher(), workers=1)
    assert numbers(path) == numbers(done)
    assert (path / "curves.csv").read_bytes() == (done / "curves.csv").read_bytes()


def test_what_a_trial_gives_does_not_depend_on_how_many_there_are(done, tmp_path, watcher):
    with start(options(data=["wine"], trials=2), tmp_path / "run") as folder:
        carry_on(folder, watcher(), workers=1)
    first = [r for r in numbers(done) if r["data"] == "wine" and int(r["trial"]) < 2]
    assert numbers(tmp_path / "run") == first


def test_nothing_is_written_for_bad_data(tmp_path):
    with pytest.raises(InputError, match="hidden layer"):
        start(options(data=["iris", "digits"], train_size=50), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_jobs_cover_every_trial_once():
    config = options(trials=12)
    seen = [(job.part, job.work, trial) for job in jobs(config) for trial in job.trials]
    assert len(seen) == len(set(seen)) == 2 * 4 * 12


def test_rates_at_the_end_of_the_grid_are_a_caution():
    def own(*ends):
        return Measures({"rate_at_end": torch.tensor(ends)}, 1.0)

    found = {
        ("iris", "abs-lsuv"): own(100.0, 100.0, 0.0),
        ("iris", "abs-whiten"): own(100.0, 0.0, 0.0),
        ("wine", "abs-lsuv"): own(0.0, 0.0, torch.nan),
    }
    (told,) = cautions(options(), found)
    assert "on iris" in told
    assert "abs-lsuv in 2 of 3" in told
    assert "whiten" not in told


def test_the_study_is_known_by_its_name():
    from mahalens.studies.registry import STUDIES

    assert STUDY.name in STUDIES
