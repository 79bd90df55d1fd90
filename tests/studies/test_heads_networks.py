"""Networks, heads and detectors of the heads study, beside the obvious slow way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from mahalens.nn import DistanceHead, compactness_penalty
from mahalens.studies.heads import training
from mahalens.studies.heads.backbone import FEATURES, Backbone, look
from mahalens.studies.heads.config import HeadsConfig
from mahalens.studies.heads.detectors import class_distance, neighbours
from mahalens.studies.heads.duq import LENGTH, KernelHead
from mahalens.studies.heads.task import task_of
from mahalens.studies.heads.training import (
    begin,
    distance_network,
    kernel_network,
    softmax_network,
)

SMALL = HeadsConfig.with_defaults(trials=2, epochs=1, train_size=300)
TASK = task_of(SMALL, "digits", 0)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_all_heads_of_a_trial_begin_with_the_same_backbone():
    linear, _ = begin(SMALL, TASK, 0, lambda: nn.Linear(FEATURES, 7))
    distance, _ = begin(SMALL, TASK, 0, lambda: DistanceHead(FEATURES, 7))
    member, _ = begin(SMALL, TASK, 0, lambda: nn.Linear(FEATURES, 7), member=1)
    trial, _ = begin(SMALL, TASK, 1, lambda: nn.Linear(FEATURES, 7))
    assert same(linear, distance)
    assert not same(linear, member)
    assert not same(linear, trial)


def test_beginning_leaves_the_random_numbers_of_others_alone():
    before = torch.get_rng_state()
    softmax_network(SMALL, TASK, 0)
    assert torch.equal(torch.get_rng_state(), before)


def batches_of(monkeypatch, train):
    seen = []
    plain = training.train

    def watch(config, task, trial, parts, loss, member=0, after=None):
        def told(x, y):
            seen.append(y)
            return loss(x, y)

        return plain(config, task, trial, parts, told, member, after)

    monkeypatch.setattr(training, "train", watch)
    train(SMALL, TASK, 0)
    monkeypatch.setattr(training, "train", plain)
    return torch.cat(seen)


def test_all_heads_of_a_trial_see_the_same_batches(monkeypatch):
    ways = (softmax_network, distance_network, kernel_network)
    first, *others = (batches_of(monkeypatch, way) for way in ways)
    assert len(first) >= 0.8 * len(TASK.y)
    assert all(torch.equal(first, other) for other in others)


def test_training_is_repeatable_and_learns():
    config = HeadsConfig.with_defaults(trials=1, epochs=5, train_size=600)
    task = task_of(config, "digits", 0)
    for train in (softmax_network, distance_network, kernel_network):
        (one, head, _), (two, _, _) = train(config, task, 0), train(config, task, 0)
        assert same(one, two)
        features = look(one, task.test_x).features
        with torch.no_grad():
            found = head.log_kernels(features) if train is kernel_network else head(features)
        assert (found.argmax(1) == task.test_y).double().mean() > 0.6


def test_the_loss_is_cross_entropy_with_the_penalty_of_the_package(monkeypatch):
    losses = {}

    def keep(config, task, trial, parts, loss, member=0, after=None):
        losses["found"] = loss(task.x[:50], task.y[:50]).item()
        backbone, head = parts
        features = backbone(task.x[:50])
        wanted = cross_entropy(head(features), task.y[:50])
        wanted = wanted + config.compactness * compactness_penalty(head, features, task.y[:50])
        losses["wanted"] = wanted.item()
        return 0.0

    monkeypatch.setattr(training, "train", keep)
    distance_network(HeadsConfig.with_defaults(compactness=0.7), TASK, 0)
    assert losses["found"] == pytest.approx(losses["wanted"], rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "inputs", "sides"),
    [((28, 28), 784, [14, 7, 4]), ((8, 8), 64, [4, 2]), ((3, 9, 5), 135, [5, 3])],
)
def test_images_are_halved(shape, inputs, sides):
    backbone = Backbone(shape, inputs).eval()
    layers = backbone._through(drawn(2, inputs))
    assert [layer.shape[2] for layer in layers[:-1]] == sides
    features, pooled = look(backbone, drawn(5, inputs), at_once=2)
    last = layers[0]
    one = backbone.look(drawn(2, inputs)).layers
    assert torch.allclose(one[:, :16], last.mean((2, 3)), atol=1e-5)
    assert torch.allclose(one[:, 16:32], last.std((2, 3), correction=0), atol=1e-5)
    assert features.shape == (5, 64)
    assert torch.allclose(torch.nn.functional.elu(pooled[:, -64:]), features)


def test_samples_that_are_no_images():
    backbone = Backbone(None, 13)
    features, layers = look(backbone, drawn(4, 13))
    assert (features.shape, layers.shape) == ((4, 64), (4, 192))


def test_looking_in_parts_gives_the_same():
    backbone = Backbone((8, 8), 64)
    x = drawn(7, 64)
    for whole, parts in zip(look(backbone, x), look(backbone, x, at_once=3), strict=True):
        assert torch.allclose(whole, parts, atol=1e-6)


def test_kernels_one_by_one():
    head = KernelHead(6, 3)
    f = drawn(4, 6)
    for n in range(4):
        for c in range(3):
            away = head.weight[c] @ f[n] - head.sums[c] / head.counts[c]
            slow = -away.square().sum() / 6 / (2 * LENGTH**2)
            assert head.log_kernels(f)[n, c].item() == pytest.approx(slow.item(), rel=1e-4)


def test_centroids_follow_the_class_means():
    head = KernelHead(5, 2)
    f, y = drawn(40, 5), torch.arange(40) % 4 // 3  # 30 of the first class, 10 of the other
    sums, counts = head.sums.clone(), head.counts.clone()
    with torch.no_grad():
        head.follow(f, y)
        for c, size in enumerate((30, 10)):
            own = sum(head.weight[c] @ f[n] for n in range(40) if y[n] == c)
            assert head.counts[c].item() == pytest.approx(0.999 * counts[c].item() + 0.001 * size)
            assert torch.allclose(head.sums[c], 0.999 * sums[c] + 0.001 * own, atol=1e-6)


def test_the_penalty_asks_for_slopes_of_length_one():
    torch.manual_seed(0)
    head, linear = KernelHead(4, 2), nn.Linear(3, 4)
    nn.init.normal_(head.weight, std=0.05)
    x, y = drawn(8, 3), torch.arange(8) % 2
    kernels = head.log_kernels(linear(x)).exp()
    wanted = one_hot(y, 2).float()
    plain = nn.functional.binary_cross_entropy(kernels, wanted)
    total = 0.0
    for n in range(2):  # one sample of four
        point = x[n].clone().requires_grad_()
        head.log_kernels(linear(point[None])).exp().sum().backward()
        total += (point.grad.square().sum() - 1).square().item() / 2
    assert head.loss(linear(x), y).item() == pytest.approx(plain.item(), rel=1e-5)
    found = head.slope_penalty(linear, x)
    assert found.item() == pytest.approx(total, rel=1e-4)
    found.backward()
    assert head.weight.grad.isfinite().all()


@pytest.mark.parametrize("relative", [False, True])
def test_mahalanobis_by_hand(relative):
    x, y = drawn(60, 4) @ drawn(4, 4, seed=1), torch.arange(60) % 3
    given = drawn(5, 4, seed=2)
    found = class_distance(x, y, relative=relative)(given)
    data, points = x.double().numpy(), given.double().numpy()
    means = np.stack([data[y == c].mean(0) for c in range(3)])
    within = np.linalg.inv(sum(np.cov(data[y == c].T, bias=True) for c in range(3)) / 3)
    around = np.linalg.inv(np.cov(data.T, bias=True))
    for n, point in enumerate(points):
        slow = min((point - mean) @ within @ (point - mean) for mean in means)
        if relative:
            centre = point - data.mean(0)
            slow -= centre @ around @ centre
        assert float(found[n]) == pytest.approx(slow, rel=1e-6)


def test_neighbours_by_hand():
    x, given = drawn(100, 4), drawn(3, 4, seed=1)
    found = neighbours(x, 0, 0)(given)
    for n in range(3):
        unit, point = x / x.norm(dim=1, keepdim=True), given[n] / given[n].norm()
        slow = (unit - point).norm(dim=1).sort().values[4]  # the fifth of 100
        assert float(found[n]) == pytest.approx(float(slow), rel=1e-5)
