"""Points come back from their distances, and the answer says how well."""

import pytest
import torch
from geometry_cases import BOTH, NAN, case, close, make, normal, plain_distances, points, refused

from mahalens.geometry import DiagonalEllipsoids, SphericalEllipsoids, reconstruct
from mahalens.geometry.ellipsoids import from_covariance
from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch, SearchProblem, assess

DIM, COUNT = 4, 14  # more ellipsoids than inputs


def many(name, n=0, dtype=torch.float64, count=COUNT):
    """Return ellipsoids, and with them n points if any are wanted."""
    ellipsoids = make(name, count, DIM, dtype)
    return (ellipsoids, points(ellipsoids, n)) if n else ellipsoids


def off(result, x):
    """The largest error, in units of the size of the points."""
    return float((result.x - x).norm(dim=1).max() / x.norm(dim=1).mean())


class TestRecovery:
    def test_is_exact_from_the_default_start(self, name, dtype):
        ellipsoids = many(name, dtype=dtype)
        x = torch.cat([points(ellipsoids, 6), ellipsoids.means[:2]])
        result = reconstruct(ellipsoids, ellipsoids.distances(x))
        small = 1e-4 if dtype == torch.float32 else 1e-10
        assert off(result, x) < max(small, 1e-6)  # at a mean, where slopes end, a little less exact
        assert float((result.x - x)[:6].norm(dim=1).max()) < small * float(x.norm(dim=1).mean())
        assert result.x.dtype == dtype
        assert bool(result.converged.all())
        assert result.rank[:6].tolist() == [DIM] * 6
        assert bool((result.condition >= 1).all())
        assert float(result.residual[:6].max()) < small

    @pytest.mark.parametrize(("name", "norm"), [pair for pair in BOTH if pair[1] == "l1"])
    def test_from_l1_distances(self, name, norm):
        ellipsoids, x = many(name, 3, count=20)
        distances = ellipsoids.distances(x, norm=norm)
        assert off(reconstruct(ellipsoids, distances, norm=norm, start=x + 0.05), x) < 1e-8

    def test_together_equals_one_by_one(self, name):
        ellipsoids, x = many(name, 5)
        problem = SearchProblem.of(ellipsoids, ellipsoids.distances(x))
        small = SearchProblem(ellipsoids, problem.targets, block_bytes=2 * DIM * (COUNT + DIM) * 12)
        assert (len(problem.blocks()), len(small.blocks())) == (1, 3)

        def find(problem, start):
            search = NewtonSearch(problem, start)
            search.advance()
            return assess(problem, search.x, "newton", search.taken, search.converged, None)

        together = find(problem, x + 0.3)
        close(find(small, x + 0.3).x, together.x)
        close(find(small, x + 0.3).condition, together.condition, 100)
        for n in range(5):
            alone = find(problem.some(slice(n, n + 1)), x[n : n + 1] + 0.3)
            close(alone.x[0], together.x[n])
            close(alone.condition[0], together.condition[n], 100)

    def test_of_a_subset_equals_slicing_by_hand(self, name):
        ellipsoids, x = many(name, 3)
        numbers = [0, 2, 3, 5, 7, 8, 11, -1]
        distances = ellipsoids.distances(x)[:, numbers]
        wanted = reconstruct(ellipsoids[numbers], distances, steps=5, restarts=0)
        mask = torch.zeros(COUNT, dtype=torch.bool)
        mask[numbers] = True
        for subset in (numbers, torch.tensor(numbers), mask, mask.tolist()):
            result = reconstruct(ellipsoids, distances, subset=subset, steps=5, restarts=0)
            assert torch.equal(result.x, wanted.x)
            assert result.count == 8
        twice = [*range(COUNT), 6]
        result = reconstruct(ellipsoids, ellipsoids.distances(x)[:, twice], subset=twice)
        assert off(result, x) < 1e-9

    def test_where_the_means_are_one(self, name):
        ellipsoids, x = many(name, 2)
        ellipsoids.means[:] = 0.5
        result = reconstruct(ellipsoids, ellipsoids.distances(x))
        assert float(result.residual.max()) < 1e-6  # x and its mirror image are as far

    @pytest.mark.parametrize("count", [3, 7])
    @pytest.mark.parametrize("value", [0.1, 5.3])
    def test_where_the_means_are_one_up_to_rounding(self, dtype, value, count):
        means, spreads = torch.full((count, 2), value), 1 + normal(count, 2).abs()
        ellipsoids = DiagonalEllipsoids(means.to(dtype), spreads.to(dtype))
        distances = ellipsoids.distances(torch.tensor([[3.0, -2.0]], dtype=dtype))
        assert float(reconstruct(ellipsoids, distances).residual) < 1e-3

    def test_from_one_distance(self, name):
        ellipsoids = many(name)[0]
        x = points(ellipsoids, 1)
        result = reconstruct(ellipsoids, ellipsoids.distances(x))
        close(ellipsoids.distances(result.x), ellipsoids.distances(x), 1e3)
        assert result.rank.tolist() == [1]
        assert torch.isnan(result.noise).all()
        at_mean = reconstruct(ellipsoids, torch.zeros(1, 1).double(), restarts=1)
        close(ellipsoids.distances(at_mean.x), torch.zeros(1, 1), 1e6)

    def test_a_start_is_respected(self, name):
        ellipsoids, x = many(name, 3)
        distances = ellipsoids.distances(x)
        result = reconstruct(ellipsoids, distances, start=x, method="newton")
        assert int(result.steps.max()) <= 2
        assert off(result, x) < 1e-12
        options = {"steps": 1, "restarts": 0, "method": "newton"}
        assert 1e-10 < off(reconstruct(ellipsoids, distances, start=x + 0.1, **options), x) < 0.1

    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    def test_in_any_unit_and_place(self, name, scale):
        (ellipsoids, x), offset = many(name, 3), 1e4
        power = {"spreads": 1, "remainder": 1, "whitening": -1}
        tensors = {n: t * scale ** power.get(n, 0) for n, t in ellipsoids.tensors().items()}
        tensors["means"] = scale * (tensors["means"] + offset)
        moved = type(ellipsoids).from_tensors(tensors)
        there = scale * (x + offset)
        result = reconstruct(moved, moved.distances(there), start=there + 0.1 * scale)
        assert float((result.x - there).norm(dim=1).max()) < 1e-7 * scale

    def test_from_a_basis_of_all_directions_at_large_scale(self):
        base = make("full", 9, 4)
        ellipsoids = from_covariance(
            (base.means * 1e8).float(), list(base.covariances * 1e16), kind="shared-basis", rank=4
        )
        x = points(ellipsoids, 3) * 1e8
        assert off(reconstruct(ellipsoids, ellipsoids.distances(x)), x) < 1e-4

    @pytest.mark.parametrize("method", ["newton", "adam"])
    def test_changes_nothing_and_takes_tensors_as_numbers(self, method):
        ellipsoids = make("full")
        distances = ellipsoids.distances(points(ellipsoids, 2))
        asking, start = distances.clone().requires_grad_(), torch.zeros(2, 5).double()
        options = {"method": method, "steps": 3}
        result = reconstruct(ellipsoids, asking, start=start.requires_grad_(), **options)
        assert not result.x.requires_grad
        again = reconstruct(ellipsoids, distances.numpy(), start=start.detach().numpy(), **options)
        assert torch.equal(again.x, result.x)
        assert torch.equal(asking, distances)
        assert not bool(start.any())


class TestAdam:
    @pytest.mark.parametrize(("name", "norm"), BOTH)
    def test_equals_that_of_torch(self, name, norm):
        ellipsoids, x = many(name, 3)
        targets = ellipsoids.distances(x, norm=norm)
        start = x + 0.7
        search = AdamSearch(SearchProblem.of(ellipsoids, targets, norm=norm), start, steps=25)
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
        ellipsoids, x = many("full", 2)
        distances = ellipsoids.distances(x)
        result = reconstruct(ellipsoids, distances, method="adam", steps=800)
        assert off(result, x) < 0.02
        assert result.steps.tolist() == [800] * 2
        assert not result.converged.any()
        faster = reconstruct(ellipsoids, distances, method="adam", steps=10, lr=0.5)
        slower = reconstruct(ellipsoids, distances, method="adam", steps=10, lr=1e-6)
        start = SearchProblem.of(ellipsoids, distances).start()
        assert float((slower.x - start).abs().max()) == pytest.approx(1e-5, rel=0.1)
        assert float((faster.x - start).abs().max()) > 0.1

    def test_goes_on_from_a_state_bit_for_bit(self):
        ellipsoids, x = many("remainder", 3)
        problem = SearchProblem.of(ellipsoids, ellipsoids.distances(x))
        whole, first, second = (AdamSearch(problem, problem.start(), steps=40) for _ in range(3))
        whole.advance()
        first.advance(17)
        assert first.step == 17
        state = first.state()
        first.advance(30)  # which leaves the state as it was
        second.restore(state)
        second.advance()
        assert torch.equal(second.x, whole.x)
        assert second.finished


class TestSpheres:
    def spheres(self, count, dim=3, dtype=torch.float64, same=False):
        g = torch.Generator().manual_seed(0)
        means = torch.randn(count, dim, generator=g, dtype=torch.float64).to(dtype) * 3
        spreads = torch.rand(count, generator=g, dtype=torch.float64).to(dtype) + 0.5
        return SphericalEllipsoids(means, torch.ones_like(spreads) if same else spreads)

    @pytest.mark.parametrize("same", [True, False], ids=["equal", "different"])
    @pytest.mark.parametrize("count", [4, 5, 20])
    def test_have_a_closed_form(self, same, count, dtype):
        ellipsoids = self.spheres(count, dtype=dtype, same=same)
        x = points(ellipsoids, 6)
        result = reconstruct(ellipsoids, ellipsoids.distances(x), method="closed-form")
        assert off(result, x) < (1e-4 if dtype == torch.float32 else 1e-11)
        assert not result.steps.any()
        assert result.converged.all()
        # by hand: differences of |x - m_k|^2 = r_k^2 from the first
        means = ellipsoids.means.double()
        radii = (ellipsoids.distances(x) * ellipsoids.spreads).double()
        left = 2 * (means[1:] - means[0])
        right = means[1:].square().sum(1) - means[0].square().sum() - radii[:, 1:] ** 2
        by_hand = torch.linalg.lstsq(left, (right + radii[:, :1] ** 2).T).solution.T
        assert float((by_hand - result.x).abs().max()) < (1e-3 if dtype == torch.float32 else 1e-10)

    @pytest.mark.parametrize("count", [1, 2, 3])
    @pytest.mark.parametrize("method", ["closed-form", "auto", "newton"])
    def test_few_of_them_are_met_exactly(self, count, method):
        ellipsoids = self.spheres(count)
        result = reconstruct(ellipsoids, ellipsoids.distances(points(ellipsoids, 6)), method=method)
        assert float(result.residual.max()) < 1e-9
        assert result.rank.tolist() == [count] * 6

    def test_means_in_a_plane_leave_the_side_open(self):
        ellipsoids = self.spheres(8)
        ellipsoids.means[:, 2] = 0
        x = points(ellipsoids, 6)
        for side in (x, x * torch.tensor([1, 1, -1])):
            for method in ("closed-form", "auto"):
                options = {"start": side + 0.1 * side.sign(), "method": method}
                result = reconstruct(ellipsoids, ellipsoids.distances(x), **options)
                assert off(result, side) < 1e-10

    def test_equal_means_leave_all_but_the_length_open(self):
        means = torch.full((7, 2), 0.1, dtype=torch.float64)
        ellipsoids = SphericalEllipsoids(means, torch.linspace(1, 2, 7, dtype=torch.float64))
        distances = ellipsoids.distances(torch.tensor([[3.0, -2.0]], dtype=torch.float64))
        result = reconstruct(ellipsoids, distances, method="closed-form")
        assert float(result.residual.max()) < 1e-6

    def test_auto_goes_on_to_the_least_squares_of_distances(self):
        ellipsoids = self.spheres(9)
        x = points(ellipsoids, 3)
        distances = (ellipsoids.distances(x) + 0.05 * normal(3, 9)).clamp(min=0)
        closed = reconstruct(ellipsoids, distances, method="closed-form")
        auto = reconstruct(ellipsoids, distances, restarts=0)
        assert bool((auto.residual <= closed.residual + 1e-12).all())
        newton = reconstruct(ellipsoids, distances, method="newton", start=x, restarts=0)
        close(auto.x, newton.x, 1e5)


class TestNewton:
    def test_advances_step_by_step(self):
        ellipsoids, x = many("full", 3)
        problem = SearchProblem.of(ellipsoids, ellipsoids.distances(x))
        whole, parts = (NewtonSearch(problem, x + 0.4) for _ in range(2))
        whole.advance()
        while not parts.finished:
            parts.advance(parts.step + 1)
        assert torch.equal(whole.x, parts.x)
        assert torch.equal(whole.taken, parts.taken)

    def test_never_makes_it_worse(self, name):
        ellipsoids, x = many(name, 60)
        targets = ellipsoids.distances(x) + 0.3
        # Near the kinks at the means, where slopes say little about the next step.
        start = ellipsoids.means[torch.arange(60) % COUNT] + 1e-3 * normal(60, DIM)
        search = NewtonSearch(SearchProblem.of(ellipsoids, targets), start)
        last = torch.full((60,), torch.inf, dtype=torch.float64)
        for step in range(1, 12):
            search.advance(step)
            cost = (ellipsoids.distances(search.x) - targets).square().sum(dim=1)
            assert bool((cost <= last * (1 + 1e-9)).all())
            last = cost

    def test_ends_at_a_stationary_point(self, name):
        ellipsoids, x = many(name, 5)
        targets = ellipsoids.distances(x) + 0.2
        result = reconstruct(ellipsoids, targets, restarts=0)
        tangent = ellipsoids.tangent(result.x)
        gaps = tangent.distances - targets
        size = (tangent.jacobian().norm(dim=-1) * gaps.abs()).sum(dim=1)
        assert float((tangent.pull(gaps).norm(dim=1) / size).max()) < 1e-5

    def test_restarts_leave_local_minima(self):
        # On a line the cost between two means has its own valley, from which no slope leads out.
        means = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
        ellipsoids = SphericalEllipsoids(means, torch.ones(3, dtype=torch.float64))
        distances = ellipsoids.distances(torch.tensor([[-2.0]], dtype=torch.float64))
        options = {"method": "newton", "start": torch.tensor([[14.0]], dtype=torch.float64)}
        stuck = reconstruct(ellipsoids, distances, restarts=0, **options)
        assert float(stuck.residual) > 1
        assert "That is poor unless they are noisy" in stuck.describe()
        freed = reconstruct(ellipsoids, distances, restarts=8, **options)
        assert float(freed.residual) < 1e-9
        close(freed.x, torch.tensor([[-2.0]]), 100)


class TestQuality:
    def test_few_distances_are_met_and_the_rest_is_open(self, name, dtype):
        ellipsoids = make(name, 3, 6, dtype)
        result = reconstruct(ellipsoids, ellipsoids.distances(points(ellipsoids, 5)))
        assert float(result.residual.max()) < (1e-4 if dtype == torch.float32 else 1e-9)
        assert result.rank.tolist() == [3] * 5
        assert torch.isnan(result.expected_error).all()
        text = result.describe(2)
        assert "3 distances determine 3 of 6 directions; the other 3 stay near the start" in text
        assert "noise cannot be estimated" in text

    def test_known_noise_leads_to_an_error_along_determined_directions(self, name):
        ellipsoids = make(name, 3, 6)
        distances = ellipsoids.distances(points(ellipsoids, 2))
        result = reconstruct(ellipsoids, distances, noise=0.01)
        slopes = torch.linalg.svdvals(ellipsoids.tangent(result.x).jacobian())
        torch.testing.assert_close(result.expected_error, 0.01 * slopes.pow(-2).sum(dim=1).sqrt())
        torch.testing.assert_close(result.condition, slopes[:, 0] / slopes[:, -1])
        assert "Noise of 0.01 in a distance" in result.describe()

    def test_open_directions_stay_as_in_the_start(self, name):
        ellipsoids, x = case(name, 2, 6, n=3)
        start = x + 1e-3 * normal(3, 6)
        result = reconstruct(ellipsoids, ellipsoids.distances(x), start=start, method="newton")
        slopes = ellipsoids.tangent(result.x).jacobian()
        moved = result.x - start
        along = torch.linalg.lstsq(slopes.mT, moved[..., None]).solution
        left = moved - (slopes.mT @ along)[..., 0]
        # The slopes turn a little on the way: to second order in its length.
        assert float(left.norm(dim=1).max()) < 0.1 * float(moved.norm(dim=1).max())
        assert float(result.residual.max()) < 1e-9

    def test_error_and_noise_are_as_estimated(self, name):
        ellipsoids, x = many(name, 1)
        trials, sigma = 300, 1e-3
        x = x.expand(trials, -1)
        distances = (ellipsoids.distances(x) + sigma * normal(trials, COUNT)).clamp(min=0)
        result = reconstruct(ellipsoids, distances, start=x)
        error = (result.x - x).square().sum(dim=1).mean().sqrt()
        assert 0.9 < float(error / result.expected_error.square().mean().sqrt()) < 1.1
        assert 0.95 < float(result.noise.square().mean().sqrt() / sigma) < 1.05
        known = reconstruct(ellipsoids, distances, start=x, noise=sigma)
        assert known.noise.tolist() == [sigma] * trials
        assert 0.9 < float(error / known.expected_error.mean()) < 1.1

    def test_residual_is_a_root_mean_square(self):
        ellipsoids, x = many("full", 3)
        distances = ellipsoids.distances(x) + 0.1
        result = reconstruct(ellipsoids, distances, restarts=1)
        gaps = ellipsoids.distances(result.x) - distances
        torch.testing.assert_close(result.residual, gaps.square().mean(dim=1).sqrt())
        free = gaps.square().sum(dim=1) / (COUNT - DIM)
        torch.testing.assert_close(result.noise, free.sqrt())

    def test_is_described(self):
        ellipsoids, x = many("full", 3)
        result = reconstruct(ellipsoids, ellipsoids.distances(x), noise=0.01)
        text = result.describe(1)
        assert f"{COUNT} distances determine all {DIM} directions, condition number" in text
        assert f"dim={DIM}, distances={COUNT}, method='newton'" in repr(result)
        assert len(result) == 3
        square = make("full", DIM, DIM)
        text = reconstruct(square, square.distances(points(square, 1))).describe()
        assert "determine all 4 directions" in text
        assert "met exactly by others too" in text

    def test_a_point_among_means_in_a_line(self, dtype):
        means = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [7.0, 0.0]], dtype=dtype)
        ellipsoids = SphericalEllipsoids(means, torch.ones(4, dtype=dtype))
        x = torch.tensor([[3.0, 0.0]], dtype=dtype)
        start = x + torch.tensor([[0.1, 0.0]], dtype=dtype)
        result = reconstruct(ellipsoids, ellipsoids.distances(x), start=start)
        assert result.rank.tolist() == [1]
        assert "1 of 2 directions" in result.describe()


FULL = make("full")
DISTANCES = FULL.distances(points(FULL, 2))


def with_entry(value):
    changed = DISTANCES.clone()
    changed[1, 2] = value
    return changed


@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (with_entry(-0.5), "distances are as small as -0.5, wanted at least 0"),
        (with_entry(NAN), r"distances has 1 value\(s\) of 14 that are NaN"),
        (with_entry(float("inf")), "NaN or infinite"),
        (DISTANCES[:, :6], r"distances have shape \[2, 6\], wanted \[N, 7\].*subset="),
        (DISTANCES[0], "distances has shape"),
        (DISTANCES[None], "distances have shape"),
        (DISTANCES[:0], "at least 1"),
        (DISTANCES.float(), "distances is float32 and the ellipsoids float64"),
        (DISTANCES.half(), "distances is float16"),
        (DISTANCES.tolist(), "distances is a list"),
    ],
)
def test_refuses_distances(distances, message):
    refused(lambda: reconstruct(FULL, distances), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gradient"}, "method is 'gradient', wanted"),
        ({"method": None}, "method is None"),
        ({"norm": "l3"}, "norm is 'l3'"),
        ({"method": "closed-form"}, "is for spheres with norm"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"noise": 0.0}, "noise is 0.0, wanted a positive number"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"noise": NAN}, "noise is nan"),
        ({"lr": -1.0, "method": "adam"}, "lr is -1.0"),
        ({"lr": NAN, "method": "adam"}, "lr is nan"),
        ({"restarts": -1}, "restarts is -1"),
        ({"restarts": 1.5}, "restarts is 1.5"),
        ({"start": torch.zeros(2, 4).double()}, r"start has shape \[2, 4\], wanted \[2, 5\]"),
        ({"start": torch.zeros(1, 5).double()}, r"wanted \[2, 5\]"),
        ({"start": torch.zeros(2, 5)}, "start is float32"),
        ({"start": torch.full((2, 5), NAN).double()}, "start has 10 value"),
        ({"start": [[0.0] * 5] * 2}, "start is a list"),
        *(({"subset": subset}, "subset is empty or not a list") for subset in ([], 3, [0.5])),
        ({"subset": [0, 7]}, "outside 0 to 6"),
        ({"subset": [0, -8]}, "outside 0 to 6"),
        ({"subset": [True] * 3}, r"subset has shape \[3\], wanted one true or false for each"),
        ({"subset": [False] * 7}, "subset is empty"),
        ({"subset": [0, 1]}, "ellipsoids of the subset"),
    ],
    ids=str,
)
def test_refuses_options(options, message):
    refused(lambda: reconstruct(FULL, DISTANCES, **options), message)


def test_refuses_methods_of_other_kinds():
    closed = {"method": "closed-form", "norm": "l1"}
    message = 'is for spheres with norm "l2"'
    refused(lambda: reconstruct(make("spherical"), DISTANCES, **closed), message)
    for name in ("remainder", "shared-basis"):
        unknown = make(name)
        refused(lambda e=unknown: reconstruct(e, DISTANCES, norm="l1"), "components are not known")
