"""Ellipsoids from covariances, from labelled data and from clusters."""

import pytest
import torch
from ellipsoid_kinds import DTYPES, OPTIONS, close, make, points, some_covariances, some_means

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry import Gaussian
from mahalens.geometry.ellipsoids import from_clusters, from_covariance, from_data

RECIPES = [
    {},
    {"ridge": 0.1},
    {"shrinkage": 0.3},
    {"shrinkage": "ledoit-wolf"},
    {"ridge": 0.05, "shrinkage": "ledoit-wolf"},
]
KINDS = {
    "full": {},
    "low-rank": {"rank": 2},
    "low-rank+remainder": {"rank": 2},
    "diagonal": {},
    "spherical": {},
    "shared-basis": {"rank": 2},
}


def labelled(dtype=torch.float64, n=90, dim=4, classes=3):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (n,), generator=g)
    mix = torch.randn(classes, dim, dim, generator=g, dtype=torch.float64)
    x = torch.randn(n, dim, generator=g, dtype=torch.float64)
    x = torch.einsum("nij,nj->ni", mix[labels], x) + 3 * labels[:, None]
    return x.to(dtype), 10 * labels - 5


class TestFromData:
    @pytest.mark.parametrize("recipe", RECIPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_full_ones_are_gaussians_of_each_label(self, recipe, dtype):
        x, labels = labelled(dtype)
        made = from_data(x, labels, **recipe)
        assert (made.dtype, len(made)) == (dtype, 3)
        for k, label in enumerate((-5, 5, 15)):
            one = Gaussian.from_data(x[labels == label].double(), **recipe)
            close(made.means[k], one.mean)
            close(made.distances(x)[:, k], one.mahalanobis(x.double()), 5)
            close(made.covariances[k], one.covariance, 20)

    @pytest.mark.parametrize("recipe", RECIPES, ids=str)
    @pytest.mark.parametrize("name", OPTIONS)
    def test_all_kinds_are_those_of_the_covariances(self, name, recipe):
        x, labels = labelled()
        gaussians = [Gaussian.from_data(x[labels == label], **recipe) for label in (-5, 5, 15)]
        means = torch.stack([one.mean for one in gaussians])
        covariances = torch.stack([one.covariance for one in gaussians])
        wanted = from_covariance(means, covariances, **OPTIONS[name])
        made = from_data(x, labels, **OPTIONS[name], **recipe)
        assert torch.equal(made.ranks, wanted.ranks)
        close(made.covariances, wanted.covariances, 100)
        close(made.distances(x), wanted.distances(x), 100)

    def test_the_order_of_samples_does_not_matter(self):
        x, labels = labelled()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        close(from_data(x[order], labels[order]).covariances, from_data(x, labels).covariances, 10)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
    def test_labels_of_any_whole_dtype(self, dtype):
        x, labels = labelled(classes=2)
        close(from_data(x, (labels > 0).to(dtype)).means, from_data(x, labels).means)

    @pytest.mark.parametrize("kind", ["full", "diagonal", "shared-basis", "spherical"])
    def test_without_spread(self, kind):
        x, labels = labelled()
        x[:, 2:] = 1.0
        if kind == "spherical":
            x[labels == 5] = 2.0
        name = "ellipsoid 0 has no spread along input 2" if kind == "diagonal" else "ellipsoid "
        with pytest.raises(SingularCovarianceError, match=name) as error:
            from_data(x, labels, kind=kind, **KINDS[kind])
        assert "\n" not in str(error.value)
        assert "ridge" in str(error.value)
        if kind != "spherical":  # a share of nothing is nothing
            assert len(from_data(x, labels, kind=kind, **KINDS[kind], ridge=0.1)) == 3

    def test_far_from_the_origin_nothing_is_lost(self):
        x, labels = labelled()
        moved = from_data(x + 1e6, labels)
        close(moved.covariances, from_data(x, labels).covariances, 1e4)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
    def test_data_that_ask_for_gradients_are_data(self, kind):
        x, labels = labelled()
        from_data(x.requires_grad_(), labels, kind=kind, **KINDS[kind])


class TestFromClusters:
    def clear(self, dtype=torch.float64):
        g = torch.Generator().manual_seed(0)
        places = torch.tensor([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0]])
        x = places.repeat(30, 1) + torch.randn(120, 2, generator=g)
        return x.to(dtype), torch.arange(4).repeat(30)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_clear_ones_are_found(self, dtype):
        x, truth = self.clear(dtype)
        ellipsoids, labels = from_clusters(x, 4, seed=1)
        assert labels.dtype == torch.int64
        for k in range(4):
            assert len(set(labels[truth == k].tolist())) == 1
        assert len(set(labels.tolist())) == 4
        assert torch.equal(ellipsoids.nearest(x).indices[:, 0], labels)
        close(ellipsoids.means, from_data(x, labels).means)

    def test_a_seed_decides(self):
        x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        state = torch.random.get_rng_state()
        first, again = (from_clusters(x, 5, seed=3, kind="spherical") for _ in range(2))
        assert torch.equal(first[1], again[1])
        assert torch.equal(first[0].means, again[0].means)
        nearest = torch.cdist(x, first[0].means).argmin(dim=1)
        assert torch.equal(nearest, first[1])  # nothing moves any more
        assert not torch.equal(first[1], from_clusters(x, 5, seed=4, kind="spherical")[1])
        assert torch.equal(state, torch.random.get_rng_state())

    def test_options_are_those_of_data(self):
        x, _ = self.clear()
        ellipsoids, labels = from_clusters(x, 4, kind="low-rank+remainder", rank=1, ridge=0.1)
        wanted = from_data(x, labels, kind="low-rank+remainder", rank=1, ridge=0.1)
        close(ellipsoids.covariances, wanted.covariances)

    def test_too_many(self):
        x, _ = self.clear()
        for count, message in [(121, "121 clusters in x of shape"), (0, "count is 0")]:
            with pytest.raises(InputError, match=message):
                from_clusters(x, count)
        with pytest.raises(InputError, match="leave a cluster with 1; ask for fewer"):
            from_clusters(x, 119)

    def test_fewer_places_than_clusters(self):
        with pytest.raises(InputError, match="fewer clusters"):
            from_clusters(torch.zeros(10, 2), 3)


class Lazy:
    """Covariances that are made when they are asked for."""

    def __init__(self, covariances):
        self.covariances, self.asked = covariances, []

    def __len__(self):
        return len(self.covariances)

    def __getitem__(self, k):
        self.asked.append(k)
        return self.covariances[k]


class TestFromCovariance:
    @pytest.mark.parametrize("name", OPTIONS)
    def test_asks_for_one_after_the_other(self, name):
        lazy = Lazy(some_covariances(7, 5))
        made = from_covariance(some_means(7, 5), lazy, **OPTIONS[name])
        close(made.distances(points(made)), make(name).distances(points(made)))
        rounds = 2 if name == "shared-basis" else 1
        assert lazy.asked == [*range(7)] * rounds

    @pytest.mark.parametrize("name", OPTIONS)
    def test_a_ridge_is_a_share_of_the_mean_variance(self, name):
        covariances = some_covariances(7, 5)
        mean_variance = covariances.diagonal(dim1=1, dim2=2).mean(dim=1)
        raised = covariances + 0.2 * mean_variance[:, None, None] * torch.eye(5).double()
        made = from_covariance(some_means(7, 5), covariances, **OPTIONS[name], ridge=0.2)
        wanted = from_covariance(some_means(7, 5), raised, **OPTIONS[name])
        assert torch.equal(made.ranks, wanted.ranks)
        close(made.covariances, wanted.covariances, 10)
        if "remainder" in made.tensors():
            close(made.remainder, wanted.remainder, 10)

    @pytest.mark.parametrize("name", OPTIONS)
    def test_is_computed_in_float64_and_rounded_once(self, name):
        means, covariances = some_means(7, 5).float(), some_covariances(7, 5).float()
        single = from_covariance(means, covariances, **OPTIONS[name])
        double = from_covariance(means.double(), covariances.double(), **OPTIONS[name])
        for field, tensor in single.tensors().items():
            assert torch.equal(tensor, double.tensors()[field].float()), field

    def test_a_sequence_may_have_another_dtype(self):
        covariances = list(some_covariances(7, 5))
        made = from_covariance(some_means(7, 5).float(), covariances)
        assert made.dtype == torch.float32
        close(made.covariances, some_covariances(7, 5), 10)

    def test_of_a_nearly_symmetric_covariance_the_mean_is_taken(self):
        covariance = some_covariances(1, 3)
        skew = torch.zeros(3, 3).double()
        skew[0, 1] = 1e-10
        made = from_covariance(torch.zeros(1, 3).double(), covariance + skew)
        close(made.covariances, covariance + (skew + skew.T) / 2)
