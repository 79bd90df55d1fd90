"""A small hybrid run as a stranger reads its folder: records, resuming, verdicts."""

import csv
import json

import numpy as np
import pytest

from mahalens.errors import InputError, Interrupted
from mahalens.studies.folder import RunFolder
from mahalens.studies.hybrid.config import HybridConfig
from mahalens.studies.hybrid.metrics import METRICS
from mahalens.studies.hybrid.run import carry_on, jobs, start

MODELS = ["abs-0", "abs-50", "narrow-0", "narrow-100", "narrow-double"]
OPTIONS = HybridConfig.with_defaults(
    data=["iris", "wine"], models=MODELS, trials=5, epochs=3, hidden=8
)


def make(path, watcher, should_stop=None):
    with start(OPTIONS, path, command="mahalens run hybrid") as folder:
        carry_on(folder, watcher, should_stop, workers=1)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, watcher):
    return make(tmp_path_factory.mktemp("hybrid") / "run", watcher())


def table(path):
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def without_times(path):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in table(path)]


class TestRecords:
    def test_a_row_for_every_trial_of_every_model_on_every_set(self, run):
        rows = table(run / "trials.csv")
        order = [(r["data"], r["model"], int(r["trial"])) for r in rows]
        assert order == [(d, m, t) for d in ("iris", "wine") for m in MODELS for t in range(5)]
        assert {r["status"] for r in rows} == {"done"}
        assert set(METRICS) <= set(rows[0])

    def test_every_metric_that_a_model_has_is_there(self, run):
        first = next(r for r in table(run / "trials.csv") if r["model"] == "abs-50")
        assert [name for name in METRICS if first[name] == ""] == ["learned_abs"]

    def test_relu_gains_nothing_over_itself(self, run):
        rows = [r for r in table(run / "trials.csv") if r["model"] in ("abs-0", "narrow-0")]
        assert {float(r["gain"]) for r in rows} == {0.0}

    def test_claims_of_both_sets_with_computed_verdicts(self, run):
        summary = json.loads((run / "summary.json").read_text())
        claims = {claim["id"]: claim for claim in summary["claims"]}
        assert len(claims) == 28
        rows = [r for r in table(run / "trials.csv") if r["data"] == "iris"]
        half, none = (
            np.array([float(r["test_accuracy"]) for r in rows if r["model"] == model])
            for model in ("abs-50", "abs-0")
        )
        told = claims["hybrid/half-beats-relu/iris"]
        assert f"averages {half.mean():.4g}, abs-0 (iris) {none.mean():.4g}" in told["why"]
        assert claims["hybrid/half-beats-both/iris"]["verdict"] == "not measured"

    def test_tests_between_models(self, run):
        lines = table(run / "comparisons.csv")
        pairs = [
            (c["a"], c["b"])
            for c in lines
            if (c["family"], c["metric"]) == ("iris", "test_accuracy")
        ]
        assert pairs == [
            ("abs-50 (iris)", "abs-0 (iris)"),
            ("narrow-100 (iris)", "narrow-0 (iris)"),
            ("narrow-double (iris)", "narrow-0 (iris)"),
            ("narrow-100 (iris)", "narrow-double (iris)"),
        ]

    def test_what_was_scaled_is_said(self, run):
        config = json.loads((run / "config.json").read_text())
        assert config["protocol"] == "scaled"
        assert "epochs: 3 instead of 100" in config["scaled"]

    def test_networks_that_were_not_done_are_told_of(self, run):
        (caution,) = json.loads((run / "summary.json").read_text())["cautions"]
        assert "networks still gained more than 1 point" in caution


def test_a_resumed_run_ends_with_equal_numbers(run, tmp_path, watcher):
    assert len(jobs(OPTIONS)) == 8
    asked = iter([False, False, False, True])
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        make(path, watcher(), lambda: next(asked))
    with RunFolder.open(path) as folder:
        carry_on(folder, watcher(), workers=1)
    assert without_times(path / "trials.csv") == without_times(run / "trials.csv")
    for name in ("curves.csv", "comparisons.csv"):
        assert (path / name).read_bytes() == (run / name).read_bytes()


def test_samples_too_few_to_choose_by(tmp_path):
    few = HybridConfig.with_defaults(data=["iris"], train_size=12, epochs=1)
    with pytest.raises(InputError, match="--data iris: 12 training samples leave none") as caught:
        start(few, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_only_the_widths_that_are_asked_for_are_computed():
    wide = HybridConfig.with_defaults(data=["iris", "digits"], models=["abs-0", "abs-12"], trials=5)
    assert [(j.data, j.work, j.first, j.count) for j in jobs(wide)] == [
        (data, "wide", first, count)
        for data in ("iris", "digits")
        for first, count in ((0, 4), (4, 1))
    ]
