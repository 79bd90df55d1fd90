"""OffsetL2: what it starts with, how it keeps digits and memory, and its tiles."""

import subprocess
import sys

import pytest
import torch
from modules import draw, offset_l2
from torch.func import jacrev

from mahalens.nn import OffsetL2
from mahalens.nn.layers import weighted_squares

VARIANTS = ["paper", "published-code"]


def layer_of(mu, alpha, variant="paper"):
    units, inputs = mu.shape
    layer = OffsetL2(inputs, units, variant=variant, dtype=mu.dtype)
    layer.load_state_dict({"mu": mu, "alpha": alpha})
    return layer


def made(variant, dtype=torch.float64, units=4):
    """A layer with scales of both signs in the paper's formula, where the sign means nothing."""
    alpha = draw((units, 3), 1, dtype)
    alpha = alpha if variant == "paper" else alpha.abs() + 0.1
    return layer_of(draw((units, 3), 2, dtype), alpha, variant)


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


class TestTiles:
    """Few differences at once, in one tile, in bands of samples, or a tile for each number."""

    @pytest.fixture(params=[2**18, 100, 6, 1])
    def tile(self, request):
        return request.param

    @pytest.fixture(params=[False, True], ids=["outside", "inside"])
    def inside(self, request):
        return request.param

    def naive(self, x, mu, weight, inside):
        difference = x[:, None] - mu
        return ((weight * difference) ** 2 if inside else weight * difference**2).sum(-1)

    def arguments(self):
        return [draw(shape, i) for i, shape in enumerate([(5, 3), (4, 3), (4, 3)])]

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_change_nothing(self, tile, inside):
        arguments = self.arguments()
        found = weighted_squares(*arguments, inside=inside, tile=tile)
        torch.testing.assert_close(found, self.naive(*arguments, inside))
        for tensor in arguments:
            tensor.requires_grad_()

        def function(*a):
            return weighted_squares(*a, inside=inside, tile=tile)

        assert torch.autograd.gradcheck(function, arguments, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(
            function, arguments, check_fwd_over_rev=True, fast_mode=True
        )

    @pytest.mark.parametrize("wanted", range(3))
    def test_the_gradient_of_one_argument_alone(self, wanted, tile, inside):
        arguments = self.arguments()
        arguments[wanted].requires_grad_()
        found = weighted_squares(*arguments, inside=inside, tile=tile)
        got, want = (
            torch.autograd.grad((draw((5, 4), 7) * squares).sum(), arguments[wanted])
            for squares in (found, self.naive(*arguments, inside))
        )
        torch.testing.assert_close(got, want)

    def test_one_argument_batched_alone(self, tile):
        x, mu, weight = self.arguments()
        weights = torch.stack([weight, 2 * weight])
        found = torch.vmap(lambda w: weighted_squares(x, mu, w, tile=tile))(weights)
        torch.testing.assert_close(
            found, torch.stack([weighted_squares(x, mu, w) for w in weights])
        )


def test_only_the_published_code_knows_the_sign_of_alpha(dtype):
    mu, alpha, x = draw((4, 3), 0, dtype), draw((4, 3), 1, dtype), draw((5, 3), 2, dtype)
    assert torch.equal(layer_of(mu, alpha)(x), layer_of(mu, -alpha)(x))
    cut = layer_of(mu, -alpha.abs(), "published-code")(x)
    assert torch.equal(cut, torch.full((5, 4), 1e-12, dtype=dtype).sqrt())
    ones = torch.tensor([1.0, 0.0, 1.0], dtype=dtype).expand(4, 3)  # each its own square
    torch.testing.assert_close(layer_of(mu, ones)(x), layer_of(mu, ones, "published-code")(x))


class TestNearAPrototype:
    """In float32, with prototypes at 100 and samples 0.001 away from one."""

    def case(self, variant):
        mu = 100 + draw((4, 3), 0, torch.float32)
        alpha = draw((4, 3), 1, torch.float32).abs() + 0.5
        x = mu + 1e-3 * draw((4, 3), 2, torch.float32)
        return layer_of(mu, alpha, variant), x.requires_grad_()

    def test_float32_agrees_with_float64(self, variant):
        layer, x = self.case(variant)
        parts = [t.detach().double().requires_grad_() for t in (x, layer.mu, layer.alpha)]
        out, wanted = layer(x), offset_l2(*parts, variant)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=0)
        grads = torch.autograd.grad(out.diagonal().sum(), (x, layer.mu, layer.alpha))
        wanted_grads = torch.autograd.grad(wanted.diagonal().sum(), parts)
        for got, want in zip(grads, wanted_grads, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-12)

    def test_the_second_derivative_at_it_is_exactly_zero(self, variant):
        layer = made(variant, units=1)
        arguments = (layer.mu.detach(), layer.mu.detach(), layer.alpha.detach())
        every = (0, 1, 2)

        def function(x, mu, alpha):
            state = {"mu": mu, "alpha": alpha}
            return torch.func.functional_call(layer, state, (x,)).sum()

        for row in jacrev(jacrev(function, argnums=every), argnums=every)(*arguments):
            for block in row:
                assert torch.equal(block, torch.zeros_like(block))

    def test_a_sample_on_it_leaves_the_other_gradients_alone(self, variant):
        layer, x = made(variant), draw((5, 3))
        x[2] = layer.mu[1].detach()
        x.requires_grad_()
        keep = torch.ones(5, 4, dtype=torch.float64)
        keep[2, 1] = 0
        others = offset_l2(x, layer.mu, layer.alpha, variant)[keep == 1].sum()
        tensors = (x, *layer.parameters())
        torch.testing.assert_close(
            torch.autograd.grad(layer(x).sum(), tensors), torch.autograd.grad(others, tensors)
        )


def test_no_gradient_below_the_cut_of_the_published_code():
    mu = torch.zeros(3, 1, dtype=torch.float64)
    alpha = torch.tensor([[-1.0], [1e-12], [4.0]], dtype=torch.float64)  # below, at, above
    layer, x = layer_of(mu, alpha, "published-code"), torch.ones(1, 1, dtype=torch.float64)
    out = layer(x.requires_grad_())
    torch.testing.assert_close(out, torch.tensor([[1e-6, 1e-6, 2.0]], dtype=torch.float64))
    out.sum().backward()
    wanted = torch.tensor([[0.0], [5e5], [0.25]], dtype=torch.float64)
    torch.testing.assert_close(layer.alpha.grad, wanted)
    torch.testing.assert_close(layer.mu.grad, -torch.tensor([[0.0], [1e-6], [2.0]]).double())


def test_a_scale_of_zero_has_no_gradient():
    layer = layer_of(draw((2, 3), 0), torch.zeros(2, 3, dtype=torch.float64))
    layer(draw((5, 3), 1)).sum().backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in layer.parameters())


def test_starting_values():
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


@pytest.mark.slow
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
    grown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert int(grown) < samples * units * inputs * 4 / 3
