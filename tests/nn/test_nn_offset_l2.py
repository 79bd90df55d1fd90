"""OffsetL2: the formula written out, its derivatives, and how it keeps digits and memory."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jacfwd, jacrev

import mahalens
from mahalens.errors import InputError
from mahalens.nn import Norm, OffsetL2, squares

VARIANTS = ["paper", "published-code"]
DTYPES = [torch.float32, torch.float64]


def naive(x, mu, alpha, variant):
    """The formulas as they are printed, with every difference at once."""
    difference = x[..., None, :] - mu  # [..., K, D]
    if variant == "paper":
        return torch.linalg.vector_norm(alpha * difference, dim=-1)
    return (alpha * difference**2).sum(-1).clamp(min=1e-12).sqrt()


def draw(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def layer_of(mu, alpha, variant="paper"):
    units, inputs = mu.shape
    layer = OffsetL2(inputs, units, variant=variant, dtype=mu.dtype)
    layer.load_state_dict({"mu": mu, "alpha": alpha})
    return layer


def made(variant, dtype=torch.float64, inputs=3, units=4):
    """A layer with scales of both signs in the paper's formula, where the sign means nothing."""
    alpha = draw((units, inputs), 1, dtype)
    alpha = alpha if variant == "paper" else alpha.abs() + 0.1
    return layer_of(draw((units, inputs), 2, dtype), alpha, variant)


def function_of(variant, inputs=3, units=4):
    layer = OffsetL2(inputs, units, variant=variant, dtype=torch.float64)

    def function(x, mu, alpha):
        return functional_call(layer, {"mu": mu, "alpha": alpha}, (x,))

    return function


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=[2**18, 40, 1], ids=["one tile", "a few tiles", "a tile per number"])
def tile(request, monkeypatch):
    monkeypatch.setattr(squares, "_TILE", request.param)
    monkeypatch.setattr(squares, "_UNITS", 2)


class TestValues:
    @pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (0, 3), (2, 0, 3)], ids=str)
    def test_is_the_printed_formula(self, shape, variant, dtype, tile):
        layer, x = made(variant, dtype), draw(shape, 0, dtype)
        out = layer(x)
        assert out.shape == (*shape[:-1], 4)
        assert out.dtype == dtype
        torch.testing.assert_close(out, naive(x, layer.mu, layer.alpha, variant))

    @settings(deadline=None, max_examples=30)
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.sampled_from(VARIANTS))
    def test_any_size(self, samples, units, inputs, variant):
        x, mu, alpha = (draw((n, inputs), n) for n in (samples, units, units + 1))
        alpha = alpha[:units]  # of both signs: the published code then meets its cut
        out = layer_of(mu, alpha, variant)(x)
        torch.testing.assert_close(out, naive(x, mu, alpha, variant))

    def test_a_number(self):
        mu, alpha = torch.tensor([[[1.0, 1.0]], [[3.0, -4.0]]], dtype=torch.float64)
        x = torch.tensor([2.0, 2.0], dtype=torch.float64)
        assert layer_of(mu, alpha)(x).tolist() == [5.0]
        assert layer_of(mu, alpha.abs(), "published-code")(x).tolist() == [7.0**0.5]

    def test_only_the_published_code_knows_the_sign_of_alpha(self, dtype):
        mu, alpha, x = draw((4, 3), 0, dtype), draw((4, 3), 1, dtype), draw((5, 3), 2, dtype)
        assert torch.equal(layer_of(mu, alpha)(x), layer_of(mu, -alpha)(x))
        cut = layer_of(mu, -alpha.abs(), "published-code")(x)
        assert torch.equal(cut, torch.full((5, 4), 1e-12, dtype=dtype).sqrt())

    def test_the_variants_agree_where_alpha_is_its_own_square(self):
        mu, x = draw((4, 3), 0), draw((5, 3), 2)
        alpha = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).expand(4, 3)
        torch.testing.assert_close(layer_of(mu, alpha)(x), layer_of(mu, alpha, "published-code")(x))

    def test_one_unit_is_the_norm_of_the_scaled_offset(self, dtype):
        mu, alpha, x = draw((1, 3), 0, dtype), draw((1, 3), 1, dtype), draw((5, 3), 2, dtype)
        torch.testing.assert_close(layer_of(mu, alpha)(x)[:, 0], Norm()(alpha * (x - mu)))

    def test_distance_to_its_prototype_is_zero(self, dtype):
        paper = made("paper", dtype)
        assert torch.equal(paper(paper.mu).diagonal(), torch.zeros(4, dtype=dtype))
        published = made("published-code", dtype)
        floor = torch.full((4,), 1e-12, dtype=dtype).sqrt()
        assert torch.equal(published(published.mu).diagonal(), floor)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_not_hidden(self, bad, variant):
        layer, x = made(variant), draw((2, 3), 0)
        x[0, 1] = bad
        wanted = naive(x, layer.mu, layer.alpha, variant)
        torch.testing.assert_close(layer(x), wanted, equal_nan=True)

    def test_samples_need_not_be_contiguous(self, variant):
        layer, x = made(variant), draw((3, 5, 2), 0)
        turned = x.permute(2, 1, 0)
        torch.testing.assert_close(layer(turned), layer(turned.contiguous()))


class TestNearAPrototype:
    """In float32, with prototypes at 100 and samples 0.001 away from one."""

    def case(self, variant):
        mu = 100 + draw((4, 3), 0, torch.float32)
        alpha = draw((4, 3), 1, torch.float32).abs() + 0.5
        x = mu + 1e-3 * draw((4, 3), 2, torch.float32)
        return layer_of(mu, alpha, variant), x.requires_grad_()

    def test_the_expanded_square_does_lose_every_digit(self):
        layer, x = self.case("paper")
        w = layer.alpha.square()
        square = x.square() @ w.T - 2 * x @ (w * layer.mu).T + (w * layer.mu.square()).sum(-1)
        wanted = naive(x.double(), layer.mu.double(), layer.alpha.double(), "paper").square()
        error = (square.diagonal() - wanted.diagonal()).abs() / wanted.diagonal()
        assert bool((error > 1).any())

    def test_float32_agrees_with_float64(self, variant):
        layer, x = self.case(variant)
        parts = [t.detach().double().requires_grad_() for t in (x, layer.mu, layer.alpha)]
        out, wanted = layer(x), naive(*parts, variant)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=0)
        grads = torch.autograd.grad(out.diagonal().sum(), (x, layer.mu, layer.alpha))
        wanted_grads = torch.autograd.grad(wanted.diagonal().sum(), parts)
        for got, want in zip(grads, wanted_grads, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-12)


class TestDerivatives:
    def arguments(self, variant):
        layer = made(variant)
        return tuple(t.detach().requires_grad_() for t in (draw((5, 3), 0), *layer.parameters()))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_gradcheck(self, variant, tile):
        function, arguments = function_of(variant), self.arguments(variant)
        assert torch.autograd.gradcheck(
            function, arguments, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)

    @pytest.mark.parametrize("wanted", range(3))
    def test_gradient_of_one_argument_alone(self, wanted, variant, tile):
        arguments = [t.detach() for t in self.arguments(variant)]
        arguments[wanted].requires_grad_()
        weights = draw((5, 4), 7)
        got = torch.autograd.grad(
            (weights * function_of(variant)(*arguments)).sum(), arguments[wanted]
        )
        want = torch.autograd.grad((weights * naive(*arguments, variant)).sum(), arguments[wanted])
        torch.testing.assert_close(got, want)

    @pytest.mark.parametrize("inner", [jacrev, jacfwd])
    @pytest.mark.parametrize("outer", [jacrev, jacfwd])
    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_second_derivatives_in_every_mode(self, inner, outer, variant, tile):
        """PyTorch by itself gets forward in forward wrong for a Function, without a word."""
        arguments = [t.detach() for t in self.arguments(variant)]
        function = function_of(variant)

        def second(function):
            every = (0, 1, 2)
            return outer(inner(lambda *a: function(*a).sum(), argnums=every), argnums=every)

        got = second(function)(*arguments)
        want = second(lambda *a: naive(*a, variant))(*arguments)
        torch.testing.assert_close(got, want)

    def test_gradient_at_a_prototype_is_exactly_zero(self, variant, dtype):
        layer = made(variant, dtype)
        x = layer.mu.detach().clone().requires_grad_()
        layer(x).diagonal().sum().backward()
        for tensor in (x, layer.mu, layer.alpha):
            assert torch.equal(tensor.grad, torch.zeros(4, 3, dtype=dtype))

    def test_the_naive_gradient_there_is_not_finite(self):
        x = torch.ones(1, 2, requires_grad=True)
        (x - 1).square().sum().sqrt().backward()
        assert bool(x.grad.isnan().all())

    def test_second_derivative_at_a_prototype_is_exactly_zero(self, variant):
        layer = made(variant, units=1)
        arguments = (layer.mu.detach(), layer.mu.detach(), layer.alpha.detach())
        function = function_of(variant, units=1)
        every = (0, 1, 2)
        second = jacrev(jacrev(lambda *a: function(*a).sum(), argnums=every), argnums=every)
        for row in second(*arguments):
            for block in row:
                assert torch.equal(block, torch.zeros_like(block))

    def test_a_prototype_on_a_sample_leaves_the_other_gradients_alone(self, variant):
        layer, x = made(variant), draw((5, 3), 0)
        x[2] = layer.mu[1].detach()
        x.requires_grad_()
        keep = torch.ones(5, 4, dtype=torch.float64)
        keep[2, 1] = 0
        whole = torch.autograd.grad(layer(x).sum(), (x, *layer.parameters()))
        others = naive(x, layer.mu, layer.alpha, variant)[keep == 1].sum()
        for got, want in zip(
            whole, torch.autograd.grad(others, (x, *layer.parameters())), strict=True
        ):
            torch.testing.assert_close(got, want)

    def test_no_gradient_below_the_cut_of_the_published_code(self):
        mu = torch.zeros(3, 1, dtype=torch.float64)
        alpha = torch.tensor([[-1.0], [1e-12], [4.0]], dtype=torch.float64)  # below, at, above
        layer, x = layer_of(mu, alpha, "published-code"), torch.ones(1, 1, dtype=torch.float64)
        out = layer(x.requires_grad_())
        torch.testing.assert_close(out, torch.tensor([[1e-6, 1e-6, 2.0]], dtype=torch.float64))
        out.sum().backward()
        wanted = torch.tensor([[0.0], [5e5], [0.25]], dtype=torch.float64)
        torch.testing.assert_close(layer.alpha.grad, wanted)
        torch.testing.assert_close(layer.mu.grad, -torch.tensor([[0.0], [1e-6], [2.0]]).double())

    def test_a_scale_of_zero_stays_trainable_elsewhere(self):
        layer = layer_of(draw((2, 3), 0), torch.zeros(2, 3, dtype=torch.float64))
        layer(draw((5, 3), 1)).sum().backward()
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in layer.parameters())


class TestModule:
    def test_starting_values(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = OffsetL2(200, 300)
            first = layer.mu.detach().clone()
            with torch.no_grad():
                layer.alpha.zero_()
            layer.reset_parameters()
        for mu in (first, layer.mu.detach()):
            assert mu.mean().abs() < 0.002
            assert 0.099 < mu.std() < 0.101
        assert not torch.equal(first, layer.mu)
        assert torch.equal(layer.alpha, torch.ones(300, 200))

    def test_state(self, variant, dtype):
        layer = OffsetL2(3, 4, variant=variant, dtype=dtype)
        assert {k: v.shape for k, v in layer.state_dict().items()} == {
            "mu": (4, 3),
            "alpha": (4, 3),
        }
        assert {p.dtype for p in layer.parameters()} == {dtype}
        assert all(p.requires_grad for p in layer.parameters())
        other = OffsetL2(3, 4, variant=variant, dtype=dtype)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(layer(draw((5, 3), 0, dtype)), other(draw((5, 3), 0, dtype)))

    def test_device(self):
        layer = OffsetL2(3, 4, device="meta")
        assert layer(torch.zeros(5, 3, device="meta")).device.type == "meta"

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_what_is_printed_can_be_pasted_back(self, variant):
        layer = OffsetL2(3, 4, variant=variant)
        again = eval(repr(layer), {"OffsetL2": OffsetL2})
        assert (again.inputs, again.units, again.variant) == (3, 4, variant)
        assert repr(OffsetL2(3, 4)) == "OffsetL2(inputs=3, units=4)"

    def test_many_layers_at_once(self, variant, tile):
        """vmap over parameters equals a loop, in value and gradient."""
        function, x = function_of(variant), draw((5, 3), 0)
        mu, alpha = draw((6, 4, 3), 1), draw((6, 4, 3), 2).abs() + 0.1
        torch.testing.assert_close(
            torch.vmap(function, (None, 0, 0))(x, mu, alpha),
            torch.stack([function(x, m, a) for m, a in zip(mu, alpha, strict=True)]),
        )
        slope = torch.func.grad(lambda *a: function(*a).square().sum(), argnums=(0, 1, 2))
        looped = [slope(x, m, a) for m, a in zip(mu, alpha, strict=True)]
        for got, want in zip(
            torch.vmap(slope, (None, 0, 0))(x, mu, alpha), zip(*looped, strict=True), strict=True
        ):
            torch.testing.assert_close(got, torch.stack(want))

    def test_one_argument_batched_alone(self, variant):
        function, x, (mu, alpha) = function_of(variant), draw((5, 3), 0), made(variant).parameters()
        scales = torch.stack([alpha, 2 * alpha])
        got = torch.vmap(function, (None, None, 0))(x, mu, scales)
        torch.testing.assert_close(got, torch.stack([function(x, mu, a) for a in scales]))

    def test_it_learns(self, variant):
        layer = nn.Sequential(made(variant), Norm())
        x, optimiser = draw((50, 3), 3), torch.optim.Adam(layer.parameters(), lr=0.05)
        losses = []
        for _ in range(40):
            optimiser.zero_grad()
            loss = (layer(x) - (x - 1).norm(dim=-1)).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0]

    def test_public(self):
        assert mahalens.OffsetL2 is OffsetL2


def test_memory_does_not_grow_with_samples_times_units_times_inputs():
    """In an interpreter of its own: the peak of this one is that of all tests before."""
    samples, units, inputs = 4000, 200, 256
    script = f"""
import resource, sys, torch
from mahalens.nn import OffsetL2
layer, x = OffsetL2({inputs}, {units}), torch.randn({samples}, {inputs}, requires_grad=True)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
layer(x[:64]).sum().backward()
before = peak()
layer(x).sum().backward()
print((peak() - before) * (1 if sys.platform == "darwin" else 1024))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < samples * units * inputs * 4 / 3


class TestErrors:
    @pytest.mark.parametrize("units", [0, -2])
    def test_units(self, units):
        with pytest.raises(InputError, match=f"^OffsetL2 with {units} units; give at least 1$"):
            OffsetL2(3, units)

    @pytest.mark.parametrize("inputs", [0, -2])
    def test_inputs(self, inputs):
        with pytest.raises(InputError, match=f"^OffsetL2 with {inputs} inputs; give at least 1$"):
            OffsetL2(inputs, 3)

    def test_variant(self):
        message = "^unknown variant 'code' of OffsetL2; known: paper, published-code$"
        with pytest.raises(InputError, match=message):
            OffsetL2(3, 4, variant="code")

    @pytest.mark.parametrize("shape", [(), (4,), (5, 4), (3, 1)], ids=str)
    def test_shape(self, shape):
        message = (
            rf"^OffsetL2 of 3 inputs was given an array of shape \({', '.join(map(str, shape))}"
        )
        with pytest.raises(InputError, match=message) as caught:
            OffsetL2(3, 4)(torch.zeros(shape))
        assert str(caught.value).endswith("; give [..., 3]")
        assert len(str(caught.value).splitlines()) == 1
