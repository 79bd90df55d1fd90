"""Slopes of distances: against autograd of the plain formula and against differences."""

import pytest
import torch
from ellipsoid_kinds import (
    BOTH,
    DTYPES,
    NAMES,
    REMAINDERS,
    ROWS,
    WITH_L1,
    close,
    make,
    plain_distances,
    points,
)

from mahalens.geometry.ellipsoids import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    products,
)


def leaves(ellipsoids):
    return {n: t.clone().requires_grad_() for n, t in ellipsoids.tensors().items()}


def both_norms(name):
    return ("l2", "l1") if name in WITH_L1 else ("l2",)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


class TestGradients:
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_agree_with_differences(self, name, norm):
        ellipsoids = make(name, count=3, dim=3)
        x = points(ellipsoids, 2).requires_grad_()
        cls, tensors = type(ellipsoids), leaves(ellipsoids)
        # Triangles have to stay so, axes at right angles: differences leave those as they are.
        free = [n for n in tensors if n not in ("axes", "basis", "whitening")]
        fixed = {n: t.detach() for n, t in tensors.items() if n not in free}

        def through(x, *values):
            made = cls.from_tensors({**fixed, **dict(zip(free, values, strict=True))})
            return made.distances(x, norm=norm), made.distances(x, norm=norm, squared=True)

        assert torch.autograd.gradcheck(through, (x, *(tensors[n] for n in free)))

    @pytest.mark.parametrize("norm", ["l2", "l1"])
    def test_of_triangles_agree_with_differences(self, norm):
        ellipsoids = make("full", count=2, dim=3)
        x, whitening = points(ellipsoids, 2), ellipsoids.whitening.clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda w: FullEllipsoids(ellipsoids.means, w.tril()).distances(x, norm=norm), whitening
        )

    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_are_those_of_the_plain_formula(self, name, norm, monkeypatch):
        monkeypatch.setattr(products, "POINTS", 4)
        monkeypatch.setattr(products, "ROWS", 5)
        ellipsoids = make(name)
        x = points(ellipsoids).requires_grad_()
        tensors = leaves(ellipsoids)
        weights = torch.randn(9, 7, generator=torch.Generator().manual_seed(0)).double()
        fast = type(ellipsoids).from_tensors(tensors).distances(x, norm=norm)
        slow = plain_distances(tensors, ellipsoids.kind, x, norm)
        close(fast, slow)
        wanted = torch.autograd.grad(
            (slow * weights).sum(), [x, *tensors.values()], materialize_grads=True
        )
        actual = torch.autograd.grad(
            (fast * weights).sum(), [x, *tensors.values()], materialize_grads=True
        )
        for field, one, other in zip(["x", *tensors], actual, wanted, strict=True):
            if field == "axes" and name in REMAINDERS:
                continue  # they differ where axes leave their right angles, see below
            if field == "whitening":
                one, other = one.tril(), other.tril()
            if field == "basis":  # within what keeps right angles
                one, other = (g - g @ ellipsoids.basis.T @ ellipsoids.basis for g in (one, other))
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-9), field

    @pytest.mark.parametrize("name", REMAINDERS)
    def test_of_axes_that_turn_are_those_of_the_plain_formula(self, name):
        ellipsoids = make(name)
        x, tensors = points(ellipsoids), ellipsoids.tensors()
        g = torch.Generator().manual_seed(0)
        turn = torch.randn(5, 5, generator=g, dtype=torch.float64)
        turn = turn - turn.T

        def slope(distances):
            angle = torch.zeros((), dtype=torch.float64, requires_grad=True)
            axes = tensors["axes"] @ torch.linalg.matrix_exp(angle * turn)
            return torch.autograd.grad(distances({**tensors, "axes": axes}).sum(), angle)[0]

        fast = slope(lambda t: LowRankEllipsoids.from_tensors(t).distances(x))
        close(fast, slope(lambda t: plain_distances(t, ellipsoids.kind, x)), 100)

    @pytest.mark.parametrize("norm", ["l2", "l1"])
    @pytest.mark.parametrize("name", ROWS)
    def test_have_gradients_themselves(self, name, norm):
        ellipsoids = make(name, count=3, dim=3)
        x = points(ellipsoids, 2).requires_grad_()
        means = ellipsoids.means.clone().requires_grad_()
        fields = {n: t for n, t in ellipsoids.tensors().items() if n != "means"}

        def through(x, means):
            return type(ellipsoids)(means, **fields).distances(x, norm=norm)

        assert torch.autograd.gradgradcheck(through, (x, means))

    def test_second_slopes_are_those_of_the_plain_formula(self):
        ellipsoids = make("low-rank")
        tensors, x = leaves(ellipsoids), points(ellipsoids).requires_grad_()

        def second(distances):
            (slope,) = torch.autograd.grad(distances.sum(), x, create_graph=True)
            return torch.autograd.grad(slope.square().sum(), [x, *tensors.values()])

        fast = second(LowRankEllipsoids.from_tensors(tensors).distances(x))
        for one, other in zip(fast, second(plain_distances(tensors, "low-rank", x)), strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("norm", ["l2", "l1"])
    def test_second_slopes_of_everything_are_those_of_the_plain_formula(self, norm):
        ellipsoids = make("low-rank")
        tensors, x = leaves(ellipsoids), points(ellipsoids).requires_grad_()
        asked = [x, *tensors.values()]

        def second(distances):
            first = torch.autograd.grad(distances.square().sum(), asked, create_graph=True)
            return torch.autograd.grad(sum(one.square().sum() for one in first), asked)

        fast = second(LowRankEllipsoids.from_tensors(tensors).distances(x, norm=norm))
        slow = second(plain_distances(tensors, "low-rank", x, norm))
        for one, other in zip(fast, slow, strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-6)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_are_zero_at_distance_zero(self, name, dtype):
        for norm in both_norms(name):
            ellipsoids = make(name, dtype=dtype)
            tensors = leaves(ellipsoids)
            x = ellipsoids.means[:3].clone().requires_grad_()
            found = type(ellipsoids).from_tensors(tensors).distances(x, norm=norm)
            found[:, :3].diagonal().sum().backward()
            for field, leaf in [("x", x), *tensors.items()]:
                assert leaf.grad is None or not bool(leaf.grad.any()), field

    def test_are_never_nan(self, name):
        for norm in both_norms(name):
            ellipsoids = make(name)
            tensors = leaves(ellipsoids)
            x = torch.cat([ellipsoids.means[:3], points(ellipsoids)]).requires_grad_()
            made = type(ellipsoids).from_tensors(tensors)
            made.distances(x, norm=norm).sum().backward()
            assert all(bool(torch.isfinite(t.grad).all()) for t in (x, *tensors.values()))
            alone = x.detach()[3:].requires_grad_()
            made.distances(alone, norm=norm).sum().backward()
            close(x.grad[3:], alone.grad)

    @pytest.mark.parametrize("near", [1e-6, 1e-3])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_near_a_mean_are_right(self, name, dtype, near):
        ellipsoids = make(name, dtype=dtype)
        g = torch.Generator().manual_seed(0)
        step = near * torch.randn(5, 5, generator=g, dtype=torch.float64)
        x = (ellipsoids.means[2].double() + step).to(dtype).requires_grad_()
        ellipsoids.distances(x)[:, 2].sum().backward()
        twin = ellipsoids.to(torch.float64)
        exact = x.detach().double().requires_grad_()
        plain_distances(twin.tensors(), twin.kind, exact)[:, 2].sum().backward()
        close(x.grad, exact.grad, 5)
        if ellipsoids.kind == "spherical":  # a unit vector over the spread
            close(x.grad.norm(dim=1), (1 / ellipsoids.spreads[2]).expand(5), 5)

    def test_reach_only_what_asks_for_them(self, name):
        ellipsoids = make(name)
        x = points(ellipsoids)
        whole = leaves(ellipsoids)
        type(ellipsoids).from_tensors(whole).distances(x).sum().backward()
        for field in ellipsoids.fields:
            if field not in whole:
                continue
            tensors = ellipsoids.tensors()
            tensors[field] = tensors[field].clone().requires_grad_()
            made = type(ellipsoids).from_tensors(tensors)
            made.distances(x)  # twice: what is kept must not hold a graph
            made.distances(x).sum().backward()
            close(tensors[field].grad, whole[field].grad)
            assert all(t.grad is None for n, t in tensors.items() if n != field)

    def test_are_left_out_without_need(self, name):
        ellipsoids = type(make(name)).from_tensors(leaves(make(name)))
        x = points(ellipsoids).requires_grad_()
        with torch.no_grad():
            silent = ellipsoids.distances(x)
            assert not silent.requires_grad
        tracked = ellipsoids.distances(x)
        assert tracked.requires_grad
        close(tracked.detach(), silent)
        assert not make(name).distances(x.detach()).requires_grad

    def test_where_spreads_equal_the_remainder(self):
        double = {"dtype": torch.float64}
        tensors = {
            "means": torch.zeros(1, 3, **double),
            "axes": torch.eye(3, **double)[None, :2],
            "spreads": torch.ones(1, 2, **double, requires_grad=True),
            "remainder": torch.ones(1, **double, requires_grad=True),
        }
        x = torch.tensor([[1.0, 2.0, 2.0]], **double)
        asked = [tensors["spreads"], tensors["remainder"]]
        fast = LowRankEllipsoids.from_tensors(tensors).distances(x)
        slow = plain_distances(tensors, "low-rank+remainder", x)
        wanted = torch.autograd.grad(slow.sum(), asked)
        for one, other in zip(torch.autograd.grad(fast.sum(), asked), wanted, strict=True):
            close(one, other)

    def test_keep_triangles_triangular(self):
        whitening = torch.eye(64).repeat(2, 1, 1).requires_grad_()
        ellipsoids = FullEllipsoids(torch.zeros(2, 64), whitening)
        x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
        optimiser = torch.optim.SGD([whitening], lr=1.0)
        ellipsoids.distances(x).mean().backward()
        optimiser.step()
        with torch.no_grad():
            silent = ellipsoids.distances(x)
        close(ellipsoids.distances(x).detach(), silent)


class TestTangent:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_slopes_are_those_of_autograd(self, name, norm, dtype):
        ellipsoids = make(name, dtype=dtype)
        x = points(ellipsoids).requires_grad_()
        tangent = ellipsoids.tangent(x.detach(), norm)
        found = ellipsoids.distances(x, norm=norm)
        close(tangent.distances, found.detach(), 5)
        jacobian = tangent.jacobian()
        assert jacobian.shape == (9, 7, 5)
        for k in range(7):
            (slope,) = torch.autograd.grad(found[:, k].sum(), x, retain_graph=True)
            torch.testing.assert_close(
                jacobian[:, k], slope, rtol=1e-4, atol=1e-5 if dtype == torch.float32 else 1e-12
            )
        weights = torch.randn(9, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
        (pulled,) = torch.autograd.grad((found * weights).sum(), x)
        torch.testing.assert_close(
            tangent.pull(weights), pulled, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-11
        )

    @pytest.mark.parametrize("rows", [1, 5, 12, 1600])
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_gradient_of_the_squared_gaps(self, name, norm, rows, monkeypatch):
        monkeypatch.setattr(products, "ROWS", rows)
        monkeypatch.setattr(products, "SMALLEST_STRIPE", 2)
        ellipsoids = make(name)
        x = points(ellipsoids).requires_grad_()
        targets = 2 * torch.rand(9, 7, generator=torch.Generator().manual_seed(0)).double()
        found = plain_distances(ellipsoids.tensors(), ellipsoids.kind, x, norm)
        (wanted,) = torch.autograd.grad((found - targets).square().sum() / 2, x)
        close(ellipsoids.descend(x.detach(), targets, norm), wanted, 10)
        at_means = ellipsoids.descend(ellipsoids.means, targets[:7], norm)
        assert bool(torch.isfinite(at_means).all())

    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_slopes_at_a_mean_are_zero(self, name, norm):
        ellipsoids = make(name)
        ellipsoids.means.zero_()  # exactly representable, so that no kind sees a distance
        x = torch.zeros(2, 5, dtype=torch.float64)
        tangent = ellipsoids.tangent(x, norm)
        assert not tangent.distances.any()
        assert not tangent.jacobian().any()
        assert not tangent.pull(torch.ones(2, 7, dtype=torch.float64)).any()

    @pytest.mark.parametrize(
        "name",
        NAMES,
    )
    def test_pulls_far_from_the_origin(self, name):
        ellipsoids = make(name, dtype=torch.float32)
        ellipsoids.means += 1e4
        x = points(ellipsoids) + 1e4
        weights = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
        twin = ellipsoids.to(torch.float64).tangent(x.double())
        wanted = torch.einsum("nk,nkd->nd", weights.double(), twin.jacobian())
        off = (ellipsoids.tangent(x).pull(weights) - wanted).abs().max() / wanted.abs().max()
        assert off < 1e-5

    def test_of_diagonal_l1(self):
        ellipsoids = DiagonalEllipsoids(torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]))
        tangent = ellipsoids.tangent(torch.tensor([[-3.0, 4.0]]), "l1")
        assert tangent.distances.tolist() == [[5.0]]
        assert tangent.jacobian().tolist() == [[[-1.0, 0.5]]]
