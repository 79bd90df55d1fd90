"""Stacked loss, gradient and curvature against plain modules, one by one, by autograd."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mahalens.errors import InputError
from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import MeanSquaredError, TrialStack
from mahalens.train.layers import parameter_count

CHAINS = [
    "Linear(1), Abs, Norm",
    "Linear(3), Abs, Norm",
    "Linear(6), ReLU, Norm",
    "Linear(6), Sigmoid, Norm",
    "Linear(3), Norm",
    "Linear(3), Neg, Norm",
    "Linear(3, bias=False), Abs, Norm",
    "Linear(4, bias=False), ReLU, Norm",
    "Linear(3), Abs, Norm, Neg",
    "Linear(3), Norm, Sigmoid",
    "Linear(3), ReLU, Neg, Norm",
    "Linear(3), Sigmoid, Abs, Norm",
    "Linear(3), ReLU, Sigmoid, Norm, ReLU",
    "Linear(3), Neg, ReLU, Norm",
    "Linear(4), ReLU, Linear(3), Abs, Norm",
    "Linear(4), Linear(3), Norm",
    "Linear(4, bias=False), Sigmoid, Linear(5), ReLU, Norm",
    "Linear(4), Abs, Linear(3, bias=False), Sigmoid, Norm, Neg",
    "Linear(2), Sigmoid, Sigmoid, Linear(3, bias=False), Neg, Abs, Linear(2), ReLU, Norm",
]
EXACT = [md_abs, md_relu, md_sigmoid, lambda dim: Chain.parse("Linear(4), Norm", inputs=dim)]
TRIALS, SAMPLES, INPUTS = 3, 23, 3


def data(dtype=torch.float64, samples=SAMPLES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64)
    y = torch.rand(samples, generator=generator, dtype=torch.float64) * 3
    return x.to(dtype), y.to(dtype)


def draw_values(chain, dtype=torch.float64, trials=TRIALS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = trials, parameter_count(chain)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def close(actual, wanted):
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[actual.dtype]
    scale = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(actual, wanted, rtol=0, atol=tolerance * scale)


def loops(chain, stack, x, y):
    """Loss, gradient, Jᵀr/N and JᵀJ/N of every trial: modules, samples and backward in loops."""
    losses, gradients, slopes, matrices = [], [], [], []
    for trial in range(len(stack)):
        module = stack[trial]
        loss = torch.nn.functional.mse_loss(module(x), y)
        losses.append(loss.detach())
        gradients.append(row_of(chain, module, loss))
        jacobian = torch.stack([row_of(chain, module, module(point)) for point in x])  # [N, P]
        residual = module(x).detach() - y
        slopes.append(jacobian.T @ residual / len(x))
        matrices.append(jacobian.T @ jacobian / len(x))
    return tuple(torch.stack(parts) for parts in (losses, gradients, slopes, matrices))


def row_of(chain, module, output):
    """The gradient of a number in the module's parameters, in the layout of a stack's row."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    grads = torch.autograd.grad(output, parameters)
    tensors = {name: grad[None] for name, grad in zip(names, grads, strict=True)}
    return TrialStack.from_tensors(chain, tensors).values[0]


@pytest.fixture(params=CHAINS)
def chain(request):
    return Chain.parse(request.param, inputs=INPUTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("block", [None, 1, 7, SAMPLES, 1000])
def test_everything_is_what_the_loops_give(engine, chain, dtype, block):
    x, y = data(dtype)
    stack = TrialStack(chain, draw_values(chain, dtype))
    kept = stack.values.clone()
    objective = MeanSquaredError(chain, x, y, engine=engine, block=block)
    assert objective.engine == engine
    loss, gradient, slope, matrix = loops(chain, stack, x, y)

    close(objective.loss(stack), loss)
    got_loss, got_gradient = objective.loss_and_gradient(stack)
    close(got_loss, loss)
    close(got_gradient, gradient)
    got_loss, got_slope, got_matrix = objective.curvature(stack)
    close(got_loss, loss)
    close(got_slope, slope)
    close(2 * got_slope, gradient)
    close(got_matrix, matrix)
    assert got_gradient.dtype == got_matrix.dtype == dtype
    assert torch.equal(stack.values, kept)


def test_a_call_leaves_nothing_behind_for_the_next(engine, chain):
    x, y = data()
    stack = TrialStack(chain, draw_values(chain))
    objective = MeanSquaredError(chain, x, y, engine=engine, block=5)
    first = objective.loss_and_gradient(stack)
    objective.curvature(TrialStack(chain, draw_values(chain, trials=2, seed=5)))
    objective.loss(stack)
    again = objective.loss_and_gradient(stack)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


elementwise = st.lists(st.sampled_from(["Abs", "ReLU", "Sigmoid", "Neg"]), max_size=3)
linear = st.sampled_from(["Linear(1)", "Linear(3)", "Linear(4, bias=False)"])


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(linear, elementwise), min_size=1, max_size=3), elementwise)
def test_gradient_of_any_chain(engine, parts, tail):
    names = [name for head, activations in parts for name in (head, *activations)]
    chain = Chain.parse(", ".join([*names, "Norm", *tail]), inputs=INPUTS)
    x, y = data(samples=9)
    stack = TrialStack(chain, draw_values(chain, trials=2))
    objective = MeanSquaredError(chain, x, y, engine=engine, block=4)
    loss, gradient = objective.loss_and_gradient(stack)
    for trial in range(2):
        module = stack[trial]
        wanted = torch.nn.functional.mse_loss(module(x), y)
        close(loss[trial], wanted.detach())
        close(gradient[trial], row_of(chain, module, wanted))


class TestExactCurvature:
    @pytest.mark.parametrize("make", EXACT)
    @pytest.mark.parametrize("block", [None, 1, 7])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_is_half_the_hessian(self, make, block, dtype, plain_derivatives):
        chain = make(INPUTS)
        x, y = data(dtype)
        stack = TrialStack(chain, draw_values(chain, dtype))
        objective = MeanSquaredError(chain, x, y, block=block)
        assert objective.has_exact_curvature
        loss, slope, matrix = objective.curvature(stack, torch.ones(TRIALS, dtype=torch.bool))
        for trial in range(TRIALS):
            wanted = plain_derivatives(chain, x, y, stack.values[trial])
            close(loss[trial], wanted[0])
            close(2 * slope[trial], wanted[1])
            close(2 * matrix[trial], wanted[2])

    @pytest.mark.parametrize("make", EXACT)
    def test_only_where_it_is_asked_for(self, make):
        chain = make(INPUTS)
        x, y = data()
        stack = TrialStack(chain, draw_values(chain))
        objective = MeanSquaredError(chain, x, y, block=7)
        mixed = objective.curvature(stack, torch.tensor([True, False, True]))[2]
        exact = objective.curvature(stack, torch.ones(3, dtype=torch.bool))[2]
        gauss_newton = objective.curvature(stack)[2]
        close(mixed[0], exact[0])
        close(mixed[1], gauss_newton[1])
        close(mixed[2], exact[2])
        assert (exact[1] - gauss_newton[1]).abs().max() > 1e-3

    @pytest.mark.parametrize("text", [c for c in CHAINS if c.count("Linear") > 1][:2])
    def test_not_for_deep_chains(self, text):
        chain = Chain.parse(text, inputs=INPUTS)
        objective = MeanSquaredError(chain, *data())
        assert not objective.has_exact_curvature
        with pytest.raises(InputError, match=r"no exact curvature for the chain Linear.*; leave"):
            objective.curvature(
                TrialStack(chain, draw_values(chain)), torch.ones(TRIALS, dtype=torch.bool)
            )


class TestSamplesWithEveryUnitOff:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("off", [1, SAMPLES])
    def test_they_give_zeros_and_no_nan(self, engine, dtype, off, plain_derivatives):
        chain = md_relu(INPUTS)
        x, y = data(dtype)
        values = TrialStack(chain, draw_values(chain, dtype))
        weight, bias = values.tensors()["0.weight"], values.tensors()["0.bias"]
        scores = torch.einsum("tkd,nd->tkn", weight, x)
        order = scores.sort(-1, descending=True).values
        # Of trial 0, all units are off at the first sample, or at all of them.
        bias[0] = -scores[0, :, 0] - 0.1 if off == 1 else -order[0, :, 0] - 0.1
        objective = MeanSquaredError(chain, x, y, engine=engine)
        outputs = values[0](x).detach()
        assert int((outputs == 0).sum()) >= off

        loss, gradient = objective.loss_and_gradient(values)
        exact = torch.ones(TRIALS, dtype=torch.bool)
        _, slope, matrix = objective.curvature(values, exact)
        for trial in range(TRIALS):
            wanted = plain_derivatives(chain, x, y, values.values[trial])
            close(loss[trial], wanted[0])
            close(gradient[trial], wanted[1])
            close(2 * slope[trial], wanted[1])
            close(2 * matrix[trial], wanted[2])
        if off == SAMPLES:
            assert not bool(gradient[0].any())
            assert not bool(matrix[0].any())

    @pytest.mark.parametrize("make", [md_abs, md_relu])
    def test_all_parameters_zero(self, engine, make):
        chain = make(INPUTS)
        x, y = data()
        stack = TrialStack(chain, torch.zeros(2, parameter_count(chain), dtype=torch.float64))
        objective = MeanSquaredError(chain, x, y, engine=engine)
        loss, gradient = objective.loss_and_gradient(stack)
        close(loss, y.square().mean().expand(2))
        assert torch.equal(gradient, torch.zeros_like(gradient))
        for exact in (None, torch.ones(2, dtype=torch.bool)):
            assert not bool(objective.curvature(stack, exact)[2].any())


class TestTrialsDoNotMeet:
    def test_a_broken_trial_does_not_touch_the_others(self, engine, chain):
        x, y = data()
        values = draw_values(chain)
        objective = MeanSquaredError(chain, x, y, engine=engine)
        healthy = objective.loss_and_gradient(TrialStack(chain, values))
        broken = values.clone()
        broken[1] = torch.nan
        loss, gradient = objective.loss_and_gradient(TrialStack(chain, broken))
        assert bool(loss[1].isnan())
        assert torch.equal(loss[[0, 2]], healthy[0][[0, 2]])
        assert torch.equal(gradient[[0, 2]], healthy[1][[0, 2]])

    def test_one_trial_alone_gives_the_same(self, engine, chain):
        x, y = data()
        values = draw_values(chain)
        objective = MeanSquaredError(chain, x, y, engine=engine)
        together = objective.loss_and_gradient(TrialStack(chain, values))
        for trial in range(TRIALS):
            alone = objective.loss_and_gradient(TrialStack(chain, values[trial : trial + 1]))
            close(alone[0][0], together[0][trial])
            close(alone[1][0], together[1][trial])
            if engine == "compiled":  # to the last bit
                assert torch.equal(alone[0][0], together[0][trial])
                assert torch.equal(alone[1][0], together[1][trial])


class TestChainsOfOtherForms:
    """They need neither begin with Linear nor end in one number."""

    @pytest.mark.parametrize("text", ["Abs, Linear(3), Norm", "Neg, Abs, Linear(4), ReLU, Norm"])
    def test_layers_before_the_first_linear(self, engine, text):
        chain = Chain.parse(text, inputs=INPUTS)
        x, y = data()
        stack = TrialStack(chain, draw_values(chain))
        objective = MeanSquaredError(chain, x, y, engine=engine, block=7)
        loss, gradient, slope, matrix = loops(chain, stack, x, y)
        for got, wanted in zip(objective.loss_and_gradient(stack), (loss, gradient), strict=True):
            close(got, wanted)
        for got, wanted in zip(objective.curvature(stack), (loss, slope, matrix), strict=True):
            close(got, wanted)

    @pytest.mark.parametrize("text", ["Linear(3), Abs", "Linear(4), ReLU, Linear(2, bias=False)"])
    def test_several_outputs(self, engine, text):
        chain = Chain.parse(text, inputs=INPUTS)
        x, _ = data()
        y = torch.linspace(-1, 1, SAMPLES * chain.outputs, dtype=x.dtype).view(SAMPLES, -1)
        stack = TrialStack(chain, draw_values(chain))
        objective = MeanSquaredError(chain, x, y, engine=engine, block=7)
        loss, gradient = objective.loss_and_gradient(stack)
        for trial in range(TRIALS):
            module = stack[trial]
            wanted = torch.nn.functional.mse_loss(module(x), y)
            close(loss[trial], wanted.detach())
            close(gradient[trial], row_of(chain, module, wanted))
        assert not objective.has_curvature
        with pytest.raises(InputError, match=r"no curvature for the chain .*; it needs a Norm"):
            objective.curvature(stack)

    @pytest.mark.parametrize("layer", ["OffsetL2(3)", "PointSlope(3)"])
    def test_no_curvature_of_layers_other_than_linear(self, engine, layer):
        for text in (f"{layer}, Norm", f"Linear(2), {layer}, Abs, Norm"):
            chain = Chain.parse(text, inputs=INPUTS)
            objective = MeanSquaredError(chain, *data(), engine=engine)
            assert not objective.has_curvature
            assert not objective.has_exact_curvature
            with pytest.raises(InputError, match=r"no curvature for the chain .*a Norm and no "):
                objective.curvature(TrialStack(chain, draw_values(chain)))
