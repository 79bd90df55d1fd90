"""Made-up folders against what a study writes; tables for documents; the page in a browser."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import running_browser
from paired_runs import METRICS, PARTS, STUDY, TESTED, names, pretend, write_paired

from mahalens.report import build_report
from mahalens.report.records import load_run
from mahalens.studies.folder import RunConfig, RunFolder, now
from mahalens.studies.paired.config import Job, PairedConfig
from mahalens.studies.paired.measures import Measures, pack
from mahalens.studies.paired.records import write_records
from mahalens.studies.paired.study import PairedStudy

DOCS = Path(__file__).parents[2] / "docs"
MODELS = names(4)


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, MODELS)


# ---------------------------------------------------------------- what a study writes


def measures(place: int) -> Measures:
    generator = torch.Generator().manual_seed(place)
    shared = torch.randn(10, generator=generator).double()
    values = dict.fromkeys(METRICS, 90 + place + shared)
    curves = {"train_loss": shared[:, None] * 0 + 1.5, "test_accuracy": 90 + shared[:, None]}
    return Measures(values, 1.5, torch.tensor([20]), curves)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder as the records of paired studies are written."""
    config = PairedConfig(
        data=PARTS[:2], models=MODELS, trials=10, epochs=20, train_size=500, seed=0
    )
    study = PairedStudy(
        name=STUDY,
        config=PairedConfig,
        metrics=METRICS,
        check=lambda _: {},
        jobs=lambda _: [],
        measure=lambda *_: {},
        pairs=lambda _: [(model, MODELS[0]) for model in MODELS[1:]],
        tested=TESTED,
        claims=lambda _: [],
    )
    path = tmp_path / "written"
    kept = RunConfig(
        **{**_told(path), "options": {"data": list(PARTS[:2]), "models": list(MODELS)}}
    )
    found = {model: measures(place) for place, model in enumerate(MODELS)}
    results = [(Job(part, "all", 0, 10), pack(found)) for part in PARTS[:2]]
    facts = {part: {"training_samples": 7, "test_samples": 3} for part in PARTS[:2]}
    with RunFolder.create(path, kept) as folder:
        write_records(study, config, folder, facts, results)
    return path


def _told(path: Path) -> dict[str, Any]:
    return {
        "study": STUDY,
        "mahalens": "0",
        "torch": "2",
        "python": "3",
        "created": now(),
        "command": f"mahalens run {STUDY} --out {path.name}",
        "seed": 0,
        "device": "cpu",
        "threads": 1,
        "engine": "compiled",
        "protocol": "scaled",
        "scaled": ["trials: few"],
    }


def test_made_up_folders_look_like_written_ones(written: Path, tmp_path: Path) -> None:
    made = write_paired(tmp_path / "made")
    for name in ("trials.csv", "curves.csv", "comparisons.csv"):
        heads = [(f / name).read_text().splitlines()[0].split(",") for f in (made, written)]
        assert sorted(heads[0]) == sorted(heads[1])
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (made, written))
    assert set(ours) == set(theirs)
    assert set(ours["facts"]) == set(theirs["facts"])
    for entries in ("rows", "outcomes", "comparisons"):
        assert set(ours[entries][0]) == set(theirs[entries][0])
        assert len(ours[entries]) == len(theirs[entries])
    assert [line["a"] for line in ours["comparisons"]] == [
        line["a"] for line in theirs["comparisons"]
    ]


def test_a_written_folder_makes_a_whole_page(written: Path) -> None:
    html = build_report(written).read_text()
    for figure in ("compared", "compared-auroc", "progress", "differences"):
        assert f'id="figure-{figure}"' in html
    run = load_run(written)
    mean = run.parts()[1].row(MODELS[3], "test_accuracy")["mean"]
    assert f"<strong>{mean:.2f}</strong>" in html


# ---------------------------------------------------------------- documents


def printed_by(
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: object,
) -> str:
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    monkeypatch.syspath_prepend(str(DOCS))
    runpy.run_path(str(DOCS / script), run_name="__main__")
    return capsys.readouterr().out


def test_tables_for_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_paired(tmp_path / "run", absent=(("digits", MODELS[2]),))
    text = printed_by("paired_results.py", monkeypatch, capsys, folder)
    run = load_run(folder)
    lines = text.splitlines()
    assert lines[1] == "mahalens run hybrid --out runs/demo"
    assert "Digits (1,437 training, 360 test samples), MNIST (1,437" in text
    assert "20 epochs, 10 trials. Protocol: scaled (trials: 10 instead of 20" in text
    start = lines.index(
        "| MNIST | Test accuracy (%) | Calibration error | AUROC | Epochs to 95 % |"
    )
    assert [line.split(" |")[0] for line in lines[start + 2 : start + 6]] == [
        "| Abs",
        "| Relu",
        "| Half abs half relu",
        "| Leaky relu",
    ]
    row = run.parts()[1].row("abs", "test_accuracy")
    half = (row["ci95"][1] - row["ci95"][0]) / 2
    assert lines[start + 2].startswith(f"| Abs | **{row['mean']:.2f}** ± {half:.2f} |")
    assert "| claim | source | published | Digits | MNIST |" in lines
    assert (
        "| Half Abs beats number 0 by a point. | here | – | **holds** (1.25) | **fails** (-0.500) |"
    ) in lines
    assert "| Half Abs beats number 2 by a point. | here | – | undecided | – |" in lines
    whole = "| Half Abs is nowhere worse. | here | – | **fails** (0.500) | (one verdict for all) |"
    assert whole in lines
    assert "Holm p" not in text
    for block in text.split("\n\n"):  # every row of a table has as many cells as its head
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1


def test_documents_can_have_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_paired(tmp_path / "run")
    text = printed_by("paired_results.py", monkeypatch, capsys, "--tests", folder)
    assert text.count("− Abs | ") == 12
    clear = [
        line for line in text.splitlines() if line.startswith("| MNIST, test accuracy | Leaky")
    ]
    assert "| **< 0.0001** | paired t |" in clear[0]


def test_a_folder_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        printed_by("paired_results.py", monkeypatch, capsys, tmp_path / "none")
    assert "no such folder; give one that `mahalens run` has made" in capsys.readouterr().err


# ---------------------------------------------------------------- what is loaded


def test_a_page_needs_no_torch(tmp_path: Path) -> None:
    folder = write_paired(tmp_path / "run", trials=2)
    script = (
        "import sys\nfrom mahalens.report import build_report, records, tables\n"
        "build_report(sys.argv[1])\n"
        "tables.run_tables('a', records.load_run(sys.argv[1]).summary)\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    # With what the study really says: models it does not know are shown by their names.
    subprocess.run([sys.executable, "-W", "error", "-c", script, str(folder)], check=True)
    assert "half-abs-half-relu" in (folder / "report.html").read_text()


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as started:
        yield started


@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_of_many_data_sets_keeps_to_the_screen(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    models = names(6)
    pretend(monkeypatch, models, figures=("compared",))
    folder = write_paired(tmp_path / "run", models=models, parts=PARTS, trials=3, statements=12)
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        page.goto(build_report(folder).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width > 1000:  # no table has to be moved to be read
            wide = "[...document.querySelectorAll('#claims .scroll, #results > .scroll')]"
            over = page.evaluate(f"{wide}.map(box => box.scrollWidth - box.clientWidth)")
            assert over == [0] * 7
        page.click("#claims details summary")
        assert page.is_visible("text=Half Abs averages more.")
        spoken = page.locator("#claims .spoken").first
        assert spoken.inner_text() == "holds"
        assert spoken.bounding_box()["width"] <= 1
    finally:
        page.close()
