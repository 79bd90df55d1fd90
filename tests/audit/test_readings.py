import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.auditing.readings import read_hyperplanes

nan, inf = math.nan, math.inf


def near(at, centres, spreads, through):
    """Whether a hyperplane at ``at`` is near a class, and whether near more than half of them."""
    known = [(c, s) for c, s in zip(centres, spreads, strict=True) if not math.isnan(c + s)]
    count = sum(abs(c - at) <= through * s for c, s in known)
    return count > 0, count > max(1, len(known) // 2)


def passes(at, *classes):
    return near(at, *classes) == (True, False)


def naive_chance(grid, *classes):
    """One unit's chance by its definition: every value against every class."""
    counted = [t for t in grid if not near(t, *classes)[1]]
    return sum(passes(t, *classes) for t in counted) / len(counted) if counted else nan


def read(mean, std, classes=None, grid=None, through=0.5, length=None):
    units = len(mean)
    given = (
        *([1.0] * units if length is None else length, mean, std, [0.5] * units),
        *([[0.0]] * units if grid is None else grid, *(classes or ())),
    )
    parts = (torch.tensor(values, dtype=torch.float64) for values in given)
    return read_hyperplanes(*parts, through=through)


# Quarters, so that every sum, product and comparison is exact in both ways of counting.
quarters = st.integers(-12, 12).map(lambda n: n / 4)
sizes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 7))


@st.composite
def placings(draw):
    units, classes, points = draw(sizes)
    numbers = lambda n, of: draw(st.lists(of, min_size=n, max_size=n))  # noqa: E731
    grid = [numbers(points, quarters) for _ in range(units)]
    centres = [numbers(units, st.one_of(quarters, st.just(nan))) for _ in range(classes)]
    spreads = [numbers(units, quarters.map(abs)) for _ in range(classes)]
    return grid, centres, spreads, draw(st.sampled_from([0.0, 0.5, 2.0]))


@settings(deadline=None, max_examples=50)
@given(placings())
def test_chance_and_nearest_agree_with_the_definition(placing):
    grid, centres, spreads, through = placing
    units = len(grid)
    reading = read([0.0] * units, [1.0] * units, (centres, spreads), grid, through)
    for k in range(units):
        own = [(c[k], s[k]) for c, s in zip(centres, spreads, strict=True)]
        chance = naive_chance(grid[k], [c for c, _ in own], [s for _, s in own], through)
        assert reading.chance[k] == pytest.approx(chance, nan_ok=True)
        centre, spread = zip(*own, strict=True)
        assert bool(reading.through[k]) == passes(0.0, centre, spread, through)
        assert bool(reading.common[k]) == near(0.0, centre, spread, through)[1]
        away = [
            (0.0 if c == 0 else inf) if s == 0 else abs(c) / s if not math.isnan(c) else inf
            for c, s in own
        ]
        nearest = away.index(min(away)) if min(away) < inf else -1
        assert reading.nearest[k] == nearest


def test_chance_in_chunks_is_the_same():
    generator = torch.Generator().manual_seed(0)
    grid = torch.randn(11, 9, generator=generator, dtype=torch.float64)
    centres = torch.randn(4, 11, generator=generator, dtype=torch.float64)
    spreads = torch.rand(4, 11, generator=generator, dtype=torch.float64)
    one = torch.ones(11, dtype=torch.float64)
    whole, parts = (
        read_hyperplanes(one, one, one, one, grid, centres, spreads, chunk=chunk).chance
        for chunk in (10**6, 20)
    )
    assert torch.equal(whole, parts)
    for k in range(11):
        assert whole[k] == pytest.approx(naive_chance(grid[k], centres[:, k], spreads[:, k], 0.5))


def test_distances_of_a_layer_whose_data_is_known():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(500, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2, 3])
    y = torch.arange(500) % 2
    x[y == 1, 0] += 10
    weight = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 4.0]], dtype=torch.float64)
    bias = torch.tensor([-20.0, 1.0], dtype=torch.float64)
    z = x @ weight.T + bias
    by_class = [z[y == c] for c in (0, 1)]
    reading = read_hyperplanes(
        weight.norm(dim=1),
        z.mean(0),
        z.std(0),
        (z > 0).double().mean(0),
        z.T,
        torch.stack([part.mean(0) for part in by_class]),
        torch.stack([part.std(0) for part in by_class]),
    )
    # Straight from the geometry: the foot of each class mean on the hyperplane x = 10.
    for c in (0, 1):
        foot = (x[y == c].mean(0) @ weight[0] + bias[0]) / 2
        assert reading.class_distance[c, 0] == pytest.approx(float(foot))
        spread = x[y == c, 0].std()
        assert reading.class_spreads[c, 0] == pytest.approx(float(foot / spread))
    assert reading.mean_distance[1] == pytest.approx(
        float((x.mean(0) @ weight[1] + bias[1]) / weight[1].norm())
    )
    assert reading.mean_spreads[1] == pytest.approx(float(z[:, 1].mean() / z[:, 1].std()))
    assert reading.nearest[0] == 1
    assert bool(reading.through[0])
    # Both classes cover the middle of a normal law: P(|t| < 1/2) = 0.383 of each.
    assert float(reading.chance[0]) == pytest.approx(0.383, abs=0.06)
    assert reading.positive[0] == pytest.approx(float((z[:, 0] > 0).double().mean()))


def test_without_classes_the_data_take_their_place():
    reading = read([0.4, 0.6], [1.0, 1.0], grid=[[0.0, 1.0, 5.0, 9.0]] * 2)
    assert reading.class_distance is None
    assert reading.class_spreads is None
    assert reading.nearest is None
    assert reading.through.tolist() == [True, False]
    assert reading.chance.tolist() == [0.25, 0.25]


def test_near_most_classes_at_once_is_through_none_of_them():
    means = [[0.0, 0.0], [0.1, 0.1], [-0.1, 5.0], [0.2, 9.0]]
    reading = read([0.0] * 2, [3.0] * 2, (means, [[1.0, 1.0]] * 4), grid=[[0.0, 2.0], [0.0, 9.0]])
    assert reading.through.tolist() == [False, True]
    assert reading.common.tolist() == [True, False]
    assert reading.nearest.tolist() == [0, 0]
    assert reading.chance.tolist() == [0.0, 1.0]  # of t = 2, and of t = 0 and t = 9


def test_a_class_exactly_at_the_limit_is_passed_through():
    assert read([0.5], [1.0]).through.tolist() == [True]
    assert read([0.5000001], [1.0]).through.tolist() == [False]


def test_classes_without_rows_or_spread():
    classes = ([[nan, 0.0, 1.0], [3.0, 9.0, 2.0]], [[nan, 0.0, 0.0], [1.0, 1.0, 0.0]])
    reading = read([0.0] * 3, [1.0] * 3, classes, grid=[[3.0, 8.0], [0.0, 1.0], [1.0, 1.5]])
    assert reading.nearest.tolist() == [1, 0, -1]
    assert reading.through.tolist() == [False, True, False]
    assert reading.class_spreads[:, 1].tolist() == [0.0, 9.0]
    assert reading.class_spreads[:, 2].tolist() == [inf, inf]
    assert math.isnan(reading.class_spreads[0, 0])
    assert reading.chance.tolist() == [0.5, 0.5, 0.5]


def test_units_without_hyperplane_or_spread_have_no_reading():
    classes = ([[1.0, 1.0, 0.0, 0.0]], [[1.0, 1.0, 1.0, 1.0]])
    reading = read([1.0, 1.0, nan, 0.0], [1.0, 0.0, nan, inf], classes, length=[0.0, 2.0, 1.0, 1.0])
    assert reading.mean_distance.tolist()[1] == 0.5
    assert reading.class_distance.tolist()[0][1] == 0.5
    assert reading.mean_distance.isnan().tolist() == [True, False, True, False]
    assert reading.class_distance.isnan().tolist() == [[True, False, True, False]]
    for values in (reading.mean_spreads, reading.class_spreads[0], reading.chance):
        assert values.isnan().all()
    assert reading.nearest.tolist() == [-1] * 4
    assert not reading.through.any()


def test_a_grid_that_is_not_finite_has_no_chance():
    reading = read([0.0, 0.0], [1.0, 1.0], grid=[[0.0, nan], [0.0, 9.0]])
    assert math.isnan(reading.chance[0])
    assert reading.chance[1] == 0.5
