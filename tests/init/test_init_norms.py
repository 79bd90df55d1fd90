"""Batch norms before training: starts and checks see what training will see."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mahalens import check_init, initialise
from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.forward import Runner
from mahalens.auditing.watch.untouched import untouched
from mahalens.data import load_set
from mahalens.errors import InputError
from mahalens.init.norms import settled_norms


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


class Block(nn.Module):
    """A residual block of convolutions without bias, each before a batch norm."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, units, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(units)
        self.conv2 = nn.Conv2d(units, units, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(units)
        self.down = nn.Sequential(nn.Conv2d(inputs, units, 1, bias=False), nn.BatchNorm2d(units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (inner + self.down(x)).relu()


class TestLayersWithoutBias:
    """The batch norm behind such a layer places its hyperplanes."""

    def test_a_residual_network_is_started_whole(self, digits):
        images = digits[0][:200].reshape(-1, 1, 8, 8)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            *(Block(6, 6) for _ in range(2)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 10),
        )
        done = initialise(model, images)  # without a warning
        assert len(done.started) == 8
        assert done.left == {}
        assert done.norms["0"] == "1"
        assert done.norms["4.down.0"] == "4.down.1"
        assert repr(done).startswith("started 8 of 8 layers")
        assert check_init(model, images).layer("3.conv1").dead == ()

    @pytest.mark.parametrize("method", ["cluster_pca", "whiten", "sample_point_bias"])
    def test_layer_and_norm_are_together_the_layer_with_a_bias(self, digits, method):
        x = digits[0][:300].double()

        def build(bias: bool) -> nn.Sequential:
            parts: list[nn.Module] = []
            for inputs, units in ((64, 20), (20, 12)):
                norm = nn.Identity() if bias else nn.BatchNorm1d(units)
                parts += [nn.Linear(inputs, units, bias=bias), norm, nn.ReLU()]
            return nn.Sequential(*parts, nn.Linear(12, 3)).double()

        bare, whole = build(bias=False), build(bias=True)
        for model in (bare, whole):
            initialise(model, x, method, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(bare[3].weight, whole[3].weight)
        with settled_norms(Runner(bare), Batches(x, 512)), untouched(bare):
            torch.testing.assert_close(bare(x), whole(x))
        with torch.no_grad():  # in training too, up to the 299 or 300 in the variance
            wanted = whole[:5](x)
            apart = (bare.train()[:5](x) - wanted).abs().max()
            assert float(apart) < 0.005 * float(wanted.abs().max())

    def test_nothing_else_of_the_norm_changes(self, digits):
        model = nn.Sequential(nn.Linear(64, 5, bias=False), nn.BatchNorm1d(5)).double()
        initialise(model, digits[0].double(), "whiten")
        norm = model[1]
        assert torch.equal(norm.running_mean, torch.zeros(5).double())
        assert torch.equal(norm.running_var, torch.ones(5).double())
        assert int(norm.num_batches_tracked) == 0
        assert norm.training
        assert not norm._forward_pre_hooks
        assert not model[0]._forward_hooks
        assert not torch.equal(norm.bias, torch.zeros(5).double())

    def test_after_an_error_its_weights_are_as_they_were(self, digits):
        model = nn.Sequential(
            nn.Linear(64, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 900)
        )
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(InputError, match="no weights were changed"):
            initialise(model, digits[0][:30], "cluster_pca")
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name

    @pytest.mark.parametrize(
        ("norm", "reason"),
        [
            (lambda: nn.Identity(), "no batch norm directly behind it"),
            (lambda: nn.LayerNorm(5), "no batch norm directly behind it"),
            (lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(5)), "no batch norm directly"),
            (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(5)), "not for it alone"),
            (lambda: nn.BatchNorm1d(5, affine=False), "has no weight and bias"),
            (lambda: nn.BatchNorm1d(5, track_running_stats=False), "is trained"),
        ],
    )
    def test_no_norm_that_could(self, digits, norm, reason):
        model = nn.Sequential(nn.Linear(64, 5, bias=False), norm(), nn.ReLU(), nn.Linear(5, 3))
        with pytest.warns(UserWarning, match=f"1 of 2 layers were not started: '0' .*{reason}"):
            done = initialise(model, digits[0], "whiten")
        assert list(done.started) == ["3"]
        assert reason in done.left["0"]

    def test_a_norm_that_was_trained(self, digits):
        model = nn.Sequential(nn.Linear(64, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU())
        model(digits[0])
        with pytest.raises(InputError, match="is trained"):
            initialise(model, digits[0], "whiten")

    def test_a_norm_or_an_output_that_is_used_twice(self, digits):
        class Twice(nn.Module):
            def __init__(self, both):
                super().__init__()
                self.a, self.b = (nn.Linear(64, 5, bias=False) for _ in range(2))
                self.norm, self.end, self.both = nn.BatchNorm1d(5), nn.Linear(5, 2), both

            def forward(self, x):
                return self.end(self.both(self, x))

        ways = [lambda m, x: m.norm(m.a(x)) + m.norm(m.b(x)), lambda m, x: m.norm(h := m.a(x)) + h]
        for way in ways:
            with pytest.warns(UserWarning, match="not for it alone"):
                initialise(Twice(way), digits[0], "whiten")

    def test_a_norm_over_positions(self, digits):
        model = nn.Sequential(nn.Linear(16, 4, bias=False), nn.BatchNorm1d(4))
        with pytest.raises(InputError, match="works along another axis"):
            initialise(model, digits[0].reshape(-1, 4, 16), "whiten")
