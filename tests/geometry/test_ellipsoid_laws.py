"""Distances to ellipsoids are what the formula says, however they are cut, joined or kept."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from ellipsoid_kinds import (
    BOTH,
    DTYPES,
    NAMES,
    OPTIONS,
    REMAINDERS,
    WITH_DENSITY,
    close,
    make,
    points,
    relative,
    slow_distances,
)

from mahalens.errors import InputError
from mahalens.geometry import Gaussian
from mahalens.geometry.ellipsoids import (
    FullEllipsoids,
    LowRankEllipsoids,
    SphericalEllipsoids,
    concatenate,
    files,
    products,
)

SIZES = [(1, 1, 1), (1, 4, 3), (9, 1, 5), (8, 6, 1), (5, 3, 40)]
POINTS = torch.tensor([[5.0, 7.0], [-2.0, 3.0], [0.5, 0.25]])


def accuracy(dtype):
    return 1e-5 if dtype == torch.float32 else 1e-11


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Every border between blocks is met by a handful of points and rows."""
    monkeypatch.setattr(products, "POINTS", 4)
    monkeypatch.setattr(products, "ROWS", 5)
    monkeypatch.setattr(products, "STRIPES", 3)
    monkeypatch.setattr(products, "SMALLEST_STRIPE", 1)
    monkeypatch.setattr(products, "SMALL_MATRIX", 6)


def test_every_kind_is_tested():
    assert {make(name).kind for name in NAMES} == set(files.KINDS)
    assert {options["kind"] for options in OPTIONS.values()} == set(files.KINDS)
    for name in ("low-rank-ragged", "remainder-ragged"):
        assert len(set(make(name).ranks.tolist())) > 2


class TestDistances:
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_are_those_of_the_formula(self, name, norm, dtype):
        ellipsoids = make(name, dtype=dtype)
        x = points(ellipsoids)
        wanted = slow_distances(ellipsoids, x, norm)
        actual = ellipsoids.distances(x, norm=norm)
        assert (actual.dtype, actual.shape) == (dtype, (9, 7))
        assert relative(actual, wanted) < accuracy(dtype)
        squared = ellipsoids.distances(x, norm=norm, squared=True)
        assert relative(squared, wanted.square()) < 2 * accuracy(dtype)

    @pytest.mark.parametrize("name", WITH_DENSITY)
    def test_are_those_of_the_covariance(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        actual = ellipsoids.distances(x)
        for k, covariance in enumerate(ellipsoids.covariances):
            inverse = torch.linalg.inv(covariance)
            for n, row in enumerate(x):
                delta = row - ellipsoids.means[k]
                close(actual[n, k], (delta @ inverse @ delta).sqrt())
            gaussian = Gaussian.from_covariance(ellipsoids.means[k], covariance)
            close(actual[:, k], gaussian.mahalanobis(x))

    def test_of_low_rank_are_those_of_the_pseudo_inverse(self):
        for name in ("low-rank", "low-rank-ragged"):
            ellipsoids = make(name)
            x = points(ellipsoids)
            inverse = torch.linalg.pinv(ellipsoids.covariances, rtol=1e-10)
            delta = x[:, None] - ellipsoids.means
            wanted = torch.einsum("nki,kij,nkj->nk", delta, inverse, delta).sqrt()
            close(ellipsoids.distances(x), wanted)

    @pytest.mark.parametrize(("count", "n", "dim"), SIZES)
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_of_any_size(self, name, norm, count, n, dim, dtype):
        ellipsoids = make(name, count, dim, dtype)
        x = points(ellipsoids, n)
        actual = ellipsoids.distances(x, norm=norm)
        off = relative(actual, slow_distances(ellipsoids, x, norm))
        assert off < accuracy(dtype) * (5 if (name, norm, dim) == ("full", "l1", 40) else 1)

    @pytest.mark.usefixtures("tiny_blocks")
    @pytest.mark.parametrize("n", [1, 4, 5, 9])
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_do_not_depend_on_blocks(self, name, norm, n):
        ellipsoids = make(name)
        x = points(ellipsoids, n).requires_grad_()
        wanted = slow_distances(ellipsoids, x, norm)
        tracked = ellipsoids.distances(x, norm=norm)
        close(tracked, wanted)
        close(ellipsoids.distances(x.detach(), norm=norm), wanted)
        tangent = ellipsoids.tangent(x.detach(), norm=norm)
        close(tangent.distances, wanted)
        for k in range(len(ellipsoids)):
            (slope,) = torch.autograd.grad(tracked[:, k].sum(), x, retain_graph=True)
            close(tangent.jacobian()[:, k], slope)

    @pytest.mark.parametrize("dim", [1, 2, 5, 17, 33])
    @pytest.mark.parametrize("stripes", [1, 2, 3, 4, 5])
    def test_of_triangles_do_not_depend_on_stripes(self, monkeypatch, dim, stripes):
        ellipsoids = make("full", 3, dim)
        x = points(ellipsoids, 4)
        monkeypatch.setattr(products, "STRIPES", stripes)
        monkeypatch.setattr(products, "SMALLEST_STRIPE", 1)
        edges = products._stripes(dim)
        assert edges[0][0] == 0
        assert edges[-1][1] == dim
        assert all(above[1] == below[0] for above, below in itertools.pairwise(edges))
        close(ellipsoids.distances(x), slow_distances(ellipsoids, x))

    def test_of_large_triangles_leave_out_what_is_zero(self):
        ellipsoids = make("full", 3, 64)
        arranged = ellipsoids._panels()
        assert len(arranged) == 4
        dense = len(ellipsoids) * 64 * 64
        assert sum(panel.rows[:, 1:].numel() for panel in arranged) < 0.65 * dense
        x = points(ellipsoids, 3)
        close(ellipsoids.distances(x), slow_distances(ellipsoids, x))

    def test_of_ragged_ranks_multiply_few_zeros(self, monkeypatch):
        monkeypatch.setattr(products, "ROWS", 4)
        ellipsoids = make("low-rank-ragged")
        rows = sum(len(panel.rows) for panel in ellipsoids._panels())
        assert rows < ellipsoids.axes.shape[0] * ellipsoids.axes.shape[1]
        assert sorted(torch.cat([p.columns for p in ellipsoids._panels()]).tolist()) == [*range(7)]

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_refuse_nan_and_infinity(self, name, dtype, bad):
        ellipsoids = make(name, dtype=dtype)
        x = points(ellipsoids)
        x[3, 1] = bad
        for ask in (ellipsoids.distances, ellipsoids.nearest, ellipsoids.tangent):
            with pytest.raises(InputError, match=r"x has 1 value\(s\) .* first at \[3, 1\]"):
                ask(x)

    def test_do_not_depend_on_memory_layout(self, name, dtype):
        ellipsoids = make(name, dtype=dtype)
        x = points(ellipsoids)
        wanted = ellipsoids.distances(x)
        by_columns = x.T.contiguous().T
        every_other = torch.stack([x, x], dim=1)[:, 0]
        assert not by_columns.is_contiguous()
        close(ellipsoids.distances(by_columns), wanted)
        close(ellipsoids.distances(every_other), wanted)
        close(ellipsoids.distances(x[:1].expand(4, -1)), wanted[:1].expand(4, -1))
        turned = ellipsoids.map(lambda t: t.mT.contiguous().mT if t.ndim > 1 else t)
        close(turned.distances(x), wanted)

    def test_of_expanded_tensors(self):
        means = torch.zeros(1, 3).expand(4, 3)
        x = POINTS.new_tensor([[1.0, 2.0, 2.0]])
        eye = torch.eye(3)
        close(FullEllipsoids(means, eye.expand(4, 3, 3)).distances(x), torch.full((1, 4), 3.0))
        spheres = SphericalEllipsoids(means, torch.ones(1).expand(4))
        close(spheres.distances(x), torch.full((1, 4), 3.0))
        axes, spreads = eye[:2].expand(4, 2, 3), torch.ones(1, 1).expand(4, 2)
        close(LowRankEllipsoids(means, axes, spreads).distances(x), torch.full((1, 4), 5**0.5))

    def test_leave_what_they_are_given_as_it_was(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        before = {n: t.clone() for n, t in ellipsoids.tensors().items()}
        ellipsoids.distances(x)
        ellipsoids.tangent(x)
        assert all(torch.equal(before[n], t) for n, t in ellipsoids.tensors().items())
        assert torch.equal(x, points(ellipsoids))

    def test_axes_of_zeros_come_last(self):
        axes = torch.zeros(1, 3, 3)
        axes[0, 1, 0] = axes[0, 2, 1] = 1
        with pytest.raises(InputError, match="axes of zeros come before others; put them last"):
            LowRankEllipsoids(torch.zeros(1, 3), axes, torch.ones(1, 3))

    def test_of_an_ellipsoid_without_any_axis(self):
        axes = torch.zeros(2, 1, 3)
        axes[0, 0, 0] = 1
        x = torch.tensor([[3.0, 4.0, 0.0]])
        bare = LowRankEllipsoids(torch.zeros(2, 3), axes, torch.ones(2, 1))
        close(bare.distances(x), torch.tensor([[3.0, 0.0]]))
        spheres = LowRankEllipsoids(
            torch.zeros(2, 3), axes, torch.ones(2, 1), torch.tensor([1, 0.5])
        )
        close(spheres.distances(x), torch.tensor([[5.0, 10.0]]))
        assert spheres.ranks.tolist() == [1, 0]


class TestCollection:
    @pytest.mark.parametrize(
        "index",
        [
            0,
            6,
            -1,
            -7,
            slice(2, 5),
            slice(None, None, 3),
            slice(-2, None),
            [4, 0, 4],
            [-1, 2],
            (3, 1),
            np.array([5, 2]),
            torch.tensor([1, 1, 3]),
            torch.arange(7) % 2 == 0,
            [True, False, False, True, False, False, False],
        ],
        ids=lambda index: repr(index).replace("\n", ""),
    )
    def test_a_part_has_the_distances_of_the_part(self, name, index):
        ellipsoids = make(name)
        x = points(ellipsoids)
        part = ellipsoids[index]
        assert (type(part), part.kind) == (type(ellipsoids), ellipsoids.kind)
        places = torch.arange(7)[torch.as_tensor(index) if not isinstance(index, slice) else index]
        close(part.distances(x), ellipsoids.distances(x)[:, places.reshape(-1)])
        assert torch.equal(part.ranks, ellipsoids.ranks[places.reshape(-1)])

    def test_nothing_is_no_collection(self, name):
        ellipsoids = make(name)
        for index in (7, -8):
            with pytest.raises(IndexError, match=f"ellipsoid {index} of 7"):
                ellipsoids[index]
        with pytest.raises(ValueError, match=r"shape \[0, 5\]"):
            ellipsoids[7:]
        with pytest.raises(IndexError):
            ellipsoids[[True, False]]

    @pytest.mark.parametrize("index", [np.int64(1), torch.tensor(1)], ids=["numpy", "torch"])
    def test_a_number_of_another_library_is_a_number(self, index):
        assert len(make("full")[index]) == 1

    def test_iterates_and_concatenates_back(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        parts = list(ellipsoids)
        assert len(parts) == len(ellipsoids) == 7
        again = concatenate(parts)
        assert again.kind == ellipsoids.kind
        for field, tensor in again.tensors().items():
            assert torch.equal(tensor, getattr(ellipsoids, field))
        uneven = concatenate([ellipsoids[:3], ellipsoids[3], ellipsoids[[6, 5]]])
        close(uneven.distances(x), ellipsoids.distances(x)[:, [0, 1, 2, 3, 6, 5]])

    @pytest.mark.parametrize("remainder", ["variance", None])
    def test_different_ranks_concatenate(self, remainder):
        full = make("full")
        parts = [full.truncate(rank, remainder=remainder) for rank in (2, 5, 1)]
        joined = concatenate(parts)
        x = points(full)
        close(joined.distances(x), torch.cat([part.distances(x) for part in parts], dim=1))
        assert joined.ranks.tolist() == [2] * 7 + [5] * 7 + [1] * 7
        close(joined.covariances, torch.cat([part.covariances for part in parts]))
        if remainder:
            close(joined.log_determinants, torch.cat([part.log_determinants for part in parts]))

    def test_changes_dtype(self, name):
        ellipsoids = make(name)
        single = ellipsoids.to(torch.float32)
        assert {t.dtype for t in single.tensors().values()} == {torch.float32}
        assert ellipsoids.dtype == torch.float64
        x = points(single)
        assert relative(single.distances(x), slow_distances(single, x)) < 1e-5
        assert single.to(torch.float64).means.equal(ellipsoids.means.float().double())
        assert ellipsoids.to(device="cpu").dtype == torch.float64

    def test_says_what_it_is(self, name, dtype):
        text = repr(make(name, dtype=dtype))
        assert text.startswith(f"{type(make(name)).__name__}(count=7, dim=5")
        assert text.endswith(f"dtype={str(dtype)[6:]}, device=cpu)")
        assert ("remainder=True" in text) == (name in REMAINDERS)

    def test_can_be_copied_and_pickled(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        wanted = ellipsoids.distances(x)
        for twin in (copy.deepcopy(ellipsoids), pickle.loads(pickle.dumps(ellipsoids))):
            close(twin.distances(x), wanted)
            twin.means[0] += 1
            close(twin.distances(x), slow_distances(twin, x))
        close(ellipsoids.distances(x), wanted)
