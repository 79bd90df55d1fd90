"""Layers that measure along one direction, where they are delicate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import abs_relu, draw, made, point_slope, refuses
from torch import nn

from mahalens.nn import Abs, AbsReLU, Neg, Norm, PointSlope, md_relu

finite = st.floats(-1e3, 1e3).map(lambda v: 0.0 if abs(v) < 1e-3 else v)


class TestNorm:
    @settings(deadline=None)
    @given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6), st.floats(1e-2, 1e2))
    def test_is_a_norm(self, pairs, factor):
        a, b = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
        norm = Norm()
        assert norm(a) >= 0
        assert (norm(a) == 0) == bool((a == 0).all())
        assert torch.equal(norm(a), norm(Abs()(a)))
        assert torch.equal(norm(a), norm(Neg()(a)))
        torch.testing.assert_close(norm(factor * a), factor * norm(a))
        assert norm(a + b) <= (norm(a) + norm(b)) * (1 + 1e-12)

    def test_gradcheck_with_some_entries_zero(self):
        x = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -1.0]], dtype=torch.float64)
        assert torch.autograd.gradcheck(Norm(), (x.requires_grad_(),))
        assert torch.autograd.gradgradcheck(Norm(), (x,))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_at_zero_all_derivatives_are_exactly_zero(self, dtype):
        x = torch.zeros(3, 4, dtype=dtype, requires_grad=True)
        out = Norm()(x)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        for found in (out, first, second):
            assert torch.equal(found, torch.zeros_like(found))
        hessian = torch.func.jacrev(torch.func.jacrev(lambda x: Norm()(x).sum()))(x.detach())
        assert torch.equal(hessian, torch.zeros_like(hessian))
        _, slopes = torch.func.jvp(Norm(), (x.detach(),), (torch.ones_like(x),))  # forward mode
        assert torch.equal(slopes, torch.zeros(3, dtype=dtype))

    def test_a_zero_row_leaves_the_gradient_of_the_others_alone(self, dtype):
        x = draw((3, 2), 0, dtype)
        x[1] = 0
        x.requires_grad_()
        Norm()(x).sum().backward()
        torch.testing.assert_close(x.grad[0], (x[0] / x[0].norm()).detach())
        assert torch.equal(x.grad[1], torch.zeros(2, dtype=dtype))


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

    def test_its_gradient_is_that_of_the_other_samples(self, dtype):
        model, x = self.model_and_inputs(dtype)
        x.requires_grad_()
        whole, rest = model(x), model(x[1:])
        assert whole[0] == 0
        parameters = list(model.parameters())
        *with_it, at_x = torch.autograd.grad((whole - 1).square().sum(), [*parameters, x])
        without = torch.autograd.grad((rest - 1).square().sum(), parameters)
        for a, b in zip(with_it, without, strict=True):
            torch.testing.assert_close(a, b)
        assert torch.equal(at_x[0], torch.zeros(2, dtype=dtype))

    def test_training_goes_on(self, dtype):
        model, x = self.model_and_inputs(dtype)
        optimiser = torch.optim.Adam(model.parameters())
        for _ in range(20):
            optimiser.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimiser.step()
        assert all(bool(p.isfinite().all()) for p in model.parameters())


MASK = [True, False, True]


class TestAbsReLU:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(
        ("shape", "dim"), [((4, 3, 6), -2), ((3, 6), -2), ((2, 3, 4, 3), -3), ((2, 3, 2, 3, 4), -4)]
    )
    def test_units_along_another_axis(self, shape, dim, dtype):
        x = draw(shape, 0, dtype)
        wanted = abs_relu(x.movedim(dim, -1), {"absolute": torch.tensor(MASK)}).movedim(-1, dim)
        assert torch.equal(AbsReLU(MASK, dim=dim)(x), wanted)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.booleans(), st.floats(-1e6, 1e6)), min_size=1, max_size=6))
    def test_it_stands_for_a_pair_of_mirrored_units(self, units):
        mask, values = zip(*units, strict=True)
        z = torch.tensor(values, dtype=torch.float64)
        with_mirrors = z.relu() + torch.tensor(mask) * (-z).relu()
        assert torch.equal(AbsReLU(mask)(z), with_mirrors)

    def test_slopes(self):
        x = torch.tensor([[-2.0, -2.0, 0.0], [2.0, 2.0, 3.0], [0.0, 0.0, -1.0]], requires_grad=True)
        AbsReLU(MASK)(x).sum().backward()
        assert x.grad.tolist() == [[-1, 0, 0], [1, 1, 1], [0, 0, -1]]

    def test_the_mask_is_a_buffer_of_its_own(self):
        mask = torch.tensor(MASK)
        layer = AbsReLU(mask, dim=-3)
        mask[:] = False
        assert list(layer.state_dict()) == ["absolute"]
        assert layer.to(torch.float64).absolute.tolist() == MASK
        assert repr(layer) == "AbsReLU(absolute=2, relu=1, dim=-3)"

    @pytest.mark.parametrize("mask", [[], [1, 0], [[True]], True, torch.zeros(3)])
    def test_masks_that_are_none(self, mask):
        refuses("AbsReLU was given .*; give true or false for each unit$", AbsReLU, mask)

    def test_axes_and_shapes(self):
        refuses("AbsReLU with dim 1; count it from the end", AbsReLU, MASK, dim=1)
        for shape, dim in [((4,), -1), ((), -1), ((3,), -2), ((3, 4), -1)]:
            layer = AbsReLU(MASK, dim=dim)
            refuses("AbsReLU of 3 units along axis", layer, torch.zeros(shape))


class TestPointSlope:
    def test_is_the_linear_layer_whose_bias_puts_the_points_at_zero(self, dtype):
        layer, x = made("PointSlope", dtype), draw((5, 4), 0, dtype)
        twin = nn.Linear(4, 3, dtype=dtype)
        with torch.no_grad():
            twin.weight.copy_(layer.weight)
            twin.bias.copy_(-(layer.weight * layer.point).sum(-1))
        torch.testing.assert_close(layer(x), twin(x))
        at_points = layer(layer.point).diagonal()
        torch.testing.assert_close(at_points, torch.zeros(3, dtype=dtype))
        one = made("PointSlope", dtype, units=1)
        assert torch.equal(one(one.point), torch.zeros(1, 1, dtype=dtype))

    def test_near_points_far_from_the_origin(self):
        """In float32, with points at 10,000; the plain linear layer loses all but one digit."""
        weight, point = draw((4, 3), 1, torch.float32), 1e4 + draw((4, 3), 0, torch.float32)
        layer = PointSlope(3, 4)
        layer.load_state_dict({"weight": weight, "point": point})
        x = point + 0.1 * draw((4, 3), 2, torch.float32)
        wanted = point_slope(x.double(), weight.double(), point.double())
        scale = wanted.abs().max()
        plain = x @ weight.T - (weight * point).sum(-1)
        assert (layer(x) - wanted).abs().max() / scale < 1e-6
        assert (plain - wanted).abs().max() / scale > 1e-4

    def test_starting_values(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = PointSlope(200, 300)
            torch.manual_seed(0)
            twin = nn.Linear(200, 300)
            first = layer.point.detach().clone()
            with torch.no_grad():
                layer.weight.zero_()
            torch.manual_seed(0)
            layer.reset_parameters()
        assert torch.equal(layer.weight, twin.weight)
        assert torch.equal(layer.point, first)
        assert first.mean().abs() < 0.002
        assert 0.099 < first.std() < 0.101


@pytest.mark.parametrize(("dim", "shape"), [(-1, (4, 3)), (-2, (2, 3, 5)), (-3, (2, 3, 1, 2))])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_abs_relu_can_be_scripted(dim, shape):
    layer, x = AbsReLU([True, False, True], dim=dim), torch.randn(shape)
    assert torch.equal(torch.jit.script(layer)(x), layer(x))
