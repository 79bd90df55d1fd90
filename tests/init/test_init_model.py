"""Starting a whole model: layer by layer in the order of use, and nothing else is touched."""

import copy
import re
from pathlib import Path

import pytest
import torch
from starts import linear, planted, same_state, seeded, state_of
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mahalens
from mahalens.auditing.batches import DataBatches as Batches
from mahalens.auditing.runner import Runner, untouched
from mahalens.data import load_set
from mahalens.errors import InputError
from mahalens.init import METHODS, check_init, initialise, whiten_
from mahalens.init.model import settled_norms
from mahalens.nn import Chain, OffsetL2, PointSlope
from mahalens.train import TrialStack

X, Y = planted(3, 4)
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "starts.md"


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
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    model = nn.Sequential(*layers).double()
    twin = copy.deepcopy(model)
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
    assert model.calls == 0, "attributes that a forward pass sets are as before"


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


def test_all_forms_of_data_give_the_same():
    dataset, parts = TensorDataset(X, Y), [(X[:50], Y[:50]), (X[50:], Y[50:])]
    states = []
    for data in (X, (X, Y), dataset, DataLoader(dataset, batch_size=9), parts):
        torch.manual_seed(0)
        model = nn.Sequential(linear(4, 6), nn.Tanh(), linear(6, 3))
        initialise(model, data, "cluster_pca", generator=seeded())
        states.append(state_of(model))
    for state in states[1:]:
        for key, value in state.items():
            torch.testing.assert_close(value, states[0][key])


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
    bare, linear = nn.Conv1d(2, 4, 3, bias=False), nn.Linear(5, 2, bias=False)
    model = nn.Sequential(bare, nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), linear)
    before = state_of(model)
    with pytest.warns(UserWarning, match="2 of 3 layers were not started: '0' .* and 1 more"):
        done = initialise(model, torch.randn(50, 2, 8, generator=seeded()), "whiten")
    assert str(done).startswith("started 1 of 3 layers\nwhiten: 3\nleft 0: Conv1d has no bias")
    assert list(done.started) == ["3"]
    for name, layer in (("0", bare), ("4", linear)):
        assert "no bias" in done.left[name]
        assert torch.equal(before[f"{name}.weight"], layer.weight)


def test_shared_weights_are_started_once():
    model = nn.Sequential(linear(4, 4), nn.ReLU(), linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.warns(UserWarning, match="shares its weights"):
        done = initialise(model, X, "whiten")
    assert list(done.started) == ["0"]
    assert "shares its weights with layer '0'" in done.left["2"]


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

    def test_data_without_a_name(self):
        with pytest.raises(InputError, match="data is given, but no init"):
            Chain.parse("Linear(6), ReLU", inputs=4).build(data=X)


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


@pytest.fixture(scope="module")
def digits():
    found = load_set("digits")
    return found.x, found.y


def network(bias=True):
    torch.manual_seed(0)
    first = nn.Linear(64, 64, bias=bias), nn.BatchNorm1d(64), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def fed_in_training(model, x, layer):
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


@pytest.mark.parametrize("bias", [True, False])
def test_nothing_stays(digits, bias):
    """Without a bias the norm places the hyperplanes, but its statistics are as before."""
    x, y = digits
    model = network(bias)
    before = state_of(model)
    check_init(model, x)
    assert same_state(before, state_of(model))
    initialise(model, (x, y), "whiten")
    norm = model[1]
    assert torch.equal(norm.running_mean, torch.zeros(64))
    assert torch.equal(norm.running_var, torch.ones(64))
    assert int(norm.num_batches_tracked) == 0
    assert (norm.momentum, norm.training) == (0.1, True)
    assert torch.equal(norm.bias, torch.zeros(64)) == bias
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model)


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
    model = network()
    initialise(model, (x[:50], y[:50]), "class_mean", batch_size=batch_size)
    whole = network()
    initialise(whole, (x[:50], y[:50]), "class_mean", batch_size=50)
    assert all(values.isfinite().all() for values in model.parameters())
    for part in ("weight", "bias"):  # of the layers behind, batch norm sees one batch at a time
        torch.testing.assert_close(getattr(model[0], part), getattr(whole[0], part))
    dead = check_init(model, x[:50], batch_size=batch_size).layer("0").dead
    assert dead == check_init(model, x[:50], batch_size=50).layer("0").dead


def test_convolutions_too(digits):
    x, _ = digits
    torch.manual_seed(0)
    first = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
    model = nn.Sequential(*first, nn.Conv2d(4, 4, 3), nn.ReLU())
    images = 20 + 50 * x.reshape(-1, 1, 8, 8)
    initialise(model, images, "sample_point_bias", batch_size=len(x))
    given = fed_in_training(model, images, 3).flatten(2)
    assert not bool(((given > 0).all(2).all(0) | (given < 0).all(2).all(0)).any())


class Block(nn.Module):
    """A residual block of convolutions without bias, each before a batch norm."""

    def __init__(self, inputs, units):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, units, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(units)
        self.conv2 = nn.Conv2d(units, units, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(units)
        self.down = nn.Sequential(nn.Conv2d(inputs, units, 1, bias=False), nn.BatchNorm2d(units))

    def forward(self, x):
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (inner + self.down(x)).relu()


class TestLayersWithoutBias:
    """The batch norm behind such a layer places its hyperplanes."""

    def test_a_residual_network_is_started_whole(self, digits):
        images = digits[0][:200].reshape(-1, 1, 8, 8)
        torch.manual_seed(0)
        stem = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10)
        model = nn.Sequential(*stem, Block(6, 6), Block(6, 6), *end)
        done = initialise(model, images)  # without a warning
        assert len(done.started) == 8
        assert done.left == {}
        assert done.norms["0"] == "1"
        assert done.norms["4.down.0"] == "4.down.1"
        assert str(done).startswith("started 8 of 8 layers")
        assert check_init(model, images).layer("3.conv1").dead == ()

    @pytest.mark.parametrize("method", ["cluster_pca", "whiten", "sample_point_bias"])
    def test_layer_and_norm_are_together_the_layer_with_a_bias(self, digits, method):
        x = digits[0][:300].double()

        def build(bias):
            parts = []
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

    def test_after_an_error_its_weights_are_as_they_were(self, digits):
        bare = nn.Linear(64, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU()
        model = nn.Sequential(*bare, nn.Linear(5, 900))
        before = state_of(model)
        with pytest.raises(InputError, match="no weights were changed"):
            initialise(model, digits[0][:30], "cluster_pca")
        assert same_state(before, state_of(model))

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

    def test_a_norm_that_was_trained_or_is_over_positions(self, digits):
        model = nn.Sequential(nn.Linear(64, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU())
        model(digits[0])
        with pytest.raises(InputError, match="is trained"):
            initialise(model, digits[0], "whiten")
        model = nn.Sequential(nn.Linear(16, 4, bias=False), nn.BatchNorm1d(4))
        with pytest.raises(InputError, match="works along another axis"):
            initialise(model, digits[0].reshape(-1, 4, 16), "whiten")

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


def test_the_examples_run_and_print_what_the_page_says(capsys):
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    names = {}
    with torch.random.fork_rng():
        exec(compile(blocks[0], PAGE.name, "exec"), names)
        shown = re.search(r"prints\n\n```\n(.*?)```", text, re.S)[1]
        printed = capsys.readouterr().out
        # The draw of a seed may differ between versions of torch: numbers are not compared.
        one, other = (re.sub(r"\d+", "0", text).split("(")[0] for text in (shown, printed))
        assert one == other
        assert printed.splitlines()[-1] == shown.splitlines()[-1]
        for block in blocks[1:]:
            exec(compile(block, PAGE.name, "exec"), names)
    assert capsys.readouterr().out == "{'0': 'cluster_pca', '2': 'class_mean'}\n"
