"""The page of printed tests holds what the code computes, and its sentences are true."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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
