"""Data and helpers that the tests of several statistics share."""

import math
import sys

import msgspec
from hypothesis import strategies as st

# Student's sleep data: extra hours of sleep of ten patients under two drugs.
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)
WILD = st.one_of(st.floats(), st.none(), st.sampled_from([0.0, 1.0, sys.float_info.max]))
WILD_PAIRS = st.lists(st.tuples(WILD, WILD), max_size=8).map(
    lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
)


def is_finite(value):
    return value is not None and math.isfinite(value)


def assert_without_nan(result):
    for value in msgspec.structs.astuple(result):
        for number in value if isinstance(value, tuple) else (value,):
            assert not (isinstance(number, float) and math.isnan(number))
