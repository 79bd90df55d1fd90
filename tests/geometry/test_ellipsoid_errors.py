"""Every fault in what ellipsoids are given is one line that says what is wanted."""

import pytest
import torch
from ellipsoid_kinds import NAMES, WITH_L1, make, points, some_covariances, some_means

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry.ellipsoids import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
    concatenate,
    from_clusters,
    from_covariance,
    from_data,
)

MEANS, COVARIANCES = some_means(3, 4), some_covariances(3, 4)
EYES = torch.eye(4).repeat(3, 1, 1)
NAN = float("nan")


def with_entry(place, value):
    changed = COVARIANCES.clone()
    changed[place] = value
    return changed


def fault(call, message, kind=InputError):
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is None


RANKED = ["low-rank", "low-rank+remainder", "shared-basis"]
UNRANKED = ["full", "diagonal", "spherical"]
ALL = [*RANKED, *UNRANKED]


class TestChoices:
    @pytest.mark.parametrize("kind", RANKED)
    @pytest.mark.parametrize("rank", [0, -1, 5, 2.0, True, "2", None, "all"])
    def test_a_rank_that_cannot_be(self, kind, rank):
        fault(lambda: from_covariance(MEANS, COVARIANCES, kind=kind, rank=rank), "rank")

    @pytest.mark.parametrize("kind", UNRANKED)
    @pytest.mark.parametrize("given", [{"rank": 2}, {"rank": "auto"}, {"explained": 0.9}])
    def test_a_rank_where_there_is_none(self, kind, given):
        fault(
            lambda: from_covariance(MEANS, COVARIANCES, kind=kind, **given), "which has none; leave"
        )

    @pytest.mark.parametrize("target", [0.0, 1.0, -0.1, 2, NAN])
    @pytest.mark.parametrize("name", ["explained", "error"])
    def test_a_target_that_cannot_be(self, name, target):
        options = {"kind": "low-rank", "rank": "auto", name: target}
        fault(lambda: from_covariance(MEANS, COVARIANCES, **options), f"{name} is {target}")

    def test_targets_that_do_not_fit(self):
        def ask(**options):
            return lambda: from_covariance(MEANS, COVARIANCES, **options)

        both = {"explained": 0.9, "error": 0.1}
        fault(ask(kind="low-rank", rank="auto", **both), "both given")
        fault(ask(kind="low-rank", rank=2, error=0.1), 'needs rank="auto"')
        fault(ask(kind="shared-basis", rank="auto", error=0.1), "by explained variance only")
        for rank in (0, 5, 1.5):
            fault(lambda rank=rank: make("full").truncate(rank + 1 if rank else 0), "rank is")
        fault(lambda: make("full").truncate(2, remainder="some"), "remainder is 'some'")

    @pytest.mark.parametrize("kind", ["ellipsoid", "", None, "Full"])
    def test_an_unknown_kind(self, kind):
        fault(lambda: from_covariance(MEANS, COVARIANCES, kind=kind), f"kind is {kind!r}, wanted")
        labels = torch.arange(20) % 2
        fault(lambda: from_data(torch.randn(20, 2), labels, kind=kind), "kind is")

    @pytest.mark.parametrize("kind", ["low-rank+remainder", "shared-basis"])
    def test_an_unknown_remainder(self, kind):
        fault(
            lambda: from_covariance(MEANS, COVARIANCES, kind=kind, rank=2, remainder="mean"),
            "remainder is 'mean', wanted",
        )

    @pytest.mark.parametrize("ridge", [-1.0, NAN, float("inf")])
    def test_a_ridge_that_cannot_be(self, ridge):
        fault(lambda: from_covariance(MEANS, COVARIANCES, ridge=ridge), "ridge is")

    @pytest.mark.parametrize("norm", ["l3", "L2", None, 2])
    @pytest.mark.parametrize("name", NAMES)
    def test_an_unknown_norm(self, name, norm):
        ellipsoids = make(name)
        x = points(ellipsoids)
        for ask in (ellipsoids.distances, ellipsoids.tangent, ellipsoids.nearest):
            fault(lambda ask=ask: ask(x, norm=norm), f"norm is {norm!r}, wanted")

    @pytest.mark.parametrize("name", [name for name in NAMES if name not in WITH_L1])
    def test_l1_of_a_remainder(self, name):
        ellipsoids = make(name)
        for ask in (ellipsoids.distances, ellipsoids.tangent):
            fault(lambda ask=ask: ask(points(ellipsoids), norm="l1"), "components are not known")


class TestCovariances:
    @pytest.mark.parametrize("kind", ALL)
    def test_not_symmetric_or_not_finite(self, kind):
        def ask(covariances):
            rank = 2 if kind in RANKED else None
            return lambda: from_covariance(MEANS, covariances, kind=kind, rank=rank)

        fault(ask(with_entry((1, 0, 2), 9.0)), "ellipsoid 1: .*not symmetric")
        for bad in (NAN, float("inf")):
            fault(ask(with_entry((2, 1, 1), bad)), "ellipsoid 2: .*NaN or infinite")

    @pytest.mark.parametrize("kind", ["full", "diagonal"])
    def test_not_positive_definite(self, kind):
        fault(lambda: from_covariance(MEANS, with_entry((1, 3, 3), -1.0), kind=kind), "ellipsoid 1")

    @pytest.mark.parametrize("kind", [*RANKED, "spherical"])
    def test_negative_variances_that_are_not_kept(self, kind):
        bad = torch.diag(torch.tensor([9.0, 4.0, 3.0, -1.0]).double()).expand(3, 4, 4)
        fault(
            lambda: from_covariance(MEANS, bad, kind=kind, rank=2 if kind in RANKED else None),
            "ellipsoid 0",
        )

    def test_singular(self):
        flat = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0]).double())
        given = [COVARIANCES[0], flat, COVARIANCES[2]]

        def ask(kind, rank=None, **options):
            return lambda: from_covariance(MEANS, given, kind=kind, rank=rank, **options)

        where, singular = "ellipsoid 1", SingularCovarianceError
        fault(ask("full"), where, singular)
        fault(ask("diagonal"), f"{where} has no spread along input 2", singular)
        fault(ask("low-rank", 3), f"{where}: rank 3 is more than the 2 of 4", singular)
        fault(ask("low-rank+remainder", 2), f"{where}: .*remainder would be 0", singular)
        fault(ask("low-rank+remainder", 1, remainder="precision"), "no mean precision", singular)
        from_covariance(MEANS, given, kind="low-rank", rank=2)
        from_covariance(MEANS, given, ridge=1e-3)
        nothing = [torch.zeros(4, 4)] * 3
        fault(lambda: from_covariance(MEANS, nothing, kind="spherical"), "no spread", singular)

    def test_of_a_basis_without_rest(self):
        flat = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0]).double())
        fault(
            lambda: from_covariance(MEANS, [flat] * 3, kind="shared-basis", rank=2),
            "ellipsoid 0: .*beyond the shared basis",
            SingularCovarianceError,
        )

    def test_shapes_and_dtypes(self):
        def ask(means, covariances):
            return lambda: from_covariance(means, covariances)

        fault(ask(MEANS[:0], COVARIANCES[:0]), "K and D at least 1")
        fault(ask(MEANS[0], COVARIANCES), "means has shape")
        fault(ask(MEANS[None], COVARIANCES), r"means have shape \[1, 3, 4\]")
        fault(ask(MEANS, COVARIANCES[:2]), "3 means and 2 covariances")
        fault(ask(MEANS, COVARIANCES[0]), "covariances has shape")
        fault(ask(MEANS, COVARIANCES[:, :3, :3]), r"ellipsoid 0: .*wanted \[4, 4\]")
        fault(ask(MEANS.float(), COVARIANCES), "covariances is float64 and means float32")
        fault(ask(MEANS.half(), COVARIANCES), "means is float16, wanted float32 or float64")
        fault(ask(MEANS, [c.half() for c in COVARIANCES]), "covariance is float16")
        fault(ask(MEANS.long(), COVARIANCES), "means is int64")
        fault(ask(MEANS.tolist(), COVARIANCES), "means is a list")
        fault(ask(MEANS * NAN, COVARIANCES), "means has 12 value")


class TestTensors:
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: FullEllipsoids(torch.zeros(3, 4), EYES[:2]), r"wanted \[3, 4, 4\]"),
            (lambda: FullEllipsoids(torch.zeros(3, 4), EYES + 1), "above its diagonal"),
            (lambda: FullEllipsoids(torch.zeros(3, 4), -EYES), "-1 on its diagonal"),
            (lambda: FullEllipsoids(torch.zeros(3, 4), EYES.double()), "float64 and means float32"),
            (lambda: FullEllipsoids(torch.zeros(3, 4), EYES * NAN), "NaN or infinite"),
            (lambda: SphericalEllipsoids(torch.zeros(0, 4), torch.ones(0)), "at least 1"),
            (lambda: SphericalEllipsoids(torch.zeros(4), torch.ones(4)), "means has shape"),
            (lambda: SphericalEllipsoids(torch.zeros(1, 2, 3), torch.ones(1)), "means have shape"),
            (lambda: SphericalEllipsoids(torch.zeros(3, 4), torch.zeros(3)), "as small as 0"),
            (lambda: SphericalEllipsoids(torch.zeros(3, 4), torch.ones(3, 4)), r"wanted \[3\]"),
            (lambda: DiagonalEllipsoids(torch.zeros(3, 4), torch.ones(3)), r"wanted \[3, 4\]"),
            (lambda: DiagonalEllipsoids(torch.zeros(3, 4), torch.ones(3, 4).half()), "float16"),
            (lambda: LowRankEllipsoids(torch.zeros(3, 4), EYES, torch.ones(3, 3)), r"\[3, 4\]"),
            (lambda: LowRankEllipsoids(torch.zeros(3, 4), EYES[:2], torch.ones(2, 4)), "axes have"),
            (lambda: LowRankEllipsoids(torch.zeros(3, 4), 2 * EYES, torch.ones(3, 4)), "off by 3"),
            (
                lambda: LowRankEllipsoids(
                    torch.zeros(3, 2), torch.eye(2).repeat(3, 2, 1), torch.ones(3, 4)
                ),
                "axes have rank 4, wanted at most D = 2",
            ),
            (
                lambda: LowRankEllipsoids(
                    torch.zeros(3, 4), EYES[:, :2], torch.ones(3, 2), 2 * torch.ones(3)
                ),
                "remainder of ellipsoid 0 is 2, more than the spread 1",
            ),
            (
                lambda: SharedBasisEllipsoids(torch.zeros(3, 4), EYES[0] * 2, EYES, torch.ones(3)),
                "basis is off by 3",
            ),
            (
                lambda: SharedBasisEllipsoids(
                    torch.zeros(3, 4), EYES[0, :, :3], EYES, torch.ones(3)
                ),
                r"wanted \[Q, 4\]",
            ),
            (
                lambda: SharedBasisEllipsoids(torch.zeros(3, 4), EYES[0], -EYES, torch.ones(3)),
                "on its diagonal",
            ),
            (
                lambda: SharedBasisEllipsoids(torch.zeros(3, 4), EYES[0], EYES, torch.zeros(3)),
                "remainder are as small as 0",
            ),
        ],
    )
    def test_that_make_no_ellipsoids(self, call, message):
        fault(call, message)

    @pytest.mark.parametrize("name", NAMES)
    def test_points_that_do_not_fit(self, name):
        ellipsoids = make(name)
        for ask in (ellipsoids.distances, ellipsoids.tangent, ellipsoids.nearest):
            for x, message in [
                (torch.zeros(2, 4).double(), r"x has shape \[2, 4\]; these ellipsoids have 5"),
                (torch.zeros(5).double(), "x has shape"),
                (torch.zeros(1, 2, 5).double(), r"wanted \[N, 5\]"),
                (torch.zeros(0, 5).double(), "at least 1"),
                (torch.zeros(2, 5), "x is float32 and these ellipsoids float64"),
                (torch.zeros(2, 5).half(), "x is float16"),
                (torch.zeros(2, 5).long(), "x is int64"),
                ([[0.0] * 5], "x is a list"),
            ]:
                fault(lambda ask=ask, x=x: ask(x), message)
        fault(lambda: ellipsoids.to(torch.float16), "float16")

    def test_ellipsoids_that_do_not_go_together(self):
        def join(*parts):
            return lambda: concatenate(parts)

        fault(join(), "no ellipsoids")
        fault(join(make("full"), make("diagonal")), "unlike ellipsoids: FullEllipsoids")
        fault(join(make("full"), make("full", dim=4)), "dim=5.* and .*dim=4")
        fault(join(make("full"), make("full").to(torch.float32)), "float64.* and .*float32")
        fault(join(make("low-rank"), make("remainder")), "unlike")
        fault(join(make("shared-basis"), make("shared-basis", seed=5)), "whose basis differs")


class TestData:
    def test_labels_that_do_not_fit(self):
        x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(20) % 2

        def ask(labels, x=x):
            return lambda: from_data(x, labels)

        fault(ask(labels.float()), "labels are torch.float32, wanted a tensor of whole numbers")
        fault(ask(labels.tolist()), "labels are list")
        fault(ask(labels[:19]), r"labels have shape \[19\] and x \[20, 2\]")
        fault(ask(labels[:, None]), r"labels have shape \[20, 1\]")
        lone = labels.clone()
        lone[3] = 7
        fault(ask(lone), "label 7 has 1 sample")
        fault(ask(labels, x[:, 0]), "x has shape")
        fault(ask(labels, x[None]), r"x has shape \[1, 20, 2\]")
        fault(ask(labels, x * NAN), "NaN or infinite")
        fault(ask(labels, x.half()), "x is float16")
        fault(lambda: from_data(x, labels, shrinkage="lw"), "shrinkage is 'lw'")
        fault(lambda: from_data(x, labels, shrinkage=1.5), "shrinkage is 1.5")

    def test_too_few_samples(self):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(6) % 2
        fault(lambda: from_data(x, labels), "ellipsoid 0", SingularCovarianceError)
        fault(lambda: from_data(x, labels, kind="low-rank", rank=3), "rank 3 is more than the 2")
        options = {"kind": "low-rank+remainder", "rank": 2}
        fault(lambda: from_data(x, labels, **options), "remainder would be 0")
        from_data(x, labels, **options, ridge=0.1)

    def test_clusters_that_cannot_be(self):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
        fault(lambda: from_clusters(x, 7), "7 clusters in x of shape")
        fault(lambda: from_clusters(x, 2.0), "count is 2.0")
        fault(lambda: from_clusters(x[0], 1), "x has shape")
        fault(lambda: from_clusters(x * NAN, 1), "NaN or infinite")
        fault(lambda: from_clusters(x, 1, kind="none"), "kind is 'none'")
