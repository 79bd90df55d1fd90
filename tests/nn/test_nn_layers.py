"""Abs, Neg and Norm: the laws that define them, and their derivatives where they are delicate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.nn import Abs, Neg, Norm, md_relu

DTYPES = [torch.float32, torch.float64]
SHAPES = [(4,), (5, 3), (2, 5, 3), (7, 1), (0, 3)]


def points(shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestLaws:
    def test_abs(self, shape, dtype):
        x = points(shape, dtype)
        assert torch.equal(Abs()(x), torch.maximum(x, -x))

    def test_neg(self, shape, dtype):
        x = points(shape, dtype)
        assert torch.equal(Neg()(x) + x, torch.zeros_like(x))
        assert torch.equal(Neg()(Neg()(x)), x)

    def test_norm_is_the_vector_norm(self, shape, dtype):
        x = points(shape, dtype)
        torch.testing.assert_close(Norm()(x), torch.linalg.vector_norm(x, dim=-1))

    def test_norm_drops_the_last_axis_and_keeps_the_dtype(self, shape, dtype):
        out = Norm()(points(shape, dtype))
        assert out.shape == shape[:-1]
        assert out.dtype == dtype

    def test_norm_of_one_unit_is_abs(self, shape, dtype):
        x = points((*shape, 1), dtype)
        torch.testing.assert_close(Norm()(x), Abs()(x).squeeze(-1))

    def test_norm_ignores_signs(self, shape, dtype):
        x = points(shape, dtype)
        assert torch.equal(Norm()(x), Norm()(Abs()(x)))
        assert torch.equal(Norm()(x), Norm()(Neg()(x)))


finite = st.floats(-1e3, 1e3).map(lambda v: 0.0 if abs(v) < 1e-3 else v)


@settings(deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6), st.floats(1e-2, 1e2))
def test_norm_is_a_norm(pairs, factor):
    a, b = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
    norm = Norm()
    assert norm(a) >= 0
    assert (norm(a) == 0) == bool((a == 0).all())
    torch.testing.assert_close(norm(factor * a), factor * norm(a))
    assert norm(a + b) <= (norm(a) + norm(b)) * (1 + 1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_not_hidden(bad, dtype):
    x = torch.tensor([[1.0, bad], [3.0, 4.0]], dtype=dtype)
    wanted = torch.linalg.vector_norm(x, dim=-1)
    torch.testing.assert_close(Norm()(x), wanted, equal_nan=True)
    torch.testing.assert_close(Abs()(x), x.abs(), equal_nan=True)


class TestDerivatives:
    @pytest.mark.parametrize("module", [Abs(), Neg(), Norm()], ids=str)
    @pytest.mark.parametrize("shape", [(4,), (5, 3), (2, 2, 3)], ids=str)
    def test_gradcheck_away_from_zero(self, module, shape):
        x = points(shape)
        x = (x + x.sign()).requires_grad_()  # no entry nearer to 0 than 1
        assert torch.autograd.gradcheck(module, (x,))
        assert torch.autograd.gradgradcheck(module, (x,))

    def test_gradcheck_of_norm_with_some_entries_zero(self):
        x = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -1.0]], dtype=torch.float64)
        assert torch.autograd.gradcheck(Norm(), (x.requires_grad_(),))
        assert torch.autograd.gradgradcheck(Norm(), (x,))

    def test_gradient_of_norm_is_the_direction(self, dtype):
        x = points((6, 3), dtype).requires_grad_()
        Norm()(x).sum().backward()
        torch.testing.assert_close(x.grad, (x / x.norm(dim=-1, keepdim=True)).detach())

    def test_gradient_of_norm_at_zero_is_exactly_zero(self, dtype):
        x = torch.zeros(3, 4, dtype=dtype, requires_grad=True)
        out = Norm()(x)
        out.sum().backward()
        assert torch.equal(out, torch.zeros(3, dtype=dtype))
        assert torch.equal(x.grad, torch.zeros(3, 4, dtype=dtype))

    def test_second_derivative_of_norm_at_zero_is_exactly_zero(self, dtype):
        second = torch.func.jacrev(torch.func.jacrev(lambda x: Norm()(x).sum()))
        hessian = second(torch.zeros(2, 3, dtype=dtype))
        assert torch.equal(hessian, torch.zeros(2, 3, 2, 3, dtype=dtype))
        x = torch.zeros(3, dtype=dtype, requires_grad=True)
        (first,) = torch.autograd.grad(Norm()(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert torch.equal(second, torch.zeros(3, dtype=dtype))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_forward_mode_at_zero_is_exactly_zero(self, dtype):
        x = torch.zeros(3, dtype=dtype)
        _, slope = torch.func.jvp(Norm(), (x,), (torch.ones_like(x),))
        assert torch.equal(slope, torch.zeros((), dtype=dtype))

    def test_a_zero_row_leaves_the_gradient_of_the_others_alone(self, dtype):
        x = points((3, 2), dtype)
        x[1] = 0
        x.requires_grad_()
        Norm()(x).sum().backward()
        torch.testing.assert_close(x.grad[0], (x[0] / x[0].norm()).detach())
        assert torch.equal(x.grad[1], torch.zeros(2, dtype=dtype))

    def test_slope_of_abs_at_zero_is_zero(self, dtype):
        x = torch.zeros(2, dtype=dtype, requires_grad=True)
        Abs()(x).sum().backward()
        assert torch.equal(x.grad, torch.zeros(2, dtype=dtype))


class TestSampleWithEveryUnitOff:
    """A sample that all ReLU units are off for has distance 0: the naive backward makes NaN."""

    def model_and_inputs(self, dtype):
        model = md_relu(2).build(dtype=dtype)
        weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.5]])
        model.load_state_dict({"0.weight": weight, "0.bias": -torch.ones(4)})
        x = torch.tensor([[-5.0, -5.0], [3.0, 2.0], [0.5, 4.0]], dtype=dtype)
        assert bool((model[0](x)[0] < 0).all())
        return model, x

    def test_the_naive_backward_does_make_nan(self, dtype):
        model, x = self.model_and_inputs(dtype)
        hidden = model[1](model[0](x)).detach().requires_grad_()
        (hidden.square().sum(-1).sqrt() - 1).square().mean().backward()
        assert bool(hidden.grad[0].isnan().all())

    def test_backward_through_md_relu_is_finite(self, dtype):
        model, x = self.model_and_inputs(dtype)
        x.requires_grad_()
        out = model(x)
        assert out[0] == 0
        (out - 1).square().mean().backward()
        for tensor in (x, *model.parameters()):
            assert bool(tensor.grad.isfinite().all())
        assert torch.equal(x.grad[0], torch.zeros(2, dtype=dtype))

    def test_its_gradient_is_that_of_the_other_samples(self, dtype):
        model, x = self.model_and_inputs(dtype)
        whole, rest = model(x), model(x[1:])
        parameters = list(model.parameters())
        with_it = torch.autograd.grad((whole - 1).square().sum(), parameters)
        without = torch.autograd.grad((rest - 1).square().sum(), parameters)
        for a, b in zip(with_it, without, strict=True):
            torch.testing.assert_close(a, b)

    def test_training_goes_on(self, dtype):
        model, x = self.model_and_inputs(dtype)
        optimiser = torch.optim.Adam(model.parameters())
        for _ in range(20):
            optimiser.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimiser.step()
        assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("module", [Abs(), Neg(), Norm()], ids=str)
def test_ordinary_modules(module):
    assert module.state_dict() == {}
    x = points((5, 3))
    torch.testing.assert_close(nn.Sequential(nn.Identity(), module)(x), module(x))
    assert type(module)() is not module
    assert repr(module) == f"{type(module).__name__}()"
