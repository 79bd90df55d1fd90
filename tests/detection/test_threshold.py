"""Conformal p-values and thresholds: their formula, their promise, their refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.detection.threshold import Calibration
from mahalens.errors import InputError


def slow_p_value(calibration: Calibration, score: float, group: int = 0) -> float:
    cell = int(calibration.cell_of[group])
    scores = [
        float(s)
        for s, c in zip(calibration.scores, calibration.cells, strict=True)
        if int(c) == cell
    ]
    above = sum(s > score for s in scores)
    level = sum(s == score for s in scores)
    return (above + float(calibration.u[cell]) * (1 + level)) / (len(scores) + 1)


@given(
    st.lists(st.integers(-4, 4), min_size=20, max_size=60),
    st.integers(0, 50),
    st.sampled_from([0.05, 0.1, 0.5, 0.95]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_p_values_are_the_formula_and_decide(scores, seed, rate, exact):
    calibration = Calibration(
        torch.tensor(scores, dtype=torch.float64), rate=rate, seed=seed, exact=exact
    )
    new = torch.tensor([*range(-5, 6), -0.5, 0.5, 3.5], dtype=torch.float64)
    p = calibration.p_value(new)
    slow = torch.tensor([slow_p_value(calibration, float(s)) for s in new])
    torch.testing.assert_close(p, slow.double())
    clear = (slow - rate).abs() > 1e-9  # rounding may decide a tie with the rate
    assert (calibration.reject(new) == (slow <= rate))[clear].all()


def test_groups_have_thresholds_of_their_own_and_small_ones_share_one():
    generator = torch.Generator().manual_seed(0)
    groups = torch.tensor([0] * 300 + [1] * 200 + [2] * 60 + [3] * 50)
    scores = torch.randn(len(groups), generator=generator) + 10 * groups
    calibration = Calibration(scores, groups, group_count=5, rate=0.1)
    thresholds = calibration.thresholds()
    assert thresholds[2] == thresholds[3] == thresholds[4]
    assert len(set(thresholds.tolist())) == 3
    for group in range(4):
        new = torch.tensor([0.0, 1.2, 10.0, 11.4, 20.0, 31.3])
        p = calibration.p_value(new, torch.full((6,), group))
        slow = torch.tensor([slow_p_value(calibration, float(s), group) for s in new])
        torch.testing.assert_close(p, slow.to(p.dtype))
        assert (calibration.reject(new, torch.full((6,), group)) == (slow <= 0.1)).all()


@pytest.mark.parametrize("count", [50, 100, 500])
@pytest.mark.parametrize("shares", [(1.0,), (0.8, 0.15, 0.05)], ids=["one group", "unbalanced"])
def test_the_rate_is_kept_on_exchangeable_data(count, shares):
    rng = np.random.default_rng(count)
    rates = []
    for _ in range(400):
        groups = rng.choice(len(shares), size=count + 2_000, p=shares)
        scores = torch.tensor(rng.standard_t(3, size=len(groups)) * (1 + groups) + groups)
        cells = torch.tensor(groups)
        calibration = Calibration(scores[:count], cells[:count], group_count=len(shares), least=30)
        rates.append(float(calibration.reject(scores[count:], cells[count:]).double().mean()))
    error = np.std(rates) / np.sqrt(len(rates))
    assert abs(np.mean(rates) - 0.05) < min(0.01, 4 * error)


def test_without_randomness_the_rate_is_an_upper_bound():
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(400):
        scores = torch.tensor(rng.standard_normal(1_050))
        calibration = Calibration(scores[:50], exact=False)
        rates.append(float(calibration.reject(scores[50:]).double().mean()))
    assert np.mean(rates) == pytest.approx(2 / 51, abs=0.005)


def test_numbers_that_are_none_are_rejected():
    calibration = Calibration(torch.arange(40.0))
    assert calibration.reject(torch.tensor([torch.nan, torch.inf, -torch.inf])).tolist() == [
        True,
        True,
        False,
    ]
    assert calibration.p_value(torch.tensor([torch.nan]))[0] <= 1 / 41


def test_a_state_is_loaded_into_a_calibration_of_another_size():
    groups = torch.arange(400) % 3
    calibration = Calibration(torch.randn(400), groups, rate=0.2, seed=3)
    other = Calibration(torch.randn(30))
    other.load_state_dict(calibration.state_dict())
    new = torch.randn(50)
    assert torch.equal(
        other.reject(new, torch.arange(50) % 3), calibration.reject(new, torch.arange(50) % 3)
    )
    assert float(other.rate) == 0.2


def test_p_values_of_many_are_those_of_few():
    calibration = Calibration(torch.randn(100))
    new = torch.randn(1_000)
    whole = calibration.p_value(new)
    assert torch.equal(torch.cat([calibration.p_value(one) for one in new.split(7)]), whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Calibration(torch.randn(10)), "cannot be set from 10 samples; give at least 19"),
        (lambda: Calibration(torch.randn(99), rate=0), "reject rate is 0; give a number between"),
        (lambda: Calibration(torch.randn(99), rate=True), "reject rate is True"),
        (lambda: Calibration(torch.full((30,), torch.nan)), "30 of 30 calibration scores are not"),
        (lambda: Calibration(torch.randn(30, 2)), r"scores have shape \(30, 2\); give floats"),
        (
            lambda: Calibration(torch.randn(30), torch.arange(30) % 2 - 1),
            "group -1 is negative",
        ),
        (
            lambda: Calibration(torch.randn(30), torch.arange(30) % 2).reject(torch.zeros(1)),
            "this calibration has groups; give the group of each score",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()
