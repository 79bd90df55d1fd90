"""The table as a value: the same in a terminal, as HTML and as Markdown; how numbers look."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_text import Page
from runs import printed, words

from mahalens.report import tables
from mahalens.report.tables import Cell, Column, Section, Table, stack

HOSTILE = "<script>alert('x')</script>\"&'{{ 7 * 7 }} [red]loud[/red] a|b *c*"
TABLE = Table(
    "Ages",
    (Column("name", True), Column("age"), Column("shoe", on_page=True), Column("verdict", True)),
    (
        Section("Old", "above 30"),
        (Cell("Ada", colour="#0072B2"), Cell("36", "± 1", "2 trials"), Cell("7"), Cell("why")),
        Section("Young"),
        (Cell("Bob"), Cell("12", bold=True), Cell("5"), Cell("holds", "0.5", verdict=True)),
        (Cell("Cy", details=(("Iris", "Because."), ("", "So."))), Cell("all of them", span=3)),
    ),
    ("One note.", "Another."),
)


def test_every_form_has_every_cell() -> None:
    terminal, html, text = printed(TABLE), Page(TABLE.html()).text, TABLE.markdown()
    for form in (terminal, html, text):
        for part in ("Old", "Young", "Ada", "36 ± 1", "2 trials", "12", "holds", "all of them"):
            assert part in form
    assert "above 30" in html
    assert "Iris: Because. So." in html
    assert "Ages" in terminal
    assert "One note." in terminal
    assert "One note. Another." in html


def test_columns_of_the_page_alone_are_left_out_elsewhere() -> None:
    assert "shoe" in TABLE.html()
    assert "shoe" not in printed(TABLE) + TABLE.markdown()


def test_html_names_rows_columns_and_sections() -> None:
    page = Page(TABLE.html())
    tags = [tag for tag, _ in page.tags]
    scopes = [attrs["scope"] for tag, attrs in page.tags if tag == "th"]
    assert scopes == ["col"] * 4 + ["rowgroup", "row", "rowgroup", "row", "row"]
    assert tags.count("tbody") == 2
    spans = [attrs["colspan"] for _, attrs in page.tags if "colspan" in attrs]
    assert spans == ["4", "4", "3"]
    labels = [attrs["data-label"] for tag, attrs in page.tags if tag == "td"]
    assert labels == ["age", "shoe", "verdict"] * 2 + ["age"]
    assert "#0072B2" in TABLE.html()


def test_markdown_is_a_table_of_equal_rows() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[:3] == ["| name | age | verdict |", "|---|---:|---|", "| **Old** |  |  |"]
    assert lines[3:] == [
        "| Ada | 36 ± 1 (2 trials) | why |",
        "| **Young** |  |  |",
        "| Bob | **12** | **holds** 0.5 |",
        "| Cy | all of them |  |",
    ]


def test_verdicts_have_signs_and_in_compact_tables_no_words() -> None:
    assert "✓ holds 0.5" in printed(TABLE)
    compact = replace(TABLE, is_compact=True)
    assert "✓ 0.5" in printed(compact)
    assert "holds" not in printed(compact)
    html = compact.html()
    assert '<span class="spoken">holds</span>' in html  # for those who hear the page
    assert 'class="badge holds"' in html


def test_a_cell_with_details_can_be_open_at_first() -> None:
    shut = Table("", (Column("a"),), ((Cell("x", details=(("", "y"),)),),))
    opened = replace(shut, lines=((Cell("x", details=(("", "y"),), is_open=True),),))
    assert "<details>" in shut.html()
    assert "<details open>" in opened.html()


@pytest.mark.parametrize("where", ["text", "note", "below"])
def test_text_from_outside_stays_text(where: str) -> None:
    cells = (Cell(**{where: HOSTILE}), Cell(HOSTILE, details=((HOSTILE, HOSTILE),)))
    table = Table(HOSTILE, (Column(HOSTILE), Column("b")), (Section(HOSTILE, HOSTILE), cells))
    table = replace(table, notes=(HOSTILE,))
    html = table.html()
    assert "<script" not in html
    assert "{{ 7 * 7 }}" in Page(html).text
    assert HOSTILE in words(printed(table, width=1000))
    text = table.markdown()
    assert "<script" not in text.replace("\\<", "")
    assert all(line.count("|") - line.count("\\|") == 3 for line in text.splitlines())


def test_stacked_tables_have_a_section_each_and_their_notes_once() -> None:
    parts = [replace(TABLE, title=name, lines=TABLE.lines[1:2]) for name in ("Iris", "Wine")]
    whole = stack("Results", parts, "First.")
    assert [line.title for line in whole.lines if isinstance(line, Section)] == ["Iris", "Wine"]
    assert whole.notes == ("First.", "One note.", "Another.")
    assert not stack("Nothing", [])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_keep_to_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in printed(TABLE, width).splitlines())


def test_a_narrow_terminal_wraps_lines_and_keeps_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    TABLE.show()
    assert "Ada" in capsys.readouterr().out


def test_the_value_loads_nothing_heavy() -> None:
    script = "import mahalens.report.tables, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert not {"torch", "matplotlib", "scipy", "jinja2", "rich"} & set(json.loads(done.stdout))


# --- How numbers look


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
    assert tables.number(value) == shown


@settings(deadline=None)
@given(st.floats(-1e307, 1e307))
def test_a_shown_number_is_within_half_a_unit_of_its_third_figure(value: float) -> None:
    shown = float(tables.number(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.5001e-2, abs_tol=5e-324)
    assert len(tables.number(value)) <= 10


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, [1.0]])
def test_what_is_no_number(value: object) -> None:
    assert not tables.is_number(value)


@pytest.mark.parametrize("bounds", [None, [], [None, None], [0.1, math.nan]])
def test_a_missing_interval_leaves_the_mean(bounds: list[float] | None) -> None:
    assert tables.interval(bounds) == tables.MISSING
    assert tables.mean_and_half(0.12, bounds) == ("0.1200", "")
    assert tables.mean_and_half(None, bounds) == (tables.MISSING, "")


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
    assert tables.mean_and_half(mean, bounds, percent) == shown


def test_a_published_value_looks_as_it_was_published() -> None:
    values = (0.122, 0.2675, 2, 9.1e-7, 12_340.0, 0.5)
    assert [tables.published_value(v) for v in values] == [
        *("0.122", "0.2675", "2", "9.1e-7", "12,340", "0.5")
    ]
    assert (tables.published_value(98.3, percent=True), tables.published_value(math.nan)) == (
        "98.30",
        tables.MISSING,
    )


def test_anything_takes_what_a_record_may_hold() -> None:
    assert tables.anything({"min": 0.0, "max": 0.2069}) == "min 0, max 0.207"
    assert tables.anything(["a", None, 0.5]) == "a, –, 0.500"
    assert tables.anything(True) == "yes"
    assert tables.anything([]) == tables.anything("") == tables.anything({}) == tables.MISSING


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
    assert tables.duration(seconds) == shown
