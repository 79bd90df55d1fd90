"""What a search for points cannot be given is said in one line."""

import pytest
import torch
from ellipsoid_kinds import make, points

from mahalens.errors import InputError
from mahalens.geometry import reconstruct

ELLIPSOIDS = make("full")
DISTANCES = ELLIPSOIDS.distances(points(ELLIPSOIDS, 2))
NAN = float("nan")


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
def test_distances_that_do_not_fit(distances, message):
    for method in ("auto", "adam"):
        with pytest.raises(InputError, match=message) as error:
            reconstruct(ELLIPSOIDS, distances, method=method)
        assert "\n" not in str(error.value)


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
        ({"subset": []}, "subset is empty"),
        ({"subset": 3}, "subset is empty or no list"),
        ({"subset": [0.5]}, "subset is empty or no list"),
        ({"subset": [0, 7]}, "outside 0 to 6"),
        ({"subset": [0, -8]}, "outside 0 to 6"),
        ({"subset": [True] * 3}, r"subset has shape \[3\], wanted one true or false for each"),
        ({"subset": [False] * 7}, "subset is empty"),
        ({"subset": [0, 1]}, "ellipsoids of the subset"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message) as error:
        reconstruct(ELLIPSOIDS, DISTANCES, **options)
    assert "\n" not in str(error.value)


def test_spheres_by_l1_have_no_closed_form():
    spheres = make("spherical")
    distances = spheres.distances(points(spheres, 2), norm="l1")
    with pytest.raises(InputError, match='is for spheres with norm "l2"'):
        reconstruct(spheres, distances, norm="l1", method="closed-form")


def test_l1_of_a_remainder_is_refused():
    ellipsoids = make("remainder")
    with pytest.raises(InputError, match="components are not known"):
        reconstruct(ellipsoids, DISTANCES, norm="l1")


def test_a_start_that_is_no_tensor():
    with pytest.raises(InputError, match="start is a list"):
        reconstruct(ELLIPSOIDS, DISTANCES, start=[[0.0] * 5] * 2)


def test_a_name_twice_counts_twice():
    distances = DISTANCES[:, [0, 1, 2, 3, 4, 5, 6, 6]]
    found = reconstruct(ELLIPSOIDS, distances, subset=[0, 1, 2, 3, 4, 5, 6, 6])
    assert float((found.x - points(ELLIPSOIDS, 2)).abs().max()) < 1e-9


def test_nothing_given_is_changed():
    before = DISTANCES.clone()
    start = torch.zeros(2, 5).double().requires_grad_()
    for method in ("newton", "adam"):
        found = reconstruct(ELLIPSOIDS, DISTANCES, start=start, method=method, steps=3)
        assert not found.x.requires_grad
    assert torch.equal(DISTANCES, before)
    assert not bool(start.any())


def test_distances_that_ask_for_gradients_are_taken_as_numbers():
    asking = DISTANCES.clone().requires_grad_()
    assert torch.equal(reconstruct(ELLIPSOIDS, asking).x, reconstruct(ELLIPSOIDS, DISTANCES).x)
