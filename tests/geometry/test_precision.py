"""Digits that distances keep: near a mean, far away, for flat ellipsoids, over the whole range."""

import math

import numpy as np
import pytest
import torch
from geometry_cases import (
    BOTH,
    OPTIONS,
    make,
    normal,
    points,
    refused,
    relative,
    slow_distance,
    slow_distances,
    some_covariances,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from mahalens.geometry import reconstruct
from mahalens.geometry.ellipsoids import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
    from_clusters,
    from_covariance,
    from_data,
)

PROMISED = {torch.float32: 1e-5, torch.float64: 1e-11}
SHAPES = ["full", "low-rank", "remainder", "diagonal", "spherical", "shared-basis"]


def build(shape, means, spreads, seed=0):
    """Ellipsoids in the dtype of the means, turned by chance, with about these spreads [K, D].

    What is rounded to the dtype is exact by definition.
    """
    g = torch.Generator().manual_seed(seed)
    count, dim = means.shape
    rank = max(1, dim // 2)
    axes = torch.linalg.qr(torch.randn(count, dim, dim, generator=g, dtype=torch.float64))[0].mT
    spreads = spreads.double().expand(count, dim).sort(dim=1, descending=True).values
    rest = spreads[:, rank - 1] / 2

    def ready(*tensors):
        return (t.to(means.dtype).contiguous() for t in tensors)

    if shape == "full":
        # L⁻¹ from the QR decomposition of the axes over their spreads: no covariance is formed
        upper = torch.linalg.qr((axes / spreads[..., None]).flip(-1)).R
        whitening = upper.flip(-1, -2)
        whitening = whitening * whitening.diagonal(dim1=-2, dim2=-1).sign()[..., None]
        return FullEllipsoids(means, *ready(whitening.tril()))
    if shape == "low-rank":
        return LowRankEllipsoids(means, *ready(axes[:, :rank], spreads[:, :rank]))
    if shape == "remainder":
        return LowRankEllipsoids(means, *ready(axes[:, :rank], spreads[:, :rank], rest))
    if shape == "diagonal":
        return DiagonalEllipsoids(means, *ready(spreads))
    if shape == "spherical":
        return SphericalEllipsoids(means, *ready(spreads[:, 0]))
    whitening = torch.diag_embed(1 / spreads[:, :rank])
    return SharedBasisEllipsoids(means, *ready(axes[0, :rank], whitening, rest))


def graded(dim, condition, scale=1.0):
    """Spreads [D] of a covariance with this condition number, the longest of size ``scale``."""
    return scale * torch.logspace(0, -math.log10(condition) / 2, dim, dtype=torch.float64)


def scattered(count, dim, dtype, seed, apart=1.0, offset=0.0):
    return (apart * normal(count, dim, seed=seed) + offset).to(dtype)


def around(ellipsoids, near, count=4, seed=3):
    """Points at ``near`` from every mean, and from the centre of all."""
    means = torch.cat([ellipsoids.means, ellipsoids.means.mean(dim=0, keepdim=True)])
    x = means.double() + near * normal(count, *means.shape, seed=seed)
    return x.to(ellipsoids.dtype).reshape(-1, ellipsoids.dim)


def off(ellipsoids, x, norm="l2"):
    return relative(ellipsoids.distances(x, norm=norm), slow_distances(ellipsoids, x, norm))


class TestPromise:
    @pytest.mark.parametrize("near", [1e-6, 1e-3, 1.0])
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_near_a_mean(self, name, norm, near, dtype):
        ellipsoids = make(name, count=4, dtype=dtype)
        assert off(ellipsoids, around(ellipsoids, near), norm) < PROMISED[dtype]

    @pytest.mark.parametrize("offset", [0.0, 1e4])
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_at_a_mean_is_exact(self, name, norm, offset, dtype):
        ellipsoids = make(name, count=4, dtype=dtype)
        ellipsoids.means += offset
        for tracked in (False, True):
            x = ellipsoids.means.clone().requires_grad_(tracked)
            distances = ellipsoids.distances(x, norm=norm).detach()
            assert distances.diagonal().tolist() == [0.0] * 4
            assert distances.count_nonzero() == 12

    @pytest.mark.parametrize(
        ("apart", "offset", "condition", "scale", "steps"),
        [
            (1.0, 1e4, 30.0, 1.0, (1e-3, 1.0)),  # far from the origin
            (1e4, 0.0, 30.0, 1.0, (1e-3, 1.0)),  # far from each other
            (1e4, 1e4, 30.0, 1.0, (1e-3, 1.0)),
            (1.0, 0.0, 1e2, 1.0, (1e-4, 1e-2, 1.0)),  # flat
            (1.0, 0.0, 1e5, 1.0, (1e-4, 1e-2, 1.0)),
            (1.0, 0.0, 1e8, 1.0, (1e-4, 1e-2, 1.0)),
            (1e-8, 0.0, 1e2, 1e-8, (1e-12, 1e-8)),  # in another unit
            (1e8, 0.0, 1e2, 1e8, (1e4, 1e8)),
            (1e3, 0.0, 10.0, 1e-6, (1e-4,)),  # tiny and far apart
        ],
    )
    @pytest.mark.parametrize("shape", SHAPES)
    def test_in_all_sizes_and_places(self, shape, apart, offset, condition, scale, steps, dtype):
        means = scattered(5, 6, dtype, 0, apart, offset)
        ellipsoids = build(shape, means, graded(6, condition, scale))
        for near in steps:
            assert off(ellipsoids, around(ellipsoids, near)) < PROMISED[dtype]

    @pytest.mark.parametrize("condition", [1e2, 1e5, 1e8])
    @pytest.mark.parametrize("shape", ["remainder", "shared-basis"])
    def test_within_the_axes_where_the_remainder_is_tiny(self, shape, condition, dtype):
        means = scattered(1, 6, dtype, 0).expand(3, 6).contiguous()
        ellipsoids = build(shape, means, graded(6, condition))
        ellipsoids.remainder[:] = torch.tensor([condition**-0.25, 1e-4, 1e-6])
        every = ellipsoids.axes if shape == "remainder" else ellipsoids.basis[None]
        inside = torch.cat([means[0].double() + normal(8, 3) @ axes.double() for axes in every])
        assert off(ellipsoids, inside.to(dtype)) < PROMISED[dtype]


@pytest.mark.parametrize(("spread", "remainder"), [(1e4, 1.0), (1.0, 1e4)])
def test_of_a_shared_basis_far_along_or_far_across(spread, remainder):
    """What the long side loses in rounding must not reach the short side."""
    means = scattered(6, 6, torch.float32, 0, 1e4)
    g = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(6, 3, generator=g, dtype=torch.float64))[0].T
    long = basis.T @ basis if spread > remainder else torch.eye(6) - basis.T @ basis
    means = (means.double() @ long).float()
    whitening = (torch.eye(3) / spread).repeat(6, 1, 1)
    rest = torch.full((6,), remainder)
    ellipsoids = SharedBasisEllipsoids(means, basis.float(), whitening, rest)
    x = around(ellipsoids, 1e3)[:-1].double() @ long + torch.randn(27, 6, generator=g) * 1e-2
    assert off(ellipsoids, x.float()) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data())
def test_float32_keeps_five_digits(shape, data):
    exponent = st.floats(-6, 0)
    dim = data.draw(st.sampled_from([1, 2, 3, 8, 20]))
    condition = 10 ** data.draw(st.floats(0, 8))
    scale = 10 ** data.draw(st.floats(-4, 4))
    apart, offset = (scale * 10 ** data.draw(st.floats(-2, 4)) for _ in range(2))
    seed = data.draw(st.integers(0, 99))
    means = scattered(3, dim, torch.float32, seed, apart, offset)
    ellipsoids = build(shape, means, graded(dim, condition, scale), seed)
    near = scale * 10 ** data.draw(exponent)
    x = around(ellipsoids, near, count=2, seed=seed).view(2, 4, dim)
    if shape in ("full", "low-rank", "shared-basis"):
        x = x[:, :3]  # without the centre of the means, for which see below
    assert off(ellipsoids, x.reshape(-1, dim)) < PROMISED[torch.float32]


def test_a_point_at_the_centre_of_far_means(name):
    # Long ellipsoids that reach from far means to the centre: W mean is a small difference.
    along = torch.tensor([0.6, 0.8], dtype=torch.float64)
    outer = torch.outer(along, along)
    covariance = 1e8 * outer + torch.eye(2, dtype=torch.float64) - outer
    means = torch.stack([1e4 * along, -1e4 * along]).float()
    kind = OPTIONS[name]["kind"]
    rank = {"low-rank": 2, "low-rank+remainder": 1, "shared-basis": 1}.get(kind)
    ellipsoids = from_covariance(means, [covariance] * 2, kind=kind, rank=rank)
    x = normal(50, 2, dtype=torch.float32)
    assert off(ellipsoids, x) < 1e-5


def test_products_are_used_where_they_are_good_enough(name):
    """Ordinary points are not measured one by one, which would end in ``index_put``."""
    ellipsoids = make(name, dtype=torch.float32)
    x = points(ellipsoids).requires_grad_()
    assert "IndexPut" not in ellipsoids.distances(x).grad_fn.name()
    ellipsoids.means[3] += 1e6
    assert "IndexPut" in ellipsoids.distances(x).grad_fn.name()
    assert off(ellipsoids, x.detach()) < 1e-5  # which keeps its digits, whoever else is there


@pytest.mark.parametrize("dim", [64, 300])
def test_in_many_dimensions(dim):
    covariances = list(some_covariances(2, dim, condition=1e4))
    ellipsoids = from_covariance(normal(2, dim, dtype=torch.float32), covariances)
    for near in (1e-2, 1.0):
        assert off(ellipsoids, around(ellipsoids, near, count=2)) < 1e-5


def exact(ellipsoids, x, norm="l2"):
    """All distances with 60 digits and without a limit to their size."""

    def numbers(tensor):
        return np.vectorize(mpf, otypes=[object])(tensor.double().numpy())

    with mp.workdps(60):
        return [
            [slow_distance(ellipsoids, row, k, norm, numbers) for k in range(len(ellipsoids))]
            for row in x
        ]


def require_right(actual, wanted, dtype):
    """Equal, relative; infinite above the largest number, near 0 below the smallest."""
    info = torch.finfo(dtype)
    assert not bool(actual.isnan().any())
    flat = [value for row in wanted for value in row]
    for value, true in zip(actual.flatten().tolist(), flat, strict=True):
        if true > info.max:
            assert value == math.inf
        elif true < info.tiny / info.eps:
            assert value <= 2 * info.tiny / info.eps
        elif true > mpf(info.max) * (1 - 2 * PROMISED[dtype]):
            assert value > info.max / 2
        else:
            assert abs(value / true - 1) < PROMISED[dtype], (value, true)


@pytest.mark.parametrize("kind", SHAPES)
@settings(deadline=None, max_examples=25, derandomize=True)
@given(data=st.data())
def test_float32_from_the_smallest_to_the_largest(kind, data):
    """Points, means and spreads each at a scale of its own, spreads even within an ellipsoid."""
    decade = st.floats(-30, 30)
    dim, count = data.draw(st.sampled_from([1, 2, 5])), 3
    seed = data.draw(st.integers(0, 99))
    g = torch.Generator().manual_seed(seed)
    near, apart, scale = (data.draw(decade) for _ in range(3))
    decades = data.draw(st.sampled_from([0.0, 3.0, 8.0]))
    means = 10**apart * torch.randn(count, dim, generator=g, dtype=torch.float64)
    spreads = 10 ** (scale + decades * (torch.rand(count, dim, generator=g).double() - 0.5))
    steps = 10**near * torch.randn(2, dim, generator=g, dtype=torch.float64)
    x = torch.cat([steps, means[:1] + steps, means[1:]]).float()
    ellipsoids = build(kind, means.float(), spreads.float(), seed)
    require_right(ellipsoids.distances(x), exact(ellipsoids, x), torch.float32)
    if kind in ("low-rank", "diagonal", "spherical"):
        result = ellipsoids.distances(x, norm="l1")
        require_right(result, exact(ellipsoids, x, "l1"), torch.float32)


@pytest.mark.parametrize("kind", SHAPES)
@settings(deadline=None, max_examples=20, derandomize=True)
@given(near=st.floats(-250, 250), apart=st.floats(-250, 250), scale=st.floats(-250, 250))
def test_float64_far_beyond_the_root_of_its_range(kind, near, apart, scale):
    g = torch.Generator().manual_seed(0)
    draw = {"generator": g, "dtype": torch.float64}
    means, steps = 10**apart * torch.randn(3, 4, **draw), 10**near * torch.randn(2, 4, **draw)
    spreads = 10**scale * (0.5 + torch.rand(3, 4, **draw))
    x = torch.cat([steps, means[:1] + steps, means[1:]])
    ellipsoids = build(kind, means, spreads)
    require_right(ellipsoids.distances(x), exact(ellipsoids, x), torch.float64)


@pytest.mark.parametrize("kind", SHAPES)
def test_up_to_the_last_number(kind, dtype):
    """Means and points at the two ends of the range, whose difference overflows."""
    largest = torch.finfo(dtype).max
    means = torch.tensor([[largest, largest], [-largest, 0.0]], dtype=dtype)
    ellipsoids = build(kind, means, torch.full((2, 2), largest / 8, dtype=dtype))
    x = -means
    require_right(ellipsoids.distances(x), exact(ellipsoids, x), dtype)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e25])
@pytest.mark.parametrize("kind", SHAPES)
class TestUnits:
    """Everything in other units: distances, neighbours, slopes and shares stay the same."""

    def pair(self, kind, scale):
        g = torch.Generator().manual_seed(0)
        means = torch.randn(4, 6, generator=g)
        spreads = 0.5 + torch.rand(4, 6, generator=g)
        x = torch.randn(9, 6, generator=g)
        plain = build(kind, means, spreads)
        return plain, build(kind, means * scale, spreads * scale), x

    def test_of_distances_and_neighbours(self, kind, scale):
        plain, scaled, x = self.pair(kind, scale)
        torch.testing.assert_close(scaled.distances(x * scale), plain.distances(x))
        nearest, wanted = scaled.nearest(x * scale), plain.nearest(x)
        assert torch.equal(nearest.indices, wanted.indices)
        torch.testing.assert_close(nearest.distances, wanted.distances)

    def test_of_gradients(self, kind, scale):
        plain, scaled, x = self.pair(kind, scale)
        one, other = x.clone().requires_grad_(), (x * scale).requires_grad_()
        plain.distances(one).sum().backward()
        scaled.distances(other).sum().backward()
        actual = other.grad.double() * scale
        torch.testing.assert_close(actual, one.grad.double(), rtol=1e-4, atol=0)

    def test_of_slopes_is_asked_for_in_float64(self, kind, scale):
        _, scaled, x = self.pair(kind, scale)
        refused(lambda: scaled.tangent(x * scale), "in which slopes .* convert both to float64")
        wide = scaled.to(torch.float64)
        assert bool(wide.tangent(x.double() * scale).jacobian().isfinite().all())

    def test_of_points_from_distances(self, kind, scale):
        plain, _, x = self.pair(kind, scale)
        more = torch.cat([plain.means, -plain.means])
        tensors = {
            name: torch.cat([t, t]) if name not in plain.shared else t
            for name, t in plain.tensors().items()
        }
        many = type(plain).from_tensors({**tensors, "means": more})
        powers = {"means": scale, "spreads": scale, "remainder": scale, "whitening": 1 / scale}
        wide = type(plain).from_tensors(
            {name: t * powers.get(name, 1.0) for name, t in many.tensors().items()}
        )
        targets = many.distances(x[:2])
        result = reconstruct(wide, targets)
        assert result.x.dtype == torch.float32
        assert float(result.residual.max()) < 1e-3 * float(targets.mean())


def test_a_square_too_large_is_infinite_and_the_distance_is_not():
    sphere = SphericalEllipsoids(torch.zeros(1, 2), torch.ones(1))
    x = torch.tensor([[3e25, 4e25]])
    torch.testing.assert_close(sphere.distances(x), torch.tensor([[5e25]]))
    assert sphere.distances(x, squared=True).tolist() == [[math.inf]]
    assert sphere.log_density(x).tolist() == [[-math.inf]]


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e20, 1e200])
@pytest.mark.parametrize("kind", ["full", "low-rank+remainder", "diagonal", "spherical"])
def test_fits_to_data_of_any_size(kind, scale):
    dtype = torch.float64 if scale in (1e-200, 1e200) else torch.float32
    x = normal(40, 3, dtype=dtype)
    x[20:] += 8
    options = {"kind": kind, **({"rank": 1} if "rank" in kind else {})}
    labels = torch.arange(40) // 20
    wanted = from_data(x, labels, **options).distances(x)
    result = from_data(x * scale, labels, **options).distances(x * scale)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-6)
    clustered, places = from_clusters(x * scale, 2, **options)
    assert len(set(places[:20].tolist())) == len(set(places[20:].tolist())) == 1
    assert bool(clustered.distances(x * scale).isfinite().all())
