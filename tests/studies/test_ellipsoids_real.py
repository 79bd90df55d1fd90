"""Classes of labelled data as ellipsoids: what a trial measures is what the words say."""

import builtins
import math
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from mahalens.data import LabelledData, load_set, stream
from mahalens.errors import InputError
from mahalens.geometry import ellipsoids
from mahalens.studies.ellipsoids import rivals
from mahalens.studies.ellipsoids.real import (
    METRICS,
    Fitted,
    RealOptions,
    RealTrial,
    model_names,
)
from mahalens.studies.ellipsoids.rivals import mean_variance, measure_rival

DIGITS = load_set("digits")
SMALL = RealOptions(ranks=(2, 8), clusters=(2,), train_size=600)
UNTIMED = ("error_distance", "error_density", "distance_error", "parameters")


def blobs(gap=20.0, n=60, dim=6, classes=3, seed=0):
    """Classes of n samples, each a stretched Gaussian, ``gap`` apart."""
    g = torch.Generator().manual_seed(seed)
    spreads = torch.rand(classes, dim, generator=g) + 0.5
    x = torch.randn(2, classes, n, dim, generator=g) * spreads[:, None]
    x[..., 0] += gap * torch.arange(classes)[:, None]
    y = torch.arange(classes).repeat_interleave(n)
    return LabelledData("blobs", x[0].flatten(0, 1), y, x[1].flatten(0, 1), y, None, 1.0, "drawn")


def figures(trial, model):
    found = trial.measure(model)
    return {key: found[key] for key in UNTIMED}


def test_every_model_is_measured_and_no_warning_leaks():
    trial = RealTrial(DIGITS, SMALL, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {model: trial.measure(model) for model in model_names(SMALL, 10)}
    assert list(found) == [
        *("full", "diagonal", "spherical", "rank-2", "rank-8", "truncated-2", "truncated-8"),
        *("shared-8", "clusters-2", "qda", "mixture-2"),
    ]
    for model, row in found.items():
        rival = model in ("qda", "mixture-2")
        assert tuple(row) == METRICS
        absent = {key for key, value in row.items() if math.isnan(value)}
        expected = {"error_distance"} if rival else set()
        if model.startswith("truncated"):
            expected |= {"error_density"}
        if rival or model == "clusters-2":
            expected |= {"distance_error"}
        assert absent == expected
        assert row["fit_seconds"] > 0
        assert row["score_seconds"] > 0
        errors = [row[key] for key in ("error_distance", "error_density") if key not in absent]
        assert all(0 <= error <= 1 for error in errors)
        if not model.startswith("truncated"):
            assert min(errors) < 0.4  # chance is 0.9
    assert found["full"]["distance_error"] == 0
    assert found["truncated-8"]["fit_seconds"] == found["rank-8"]["fit_seconds"]


def test_numbers_are_counted():
    trial = RealTrial(DIGITS, SMALL, 0)
    count = {model: trial.measure(model)["parameters"] for model in model_names(SMALL, 10)}
    d = 64
    triangle = d * (d + 1) // 2
    assert count["full"] == 10 * (d + triangle)
    assert count["diagonal"] == 10 * (d + d)
    assert count["spherical"] == 10 * (d + 1)
    assert count["rank-8"] == 10 * (d + 8 * (d + 1) + 1)
    assert count["truncated-8"] == count["rank-8"] - 10
    assert count["shared-8"] == 8 * d + 10 * (d + 8 * 9 // 2 + 1)
    assert count["qda"] == 10 * (d + d * d + d)
    assert count["mixture-2"] == 20 * (d + triangle)


def test_padding_is_not_counted():
    trial = RealTrial(DIGITS, SMALL, 0)
    parts = [trial.fit(model).ellipsoids[0] for model in ("rank-2", "rank-8")]
    both = Fitted(ellipsoids.concatenate(parts), trial.classes[:2], torch.ones(2), 0.0)
    assert both.parameters == 2 * (64 + 1) + (2 + 8) * (64 + 1)


def test_classes_by_density_are_those_of_qda_for_the_same_covariances():
    """Exactly: no sample of digits changes its class."""
    trial = RealTrial(DIGITS, replace(SMALL, train_size=1400), 0)
    # Unequal shares, which both must take into account.
    kept = (trial.y != 3) | (torch.arange(len(trial.y)) % 4 > 0)
    qda = QuadraticDiscriminantAnalysis(reg_param=0.01, tol=0.0)
    qda.fit(trial.x[kept].numpy(), trial.y[kept].numpy())
    axes = zip(qda.rotations_, qda.scalings_, strict=True)
    same = ellipsoids.from_covariance(
        torch.from_numpy(qda.means_),
        torch.from_numpy(np.stack([rotation * scaling @ rotation.T for rotation, scaling in axes])),
    )
    fitted = Fitted(same, trial.classes, torch.from_numpy(qda.priors_), 0.0)
    for points in (trial.test_x, 0.5 * trial.test_x + 0.5 * trial.test_x.flip(0)):
        found = fitted.by_density(same.distances(points, squared=True))
        assert found.tolist() == qda.predict(points.numpy()).tolist()
    assert len(set(found.tolist())) == 10


def test_qda_makes_the_errors_of_full_ellipsoids():
    """The same shrinkage means the same, whatever the unit of the data."""
    many = replace(SMALL, train_size=1300)  # more than 64 a class, for QDA's usual solver
    for seed in range(3):
        trial = RealTrial(DIGITS, replace(many, seed=seed), 0)
        full, qda = (trial.measure(model)["error_density"] for model in ("full", "qda"))
        assert abs(full - qda) < 0.012  # 4 of 360
    train, test = (
        (x.numpy(), y.numpy()) for x, y in ((trial.x, trial.y), (trial.test_x, trial.test_y))
    )
    for model in ("qda", "mixture-2"):
        plain = measure_rival(model, train, test, shrinkage=0.1, seed=0)
        larger = [(1000 * x, y) for x, y in (train, test)]
        scaled = measure_rival(model, *larger, shrinkage=0.1, seed=0)
        assert scaled["error_density"] == pytest.approx(plain["error_density"], abs=0.003)


def test_a_rare_class_is_chosen_rarely():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(440, 1)), np.repeat([0, 1], [400, 40])
    test = rng.normal(size=(1000, 1)), np.zeros(1000, dtype=np.int64)
    for model in ("qda", "mixture-1"):
        found = measure_rival(model, train, test, shrinkage=0.1, seed=0)
        assert found["error_density"] < 0.05  # equal shares: about one half


def test_a_mixture_that_has_not_converged_is_taken_without_a_word(monkeypatch):
    monkeypatch.setattr(rivals, "MIXTURE_ROUNDS", 1)
    trial = RealTrial(blobs(gap=1.0), RealOptions(ranks=(2,), clusters=(3,)), 0)
    assert 0 < trial.measure("mixture-3")["error_density"] < 0.6


def test_mean_variance_is_that_within_classes():
    x = np.array([[0.0, 0.0], [2.0, 0.0], [100.0, 0.0], [100.0, 4.0]])
    assert mean_variance(x, np.array([0, 0, 1, 1])) == pytest.approx((1 + 4) / 2)


def test_qda_of_few_samples_takes_the_solver_that_can():
    trial = RealTrial(DIGITS, replace(SMALL, train_size=300), 0)  # about 30 a class, in 64-D
    full, qda = (trial.measure(model)["error_density"] for model in ("full", "qda"))
    if not math.isnan(qda):  # older releases of scikit-learn have none
        assert abs(full - qda) < 0.012


def test_density_decisions_are_those_of_log_density_and_shares():
    trial = RealTrial(DIGITS, SMALL, 0)
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


def test_shares_decide_where_densities_are_equal():
    means, spreads = torch.zeros(2, 1), torch.ones(2)
    same = ellipsoids.SphericalEllipsoids(means, spreads)
    classes = torch.tensor([4, 7])
    squared = same.distances(torch.zeros(1, 1), squared=True)
    for shares, expected in (((0.9, 0.1), 4), ((0.1, 0.9), 7)):
        assert Fitted(same, classes, torch.tensor(shares), 0.0).by_density(squared) == expected


def test_clusters_of_a_class_add_up():
    """Two ellipsoids of class 0 that are each second best are together the likeliest."""
    means = torch.tensor([[-1.0], [1.0], [0.0], [50.0]])
    each = ellipsoids.SphericalEllipsoids(means, torch.ones(4))
    fitted = Fitted(each, torch.tensor([0, 1]), torch.tensor([0.25, 0.25, 0.25, 0.25]), 0.0)
    squared = each.distances(torch.zeros(1, 1), squared=True)
    assert fitted.by_distance(squared).tolist() == [1]
    assert fitted.by_density(squared).tolist() == [0]


@pytest.mark.parametrize("seed", range(3))
def test_blobs_far_apart_are_told_apart(seed):
    options = RealOptions(ranks=(2, 4), clusters=(2,), seed=seed)
    trial = RealTrial(blobs(seed=seed), options, 0)
    for model in model_names(options, 3):
        if not model.startswith("truncated"):
            assert trial.measure(model)["error_density"] == 0


def test_blobs_in_one_place_are_not():
    trial = RealTrial(blobs(gap=0.0), RealOptions(ranks=(2,), clusters=(), rivals=False), 0)
    assert trial.measure("full")["error_density"] > 0.2


def test_all_axes_are_the_full_ellipsoid():
    options = RealOptions(ranks=(64,), clusters=(), train_size=900, rivals=False)
    trial = RealTrial(DIGITS, options, 0)
    full = figures(trial, "full")
    for model in ("rank-64", "truncated-64", "shared-64"):
        row = figures(trial, model)
        assert row["error_distance"] == full["error_distance"]
        assert row["distance_error"] < 1e-9
        if model != "truncated-64":
            assert row["error_density"] == full["error_density"]


def test_the_last_direction_is_its_own_remainder():
    trial = RealTrial(blobs(gap=1.0), RealOptions(ranks=(4, 5), clusters=(), rivals=False), 0)
    error = {m: trial.measure(m)["distance_error"] for m in model_names(trial.options, 3)}
    assert error["rank-5"] < 1e-9 < error["rank-4"]
    assert error["truncated-5"] > 0.01


def test_distance_errors_are_medians_over_samples_and_classes():
    trial = RealTrial(DIGITS, SMALL, 0)
    exact = trial.fit("full").ellipsoids.distances(trial.test_x)
    for model in ("rank-8", "truncated-8", "diagonal", "shared-8"):
        given = trial.fit(model).ellipsoids.distances(trial.test_x)
        expected = np.sort(((given - exact).abs() / exact).flatten().numpy())
        assert trial.measure(model)["distance_error"] == expected[(len(expected) - 1) // 2]


def test_truncated_is_rank_without_what_is_across():
    trial = RealTrial(DIGITS, SMALL, 0)
    whole, bare = trial.fit("rank-8").ellipsoids, trial.fit("truncated-8").ellipsoids
    alone = ellipsoids.from_data(
        trial.x, trial.y, kind="low-rank", rank=8, shrinkage=SMALL.shrinkage
    )
    assert (whole.kind, bare.kind) == ("low-rank+remainder", "low-rank")
    torch.testing.assert_close(bare.distances(trial.test_x), alone.distances(trial.test_x))
    assert bool((bare.distances(trial.test_x) < whole.distances(trial.test_x)).all())
    row, short = trial.measure("rank-8"), trial.measure("truncated-8")
    assert short["distance_error"] > row["distance_error"]


@pytest.mark.parametrize("model", ["full", "truncated-8", "clusters-2", "qda", "mixture-2"])
def test_the_same_seed_gives_the_same_figures(model):
    first, again = (RealTrial(DIGITS, SMALL, 1) for _ in range(2))
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - which scikit-learn would use without a seed
    a = figures(first, model)
    for other in ("full", "rank-8", "clusters-2"):  # nor does it matter what came before
        again.measure(other)
    np.testing.assert_equal(a, figures(again, model))


def test_trials_differ_and_are_drawn_as_documented():
    options = replace(SMALL, clusters=())
    trials = [RealTrial(DIGITS, options, t) for t in range(2)]
    for t, trial in enumerate(trials):
        drawn = DIGITS.subset(600, stream(0, "real", t)).scaled()
        assert torch.equal(trial.x, drawn.x.double())
        assert torch.equal(trial.y, drawn.y)
        assert float(trial.x.max()) == 1
        assert torch.equal(trial.test_y, DIGITS.test_y)
    assert not torch.equal(trials[0].x, trials[1].x)
    assert figures(trials[0], "rank-8") != figures(trials[1], "rank-8")
    other = RealTrial(DIGITS, replace(options, seed=1), 0)
    assert not torch.equal(other.x, trials[0].x)


def test_without_a_size_four_fifths_are_drawn():
    options = RealOptions(clusters=())
    assert len(RealTrial(DIGITS, options, 0).y) == round(0.8 * len(DIGITS.y))
    everything = RealTrial(DIGITS, replace(options, train_size=len(DIGITS.y)), 0)
    assert torch.equal(everything.y, DIGITS.y)


def test_labels_may_have_gaps():
    data = blobs()
    data = replace(data, y=data.y * 3 + 1, test_y=data.test_y * 3 + 1)
    options = RealOptions(ranks=(4,), clusters=(2,))
    trial = RealTrial(data, options, 0)
    for model in model_names(options, 3):
        assert model == "truncated-4" or trial.measure(model)["error_density"] == 0


def test_a_sample_at_a_mean_has_no_error():
    """0 of 0 is no NaN, which would be the median of all."""
    half = torch.randint(-9, 9, (20, 4), generator=torch.Generator().manual_seed(0)).float()
    x, y = torch.cat([half, -half]), torch.zeros(40, dtype=torch.int64)
    test = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)
    data = LabelledData("mirrored", x, y, *test, None, 1.0, "drawn")
    options = RealOptions(ranks=(2,), clusters=(), train_size=40, rivals=False)
    trial = RealTrial(data, options, 0)
    assert float(trial.fit("full").ellipsoids.distances(trial.test_x)) == 0
    assert trial.measure("rank-2")["distance_error"] == 0


def test_clusters_keep_as_many_axes_as_their_samples_allow():
    trial = RealTrial(DIGITS, replace(SMALL, ranks=(2, 4, 16)), 0)
    assert [trial.cluster_rank(n) for n in (2, 15, 16, 63, 64, 1000)] == [2, 2, 4, 4, 16, 16]
    fitted = trial.fit("clusters-2")
    sizes = (fitted.shares * len(trial.y)).round().long()
    assert fitted.ellipsoids.ranks.tolist() == [trial.cluster_rank(n) for n in sizes.tolist()]


def test_one_cluster_is_the_class():
    trial = RealTrial(DIGITS, replace(SMALL, clusters=(1,)), 0)
    cluster, whole = figures(trial, "clusters-1"), figures(trial, "rank-8")
    assert math.isnan(cluster.pop("distance_error"))
    assert cluster.items() <= whole.items()
    found, expected = (
        trial.fit(model).ellipsoids.distances(trial.test_x) for model in ("clusters-1", "rank-8")
    )
    torch.testing.assert_close(found, expected)


def test_k_means_starts_anew_when_a_cluster_is_left_with_one_sample(monkeypatch):
    seeds = []
    given = ellipsoids.from_clusters

    def fails_twice(x, count, *, seed, **options):
        seeds.append(seed)
        if len(seeds) <= 2:
            raise InputError("leave a cluster with 1")
        return given(x, count, seed=seed, **options)

    trial = RealTrial(blobs(), RealOptions(ranks=(2,), clusters=(2,)), 0)
    monkeypatch.setattr(ellipsoids, "from_clusters", fails_twice)
    assert trial.measure("clusters-2")["error_density"] == 0
    assert len(set(seeds)) == 2 + 3


@pytest.mark.parametrize(
    ("count", "place"), [(2, 1e6), (4, 1.0)], ids=["a lone sample", "empty clusters"]
)
def test_a_class_that_does_not_split_is_named(count, place):
    data = blobs(n=20)
    x = data.x.clone()
    x[:20] = 0.0
    x[0] = place
    options = RealOptions(ranks=(2,), clusters=(count,), train_size=60, rivals=False)
    with pytest.raises(InputError, match=rf"^class 0: {count} clusters in 20 samples"):
        RealTrial(replace(data, x=x), options, 0).measure(f"clusters-{count}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_size": 1438}, r"train_size is 1438 and digits has 1437 training samples"),
        ({"ranks": (8, 65)}, r"ranks go up to 65 and digits has 64 inputs"),
        ({"clusters": (4, 40)}, r"class \d of digits has \d+ of the 600 .* 2 for each of 40 clus"),
        ({"train_size": 10, "clusters": ()}, r"class 0 of digits has 1 of the 10 .* at least 2"),
        ({"train_size": 5}, r"n is 5, wanted at least 10"),
    ],
)
def test_what_the_data_cannot_give_is_refused(options, message):
    with pytest.raises(InputError, match=message) as caught:
        RealTrial(DIGITS, replace(SMALL, **options), 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        *({"ranks": ()}, {"ranks": (0,)}, {"ranks": (2, 2)}, {"clusters": (0,)}),
        *({"clusters": (2, 2)}, {"train_size": 0}, {"shrinkage": 1.0}, {"shrinkage": -0.1}),
        *({"shrinkage": math.nan}, {"seed": -1}),
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(InputError, match=f"^{next(iter(options))}"):
        RealOptions(**options)


def test_unknown_models_are_refused():
    trial = RealTrial(DIGITS, replace(SMALL, rivals=False), 0)
    for model in ("rank-3", "qda", "nonsense"):
        with pytest.raises(InputError, match=f"model is '{model}', wanted one of full, diagonal"):
            trial.measure(model)


def test_classes_without_spread_need_shrinkage():
    trial = RealTrial(DIGITS, replace(SMALL, shrinkage=0.0), 0)  # some pixels are always 0
    for model in ("full", "qda"):
        with pytest.raises(InputError, match=r"ellipsoid 0|more shrinkage"):
            trial.measure(model)


def test_one_class_needs_no_rival_that_compares():
    assert "qda" in model_names(SMALL, 2)
    assert not {"qda", "shared-8"} & set(model_names(SMALL, 1))


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    given = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "sklearn":
            raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
        return given(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        RealTrial(blobs(), RealOptions(ranks=(2,), clusters=()), 0)
    trial = RealTrial(blobs(), RealOptions(ranks=(2,), clusters=(2,), rivals=False), 0)
    assert trial.measure("clusters-2")["error_density"] == 0


def test_options_and_names_need_no_torch():
    code = (
        "import sys, mahalens.studies.ellipsoids.real_options; "
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
