"""Distances over the whole range of the dtype: numbers whose squares it cannot hold."""

import math

import numpy as np
import pytest
import torch
from ellipsoid_kinds import WITH_L1, make, points
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from mahalens.errors import InputError
from mahalens.geometry import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
    reconstruct,
)
from mahalens.geometry.ellipsoids import from_clusters, from_data

KINDS = ["full", "low-rank", "remainder", "diagonal", "spherical", "shared-basis"]
PROMISED = {torch.float32: 1e-5, torch.float64: 1e-11}


def build(kind, means, spreads, remainder, seed=0):
    """Ellipsoids with these spreads [K, D]: turned, where the kind has axes."""
    g = torch.Generator().manual_seed(seed)
    count, dim = means.shape
    rank = max(1, dim // 2)
    axes = torch.linalg.qr(torch.randn(count, dim, dim, generator=g, dtype=torch.float64))[0]
    axes = axes[:, :rank].to(means)
    spreads = spreads.sort(dim=1, descending=True).values
    if kind == "full":
        return FullEllipsoids(means, torch.diag_embed(1 / spreads))
    if kind == "low-rank":
        return LowRankEllipsoids(means, axes, spreads[:, :rank])
    if kind == "remainder":
        return LowRankEllipsoids(means, axes, spreads[:, :rank], spreads[:, rank - 1] * remainder)
    if kind == "diagonal":
        return DiagonalEllipsoids(means, spreads)
    if kind == "spherical":
        return SphericalEllipsoids(means, spreads[:, 0])
    whitening = torch.diag_embed(1 / spreads[:, :rank])
    return SharedBasisEllipsoids(means, axes[0], whitening, spreads[:, -1])


def exact(ellipsoids, x, norm="l2"):
    """All distances with 60 digits and without a limit to their size."""
    with mp.workdps(60):
        return [[_exact(ellipsoids, row, k, norm) for k in range(len(ellipsoids))] for row in x]


def _exact(ellipsoids, x, k, norm):
    def numbers(tensor):
        return [mpf(value) for value in tensor.double().tolist()]

    def dot(a, b):
        return sum((p * q for p, q in zip(a, b, strict=True)), mpf(0))

    delta = [a - b for a, b in zip(numbers(x), numbers(ellipsoids.means[k]), strict=True)]
    kind = ellipsoids.kind
    if kind == "full":
        z = [dot(numbers(row), delta) for row in ellipsoids.whitening[k]]
    elif kind in ("diagonal", "spherical"):
        spreads = numbers(ellipsoids._along_inputs()[k])
        z = [a / b for a, b in zip(delta, spreads, strict=True)]
    else:
        shared = kind == "shared-basis"
        axes = [numbers(row) for row in (ellipsoids.basis if shared else ellipsoids.axes[k])]
        along = [dot(row, delta) for row in axes]
        if shared:
            z = [dot(numbers(row), along) for row in ellipsoids.whitening[k]]
        else:
            z = [a / b for a, b in zip(along, numbers(ellipsoids.spreads[k]), strict=True)]
        if ellipsoids.remainder is not None:
            rest = delta
            for _ in range(3):
                parts = [dot(row, rest) for row in axes]
                rest = [
                    value - sum(p * row[i] for p, row in zip(parts, axes, strict=True))
                    for i, value in enumerate(rest)
                ]
            z = [*z, *(value / mpf(float(ellipsoids.remainder[k])) for value in rest)]
    return sum(map(abs, z)) if norm == "l1" else mp.sqrt(dot(z, z))


def require_right(found, wanted, dtype):
    """Equal, relative; infinite above the largest number, near 0 below the smallest."""
    info = torch.finfo(dtype)
    assert not bool(found.isnan().any())
    flat = [value for row in wanted for value in row]
    for value, true in zip(found.flatten().tolist(), flat, strict=True):
        if true > info.max:
            assert value == math.inf
        elif true < info.tiny / info.eps:
            assert value <= 2 * info.tiny / info.eps
        elif true > mpf(info.max) * (1 - 2 * PROMISED[dtype]):
            assert value > info.max / 2
        else:
            assert abs(value / true - 1) < PROMISED[dtype], (value, true)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=60, derandomize=True)
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
    ellipsoids = build(kind, means.float(), spreads.float(), 0.5, seed)
    require_right(ellipsoids.distances(x), exact(ellipsoids, x), torch.float32)
    if kind in ("low-rank", "diagonal", "spherical"):
        found = ellipsoids.distances(x, norm="l1")
        require_right(found, exact(ellipsoids, x, "l1"), torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40, derandomize=True)
@given(near=st.floats(-250, 250), apart=st.floats(-250, 250), scale=st.floats(-250, 250))
def test_float64_far_beyond_the_root_of_its_range(kind, near, apart, scale):
    g = torch.Generator().manual_seed(0)
    draw = {"generator": g, "dtype": torch.float64}
    means, steps = 10**apart * torch.randn(3, 4, **draw), 10**near * torch.randn(2, 4, **draw)
    spreads = 10**scale * (0.5 + torch.rand(3, 4, **draw))
    x = torch.cat([steps, means[:1] + steps, means[1:]])
    ellipsoids = build(kind, means, spreads, 0.5)
    require_right(ellipsoids.distances(x), exact(ellipsoids, x), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_up_to_the_last_number(kind, dtype):
    """Means and points at the two ends of the range, whose difference overflows."""
    largest = torch.finfo(dtype).max
    means = torch.tensor([[largest, largest], [-largest, 0.0]], dtype=dtype)
    ellipsoids = build(kind, means, torch.full((2, 2), largest / 8, dtype=dtype), 0.5)
    x = -means
    require_right(ellipsoids.distances(x), exact(ellipsoids, x), dtype)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("kind", KINDS)
class TestUnits:
    """Everything in other units: distances, neighbours, slopes and shares stay the same."""

    def pair(self, kind, scale):
        g = torch.Generator().manual_seed(0)
        means = torch.randn(4, 6, generator=g)
        spreads = 0.5 + torch.rand(4, 6, generator=g)
        x = torch.randn(9, 6, generator=g)
        plain = build(kind, means, spreads, 0.5)
        return plain, build(kind, means * scale, spreads * scale, 0.5), x

    def test_of_distances_and_neighbours(self, kind, scale):
        plain, scaled, x = self.pair(kind, scale)
        torch.testing.assert_close(scaled.distances(x * scale), plain.distances(x))
        assert torch.equal(scaled.nearest(x * scale).indices, plain.nearest(x).indices)

    def test_of_gradients(self, kind, scale):
        plain, scaled, x = self.pair(kind, scale)
        one, other = x.clone().requires_grad_(), (x * scale).requires_grad_()
        plain.distances(one).sum().backward()
        scaled.distances(other).sum().backward()
        actual = other.grad.double() * scale
        torch.testing.assert_close(actual, one.grad.double(), rtol=1e-4, atol=0)

    def test_of_slopes_is_asked_for_in_float64(self, kind, scale):
        _, scaled, x = self.pair(kind, scale)
        with pytest.raises(InputError, match=r"in which slopes .* convert both to float64"):
            scaled.tangent(x * scale)
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
        found = reconstruct(wide, targets)
        assert found.x.dtype == torch.float32
        assert float(found.residual.max()) < 1e-3 * float(targets.mean())


def test_nearest_is_the_nearest_at_any_size():
    """Once NaN for all, and so the first class."""
    for scale in (1e-25, 1e-20, 1.0, 1e20, 1e25):
        means = scale * torch.tensor([[5.0, 5.0], [1.0, 1.0]])
        for ellipsoids in (
            SphericalEllipsoids(means, torch.full((2,), scale)),
            DiagonalEllipsoids(means, torch.full((2, 2), scale)),
            LowRankEllipsoids(means, torch.eye(2).repeat(2, 1, 1), torch.full((2, 2), scale)),
        ):
            found = ellipsoids.nearest(scale * torch.ones(1, 2) * 1.5)
            assert found.indices.tolist() == [[1]]
            torch.testing.assert_close(found.distances, torch.tensor([[0.5**0.5]]))


def test_a_square_too_large_is_infinite_and_the_distance_is_not():
    one = SphericalEllipsoids(torch.zeros(1, 2), torch.ones(1))
    x = torch.tensor([[3e25, 4e25]])
    torch.testing.assert_close(one.distances(x), torch.tensor([[5e25]]))
    assert one.distances(x, squared=True).tolist() == [[math.inf]]
    assert one.log_density(x).tolist() == [[-math.inf]]


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e20, 1e200])
@pytest.mark.parametrize("kind", ["full", "low-rank+remainder", "diagonal", "spherical"])
def test_fits_to_data_of_any_size(kind, scale):
    dtype = torch.float64 if scale in (1e-200, 1e200) else torch.float32
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=g, dtype=dtype)
    x[20:] += 8
    options = {"kind": kind, **({"rank": 1} if "rank" in kind else {})}
    labels = torch.arange(40) // 20
    wanted = from_data(x, labels, **options).distances(x)
    found = from_data(x * scale, labels, **options).distances(x * scale)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    clustered, places = from_clusters(x * scale, 2, **options)
    assert len(set(places[:20].tolist())) == len(set(places[20:].tolist())) == 1
    assert bool(clustered.distances(x * scale).isfinite().all())


@pytest.mark.parametrize("name", WITH_L1)
def test_arrays_are_taken_as_tensors_are(name):
    ellipsoids = make(name, dtype=torch.float32)
    x = points(ellipsoids)
    for array in (x.numpy(), x.numpy().astype(np.float64), x.numpy()[::-1][::-1]):
        assert torch.equal(ellipsoids.distances(array), ellipsoids.distances(x))
        assert torch.equal(ellipsoids.nearest(array).indices, ellipsoids.nearest(x).indices)
    whole = np.arange(10).reshape(2, 5)
    assert ellipsoids.distances(whole).shape == (2, 7)
    for bad, message in [
        (np.full((2, 5), 1e300), "too large for float32"),
        (np.full((2, 5), np.nan), "NaN or infinite"),
        (np.zeros((2, 5), dtype=complex), "array of complex128"),
        (np.zeros((2, 5), dtype=object), "array of object"),
        (np.zeros((2, 5), dtype="M8[s]"), "array of datetime64"),
        (np.zeros((2, 5), dtype=bool), "array of bool"),
        (np.zeros((2, 4)), r"wanted \[N, 5\]"),
        ([[0.0] * 5], "x is a list"),
    ]:
        with pytest.raises(InputError, match=message):
            ellipsoids.distances(bad)


def test_arrays_make_ellipsoids():
    x = np.random.default_rng(0).normal(size=(30, 3))
    labels = np.arange(30, dtype=np.uint8) % 2
    made = from_data(x, labels)
    wanted = from_data(torch.from_numpy(x), torch.from_numpy(labels))
    assert torch.equal(made.whitening, wanted.whitening)
    assert len(from_clusters(x.astype(np.float32), 2)[0]) == 2
    with pytest.raises(InputError, match=r"labels have 9223372036854775809, wanted numbers below"):
        from_data(x, labels.astype(np.uint64) + 2**63)
