"""Trials as rows of one matrix: chains and other modules, stacked, taken apart, trained."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from train_problems import normal, plain_training

from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU, Chain, DistanceHead, OffsetL2
from mahalens.train import Batches, Template, TrialStack, fit, stack
from mahalens.train.layers import parameter_count, parameter_shapes

CHAINS = [
    "Linear(1), Norm",
    "Linear(3, bias=False), Abs, Norm",
    "Linear(4), ReLU, Linear(3, bias=False), Abs, Linear(2), Norm, Neg",
    "Abs, Linear(3), Sigmoid, Linear(1)",
    "Linear(4), Abs, PointSlope(3)",
    "PointSlope(3), OffsetL2(2), PointSlope(1)",
    "AbsReLU(absolute=1), Linear(4), AbsReLU(absolute=0), Linear(3), AbsReLU(absolute=3)",
    "Linear(4), Softplus, Linear(3), LeakyReLU(0.3), Norm",
]


@pytest.mark.parametrize("text", CHAINS)
def test_modules_of_a_chain_come_back(text, dtype):
    chain = Chain.parse(text, inputs=2)
    modules = [chain.build(dtype=dtype) for _ in range(3)]
    trials = TrialStack.from_modules(chain, modules)
    assert len(trials) == 3
    assert trials.values.dtype == dtype
    x = torch.ones(5, 2, dtype=dtype)
    for back, module in zip(trials, modules, strict=True):
        assert type(back) is nn.Sequential
        assert back.state_dict().keys() == module.state_dict().keys()
        for name, value in module.state_dict().items():
            assert torch.equal(back.state_dict()[name], value)
        assert torch.equal(back(x), module(x))
    tensors = trials.tensors()
    assert torch.equal(TrialStack.from_tensors(chain, tensors).values, trials.values)
    assert {n: tuple(t.shape[1:]) for n, t in tensors.items()} == parameter_shapes(chain)
    # Every column once, in order.
    count = sum(p.numel() for p in modules[0].parameters())
    assert trials.values.shape[1] == parameter_count(chain) == count
    pieces = torch.cat([view.flatten(1) for view in trials.parts()], 1)
    assert torch.equal(pieces, trials.values)


def test_views_are_not_copies_and_indices_end():
    trials = TrialStack(Chain.parse("Linear(2), Abs, Norm", inputs=2), torch.ones(2, 6))
    trials.parts()[0].zero_()
    trials.tensors()["0.bias"].fill_(7)
    assert torch.equal(trials.values, torch.tensor([[0.0, 0, 7, 0, 0, 7]] * 2))
    assert torch.equal(trials[-1][0].weight, trials[1][0].weight)
    with pytest.raises(IndexError):
        trials[2]


def test_some_trials_are_a_stack_of_copies():
    chain = Chain.parse("Linear(4), ReLU, Linear(3)", inputs=2)
    trials = TrialStack.from_seeds(chain, range(5))
    x = np.ones((7, 2))
    some = trials[1:4][::2]
    assert len(some) == 2
    assert some.index is None  # not a part of the larger stack
    assert torch.equal(some(x), trials(x)[[1, 3]])
    assert torch.equal(some[1][0].weight, trials[3][0].weight)
    some.values.zero_()
    assert trials.values[1].any()


# Modules that are no chains


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.GroupNorm(1, 3)
        self.head = nn.Linear(3 * 16, 3)

    def forward(self, x):
        h = self.norm(self.convolution(x.unflatten(-1, (1, 4, 4)))).relu()
        return self.head(h.flatten(-3))


class Residual(nn.Module):
    """A skip connection, LayerNorm, Dropout that is off, a frozen layer, a buffer, a scalar."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.linspace(-1, 1, 16))
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.frozen.weight.copy_(torch.eye(16).roll(1, 0))
        self.frozen.bias.zero_()
        self.inner = nn.Sequential(nn.Linear(16, 5), nn.Dropout(0.5).eval(), nn.GELU())
        self.back = nn.Linear(5, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.frozen(x) + self.offset
        return self.head(self.norm(x + self.scale * self.back(self.inner(x))))


class Frozen(nn.Sequential):
    """The layers of a chain, but its first is not trained."""

    def __init__(self):
        super().__init__(nn.Linear(16, 4, bias=False), Abs(), OffsetL2(4, 3))
        self[0].requires_grad_(False)
        nn.init.orthogonal_(self[0].weight, generator=torch.Generator().manual_seed(0))


class Mixed(nn.Sequential):
    """A layer whose absolute units are not its first ones."""

    def __init__(self):
        mask = [False, True, True, False, True]
        super().__init__(nn.Linear(16, 5), AbsReLU(mask), nn.Linear(5, 3))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.other.weight = self.one.weight
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.other(self.one(x).tanh()))


def named():
    """A chain, although its layers have names."""
    layers = {"hidden": nn.Linear(16, 4), "bend": nn.Tanh(), "out": nn.Linear(4, 3)}
    return nn.Sequential(OrderedDict(layers))


TRIALS, SAMPLES, STEPS = 3, 23, 50
RATES = (0.02, 0.005, 0.01)


def make(kind, count=TRIALS):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [kind().double() for _ in range(count)]


def data(loss="mse", *lead):
    x = normal(*lead, SAMPLES, 16, seed=1)
    if loss == "mse":
        return x, 1 + 0.3 * normal(*lead, SAMPLES, 3, seed=2)
    return x, torch.randint(3, (*lead, SAMPLES), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("kind", "loss", "optimiser", "batch_size", "own"),
    [
        (ConvNet, "cross-entropy", "sgd", None, False),
        (ConvNet, "mse", "adam", 10, True),
        (Residual, "mse", "sgd", 10, False),
        (Residual, "cross-entropy", "adam", None, True),
        (Residual, "mse", "adam", 10, False),
        (Frozen, "cross-entropy", "sgd", 10, True),
        (Frozen, "mse", "adam", None, False),
        (Mixed, "cross-entropy", "adam", 10, True),
        (Tied, "mse", "adam", None, False),
        (named, "mse", "adam", None, False),
    ],
)
def test_trials_at_once_equal_plain_loops(kind, loss, optimiser, batch_size, own):
    modules = make(kind)
    x, y = data(loss, *(TRIALS,) * own)
    epochs = STEPS if batch_size is None else -(-STEPS // 3)
    options = {"momentum": 0.9} if optimiser == "sgd" else {}
    done = fit(
        modules, x, y, epochs=epochs, loss=loss, solver=optimiser, own=own, lr=RATES,
        batch_size=batch_size, seeds=3, curve_points=10**4, **options,
    )  # fmt: skip
    assert (done.objective.engine == "torch.func") == (kind is not named)
    assert len(done.curve[0]) == epochs
    batches = None if batch_size is None else Batches(batch_size, 3)
    for trial, module in enumerate(modules):
        of = (x[trial], y[trial]) if own else (x, y)
        options |= {"batches": batches, "trial": trial}
        losses, _ = plain_training(module, *of, epochs, optimiser, RATES[trial], **options)
        torch.testing.assert_close(done.curve[1][:, trial], losses, rtol=1e-9, atol=1e-11)
        trained = done.stack[trial].state_dict().values()
        for got, wanted in zip(trained, module.state_dict().values(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", [ConvNet, Residual, Frozen, Mixed, Tied, named])
def test_stacking_and_taking_apart_again(kind):
    modules, x = make(kind), data()[0]
    trials = stack(modules)
    assert isinstance(trials.model, Chain if kind is named else Template)
    state = torch.get_rng_state()
    outputs = [module(x) for module in modules]
    for trial, module in enumerate(modules):
        again = trials[trial]
        assert torch.equal(again(x), outputs[trial])
        wanted = [p.requires_grad for p in module.parameters()]
        assert [p.requires_grad for p in again.parameters()] == wanted
        with torch.no_grad():  # copies, what went in and what came out
            for parameter in (*again.parameters(), *module.parameters(), *module.buffers()):
                parameter.zero_()
        assert torch.equal(trials[trial](x), outputs[trial])
    assert not trials.values.requires_grad
    assert torch.equal(torch.get_rng_state(), state)


def test_from_seeds():
    trials = TrialStack.from_seeds(Residual, [4, 8])
    torch.manual_seed(8)
    x = data()[0].float()
    assert torch.equal(trials[1](x), Residual()(x))
    torch.testing.assert_close(trials(x)[1], trials[1](x), rtol=1e-4, atol=1e-5)


def test_inputs_may_be_whole_numbers():
    modules = make(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    y = data("cross-entropy")[1]
    done = fit(modules, y + 1, y, epochs=30, loss="cross-entropy", lr=0.1)
    assert bool((done.final_loss < 1).all())


def test_heads_without_a_threshold_can_be_stacked():
    """What is not set yet is NaN, which is equal to nothing, but the same in all trials."""
    heads = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), DistanceHead(8, 3)) for _ in range(2)]
    x = torch.randn(20, 4)
    torch.testing.assert_close(stack(heads)(x)[1], heads[1](x))
    heads[1][2].threshold.fill_(1.0)
    with pytest.raises(InputError, match=r"the constant '2\.threshold' differs"):
        stack(heads)


def test_norms_without_running_statistics_can_be_stacked():
    def build():
        norms = [nn.BatchNorm1d(16).eval(), nn.BatchNorm1d(16, track_running_stats=False)]
        return nn.Sequential(*norms, nn.Linear(16, 3))

    assert bool(fit(make(build), *data(), epochs=3).final_loss.isfinite().all())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm, nn.InstanceNorm1d])
def test_running_statistics_are_refused(norm):
    options = {"track_running_stats": True} if norm is nn.InstanceNorm1d else {}
    inner = nn.Sequential(norm(4, **options), nn.ReLU())
    words = f"layer '1.0': {norm.__name__} keeps running statistics, .*use LayerNorm"
    with pytest.raises(InputError, match=words):
        stack([nn.Sequential(nn.Linear(16, 4), inner)])


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (
            r"'inner.0.weight' has shape \(6, 16\), but trial 0 has \(5, 16\)",
            lambda m: setattr(m.inner, "0", nn.Linear(16, 6).double()),
        ),
        ("is not built of the same layers as trial 0", lambda m: setattr(m.inner, "2", nn.ReLU())),
        ("the constant 'offset' differs", lambda m: m.offset[0].add_(1)),
        ("the constant 'frozen.weight' differs", lambda m: m.frozen.weight.data.add_(1)),
        ("trains other parameters than trial 0", lambda m: m.head.requires_grad_(False)),
    ],
)
def test_the_last_of_three_modules_was_changed(message, change):
    modules = make(Residual)
    change(modules[2])
    with pytest.raises(InputError, match=f"trial 2: {message}"):
        stack(modules)


def pair(*layers):
    return [nn.Sequential(nn.Linear(16, 3), layer) for layer in layers]


def one_frozen():
    modules = pair(nn.ReLU(), nn.ReLU())
    modules[1][0].weight.requires_grad_(False)
    return modules


@pytest.mark.parametrize(
    ("message", "modules"),
    [
        ("trial 1: is not built of the same layers as trial 0", lambda: [ConvNet(), Residual()]),
        ("torch.float32 and .*64; make them equal", lambda: [Residual(), Residual().double()]),
        ("Residual: has no trainable param", lambda: [Residual().requires_grad_(False)]),
        (r"trial 1: str is not an nn\.Module", lambda: [ConvNet(), "ConvNet"]),
        ("one ConvNet; give a list of modules, one per trial", ConvNet),
        ("trial 1: a module of Linear, Tanh for the chain", lambda: pair(nn.ReLU(), nn.Tanh())),
        (
            r"trial 1: parameter '0.weight' has shape \(5, 3\)",
            lambda: [nn.Sequential(nn.Linear(3, width)) for width in (4, 5)],
        ),
        ("trial 1", lambda: pair(nn.LeakyReLU(0.1), nn.LeakyReLU(0.3))),
        ("trial 1", lambda: pair(nn.GELU(), nn.GELU("tanh"))),
        ("trial 1: has layers with other settings", lambda: pair(nn.Dropout(0.1), nn.Dropout(0.2))),
        ("trial 1", lambda: pair(nn.Dropout(0.1), nn.Dropout(0.1).eval())),
        ("trial 1", one_frozen),
    ],
)
def test_modules_that_do_not_fit(message, modules):
    with pytest.raises(InputError, match=message):
        stack(modules())


INFINITE = data()[0].clone()
INFINITE[3, 4] = torch.inf


@pytest.mark.parametrize(
    ("message", "x", "y", "options"),
    [
        ("targets of shape", *data(), {"y": lambda y: y[:, 0]}),
        ("y holds nan", *data(), {"y": lambda y: y * torch.nan}),
        ("label 3 of", *data("cross-entropy"), {"y": lambda y: y * 0 + 3}),
        ("label -100 of", *data("cross-entropy"), {"y": lambda y: y * 0 - 100}),
        ("labels in torch.float64", *data("cross-entropy"), {"y": torch.Tensor.double}),
        ("Residual is not a chain of layers, so it cannot be", *data(), {"engine": "compiled"}),
        (r"x of shape \[23, 16\] and y of shape \[22, 3\]", *data(), {"y": lambda y: y[:22]}),
        (r"give both \[T, N, \.\.\.\]", data("mse", 3)[0], data()[1], {"own": True}),
        ("3 trials, but data for 2", *data("mse", 2), {"own": True}),
        (r"x holds inf at \[3, 4\]; remove it", INFINITE, data()[1], {}),
    ],
)
def test_data_that_do_not_fit_modules(message, x, y, options):
    y = options.pop("y", lambda y: y)(y)
    loss = "cross-entropy" if "label" in message else "mse"
    with pytest.raises(InputError, match=message):
        fit(make(Residual), x, y, epochs=3, loss=loss, **options)
