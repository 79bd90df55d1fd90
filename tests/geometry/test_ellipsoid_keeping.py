"""What ellipsoids keep between calls is made again when their tensors have changed."""

import pytest
import torch
from ellipsoid_kinds import NAMES, ROWS, WITH_L1, close, make, points, slow_distances

from mahalens.geometry.ellipsoids import FullEllipsoids

POINTS = torch.tensor([[5.0, 7.0], [-2.0, 3.0], [0.5, 0.25]])


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_a_change_in_place_is_noticed(name):
    for norm in ("l2", "l1") if name in WITH_L1 else ("l2",):
        ellipsoids = make(name)
        x = points(ellipsoids)
        ellipsoids.distances(x, norm=norm)
        ellipsoids.means[1] += 0.5
        close(ellipsoids.distances(x, norm=norm), slow_distances(ellipsoids, x, norm))
        for field in ("spreads", "whitening", "remainder"):
            if field in ellipsoids.tensors():
                getattr(ellipsoids, field)[2] *= 0.9 if field == "remainder" else 1.5
                close(ellipsoids.distances(x, norm=norm), slow_distances(ellipsoids, x, norm))
                wanted = slow_distances(ellipsoids, x, norm)
                close(ellipsoids.tangent(x, norm).distances, wanted)


def test_a_step_of_an_optimiser_is_noticed(name):
    ellipsoids = make(name)
    x = points(ellipsoids)
    ellipsoids.means.requires_grad_()
    optimiser = torch.optim.Adam([ellipsoids.means], lr=0.1)
    with torch.no_grad():
        ellipsoids.distances(x)
    ellipsoids.distances(x).sum().backward()
    optimiser.step()
    wanted = slow_distances(ellipsoids, x)
    with torch.no_grad():
        close(ellipsoids.distances(x), wanted)
    close(ellipsoids.distances(x).detach(), wanted)


@pytest.mark.parametrize("name", ROWS)
def test_is_made_once(name):
    ellipsoids = make(name)
    x = points(ellipsoids)
    ellipsoids.distances(x)
    first = ellipsoids._panels()
    ellipsoids.distances(x)
    assert ellipsoids._panels() is first


def test_other_tensors_are_noticed():
    new = torch.tensor([[0.0, 0.0], [1.0, 3.0], [4.0, 1.0]])
    for _ in range(500):
        ellipsoids = FullEllipsoids(torch.zeros(3, 2), torch.eye(2).repeat(3, 1, 1))
        ellipsoids.distances(POINTS)
        before = id(ellipsoids.means)
        ellipsoids.means = None
        others = []
        while len(others) < 20 and id(ellipsoids.means) != before:
            ellipsoids.means = new.clone()
            others.append(ellipsoids.means)
        close(ellipsoids.distances(POINTS), slow_distances(ellipsoids, POINTS))


def test_works_in_inference_mode():
    with torch.inference_mode():
        ellipsoids = FullEllipsoids(torch.zeros(1, 2), torch.eye(2)[None])
        close(ellipsoids.distances(torch.tensor([[3.0, 4.0]])), torch.tensor([[5.0]]))
