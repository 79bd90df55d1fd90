"""Perturbations of single units against loops, and the index against the published figures."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.auditing.perturb import (
    GRID_LEVELS,
    NOTICEABLE,
    TABLE_LEVELS,
    level_key,
    perturb,
    reliance_index,
)

# Of arXiv 2411.17932: accuracy on the training set in per cent, by the levels of the table.
PUBLISHED = {
    "abs": (99.99, (94.76, 99.98), (71.05, 99.60), (86.25, 99.82, 99.81, 81.40, 23.43)),
    "relu": (98.33, (75.33, 98.10), (87.56, 98.14), (96.55, 98.31, 98.26, 96.31, 81.60)),
}


def by_level(kind: str, accuracies: tuple[float, ...]) -> dict[str, float]:
    keys = [level_key(level) for level in TABLE_LEVELS[kind]]
    return {key: value / 100 for key, value in zip(keys, accuracies, strict=True)}


def slowly(value: float, low: float, high: float, kind: str, level: float) -> float:
    """One value of one unit, from the words of the paper."""
    span = high - low
    if kind == "scale":
        return value * level
    if kind == "clip":
        ceiling = low + level * span
        return ceiling if value > ceiling else value
    # Shrink the distance from the top by the factor 1 - p: the low end moves by p times the range.
    return high - (1 - level) * (high - value)


numbers = st.floats(-100, 100)
levels = st.floats(-2, 10)


@settings(deadline=None)
@given(
    values=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5),
    kind=st.sampled_from(["scale", "clip", "offset"]),
    level=levels,
)
def test_equals_the_slow_form(values: list[list[float]], kind: str, level: float) -> None:
    if kind != "offset":
        level = abs(level)
    activation = torch.tensor(values, dtype=torch.float64)
    low, high = activation.amin(0), activation.amax(0)
    found = perturb(activation, low, high, kind, level)
    wanted = [
        [slowly(v, float(low[k]), float(high[k]), kind, level) for k, v in enumerate(row)]
        for row in values
    ]
    torch.testing.assert_close(
        found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )


@settings(deadline=None)
@given(p=st.floats(-2, 1), top=st.floats(0.1, 100), share=st.floats(0, 1))
def test_an_offset_is_the_published_one_where_the_least_activation_is_zero(p, top, share):
    value, high = (torch.tensor(v, dtype=torch.float64) for v in ([[share * top]], [top]))
    published = (top - p * top) / top * (share * top) + p * top
    found = float(perturb(value, torch.zeros_like(high), high, "offset", p))
    assert found == pytest.approx(published, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_unit_without_a_range_keeps_its_value(value: float) -> None:
    activation, end = torch.full((5, 1), value), torch.tensor([value])
    for kind in ("clip", "offset"):
        for level in GRID_LEVELS[kind]:
            assert torch.equal(perturb(activation, end, end, kind, level), activation)


def test_the_place_of_the_units_can_be_any_dimension() -> None:
    maps = torch.randn(6, 3, 4, 5)
    low, high = maps.amin((0, 2, 3)), maps.amax((0, 2, 3))
    for kind in TABLE_LEVELS:
        rows = perturb(maps.movedim(1, -1).reshape(-1, 3), low, high, kind, 0.3)
        wanted = rows.reshape(6, 4, 5, 3).movedim(-1, 1)
        torch.testing.assert_close(perturb(maps, low, high, kind, 0.3, dim=1), wanted)


def test_a_stack_of_trials_has_a_range_each() -> None:
    stack = torch.randn(2, 7, 3)
    low, high = stack.amin(1, keepdim=True), stack.amax(1, keepdim=True)
    for kind in TABLE_LEVELS:
        found = perturb(stack, low, high, kind, 0.3)
        for trial in range(2):
            alone = perturb(stack[trial], low[trial, 0], high[trial, 0], kind, 0.3)
            torch.testing.assert_close(found[trial], alone)


def test_what_is_given_stays_as_it_was() -> None:
    activation = torch.randn(5, 2)
    before = activation.clone()
    for kind in TABLE_LEVELS:
        result = perturb(activation, activation.amin(0), activation.amax(0), kind, 0.1)
        assert result.dtype == activation.dtype
        result.zero_()
        assert torch.equal(activation, before)


@pytest.mark.parametrize(("model", "index"), [("abs", 0.43), ("relu", -0.35)])
def test_the_index_of_the_published_figures(model: str, index: float) -> None:
    baseline, *accuracies = PUBLISHED[model]
    parts = [by_level(kind, own) for kind, own in zip(TABLE_LEVELS, accuracies, strict=True)]
    assert reliance_index(baseline / 100, *parts) == pytest.approx(index, abs=0.005)


def even(accuracy: float) -> dict[str, dict[str, float]]:
    return {
        kind: {level_key(level): accuracy for level in levels}
        for kind, levels in TABLE_LEVELS.items()
    }


def test_the_index_has_no_answer_where_nothing_is_lost() -> None:
    assert reliance_index(0.9, **even(0.9)) is None
    assert reliance_index(0.9, **even(0.95)) is None  # gains are no loss
    assert reliance_index(0.9, **even(0.9 - 0.4 * NOTICEABLE)) is None
    assert reliance_index(0.9, **even(0.9 - 0.6 * NOTICEABLE)) == pytest.approx(0.0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=10, max_size=10))
def test_the_index_stays_between_its_ends(drawn: list[float]) -> None:
    values = iter(drawn[1:])
    parts = [{level_key(p): next(values) for p in own} for own in TABLE_LEVELS.values()]
    index = reliance_index(drawn[0], *parts)
    assert index is None or -1 <= index <= 1
