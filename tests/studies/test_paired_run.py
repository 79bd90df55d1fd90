"""A made-up paired study as a stranger reads its folder: records, resuming, verdicts."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from scipy import stats

from mahalens.data import stream
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.studies.claims import Claim, Lower
from mahalens.studies.figure import Figure
from mahalens.studies.folder import RunFolder
from mahalens.studies.metric import Metric
from mahalens.studies.paired import presentation
from mahalens.studies.paired.config import PairedConfig, jobs_of, name_of, part_of
from mahalens.studies.paired.measures import Measures
from mahalens.studies.paired.presentation import Presentation
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.samples import check_sets
from mahalens.studies.paired.study import PairedStudy
from mahalens.studies.paired.workers import compute, result_file

RECORDS = ("trials.csv", "curves.csv", "comparisons.csv", "plots.safetensors", "summary.json")
METRICS = {
    "test_accuracy": Metric("Test accuracy", "Share.", unit="%", better="high"),
    "seconds": Metric("Time", "Of a trial.", unit="s"),
    "extra": Metric("Extra", "Of one model alone."),
}


def measure(config, job):
    draws = [torch.randn(5, generator=stream(config.seed, job.part, t)) for t in job.trials]
    base = torch.stack(draws).double()
    found = {}
    for model in ("plain", "plain-twin") if job.work == "plain" else (job.work,):
        values = 90 + base.mean(1) + (2.0 if model == "better" else 0.0)
        if model == "broken":
            values = torch.full_like(values, math.nan)
        metrics = {"test_accuracy": values}
        if model == "better":
            metrics["extra"] = base[:, 0]
        found[model] = Measures(
            metrics=metrics,
            seconds=1.5,
            epochs=torch.tensor([0, 1, 2]),
            curves={"test_accuracy": base[:, :3]},
            plots={"first": base[0]},
            weights={"w": base},
        )
    return found


def claims(config):
    return [
        Claim(
            f"toy/better/{part}",
            "here",
            f"Better is better (on {part}).",
            Lower("test_accuracy", name_of("plain", part), name_of("better", part)),
        )
        for part in map(part_of, config.data)
    ]


def published(metric, model, part):
    return (
        Figure(91.5, std=0.5)
        if (metric, model, part) == ("test_accuracy", "plain", "digits")
        else None
    )


class ToyConfig(PairedConfig, frozen=True, kw_only=True):
    def deviations(self):
        return ["trials: few"]


STUDY = PairedStudy(
    name="toy",
    config=ToyConfig,
    metrics=METRICS,
    check=lambda config: check_sets(config.data, config.train_size),
    jobs=lambda config: jobs_of(config, ("plain", "better", "broken"), 4),
    measure=measure,
    pairs=lambda config: [("better", "plain"), ("broken", "plain"), ("absent", "plain")],
    tested=("test_accuracy", "extra"),
    claims=claims,
    published=published,
    cautions=lambda config, found: [f"{len(found)} models and sets"],
)
start, carry_on = runner(STUDY)
OPTIONS = ToyConfig(
    data=("digits", "iris"),
    models=("better", "plain", "plain-twin", "broken"),
    trials=10,
    epochs=2,
    train_size=None,
    seed=0,
)


@pytest.fixture(scope="module", autouse=True)
def toy():
    """The study where workers look for it."""
    run, shown = ModuleType("mahalens.studies.toy.run"), ModuleType("presentation")
    run.STUDY = STUDY
    labels = {name: name for name in OPTIONS.models}
    shown.PRESENTATION = Presentation(labels, {}, "test_accuracy", ("test_accuracy",), ())
    names = {
        "mahalens.studies.toy": ModuleType("mahalens.studies.toy"),
        "mahalens.studies.toy.run": run,
        "mahalens.studies.toy.presentation": shown,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, module in names.items():
            patch.setitem(sys.modules, name, module)
        patch.setattr(presentation, "PAIRED", (*presentation.PAIRED, "toy"))
        yield


def make(path, watcher, config=OPTIONS):
    with start(config, path, command="mahalens run toy") as folder:
        carry_on(folder, watcher, workers=1)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, watcher):
    return make(tmp_path_factory.mktemp("toy") / "run", watcher())


def table(path):
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def expected(part, trial):
    return float(90 + torch.randn(5, generator=stream(0, part, trial)).double().mean())


class TestRecords:
    def test_one_row_per_trial_model_and_set_in_their_order(self, run):
        rows = table(run / "trials.csv")
        order = [(r["data"], r["model"], int(r["trial"])) for r in rows]
        assert order == [(d, m, t) for d in OPTIONS.data for m in OPTIONS.models for t in range(10)]
        for row in rows:
            if row["model"] == "plain":
                value = expected(row["data"], int(row["trial"]))
                assert float(row["test_accuracy"]) == pytest.approx(value, rel=1e-12)
                assert row["status"] == "done"
                assert row["extra"] == ""

    def test_a_model_without_numbers_is_said_to_be_lost(self, run):
        rows = [r for r in table(run / "trials.csv") if r["model"] == "broken"]
        assert {(r["status"], r["test_accuracy"]) for r in rows} == {("non-finite", "")}
        summary = json.loads((run / "summary.json").read_text())
        lost = [o for o in summary["outcomes"] if o["model"] == "broken"]
        assert [o["non_finite"] for o in lost] == [list(range(10))] * 2
        assert [o["best_trial"] for o in lost] == [None, None]

    def test_the_best_trial_is_the_highest(self, run):
        summary = json.loads((run / "summary.json").read_text())
        (outcome,) = (
            o
            for o in summary["outcomes"]
            if (o["model"], o["group"]) == ("plain", {"data": "iris"})
        )
        values = [expected("iris", trial) for trial in range(10)]
        assert outcome["best_trial"] == int(np.argmax(values))
        assert outcome["seconds"] == pytest.approx(3 * 1.5)

    def test_rows_have_interval_and_published_mean(self, run):
        rows = json.loads((run / "summary.json").read_text())["rows"]
        found = {(r["group"]["data"], r["model"], r["metric"]): r for r in rows}
        row = found["digits", "plain", "test_accuracy"]
        values = [expected("digits", trial) for trial in range(10)]
        half = stats.t.ppf(0.975, 9) * np.std(values, ddof=1) / math.sqrt(10)
        assert row["ci95"] == pytest.approx([np.mean(values) - half, np.mean(values) + half])
        assert (row["published"], row["published_detail"]) == (91.5, {"std": 0.5})
        assert found["iris", "plain", "test_accuracy"]["published"] is None
        assert ("digits", "better", "extra") in found
        assert ("digits", "plain", "extra") not in found

    def test_tests_are_paired_and_corrected_within_a_set(self, run):
        lines = table(run / "comparisons.csv")
        assert [(c["family"], c["metric"], c["a"]) for c in lines][:2] == [
            ("digits", "test_accuracy", "better (digits)"),
            ("digits", "test_accuracy", "broken (digits)"),
        ]
        assert float(lines[0]["mean_difference"]) == pytest.approx(2.0)
        assert lines[1]["mean_difference"] == ""
        assert not any("absent" in c["a"] for c in lines)

    def test_claims_are_judged_on_each_set(self, run):
        found = json.loads((run / "summary.json").read_text())["claims"]
        assert [(c["id"], c["verdict"]) for c in found] == [
            ("toy/better/digits", "holds"),
            ("toy/better/iris", "holds"),
        ]

    def test_facts_cautions_and_what_was_scaled(self, run):
        summary = json.loads((run / "summary.json").read_text())
        assert summary["facts"]["data"]["iris"]["classes"] == 3
        assert summary["facts"]["data"]["digits"]["training_samples"] == 1437
        assert (summary["scaled"], summary["cautions"]) == (["trials: few"], ["8 models and sets"])
        assert json.loads((run / "config.json").read_text())["protocol"] == "scaled"

    def test_curves_weights_and_plots(self, run):
        curves = [
            r for r in table(run / "curves.csv") if (r["data"], r["model"]) == ("iris", "plain")
        ]
        assert [int(r["epoch"]) for r in curves[:4]] == [0, 1, 2, 0]
        draw = torch.randn(5, generator=stream(0, "iris", 9)).double()
        assert float(curves[-1]["test_accuracy"]) == pytest.approx(float(draw[2]))
        weights = load_file(run / "weights" / "iris-better.safetensors")
        assert weights["w"].shape == (10, 5)
        plots = load_file(run / "plots.safetensors")
        first = torch.randn(5, generator=stream(0, "digits", 0)).double()
        assert torch.equal(plots["digits/plain/first"], first)
        assert not (run / "checkpoints").exists()


class TestResuming:
    def test_goes_on_where_it_was_stopped_with_equal_records(self, run, tmp_path, watcher):
        asked = iter([False] * 5 + [True])
        path = tmp_path / "run"
        started = start(OPTIONS, path, command="mahalens run toy")
        with started as folder, pytest.raises(Interrupted):
            carry_on(folder, watcher(), lambda: next(asked), workers=1)
        assert len(list((path / "checkpoints").iterdir())) == 5
        assert not (path / "summary.json").exists()
        with RunFolder.open(path) as folder:
            carry_on(folder, watcher(), workers=1)
        for name in RECORDS:
            assert (path / name).read_bytes() == (run / name).read_bytes()

    def test_a_finished_job_is_not_computed_again(self, tmp_path, watcher, monkeypatch):
        asked = iter([False, False, True])
        path = tmp_path / "run"
        with start(OPTIONS, path) as folder, pytest.raises(Interrupted):
            carry_on(folder, watcher(), lambda: next(asked), workers=1)
        seen = []
        study = sys.modules["mahalens.studies.toy.run"]
        counted = PairedStudy(
            **{**vars(STUDY), "measure": lambda c, j: seen.append(j) or measure(c, j)}
        )
        monkeypatch.setattr(study, "STUDY", counted)
        with RunFolder.open(path) as folder:
            carry_on(folder, watcher(), workers=1)
        assert len(seen) == len(STUDY.jobs(OPTIONS)) - 2

    @pytest.mark.parametrize("workers", [1, 2, None])
    def test_killed_between_the_last_job_and_the_summary(
        self, run, tmp_path, watcher, monkeypatch, workers
    ):
        def killed(*_):
            raise Interrupted("killed")

        path = tmp_path / "run"
        with monkeypatch.context() as patch, start(OPTIONS, path) as folder:
            patch.setattr("mahalens.studies.paired.run.write_records", killed)
            with pytest.raises(Interrupted):
                carry_on(folder, watcher(), workers=1)
        with RunFolder.open(path) as folder:
            carry_on(folder, watcher(), workers=workers)
        for name in RECORDS:
            assert (path / name).read_bytes() == (run / name).read_bytes()

    def test_two_results_swapped_are_refused(self, tmp_path, watcher):
        asked = iter([False, False, True])
        path = tmp_path / "run"
        with start(OPTIONS, path) as folder, pytest.raises(Interrupted):
            carry_on(folder, watcher(), lambda: next(asked), workers=1)
        one, two = (path / "checkpoints").iterdir()
        content = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(content)
        with (
            RunFolder.open(path) as folder,
            pytest.raises(RunFolderError, match=r"is checkpoints/.* under another name; delete"),
        ):
            carry_on(folder, watcher(), workers=1)

    def test_data_that_have_changed_are_refused(self, tmp_path, watcher, monkeypatch):
        monkeypatch.chdir(tmp_path)
        x, y = torch.randn(40, 3, generator=stream(0, "x")), torch.arange(40) % 4
        np.savez("own.npz", x=x.numpy(), y=y.numpy())
        options = replace(OPTIONS, data=("own.npz", "digits"))
        path = tmp_path / "run"
        asked = iter([False, True])
        with start(options, path) as folder, pytest.raises(Interrupted):
            carry_on(folder, watcher(), lambda: next(asked), workers=1)
        record = json.loads((path / "config.json").read_text())["inputs"]
        before = Path("own.npz").read_bytes()
        assert record["own.npz"] == {
            "sha256": hashlib.sha256(before).hexdigest(),
            "bytes": len(before),
        }
        assert list(record) == ["own.npz", "digits/digits.csv"]
        np.savez("own.npz", x=-x.numpy(), y=y.numpy())
        with (
            RunFolder.open(path) as folder,
            pytest.raises(RunFolderError, match=r"own\.npz: has changed since the run began"),
        ):
            carry_on(folder, watcher(), workers=1)
        # Nor does a process that starts later compute with them.
        monkeypatch.setattr("mahalens.studies.paired.workers._checked", set())
        with pytest.raises(RunFolderError, match="has changed since the run began"):
            compute("toy", msgspec.to_builtins(options), STUDY.jobs(options)[1], path)
        Path("own.npz").unlink()
        with (
            RunFolder.open(path) as folder,
            pytest.raises(InputError, match=r"own\.npz: cannot"),
        ):
            carry_on(folder, watcher(), workers=1)
        Path("own.npz").write_bytes(before)
        with RunFolder.open(path) as folder:
            carry_on(folder, watcher(), workers=1)

    def test_a_run_of_an_earlier_version_goes_on_with_a_note(self, run, tmp_path, watcher):
        asked = iter([False, False, True])
        path = tmp_path / "run"
        with start(OPTIONS, path) as folder, pytest.raises(Interrupted):
            carry_on(folder, watcher(), lambda: next(asked), workers=1)
        record = json.loads((path / "config.json").read_text())
        del record["inputs"], record["checksum"]
        (path / "config.json").write_text(json.dumps(record))
        for file in (path / "checkpoints").iterdir():
            save_file(load_file(file), file)
        told = watcher()
        with RunFolder.open(path) as folder:
            carry_on(folder, told, workers=1)
        assert any("begun by an earlier version" in note for note in told.notes)
        for name in RECORDS:
            assert (path / name).read_bytes() == (run / name).read_bytes()

    def test_a_damaged_result_says_what_to_do(self, tmp_path, watcher):
        path = tmp_path / "run"
        with start(OPTIONS, path) as folder:
            job = STUDY.jobs(OPTIONS)[0]
            (path / "checkpoints").mkdir()
            (path / result_file(job)).write_bytes(b"no tensors")
            with pytest.raises(
                RunFolderError, match="delete it to compute this part again"
            ) as error:
                carry_on(folder, watcher(), workers=1)
        assert "\n" not in str(error.value)

    def test_what_only_shows_when_it_is_computed_says_where(self, tmp_path, watcher, monkeypatch):
        def refuse(config, job):
            raise InputError("4 samples that differ")

        refusing = PairedStudy(**{**vars(STUDY), "measure": refuse})
        monkeypatch.setattr(sys.modules["mahalens.studies.toy.run"], "STUDY", refusing)
        with start(OPTIONS, tmp_path / "run") as folder, pytest.raises(InputError) as error:
            carry_on(folder, watcher(), workers=1)
        job = STUDY.jobs(OPTIONS)[0]
        assert str(error.value).startswith(f"{job.work} on {job.part}, trial 0: 4 samples that")

    def test_trials_do_not_depend_on_their_number(self, run, tmp_path, watcher):
        fewer = make(tmp_path / "few", watcher(), replace(OPTIONS, trials=3))
        lines = (run / "trials.csv").read_text().splitlines()
        kept = [line for line in lines[1:] if int(line.split(",")[2]) < 3]
        assert (fewer / "trials.csv").read_text().splitlines()[1:] == kept


class TestOptions:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
            ({"epochs": 0}, "--epochs 0"),
            ({"seed": -1}, "--seed -1"),
            ({"train_size": 1}, "--train-size 1"),
            ({"data": ()}, "--data: names nothing"),
            ({"models": ()}, "--models: names nothing"),
            ({"data": ("iris", "iris")}, "--data: 'iris' is given twice"),
            ({"data": ("a/mine.npz", "b/mine.npz")}, "--data: 'mine' is given twice"),
        ],
    )
    def test_bad_ones(self, changes, words):
        with pytest.raises(InputError, match=f"^{words}") as error:
            replace(OPTIONS, **changes)
        assert "\n" not in str(error.value)

    def test_nothing_is_written_for_a_set_that_is_not_there(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
        with pytest.raises(InputError, match="mahalens data fetch mnist"):
            start(replace(OPTIONS, data=("mnist",)), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_too_few_samples_for_the_classes(self, tmp_path):
        with pytest.raises(InputError, match="--train-size 5: digits has 10 classes"):
            start(replace(OPTIONS, train_size=5), tmp_path / "run")
        assert not (tmp_path / "run").exists()
