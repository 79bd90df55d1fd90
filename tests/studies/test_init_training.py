"""How started networks are trained and watched: beside the obvious slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from mahalens.data import stream
from mahalens.studies.init.starting import start
from mahalens.studies.init.training import accuracy, batch_size, epochs_to, train
from mahalens.studies.paired.samples import samples_of
from mahalens.train import TrialStack

IRIS = samples_of("iris", seed=0, trial=0, train_size=None)


def test_training_is_that_of_a_plain_loop():
    network = start("relu-kaiming", IRIS, IRIS.x, IRIS.y, 5_000, 0, "trial", 0)
    seen = (IRIS.test_x, IRIS.test_y)
    found = train(network, (IRIS.x, IRIS.y), seen, [0.003, 0.03], 3, 0, "trial", 0)
    seed = int(torch.randint(2**62, (), generator=stream(0, "order of batches", "trial", 0)))
    model = start("relu-kaiming", IRIS, IRIS.x, IRIS.y, 5_000, 0, "trial", 0).module
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    shares, losses = [], []
    for epoch in range(4):
        with torch.no_grad():
            right = model(IRIS.test_x).argmax(1) == IRIS.test_y
            shares.append(100 * float(right.double().mean()))
        if epoch == 3:
            break
        order = torch.randperm(105, generator=stream(seed, "batches", epoch + 1))
        total = 0.0
        for rows in order.split(batch_size(105)):
            loss = functional.cross_entropy(model(IRIS.x[rows]), IRIS.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(rows) / 105
        losses.append(total)
    assert found.accuracy[1].tolist() == pytest.approx(shares)
    assert found.loss[1].tolist() == pytest.approx(losses, rel=1e-4)
    assert found.mean_accuracy[1] == pytest.approx(sum(shares[1:]) / 3)
    assert not torch.equal(found.loss[0], found.loss[1])


@pytest.mark.parametrize("model", ["abs-kaiming", "relu-whiten"])
def test_accuracy_is_that_of_each_module(model):
    networks = [start(model, IRIS, IRIS.x, IRIS.y, 5_000, 0, "trial", t) for t in range(3)]
    stack = TrialStack.from_modules(networks[0].chain, [one.module for one in networks])
    slow = [
        100 * float((one.module(IRIS.x).argmax(1) == IRIS.y).double().mean()) for one in networks
    ]
    assert accuracy(stack, IRIS.x, IRIS.y).tolist() == pytest.approx(slow)
    assert len(set(slow)) > 1


def test_a_training_that_explodes_has_no_loss():
    network = start("abs-kaiming", IRIS, IRIS.x, IRIS.y, 5_000, 0, "trial", 0)
    with torch.no_grad():
        network.module[0].weight.mul_(1e25)
        network.module[2].weight.mul_(1e25)
    done = train(network, (IRIS.x, IRIS.y), (IRIS.test_x, IRIS.test_y), [0.01], 4, 0, "trial", 0)
    assert done.loss.shape == (1, 4)
    assert bool(done.loss.isnan().all())
    assert done.accuracy.shape == (1, 5)


def test_all_epochs_are_in_the_curve_however_many():
    network = start("abs-kaiming", IRIS, IRIS.x[:40], IRIS.y[:40], 5_000, 0, "trial", 0)
    few = (IRIS.x[:4], IRIS.y[:4])
    assert train(network, few, few, [0.01], 300, 0, "trial", 0).loss.isfinite().all()


def test_epochs_to_a_bound_are_interpolated_between_the_middles_of_epochs():
    loss = torch.tensor([2.0, 0.5, 0.6, 0.1])
    assert epochs_to(8.0, loss, 4.0) == pytest.approx(0.25)  # half way, by ratios, to epoch 0.5
    assert epochs_to(8.0, loss, 2.0) == pytest.approx(0.5)
    assert epochs_to(8.0, loss, 1.0) == pytest.approx(1.0)
    assert epochs_to(8.0, loss, 0.5) == pytest.approx(1.5)
    assert 2.5 < epochs_to(8.0, loss, 0.3) < 3.5
    assert epochs_to(8.0, loss, 9.0) == 0.0
    assert math.isnan(epochs_to(8.0, loss, 0.05))
    assert math.isnan(epochs_to(8.0, torch.full((3,), math.nan), 1.0))
    assert epochs_to(8.0, torch.tensor([2.0, 0.0]), 1.0) == 1.5
    times, logs = [0.0, 0.5, 1.5, 2.5], np.log([8.0, 2.0, 0.5, 0.4])
    for bound in (5.0, 1.7, 0.45):
        slow = np.interp(-math.log(bound), -logs, times)
        found = epochs_to(8.0, torch.tensor([2.0, 0.5, 0.4]), bound)
        assert found == pytest.approx(slow, rel=1e-6)
