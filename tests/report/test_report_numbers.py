from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.report.numbers import (
    MISSING,
    anything,
    duration,
    interval,
    is_number,
    number,
    with_interval,
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


def test_a_centred_interval_is_shown_by_its_half_width() -> None:
    assert with_interval(0.12, [0.08, 0.16]) == "0.120 ± 0.040"
    assert with_interval(3.0, [3.0, 3.0]) == "3 ± 0"
    assert with_interval(2.9e-31, [1.8e-31, 4.0e-31]) == "2.9e-31 ± 1.1e-31"


def test_an_interval_off_centre_is_shown_by_its_ends() -> None:
    assert with_interval(0.12, [0.1, 0.2]) == "0.120 (0.100 to 0.200)"


@pytest.mark.parametrize("bounds", [None, [], [None, None], [0.1, math.nan]])
def test_a_missing_interval_leaves_the_mean(bounds: list[float] | None) -> None:
    assert interval(bounds) == MISSING
    assert with_interval(0.12, bounds) == "0.120"
    assert with_interval(None, bounds) == MISSING


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
