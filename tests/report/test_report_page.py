from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mahalens.errors import RunFolderError
from mahalens.report import build_report
from mahalens.report.figures import DrawnFigure
from mahalens.report.page import render_page
from mahalens.report.records import load_run
from mahalens.report.views import view_of

GAUSSIAN = view_of("gaussian").figures

MakeRun = Callable[..., Path]
Edit = Callable[[Path, Callable[[dict[str, Any]], object]], None]
VOID = {"meta", "img", "br", "link", "input", "hr"}
HOSTILE = "<script>alert('x')</script>\"&'{{ 7 * 7 }}"


class Page(HTMLParser):
    """The parts of a page a test asks for; fails on tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(folder: Path) -> tuple[str, Page]:
    html = render_page(load_run(folder), [DrawnFigure("fit", "Fit", "A caption.", b"png", 20, 10)])
    return html, Page(html)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, write_a_run: Callable[..., Path]) -> Path:
    folder = write_a_run(tmp_path_factory.mktemp("report") / "run", trials=3)
    path = build_report(str(folder))
    assert path == folder / "report.html"
    return path


def test_the_report_holds_every_figure_and_they_lie_in_the_folder(report: Path) -> None:
    images = [attrs for tag, attrs in Page(report.read_text()).tags if tag == "img"]
    assert len(images) == len(GAUSSIAN)
    for attrs, name in zip(images, GAUSSIAN, strict=True):
        kind, _, data = str(attrs["src"]).partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data) == (report.parent / "figures" / f"{name}.png").read_bytes()
        assert attrs["alt"]


def test_the_report_refers_to_nothing_outside_itself(report: Path) -> None:
    html = report.read_text()
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "base", "form"} & {t for t, _ in page.tags}
    for _, attrs in page.tags:
        for name in ("src", "href", "srcset", "action"):
            assert str(attrs.get(name) or "data:").startswith("data:")
        assert not [name for name in attrs if name.startswith("on")]
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_nothing_temporary_is_left(report: Path) -> None:
    left = {p.name for p in report.parent.rglob("*") if p.suffix == ".tmp" or p.name[0] == "."}
    assert left == set()
    assert {p.name for p in (report.parent / "figures").iterdir()} == {
        f"{name}.png" for name in GAUSSIAN
    }


def test_the_page_opens_with_the_answer(report: Path) -> None:
    page = Page(report.read_text())
    text = page.text
    order = [
        "1 of 4 claims holds in this run, 2 fail and 1 was not measured.",
        "✗ fails The hyperplanes of MD_Abs pass through the mean.",
        "✗ fails The rows of the weight matrix",
        "✓ holds MD_Abs reaches a lower training MSE",
        "– not measured ReLU units pair up",
        "What was run",
        "Results",
        "Outcomes of the trials",
        "Hyperplanes and distance contours",
        "Training loss",
        "Metrics over all trials",
        "Eigenvalues of the covariance",
        "Fit on new data",
        "Run it again",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "measured 0.950 published 0.122 against 0.2675 source 000" in text
    assert "MD_Abs ended lower in 19 of 20 trials." in text


def test_making_the_report_again_gives_the_same_page(report: Path) -> None:
    before = report.read_bytes()
    assert build_report(report.parent).read_bytes() == before


def test_the_protocol_and_how_to_run_again(make_run: MakeRun) -> None:
    _, page = page_of(make_run(trials=3))
    for part in (
        "Protocol: published.",
        "Trials a model 3",
        "Epochs 10,000",
        "Solver Adam",
        "Number type float32",
        "Seed 0",
        "Threads 2",
        "Engine compiled",
        "Gaussian drawn as in source 000",
        "Condition number of Σ 6.29",
        "mahalens run gaussian --dim 2 --solver adam --out runs/demo",
        "mahalens report runs/demo",
        "mahalens run --resume runs/demo",
        "mahalens 0.1.0, torch 2.13.0+cpu, python 3.11.7",
        "15 November 2026, 19:40 UTC",
        "trials.csv every metric of every trial",
    ):
        assert part in page.text
    assert "Scaled run" not in page.text


def test_a_scaled_newton_run_says_so(make_run: MakeRun) -> None:
    folder = make_run(dim=10, solver="newton", trials=5, protocol="scaled", models=("abs",))
    _, page = page_of(folder)
    assert "Scaled run." in page.text
    assert "trials: 5 instead of 20" in page.text
    assert "Newton (second order)" in page.text
    assert "levenberg-marquardt" in page.text
    assert "Epochs" not in page.text
    assert "MD_ReLU" not in page.text.partition("Results")[2].partition("Run it again")[0].replace(
        "(ReLU", ""
    )


def test_results_give_every_figure_of_a_row(make_run: MakeRun, edit: Edit) -> None:
    folder = make_run(trials=3)

    def change(summary: dict[str, Any]) -> None:
        row = summary["rows"][0]
        assert (row["model"], row["metric"]) == ("abs", "train_mse")
        row.update(mean=0.11, std=0.22, ci95=[0.33, 0.44], min=0.55, max=0.66, best=0.77, n=3)

    edit(folder / "summary.json", change)
    _, page = page_of(folder)
    assert (
        "MD_Abs 0.110 0.122 variance 0.00994, min 0, max 0.207 0.220 0.330 to 0.440 0.550 0.660 "
        "0.770 3"
    ) in page.text


def test_a_metric_without_any_value_takes_one_line(make_run: MakeRun) -> None:
    _, page = page_of(make_run(trials=2, models=("abs",)))
    assert "each unit pairs once. no value in this run Units after deduplication" in page.text


def test_missing_values_are_dashes_and_lost_trials_are_named(make_run: MakeRun) -> None:
    html, page = page_of(make_run(trials=3))
    assert "MD_Abs no value – – – – – – 0" in page.text  # mirrored pairs of Abs
    assert "2 done, 1 non-finite trial 2" in page.text
    for bad in ("None", "nan", "NaN", "inf", "Undefined"):
        assert not re.search(rf"\b{bad}\b", page.text)
    assert html.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    "where", ["gaussian", "command", "claim", "status", "model", "option", "study"]
)
def test_hostile_text_stays_text(make_run: MakeRun, edit: Edit, where: str) -> None:
    folder = make_run(trials=2, models=("abs",))

    def config(record: dict[str, Any]) -> None:
        if where == "gaussian":
            record["options"]["gaussian"] = HOSTILE
        if where == "command":
            record["command"] = f"mahalens run gaussian --out={HOSTILE}"
        if where == "option":
            record["options"][HOSTILE] = HOSTILE

    def summary(record: dict[str, Any]) -> None:
        if where == "claim":
            record["claims"][0].update(
                id=HOSTILE, source=HOSTILE, statement=HOSTILE, published=HOSTILE, why=HOSTILE
            )
        if where == "status":
            record["outcomes"][0]["statuses"] = {HOSTILE: 2}
        if where == "model":
            record["outcomes"][0]["model"] = record["rows"][0]["model"] = HOSTILE
        if where == "study":
            record["study"] = HOSTILE

    edit(folder / "config.json", config)
    edit(folder / "summary.json", summary)
    html, page = page_of(folder)
    assert "<script" not in html
    assert "script" not in {tag for tag, _ in page.tags}
    wanted = HOSTILE.capitalize() if where == "study" else HOSTILE
    assert wanted in "".join(page.words)  # as it stands, braces and all


def test_a_summary_with_nothing_in_it_still_makes_a_page(make_run: MakeRun, edit: Edit) -> None:
    folder = make_run(trials=1, models=("abs",))
    edit(folder / "summary.json", lambda r: r.update(rows=[], claims=[], outcomes=[], facts={}))
    edit(
        folder / "config.json", lambda r: (r.pop("command"), r.pop("created"), r["options"].clear())
    )
    _, page = page_of(folder)
    assert "This run checks no claims." in page.text
    assert "holds no results" in page.text
    assert f"mahalens report {folder.name}" in page.text


def test_figures_of_other_records_do_not_stay(make_run: MakeRun) -> None:
    folder = make_run(dim=3, trials=2, models=("abs",))
    stale = folder / "figures" / "hyperplanes.png"
    mine = folder / "figures" / "my-own.png"
    stale.parent.mkdir()
    stale.write_bytes(b"old")
    mine.write_bytes(b"mine")
    build_report(folder)
    assert not stale.exists()
    assert mine.read_bytes() == b"mine"


def test_a_folder_that_cannot_be_written_is_one_line(make_run: MakeRun) -> None:
    folder = make_run(trials=1, models=("abs",))
    (folder / "figures").write_text("a file where the folder should be")
    with pytest.raises(RunFolderError, match=r"figures.*cannot be written.*permissions") as caught:
        build_report(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_a_failed_write_leaves_the_old_page(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(trials=1, models=("abs",))
    page = folder / "report.html"
    page.write_text("old")

    def full(stream: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mahalens.report.page.draw_figures", lambda records: iter(()))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"report.html: cannot be written \(No space left"):
        build_report(folder)
    assert page.read_text() == "old"
    assert {p.name for p in folder.iterdir() if p.suffix == ".tmp"} == set()
