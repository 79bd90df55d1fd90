"""Starting a whole model: layer by layer in the order of use, and nothing else is touched."""

import pytest
import torch
from starts import linear, planted, same_state, seeded, state_of
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mahalens
from mahalens.errors import InputError
from mahalens.init import METHODS, initialise, whiten_
from mahalens.nn import Chain, OffsetL2, PointSlope
from mahalens.train import TrialStack

X, Y = planted(3, 4)


class Backwards(nn.Module):
    """Uses its layers in another order than it lists them, and one of them twice."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)
        self.twice = nn.Linear(5, 5)
        self.first = nn.Linear(4, 5)
        self.never = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x).relu()
        return self.last(self.twice(self.twice(input=x).abs()))


def by_hand(model, x):
    """The same as ``whiten`` for a Sequential: one layer after the other, on what is before."""
    for place, layer in enumerate(model):
        if isinstance(layer, nn.Linear | nn.Conv2d | PointSlope):
            with torch.no_grad():
                whiten_(layer, model[:place](x), generator=seeded(place))


@pytest.mark.parametrize("name", ["whiten", "lsuv", "class_mean"])
def test_each_layer_is_fed_what_the_started_ones_make(name):
    model = nn.Sequential(linear(4, 6), nn.ReLU(), linear(6, 5), nn.Tanh(), linear(5, 3))
    initialise(model, (X, Y), name, generator=seeded())
    x = X
    for layer in model:
        fed, x = x, layer(x).detach()
        if not isinstance(layer, nn.Linear):
            continue
        if name == "lsuv":
            torch.testing.assert_close(x.var(correction=0), torch.tensor(1.0).double())
        elif name == "whiten":
            ranks = min(int(torch.linalg.matrix_rank(fed - fed.mean(0), rtol=1e-9)), x.shape[1])
            torch.testing.assert_close(torch.cov(x.T[:ranks]), torch.eye(ranks).double())
            torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]).double())
        else:
            for unit in range(x.shape[1]):
                assert abs(float(x[unit % 3 == Y, unit].mean())) < 1e-9


def test_convolutions_and_flattening():
    x = torch.randn(40, 1, 8, 8, generator=seeded(), dtype=torch.float64).cumsum(-1)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    ).double()
    twin = nn.Sequential(
        *[type(m)(*a) for m, a in zip(model, [(1, 4, 3), (), (2,), (), (36, 5)], strict=True)]
    )
    twin.double()
    initialise(model, x, "whiten", batch_size=7)
    by_hand(twin, x)
    assert same_state(state_of(model), state_of(twin))


def test_the_order_is_that_of_use():
    torch.manual_seed(0)
    model = Backwards()
    with pytest.warns(UserWarning, match="1 of 4 layers were not started: 'never'"):
        done = initialise(model, X.float(), "lsuv", generator=seeded())
    assert list(done.started) == ["first", "twice", "last"]
    assert done.left == {"never": "is not used on the first batch"}
    x = model.first(X.float()).relu()
    inside = model.twice(x)
    both = torch.cat([inside, model.twice(inside.abs())])
    # The layer that is used twice was started from the inputs of both uses, before it was started.
    assert 0.1 < float(both.var().detach()) < 10
    out = model.last(model.twice(inside.abs()))
    torch.testing.assert_close(out.var(correction=0).detach(), torch.tensor(1.0))
    assert "lsuv: first, twice, last" in str(done)
    assert "left never" in str(done)


def test_nothing_but_weights_is_touched():
    model = nn.Sequential(linear(4, 6), nn.BatchNorm1d(6).double(), nn.Dropout(), linear(6, 3))
    model[3].weight.requires_grad_(False)
    model.train()
    model[1].eval()
    norm = state_of(model[1])
    before = torch.get_rng_state()
    initialise(model, X, "whiten", generator=seeded())
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(norm, state_of(model[1]))
    assert [m.training for m in model] == [True, False, True, True]
    assert [p.requires_grad for p in model[3].parameters()] == [False, True]
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    # Dropout was off while the last layer was fed.
    fed = model.eval()[:3](X)
    torch.testing.assert_close(torch.cov(model[3](fed).T), torch.eye(3).double())


def test_attributes_that_a_forward_pass_sets_are_as_before():
    model = Backwards()
    with pytest.warns(UserWarning, match="not started"):
        initialise(model, X.float(), "whiten")
    assert model.calls == 0


def test_no_hook_is_left_after_an_error():
    model = nn.Sequential(linear(4, 6), nn.ReLU(), linear(6, 900))
    with pytest.raises(InputError):
        initialise(model, X[:30], "cluster_pca")
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_all_forms_of_data_give_the_same():
    dataset = TensorDataset(X, Y)
    forms = [
        X,
        (X, Y),
        dataset,
        DataLoader(dataset, batch_size=9),
        [(X[:50], Y[:50]), (X[50:], Y[50:])],
    ]
    states = []
    for data in forms:
        torch.manual_seed(0)
        model = nn.Sequential(linear(4, 6), nn.Tanh(), linear(6, 3))
        initialise(model, data, "cluster_pca", generator=seeded())
        states.append(state_of(model))
    for state in states[1:]:
        for key, value in state.items():
            torch.testing.assert_close(value, states[0][key])


def test_the_global_generator_decides_and_moves_on():
    model = nn.Sequential(linear(4, 6), nn.ReLU(), linear(6, 3))
    states = []
    with torch.random.fork_rng():
        for seed in (5, 5, None):
            if seed is not None:
                torch.manual_seed(seed)
            initialise(model, X, "sample_point_bias")
            states.append(state_of(model))
    assert same_state(states[0], states[1])
    assert not torch.equal(states[1]["0.weight"], states[2]["0.weight"])
    assert not torch.equal(states[0]["0.weight"][:3, 0], states[0]["2.weight"][:, 0])


def test_methods_by_layer_and_chosen_layers():
    model = nn.Sequential(linear(4, 6), nn.ReLU(), linear(6, 3))
    head = state_of(model[2])
    done = initialise(model, X, "whiten", layers=["0"])
    assert done.started == {"0": "whiten"}
    assert same_state(head, state_of(model[2]))
    done = initialise(model, X, {"2": "kaiming", "0": "lsuv"})
    assert done.started == {"0": "lsuv", "2": "kaiming"}
    assert not bool(model[2].bias.any())


def test_options_reach_the_method():
    model = nn.Sequential(linear(4, 8), nn.ReLU(), OffsetL2(8, 3, dtype=torch.float64))
    done = initialise(model, X, "cluster_pca", mirror=True, generator=seeded())
    assert list(done.started) == ["0", "2"]
    torch.testing.assert_close(model[0].weight[0::2], -model[0].weight[1::2])


def test_what_cannot_be_started_is_left_and_said():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 5),
        nn.Linear(5, 2, False),
    )
    before = state_of(model)
    with pytest.warns(UserWarning, match="2 of 3 layers were not started: '0' .* and 1 more"):
        done = initialise(model, torch.randn(50, 2, 8, generator=seeded()), "whiten")
    assert repr(done).startswith("started 1 of 3 layers\nwhiten: 3\nleft 0: Conv1d has no bias")
    assert list(done.started) == ["3"]
    assert "no bias" in done.left["0"]
    assert "no bias" in done.left["4"]
    assert torch.equal(before["4.weight"], model[4].weight)
    assert torch.equal(before["0.weight"], model[0].weight)


def test_shared_weights_are_started_once():
    model = nn.Sequential(linear(4, 4), nn.ReLU(), linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.warns(UserWarning, match="shares its weights"):
        done = initialise(model, X, "whiten")
    assert list(done.started) == ["0"]
    assert "shares its weights with layer '0'" in done.left["2"]


def test_a_layer_alone_and_one_that_is_compiled():
    layer = linear(4, 3)
    assert initialise(layer, X, "whiten").started == {"Linear": "whiten"}
    torch.testing.assert_close(torch.cov(layer(X).T), torch.eye(3).double())


def test_kaiming_needs_no_data():
    model = nn.Sequential(linear(4, 300), nn.ReLU(), linear(300, 3))
    assert list(initialise(model, method="kaiming").started) == ["0", "2"]
    assert not bool(model[0].bias.any())


def test_sequences_have_the_classes_of_their_samples():
    x = X[:180].reshape(60, 3, 4)
    labels = torch.arange(60) % 2
    model = nn.Sequential(linear(4, 2))
    initialise(model, (x, labels), "class_mean")
    flat = nn.Sequential(nn.Flatten(0, 1), linear(4, 2))  # all rows along the first axis
    initialise(flat, (x, labels), "class_mean")
    for z in (model(x), flat(x).reshape(60, 3, 2)):
        for unit in range(2):
            assert abs(float(z[labels == unit][..., unit].mean().detach())) < 1e-9


class TestWhereAModelIsBuilt:
    @pytest.mark.parametrize("name", METHODS)
    def test_a_chain_by_name(self, name):
        chain = Chain.parse("Linear(6), ReLU, PointSlope(5), Abs, Linear(3)", inputs=4)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            built = chain.build(dtype=torch.float64, init=name, data=(X, Y))
            torch.manual_seed(3)
            twin = chain.build(dtype=torch.float64)
            initialise(twin, (X, Y), name)
        assert same_state(state_of(built), state_of(twin))

    def test_a_stack_of_trials(self):
        chain = Chain.parse("Linear(6), ReLU, Linear(3)", inputs=4)
        trials = TrialStack.from_seeds(chain, [4, 7], init="cluster_pca", data=X.float())
        with torch.random.fork_rng():
            torch.manual_seed(7)
            alone = chain.build(init="cluster_pca", data=X.float())
        assert same_state(state_of(trials[1]), state_of(alone))
        assert mahalens.init.check_init(trials[0], X.float()).layers[0].dead == ()

    def test_a_stack_of_other_modules(self):
        def make():
            return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

        trials = TrialStack.from_seeds(make, [1, 2], init="whiten", data=X.float())
        outputs = trials[0][0](X.float()).detach()
        torch.testing.assert_close(outputs.mean(0), torch.zeros(6), rtol=0, atol=1e-3)

    def test_data_without_a_name(self):
        chain = Chain.parse("Linear(6), ReLU", inputs=4)
        with pytest.raises(InputError, match="data is given, but no init"):
            chain.build(data=X)
        with pytest.raises(InputError, match="data is given, but no init"):
            TrialStack.from_seeds(chain, [1], data=X)

    def test_an_unknown_name(self):
        with pytest.raises(InputError, match="there is no start 'xavier'"):
            Chain.parse("Linear(6)", inputs=4).build(init="xavier", data=X)


def test_weights_used_without_calling_their_module_are_left():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.called = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.called(functional.linear(x, self.hidden.weight))

    with pytest.warns(UserWarning, match="not used on the first batch"):
        done = initialise(Direct(), X.float(), "whiten")
    assert list(done.started) == ["called"]
    assert list(done.left) == ["hidden"]
