"""Every example and every notebook of the gallery runs and draws."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from mahalens.data.named import find_set
from mahalens.errors import InputError
from mahalens.report.style import PALETTE, styled

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("plot_*.py"))
NOTEBOOKS = sorted((DOCS / "gallery" / "notebooks").glob("*.ipynb"))
FETCHING = [script for script in SCRIPTS if "fetch_set" in script.read_text()]
named = {"ids": lambda path: path.stem}


def load_runner():
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "_ext" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["notebooks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def drawing(monkeypatch):
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    with plt.rc_context():
        yield
    plt.close("all")


def test_figures_of_users_can_have_the_style_of_the_reports(drawing):
    plt.style.use("mahalens.report.figures")
    assert tuple(entry["color"] for entry in plt.rcParams["axes.prop_cycle"]) == PALETTE
    chosen = {name: plt.rcParams[name] for name in ("font.size", "axes.edgecolor", "axes.grid")}
    with styled():
        assert chosen == {name: plt.rcParams[name] for name in chosen}


def test_the_gallery_has_what_the_site_promises():
    listed = re.findall(r'"(plot_\w+\.py)"', (DOCS / "conf.py").read_text())
    assert sorted(listed) == [script.name for script in SCRIPTS]  # in the order of the site
    assert len(SCRIPTS) >= 8
    assert len(NOTEBOOKS) == 2


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, **named)
def test_an_example_runs_and_draws(script, drawing):
    for name in set(re.findall(r'"(cifar10|mnist|efficientnet-lite0)"', script.read_text())):
        try:
            find_set(name)
        except InputError as error:
            pytest.skip(str(error))
    runpy.run_path(str(script), run_name="__main__")
    assert plt.get_fignums()


@pytest.mark.parametrize("script", FETCHING, **named)
def test_an_example_that_cannot_fetch_says_so_in_a_line(script, drawing, monkeypatch, capsys):
    def refuse(name):
        raise InputError(f"{name} could not be fetched: no network")

    monkeypatch.setattr("mahalens.data.fetch_set", refuse)
    runpy.run_path(str(script), run_name="__main__")
    assert not plt.get_fignums()
    (line,) = capsys.readouterr().out.splitlines()
    assert "could not be fetched" in line


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, **named)
def test_a_notebook_runs_and_becomes_a_page(notebook, tmp_path):
    runner = load_runner()
    cells = runner.run_notebook(notebook)
    assert any(cell.figures for cell in cells)
    page = runner.page_of(notebook.stem, cells, tmp_path)
    images = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert len(images) == sum(len(cell.figures) for cell in cells)
    assert all((tmp_path / image).stat().st_size > 5_000 for image in images)


@pytest.mark.parametrize("notebook", NOTEBOOKS, **named)
def test_a_notebook_is_committed_without_outputs(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    assert cells[0]["source"][0].startswith("# ")
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_a_cell_shows_its_last_value(tmp_path):
    runner = load_runner()
    sources = [
        "import matplotlib.pyplot as plt\nx = 2",
        "print('two')\nx * 3",
        "x = 4",
        "plt.plot([x]);",
    ]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    first, second, third, fourth = runner.run_notebook(path)
    assert second.text == "two\n6\n"
    assert not first.text + third.text + fourth.text
    assert len(fourth.figures) == 1
    page = runner.page_of("small", [first, second, third, fourth], tmp_path)
    assert "```text\ntwo\n6\n```" in page
    assert "small-3-0.png" in page


def test_a_value_that_shows_itself_is_shown_as_html(tmp_path):
    runner = load_runner()
    code = "class A:\n    def _repr_html_(self):\n        return '<b>bold</b>'\nA()"
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": code}]}))
    cells = runner.run_notebook(path)
    assert cells[0].html == "<b>bold</b>"
    assert "\n<b>bold</b>\n" in runner.page_of("small", cells, tmp_path)
