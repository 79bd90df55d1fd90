"""Pruning never changes an output: what once did, what verification takes back, and the laws."""

import copy
import itertools
import pickle

import pytest
import torch
from hand_records import MLP, done, draw, fill, hand_record, left, mlp, plant, with_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mahalens
from mahalens.auditing.network import audit
from mahalens.auditing.pruning.apply import prune
from mahalens.auditing.pruning.outputs import verify_same_outputs
from mahalens.auditing.watch.batches import Batches
from mahalens.errors import InputError

X = draw(60, 6, seed=99)


def taken_back(smaller):
    return {(step.layer, step.action): step.reason for step in smaller.pruned.taken_back}


def within_rounding(smaller, model, x):
    """The outputs are as they were, within the rounding that the record states."""
    with torch.no_grad():
        wanted, got = model.eval()(x), smaller.eval()(x)
    change = float((wanted - got).abs().max() / wanted.abs().max())
    assert change <= smaller.pruned.rounding


def planted():
    model = mlp()
    plant(model[0], model[2], dead=[1], copies=[(0, 3, 2.0)], mirrors=[(5, 8, 0.5)])
    return model


class TestHooks:
    def zero_a_unit(self, module, args, output):
        output[:, 5] = 0

    def zero_an_input(self, module, args):
        args[0][:, 5] = 0

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_that_write_to_a_unit(self, place):
        model = planted()
        if place == 2:
            model[2].register_forward_pre_hook(self.zero_an_input)
        else:
            model[place].register_forward_hook(self.zero_a_unit)
        smaller = prune(model, hand_record(model, X, MLP), X)
        assert not any(layer == "0" for layer, _ in done(smaller))
        assert f"{place} has a hook" in left(smaller)["0", "dead"]
        within_rounding(smaller, model, X)

    @pytest.mark.parametrize("part", [1, 3])
    def test_on_a_norm_or_dropout(self, part):
        model = fill(
            nn.Sequential(
                nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)
            )
        )
        with torch.no_grad():
            model[1].bias[1] = -100
        model[part].register_forward_hook(self.zero_a_unit)
        layers = [{"name": "0", "norm": "1", "feeds": "4"}, {"name": "4", "activation": "none"}]
        smaller = prune(model, hand_record(model, X, layers), X)
        assert f"{part} has a hook" in left(smaller)["0", "dead"]

    def test_on_all_modules(self):
        model = planted()
        record = hand_record(model, X, MLP)
        handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
        try:
            smaller = prune(model, record, X)
        finally:
            handle.remove()
        assert "a hook on all modules" in left(smaller)["0", "dead"]

    def test_on_what_holds_the_layers(self):
        model = nn.Sequential(planted()[:2], *planted()[2:])
        model[0].register_forward_hook(self.zero_a_unit)
        layers = [{"name": "0.0", "feeds": "1"}, {"name": "1", "feeds": "3"}]
        smaller = prune(model, hand_record(model, X, layers), X)
        assert smaller.pruned.done == ()
        within_rounding(smaller, model, X)


class TestShapes:
    """Each reads other things than a unit of the layer before it."""

    def refused(self, model, x, layers, reason, dead=1):
        plant(model.get_submodule(layers[0]["name"]), dead=[dead])
        record = hand_record(model, x, [*layers, {"name": "end", "activation": "none"}])
        smaller = prune(model, record, x)
        assert reason in left(smaller)[layers[0]["name"], "dead"], left(smaller)
        within_rounding(smaller, model, x)

    def net(self, **parts):
        return fill(nn.Sequential(nn.modules.container.OrderedDict(parts)))

    def test_one_batch_norm_after_two_layers(self):
        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.end = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
                self.norm, self.relu = nn.BatchNorm1d(8), nn.ReLU()

            def forward(self, x):
                return (
                    self.end(self.relu(self.norm(self.a(x)))) + self.norm(self.b(x)).sum(1)[:, None]
                )

        model = fill(Shared())
        with torch.no_grad():
            model.a.bias[1] = -1000
        layers = [{"name": "a", "norm": "norm", "feeds": "end"}]
        record = hand_record(model, X, [*layers, {"name": "end", "activation": "none"}])
        smaller = prune(model, with_pairs(record, 0, duplicate=((0, 2),)), X)
        assert "norm follows several layers" in left(smaller)["a", "duplicate"]
        within_rounding(smaller, model, X)

    def test_a_linear_over_the_positions_of_a_convolution(self):
        model = self.net(conv=nn.Conv1d(2, 8, 3, padding=1), relu=nn.ReLU(), end=nn.Linear(8, 3))
        layers = [{"name": "conv", "feeds": "end"}]
        self.refused(model, draw(20, 2, 8), layers, "end reads along another axis")

    def test_pooling_across_channels(self):
        model = self.net(
            conv=nn.Conv1d(2, 4, 3, padding=1),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),  # of [B, C, L] it takes B for the channels
            flat=nn.Flatten(),
            end=nn.Linear(8, 3),
        )
        layers = [{"name": "conv", "feeds": "end"}]
        self.refused(model, draw(20, 2, 8), layers, "pooling takes several of its units together")

    @pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d])
    def test_pooling_of_a_sequence_along_its_units(self, pool):
        model = self.net(first=nn.Linear(6, 8), relu=nn.ReLU(), pool=pool(8), end=nn.Linear(8, 3))
        layers = [{"name": "first", "feeds": "end"}]
        self.refused(model, draw(20, 5, 6), layers, "pooling takes several of its units together")

    def test_pooling_by_a_function(self):
        class Pooled(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.end = nn.Linear(6, 8), nn.Linear(8, 3)

            def forward(self, x):
                h = self.first(x).relu()
                return self.end(nn.functional.avg_pool1d(h, 3, stride=1, padding=1))

        layers = [{"name": "first", "feeds": "end"}]
        self.refused(fill(Pooled()), draw(20, 5, 6), layers, "pooling takes several of its units")

    def test_a_batch_norm_over_positions(self):
        model = self.net(
            first=nn.Linear(6, 8), norm=nn.BatchNorm1d(8), relu=nn.ReLU(), end=nn.Linear(8, 3)
        )
        with torch.no_grad():
            model.first.weight[2], model.first.bias[2] = model.first.weight[0], model.first.bias[0]
        x = draw(20, 8, 6)
        layers = [{"name": "first", "norm": "norm", "feeds": "end"}]
        record = hand_record(model, x, [*layers, {"name": "end", "activation": "none"}])
        smaller = prune(model, with_pairs(record, 0, duplicate=((0, 2),)), x)
        assert "works along another axis" in left(smaller)["first", "duplicate"]

    def test_flattening_a_sequence(self):
        model = self.net(
            first=nn.Linear(6, 8), relu=nn.ReLU(), flat=nn.Flatten(), end=nn.Linear(40, 3)
        )
        self.refused(model, draw(20, 5, 6), [{"name": "first", "feeds": "end"}], "mixes its units")

    def test_a_relu_behind_flattening_is_not_replaced(self):
        model = self.net(
            conv=nn.Conv1d(2, 4, 3), flat=nn.Flatten(), relu=nn.ReLU(), end=nn.Linear(24, 3)
        )
        plant(model.conv, model.end, dead=[1], mirrors=[(0, 2, 0.5)])
        x = draw(20, 2, 8)
        layers = [{"name": "conv", "feeds": "end"}, {"name": "end", "activation": "none"}]
        smaller = prune(model, hand_record(model, x, layers), x)
        assert done(smaller) == {("conv", "dead"): (1,)}
        within_rounding(smaller, model, x)


class TestSmallNumbers:
    """Hidden values of 1e-7 that outgoing weights of 1e7 make large."""

    def tiny(self):
        model = mlp()
        with torch.no_grad():
            model[0].weight *= 1e-7
            model[0].bias *= 1e-7
            model[2].weight *= 1e7
        return model

    def test_small_units_are_not_dead(self):
        model = self.tiny()
        record = hand_record(model, X, MLP)
        assert len(record.layers[0].units.dead) == 10
        smaller = prune(model, record, X)
        assert "2 makes more than rounding of it" in left(smaller)["0", "dead"]
        within_rounding(smaller, model, X)

    def test_dead_ones_among_them_go(self):
        model = self.tiny()
        plant(model[0], dead=[1, 4])
        smaller = prune(model, hand_record(model, X, MLP), X)
        assert done(smaller)["0", "dead"] == (1, 4)
        within_rounding(smaller, model, X)

    def test_one_small_unit_that_is_read_loudly(self):
        model = mlp()
        with torch.no_grad():
            model[0].weight[3] *= 1e-8
            model[0].bias[3] *= 1e-8
            model[2].weight[:, 3] *= 1e4  # a ten-thousandth of the others: no rounding
        smaller = prune(model, hand_record(model, X, MLP), X)
        assert ("0", "dead") not in done(smaller)

    def test_units_below_rounding_go(self):
        model = mlp()
        with torch.no_grad():
            model[0].weight[3] *= 1e-9
            model[0].bias[3] *= 1e-9
        smaller = prune(model, hand_record(model, X, MLP), X)
        assert done(smaller)["0", "dead"] == (3,)
        within_rounding(smaller, model, X)

    def test_biases_of_small_inputs_are_not_equal(self):
        model, x = mlp(), 1e-7 * X
        with torch.no_grad():
            model[0].weight[3], model[0].bias[3] = model[0].weight[0], model[0].bias[0] + 1e-7
            model[0].bias.mul_(1e-7)
            model[0].bias[3] = model[0].bias[0] + 3e-8
        record = with_pairs(hand_record(model, x, MLP), 0, duplicate=((0, 3),))
        assert (
            "equal only nearly"
            in left(prune(model, record, x, actions="duplicate"))["0", "duplicate"]
        )


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


SIZED = (
    {"name": "a", "feeds": "b"},
    {"name": "b"},
    {"name": "c", "feeds": "d"},
    {"name": "d", "activation": "none"},
)


def sized(odd):
    model = fill(Sized(odd))
    plant(model.a, dead=[1])
    plant(model.c, model.d, dead=[2], mirrors=[(0, 3, 1.0)])
    return model


def shrink(model):
    return model.a.out_features / 8


def fail(model):
    if model.a.out_features != 8:
        raise ValueError("wanted 8\nunits")
    return 1.0


class TestVerification:
    @pytest.mark.parametrize(
        ("odd", "reason"),
        [(shrink, "changes an output by "), (fail, "makes the model fail (wanted 8 units)")],
    )
    def test_the_layer_that_changes_an_output_is_taken_back(self, odd, reason):
        model = sized(odd)
        smaller = prune(model, hand_record(model, X, SIZED), X, batch_size=7)
        assert set(taken_back(smaller)) == {("a", "dead")}
        assert reason in taken_back(smaller)["a", "dead"]
        assert set(done(smaller)) == {("c", "dead"), ("c", "mirrored")}
        assert f"a: 1 dead taken back: {reason}" in str(smaller.pruned)
        assert smaller.pruned.samples == 60
        assert smaller.a.out_features == 8
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

    def test_what_it_measures(self):
        model = planted()
        smaller = prune(model, hand_record(model, X, MLP), X)
        record = smaller.pruned
        assert record.samples == 60
        assert record.rounding == pytest.approx(16 * 3 * torch.finfo(torch.float32).eps)
        assert 0 <= record.change <= record.rounding
        assert record.taken_back == ()

    def test_how_often_the_model_runs(self):
        class Counted(nn.Sequential):
            runs = 0

            def forward(self, x):
                type(self).runs += 1
                return super().forward(x)

        model = Counted(*planted())
        record = hand_record(model, X, MLP)
        Counted.runs = 0
        assert prune(model, record, X, batch_size=9).pruned.done
        assert Counted.runs <= 2 * 7 + 2  # seven batches; three samples for shapes, and the graph

    def test_random_outputs(self):
        class Noisy(nn.Sequential):
            def forward(self, x):
                return super().forward(x) + torch.rand(3)

        model = Noisy(*planted())
        assert prune(model, hand_record(model, X, MLP), X).pruned.done

    def test_a_model_that_writes_to_its_input(self):
        class Doubling(nn.Sequential):
            def forward(self, x):
                return super().forward(x.mul_(2))

        model, x = Doubling(*planted()), X.clone()
        record = hand_record(model, X.clone(), MLP)
        assert prune(model, record, x).pruned.taken_back == ()

    def test_forward(self):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = planted()

            def forward(self, x, scale):
                return {"y": self.net(x) * scale}

        model = Named()
        record = audit(model, X, forward=lambda m, x: m(x, 2.0))
        smaller = prune(model, record, X, forward=lambda m, x: m(x, 2.0))
        assert smaller.net[0].out_features < 10

        def stubborn(m, x):
            return model(x, 2.0)

        assert "is not called" in left(prune(model, record, X, forward=stubborn))["net.0", "dead"]
        with pytest.raises(InputError, match="forward does not run the model that it is given"):
            verify_same_outputs(model, smaller, Batches(X, 16), stubborn)

    @pytest.mark.parametrize("form", ["tensor", "pair", "dataset", "loader", "batches", "numpy"])
    def test_all_forms_of_data(self, form):
        y = torch.arange(60) % 3
        dataset = torch.utils.data.TensorDataset(X, y)
        data = {
            "tensor": X,
            "pair": (X, y),
            "dataset": dataset,
            "loader": torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True),
            "batches": [{"input": X[:50]}, {"input": X[50:]}],
            "numpy": X.numpy(),
        }[form]
        model = planted()
        state = torch.get_rng_state()
        smaller = prune(model, hand_record(model, X, MLP), data)
        assert smaller.pruned.samples == 60
        assert len([layer for layer, _ in done(smaller) if layer == "0"]) == 3
        assert torch.equal(state, torch.get_rng_state())


class TestComparison:
    def compared(self, one, two, x=X):
        class Gives(nn.Module):
            def __init__(self, give):
                super().__init__()
                self.give = give

            def forward(self, x):
                return self.give(x)

        return verify_same_outputs(Gives(one), Gives(two), Batches(x, 16))

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            (lambda x: x, lambda x: x * (1 + 1e-7)),
            (lambda x: (x / 0, x), lambda x: (x / 0, x)),
            (lambda x: x * torch.nan, lambda x: x * torch.nan),
            (lambda x: {"a": [x], "n": 3, "f": 0.5}, lambda x: {"a": [x], "n": 3, "f": 0.5}),
            (lambda x: x.argmax(1), lambda x: x.argmax(1)),
            (lambda x: x.to_sparse(), lambda x: x.to_sparse()),
            (lambda x: x[:0], lambda x: x[:0]),
            (lambda x: x.relu() * (x < 0), lambda x: x * 0),
            (lambda x: None, lambda x: None),
        ],
    )
    def test_equal(self, one, two):
        assert self.compared(one, two).fault == ""

    @pytest.mark.parametrize(
        ("one", "two", "fault"),
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
    def test_not_equal(self, one, two, fault):
        found = self.compared(one, two)
        assert fault in found.fault
        assert found.batch is not None

    def test_scale_is_that_of_all_batches(self):
        x = torch.cat([torch.full((16, 2), 1e-6), torch.ones(16, 2)])
        assert self.compared(lambda x: x, lambda x: x + 1e-7, x).fault == ""


class TestTheModelReturned:
    def test_is_a_model_like_any_other(self, tmp_path):
        model = planted()
        smaller = prune(model, hand_record(model, X, MLP), X)
        assert type(smaller) is nn.Sequential
        assert set(smaller.state_dict()) - {"1.absolute"} == set(model.state_dict())
        wanted = smaller(X)
        for other in (copy.deepcopy(smaller), pickle.loads(pickle.dumps(smaller))):
            assert torch.equal(other(X), wanted)
            assert other.pruned == smaller.pruned
        program = torch.export.export(smaller.eval(), (X,))
        torch.testing.assert_close(program.module()(X), wanted)
        assert smaller.train().training
        assert "pruned" not in repr(smaller)
        assert not hasattr(model, "pruned")

    def test_an_attribute_of_that_name(self):
        model = planted()
        record = hand_record(model, X, MLP)
        model.pruned = False
        with pytest.raises(InputError, match="has an attribute 'pruned', where prune"):
            prune(model, record, X)

    def test_without_data(self):
        model = planted()
        with pytest.raises(InputError, match="data is None; give the data of the audit") as caught:
            mahalens.prune(model, hand_record(model, X, MLP))
        assert "\n" not in str(caught.value)

    def test_data_that_does_not_fit(self):
        model = planted()
        record = hand_record(model, X, MLP)
        with pytest.raises(InputError, match="the model fails on the data"):
            prune(model, record, X[:, :4])
        with pytest.raises(InputError, match="the data is a int"):
            prune(model, record, 3)
        with pytest.raises(InputError, match="no samples"):
            prune(model, record, [])


@settings(deadline=None, max_examples=40)
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
    parts += (
        [nn.Flatten(), nn.Linear(before * length, 3)] if convolution else [nn.Linear(before, 3)]
    )
    model = fill(nn.Sequential(*parts), seed).to(dtype)
    layers = [part for part in model if isinstance(part, nn.Linear | nn.Conv1d)]
    for layer, reader in itertools.pairwise(layers):
        units = len(layer.weight)
        for kind in ("dead", "copies", "mirrors"):
            i, j = pick(units), pick(units)
            factor = 2.0 ** (pick(7) - 3)
            if kind == "dead":
                plant(layer, dead=[i] if pick(2) else [])
            elif i != j and pick(2):
                plant(layer, reader, **{kind: [(i, j, factor)]})
        with torch.no_grad():  # small hidden values that are read loudly
            layer.weight.mul_(scale)
            layer.bias.mul_(scale)
            reader.weight.div_(scale)
    shape = (40, 3, 12) if convolution else (40, 3)
    x = draw(*shape, seed=seed, dtype=dtype)
    smaller = prune(model, audit(model, x), x)
    with torch.no_grad():
        wanted, got = model(x), smaller(x)
    limit = 16 * len(layers) * torch.finfo(dtype).eps * float(wanted.abs().max())
    assert float((wanted - got).abs().max()) <= limit
    assert smaller.pruned.taken_back == ()
