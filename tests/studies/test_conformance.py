"""What every study must do alike: start, refuse, record, resume, and not depend on executors."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.numpy import load_file
from small_runs import SMALL, Run, Watcher, config_of, go_on, make_run

from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.studies.folder import RunConfig, RunFolder
from mahalens.studies.records import join, select
from mahalens.studies.registry import STUDIES, load_study
from mahalens.studies.run import execute, pool, start
from mahalens.studies.study import SOURCES, Measures, variant_name

VERDICTS = {"holds", "fails", "undecided", "not measured"}


def test_there_is_a_small_run_of_every_study():
    assert set(SMALL) == set(STUDIES)


# --- Records ----------------------------------------------------------------------------------


def test_config_tells_everything_needed_to_run_again(study, finished):
    config = finished(study).config
    keys = {"study", "mahalens", "torch", "python", "created", "seed", "device", "threads"}
    keys |= {"engine", "protocol", "scaled", "command", "options", "inputs", "checksum"}
    assert set(config) == keys
    assert config["study"] == study
    assert (config["protocol"] == "scaled") == bool(config["scaled"])
    kind = load_study(study).config
    assert msgspec.convert(config["options"], kind) == config_of(study)


def test_trials_have_one_row_per_trial_and_model_and_one_column_per_metric(study, finished):
    run, value = finished(study), load_study(study)
    by = [value.variant] if value.variant else []
    columns = list(run.trials[0])
    fixed = ["model", *by, "trial", "status", *value.columns]
    assert columns[: len(fixed)] == fixed
    assert set(columns[len(fixed) :]) <= set(value.metrics)
    keys = [(row["model"], *(row[name] for name in by), row["trial"]) for row in run.trials]
    assert len(set(keys)) == len(keys)
    for row in run.trials:
        assert all(
            cell == "" or math.isfinite(float(cell)) for cell in list(row.values())[len(fixed) :]
        )


def trials_of(run, study, line):
    """Return the trials of ``trials.csv`` that a line of the summary is about."""
    by = study.variant
    return [t for t in run.of(line["model"]) if not by or t[by] == line["group"][by]]


def test_the_summary_is_that_of_the_trials(study, finished):
    run, value = finished(study), load_study(study)
    for outcome in run.summary["outcomes"]:
        own = [trial["status"] for trial in trials_of(run, value, outcome)]
        assert outcome["trials"] == len(own)
        assert outcome["statuses"] == {status: own.count(status) for status in own}
        lost = [trial for trial, status in enumerate(own) if status == "non-finite"]
        assert outcome["non_finite"] == lost
    for row in run.summary["rows"]:
        cells = [trial[row["metric"]] for trial in trials_of(run, value, row)]
        own = [float(cell) for cell in cells if cell]
        assert row["n"] == len(own)
        if own:
            assert row["mean"] == pytest.approx(np.mean(own), rel=1e-12)
            assert (row["min"], row["max"]) == (min(own), max(own))
            assert row["best"] is None or row["best"] in own
        if len(own) > 1:
            assert row["std"] == pytest.approx(np.std(own, ddof=1), rel=1e-9, abs=1e-300)
            low, high = row["ci95"]
            assert low <= row["mean"] <= high


def test_claims_have_a_verdict_and_their_variant(study, finished):
    run, value = finished(study), load_study(study)
    assert run.summary["claims"]
    ids = [claim["id"] for claim in run.summary["claims"]]
    assert len(set(ids)) == len(ids)
    asked = value.asked or [variant_name(v) for v in value.variants(config_of(study))]
    for claim in run.summary["claims"]:
        keys = {"id", "source", "statement", "data", "published", "measured", "verdict", "why"}
        assert set(claim) == {*keys, "trials_to_decide"}
        assert claim["verdict"] in VERDICTS
        assert claim["source"] in SOURCES.values()
        assert claim["id"].startswith(f"{study}/")
        assert claim["statement"].endswith(".")
        assert claim["data"] in ("", *asked)
        assert not claim["data"] or claim["id"].endswith(f"/{claim['data']}")


def test_weights_have_a_row_for_every_trial(study, finished):
    run = finished(study)
    for file in (run.path / "weights").glob("*.safetensors"):
        for name, array in load_file(file).items():
            trials = config_of(study).trials
            assert len(array) == (1 if file.stem == "ground-truth" else trials), (file, name)


def test_nothing_is_left_that_only_an_unfinished_run_needs(study, finished):
    run = finished(study)
    assert not (run.path / "checkpoints").exists()
    assert not list(run.path.rglob("*.tmp"))
    assert run.watcher.shares[-1] == 100
    assert run.watcher.shares == sorted(run.watcher.shares)


def test_published_values_stand_beside_measured_ones(study, finished):
    value, config = load_study(study), config_of(study)
    for row in finished(study).summary["rows"]:
        variant = row["group"].get(value.variant, "") if value.variant else ""
        published = value.published(config, row["metric"], row["model"], variant)
        assert row["published"] == (None if published is None else published.mean)


# --- Options ----------------------------------------------------------------------------------


def test_the_published_protocol_deviates_in_nothing(study):
    config = load_study(study).config.with_defaults(published=True)
    assert config.deviations() == []


def test_published_refuses_what_it_fixes(study):
    kind = load_study(study).config
    for name, option in kind.options().items():
        if option.fixed is True:
            with pytest.raises(InputError, match=f"--published with --{name.replace('_', '-')}"):
                kind.with_defaults(published=True, **{name: 3})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
        ({"seed": -1}, "--seed -1: give a whole number of at least 0"),
        ({"trials": 10**13}, "--trials 10000000000000: give a whole number of at most"),
    ],
)
def test_numbers_that_are_refused(study, options, message):
    with pytest.raises(InputError, match=message):
        config_of(study, **options)


def test_an_option_that_a_study_lacks(study):
    with pytest.raises(TypeError, match="has no option 'colour'"):
        config_of(study, colour="red")


def test_models_that_are_refused(study):
    option = "methods" if study == "ellipsoids" else "models"
    known = config_of(study)
    first = getattr(known, option)[0]
    for names, message in (
        (("no-such-model",), f"--{option} no-such-model: unknown"),
        ((first, first), f"{option}.*twice|unknown"),
        ((), f"--{option} is empty|without models"),
    ):
        if study in ("representation", "perturbation") and names == (first, first):
            continue  # a family may name a model again
        with pytest.raises(InputError, match=message):
            config_of(study, **{option: names})


def test_every_option_explains_itself(study):
    value = load_study(study)
    for name, option in value.config.options().items():
        if option.flag:
            assert option.help.endswith("."), name
            assert option.help[0].isupper(), name
    assert value.question.endswith("?")
    assert value.source in SOURCES
    for metric in value.metrics.values():
        assert metric.explanation.endswith(".")
    assert set(value.shown) <= set(value.metrics)
    assert set(value.tested) <= set(value.metrics)


@pytest.mark.slow
def test_studies_load_without_torch():
    program = (
        "import sys\n"
        "from mahalens.studies.registry import STUDIES, load_study\n"
        "studies = [load_study(name) for name in STUDIES]\n"
        "[study.config.options() for study in studies]\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- Folders ----------------------------------------------------------------------------------


WITH_DATA = [name for name in STUDIES if "data" in load_study(name).config.options()]


@pytest.mark.parametrize("name", WITH_DATA)
def test_data_that_are_not_there_are_refused_before_anything_is_written(tmp_path, name):
    kind = load_study(name).config
    with pytest.raises(InputError, match=r"nowhere\.npz"):
        start(load_study(name), kind.with_defaults(data=own_data(name, "nowhere.npz")), tmp_path)
    assert not list(tmp_path.iterdir())


def own_data(name, file):
    """Return a file as the option of a study that takes one set, or several."""
    return (str(file),) if isinstance(config_of(name).data, tuple) else str(file)


@pytest.mark.parametrize(
    ("options", "how", "message"),
    [
        ({}, {"executor": "moon"}, "--executor moon: unknown; give processes or dask"),
        ({}, {"workers": 0}, "--workers 0: give a whole number from 1 to 1000"),
        ({}, {"scheduler": "tcp://x:1"}, "--scheduler without --executor dask"),
        ({}, {"executor": "dask", "workers": 2}, "--workers with --executor dask"),
        ({"device": "nowhere"}, {}, "--device nowhere: cannot be used here"),
        ({"budget": 1.0}, {}, "--budget of 1 s: the shortest run takes about"),
    ],
)
def test_ways_to_compute_that_are_refused(tmp_path, options, how, message):
    with pytest.raises(InputError, match=message):
        start(load_study("hybrid"), config_of("hybrid", **options), tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()


# --- Resuming ---------------------------------------------------------------------------------


class Impatient:
    """Wants to stop when it has been asked some times."""

    def __init__(self, patience):
        self.left = patience

    def __call__(self):
        self.left -= 1
        return self.left < 0


def stop_after(path, jobs):
    """Want to stop when so many jobs have a result."""
    return lambda: len(list((path / "checkpoints").glob("*[0-9].safetensors"))) >= jobs


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0, 1, 3])
def test_stopped_and_resumed_is_as_never_stopped(study, finished, tmp_path, patience):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        make_run(study, path, Impatient(patience))
    assert not (path / "summary.json").exists()
    run = go_on(path, workers=1)
    assert run.numbers() == finished(study).numbers()


def test_a_finished_part_is_not_computed_again(finished, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        make_run("transfer", path, stop_after(path, 2))
    done = {file.name: file.stat().st_mtime_ns for file in (path / "checkpoints").iterdir()}
    assert done
    with pytest.raises(Interrupted):
        go_on(path, stop_after(path, 3), workers=1)
    for name, moment in done.items():
        assert (path / "checkpoints" / name).stat().st_mtime_ns == moment
    assert go_on(path, workers=1).numbers() == finished("transfer").numbers()


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": None, "executor": "dask"}], ids=str)
def test_every_executor_gives_the_numbers_of_one_process(study, finished, tmp_path, how):
    run = make_run(study, tmp_path / "run", how=how)
    assert run.numbers() == finished(study).numbers()


@pytest.mark.slow
def test_a_trial_does_not_depend_on_the_number_of_trials(study, finished, tmp_path):
    alone = make_run(study, tmp_path / "run", trials=1)
    first = [row for row in finished(study).numbers()[0]["trials.csv"] if row["trial"] == "0"]
    rows = alone.numbers()[0]["trials.csv"]
    if study != "ellipsoids":
        assert rows == first
        return
    # All points are sought in one product, whose float32 rounding depends on its size.
    for row, other in zip(rows, first, strict=True):
        assert row["model"] == other["model"]
        for name in ("final_error", "residual", "distance_error"):
            assert float(row[name]) == pytest.approx(float(other[name]), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["hybrid", "representation", "perturbation"])
def test_data_that_changed_since_the_run_began_are_refused(tmp_path, name):
    file = tmp_path / "mine.npz"
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    np.savez(file, x=x, y=y)
    options = {"data": own_data(name, file), "train_size": None}
    with pytest.raises(Interrupted):
        make_run(name, tmp_path / "run", Impatient(0), **options)
    np.savez(file, x=x + 1, y=y)
    with pytest.raises(RunFolderError, match=r"mine\.npz: has changed since the run began; bring"):
        go_on(tmp_path / "run", workers=1)


def test_other_versions_are_named(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        make_run("hybrid", path, Impatient(0))
    config = json.loads((path / "config.json").read_text())
    config["torch"] = "0.0.1"
    (path / "config.json").write_text(json.dumps(config))
    run = go_on(path, workers=1)
    assert any("begun with torch 0.0.1" in note for note in run.watcher.notes)


@pytest.mark.slow
def test_a_budget_shortens_a_run(tmp_path):
    value = load_study("hybrid")
    config = config_of("hybrid", epochs=100_000, trials=20, budget=25.0)
    with start(value, config, tmp_path / "run") as folder:
        cut = folder.options(value.config)
    assert cut.trials == 5
    assert cut.epochs < config.epochs
    assert "budget of 25 s: trials cut from 20 to 5" in folder.config.scaled[-1]


def test_tensorboard_files(tmp_path):
    run = make_run("hybrid", tmp_path / "run", tensorboard=True)
    folders = sorted(folder.name for folder in (run.path / "tensorboard").iterdir())
    assert folders == sorted(f"iris-{model}" for model in SMALL["hybrid"]["models"])


def test_watchers_hear_of_the_data(finished):
    assert any(
        note.startswith("data: iris, 105 training") for note in finished("hybrid").watcher.notes
    )


def test_runs_of_earlier_options_can_be_read(tmp_path, finished):
    run = finished("representation")
    config = json.loads((run.path / "config.json").read_text())
    config["options"]["pixels"] = ["normalized", "raw"]
    config["options"]["engine"] = "local"
    folder = RunFolder(tmp_path, msgspec.convert(config, RunConfig), FileLock(tmp_path / "lock"))
    assert folder.options(load_study("representation").config) == config_of("representation")


def test_a_folder_of_another_study_is_refused(finished):
    with RunFolder.open(finished("gaussian").path) as folder, pytest.raises(RunFolderError):
        execute(load_study("hybrid"), folder, Watcher())


# --- Pooling ----------------------------------------------------------------------------------

POOLED = [name for name in STUDIES if load_study(name).pools]


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLED)
def test_pooled_runs_have_the_trials_of_all(name, finished, tmp_path):
    first, second = finished(name), make_run(name, tmp_path / "second", seed=1)
    pool([first.path, second.path], tmp_path / "both")
    both = Run(tmp_path / "both")
    by = load_study(name).variant

    def trials(run, shift=0):
        return {
            (row["model"], row.get(by), int(row["trial"]) + shift): row["status"]
            for row in run.trials
        }

    count = config_of(name).trials
    assert trials(both) == trials(first) | trials(second, count)
    primary = load_study(name).primary_of(first.trials[0])
    for model in {row["model"] for row in first.trials}:
        wanted = [row[primary] for run in (first, second) for row in run.of(model)]
        assert sorted(row[primary] for row in both.of(model)) == sorted(wanted)
    assert [piece["seed"] for piece in both.config["pooled"]] == [0, 1]
    assert both.config["options"]["trials"] == 2 * count
    weights = {file.name for file in (first.path / "weights").glob("*")}
    assert weights == {file.name for file in (both.path / "weights").glob("*")}


@pytest.mark.parametrize("name", ["representation", "init"])
def test_pooling_one_run_judges_it_anew(name, finished, tmp_path):
    run = finished(name)
    pool([run.path], tmp_path / "again")
    assert Run(tmp_path / "again").numbers() == run.numbers()


@pytest.mark.slow
def test_parts_with_the_same_seeds_make_one_run(tmp_path):
    def part(name, **options):
        return make_run("representation", tmp_path / name, **options).path

    whole = part("whole", models=("relu", "abs", "relu2"), trials=2)
    pieces = [
        part("raw", models=("relu", "abs"), pixels=("raw",), trials=2),
        part("normalised", models=("relu", "abs"), pixels=("normalised",), trials=2),
        part("rest", models=("relu2",), trials=2),
    ]
    order = [pieces[1], pieces[0], pieces[2]]
    pool(order, tmp_path / "united")
    united = Run(tmp_path / "united")
    assert united.numbers() == Run(whole).numbers()
    assert united.config["options"]["models"] == ["relu", "abs", "relu2"]
    assert united.config["options"]["pixels"] == ["normalised", "raw"]
    pool([united.path], tmp_path / "free", models=("relu", "abs"))
    pool([united.path], tmp_path / "held", models=("relu2",))
    pool([tmp_path / "free", tmp_path / "held"], tmp_path / "joined")  # each piece is listed once
    assert Run(tmp_path / "joined").numbers() == united.numbers()
    listed = Run(tmp_path / "joined").config["pooled"]
    assert listed == [piece for n, piece in enumerate(listed) if piece not in listed[:n]]
    other = part("other", models=("relu", "abs", "relu2"), trials=1, seed=1)
    pool([united.path, other], tmp_path / "both")  # a pooled run is a run
    assert Run(tmp_path / "both").config["options"]["trials"] == 3
    more = part("more", models=("relu2", "relu"), trials=1, seed=2)
    pool([united.path, other, more], tmp_path / "some", models=("relu", "relu2"))
    some = Run(tmp_path / "some")
    assert some.config["options"]["models"] == ["relu", "relu2"]
    assert [piece["seed"] for piece in some.config["pooled"]][-2:] == [1, 2]
    assert {(row["model"], row["trial"]) for row in some.trials} == {
        (model, str(trial)) for model in ("relu", "relu2") for trial in range(4)
    }
    pool([tmp_path / "both", more], tmp_path / "seeds", models=("relu", "relu2"), seeds=(1, 2))
    pool([other, more], tmp_path / "same", models=("relu", "relu2"))
    assert Run(tmp_path / "seeds").numbers() == Run(tmp_path / "same").numbers()
    assert Run(tmp_path / "seeds").config["seed"] == 1
    pool([tmp_path / "both"], tmp_path / "first", seeds=(0,))
    assert Run(tmp_path / "first").numbers() == united.numbers()
    with pytest.raises(InputError, match="more: has none of these seeds, only trials 1 of seed 2"):
        pool([united.path, more], tmp_path / "out", seeds=(0, 1))
    with pytest.raises(InputError, match="more: has no model abs; give some of relu, relu2"):
        pool([united.path, more], tmp_path / "out", models=("relu", "abs"))
    shorter = part("shorter", models=("relu2",), trials=1)
    for runs, message in (
        ([*pieces[:2], other], "has trials 2 of seed 0, 1 of seed 1, but"),
        ([pieces[0], shorter], "has trials 2 of seed 0, but"),
        (pieces[1:], "no trials; pool"),
        ([united.path, pieces[2]], "seed 0 appears twice, so its trials would be counted twice"),
    ):
        with pytest.raises(InputError, match=message):
            pool(runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pooling_refuses_runs_that_do_not_belong_together(finished, tmp_path):
    run, other = finished("init"), finished("hybrid")
    longer = make_run("init", tmp_path / "longer", seed=1, epochs=3)
    refused = [
        ([run, run], "seed 0 appears twice, so its trials would be counted twice"),
        ([run, other], "a run of hybrid, not of init"),
        ([run, longer], "--epochs is 3, but 2"),
        ([finished("gaussian")], "draws its problem from the seed"),
    ]
    for runs, message in refused:
        with pytest.raises(InputError, match=message):
            pool([one.path for one in runs], tmp_path / "out")
    with pytest.raises(InputError, match="into itself"):
        pool([longer.path], longer.path, force=True)
    (longer.path / "measures.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"has changed|has no measures"):
        pool([longer.path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_metrics_that_compare_models_are_those_of_one_run_after_pooling(tmp_path):
    def part(name, *models, **options):
        options = {"models": models, "epochs": 1, "trials": 1, **options}
        return make_run("hybrid", tmp_path / name, **options).path

    whole = part("whole", "abs-0", "abs-50", seed=1)
    parts = [part("relu", "abs-0", seed=1), part("half", "abs-50", seed=1)]
    pool(parts, tmp_path / "united")
    united, wanted = Run(tmp_path / "united"), Run(whole)
    assert united.numbers() == wanted.numbers()
    assert all(row["gain"] for row in united.trials)
    first = part("first", "abs-0", "abs-50")
    pool([first, *parts], tmp_path / "both")
    gains = [row["gain"] for row in Run(tmp_path / "both").of("abs-50")]
    assert gains == [run.of("abs-50")[0]["gain"] for run in (Run(first), wanted)]
    pool([first], tmp_path / "alone", models=("abs-50",))  # without anything to gain over
    assert "gain" not in Run(tmp_path / "alone").trials[0]


def test_numbers_that_a_piece_lacks_are_nan():
    def piece(curve, **metrics):
        steps = torch.arange(curve)
        own = {name: torch.tensor(values) for name, values in metrics.items()}
        curves = {"loss": (steps, torch.ones(2, curve))} if curve else {}
        return Measures(own, 1.0, curves=curves, trial_plots={name: own[name] for name in metrics})

    first, second = piece(0, a=[1.0, 2.0]), piece(3, a=[3.0, 4.0], b=[5.0, 6.0])
    for pieces in ((first, second), (second, first)):
        joined = join(pieces)
        (steps, losses), start = joined.curves["loss"], 2 * (pieces[0] is first)
        assert steps.tolist() == [0, 1, 2]
        known = torch.zeros(4, dtype=torch.bool)
        known[start : start + 2] = True
        assert losses.isfinite().all(1).tolist() == known.tolist()
        assert joined.metrics["b"].isfinite().tolist() == known.tolist()
        assert joined.metrics["a"].isfinite().all()
        assert set(joined.trial_plots) == {"a"}


def test_plots_are_dropped_with_the_trial_that_they_show():
    own = Measures({"a": torch.arange(3.0)}, 1.0, plots={"weight": torch.ones(2)})
    assert select(own, [0, 2]).plots
    assert not select(own, [1, 2]).plots


def test_seeds_of_a_pooled_run(tmp_path):
    options = {"data": ("2d-apart-stretched",), "models": ("abs-classes",), "epochs": 1}
    paths = [
        make_run("clusters", tmp_path / str(seed), seed=seed, trials=1, **options).path
        for seed in (0, 1)
    ]
    pool(paths, tmp_path / "both")
    arrays = {}
    for seed in (0, 1):
        pool([tmp_path / "both"], tmp_path / f"only-{seed}", seeds=(seed,))
        assert Run(tmp_path / f"only-{seed}").numbers() == Run(paths[seed]).numbers()
        wanted = load_file(paths[seed] / "plots.safetensors")
        arrays[seed] = load_file(tmp_path / f"only-{seed}" / "plots.safetensors")
        assert all(np.array_equal(array, wanted[name]) for name, array in arrays[seed].items())
    assert "plane/abs-classes/weight" in arrays[0]
    assert "plane/abs-classes/weight" not in arrays[1]  # the pooled run has that of seed 0 alone
    with pytest.raises(InputError, match="--seeds 7: no run has this seed; give some of 0, 1"):
        pool([tmp_path / "both"], tmp_path / "out", seeds=(0, 7))
    assert not (tmp_path / "out").exists()


def test_runs_that_a_budget_cut_are_pooled(tmp_path):
    paths = []
    for trials in (1, 2):
        note = f"budget of 60 s: trials cut from 20 to {trials}"
        options = {"models": ("abs-0",), "epochs": 1, "shortened": (note,)}
        run = make_run("hybrid", tmp_path / note, seed=trials, trials=trials, **options)
        assert note in run.config["scaled"]
        paths.append(run.path)
    pool(paths, tmp_path / "both")
    both = Run(tmp_path / "both")
    assert both.config["options"]["trials"] == 3
    assert both.config["options"]["shortened"] == []
    assert "trials: 3 instead of 20" in both.config["scaled"]
    assert not [line for line in both.config["scaled"] if "cut from" in line]


def test_options_that_differ_go_by_their_flag(tmp_path):
    record = {"study": "perturbation", "torch": "", "created": "", "seed": 0, "device": "cpu"}
    record |= {"threads": 1, "protocol": "scaled", "scaled": [], "command": ""}
    for name in ("one", "other"):
        options = msgspec.to_builtins(config_of("perturbation")) | {"networks": name}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(record | {"options": options}))
    with pytest.raises(InputError, match="other: --from is other, but one in"):
        pool([tmp_path / "one", tmp_path / "other"], tmp_path / "out")
