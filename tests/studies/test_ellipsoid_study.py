"""The ellipsoid study: points found again, and classes of real data, against slow twins."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from small_runs import config_of, make_run

from mahalens.data import LabelledData, load_set, stream
from mahalens.data.draws import DrawnCovariances, draw_ellipsoids, draw_points
from mahalens.errors import InputError
from mahalens.geometry import ellipsoids
from mahalens.studies import ellipsoids as study
from mahalens.studies.claims import Evidence
from mahalens.studies.ellipsoids_data import (
    Fitted,
    RealTrial,
    mean_variance,
    measure_rival,
    model_names,
)
from mahalens.studies.run import start

make = study.EllipsoidConfig.with_defaults
SMALL = {"dim": 12, "count": 20, "ranks": (2, 5), "trials": 3, "steps": 60}

# --- Options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"published": True}, []),
        (
            {"published": True, "count": 512, "steps": 100, "noise": 0.1, "ranks": (4, 8)},
            [
                "count: 512 instead of 1,024",
                "ranks: without 64",
                "steps: 100 instead of 10,000",
                "noise: 0.1 instead of 0.0",
            ],
        ),
        # Its steps were not published.
        ({"published": True, "solver": "newton"}, ["solver: newton instead of adam"]),
        ({"published": True, "methods": tuple(study.METHODS)[:-1]}, []),
        (
            {"published": True, "methods": ("spherical",)},
            ["methods: without elliptical, pca-l2, pca-l1"],
        ),
        (
            {"data": "digits"},
            ["data: ellipsoids fitted to digits, which the experiment does not do"],
        ),
    ],
    ids=str,
)
def test_deviations(options, wanted):
    assert make(**options).deviations() == wanted


@pytest.mark.parametrize(("times", "holds"), [(20, True), (10, False)])
def test_the_published_speed_is_15_times(times, holds):
    noise = 1 + 0.01 * torch.randn(6, generator=torch.Generator().manual_seed(0)).numpy()
    trials = {
        ("", "elliptical", "final_error"): noise,
        ("", "pca-l2-4", "final_error"): noise[::-1],
        ("", "elliptical", "seconds"): times * noise,
        ("", "pca-l2-4", "seconds"): noise[::-1],
    }
    claim = next(claim for claim in study.CLAIMS if claim.key == "rank-4-matches-full")
    finding = claim.predicate.judge(Evidence(trials, {}, lambda *_: None))
    assert finding.holds is holds


def test_defaults_and_models():
    config = make()
    assert (config.dim, config.count, config.trials, config.ranks) == (96, 128, 5, (4, 8, 64))
    assert (make(dim=10).ranks, make(dim=2).ranks) == ((4, 8), (2,))
    real = make(data="digits")
    assert (real.ranks, real.clusters) == ((1, 2, 4, 8, 16, 32), (2, 4))
    models = make(ranks=(2, 3), methods=("pca-l1", "elliptical", "pca-l2")).models
    assert models == ("elliptical", "pca-l2-2", "pca-l2-3", "pca-l1-2", "pca-l1-3")
    assert study.split_model("remainder-8") == ("remainder", 8)
    assert not make(methods=("spherical", "pca-l2")).needs_full
    assert make(methods=("spherical",)).largest_rank == 0
    full = make(published=True)
    assert study.published(full, "final_error", "pca-l1-64", "").mean == 19.85
    assert study.published(full, "seconds", "elliptical", "").mean == 65.1
    assert study.published(config, "final_error", "elliptical", "") is None  # of its size only


def test_runs_that_do_not_fit_say_so_before_they_start(tmp_path, monkeypatch):
    memory = 10**9
    monkeypatch.setattr("mahalens.geometry._checks.available_memory", lambda: memory)
    message = r"--count 1024 with --dim 784.*GB.*--methods spherical,pca-l2"
    with pytest.raises(InputError, match=message):
        start(study.STUDY, make(published=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    study.STUDY.check(make(published=True, methods=("spherical",)), None)
    memory = 12 * 10**9
    for solver in ("adam", "newton"):
        study.STUDY.check(make(published=True, solver=solver), None)


# --- Points found from distances --------------------------------------------------------------


def test_covariances_and_points_are_drawn_by_seed_and_purpose():
    drawn = DrawnCovariances(8, 2000)
    assert not torch.equal(drawn[0], DrawnCovariances(8, 3, seed=6)[0])
    mean = sum(drawn[k] for k in range(2000)) / 2000
    torch.testing.assert_close(mean, 8.5 * torch.eye(8, dtype=torch.float64), atol=0.35, rtol=0)
    truth, start = (draw_points(4, 2, 0, name, torch.float32) for name in ("truth", "start"))
    assert not torch.equal(truth, start)


LIBRARY = {
    "elliptical": ("full", {}),
    "spherical": (None, {}),
    "pca-l2-5": ("low-rank", {"rank": 5}),
    "remainder-2": ("low-rank+remainder", {"rank": 2, "remainder": "precision"}),
}


@pytest.mark.parametrize("model", LIBRARY)
def test_the_distances_of_a_run_are_those_of_the_library(model):
    """The study factors its covariances on a shorter way than the library does."""
    drawn, (kind, options) = study.draw(make(**SMALL)), LIBRARY[model]
    means, truth = drawn.means.double(), drawn.truth.double()
    expected = torch.cdist(truth, means)
    if kind is not None:
        library = ellipsoids.from_covariance(means, DrawnCovariances(12, 20), kind=kind, **options)
        expected = library.distances(truth)
    own, norm = drawn.metric(model)
    torch.testing.assert_close(
        own.distances(drawn.truth, norm=norm).double(), expected, rtol=1e-5, atol=0
    )
    assert torch.equal(drawn.means, draw_ellipsoids(12, 20).means)


def test_only_what_methods_need_is_computed():
    drawn = study.draw(make(**SMALL, methods=("spherical",)))
    assert not drawn.parts
    drawn = study.draw(make(**SMALL, methods=("pca-l1",)))
    assert drawn.parts.keys() == {"axes", "spreads"}
    assert drawn.parts["axes"].shape == (20, 5, 12)


def test_errors_by_rank_are_those_of_truncated_ellipsoids():
    errors = study.distance_errors(make(**SMALL))
    grid = errors["ranks/grid"].tolist()
    assert grid == [1, 2, 4, 5, 8, 12] == study.rank_grid(12, (2, 5))
    full = draw_ellipsoids(12, 20, dtype=torch.float64)
    points = draw_points(12, 256, 0, "ranks", torch.float64)
    exact = full.distances(points)
    for kind in ("truncated", "variance", "precision"):
        for place, rank in enumerate(grid):
            low = full.truncate(int(rank), remainder=None if kind == "truncated" else kind)
            off = (low.distances(points) / exact - 1).abs().flatten().numpy()
            wanted = np.quantile(off, (0.25, 0.5, 0.75))
            np.testing.assert_allclose(errors[f"ranks/{kind}"][:, place], wanted, 1e-6, 1e-9)


def test_the_numbers_of_a_trial_follow_from_its_points(finished):
    run, config = finished("ellipsoids"), config_of("ellipsoids")
    points, drawn = load_file(run.path / "weights" / "points.safetensors"), study.draw(config)
    assert torch.equal(points["truth"], drawn.truth)
    curves = run.csv("curves.csv")
    for model in ("elliptical", "pca-l1-2", "remainder-4"):
        x = load_file(run.path / "weights" / f"{model}.safetensors")["x"]
        own, norm = drawn.metric(model)
        gaps = own.distances(x, norm=norm) - own.distances(drawn.truth, norm=norm)
        for trial, row in enumerate(run.of(model)):
            error = float((x[trial] - drawn.truth[trial]).norm())
            assert float(row["final_error"]) == pytest.approx(error, rel=1e-5)
            misfit = float(gaps[trial].square().mean().sqrt())
            assert float(row["residual"]) == pytest.approx(misfit, rel=1e-2)
            assert (row["status"], float(row["steps"])) == ("done", 30)
            line = [r for r in curves if (r["model"], r["trial"]) == (model, str(trial))]
            assert [int(r["step"]) for r in line] == list(range(31))
            assert line[-1]["error"] == row["final_error"]
            assert model != "elliptical" or float(line[-1]["error"]) < float(line[0]["error"])


def test_newton_gives_the_points_back_and_noise_is_in_the_targets(tmp_path):
    newton = {**SMALL, "solver": "newton", "steps": None, "count": 40}
    for row in make_run("ellipsoids", tmp_path / "run", **newton).trials:
        if "l1" not in row["model"]:
            assert float(row["final_error"]) < 1e-3, row["model"]
            assert float(row["residual"]) < 1e-4
            assert row["status"] == "converged"
    loud = make_run("ellipsoids", tmp_path / "b", **newton, methods=("spherical",), noise=0.1)
    for row in loud.trials:
        assert 0.01 < float(row["residual"]) < 0.2
        assert 0.01 < float(row["final_error"]) < 1


# --- Classes of real data ---------------------------------------------------------------------

DIGITS = load_set("digits")


def options(**more):
    usual = {"ranks": (2, 8), "clusters": (2,), "train_size": 600}
    return make(data="digits", **{**usual, **more})


def blobs(gap=20.0, n=60, seed=0):
    """Return three classes of n samples, each a stretched Gaussian, ``gap`` apart."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, n, 6, generator=g) * (torch.rand(3, 6, generator=g) + 0.5)[:, None]
    x[..., 0] += gap * torch.arange(3)[:, None]
    y = torch.arange(3).repeat_interleave(n)
    return LabelledData("blobs", x[0].flatten(0, 1), y, x[1].flatten(0, 1), y, None, 1.0, "drawn")


def few(**more):
    return options(**{"ranks": (2,), "train_size": None, **more})


@pytest.fixture(scope="module")
def trial():
    return RealTrial(DIGITS, options(), 0)


def test_every_model_is_measured_and_no_warning_leaks(trial):
    names = model_names(trial.config, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = {model: trial.measure(model) for model in names}
    fixed = ["full", "diagonal", "spherical", "rank-2", "rank-8", "truncated-2", "truncated-8"]
    assert names == [*fixed, "shared-8", "clusters-2", "qda", "mixture-2"]
    for model, row in rows.items():
        rival, bare = model in ("qda", "mixture-2"), model.startswith("truncated")
        absent = {key for key, value in row.items() if math.isnan(value)}
        wanted = {"error_distance": rival, "error_density": bare}
        wanted["distance_error"] = rival or model == "clusters-2"
        assert set(row) == set(study.DATA_METRICS)
        assert absent == {key for key, missing in wanted.items() if missing}
        errors = [row[key] for key in ("error_distance", "error_density") if key not in absent]
        assert all(0 <= error <= 1 for error in errors)
        assert bare or min(errors) < 0.4  # chance is 0.9
    assert rows["full"]["distance_error"] == 0
    assert rows["truncated-8"]["fit_seconds"] == rows["rank-8"]["fit_seconds"]
    assert rows["truncated-8"]["distance_error"] > rows["rank-8"]["distance_error"]
    d, triangle = 64, 64 * 65 // 2
    assert {model: row["parameters"] for model, row in rows.items()} == {
        "full": 10 * (d + triangle),
        "diagonal": 10 * (d + d),
        "spherical": 10 * (d + 1),
        "rank-2": 10 * (d + 2 * (d + 1) + 1),
        "rank-8": 10 * (d + 8 * (d + 1) + 1),
        "truncated-2": 10 * (d + 2 * (d + 1)),
        "truncated-8": 10 * (d + 8 * (d + 1)),
        "shared-8": 8 * d + 10 * (d + 8 * 9 // 2 + 1),
        "clusters-2": rows["clusters-2"]["parameters"],
        "qda": rows["qda"]["parameters"],
        "mixture-2": 20 * (d + triangle),
    }
    assert not {"qda", "shared-8"} & set(model_names(trial.config, 1))


def test_padding_is_not_counted(trial):
    parts = [trial.fit(model).ellipsoids[0] for model in ("rank-2", "rank-8")]
    both = Fitted(ellipsoids.concatenate(parts), trial.classes[:2], torch.ones(2), 0.0)
    assert both.parameters == 2 * (64 + 1) + (2 + 8) * (64 + 1)


def test_classes_by_density_are_those_of_qda_for_the_same_covariances():
    """Exactly: no sample of digits changes its class."""
    trial = RealTrial(DIGITS, options(train_size=1400), 0)
    # Unequal shares, which both must take into account.
    kept = (trial.y != 3) | (torch.arange(len(trial.y)) % 4 > 0)
    qda = QuadraticDiscriminantAnalysis(reg_param=0.01, tol=0.0)
    qda.fit(trial.x[kept].numpy(), trial.y[kept].numpy())
    axes = zip(qda.rotations_, qda.scalings_, strict=True)
    covariances = np.stack([rotation * scaling @ rotation.T for rotation, scaling in axes])
    same = ellipsoids.from_covariance(torch.from_numpy(qda.means_), torch.from_numpy(covariances))
    fitted = Fitted(same, trial.classes, torch.from_numpy(qda.priors_), 0.0)
    for points in (trial.test_x, 0.5 * trial.test_x + 0.5 * trial.test_x.flip(0)):
        chosen = fitted.by_density(same.distances(points, squared=True))
        assert chosen.tolist() == qda.predict(points.numpy()).tolist()
    assert len(set(chosen.tolist())) == 10


def test_rivals_shrink_alike_whatever_the_unit():
    trial = RealTrial(DIGITS, options(train_size=1300), 0)  # more than 64 a class
    full, qda = (trial.measure(model)["error_density"] for model in ("full", "qda"))
    assert abs(full - qda) < 0.012  # 4 of 360
    pairs = ((trial.x, trial.y), (trial.test_x, trial.test_y))
    for model in ("qda", "mixture-2"):
        plain, scaled = (
            measure_rival(
                model, *((f * x.numpy(), y.numpy()) for x, y in pairs), shrinkage=0.1, seed=0
            )["error_density"]
            for f in (1, 1000)
        )
        assert scaled == pytest.approx(plain, abs=0.003)
    x = np.array([[0.0, 0.0], [2.0, 0.0], [100.0, 0.0], [100.0, 4.0]])
    assert mean_variance(x, np.array([0, 0, 1, 1])) == pytest.approx((1 + 4) / 2)


def test_a_rare_class_is_chosen_rarely():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(440, 1)), np.repeat([0, 1], [400, 40])
    test = rng.normal(size=(1000, 1)), np.zeros(1000, dtype=np.int64)
    for model in ("qda", "mixture-1"):
        numbers = measure_rival(model, train, test, shrinkage=0.1, seed=0)
        assert numbers["error_density"] < 0.05  # equal shares: about one half


def test_density_decisions_are_those_of_log_density_and_shares(trial):
    fitted = trial.fit("clusters-2")
    weighted = fitted.ellipsoids.log_density(trial.test_x) + fitted.shares.log()
    best = torch.stack([weighted[:, 2 * c : 2 * c + 2].logsumexp(1) for c in range(10)], 1)
    squared = fitted.ellipsoids.distances(trial.test_x, squared=True)
    assert torch.equal(fitted.by_density(squared), best.argmax(1))
    error = float((best.argmax(1) != trial.test_y).double().mean())
    assert trial.measure("clusters-2")["error_density"] == pytest.approx(error, abs=1e-12)
    assert float(fitted.shares.sum()) == pytest.approx(1)
    nearest = fitted.ellipsoids.nearest(trial.test_x).indices[:, 0] // 2
    assert torch.equal(fitted.by_distance(squared), nearest)


def test_shares_decide_where_densities_are_equal_and_clusters_add_up():
    same = ellipsoids.SphericalEllipsoids(torch.zeros(2, 1), torch.ones(2))
    squared = same.distances(torch.zeros(1, 1), squared=True)
    for shares, wanted in (((0.9, 0.1), 4), ((0.1, 0.9), 7)):
        fitted = Fitted(same, torch.tensor([4, 7]), torch.tensor(shares), 0.0)
        assert fitted.by_density(squared) == wanted
    # Two ellipsoids of class 0 that are each second best are together the likeliest.
    means = torch.tensor([[-1.0], [1.0], [0.0], [50.0]])
    each = ellipsoids.SphericalEllipsoids(means, torch.ones(4))
    fitted = Fitted(each, torch.tensor([0, 1]), torch.full((4,), 0.25), 0.0)
    squared = each.distances(torch.zeros(1, 1), squared=True)
    assert fitted.by_distance(squared).tolist() == [1]
    assert fitted.by_density(squared).tolist() == [0]


@pytest.mark.parametrize("labels", ["plain", "with gaps"])
def test_blobs_far_apart_are_told_apart(labels):
    data, config = blobs(), few(ranks=(2, 4))
    if labels == "with gaps":
        data = replace(data, y=data.y * 3 + 1, test_y=data.test_y * 3 + 1)
    trial = RealTrial(data, config, 0)
    for model in model_names(config, 3):
        assert model.startswith("truncated") or trial.measure(model)["error_density"] == 0
    near = RealTrial(blobs(gap=0.0), few(clusters=()), 0)
    assert near.measure("full")["error_density"] > 0.2


def test_all_axes_are_the_full_ellipsoid():
    trial = RealTrial(DIGITS, options(ranks=(64,), clusters=(), train_size=900), 0)
    full = trial.measure("full")
    for model in ("rank-64", "truncated-64", "shared-64"):
        row = trial.measure(model)
        assert row["error_distance"] == full["error_distance"]
        assert row["distance_error"] < 1e-9
        assert model == "truncated-64" or row["error_density"] == full["error_density"]
    # The last direction is its own remainder.
    trial = RealTrial(blobs(gap=1.0), few(ranks=(4, 5), clusters=()), 0)
    error = {m: trial.measure(m)["distance_error"] for m in ("rank-4", "rank-5", "truncated-5")}
    assert error["rank-5"] < 1e-9 < error["rank-4"]
    assert error["truncated-5"] > 0.01


def test_distance_errors_are_medians_over_samples_and_classes(trial):
    exact = trial.fit("full").ellipsoids.distances(trial.test_x)
    for model in ("rank-8", "truncated-8", "diagonal", "shared-8"):
        own = trial.fit(model).ellipsoids.distances(trial.test_x)
        wanted = np.sort(((own - exact).abs() / exact).flatten().numpy())
        assert trial.measure(model)["distance_error"] == wanted[(len(wanted) - 1) // 2]
    bare = trial.fit("truncated-8").ellipsoids
    alone = ellipsoids.from_data(trial.x, trial.y, kind="low-rank", rank=8, shrinkage=0.1)
    torch.testing.assert_close(bare.distances(trial.test_x), alone.distances(trial.test_x))


def test_a_sample_at_a_mean_has_no_error():
    """0 of 0 is no NaN, which would be the median of all."""
    half = torch.randint(-9, 9, (20, 4), generator=torch.Generator().manual_seed(0)).float()
    x, y = torch.cat([half, -half]), torch.zeros(40, dtype=torch.int64)
    data = LabelledData("mirrored", x, y, torch.zeros(1, 4), y[:1], None, 1.0, "drawn")
    trial = RealTrial(data, few(clusters=(), train_size=40), 0)
    assert float(trial.fit("full").ellipsoids.distances(trial.test_x)) == 0
    assert trial.measure("rank-2")["distance_error"] == 0


@pytest.mark.parametrize("model", ["full", "truncated-8", "clusters-2", "qda", "mixture-2"])
def test_the_same_seed_gives_the_same_figures(trial, model):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - which scikit-learn would use without a seed
    again = RealTrial(DIGITS, options(), 0)
    for name, value in again.measure(model).items():
        if "seconds" not in name:
            np.testing.assert_equal(value, trial.measure(model)[name])


def test_trials_are_drawn_as_documented(trial):
    other = RealTrial(DIGITS, options(), 1)
    for number, one in enumerate((trial, other)):
        drawn = DIGITS.subset(600, stream(0, "real", number)).scaled()
        assert torch.equal(one.x, drawn.x.double())
        assert torch.equal(one.y, drawn.y)
        assert float(one.x.max()) == 1
    assert not torch.equal(trial.x, other.x)
    assert len(RealTrial(DIGITS, options(train_size=None), 0).y) == round(0.8 * len(DIGITS.y))


def test_clusters_keep_as_many_axes_as_their_samples_allow():
    trial = RealTrial(DIGITS, options(ranks=(2, 4, 16), clusters=(1, 2)), 0)
    assert [trial.cluster_rank(n) for n in (2, 15, 16, 63, 64, 1000)] == [2, 2, 4, 4, 16, 16]
    fitted = trial.fit("clusters-2")
    sizes = (fitted.shares * len(trial.y)).round().long()
    assert fitted.ellipsoids.ranks.tolist() == [trial.cluster_rank(n) for n in sizes.tolist()]
    one, whole = (trial.fit(m).ellipsoids.distances(trial.test_x) for m in ("clusters-1", "rank-4"))
    assert one.shape == whole.shape  # one cluster is the class


@pytest.mark.parametrize(
    ("count", "place"), [(2, 1e6), (4, 1.0)], ids=["a lone sample", "empty clusters"]
)
def test_a_class_that_does_not_split_is_named(count, place):
    data = blobs(n=20)
    x = data.x.clone()
    x[:20] = 0.0
    x[0] = place
    config = few(clusters=(count,), train_size=60)
    with pytest.raises(InputError, match=rf"^class 0: {count} clusters in 20 samples"):
        RealTrial(replace(data, x=x), config, 0).measure(f"clusters-{count}")


def test_classes_without_spread_need_shrinkage():
    trial = RealTrial(DIGITS, options(shrinkage=0.0), 0)  # some pixels are always 0
    for model in ("full", "qda"):
        with pytest.raises(InputError, match=r"ellipsoid 0|more shrinkage"):
            trial.measure(model)


def test_a_run_on_digits(tmp_path):
    small = {"ranks": (2, 8), "clusters": (2,), "train_size": 400, "trials": 2, "dim": None}
    run = make_run("ellipsoids", tmp_path / "run", data="digits", **small)
    assert {row["metric"] for row in run.summary["rows"]} == set(study.DATA_METRICS)
    assert {row["group"]["data"] for row in run.summary["rows"]} == {"digits"}
    assert run.row("full", "error_density")["mean"] < 0.2
    assert run.row("truncated-2", "error_density")["mean"] is None
    assert all(claim["id"].startswith("ellipsoids/data/") for claim in run.summary["claims"])
    assert run.summary["facts"]["training_samples"] == 400
    assert len(run.trials) == 2 * 11
