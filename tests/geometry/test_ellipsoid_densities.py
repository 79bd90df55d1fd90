"""Nearest ellipsoids, and ellipsoids as a mixture of Gaussians."""

import numpy as np
import pytest
import torch
from ellipsoid_kinds import (
    BOTH,
    DTYPES,
    NAMES,
    WITH_DENSITY,
    close,
    make,
    points,
    some_covariances,
    some_means,
)
from sklearn.mixture import GaussianMixture

from mahalens.errors import InputError
from mahalens.geometry.ellipsoids import base, from_covariance

WEIGHTS = torch.tensor([0.1, 0.3, 0.05, 0.2, 0.15, 0.1, 0.1], dtype=torch.float64)


class TestNearest:
    @pytest.mark.parametrize("k", [1, 3, 7])
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_are_the_first_after_sorting(self, name, norm, k, monkeypatch):
        monkeypatch.setattr(base, "NEAREST_BLOCK", 4)
        ellipsoids = make(name)
        x = points(ellipsoids)
        values, order = ellipsoids.distances(x, norm=norm).sort(dim=1)
        found = ellipsoids.nearest(x, k, norm=norm)
        assert found.distances.shape == found.indices.shape == (9, k)
        close(found.distances, values[:, :k])
        assert torch.equal(found.indices, order[:, :k])

    @pytest.mark.parametrize("k", [0, -1, 8, 2.0, True])
    def test_asks_for_a_number_there_is(self, k):
        with pytest.raises(InputError, match=f"k is {k}, wanted"):
            make("spherical").nearest(torch.zeros(1, 5).double(), k)


def mixture(kind, ellipsoids, weights):
    """scikit-learn's mixture with these parameters."""
    model = GaussianMixture(len(ellipsoids), covariance_type={"diagonal": "diag"}.get(kind, kind))
    model.weights_, model.means_ = weights.numpy(), ellipsoids.means.numpy()
    if kind == "full":
        model.covariances_ = ellipsoids.covariances.numpy()
        upper = [np.linalg.inv(np.linalg.cholesky(c)).T for c in model.covariances_]
        model.precisions_cholesky_ = np.stack(upper)
    else:
        model.covariances_ = ellipsoids.spreads.square().numpy()
        model.precisions_cholesky_ = 1 / ellipsoids.spreads.numpy()
    return model


class TestMixture:
    @pytest.mark.parametrize("kind", ["full", "diagonal", "spherical"])
    @pytest.mark.parametrize("weights", [WEIGHTS, None], ids=["weighted", "equal"])
    def test_is_that_of_scikit_learn(self, kind, weights):
        ellipsoids = make(kind)
        x = points(ellipsoids)
        shares = torch.full((7,), 1 / 7, dtype=torch.float64) if weights is None else weights
        model = mixture(kind, ellipsoids, shares)
        density = model._estimate_log_prob(x.numpy())
        np.testing.assert_allclose(ellipsoids.log_density(x), density, rtol=1e-10)
        np.testing.assert_allclose(
            ellipsoids.responsibilities(x, weights), model.predict_proba(x.numpy()), atol=1e-10
        )
        np.testing.assert_allclose(
            ellipsoids.log_likelihood(x, weights), model.score_samples(x.numpy()), rtol=1e-10
        )

    @pytest.mark.parametrize("name", WITH_DENSITY)
    def test_is_that_of_torch(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        normal = torch.distributions.MultivariateNormal(ellipsoids.means, ellipsoids.covariances)
        wanted = normal.log_prob(x[:, None])
        close(ellipsoids.log_density(x), wanted)
        close(ellipsoids.log_determinants, torch.logdet(ellipsoids.covariances))
        joint = wanted + WEIGHTS.log()
        close(ellipsoids.responsibilities(x, WEIGHTS), joint.softmax(dim=1))
        close(ellipsoids.log_likelihood(x, WEIGHTS), joint.logsumexp(dim=1))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", WITH_DENSITY)
    def test_rows_sum_to_one_even_far_away(self, name, dtype):
        ellipsoids = make(name, dtype=dtype)
        shares = ellipsoids.responsibilities(1e6 * points(ellipsoids))
        close(shares.sum(dim=1), torch.ones(9))

    def test_an_ellipsoid_of_no_weight_has_no_share(self):
        ellipsoids = make("diagonal", 2)
        weights = torch.tensor([0.0, 1.0], dtype=torch.float64)
        shares = ellipsoids.responsibilities(points(ellipsoids), weights)
        assert shares.tolist() == [[0.0, 1.0]] * 9

    @pytest.mark.parametrize("name", ["low-rank", "low-rank-ragged"])
    def test_low_rank_has_no_density(self, name):
        ellipsoids = make(name)
        for method in ("log_density", "responsibilities", "log_likelihood"):
            with pytest.raises(InputError, match=r"no spread across their axes.*remainder="):
                getattr(ellipsoids, method)(points(ellipsoids))

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (torch.full((7,), 0.2).double(), r"weights sum to 1\.4, wanted 1"),
            (torch.full((6,), 1 / 6).double(), r"shape \[6\], wanted 7 numbers"),
            (torch.tensor([2.0, -1, 0, 0, 0, 0, 0]).double(), "at least 0"),
            (torch.tensor([1.0, float("nan"), 0, 0, 0, 0, 0]).double(), "at least 0"),
            (torch.full((7,), 1 / 7), "weights is float32 and these ellipsoids float64"),
            ([1 / 7] * 7, "weights is a list"),
        ],
    )
    def test_says_what_is_wrong_with_weights(self, weights, message):
        ellipsoids = make("full")
        with pytest.raises(InputError, match=message) as error:
            ellipsoids.responsibilities(points(ellipsoids), weights)
        assert "\n" not in str(error.value)

    def test_gradients_reach_weights_and_covariances(self):
        ellipsoids = make("full", 2, 2)
        x, means = points(ellipsoids, 2), ellipsoids.means
        weights = torch.tensor([0.4, 0.6], dtype=torch.float64, requires_grad=True)
        spreads = torch.rand(2, 2, dtype=torch.float64).add(0.5).requires_grad_()

        def through(weights, spreads):
            made = type(make("diagonal"))(means, spreads)
            return made.log_likelihood(x, weights / weights.sum())

        assert torch.autograd.gradcheck(through, (weights, spreads))


class TestCovariances:
    @pytest.mark.parametrize("name", NAMES)
    def test_give_the_same_ellipsoids_back(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        kind = ellipsoids.kind
        if kind == "low-rank":
            return
        rank = {"low-rank+remainder": "auto", "shared-basis": 2}.get(kind)
        if kind == "low-rank+remainder":
            again = [
                from_covariance(one.means, one.covariances, kind=kind, rank=int(one.ranks))
                for one in ellipsoids
            ]
            found = torch.cat([one.distances(x) for one in again], dim=1)
        else:
            found = from_covariance(
                ellipsoids.means, ellipsoids.covariances, kind=kind, rank=rank
            ).distances(x)
        close(found, ellipsoids.distances(x), 10)

    def test_of_full_are_those_given(self):
        covariances = some_covariances(7, 5)
        close(from_covariance(some_means(7, 5), covariances).covariances, covariances)
        made = from_covariance(some_means(7, 5), covariances, kind="diagonal")
        close(made.covariances, torch.diag_embed(covariances.diagonal(dim1=1, dim2=2)))
        made = from_covariance(some_means(7, 5), covariances, kind="spherical")
        mean_variance = covariances.diagonal(dim1=1, dim2=2).mean(dim=1)
        close(made.covariances, mean_variance[:, None, None] * torch.eye(5).double())
