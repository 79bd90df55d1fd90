"""Modules that are no chains: stacked, trained like plain loops, refused where they differ."""

import pytest
import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU, Chain, OffsetL2
from mahalens.train import Batches, Newton, Template, TrialStack, fit, stack

TRIALS, SAMPLES, STEPS = 3, 23, 100
RATES = (0.02, 0.005, 0.01)


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
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        with torch.no_grad():
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


def make(kind, count=TRIALS, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [kind().to(dtype) for _ in range(count)]


def data(loss, *lead, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*lead, SAMPLES, 16, generator=generator, dtype=dtype)
    if loss == "mse":
        return x, 1 + 0.3 * torch.randn(*lead, SAMPLES, 3, generator=generator, dtype=dtype)
    return x, torch.randint(3, (*lead, SAMPLES), generator=generator)


def plain_loop(module, x, y, loss, optimiser, batches, epochs, trial):
    criterion = nn.MSELoss() if loss == "mse" else nn.CrossEntropyLoss()
    free = [p for p in module.parameters() if p.requires_grad]
    if optimiser == "adam":
        steps = torch.optim.Adam(free, lr=RATES[trial], betas=(0.9, 0.99))
    else:
        steps = torch.optim.SGD(free, lr=RATES[trial], momentum=0.9)
    losses = []
    for epoch in range(1, epochs + 1):
        total = 0.0
        split = batches.split(trial, epoch, len(x)) if batches else [torch.arange(len(x))]
        for rows in split:
            steps.zero_grad()
            value = criterion(module(x[rows]), y[rows])
            value.backward()
            steps.step()
            total += value.item() * len(rows) / len(x)
        losses.append(total)
    return losses


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
    assert done.objective.engine == "torch.func"
    assert len(done.curve[0]) == epochs
    for trial, module in enumerate(modules):
        of_trial = (x[trial], y[trial]) if own else (x, y)
        batches = None if batch_size is None else Batches(batch_size, 3)
        losses = plain_loop(module, *of_trial, loss, optimiser, batches, epochs, trial)
        wanted = torch.tensor(losses, dtype=torch.float64)
        torch.testing.assert_close(done.curve[1][:, trial], wanted, rtol=1e-9, atol=1e-11)
        trained = done.stack[trial].state_dict()
        assert trained.keys() == module.state_dict().keys()
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(trained[name], tensor, rtol=1e-8, atol=1e-10)


class TestStacking:
    @pytest.mark.parametrize("kind", [ConvNet, Residual, Frozen, Mixed])
    def test_and_taking_apart_again(self, kind):
        modules = make(kind)
        x = data("mse")[0]
        trials = stack(modules)
        assert isinstance(trials.model, Template)
        state = torch.get_rng_state()
        for trial, module in enumerate(modules):
            again = trials[trial]
            assert torch.equal(again(x), module(x))
            assert type(again) is kind
            wanted = [(n, p.requires_grad) for n, p in module.named_parameters()]
            assert [(n, p.requires_grad) for n, p in again.named_parameters()] == wanted
            with torch.no_grad():
                for parameter in again.parameters():
                    parameter.zero_()
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(trials[2](x), modules[2](x))  # what was taken out is a copy

    def test_does_not_move_the_random_state_for_chains_either(self):
        modules = [nn.Sequential(nn.Linear(3, 4), nn.SiLU(), OffsetL2(4, 2)) for _ in range(3)]
        state = torch.get_rng_state()
        trials = stack(modules)
        x = torch.linspace(-1, 1, 15).reshape(5, 3)
        assert isinstance(trials.model, Chain)
        for trial, module in enumerate(modules):
            torch.testing.assert_close(trials[trial](x), module(x), rtol=0, atol=0)
            with torch.no_grad():
                trials[trial][0].weight.zero_()  # a copy
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(trials[2](x), modules[2](x))

    def test_a_sequential_with_names_is_a_chain_too(self):
        def named():
            layers = {"hidden": nn.Linear(16, 4), "bend": nn.Tanh(), "out": nn.Linear(4, 3)}
            net = nn.Sequential()
            for name, layer in layers.items():
                net.add_module(name, layer)
            return net.double()

        modules = make(named)
        x, y = data("mse")
        done = fit(modules, x, y, epochs=STEPS, lr=RATES, solver="adam", curve_points=10**4)
        assert str(done.objective.model) == "Linear(4), Tanh, Linear(3)"
        for trial, module in enumerate(modules):
            assert torch.equal(stack(modules)[trial](x), module(x))
            losses = plain_loop(module, x, y, "mse", "adam", None, STEPS, trial)
            wanted = torch.tensor(losses, dtype=torch.float64)
            torch.testing.assert_close(done.curve[1][:, trial], wanted, rtol=1e-10, atol=0)
            torch.testing.assert_close(done.stack[trial](x), module(x), rtol=1e-10, atol=1e-12)

    def test_from_seeds(self):
        trials = TrialStack.from_seeds(Residual, [4, 8])
        torch.manual_seed(8)
        wanted = Residual()
        x = data("mse", dtype=torch.float32)[0]
        assert torch.equal(trials[1](x), wanted(x))

    def test_the_template_is_not_the_callers_module(self):
        modules = make(Residual)
        trials = stack(modules)
        with torch.no_grad():
            modules[0].offset += 1
        assert not torch.equal(trials[0].offset, modules[0].offset)


class TestNewtonOnModules:
    def test_is_l_bfgs_on_the_full_batch(self):
        done = fit(make(Residual), *data("mse"), epochs=5, solver="newton")
        assert isinstance(done, Newton)
        assert done.method == "l-bfgs"


def changed(change):
    """Three modules of which the last is changed."""
    modules = make(Residual)
    change(modules[2])
    return modules


class TestRefused:
    @pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm, nn.InstanceNorm1d])
    def test_running_statistics(self, norm):
        options = {"track_running_stats": True} if norm is nn.InstanceNorm1d else {}

        def build():
            return nn.Sequential(nn.Linear(16, 4), nn.Sequential(norm(4, **options), nn.ReLU()))

        words = f"layer '1.0': {norm.__name__} keeps running statistics, .*use LayerNorm"
        with pytest.raises(InputError, match=words):
            fit(make(build), *data("mse"), epochs=3)

    def test_but_not_where_they_are_off(self):
        def build():
            layers = [nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 3)]
            layers.insert(0, nn.BatchNorm1d(16).eval())
            return nn.Sequential(*layers)

        x, y = data("mse")
        done = fit(make(build), x, y, epochs=3)
        assert bool(done.final_loss.isfinite().all())

    @pytest.mark.parametrize(
        ("message", "modules"),
        [
            (
                r"trial 2: 'inner.0.weight' has shape \(6, 16\), but trial 0 has \(5, 16\)",
                lambda: changed(lambda m: setattr(m.inner, "0", nn.Linear(16, 6).double())),
            ),
            (
                "trial 2: is not built of the same layers as trial 0",
                lambda: changed(lambda m: setattr(m.inner, "2", nn.ReLU())),
            ),
            (
                "trial 1: is not built of the same layers as trial 0",
                lambda: [ConvNet(), Residual()],
            ),
            (
                "trial 2: the constant 'offset' differs",
                lambda: changed(lambda m: m.offset[0].add_(1)),
            ),
            (
                "trial 2: the constant 'frozen.weight' differs",
                lambda: changed(lambda m: m.frozen.weight.data.add_(1)),
            ),
            (
                "trial 2: trains other parameters than trial 0",
                lambda: changed(lambda m: m.head.requires_grad_(False)),
            ),
            (
                r"torch.float32 and torch.float64; make them equal",
                lambda: changed(lambda m: m.float()),
            ),
            (
                "Residual: has no trainable parameters to stack",
                lambda: [Residual().requires_grad_(False)],
            ),
            (r"trial 1: str is not an nn\.Module", lambda: [ConvNet(), "ConvNet"]),
            ("no modules to stack; give at least one", list),
            (
                "trial 1: a module of Linear, Tanh for the chain",
                lambda: [nn.Sequential(nn.Linear(3, 4), f()) for f in (nn.ReLU, nn.Tanh)],
            ),
            (
                r"trial 1: parameter '0.weight' has shape \(5, 3\)",
                lambda: [nn.Sequential(nn.Linear(3, width)) for width in (4, 5)],
            ),
        ],
    )
    def test_modules_that_do_not_fit(self, message, modules):
        with pytest.raises(InputError, match=message):
            stack(modules())

    @pytest.mark.parametrize(
        "pair",
        [
            (nn.LeakyReLU(0.1), nn.LeakyReLU(0.3)),
            (nn.GELU(), nn.GELU("tanh")),
            (nn.Dropout(0.1), nn.Dropout(0.2)),
            (nn.Dropout(0.1), nn.Dropout(0.1).eval()),
        ],
        ids=str,
    )
    def test_layers_with_other_settings(self, pair):
        with pytest.raises(InputError, match="trial 1"):
            stack([nn.Sequential(nn.Linear(16, 3), layer) for layer in pair])

    def test_a_chain_of_which_one_is_frozen(self):
        modules = [nn.Sequential(nn.Linear(16, 3)) for _ in range(2)]
        modules[1][0].weight.requires_grad_(False)
        with pytest.raises(InputError, match="trial 1"):
            stack(modules)

    @pytest.mark.parametrize(
        ("loss", "change"),
        [
            ("mse", lambda y: y[:, 0]),
            ("mse", lambda y: y * torch.nan),
            ("cross-entropy", lambda y: y + 1),
            ("cross-entropy", lambda y: y * 0 - 100),
            ("cross-entropy", lambda y: y.double()),
        ],
    )
    def test_targets_that_do_not_fit(self, loss, change):
        x, y = data(loss)
        with pytest.raises(InputError):
            fit(make(Residual), x, change(y), epochs=3, loss=loss)

    def test_the_compiled_engine(self):
        with pytest.raises(InputError, match="Residual is not a chain of layers, so it cannot be"):
            fit(make(Residual), *data("mse"), epochs=3, engine="compiled")

    def test_samples_that_do_not_fit(self):
        x, y = data("mse")
        with pytest.raises(InputError, match=r"x of shape \[23, 16\] and y of shape \[22, 3\]"):
            fit(make(Residual), x, y[:22], epochs=3)
        with pytest.raises(InputError, match=r"give both \[T, N, \.\.\.\]"):
            fit(make(Residual), x.expand(3, -1, -1), y, epochs=3, own=True)
        with pytest.raises(InputError, match="3 trials, but data for 2"):
            fit(make(Residual), *data("mse", 2), epochs=3, own=True)
        x[3, 4] = torch.inf
        with pytest.raises(InputError, match=r"x holds inf at \[3, 4\]; remove it"):
            fit(make(Residual), x, y, epochs=3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.other.weight = self.one.weight
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.other(self.one(x).tanh()))


def test_tied_weights_stay_tied():
    modules = make(Tied)
    x, y = data("mse")
    done = fit(modules, x, y, epochs=30, lr=RATES, curve_points=10**4)
    for trial, module in enumerate(modules):
        losses = plain_loop(module, x, y, "mse", "adam", None, 30, trial)
        wanted = torch.tensor(losses, dtype=torch.float64)
        torch.testing.assert_close(done.curve[1][:, trial], wanted, rtol=1e-9, atol=0)


def test_inputs_may_be_whole_numbers():
    modules = make(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    y = data("cross-entropy")[1]
    done = fit(modules, y + 1, y, epochs=30, loss="cross-entropy", lr=0.1)
    assert bool((done.final_loss < 1).all())


def test_heads_without_a_threshold_can_be_stacked():
    """What is not set yet is NaN, which is equal to nothing, but the same in all trials."""
    from mahalens.nn import DistanceHead

    made = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), DistanceHead(8, 3)) for _ in range(2)]
    x = torch.randn(20, 4)
    trials = stack(made)
    torch.testing.assert_close(trials(x)[1], made[1](x))
    made[1][2].threshold.fill_(1.0)
    with pytest.raises(InputError, match=r"the constant '2\.threshold' differs"):
        stack(made)
