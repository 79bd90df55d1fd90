"""Starts of layers that measure in ellipsoids, and of heads, whose prototypes are classes."""

import pytest
import torch
from starts import planted, same_state, seeded, state_of
from torch import nn

from mahalens.errors import InputError
from mahalens.init import class_mean_, cluster_pca_, initialise, kaiming_, whiten_
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2

X, Y = planted(3, 4)
METRICS = [
    {"metric": "euclidean"},
    {"metric": "diagonal"},
    {"metric": "low-rank", "rank": 2},
    {"metric": "low-rank", "rank": 4},
    {"metric": "shared", "rank": 2},
]


@pytest.fixture(params=METRICS, ids=lambda c: "-".join(map(str, c.values())))
def choice(request):
    return request.param


def head_of(choice, x=X, y=Y, method="cluster_pca"):
    head = DistanceHead(4, 3, dtype=torch.float64, **choice)
    initialise(nn.Sequential(head), (x, y), method, generator=seeded())
    return head


def of_class(k):
    return torch.eq(Y, k)


def close(one, two):
    one, two = state_of(one), state_of(two)
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], equal_nan=True)


def covariance(layer, unit=0):
    return layer.covariances[unit].detach()


class TestHeads:
    def test_cluster_pca_is_the_closed_form(self, choice):
        fitted = DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(X, Y)
        torch.testing.assert_close(head_of(choice)(X), fitted(X))
        torch.testing.assert_close(head_of(choice).log_determinants, fitted.log_determinants)

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
        head = DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(X, Y)
        head.temperature.fill_(3.0)
        head.set_reject(X, 0.1)
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
        head = DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(X, Y)
        head.temperature.fill_(3.0)
        head.set_reject(X, 0.1)
        model = nn.Sequential(head, nn.Linear(3, 500, dtype=torch.float64))
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
        after = state_of(head)
        for key, value in before.items():
            torch.testing.assert_close(after[key], value, rtol=0, atol=0, equal_nan=True)

    def test_classes_that_are_not_its_own(self, choice):
        for y, said in (
            (Y + 1, "y has class 3, but the head has a prototype for each of the classes 0 to 2"),
            (Y.clamp(max=1), "y has no class 2, but the head"),
        ):
            head = DistanceHead(4, 3, dtype=torch.float64, **choice)
            with pytest.raises(InputError, match=said):
                cluster_pca_(head, X, y)

    def test_no_classes(self, choice):
        model = nn.Sequential(DistanceHead(4, 3, dtype=torch.float64, **choice))
        with pytest.raises(InputError, match="DistanceHead wants the classes of the samples"):
            initialise(model, X, "cluster_pca")
        with pytest.raises(InputError, match="cluster_pca wants the classes y"):
            cluster_pca_(model[0], X)

    def test_functions_without_classes_say_where_to_give_them(self):
        head = DistanceHead(4, 3, metric="shared", rank=2, dtype=torch.float64)
        with pytest.raises(InputError, match=r"take initialise\(layer, \(x, y\), 'whiten'\)"):
            whiten_(head, X)
        initialise(head, (X, Y), "whiten")

    def test_its_parts_are_not_started_by_themselves(self):
        model = nn.Sequential(DistanceHead(4, 3).double())
        with pytest.raises(InputError, match=r"'0.distance': is part of the DistanceHead '0'"):
            initialise(model, (X, Y), "class_mean", layers=["0.distance"])

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
        torch.testing.assert_close(
            covariance(layer, alone), covariance(pooled), rtol=1e-6, atol=1e-6
        )

    def test_whiten_is_one_shape_for_all(self):
        layer = whiten_(Mahalanobis(4, 3, 4).double(), X, generator=seeded())
        for unit in range(3):
            torch.testing.assert_close(covariance(layer, unit), torch.cov(X.T))
        assert len(layer.mu.unique(dim=0)) == 3

    def test_kaiming_is_what_it_draws_itself(self):
        layer = kaiming_(Mahalanobis(100, 50, 8), generator=seeded())
        assert 0.097 < layer.mu.std() < 0.103
        assert torch.equal(layer.log_spread, torch.zeros(50, 1))
        assert 0.98 < layer.axes.norm(dim=-1).mean() < 1.02

    def test_every_other_number_of_clusters_is_refused(self):
        with pytest.raises(InputError, match="clusters is 2, but the layer has 3 prototypes"):
            cluster_pca_(Mahalanobis(4, 3, 2).double(), X, clusters=2)


def test_offset_l2_is_started_as_before_and_not_by_heads_rules():
    """Prototypes at cluster means, mean square distance 1: what its page says."""
    layer = class_mean_(OffsetL2(4, 3).double(), X, Y)
    own = layer(X).square().gather(1, Y[:, None])
    for k in range(3):
        assert own[of_class(k)].mean().item() == pytest.approx(1)


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
