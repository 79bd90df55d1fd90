"""Samples that are mostly background: the same numbers from fewer products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.nn import Chain
from mahalens.train import SGD, Adam, Batches, CrossEntropy, MeanSquaredError, TrialStack, solve
from mahalens.train.compiled import CompiledEngine, why_not
from mahalens.train.compiled.packing import (
    FEW,
    SparseSamples,
    background_of,
    principal_axes,
    similar_order,
)
from mahalens.train.engines import LOSSES, TorchEngine

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine: {why_not()}")

DTYPES = [torch.float32, torch.float64]


def pixels(samples, inputs, share, dtype=torch.float64, seed=0, background=0.0):
    """Samples of which a share differs from the background, in runs of columns as strokes do."""
    generator = torch.Generator().manual_seed(seed)
    begins = torch.rand(samples, inputs, generator=generator) < share / 3
    inked = begins | begins.roll(1, 1) | begins.roll(2, 1)
    ink = torch.rand(samples, inputs, generator=generator, dtype=torch.float64) + 0.1
    return (torch.where(inked, ink, 0.0) + background).to(dtype)


def targets(chain, samples, dtype, seed=0, labels=True):
    generator = torch.Generator().manual_seed(seed)
    if labels:
        return torch.randint(chain.outputs, (1, samples), generator=generator)
    shape = (1, samples, chain.outputs or 1)
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)


def start(chain, trials, dtype, seed=0):
    stack = TrialStack.from_seeds(chain, range(seed, seed + trials))
    return TrialStack(chain, stack.values.to(dtype))


def engine_of(chain, x, y, sparse, **options):
    loss = "mse" if y.dtype.is_floating_point else "cross-entropy"
    engine = CompiledEngine(chain, loss, x[None], y, sparse=sparse, **options)
    assert sparse is None or (engine.packed.lists is not None) == sparse
    return engine


def autograd(chain, stack, x, y):
    """Loss and gradient of every trial by plain modules."""
    kind = nn.MSELoss() if y.dtype.is_floating_point else nn.CrossEntropyLoss()
    losses, rows = [], []
    for trial in range(len(stack)):
        module, target = stack[trial], y[trial if len(y) > 1 else 0]
        loss = kind(module(x), target.squeeze(-1) if chain.scalar else target)
        loss.backward()
        losses.append(loss.detach())
        slopes = {name: p.grad[None] for name, p in module.named_parameters()}
        rows.append(TrialStack.from_tensors(chain, slopes).values[0])
    return torch.stack(losses), torch.stack(rows)


def assert_near(got, wanted, roundings=200):
    """Within so many roundings of the largest number."""
    bound = roundings * torch.finfo(got.dtype).eps * max(1e-30, float(wanted.abs().max()))
    torch.testing.assert_close(got, wanted, rtol=0, atol=bound)


def check(chain, x, y, block=None):
    """Sparse against dense, and both against autograd in float64."""
    stack = start(chain, 3, x.dtype)
    index = torch.arange(3)
    exact_y = y.double() if y.dtype.is_floating_point else y
    wanted = autograd(chain, TrialStack(chain, stack.values.double()), x.double(), exact_y)
    for sparse in (True, False):
        engine = engine_of(chain, x, y, sparse, block=block)
        got = engine.loss_and_gradient(stack.values, index)
        assert torch.equal(engine.loss(stack.values, index), got[0])
        for a, b in zip(got, wanted, strict=True):
            assert_near(a, b.to(a.dtype))


CHAINS = [
    "Linear(21), ReLU, Linear(4)",
    "Linear(128), Abs, Linear(4), Abs, Neg",
    "Linear(24, bias=False), Abs, OffsetL2(4), Neg",
    "Linear(9), Tanh, Linear(33, bias=False), SiLU, PointSlope(4)",
    "Linear(32)",
    "Linear(1, bias=False), Linear(3)",
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("labels", [True, False])
def test_sparse_equals_dense_equals_autograd(text, labels, dtype):
    chain = Chain.parse(text, inputs=70)
    x = pixels(333, 70, 0.25, dtype, background=-0.42)
    check(chain, x, targets(chain, len(x), dtype, labels=labels))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_a_norm(dtype):
    chain = Chain.parse("Linear(20), Abs, Norm", inputs=18)
    x = pixels(50, 18, 0.3, dtype)
    check(chain, x, targets(chain, len(x), dtype, labels=False))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    samples=st.integers(1, 75),
    inputs=st.integers(1, 40),
    units=st.integers(1, 40),
    share=st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]),
    bias=st.booleans(),
    block=st.sampled_from([None, 1, 16, 24]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_any_shape_and_density(samples, inputs, units, share, bias, block, dtype, seed):
    chain = Chain.parse(f"Linear({units}, bias={bias}), Abs, Linear(3)", inputs=inputs)
    x = pixels(samples, inputs, share, dtype, seed, background=0.3)
    check(chain, x, targets(chain, samples, dtype, seed), block)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_nothing_but_background(dtype):
    chain = Chain.parse("Linear(20), Abs, Linear(3)", inputs=11)
    x = torch.linspace(-1, 1, 11).to(dtype).expand(40, 11).contiguous()
    assert SparseSamples(x, 16, 32).left == 0
    check(chain, x, targets(chain, 40, dtype))


def test_the_torch_engine_gives_the_same():
    chain = Chain.parse("Linear(40), ReLU, Linear(3)", inputs=64)
    x = pixels(400, 64, 0.2)
    y, stack, index = targets(chain, 400, x.dtype, labels=False), start(chain, 3, x.dtype), None
    index = torch.arange(3)
    wanted = TorchEngine(chain, LOSSES["mse"], x[None], y).loss_and_gradient(stack.values, index)
    got = engine_of(chain, x, y, True).loss_and_gradient(stack.values, index)
    for a, b in zip(got, wanted, strict=True):
        assert_near(a, b)


@pytest.mark.parametrize("labels", [True, False])
def test_targets_of_each_trial_follow_the_order_of_the_samples(labels):
    chain = Chain.parse("Linear(20), Abs, Linear(3)", inputs=30)
    x, stack = pixels(100, 30, 0.2), start(chain, 3, torch.float64)
    y = torch.cat([targets(chain, 100, x.dtype, seed, labels) for seed in range(3)])
    chosen = [2, 0]
    part = TrialStack(chain, stack.values[chosen])
    got = engine_of(chain, x, y, True).loss_and_gradient(part.values, torch.tensor(chosen))
    for a, b in zip(got, autograd(chain, part, x, y[chosen]), strict=True):
        assert_near(a, b)


class TestLists:
    """Taken apart and put together again, number by number."""

    @pytest.mark.parametrize("shape", [(1, 1), (16, 8), (45, 13), (100, 30)], ids=str)
    @pytest.mark.parametrize("block", [16, 32])
    def test_they_hold_the_samples(self, shape, block):
        x = pixels(*shape, 0.3, background=2.0)
        samples = SparseSamples(x, 16, block)
        background, *lists = samples._tensors
        rest = (x - background)[samples.order]
        (starts, places, numbers), (begins, rows, strips) = lists[:3], lists[3:]
        whole = torch.zeros(-(-shape[0] // 16) * 16, -(-shape[1] // FEW) * FEW).double()
        other = whole.clone()
        for group in range(len(starts) - 1):
            for entry in range(starts[group], starts[group + 1]):
                whole[group * FEW : group * FEW + FEW, places[entry]] = numbers[entry]
        per_block = whole.shape[1] // FEW
        for row in range(len(begins) - 1):
            number, strip = divmod(row, per_block)
            for entry in range(begins[row], begins[row + 1]):
                other[number * block + rows[entry], strip * FEW : strip * FEW + FEW] = strips[entry]
        assert torch.equal(whole[: shape[0], : shape[1]], rest)
        assert torch.equal(other[: shape[0], : shape[1]], rest)
        assert bool((numbers != 0).any(1).all())
        assert bool((strips != 0).any(1).all())

    def test_they_need_less_memory_than_the_samples(self):
        x = pixels(3000, 100, 0.19, torch.float32)
        samples = SparseSamples(x, 16, 256)
        assert sum(tensor.nbytes for tensor in samples._tensors) < x.nbytes

    def test_normalised_pixels_are_as_sparse_as_raw_ones(self):
        x = pixels(500, 64, 0.2, torch.float32)
        raw, normalised = (SparseSamples(v, 16, 64) for v in (x, (x - 0.1307) / 0.3081))
        assert torch.equal(raw.order, normalised.order)
        assert raw.left == normalised.left < 0.5

    def test_the_background_is_the_most_frequent_number(self):
        x = torch.tensor([[1.0, 5], [2, 5], [1, 6], [3, 7], [1, 5]])
        assert background_of(x).tolist() == [1, 5]


class TestOrder:
    def test_every_sample_once(self):
        for samples in (1, 3, 4, 5, 64, 777):
            x = pixels(samples, 20, 0.3, seed=samples)
            order = similar_order(x, torch.zeros(20), FEW)
            assert torch.equal(order.sort().values, torch.arange(samples))

    def test_samples_alike_become_neighbours(self):
        generator = torch.Generator().manual_seed(0)
        patterns = (torch.rand(13, 60, generator=generator) < 0.3).double()
        kinds = torch.arange(13).repeat(FEW)[torch.randperm(13 * FEW, generator=generator)]
        order = similar_order(patterns[kinds], torch.zeros(60), FEW)
        found = kinds[order].view(-1, FEW)
        assert bool((found == found[:, :1]).all())

    def test_axes_hold_nearly_as_much_as_the_principal_ones(self):
        generator = torch.Generator().manual_seed(0)
        blobs = torch.rand(500, 12, generator=generator) @ torch.rand(12, 80, generator=generator)
        pattern = (blobs + torch.rand(500, 80, generator=generator) > 3.6).double()
        axes = principal_axes(pattern)
        axes = axes / axes.norm(dim=0)
        covariance = pattern.T.cov()
        torch.testing.assert_close(axes.T @ axes, torch.eye(16).double(), rtol=0, atol=1e-4)
        best = torch.linalg.eigvalsh(covariance)[-16:].sum()
        assert 0.9 * best < (axes * (covariance @ axes)).sum() < 1.0001 * best

    def test_few_directions_are_no_trouble(self):
        on = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat(FEW, 1)
        x = on.double().repeat_interleave(torch.tensor([5, 2]), 1)
        order = similar_order(x, torch.zeros(7), FEW)
        found = (on @ torch.tensor([2, 1]))[order].view(-1, FEW)
        assert bool((found == found[:, :1]).all())

    def test_no_rounding_enters(self):
        """The same whatever the sequence of the sums: columns in any order, other threads."""
        x = pixels(300, 50, 0.3)
        wanted = similar_order(x, torch.zeros(50), FEW)
        before = torch.get_num_threads()
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert torch.equal(similar_order(x, torch.zeros(50), FEW), wanted)
        torch.set_num_threads(before)
        axes = principal_axes((x != 0).double())
        assert torch.equal(axes, axes.round())


CHAIN = Chain.parse("Linear(19), Abs, Linear(3)", inputs=130)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestReproducible:
    def everything(self, x, y, stack, chosen=None):
        index = torch.arange(len(stack)) if chosen is None else torch.tensor(chosen)
        engine = engine_of(CHAIN, x, y, True, block=16)
        engine.range_flops = 1
        values = stack.values[index]
        assert len(engine._ranges) > 4
        yield engine.loss(values, index)
        yield from engine.loss_and_gradient(values, index)

    def test_for_any_number_of_threads(self, dtype, threads):
        x = pixels(300, 130, 0.2, dtype)
        y, stack = targets(CHAIN, 300, dtype), start(CHAIN, 5, dtype)
        threads(1)
        wanted = list(self.everything(x, y, stack))
        for number in (2, 3):
            threads(number)
            for got, want in zip(self.everything(x, y, stack), wanted, strict=True):
                assert torch.equal(got, want)

    def test_for_any_choice_of_trials(self, dtype):
        x = pixels(300, 130, 0.2, dtype)
        y, stack = targets(CHAIN, 300, dtype), start(CHAIN, 5, dtype)
        wanted = list(self.everything(x, y, stack))
        for chosen in ([3], [4, 1]):
            for got, want in zip(self.everything(x, y, stack, chosen), wanted, strict=True):
                assert torch.equal(got, want[chosen])

    @pytest.mark.usefixtures("one_epoch_at_a_time")
    @pytest.mark.parametrize("optimiser", [SGD, Adam])
    def test_resumed(self, dtype, optimiser, assert_resumes):
        x = pixels(300, 130, 0.2, dtype)
        y, stack = targets(CHAIN, 300, dtype)[0], start(CHAIN, 3, dtype)

        def fresh():
            objective = CrossEntropy(CHAIN, x, y, engine="compiled")
            assert objective.compiled.packed.lists is not None
            return optimiser(objective, stack, 12, lr=1e-2)

        assert_resumes(fresh, restarts=2)


@pytest.mark.parametrize("small", [True, False], ids=["in the library", "step by step"])
@pytest.mark.parametrize("optimiser", [SGD, Adam])
def test_training_ends_where_the_dense_one_does(optimiser, small):
    x, stack = pixels(300, 130, 0.2), start(CHAIN, 3, torch.float64)
    y = targets(CHAIN, 300, x.dtype, labels=False)[0]
    ends = []
    for most in (0.6, 0.0):
        objective = MeanSquaredError(CHAIN, x, y, engine="compiled")
        objective.compiled.most_left = most
        solver = optimiser(objective, stack, 60, lr=1e-2)
        solver.small_flops = 1e8 if small else 0
        solve(solver)
        assert (objective.compiled.packed.lists is not None) == (most > 0)
        ends.append(solver)
    assert_near(ends[0].stack.values, ends[1].stack.values, 1e5)
    assert_near(ends[0].final_loss, ends[1].final_loss, 1e5)
    assert not torch.equal(ends[0].stack.values, stack.values)


class TestChoice:
    def lists(
        self, text="Linear(16), ReLU, Linear(3)", samples=256, inputs=128, share=0.2, own=False
    ):
        chain = Chain.parse(text, inputs=inputs)
        x, y = pixels(samples, inputs, share), targets(chain, samples, torch.float64)[0]
        if own:
            x, y = x.expand(2, -1, -1), y.expand(2, -1)
        return CrossEntropy(chain, x, y, engine="compiled").compiled.packed.lists

    def test_it_is_taken_where_it_pays(self):
        assert self.lists() is not None

    @pytest.mark.parametrize(
        "options",
        [
            {"samples": 255},
            {"inputs": 127},
            {"text": "Linear(15), ReLU, Linear(3)"},
            {"text": "Abs, Linear(16), Linear(3)"},
            {"text": "PointSlope(16), ReLU, Linear(3)"},
            {"text": "OffsetL2(16), ReLU, Linear(3)"},
            {"share": 1.0},
            {"own": True},
        ],
        ids=str,
    )
    def test_it_is_not_taken_elsewhere(self, options):
        assert self.lists(**options) is None

    def test_dense_samples_are_not_even_ordered(self, monkeypatch):
        def refuse(*_):
            raise AssertionError("ordered")

        monkeypatch.setattr("mahalens.train.compiled.packing.similar_order", refuse)
        assert self.lists(share=3.0) is None
        with pytest.raises(AssertionError):
            self.lists()

    def test_mini_batches_take_rows(self):
        chain = Chain.parse("Linear(16), ReLU, Linear(3)", inputs=130)
        x, stack = pixels(300, 130, 0.2), start(chain, 2, torch.float64)
        objective = CrossEntropy(chain, x, targets(chain, 300, x.dtype)[0], engine="compiled")
        solve(SGD(objective, stack, 2, lr=0.1, batches=Batches(32)))
        assert "packed" not in vars(objective.compiled)

    @pytest.mark.parametrize("text", ["Abs, Linear(3)", "PointSlope(3)"])
    def test_it_cannot_be_forced_on_other_layers(self, text):
        chain = Chain.parse(text, inputs=4)
        with pytest.raises(ValueError, match="sparse samples want a Linear first"):
            CompiledEngine(chain, "mse", torch.zeros(1, 5, 4), torch.zeros(1, 5, 3), sparse=True)
