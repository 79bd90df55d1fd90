"""Mahalanobis: its covariances and ellipsoids, how it keeps digits, and fits to data."""

import copy

import pytest
import torch
from modules import draw, made, refuses, squares

from mahalens.geometry import ellipsoids
from mahalens.nn import Mahalanobis, OffsetL2


@pytest.fixture(params=[f"Mahalanobis{s}{d}" for s in ("", ", shared") for d in ("", ", diagonal")])
def name(request):
    return request.param


class TestValues:
    def test_squares_are_those_of_the_distances_in_any_tiles(self, name):
        layer, x = made(name), draw((7, 4))
        torch.testing.assert_close(layer.squares(x), layer(x).square())
        for tile in (1, 30, 100):
            with torch.no_grad():
                torch.testing.assert_close(layer.squares(x, tile=tile), layer(x).square())

    def test_covariances_and_their_determinants(self, name):
        layer, x = made(name), draw((5, 4))
        assert layer.covariances.shape == (3, 4, 4)
        wanted = squares(x, layer.mu, layer.covariances).sqrt()
        torch.testing.assert_close(layer(x), wanted)
        torch.testing.assert_close(layer.log_determinants, torch.logdet(layer.covariances))
        assert layer.half().log_determinants.dtype == torch.float16
        layer = layer.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = layer.covariances
        assert torch.equal(inside, layer.covariances)

    def test_as_ellipsoids(self, name, dtype):
        layer, x = made(name, dtype), draw((6, 4), 0, dtype)
        found = layer.ellipsoids()
        assert found.kind == ("full" if "diagonal" in name else "low-rank+remainder")
        torch.testing.assert_close(found.distances(x), layer(x).detach(), rtol=1e-4, atol=1e-5)
        assert not found.means.requires_grad
        half = layer.bfloat16()
        assert torch.equal(
            half.ellipsoids().distances(x.float()), half.float().ellipsoids().distances(x.float())
        )

    @pytest.mark.parametrize("away", [0.0, 1e3])
    @pytest.mark.parametrize("remainder", ["", ", diagonal"])
    def test_one_ellipsoid_for_all_is_as_many_that_are_alike(self, remainder, away):
        """Whitened once, or for each class: the same, also far from the origin in float32."""
        names = f"Mahalanobis, shared{remainder}", f"Mahalanobis{remainder}"
        one, each = (made(name, torch.float32) for name in names)
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
        layer = made("Mahalanobis, diagonal")
        with torch.no_grad():
            layer.axes.zero_()
        other = OffsetL2(4, 3, dtype=torch.float64)
        other.load_state_dict({"mu": layer.mu, "alpha": (-layer.log_spread).exp()})
        torch.testing.assert_close(layer(draw((5, 4))), other(draw((5, 4))))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_a_parameter_that_is_not_finite_is_not_hidden(self, bad, name):
        layer = made(name)
        with torch.no_grad():
            layer.axes[0, 0, 0] = bad
        assert bool(layer(draw((2, 4)))[:, 0].isnan().all())


class TestDigits:
    def test_far_from_the_origin(self):
        """In float32, prototypes at 100 and samples 0.001 away."""
        layer = made("Mahalanobis", torch.float32)
        with torch.no_grad():
            layer.mu.add_(100)
        x = (layer.mu + 1e-3 * draw((3, 4), 0, torch.float32)).detach()
        exact = copy.deepcopy(layer).double()(x.double())
        torch.testing.assert_close(layer(x).double(), exact, rtol=1e-5, atol=0)

    def test_along_an_axis_much_longer_than_the_remainder(self):
        """d² as a difference of products would keep 7 - 2 log10(1000) = 1 digit of float32."""
        layer = made("Mahalanobis", torch.float32, units=1)
        with torch.no_grad():
            layer.axes.mul_(3000)
        along = layer.mu.detach() + draw((20, 2), 3, torch.float32) @ layer.axes[0].detach()
        exact = copy.deepcopy(layer).double()(along.double())[:, 0]
        torch.testing.assert_close(layer(along)[:, 0].double(), exact, rtol=1e-3, atol=0)


def test_starting_values():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = Mahalanobis(100, 50, 8)
    assert 0.097 < layer.mu.std() < 0.103
    assert torch.equal(layer.log_spread, torch.zeros(50, 1))
    assert 0.98 < layer.axes.norm(dim=-1).mean() < 1.02


def classes_of_data(samples=60, inputs=5, classes=3, seed=0, dtype=torch.float64):
    x = draw((samples, inputs), seed) * (1 + torch.arange(inputs).double())
    y = torch.arange(samples) % classes
    return (x + 4 * draw((classes, inputs), seed + 1)[y]).to(dtype), y


class TestFromData:
    @pytest.mark.parametrize("options", [{}, {"ridge": 0.3}, {"shrinkage": "ledoit-wolf"}], ids=str)
    @pytest.mark.parametrize("rank", [1, 3, 5])
    def test_is_the_ellipsoid_of_the_data(self, rank, options, dtype):
        x, y = classes_of_data(dtype=dtype)
        layer = Mahalanobis.from_data(x, y, rank=rank, **options)
        want = ellipsoids.from_data(x, y, kind="low-rank+remainder", rank=rank, **options)
        torch.testing.assert_close(layer(x).detach(), want.distances(x), rtol=1e-4, atol=1e-5)
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

    def test_fewer_samples_than_inputs(self):
        x, y = classes_of_data(samples=12, inputs=20)
        assert bool(Mahalanobis.from_data(x, y, rank=2)(x).isfinite().all())
        message = r"the ellipsoids of the classes: .*; keep fewer axes, or pass ridge=1e-6"
        refuses(message, Mahalanobis.from_data, x, y, rank=8)
        Mahalanobis.from_data(x, y, rank=8, ridge=1e-3)

    @pytest.mark.parametrize(
        ("change", "rank", "message"),
        [
            (lambda x, y: (x, y), 6, "Mahalanobis of rank 6 on 5 inputs"),
            (lambda x, y: (x.tolist(), y), 1, "features are a list, wanted a tensor"),
            (lambda x, y: (x[:, :, None], y), 1, "Mahalanobis of D inputs was given features of"),
            (lambda x, y: (x, y - 1), 1, "label -1 is not one of .*; labels are at least 0"),
            (lambda x, y: (x, y + 2 * (y == 2)), 1, "class 2 of 5 has no samples, wanted at"),
        ],
    )
    def test_refusals(self, change, rank, message):
        x, y = change(*classes_of_data())
        refuses(message, Mahalanobis.from_data, x, y, rank=rank)
