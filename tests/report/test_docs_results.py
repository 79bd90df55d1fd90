"""Documents print their tables with ``docs/results.py``, from run folders alone."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import WITHOUT_VARIANTS, edit, write_run

SCRIPT = Path(__file__).parents[2] / "docs" / "results.py"
Print = Callable[..., str]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """Return what the script prints, given its arguments."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_a_run_by_variant(results: Print, tmp_path: Path) -> None:
    lines = results(write_run(tmp_path / "run", lost=(3,))).splitlines()
    assert lines[:3] == ["```sh", "mahalens run pretend --out runs/demo", "```"]
    assert "mahalens 0.1.0, torch 2.13.0" in lines[4]
    assert "58 done, 2 non-finite" in lines[4]
    for part in ("**Iris**", "**Wine**", "| Model | accuracy | loss | turns |", "**Claims**"):
        assert part in lines
    assert any(line.startswith("| bent | ") and "(91.5)" in line for line in lines)
    assert "| Claim | Iris | Wine | Published |" in lines
    assert not any("Pair" in line for line in lines)


def test_more_tables_on_demand(results: Print, tmp_path: Path) -> None:
    text = results("--tests", "--metrics", write_run(tmp_path / "run"))
    assert "| Pair | Difference | Cohen’s d | Preferred test | Its Holm p |" in text
    assert "| Model | Mean | Published | SD | 95 % interval |" in text


def test_a_run_without_variants_has_reasons(results: Print, tmp_path: Path) -> None:
    text = results(write_run(tmp_path / "run", WITHOUT_VARIANTS))
    assert "| claim | verdict | why |" in text
    assert "| Bent is more accurate than Plain. | **holds** | bent averages" in text


def test_claims_of_several_runs(results: Print, tmp_path: Path) -> None:
    text = results("--claims", write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    assert text.splitlines()[0] == "| Claim | a | b | Published |"


@pytest.mark.parametrize("form", ["--readme", "--draws"])
def test_tables_of_the_readme(results: Print, tmp_path: Path, form: str) -> None:
    folders = []
    for seed, dim in enumerate((2, 10)):
        folder = write_run(tmp_path / f"{dim}-d", WITHOUT_VARIANTS)
        facts = {"target_variance": 0.4, "condition_number": 100.0 / dim}
        basins = {"local minimum": 2, "zero residual": 8}
        edit(folder / "config.json", lambda r, s=seed: r.update(seed=s))
        edit(folder / "config.json", lambda r, d=dim: r["options"].update(dim=d))
        row = {"model": "abs", "metric": "train_mse", "mean": 0.12, "n": 10, "ci95": [0.1, 0.14]}
        row |= {"published": 0.05, "min": 0.0, "max": 0.5}
        outcome = {"model": "abs", "trials": 10, "statuses": {"done": 10}, "basins": basins}
        new = {"facts": facts, "rows": [row], "outcomes": [outcome]}
        edit(folder / "summary.json", lambda r, new=new: r.update(new))
        folders.append(folder)
    lines = results(form, *folders).splitlines()
    if form == "--readme":
        assert lines[0].startswith("|  | model | 2-D here | published | differs by | 10-D here |")
        assert "| 0.120 ± 0.020 | 0.0500 | DLN |" in lines[2]
        assert "| 2 local minimum, 8 zero residual | – |" in lines[3]
    else:  # ordered by condition number
        assert lines[2].startswith("| 1 | 10 | 0.120 ± 0.020 | 0 to 0.500 | – |")
        assert lines[3].startswith("| 0 | 50 |")


def test_a_folder_that_is_not_there_is_one_line(
    results: Print, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        results(tmp_path / "none")
    assert caught.value.code == 2
    assert "no such folder" in capsys.readouterr().err
