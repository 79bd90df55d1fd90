"""The ellipsoid study from draw to records, small; against slow twins and after interruptions."""

import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mahalens.data.ellipsoids import DrawnCovariances, draw_ellipsoids, draw_points
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.geometry import ellipsoids
from mahalens.studies.ellipsoids import search
from mahalens.studies.ellipsoids.claims import CLAIMS, DATA_CLAIMS
from mahalens.studies.ellipsoids.config import EllipsoidConfig
from mahalens.studies.ellipsoids.metrics import DATA_METRICS, METRICS, SEARCH_METRICS
from mahalens.studies.ellipsoids.problem import check_memory, draw
from mahalens.studies.ellipsoids.ranks import distance_errors, rank_grid
from mahalens.studies.ellipsoids.run import carry_on, start
from mahalens.studies.folder import RunFolder

SMALL = {"dim": 12, "count": 20, "ranks": (2, 5), "trials": 3, "steps": 60}
TIMES = ("seconds", "fit_seconds", "score_seconds")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


class Watcher:
    def __init__(self):
        self.stages, self.notes = [], []

    def stage(self, name):
        self.stages.append(name)
        return lambda progress: None

    def note(self, text):
        self.notes.append(text)


def run(path, **options):
    config = EllipsoidConfig.with_defaults(**{**SMALL, **options})
    with start(config, path) as folder:
        carry_on(folder, Watcher())
    return path


def numbers(path):
    """What must not depend on when or how often a run was stopped."""
    with (path / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        for name in TIMES:
            row.pop(name, None)
    curves = (path / "curves.csv").read_text() if (path / "curves.csv").exists() else ""
    points = {p.name: load_file(p)["x"].tolist() for p in path.glob("weights/*-*.safetensors")}
    return rows, curves, points


def rows_of(path):
    with (path / "trials.csv").open() as stream:
        return {(r["model"], int(r["trial"])): r for r in csv.DictReader(stream)}


@pytest.fixture(scope="module")
def adam(tmp_path_factory):
    return run(tmp_path_factory.mktemp("adam") / "run")


# The draw


def test_covariances_are_those_of_the_source_and_depend_on_their_own_number_only():
    few, many = DrawnCovariances(6, 3, seed=5), DrawnCovariances(6, 30, seed=5)
    for k in range(3):
        assert torch.equal(few[k], many[k])
        torch.testing.assert_close(few[k], few[k].T)
        assert float(torch.linalg.eigvalsh(few[k])[0]) >= 0.5
    assert not torch.equal(few[0], few[1])
    assert not torch.equal(few[0], DrawnCovariances(6, 3, seed=6)[0])
    assert torch.equal(few[-1], few[2])
    assert len(few[1:]) == 2
    with pytest.raises(IndexError):
        few[3]


def test_covariances_average_to_dim_plus_one_half():
    drawn = DrawnCovariances(8, 2000)
    mean = sum(drawn[k] for k in range(2000)) / 2000
    torch.testing.assert_close(mean, 8.5 * torch.eye(8, dtype=torch.float64), atol=0.35, rtol=0)


def test_points_depend_on_their_own_number_only():
    assert torch.equal(
        draw_points(4, 2, 0, "truth", torch.float32),
        draw_points(4, 9, 0, "truth", torch.float32)[:2],
    )
    assert not torch.equal(
        draw_points(4, 2, 0, "truth", torch.float32), draw_points(4, 2, 0, "start", torch.float32)
    )


@pytest.mark.parametrize("model", ["elliptical", "spherical", "pca-l2-5", "remainder-2"])
def test_the_distances_of_a_run_are_those_of_the_library(model):
    """The study factors its covariances on a shorter way than the library does."""
    config = EllipsoidConfig.with_defaults(**SMALL)
    drawn = draw(config)
    own, norm = drawn.metric(model)
    means = drawn.means.double()
    covariances = DrawnCovariances(12, 20)
    kind, options = {
        "elliptical": ("full", {}),
        "pca-l2-5": ("low-rank", {"rank": 5}),
        "remainder-2": ("low-rank+remainder", {"rank": 2, "remainder": "precision"}),
    }.get(model, (None, {}))
    if kind is None:
        expected = torch.cdist(drawn.truth.double(), means)
    else:
        library = ellipsoids.from_covariance(means, covariances, kind=kind, **options)
        expected = library.distances(drawn.truth.double())
    found = own.distances(drawn.truth, norm=norm)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def test_draw_ellipsoids_is_the_draw_of_the_study():
    drawn = draw(EllipsoidConfig.with_defaults(**SMALL))
    library = draw_ellipsoids(12, 20)
    torch.testing.assert_close(drawn.full.whitening, library.whitening)
    assert torch.equal(drawn.means, library.means)


def test_only_what_methods_need_is_computed():
    drawn = draw(EllipsoidConfig.with_defaults(**SMALL, methods=("spherical",)))
    assert drawn.whitening is None
    assert drawn.axes is None
    drawn = draw(EllipsoidConfig.with_defaults(**SMALL, methods=("pca-l1",)))
    assert drawn.whitening is None
    assert drawn.axes.shape == (20, 5, 12)


def test_a_run_that_does_not_fit_says_so_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("mahalens.geometry.memory.available_memory", lambda: 10**9)
    config = EllipsoidConfig.with_defaults(published=True)
    with pytest.raises(InputError) as error:
        start(config, tmp_path / "run")
    told = str(error.value)
    assert "--count 1024 with --dim 784" in told
    assert "GB" in told
    assert "--methods spherical,pca-l2" in told
    assert not (tmp_path / "run").exists()
    check_memory(EllipsoidConfig.with_defaults(published=True, methods=("spherical",)))


def test_the_published_size_fits_in_12_gigabytes(monkeypatch):
    monkeypatch.setattr("mahalens.geometry.memory.available_memory", lambda: 12 * 10**9)
    check_memory(EllipsoidConfig.with_defaults(published=True))
    check_memory(EllipsoidConfig.with_defaults(published=True, solver="newton"))


# Distances against rank


def test_errors_by_rank_are_those_of_truncated_ellipsoids():
    config = EllipsoidConfig.with_defaults(**SMALL)
    found = distance_errors(config)
    grid = found["ranks/grid"].tolist()
    assert grid == [1, 2, 4, 5, 8, 12] == rank_grid(12, (2, 5))
    full = draw_ellipsoids(12, 20, dtype=torch.float64)
    points = draw_points(12, 256, 0, "ranks", torch.float64)
    exact = full.distances(points)
    for kind, remainder in (
        ("truncated", None),
        ("variance", "variance"),
        ("precision", "precision"),
    ):
        for place, rank in enumerate(grid):
            low = full.truncate(int(rank), remainder=remainder)
            errors = (low.distances(points) / exact - 1).abs().flatten()
            quartiles = np.quantile(errors.numpy(), (0.25, 0.5, 0.75))
            np.testing.assert_allclose(
                found[f"ranks/{kind}"][:, place], quartiles, rtol=1e-6, atol=1e-9
            )


# The run


def test_a_run_leaves_all_of_the_contract(adam):
    summary = json.loads((adam / "summary.json").read_text())
    config = json.loads((adam / "config.json").read_text())
    models = [*EllipsoidConfig.with_defaults(**SMALL).models]
    assert config["study"] == summary["study"] == "ellipsoids"
    assert config["protocol"] == summary["protocol"] == "scaled"
    assert [o["model"] for o in summary["outcomes"]] == models
    wanted = {(m, metric) for m in models for metric in SEARCH_METRICS}
    assert {(r["model"], r["metric"]) for r in summary["rows"]} == wanted
    keys = {"group", "model", "metric", "mean", "std", "min", "max", "n", "ci95", "published"}
    assert all(keys <= set(row) for row in summary["rows"])
    assert {c["id"] for c in summary["claims"]} == {c.id for c in CLAIMS}
    assert {c["verdict"] for c in summary["claims"]} <= {
        *("holds", "fails", "undecided", "not measured")
    }
    assert len(rows_of(adam)) == 3 * len(models)
    assert sorted(p.stem for p in (adam / "weights").iterdir()) == sorted([*models, "points"])
    assert not (adam / "checkpoints").exists()


def test_the_numbers_of_a_trial_follow_from_its_points(adam):
    points = load_file(adam / "weights" / "points.safetensors")
    drawn = draw(EllipsoidConfig.with_defaults(**SMALL))
    assert torch.equal(points["truth"], drawn.truth)
    rows = rows_of(adam)
    for model in ("elliptical", "pca-l1-2", "remainder-5"):
        x = load_file(adam / "weights" / f"{model}.safetensors")["x"]
        own, norm = drawn.metric(model)
        gaps = own.distances(x, norm=norm) - own.distances(drawn.truth, norm=norm)
        for trial in range(3):
            row = rows[model, trial]
            error = float((x[trial] - drawn.truth[trial]).norm())
            assert float(row["final_error"]) == pytest.approx(error, rel=1e-5)
            misfit = float(gaps[trial].square().mean().sqrt())
            assert float(row["residual"]) == pytest.approx(misfit, rel=1e-2)
            assert (row["status"], float(row["steps"])) == ("done", 60)


def test_searching_brings_points_nearer_and_the_curve_tells(adam):
    with (adam / "curves.csv").open() as stream:
        curves = list(csv.DictReader(stream))
    own = [r for r in curves if (r["model"], r["trial"]) == ("elliptical", "1")]
    steps = [int(r["step"]) for r in own]
    assert steps[0] == 0
    assert steps[-1] == 60
    assert steps == sorted(set(steps))
    assert float(own[-1]["error"]) < float(own[0]["error"])
    assert float(own[-1]["error"]) == float(rows_of(adam)["elliptical", 1]["final_error"])


def test_a_trial_does_not_depend_on_the_number_of_trials(adam, tmp_path):
    alone = rows_of(run(tmp_path / "run", trials=1, methods=("spherical", "pca-l2")))
    for model in ("spherical", "pca-l2-2"):
        one, among = alone[model, 0], rows_of(adam)[model, 0]
        assert float(one["final_error"]) == pytest.approx(float(among["final_error"]), rel=1e-3)


def test_newton_gives_the_points_back(tmp_path):
    rows = rows_of(run(tmp_path / "run", solver="newton", steps=None, count=40))
    for (model, _), row in rows.items():
        if "l1" not in model:
            assert float(row["final_error"]) < 1e-3, model
            assert row["status"] == "converged"


def test_noise_is_in_the_targets(tmp_path):
    quiet = rows_of(
        run(tmp_path / "a", solver="newton", steps=None, count=40, methods=("spherical",))
    )
    loud = rows_of(
        run(
            tmp_path / "b", solver="newton", steps=None, count=40, methods=("spherical",), noise=0.1
        )
    )
    for key, row in loud.items():
        assert 0.01 < float(row["residual"]) < 0.2
        assert 0.01 < float(row["final_error"]) < 1
        assert float(quiet[key]["residual"]) < 1e-4


def test_figures_of_the_source_stand_beside_runs_of_its_size_only(adam):
    summary = json.loads((adam / "summary.json").read_text())
    assert all(row["published"] is None for row in summary["rows"])


@pytest.mark.parametrize("solver", ["adam", "newton"])
def test_a_stopped_run_goes_on_to_the_same_numbers(adam, tmp_path, solver, monkeypatch):
    monkeypatch.setattr(search, "CHUNK_SECONDS", 0.0)  # a look after every step
    whole = adam if solver == "adam" else run(tmp_path / "whole", solver="newton")
    config = EllipsoidConfig.with_defaults(**SMALL, solver=solver)
    path = tmp_path / "stopped"
    start(config, path).close()
    for calls in (5, 40, 90, 200):
        left = iter(range(calls))
        with RunFolder.open(path) as folder:
            try:
                carry_on(folder, Watcher(), lambda left=left: next(left, None) is None)
            except Interrupted:
                assert not folder.finished
    with RunFolder.open(path) as folder:
        if not folder.finished:
            carry_on(folder, Watcher())
    assert numbers(path) == numbers(whole)


def test_a_state_of_another_run_is_refused(tmp_path):
    config = EllipsoidConfig.with_defaults(**SMALL)
    with start(config, tmp_path / "run") as folder:
        folder.write_tensors("checkpoints/elliptical.safetensors", {"x": torch.zeros(1)})
        with pytest.raises(RunFolderError, match="does not fit this run"):
            carry_on(folder, Watcher())


# Data


def test_a_run_on_digits(tmp_path):
    options = {"ranks": (2, 8), "clusters": (2,), "train_size": 400, "trials": 2}
    config = EllipsoidConfig.with_defaults(data="digits", **options)
    with start(config, tmp_path / "run") as folder:
        carry_on(folder, Watcher())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {r["metric"] for r in summary["rows"]} == set(DATA_METRICS)
    models = {r["model"] for r in summary["rows"]}
    assert {"full", "rank-8", "truncated-2", "shared-8", "clusters-2", "qda", "mixture-2"} <= models
    error = {r["model"]: r["mean"] for r in summary["rows"] if r["metric"] == "error_density"}
    assert error["full"] < 0.2 < error["spherical"] + 0.15
    assert error["truncated-2"] is None
    assert {c["id"] for c in summary["claims"]} == {c.id for c in DATA_CLAIMS}
    assert summary["facts"]["training_samples"] == 400

    stopped = tmp_path / "stopped"
    start(config, stopped).close()
    calls = iter(range(15))
    with RunFolder.open(stopped) as folder, pytest.raises(Interrupted):
        carry_on(folder, Watcher(), lambda: next(calls, None) is None)
    with RunFolder.open(stopped) as folder:
        carry_on(folder, Watcher())
    assert numbers(stopped) == numbers(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"data": "digits", "ranks": (65,)}, "--ranks 65: is more than the 64 inputs"),
        ({"data": "digits", "train_size": 10**6}, "1000000"),
        ({"data": "no-such-folder"}, "no-such-folder"),
        ({"data": "digits", "train_size": 20, "clusters": (4,)}, "clusters"),
    ],
)
def test_bad_data_is_refused_before_anything_is_written(tmp_path, options, told):
    with pytest.raises(InputError) as error:
        start(EllipsoidConfig.with_defaults(**options), tmp_path / "run")
    assert told in str(error.value)
    assert not (tmp_path / "run").exists()


def test_every_metric_is_explained():
    assert set(METRICS) == set(SEARCH_METRICS) | set(DATA_METRICS)
    assert all(m.label and m.explanation.endswith(".") for m in METRICS.values())
