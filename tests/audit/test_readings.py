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


def read(mean, std, classes=None, grid=None, length=None, **options):
    units = len(mean)
    given = (
        *([1.0] * units if length is None else length, mean, std, [0.5] * units),
        *([[0.0]] * units if grid is None else grid, *(classes or ())),
    )
    parts = (torch.tensor(values, dtype=torch.float64) for values in given)
    return read_hyperplanes(*parts, **options)


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
    lengths = numbers(units, st.sampled_from([0.5, 1.0, 4.0]))
    return grid, centres, spreads, lengths, draw(st.sampled_from([0.0, 0.5, 2.0]))


def over(distance, spread):
    """A distance in spreads: 0 or infinite where there is no spread."""
    return distance / spread if spread else distance and distance * inf


@settings(deadline=None, max_examples=80)
@given(placings(), st.sampled_from([1, 20, 10**6]))
def test_readings_agree_with_their_definitions(placing, chunk):
    grid, centres, spreads, lengths, through = placing
    mean, std = [row[0] for row in grid], [1.5] * len(grid)
    options = {"length": lengths, "through": through, "chunk": chunk}
    reading = read(mean, std, (centres, spreads), grid, **options)
    for k, length in enumerate(lengths):
        centre, spread = ([row[k] for row in of] for of in (centres, spreads))
        chance = naive_chance(grid[k], centre, spread, through)
        assert reading.chance[k] == pytest.approx(chance, nan_ok=True)
        assert bool(reading.through[k]) == passes(0.0, centre, spread, through)
        assert bool(reading.common[k]) == near(0.0, centre, spread, through)[1]
        away = [over(c, s) for c, s in zip(centre, spread, strict=True)]
        assert reading.class_spreads[:, k].tolist() == pytest.approx(away, nan_ok=True)
        sizes = [inf if math.isnan(size) else abs(size) for size in away]
        assert reading.nearest[k] == (sizes.index(min(sizes)) if min(sizes) < inf else -1)
        far = [c / length for c in centre]
        assert reading.class_distance[:, k].tolist() == pytest.approx(far, nan_ok=True)
        assert (reading.mean_distance[k], reading.positive[k]) == (mean[k] / length, 0.5)
        assert reading.mean_spreads[k] == pytest.approx(mean[k] / 1.5)


def test_without_classes_the_data_take_their_place():
    reading = read([0.4, 0.6], [1.0, 1.0], grid=[[0.0, 1.0, 5.0, 9.0]] * 2)
    assert reading.class_distance is None
    assert reading.class_spreads is None
    assert reading.nearest is None
    assert reading.through.tolist() == [True, False]
    assert reading.chance.tolist() == [0.25, 0.25]


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
