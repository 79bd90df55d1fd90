"""Principal axes: those with spread, and no others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import seeded

from mahalens.init.axes import principal_axes

SINGLE, DOUBLE = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize(("count", "width"), [(50, 4), (5, 4), (4, 4), (3, 8), (2, 1), (200, 30)])
def test_they_are_those_of_the_covariance(count, width):
    rows = 3 + drawn(count, width)
    axes = principal_axes(rows, DOUBLE)
    rank = min(count - 1, width)
    assert axes.rank == rank
    covariance = torch.cov(rows.T).reshape(width, width)
    values = torch.linalg.eigvalsh(covariance).flip(0)[:rank]
    torch.testing.assert_close(axes.deviations.square(), values)
    turned = axes.directions @ covariance @ axes.directions.T
    torch.testing.assert_close(turned, torch.diag(values))
    torch.testing.assert_close(axes.mean, rows.mean(0))
    largest = axes.directions.gather(1, axes.directions.abs().argmax(1, keepdim=True))
    assert bool((largest > 0).all())


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(2, 400),
    width=st.integers(1, 40),
    rank=st.integers(1, 6),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_the_rank_of_data_in_a_subspace(count, width, rank, offset, seed):
    rows = drawn(count, rank, seed=seed) @ drawn(rank, width, seed=seed + 1) + offset
    found = principal_axes(rows, DOUBLE).rank
    # A draw can have an axis that is thin, but never one more than there are.
    assert found <= min(count - 1, width, rank)
    if count > 20 + rank and offset < 1e4:
        assert found == min(width, rank)


def test_what_rounding_makes_is_no_axis():
    """The third input is the sum of two, rounded to single precision: spread of about 1e-7."""
    x = drawn(3000, 2).float()
    rows = torch.cat([x, x.sum(1, keepdim=True)], 1).double()
    assert principal_axes(rows, SINGLE).rank == 2
    assert principal_axes(rows, DOUBLE).rank == 3, "for double precision it would be one"


def test_many_exact_copies_are_no_axes():
    rows = drawn(2000, 3) @ drawn(3, 60, seed=1)
    assert principal_axes(rows, 1e-300).rank == 3, "the solver's own rounding counts too"


def test_one_row_has_none():
    axes = principal_axes(drawn(1, 4), DOUBLE)
    assert axes.rank == 0
    assert axes.whitening().shape == (0, 4)
