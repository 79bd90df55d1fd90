"""The compiled engine: accuracy, any chain, any cut of the samples, sparse samples, memory."""

import math
import os
import platform
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from train_problems import (
    DTYPES,
    assert_same,
    close,
    draw_data,
    draw_stack,
    labels,
    plain_gradients,
    targets,
)

from mahalens.nn import Chain
from mahalens.nn.chain import ELEMENTWISE
from mahalens.train import SGD, Adam, Batches, CrossEntropy, MeanSquaredError, TrialStack, solve
from mahalens.train.compiled import (
    FEW,
    CompiledEngine,
    SparseSamples,
    principal_axes,
    similar_order,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine: {why_not()}")


def objective(chain, x, y, engine="compiled", block=None):
    kind = MeanSquaredError if y.dtype.is_floating_point else CrossEntropy
    return kind(chain, x, y, engine=engine, block=block)


def engine_of(chain, x, y, **options):
    """The engine itself, on samples ``[N, D]`` and targets ``[N, ...]`` or ``[S, N, ...]``."""
    y = y.unsqueeze(-1) if chain.scalar else y
    y = y[None] if len(y) == len(x) else y
    loss = "mse" if y.dtype.is_floating_point else "cross-entropy"
    return CompiledEngine(chain, loss, x[None], y, **options)


# Accuracy: its own exp, sigmoid, tanh, and their slopes


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_activations_and_their_slopes(kind, dtype):
    """One sample per trial, ``1 · a(1 · x + 0) + 0`` and a target far away.

    With r the residual, the gradient is (2 r a' x, 2 r a', 2 r a, 2 r): it tells a and a'.
    """
    far = torch.tensor([1e-30, 1e-10, 1e-3, 0.5, 8.6, 9, 17, 20, 20.5, 36, 80, 87.5, 88.5, 1000])
    x = torch.cat([far, -far, torch.linspace(-12, 12, 3001)]).double()
    if dtype == torch.float64:
        x = torch.cat([x, torch.tensor([-745.0, -709.5, -300.0, 300.0, 709.5]).double()])
    x = x.to(dtype)
    chain = Chain.parse(f"Linear(1), {kind}, Linear(1)", inputs=1)
    values = torch.tensor([1.0, 0, 1, 0], dtype=dtype).expand(len(x), 4)
    y = torch.full((len(x), 1, 1), 1e4, dtype=dtype)
    engine = MeanSquaredError(chain, x.reshape(-1, 1, 1), y, engine="compiled")
    gradient = engine.loss_and_gradient(TrialStack(chain, values))[1].double()
    value, slope = gradient[:, 2] / gradient[:, 3], gradient[:, 1] / gradient[:, 3]

    exact = x.double().clone().requires_grad_()
    wanted = Chain.parse(kind, inputs=1).build()(exact)
    wanted.sum().backward()
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    size = exact.detach().abs()
    # 1 + erf(x) of GELU and 1 - y of slopes are small differences, as they are in torch.
    lost = 4 * eps * size if kind == "GELU" else 0 * size
    error = (value - wanted.detach()).abs()
    assert bool((error <= 8 * eps * wanted.detach().abs() + lost + 1000 * tiny).all())
    assert bool(((slope - exact.grad).abs() <= 8 * eps * size.clamp_min(1)).all())


LOGITS = [
    [0, 0, 0, 0],
    [1e-30, -1e-30, 0, 0],
    [1e-3, 2e-3, -1e-3, 0],
    [20, 0, -20, 1],
    [80, -80, 79, 0],
    [1000, -1000, 0, 999],
    [-1000, -1000, -1000, -1001],
    [-1e30, 1e30, 0, 0],
]


def test_cross_entropy_of_extreme_logits(dtype):
    logits, eps = torch.tensor(LOGITS, dtype=dtype), torch.finfo(dtype).eps
    chain = Chain.parse("Linear(4, bias=False)", inputs=4)
    values = torch.eye(4, dtype=dtype).reshape(1, -1).repeat(len(logits), 1)
    for label in range(4):
        y = torch.full((len(logits), 1), label)
        engine = CrossEntropy(chain, logits[:, None], y, engine="compiled")
        loss, gradient = engine.loss_and_gradient(TrialStack(chain, values))
        exact = logits.double().clone().requires_grad_()
        wanted = nn.functional.cross_entropy(exact, y[:, 0], reduction="none")
        wanted.sum().backward()
        torch.testing.assert_close(loss.double(), wanted.detach(), rtol=8 * eps, atol=8 * eps)
        slopes = exact.grad[:, :, None] * exact.detach()[:, None, :]
        error = (gradient.double().reshape(-1, 4, 4) - slopes).abs()
        assert bool((error <= 8 * eps * exact.detach().abs()[:, None, :] + 1e-300).all())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only done on x86")
def test_numbers_below_the_normal_range_count_as_0_inside_the_engine_alone(dtype):
    tiny = torch.finfo(dtype).tiny
    chain = Chain.parse("Linear(2, bias=False)", inputs=1)
    values = torch.tensor([[-2 * math.log(tiny), 0.0]], dtype=dtype)
    # The smaller of two probabilities is about tiny; a hundredth of it is below the normal range.
    x, y = torch.ones(100, 1, dtype=dtype), torch.zeros(100, dtype=torch.int64)
    engine = CrossEntropy(chain, x, y, engine="compiled")
    gradient = engine.loss_and_gradient(TrialStack(chain, values))[1]
    assert gradient.tolist() == [[0.0, 0.0]]
    assert (torch.full((8,), tiny, dtype=dtype) / 2 > 0).all()


# Layers of any width

WIDE = "Linear({0}), ReLU, OffsetL2(3), PointSlope({0}), Linear(2), Norm"


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        # A product over more inputs than the first-level cache holds is cut into pieces.
        *[(WIDE.format(width), width) for width in (255, 256, 257, 700)],
        *[(f"Linear({units}), Abs, Norm", 7) for units in range(1, 20)],
    ],
)
def test_gradients_of_layers_of_any_width_equal_autograd(text, inputs):
    x, y, stack = draw_data(Chain.parse(text, inputs=inputs), 21, 1)
    stack.values.mul_(0.1)
    loss, gradient = objective(stack.chain, x, y).loss_and_gradient(stack)
    wanted, slopes = plain_gradients(stack, x, y)
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
    got, expected = (TrialStack(stack.chain, rows).tensors() for rows in (gradient, slopes))
    for name, part in expected.items():
        close(got[name], part, roundings=5000)


# However the work is cut, the numbers are the same

CHAIN = Chain.parse("Linear(19), SiLU, OffsetL2(5), Linear(4), Tanh, PointSlope(3)", inputs=6)


def results(engine, start, seeds=3):
    """Everything the engine can be asked for: a pass, full batches, mini-batches."""
    yield engine.loss(start)
    yield from engine.loss_and_gradient(start)
    for solver in (
        Adam(engine, start, 20, lr=0.01),
        SGD(engine, start, 20, lr=0.01, momentum=0.9, batches=Batches(32, seeds=seeds)),
    ):
        solve(solver)
        yield solver.stack.values
        yield solver.curve[1].T


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
class TestReproducible:
    def test_for_any_number_of_threads_and_any_layout(self, loss, dtype, threads):
        x, y, start = draw_data(CHAIN, 77, 5, dtype, loss)
        turned = TrialStack(CHAIN, start.values.T.contiguous().T)
        assert not turned.values.is_contiguous()
        threads(1)
        wanted = list(results(objective(CHAIN, x, y), start))
        for number, stack in ((1, turned), (2, start), (3, start)):
            threads(number)
            for got, want in zip(results(objective(CHAIN, x, y), stack), wanted, strict=True):
                assert torch.equal(got, want)

    @pytest.mark.parametrize("own", [False, True])
    def test_for_any_choice_and_order_of_trials(self, loss, own, dtype):
        x, y, start = draw_data(CHAIN, 77, 6, dtype, loss, own=own)
        wanted = list(results(objective(CHAIN, x, y), start, seeds=range(6)))
        for chosen in ([4, 1, 3], [2], [5, 4, 3, 2, 1, 0]):
            data = (x[chosen], y[chosen]) if own else (x, y)
            stack = TrialStack(CHAIN, start.values[chosen])
            got = results(objective(CHAIN, *data), stack, seeds=chosen)
            for part, want in zip(got, wanted, strict=True):
                assert torch.equal(part, want[chosen])

    def test_for_ranges_of_samples(self, loss, dtype, threads):
        x, y, start = draw_data(CHAIN, 459, dtype=dtype, loss=loss)
        index = torch.arange(3)

        def passes(**options):
            engine = engine_of(CHAIN, x, y, block=16, **options)
            both = engine.loss_and_gradient(start.values, index)
            return len(engine.ranges), (engine.loss(start.values, index), *both)

        count, wanted = passes()
        assert count == 1
        threads(1)
        count, first = passes(range_flops=1, range_bytes=100)
        assert count == 29
        for got, want in zip(first, wanted, strict=True):
            close(got, want, roundings=50)
        for number in (2, 3):
            threads(number)
            for got, want in zip(passes(range_flops=1, range_bytes=100)[1], first, strict=True):
                assert torch.equal(got, want)


@pytest.mark.parametrize("optimiser", [SGD, Adam])
def test_epochs_in_the_library_equal_epochs_in_torch(optimiser, dtype):
    x, y, start = draw_data(CHAIN, 77, dtype=dtype)
    options = {"lr": [3e-3, 1e-2, 1e-3], "curve_points": 10**4}
    options |= {"momentum": 0.9} if optimiser is SGD else {}
    ends = []
    for small_flops in (1e8, 0):
        solver = optimiser(objective(CHAIN, x, y), start, 120, small_flops=small_flops, **options)
        solve(solver)
        ends.append(solver)
    close(ends[1].stack.values, ends[0].stack.values, roundings=2000)
    close(ends[1].curve[1], ends[0].curve[1], roundings=2000)


# Packing


@pytest.mark.parametrize("inputs", [8, 16, 48])
@pytest.mark.parametrize("samples", [1, 15, 16, 700])
def test_rows_serve_as_strips(inputs, samples, dtype):
    chain = Chain.parse("Linear(13), ReLU, Linear(3)", inputs=inputs)
    x, y, start = draw_data(chain, samples, 2, dtype, "cross-entropy")
    index = torch.arange(2)
    packed, by_rows = engine_of(chain, x, y), engine_of(chain, x, y, small_bytes=0)
    got = by_rows.loss_and_gradient(start.values, index)
    for part, want in zip(got, packed.loss_and_gradient(start.values, index), strict=True):
        assert_same(part, want)
    whole = inputs % (64 // x.element_size()) == 0
    assert (by_rows.packed.strips is None) == whole


# Samples that are mostly background: the same numbers from fewer products


def pixels(samples, inputs, share, dtype=torch.float64, seed=0, background=0.0):
    """Samples of which a share differs from the background, in runs of columns as strokes do."""
    generator = torch.Generator().manual_seed(seed)
    begins = torch.rand(samples, inputs, generator=generator) < share / 3
    inked = begins | begins.roll(1, 1) | begins.roll(2, 1)
    ink = torch.rand(samples, inputs, generator=generator, dtype=torch.float64) + 0.1
    return (torch.where(inked, ink, 0.0) + background).to(dtype)


def check_sparse(chain, x, y, block=None):
    """Sparse against dense, and both against autograd in float64; targets may be per trial."""
    stack, index = draw_stack(chain, 3, x.dtype), torch.arange(3)
    stack.values.mul_(0.1)
    exact = y.double() if y.dtype.is_floating_point else y
    exact = list(exact) if len(y) != len(x) else exact
    wanted = plain_gradients(TrialStack(chain, stack.values.double()), x.double(), exact)
    for sparse in (True, False):
        engine = engine_of(chain, x, y, sparse=sparse, block=block)
        assert (engine.packed.lists is not None) == sparse
        got = engine.loss_and_gradient(stack.values, index)
        assert torch.equal(engine.loss(stack.values, index), got[0])
        for part, want in zip(got, wanted, strict=True):
            close(part, want, roundings=200)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    samples=st.integers(4, 333),
    inputs=st.integers(1, 70) | st.sampled_from([200, 201, 401, 601]),  # one to four parts
    units=st.sampled_from([1, 2, 9, 21, 32, 40, 128]),
    share=st.sampled_from([0.0, 0.02, 0.25, 0.7, 1.0]),
    layers=st.sampled_from(
        [
            "Abs, Linear(3)",
            "Abs, Norm",
            "Abs, Linear(4), Abs, Neg",
            "ReLU, OffsetL2(7), Neg",
            "Tanh, Linear(33, bias=False), SiLU, PointSlope(4)",
        ]
    ),
    bias=st.booleans(),
    loss=st.sampled_from(["mse", "cross-entropy"]),
    own=st.booleans(),
    block=st.sampled_from([None, 1, 16, 24]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_sparse_equals_dense_equals_autograd(
    samples, inputs, units, share, layers, bias, loss, own, block, dtype, seed
):
    chain = Chain.parse(f"Linear({units}, bias={bias}), {layers}", inputs=inputs)
    x = pixels(samples, inputs, share, dtype, seed, background=-0.42)
    shape = (*(3,) * own, samples)
    loss = "mse" if chain.scalar else loss
    check_sparse(chain, x, targets(chain, *shape, loss=loss, dtype=dtype, seed=seed), block)


def test_the_size_of_lists_does_not_depend_on_the_background():
    x = pixels(3000, 100, 0.19, torch.float32)
    raw, normalised = (SparseSamples(v, 16, 64) for v in (x, (x - 0.1307) / 0.3081))
    assert torch.equal(raw.order, normalised.order)
    assert torch.equal(raw.order.sort().values, torch.arange(len(x)))
    assert raw.left == normalised.left < 0.5
    assert SparseSamples(torch.linspace(-1, 1, 11).expand(40, 11), 16, 32).left == 0


def test_no_rounding_enters_the_order(threads):
    """The same whatever the sequence of the sums."""
    x = pixels(300, 50, 0.3)
    wanted = similar_order(x, torch.zeros(50), FEW)
    for number in (1, 2, 3):
        threads(number)
        assert torch.equal(similar_order(x, torch.zeros(50), FEW), wanted)
    axes = principal_axes((x != 0).double())
    assert torch.equal(axes, axes.round())


IMAGES = Chain.parse("Linear(19), Abs, Linear(3)", inputs=130)


def test_sparse_is_the_same_for_any_number_of_threads_and_choice_of_trials(dtype, threads):
    x, y, stack = pixels(300, 130, 0.2, dtype), labels(3, 300), draw_stack(IMAGES, 5, dtype)

    def passes(number, chosen):
        threads(number)
        engine = engine_of(IMAGES, x, y, sparse=True, block=16, range_flops=1)
        assert len(engine.ranges) > 4
        values, index = stack.values[chosen], torch.tensor(chosen)
        return engine.loss(values, index), *engine.loss_and_gradient(values, index)

    every = [0, 1, 2, 3, 4]
    wanted = passes(1, every)
    for number, chosen in ((2, every), (3, every), (1, [3]), (1, [4, 1])):
        for got, want in zip(passes(number, chosen), wanted, strict=True):
            assert torch.equal(got, want[chosen])


@pytest.mark.parametrize("small_flops", [1e8, 0], ids=["in the library", "step by step"])
@pytest.mark.parametrize("optimiser", [SGD, Adam])
def test_sparse_training_ends_where_that_of_torch_does(optimiser, small_flops):
    x, stack = pixels(300, 130, 0.2), draw_stack(IMAGES, 3)
    stack.values.mul_(0.1)
    y = targets(IMAGES, 300)
    ends = []
    for engine in ("compiled", "torch"):
        of_engine = objective(IMAGES, x, y, engine)
        assert engine == "torch" or of_engine.compiled.packed.lists is not None
        solver = optimiser(of_engine, stack, 60, lr=1e-2, small_flops=small_flops)
        solve(solver)
        ends.append(solver)
    close(ends[0].stack.values, ends[1].stack.values, roundings=1e5)
    close(ends[0].final_loss, ends[1].final_loss, roundings=1e5)
    assert not torch.equal(ends[0].stack.values, stack.values)


class TestChoice:
    """Lists are used where they pay: many samples with a background, before many units."""

    def lists(self, text="Linear(16), ReLU, Linear(3)", samples=256, inputs=128, share=0.2, own=()):
        x, y = pixels(samples, inputs, share), labels(3, samples)
        x, y = x.expand(*own, -1, -1), y.expand(*own, -1)
        return objective(Chain.parse(text, inputs=inputs), x, y).compiled.packed.lists

    @pytest.mark.parametrize(
        "change",
        [
            *({"samples": 255}, {"inputs": 127}, {"share": 1.0}, {"share": 3.0}, {"own": (2,)}),
            {"text": "Linear(15), ReLU, Linear(3)"},
            {"text": "Abs, Linear(16), Linear(3)"},
            {"text": "PointSlope(16), ReLU, Linear(3)"},
        ],
        ids=str,
    )
    def test_of_lists_ends_with_any_of_these(self, change):
        assert self.lists() is not None
        assert self.lists(**change) is None

    def test_lists_too_long_are_given_up(self):
        x, y = pixels(300, 130, 0.2), labels(3, 300)
        left = engine_of(IMAGES, x, y).packed.left
        assert engine_of(IMAGES, x, y, most_left=0.99 * left).packed.lists is None

    def test_mini_batches_take_rows(self):
        mini = objective(IMAGES, pixels(300, 130, 0.2), labels(3, 300))
        solve(SGD(mini, draw_stack(IMAGES, 2), 2, lr=0.1, batches=Batches(32)))
        assert "packed" not in vars(mini.compiled)

    @pytest.mark.parametrize("text", ["Abs, Linear(3)", "PointSlope(3)"])
    def test_lists_cannot_be_forced_on_other_layers(self, text):
        chain, x, y = Chain.parse(text, inputs=4), torch.zeros(5, 4), torch.zeros(5, 3)
        with pytest.raises(ValueError, match="sparse samples want a Linear first"):
            engine_of(chain, x, y, sparse=True)


# Processes and memory

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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own():
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORK]).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak")
@pytest.mark.parametrize(("engine", "trials"), [("compiled", 64), ("torch", 16)])
def test_memory_does_not_grow_with_samples_times_trials_times_units(engine, trials):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEMORY.format(engine=engine, trials=trials)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    samples, activations = 4 * 20000 * 64, 4 * 20000 * 256 * trials
    assert samples < int(done.stdout) < 0.25 * activations
