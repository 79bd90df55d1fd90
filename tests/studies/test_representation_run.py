"""Runs of the representation study as a stranger reads them: records, resuming, verdicts."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open
from safetensors.torch import load_file
from scipy import stats

from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.nn import Chain
from mahalens.studies.folder import RunFolder
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.metrics import METRICS
from mahalens.studies.representation.problem import Problem
from mahalens.studies.representation.run import carry_on, start

MODELS = ("relu", "abs", "relu2", "relu2-neg", "abs-l2")
PIXELS = ("normalized", "raw")


def options(**changes):
    small = {"models": MODELS, "trials": 5, "epochs": 40, "train_size": 100, **changes}
    return RepresentationConfig.with_defaults(**small)


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Run:
    def __init__(self, path):
        self.path = path
        self.summary = json.loads((path / "summary.json").read_text())
        self.config = json.loads((path / "config.json").read_text())
        self.trials, self.curves, self.comparisons = (
            table(path / f"{name}.csv") for name in ("trials", "curves", "comparisons")
        )

    def column(self, model, pixels, metric):
        rows = [r for r in self.trials if (r["model"], r["pixels"]) == (model, pixels)]
        return np.array([float(r[metric]) if r[metric] else math.nan for r in rows])

    def row(self, model, pixels, metric):
        (found,) = (
            r
            for r in self.summary["rows"]
            if (r["model"], r["group"]["pixels"], r["metric"]) == (model, pixels, metric)
        )
        return found


def make(path, watcher, **changes):
    with start(options(**changes), path, command="mahalens run representation") as folder:
        carry_on(folder, watcher)
    return Run(path)


@pytest.fixture(scope="module")
def heard(watcher):
    return watcher()


@pytest.fixture(scope="module")
def run(tmp_path_factory, heard):
    return make(tmp_path_factory.mktemp("representation") / "run", heard)


def test_there_is_a_row_per_trial_model_and_pixels(run):
    keys = [(r["model"], r["pixels"], r["trial"]) for r in run.trials]
    assert len(set(keys)) == len(keys) == len(MODELS) * 2 * 5
    assert set(METRICS) <= set(run.trials[0])
    assert {r["status"] for r in run.trials} == {"done"}


def test_the_summary_is_that_of_the_trials(run):
    for model in MODELS:
        for pixels in ("normalized", "raw"):
            values = run.column(model, pixels, "test_accuracy")
            row = run.row(model, pixels, "test_accuracy")
            assert row["n"] == 5
            assert row["mean"] == pytest.approx(values.mean())
            assert row["std"] == pytest.approx(values.std(ddof=1))
            half = stats.t.ppf(0.975, 4) * values.std(ddof=1) / math.sqrt(5)
            assert row["ci95"] == pytest.approx([values.mean() - half, values.mean() + half])
            assert row["published"] is None  # these are not MNIST


def test_accuracy_is_that_of_the_saved_weights(run):
    problem = Problem.from_config(options())
    for pixels in ("normalized", "raw"):
        _, test_x = problem.inputs(pixels)
        for model in MODELS:
            path = run.path / "weights" / f"{pixels}-{model}.safetensors"
            with safe_open(path, framework="pt") as file:
                chain = Chain.parse(file.metadata()["chain"], inputs=64)
            weights = load_file(path)
            for trial, accuracy in enumerate(run.column(model, pixels, "test_accuracy")):
                network = chain.build()
                network.load_state_dict({name: t[trial] for name, t in weights.items()})
                with torch.no_grad():
                    right = (network(test_x).argmax(1) == problem.data.test_y).double().mean()
                # a tie may be broken by rounding
                assert accuracy == pytest.approx(100 * float(right), abs=1.0)


def test_comparisons_are_scipys(run):
    pair = next(c for c in run.comparisons if (c["a"], c["b"]) == ("relu2 (raw)", "relu (raw)"))
    a, b = (run.column(m, "raw", "test_accuracy") for m in ("relu2", "relu"))
    assert float(pair["paired_p"]) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert float(pair["welch_p"]) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert float(pair["holm_paired"]) >= float(pair["paired_p"])
    assert {c["family"] for c in run.comparisons} == {"normalized", "raw", "across"}
    assert run.summary["comparisons"][0]["a"] == run.comparisons[0]["a"]


def test_claims_are_judged_for_both_kinds_of_pixels(run):
    verdicts = {c["id"]: c["verdict"] for c in run.summary["claims"]}
    for pixels in ("normalized", "raw"):
        assert verdicts[f"003/relu2-fails/{pixels}"] != "not measured"
        assert verdicts[f"003/bias-changes-nothing/{pixels}"] == "not measured"
    assert set(verdicts.values()) <= {"holds", "fails", "undecided", "not measured"}
    assert len(verdicts) == len(run.summary["claims"])


def test_the_gap_from_dead_outputs_is_computed_from_the_records(run):
    """By hand: what the baseline gets right in classes whose output is dead, over what lacks."""
    plots = load_file(run.path / "plots.safetensors")
    problem = Problem.from_config(options())
    sizes = torch.bincount(problem.data.test_y, minlength=10).double()
    for pixels in ("normalized", "raw"):
        dead = plots[f"{pixels}/relu2/output_activity"] == 0
        right = plots[f"{pixels}/relu/class_accuracies"] / 100 * sizes
        lost = 100 * (right * dead).sum(1) / sizes.sum()
        lacks = run.column("relu", pixels, "test_accuracy") - run.column(
            "relu2", pixels, "test_accuracy"
        )
        wanted = np.where(lacks > 0, lost.numpy() / np.where(lacks > 0, lacks, 1), np.nan)
        np.testing.assert_allclose(
            run.column("relu2", pixels, "gap_from_dead"), wanted, rtol=1e-6, atol=1e-9
        )
    assert np.isnan(run.column("relu2-neg", "raw", "gap_from_dead")).all()


def test_curves_hold_losses_and_accuracies(run):
    own = [r for r in run.curves if (r["model"], r["pixels"], r["trial"]) == ("relu", "raw", "2")]
    seen = {int(r["epoch"]): r["test_accuracy"] for r in own if r["test_accuracy"]}
    losses = {int(r["epoch"]): float(r["train_loss"]) for r in own if r["train_loss"]}
    assert {0, 1, 36, 40} <= set(seen)
    assert float(seen[40]) == run.column("relu", "raw", "test_accuracy")[2]
    assert losses[40] == pytest.approx(run.column("relu", "raw", "train_loss")[2], rel=1e-6)
    assert losses[1] > losses[40]


def test_a_run_says_which_data_it_used_and_what_was_scaled(run, heard):
    assert heard.notes[0].startswith("data: digits, 100 training and 360 test samples")
    assert any("by a few timed epochs" in note for note in heard.notes)
    assert run.config["protocol"] == run.summary["protocol"] == "scaled"
    assert "epochs: 40 instead of 5,000" in run.summary["scaled"]
    assert run.summary["facts"]["data"] == "digits"
    assert not (run.path / "checkpoints").exists()


class Stopping:
    """Wants to stop after so many questions."""

    def __init__(self, after):
        self.left = after

    def __call__(self):
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("after", [0, 5, 60])
def test_a_stopped_run_ends_with_the_same_records(run, tmp_path, watcher, after):
    path = tmp_path / "run"
    with start(options(), path, command="mahalens run representation") as folder:
        with pytest.raises(Interrupted):
            carry_on(folder, watcher(), Stopping(after))
        assert not folder.finished
    with RunFolder.open(path) as folder:
        carry_on(folder, watcher())
    for name in ("trials.csv", "curves.csv", "comparisons.csv", "plots.safetensors"):
        assert (path / name).read_bytes() == (run.path / name).read_bytes(), name
    again = Run(path)
    assert again.summary["claims"] == run.summary["claims"]
    assert again.summary["rows"] == run.summary["rows"]


def test_groups_of_any_size_give_the_same_trials(run, tmp_path, watcher):
    again = make(tmp_path / "run", watcher(), group=2)
    assert again.trials == run.trials
    assert again.curves == run.curves


def test_trial_i_does_not_depend_on_the_number_of_trials(run, tmp_path, watcher):
    fewer = make(tmp_path / "run", watcher(), trials=2, models=("abs",))
    wanted = [r for r in run.trials if r["model"] == "abs" and int(r["trial"]) < 2]
    assert fewer.trials == wanted


def test_a_damaged_checkpoint_is_named(tmp_path, watcher):
    path = tmp_path / "run"
    with start(options(), path) as folder, pytest.raises(Interrupted):
        carry_on(folder, watcher(), Stopping(len(MODELS) + 3))
    kept = sorted((path / "checkpoints").glob("*.safetensors"))
    assert kept
    kept[0].write_bytes(b"nonsense")
    with RunFolder.open(path) as folder, pytest.raises(RunFolderError, match=kept[0].name):
        carry_on(folder, watcher())


def test_one_model_one_trial_one_kind_of_pixels(tmp_path, watcher):
    path = tmp_path / "run"
    config = options(models=("relu",), trials=1, pixels="raw", epochs=3)
    with start(config, path) as folder:
        carry_on(folder, watcher())
    summary = json.loads((path / "summary.json").read_text())
    assert summary["comparisons"] == []
    assert not (path / "comparisons.csv").exists()
    decided = [c["id"] for c in summary["claims"] if c["verdict"] in ("holds", "fails")]
    assert decided == []


def test_trials_that_run_away_are_counted_and_left_out(tmp_path, watcher):
    path = tmp_path / "run"
    config = replace(options(models=("relu", "abs"), pixels="raw"), learning_rate=1e30)
    with start(config, path) as folder:
        carry_on(folder, watcher())
    run = Run(path)
    assert {r["status"] for r in run.trials} == {"non-finite"}
    assert run.row("relu", "raw", "test_accuracy")["n"] == 0
    assert run.summary["outcomes"][0]["non_finite"] == [0, 1, 2, 3, 4]


def test_a_budget_is_kept_in_the_options(tmp_path):
    with start(options(budget="1h", trials=2), tmp_path / "run") as folder:
        assert folder.config.options["budget"] == 3600
        assert not folder.config.options["shortened"]


def test_event_files_for_tensorboard(tmp_path, watcher):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "run"
    config = options(models=("relu",), trials=2, pixels="raw", epochs=5, tensorboard=True)
    with start(config, path) as folder:
        carry_on(folder, watcher())
    events = EventAccumulator(str(path / "tensorboard" / "raw-relu")).Reload()
    accuracy = events.Scalars("test_accuracy/trial 01")
    assert [e.step for e in accuracy] == [0, 1, 2, 3, 4, 5]
    rows = table(path / "trials.csv")
    assert accuracy[-1].value == pytest.approx(float(rows[1]["test_accuracy"]), rel=1e-6)
    assert "train_loss/mean" in events.Tags()["scalars"]
    # A new run in its place leaves no event of the old one.
    plain = options(models=("relu",), trials=2, pixels="raw", epochs=5)
    with start(plain, path, force=True):
        assert not (path / "tensorboard").exists()


def test_the_tables_of_the_docs_are_made_from_a_run(run):
    script = Path(__file__).parents[2] / "docs" / "representation_results.py"
    done = subprocess.run([sys.executable, script, run.path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    accuracy = run.row("relu2", "raw", "test_accuracy")
    assert f"{accuracy['mean']:.2f} ± {accuracy['std']:.2f}" in done.stdout
    assert "| Held to intensities, ReLU2 fails: more than 20 points below ReLU. |" in done.stdout
    assert done.stdout.count("| relu2 − relu |") == 1 + 1  # once for each kind of pixels


def test_every_table_says_when_networks_are_still_learning(run):
    gains = {(m, way): run.column(m, way, "late_gain").mean() for m in MODELS for way in PIXELS}
    late = [gain for gain in gains.values() if gain > 1]
    told = run.summary["cautions"]
    assert run.summary["scaled"] == run.config["scaled"]
    assert len(told) == bool(late)
    if late:
        assert told[0].startswith(f"{len(late)} of {len(gains)} networks still gained")
        assert f"{max(late):.1f} points" in told[0]


def test_pixels_that_are_all_equal_are_refused_before_a_folder_is_made(tmp_path):
    file = tmp_path / "flat.npz"
    np.savez(file, x=np.full((30, 4), 7.0), y=np.arange(30) % 3)
    config = RepresentationConfig.with_defaults(data=str(file), models=("relu",))
    with pytest.raises(InputError, match="all pixels are equal"):
        start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_can_be_normalised_again_from_its_records(run):
    problem = Problem.from_config(options())
    facts = run.summary["facts"]
    x = (problem.data.x / facts["largest_pixel"] - facts["pixel_mean"]) / facts["pixel_spread"]
    torch.testing.assert_close(x, problem.inputs("normalized")[0])


def test_a_first_trial_that_ran_away_has_no_distributions(tmp_path, watcher):
    path = tmp_path / "run"
    config = replace(options(models=("relu",), pixels="raw"), learning_rate=1e30)
    with start(config, path) as folder:
        carry_on(folder, watcher())
    latent = [n for n in load_file(path / "plots.safetensors") if "latent" in n]
    for name in latent:
        assert load_file(path / "plots.safetensors")[name].isfinite().all()
