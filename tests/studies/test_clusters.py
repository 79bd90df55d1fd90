"""The cluster study: numbers of networks that are set by hand, and chance levels."""

from __future__ import annotations

import math

import pytest
import torch
from small_runs import config_of

from mahalens.data import stream
from mahalens.studies import clusters as study

STRETCHED = "10d-apart-stretched"


def mixture_of(name, clusters=4, seed=0):
    return study.draw_mixture(name, clusters, stream(seed, "mixture"))


def samples_of(mixture, count=500):
    return study.draw_samples(mixture, count, stream(1, "samples"))


def true_layer(mixture):
    """Return the layer of the theory: a unit for every axis of every cluster, in spreads."""
    rows = (mixture.eigenvectors / mixture.eigenvalues.sqrt().unsqueeze(1)).mT  # [K, D, D]
    bias = -(rows @ mixture.mean.unsqueeze(2)).squeeze(2)
    return rows.flatten(0, 1), bias.flatten()


def random_layer(mixture, units, seed=0):
    """Return hyperplanes of random directions, each through a random sample."""
    generator = stream(seed, "layer")
    weight = torch.randn(units, mixture.dim, generator=generator, dtype=torch.float64)
    x, _ = samples_of(mixture)
    points = x[torch.randint(len(x), (units,), generator=generator)]
    return weight, -(weight * points).sum(1)


# --- Mixtures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study.MIXTURES)
def test_a_mixture_is_what_its_name_says(name):
    dim, apart, shape = study.MIXTURES[name]
    mixture = mixture_of(name)
    assert mixture.mean.shape == (4, dim)
    spread = mixture.covariance.diagonal(dim1=1, dim2=2).mean().sqrt()
    nearest = torch.pdist(mixture.mean).min()
    assert float(nearest / spread) == pytest.approx(study.APART[apart])
    assert mixture.condition_number.tolist() == pytest.approx([study.STRETCH[shape]] * 4)
    total = mixture.covariance.mean(0) + mixture.mean.T @ mixture.mean / 4
    assert float(total.trace()) == pytest.approx(dim)
    assert mixture.mean.sum(0).abs().max() < 1e-12


def test_separated_clusters_can_be_told_apart_and_overlapping_ones_cannot():
    shares = {}
    for name in ("2d-apart-round", "2d-overlap-round"):
        mixture = mixture_of(name)
        x, y = samples_of(mixture)
        shares[name] = float((mixture.log_density(x).argmax(0) == y).double().mean())
    assert shares["2d-apart-round"] > 0.99
    assert 0.5 < shares["2d-overlap-round"] < 0.9


# --- Readings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2d-apart-stretched", STRETCHED])
def test_the_true_network_scores_perfectly(name):
    mixture = mixture_of(name)
    x, _ = samples_of(mixture)
    weight, bias = true_layer(mixture)
    planes = study.read_planes(weight, bias, mixture, x)
    clusters = torch.arange(4).repeat_interleave(mixture.dim)
    assert torch.equal(planes.nearest, clusters)
    reading = study.through(planes)
    assert reading["through"] == 100
    assert 20 < reading["through_gain"] < 100
    assert reading["between"] == 0
    axes = study.axes_along(weight, planes.nearest, mixture)
    assert axes["axes"] == pytest.approx(1)
    assert axes["axes_gain"] > axes["axes_over_whitening"] > 0
    white = study.whitened(weight, planes.nearest, mixture, stream(0, "turns"))
    assert white["whitened"] == pytest.approx(100)
    assert white["whitened_gain"] > 20
    hidden = (x @ weight.T + bias).abs()
    reads = torch.nn.functional.one_hot(clusters, 4).T.double()  # output c sums its own units
    own = study.gathered(reads, hidden, planes.nearest, 4, stream(0, "deals"))
    assert own["gathers"] == pytest.approx(100)
    assert own["gathers_gain"] > 10


def test_a_rotated_whitening_whitens_but_does_not_follow_the_axes():
    from mahalens.auditing.gaussian import random_rotation

    mixture = mixture_of(STRETCHED)
    weight, _ = true_layer(mixture)
    turns = torch.stack([random_rotation(10, stream(0, "turn", k)) for k in range(4)])
    rotated = (turns @ weight.view(4, 10, 10)).flatten(0, 1)
    nearest = torch.arange(4).repeat_interleave(10)
    white = study.whitened(rotated, nearest, mixture, stream(0, "turns"))
    assert white["whitened"] == pytest.approx(100)
    axes = study.axes_along(rotated, nearest, mixture)
    assert abs(axes["axes_over_whitening"]) < 0.05


@pytest.mark.parametrize("name", ["2d-apart-stretched", STRETCHED, "50d-overlap-stretched"])
def test_random_hyperplanes_are_at_chance(name):
    mixture = mixture_of(name)
    x, _ = samples_of(mixture)
    weight, bias = random_layer(mixture, 3_000)
    planes = study.read_planes(weight, bias, mixture, x)
    assert abs(study.through(planes)["through_gain"]) < 4
    axes = study.axes_along(weight, planes.nearest, mixture)
    assert abs(axes["axes_gain"]) < 0.01


def test_shuffled_weights_are_at_chance():
    mixture = mixture_of(STRETCHED)
    x, _ = samples_of(mixture)
    weight, bias = true_layer(mixture)
    nearest = study.read_planes(weight, bias, mixture, x).nearest
    hidden = (x @ weight.T + bias).abs()
    reads = torch.nn.functional.one_hot(nearest, 4).T.double()
    gathers, whitens = [], []
    for seed in range(12):
        order = torch.randperm(len(weight), generator=stream(seed, "shuffle"))
        own = study.gathered(reads[:, order], hidden, nearest, 4, stream(seed, "deals"))
        gathers.append(own["gathers_gain"])
        entries = torch.randperm(weight.numel(), generator=stream(seed, "entries"))
        shuffled = weight.flatten()[entries].view_as(weight)
        whitens.append(
            study.whitened(shuffled, nearest, mixture, stream(seed, "turns"))["whitened_gain"]
        )
    assert abs(sum(gathers)) / 12 < 3
    assert abs(sum(whitens)) / 12 < 3


def test_the_chance_of_an_axis_is_known_in_the_plane():
    uniform, rotated = study.axes_chance((1.0, 1.0))
    assert uniform == pytest.approx(2 * math.sqrt(2) / math.pi, abs=0.003)  # mean of max(cos, sin)
    assert rotated == uniform
    assert study.axes_chance((1.0, 0.04))[1] > uniform


def test_round_clusters_have_no_axes():
    mixture = mixture_of("2d-apart-round")
    weight, bias = true_layer(mixture)
    planes = study.read_planes(weight, bias, mixture, samples_of(mixture)[0])
    axes = study.axes_along(weight, planes.nearest, mixture)
    assert all(map(math.isnan, axes.values()))


def test_prototypes_on_the_means_are_closer_than_all_samples_and_random_ones_than_half():
    mixture = mixture_of("2d-apart-round")
    x, y = samples_of(mixture)
    distances = mixture.mahalanobis(x).T
    nearest = distances.argmin(0)
    assert study.closer_share(nearest[:, None], torch.arange(4), distances, y) == 0
    own = torch.stack([(y == k).nonzero()[:, 0] for k in range(4)])
    assert study.closer_share(own, torch.arange(4), distances, y) == pytest.approx(50, abs=0.2)
    none = torch.full((4, 1), -1)
    assert math.isnan(study.closer_share(none, torch.arange(4), distances, y))


def test_a_cluster_start_begins_at_the_means_on_the_axes():
    config = config_of("clusters", samples=400)
    trial = study.Trial.draw(config, "2d-apart-stretched", 0)
    for model in ("abs-classes-clusters", "relu-classes-clusters"):
        start = study._start(config, study.NETWORKS[model], [0], [trial])
        weight, bias = (start.tensors()[f"0.{name}"][0].double() for name in ("weight", "bias"))
        planes = study.read_planes(weight, bias, trial.mixture, trial.x)
        assert study.through(planes)["through"] == 100
        assert study.axes_along(weight, planes.nearest, trial.mixture)["axes"] > 0.99


# --- Runs -------------------------------------------------------------------------------------


def test_networks_of_one_shape_start_alike_and_trials_do_not(finished):
    curves = finished("clusters").csv("curves.csv")
    starts = {
        (row["model"], row["data"], row["trial"]): row["through_gain"]
        for row in curves
        if row["epoch"] == "0"
    }
    for data in ("2d-apart-stretched", "10d-overlap-round"):
        first = starts["abs-classes", data, "0"]
        assert first == starts["relu-distances", data, "0"]
        assert first != starts["abs-classes", data, "1"]


def test_the_plane_shows_networks_before_and_after_training(finished):
    from safetensors.numpy import load_file

    arrays = load_file(finished("clusters").path / "plots.safetensors")
    shown = {name.split("/")[1] for name in arrays if name.endswith("/weight")}
    assert shown == {"abs-classes", "relu-distances", study.BEFORE, study.CLUSTERS}
    assert arrays["plane/mean"].shape == (4, 2)
