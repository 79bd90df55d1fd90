"""What the README shows must run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_python_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    exec(compile(code, "README.md", "exec"), {})
    statuses, error = capsys.readouterr().out.rsplit(" ", 1)
    assert "zero residual" in statuses
    assert float(error) < 1e-8


def test_every_command_shown_exists():
    from mahalens.cli import cli

    shown = re.findall(r"^mahalens (\w+)", (ROOT / "README.md").read_text(), re.M)
    assert shown
    assert set(shown) <= set(cli.commands)


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
