"""CONTRIBUTING.md shows a study that runs, and names files, commands and lists that exist."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mahalens.progress import HasProgress
from mahalens.studies.run import execute, start

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


class Silence:
    """A watcher that shows nothing."""

    def stage(self, name: str) -> Callable[[HasProgress], None]:
        return lambda progress: None

    def note(self, text: str) -> None:
        pass


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[ModuleType]:
    """The study of the page, imported from a file."""
    path = tmp_path / "centre.py"
    path.write_text(re.search(r"```python\n(.*?)```", PAGE, re.S)[1])
    spec = importlib.util.spec_from_file_location("centre", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["centre"] = module  # where types of annotations are looked up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["centre"]


def run(module: ModuleType, path: Path, **options: int) -> Path:
    config = module.CentreConfig.with_defaults(**options)
    with start(module.STUDY, config, path) as folder:
        execute(module.STUDY, folder, Silence(), workers=1)
    return path


def test_the_study_of_the_page_runs(centre: ModuleType, tmp_path: Path) -> None:
    path = run(centre, tmp_path / "run")
    with (path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    summary = json.loads((path / "summary.json").read_text())
    assert [(row["model"], row["status"]) for row in rows] == [
        (model, "done") for model in ("mean", "median") for _ in range(200)
    ]
    assert summary["protocol"] == "published"
    (claim,) = summary["claims"]
    assert claim["id"] == "centre/mean-is-nearer"
    assert claim["source"] == "this project"
    assert claim["verdict"] == "holds"
    assert (path / "comparisons.csv").exists()


def test_its_trials_do_not_depend_on_their_number(centre: ModuleType, tmp_path: Path) -> None:
    errors = []
    for trials in (3, 5):
        with (run(centre, tmp_path / str(trials), trials=trials) / "trials.csv").open() as file:
            rows = [row["error"] for row in csv.DictReader(file) if row["model"] == "median"]
        errors.append(rows[:3])
    assert errors[0] == errors[1]


def test_files_that_the_page_names_exist() -> None:
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.]+\.(?:py|md|h))`|\]\(([\w/.-]+)\)", PAGE)
    names = {name for pair in paths for name in pair if name and "NAME" not in name}
    assert len(names) > 10
    missing = [n for n in names if not ((ROOT / n).exists() or (ROOT / "mahalens" / n).exists())]
    assert not missing


def test_commands_that_the_page_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^(\w[\w-]*):", makefile, re.M))
    assert set(re.findall(r"`make (\w+)", PAGE)) <= targets


def test_lists_that_the_page_names_exist() -> None:
    from mahalens.init.starts import METHODS, Method
    from mahalens.nn.chain import LAYERS

    assert "Linear" in LAYERS
    assert all(isinstance(method, Method) for method in METHODS.values())
