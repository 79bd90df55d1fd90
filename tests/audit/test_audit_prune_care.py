"""What pruning leaves alone and says so, and that nothing of the user's changes."""

import copy

import msgspec
import pytest
import torch
from hand_records import MLP, centre, done, draw, fill, hand_record, left, mlp, plant, same_outputs
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from mahalens.auditing.pruning.apply import prune
from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU

X = draw(60, 6, seed=99)
TWO = ({"name": "first", "feeds": "second"}, {"name": "second", "activation": "none"})


class Net(nn.Module):
    """Two layers with modules of their own between, called by the forward pass ``way``."""

    def __init__(self, way, units=8, read=8):
        super().__init__()
        self.first, self.second = nn.Linear(6, units), nn.Linear(read, 3)
        self.relu, self.drop, self.abs = nn.ReLU(), nn.Dropout(), Abs()
        self.norm = nn.BatchNorm1d(units)
        self.way = way

    def forward(self, x):
        return self.way(self, x)


def net(way, **sizes):
    model = fill(Net(way, **sizes))
    plant(model.first, model.second, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 0.5)])
    return model


ALL = {
    ("first", "dead"): (1,),
    ("first", "duplicate"): ((0, 2),),
    ("first", "mirrored"): ((3, 5),),
}


class TestForwardPasses:
    @pytest.mark.parametrize(
        "way",
        [
            lambda m, x: m.second(m.drop(m.relu(m.first(x)))),
            lambda m, x: m.second(m.relu(m.first(x)).view(x.size(0), -1)),
            lambda m, x: m.second(m.relu(m.first(x)).flatten(1)) * 2 + x[:, :3],
            lambda m, x: m.second((lambda h: h.reshape(h.shape[0], -1))(m.relu(m.first(x)))),
            lambda m, x: m.second((lambda h: h.view((h.size(0), -1)))(m.relu(m.first(x)))),
        ],
    )
    def test_modules_of_any_kind(self, way):
        model = net(way)
        pruned = prune(model, hand_record(model, X, TWO), X)
        assert done(pruned) == ALL
        assert pruned.relu.absolute.tolist() == [False, True, False, False, False]
        same_outputs(pruned, model, X)

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
        pruned = prune(model, hand_record(model, X, TWO), X)
        assert done(pruned) == {key: ALL[key] for key in ALL if key[1] != "mirrored"}
        assert "nothing can stand in its place" in left(pruned)["first", "mirrored"]
        same_outputs(pruned, model, X)

    @pytest.mark.parametrize(
        ("way", "reason"),
        [
            (
                lambda m, x: m.second(m.relu(m.first(x)).view(-1, 8)),
                "view gives its output a fixed",
            ),
            (lambda m, x: m.second(m.relu(m.first(x)).view(x.size(0), 8)), "view gives its"),
            (lambda m, x: m.second(m.relu(m.first(x)) * 2), "mul reads its output"),
            (lambda m, x: m.second(m.norm(m.relu(m.first(x)))), "norm, a BatchNorm1d, reads"),
            (lambda m, x: m.second(m.abs(m.relu(m.first(x)))), "abs reads its output"),
            (lambda m, x: m.second(m.relu(m.first(x)).sort(-1)[0]), "sort reads its output"),
            (
                lambda m, x: m.second(h := m.relu(m.first(x))) + h[:, :3],
                "2 parts of the network read",
            ),
            (
                lambda m, x: m.second((h := m.relu(m.first(x))) / h.shape[1]),
                "2 parts of the network read",
            ),
            (
                lambda m, x: m.second(h := m.relu(m.first(x))) / h.size(1),
                "2 parts of the network read",
            ),
            (
                lambda m, x: m.second(h := m.relu(m.first(x))) / h.shape[-1],
                "2 parts of the network read",
            ),
            (
                lambda m, x: m.second(m.relu(m.first(x))) + m.first.bias.sum(),
                "parameters of first are also used",
            ),
            (
                lambda m, x: m.second(m.relu(m.first(x))) + m.second(m.relu(m.first(-x))),
                "first is not called as a module exactly once",
            ),
            (
                lambda m, x: m.second(m.relu(m.first(x))) if x.sum() < 9e9 else m.first(x),
                "cannot be followed",
            ),
            (lambda m, x: (m.relu(m.first(x)), m.second(x[:, :1].expand(-1, 8))), "own output"),
            (
                lambda m, x: m.second(functional.linear(x, m.first.weight, m.first.bias).relu()),
                "first is not called as a module",
            ),
        ],
    )
    def test_ways_that_are_not_plain(self, way, reason):
        model = net(way)
        plain = copy.deepcopy(model)
        plain.way = lambda m, x: m.second(m.relu(m.first(x)))
        pruned = prune(model, hand_record(plain, X, TWO), X)
        assert pruned.pruned.done == ()
        assert set(left(pruned)) == set(ALL)
        assert all(reason in told for told in left(pruned).values()), left(pruned)

    def test_a_batch_norm_that_was_not_audited(self):
        model = net(lambda m, x: m.second(m.relu(m.norm(m.first(x)))))
        pruned = prune(model, hand_record(model, X, TWO), X)
        assert "the batch norm that the audit saw" in left(pruned)["first", "dead"]

    def test_an_activation_that_was_not_audited(self):
        model = net(lambda m, x: m.second(m.first(x)))
        pruned = prune(model, hand_record(model, X, TWO), X)
        assert "the activation that the audit saw" in left(pruned)["first", "dead"]

    def test_a_module_that_looks_at_its_input(self):
        class Guard(nn.Module):
            def forward(self, x):
                return x if x.abs().max() < 1e9 else x * 0

        model = nn.Sequential(Guard(), *mlp())
        plant(model[1], model[3], dead=[1])
        layers = [
            {"name": "1", "feeds": "3"},
            {"name": "3", "feeds": "5"},
            {"name": "5", "activation": "none"},
        ]
        pruned = prune(model, hand_record(model, X, layers), X, actions="dead")
        assert done(pruned)["1", "dead"] == (1,)
        same_outputs(pruned, model, X)

    @pytest.mark.parametrize("first", [True, False])
    def test_transformer(self, first):
        model = fill(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 8, norm_first=first, batch_first=True),
                1,
                enable_nested_tensor=False,
            )
        )
        x = draw(5, 3, 4, seed=2)
        inner = model.layers[0]
        torch.backends.mha.set_fastpath_enabled(False)
        centre(model, "layers.0.linear1", x)
        plant(inner.linear1, inner.linear2, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 0.5)])
        layers = [
            {"name": "layers.0.linear1", "feeds": "layers.0.linear2"},
            {"name": "layers.0.linear2", "activation": "none"},
        ]
        try:
            record = hand_record(model, x, layers)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        pruned = prune(model, record, x)
        assert pruned.layers[0].linear1.out_features <= 6
        assert "nothing can stand" in left(pruned)["layers.0.linear1", "mirrored"]
        same_outputs(pruned, model, x, eps=1e-4)


class TestWhatIsLeftAlone:
    def reasons(self, model, layers=MLP):
        pruned = prune(model, hand_record(model, X, layers), X)
        return pruned, left(pruned).get(("0", "dead"), "")

    def test_several_uses(self):
        model = mlp()
        plant(model[0], dead=[1])
        assert "used 2 times" in self.reasons(model, [{**MLP[0], "calls": 2}, *MLP[1:]])[1]
        layers = [MLP[0], {**MLP[1], "calls": 2}, MLP[2]]
        assert "2 reads other things too" in self.reasons(model, layers)[1]

    def test_no_single_reader(self):
        model = mlp()
        plant(model[0], dead=[1])
        _, reason = self.reasons(model, [{"name": "0"}, *MLP[1:]])
        assert "not read by one layer alone" in reason

    def test_the_last_layer(self):
        model = mlp()
        plant(model[4], copies=[(0, 1, 1.0)])
        pruned = prune(model, hand_record(model, X, MLP[2:]), X)
        assert pruned.pruned.done == ()
        assert ("4", "duplicate") in left(pruned)

    @pytest.mark.parametrize("place", [0, 2])
    def test_parametrised_weights(self, place):
        model = mlp()
        plant(model[0], dead=[1])
        parametrizations.weight_norm(model[place])
        pruned, reason = self.reasons(model)
        assert f"{place} has parametrised weights" in reason
        same_outputs(pruned, model, X)

    def test_weights_computed_by_a_hook(self):
        from torch.nn.utils import prune as masks

        model = mlp()
        plant(model[0], dead=[1])
        masks.random_unstructured(model[0], "weight", 0.2)
        assert "computed from others" in self.reasons(model)[1]

    def test_tied_parameters(self):
        model = mlp()
        plant(model[0], dead=[1])
        model.register_parameter("tied", model[0].weight)
        assert "shares its weight with" in self.reasons(model)[1]

    def test_views_of_the_same_memory(self):
        model = mlp()
        plant(model[0], dead=[1])
        model[2].weight.data = model[2].weight.data
        memory = model[0].weight.data.flatten()
        model.register_parameter("part", nn.Parameter(memory[:3]))
        assert "shares its weight with part" in self.reasons(model)[1]

    def test_subclasses_and_other_forwards(self):
        class Odd(nn.Linear):
            pass

        model = mlp()
        plant(model[0], dead=[1])
        odd = copy.deepcopy(model)
        odd[0].__class__ = Odd
        assert "is a Odd, not a plain" in self.reasons(odd)[1]
        other = copy.deepcopy(model)
        linear = other[0]
        other[0].forward = lambda x: functional.linear(x, linear.weight, linear.bias)
        assert "another forward" in self.reasons(other)[1]

    def test_exported_programs(self):
        model = mlp()
        plant(model[0], dead=[1])
        graph = torch.fx.symbolic_trace(model)
        assert "exported program" in self.reasons(graph)[1]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_torchscript(self):
        model = mlp()
        plant(model[0], dead=[1])
        record = hand_record(model, X, MLP)
        script = torch.jit.trace(model, X)
        pruned = prune(script, record, X)
        assert "TorchScript" in left(pruned)["0", "dead"]
        same_outputs(pruned, model, X)

    def test_activations_with_parameters(self):
        model = mlp(activation=nn.PReLU(10))
        plant(model[0], dead=[1])
        record = hand_record(model, X, MLP)
        layer = msgspec.structs.replace(record.layers[0], activation="prelu")
        record = msgspec.structs.replace(record, layers=(layer, *record.layers[1:]))
        assert "not the same for all units" in left(prune(model, record, X))["0", "dead"]


class TestNothingElseChanges:
    def planted(self):
        model = mlp()
        plant(model[0], model[2], dead=[1], copies=[(0, 3, 2.0)], mirrors=[(5, 8, 0.5)])
        return model

    def test_the_model_given(self):
        model = self.planted()
        model.train()
        model[3].eval()
        record = hand_record(model, X, MLP)
        model.train()
        model[3].eval()
        model(X).sum().backward()
        before = copy.deepcopy(model.state_dict())
        gradients = [p.grad.clone() for p in model.parameters()]
        tensors, modules = list(model.parameters()), list(model.modules())
        state = torch.random.get_rng_state()
        prune(model, record, X)
        assert all(a is b for a, b in zip(model.parameters(), tensors, strict=True))
        assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert torch.equal(parameter.grad, gradient)
        assert [m.training for m in model.modules()] == [True, True, True, True, False, True]
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_things_a_forward_pass_keeps(self):
        model = net(lambda m, x: m.second(m.relu(m.first(x))))
        model.seen = []
        model.way = lambda m, x: m.seen.append(x) or m.second(m.relu(m.first(x)))
        record = hand_record(model, X, TWO)
        model.seen.clear()
        pruned = prune(model, record, X)
        assert done(pruned) == ALL
        assert model.seen == []
        assert pruned.seen == []

    def test_modes_and_frozen_parameters(self):
        model = self.planted()
        record = hand_record(model, X, MLP)
        model[0].weight.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        model.train()
        model[1].eval()
        small = prune(model, record, X)
        assert [p.requires_grad for p in small.parameters()] == [
            *(False, True, True, False, True, True),
        ]
        assert [m.training for m in small] == [True, False, True, True, True]
        assert isinstance(small[1], AbsReLU)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision(self, dtype):
        model = self.planted().to(dtype)
        small = prune(model, hand_record(model, X.to(dtype), MLP), X.to(dtype))
        assert small[0].out_features < 10
        assert {p.dtype for p in small.parameters()} == {dtype}
        torch.testing.assert_close(small(X.to(dtype)), model(X.to(dtype)), rtol=0.05, atol=0.1)

    def test_twice_is_once(self):
        model = self.planted()
        once = prune(model, hand_record(model, X, MLP), X)
        # As the audit reads it: an activation of both kinds is "mixed", and feeds no single layer.
        record = hand_record(once, X, [{"name": "0"}, *MLP[1:]])
        twice = prune(once, record, X, actions=("dead", "duplicate", "mirrored"))
        assert twice.pruned.done == ()
        assert twice.pruned.parameters == (once.pruned.parameters[1],) * 2
        for a, b in zip(twice.parameters(), once.parameters(), strict=True):
            assert torch.equal(a, b)
            assert a is not b

    def test_training_goes_on(self):
        model = self.planted()
        small = prune(model, hand_record(model, X, MLP), X)
        rate = torch.optim.SGD(small.parameters(), 0.01)
        before = [p.clone() for p in small.parameters()]
        small(X).square().mean().backward()
        rate.step()
        assert not any(torch.equal(a, b) for a, b in zip(small.parameters(), before, strict=True))


class TestTold:
    def test_in_words(self):
        model = net(lambda m, x: m.second(functional.relu(m.first(x))))
        assert str(prune(model, hand_record(model, X, TWO), X).pruned) == (
            "99 -> 79 parameters\n"
            "  first: 1 dead unit removed\n"
            "  first: 1 duplicate merged\n"
            "  first: 1 mirrored left: its ReLU is no module that is used once, so nothing can "
            "stand in its place"
        )

    def test_nothing(self):
        model = mlp()
        smaller = prune(model, hand_record(model, X, MLP), X, actions=())
        assert str(smaller.pruned) == "nothing was pruned"


class TestErrors:
    @pytest.fixture
    def record(self):
        return hand_record(mlp(), X, MLP)

    def refused(self, message, model, record, **options):
        with pytest.raises(InputError, match=message) as caught:
            prune(model, record, X, **options)
        assert "\n" not in str(caught.value)

    def test_another_model(self, record):
        self.refused("no layer '2', but the record does", mlp()[:2], record)
        other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), mlp()[4])
        self.refused("layer 0 has 9 units of 6 inputs in the model and 10 of 6", other, record)

    def test_a_pruned_model_with_the_record_of_the_whole(self):
        model = mlp()
        plant(model[0], dead=[1])
        record = hand_record(model, X, MLP)
        small = prune(model, record, X)
        self.refused("give the model that was audited, or audit this one", small, record)

    def test_weights_that_were_trained_since(self):
        model = mlp()
        plant(model[0], dead=[1])
        record = hand_record(model, X, MLP)
        with torch.no_grad():
            model[0].weight *= 1.01
        self.refused("weights of 0 are not those that were audited", model, record)

    def test_activations_alone(self, record):
        layer = msgspec.structs.replace(record.layers[0], kind="features")
        record = msgspec.structs.replace(record, layers=(layer,))
        self.refused("from activations alone", mlp(), record)

    def test_actions(self, record):
        self.refused(
            "no action 'all'; there are dead, duplicate, mirrored", mlp(), record, actions=["all"]
        )

    def test_no_model(self, record):
        self.refused("is a dict, wanted an nn.Module", {}, record)

    def test_a_model_that_cannot_be_copied(self, record):
        class Stubborn(nn.Sequential):
            def __deepcopy__(self, memo):
                raise RuntimeError("only one\nof me")

        self.refused(r"cannot be copied \(only one of me\)", Stubborn(*mlp()), record)
