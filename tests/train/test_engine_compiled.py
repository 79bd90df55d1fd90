"""The compiled engine: gradients, reproducibility, memory."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Chain, Layer
from mahalens.nn.chain import ELEMENTWISE, MIXED, VARIANTS
from mahalens.train import (
    SGD,
    Adam,
    Batches,
    CrossEntropy,
    MeanSquaredError,
    TrialStack,
    solve,
)
from mahalens.train.compiled import CompiledEngine, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine: {why_not()}")

DTYPES = [torch.float32, torch.float64]


def draw(chain, samples, trials=3, dtype=torch.float64, loss="mse", own=False, seed=0):
    """An objective's data and starting points."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    lead = (trials,) if own else ()
    x = normal(*lead, samples, chain.inputs)
    if loss == "mse":
        y = normal(*lead, samples, *(() if chain.outputs is None else (chain.outputs,)))
    else:
        y = torch.randint(chain.outputs, (*lead, samples), generator=generator)
    width = TrialStack.from_seeds(chain, [0]).values.shape[1]
    return x, y, TrialStack(chain, normal(trials, width))


def objective(chain, x, y, engine="compiled", block=None):
    kind = MeanSquaredError if y.dtype.is_floating_point else CrossEntropy
    return kind(chain, x, y, engine=engine, block=block)


def plain_gradient(module, x, y):
    kind = nn.MSELoss() if y.dtype.is_floating_point else nn.CrossEntropyLoss()
    loss = kind(module(x), y)
    loss.backward()
    return loss.detach(), {name: p.grad[None] for name, p in module.named_parameters()}


def assert_near(got, wanted, roundings):
    """Within so many roundings of the largest number."""
    bound = roundings * torch.finfo(got.dtype).eps * float(wanted.abs().max())
    torch.testing.assert_close(got, wanted, rtol=0, atol=bound)


@pytest.fixture
def threads():
    """Sets the number of threads; afterwards it is as it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


WIDTHS = st.sampled_from([1, 2, 3, 4, 5, 8, 9, 17])


@st.composite
def chains(draw):
    affine = st.builds(Layer, st.just("Linear"), WIDTHS, st.booleans())
    distance = st.builds(
        Layer, st.just("OffsetL2"), WIDTHS, st.just(True), st.sampled_from(VARIANTS)
    )
    activation = st.sampled_from([Layer(kind) for kind in ELEMENTWISE])
    slope = st.builds(Layer, st.just("PointSlope"), WIDTHS)
    layers = draw(st.lists(affine | activation | distance | slope, max_size=3))
    layers += [draw(affine | distance | slope), *draw(st.lists(activation, max_size=1))]
    if draw(st.booleans()):
        layers += [Layer("Norm"), *draw(st.lists(activation, max_size=1))]
    return mixed_in(draw, Chain(draw(WIDTHS), tuple(layers)))


def mixed_in(draw, chain):
    """The chain with some of its ReLUs as layers that mix, as wide as they are there."""
    normed = [layer.kind for layer in chain.layers].index("Norm") if chain.scalar else 99
    layers = [
        Layer(MIXED, absolute=draw(st.integers(0, width)))
        if layer.kind in ("ReLU", "Abs") and place < normed and draw(st.booleans())
        else layer
        for place, (layer, width) in enumerate(zip(chain.layers, chain.widths, strict=True))
    ]
    return Chain(chain.inputs, tuple(layers))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    chain=chains(),
    samples=st.integers(1, 70),
    own=st.booleans(),
    labels=st.booleans(),
    block=st.sampled_from([None, 1, 16, 24]),
    seed=st.integers(0, 99),
)
def test_gradients_of_any_chain_equal_autograd(chain, samples, own, labels, block, seed):
    loss = "cross-entropy" if labels and (chain.outputs or 0) > 1 else "mse"
    x, y, stack = draw(chain, samples, 2, own=own, loss=loss, seed=seed)
    engine = objective(chain, x, y, block=block)
    losses, gradients = engine.loss_and_gradient(stack)
    assert torch.equal(losses, engine.loss(stack))
    for trial in range(2):
        of_trial = (x[trial], y[trial]) if own else (x, y)
        wanted, slopes = plain_gradient(stack[trial], *of_trial)
        gradient = TrialStack.from_tensors(chain, slopes).values[0]
        torch.testing.assert_close(losses[trial], wanted, rtol=1e-12, atol=1e-15)
        # 1 - y² of a Tanh far out is a small difference, and all gradients below it with it.
        bound = 1e-12 * float(gradient.abs().max()) + 1e-14
        torch.testing.assert_close(gradients[trial], gradient, rtol=1e-12, atol=bound)


@pytest.mark.parametrize("width", [255, 256, 257, 300, 700])
def test_gradients_of_wide_layers_equal_autograd(width):
    """A product over more inputs than the first-level cache holds is cut into pieces."""
    chain = Chain.parse(
        f"Linear({width}), ReLU, OffsetL2(3), PointSlope({width}), Linear(2), Norm", inputs=width
    )
    x, y, stack = draw(chain, 21, 1)
    stack.values.mul_(0.1)
    loss, gradient = objective(chain, x, y).loss_and_gradient(stack)
    wanted, slopes = plain_gradient(stack[0], x, y)
    torch.testing.assert_close(loss[0], wanted, rtol=1e-12, atol=0)
    for part, name in zip(TrialStack(chain, gradient).tensors().values(), slopes, strict=True):
        assert_near(part, slopes[name], 5000)


CHAIN = Chain.parse("Linear(19), SiLU, OffsetL2(5), Linear(4), Tanh, PointSlope(3)", inputs=6)


def results(engine, start, **options):
    """Everything the engine can be asked for: a pass, full batches, mini-batches."""
    batches = Batches(32, seeds=options.pop("seeds", 3))
    yield engine.loss(start)
    yield from engine.loss_and_gradient(start)
    for solver in (
        Adam(engine, start, 20, lr=0.01),
        SGD(engine, start, 20, lr=0.01, momentum=0.9, batches=batches),
    ):
        solve(solver)
        yield solver.stack.values
        yield solver.curve[1].T


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
class TestReproducible:
    def test_for_any_number_of_threads(self, loss, dtype, threads):
        x, y, start = draw(CHAIN, 77, 5, dtype, loss)
        threads(1)
        wanted = list(results(objective(CHAIN, x, y), start))
        for number in (2, 3):
            threads(number)
            for got, want in zip(results(objective(CHAIN, x, y), start), wanted, strict=True):
                assert torch.equal(got, want)

    @pytest.mark.parametrize("own", [False, True])
    def test_for_any_choice_and_order_of_trials(self, loss, own, dtype):
        x, y, start = draw(CHAIN, 77, 6, dtype, loss, own=own)
        wanted = list(results(objective(CHAIN, x, y), start, seeds=range(6)))
        for chosen in ([4, 1, 3], [2], [5, 4, 3, 2, 1, 0]):
            data = (x[chosen], y[chosen]) if own else (x, y)
            stack = TrialStack(CHAIN, start.values[chosen])
            for got, want in zip(
                results(objective(CHAIN, *data), stack, seeds=chosen), wanted, strict=True
            ):
                assert torch.equal(got, want[chosen])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("own", [False, True])
def test_block_sizes_agree(own, dtype):
    x, y, start = draw(CHAIN, 300, dtype=dtype, own=own)
    wanted = list(results(objective(CHAIN, x, y), start))
    for block in (1, 16, 17, 1000):
        for got, want in zip(
            results(objective(CHAIN, x, y, block=block), start), wanted, strict=True
        ):
            assert_near(got, want, 500)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_ranges_of_samples_agree_with_all_at_once(loss, dtype, threads, monkeypatch):
    x, y, start = draw(CHAIN, 459, dtype=dtype, loss=loss)
    whole = objective(CHAIN, x, y, block=16)
    assert len(whole.compiled._ranges) == 1
    wanted = [whole.loss(start), *whole.loss_and_gradient(start)]
    monkeypatch.setattr("mahalens.train.compiled.CompiledEngine.range_flops", 1)
    monkeypatch.setattr("mahalens.train.compiled.CompiledEngine.range_bytes", 100)
    got = []
    for number in (1, 2, 3):
        threads(number)
        ranged = objective(CHAIN, x, y, block=16)
        assert len(ranged.compiled._ranges) == 29
        got.append([ranged.loss(start), *ranged.loss_and_gradient(start)])
    for one, two, three, want in zip(*got, wanted, strict=True):
        assert_near(one, want, 50)
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def trained(engine, start, optimiser, **options):
    solver = optimiser(engine, start, 120, curve_points=10**4, **options)
    solve(solver)
    return solver


@pytest.fixture
def no_training_in_the_library(monkeypatch):
    """Large problems: the library gives gradients, and torch does the steps."""

    def refuse(*_):
        raise AssertionError("trained in the library")

    monkeypatch.setattr("mahalens.train.Descent.small_flops", 0)
    monkeypatch.setattr(CompiledEngine, "train", refuse)


@pytest.mark.parametrize("optimiser", [SGD, Adam])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_epochs_in_the_library_equal_epochs_in_torch(optimiser, dtype, request):
    x, y, start = draw(CHAIN, 77, dtype=dtype)
    options = {"lr": [3e-3, 1e-2, 1e-3], **({"momentum": 0.9} if optimiser is SGD else {})}
    inside = trained(objective(CHAIN, x, y), start, optimiser, **options)
    request.getfixturevalue("no_training_in_the_library")
    outside = trained(objective(CHAIN, x, y), start, optimiser, **options)
    assert_near(outside.stack.values, inside.stack.values, 2000)
    assert_near(outside.curve[1], inside.curve[1], 2000)


def test_a_start_that_is_stored_by_columns():
    x, y, start = draw(CHAIN, 77)
    turned = TrialStack(CHAIN, start.values.T.contiguous().T)
    assert not turned.values.is_contiguous()
    for a, b in zip(
        results(objective(CHAIN, x, y), start), results(objective(CHAIN, x, y), turned), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("one_epoch_at_a_time")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_resumed_run_ends_in_the_same_bits(dtype, through_file, run, assert_same_end):
    x, y, start = draw(CHAIN, 77, dtype=dtype)

    def fresh():
        return Adam(objective(CHAIN, x, y), start, 12)

    first = fresh()
    for _ in range(5):
        first.advance()
    again = fresh()
    again.restore(through_file(first.state()))
    assert_same_end(run(again), run(fresh()))


@pytest.mark.parametrize("wrong", ["dtype", "chain"])
def test_trials_that_do_not_fit_the_objective_are_refused(wrong):
    x, y, start = draw(CHAIN, 77)
    other = Chain.parse("Linear(3)", inputs=6)
    stacks = {
        "dtype": TrialStack(CHAIN, start.values.float()),
        "chain": TrialStack(other, start.values[:, :21].contiguous()),
    }
    with pytest.raises(InputError, match="make them equal"):
        objective(CHAIN, x, y).loss(stacks[wrong])


FORK = """
import os, signal, torch
from mahalens.nn import Chain
from mahalens.train import MeanSquaredError, TrialStack
torch.set_num_threads(2)
chain = Chain.parse("Linear(2)", inputs=3)
engine = MeanSquaredError(chain, torch.randn(9, 3), torch.randn(9, 2), engine="compiled")
start = TrialStack.from_seeds(chain, range(3))
wanted = engine.loss(start)
if not os.fork():
    signal.alarm(3)
    os._exit(not torch.equal(engine.loss(start), wanted))
raise SystemExit(os.wait()[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own():
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORK]).returncode == 0


MEMORY = """
import re, torch
from pathlib import Path
from mahalens.nn import Chain
from mahalens.train import CrossEntropy, SGD, TrialStack, solve
torch.set_num_threads(1)
chain = Chain.parse("Linear(256), ReLU, Linear(10)", inputs=64)
start = TrialStack.from_seeds(chain, range({trials}))
def train(samples):
    x, y = torch.randn(samples, 64), torch.randint(10, (samples,))
    solve(SGD(CrossEntropy(chain, x, y, engine={engine!r}), start, 1))
def memory(name):
    return 1024 * int(re.search(name + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
train(256)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = memory("VmRSS")
train(20000)
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak")
@pytest.mark.parametrize(("engine", "trials"), [("compiled", 64), ("torch", 16)])
def test_memory_does_not_grow_with_samples_times_trials_times_units(engine, trials):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEMORY.format(engine=engine, trials=trials)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    samples, activations = 4 * 20000 * 64, 4 * 20000 * 256 * trials
    assert samples < int(done.stdout) < 0.25 * activations
