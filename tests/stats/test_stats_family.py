import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mahalens.errors import InputError
from mahalens.stats import compare, compare_family, holm

p_values = st.lists(st.one_of(st.floats(0, 1), st.none(), st.just(math.nan)), max_size=12)


def rejected(p_values, level):
    """Holm's procedure as he put it: step down while the smallest is small enough."""
    left = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found = set()
    while left and p_values[left[0]] * len(left) <= level:
        found.add(left.pop(0))
    return found


def test_worked_by_hand():
    # In order: 0.005 · 4, 0.01 · 3, 0.03 · 2, and 0.04 · 1, which may not be less than 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    # statsmodels 0.15: multipletests(p, method="holm")
    found = holm([0.01, 0.04, 0.03, 0.005, 0.005, 0.9])
    assert found == pytest.approx([0.04, 0.09, 0.09, 0.03, 0.03, 0.9])


def test_undefined_values_do_not_count():
    assert holm([0.01, None, 0.03, math.nan]) == [0.02, None, 0.03, None]


@given(p_values)
def test_adjusting_raises_and_keeps_the_order(values):
    adjusted = holm(values)
    pairs = [(p, q) for p, q in zip(values, adjusted, strict=True) if q is not None]
    assert len(pairs) == sum(p is not None and not math.isnan(p) for p in values)
    assert all(p <= q <= 1 for p, q in pairs)
    for p, q in pairs:
        for other_p, other_q in pairs:
            if p <= other_p:
                assert q <= other_q


@given(st.lists(st.integers(0, 64).map(lambda k: k / 64), max_size=8), st.integers(0, 63))
def test_adjusted_values_reject_what_the_procedure_rejects(values, level):
    found = {i for i, p in enumerate(holm(values)) if p <= level / 64}
    assert found == rejected(values, level / 64)


@pytest.mark.parametrize("p", [-0.1, 1.5, math.inf])
def test_what_is_no_p_value_is_refused(p):
    with pytest.raises(InputError, match=r"at place 1 is outside 0 to 1"):
        holm([0.5, p])


def test_family_adjusts_each_test_by_itself():
    generator = np.random.default_rng(4)
    trials = {name: generator.lognormal(shift, size=12) for shift, name in enumerate("xyz")}
    trials["w"] = np.full(12, math.nan)
    pairs = [("x", "y"), ("z", "x"), ("y", "z"), ("x", "w")]
    family = compare_family(trials, pairs)
    assert [(c.a, c.b) for c in family] == pairs
    assert [c.result for c in family] == [compare(trials[a], trials[b]) for a, b in pairs]
    for adjusted, raw in [
        ("holm_paired", "paired_p"),
        ("holm_welch", "welch_p"),
        ("holm_wilcoxon", "wilcoxon_p"),
        ("holm_preferred", "preferred_p"),
    ]:
        expected = holm([getattr(c.result, raw) for c in family])
        assert [getattr(c, adjusted) for c in family] == expected
        assert expected[3] is None
        assert min(expected[:3]) == 3 * min(getattr(c.result, raw) for c in family[:3])


def test_family_without_pairs():
    assert compare_family({"x": [1.0]}, []) == []


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("x", "q")], r"model 'q' has no trials; pass pairs of 'x', 'y'"),
        ([("x", "x")], r"pair \('x', 'x'\) is one model twice"),
        ([("x", "y"), ("y", "x")], r"pair \('y', 'x'\) was given before"),
    ],
)
def test_pairs_that_make_no_family_are_refused(pairs, message):
    with pytest.raises(InputError, match=message):
        compare_family({"x": [1.0, 2.0], "y": [2.0, 1.0]}, pairs)
