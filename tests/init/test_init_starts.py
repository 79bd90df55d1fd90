"""Starts of one layer: answers known by construction."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import DTYPES, LAYERS, STARTS, linear, planted, same_state, seeded, state_of
from torch import nn
from torch.nn import functional

import mahalens
from mahalens.errors import InputError
from mahalens.init import (
    class_mean_,
    cluster_pca_,
    initialise,
    kaiming_,
    kaiming_through_samples,
    lsuv_,
    sample_point_bias_,
    whiten_,
)
from mahalens.init.targets import principal_axes
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2, PointSlope

X, Y = planted(3, 4)
METRICS = [
    {"metric": "euclidean"},
    {"metric": "diagonal"},
    {"metric": "low-rank", "rank": 2},
    {"metric": "low-rank", "rank": 4},
    {"metric": "shared", "rank": 2},
]
SINGLE, DOUBLE = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))


def of_class(k):
    return torch.eq(Y, k)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class TestPrincipalAxes:
    @pytest.mark.parametrize(
        ("count", "width"), [(50, 4), (5, 4), (4, 4), (3, 8), (2, 1), (200, 30)]
    )
    def test_they_are_those_of_the_covariance(self, count, width):
        rows = 3 + drawn(count, width)
        axes = principal_axes(rows, DOUBLE)
        rank = min(count - 1, width)
        assert axes.rank == rank
        covariance = torch.cov(rows.T).reshape(width, width)
        values = torch.linalg.eigvalsh(covariance).flip(0)[:rank]
        torch.testing.assert_close(axes.deviations.square(), values)
        turned = axes.directions @ covariance @ axes.directions.T
        torch.testing.assert_close(turned, torch.diag(values))
        torch.testing.assert_close(axes.mean, rows.mean(0))
        largest = axes.directions.gather(1, axes.directions.abs().argmax(1, keepdim=True))
        assert bool((largest > 0).all())

    @settings(deadline=None, max_examples=30)
    @given(
        count=st.integers(2, 400),
        width=st.integers(1, 40),
        rank=st.integers(1, 6),
        offset=st.sampled_from([0.0, 1.0, 1e4]),
        seed=st.integers(0, 99),
    )
    def test_the_rank_of_data_in_a_subspace(self, count, width, rank, offset, seed):
        rows = drawn(count, rank, seed=seed) @ drawn(rank, width, seed=seed + 1) + offset
        found = principal_axes(rows, DOUBLE).rank
        # A draw can have an axis that is thin, but never one more than there are.
        assert found <= min(count - 1, width, rank)
        if count > 20 + rank and offset < 1e4:
            assert found == min(width, rank)

    def test_what_rounding_makes_is_no_axis(self):
        """The third input is the sum of two, rounded to single precision: spread of about 1e-7."""
        x = drawn(3000, 2).float()
        rows = torch.cat([x, x.sum(1, keepdim=True)], 1).double()
        assert principal_axes(rows, SINGLE).rank == 2
        assert principal_axes(rows, DOUBLE).rank == 3, "for double precision it would be one"


def samples_of(n, dim, dtype=torch.float64):
    return (5 + 3 * drawn(n, dim)).to(dtype)


class TestKaimingThroughSamples:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(
        ("n", "dim", "units"), [(1, 1, 1), (30, 2, 4), (20, 10, 20), (3, 50, 7)]
    )
    def test_each_hyperplane_passes_through_a_sample(self, n, dim, units, dtype):
        x = samples_of(n, dim, dtype)
        weight, bias = kaiming_through_samples(x, units, seeded())
        assert weight.shape == (units, dim)
        assert bias.shape == (units,)
        assert weight.dtype == bias.dtype == dtype
        nearest = (x @ weight.T + bias).abs().min(0).values  # [K]
        size = (x.abs() @ weight.T.abs()).max()
        assert nearest.max() <= 4 * torch.finfo(dtype).eps * size

    @pytest.mark.parametrize("dim", [1, 2, 10, 100])
    def test_weights_have_the_kaiming_spread(self, dim):
        units = 40_000 // dim
        weight, _ = kaiming_through_samples(samples_of(10, dim), units, seeded())
        spread = math.sqrt(2 / dim)
        assert abs(weight.mean()) < 5 * spread / math.sqrt(40_000)
        assert abs(weight.std() / spread - 1) < 5 / math.sqrt(2 * 40_000)

    def test_samples_are_chosen_evenly(self):
        x = samples_of(4, 3)
        weight, bias = kaiming_through_samples(x, 4000, seeded())
        chosen = (x @ weight.T + bias).abs().argmin(0)
        counts = torch.bincount(chosen, minlength=4)
        assert bool((counts - 1000).abs().max() < 5 * math.sqrt(1000 * 0.75))


def rows_and_points(layer):
    """Weights [K, D] and biases [K] of a linear layer, float64."""
    weight = layer.weight.detach().double().flatten(1)
    if isinstance(layer, PointSlope):
        return weight, -(weight * layer.point.detach().double()).sum(1)
    return weight, layer.bias.detach().double()


def z_of(layer, x):
    weight, bias = rows_and_points(layer)
    return x.double() @ weight.T + bias


class TestClusterPca:
    @pytest.mark.parametrize("kind", ["Linear", "PointSlope"])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_planted_clusters_are_found_with_their_axes(self, dtype, kind):
        """Of C clusters in D dimensions, C · D units are each cluster's whole whitening."""
        x, labels = planted(3, 4, dtype=dtype)
        layer = cluster_pca_(LAYERS[kind](4, 12, dtype), x, clusters=3, generator=seeded())
        z = z_of(layer, x)
        tolerance = 1e-3 if dtype == torch.float32 else 1e-9
        owned = []
        for c in range(3):
            mean = z[labels == c].mean(0)
            own = (mean.abs() < tolerance).nonzero()[:, 0]
            assert len(own) == 4, "four hyperplanes pass through the mean of each cluster"
            white = torch.cov(z[labels == c][:, own].T)
            torch.testing.assert_close(white, torch.eye(4).double(), rtol=0, atol=10 * tolerance)
            owned += own.tolist()
        assert sorted(owned) == list(range(12))

    def test_rows_are_eigenvectors_over_their_deviations(self):
        x, labels = planted(2, 3)
        layer = cluster_pca_(linear(3, 6), x, clusters=2, generator=seeded())
        z = z_of(layer, x)
        for c in range(2):
            own = (z[labels == c].mean(0).abs() < 1e-9).nonzero()[:, 0]
            values, vectors = torch.linalg.eigh(torch.cov(x[labels == c].T))
            rows = layer.weight.detach()[own]  # dealt in the order of the axes, longest first
            torch.testing.assert_close(rows.norm(dim=1), values.flip(0).rsqrt())
            cosines = (functional.normalize(rows) * vectors.flip(1).T).sum(1)
            torch.testing.assert_close(cosines.abs(), torch.ones(3).double())

    def test_first_axes_of_all_clusters_come_first_and_the_largest_cluster_begins(self):
        layer = cluster_pca_(linear(4, 5), X, clusters=3, generator=seeded())
        z = z_of(layer, X)  # cluster 2 has the most samples
        means = torch.stack([z[of_class(c)].mean(0) for c in range(3)])
        assert means.abs().argmin(0).tolist() == [2, 1, 0, 2, 1]

    def test_labels_in_the_place_of_clusters(self):
        by_class = cluster_pca_(linear(4, 12), X, Y, generator=seeded())
        found = cluster_pca_(linear(4, 12), X, clusters=3, generator=seeded())
        torch.testing.assert_close(by_class.weight, found.weight)
        torch.testing.assert_close(by_class.bias, found.bias)
        # Overlapping classes that k-means would not find.
        mixed = torch.arange(len(X)) % 2
        layer = cluster_pca_(linear(4, 8), X, mixed)
        z = z_of(layer, X)
        for c in range(2):
            assert int((z[mixed == c].mean(0).abs() < 1e-9).sum()) == 4

    @pytest.mark.parametrize(
        ("units", "dim", "expected"), [(9, 4, 3), (16, 10, 4), (16, 2, 8), (1, 3, 1)]
    )
    def test_how_many_clusters_by_default(self, units, dim, expected):
        """√K, or more where there are fewer axes than that."""
        x, _ = planted(expected, dim, per=80)
        layer = cluster_pca_(linear(dim, units), x, generator=seeded())
        points = _points(layer, x, expected)
        assert len(torch.unique(points.round(decimals=6), dim=0)) == expected

    def test_axes_decide_the_clusters(self):
        x, labels = planted(4, 4)
        layer = cluster_pca_(linear(4, 4), x, axes=1, generator=seeded())
        z = z_of(layer, x)
        means = torch.stack([z[labels == c].mean(0) for c in range(4)])
        assert sorted(means.abs().argmin(0).tolist()) == [0, 1, 2, 3]

    def test_mirror_gives_pairs_that_are_an_absolute_value(self):
        x, _ = planted(2, 3)
        plain = cluster_pca_(linear(3, 4), x, clusters=2, generator=seeded())
        pairs = cluster_pca_(linear(3, 7), x, clusters=2, mirror=True, generator=seeded())
        z, both = plain(x), pairs(x).relu()
        torch.testing.assert_close(both[:, 0:6:2] + both[:, 1:6:2], z[:, :3].abs())
        torch.testing.assert_close(both[:, 6], z[:, 3].relu())

    def test_a_cluster_without_axes_is_passed_over(self):
        lonely = torch.full((1, 3), 900.0, dtype=torch.float64)
        x = torch.cat([planted(2, 3)[0], lonely])
        layer = cluster_pca_(linear(3, 6), x, clusters=3, generator=seeded())
        assert bool((layer(lonely).abs() > 1).all())

    def test_far_from_the_origin(self):
        """Clusters whose distance is lost in single precision, offset and all."""
        layer = cluster_pca_(linear(4, 12), X + 1e11, clusters=3, generator=seeded())
        z = layer(X + 1e11).detach()
        for c in range(3):
            assert int((z[of_class(c)].mean(0).abs() < 1e-2).sum()) == 4

    def test_a_constant_input_has_no_weight(self):
        x, _ = planted(2, 3)
        x = torch.cat([x, torch.full((len(x), 1), 1e6).double()], 1)
        layer = cluster_pca_(linear(4, 6), x, clusters=2, generator=seeded())
        assert bool((layer.weight[:, 3].abs() < 1e-9).all())

    def test_prototypes_are_cluster_means_at_unit_mean_square_distance(self):
        for variant in ("paper", "published-code"):
            layer = OffsetL2(4, 3, variant=variant, dtype=torch.float64)
            cluster_pca_(layer, X, generator=seeded())
            for c in range(3):
                away = (layer.mu.detach() - X[of_class(c)].mean(0)).norm(dim=1)
                unit = int(away.argmin())
                assert float(away[unit]) < 1e-9
                square = layer(X[of_class(c)])[:, unit].square().mean()
                torch.testing.assert_close(square, torch.tensor(1.0).double())


def _points(layer, x, clusters):
    """Which cluster mean each unit is zero at."""
    from sklearn.cluster import KMeans

    means = torch.from_numpy(KMeans(clusters, n_init=20, random_state=0).fit(x).cluster_centers_)
    at = z_of(layer, means).abs()
    assert float(at.min(0).values.max()) < 1e-6
    return means[at.argmin(0)]


def check_white(outputs, *blocks):
    """Within each block of units the outputs are uncorrelated, of variance 1."""
    for units in blocks:
        covariance = torch.cov(outputs[:, units].T)
        torch.testing.assert_close(covariance, torch.eye(len(covariance)).double())


class TestWhiten:
    def test_pca_and_zca_are_those_of_the_gaussian(self):
        x, _ = planted(2, 5)
        gaussian = mahalens.Gaussian.from_data(x)
        for kind in ("pca", "zca"):
            layer = whiten_(linear(5, 5), x, kind=kind)
            torch.testing.assert_close(layer.weight.detach(), gaussian.whitening(kind))

    def test_fewer_units_are_the_leading_axes(self):
        x, _ = planted(2, 5)
        whole, part = whiten_(linear(5, 5), x), whiten_(linear(5, 2), x)
        torch.testing.assert_close(part.weight, whole.weight[:2])

    @pytest.mark.parametrize("kind", ["pca", "zca"])
    def test_more_units_are_rotated_copies(self, kind):
        x, _ = planted(2, 3)
        layer = whiten_(linear(3, 8), x, kind=kind, generator=seeded())
        check_white(layer(x).detach(), slice(0, 3), slice(3, 6), slice(6, 8))
        directions = functional.normalize(layer.weight.detach())
        cosines = (directions @ directions.T).abs().fill_diagonal_(0)
        assert float(cosines.max()) < 0.9999, "no unit is a copy of another"
        torch.testing.assert_close(layer.weight[:3], whiten_(linear(3, 3), x, kind=kind).weight)

    def test_inputs_that_are_constant_or_repeated(self):
        x, _ = planted(2, 3)
        x = torch.cat([x, torch.ones(len(x), 1), x[:, :1]], 1)  # rank 3 of 5
        layer = whiten_(linear(5, 7), x, generator=seeded())
        check_white(layer(x).detach(), slice(0, 3), slice(3, 6))
        assert bool((layer.weight[:, 3].abs() < 1e-9).all())

    def test_small_inputs_beside_large_ones_count(self):
        x = torch.randn(200, 2, generator=seeded()) * torch.tensor([1e6, 1e-3])
        layer = whiten_(nn.Linear(2, 2), x)
        torch.testing.assert_close(torch.cov(layer(x).T), torch.eye(2), rtol=0, atol=1e-3)

    def test_few_wide_rows(self):
        x = torch.randn(10, 300, generator=seeded(), dtype=torch.float64)
        check_white(whiten_(linear(300, 9), x)(x).detach(), slice(9))

    def test_rank_and_mirror(self):
        x, _ = planted(2, 4)
        layer = whiten_(linear(4, 4), x, rank=2, generator=seeded())
        whole = whiten_(linear(4, 4), x)
        torch.testing.assert_close(layer.weight[:2], whole.weight[:2])
        outside = layer.weight.detach() @ torch.linalg.eigh(torch.cov(x.T)).eigenvectors[:, :2]
        assert float(outside.abs().max()) < 1e-12, "copies stay in the span of the leading axes"
        pairs = whiten_(linear(4, 8), x, mirror=True)
        torch.testing.assert_close(pairs.weight[0::2], whole.weight)
        torch.testing.assert_close(pairs.weight[1::2], -whole.weight)


class TestPlacedAndScaled:
    def test_sample_point_bias_is_the_start_of_the_gaussian_study(self):
        layer = sample_point_bias_(linear(4, 6), X, generator=seeded(5))
        weight, bias = kaiming_through_samples(X, 6, seeded(5))
        assert torch.equal(layer.weight, weight)
        torch.testing.assert_close(layer.bias.detach(), bias)

    def test_arrays_are_accepted(self):
        starts = [whiten_(linear(4, 4), x).weight for x in (X, X.numpy())]
        assert torch.equal(*starts)
        draws = [kaiming_through_samples(x, 6, seeded(5))[1] for x in (X, X.numpy())]
        assert torch.equal(*draws)

    def test_points_and_prototypes_are_samples(self):
        for layer, name in ((PointSlope(4, 6), "point"), (OffsetL2(4, 6), "mu")):
            sample_point_bias_(layer.double(), X, generator=seeded())
            points = getattr(layer, name).detach()
            assert bool((points[:, None] == X).all(-1).any(1).all())

    @pytest.mark.parametrize("kind", ["Linear", "PointSlope"])
    def test_class_means_lie_on_the_hyperplanes(self, kind):
        layer = class_mean_(LAYERS[kind](4, 8, torch.float64), X, Y, generator=seeded())
        z = z_of(layer, X)
        for unit in range(8):
            assert abs(float(z[of_class(unit % 3), unit].mean())) < 1e-9
        spread = layer.weight.detach().square().mean() * 4 / 2
        assert 0.3 < float(spread) < 3, "Kaiming's"

    def test_classes_need_not_be_numbered_from_0(self):
        one = class_mean_(linear(4, 3), X, Y, generator=seeded())
        two = class_mean_(linear(4, 3), X, 7 * Y - 3, generator=seeded())
        assert torch.equal(one.weight, two.weight)
        assert torch.equal(one.bias, two.bias)

    def test_prototypes_at_class_means(self):
        layer = class_mean_(OffsetL2(4, 3, dtype=torch.float64), X, Y)
        for c in range(3):
            torch.testing.assert_close(layer.mu[c].detach(), X[of_class(c)].mean(0))
            square = layer(X[of_class(c)])[:, c].square().mean()
            torch.testing.assert_close(square, torch.tensor(1.0).double())

    def test_a_class_without_spread_has_that_of_all(self):
        x, labels = planted(2, 4)
        x = torch.cat([x, x.new_full((3, 4), 7.0)])
        labels = torch.cat([labels, torch.full((3,), 2)])
        layer = class_mean_(OffsetL2(4, 3, dtype=torch.float64), x, labels)
        # Within its class the mean square is 1 for the others; over all rows it is so for it.
        squares = [float((1 / layer.alpha[c, 0]).square().detach()) for c in range(3)]
        sizes = [int((labels == c).sum()) for c in range(2)]
        expected = (squares[0] * sizes[0] + squares[1] * sizes[1]) / len(x)
        assert squares[2] == pytest.approx(expected)

    def test_a_class_with_several_prototypes_is_divided(self):
        x, clusters = planted(4, 4)
        labels = clusters // 2  # two classes of two clusters each
        layer = class_mean_(OffsetL2(4, 4, dtype=torch.float64), x, labels, generator=seeded())
        means = torch.stack([x[clusters == c].mean(0) for c in range(4)])
        nearest = torch.cdist(layer.mu.detach(), means).argmin(1)
        assert sorted(nearest.tolist()) == [0, 1, 2, 3]
        assert (nearest // 2).tolist() == [0, 1, 0, 1]
        torch.testing.assert_close(layer.mu.detach(), means[nearest])
        for variant in ({"y": labels}, {}):
            again = cluster_pca_(OffsetL2(4, 4, dtype=torch.float64), x, **variant)
            assert float(torch.cdist(again.mu, means).min(1).values.max().detach()) < 1e-6

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("units", [3, 4, 9])
    def test_lsuv_has_orthonormal_rows_and_unit_variance(self, units, bias):
        x, _ = planted(2, 4)
        layer = lsuv_(linear(4, units, bias=bias), x, generator=seeded())
        torch.testing.assert_close(layer(x).var(correction=0), torch.tensor(1.0).double())
        assert layer.bias is None or not bool(layer.bias.any())
        weight = layer.weight.detach()
        gram = weight @ weight.T if units <= 4 else weight.T @ weight
        scale = gram.diagonal().mean()
        torch.testing.assert_close(gram / scale, torch.eye(len(gram)).double())

    def test_kaiming(self):
        layer = kaiming_(linear(50, 400), generator=seeded())
        assert abs(float(layer.weight.detach().std()) / math.sqrt(2 / 50) - 1) < 0.03
        assert not bool(layer.bias.any())
        layer = kaiming_(OffsetL2(50, 400), generator=seeded())
        assert abs(float(layer.mu.detach().std()) / 0.1 - 1) < 0.03
        assert bool((layer.alpha == 1).all())


@pytest.mark.parametrize("name", STARTS)
def test_a_convolution_is_a_linear_layer_on_patches(name):
    x, labels = drawn(12, 2, 6, 6) + 3, torch.arange(12) % 3
    conv, flat = nn.Conv2d(2, 5, 3, stride=2, padding=1, dtype=torch.float64), linear(18, 5)
    patches = functional.unfold(x, 3, stride=2, padding=1).movedim(1, 2).flatten(0, 1)
    STARTS[name](conv, x, labels, generator=seeded())
    STARTS[name](flat, patches, labels.repeat_interleave(9), generator=seeded())
    torch.testing.assert_close(conv.weight.flatten(1), flat.weight)
    torch.testing.assert_close(conv.bias, flat.bias)


@pytest.fixture(params=METRICS, ids=lambda c: "-".join(map(str, c.values())))
def choice(request):
    return request.param


def head_of(choice, x=X, y=Y, method="cluster_pca"):
    head = DistanceHead(4, 3, dtype=torch.float64, **choice)
    initialise(nn.Sequential(head), (x, y), method, generator=seeded())
    return head


def close(one, two):
    one, two = state_of(one), state_of(two)
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], equal_nan=True)


def covariance(layer, unit=0):
    return layer.covariances[unit].detach()


def fitted(choice):
    """The head of the closed form, with a temperature and a threshold."""
    head = DistanceHead(4, 3, dtype=torch.float64, normalise="none", **choice)
    head.fit_prototypes(X, Y).set_reject(X, 0.1)
    head.temperature.fill_(3.0)
    return head


class TestHeads:
    def test_cluster_pca_is_the_closed_form(self, choice):
        head, wanted = head_of(choice), fitted(choice)
        torch.testing.assert_close(head(X), 3 * wanted(X))
        torch.testing.assert_close(head.log_determinants, wanted.log_determinants)

    @pytest.mark.parametrize("method", ["cluster_pca", "class_mean"])
    def test_the_prototype_of_a_class_is_its_mean(self, choice, method):
        means = torch.stack([X[of_class(k)].mean(0) for k in range(3)])
        torch.testing.assert_close(head_of(choice, method=method).prototypes.detach(), means)

    def test_or_a_sample_of_it(self, choice):
        head = head_of(choice, method="sample_point_bias")
        for k in range(3):
            assert bool((X[of_class(k)] == head.prototypes[k]).all(1).any())

    def test_a_euclidean_head_keeps_its_one_scale(self):
        for method in ("cluster_pca", "class_mean", "sample_point_bias"):
            assert len(head_of({}, method=method).distance.alpha.unique()) == 1

    @pytest.mark.parametrize("method", ["class_mean", "sample_point_bias"])
    def test_starts_that_place_give_spheres_of_the_spread_within_classes(self, method):
        rest = torch.cat([X[of_class(k)] - X[of_class(k)].mean(0) for k in range(3)])
        spread = (rest.square().sum() / (len(X) - 3) / 4).sqrt()
        plain = head_of({"metric": "diagonal"}, method=method).distance.alpha.detach()
        torch.testing.assert_close(plain, (1 / spread).expand(3, 4))
        low = head_of({"metric": "low-rank", "rank": 2}, method=method).distance
        torch.testing.assert_close(low.log_spread.detach(), spread.log().expand(3, 1))
        assert 0.2 < float(low.axes.detach().norm(dim=-1).mean() / spread) < 2
        assert len(low.axes.unique()) == low.axes.numel()

    def test_whiten_is_the_covariance_of_all_rows(self):
        for metric in ("low-rank", "shared"):
            head = head_of({"metric": metric, "rank": 4}, method="whiten")
            for unit in range(3):
                torch.testing.assert_close(covariance(head.distance, unit), torch.cov(X.T))
            means = torch.stack([X[of_class(k)].mean(0) for k in range(3)])
            torch.testing.assert_close(head.prototypes.detach(), means)

    def test_what_was_set_for_other_distances_is_taken_back(self, choice):
        head = fitted(choice)
        initialise(head, (X, Y), "class_mean", generator=seeded())
        assert head.temperature == 1
        assert bool(head.threshold.isnan().all())
        assert bool(head.reject_rate.isnan())

    def test_behind_a_backbone_it_sees_what_the_started_layers_make(self, choice):
        layers = nn.Linear(4, 4, dtype=torch.float64), nn.Tanh()
        head = DistanceHead(4, 3, dtype=torch.float64, **choice)
        model = nn.Sequential(*layers, head)
        done = initialise(model, (X, Y), "cluster_pca", generator=seeded(), batch_size=50)
        assert done.started == {"0": "cluster_pca", "2": "cluster_pca"}
        with torch.no_grad():
            features = model[:2](X)
        close(head, head_of(choice, x=features))

    def test_a_failure_behind_it_leaves_it_as_it_was(self, choice):
        model = nn.Sequential(fitted(choice), nn.Linear(3, 500, dtype=torch.float64))
        before = state_of(model)
        with pytest.raises(InputError, match=r"^layer '1': .*no weights were changed"):
            initialise(model, (X[:40], Y[:40]), "cluster_pca")
        assert same_state(before, state_of(model))

    def test_lsuv_leaves_it_alone_and_says_why(self, choice):
        head = DistanceHead(4, 3, dtype=torch.float64, **choice)
        before = state_of(head)
        with pytest.warns(UserWarning, match="not started: '1'"):
            done = initialise(nn.Sequential(nn.Linear(4, 4).double(), head), (X, Y), "lsuv")
        assert list(done.started) == ["0"]
        assert done.left["1"].startswith("DistanceHead has prototypes and no rows for lsuv; take ")
        assert same_state(before, state_of(head), equal_nan=True)

    def test_inputs_constant_in_one_class_get_the_spread_of_all(self):
        x = X.clone()
        x[of_class(1), 2] = 7.0
        head = head_of({"metric": "diagonal"}, x=x)
        rest = torch.cat([x[of_class(k)] - x[of_class(k)].mean(0) for k in range(3)])
        spread = (rest.square().sum() / (len(x) - 3) / 4).sqrt()
        assert 1 / head.distance.alpha[1, 2].item() == pytest.approx(spread.item())
        assert 1 / head.distance.alpha[1, 1].item() == pytest.approx(x[of_class(1), 1].std().item())


class TestMahalanobis:
    def test_clusters_and_their_axes(self):
        layer = cluster_pca_(Mahalanobis(4, 3, 4).double(), X, generator=seeded())
        found = {int(Y[(X - mu).norm(dim=1).argmin()]) for mu in layer.mu.detach()}
        assert found == {0, 1, 2}
        for unit, mu in enumerate(layer.mu.detach()):
            k = int(Y[(X - mu).norm(dim=1).argmin()])
            torch.testing.assert_close(mu, X[of_class(k)].mean(0))
            torch.testing.assert_close(covariance(layer, unit), torch.cov(X[of_class(k)].T))

    def test_classes_for_clusters(self):
        layer = cluster_pca_(Mahalanobis(4, 3, 2).double(), X, Y)
        close(layer, Mahalanobis.from_data(X, Y, rank=2))
        shared = cluster_pca_(Mahalanobis(4, 3, 2, shared=True).double(), X, Y)
        close(shared, Mahalanobis.from_data(X, Y, rank=2, shared=True))

    def test_several_units_for_a_class_are_its_clusters(self):
        layer = class_mean_(Mahalanobis(4, 6, 1).double(), X, Y, generator=seeded())
        assert len(layer.mu.unique(dim=0)) == 6
        for k in range(3):
            nearest = (X[of_class(k)][:, None] - layer.mu).norm(dim=-1).argmin(1)
            assert set(nearest.tolist()) == {k, k + 3}

    def test_a_cluster_of_one_sample_gets_the_shape_of_all(self):
        x = torch.cat([X, torch.full((1, 4), 1e4, dtype=torch.float64)])
        layer = cluster_pca_(Mahalanobis(4, 4, 2).double(), x, generator=seeded())
        alone = int(layer.mu.detach().norm(dim=1).argmax())
        pooled = Mahalanobis.from_data(X, Y, rank=2, shared=True)
        bounds = {"rtol": 1e-6, "atol": 1e-6}
        torch.testing.assert_close(covariance(layer, alone), covariance(pooled), **bounds)


class TestGroups:
    @pytest.mark.parametrize("method", ["whiten", "cluster_pca"])
    def test_each_group_is_started_as_a_layer_of_its_own(self, method):
        x = torch.randn(40, 4, 7, 7, generator=seeded(), dtype=torch.float64)
        whole = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, dtype=torch.float64)
        initialise(whole, x, method, generator=seeded(), rows=None)
        generator = seeded()
        for group in range(2):
            part = nn.Conv2d(2, 3, 3, stride=2, padding=1, dtype=torch.float64)
            channels, units = slice(2 * group, 2 * group + 2), slice(3 * group, 3 * group + 3)
            initialise(part, x[:, channels], method, generator=generator, rows=None)
            torch.testing.assert_close(whole.weight[units], part.weight)
            torch.testing.assert_close(whole.bias[units], part.bias)

    def test_classes_go_on_from_one_group_to_the_next(self):
        x = torch.randn(60, 3, 9, generator=seeded(), dtype=torch.float64)
        y = torch.arange(60) % 2
        x[y == 1] += 5
        layer = class_mean_(nn.Conv1d(3, 3, 2, groups=3).double(), x, y, generator=seeded())
        for unit in range(3):
            own = layer(x)[y == unit % 2, unit].mean()
            other = layer(x)[y != unit % 2, unit].mean()
            assert abs(own.item()) < 1e-9 < abs(other.item())

    @pytest.mark.parametrize("method", ["kaiming", "lsuv"])
    def test_rows_have_the_width_of_a_group(self, method):
        x = torch.randn(60, 64, 5, 5, generator=seeded())
        layer = nn.Conv2d(64, 512, 3, groups=64)
        initialise(layer, x, method, generator=seeded())
        spread = layer.weight.std().item()
        # Kaiming: √(2/9). LSUV: 8 orthonormal rows of 9 entries, and inputs of variance 1.
        assert spread == pytest.approx({"kaiming": (2 / 9) ** 0.5, "lsuv": 1 / 3}[method], rel=0.05)
