"""Pruning: planted dead, duplicate and mirrored units go, and the outputs stay."""

import pytest
import torch
from hand_records import (
    MLP,
    centre,
    done,
    draw,
    fill,
    hand_record,
    left,
    mlp,
    plant,
    same_outputs,
    with_pairs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.auditing.pruning.apply import prune
from mahalens.nn import Abs, AbsReLU


class TestLinear:
    x = draw(200, 6, seed=99)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_everything_at_once(self, dtype):
        model, x = mlp(dtype), self.x.to(dtype)
        plant(model[0], model[2], dead=[1, 4], copies=[(0, 3, 1.0), (2, 7, 2.7)])
        plant(model[0], model[2], mirrors=[(5, 8, 1.0), (6, 9, 0.3)])
        plant(model[2], model[4], dead=[7], copies=[(0, 1, 0.5)])
        pruned = prune(model, hand_record(model, x, MLP), x)
        assert done(pruned) == {
            ("0", "dead"): (1, 4),
            ("0", "duplicate"): ((0, 3), (2, 7)),
            ("0", "mirrored"): ((5, 8), (6, 9)),
            ("2", "dead"): (7,),
            ("2", "duplicate"): ((0, 1),),
        }
        assert pruned.pruned.left == ()
        assert pruned[0].weight.shape == (4, 6)
        assert pruned[2].weight.shape == (6, 4)
        assert pruned[4].weight.shape == (3, 6)
        assert (pruned[0].out_features, pruned[2].in_features) == (4, 4)
        assert (pruned[2].out_features, pruned[4].in_features) == (6, 6)
        assert isinstance(pruned[1], AbsReLU)
        assert pruned[1].absolute.tolist() == [False, False, True, True]
        assert type(pruned[3]) is nn.ReLU
        assert pruned[0].weight.dtype == dtype
        same_outputs(pruned, model, x)

    @pytest.mark.parametrize(
        ("actions", "units"), [(("dead",), 8), ("duplicate", 8), (["mirrored"], 8), ((), 10)]
    )
    def test_only_what_is_asked_for(self, actions, units):
        model = mlp()
        plant(model[0], model[2], dead=[1, 4], copies=[(0, 3, 1.0), (2, 7, 2.7)])
        plant(model[0], model[2], mirrors=[(5, 8, 1.0), (6, 9, 0.3)])
        pruned = prune(model, hand_record(model, self.x, MLP), self.x, actions=actions)
        assert pruned[0].out_features == units
        same_outputs(pruned, model, self.x)

    def test_sets_of_duplicates_become_one(self):
        model = mlp()
        plant(model[0], copies=[(1, 2, 2.0), (1, 5, 0.25), (1, 9, 1.0)])
        pruned = prune(model, hand_record(model, self.x, MLP), self.x)
        assert done(pruned) == {("0", "duplicate"): ((1, 2), (1, 5), (1, 9))}
        same_outputs(pruned, model, self.x)

    def test_sets_told_as_a_chain(self):
        model = mlp()
        plant(model[0], copies=[(1, 2, 2.0), (1, 5, 0.25), (1, 9, 1.0)])
        record = hand_record(model, self.x, MLP)
        pruned = prune(model, with_pairs(record, 0, duplicate=((5, 9), (2, 5), (1, 2))), self.x)
        assert done(pruned) == {("0", "duplicate"): ((1, 2), (1, 5), (1, 9))}
        same_outputs(pruned, model, self.x)

    @pytest.mark.parametrize("pair", [(0, 1), (1, 2)])
    def test_a_pair_whose_units_have_duplicates(self, pair):
        model = mlp()
        plant(model[0], model[2], copies=[(0, 2, 2.0)], mirrors=[(0, 1, 1.0)])
        with torch.no_grad():  # v_0 + 2 v_2 = v_1, though no two are equal
            model[2].weight[:, 1] = model[2].weight[:, 0] + 2 * model[2].weight[:, 2]
        centre(model, "2", self.x)
        record = with_pairs(hand_record(model, self.x, MLP), 0, mirrored=(pair,))
        pruned = prune(model, record, self.x)
        assert done(pruned) == {("0", "duplicate"): ((0, 2),), ("0", "mirrored"): ((0, 1),)}
        same_outputs(pruned, model, self.x)

    def test_all_units_in_pairs_are_plain_absolute_values(self):
        model = mlp()
        plant(model[0], model[2], mirrors=[(k, k + 5, 1.0) for k in range(5)])
        pruned = prune(model, hand_record(model, self.x, MLP), self.x)
        assert type(pruned[1]) is Abs
        assert pruned[0].out_features == 5
        same_outputs(pruned, model, self.x)

    def test_pairs_read_with_other_weights_stay(self):
        model = mlp()
        plant(model[0], model[2], mirrors=[(0, 5, 1.0)], equal_reads=False)
        pruned = prune(model, hand_record(model, self.x, MLP), self.x)
        assert pruned.pruned.done == ()
        assert "read with different weights" in left(pruned)["0", "mirrored"]
        same_outputs(pruned, model, self.x)

    def test_pairs_of_another_hyperplane_stay(self):
        model = mlp()
        plant(model[0], model[2], mirrors=[(0, 5, 1.0)])
        with torch.no_grad():
            model[0].bias[5] += 0.01
        pruned = prune(model, hand_record(model, self.x, MLP), self.x)
        assert pruned.pruned.done == ()
        assert "not the same hyperplane" in left(pruned)["0", "mirrored"]

    def test_what_is_nearly_equal_stays(self):
        model = mlp()
        plant(model[0], copies=[(0, 5, 1.0)])
        with torch.no_grad():
            model[0].bias[:] = 0  # so that only the directions differ
            model[0].weight[5, 0] += 1e-4
        record = hand_record(model, self.x, [{**MLP[0], "near": 1e-3}, *MLP[1:]])
        assert record.layers[0].pairs.duplicate == ((0, 5),)
        pruned = prune(model, record, self.x)
        assert pruned.pruned.done == ()
        assert "equal only nearly" in left(pruned)["0", "duplicate"]

    @pytest.mark.parametrize(
        ("module", "name", "scaled"),
        [
            (Abs(), "abs", True),
            (nn.Identity(), "none", True),
            (nn.LeakyReLU(), "leaky_relu", True),
            (nn.Tanh(), "tanh", False),
            (nn.GELU(), "gelu", False),
        ],
        ids=str,
    )
    def test_duplicates_under_other_activations(self, module, name, scaled):
        model = mlp(activation=module)
        plant(model[0], copies=[(0, 3, 1.0), (2, 7, 2.5)])
        layers = [{**MLP[0], "activation": name}, *MLP[1:]]
        pruned = prune(model, hand_record(model, self.x, layers), self.x)
        wanted = ((0, 3), (2, 7)) if scaled else ((0, 3),)
        assert done(pruned)["0", "duplicate"] == wanted
        if not scaled:
            assert "does not scale" in left(pruned)["0", "duplicate"]
        same_outputs(pruned, model, self.x)

    @pytest.mark.parametrize(("module", "name"), [(Abs(), "abs"), (nn.Identity(), "none")])
    def test_mirrored_units_without_relu_become_one_however_they_are_read(self, module, name):
        model = mlp(activation=module)
        plant(model[0], mirrors=[(0, 3, 1.0), (2, 7, 2.5)], equal_reads=False)
        layers = [{**MLP[0], "activation": name}, *MLP[1:]]
        pruned = prune(model, hand_record(model, self.x, layers), self.x)
        assert done(pruned) == {("0", "mirrored"): ((0, 3), (2, 7))}
        assert type(pruned[1]) is type(module)
        same_outputs(pruned, model, self.x)

    def test_mirrored_units_under_leaky_relu_stay(self):
        model = mlp(activation=nn.LeakyReLU())
        plant(model[0], model[2], mirrors=[(0, 3, 1.0)])
        layers = [{**MLP[0], "activation": "leaky_relu"}, *MLP[1:]]
        pruned = prune(model, hand_record(model, self.x, layers), self.x)
        assert "not under leaky_relu" in left(pruned)["0", "mirrored"]

    def test_a_layer_of_dead_units_keeps_one(self):
        model = mlp()
        plant(model[0], dead=range(10))
        pruned = prune(model, hand_record(model, self.x, MLP), self.x)
        assert pruned[0].out_features == 1
        same_outputs(pruned, model, self.x)
        again = prune(pruned, hand_record(pruned, self.x, MLP), self.x)
        assert again.pruned.done == () or ("0", "dead") not in done(again)

    def test_a_loose_tolerance_does_not_make_units_dead(self):
        model = mlp()
        plant(model[0], dead=[1])
        record = hand_record(model, self.x, MLP, tolerance=3.0)
        found = record.layers[0].units.dead
        assert len(found) > 1
        pruned = prune(model, record, self.x, actions="dead")
        assert done(pruned)["0", "dead"] == (1,)
        assert "2 makes more than rounding of it" in left(pruned)["0", "dead"]
        same_outputs(pruned, model, self.x)

    def test_a_layer_without_bias(self):
        model = fill(nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 2)))
        with torch.no_grad():
            model[0].weight[3] = 2 * model[0].weight[0]
            model[0].weight[4] = -model[0].weight[1]
            model[2].weight[:, 4] = model[2].weight[:, 1]
        layers = [{"name": "0", "feeds": "2"}, {"name": "2", "activation": "none"}]
        pruned = prune(model, hand_record(model, self.x, layers), self.x)
        assert pruned[0].out_features == 3
        assert pruned[0].bias is None
        same_outputs(pruned, model, self.x)

    def test_sequences(self):
        model, x = mlp(), draw(20, 7, 6, seed=3)
        plant(model[0], model[2], dead=[1], copies=[(0, 3, 2.0)], mirrors=[(5, 8, 0.7)])
        pruned = prune(model, hand_record(model, x, MLP), x)
        assert pruned[0].out_features == 7
        same_outputs(pruned, model, x)

    @settings(deadline=None, max_examples=30)
    @given(
        order=st.permutations(range(10)),
        dead=st.integers(0, 4),
        copied=st.integers(0, 2),
        factor=st.floats(0.05, 20),
        mirrored=st.integers(0, 1),
        seed=st.integers(0, 50),
    )
    def test_any_plants(self, order, dead, copied, factor, mirrored, seed):
        model = fill(mlp(), seed)
        gone, rest = order[:dead], list(order[dead:])
        copies = [(rest.pop(), rest.pop(), factor) for _ in range(copied)]
        mirrors = [(rest.pop(), rest.pop(), factor) for _ in range(mirrored)]
        plant(model[0], model[2], dead=gone, copies=copies, mirrors=mirrors)
        record = hand_record(model, self.x, MLP)
        pruned = prune(model, record, self.x)
        assert pruned[0].out_features <= 10 - dead - copied - mirrored
        same_outputs(pruned, model, self.x, eps=2e-5)


def convnet(pool=None, dtype=torch.float32):
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        pool or nn.AvgPool2d(2),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 2 * 2, 7),
        nn.ReLU(),
        nn.Linear(7, 3),
    )
    return fill(model).to(dtype)


CONV = (
    {"name": "0", "norm": "1", "feeds": "4"},
    {"name": "4", "feeds": "7"},
    {"name": "7", "feeds": "9"},
    {"name": "9", "activation": "none"},
)


def plant_norm(model, dead=(), copies=(), mirrors=()):
    """The same for the first layer of the convnet, through its batch norm."""
    conv, norm, reader = model[0], model[1], model[4]
    with torch.no_grad():
        for unit in dead:
            norm.bias[unit] = -1000.0
        for i, j, factor in (*copies, *((i, j, -a) for i, j, a in mirrors)):
            conv.weight[j] = conv.weight[i]
            conv.bias[j] = conv.bias[i]
            norm.running_mean[j] = norm.running_mean[i]
            norm.running_var[j] = norm.running_var[i]
            norm.weight[j] = factor * norm.weight[i]
            norm.bias[j] = factor * norm.bias[i]
        for i, j, factor in mirrors:
            reader.weight[:, j] = reader.weight[:, i] / factor


class TestConvolutions:
    x = draw(30, 2, 10, 10, seed=5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_batch_norm_pooling_and_flattening(self, dtype):
        model, x = convnet(dtype=dtype), self.x.to(dtype)
        plant_norm(model, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 1.5)])
        centre(model, "4", x)
        plant(model[4], model[7], dead=[0], mirrors=[(1, 3, 0.5)])
        centre(model, "7", x)
        plant(model[7], dead=[6], copies=[(0, 1, 3.0)])
        pruned = prune(model, hand_record(model, x, CONV), x)
        assert done(pruned) == {
            ("0", "dead"): (1,),
            ("0", "duplicate"): ((0, 2),),
            ("0", "mirrored"): ((3, 5),),
            ("4", "dead"): (0,),
            ("4", "mirrored"): ((1, 3),),
            ("7", "dead"): (6,),
            ("7", "duplicate"): ((0, 1),),
        }
        small = pruned
        assert small[0].weight.shape == (3, 2, 3, 3)
        assert small[1].num_features == 3
        assert small[1].running_var.shape == (3,)
        assert small[2].absolute.tolist() == [False, True, False]
        assert small[4].weight.shape == (3, 3, 3, 3)
        assert (small[4].in_channels, small[4].out_channels) == (3, 3)
        assert small[7].weight.shape == (5, 12)
        same_outputs(pruned, model, x, eps=1e-5 if dtype == torch.float32 else 1e-12)
        small.train()
        small(x)  # the batch norm trains on
        small.eval()
        with torch.no_grad():
            assert small(x[0:1]).shape == (1, 3)

    def test_max_pooling_keeps_pairs_but_not_the_rest(self):
        model = convnet(pool=nn.MaxPool2d(2))
        plant_norm(model, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 1.5)])
        centre(model, "4", self.x)
        centre(model, "7", self.x)
        pruned = prune(model, hand_record(model, self.x, CONV), self.x)
        assert done(pruned) == {("0", "dead"): (1,), ("0", "duplicate"): ((0, 2),)}
        assert "max pooling follows" in left(pruned)["0", "mirrored"]
        same_outputs(pruned, model, self.x, eps=1e-5)

    @pytest.mark.parametrize("part", ["bias", "running_mean", "running_var"])
    def test_a_batch_norm_makes_equal_units_different(self, part):
        model = convnet()
        plant_norm(model, copies=[(0, 2, 2.0)])
        with torch.no_grad():
            getattr(model[1], part)[2] += 0.3
        record = with_pairs(hand_record(model, self.x, CONV), 0, duplicate=((0, 2),))
        pruned = prune(model, record, self.x, actions=["duplicate"])
        assert pruned.pruned.done == ()
        assert "equal only nearly" in left(pruned)["0", "duplicate"]

    def test_one_dimension(self):
        model = fill(
            nn.Sequential(
                nn.Conv1d(2, 6, 3),
                nn.ReLU(),
                nn.Dropout(),
                nn.AdaptiveAvgPool1d(1),
                nn.Flatten(),
                nn.Linear(6, 3),
            )
        )
        x = draw(20, 2, 9, seed=1)
        plant(model[0], model[5], dead=[2], copies=[(0, 1, 0.5)], mirrors=[(3, 4, 2.0)])
        layers = [{"name": "0", "feeds": "5"}, {"name": "5", "activation": "none"}]
        pruned = prune(model, hand_record(model, x, layers), x)
        assert pruned[0].weight.shape == (3, 2, 3)
        assert pruned[1].dim == -2
        same_outputs(pruned, model, x)

    def test_groups_stay(self):
        model = fill(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 3, 1)))
        plant(model[0], dead=[1])
        layers = [{"name": "0", "feeds": "2"}, {"name": "2", "activation": "none"}]
        pruned = prune(model, hand_record(model, self.x, layers), self.x)
        assert pruned.pruned.done == ()
        assert "in groups" in left(pruned)["0", "dead"]
