"""Distances to ellipsoids are those of the formula, whether cut, joined, cached or saved."""

import copy
import json
import os
import pickle
import re
import struct

import numpy as np
import pytest
import safetensors.torch
import torch
from geometry_cases import (
    BOTH,
    NAMES,
    NAN,
    OPTIONS,
    REMAINDERS,
    WITH_DENSITY,
    WITH_L1,
    case,
    close,
    make,
    norms_of,
    points,
    refused,
    relative,
    slow_distances,
)

from mahalens.errors import InputError
from mahalens.geometry import load_ellipsoids, reconstruct
from mahalens.geometry.ellipsoids import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
    concatenate,
    from_covariance,
)
from mahalens.geometry.ellipsoids.base import KIND_KEY
from mahalens.geometry.ellipsoids.kinds import KINDS

SIZES = [(1, 1, 1), (1, 4, 3), (9, 1, 5), (8, 6, 1), (5, 3, 40), (7, 9, 5)]
EYES, ZEROS = torch.eye(4).repeat(3, 1, 1), torch.zeros(3, 4)


def test_every_kind_is_tested():
    assert {make(name).kind for name in NAMES} == set(KINDS)
    assert {options["kind"] for options in OPTIONS.values()} == set(KINDS)
    for name in ("low-rank-ragged", "remainder-ragged"):
        assert len(set(make(name).ranks.tolist())) > 2


class TestDistances:
    @pytest.mark.parametrize(("count", "n", "dim"), SIZES)
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_are_those_of_the_formula(self, name, norm, count, n, dim, dtype):
        ellipsoids, x = case(name, count, dim, dtype, n=n)
        wanted = slow_distances(ellipsoids, x, norm)
        actual = ellipsoids.distances(x, norm=norm)
        assert (actual.dtype, actual.shape) == (dtype, (n, count))
        bound = {torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
        bound *= 5 if (name, norm, dim) == ("full", "l1", 40) else 1
        assert relative(actual, wanted) < bound
        squared = ellipsoids.distances(x, norm=norm, squared=True)
        assert relative(squared, wanted.square()) < 2 * bound

    @pytest.mark.parametrize("name", ["low-rank", "low-rank-ragged"])
    def test_of_low_rank_are_those_of_the_pseudo_inverse(self, name):
        ellipsoids, x = case(name)
        inverse = torch.linalg.pinv(ellipsoids.covariances, rtol=1e-10)
        delta = x[:, None] - ellipsoids.means
        wanted = torch.einsum("nki,kij,nkj->nk", delta, inverse, delta).sqrt()
        close(ellipsoids.distances(x), wanted)

    def test_do_not_depend_on_memory_layout_and_change_nothing(self, name, dtype):
        ellipsoids, x = case(name, dtype=dtype)
        before = {n: t.clone() for n, t in ellipsoids.tensors().items()}
        wanted = ellipsoids.distances(x)
        by_columns = x.T.contiguous().T
        assert not by_columns.is_contiguous()
        close(ellipsoids.distances(by_columns), wanted)
        close(ellipsoids.distances(torch.stack([x, x], dim=1)[:, 0]), wanted)
        close(ellipsoids.distances(x[:1].expand(4, -1)), wanted[:1].expand(4, -1))
        turned = ellipsoids.map(lambda t: t.mT.contiguous().mT if t.ndim > 1 else t)
        close(turned.distances(x), wanted)
        ellipsoids.tangent(x)
        assert all(torch.equal(before[n], t) for n, t in ellipsoids.tensors().items())
        assert torch.equal(x, points(ellipsoids))

    def test_of_an_ellipsoid_without_any_axis(self):
        axes = torch.zeros(2, 1, 3)
        axes[0, 0, 0] = 1
        parts = torch.zeros(2, 3), axes, torch.ones(2, 1)
        x = torch.tensor([[3.0, 4.0, 0.0]])
        close(LowRankEllipsoids(*parts).distances(x), torch.tensor([[3.0, 0.0]]))
        spheres = LowRankEllipsoids(*parts, torch.tensor([1, 0.5]))
        close(spheres.distances(x), torch.tensor([[5.0, 10.0]]))
        assert spheres.ranks.tolist() == [1, 0]

    def test_autocast_does_not_touch_them(self, name):
        ellipsoids, x = case(name, dtype=torch.float32)
        again, points = copy.deepcopy(ellipsoids), x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = from_covariance(ellipsoids.means, ellipsoids.covariances, **OPTIONS[name])
            assert all(tensor.dtype == torch.float32 for tensor in made.tensors().values())
            assert torch.equal(again.distances(x), ellipsoids.distances(x))
            measured = again.distances(points)
            found = reconstruct(again, measured, restarts=0)
        close(measured, ellipsoids.distances(x))
        close(found.x, reconstruct(ellipsoids, measured, restarts=0).x)
        if name in WITH_DENSITY:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                densities = again.log_density(x)
            close(densities, ellipsoids.log_density(x))

    @pytest.mark.parametrize("name", WITH_L1)
    def test_arrays_are_taken_as_tensors_are(self, name):
        ellipsoids, x = case(name, dtype=torch.float32)
        for array in (x.numpy(), x.numpy().astype(np.float64), x.numpy()[::-1][::-1]):
            assert torch.equal(ellipsoids.distances(array), ellipsoids.distances(x))
            assert torch.equal(ellipsoids.nearest(array).indices, ellipsoids.nearest(x).indices)
        assert ellipsoids.distances(np.arange(10).reshape(2, 5)).shape == (2, 7)

    def test_are_made_from_arrays(self, name):
        ellipsoids, x = case(name, dtype=torch.float32)
        arrays = {key: tensor.numpy() for key, tensor in ellipsoids.tensors().items()}
        made = type(ellipsoids).from_tensors(arrays)
        assert torch.equal(made.distances(x), ellipsoids.distances(x))
        if name in WITH_DENSITY:
            shares = made.responsibilities(x, WEIGHTS.numpy())
            assert torch.equal(shares, made.responsibilities(x, WEIGHTS.float()))


class TestRefusals:
    @pytest.mark.parametrize("ask", ["distances", "nearest", "tangent"])
    def test_of_points(self, name, ask):
        ellipsoids = make(name)
        for x, message in [
            (torch.zeros(2, 4).double(), r"x has shape \[2, 4\]; these ellipsoids have 5"),
            (torch.zeros(5).double(), "x has shape"),
            (torch.zeros(1, 2, 5).double(), r"wanted \[N, 5\]"),
            (torch.zeros(0, 5).double(), "at least 1"),
            (torch.zeros(2, 5), "x is float32 and these ellipsoids float64"),
            (torch.zeros(2, 5).half(), "x is float16"),
            (torch.zeros(2, 5).long(), "x is int64"),
            (torch.eye(5).double() / 0, r"x has 25 value\(s\) .* first at \[0, 0\]"),
            (torch.eye(5).double() * NAN, r"x has 25 value\(s\)"),
            (np.full((2, 5), np.nan), "NaN or infinite"),
            (np.zeros((2, 5), dtype=complex), "array of complex128"),
            (np.zeros((2, 5), dtype=object), "array of object"),
            (np.zeros((2, 5), dtype="M8[s]"), "array of datetime64"),
            (np.zeros((2, 5), dtype=bool), "array of bool"),
            ([[0.0] * 5], "x is a list"),
        ]:
            refused(lambda x=x: getattr(ellipsoids, ask)(x), message)
        large = np.full((2, 5), 1e300)
        refused(lambda: getattr(ellipsoids.to(torch.float32), ask)(large), "too large for float32")
        refused(lambda: ellipsoids.to(torch.float16), "float16")

    @pytest.mark.parametrize("ask", ["distances", "nearest", "tangent"])
    def test_of_norms(self, name, ask):
        ellipsoids = make(name)
        measure, x = getattr(ellipsoids, ask), points(ellipsoids)
        for norm in ("l3", "L2", None, 2):
            refused(lambda norm=norm: measure(x, norm=norm), f"norm is {norm!r}, wanted")
        if name not in WITH_L1:
            refused(lambda: measure(x, norm="l1"), "components are not known")
            huge = ellipsoids.map(lambda t: t * 1e-200 if t.ndim == 1 else t, shared=False)
            refused(lambda: huge.distances(x, norm="l1"), "components are not known")

    @pytest.mark.parametrize("k", [0, -1, 8, 2.0, True])
    def test_of_numbers_of_neighbours(self, k):
        refused(lambda: make("spherical").nearest(torch.zeros(1, 5).double(), k), f"k is {k}, want")

    @pytest.mark.parametrize(
        ("kind", "tensors", "message"),
        [
            (FullEllipsoids, (ZEROS, EYES[:2]), r"wanted \[3, 4, 4\]"),
            (FullEllipsoids, (ZEROS, EYES + 1), "above its diagonal"),
            (FullEllipsoids, (ZEROS, -EYES), "-1 on its diagonal"),
            (FullEllipsoids, (ZEROS, EYES.double()), "float64 and means float32"),
            (FullEllipsoids, (ZEROS, EYES * NAN), "NaN or infinite"),
            (SphericalEllipsoids, (torch.zeros(0, 4), torch.ones(0)), "at least 1"),
            (SphericalEllipsoids, (torch.zeros(4), torch.ones(4)), "means has shape"),
            (SphericalEllipsoids, (torch.zeros(1, 2, 3), torch.ones(1)), "means have shape"),
            (SphericalEllipsoids, (ZEROS, torch.zeros(3)), "as small as 0"),
            (SphericalEllipsoids, (ZEROS, torch.ones(3, 4)), r"wanted \[3\]"),
            (DiagonalEllipsoids, (ZEROS, torch.ones(3)), r"wanted \[3, 4\]"),
            (DiagonalEllipsoids, (ZEROS, torch.ones(3, 4).half()), "float16"),
            (LowRankEllipsoids, (ZEROS, EYES, torch.ones(3, 3)), r"\[3, 4\]"),
            (LowRankEllipsoids, (ZEROS, EYES[:2], torch.ones(2, 4)), "axes have shape"),
            (LowRankEllipsoids, (ZEROS, 2 * EYES, torch.ones(3, 4)), "axes are off by 3"),
            (LowRankEllipsoids, (ZEROS, EYES.flip(1).tril(), torch.ones(3, 4)), "put them last"),
            (
                LowRankEllipsoids,
                (torch.zeros(3, 2), torch.eye(2).repeat(3, 2, 1), torch.ones(3, 4)),
                "axes have rank 4, wanted at most D = 2",
            ),
            (
                LowRankEllipsoids,
                (ZEROS, EYES[:, :2], torch.ones(3, 2), 2 * torch.ones(3)),
                "remainder of ellipsoid 0 is 2, more than the spread 1",
            ),
            (SharedBasisEllipsoids, (ZEROS, EYES[0] * 2, EYES, torch.ones(3)), "basis is off by 3"),
            (SharedBasisEllipsoids, (ZEROS, EYES[0, :, :3], EYES, torch.ones(3)), r"\[Q, 4\]"),
            (SharedBasisEllipsoids, (ZEROS, EYES[0], -EYES, torch.ones(3)), "on its diagonal"),
            (SharedBasisEllipsoids, (ZEROS, EYES[0], EYES, torch.zeros(3)), "as small as 0"),
        ],
    )
    def test_of_tensors(self, kind, tensors, message):
        refused(lambda: kind(*tensors), message)


class TestCollection:
    @pytest.mark.parametrize(
        "index",
        [
            *(0, -7, np.int64(1), torch.tensor(1), slice(2, 5), slice(None, None, 3)),
            *([4, 0, 4], (3, -1), np.array([5, 2]), torch.tensor([1, 1, 3])),
            *(torch.arange(7) % 2 == 0, [True, False, False, True, False, False, False]),
        ],
        ids=lambda index: repr(index).replace("\n", ""),
    )
    def test_a_part_has_the_distances_of_the_part(self, name, index):
        ellipsoids, x = case(name)
        part = ellipsoids[index]
        assert (type(part), part.kind) == (type(ellipsoids), ellipsoids.kind)
        numbers = torch.arange(7)[torch.as_tensor(index) if not isinstance(index, slice) else index]
        close(part.distances(x), ellipsoids.distances(x)[:, numbers.reshape(-1)])
        assert torch.equal(part.ranks, ellipsoids.ranks[numbers.reshape(-1)])

    def test_nothing_is_no_collection(self, name):
        ellipsoids = make(name)
        for index in (7, -8):
            with pytest.raises(IndexError, match=f"ellipsoid {index} of 7"):
                ellipsoids[index]
        with pytest.raises(ValueError, match=r"shape \[0, 5\]"):
            ellipsoids[7:]
        with pytest.raises(IndexError):
            ellipsoids[[True, False]]

    def test_iterates_and_concatenates_back(self, name):
        ellipsoids, x = case(name)
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

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ([], "no ellipsoids"),
            ([make("full"), make("diagonal")], "unlike ellipsoids: FullEllipsoids"),
            ([make("full"), make("full", dim=4)], "dim=5.* and .*dim=4"),
            ([make("full"), make("full").to(torch.float32)], "float64.* and .*float32"),
            ([make("low-rank"), make("remainder")], "unlike"),
            ([make("shared-basis"), make("shared-basis", seed=5)], "whose basis differs"),
        ],
    )
    def test_refuses_to_concatenate(self, parts, message):
        refused(lambda: concatenate(parts), message)

    def test_changes_dtype_and_says_what_it_is(self, name):
        ellipsoids = make(name)
        single = ellipsoids.to(torch.float32)
        assert {t.dtype for t in single.tensors().values()} == {torch.float32}
        assert ellipsoids.to(device="cpu").dtype == torch.float64
        assert single.to(torch.float64).means.equal(ellipsoids.means.float().double())
        assert ("remainder=True" in repr(single)) == (name in REMAINDERS)


class TestCache:
    def test_a_change_in_place_is_noticed(self, name):
        for norm in norms_of(name):
            ellipsoids, x = case(name)
            ellipsoids.distances(x, norm=norm)
            ellipsoids.means[1] += 0.5
            close(ellipsoids.distances(x, norm=norm), slow_distances(ellipsoids, x, norm))
            for field in {"spreads", "whitening", "remainder"} & set(ellipsoids.tensors()):
                getattr(ellipsoids, field)[2] *= 0.9 if field == "remainder" else 1.5
                wanted = slow_distances(ellipsoids, x, norm)
                close(ellipsoids.distances(x, norm=norm), wanted)
                close(ellipsoids.tangent(x, norm).distances, wanted)

    def test_other_tensors_at_the_same_address_are_noticed(self):
        x = torch.tensor([[5.0, 7.0], [-2.0, 3.0], [0.5, 0.25]])
        new = torch.tensor([[0.0, 0.0], [1.0, 3.0], [4.0, 1.0]])
        for _ in range(50):
            ellipsoids = FullEllipsoids(torch.zeros(3, 2), torch.eye(2).repeat(3, 1, 1))
            ellipsoids.distances(x)
            before = id(ellipsoids.means)
            ellipsoids.means = None
            others = []
            while len(others) < 20 and id(ellipsoids.means) != before:
                ellipsoids.means = new.clone()
                others.append(ellipsoids.means)
            close(ellipsoids.distances(x), slow_distances(ellipsoids, x))

    @torch.inference_mode()
    def test_works_in_inference_mode(self):
        ellipsoids = FullEllipsoids(torch.zeros(1, 2), torch.eye(2)[None])
        close(ellipsoids.distances(torch.tensor([[3.0, 4.0]])), torch.tensor([[5.0]]))

    def test_copies_and_pickles_have_their_own(self, name):
        ellipsoids, x = case(name)
        wanted = ellipsoids.distances(x)
        for twin in (copy.deepcopy(ellipsoids), pickle.loads(pickle.dumps(ellipsoids))):
            close(twin.distances(x), wanted)
            twin.means[0] += 1
            close(twin.distances(x), slow_distances(twin, x))
        close(ellipsoids.distances(x), wanted)


WEIGHTS = torch.tensor([0.1, 0.3, 0.05, 0.2, 0.15, 0.1, 0.1], dtype=torch.float64)


class TestNearest:
    @pytest.mark.parametrize("k", [1, 3, 7])
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_are_the_first_after_sorting(self, name, norm, k):
        ellipsoids, x = case(name)
        values, order = ellipsoids.distances(x, norm=norm).sort(dim=1)
        nearest = ellipsoids.nearest(x, k, norm=norm)
        assert nearest.distances.shape == nearest.indices.shape == (9, k)
        close(nearest.distances, values[:, :k])
        assert torch.equal(nearest.indices, order[:, :k])

    def test_of_more_points_than_a_block(self):
        spheres = make("spherical", dim=1)
        x = points(spheres, 5000)
        assert torch.equal(spheres.nearest(x).indices[:, 0], spheres.distances(x).argmin(dim=1))


class TestMixture:
    @pytest.mark.parametrize("name", WITH_DENSITY)
    def test_is_that_of_torch_and_rows_sum_to_one_even_far_away(self, name, dtype):
        ellipsoids, x = case(name)
        largest = torch.finfo(dtype).max
        normal = torch.distributions.MultivariateNormal(ellipsoids.means, ellipsoids.covariances)
        wanted = normal.log_prob(x[:, None])
        close(ellipsoids.log_density(x), wanted)
        close(ellipsoids.log_determinants, torch.logdet(ellipsoids.covariances))
        for weights, shares in ((WEIGHTS, WEIGHTS), (None, torch.ones(7).double() / 7)):
            joint = wanted + shares.log()
            close(ellipsoids.responsibilities(x, weights), joint.softmax(dim=1))
            close(ellipsoids.log_likelihood(x, weights), joint.logsumexp(dim=1))
        # The squares of distances overflow, or the distances themselves.
        narrow = ellipsoids._rescaled(1e-30)
        for kind, far in ((ellipsoids, 1e6), (ellipsoids, largest**0.7), (narrow, largest / 100)):
            shares = kind.to(dtype).responsibilities(far * x.to(dtype))
            close(shares.sum(dim=1), torch.ones(9))
        assert narrow.to(dtype).log_likelihood(largest / 100 * x.to(dtype)).eq(-torch.inf).all()

    def test_an_ellipsoid_of_no_weight_has_no_share(self):
        ellipsoids = make("diagonal", 2)
        weights = torch.tensor([0.0, 1.0], dtype=torch.float64)
        shares = ellipsoids.responsibilities(points(ellipsoids), weights)
        assert shares.tolist() == [[0.0, 1.0]] * 9

    @pytest.mark.parametrize("name", ["low-rank", "low-rank-ragged"])
    @pytest.mark.parametrize("method", ["log_density", "responsibilities", "log_likelihood"])
    def test_low_rank_has_no_density(self, name, method):
        message = r"no spread across their axes.*remainder="
        refused(lambda: getattr(make(name), method)(points(make(name))), message)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (torch.full((7,), 0.2).double(), r"weights sum to 1\.4, wanted 1"),
            (torch.full((6,), 1 / 6).double(), r"shape \[6\], wanted 7 numbers"),
            (torch.tensor([2.0, -1, 0, 0, 0, 0, 0]).double(), "at least 0"),
            (torch.tensor([1.0, NAN, 0, 0, 0, 0, 0]).double(), "at least 0"),
            (torch.full((7,), 1 / 7), "weights is float32 and these ellipsoids float64"),
            ([1 / 7] * 7, "weights is a list"),
        ],
    )
    def test_refuses_weights(self, weights, message):
        ellipsoids = make("full")
        refused(lambda: ellipsoids.responsibilities(points(ellipsoids), weights), message)

    def test_gradients_reach_weights_and_spreads(self):
        means = make("diagonal", 2, 2).means
        weights = torch.tensor([0.4, 0.6], dtype=torch.float64, requires_grad=True)
        spreads = torch.tensor([[0.7, 1.2], [0.5, 0.9]], dtype=torch.float64, requires_grad=True)
        x = points(make("diagonal", 2, 2), 2)

        def through(weights, spreads):
            return DiagonalEllipsoids(means, spreads).log_likelihood(x, weights / weights.sum())

        assert torch.autograd.gradcheck(through, (weights, spreads))


@pytest.mark.parametrize("name", WITH_DENSITY)
def test_covariances_give_the_same_ellipsoids_back(name):
    ellipsoids, x = case(name)
    # One by one, because ranks may differ, but for a basis that is shared.
    parts = [ellipsoids] if name == "shared-basis" else list(ellipsoids)
    again = []
    for part in parts:
        rank = {"rank": int(part.ranks[0])} if name in (*REMAINDERS, "shared-basis") else {}
        again.append(from_covariance(part.means, part.covariances, kind=part.kind, **rank))
    close(concatenate(again).distances(x), ellipsoids.distances(x), 10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.safetensors"


def refused_file(path, message):
    refused(lambda: load_ellipsoids(path), f"^{path}: .*{message}")


class TestFiles:
    def test_nothing_changes_of_parts_and_of_what_asks_for_gradients(self, name, dtype, path):
        ellipsoids = make(name, dtype=dtype)
        part = make(name, dtype=dtype)[::2]
        part.means.requires_grad_()
        for saved, place in ((ellipsoids, path), (part, str(path))):
            saved.save(place)
            again = load_ellipsoids(place)
            assert (type(again), again.kind) == (type(saved), saved.kind)
            assert again.tensors().keys() == saved.tensors().keys()
            for field, tensor in again.tensors().items():
                assert (tensor.dtype, tensor.requires_grad) == (dtype, False)
                assert torch.equal(tensor, getattr(saved, field))

    def test_makes_folders_and_leaves_nothing_else(self, tmp_path):
        path = tmp_path / "a" / "b" / "some.safetensors"
        make("full").save(path)
        make("diagonal").save(path)
        assert load_ellipsoids(path).kind == "diagonal"
        assert os.listdir(path.parent) == ["some.safetensors"]

    def test_tensors_may_share_memory(self, path):
        ones = torch.ones(2, 3)
        DiagonalEllipsoids(ones, ones).save(path)
        assert torch.equal(load_ellipsoids(path).spreads, ones)

    def test_refuses_what_cannot_be_read(self, path, tmp_path):
        refused_file(path, "No such file")
        refused_file(tmp_path, "cannot be read")
        make("full").save(path)
        whole = path.read_bytes()
        header = json.dumps({"means": {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 4]}})
        broken = struct.pack("<Q", len(header)) + header.encode() + b"1234"
        cut = [whole[: int(share * len(whole))] for share in (0.1, 0.5, 0.99)]
        for content in (b"", b"abc", b"\xff" * 100, bytes(range(256)), broken, *cut):
            path.write_bytes(content)
            refused_file(path, "cannot be read")

    def test_refuses_something_else(self, path):
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
        refused_file(path, "holds no ellipsoids")
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path, {KIND_KEY: "potato"})
        refused_file(path, "of kind 'potato'")

    def test_refuses_other_tensors(self, name, path):
        ellipsoids = make(name)
        tensors, kind = ellipsoids.tensors(), re.escape(repr(ellipsoids.kind))

        def write(content, message):
            safetensors.torch.save_file(content, path, {KIND_KEY: ellipsoids.kind})
            refused_file(path, message)

        write({**tensors, "extra": torch.zeros(1)}, f"extra.* where kind {kind} has")
        for field, tensor in tensors.items():
            write({n: t for n, t in tensors.items() if n != field}, "where kind")
            write({**tensors, field: tensor * NAN}, "NaN or infinite")
            write({**tensors, field: tensor.half()}, "wanted float32 or float64")
            write({**tensors, field: tensor.float()}, "is float(32|64) and means float")
            write({**tensors, field: torch.stack([tensor, tensor])}, "shape")
            if field in ("spreads", "remainder"):
                write({**tensors, field: -tensor}, "wanted all positive")

    @pytest.mark.parametrize(
        ("fault", "kind", "message"),
        [
            (OSError(28, "No space left on device"), InputError, r"written \(No space left"),
            (safetensors.SafetensorError("no luck\nmore"), InputError, r"written \(no luck\)$"),
            (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        ],
    )
    def test_a_failure_leaves_the_old_file(self, path, monkeypatch, fault, kind, message):
        make("full").save(path)
        before = path.read_bytes()

        def fail(tensors, temporary, metadata):
            temporary.write_bytes(b"half of it")
            raise fault

        monkeypatch.setattr(safetensors.torch, "save_file", fail)
        refused(lambda: make("diagonal").save(path), message, kind)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_refuses_where_nothing_can_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        for place in (tmp_path, tmp_path / "file" / "below.safetensors"):
            refused(lambda place=place: make("full").save(place), "cannot be written")
