"""Runs of the heads study as a stranger reads their folders: records, resuming, claims."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from mahalens.errors import InputError, Interrupted
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.folder import RunFolder
from mahalens.studies.heads import measuring
from mahalens.studies.heads.backbone import Backbone, look
from mahalens.studies.heads.claims import claims_for
from mahalens.studies.heads.config import FULL_DATA, HeadsConfig
from mahalens.studies.heads.measuring import fitted_head, measure, said_by, to_fit
from mahalens.studies.heads.metrics import METRICS
from mahalens.studies.heads.models import MODELS, READERS
from mahalens.studies.heads.presentation import PRESENTATION
from mahalens.studies.heads.published import published_figure
from mahalens.studies.heads.run import STUDY, carry_on, jobs, pairs, start
from mahalens.studies.heads.task import task_of
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.measures import Measures

SMALL = HeadsConfig.with_defaults(trials=2, epochs=2, train_size=400)
TIMES = {"seconds"}  # no number of a result


def read(path):
    with (path / "trials.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def results(path):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read(path)]


@pytest.fixture(scope="module")
def done(tmp_path_factory, watcher):
    path = tmp_path_factory.mktemp("heads") / "run"
    with start(SMALL, path, command="mahalens run heads") as folder:
        carry_on(folder, watcher(), workers=1)
    return path


def test_a_run_has_every_model_and_number(done):
    rows = read(done)
    assert [(r["model"], r["trial"]) for r in rows] == [(m, t) for m in MODELS for t in "01"]
    for row in rows:
        numbers = {name: float(row[name]) for name in METRICS}
        assert all(map(math.isfinite, numbers.values())), row["model"]
        assert 0 <= numbers["auroc"] <= 1
        assert 0 <= numbers["ece"] <= 1
        assert all(0 <= numbers[name] <= 100 for name in ("test_accuracy", "rejected_unknown"))
    summary = json.loads((done / "summary.json").read_text())
    assert summary["facts"]["data"]["digits"]["unknown"].startswith("3 of 10 classes")
    assert summary["protocol"] == "scaled"
    assert {"softmax (digits)"} < {line["b"] for line in summary["comparisons"]}


def test_detectors_of_one_network_share_its_accuracy(done):
    accuracy = {(r["model"], r["trial"]): r["test_accuracy"] for r in read(done)}
    for trial in "01":
        for model in ("energy", "knn", "mahalanobis", "relative-mahalanobis"):
            assert accuracy[model, trial] == accuracy["softmax", trial]
        assert accuracy["layered", trial] == accuracy["distance", trial]


def test_kept_weights_give_the_numbers_of_the_record(done):
    task = task_of(SMALL, "digits", 1)
    weights = load_file(done / "weights" / "digits-distance.safetensors")
    backbone = Backbone(task.image_shape, 64)
    parts = {"backbone": backbone.state_dict(), "head": {}}
    for name, tensor in weights.items():
        part, _, key = name.partition(".")
        parts[part][key] = tensor[1]
    backbone.load_state_dict(parts["backbone"])
    away = torch.cdist(look(backbone, task.test_x).features, parts["head"]["distance.mu"])
    right = 100 * (away.argmin(1) == task.test_y).double().mean().item()
    (row,) = (r for r in read(done) if (r["model"], r["trial"]) == ("distance", "1"))
    assert float(row["test_accuracy"]) == pytest.approx(right)


def test_a_stopped_run_ends_with_the_same_numbers(done, tmp_path, watcher):
    path = tmp_path / "run"
    looks = iter([False, False, True])
    with (
        start(SMALL, path, command="mahalens run heads") as folder,
        pytest.raises(Interrupted),
    ):
        carry_on(folder, watcher(), lambda: next(looks), workers=1)
    with RunFolder.open(path) as folder:
        carry_on(folder, watcher(), workers=1)
    assert results(path) == results(done)


def test_a_trial_does_not_depend_on_how_many_there_are(done):
    found = measure(replace(SMALL, trials=9), Job("digits", "distance", 1, 1))
    (row,) = (r for r in read(done) if (r["model"], r["trial"]) == ("refitted", "1"))
    assert float(found["refitted"].metrics["auroc"][0]) == pytest.approx(float(row["auroc"]))


def test_only_the_networks_that_are_asked_for_are_trained(monkeypatch):
    some = HeadsConfig.with_defaults(models=["softmax", "knn"], trials=1, epochs=1, train_size=300)
    assert {job.work for job in jobs(some)} == {"softmax"}
    trained = []
    plain = measuring.softmax_network

    def count(*given):
        trained.append(given[3:])
        return plain(*given)

    monkeypatch.setattr(measuring, "softmax_network", count)
    assert set(measure(some, jobs(some)[0])) == {"softmax", "knn"}
    assert trained == [()]
    more = replace(some, models=("softmax", "ensemble"))
    both = measure(more, jobs(more)[0])
    assert trained[1:] == [(), (1,), (2,), (3,), (4,)]
    assert not torch.equal(both["softmax"].metrics["nll"], both["ensemble"].metrics["nll"])


def test_a_head_rejects_as_its_threshold_says():
    make = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    known = {n: torch.randn(400, 3, generator=make) + 4 * y[:, None] for n in ("fit", "held")}
    parts = {**known, "test": known["held"], "shuffled": known["held"]}
    parts["unknown"] = known["held"] + 50
    said = said_by(None, y, parts, SMALL)
    same = said_by(fitted_head(known["fit"], y), y, parts, SMALL)
    assert torch.equal(said.scores["test"], same.scores["test"])
    assert said.rejected == (pytest.approx(5, abs=0.5), 100.0)
    limit = said.scores["held"].sort().values[380]
    assert float((said.scores["test"] > limit).double().mean()) == pytest.approx(0.05, abs=0.01)


def test_a_network_that_has_lost_its_way_is_told_from_others(monkeypatch):
    plain = measuring.look

    def lost(backbone, x):
        seen = plain(backbone, x)
        return seen._replace(features=seen.features * math.nan)

    monkeypatch.setattr(measuring, "look", lost)
    small = HeadsConfig.with_defaults(trials=1, epochs=1, train_size=300)
    small = replace(small, models=tuple(m for m in MODELS if m != "ensemble"))
    for work in READERS:
        for own in measure(small, Job("digits", work, 0, 1)).values():
            assert own.metrics["auroc"].isnan().all()
            assert set(own.metrics) == set(METRICS)


def test_features_that_are_all_the_same_fit_no_head():
    same = dict.fromkeys(("fit", "held", "test", "unknown", "shuffled"), torch.ones(60, 3))
    assert said_by(None, torch.arange(60) % 2, same, SMALL) is None


def test_heads_see_every_class_also_in_samples_that_are_sorted():
    mixed, ordered = torch.arange(30_000) % 3, torch.arange(30_000) // 10_000
    assert to_fit(mixed) == measuring.FITTED_TO
    assert to_fit(ordered) == 30_000
    assert to_fit(mixed[:500]) == 500


def test_a_user_file_without_images(tmp_path, watcher):
    make = np.random.default_rng(0)
    y = np.arange(600) % 3
    file = tmp_path / "mine.npz"
    np.savez(file, x=make.normal(size=(600, 6)) + 5 * np.eye(6)[y], y=y)
    config = HeadsConfig.with_defaults(
        data=[str(file)], models=["softmax", "refitted"], trials=1, epochs=3
    )
    with start(config, tmp_path / "run") as folder:
        carry_on(folder, watcher(), workers=1)
    assert {row["data"] for row in read(tmp_path / "run")} == {"mine"}


def test_options_that_are_not_given():
    plain = HeadsConfig.with_defaults()
    assert (plain.data, plain.trials, plain.train_size) == (("digits",), 10, None)
    assert any("data: digits instead of" in told for told in plain.deviations())
    full = HeadsConfig.with_defaults(published=True)
    assert (full.data, full.trials, full.deviations()) == (FULL_DATA, 10, [])
    large = HeadsConfig.with_defaults(data=["mnist"])
    assert "training samples: 10,000 instead of all" in large.deviations()
    few = HeadsConfig.with_defaults(models=["softmax"], compactness=0.3, reject_rate=0.1)
    told = few.deviations()
    assert any(one.startswith("models: without energy") for one in told)
    assert "weight of the compactness: 0.3 instead of 0.05" in told
    assert "reject rate: 0.1 instead of 0.05" in told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"models": ["nosuch"]}, "--models nosuch: unknown; give some of softmax"),
        ({"reject_rate": 1.0}, "--reject-rate 1.0: give a number between 0 and 1"),
        ({"compactness": -1.0}, "--compactness -1.0: give a number of at least 0"),
        ({"compactness": math.nan}, "--compactness nan: give a number of at least 0"),
        ({"published": True, "epochs": 3}, "--published with --epochs 3"),
        ({"published": True, "train_size": 3}, "--published with --train-size 3"),
    ],
)
def test_options_that_make_no_sense(given, said):
    with pytest.raises(InputError, match=said.split(":")[0]) as caught:
        HeadsConfig.with_defaults(**given)
    assert str(caught.value).startswith(said)


def test_everything_is_named():
    assert set(MODELS) == {reader for readers in READERS.values() for reader in readers}
    assert set(PRESENTATION.labels) == set(MODELS)
    assert set(PRESENTATION.colours) == set(MODELS)
    assert set(PRESENTATION.shown) <= set(METRICS)
    assert set(STUDY.tested) <= set(METRICS)


def test_every_model_is_tested_against_softmax_and_no_pair_twice():
    found = pairs(HeadsConfig.with_defaults())
    assert {a for a, b in found if b == "softmax"} == set(MODELS) - {"softmax"}
    assert len({frozenset(pair) for pair in found}) == len(found)
    assert pairs(HeadsConfig.with_defaults(models=["softmax", "duq"])) == [("duq", "softmax")]


def verdicts(**changed):
    """The verdicts of ten trials in which every model has the same numbers but for ``changed``."""
    steps = np.linspace(0, 1, 10)
    trials = {}
    for model in MODELS:
        for metric, value in (("auroc", 0.9), ("test_accuracy", 91.0), ("rejected_known", 5.0)):
            own = changed.get(model.replace("-", "_"), {}).get(metric, value)
            trials[f"{model} (fashion-mnist)", metric] = own + 1e-3 * steps
    config = HeadsConfig.with_defaults(data=["fashion-mnist"])
    evidence = Evidence(trials=trials, facts={}, published=lambda *_: None)
    found = judge(claims_for(config), evidence)
    assert len({one.id for one in found}) == len(found)
    assert {one.data for one in found} == {"fashion-mnist"}
    return {one.id.split("/")[1]: one.verdict for one in found}


def test_the_goal_needs_both_auroc_and_accuracy():
    good = {"auroc": 0.97, "test_accuracy": 91.2}
    assert verdicts(layered=good)["goal"] == "holds"
    assert verdicts(layered={**good, "auroc": 0.95})["goal"] == "fails"
    assert verdicts(layered={**good, "test_accuracy": 90.9})["goal"] == "fails"
    digits = claims_for(HeadsConfig.with_defaults())
    assert not any("/goal/" in claim.id for claim in digits)


def test_claims_go_the_right_way():
    found = verdicts(refitted={"auroc": 0.95}, duq={"auroc": 0.93})
    assert found["refitted-finds-more-than-duq"] == "holds"
    assert found["duq-finds-more-than-softmax"] == "holds"
    assert found["distance-finds-more-than-softmax"] == "fails"
    assert found["fitted-is-mahalanobis"] == "holds"
    assert found["refitting-helps"] == "holds"
    assert found["layers-help"] == "fails"
    assert found["refitted-as-accurate"] == "holds"
    assert found["rate-is-kept"] == "holds"
    assert found["distance-calibrated"] == "not measured"
    worse = verdicts(refitted={"test_accuracy": 90.0, "rejected_known": 9.0})
    assert worse["refitted-as-accurate"] == "fails"
    assert worse["rate-is-kept"] == "fails"


def test_published_figures_are_those_of_one_set():
    assert published_figure("auroc", "duq", "fashion-mnist").mean == 0.955
    assert published_figure("auroc", "duq", "mnist") is None
    assert published_figure("ece", "duq", "fashion-mnist") is None


def test_without_a_temperature_there_is_no_calibrated_error(monkeypatch):
    """All held-out samples right: the lower the better, and 1 would be made up."""
    monkeypatch.setattr(measuring.scores, "temperature", lambda *_: math.nan)
    small = HeadsConfig.with_defaults(trials=1, epochs=1, train_size=300, models=["softmax"])
    own = measure(small, Job("digits", "softmax", 0, 1))["softmax"]
    assert own.metrics["ece_calibrated"].isnan().all()
    assert own.metrics["nll_calibrated"].isnan().all()
    assert own.metrics["ece"].isfinite().all()
    (told,) = STUDY.cautions(small, {("digits", "softmax"): own})
    assert told.endswith("leave such trials out (Softmax (digits) in 1)")
    fine = dict(own.metrics) | {"ece_calibrated": own.metrics["ece"]}
    assert STUDY.cautions(small, {("digits", "softmax"): Measures(fine, 1.0)}) == []


def test_a_trial_without_numbers_is_not_done():
    nothing = {"auroc": torch.tensor([0.5, math.nan]), "seconds": torch.tensor([1.0, 1.0])}
    assert Measures(nothing, 1.0).statuses == ["done", "non-finite"]
