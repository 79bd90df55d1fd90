"""What a reconstruction says about itself: noise, rank, expected error, words."""

import pytest
import torch
from ellipsoid_kinds import NAMES, make, points

from mahalens.geometry import SphericalEllipsoids, reconstruct

DIM, COUNT = 4, 14


@pytest.mark.parametrize("name", NAMES)
class TestFewDistances:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_are_met_and_the_rest_is_open(self, name, dtype):
        ellipsoids = make(name, 3, 6, dtype)
        x = points(ellipsoids, 5)
        found = reconstruct(ellipsoids, ellipsoids.distances(x))
        assert float(found.residual.max()) < (1e-4 if dtype == torch.float32 else 1e-9)
        assert found.rank.tolist() == [3] * 5
        assert torch.isnan(found.expected_error).all()
        text = found.describe(2)
        assert "3 distances determine 3 of 6 directions; the other 3 stay near the start" in text
        assert "noise cannot be estimated" in text

    def test_known_noise_leads_to_an_error_along_what_they_determine(self, name):
        ellipsoids = make(name, 3, 6)
        x = points(ellipsoids, 2)
        found = reconstruct(ellipsoids, ellipsoids.distances(x), noise=0.01)
        slopes = torch.linalg.svdvals(ellipsoids.tangent(found.x).jacobian())
        torch.testing.assert_close(found.expected_error, 0.01 * slopes.pow(-2).sum(dim=1).sqrt())
        torch.testing.assert_close(found.condition, slopes[:, 0] / slopes[:, -1])
        assert "Noise of 0.01 in a distance" in found.describe()

    def test_open_directions_stay_as_in_the_start(self, name):
        ellipsoids = make(name, 2, 6)
        x = points(ellipsoids, 3)
        start = x + 1e-3 * torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()
        found = reconstruct(ellipsoids, ellipsoids.distances(x), start=start, method="newton")
        slopes = ellipsoids.tangent(found.x).jacobian()
        moved = found.x - start
        along = torch.linalg.lstsq(slopes.mT, moved[..., None]).solution
        left = moved - (slopes.mT @ along)[..., 0]
        # The slopes turn a little on the way: to second order in the way.
        assert float(left.norm(dim=1).max()) < 0.1 * float(moved.norm(dim=1).max())
        assert float(found.residual.max()) < 1e-9


class TestNoise:
    @pytest.mark.parametrize("name", NAMES)
    def test_error_and_estimate_are_as_said(self, name):
        ellipsoids = make(name, COUNT, DIM)
        trials, sigma = 300, 1e-3
        x = points(ellipsoids, 1).expand(trials, -1)
        g = torch.Generator().manual_seed(0)
        noise = sigma * torch.randn(trials, COUNT, generator=g, dtype=torch.float64)
        distances = (ellipsoids.distances(x) + noise).clamp(min=0)
        found = reconstruct(ellipsoids, distances, start=x)
        error = (found.x - x).square().sum(dim=1).mean().sqrt()
        assert 0.9 < float(error / found.expected_error.square().mean().sqrt()) < 1.1
        estimate = found.noise.square().mean().sqrt()
        assert 0.95 < float(estimate / sigma) < 1.05
        known = reconstruct(ellipsoids, distances, start=x, noise=sigma)
        assert known.noise.tolist() == [sigma] * trials
        assert 0.9 < float(error / known.expected_error.mean()) < 1.1

    def test_residual_is_a_root_mean_square(self):
        ellipsoids = make("full", COUNT, DIM)
        distances = ellipsoids.distances(points(ellipsoids, 3)) + 0.1
        found = reconstruct(ellipsoids, distances)
        gaps = ellipsoids.distances(found.x) - distances
        torch.testing.assert_close(found.residual, gaps.square().mean(dim=1).sqrt())
        free = gaps.square().sum(dim=1) / (COUNT - DIM)
        torch.testing.assert_close(found.noise, free.sqrt())

    def test_more_distances_lower_the_expected_error(self):
        ellipsoids = make("full", 40, DIM)
        x = points(ellipsoids, 5)
        few = reconstruct(ellipsoids[:10], ellipsoids[:10].distances(x), noise=0.1)
        more = reconstruct(ellipsoids, ellipsoids.distances(x), noise=0.1)
        assert bool((more.expected_error < few.expected_error).all())


class TestWords:
    def test_of_a_determined_point(self):
        ellipsoids = make("full", COUNT, DIM)
        found = reconstruct(ellipsoids, ellipsoids.distances(points(ellipsoids, 3)), noise=0.01)
        text = found.describe(1)
        assert f"{COUNT} distances determine all {DIM} directions, condition number" in text
        assert "\n" not in text
        assert repr(found).startswith(
            f"Reconstruction(points=3, dim={DIM}, distances={COUNT}, method='newton'"
        )
        assert len(found) == 3

    def test_of_as_many_distances_as_inputs(self):
        ellipsoids = make("full", DIM, DIM)
        found = reconstruct(ellipsoids, ellipsoids.distances(points(ellipsoids, 1)))
        assert "determine all 4 directions" in found.describe()
        assert "met exactly by others too" in found.describe()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_a_point_among_means_in_a_line(self, dtype):
        means = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [7.0, 0.0]], dtype=dtype)
        ellipsoids = SphericalEllipsoids(means, torch.ones(4, dtype=dtype))
        x = torch.tensor([[3.0, 0.0]], dtype=dtype)
        start = x + torch.tensor([[0.1, 0.0]], dtype=dtype)
        found = reconstruct(ellipsoids, ellipsoids.distances(x), start=start)
        assert found.rank.tolist() == [1]
        assert "1 of 2 directions" in found.describe()
