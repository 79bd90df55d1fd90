"""What is wrong before training: units and inputs planted to be out of reach."""

import pytest
import torch
from starts import linear, planted, same_state, seeded, state_of
from torch import nn

from mahalens.errors import InputError
from mahalens.init import InitCheck, check_init, initialise
from mahalens.nn import Abs, DistanceHead, Mahalanobis, OffsetL2, PointSlope

X = torch.rand(200, 2, generator=seeded(), dtype=torch.float64)  # in the unit square


def layer_of(weight, bias):
    layer = linear(2, len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


GOOD = [[1.0, 0.0], [-1.0, 0.2], [0.3, 1.0]]
GOOD_BIAS = [-0.5, 0.6, -0.6]


def test_a_good_start():
    model = nn.Sequential(layer_of([*GOOD, [0.0, -1.0]], [*GOOD_BIAS, 0.9]), nn.ReLU())
    check = check_init(model, X)
    assert isinstance(check, InitCheck)
    assert check.layers[0].silent == 0
    assert check.ok
    assert str(check) == "ready to train: nothing wrong in 1 layer on 200 samples"


def test_dead_outside_copies_and_silent():
    weight = [[1.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [2.0, 0.0], [1.0, 0.0]]
    bias = [-0.5, 3.0, -1e-3, -1.0, -9.0]
    check = check_init(nn.Sequential(layer_of(weight, bias), nn.ReLU()), X)
    found = check.layer("0")
    assert found.dead == (2, 4)
    assert found.outside == (1,)
    assert found.copies == ((0, 3),)
    assert found.silent == 0, "unit 1 is reached by all"
    assert not check.ok
    first, second = str(check).splitlines()
    assert first == "not ready: something is wrong in 1 of 1 layers on 200 samples"
    assert "0 (Linear, relu)" in second
    assert "2 of 5 units reached by no input (2, 4)" in second
    assert "1 of 5 units with all data on one side (1)" in second
    assert "1 pairs of copies (0 = 3)" in second


def test_silent_inputs_by_number():
    x = torch.tensor([[0.1, 0.0], [0.9, 0.0], [0.2, 0.0], [0.8, 0.0]], dtype=torch.float64)
    check = check_init(nn.Sequential(layer_of([[1.0, 0.0]], [-0.5]), nn.ReLU()), x)
    assert check.layers[0].silent == 0.5
    assert check.layers[0].silent_samples == (0, 2)
    assert "50 % of inputs reach no unit (0, 2)" in str(check)


def test_hyperplanes_outside_count_behind_abs_and_not_at_the_output():
    far = layer_of([[1.0, 0.0], [1.0, 1.0]], [5.0, -1.0])
    assert check_init(nn.Sequential(far, Abs()), X).layers[0].outside == (0,)
    assert check_init(nn.Sequential(far), X).ok
    below = layer_of([[1.0, 0.0], [1.0, 1.0]], [-5.0, -1.0])
    assert check_init(nn.Sequential(below, Abs()), X).layers[0].outside == (0,)


FAULTS = {  # field, weights, biases, activation, which units, what is said of them
    "flat": ([[1.0, 0.0], [900.0, 0.0]], [-0.5, 900.0], nn.Sigmoid(), (1,), "from the start (1)"),
    "dead": (
        [[1.0, 0.0]] * 20,
        [-100.0] * 20,
        nn.ReLU(),
        range(20),
        "(0, 1, 2, 3, 4, 5, 6, 7, ...)",
    ),
    "faulty": (
        [*GOOD, [float("nan"), 1.0]],
        [*GOOD_BIAS, 0.9],
        nn.ReLU(),
        (3,),
        "1 of 4 units NaN or infinite (3)",
    ),
}


@pytest.mark.parametrize("field", FAULTS)
def test_units_that_are_flat_or_dead_or_no_numbers(field):
    weight, bias, activation, units, text = FAULTS[field]
    check = check_init(nn.Sequential(layer_of(weight, bias), activation), X)
    assert getattr(check.layers[0], field) == tuple(units)
    assert text in str(check)
    assert not check.ok


def test_what_is_not_read_is_said():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.out = nn.GRU(2, 3).double(), linear(3, 2)

        def forward(self, x):
            return self.out(self.memory(x)[0])

    check = check_init(Recurrent(), X)
    assert check.unread == ("memory",)
    assert "not read: memory" in str(check)
    model = nn.Sequential(PointSlope(2, 3).double(), nn.ReLU(), DistanceHead(3, 2).double())
    check = check_init(model, X)
    assert [layer.name for layer in check.layers] == ["0", "2"]
    assert check.unread == ()


class TestConvolutions:
    def model(self, bias):
        layer = nn.Conv1d(1, 1, 1, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.fill_(1.0)
            layer.bias.fill_(bias)
        return nn.Sequential(layer, nn.ReLU())

    def test_blank_patches_are_no_fault(self):
        x = torch.tensor([[[0.0, 0.0, 3.0, -1.0]], [[1.0, 0.0, 2.0, 0.0]]], dtype=torch.float64)
        check = check_init(self.model(0.0), x)
        assert check.layers[0].silent == 5 / 8
        assert check.ok
        first, second = str(check).splitlines()
        assert first == "ready to train: nothing wrong in 1 layer on 2 samples"
        assert second == ("  0 (Conv1d, relu): by the way, 62.5 % of patches reach no unit (0, 1)")

    def test_nothing_but_silent_patches_is(self):
        check = check_init(self.model(-9.0), torch.rand(3, 1, 4).double())
        assert not check.ok
        assert "100 % of inputs reach no unit (0, 1, 2)" in str(check)


class TestPrototypes:
    def layer(self, points, alpha=None):
        layer = OffsetL2(2, len(points), dtype=torch.float64)
        with torch.no_grad():
            layer.mu.copy_(torch.tensor(points))
            if alpha is not None:
                layer.alpha.copy_(torch.tensor(alpha)[:, None].expand(-1, 2))
        return layer

    def test_those_no_input_is_nearest_to(self):
        layer = self.layer([[0.2, 0.5], [0.8, 0.5], [30.0, 0.5]])
        check = check_init(nn.Sequential(layer), X)
        assert check.layer("0").outside == (2,)
        assert check.samples == 200
        assert str(check).splitlines()[1] == (
            "  0 (OffsetL2): 1 of 3 prototypes that no input is nearest to (2)"
        )
        good = check_init(nn.Sequential(self.layer([[0.2, 0.5], [0.8, 0.5]])), X)
        assert str(good) == "ready to train: nothing wrong in 1 layer on 200 samples"
        large = self.layer([[0.2, 0.5], [0.8, 0.5]])
        large.mu.data *= 1e40  # too large for float32
        assert check_init(nn.Sequential(large), 1e40 * X).ok

    def test_copies_and_constants(self):
        layer = self.layer([[0.2, 0.5], [0.8, 0.5], [0.2, 0.5], [0.2, 0.5]], [1.0, 1.0, 1.0, 2.0])
        assert check_init(layer, X).layer("OffsetL2").copies == ((0, 2),)
        still = check_init(self.layer([[0.2, 0.5], [0.8, 0.5]], [0.0, 1.0]), X).layers[0]
        assert still.flat == (0,)

    def test_no_numbers(self):
        found = check_init(self.layer([[0.2, 0.5], [float("nan"), 0.5]]), X).layers[0]
        assert found.faulty == (1,)
        assert found.outside == ()

    @pytest.mark.parametrize("shared", [False, True])
    def test_ellipsoids(self, shared):
        layer = Mahalanobis(2, 3, 1, shared=shared, dtype=torch.float64)
        with torch.no_grad():
            layer.mu.copy_(torch.tensor([[0.5, 0.5], [0.5, 0.5], [40.0, 0.0]]))
        found = check_init(nn.Sequential(nn.Identity(), layer), X).layer("1")
        assert found.kind == "Mahalanobis"
        assert 2 in found.outside
        assert found.copies == (((0, 1),) if shared else ())

    def test_a_head_goes_by_its_own_name_behind_other_layers(self):
        model = nn.Sequential(layer_of(GOOD, GOOD_BIAS), nn.Tanh(), DistanceHead(3, 2).double())
        with torch.no_grad():
            model[2].prototypes.copy_(torch.tensor([[0.0, 0.0, 0.0], [50.0, 0.0, 0.0]]))
        check = check_init(model, (X, torch.zeros(200, dtype=torch.long)), batch_size=64)
        assert {la.name: la.kind for la in check.layers} == {"0": "Linear", "2": "DistanceHead"}
        assert check.layer("2").outside == (1,)
        for name in ("2", "0"):
            alone = check_init(model, X, layers=[name])
            assert [la.name for la in alone.layers] == [name]
            with pytest.raises(InputError, match=f"no layer 'x' in this check; there are {name}"):
                alone.layer("x")
        with pytest.raises(InputError, match="no layer '9'"):
            check_init(model, X, layers=["2", "9"])


def test_the_model_is_left_as_it_was():
    layers = linear(2, 3), nn.BatchNorm1d(3).double(), nn.ReLU(), DistanceHead(3, 2).double()
    model = nn.Sequential(*layers).train()
    before, random = state_of(model), torch.get_rng_state()
    check_init(model, (X, torch.zeros(200, dtype=torch.long)), batch_size=50)
    assert same_state(before, state_of(model), equal_nan=True)
    assert model.training
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert torch.equal(random, torch.get_rng_state())


def test_far_from_the_origin_the_usual_start_fails_and_clusters_do_not():
    """What the check is for: data far from 0, where Kaiming's hyperplanes miss it."""
    x, _ = planted(4, 6, per=200, apart=20.0)
    model = nn.Sequential(linear(6, 24), nn.ReLU(), linear(24, 3))
    initialise(model, x + 100, "kaiming", generator=seeded())
    check = check_init(model, x + 100)
    assert len(check.layers[0].dead) + len(check.layers[0].outside) > 18
    initialise(model, x + 100, "cluster_pca", generator=seeded())
    found = check_init(model, x + 100).layers[0]
    assert (found.dead, found.outside, found.copies) == ((), (), ())
