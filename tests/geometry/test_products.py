"""Blocked products and slopes: against plain formulas, autograd and differences."""

import itertools

import pytest
import torch
from geometry_cases import (
    BOTH,
    REMAINDERS,
    ROWS,
    close,
    leaves,
    make,
    normal,
    norms_of,
    plain_distances,
    points,
)

from mahalens.geometry.ellipsoids import FullEllipsoids, LowRankEllipsoids, products
from mahalens.geometry.ellipsoids.products import Blocks, RowTangent, panels, row_norms

# Every border between blocks is met by a handful of points and rows.
BLOCKS = [
    Blocks(),
    Blocks(points=4, rows=5, stripes=3, smallest_stripe=1, small_matrix=6),
    Blocks(points=1, rows=1, stripes=2, smallest_stripe=2, small_matrix=0),
    Blocks(points=3, rows=12, stripes=5, smallest_stripe=1),
]
BOTH_ROWS = [(name, norm) for name, norm in BOTH if name in ROWS]


@pytest.fixture
def cut(monkeypatch):
    """Set the sizes of the blocks."""
    return lambda blocks: monkeypatch.setattr(products, "BLOCKS", blocks)


def rows_of(name, **options):
    """Return means, matrices and ranks of a kind that multiplies points with matrices."""
    ellipsoids = make(name, **options)
    if name == "full":
        return ellipsoids.means, ellipsoids.whitening, ellipsoids.ranks
    return ellipsoids.means, ellipsoids.axes / ellipsoids.spreads[..., None], ellipsoids.ranks


def plain_norms(x, means, rows, norm):
    z = torch.einsum("krd,nkd->nkr", rows, x[:, None] - means)
    return z.abs().sum(dim=-1) if norm == "l1" else z.square().sum(dim=-1)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize(("name", "norm"), BOTH_ROWS)
class TestBlocks:
    def test_do_not_change_norms_and_slopes(self, name, norm, n, blocks, cut):
        cut(blocks)
        means, rows, ranks = rows_of(name)
        x, weights = points(make(name), n).requires_grad_(), normal(n, 7)
        wanted = plain_norms(x, means, rows, norm)
        arranged = panels(means, rows, ranks, triangular=name == "full")
        close(row_norms(x.detach(), arranged, 7, norm), wanted.detach())
        tangent = RowTangent(x.detach(), arranged, 7, norm)
        distances = wanted.sqrt() if norm == "l2" else wanted
        close(tangent.distances, distances.detach())
        (pulled,) = torch.autograd.grad((distances * weights).sum(), x, retain_graph=True)
        close(tangent.pull(weights), pulled, 10)
        for k in range(7):
            (slope,) = torch.autograd.grad(distances[:, k].sum(), x, retain_graph=True)
            close(tangent.jacobian()[:, k], slope, 10)
        targets = weights.abs()
        (down,) = torch.autograd.grad((distances - targets).square().sum() / 2, x)
        close(products.descend_rows(x.detach(), targets, arranged, norm), down, 10)

    def test_do_not_change_gradients(self, name, norm, n, blocks, cut):
        cut(blocks)
        means, rows, ranks = rows_of(name)
        asked = [t.clone().requires_grad_() for t in (points(make(name), n), means, rows)]
        fast = products.tracked_row_norms(*asked, ranks, norm)
        slow = plain_norms(*asked, norm)
        close(fast.detach(), slow.detach())
        for actual, wanted in zip(
            *(torch.autograd.grad((norms * normal(n, 7)).sum(), asked) for norms in (fast, slow)),
            strict=True,
        ):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 2, 5, 17, 33])
@pytest.mark.parametrize("stripes", [1, 2, 3, 4, 5])
def test_panels_of_triangles_cover_them_once(dim, stripes, cut):
    cut(Blocks(stripes=stripes, smallest_stripe=1))
    means, rows, ranks = rows_of("full", count=3, dim=dim)
    arranged = panels(means, rows, ranks, triangular=True)
    assert sum(panel.height for panel in arranged) == dim
    widths = [panel.rows.shape[1] - 1 for panel in arranged]
    assert widths == list(itertools.accumulate(panel.height for panel in arranged))
    x = points(make("full", 3, dim), 4)
    close(row_norms(x, arranged, 3, "l2"), plain_norms(x, means, rows, "l2"))


class TestGradients:
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_agree_with_differences(self, name, norm):
        ellipsoids = make(name, count=2, dim=2)
        x = points(ellipsoids, 2).requires_grad_()
        cls, tensors = type(ellipsoids), leaves(ellipsoids)
        # Axes have to stay at right angles: differences leave those as they are.
        free = [n for n in tensors if n not in ("axes", "basis")]
        fixed = {n: t.detach() for n, t in tensors.items() if n not in free}

        def through(x, *values):
            changed = dict(zip(free, values, strict=True))
            if "whitening" in changed:
                changed["whitening"] = changed["whitening"].tril()
            made = cls.from_tensors({**fixed, **changed})
            return made.distances(x, norm=norm), made.distances(x, norm=norm, squared=True)

        assert torch.autograd.gradcheck(through, (x, *(tensors[n] for n in free)))

    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_are_those_of_the_plain_formula(self, name, norm):
        ellipsoids = make(name)
        x, tensors = points(ellipsoids).requires_grad_(), leaves(ellipsoids)

        def gradients(distances):
            asked, weighted = [x, *tensors.values()], (distances * normal(9, 7)).sum()
            return torch.autograd.grad(weighted, asked, materialize_grads=True)

        fast = type(ellipsoids).from_tensors(tensors).distances(x, norm=norm)
        slow = plain_distances(tensors, ellipsoids.kind, x, norm)
        close(fast, slow)
        for field, actual, wanted in zip(
            ["x", *tensors], gradients(fast), gradients(slow), strict=True
        ):
            if field == "axes" and name in REMAINDERS:
                continue  # they differ where axes leave their right angles, see below
            if field == "whitening":
                actual, wanted = actual.tril(), wanted.tril()
            if field == "basis":  # within what keeps right angles
                across = torch.eye(5) - ellipsoids.basis.T @ ellipsoids.basis
                actual, wanted = actual @ across, wanted @ across
            assert torch.allclose(actual, wanted, rtol=1e-9, atol=1e-9), field

    @pytest.mark.parametrize("name", REMAINDERS)
    def test_of_axes_that_turn_are_those_of_the_plain_formula(self, name):
        ellipsoids = make(name)
        x, tensors = points(ellipsoids), ellipsoids.tensors()
        turn = normal(5, 5) - normal(5, 5).T

        def slope(distances):
            angle = torch.zeros((), dtype=torch.float64, requires_grad=True)
            axes = tensors["axes"] @ torch.linalg.matrix_exp(angle * turn)
            return torch.autograd.grad(distances({**tensors, "axes": axes}).sum(), angle)[0]

        fast = slope(lambda t: LowRankEllipsoids.from_tensors(t).distances(x))
        close(fast, slope(lambda t: plain_distances(t, ellipsoids.kind, x)), 100)

    @pytest.mark.parametrize(("name", "norm"), BOTH_ROWS)
    def test_have_gradients_themselves(self, name, norm):
        ellipsoids = make(name, count=2, dim=2)
        x = points(ellipsoids, 2).requires_grad_()
        means = ellipsoids.means.clone().requires_grad_()
        fields = {n: t for n, t in ellipsoids.tensors().items() if n != "means"}

        def through(x, means):
            return type(ellipsoids)(means, **fields).distances(x, norm=norm)

        assert torch.autograd.gradgradcheck(through, (x, means))

    @pytest.mark.parametrize("norm", ["l2", "l1"])
    def test_second_slopes_of_everything_are_those_of_the_plain_formula(self, norm):
        ellipsoids = make("low-rank")
        tensors, x = leaves(ellipsoids), points(ellipsoids).requires_grad_()
        asked = [x, *tensors.values()]

        def second(distances):
            first = torch.autograd.grad(distances.square().sum(), asked, create_graph=True)
            return torch.autograd.grad(sum(slope.square().sum() for slope in first), asked)

        fast = second(LowRankEllipsoids.from_tensors(tensors).distances(x, norm=norm))
        slow = second(plain_distances(tensors, "low-rank", x, norm))
        for actual, wanted in zip(fast, slow, strict=True):
            assert torch.allclose(actual, wanted, rtol=1e-8, atol=1e-6)

    def test_where_spreads_equal_the_remainder(self):
        double = {"dtype": torch.float64}
        tensors = {
            "means": torch.zeros(1, 3, **double),
            "axes": torch.eye(3, **double)[None, :2],
            "spreads": torch.ones(1, 2, **double, requires_grad=True),
            "remainder": torch.ones(1, **double, requires_grad=True),
        }
        x = torch.tensor([[1.0, 2.0, 2.0]], **double)
        fast = LowRankEllipsoids.from_tensors(tensors).distances(x)
        slow = plain_distances(tensors, "low-rank+remainder", x)
        for asked in (tensors["spreads"], tensors["remainder"]):
            actual, wanted = (
                torch.autograd.grad(d.sum(), asked, retain_graph=True)[0] for d in (fast, slow)
            )
            close(actual, wanted)

    def test_are_zero_at_distance_zero_and_never_nan(self, name, dtype):
        for norm in norms_of(name):
            ellipsoids = make(name, dtype=dtype)
            tensors = leaves(ellipsoids)
            made = type(ellipsoids).from_tensors(tensors)
            x = ellipsoids.means[:3].clone().requires_grad_()
            made.distances(x, norm=norm)[:, :3].diagonal().sum().backward()
            for field, leaf in [("x", x), *tensors.items()]:
                assert leaf.grad is None or not bool(leaf.grad.any()), field
            both = torch.cat([ellipsoids.means[:3], points(ellipsoids)]).requires_grad_()
            made.distances(both, norm=norm).sum().backward()
            assert all(bool(torch.isfinite(t.grad).all()) for t in (both, *tensors.values()))
            alone = both.detach()[3:].requires_grad_()
            made.distances(alone, norm=norm).sum().backward()
            close(both.grad[3:], alone.grad, 10)

    @pytest.mark.parametrize("near", [1e-6, 1e-3])
    def test_near_a_mean_are_right(self, name, dtype, near):
        ellipsoids = make(name, dtype=dtype)
        x = ellipsoids.means[2].double() + near * normal(5, 5)
        x = x.to(dtype).requires_grad_()
        ellipsoids.distances(x)[:, 2].sum().backward()
        twin = ellipsoids.to(torch.float64)
        exact = x.detach().double().requires_grad_()
        plain_distances(twin.tensors(), twin.kind, exact)[:, 2].sum().backward()
        close(x.grad, exact.grad, 5)

    def test_reach_only_what_asks_for_them(self, name):
        ellipsoids = make(name)
        x, whole = points(ellipsoids), leaves(ellipsoids)
        type(ellipsoids).from_tensors(whole).distances(x).sum().backward()
        for field in whole:
            tensors = ellipsoids.tensors()
            tensors[field] = tensors[field].clone().requires_grad_()
            made = type(ellipsoids).from_tensors(tensors)
            made.distances(x)  # twice: the cache must not hold a graph
            made.distances(x).sum().backward()
            close(tensors[field].grad, whole[field].grad)
            assert all(t.grad is None for n, t in tensors.items() if n != field)

    def test_keep_triangles_triangular(self):
        whitening = torch.eye(64).repeat(2, 1, 1).requires_grad_()
        ellipsoids = FullEllipsoids(torch.zeros(2, 64), whitening)
        x = normal(40, 64, dtype=torch.float32)
        optimiser = torch.optim.SGD([whitening], lr=1.0)
        ellipsoids.distances(x).mean().backward()
        optimiser.step()
        with torch.no_grad():
            silent = ellipsoids.distances(x)
        close(ellipsoids.distances(x).detach(), silent)


class TestTangent:
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_slopes_are_those_of_autograd(self, name, norm, dtype):
        ellipsoids = make(name, dtype=dtype)
        x = points(ellipsoids).requires_grad_()
        weights, targets = (normal(9, 7, seed=seed, dtype=dtype) for seed in (1, 2))
        distances = ellipsoids.distances(x, norm=norm)
        tangent = ellipsoids.tangent(x.detach(), norm)
        close(tangent.distances, distances.detach(), 5)

        def near(actual, output):
            (wanted,) = torch.autograd.grad(output, x, retain_graph=True)
            atol = 1e-4 if dtype == torch.float32 else 1e-11
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=atol)

        jacobian = tangent.jacobian()
        assert jacobian.shape == (9, 7, 5)
        for k in range(7):
            near(jacobian[:, k], distances[:, k].sum())
        near(tangent.pull(weights), (distances * weights).sum())
        descent = ellipsoids.descend(x.detach(), targets, norm)
        near(descent, (distances - targets).square().sum() / 2)

    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_slopes_at_a_mean_are_zero(self, name, norm):
        ellipsoids = make(name)
        descent = ellipsoids.descend(ellipsoids.means, torch.ones(7, 7).double(), norm)
        assert bool(torch.isfinite(descent).all())
        ellipsoids.means.zero_()  # exactly representable: no kind sees a distance
        x = torch.zeros(2, 5, dtype=torch.float64)
        tangent = ellipsoids.tangent(x, norm)
        assert not tangent.distances.any()
        assert not tangent.jacobian().any()
        assert not tangent.pull(torch.ones(2, 7, dtype=torch.float64)).any()

    def test_pulls_far_from_the_origin(self, name):
        ellipsoids = make(name, dtype=torch.float32)
        ellipsoids.means += 1e4
        x = points(ellipsoids) + 1e4
        weights = normal(9, 7, dtype=torch.float32)
        twin = ellipsoids.to(torch.float64).tangent(x.double())
        wanted = torch.einsum("nk,nkd->nd", weights.double(), twin.jacobian())
        off = (ellipsoids.tangent(x).pull(weights) - wanted).abs().max() / wanted.abs().max()
        assert off < 1e-5
