from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from mahalens.report.tables import claims_table, outcomes_table, results_table

MakeRun = Callable[..., Path]


@pytest.fixture
def summary(make_run: MakeRun) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((make_run(trials=4) / "summary.json").read_text())
    return record


def printed(table: Table, width: int = 150) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue().splitlines()


def line_with(lines: list[str], text: str) -> str:
    return next(line for line in lines if text in line)


def test_results_stand_beside_the_published_ones(summary: dict[str, Any]) -> None:
    for row in summary["rows"]:
        if (row["model"], row["metric"]) == ("abs", "train_mse"):
            row.update(mean=0.12, ci95=[0.08, 0.16])
    lines = printed(results_table(summary))
    place = next(i for i, line in enumerate(lines) if "Final training MSE" in line)
    assert "0.120 ± 0.040" in lines[place]
    assert lines[place + 1].split() == ["(0.122)", "(0.0284)", "(0.268)"]
    assert line_with(lines, "MD_Abs").split() == [
        "metric",
        "MD_Abs",
        "MD_ReLU",
        "MD_Sigmoid",
        "Ground",
        "truth",
    ]


def test_a_metric_without_any_value_is_left_out(summary: dict[str, Any]) -> None:
    for row in summary["rows"]:
        if row["metric"] == "dead_units":
            row.update(mean=None, n=0, ci95=None)
    lines = "\n".join(printed(results_table(summary)))
    assert "Dead units" not in lines
    assert "Mirrored pairs" in lines


def test_a_single_trial_has_no_interval(make_run: MakeRun) -> None:
    summary = json.loads((make_run(trials=1) / "summary.json").read_text())
    assert not any("±" in line for line in printed(results_table(summary))[2:])


def test_several_groups_are_kept_apart(summary: dict[str, Any]) -> None:
    other = [{**row, "group": {"dim": 10}, "mean": 77.0, "ci95": None} for row in summary["rows"]]
    summary["rows"] += other
    lines = printed(results_table(summary))
    assert sum("Final training MSE" in line for line in lines) == 2
    assert "77" in line_with(lines, "dim 10")


def test_outcomes_name_the_lost_trials(summary: dict[str, Any]) -> None:
    lines = printed(outcomes_table(summary))
    assert "3 done, 1 non-finite" in line_with(lines, "MD_ReLU")
    assert sum("not finite: trial 3" in line for line in lines) == 1


def test_the_ledger_of_one_run(summary: dict[str, Any]) -> None:
    lines = printed(claims_table([("runs/a", summary)]))
    first = line_with(lines, "lower training MSE")
    assert "✓ holds" in first
    assert "0.122 against 0.2675" in first
    assert "– not measured" in line_with(lines, "pair up")
    assert "2.9e-31" in "\n".join(lines)


def test_the_ledger_of_several_runs(summary: dict[str, Any]) -> None:
    other = json.loads(json.dumps(summary))
    other["claims"] = [
        {**summary["claims"][0], "verdict": "fails", "published": "0.0339", "measured": 0.25},
        {**summary["claims"][0], "id": "000/only-here", "statement": "Only here."},
    ]
    lines = printed(claims_table([("a", summary), ("b", other)]))
    first = line_with(lines, "lower training MSE")
    assert first.index("✓ holds") < first.index("✗ fails")
    text = "\n".join(lines)
    assert "0.122 against 0.2675 (a)" in text  # runs that differ each say their own
    assert "0.0339 (b)" in text
    assert line_with(lines, "Only here").split()[-3:] == ["–", "✓", "holds"]


def test_text_of_a_record_is_never_markup(summary: dict[str, Any]) -> None:
    summary["claims"][0]["statement"] = "[bold]loud[/bold] [red]"
    summary["outcomes"][0]["model"] = "[blink]x"
    assert "[bold]loud[/bold] [red]" in "\n".join(printed(claims_table([("[u]n", summary)])))
    assert "[u]n" in "\n".join(printed(claims_table([("[u]n", summary)])))
    assert "[blink]x" in "\n".join(printed(outcomes_table(summary)))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_keep_to_the_terminal(summary: dict[str, Any], width: int) -> None:
    for table in (results_table(summary), outcomes_table(summary), claims_table([("a", summary)])):
        assert all(len(line) <= width for line in printed(table, width))


def test_empty_summaries_make_empty_tables() -> None:
    bare = {"study": "gaussian", "protocol": "published", "rows": [], "claims": []}
    assert results_table(bare).row_count == 0
    assert outcomes_table(bare).row_count == 0
    assert claims_table([]).row_count == claims_table([("a", bare)]).row_count == 0
