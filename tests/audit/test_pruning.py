"""Pruning: planted units go, outputs stay, and what is left alone is left with a reason."""

import copy
import itertools
import pickle

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
from records import changed
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils import prune as masks
from twin import left_alone

import mahalens
from mahalens.auditing.api import audit
from mahalens.auditing.batches import DataBatches as Batches
from mahalens.auditing.pruning import prune, verify_same_outputs
from mahalens.auditing.record import load_audit
from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU

X = draw(60, 6, seed=99)
MANY = draw(200, 6, seed=99)
PICTURES = draw(30, 2, 10, 10, seed=5)
POOLED = (nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool1d(1), nn.Flatten())


def within_rounding(smaller, model, x):
    """The outputs are as they were, within the rounding that the record states."""
    with torch.no_grad():
        wanted, got = model.eval()(x), smaller.eval()(x)
    assert float((wanted - got).abs().max() / wanted.abs().max()) <= smaller.pruned.rounding


def pruned_alike(model, x, layers, eps=None, **options):
    """Return the pruned model, whose outputs are the same."""
    smaller = prune(model, hand_record(model, x, layers), x, **options)
    same_outputs(smaller, model, x, eps=eps)
    return smaller


def pruned_twice(model, x, folder, eps=None):
    """Audit, save, load, prune and audit again: return the smaller model, which keeps the rest."""
    before = audit(model, x)
    before.save(folder / "audit.safetensors")
    smaller = prune(model, load_audit(folder / "audit.safetensors"), x)
    same_outputs(smaller, model, x, eps=eps)
    after = audit(smaller, x)
    assert all(layer.units.dead == () for layer in after.layers)
    assert len(after.layers) == len(before.layers)
    again = prune(smaller, after, x)
    assert (again.pruned.done, set(left(again))) == ((), set(left(smaller)))
    assert "units " in str(before.diff(after))
    return smaller


def two(first, second, **more):
    """The record's layers of a network of two, the first of which feeds the second."""
    return [{"name": first, "feeds": second, **more}, {"name": second, "activation": "none"}]


def network(**parts):
    return fill(nn.Sequential(nn.modules.container.OrderedDict(parts)))


def planted():
    """One dead unit, one duplicate and one mirrored pair in the first layer."""
    model = mlp()
    plant(model[0], model[2], dead=[1], copies=[(0, 3, 2.0)], mirrors=[(5, 8, 0.5)])
    return model


def fully_planted(dtype=torch.float32):
    model = mlp(dtype)
    plant(model[0], model[2], dead=[1, 4], copies=[(0, 3, 1.0), (2, 7, 2.7)])
    plant(model[0], model[2], mirrors=[(5, 8, 1.0), (6, 9, 0.3)])
    return model


class TestLinear:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_everything_at_once(self, dtype, tmp_path):
        model, x = fully_planted(dtype), MANY.to(dtype)
        centre(model, "2", x)
        plant(model[2], model[4], dead=[7], copies=[(0, 1, 0.5)])
        pruned = pruned_twice(model, x, tmp_path, eps=2e-5 if dtype == torch.float32 else 1e-12)
        assert done(pruned) == {
            ("0", "dead"): (1, 4),
            ("0", "duplicate"): ((0, 3), (2, 7)),
            ("0", "mirrored"): ((5, 8), (6, 9)),
            ("2", "dead"): (7,),
            ("2", "duplicate"): ((0, 1),),
        }
        assert pruned.pruned.left == ()
        assert [tuple(pruned[i].weight.shape) for i in (0, 2, 4)] == [(4, 6), (6, 4), (3, 6)]
        assert (pruned[0].out_features, pruned[2].in_features) == (4, 4)
        assert (pruned[2].out_features, pruned[4].in_features) == (6, 6)
        assert isinstance(pruned[1], AbsReLU)
        assert pruned[1].absolute.tolist() == [False, False, True, True]
        assert type(pruned[3]) is nn.ReLU
        assert pruned[0].weight.dtype == dtype

    @pytest.mark.parametrize(
        ("actions", "units"), [(("dead",), 8), ("duplicate", 8), (["mirrored"], 8), ((), 10)]
    )
    def test_only_what_is_asked_for(self, actions, units):
        model = fully_planted()
        pruned = pruned_alike(model, MANY, MLP, actions=actions)
        assert pruned[0].out_features == units
        assert (str(pruned.pruned) == "nothing was pruned") == (actions == ())

    @pytest.mark.parametrize("pairs", [None, ((5, 9), (2, 5), (1, 2))], ids=["all", "a chain"])
    def test_sets_of_duplicates_become_one(self, pairs):
        model = mlp()
        plant(model[0], copies=[(1, 2, 2.0), (1, 5, 0.25), (1, 9, 1.0)])
        record = hand_record(model, MANY, MLP)
        pruned = prune(model, with_pairs(record, 0, duplicate=pairs) if pairs else record, MANY)
        assert done(pruned) == {("0", "duplicate"): ((1, 2), (1, 5), (1, 9))}
        same_outputs(pruned, model, MANY)

    @pytest.mark.parametrize("pair", [(0, 1), (1, 2)])
    def test_a_pair_whose_units_have_duplicates(self, pair):
        model = mlp()
        plant(model[0], model[2], copies=[(0, 2, 2.0)], mirrors=[(0, 1, 1.0)])
        with torch.no_grad():  # v_0 + 2 v_2 = v_1, though no two are equal
            model[2].weight[:, 1] = model[2].weight[:, 0] + 2 * model[2].weight[:, 2]
        centre(model, "2", MANY)
        pruned = prune(model, with_pairs(hand_record(model, MANY, MLP), 0, mirrored=(pair,)), MANY)
        assert done(pruned) == {("0", "duplicate"): ((0, 2),), ("0", "mirrored"): ((0, 1),)}
        same_outputs(pruned, model, MANY)

    def test_all_units_in_pairs_are_plain_absolute_values(self):
        model = mlp()
        plant(model[0], model[2], mirrors=[(k, k + 5, 1.0) for k in range(5)])
        pruned = pruned_alike(model, MANY, MLP)
        assert type(pruned[1]) is Abs
        assert pruned[0].out_features == 5

    @pytest.mark.parametrize(
        ("plants", "bias", "action", "reason"),
        [
            ({"mirrors": [(0, 5, 1.0)], "equal_reads": False}, 0, "mirrored", "different weights"),
            ({"mirrors": [(0, 5, 1.0)]}, 0.01, "mirrored", "not the same hyperplane"),
            ({"copies": [(0, 5, 1.0)]}, None, "duplicate", "equal only nearly"),
        ],
    )
    def test_what_is_nearly_equal_stays(self, plants, bias, action, reason):
        model = mlp()
        plant(model[0], model[2], **plants)
        with torch.no_grad():
            if bias is None:
                model[0].bias[:] = 0  # so that only the directions differ
                model[0].weight[5, 0] += 1e-4
            else:
                model[0].bias[5] += bias
        record = hand_record(model, MANY, [{**MLP[0], "near": 1e-3}, *MLP[1:]])
        assert getattr(record.layers[0].pairs, action) == ((0, 5),)
        pruned = prune(model, record, MANY)
        assert pruned.pruned.done == ()
        assert reason in left(pruned)["0", action]
        same_outputs(pruned, model, MANY)

    @pytest.mark.parametrize(
        ("module", "name", "scaled", "mirrored"),
        [
            (Abs(), "abs", True, True),
            (nn.Identity(), "none", True, True),
            (nn.LeakyReLU(), "leaky_relu", True, False),
            (nn.Tanh(), "tanh", False, False),
            (nn.GELU(), "gelu", False, False),
        ],
        ids=str,
    )
    def test_other_activations(self, module, name, scaled, mirrored):
        model = mlp(activation=module)
        plant(model[0], copies=[(0, 3, 1.0), (2, 7, 2.5)])
        plant(model[0], mirrors=[(1, 4, 1.0), (5, 8, 2.5)], equal_reads=False)
        layers = [{**MLP[0], "activation": name}, *MLP[1:]]
        pruned = pruned_alike(model, MANY, layers)
        assert done(pruned)["0", "duplicate"] == (((0, 3), (2, 7)) if scaled else ((0, 3),))
        if not scaled:
            assert "does not scale" in left(pruned)["0", "duplicate"]
        if mirrored:  # however they are read
            assert done(pruned)["0", "mirrored"] == ((1, 4), (5, 8))
        else:
            assert f"not under {name}" in left(pruned)["0", "mirrored"]
        assert type(pruned[1]) is type(module)

    def test_a_layer_of_dead_units_keeps_one(self):
        model = mlp()
        plant(model[0], dead=range(10))
        pruned = pruned_alike(model, MANY, MLP)
        assert pruned[0].out_features == 1
        assert ("0", "dead") not in done(prune(pruned, hand_record(pruned, MANY, MLP), MANY))

    def test_a_loose_tolerance_does_not_make_units_dead(self):
        model = mlp()
        plant(model[0], dead=[1])
        record = hand_record(model, MANY, MLP, tolerance=3.0)
        assert len(record.layers[0].units.dead) > 1
        pruned = prune(model, record, MANY, actions="dead")
        assert done(pruned)["0", "dead"] == (1,)
        assert "2 makes more than rounding of it" in left(pruned)["0", "dead"]
        same_outputs(pruned, model, MANY)

    @pytest.mark.parametrize(
        ("parts", "shape", "smaller", "dim"),
        [
            ((nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)), (200, 6), (6, 6), -1),
            ((nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (20, 7, 6), (6, 6), -1),
            ((nn.Conv1d(2, 8, 3), *POOLED, nn.Linear(8, 3)), (20, 2, 9), (6, 2, 3), -2),
        ],
        ids=["without bias", "sequences", "one dimension"],
    )
    def test_layers_of_other_forms(self, parts, shape, smaller, dim):
        model, x = fill(nn.Sequential(*parts)), draw(*shape, seed=3)
        plant(model[0], model[-1], copies=[(0, 3, 2.0)], mirrors=[(1, 4, 0.5)])
        pruned = pruned_alike(model, x, two("0", str(len(parts) - 1)))
        assert (tuple(pruned[0].weight.shape), pruned[1].dim) == (smaller, dim)
        assert (pruned[0].bias is None) == (parts[0].bias is None)


def convnet(pool=None, dtype=torch.float32):
    model = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), pool or nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 5, 3, stride=2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(5 * 2 * 2, 7), nn.ReLU(), nn.Linear(7, 3)),
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
            for tensor in (conv.weight, conv.bias, norm.running_mean, norm.running_var):
                tensor[j] = tensor[i]
            norm.weight[j] = factor * norm.weight[i]
            norm.bias[j] = factor * norm.bias[i]
        for i, j, factor in mirrors:
            reader.weight[:, j] = reader.weight[:, i] / factor


def planted_convnet(x, dtype=torch.float32, pool=None):
    model = convnet(pool, dtype)
    plant_norm(model, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 1.5)])
    centre(model, "4", x)
    plant(model[4], model[7], dead=[0], mirrors=[(1, 3, 0.5)])
    centre(model, "7", x)
    plant(model[7], dead=[6], copies=[(0, 1, 3.0)])
    return model


PLANTED_CONVNET = {
    ("0", "dead"): (1,),
    ("0", "duplicate"): ((0, 2),),
    ("0", "mirrored"): ((3, 5),),
    ("4", "dead"): (0,),
    ("4", "mirrored"): ((1, 3),),
    ("7", "dead"): (6,),
    ("7", "duplicate"): ((0, 1),),
}


class TestConvolutions:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_batch_norm_pooling_and_flattening(self, dtype, tmp_path):
        x = PICTURES.to(dtype)
        model = planted_convnet(x, dtype)
        small = pruned_twice(model, x, tmp_path, eps=2e-5 if dtype == torch.float32 else 1e-12)
        assert done(small) == PLANTED_CONVNET
        assert small[0].weight.shape == (3, 2, 3, 3)
        assert (small[1].num_features, small[1].running_var.shape) == (3, (3,))
        assert small[2].absolute.tolist() == [False, True, False]
        assert small[4].weight.shape == (3, 3, 3, 3)
        assert (small[4].in_channels, small[4].out_channels) == (3, 3)
        assert small[7].weight.shape == (5, 12)
        small.train()
        small(x)  # the batch norm trains on
        with torch.no_grad():
            assert small.eval()(x[0:1]).shape == (1, 3)

    def test_max_pooling_keeps_pairs_but_not_the_rest(self):
        model = planted_convnet(PICTURES, pool=nn.MaxPool2d(2))
        pruned = pruned_alike(model, PICTURES, CONV, eps=1e-5)
        assert done(pruned) == {k: v for k, v in PLANTED_CONVNET.items() if k != ("0", "mirrored")}
        assert "max pooling follows" in left(pruned)["0", "mirrored"]

    @pytest.mark.parametrize("part", ["bias", "running_mean", "running_var"])
    def test_a_batch_norm_makes_equal_units_different(self, part):
        model = convnet()
        plant_norm(model, copies=[(0, 2, 2.0)])
        with torch.no_grad():
            getattr(model[1], part)[2] += 0.3
        record = with_pairs(hand_record(model, PICTURES, CONV), 0, duplicate=((0, 2),))
        pruned = prune(model, record, PICTURES, actions=["duplicate"])
        assert pruned.pruned.done == ()
        assert "equal only nearly" in left(pruned)["0", "duplicate"]


class Net(nn.Module):
    """Two layers with modules of their own between, called by the forward pass ``way``."""

    def __init__(self, way):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.relu, self.drop, self.abs = nn.ReLU(), nn.Dropout(), Abs()
        self.norm = nn.BatchNorm1d(8)
        self.way = way

    def forward(self, x):
        return self.way(self, x)

    def hidden(self, x):
        return self.relu(self.first(x))

    def plain(self, x):
        return self.second(self.hidden(x))

    def by_function(self, x):
        return functional.linear(x, self.first.weight, self.first.bias)


def net(way):
    model = fill(Net(way))
    plant(model.first, model.second, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 0.5)])
    return model


TWO = two("first", "second")
NET = {("first", "dead"): (1,), ("first", "duplicate"): ((0, 2),), ("first", "mirrored"): ((3, 5),)}


class TestForwardPasses:
    @pytest.mark.parametrize(
        "way",
        [
            lambda m, x: m.second(m.drop(m.hidden(x))),
            lambda m, x: m.second(m.hidden(x).view(x.size(0), -1)),
            lambda m, x: m.second(m.hidden(x).flatten(1)) * 2 + x[:, :3],
            lambda m, x: m.second((h := m.hidden(x)).reshape(h.shape[0], -1)),
            lambda m, x: m.second((h := m.hidden(x)).view((h.size(0), -1))),
        ],
    )
    def test_modules_of_any_kind(self, way):
        model = net(way)
        pruned = pruned_alike(model, X, TWO)
        assert done(pruned) == NET
        assert pruned.relu.absolute.tolist() == [False, True, False, False, False]

    @pytest.mark.parametrize(
        "way",
        [
            lambda m, x: m.second(functional.relu(m.first(x))),
            lambda m, x: m.second(m.first(x).relu()),
            lambda m, x: m.second(torch.relu(m.first(x))),
            lambda m, x: m.second(m.relu(m.first(m.relu(x) - m.relu(-x)))),  # used three times
        ],
    )
    def test_a_function_cannot_be_replaced(self, way):
        model = net(way)
        pruned = pruned_alike(model, X, TWO)
        assert str(pruned.pruned) == (
            "99 -> 79 parameters\n"
            "  first: 1 dead unit removed\n"
            "  first: 1 duplicate merged\n"
            "  first: 1 mirrored left: its ReLU is no module that is used once, so nothing can "
            "stand in its place"
        )

    @pytest.mark.parametrize(
        ("reason", "way"),
        [
            ("view gives its output a fixed", lambda m, x: m.second(m.hidden(x).view(-1, 8))),
            ("view gives its output", lambda m, x: m.second(m.hidden(x).view(x.size(0), 8))),
            ("mul reads its output", lambda m, x: m.second(m.hidden(x) * 2)),
            ("norm, a BatchNorm1d, reads", lambda m, x: m.second(m.norm(m.hidden(x)))),
            ("abs reads its output", lambda m, x: m.second(m.abs(m.hidden(x)))),
            ("sort reads its output", lambda m, x: m.second(m.hidden(x).sort(-1)[0])),
            ("2 parts of the network", lambda m, x: m.second((h := m.hidden(x)) / h.shape[1])),
            ("2 parts of the network", lambda m, x: m.second(h := m.hidden(x)) + h[:, :3]),
            ("2 parts of the network", lambda m, x: m.second(h := m.hidden(x)) / h.size(1)),
            ("2 parts of the network", lambda m, x: m.second(h := m.hidden(x)) / h.shape[-1]),
            ("first is not called as a module", lambda m, x: m.second(m.by_function(x).relu())),
            ("parameters of first", lambda m, x: m.second(m.hidden(x)) + m.first.bias.sum()),
            ("called as a module exactly once", lambda m, x: m.plain(x) + m.plain(-x)),
            ("cannot be followed", lambda m, x: m.plain(x) if x.sum() < 9e9 else m.first(x)),
            ("own output", lambda m, x: (m.hidden(x), m.second(x[:, :1].expand(-1, 8)))),
        ],
    )
    def test_ways_that_are_not_plain(self, way, reason):
        model = net(way)
        plain = copy.deepcopy(model)
        plain.way = Net.plain
        pruned = prune(model, hand_record(plain, X, TWO), X)
        assert pruned.pruned.done == ()
        assert set(left(pruned)) == set(NET)
        assert all(reason in text for text in left(pruned).values()), left(pruned)

    @pytest.mark.parametrize(
        ("reason", "way"),
        [
            ("own output", lambda m, x: m.hidden(x)),
            ("add combines its output", lambda m, x: m.second(x[:, :1] + m.hidden(x))),
            ("add combines its output", lambda m, x: m.second(m.hidden(x) + x[:, :1])),
            ("2 parts of the network", lambda m, x: m.second(h := m.hidden(x)) + h[:, :3]),
            ("norm, a BatchNorm1d, reads", lambda m, x: m.second(m.norm(m.hidden(x)))),
            ("cannot be followed", lambda m, x: m.plain(x) if x.sum() < 9e9 else m.first(x)),
        ],
    )
    def test_the_reader_that_an_audit_does_not_name(self, way, reason):
        model = net(way)
        record = hand_record(model, X, [{"name": "first"}])
        assert reason in left(prune(model, record, X))["first", "dead"]

    @pytest.mark.parametrize(
        ("way", "reason"),
        [
            (lambda m, x: m.second(m.relu(m.norm(m.first(x)))), "the batch norm that the audit"),
            (lambda m, x: m.second(m.first(x)), "the activation that the audit saw"),
        ],
    )
    def test_what_the_audit_did_not_see(self, way, reason):
        model = net(way)
        assert reason in left(prune(model, hand_record(model, X, TWO), X))["first", "dead"]

    def test_a_module_that_looks_at_its_input(self):
        class Guard(nn.Module):
            def forward(self, x):
                return x if x.abs().max() < 1e9 else x * 0

        model = nn.Sequential(Guard(), *mlp())
        plant(model[1], model[3], dead=[1])
        layers = [{"name": "1", "feeds": "3"}, *two("3", "5")]
        pruned = pruned_alike(model, X, layers, actions="dead")
        assert done(pruned)["1", "dead"] == (1,)

    @pytest.mark.parametrize("first", [True, False])
    def test_transformer(self, first, tmp_path):
        inner = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=first)
        model = fill(nn.TransformerEncoder(inner, 1, enable_nested_tensor=False))
        inner, x = model.layers[0], draw(30, 5, 4, seed=2)
        torch.backends.mha.set_fastpath_enabled(False)
        centre(model, "layers.0.linear1", x)
        torch.backends.mha.set_fastpath_enabled(True)
        plant(inner.linear1, inner.linear2, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 0.5)])
        pruned = pruned_twice(model, x, tmp_path, eps=1e-4)
        name = "layers.0.linear1"
        assert done(pruned) == {(name, "dead"): (1,), (name, "duplicate"): ((0, 2),)}
        assert "nothing can stand" in left(pruned)[name, "mirrored"]


class Odd(nn.Linear):
    pass


def with_other_forward(model):
    linear = model[0]
    linear.forward = lambda x: functional.linear(x, linear.weight, linear.bias)


def with_view(model):
    model.register_parameter("part", nn.Parameter(model[0].weight.data.flatten()[:3]))


UNCHANGEABLE = {
    "0 has parametrised weights": lambda m: parametrizations.weight_norm(m[0]),
    "2 has parametrised weights": lambda m: parametrizations.weight_norm(m[2]),
    "computed from others": lambda m: masks.random_unstructured(m[0], "weight", 0.2),
    "shares its weight with tied": lambda m: m.register_parameter("tied", m[0].weight),
    "shares its weight with part": with_view,
    "is a Odd, not a plain": lambda m: setattr(m[0], "__class__", Odd),
    "another forward": with_other_forward,
    "0 has a hook": lambda m: m[0].register_forward_hook(zero_a_unit),
    "1 has a hook": lambda m: m[1].register_forward_hook(zero_a_unit),
    "2 has a hook": lambda m: m[2].register_forward_pre_hook(lambda m, args: zero(args[0])),
}


def zero(tensor):
    tensor[:, 5] = 0


def zero_a_unit(module, args, output):
    zero(output)


class TestWhatIsLeftAlone:
    def reason(self, model, layers=MLP, record=None):
        smaller = prune(model, record or hand_record(model, X, layers), X)
        assert not any(layer == "0" for layer, _ in done(smaller))
        same_outputs(smaller, model, X)
        return left(smaller)["0", "dead"]

    @pytest.mark.parametrize("reason", UNCHANGEABLE)
    def test_modules_that_cannot_be_changed(self, reason):
        model = planted()
        UNCHANGEABLE[reason](model)
        assert reason in self.reason(model)

    @pytest.mark.parametrize(
        ("layers", "reason"),
        [
            ([{**MLP[0], "calls": 2}, *MLP[1:]], "used 2 times"),
            ([MLP[0], {**MLP[1], "calls": 2}, MLP[2]], "2 reads other things too"),
            ([{"name": "0"}, *MLP[1:]], "not read by one plain Linear or convolution alone"),
        ],
    )
    def test_layers_that_are_used_otherwise(self, layers, reason):
        assert reason in self.reason(planted(), layers)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_programs(self):
        model = planted()
        assert "exported program" in self.reason(torch.fx.symbolic_trace(model))
        record = hand_record(model, X, MLP)
        assert "TorchScript" in self.reason(torch.jit.trace(model, X), record=record)

    def test_activations_with_parameters(self):
        model = mlp(activation=nn.PReLU(10))
        plant(model[0], dead=[1])
        record = changed(hand_record(model, X, MLP), activation="prelu")
        assert "not the same for all units" in self.reason(model, record=record)

    def test_the_last_layer(self):
        model = mlp()
        plant(model[4], copies=[(0, 1, 1.0)])
        pruned = prune(model, hand_record(model, X, MLP[2:]), X)
        assert pruned.pruned.done == ()
        assert ("4", "duplicate") in left(pruned)

    @pytest.mark.parametrize("part", [1, 3])
    def test_hooks_on_a_norm_or_dropout(self, part):
        parts = (nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout())
        model = fill(nn.Sequential(nn.Linear(6, 8), *parts, nn.Linear(8, 3)))
        with torch.no_grad():
            model[1].bias[1] = -100
        model[part].register_forward_hook(zero_a_unit)
        assert f"{part} has a hook" in self.reason(model, two("0", "4", norm="1"))

    def test_a_hook_on_all_modules(self):
        model = planted()
        record = hand_record(model, X, MLP)
        handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
        try:
            assert "a hook on all modules" in self.reason(model, record=record)
        finally:
            handle.remove()

    def test_a_hook_on_what_holds_the_layers(self):
        model = nn.Sequential(planted()[:2], *planted()[2:])
        model[0].register_forward_hook(zero_a_unit)
        layers = [{"name": "0.0", "feeds": "1"}, {"name": "1", "feeds": "3"}]
        smaller = prune(model, hand_record(model, X, layers), X)
        assert smaller.pruned.done == ()
        within_rounding(smaller, model, X)


class Shared(nn.Module):
    """One batch norm after two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.other, self.end = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.relu = nn.BatchNorm1d(8), nn.ReLU()

    def forward(self, x):
        rest = self.norm(self.other(x)).sum(1)[:, None]
        return self.end(self.relu(self.norm(self.first(x)))) + rest


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.end = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x).relu()
        return self.end(nn.functional.avg_pool1d(h, 3, stride=1, padding=1))


def between(first, *parts, end=8):
    """A first layer, parts, and a Linear that ends the network."""
    named = {f"part{i}": part for i, part in enumerate(parts)}
    return network(first=first, **named, end=nn.Linear(end, 3))


POOLING = "pooling takes several of its units together"
LINEAR, NORM, GROUPED = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Conv2d(2, 4, 3, groups=2)
CONV_4, CONV_8 = (nn.Conv1d(2, channels, 3, padding=1) for channels in (4, 8))


class TestShapes:
    """Each reads other things than a unit of the layer before it."""

    @pytest.mark.parametrize(
        ("model", "shape", "norm", "reason"),
        [
            (Shared(), (6,), "norm", "norm follows several layers"),
            (between(CONV_8, nn.ReLU()), (2, 8), None, "end reads along another axis"),
            # of [B, C, L] the pooling takes B for the channels
            (between(CONV_4, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (2, 8), None, POOLING),
            (between(LINEAR, nn.ReLU(), nn.AdaptiveAvgPool1d(8)), (5, 6), None, POOLING),
            (between(LINEAR, nn.ReLU(), nn.AdaptiveMaxPool1d(8)), (5, 6), None, POOLING),
            (Pooled(), (5, 6), None, POOLING),
            (between(LINEAR, NORM, nn.ReLU()), (8, 6), "part0", "works along another axis"),
            (between(LINEAR, nn.ReLU(), nn.Flatten(), end=40), (5, 6), None, "mixes its units"),
            (between(GROUPED, nn.ReLU(), nn.Flatten(), end=16), (2, 4, 4), None, "in groups"),
        ],
    )
    def test_other_axes(self, model, shape, norm, reason):
        model, x = fill(copy.deepcopy(model)), draw(20, *shape)
        plant(model.first, dead=[1])
        record = hand_record(model, x, two("first", "end", norm=norm))
        smaller = prune(model, with_pairs(record, 0, duplicate=((0, 2),)), x)
        assert reason in left(smaller)["first", "duplicate"], left(smaller)
        within_rounding(smaller, model, x)

    def test_a_relu_behind_flattening_is_not_replaced(self):
        model = between(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.ReLU(), end=24)
        plant(model.first, model.end, dead=[1], mirrors=[(0, 2, 0.5)])
        x = draw(20, 2, 8)
        smaller = prune(model, hand_record(model, x, two("first", "end")), x)
        assert done(smaller) == {("first", "dead"): (1,)}
        within_rounding(smaller, model, x)


class TestSmallNumbers:
    """Hidden values of 1e-7 that outgoing weights of 1e7 make large."""

    def scaled(self, factor, units=slice(None), reads=1.0):
        model = mlp()
        with torch.no_grad():
            model[0].weight[units] *= factor
            model[0].bias[units] *= factor
            model[2].weight[:, units] *= reads
        return model

    def test_only_the_dead_ones_among_them_go(self):
        model = self.scaled(1e-7, reads=1e7)
        plant(model[0], dead=[1, 4])
        record = hand_record(model, X, MLP)
        assert len(record.layers[0].units.dead) == 10
        smaller = prune(model, record, X)
        assert done(smaller)["0", "dead"] == (1, 4)
        assert "2 makes more than rounding of it" in left(smaller)["0", "dead"]
        within_rounding(smaller, model, X)

    # Read with a ten-thousandth of the others' weight it is no rounding; else it is.
    @pytest.mark.parametrize(("factor", "reads", "gone"), [(1e-8, 1e4, None), (1e-9, 1.0, (3,))])
    def test_one_small_unit(self, factor, reads, gone):
        model = self.scaled(factor, 3, reads)
        smaller = prune(model, hand_record(model, X, MLP), X)
        assert done(smaller).get(("0", "dead")) == gone
        within_rounding(smaller, model, X) if gone else None

    def test_biases_of_small_inputs_are_not_equal(self):
        model, x = mlp(), 1e-7 * X
        with torch.no_grad():
            model[0].weight[3] = model[0].weight[0]
            model[0].bias.mul_(1e-7)
            model[0].bias[3] = model[0].bias[0] + 3e-8
        record = with_pairs(hand_record(model, x, MLP), 0, duplicate=((0, 3),))
        smaller = prune(model, record, x, actions="duplicate")
        assert "equal only nearly" in left(smaller)["0", "duplicate"]


class Sized(nn.Module):
    """Two blocks; the first looks at the number of units in a way that no graph shows."""

    def __init__(self, odd):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.c, self.d = nn.Linear(8, 8), nn.Linear(8, 3)
        self.first, self.second, self.third = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.odd = odd

    def forward(self, x):
        h = self.b(self.first(self.a(x))) * self.odd(self)
        return self.d(self.third(self.c(self.second(h))))


def shrink(model):
    return model.a.out_features / 8


def fail(model):
    if model.a.out_features != 8:
        raise ValueError("wanted 8\nunits")
    return 1.0


class Noisy(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + torch.rand(3)


class Doubling(nn.Sequential):
    """Writes to its input."""

    def forward(self, x):
        return super().forward(x.mul_(2))


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = planted()

    def forward(self, x, scale):
        return {"y": self.net(x) * scale}


class Counted(nn.Sequential):
    runs = 0

    def forward(self, x):
        type(self).runs += 1
        return super().forward(x)


class TestVerification:
    @pytest.mark.parametrize(
        ("odd", "reason"),
        [(shrink, "changes an output by "), (fail, "makes the model fail (wanted 8 units)")],
    )
    def test_the_layer_that_changes_an_output_is_taken_back(self, odd, reason):
        model = fill(Sized(odd))
        plant(model.a, dead=[1])
        plant(model.c, model.d, dead=[2], mirrors=[(0, 3, 1.0)])
        layers = [{"name": "a", "feeds": "b"}, {"name": "b"}, *two("c", "d")]
        smaller = prune(model, hand_record(model, X, layers), X, batch_size=7)
        (undone,) = smaller.pruned.taken_back
        assert (undone.layer, undone.action) == ("a", "dead")
        assert reason in undone.reason
        assert set(done(smaller)) == {("c", "dead"), ("c", "mirrored")}
        assert f"a: 1 dead taken back: {reason}" in str(smaller.pruned)
        assert (smaller.pruned.samples, smaller.a.out_features) == (60, 8)
        within_rounding(smaller, model, X)

    def test_a_change_in_a_single_sample(self):
        model = planted()
        record = hand_record(model, X, MLP)
        with torch.no_grad():  # one sample more than the audit saw, which wakes the dead unit
            new = 1000 * model[0].weight[1] / model[0].weight[1].square().sum() * 1.5
        data = torch.cat([X, new[None]])
        smaller = prune(model, record, data, batch_size=10)
        assert ("0", "dead") not in done(smaller)
        within_rounding(smaller, model, data)

    def test_what_it_measures_and_how_often_the_model_runs(self):
        model = Counted(*planted())
        record = hand_record(model, X, MLP)
        Counted.runs = 0
        pruned = prune(model, record, X, batch_size=9).pruned
        assert Counted.runs <= 2 * 7 + 2  # seven batches; three samples for shapes, and the graph
        assert pruned.samples == 60
        assert pruned.rounding == pytest.approx(16 * 3 * torch.finfo(torch.float32).eps)
        assert 0 <= pruned.change <= pruned.rounding
        assert pruned.taken_back == ()

    @pytest.mark.parametrize("kind", [Noisy, Doubling])
    def test_models_that_are_random_or_write_to_their_input(self, kind):
        model = kind(*planted())
        pruned = prune(model, hand_record(model, X.clone(), MLP), X.clone()).pruned
        assert pruned.done
        assert pruned.taken_back == ()

    def test_forward(self):
        model = Named()
        record = audit(model, X, forward=lambda m, x: m(x, 2.0))
        smaller = prune(model, record, X, forward=lambda m, x: m(x, 2.0))
        assert smaller.net[0].out_features < 10

        def stubborn(m, x):
            return model(x, 2.0)

        assert "is not called" in left(prune(model, record, X, forward=stubborn))["net.0", "dead"]
        with pytest.raises(InputError, match="forward does not run the model that it is given"):
            verify_same_outputs(model, smaller, Batches(X, 16), stubborn)


class Gives(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def forward(self, x):
        return self.give(x)


def compared(one, other, x=X):
    return verify_same_outputs(Gives(one), Gives(other), Batches(x, 16))


class TestComparison:
    @pytest.mark.parametrize(
        "give",
        [
            lambda x: (x / 0, x),
            lambda x: x * torch.nan,
            lambda x: {"a": [x], "n": 3, "f": 0.5},
            lambda x: x.argmax(1),
            lambda x: x.to_sparse(),
            lambda x: x[:0],
            lambda x: None,
        ],
    )
    def test_a_model_equals_itself(self, give):
        assert compared(give, give).fault == ""

    def test_rounding_is_relative_to_the_largest_output_of_all_batches(self):
        assert compared(lambda x: x, lambda x: x * (1 + 1e-7)).fault == ""
        assert compared(lambda x: x.relu() * (x < 0), lambda x: x * 0).fault == ""
        x = torch.cat([torch.full((16, 2), 1e-6), torch.ones(16, 2)])
        assert compared(lambda x: x, lambda x: x + 1e-7, x).fault == ""

    @pytest.mark.parametrize(
        ("one", "other", "fault"),
        [
            (lambda x: x, lambda x: x * 1.12, "changes an output by 12 %"),
            (lambda x: (x, x), lambda x: (x, x + 1e-4), "changes an output by 0.00"),
            (lambda x: x, lambda x: x / 0, "infinite amount, or makes it NaN"),
            (lambda x: x, lambda x: torch.where(x == x[3, 1], torch.nan, x), "makes it NaN"),
            (lambda x: x / 0, lambda x: -x / 0, "infinite amount"),
            (lambda x: x * 0, lambda x: x * 1e-30, "changes an output by more than rounding"),
            (lambda x: x.argmax(1), lambda x: x.argmin(1), "whole numbers of an output"),
            (lambda x: x > 0, lambda x: x < 9, "whole numbers of an output"),
            (lambda x: x, lambda x: x[:, :3], "an output of shape [16, 3] instead of [16, 6]"),
            (lambda x: {"a": x}, lambda x: {"b": x}, "another form"),
            (lambda x: x, lambda x: x @ x, "makes the model fail (mat1 and mat2"),
        ],
    )
    def test_not_equal(self, one, other, fault):
        comparison = compared(one, other)
        assert fault in comparison.fault
        assert comparison.batch is not None


class TestNothingElseChanges:
    def test_the_model_given(self):
        model = planted()
        record = hand_record(model, X, MLP)
        model.train()
        model[3].eval()
        model(X).sum().backward()
        with left_alone(model):
            prune(model, record, X)

    def test_things_a_forward_pass_keeps(self):
        model = net(lambda m, x: m.seen.append(x) or m.second(m.relu(m.first(x))))
        model.seen = []
        record = hand_record(model, X, TWO)
        model.seen.clear()
        pruned = prune(model, record, X)
        assert done(pruned) == NET
        assert model.seen == pruned.seen == []

    def test_modes_and_frozen_parameters(self):
        model = planted()
        record = hand_record(model, X, MLP)
        model[0].weight.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        model.train()
        model[1].eval()
        small = prune(model, record, X)
        frozen = [p.requires_grad for p in small.parameters()]
        assert frozen == [False, True, True, False, True, True]
        assert [m.training for m in small] == [True, False, True, True, True]
        assert isinstance(small[1], AbsReLU)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision(self, dtype):
        model, x = planted().to(dtype), X.to(dtype)
        small = prune(model, hand_record(model, x, MLP), x)
        assert small[0].out_features < 10
        assert {p.dtype for p in small.parameters()} == {dtype}
        torch.testing.assert_close(small(x), model(x), rtol=0.05, atol=0.1)

    def test_the_model_returned_is_a_model_like_any_other(self):
        model = planted()
        small = prune(model, hand_record(model, X, MLP), X)
        assert type(small) is nn.Sequential
        assert set(small.state_dict()) - {"1.absolute"} == set(model.state_dict())
        wanted = small(X)
        for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
            assert torch.equal(other(X), wanted)
            assert other.pruned == small.pruned
        program = torch.export.export(small.eval(), (X,))
        torch.testing.assert_close(program.module()(X), wanted)
        assert "pruned" not in repr(small)
        assert not hasattr(model, "pruned")
        before = [p.clone() for p in small.train().parameters()]
        small(X).square().mean().backward()  # training goes on
        torch.optim.SGD(small.parameters(), 0.01).step()
        assert not any(map(torch.equal, small.parameters(), before))


class Stubborn(nn.Sequential):
    def __deepcopy__(self, memo):
        raise RuntimeError("only one\nof me")


def trained_since():
    model = planted()
    with torch.no_grad():
        model[0].weight *= 1.01
    return model


def with_attribute():
    model = planted()
    model.pruned = False
    return model


OTHER = nn.Sequential(nn.Linear(6, 9), *mlp()[1:])


class TestRefusals:
    """Each call is refused in one line; the record is that of ``planted()``."""

    @pytest.mark.parametrize(
        ("message", "call"),
        {
            "no layer '2', but the record does": lambda r: prune(mlp()[:2], r, X),
            "layer 0 has 9 units of 6 inputs in the model and 10 of": lambda r: prune(OTHER, r, X),
            "give the model that was audited": lambda r: prune(prune(planted(), r, X), r, X),
            "weights of 0 are not those that were audited": lambda r: prune(trained_since(), r, X),
            "there are dead, duplicate, mirrored": lambda r: prune(mlp(), r, X, actions=["all"]),
            "is a dict, wanted an nn.Module": lambda r: prune({}, r, X),
            r"cannot be copied \(only one of me\)": lambda r: prune(Stubborn(*planted()), r, X),
            "has an attribute 'pruned', where prune": lambda r: prune(with_attribute(), r, X),
            "data is None; give the data of the audit": lambda r: mahalens.prune(planted(), r),
            "the model fails on the data": lambda r: prune(planted(), r, X[:, :4]),
            "the data is a int": lambda r: prune(planted(), r, 3),
            "no samples": lambda r: prune(planted(), r, []),
            "from activations alone": lambda r: prune(planted(), changed(r, kind="features"), X),
        }.items(),
    )
    def test_one_line(self, message, call):
        with pytest.raises(InputError, match=message) as caught:
            call(hand_record(planted(), X, MLP))
        assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    widths=st.lists(st.integers(2, 9), min_size=2, max_size=4),
    convolution=st.booleans(),
    norm=st.booleans(),
    pool=st.sampled_from([None, nn.AvgPool1d, nn.MaxPool1d]),
    activation=st.sampled_from([nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Identity]),
    scale=st.sampled_from([1.0, 1e-6, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_random_networks_keep_their_outputs(
    seed, widths, convolution, norm, pool, activation, scale, dtype
):
    draws = torch.Generator().manual_seed(seed)

    def pick(units):
        return int(torch.randint(units, (), generator=draws))

    parts, before, length = [], 3, 12
    for width in widths:
        layer = nn.Conv1d(before, width, 3, padding=1) if convolution else nn.Linear(before, width)
        parts += [layer, *([nn.BatchNorm1d(width)] if norm else []), activation()]
        if convolution and pool is not None and length > 3:
            parts.append(pool(2))
            length //= 2
        before = width
    end = [nn.Flatten(), nn.Linear(before * length, 3)] if convolution else [nn.Linear(before, 3)]
    model = fill(nn.Sequential(*parts, *end), seed).to(dtype)
    layers = [part for part in model if isinstance(part, nn.Linear | nn.Conv1d)]
    for layer, reader in itertools.pairwise(layers):
        units = len(layer.weight)
        for kind in ("dead", "copies", "mirrors"):
            i, j = pick(units), pick(units)
            factor = 2.0 ** (pick(7) - 3)
            if kind == "dead":
                # Without an activation none is dead, and mirrors of its bias of -1000 cancel.
                plant(layer, dead=[i] if pick(2) and activation is not nn.Identity else [])
            elif i != j and pick(2):
                plant(layer, reader, **{kind: [(i, j, factor)]})
        with torch.no_grad():  # small hidden values that are read loudly
            layer.weight.mul_(scale)
            layer.bias.mul_(scale)
            reader.weight.div_(scale)
    x = draw(*((40, 3, 12) if convolution else (40, 3)), seed=seed, dtype=dtype)
    smaller = prune(model, audit(model, x), x)
    with torch.no_grad():
        wanted, got = model(x), smaller(x)
    limit = 16 * len(layers) * torch.finfo(dtype).eps * float(wanted.abs().max())
    assert float((wanted - got).abs().max()) <= limit
    assert smaller.pruned.taken_back == ()


def test_a_weight_that_changes_when_it_is_read_is_left_alone():
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(5, 6)), nn.ReLU(), nn.Linear(6, 2)
    )
    x = torch.randn(20, 5)
    record = audit(model, x)
    before = copy.deepcopy(model.state_dict())
    prune(model, record, x)
    after = model.state_dict()
    assert model.training
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_compiled_part_is_pruned_like_any_other():
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), nn.ReLU())
    with torch.no_grad():
        model[0][0].weight[2], model[0][0].bias[2] = 0, -1
    x = torch.randn(20, 5)
    model[0] = torch.compile(model[0], backend="eager")
    smaller = prune(model, audit(model, x), x)
    assert [(step.layer, step.units) for step in smaller.pruned.done] == [("0.0", (2,))]
    with torch.no_grad():
        torch.testing.assert_close(smaller(x), model(x))
