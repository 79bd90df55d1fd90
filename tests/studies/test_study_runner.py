"""The runner with a made-up study: joined jobs, lost models, kills at any moment, budgets."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_runs import Run, Watcher
from torch import Tensor

from mahalens.data import stream
from mahalens.errors import InputError
from mahalens.files import write_file
from mahalens.studies import run as runner
from mahalens.studies.claims import Claim, Lower
from mahalens.studies.folder import RunFolder
from mahalens.studies.run import execute, start
from mahalens.studies.study import (
    Config,
    Measures,
    Metric,
    Model,
    Option,
    PublishedValue,
    Study,
    count_option,
    jobs_of,
    models_option,
    train_size_option,
)

MODELS = {name: Model(name) for name in ("better", "plain", "plain-twin", "broken")}
SETS = ("digits", "iris")


class ToyConfig(Config, frozen=True, kw_only=True):
    """The options of the made-up study."""

    data: Annotated[tuple[str, ...], Option("Data.", SETS)]
    models: Annotated[tuple[str, ...], models_option(MODELS)]
    trials: Annotated[int, count_option("Trials.", 10)]
    epochs: Annotated[int, count_option("Epochs.", 100)]
    train_size: Annotated[int | None, train_size_option()]


def drawn(variant: str, trials: range) -> Tensor:
    return torch.stack([torch.randn(5, generator=stream(0, variant, t)) for t in trials]).double()


def measure(config, job, context):
    base = drawn(job.variant, job.trials)
    measures = {}
    for model in ("plain", "plain-twin") if job.work == "plain" else (job.work,):
        values = 90 + base.mean(1) + (2.0 if model == "better" else 0.0)
        metrics = {"accuracy": values * (math.nan if model == "broken" else 1)}
        if model == "better":
            metrics["extra"] = base[:, 0]
        measures[model] = Measures(
            metrics=metrics,
            seconds=1.5,
            curves={"accuracy": (torch.tensor([0, 1, 2]), base[:, :3])},
            plots={"first": base[0]},
            weights={"w": base},
        )
    return measures


def published(config, metric, model, variant):
    known = (metric, model, variant) == ("accuracy", "plain", "digits")
    return PublishedValue(91.5, std=0.5) if known else None


STUDY = Study(
    name="toy",
    question="Is better better?",
    source="here",
    config=ToyConfig,
    models=MODELS,
    metrics={
        "accuracy": Metric("Accuracy", "Share.", unit="%", better="high"),
        "extra": Metric("Extra", "Of one model alone."),
    },
    claims=(Claim("better", "Better is better.", Lower("accuracy", "plain", "better")),),
    check=lambda config, folder: {"data": {}},
    jobs=lambda config: jobs_of(config.data, ("plain", "better", "broken"), config.trials, 4),
    measure=measure,
    published=published,
    primary="accuracy",
    pairs=(("better", "plain"), ("broken", "plain"), ("absent", "plain")),
    tested=("accuracy", "extra"),
)
CONFIG = ToyConfig.with_defaults()


def make(path, config=CONFIG):
    with start(STUDY, config, path, command="toy") as folder:
        execute(STUDY, folder, Watcher(), workers=1)
    return Run(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make(tmp_path_factory.mktemp("toy") / "run")


def test_jobs_are_joined_in_the_order_of_trials(run):
    keys = [(row["data"], row["model"], int(row["trial"])) for row in run.trials]
    assert keys == [(d, m, t) for d in SETS for m in MODELS for t in range(10)]
    wanted = 90 + drawn("iris", range(10)).mean(1)
    rows = [row for row in run.of("plain") if row["data"] == "iris"]
    assert [float(row["accuracy"]) for row in rows] == pytest.approx(wanted.tolist(), rel=1e-12)
    assert {row["extra"] for row in rows} == {""}
    curves = [
        row for row in run.csv("curves.csv") if (row["data"], row["model"]) == ("iris", "plain")
    ]
    assert [int(row["epoch"]) for row in curves[:4]] == [0, 1, 2, 0]
    assert float(curves[-1]["accuracy"]) == pytest.approx(float(drawn("iris", range(10))[9, 2]))
    assert load_file(run.path / "weights" / "iris-better.safetensors")["w"].shape == (10, 5)
    plots = load_file(run.path / "plots.safetensors")
    assert torch.equal(plots["digits/plain/first"], drawn("digits", range(1))[0])
    (outcome,) = (
        o
        for o in run.summary["outcomes"]
        if (o["model"], o["group"]) == ("plain", {"data": "iris"})
    )
    assert outcome["best_trial"] == int(wanted.argmax())
    assert outcome["seconds"] == pytest.approx(3 * 1.5)


def test_a_model_without_numbers_is_said_to_be_lost(run):
    assert {(r["status"], r["accuracy"]) for r in run.of("broken")} == {("non-finite", "")}
    lost = [o for o in run.summary["outcomes"] if o["model"] == "broken"]
    assert [o["non_finite"] for o in lost] == [list(range(10))] * 2
    assert [o["best_trial"] for o in lost] == [None, None]


def test_tests_claims_and_published_values(run):
    lines = run.csv("comparisons.csv")
    assert [(c["family"], c["metric"], c["a"]) for c in lines][:2] == [
        ("digits", "accuracy", "better (digits)"),
        ("digits", "accuracy", "broken (digits)"),
    ]
    assert float(lines[0]["mean_difference"]) == pytest.approx(2.0)
    assert lines[1]["mean_difference"] == ""
    assert not any("absent" in c["a"] for c in lines)
    claims = [(claim["id"], claim["verdict"]) for claim in run.summary["claims"]]
    assert claims == [("toy/better/digits", "holds"), ("toy/better/iris", "holds")]
    rows = {(r["group"]["data"], r["model"], r["metric"]): r for r in run.summary["rows"]}
    row = rows["digits", "plain", "accuracy"]
    assert (row["published"], row["published_detail"]) == (91.5, {"std": 0.5})
    assert rows["iris", "plain", "accuracy"]["published"] is None
    assert ("digits", "plain", "extra") not in rows


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", [0, 1, 2, 10, 18, 19, 26, 27, 28, 29, 30, 31])
def test_killed_around_any_file(tmp_path, monkeypatch, run, place, when):
    """Before or after config, results of jobs, weights, tables, checksums and summary."""
    written = []

    def write(path, content):
        written.append(path.name)
        if len(written) > place and when == "before":
            raise Killed
        write_file(path, content)
        if len(written) > place:
            raise Killed

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("mahalens.studies.folder.write_file", write)
        with pytest.raises(Killed):
            make(path)
    if (place, when) == (0, "before"):  # nothing is there: the same command works again
        start(STUDY, CONFIG, path).close()
    with RunFolder.open(path) as folder:
        assert folder.finished == ("summary.json" in written and when == "after")
        if not folder.finished:
            execute(STUDY, folder, Watcher(), workers=1)
    assert Run(path).numbers() == run.numbers()


def test_without_a_compiler_torch_trains_and_a_run_says_so(tmp_path, monkeypatch):
    start(STUDY, CONFIG, tmp_path / "run").close()
    before = (tmp_path / "run" / "config.json").read_text()
    monkeypatch.setattr("mahalens.studies.run.why_not", lambda: "no C++ compiler")
    with RunFolder.open(tmp_path / "run") as folder:
        watcher = Watcher()
        execute(STUDY, folder, watcher, workers=1)
    notes = [note for note in watcher.notes if "begun with the compiled engine" in note]
    assert len(notes) == ('"engine": "compiled"' in before)
    with start(STUDY, CONFIG, tmp_path / "new") as folder:
        assert folder.config.engine == "torch"


def test_what_only_shows_when_it_is_computed_says_where(tmp_path):
    def refuse(config, job, context):
        raise InputError("4 samples that differ")

    study = type(STUDY)(**{**vars(STUDY), "measure": refuse})
    with (
        start(study, CONFIG, tmp_path / "run") as folder,
        pytest.raises(InputError, match=r"^plain on digits, trials 0 to 3: 4 samples that differ"),
    ):
        execute(study, folder, Watcher(), workers=1)


# --- Budgets ----------------------------------------------------------------------------------


def costs_of(samples):
    return [runner.Cost(0.01, 0.002, samples), runner.Cost(0.0, 0.004, samples)]


def left_of(samples, speed=1.0, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mahalens.studies.run.measure_costs", lambda *_: costs_of(samples))
        return runner.within_budget(STUDY, ToyConfig.with_defaults(**options), {}, speed)


def test_costs_know_the_samples_of_a_file_by_the_name_it_has_in_records():
    config = ToyConfig.with_defaults(data=("folder/My set.npz",), models=("plain",), epochs=1)
    costs = runner.measure_costs(STUDY, config, {"data": {"My-set": {"training_samples": 321}}})
    assert {cost.samples for cost in costs} == {321}


def test_trials_go_first_then_samples_then_epochs():
    config = ToyConfig.with_defaults(trials=20, epochs=5_000)
    whole = runner.estimate(STUDY, config, costs_of(60_000)) - runner.OVERHEAD
    assert whole == pytest.approx(1.15 * 20 * (0.01 + 0.006 * 5_000))
    cut = {
        share: left_of(60_000, trials=20, epochs=5_000, budget=runner.OVERHEAD + share * whole)
        for share in (2.0, 0.5, 0.1, 0.01)
    }
    assert cut[2.0].shortened == ()
    assert runner.within_budget(STUDY, CONFIG, {}) is CONFIG  # which has no budget
    assert 5 < cut[0.5].trials <= 10
    assert (cut[0.5].train_size, cut[0.5].epochs) == (None, 5000)
    assert cut[0.1].trials == 5
    assert 15_000 <= cut[0.1].train_size < 60_000
    assert cut[0.1].epochs == 5000
    little = cut[0.01]
    assert (little.trials, little.train_size) == (5, 15_000)
    assert little.deviations()[-1] == (
        f"budget of {little.budget:.0f} s: trials cut from 20 to 5, training samples cut from "
        f"60,000 to 15,000, epochs cut from 5,000 to {little.epochs:,}"
    )


@settings(max_examples=40, deadline=None)
@given(
    budget=st.floats(25, 1e6),
    samples=st.integers(10, 60_000),
    trials=st.integers(1, 40),
    epochs=st.integers(1, 50_000),
    speed=st.floats(0.5, 20),
)
def test_what_is_left_fits_and_is_not_more_than_was_asked(budget, samples, trials, epochs, speed):
    try:
        left = left_of(samples, speed, trials=trials, epochs=epochs, budget=budget)
    except InputError:  # not even the shortest run fits
        shortest = {"trials": min(5, trials), "epochs": 1, "train_size": min(samples, 1_000)}
        tried = ToyConfig.with_defaults(**shortest)
        assert runner.estimate(STUDY, tried, costs_of(samples)) > 0.5 * budget * speed
        return
    assert runner.estimate(STUDY, left, costs_of(samples)) <= budget * speed
    assert min(5, trials) <= left.trials <= trials
    assert left.epochs <= epochs
    assert (left.train_size or samples) <= samples
    changed = (left.trials, left.train_size, left.epochs) != (trials, None, epochs)
    assert bool(left.shortened) == changed
    assert msgspec.convert(msgspec.to_builtins(left), ToyConfig) == left
    assert np.isfinite(left.budget)
