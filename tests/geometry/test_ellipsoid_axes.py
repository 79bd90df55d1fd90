"""The longest axes of a covariance, how many are kept, and what the rest gets."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
import torch
from ellipsoid_kinds import close, make, points, some_covariances, some_means
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.errors import SingularCovarianceError
from mahalens.geometry.ellipsoids import (
    axes,
    expected_error,
    from_covariance,
    from_data,
    top_eigenpairs,
)
from mahalens.geometry.ellipsoids.axes import RankChoice, axes_of_rows, longest_axes


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
    @pytest.mark.parametrize("rank", [1, 2, 7, 33, 69, 70])
    def test_are_those_of_the_full_decomposition(self, monkeypatch, spectrum, rank, share):
        monkeypatch.setattr(axes, "LANCZOS_SHARE", share if rank < 70 else 32)  # all: no Lanczos
        covariance = with_spectrum(SPECTRA[spectrum])
        values, vectors = top_eigenpairs(covariance, rank)
        wanted = np.linalg.eigvalsh(covariance)[::-1][:rank]
        assert vectors.shape == (rank, 70)
        np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(rank), atol=1e-10)
        np.testing.assert_allclose(covariance @ vectors.T, vectors.T * values, atol=1e-9)
        assert (vectors[np.arange(rank), np.abs(vectors).argmax(axis=1)] > 0).all()

    def test_take_both_ways(self, monkeypatch):
        asked = []

        def count(module, name):
            real = getattr(module, name)

            def counting(*args, **options):
                asked.append(name)
                return real(*args, **options)

            monkeypatch.setattr(module, name, counting)

        count(scipy.linalg, "eigh")
        count(scipy.sparse.linalg, "eigsh")
        top_eigenpairs(with_spectrum(SPECTRA["steep"]), 2)
        assert asked == ["eigsh"]
        top_eigenpairs(with_spectrum(SPECTRA["steep"]), 3)
        assert asked == ["eigsh", "eigh"]
        asked.clear()
        monkeypatch.setattr(axes, "LANCZOS_RESTARTS", 1)
        covariance = with_spectrum(SPECTRA["flat"])
        values, _ = top_eigenpairs(covariance, 2)  # too flat to converge at once
        assert asked == ["eigsh", "eigh"]
        np.testing.assert_allclose(values, np.linalg.eigvalsh(covariance)[:-3:-1], rtol=1e-10)

    def test_are_the_same_every_time(self):
        covariance = with_spectrum(SPECTRA["steep"])
        first, second = (top_eigenpairs(covariance, 2) for _ in range(2))
        np.testing.assert_array_equal(first[1], second[1])

    @pytest.mark.parametrize("dim", [256, 512])
    def test_at_right_angles_to_ones_are_found(self, dim):
        ones = np.full(dim, dim**-0.5)
        contrast = np.zeros(dim)
        contrast[:2] = 0.5**0.5, -(0.5**0.5)
        covariance = np.eye(dim) + 5 * np.outer(ones, ones) + 10 * np.outer(contrast, contrast)
        np.testing.assert_allclose(top_eigenpairs(covariance, 2)[0], [11, 6], rtol=1e-10)

    def test_of_a_symmetric_pattern_are_found(self):
        """Two like halves: every second axis is at right angles to ones."""
        half = with_spectrum(0.7 ** np.arange(128.0)), with_spectrum(0.5 ** np.arange(128.0))
        same, other = (half[0] + 3 * half[1]) / 2, (half[0] - 3 * half[1]) / 2
        covariance = np.block([[same, other], [other, same]])
        wanted = np.linalg.eigvalsh(covariance)[::-1][:8]
        np.testing.assert_allclose(top_eigenpairs(covariance, 8)[0], wanted, rtol=1e-10)


class TestExpectedError:
    @pytest.mark.parametrize("rank", [1, 3, 6, 7, 8])
    @pytest.mark.parametrize("remainder", ["variance", "precision"])
    def test_is_what_random_points_show(self, rank, remainder):
        values = np.array([5.0, 3.0, 2.0, 1.5, 1.0, 0.8, 0.5, 0.2])
        dropped = values[rank:]
        if not len(dropped):
            rest = values[-1]
        else:
            rest = dropped.mean() if remainder == "variance" else 1 / (1 / dropped).mean()
        rng = np.random.default_rng(0)
        z = rng.standard_normal((400_000, 8))
        exact = (z**2).sum(axis=1)
        short = (z[:, :rank] ** 2).sum(axis=1) + (dropped * z[:, rank:] ** 2).sum(axis=1) / rest
        seen = np.sqrt(((short - exact) ** 2).mean()) / (2 * 8)
        said = expected_error(
            8, np.array(float(rank)), dropped.sum(), (dropped**2).sum(), np.array(rest)
        )
        assert said == pytest.approx(seen, rel=0.02, abs=1e-12)

    def test_is_about_the_relative_error_of_the_distance(self):
        values = np.linspace(2, 0.5, 60)
        full = from_covariance(torch.zeros(1, 60).double(), torch.diag(torch.tensor(values))[None])
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((20_000, 60)) * values**0.5)
        for rank in (5, 20, 40):
            ratio = full.truncate(rank).distances(x) / full.distances(x) - 1
            tail = values[rank:]
            said = expected_error(
                60, np.array(float(rank)), tail.sum(), (tail**2).sum(), np.array(tail.mean())
            )
            assert float(ratio.square().mean().sqrt()) == pytest.approx(float(said), rel=0.1)
            bare = full.truncate(rank, remainder=None).distances(x) / full.distances(x)
            said = expected_error(60, np.array(float(rank)), tail.sum(), tail.sum(), None)
            assert float(1 - bare.mean()) == pytest.approx(float(said), abs=0.02)


def brute_rank(values, remainder, *, explained=None, error=None):
    """The smallest rank that meets the target, by trying them all."""
    dim = len(values)
    for rank in range(1, dim + 1):
        kept, dropped = values[:rank], values[rank:]
        if explained is not None:
            good = kept.sum() >= explained * values.sum() * (1 - 1e-10)
        elif remainder is None:
            good = 1 - np.sqrt(rank / dim) <= error
        elif not len(dropped):
            good = True
        else:
            rest = dropped.mean() if remainder == "variance" else 1 / (1 / dropped).mean()
            off = dropped / rest - 1
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
        found = longest_axes(with_spectrum(values), choice, shift)
        # A hair above or below the target may fall to either side.
        near = {
            brute_rank(values + shift, remainder, **{k: v * (1 + e) for k, v in wanted.items()})
            for e in (-1e-7, 0, 1e-7)
        }
        assert len(found.axes) in near

    def test_by_precision_gives_no_warning(self):
        values = np.array([100.0, 30.0, 10.0, 3.0, 1.0])
        choice = RankChoice.of("auto", "precision", 5, error=0.05)
        rank = brute_rank(values, "precision", error=0.05)
        assert len(longest_axes(with_spectrum(values), choice).axes) == rank

    def test_auto_explains_95_percent_if_nothing_is_said(self):
        values = 0.8 ** np.arange(30.0)
        covariance = torch.from_numpy(with_spectrum(values))[None]
        means = torch.zeros(1, 30, dtype=torch.float64)
        found = from_covariance(means, covariance, kind="low-rank", rank="auto")
        assert found.ranks.tolist() == [brute_rank(values, None, explained=0.95)]

    def test_differs_between_ellipsoids(self):
        covariances = some_covariances(6, 12)
        made = from_covariance(
            some_means(6, 12), covariances, kind="low-rank+remainder", rank="auto", error=0.05
        )
        values = np.linalg.eigvalsh(covariances.numpy())[:, ::-1]
        wanted = [brute_rank(one, "variance", error=0.05) for one in values]
        assert made.ranks.tolist() == wanted
        assert len(set(wanted)) > 2

    @pytest.mark.parametrize("ridge", [0.0, 0.5])
    def test_of_a_shared_basis_explains_the_mean_covariance(self, ridge):
        covariances = some_covariances(6, 12)
        made = from_covariance(
            some_means(6, 12),
            covariances,
            kind="shared-basis",
            rank="auto",
            explained=0.8,
            ridge=ridge,
        )
        average = covariances.mean(dim=0)
        average = average + ridge * average.diagonal().mean() * torch.eye(12)
        values, vectors = np.linalg.eigh(average.numpy())
        rank = brute_rank(values[::-1], None, explained=0.8)
        assert len(made.basis) == rank
        space = vectors[:, ::-1][:, :rank]
        np.testing.assert_allclose(made.basis.T @ made.basis, space @ space.T, atol=1e-10)


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
        cut = full.truncate(rank, remainder="precision")
        close(cut.remainder, made.remainder)

    def test_of_a_shared_basis(self):
        covariances = some_covariances(4, 5)
        for remainder in ("variance", "precision"):
            made = from_covariance(
                some_means(4, 5), covariances, kind="shared-basis", rank=2, remainder=remainder
            )
            _, vectors = torch.linalg.eigh(covariances.mean(dim=0))
            inside, outside = vectors[:, 3:], vectors[:, :3]
            kept = made.basis @ inside
            close(kept @ kept.T, torch.eye(2, dtype=torch.float64))
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
        full = make("full")
        x = points(full)
        whole = full.truncate(5, remainder=remainder)
        close(whole.distances(x), full.distances(x))
        close(whole.covariances, full.covariances)
        close(full.principal().distances(x), full.distances(x))
        covariances = some_covariances(7, 5)
        for kind in ("low-rank", "low-rank+remainder", "shared-basis"):
            made = from_covariance(full.means, covariances, kind=kind, rank=5)
            close(made.distances(x), full.distances(x), 10)
            close(made.covariances, covariances, 10)

    def test_variance_keeps_the_mean_squared_distance_of_own_points(self):
        full = make("full", 1, 6)
        g = torch.Generator().manual_seed(0)
        z = torch.randn(100_000, 6, generator=g, dtype=torch.float64)
        x = full.means + z @ torch.linalg.cholesky(full.covariances[0]).T
        assert float(full.truncate(2).distances(x, squared=True).mean()) == pytest.approx(
            6, rel=0.02
        )


class TestAxesOfRows:
    @pytest.mark.parametrize("count", [4, 9, 12, 30])
    @pytest.mark.parametrize("shift", [0.0, 0.2])
    @pytest.mark.parametrize("remainder", ["variance", None])
    def test_equal_those_of_the_covariance(self, count, shift, remainder):
        rows = np.random.default_rng(0).standard_normal((count, 12))
        choice = RankChoice.of(3, remainder, 12)
        few = axes_of_rows(rows, choice, shift)
        covariance = rows.T @ rows + shift * np.eye(12)
        values = np.linalg.eigvalsh(covariance)[::-1]
        np.testing.assert_allclose(few.spreads, values[:3] ** 0.5, rtol=1e-10)
        np.testing.assert_allclose(few.axes @ few.axes.T, np.eye(3), atol=1e-10)
        np.testing.assert_allclose(covariance @ few.axes.T, few.axes.T * values[:3], atol=1e-9)
        if remainder:
            assert few.remainder == pytest.approx(values[3:].mean() ** 0.5, rel=1e-10)
        else:
            assert few.remainder is None

    def test_few_samples_of_many_inputs(self):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(24, 40, generator=g, dtype=torch.float64)
        labels = torch.arange(24) % 2
        made = from_data(x, labels, kind="low-rank+remainder", rank=4)
        covariances = torch.stack([x[labels == k].T.cov() for k in (0, 1)])
        means = torch.stack([x[labels == k].mean(dim=0) for k in (0, 1)])
        wanted = from_covariance(means, covariances, kind="low-rank+remainder", rank=4)
        close(made.covariances, wanted.covariances, 10)
        with pytest.raises(
            SingularCovarianceError, match=r"ellipsoid 0.*rank 12 is more than the 11"
        ):
            from_data(x, labels, kind="low-rank", rank=12)
