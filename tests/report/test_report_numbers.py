from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.report.tables import (
    MISSING,
    anything,
    duration,
    interval,
    is_number,
    mean_and_half,
    number,
    published_value,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0, "0"),
        (-0.0, "0"),
        (20, "20"),
        (20.0, "20"),
        (250_000, "250,000"),
        (0.12345, "0.123"),
        (0.0339, "0.0339"),
        (0.4, "0.400"),
        (-0.5, "-0.500"),
        (1.23456, "1.23"),
        (999.6, "1,000"),
        (46987.4, "47,000"),
        (0.0009999, "0.00100"),  # rounding carries it over the limit: no power of ten needed
        (0.00012, "1.2e-4"),
        (2.9e-31, "2.9e-31"),
        (2.934e-31, "2.93e-31"),
        (1e-7, "1e-7"),
        (12_345_678.9, "1.23e7"),
        (1e6, "1e6"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (-math.inf, "–"),
    ],
)
def test_numbers_look_as_agreed(value: float | None, shown: str) -> None:
    assert number(value) == shown


@settings(deadline=None)
@given(st.floats(-1e307, 1e307))
def test_a_shown_number_is_within_half_a_unit_of_its_third_figure(value: float) -> None:
    shown = float(number(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.5001e-2, abs_tol=5e-324)
    assert len(number(value)) <= 10


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, [1.0]])
def test_what_is_no_number(value: object) -> None:
    assert not is_number(value)


@pytest.mark.parametrize("bounds", [None, [], [None, None], [0.1, math.nan]])
def test_a_missing_interval_leaves_the_mean(bounds: list[float] | None) -> None:
    assert interval(bounds) == MISSING
    assert mean_and_half(0.12, bounds) == ("0.1200", "")
    assert mean_and_half(None, bounds) == (MISSING, "")


@pytest.mark.parametrize(
    ("mean", "bounds", "percent", "shown"),
    [
        (0.12, [0.08, 0.16], False, ("0.120", "0.040")),
        (2.9e-31, [1.8e-31, 4.0e-31], False, ("2.9e-31", "1.1e-31")),
        (12345.6, [12000.0, 12691.2], False, ("12,346", "346")),
        (99.98, [99.97, 99.99], True, ("99.98", "0.01")),
        (99.98, [99.979, 99.981], True, ("99.98", "0.0010")),
        (-0.001, [-2.0, 2.0], False, ("0.0", "2.0")),
    ],
)
def test_a_mean_and_its_half_width_are_rounded_alike(
    mean: float, bounds: list[float], percent: bool, shown: tuple[str, str]
) -> None:
    assert mean_and_half(mean, bounds, percent) == shown


def test_a_published_value_looks_as_it_was_published() -> None:
    values = (0.122, 0.2675, 2, 9.1e-7, 12_340.0, 0.5)
    assert [published_value(v) for v in values] == [
        *("0.122", "0.2675", "2", "9.1e-7", "12,340", "0.5")
    ]
    assert (published_value(98.3, percent=True), published_value(math.nan)) == ("98.30", MISSING)


def test_anything_takes_what_a_record_may_hold() -> None:
    assert anything({"min": 0.0, "max": 0.2069}) == "min 0, max 0.207"
    assert anything(["a", None, 0.5]) == "a, –, 0.500"
    assert anything(True) == "yes"
    assert anything([]) == anything("") == anything({}) == MISSING


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (59.97, "1 min 0 s"),
        (59.9, "59.9 s"),
        (3599.6, "1 h 0 min"),
        (math.nan, "–"),
        (0, "under 0.1 s"),
    ],
)
def test_durations_carry_over(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
