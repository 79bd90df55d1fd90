"""Starting weights of one layer: answers known by construction."""

import math

import pytest
import torch
from starts import DTYPES, LAYERS, STARTS, linear, planted, seeded, state_of
from torch import nn
from torch.nn import functional

import mahalens
from mahalens.init import (
    class_mean_,
    cluster_pca_,
    kaiming_,
    kaiming_through_samples,
    lsuv_,
    sample_point_bias_,
    whiten_,
)
from mahalens.nn import OffsetL2, PointSlope


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
        x, labels = planted(3, 4)  # cluster 2 has the most samples
        layer = cluster_pca_(linear(4, 5), x, clusters=3, generator=seeded())
        z = z_of(layer, x)
        means = torch.stack([z[labels == c].mean(0) for c in range(3)])
        assert means.abs().argmin(0).tolist() == [2, 1, 0, 2, 1]

    def test_labels_in_the_place_of_clusters(self):
        x, labels = planted(3, 4)
        by_class = cluster_pca_(linear(4, 12), x, labels, generator=seeded())
        found = cluster_pca_(linear(4, 12), x, clusters=3, generator=seeded())
        torch.testing.assert_close(by_class.weight, found.weight)
        torch.testing.assert_close(by_class.bias, found.bias)
        # Overlapping classes that k-means would not find.
        mixed = torch.arange(len(x)) % 2
        layer = cluster_pca_(linear(4, 8), x, mixed)
        z = z_of(layer, x)
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
        x, labels = planted(3, 4)
        layer = cluster_pca_(linear(4, 12), x + 1e11, clusters=3, generator=seeded())
        z = layer(x + 1e11).detach()
        for c in range(3):
            assert int((z[labels == c].mean(0).abs() < 1e-2).sum()) == 4

    def test_a_constant_input_has_no_weight(self):
        x, _ = planted(2, 3)
        x = torch.cat([x, torch.full((len(x), 1), 1e6).double()], 1)
        layer = cluster_pca_(linear(4, 6), x, clusters=2, generator=seeded())
        assert bool((layer.weight[:, 3].abs() < 1e-9).all())

    def test_prototypes_are_cluster_means_at_unit_mean_square_distance(self):
        x, labels = planted(3, 4)
        for variant in ("paper", "published-code"):
            layer = OffsetL2(4, 3, variant=variant, dtype=torch.float64)
            cluster_pca_(layer, x, generator=seeded())
            for c in range(3):
                away = (layer.mu.detach() - x[labels == c].mean(0)).norm(dim=1)
                unit = int(away.argmin())
                assert float(away[unit]) < 1e-9
                square = layer(x[labels == c])[:, unit].square().mean()
                torch.testing.assert_close(square, torch.tensor(1.0).double())


def _points(layer, x, clusters):
    """Which cluster mean each unit is zero at."""
    from sklearn.cluster import KMeans

    means = torch.from_numpy(KMeans(clusters, n_init=20, random_state=0).fit(x).cluster_centers_)
    at = z_of(layer, means).abs()
    assert float(at.min(0).values.max()) < 1e-6
    return means[at.argmin(0)]


class TestWhiten:
    @pytest.mark.parametrize("kind", ["pca", "zca"])
    def test_white_as_an_audit_reads_it(self, kind):
        x, _ = planted(3, 4, per=200)
        layer = whiten_(linear(4, 4), x, kind=kind)
        record = mahalens.audit(nn.Sequential(layer), x)
        reading = record.layers[0].whitening
        assert reading.sphericity < 1e-9
        assert reading.precision_error < 1e-9
        assert float(record.layers[0].hyperplanes.mean_spreads.abs().max()) < 1e-9
        torch.testing.assert_close(torch.cov(layer(x).T), torch.eye(4).double())

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
        outputs = layer(x).detach()
        for start in (0, 3):
            torch.testing.assert_close(
                torch.cov(outputs[:, start : start + 3].T), torch.eye(3).double()
            )
        torch.testing.assert_close(torch.cov(outputs[:, 6:].T), torch.eye(2).double())
        directions = functional.normalize(layer.weight.detach())
        cosines = (directions @ directions.T).abs().fill_diagonal_(0)
        assert float(cosines.max()) < 0.9999, "no unit is a copy of another"
        torch.testing.assert_close(layer.weight[:3], whiten_(linear(3, 3), x, kind=kind).weight)

    def test_inputs_that_are_constant_or_repeated(self):
        x, _ = planted(2, 3)
        x = torch.cat([x, torch.ones(len(x), 1), x[:, :1]], 1)  # rank 3 of 5
        layer = whiten_(linear(5, 7), x, generator=seeded())
        outputs = layer(x).detach()
        for start in (0, 3):
            torch.testing.assert_close(
                torch.cov(outputs[:, start : start + 3].T), torch.eye(3).double()
            )
        assert bool((layer.weight[:, 3].abs() < 1e-9).all())

    def test_small_inputs_beside_large_ones_count(self):
        x = torch.randn(200, 2, generator=seeded()) * torch.tensor([1e6, 1e-3])
        layer = whiten_(nn.Linear(2, 2), x)
        torch.testing.assert_close(torch.cov(layer(x).T), torch.eye(2), rtol=0, atol=1e-3)

    def test_few_wide_rows(self):
        x = torch.randn(10, 300, generator=seeded(), dtype=torch.float64)
        layer = whiten_(linear(300, 9), x)
        torch.testing.assert_close(torch.cov(layer(x).T), torch.eye(9).double())

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
    def test_sample_point_bias_is_the_start_of_source_000(self):
        x, _ = planted()
        layer = sample_point_bias_(linear(4, 6), x, generator=seeded(5))
        weight, bias = kaiming_through_samples(x, 6, seeded(5))
        assert torch.equal(layer.weight, weight)
        torch.testing.assert_close(layer.bias.detach(), bias)

    def test_points_and_prototypes_are_samples(self):
        x, _ = planted()
        for layer, name in ((PointSlope(4, 6), "point"), (OffsetL2(4, 6), "mu")):
            sample_point_bias_(layer.double(), x, generator=seeded())
            points = getattr(layer, name).detach()
            assert bool((points[:, None] == x).all(-1).any(1).all())

    @pytest.mark.parametrize("kind", ["Linear", "PointSlope"])
    def test_class_means_lie_on_the_hyperplanes(self, kind):
        x, labels = planted(3, 4)
        layer = class_mean_(LAYERS[kind](4, 8, torch.float64), x, labels, generator=seeded())
        z = z_of(layer, x)
        for unit in range(8):
            assert abs(float(z[labels == unit % 3, unit].mean())) < 1e-9
        spread = layer.weight.detach().square().mean() * 4 / 2
        assert 0.3 < float(spread) < 3, "Kaiming's"

    def test_classes_need_not_be_numbered_from_0(self):
        x, labels = planted(3, 4)
        one = class_mean_(linear(4, 3), x, labels, generator=seeded())
        two = class_mean_(linear(4, 3), x, 7 * labels - 3, generator=seeded())
        assert torch.equal(one.weight, two.weight)
        assert torch.equal(one.bias, two.bias)

    def test_prototypes_at_class_means(self):
        x, labels = planted(3, 4)
        layer = class_mean_(OffsetL2(4, 3, dtype=torch.float64), x, labels)
        for c in range(3):
            torch.testing.assert_close(layer.mu[c].detach(), x[labels == c].mean(0))
            square = layer(x[labels == c])[:, c].square().mean()
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


class TestConvolutions:
    @pytest.mark.parametrize("name", STARTS)
    def test_a_convolution_is_a_linear_layer_on_patches(self, name):
        x = torch.randn(12, 2, 6, 6, generator=seeded(), dtype=torch.float64) + 3
        labels = torch.arange(12) % 3
        conv = nn.Conv2d(2, 5, 3, stride=2, padding=1, dtype=torch.float64)
        patches = functional.unfold(x, 3, stride=2, padding=1).movedim(1, 2).flatten(0, 1)
        flat = linear(18, 5)
        STARTS[name](conv, x, labels, generator=seeded())
        STARTS[name](flat, patches, labels.repeat_interleave(9), generator=seeded())
        torch.testing.assert_close(conv.weight.flatten(1), flat.weight)
        torch.testing.assert_close(conv.bias, flat.bias)

    def test_a_whitening_of_patches_as_an_audit_reads_it(self):
        x = torch.randn(60, 1, 8, 8, generator=seeded(), dtype=torch.float64).cumsum(-1)
        conv = whiten_(nn.Conv2d(1, 4, 2, dtype=torch.float64), x)
        reading = mahalens.audit(nn.Sequential(conv), x, patches=100).layers[0].whitening
        assert reading.sphericity < 1e-9


def test_the_layer_itself_is_returned():
    layer = linear(4, 3)
    before = state_of(layer)
    assert whiten_(layer, planted()[0]) is layer
    assert not torch.equal(layer.weight, before["weight"])
