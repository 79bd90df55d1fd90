"""Digits that distances keep: near a mean, far from the origin, for flat ellipsoids."""

import pytest
import torch
from ellipsoid_kinds import (
    BOTH,
    DTYPES,
    NAMES,
    make,
    points,
    relative,
    slow_distances,
    some_covariances,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.geometry.ellipsoids import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
    from_covariance,
)

PROMISED = {torch.float32: 1e-5, torch.float64: 1e-11}
SHAPES = ["full", "low-rank", "remainder", "diagonal", "spherical", "shared-basis"]


def build(shape, means, *, condition=1.0, scale=1.0, seed=0):
    """Ellipsoids in the dtype of the means; their parameters are exact in it by definition."""
    g = torch.Generator().manual_seed(seed)
    count, dim = means.shape
    rank = max(1, dim // 2)
    axes = torch.linalg.qr(torch.randn(count, dim, dim, generator=g, dtype=torch.float64))[0].mT
    spreads = scale * torch.logspace(0, -float(torch.tensor(condition).log10()) / 2, dim).double()
    every = spreads.expand(count, dim)
    rest = every[:, rank - 1] / 2

    def ready(*tensors):
        return (t.to(means.dtype).contiguous() for t in tensors)

    if shape == "full":
        # L^-1 from the QR decomposition of the axes over their spreads: no covariance is formed
        upper = torch.linalg.qr((axes / every[..., None]).flip(-1)).R
        whitening = upper.flip(-1, -2)
        whitening = whitening * whitening.diagonal(dim1=-2, dim2=-1).sign()[..., None]
        return FullEllipsoids(means, *ready(whitening.tril()))
    if shape == "low-rank":
        return LowRankEllipsoids(means, *ready(axes[:, :rank], every[:, :rank]))
    if shape == "remainder":
        return LowRankEllipsoids(means, *ready(axes[:, :rank], every[:, :rank], rest))
    if shape == "diagonal":
        return DiagonalEllipsoids(means, *ready(every))
    if shape == "spherical":
        return SphericalEllipsoids(means, *ready(every[:, 0]))
    whitening = torch.diag_embed(1 / every[:, :rank])
    return SharedBasisEllipsoids(means, *ready(axes[0, :rank], whitening, rest))


def scattered(count, dim, dtype, seed, apart=1.0, offset=0.0):
    g = torch.Generator().manual_seed(seed)
    means = apart * torch.randn(count, dim, generator=g, dtype=torch.float64) + offset
    return means.to(dtype)


def around(ellipsoids, near, count=4, seed=3):
    """Points at ``near`` from every mean, and from the centre of all."""
    g = torch.Generator().manual_seed(seed)
    means = torch.cat([ellipsoids.means, ellipsoids.means.mean(dim=0, keepdim=True)])
    steps = torch.randn(count, *means.shape, generator=g, dtype=torch.float64)
    return (means.double() + near * steps).to(ellipsoids.dtype).reshape(-1, ellipsoids.dim)


def off(ellipsoids, x, norm="l2"):
    return relative(ellipsoids.distances(x, norm=norm), slow_distances(ellipsoids, x, norm))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestPromise:
    @pytest.mark.parametrize("near", [1e-6, 1e-4, 1e-2, 1.0])
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
            found = ellipsoids.distances(x, norm=norm).detach()
            assert found.diagonal().tolist() == [0.0] * 4
            assert found.count_nonzero() == 12

    @pytest.mark.parametrize(("apart", "offset"), [(1.0, 1e4), (1e4, 0.0), (1e4, 1e4)])
    @pytest.mark.parametrize("near", [1e-3, 1.0])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_far_from_the_origin(self, shape, apart, offset, near, dtype):
        ellipsoids = build(shape, scattered(5, 6, dtype, 0, apart, offset), condition=30.0)
        assert off(ellipsoids, around(ellipsoids, near)) < PROMISED[dtype]

    @pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e8])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_of_flat_ellipsoids(self, shape, condition, dtype):
        ellipsoids = build(shape, scattered(5, 6, dtype, 0), condition=condition)
        for near in (1e-4, 1e-2, 1.0):
            assert off(ellipsoids, around(ellipsoids, near)) < PROMISED[dtype]

    @pytest.mark.parametrize("condition", [1e2, 1e5, 1e8])
    @pytest.mark.parametrize("shape", ["remainder", "shared-basis"])
    def test_within_the_axes_where_the_remainder_is_tiny(self, shape, condition, dtype):
        means = scattered(1, 6, dtype, 0).expand(3, 6).contiguous()
        ellipsoids = build(shape, means, condition=condition)
        ellipsoids.remainder[:] = torch.tensor([condition**-0.25, 1e-4, 1e-6])
        g = torch.Generator().manual_seed(0)
        coordinates = torch.randn(8, 3, generator=g, dtype=torch.float64)
        every = ellipsoids.axes if shape == "remainder" else ellipsoids.basis[None]
        parts = [means[0].double() + coordinates @ axes.double() for axes in every]
        inside = torch.cat(parts).to(dtype)
        assert off(ellipsoids, inside) < PROMISED[dtype]

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_of_any_unit(self, shape, scale, dtype):
        ellipsoids = build(shape, scattered(4, 5, dtype, 0, scale), condition=100.0, scale=scale)
        for near in (1e-4 * scale, scale):
            assert off(ellipsoids, around(ellipsoids, near)) < PROMISED[dtype]

    @pytest.mark.parametrize("shape", SHAPES)
    def test_of_tiny_ellipsoids_far_apart(self, shape, dtype):
        ellipsoids = build(shape, scattered(4, 5, dtype, 0, 1e3), condition=10.0, scale=1e-6)
        assert off(ellipsoids, around(ellipsoids, 1e-4)) < PROMISED[dtype]


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
@settings(deadline=None, max_examples=25, derandomize=True)
@given(data=st.data())
def test_float32_keeps_five_digits(shape, data):
    exponent = st.floats(-6, 0)
    dim = data.draw(st.sampled_from([1, 2, 3, 8, 20]))
    condition = 10 ** data.draw(st.floats(0, 8))
    scale = 10 ** data.draw(st.floats(-4, 4))
    apart, offset = (scale * 10 ** data.draw(st.floats(-2, 4)) for _ in range(2))
    seed = data.draw(st.integers(0, 99))
    means = scattered(3, dim, torch.float32, seed, apart, offset)
    ellipsoids = build(shape, means, condition=condition, scale=scale, seed=seed)
    near = scale * 10 ** data.draw(exponent)
    x = around(ellipsoids, near, count=2, seed=seed).view(2, 4, dim)
    if shape in ("full", "low-rank", "shared-basis"):
        x = x[:, :3]  # without the centre of the means, for which see below
    assert off(ellipsoids, x.reshape(-1, dim)) < PROMISED[torch.float32]


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None, max_examples=15, derandomize=True)
@given(condition=st.floats(0, 6), near=st.floats(-6, 0), seed=st.integers(0, 99))
def test_float64_keeps_eleven_digits(shape, condition, near, seed):
    means = scattered(3, 4, torch.float64, seed)
    ellipsoids = build(shape, means, condition=10**condition, seed=seed)
    assert off(ellipsoids, around(ellipsoids, 10**near, count=2)) < PROMISED[torch.float64]


@pytest.mark.parametrize("name", NAMES)
def test_a_point_at_the_centre_of_far_means(name):
    # Long ellipsoids that reach from far means to the centre: W mean is a small difference.
    along = torch.tensor([0.6, 0.8], dtype=torch.float64)
    outer = torch.outer(along, along)
    covariance = 1e8 * outer + torch.eye(2, dtype=torch.float64) - outer
    means = torch.stack([1e4 * along, -1e4 * along]).float()
    kind = {
        "low-rank": {"kind": "low-rank", "rank": 2},
        "low-rank-ragged": {"kind": "low-rank", "rank": 2},
        "full": {"kind": "full"},
        "diagonal": {"kind": "diagonal"},
        "spherical": {"kind": "spherical"},
        "shared-basis": {"kind": "shared-basis", "rank": 1},
    }.get(name, {"kind": "low-rank+remainder", "rank": 1})
    ellipsoids = from_covariance(means, [covariance] * 2, **kind)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    assert off(ellipsoids, x) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_does_not_depend_on_who_else_is_there(name):
    """One mean far away moves the centre: all other pairs are then measured again."""
    ellipsoids = make(name, count=4, dtype=torch.float32)
    x = points(ellipsoids)
    ellipsoids.means[3] += 1e6
    assert off(ellipsoids, x) < 1e-5


def test_the_product_is_used_where_it_is_good_enough(monkeypatch):
    """Ordinary points are not measured one by one."""
    for name in NAMES:
        ellipsoids = make(name, dtype=torch.float32)
        asked = []
        monkeypatch.setattr(
            type(ellipsoids), "_exactly", lambda self, *a, asked=asked: asked.append(a)
        )
        ellipsoids.distances(points(ellipsoids))
        monkeypatch.undo()
        assert not asked, name


@pytest.mark.parametrize("dim", [64, 300])
def test_in_many_dimensions(dim):
    ellipsoids = from_covariance(
        torch.randn(2, dim, generator=torch.Generator().manual_seed(0)),
        list(some_covariances(2, dim, condition=1e4)),
    )
    for near in (1e-2, 1.0):
        assert off(ellipsoids, around(ellipsoids, near, count=2)) < 1e-5


def test_l1_in_many_dimensions():
    ellipsoids = make("full", 4, 80, torch.float32)
    assert off(ellipsoids, points(ellipsoids, 3), "l1") < 1e-5
