"""Ellipsoids from covariances, labelled data and clusters: axes, ranks, remainders, refusals."""

import numpy as np
import pytest
import torch
from geometry_cases import (
    NAN,
    OPTIONS,
    close,
    make,
    normal,
    points,
    refused,
    some_covariances,
    some_means,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.errors import SingularCovarianceError
from mahalens.geometry import Gaussian
from mahalens.geometry.ellipsoids import (
    expected_error,
    from_clusters,
    from_covariance,
    from_data,
    top_eigenpairs,
)
from mahalens.geometry.ellipsoids.fit import RankChoice, axes_of_rows, longest_axes

RECIPES = [{}, {"ridge": 0.1}, {"shrinkage": 0.3}, {"ridge": 0.05, "shrinkage": "ledoit-wolf"}]
RANKED = ["low-rank", "low-rank+remainder", "shared-basis"]
REST = {"kind": "low-rank+remainder"}
UNRANKED = ["full", "diagonal", "spherical"]
MEANS, COVARIANCES = some_means(3, 4), some_covariances(3, 4)
FLAT = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0]).double())


def labelled(dtype=torch.float64, n=90, dim=4, classes=3):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (n,), generator=g)
    mix = torch.randn(classes, dim, dim, generator=g, dtype=torch.float64)
    x = torch.randn(n, dim, generator=g, dtype=torch.float64)
    x = torch.einsum("nij,nj->ni", mix[labels], x) + 3 * labels[:, None]
    return x.to(dtype), 10 * labels - 5


def clear(dtype=torch.float64):
    """Return four clusters far apart, and their numbers."""
    g = torch.Generator().manual_seed(0)
    places = torch.tensor([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0]])
    x = places.repeat(30, 1) + torch.randn(120, 2, generator=g)
    return x.to(dtype), torch.arange(4).repeat(30)


class TestFromData:
    @pytest.mark.parametrize("recipe", RECIPES, ids=str)
    def test_all_kinds_are_those_of_the_gaussian_of_each_label(self, name, recipe, dtype):
        x, labels = labelled(dtype)
        wide = x.double()
        each = [Gaussian.from_data(wide[labels == label], **recipe) for label in (-5, 5, 15)]
        gaussians = Gaussian.stack(each)
        wanted = from_covariance(gaussians.mean, gaussians.covariance, **OPTIONS[name])
        made = from_data(x.requires_grad_(), labels, **OPTIONS[name], **recipe)
        distances = made.distances(x.detach())
        assert (made.dtype, len(made)) == (dtype, 3)
        assert torch.equal(made.ranks, wanted.ranks)
        assert not made.means.requires_grad  # data are data, also where they ask for gradients
        close(made.means, gaussians.mean)
        close(made.covariances, wanted.covariances, 100)
        close(distances, wanted.distances(wide), 100)
        if name == "full":
            close(distances, gaussians.mahalanobis(wide).mT, 5)
            close(made.covariances, gaussians.covariance, 20)

    def test_order_place_and_type_of_the_labels_do_not_matter(self):
        x, labels = labelled()
        wanted = from_data(x, labels).covariances
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        close(from_data(x[order], labels[order]).covariances, wanted, 10)
        close(from_data(x + 1e6, labels).covariances, wanted, 1e4)
        arrays = from_data(x.numpy(), labels.numpy().astype(np.int16))
        assert torch.equal(arrays.covariances, wanted)
        for dtype in (torch.uint8, torch.int32, torch.bool):
            halves = from_data(x, (labels > 0).to(dtype))
            close(halves.means, from_data(x, (labels > 0).long()).means)

    @pytest.mark.parametrize("kind", ["full", "diagonal", "shared-basis", "spherical"])
    def test_without_spread(self, kind):
        x, labels = labelled()
        x[:, 2:] = 1.0
        if kind == "spherical":
            x[labels == 5] = 2.0
        options = {"kind": kind, "rank": 2 if kind in RANKED else None}
        place = "ellipsoid 0 has no spread along input 2" if kind == "diagonal" else "ellipsoid "
        refused(lambda: from_data(x, labels, **options), f"{place}.*ridge", SingularCovarianceError)
        if kind != "spherical":  # a share of nothing is nothing
            assert len(from_data(x, labels, **options, ridge=0.1)) == 3

    def test_few_samples_of_many_inputs(self):
        x, labels = normal(24, 40), torch.arange(24) % 2
        made = from_data(x, labels, kind="low-rank+remainder", rank=4)
        covariances = torch.stack([x[labels == k].T.cov() for k in (0, 1)])
        means = torch.stack([x[labels == k].mean(dim=0) for k in (0, 1)])
        wanted = from_covariance(means, covariances, kind="low-rank+remainder", rank=4)
        close(made.covariances, wanted.covariances, 10)
        refused(
            lambda: from_data(x, labels, kind="low-rank", rank=12),
            "ellipsoid 0.*rank 12 is more than the 11",
            SingularCovarianceError,
        )


class TestFromClusters:
    def test_clear_ones_are_found(self, dtype):
        x, truth = clear(dtype)
        ellipsoids, labels = from_clusters(x, 4, seed=1)
        assert labels.dtype == torch.int64
        assert [len(set(labels[truth == k].tolist())) for k in range(4)] == [1] * 4
        assert len(set(labels.tolist())) == 4
        assert torch.equal(ellipsoids.nearest(x).indices[:, 0], labels)
        close(ellipsoids.means, from_data(x, labels).means)
        options = {"kind": "low-rank+remainder", "rank": 1, "ridge": 0.1}
        ellipsoids, labels = from_clusters(x.numpy(), 4, **options)
        close(ellipsoids.covariances, from_data(x, labels, **options).covariances)

    def test_an_offset_does_not_hide_them(self, dtype):
        x, truth = normal(200, 6, dtype=dtype), torch.arange(200) % 2
        x = x + 9 * truth[:, None] + 1e5
        labels = from_clusters(x, 2, kind="spherical")[1]
        assert torch.equal(labels, truth) or torch.equal(labels, 1 - truth)

    def test_a_seed_decides(self):
        x = normal(200, 3, dtype=torch.float32)
        state = torch.random.get_rng_state()
        first, again = (from_clusters(x, 5, seed=3, kind="spherical") for _ in range(2))
        assert torch.equal(first[1], again[1])
        assert torch.equal(first[0].means, again[0].means)
        nearest = torch.cdist(x, first[0].means).argmin(dim=1)
        assert torch.equal(nearest, first[1])  # nothing moves any more
        assert not torch.equal(first[1], from_clusters(x, 5, seed=4, kind="spherical")[1])
        assert torch.equal(state, torch.random.get_rng_state())


class Lazy(list):
    """Covariances that are made when they are asked for."""

    def __init__(self, covariances):
        super().__init__(covariances)
        self.asked = []

    def __getitem__(self, k):
        self.asked.append(k)
        return super().__getitem__(k)


class TestFromCovariance:
    def test_asks_for_one_after_the_other(self, name):
        lazy = Lazy(some_covariances(7, 5))
        made = from_covariance(some_means(7, 5), lazy, **OPTIONS[name])
        close(made.distances(points(made)), make(name).distances(points(made)))
        assert lazy.asked == [*range(7)] * (2 if name == "shared-basis" else 1)

    def test_a_ridge_is_a_share_of_the_mean_variance(self, name):
        covariances = some_covariances(7, 5)
        mean_variance = covariances.diagonal(dim1=1, dim2=2).mean(dim=1)
        raised = covariances + 0.2 * mean_variance[:, None, None] * torch.eye(5).double()
        made = from_covariance(some_means(7, 5), covariances, **OPTIONS[name], ridge=0.2)
        wanted = from_covariance(some_means(7, 5), raised, **OPTIONS[name])
        assert torch.equal(made.ranks, wanted.ranks)
        for field, tensor in made.tensors().items():
            close(tensor, wanted.tensors()[field], 10)

    def test_is_computed_in_float64_and_rounded_once(self, name):
        means, covariances = some_means(7, 5).float(), some_covariances(7, 5).float()
        double = from_covariance(means.double(), covariances.double(), **OPTIONS[name])
        for given_as in (covariances, list(covariances.double())):
            single = from_covariance(means, given_as, **OPTIONS[name])
            for field, tensor in single.tensors().items():
                assert torch.equal(tensor, double.tensors()[field].float()), field

    def test_of_some_kinds_are_those_of_the_covariance(self):
        skew = torch.zeros(5, 5).double()
        skew[0, 1] = 1e-10  # nearly symmetric: the mean is taken
        covariances = some_covariances(7, 5)
        diagonals = covariances.diagonal(dim1=1, dim2=2)
        for kind, wanted in [
            ("full", covariances + (skew + skew.T) / 2),
            ("diagonal", torch.diag_embed(diagonals)),
            ("spherical", diagonals.mean(dim=1)[:, None, None] * torch.eye(5).double()),
        ]:
            made = from_covariance(some_means(7, 5), covariances + skew, kind=kind)
            close(made.covariances, wanted)


def with_spectrum(values, seed=0):
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    matrix = (turned * values) @ turned.T
    return (matrix + matrix.T) / 2


SPECTRA = {
    "steep": 0.7 ** np.arange(70),
    "power": 1 / np.arange(1.0, 71),
    "flat": 1 + 1e-3 * np.arange(70.0)[::-1],
    "steps": np.repeat([9.0, 4.0, 1.0], [3, 30, 37]) * (1 + 1e-3 * np.arange(70.0)[::-1]),
}


class TestTopEigenpairs:
    @pytest.mark.parametrize("share", [0, 1, 1000], ids=["lanczos", "half", "lapack"])
    @pytest.mark.parametrize("spectrum", SPECTRA)
    @pytest.mark.parametrize("rank", [1, 7, 33, 69, 70])
    def test_are_those_of_the_full_decomposition(self, spectrum, rank, share):
        covariance = with_spectrum(SPECTRA[spectrum])
        share = share if rank < 70 else 32  # Lanczos cannot give all
        values, vectors = top_eigenpairs(covariance, rank, lanczos_share=share)
        wanted = np.linalg.eigvalsh(covariance)[::-1][:rank]
        assert vectors.shape == (rank, 70)
        np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(rank), atol=1e-10)
        np.testing.assert_allclose(covariance @ vectors.T, vectors.T * values, atol=1e-9)
        assert (vectors[np.arange(rank), np.abs(vectors).argmax(axis=1)] > 0).all()
        again = top_eigenpairs(covariance, rank, lanczos_share=share)
        np.testing.assert_array_equal(again[1], vectors)

    def test_at_right_angles_to_ones_are_found(self):
        ones = np.full(256, 256**-0.5)
        contrast = np.zeros(256)
        contrast[:2] = 0.5**0.5, -(0.5**0.5)
        covariance = np.eye(256) + 5 * np.outer(ones, ones) + 10 * np.outer(contrast, contrast)
        np.testing.assert_allclose(top_eigenpairs(covariance, 2)[0], [11, 6], rtol=1e-10)
        # Two like halves: every second axis is at right angles to ones.
        half = with_spectrum(0.7 ** np.arange(128.0)), with_spectrum(0.5 ** np.arange(128.0))
        same, other = (half[0] + 3 * half[1]) / 2, (half[0] - 3 * half[1]) / 2
        covariance = np.block([[same, other], [other, same]])
        wanted = np.linalg.eigvalsh(covariance)[::-1][:8]
        np.testing.assert_allclose(top_eigenpairs(covariance, 8)[0], wanted, rtol=1e-10)


def stand_in(dropped, remainder):
    return dropped.mean() if remainder == "variance" else 1 / (1 / dropped).mean()


class TestExpectedError:
    @pytest.mark.parametrize("rank", [1, 3, 6, 7, 8])
    @pytest.mark.parametrize("remainder", ["variance", "precision"])
    def test_is_what_random_points_show(self, rank, remainder):
        values = np.array([5.0, 3.0, 2.0, 1.5, 1.0, 0.8, 0.5, 0.2])
        dropped = values[rank:]
        rest = stand_in(dropped, remainder) if len(dropped) else values[-1]
        z = np.random.default_rng(0).standard_normal((400_000, 8))
        exact = (z**2).sum(axis=1)
        short = (z[:, :rank] ** 2).sum(axis=1) + (dropped * z[:, rank:] ** 2).sum(axis=1) / rest
        seen = np.sqrt(((short - exact) ** 2).mean()) / (2 * 8)
        sums = dropped.sum(), (dropped**2).sum()
        error = expected_error(8, np.array(float(rank)), *sums, np.array(rest))
        assert error == pytest.approx(seen, rel=0.02, abs=1e-12)

    def test_is_about_the_relative_error_of_the_distance(self):
        values = np.linspace(2, 0.5, 60)
        full = from_covariance(torch.zeros(1, 60).double(), torch.diag(torch.tensor(values))[None])
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((20_000, 60)) * values**0.5)
        for rank in (5, 20, 40):
            tail = values[rank:]
            sums = np.array(float(rank)), tail.sum(), (tail**2).sum()
            short = full.truncate(rank)
            ratio = short.distances(x) / full.distances(x) - 1
            error = float(expected_error(60, *sums, np.array(tail.mean())))
            assert float(ratio.square().mean().sqrt()) == pytest.approx(error, rel=0.1)
            # Squared distances of points of the ellipsoid itself stay right on average.
            assert float(short.distances(x, squared=True).mean()) == pytest.approx(60, rel=0.02)
            bare = full.truncate(rank, remainder=None).distances(x) / full.distances(x)
            error = float(expected_error(60, *sums, None))
            assert float(1 - bare.mean()) == pytest.approx(error, abs=0.02)


def brute_rank(values, remainder, *, explained=None, error=None):
    """The smallest rank that meets the target, by trying them all."""
    dim = len(values)
    for rank in range(1, dim):
        dropped = values[rank:]
        if explained is not None:
            good = values[:rank].sum() >= explained * values.sum() * (1 - 1e-10)
        elif remainder is None:
            good = 1 - np.sqrt(rank / dim) <= error
        else:
            off = dropped / stand_in(dropped, remainder) - 1
            good = np.sqrt(off.sum() ** 2 + 2 * (off**2).sum()) / (2 * dim) <= error
        if good:
            return rank
    return dim


class TestRank:
    @pytest.mark.parametrize("remainder", ["variance", "precision", None])
    @settings(deadline=None, max_examples=25, derandomize=True)
    @given(
        dim=st.integers(1, 45),
        slope=st.floats(0, 3),
        target=st.floats(0.005, 0.995),
        by_error=st.booleans(),
        shift=st.sampled_from([0.0, 0.3]),
    )
    def test_is_the_smallest_that_meets_the_target(
        self, remainder, dim, slope, target, by_error, shift
    ):
        values = np.arange(1, dim + 1.0) ** -slope
        wanted = {"error": target / 3} if by_error else {"explained": target}
        choice = RankChoice.of("auto", remainder, dim, **wanted)
        axes = longest_axes(with_spectrum(values), shift, choice).axes
        # A hair above or below the target may fall to either side.
        near = {
            brute_rank(values + shift, remainder, **{k: v * (1 + e) for k, v in wanted.items()})
            for e in (-1e-7, 0, 1e-7)
        }
        assert len(axes) in near

    @pytest.mark.parametrize(("ridge", "explained"), [(0.0, 0.8), (0.5, None)])
    def test_of_a_shared_basis_explains_the_mean_covariance(self, ridge, explained):
        covariances = some_covariances(6, 12)
        options = {"kind": "shared-basis", "rank": "auto", "explained": explained, "ridge": ridge}
        made = from_covariance(some_means(6, 12), covariances, **options)
        average = covariances.mean(dim=0)
        average = average + ridge * average.diagonal().mean() * torch.eye(12)
        values, vectors = np.linalg.eigh(average.numpy())
        rank = brute_rank(values[::-1], None, explained=explained or 0.95)
        assert len(made.basis) == rank
        space = vectors[:, ::-1][:, :rank]
        np.testing.assert_allclose(made.basis.T @ made.basis, space @ space.T, atol=1e-10)

    @pytest.mark.parametrize("count", [4, 9, 12, 30])
    @pytest.mark.parametrize("shift", [0.0, 0.2])
    @pytest.mark.parametrize("remainder", ["variance", None])
    def test_axes_of_rows_equal_those_of_the_covariance(self, count, shift, remainder):
        rows = np.random.default_rng(0).standard_normal((count, 12))
        few = axes_of_rows(rows, shift, RankChoice.of(3, remainder, 12))
        covariance = rows.T @ rows + shift * np.eye(12)
        values = np.linalg.eigvalsh(covariance)[::-1]
        np.testing.assert_allclose(few.spreads, values[:3] ** 0.5, rtol=1e-10)
        np.testing.assert_allclose(few.axes @ few.axes.T, np.eye(3), atol=1e-10)
        np.testing.assert_allclose(covariance @ few.axes.T, few.axes.T * values[:3], atol=1e-9)
        wanted = pytest.approx(values[3:].mean() ** 0.5, rel=1e-10) if remainder else None
        assert few.remainder == wanted


class TestRemainder:
    @pytest.mark.parametrize("rank", [1, 2, 4])
    def test_formulas(self, rank):
        covariances = some_covariances(3, 5)
        values = torch.linalg.eigvalsh(covariances).flip(-1)
        options = {"kind": "low-rank+remainder", "rank": rank}
        made = from_covariance(some_means(3, 5), covariances, **options)
        close(made.spreads, values[:, :rank].sqrt())
        close(made.remainder, values[:, rank:].mean(dim=1).sqrt())
        made = from_covariance(some_means(3, 5), covariances, remainder="precision", **options)
        close(made.remainder, (1 / values[:, rank:]).mean(dim=1).reciprocal().sqrt())
        full = from_covariance(some_means(3, 5), covariances)
        close(full.truncate(rank, remainder="precision").remainder, made.remainder)

    @pytest.mark.parametrize("remainder", ["variance", "precision"])
    def test_of_a_shared_basis(self, remainder):
        covariances = some_covariances(4, 5)
        options = {"kind": "shared-basis", "rank": 2, "remainder": remainder}
        made = from_covariance(some_means(4, 5), covariances, **options)
        _, vectors = torch.linalg.eigh(covariances.mean(dim=0))
        inside, outside = vectors[:, 3:], vectors[:, :3]
        turned = made.basis @ inside
        close(turned @ turned.T, torch.eye(2, dtype=torch.float64))
        for k, covariance in enumerate(covariances):
            if remainder == "variance":
                rest = (outside.T @ covariance @ outside).trace() / 3
            else:
                rest = 3 / (outside.T @ torch.linalg.inv(covariance) @ outside).trace()
            close(made.remainder[k].square(), rest)
            within = made.basis @ covariance @ made.basis.T
            close(torch.linalg.inv(made.whitening[k].T @ made.whitening[k]), within, 10)

    @pytest.mark.parametrize("remainder", ["variance", "precision", None])
    def test_all_axes_are_the_whole_ellipsoid(self, remainder):
        full, covariances = make("full"), some_covariances(7, 5)
        x = points(full)
        wholes = [full.truncate(5, remainder=remainder), full.principal()]
        wholes += [from_covariance(full.means, covariances, kind=kind, rank=5) for kind in RANKED]
        for whole in wholes:
            close(whole.distances(x), full.distances(x), 10)
            close(whole.covariances, covariances, 10)


def made(covariances=COVARIANCES, means=MEANS, **options):
    return lambda: from_covariance(means, covariances, **options)


def with_entry(place, value):
    changed = COVARIANCES.clone()
    changed[place] = value
    return changed


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            *(
                ({"kind": kind, "rank": rank}, "rank")
                for kind in RANKED
                for rank in (0, -1, 5, 2.0, True, "2", None, "all")
            ),
            *(
                ({"kind": kind, **options}, "which has none; leave")
                for kind in UNRANKED
                for options in ({"rank": 2}, {"rank": "auto"}, {"explained": 0.9})
            ),
            *(
                ({"kind": "low-rank", "rank": "auto", name: target}, f"{name} is {target}")
                for name in ("explained", "error")
                for target in (0.0, 1.0, -0.1, 2, NAN)
            ),
            *(({"kind": kind}, f"kind is {kind!r}, wanted") for kind in ("ellips", "", None)),
            *(({"ridge": ridge}, "ridge is") for ridge in (-1.0, NAN, float("inf"))),
            ({"kind": "low-rank", "rank": "auto", "explained": 0.9, "error": 0.1}, "both given"),
            ({"kind": "low-rank", "rank": 2, "error": 0.1}, 'needs rank="auto"'),
            ({"kind": "shared-basis", "rank": "auto", "error": 0.1}, "by explained variance only"),
            ({"kind": "shared-basis", "rank": 2, "remainder": "mean"}, "remainder is 'mean'"),
        ],
        ids=str,
    )
    def test_of_options(self, options, message):
        refused(made(**options), message)

    def test_to_truncate(self):
        for rank in (0, 6, 2.5):
            refused(lambda rank=rank: make("full").truncate(rank), f"rank is {rank}")
        refused(lambda: make("full").truncate(2, remainder="some"), "remainder is 'some'")

    @pytest.mark.parametrize("kind", [*RANKED, *UNRANKED])
    def test_of_covariances_of_any_kind(self, kind):
        options = {"kind": kind, "rank": 2 if kind in RANKED else None}
        negative = torch.diag(torch.tensor([9.0, 4.0, 3.0, -1.0]).double()).expand(3, 4, 4)
        for covariances, message in [
            (with_entry((1, 0, 2), 9.0), "ellipsoid 1: .*not symmetric"),
            (with_entry((2, 1, 1), NAN), "ellipsoid 2: .*NaN or infinite"),
            (with_entry((2, 1, 1), float("inf")), "ellipsoid 2: .*NaN or infinite"),
            (negative, "ellipsoid 0: .*not positive definite"),
        ]:
            refused(made(covariances, **options), message)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"kind": "full"}, "ellipsoid 1"),
            ({"kind": "diagonal"}, "ellipsoid 1 has no spread along input 2"),
            ({"kind": "low-rank", "rank": 3}, "ellipsoid 1: rank 3 is more than the 2 of 4"),
            ({**REST, "rank": 2}, "ellipsoid 1: .*remainder would be 0"),
            ({**REST, "rank": 1, "remainder": "precision"}, "no mean precision"),
        ],
        ids=str,
    )
    def test_of_singular_covariances(self, options, message):
        covariances = [COVARIANCES[0], FLAT, COVARIANCES[2]]
        refused(made(covariances, **options), message, SingularCovarianceError)
        assert len(made(covariances, **options, ridge=1e-3)()) == 3
        assert made(covariances, kind="low-rank", rank=2)().ranks.tolist() == [2] * 3

    def test_of_covariances_without_any_rest(self):
        basis, spheres = {"kind": "shared-basis", "rank": 2}, {"kind": "spherical"}
        message = "ellipsoid 0: .*beyond the shared basis"
        refused(made([FLAT] * 3, **basis), message, SingularCovarianceError)
        refused(made([0 * FLAT] * 3, **spheres), "no spread", SingularCovarianceError)

    @pytest.mark.parametrize(
        ("means", "covariances", "message"),
        [
            (MEANS[:0], COVARIANCES[:0], "K and D at least 1"),
            (MEANS[0], COVARIANCES, "means has shape"),
            (MEANS[None], COVARIANCES, r"means have shape \[1, 3, 4\]"),
            (MEANS, COVARIANCES[:2], "there are 3 means but 2 covariances"),
            (MEANS, COVARIANCES[0], "covariances has shape"),
            (MEANS, COVARIANCES[None], r"covariances have shape \[1, 3, 4, 4\]"),
            (MEANS, COVARIANCES[:, :3, :3], r"ellipsoid 0: .*wanted \[4, 4\]"),
            (MEANS.float(), COVARIANCES, "covariances is float64 and means float32"),
            (MEANS.half(), COVARIANCES, "means is float16, wanted float32 or float64"),
            (MEANS, [c.half() for c in COVARIANCES], "covariance is float16"),
            (MEANS.long(), COVARIANCES, "means is int64"),
            (MEANS.tolist(), COVARIANCES, "means is a list"),
            (MEANS * NAN, COVARIANCES, "means has 12 value"),
        ],
    )
    def test_of_shapes_and_dtypes(self, means, covariances, message):
        refused(made(covariances, means), message)

    X, LABELS = normal(20, 2, dtype=torch.float32), torch.arange(20) % 2
    FEW = X.view(10, 4)[:6]

    @pytest.mark.parametrize(
        ("x", "labels", "options", "message"),
        [
            (X, LABELS.float(), {}, "labels are float32, wanted a tensor of whole numbers"),
            (X, LABELS.tolist(), {}, "labels are list"),
            (X, np.arange(20.0), {}, "labels are an array of float64"),
            (X, np.arange(20, dtype=np.uint64) + 2**63, {}, r"9223372036854775827, .* below 2\^63"),
            (X, LABELS[:19], {}, r"labels have shape \(19,\) for 20 samples; give one label"),
            (X, LABELS[:, None], {}, r"labels have shape \(20, 1\)"),
            (X, LABELS.clone().index_fill_(0, torch.tensor(3), 7), {}, "label 7 has 1 sample"),
            (X[:, 0], LABELS, {}, "x has shape"),
            (X[None], LABELS, {}, r"x has shape \[1, 20, 2\]"),
            (X * NAN, LABELS, {}, "NaN or infinite"),
            (X.half(), LABELS, {}, "x is float16"),
            (X, LABELS, {"shrinkage": "lw"}, "shrinkage is 'lw'"),
            (X, LABELS, {"shrinkage": 1.5}, "shrinkage is 1.5"),
            (X, LABELS, {"kind": "none"}, "kind is 'none'"),
            (FEW, LABELS[:6], {}, "ellipsoid 0"),
            (FEW, LABELS[:6], {"kind": "low-rank", "rank": 3}, "rank 3 is more than the 2"),
        ],
    )
    def test_of_labelled_data(self, x, labels, options, message):
        error = SingularCovarianceError if len(x) == 6 else ValueError
        refused(lambda: from_data(x, labels, **options), message, error)

    @pytest.mark.parametrize(
        ("x", "count", "options", "message"),
        [
            (X, 21, {}, "21 clusters in x of shape"),
            (X, 2.0, {}, "count is 2.0"),
            (X, 0, {}, "count is 0"),
            (X[0], 1, {}, "x has shape"),
            (X * NAN, 1, {}, "NaN or infinite"),
            (X, 1, {"kind": "none"}, "kind is 'none'"),
            (X, 19, {}, "leave a cluster with 1; ask for fewer"),
            (torch.zeros(10, 2), 3, {}, "fewer clusters"),
        ],
    )
    def test_of_clusters(self, x, count, options, message):
        refused(lambda: from_clusters(x, count, **options), message)
