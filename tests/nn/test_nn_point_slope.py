"""PointSlope: the formula written out, its derivatives, its twin, and how it keeps digits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jacfwd, jacrev

import mahalens
from mahalens.errors import InputError
from mahalens.nn import Chain, PointSlope

DTYPES = [torch.float32, torch.float64]


def naive(x, weight, point):
    """The formula as it is printed, with every difference at once."""
    return (weight * (x[..., None, :] - point)).sum(-1)


def draw(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def layer_of(weight, point):
    units, inputs = weight.shape
    layer = PointSlope(inputs, units, dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, "point": point})
    return layer


def made(dtype=torch.float64, inputs=3, units=4):
    return layer_of(draw((units, inputs), 1, dtype), draw((units, inputs), 2, dtype))


LAYER = made()


def function(x, weight, point):
    return functional_call(LAYER, {"weight": weight, "point": point}, (x,))


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


class TestValues:
    @pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (0, 3), (2, 0, 3)], ids=str)
    def test_is_the_printed_formula(self, shape, dtype):
        layer, x = made(dtype), draw(shape, 0, dtype)
        out = layer(x)
        assert out.shape == (*shape[:-1], 4)
        assert out.dtype == dtype
        torch.testing.assert_close(out, naive(x, layer.weight, layer.point))

    @settings(deadline=None, max_examples=30)
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
    def test_any_size(self, samples, units, inputs):
        x, weight, point = (draw((n, inputs), n) for n in (samples, units, units + 1))
        out = layer_of(weight, point[:units])(x)
        torch.testing.assert_close(out, naive(x, weight, point[:units]))

    def test_is_the_linear_layer_whose_bias_puts_the_points_at_zero(self, dtype):
        layer, x = made(dtype), draw((5, 3), 0, dtype)
        twin = nn.Linear(3, 4, dtype=dtype)
        with torch.no_grad():
            twin.weight.copy_(layer.weight)
            twin.bias.copy_(-(layer.weight * layer.point).sum(-1))
        torch.testing.assert_close(layer(x), twin(x))

    def test_every_unit_is_zero_at_its_point(self, dtype):
        layer = made(dtype)
        at_points = layer(layer.point).diagonal()
        torch.testing.assert_close(at_points, torch.zeros(4, dtype=dtype))
        one = made(dtype, units=1)
        assert torch.equal(one(one.point), torch.zeros(1, 1, dtype=dtype))

    def test_near_points_far_from_the_origin(self):
        """In float32, with points at 10,000; the plain linear layer loses all but one digit."""
        weight, point = draw((4, 3), 1, torch.float32), 1e4 + draw((4, 3), 0, torch.float32)
        x = point + 0.1 * draw((4, 3), 2, torch.float32)
        wanted = naive(x.double(), weight.double(), point.double())
        scale = wanted.abs().max()
        error = (layer_of(weight, point)(x) - wanted).abs().max() / scale
        plain = x @ weight.T - (weight * point).sum(-1)
        assert error < 1e-6
        assert (plain - wanted).abs().max() / scale > 1e-4

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_not_hidden(self, bad):
        layer, x = made(), draw((2, 3), 0)
        x[0, 1] = bad
        wanted = naive(x, layer.weight, layer.point)
        torch.testing.assert_close(layer(x), wanted, equal_nan=True)


class TestDerivatives:
    def arguments(self):
        layer = made()
        return tuple(t.detach().requires_grad_() for t in (draw((5, 3), 0), *layer.parameters()))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_gradcheck(self):
        arguments = self.arguments()
        assert torch.autograd.gradcheck(
            function, arguments, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)

    @pytest.mark.parametrize("inner", [jacrev, jacfwd])
    @pytest.mark.parametrize("outer", [jacrev, jacfwd])
    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_second_derivatives_in_every_mode(self, inner, outer):
        arguments, every = [t.detach() for t in self.arguments()], (0, 1, 2)

        def second(f):
            return outer(inner(lambda *a: f(*a).square().sum(), argnums=every), argnums=every)

        torch.testing.assert_close(second(function)(*arguments), second(naive)(*arguments))

    def test_gradients_written_out(self):
        """With s the sum of the output's gradient: that of the point is -s w."""
        layer, x = made(), draw((5, 3), 0)
        grad = draw((5, 4), 3)
        layer(x).backward(grad)
        s = grad.sum(0)[:, None]
        torch.testing.assert_close(layer.point.grad, -s * layer.weight.detach())
        torch.testing.assert_close(layer.weight.grad, grad.T @ x - s * layer.point.detach())


class TestModule:
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

    def test_a_chain_with_it_starts_as_its_linear_twin(self):
        with torch.random.fork_rng():
            for text in ("Linear(7), Abs, Linear(4)", "Linear(7), Abs, PointSlope(4)"):
                torch.manual_seed(5)
                module = Chain.parse(text, inputs=3).build()
                weights = [p for name, p in module.named_parameters() if "weight" in name]
                if text.endswith("Linear(4)"):
                    wanted = weights
        assert len(weights) == 2
        assert all(torch.equal(a, b) for a, b in zip(weights, wanted, strict=True))

    def test_state(self, dtype):
        layer = PointSlope(3, 4, dtype=dtype)
        state = {name: value.shape for name, value in layer.state_dict().items()}
        assert state == {"weight": (4, 3), "point": (4, 3)}
        assert [name for name, _ in layer.named_parameters()] == ["weight", "point"]
        assert {p.dtype for p in layer.parameters()} == {dtype}
        assert all(p.requires_grad for p in layer.parameters())
        other = PointSlope(3, 4, dtype=dtype)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(layer(draw((5, 3), 0, dtype)), other(draw((5, 3), 0, dtype)))

    def test_device(self):
        layer = PointSlope(3, 4, device="meta")
        assert layer(torch.zeros(5, 3, device="meta")).device.type == "meta"

    def test_what_is_printed_can_be_pasted_back(self):
        again = eval(repr(PointSlope(3, 4)), {"PointSlope": PointSlope})
        assert (again.inputs, again.units) == (3, 4)
        assert repr(again) == "PointSlope(inputs=3, units=4)"

    def test_many_layers_at_once(self):
        """vmap over parameters equals a loop, in value and gradient."""
        x, weight, point = draw((5, 3), 0), draw((6, 4, 3), 1), draw((6, 4, 3), 2)
        pairs = list(zip(weight, point, strict=True))
        torch.testing.assert_close(
            torch.vmap(function, (None, 0, 0))(x, weight, point),
            torch.stack([function(x, w, p) for w, p in pairs]),
        )
        slope = torch.func.grad(lambda *a: function(*a).square().sum(), argnums=(0, 1, 2))
        looped = zip(*[slope(x, w, p) for w, p in pairs], strict=True)
        for got, want in zip(
            torch.vmap(slope, (None, 0, 0))(x, weight, point), looped, strict=True
        ):
            torch.testing.assert_close(got, torch.stack(want))

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_compiled_by_torch(self, backend):
        layer, x = made(), draw((5, 3), 0)
        compiled = torch.compile(layer, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x))
        weights = draw((5, 4), 3)
        wanted = torch.autograd.grad((weights * layer(x)).sum(), list(layer.parameters()))
        got = torch.autograd.grad((weights * compiled(x)).sum(), list(layer.parameters()))
        torch.testing.assert_close(got, wanted)

    def test_public(self):
        assert mahalens.PointSlope is PointSlope


class TestErrors:
    @pytest.mark.parametrize("units", [0, -2])
    def test_units(self, units):
        with pytest.raises(InputError, match=f"^PointSlope with {units} units; give at least 1$"):
            PointSlope(3, units)

    @pytest.mark.parametrize("inputs", [0, -2])
    def test_inputs(self, inputs):
        message = f"^PointSlope with {inputs} inputs; give at least 1$"
        with pytest.raises(InputError, match=message):
            PointSlope(inputs, 3)

    @pytest.mark.parametrize("shape", [(), (4,), (5, 4), (3, 1)], ids=str)
    def test_shape(self, shape):
        message = (
            rf"^PointSlope of 3 inputs was given an array of shape \({', '.join(map(str, shape))}"
        )
        with pytest.raises(InputError, match=message) as caught:
            PointSlope(3, 4)(torch.zeros(shape))
        assert str(caught.value).endswith("; give [..., 3]")
        assert len(str(caught.value).splitlines()) == 1
