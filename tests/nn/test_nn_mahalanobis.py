"""Mahalanobis: the formula with its inverse written out, derivatives, digits, and fits to data."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, jacfwd, jacrev

from mahalens.errors import InputError
from mahalens.geometry import ellipsoids
from mahalens.nn import Mahalanobis, OffsetL2, mahalanobis

DTYPES = [torch.float32, torch.float64]
NAMES = ("mu", "axes", "log_spread")
CHOICES = [
    {"remainder": remainder, "shared": shared}
    for remainder in ("spherical", "diagonal")
    for shared in (False, True)
]


def draw(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def made(choice, dtype=torch.float64, inputs=4, classes=3, rank=2, seed=1, **more):
    layer = Mahalanobis(inputs, classes, rank, dtype=dtype, **choice, **more)
    state = {name: draw(getattr(layer, name).shape, seed + i) for i, name in enumerate(NAMES)}
    state["log_spread"] *= 0.5
    layer.load_state_dict(state)
    return layer


def naive(x, mu, axes, log_spread):
    """Σ put together and inverted, class by class."""
    columns = []
    for c in range(len(mu)):
        shape = 0 if len(axes) == 1 else c
        spreads = log_spread[shape].exp().expand(x.shape[-1])
        covariance = torch.diag(spreads**2) + axes[shape].T @ axes[shape]
        delta = x - mu[c]
        columns.append((delta @ torch.linalg.inv(covariance) * delta).sum(-1).sqrt())
    return torch.stack(columns, -1)


def function_of(choice, **sizes):
    layer = made(choice, **sizes)
    return lambda x, *state: functional_call(layer, dict(zip(NAMES, state, strict=True)), (x,))


def state_of(layer):
    return [getattr(layer, name).detach().clone() for name in NAMES]


@pytest.fixture(params=CHOICES, ids=lambda c: f"{c['remainder']}-{'shared' if c['shared'] else ''}")
def choice(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


class TestValues:
    @pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 5, 4), (0, 4), (2, 0, 4)], ids=str)
    def test_is_the_formula(self, shape, choice, dtype):
        layer, x = made(choice, dtype), draw(shape, 0, dtype)
        out = layer(x)
        assert out.shape == (*shape[:-1], 3)
        assert out.dtype == dtype
        torch.testing.assert_close(out, naive(x, *state_of(layer)), rtol=2e-5, atol=1e-6)

    @settings(deadline=None, max_examples=25)
    @given(st.integers(1, 6), st.integers(1, 4), st.data(), st.sampled_from(CHOICES))
    def test_any_size(self, inputs, classes, data, choice):
        rank = data.draw(st.integers(1, inputs))
        layer = made(choice, inputs=inputs, classes=classes, rank=rank)
        x = draw((3, inputs), 9)
        torch.testing.assert_close(layer(x), naive(x, *state_of(layer)))

    def test_squared(self, choice):
        x = draw((5, 4), 0)
        plain, squared = made(choice), made(choice, squared=True)
        torch.testing.assert_close(squared(x), plain(x).square())

    def test_tiles_without_gradient_change_nothing(self, choice, monkeypatch):
        layer, x = made(choice), draw((7, 4), 0)
        whole = layer(x)
        monkeypatch.setattr(mahalanobis, "_TILE", 30)  # two samples at a time
        sizes, apart = [], mahalanobis._apart

        def watched(given, *others):
            sizes.append(given.shape[-2])
            return apart(given, *others)

        monkeypatch.setattr(mahalanobis, "_apart", watched)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), whole)
        assert sizes == ([7, 3] if choice["shared"] else [2, 2, 2, 1])

    def test_covariances_and_their_determinants(self, choice):
        layer = made(choice)
        x = draw((5, 4), 0)
        assert layer.covariances.shape == (3, 4, 4)
        inverse = torch.linalg.inv(layer.covariances)
        delta = x[:, None] - layer.mu
        squares = torch.einsum("ncd,cde,nce->nc", delta, inverse, delta)
        torch.testing.assert_close(layer(x), squares.sqrt())
        torch.testing.assert_close(layer.log_determinants, torch.logdet(layer.covariances))

    def test_as_ellipsoids(self, choice, dtype):
        layer, x = made(choice, dtype), draw((6, 4), 0, dtype)
        found = layer.ellipsoids()
        kind = "full" if choice["remainder"] == "diagonal" else "low-rank+remainder"
        assert found.kind == kind
        torch.testing.assert_close(found.distances(x), layer(x).detach(), rtol=1e-4, atol=1e-5)
        assert not found.means.requires_grad

    @pytest.mark.parametrize("away", [0.0, 1e3])
    @pytest.mark.parametrize("remainder", ["spherical", "diagonal"])
    def test_one_ellipsoid_for_all_is_as_many_that_are_alike(self, remainder, away):
        """Whitened once, or for each class: the same, also far from the origin in float32."""
        one, each = (
            made({"remainder": remainder, "shared": shared}, torch.float32)
            for shared in (True, False)
        )
        with torch.no_grad():
            one.mu += away
            each.mu.copy_(one.mu)
            each.axes.copy_(one.axes.expand_as(each.axes))
            each.log_spread.copy_(one.log_spread.expand_as(each.log_spread))
        x = (draw((9, 4), 0, torch.float32) + away).requires_grad_()
        torch.testing.assert_close(one(x), each(x), rtol=1e-5, atol=1e-5)
        (got,) = torch.autograd.grad(one(x).sum(), x)
        (wanted,) = torch.autograd.grad(each(x).sum(), x)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)

    def test_with_axes_of_zero_it_is_offset_l2(self):
        layer = made({"remainder": "diagonal"})
        with torch.no_grad():
            layer.axes.zero_()
        other = OffsetL2(4, 3, dtype=torch.float64)
        other.load_state_dict({"mu": layer.mu, "alpha": (-layer.log_spread).exp()})
        x = draw((5, 4), 0)
        torch.testing.assert_close(layer(x), other(x))

    def test_distance_to_its_prototype_is_zero(self, choice, dtype):
        layer = made(choice, dtype)
        assert torch.equal(layer(layer.mu).diagonal(), torch.zeros(3, dtype=dtype))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_not_hidden(self, bad, choice):
        x = draw((2, 4), 0)
        x[0, 1] = bad
        out = made(choice)(x)
        assert not bool(out[0].isfinite().any())
        assert bool(out[1].isfinite().all())
        layer = made(choice)
        with torch.no_grad():
            layer.axes[0, 0, 0] = bad
        assert bool(layer(draw((2, 4), 0))[:, 0].isnan().all())


class TestDigits:
    def test_far_from_the_origin(self):
        """In float32, prototypes at 100 and samples 0.001 away."""
        layer = made({}, torch.float32)
        with torch.no_grad():
            layer.mu.add_(100)
        x = (layer.mu + 1e-3 * draw((3, 4), 0, torch.float32)).detach()
        exact = copy.deepcopy(layer).double()(x.double())
        torch.testing.assert_close(layer(x).double(), exact, rtol=1e-5, atol=0)

    def test_along_an_axis_much_longer_than_the_remainder(self):
        """d² as a difference of products would keep 7 - 2 log10(1000) = 1 digit of float32."""
        layer = made({}, torch.float32, classes=1)
        with torch.no_grad():
            layer.axes.mul_(1000)
        along = layer.mu.detach() + draw((20, 2), 3, torch.float32) @ layer.axes[0].detach()
        exact = copy.deepcopy(layer).double()(along.double())
        torch.testing.assert_close(layer(along).double(), exact, rtol=1e-3, atol=0)
        delta = (along - layer.mu).detach()
        scale, rows, factor = layer._factor(torch.float32)
        part = torch.linalg.solve_triangular(factor[0], rows[0] @ (delta * scale).T, upper=False)
        difference = (delta * scale).square().sum(1) - part.square().sum(0)
        assert bool(((difference - exact[:, 0] ** 2).abs() > 0.01 * exact[:, 0] ** 2).any())

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_is_computed_in_float32(self, half, choice):
        layer, x = made(choice, torch.float32).to(half), draw((5, 4), 0, half)
        out = layer(x)
        assert out.dtype == half
        wide = copy.deepcopy(layer).float()
        assert torch.equal(out, wide(x.float()).to(half))
        out.sum().backward()
        assert all(p.grad.dtype == half and p.grad.isfinite().all() for p in layer.parameters())
        assert layer.log_determinants.dtype == half

    def test_autocast_does_not_touch_it(self, choice):
        layer, x = made(choice, torch.float32), draw((5, 4), 0, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x)
        assert torch.equal(out, layer(x))


class TestDerivatives:
    def arguments(self, choice):
        return tuple(t.requires_grad_() for t in (draw((5, 4), 0), *state_of(made(choice))))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_gradcheck(self, choice):
        function, arguments = function_of(choice), self.arguments(choice)
        assert torch.autograd.gradcheck(
            function, arguments, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(function, arguments)

    @pytest.mark.parametrize("inner", [jacrev, jacfwd])
    @pytest.mark.parametrize("outer", [jacrev, jacfwd])
    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_second_derivatives_in_every_mode(self, inner, outer):
        arguments = [t.detach() for t in self.arguments({})]

        def second(function):
            every = tuple(range(4))
            return outer(inner(lambda *a: function(*a).sum(), argnums=every), argnums=every)

        torch.testing.assert_close(
            second(function_of({}))(*arguments), second(naive)(*arguments), rtol=1e-5, atol=1e-8
        )

    def test_gradient_at_a_prototype_is_exactly_zero(self, choice, dtype):
        layer = made(choice, dtype)
        x = layer.mu.detach().clone().requires_grad_()
        layer(x).diagonal().sum().backward()
        for tensor in (x, *layer.parameters()):
            assert torch.equal(tensor.grad, torch.zeros_like(tensor))

    def test_many_layers_at_once(self, choice):
        function, x = function_of(choice), draw((5, 4), 0)
        states = [state_of(made(choice, seed=seed)) for seed in range(4)]
        stacked = [torch.stack(parts) for parts in zip(*states, strict=True)]
        out = torch.vmap(function, (None, 0, 0, 0))(x, *stacked)
        torch.testing.assert_close(out, torch.stack([function(x, *state) for state in states]))


class TestModule:
    def test_starting_values(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = Mahalanobis(100, 50, 8)
        assert 0.097 < layer.mu.std() < 0.103
        assert torch.equal(layer.log_spread, torch.zeros(50, 1))
        lengths = layer.axes.norm(dim=-1)
        assert 0.98 < lengths.mean() < 1.02

    def test_state(self, choice, dtype):
        layer, other = made(choice, dtype), Mahalanobis(4, 3, 2, dtype=dtype, **choice)
        shapes = 1 if choice["shared"] else 3
        wide = 4 if choice["remainder"] == "diagonal" else 1
        assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == {
            "mu": (3, 4),
            "axes": (shapes, 2, 4),
            "log_spread": (shapes, wide),
        }
        other.load_state_dict(layer.state_dict())
        x = draw((5, 4), 0, dtype)
        assert torch.equal(layer(x), other(x))
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))

    def test_what_is_printed_can_be_pasted_back(self, choice):
        for squared in (False, True):
            layer = Mahalanobis(4, 3, 2, squared=squared, **choice)
            again = eval(repr(layer), {"Mahalanobis": Mahalanobis})
            assert repr(again) == repr(layer)
            assert again.squared == squared
            assert again.state_dict().keys() == layer.state_dict().keys()
            assert [p.shape for p in again.parameters()] == [p.shape for p in layer.parameters()]
        assert repr(Mahalanobis(4, 3, 2)) == "Mahalanobis(inputs=4, classes=3, rank=2)"

    def test_device(self):
        layer = Mahalanobis(4, 3, 2, device="meta")
        assert layer(torch.zeros(5, 4, device="meta")).shape == (5, 3)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    @pytest.mark.parametrize("squared", [False, True])
    def test_compiled_by_torch(self, choice, squared):
        layer, x = made(choice, squared=squared), draw((5, 4), 0)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x))
        weights = draw((5, 3), 7)
        got = torch.autograd.grad((weights * compiled(x)).sum(), list(layer.parameters()))
        want = torch.autograd.grad((weights * layer(x)).sum(), list(layer.parameters()))
        torch.testing.assert_close(got, want)

    def test_it_learns_a_covariance(self, choice):
        """From samples of two Gaussians that differ in shape alone, by their likelihood."""
        x = draw((400, 4), 5)
        x[:200, 0] *= 4
        x[200:, 1] *= 4
        y = torch.arange(400) // 200
        layer = Mahalanobis(4, 2, 1, dtype=torch.float64, **choice)

        def misfit(layer):
            density = -(layer.squares(x) + layer.log_determinants) / 2
            return -density.gather(1, y[:, None]).mean()

        first = misfit(layer).item()
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(200):
            optimiser.zero_grad()
            loss = misfit(layer)
            loss.backward()
            optimiser.step()
        # The closed form is the most likely ellipsoid, but for N - 1 in the place of N.
        best = misfit(Mahalanobis.from_data(x, y, rank=1, **choice)).item()
        assert loss.item() < best + 0.02
        assert first > best + 0.5


def classes_of_data(samples=60, inputs=5, classes=3, seed=0, dtype=torch.float64):
    x = draw((samples, inputs), seed) * (1 + torch.arange(inputs).double())
    y = torch.arange(samples) % classes
    return (x + 4 * draw((classes, inputs), seed + 1)[y]).to(dtype), y


class TestFromData:
    @pytest.mark.parametrize("rank", [1, 3, 5])
    def test_is_the_ellipsoid_of_the_data(self, rank, dtype):
        x, y = classes_of_data(dtype=dtype)
        layer = Mahalanobis.from_data(x, y, rank=rank)
        want = ellipsoids.from_data(x, y, kind="low-rank+remainder", rank=rank).distances(x)
        torch.testing.assert_close(layer(x).detach(), want, rtol=1e-4, atol=1e-5)
        assert layer.mu.dtype == dtype

    def test_full_rank_is_the_class_covariance_with_every_axis_free(self):
        x, y = classes_of_data()
        layer = Mahalanobis.from_data(x, y, rank=5)
        for k in range(3):
            torch.testing.assert_close(layer.covariances[k].detach(), torch.cov(x[y == k].T))
        assert bool((layer.axes.norm(dim=-1) > 0).all())

    def test_shared_is_the_pooled_covariance(self):
        x, y = classes_of_data()
        layer = Mahalanobis.from_data(x, y, rank=5, shared=True)
        within = sum(19 * torch.cov(x[y == k].T) for k in range(3)) / (60 - 3)
        torch.testing.assert_close(layer.covariances[1].detach(), within)

    def test_diagonal_remainder_starts_spherical(self):
        x, y = classes_of_data()
        diagonal = Mahalanobis.from_data(x, y, rank=2, remainder="diagonal")
        torch.testing.assert_close(diagonal(x), Mahalanobis.from_data(x, y, rank=2)(x))
        assert diagonal.log_spread.shape == (3, 5)

    def test_ridge_and_shrinkage_are_those_of_ellipsoids(self):
        x, y = classes_of_data()
        for options in ({"ridge": 0.3}, {"shrinkage": "ledoit-wolf"}):
            layer = Mahalanobis.from_data(x, y, rank=2, **options)
            want = ellipsoids.from_data(x, y, kind="low-rank+remainder", rank=2, **options)
            torch.testing.assert_close(layer(x).detach(), want.distances(x))

    def test_fewer_samples_than_inputs(self):
        x, y = classes_of_data(samples=12, inputs=20)
        layer = Mahalanobis.from_data(x, y, rank=2)
        assert bool(layer(x).isfinite().all())
        with pytest.raises(InputError, match=r"^class 0: .*; keep fewer axes, or pass ridge=1e-6"):
            Mahalanobis.from_data(x, y, rank=8)
        Mahalanobis.from_data(x, y, rank=8, ridge=1e-3)

    def test_it_can_be_trained_on(self):
        x, y = classes_of_data()
        layer = Mahalanobis.from_data(x, y, rank=2)
        layer(x).sum().backward()
        assert all(bool((p.grad != 0).any()) for p in layer.parameters())


class TestErrors:
    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ((0, 2, 1), "Mahalanobis with 0 inputs; give at least 1"),
            ((3, 0, 1), "Mahalanobis with 0 classes; give at least 1"),
            ((3, 2, 0), "Mahalanobis of rank 0 on 3 inputs; give a rank from 1 to 3"),
            ((3, 2, 4), "Mahalanobis of rank 4 on 3 inputs; give a rank from 1 to 3"),
        ],
    )
    def test_sizes(self, sizes, message):
        with pytest.raises(InputError) as caught:
            Mahalanobis(*sizes)
        assert str(caught.value) == message

    def test_remainder(self):
        message = "unknown remainder 'full' of Mahalanobis; known: spherical, diagonal"
        with pytest.raises(InputError, match=f"^{message}$"):
            Mahalanobis(3, 2, 1, remainder="full")

    @pytest.mark.parametrize("shape", [(), (3,), (5, 3), (4, 1)], ids=str)
    def test_shape(self, shape):
        with pytest.raises(
            InputError, match=r"^Mahalanobis of 4 inputs was given .*; give \[..., 4\]$"
        ):
            Mahalanobis(4, 3, 2)(torch.zeros(shape))

    def test_data(self):
        x, y = classes_of_data()
        with pytest.raises(InputError, match=r"^Mahalanobis of rank 6 on 5 inputs"):
            Mahalanobis.from_data(x, y, rank=6)
        with pytest.raises(InputError, match=r"^features are a list, wanted a tensor"):
            Mahalanobis.from_data(x.tolist(), y, rank=1)
        with pytest.raises(InputError, match=r"^class 2 of 5 has no samples, wanted at least 2"):
            Mahalanobis.from_data(x, torch.where(y == 2, 4, y), rank=1)
