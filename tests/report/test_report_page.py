"""The page of a run: complete, self-contained, safe, and whole or not there."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import running_browser
from page_text import Page
from runs import STUDY, WITHOUT_VARIANTS, edit, write_run
from safetensors.numpy import load_file, save_file

from mahalens.errors import RunFolderError
from mahalens.report import build_report
from mahalens.report.page import facts_of, render_page
from mahalens.report.plots import DrawnFigure
from mahalens.report.records import load_run
from mahalens.studies.study import Study

HOSTILE = "<script>alert('x')</script>\"&'{{ 7 * 7 }}"


def page_of(folder: Path, study: Study[Any] | None = STUDY) -> Page:
    figure = DrawnFigure("latent", "Ridges", "A caption.", b"png", 20, 10)
    return Page(render_page(load_run(folder, study), [figure]))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("report") / "run", lost=(3,))
    path = build_report(str(folder), STUDY)
    assert path == folder / "report.html"
    return path


@pytest.fixture
def folder(report: Path, tmp_path: Path) -> Path:
    return shutil.copytree(report.parent, tmp_path / "run")


def test_the_page_opens_with_the_answer_and_goes_on_in_order(folder: Path) -> None:
    text = page_of(folder).text
    parts = [
        "mahalens report · Pretend study, Iris, Wine",
        "Is bent better than plain?",
        "On Iris, Round has the highest test accuracy: ",
        "5 of 7 claims hold in this scaled run and 2 were not measured.",
        "Scaled run. It departs from the full protocol, which --published runs.",
        "trials: 10 instead of 20",
        "All models share their trials.",
        "Ridges",
        "A caption.",
        "Bent, twice, Wine",
        "Results",
        "Round, Iris: 9 done, 1 non-finite",
        "Iris",
        "All metrics, Iris",
        "How the trials ended, Iris: 30 trials: 29 done, 1 non-finite.",
        "Wine",
        "Which differences are real?",
        "Claims",
        "Bent is more accurate than Plain.",
        "1 claim not measured by this run",
        "What was run",
        "Run it again",
    ]
    place = 0
    for part in parts:
        place = text.index(part, place)
    for bad in ("None", "nan", "NaN", "inf", "Undefined"):
        assert not re.search(rf"\b{bad}\b", text)


def test_a_run_without_variants_has_the_same_parts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", WITHOUT_VARIANTS, scaled=(), cautions=["it rained"])
    text = page_of(folder, WITHOUT_VARIANTS).text
    for part in (
        "Pretend study, dim 2, solver adam",
        "Published protocol; nothing was scaled down.",
        "Mind: it rained.",
        "Network Test accuracy (%) ↑ Loss ↓",
        "How the trials ended: All 30 trials ran to their end.",
        "First network minus second",
    ):
        assert part in text
    assert "Scaled run" not in text


def test_what_was_run_by_names_that_people_use(folder: Path) -> None:
    facts = dict(facts_of(load_run(folder, STUDY)))
    sizes = "(105 training samples, 45 test samples, 3 classes, from a shelf)"
    assert facts["Data (2)"] == f"Iris {sizes}; Wine {sizes}"
    assert facts["Models (3)"] == "Plain; Bent, twice; Round"
    assert facts["Protocol"] == "scaled: trials: 10 instead of 20"
    assert (facts["Learning rate"], facts["Units"]) == ("0.05", "as many as fit")
    assert (facts["New option"], facts["Chance"]) == ("0.25", "0.250 to 0.750")
    assert (facts["Time, drawing"], facts["Time, all together"]) == ("2.0 s", "9.0 s")
    assert (facts["Engine"], facts["Threads"], facts["Seed"]) == ("compiled", "2", "0")
    assert "Budget" not in facts


@pytest.mark.parametrize("data", [None, "digits", {}, {"iris": 3}, {"iris": {"classes": 3}}])
def test_facts_that_say_little_are_no_fault(folder: Path, data: object) -> None:
    edit(folder / "summary.json", lambda r: r["facts"].update(data=data))
    edit(folder / "config.json", lambda r: r["options"].update(models=3, units=[1]))
    assert "What was run" in page_of(folder).text


def test_how_to_run_it_again(folder: Path) -> None:
    text = page_of(folder).text
    for part in (
        "mahalens run pretend --out runs/demo",
        "mahalens report runs/demo mahalens run --resume runs/demo",
        "mahalens 0.1.0, torch 2.13.0, python 3.11 on 15 November 2026, 19:40 UTC",
        "trials.csv every metric of every trial",
        "figures/ the figures on this page",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("mahalens run x --out='a b'", "'a b'"),
        ("mahalens run x --out", "run"),
        ("mahalens 'run", "run"),
        ("", "run"),
    ],
)
def test_the_folder_of_odd_commands(folder: Path, command: str, place: str) -> None:
    edit(folder / "config.json", lambda r: r.update(command=command, created="once"))
    text = page_of(folder).text
    assert f"mahalens report {place} mahalens run" in text
    assert "on once." in text


def test_many_odd_endings_and_data_sets_are_counted(tmp_path: Path) -> None:
    sets = [f"set-{place}" for place in range(33)]
    study = replace(STUDY, pairs=())
    folder = write_run(tmp_path / "run", study, variants=sets, trials=2, lost=(1,))
    text = page_of(folder).text
    assert "Pretend study, 33 data sets" in text
    assert "Round, set-29: 1 done, 1 non-finite and 3 more, see the results" in text


def test_the_report_refers_to_nothing_outside_itself(report: Path) -> None:
    html = report.read_text()
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "base", "form"} & {t for t, _ in page.tags}
    for _, attrs in page.tags:
        for name in ("src", "href", "srcset", "action"):
            assert str(attrs.get(name) or "data:").startswith(("data:", "#"))
        assert not [name for name in attrs if name.startswith("on")]
    places = {f"#{attrs['id']}" for _, attrs in page.tags if "id" in attrs}
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert len(links) == 5
    assert set(links) <= places
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_report_holds_every_figure_and_they_lie_in_the_folder(report: Path) -> None:
    images = [attrs for tag, attrs in Page(report.read_text()).tags if tag == "img"]
    files = sorted((report.parent / "figures").iterdir())
    assert len(images) == len(files) >= 1
    contents = {file.read_bytes() for file in files}
    for attrs in images:
        kind, _, data = str(attrs["src"]).partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data) in contents
        assert attrs["alt"]


def test_nothing_temporary_is_left_and_again_is_the_same(report: Path) -> None:
    left = {p.name for p in report.parent.rglob("*") if p.suffix == ".tmp" or p.name[0] == "."}
    assert left == set()
    before = report.read_bytes()
    assert build_report(report.parent, STUDY).read_bytes() == before


def test_figures_of_other_records_do_not_stay(folder: Path) -> None:
    study = replace(STUDY, plots=(replace(STUDY.plots[0], name="gone", metric="void"),))
    stale, mine = folder / "figures" / "gone.png", folder / "figures" / "my-own.png"
    stale.write_bytes(b"old")
    mine.write_bytes(b"mine")
    build_report(folder, study)
    assert not stale.exists()
    assert mine.read_bytes() == b"mine"


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda r: r.update(command=f"mahalens run x --out={HOSTILE}")),
        ("config.json", lambda r: r["options"].update({HOSTILE: HOSTILE})),
        ("config.json", lambda r: r.update(scaled=[HOSTILE])),
        ("summary.json", lambda r: r["claims"][0].update(id=HOSTILE, statement=HOSTILE)),
        ("summary.json", lambda r: r["claims"][0].update(why=HOSTILE, source=HOSTILE)),
        ("summary.json", lambda r: r["claims"][0].update(published=HOSTILE, data=HOSTILE)),
        ("summary.json", lambda r: r["outcomes"][0].update(statuses={HOSTILE: 2})),
        ("summary.json", lambda r: r["rows"][0].update(model=HOSTILE)),
        ("summary.json", lambda r: r["rows"][0].update(metric=HOSTILE)),
        ("summary.json", lambda r: r["rows"][0].update(group={"data": HOSTILE})),
        ("summary.json", lambda r: r["comparisons"][0].update(a=HOSTILE, preferred_test=HOSTILE)),
        ("summary.json", lambda r: r.update(cautions=[HOSTILE])),
        ("summary.json", lambda r: r["facts"].update({HOSTILE: HOSTILE})),
    ],
)
def test_hostile_text_stays_text(folder: Path, name: str, change: Change) -> None:
    edit(folder / name, change)
    page = page_of(folder)
    assert "script" not in {tag for tag, _ in page.tags}
    assert HOSTILE in "".join(page.words)  # as it stands, braces and all


def test_a_study_of_any_name_has_a_page(folder: Path) -> None:
    edit(folder / "summary.json", lambda r: r.update(study=HOSTILE))
    page = page_of(folder, None)
    assert HOSTILE.capitalize() in "".join(page.words)
    assert "accuracy" in page.text


@pytest.mark.parametrize("study", [STUDY, WITHOUT_VARIANTS], ids=["variants", "single"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_summary_with_nothing_in_it_still_makes_a_page(
    tmp_path: Path, study: Study[Any], is_known: bool
) -> None:
    folder = write_run(tmp_path / "run", study, trials=1)
    empty: dict[str, Any] = {"rows": [], "claims": [], "outcomes": [], "facts": {}}
    edit(folder / "summary.json", lambda r: r.update(**empty, comparisons=[]))
    edit(folder / "config.json", lambda r: (r.update(command=""), r["options"].clear()))
    text = page_of(folder, study if is_known else None).text
    assert "This run checks no claims." in text
    assert "holds no results" in text
    assert "mahalens report run" in text


def test_a_folder_that_cannot_be_written_is_one_line(folder: Path) -> None:
    (folder / "report.html").unlink()
    shutil.rmtree(folder / "figures")
    (folder / "figures").write_text("a file where the folder should be")
    with pytest.raises(RunFolderError, match=r"figures.*cannot be written.*permissions") as caught:
        build_report(folder, STUDY)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["iris/plain/grid", "wine/bent/grid"])
def test_arrays_that_cannot_be_drawn_are_damaged(folder: Path, name: str) -> None:
    path = folder / "plots.safetensors"
    save_file({**load_file(path), name: np.zeros(3, np.float32)}, path)
    (folder / "report.html").unlink()
    with pytest.raises(RunFolderError, match=r"plots\.safetensors: is damaged \(") as caught:
        build_report(folder, STUDY)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()
    (folder / "checksums.json").unlink()  # without which nobody knows whose fault it is
    with pytest.raises(ValueError, match=r"\d"):
        build_report(folder, STUDY)


def test_a_failed_write_leaves_the_old_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "report.html").write_text("old")

    def full(stream: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"cannot be written \(No space left"):
        build_report(folder, replace(STUDY, plots=()))
    assert (folder / "report.html").read_text() == "old"
    assert not [p for p in folder.iterdir() if p.suffix == ".tmp"]


def test_a_whole_report_needs_neither_torch_nor_pyplot(folder: Path) -> None:
    script = (
        "import json, sys\n"
        "from mahalens.report import build_report\n"
        "from mahalens.report.records import load_run\n"
        "from mahalens.report.run_tables import run_tables\n"
        "build_report(sys.argv[1])\n"
        "[table.rich() for table in run_tables('a', load_run(sys.argv[1]))]\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "matplotlib.figure" in loaded
    assert not {"torch", "matplotlib.pyplot"} & loaded


# --- In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("sets", [2, 5, 12])
def test_the_page_keeps_to_the_screen(browser: Any, tmp_path: Path, width: int, sets: int) -> None:
    names = [f"set-{place}" for place in range(sets)]
    folder = write_run(tmp_path / "run", variants=names, trials=5)
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto(build_report(folder, replace(STUDY, plots=())).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert problems == []
    page.close()
