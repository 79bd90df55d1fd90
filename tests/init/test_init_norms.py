"""Batch norms before training: starts and checks see what training will see."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mahalens import check_init, initialise
from mahalens.data import load_set


@pytest.fixture(scope="module")
def digits():
    found = load_set("digits")
    return found.x, found.y


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def fed_in_training(model: nn.Sequential, x: torch.Tensor, layer: int) -> torch.Tensor:
    """What a layer gives in the first step of training on all samples."""
    trained = copy.deepcopy(model).train()
    with torch.no_grad():
        return trained[: layer + 1](x)


@pytest.mark.parametrize("method", ["sample_point_bias", "class_mean", "cluster_pca", "whiten"])
def test_hyperplanes_behind_a_fresh_norm_meet_the_data_of_training(digits, method):
    x, y = digits
    model = network()
    initialise(model, (x, y), method, batch_size=len(x), layers=["0", "3"])
    given = fed_in_training(model, x, 3)
    one_sided = (given > 0).all(0) | (given < 0).all(0)
    assert int(one_sided.sum()) == 0
    assert check_init(model, x, batch_size=len(x)).layer("3").ok


def test_the_check_counts_what_is_dead_in_training(digits):
    x, _ = digits
    model = network()
    with torch.no_grad():
        model[3].bias -= 1.5  # in evaluation mode, before training, other units would be dead
    given = fed_in_training(model, x, 3)
    dead = (given <= 0).all(0).nonzero()[:, 0].tolist()
    assert 0 < len(dead) < 64
    assert list(check_init(model, x, batch_size=len(x)).layer("3").dead) == dead


def test_nothing_stays(digits):
    x, y = digits
    model = network()
    before = copy.deepcopy(model.state_dict())
    check_init(model, x)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    initialise(model, (x, y), "whiten")
    norm = model[1]
    assert torch.equal(norm.running_mean, torch.zeros(64))
    assert torch.equal(norm.running_var, torch.ones(64))
    assert int(norm.num_batches_tracked) == 0
    assert (norm.momentum, norm.training) == (0.1, True)
    assert not norm._forward_pre_hooks


def test_a_norm_that_was_trained_is_left_as_it_is(digits):
    x, _ = digits
    model = network()
    model(100 * x[:200])  # a step of training, on other data
    model.eval()
    with torch.no_grad():
        dead = (model[:4](x) <= 0).all(0).nonzero()[:, 0].tolist()
    assert list(check_init(model, x).layer("3").dead) == dead


@pytest.mark.parametrize("batch_size", [1, 7, 512])
def test_batches_of_a_single_sample_are_taken(digits, batch_size):
    x, y = digits
    initialise(network(), (x[:50], y[:50]), "sample_point_bias", batch_size=batch_size)
    check_init(network(), x[:50], batch_size=batch_size)


def test_convolutions_too(digits):
    x, _ = digits
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()
    )
    images = 20 + 50 * x.reshape(-1, 1, 8, 8)
    initialise(model, images, "sample_point_bias", batch_size=len(x))
    given = fed_in_training(model, images, 3).flatten(2)
    assert not bool(((given > 0).all(2).all(0) | (given < 0).all(2).all(0)).any())


def test_after_an_error_norms_are_as_they_were():
    model = network()
    with pytest.raises(Exception, match="shape"):
        initialise(model, torch.zeros(20, 5), "whiten")
    assert int(model[1].num_batches_tracked) == 0
    assert not model[1]._forward_pre_hooks
