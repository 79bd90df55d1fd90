"""Points come back from their distances, and the answer says how well."""

import pytest
import torch
from ellipsoid_kinds import BOTH, DTYPES, NAMES, close, make, plain_distances, points

from mahalens.geometry import DiagonalEllipsoids, SphericalEllipsoids, reconstruct
from mahalens.geometry.ellipsoids import from_covariance
from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch, Problem
from mahalens.geometry.reconstruction import problem as problem_module

DIM, COUNT = 4, 14


def many(name, dtype=torch.float64, count=COUNT, dim=DIM):
    """More ellipsoids than inputs."""
    return make(name, count, dim, dtype)


def off(found, x):
    """The largest error, in units of the size of the points."""
    return float((found.x - x).norm(dim=1).max() / x.norm(dim=1).mean())


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


class TestRecovery:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_is_exact_from_the_default_start(self, name, dtype):
        ellipsoids = many(name, dtype)
        x = points(ellipsoids, 6)
        found = reconstruct(ellipsoids, ellipsoids.distances(x))
        assert off(found, x) < (1e-4 if dtype == torch.float32 else 1e-10)
        assert found.x.dtype == dtype
        assert bool(found.converged.all())
        assert found.rank.tolist() == [DIM] * 6
        assert bool((found.condition >= 1).all())
        assert float(found.residual.max()) < (1e-4 if dtype == torch.float32 else 1e-10)

    @pytest.mark.parametrize(("name", "norm"), [pair for pair in BOTH if pair[1] == "l1"])
    def test_from_l1_distances(self, name, norm):
        ellipsoids = many(name, count=20)
        x = points(ellipsoids, 3)
        start = x + 0.05
        found = reconstruct(ellipsoids, ellipsoids.distances(x, norm=norm), norm=norm, start=start)
        assert off(found, x) < 1e-8

    def test_together_equals_one_by_one(self, name, monkeypatch):
        ellipsoids = many(name)
        x = points(ellipsoids, 5)
        distances, start = ellipsoids.distances(x), x + 0.3
        together = reconstruct(ellipsoids, distances, start=start)
        monkeypatch.setattr(problem_module, "BLOCK_BYTES", 2 * DIM * (COUNT + DIM) * 12)
        assert len(Problem.of(ellipsoids, distances).blocks()) == 3
        blocked = reconstruct(ellipsoids, distances, start=start)
        close(blocked.x, together.x)
        for n in range(5):
            alone = reconstruct(ellipsoids, distances[n : n + 1], start=start[n : n + 1])
            close(alone.x[0], together.x[n])
            close(alone.condition[0], together.condition[n], 100)

    def test_of_a_subset_equals_slicing_by_hand(self, name):
        ellipsoids = many(name)
        x = points(ellipsoids, 3)
        which = [0, 2, 3, 5, 7, 8, 11, -1]
        distances = ellipsoids.distances(x)[:, which]
        wanted = reconstruct(ellipsoids[which], distances)
        mask = torch.zeros(COUNT, dtype=torch.bool)
        mask[which] = True
        for subset in (which, torch.tensor(which), mask, mask.tolist()):
            found = reconstruct(ellipsoids, distances, subset=subset)
            assert torch.equal(found.x, wanted.x)
            assert found.count == 8

    def test_where_the_means_are_one(self, name):
        ellipsoids = many(name)
        ellipsoids.means[:] = 0.5
        x = points(ellipsoids, 3)
        found = reconstruct(ellipsoids, ellipsoids.distances(x))
        assert float(found.residual.max()) < 1e-6  # x and its mirror image are as far

    @pytest.mark.parametrize("count", [3, 5, 7])
    @pytest.mark.parametrize("value", [0.1, 1 / 3, 5.3])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_where_the_means_are_one_up_to_rounding(self, dtype, value, count):
        means = torch.full((count, 2), value, dtype=dtype)
        ellipsoids = DiagonalEllipsoids(means, 1 + torch.rand(count, 2, dtype=dtype))
        x = torch.tensor([[3.0, -2.0]], dtype=dtype)
        found = reconstruct(ellipsoids, ellipsoids.distances(x))
        assert float(found.residual) < 1e-3

    def test_of_a_mean_itself(self, name):
        ellipsoids = many(name)
        x = ellipsoids.means[:4]
        found = reconstruct(ellipsoids, ellipsoids.distances(x))
        assert off(found, x) < 1e-6

    def test_from_one_distance(self, name):
        ellipsoids = many(name)[0]
        x = points(ellipsoids, 3)
        found = reconstruct(ellipsoids, ellipsoids.distances(x))
        close(ellipsoids.distances(found.x), ellipsoids.distances(x), 1e3)
        assert found.rank.tolist() == [1] * 3
        assert torch.isnan(found.noise).all()
        at_mean = reconstruct(ellipsoids, torch.zeros(1, 1, dtype=torch.float64))
        close(ellipsoids.distances(at_mean.x), torch.zeros(1, 1), 1e6)

    def test_a_start_is_respected(self, name):
        ellipsoids = many(name)
        x = points(ellipsoids, 3)
        found = reconstruct(ellipsoids, ellipsoids.distances(x), start=x, method="newton")
        assert int(found.steps.max()) <= 2
        assert off(found, x) < 1e-12
        one = reconstruct(ellipsoids, ellipsoids.distances(x), start=x + 0.1, steps=1, restarts=0)
        if name != "spherical":  # which begins from its closed form
            assert 1e-10 < off(one, x) < 0.1
        assert torch.equal(x, points(ellipsoids, 3))

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    def test_in_any_unit_and_place(self, name, scale):
        ellipsoids, offset = many(name), 1e4
        x = points(ellipsoids, 3)
        power = {"spreads": 1, "remainder": 1, "whitening": -1}
        tensors = {n: t * scale ** power.get(n, 0) for n, t in ellipsoids.tensors().items()}
        tensors["means"] = scale * (tensors["means"] + offset)
        moved = type(ellipsoids).from_tensors(tensors)
        there = scale * (x + offset)
        found = reconstruct(moved, moved.distances(there), start=there + 0.1 * scale)
        assert float((found.x - there).norm(dim=1).max()) < 1e-7 * scale

    def test_from_a_basis_of_all_directions_at_large_scale(self):
        base = make("full", 9, 4)
        ellipsoids = from_covariance(
            (base.means * 1e8).float(), list(base.covariances * 1e16), kind="shared-basis", rank=4
        )
        x = points(ellipsoids, 3) * 1e8
        assert off(reconstruct(ellipsoids, ellipsoids.distances(x)), x) < 1e-4


class TestAdam:
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_equals_that_of_torch(self, name, norm):
        ellipsoids = many(name)
        x = points(ellipsoids, 3)
        targets = ellipsoids.distances(x, norm=norm)
        problem = Problem.of(ellipsoids, targets, norm=norm)
        start = x + 0.7
        search = AdamSearch(problem, start, steps=25)
        assert search.lr == 1 / COUNT
        twin = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([twin], lr=1 / COUNT, betas=(0.9, 0.999), eps=1e-8)
        for step in range(1, 26):
            optimiser.zero_grad()
            gaps = plain_distances(ellipsoids.tensors(), ellipsoids.kind, twin, norm) - targets
            (gaps.square().sum() / 2).backward()
            optimiser.step()
            search.advance(step)
            assert torch.allclose(search.x, twin.detach(), rtol=1e-9, atol=1e-9)
        assert search.finished

    def test_finds_points(self):
        ellipsoids = many("full")
        x = points(ellipsoids, 2)
        distances = ellipsoids.distances(x)
        found = reconstruct(ellipsoids, distances, method="adam", steps=1500)
        assert off(found, x) < 1e-4
        assert found.steps.tolist() == [1500] * 2
        assert not found.converged.any()
        faster = reconstruct(ellipsoids, distances, method="adam", steps=10, lr=0.5)
        slower = reconstruct(ellipsoids, distances, method="adam", steps=10, lr=1e-6)
        start = Problem.of(ellipsoids, distances).start()
        assert float((slower.x - start).abs().max()) == pytest.approx(1e-5, rel=0.1)
        assert float((faster.x - start).abs().max()) > 0.1

    def search(self):
        ellipsoids = many("remainder")
        problem = Problem.of(ellipsoids, ellipsoids.distances(points(ellipsoids, 3)))
        return AdamSearch(problem, problem.start(), steps=40)

    def test_goes_on_from_a_state_bit_for_bit(self):
        whole, first, second = self.search(), self.search(), self.search()
        whole.advance()
        first.advance(17)
        assert first.step == 17
        second.restore({name: tensor.clone() for name, tensor in first.state().items()})
        second.advance()
        assert torch.equal(second.x, whole.x)
        assert second.finished

    def test_a_state_stays_as_it_was(self):
        whole, first, second = self.search(), self.search(), self.search()
        whole.advance()
        first.advance(17)
        state = first.state()
        first.advance(30)
        second.restore(state)
        second.advance()
        assert torch.equal(second.x, whole.x)


class TestSpheres:
    def spheres(self, count, dim=3, dtype=torch.float64, same=False):
        g = torch.Generator().manual_seed(0)
        means = torch.randn(count, dim, generator=g, dtype=torch.float64).to(dtype) * 3
        spreads = torch.rand(count, generator=g, dtype=torch.float64).to(dtype) + 0.5
        return SphericalEllipsoids(means, torch.ones_like(spreads) if same else spreads)

    @pytest.mark.parametrize("same", [True, False], ids=["equal", "different"])
    @pytest.mark.parametrize("count", [4, 5, 20])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_have_a_closed_form(self, same, count, dtype):
        ellipsoids = self.spheres(count, dtype=dtype, same=same)
        x = points(ellipsoids, 6)
        found = reconstruct(ellipsoids, ellipsoids.distances(x), method="closed-form")
        assert off(found, x) < (1e-4 if dtype == torch.float32 else 1e-11)
        assert not found.steps.any()
        assert found.converged.all()
        # by hand: differences of |x - m_k|^2 = r_k^2 from the first
        means = ellipsoids.means.double()
        radii = (ellipsoids.distances(x) * ellipsoids.spreads).double()
        left = 2 * (means[1:] - means[0])
        right = means[1:].square().sum(1) - means[0].square().sum() - radii[:, 1:] ** 2
        by_hand = torch.linalg.lstsq(left, (right + radii[:, :1] ** 2).T).solution.T
        assert float((by_hand - found.x).abs().max()) < (1e-3 if dtype == torch.float32 else 1e-10)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_few_of_them_are_met_exactly(self, count):
        ellipsoids = self.spheres(count)
        x = points(ellipsoids, 6)
        for method in ("closed-form", "auto", "newton"):
            found = reconstruct(ellipsoids, ellipsoids.distances(x), method=method)
            assert float(found.residual.max()) < 1e-9, method
            assert found.rank.tolist() == [count] * 6

    def test_means_in_a_plane_leave_the_side_open(self):
        ellipsoids = self.spheres(8)
        ellipsoids.means[:, 2] = 0
        x = points(ellipsoids, 6)
        found = reconstruct(
            ellipsoids, ellipsoids.distances(x), start=x + 0.1, method="closed-form"
        )
        assert off(found, x) < 1e-10
        mirrored = torch.stack([x[:, 0], x[:, 1], -x[:, 2]], dim=1)
        other = reconstruct(ellipsoids, ellipsoids.distances(x), start=mirrored)
        assert off(other, mirrored) < 1e-10

    def test_auto_goes_on_to_the_least_squares_of_distances(self):
        ellipsoids = self.spheres(9)
        x = points(ellipsoids, 3)
        noise = 0.05 * torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).double()
        distances = (ellipsoids.distances(x) + noise).clamp(min=0)
        closed = reconstruct(ellipsoids, distances, method="closed-form")
        auto = reconstruct(ellipsoids, distances)
        assert bool((auto.residual <= closed.residual + 1e-12).all())
        close(auto.x, reconstruct(ellipsoids, distances, method="newton", start=x).x, 1e5)

    def test_equal_means_leave_all_but_the_length_open(self):
        means = torch.full((7, 2), 0.1, dtype=torch.float64)
        ellipsoids = SphericalEllipsoids(means, torch.linspace(1, 2, 7, dtype=torch.float64))
        x = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
        found = reconstruct(ellipsoids, ellipsoids.distances(x), method="closed-form")
        assert float(found.residual.max()) < 1e-6


class TestNewton:
    def test_advances_step_by_step(self):
        ellipsoids = many("full")
        x = points(ellipsoids, 3)
        problem = Problem.of(ellipsoids, ellipsoids.distances(x))
        whole, parts = (NewtonSearch(problem, x + 0.4) for _ in range(2))
        whole.advance()
        while not parts.finished:
            parts.advance(parts.step + 1)
        assert torch.equal(whole.x, parts.x)
        assert torch.equal(whole.taken, parts.taken)

    def test_never_makes_it_worse(self, name):
        ellipsoids = many(name)
        g = torch.Generator().manual_seed(0)
        targets = ellipsoids.distances(points(ellipsoids, 60)) + 0.3
        # Near the kinks at the means, where slopes say little of what comes.
        places = torch.randint(COUNT, (60,), generator=g)
        start = ellipsoids.means[places] + 1e-3 * torch.randn(60, DIM, generator=g).double()
        search = NewtonSearch(Problem.of(ellipsoids, targets), start)
        last = torch.full((60,), torch.inf, dtype=torch.float64)
        for step in range(1, 12):
            search.advance(step)
            cost = (ellipsoids.distances(search.x) - targets).square().sum(dim=1)
            assert bool((cost <= last * (1 + 1e-9)).all())
            last = cost

    def test_ends_at_a_stationary_point(self, name):
        ellipsoids = many(name)
        targets = ellipsoids.distances(points(ellipsoids, 5)) + 0.2
        found = reconstruct(ellipsoids, targets, restarts=0)
        tangent = ellipsoids.tangent(found.x)
        gaps = tangent.distances - targets
        size = (tangent.jacobian().norm(dim=-1) * gaps.abs()).sum(dim=1)
        assert float((tangent.pull(gaps).norm(dim=1) / size).max()) < 1e-5

    def test_restarts_leave_local_minima(self):
        # On a line the cost between two means has its own valley, from which no slope leads out.
        means = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
        ellipsoids = SphericalEllipsoids(means, torch.ones(3, dtype=torch.float64))
        distances = ellipsoids.distances(torch.tensor([[-2.0]], dtype=torch.float64))
        start = torch.tensor([[14.0]], dtype=torch.float64)
        options = {"method": "newton", "start": start}
        stuck = reconstruct(ellipsoids, distances, restarts=0, **options)
        assert float(stuck.residual) > 1
        freed = reconstruct(ellipsoids, distances, restarts=8, **options)
        assert float(freed.residual) < 1e-9
        close(freed.x, torch.tensor([[-2.0]]), 100)
