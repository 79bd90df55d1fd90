"""The page of printed tests holds what the code computes, and its sentences are true."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from mahalens import InputError
from mahalens.stats import compare, compare_summaries

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def printed():
    spec = importlib.util.spec_from_file_location("printed_tests", DOCS / "printed_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_the_page_is_up_to_date(printed):
    text = printed.PAGE.read_text("utf-8")
    made = f"{printed.BEGIN}\n\n{printed.table()}\n\n{printed.END}"
    assert made in text, "make it again: python docs/printed_tests.py --write"


def test_the_sentences_of_the_page_are_those_of_the_table(printed):
    by_t, by_d = zip(*(printed.sources(row) for row in printed.PRINTED), strict=True)
    of_text = {printed.TEXT, printed.SHRUNK}
    assert sum(bool(of_text & set(names)) for names in by_t) == 5
    assert sum(bool(of_text & set(names)) for names in by_d) == 6
    assert not any(printed.TABLE in names for names in by_t)
    assert by_t[0] == by_d[0] == []
    assert (by_t[1], by_d[1]) == ([], [printed.SHRUNK])
    relu = printed.recompute(printed.PRINTED[0], 5_000)
    assert relu.t > 6.3
    assert relu.p_value < 1e-6
    collapse = printed.recompute(printed.PRINTED[1], 5_000)
    assert round(printed.BY_N * collapse.t, 2) == -17.59


def test_a_summary_is_tested_as_its_samples_are():
    generator = np.random.default_rng(0)
    a, b = generator.normal(3, 1, 20), generator.normal(2, 2, 20)
    result = compare_summaries((a.mean(), a.std(ddof=1)), (b.mean(), b.std(ddof=1)), 20)
    whole = ttest_ind(a, b)
    assert (result.t, result.p_value) == pytest.approx((whole.statistic, whole.pvalue))
    assert result.cohens_d == pytest.approx(compare(a, b).cohens_d)
    assert result.t_range == (result.t, result.t)


def test_the_range_holds_all_that_rounds_to_the_printed_numbers():
    generator = np.random.default_rng(1)
    result = compare_summaries((95.35, 0.17), (95.26, 0.19), 20, rounding=0.005)
    for _ in range(200):
        shift = generator.uniform(-0.005, 0.005, 4)
        near = compare_summaries(
            (95.35 + shift[0], 0.17 + shift[1]), (95.26 + shift[2], 0.19 + shift[3]), 20
        )
        assert result.t_range[0] <= near.t <= result.t_range[1]
        assert result.d_range[0] <= near.cohens_d <= result.d_range[1]


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [((1.0, 0.1), (2.0, 0.1), 1), ((1.0, 0.0), (2.0, 0.0), 5), ((1.0, math.nan), (2.0, 0.1), 5)],
)
def test_summaries_without_spread_are_refused(a, b, n):
    with pytest.raises(InputError, match="give at least 2 each"):
        compare_summaries(a, b, n)
