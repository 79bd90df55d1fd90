"""Runs of the perturbation study as a stranger reads them: records, resuming, other networks."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from scipy import stats

from mahalens.auditing.perturbation import GRID_LEVELS, TABLE_LEVELS, level_key, reliance_index
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.studies.folder import RunFolder
from mahalens.studies.perturbation import config as config_module
from mahalens.studies.perturbation.config import PerturbationConfig
from mahalens.studies.perturbation.metrics import METRICS
from mahalens.studies.perturbation.networks import config_of
from mahalens.studies.perturbation.run import carry_on, start
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.run import carry_on as carry_on_training
from mahalens.studies.representation.run import start as start_training

MODELS = ("relu-bias", "abs-bias")
RECORDS = ("trials.csv", "levels.csv", "plots.safetensors")


def options(**changes):
    small = {"data": "digits", "trials": 5, "epochs": 20, "train_size": 90, "pixels": "both"}
    return PerturbationConfig.with_defaults(**{**small, **changes})


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Run:
    def __init__(self, path):
        self.path = path
        self.summary = json.loads((path / "summary.json").read_text())
        self.config = json.loads((path / "config.json").read_text())
        self.trials, self.levels = (table(path / f"{name}.csv") for name in ("trials", "levels"))

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


def make(path, watcher, config=None):
    with start(config or options(), path, command="mahalens run perturbation") as folder:
        carry_on(folder, watcher)
    return Run(path)


@pytest.fixture(scope="module")
def heard(watcher):
    return watcher()


@pytest.fixture(scope="module")
def run(tmp_path_factory, heard):
    return make(tmp_path_factory.mktemp("perturbation") / "run", heard)


@pytest.fixture(scope="module")
def networks(tmp_path_factory, watcher):
    """A representation run with the same networks, and one more."""
    path = tmp_path_factory.mktemp("networks") / "run"
    config = RepresentationConfig.with_defaults(
        data="digits", models=("relu", *MODELS), trials=5, epochs=20, train_size=90
    )
    with start_training(config, path) as folder:
        carry_on_training(folder, watcher())
    return path


def test_there_is_a_row_per_trial_model_and_pixels(run):
    keys = [(r["model"], r["pixels"], r["trial"]) for r in run.trials]
    assert len(set(keys)) == len(keys) == 2 * 2 * 5
    assert set(METRICS) <= set(run.trials[0])
    assert len(run.levels) == len(keys) * sum(map(len, GRID_LEVELS.values()))
    weights = sorted(p.name for p in (run.path / "weights").iterdir())
    assert weights == sorted(f"{w}-{m}.safetensors" for w in ("normalized", "raw") for m in MODELS)
    assert not (run.path / "checkpoints").exists()


def test_the_summary_is_that_of_the_trials(run):
    for model in MODELS:
        for metric in ("train_accuracy", "offset_0.25", "after_clip_0.1", "reliance"):
            values = run.column(model, "raw", metric)
            row = run.row(model, "raw", metric)
            assert row["n"] == 5
            assert row["mean"] == pytest.approx(values.mean())
            half = stats.t.ppf(0.975, 4) * values.std(ddof=1) / math.sqrt(5)
            assert row["ci95"] == pytest.approx([values.mean() - half, values.mean() + half])
            assert row["published"] is None  # these are not MNIST


def test_columns_are_the_levels(run):
    by_key = {
        (r["model"], r["pixels"], r["trial"], r["kind"], float(r["level"])): r for r in run.levels
    }
    for row in run.trials:
        for kind, levels in TABLE_LEVELS.items():
            for level in levels:
                own = by_key[row["model"], row["pixels"], row["trial"], kind, level]
                key = f"{kind}_{level_key(level)}"
                assert row[key] == own["train"]
                assert row[f"test_{key}"] == own["test"]
                if kind != "scale":
                    assert row[f"after_{key}"] == own["after"]


def test_the_index_is_that_of_the_audit(run):
    for row in run.trials:
        parts = {
            kind: {level_key(p): float(row[f"{kind}_{level_key(p)}"]) / 100 for p in levels}
            for kind, levels in TABLE_LEVELS.items()
        }
        index = reliance_index(float(row["train_accuracy"]) / 100, **parts)
        told = float(row["reliance"]) if row["reliance"] else None  # nothing noticeable was lost
        assert told == (index if index is None else pytest.approx(index))


def test_plots_are_means_and_intervals_of_the_levels(run):
    plots = load_file(run.path / "plots.safetensors")
    for at, level in enumerate(GRID_LEVELS["offset"]):
        own = [
            float(r["test"])
            for r in run.levels
            if (r["model"], r["pixels"], r["kind"], float(r["level"]))
            == ("abs-bias", "raw", "offset", level)
        ]
        mean, low, high = plots["raw/abs-bias/offset.test"][:, at].tolist()
        assert mean == pytest.approx(np.mean(own))
        half = stats.t.ppf(0.975, 4) * np.std(own, ddof=1) / math.sqrt(5)
        assert (low, high) == pytest.approx((mean - half, mean + half))
    assert plots["raw/abs-bias/offset.published"].isnan().all()


def test_the_networks_are_those_of_the_representation_study(run, networks):
    for pixels in ("normalized", "raw"):
        for model in MODELS:
            name = f"weights/{pixels}-{model}.safetensors"
            ours, theirs = load_file(run.path / name), load_file(networks / name)
            assert all(bool((ours[key] == theirs[key]).all()) for key in theirs)
            trained = [
                float(r["train_accuracy"])
                for r in table(networks / "trials.csv")
                if (r["model"], r["pixels"]) == (model, pixels)
            ]
            assert run.column(model, pixels, "train_accuracy") == pytest.approx(trained, abs=1.2)


def test_networks_of_a_finished_run_give_the_same_numbers(run, networks, tmp_path, watcher):
    heard = watcher()
    again = make(tmp_path / "run", heard, config_of(networks))
    for name in RECORDS:
        assert (again.path / name).read_bytes() == (run.path / name).read_bytes(), name
    assert again.summary["claims"] == run.summary["claims"]
    assert "training" not in heard.stages
    assert any(f"networks: from {networks}" in note for note in heard.notes)
    assert again.summary["facts"]["networks"] == str(networks)
    assert "epochs: 20 instead of 5,000" in again.summary["scaled"]


def test_networks_that_were_taken_over_need_no_source(networks, tmp_path, watcher, run):
    source = tmp_path / "source"
    shutil.copytree(networks, source)
    with start(config_of(source), tmp_path / "run"):
        shutil.rmtree(source)
    with RunFolder.open(tmp_path / "run") as folder:
        carry_on(folder, watcher())
    assert (tmp_path / "run" / "trials.csv").read_bytes() == (run.path / "trials.csv").read_bytes()


def test_other_networks_and_some_pixels(networks, tmp_path, watcher):
    made = make(tmp_path / "run", watcher(), config_of(networks, models=("relu",), pixels="raw"))
    assert {(r["model"], r["pixels"]) for r in made.trials} == {("relu", "raw")}
    claims = {c["verdict"] for c in made.summary["claims"]}
    assert claims == {"not measured"}
    # Without an output bias, scaling the hidden layer changes no decision (but for rounding).
    for level in TABLE_LEVELS["scale"]:
        scaled = made.column("relu", "raw", f"scale_{level_key(level)}")
        assert scaled == pytest.approx(made.column("relu", "raw", "train_accuracy"), abs=1.2)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"models": ("abs2",)}, "has no abs2; it has relu"),
        ({"models": ("nosuch",)}, "--models nosuch: unknown model"),
        ({"pixels": "grey"}, "--pixels grey"),
    ],
)
def test_networks_that_are_not_there(networks, asked, told):
    with pytest.raises(InputError, match=told):
        config_of(networks, **asked)


def test_folders_without_networks(run, networks, tmp_path):
    with pytest.raises(InputError, match="holds a run of perturbation"):
        config_of(run.path)
    with pytest.raises(RunFolderError, match="there is no such folder"):
        config_of(tmp_path / "nothing")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(networks, unfinished)
    (unfinished / "summary.json").unlink()
    with pytest.raises(InputError, match="is not finished"):
        config_of(unfinished)


def test_networks_that_have_changed_are_refused(networks, tmp_path, watcher):
    """While they are needed: a run that has taken them over does without their folder."""
    source, path = tmp_path / "source", tmp_path / "run"
    shutil.copytree(networks, source)
    (source / "checksums.json").unlink()
    config = config_of(source)
    start(config, path).close()
    files = list((path / "checkpoints").iterdir())
    weights = source / "weights" / "raw-abs-bias.safetensors"
    state = load_file(weights)
    save_file({name: tensor + 1 for name, tensor in state.items()}, weights)
    files[0].unlink()
    with (
        RunFolder.open(path) as folder,
        pytest.raises(RunFolderError, match=r"raw-abs-bias.* has changed since the run began"),
    ):
        carry_on(folder, watcher())
    shutil.copy(networks / "weights" / "raw-abs-bias.safetensors", weights)
    with RunFolder.open(path) as folder:
        carry_on(folder, watcher())


def _of_another_size(path):
    """By an earlier version, which kept no checksums."""
    (path / "checksums.json").unlink()
    (path / "summary.json").write_text('{"facts": {"training_samples": 7}}')


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda path: (path / "weights" / "raw-abs-bias.safetensors").unlink(), "raw-abs-bias"),
        (
            lambda path: (path / "weights" / "raw-abs-bias.safetensors").write_bytes(b"no"),
            "raw-abs-bias",
        ),
        (lambda path: (path / "trials.csv").write_text("model,pixels\n"), "trials.csv"),
        (lambda path: (path / "summary.json").write_text("{"), "summary.json"),
        (
            lambda path: (path / "summary.json").write_text('{"facts": {"training_samples": 7}}'),
            "summary.json: has changed since its run was finished",
        ),
        (_of_another_size, "7 training samples"),
    ],
)
def test_damaged_networks_are_named_and_nothing_is_written(networks, tmp_path, harm, told):
    source = tmp_path / "source"
    shutil.copytree(networks, source)
    harm(source)
    with pytest.raises((InputError, RunFolderError), match=told) as error:
        start(config_of(source), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_source_is_not_replaced_by_the_run(networks):
    with pytest.raises(InputError, match="are both"):
        start(config_of(networks), networks, force=True)
    assert (networks / "summary.json").exists()


class Stopping:
    """Wants to stop after so many questions."""

    def __init__(self, after):
        self.left = after

    def __call__(self):
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("after", [0, 9, 30, 60])
def test_a_stopped_run_ends_with_the_same_records(run, tmp_path, watcher, after):
    path = tmp_path / "run"
    with start(options(), path) as folder:
        with pytest.raises(Interrupted):
            carry_on(folder, watcher(), Stopping(after))
        assert not folder.finished
    with RunFolder.open(path) as folder:
        carry_on(folder, watcher())
    for name in RECORDS:
        assert (path / name).read_bytes() == (run.path / name).read_bytes(), name
    assert Run(path).summary["claims"] == run.summary["claims"]


def test_trials_that_run_away_are_counted_and_left_out(tmp_path, watcher):
    config = replace(options(pixels="raw"), learning_rate=1e30)
    made = make(tmp_path / "run", watcher(), config)
    assert {r["status"] for r in made.trials} == {"non-finite"}
    assert made.row("relu-bias", "raw", "offset_0.1")["n"] == 0
    assert {c["verdict"] for c in made.summary["claims"]} == {"not measured"}


def test_one_trial_decides_nothing(tmp_path, watcher):
    made = make(tmp_path / "run", watcher(), options(trials=1, pixels="raw", epochs=2))
    assert {c["verdict"] for c in made.summary["claims"]} == {"undecided", "not measured"}
    assert made.row("abs-bias", "raw", "offset_0.1")["ci95"] is None


def test_a_run_says_which_data_it_used_and_what_was_scaled(run, heard):
    assert heard.notes[0].startswith("data: digits, 90 training and 360 test samples")
    assert run.config["protocol"] == run.summary["protocol"] == "scaled"
    assert "data: digits instead of mnist" in run.summary["scaled"]
    assert "epochs: 20 instead of 5,000" in run.config["scaled"]


def test_defaults_take_mnist_if_it_is_here(monkeypatch):
    monkeypatch.setattr(config_module, "_is_here", lambda name: True)
    config = PerturbationConfig.with_defaults()
    assert (config.data, config.train_size, config.pixels) == ("mnist", 5_000, ("raw",))
    assert config.models == MODELS
    assert config.instead is None
    published = PerturbationConfig.with_defaults(published=True)
    assert (published.train_size, published.epochs, published.trials) == (None, 5_000, 20)
    assert published.deviations() == []


def test_defaults_take_digits_where_mnist_is_not_and_say_so(monkeypatch, tmp_path, watcher):
    monkeypatch.setattr(config_module, "_is_here", lambda name: False)
    config = PerturbationConfig.with_defaults(trials=1, epochs=1, train_size=20)
    assert config.data == "digits"
    (told,) = (text for text in config.deviations() if text.startswith("data"))
    assert "MNIST is not on this machine" in told
    heard = watcher()
    made = make(tmp_path / "run", heard, config)
    assert told in made.summary["scaled"]
    assert any("MNIST is not on this machine" in note for note in heard.notes)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"published": True, "trials": 3}, "--published with --trials 3"),
        ({"published": True, "data": "digits"}, "--published with --data digits"),
        ({"trials": 0}, "--trials 0"),
        ({"pixels": "grey"}, "--pixels grey"),
        ({"models": ("foo",)}, "--models foo"),
        ({"budget": "soon"}, "--budget soon"),
    ],
)
def test_bad_options_are_named(asked, told):
    with pytest.raises(InputError, match=told):
        PerturbationConfig.with_defaults(**{"data": "digits", **asked})


def test_a_budget_is_kept_in_the_options(tmp_path):
    with start(options(budget="1h", trials=2), tmp_path / "run") as folder:
        assert folder.config.options["budget"] == 3600
        assert not folder.config.options["shortened"]


def test_the_tables_of_the_docs_are_made_from_a_run(run):
    script = Path(__file__).parents[2] / "docs" / "perturbation_results.py"
    done = subprocess.run([sys.executable, script, run.path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    accuracy = run.row("abs-bias", "raw", "offset_0.25")
    test, after = (
        run.row("abs-bias", "raw", f"{w}_offset_0.25")["mean"] for w in ("test", "after")
    )
    (line,) = (
        line
        for line in done.stdout.split("Abs, bias, raw pixels")[1].split("\n\n")[0].splitlines()
        if line.startswith("| distance offset +25 %")
    )
    assert line.startswith(f"| distance offset +25 % | {accuracy['mean']:.2f} ± ")
    assert line.endswith(f"| – | {test:.2f} | {after:.2f} |")
    assert "| Clipping at 10 % of the range costs Abs more than ReLU. |" in done.stdout
