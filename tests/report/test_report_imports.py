from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MakeRun = Callable[..., Path]


def modules_after(code: str, *arguments: str) -> set[str]:
    """The modules loaded once ``code`` has run in an interpreter of its own."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_whole_report_needs_neither_torch_nor_pyplot(make_run: MakeRun) -> None:
    folder = make_run(trials=2, models=("abs", "ground-truth"))
    loaded = modules_after(
        "from mahalens.report import build_report, records, tables\n"
        "build_report(sys.argv[1])\n"
        "run = records.load_run(sys.argv[1])\n"
        "tables.results_table(run.summary), tables.outcomes_table(run.summary)\n"
        "tables.claims_table([('a', run.summary)])",
        str(folder),
    )
    assert "matplotlib.figure" in loaded
    assert not {"torch", "matplotlib.pyplot"} & loaded


def test_tables_load_nothing_heavy() -> None:
    loaded = modules_after("import mahalens.report.tables")
    assert not {"torch", "matplotlib", "numpy", "scipy", "jinja2"} & loaded
