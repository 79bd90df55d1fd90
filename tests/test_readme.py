"""What the README shows must run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(page, places=slice(None)):
    """Run the Python examples of a page, all of them or some; return their names."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)[places]
    names: dict = {}
    exec(compile("\n".join(code), page, "exec"), names)
    return names


def test_the_python_example_runs(capsys):
    run("README.md", slice(1))
    statuses, error = capsys.readouterr().out.rsplit(" ", 1)
    assert "zero residual" in statuses
    assert float(error) < 1e-8


def test_the_example_of_an_audit_says_what_the_page_says(capsys):
    names = run("README.md", slice(1, 2))
    verdict, pruned = capsys.readouterr().out.split("\n", 1)
    record, before, after = names["record"], names["model"], names["smaller"]
    dead = len(record.layers[0].units.dead)
    assert f"{dead} of 42 units are dead, all in layer 0" in verdict
    assert record.layers[0].verdict.word == "not judged"  # 26 units: untrained they do much alike
    assert dead == 6
    assert f"{dead} dead units removed" in pruned
    x = names["digits"].x
    assert (before(x) - after(x)).abs().max() < 1e-5


def test_the_example_with_ellipsoids_runs(capsys):
    run("README.md", slice(2, 3))
    right, far = re.findall(r"([\d.]+)% (?:right|are)", capsys.readouterr().out)
    assert float(right) > 90
    assert float(far) < 50


def test_the_example_of_a_distance_head_says_what_the_page_says(capsys):
    run("README.md", slice(3, 4))
    page = re.search(r"prints\n\n```\n(known: .*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    shown, told = (
        [int(n) for n in re.findall(r"(\d+)%", text)] for text in (capsys.readouterr().out, page)
    )
    # Last digits differ from machine to machine.
    assert all(abs(a - b) <= 4 for a, b in zip(shown, told, strict=True))


def test_the_examples_of_training_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("docs/training.md")
    assert "target reached" in capsys.readouterr().out
    assert (tmp_path / "fit.safetensors").exists()


def test_the_examples_of_ellipsoids_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("docs/ellipsoids.md")
    right, _, _, off, told = capsys.readouterr().out.split("\n", 4)
    assert float(re.search(r"[\d.]+", right)[0]) == 1
    assert float(re.search(r"\((.*)\)", off)[1]) < 1e-3
    assert "12 distances determine 12 of 20 directions" in told
    assert (tmp_path / "classes.safetensors").exists()


def test_the_example_of_data_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("docs/data.md", slice(1))
    assert capsys.readouterr().out.strip() in (ROOT / "docs" / "data.md").read_text()


def test_the_tables_of_the_benchmarks_are_made_from_their_figures():
    command = [sys.executable, ROOT / "docs" / "benchmarks.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_shown_exists():
    from mahalens.cli import cli

    shown = re.findall(r"^mahalens (\w+)", (ROOT / "README.md").read_text(), re.M)
    assert shown
    assert set(shown) <= set(cli.commands)


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
