"""Run folders as the report reads them: whole, damaged, old and unknown."""

from __future__ import annotations

import functools
import json
import operator
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import STUDY, WITHOUT_VARIANTS, edit, make_records, write_run
from safetensors.numpy import load_file, save_file

from mahalens.errors import RunFolderError
from mahalens.report.records import Row, load_run, load_runs
from mahalens.studies.study import SOURCES


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("records") / "run", trials=4, lost=(3,))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "run")


def test_a_run_shows_its_answer_and_its_tables(written: Path) -> None:
    run = load_run(str(written), STUDY)
    assert re.fullmatch(
        r"RunRecords\(.*, scaled protocol: 3 models, 3 metrics, \d+ claims\)", repr(run)
    )
    html = run._repr_html_()
    assert html.startswith("<p>")
    assert "5 of 7 claims are undecided" in html
    assert "<p>Results</p>" in html
    assert html.count("<table") == html.count("</table>") > 1
    assert len(repr(run.summary)) < 100


def test_records_are_read_as_they_stand(written: Path) -> None:
    run = load_run(str(written), STUDY)
    summary = json.loads((written / "summary.json").read_text())
    assert (run.config.seed, run.config.engine) == (0, "compiled")
    assert [row.mean for row in run.summary.rows] == [row["mean"] for row in summary["rows"]]
    assert [line.id for line in run.summary.claims] == [line["id"] for line in summary["claims"]]
    assert list(run.variants()[0].trials["accuracy"]) == ["plain", "bent", "round"]
    assert set(run.variants()[0].trials) == {"accuracy", "loss", "turns", "void"}
    assert run.plots.keys() == load_file(written / "plots.safetensors").keys()
    assert (run.variant, run.title, run.curves) == ("", "", {})


def test_variants_split_everything_and_lose_nothing(written: Path) -> None:
    run = load_run(written, STUDY)
    iris, wine = run.variants()
    assert [(v.variant, v.title) for v in (iris, wine)] == [("iris", "Iris"), ("wine", "Wine")]
    for name in ("rows", "outcomes", "comparisons"):
        parts = [getattr(v.summary, name) for v in (iris, wine)]
        assert functools.reduce(operator.iadd, parts, []) == getattr(run.summary, name)
        assert all(parts)
    whole = [claim for claim in run.summary.claims if not claim.data]
    assert iris.summary.claims + wine.summary.claims + whole == run.summary.claims
    assert iris.summary.facts["data"].keys() == {"iris"}
    assert "plain/latent.nodes" in iris.plots
    assert wine.variants() == [wine]
    assert iris.values("plain", "accuracy") != wine.values("plain", "accuracy")


def test_a_study_without_variants_is_one_run(tmp_path: Path) -> None:
    run = make_records(tmp_path / "run", WITHOUT_VARIANTS)
    assert run.variants() == [run]
    assert run.curves["accuracy"]["bent"][3].step.tolist() == [0, 1, 2]
    assert "plain/latent.nodes" in run.plots


def test_lookups(written: Path) -> None:
    iris = load_run(written, STUDY).variants()[0]
    assert sorted(iris.values("round", "accuracy")) == [0, 1, 2]  # trial 3 was lost
    assert iris.values("round", "void") == iris.values("no", "accuracy") == {}
    assert iris.values("round", "none such") == {}
    row, outcome = iris.row("bent", "accuracy"), iris.outcome("round")
    assert row is not None
    assert row.published == 91.5
    assert row.interval == row.ci95
    assert outcome is not None
    assert outcome.non_finite == [3]
    assert iris.row("bent", "none such") is iris.outcome("none such") is None
    assert (iris.models(), iris.primary()) == (["plain", "bent", "round"], "accuracy")
    assert iris.metrics() == ["accuracy", "loss", "turns"]
    assert iris.metric("late_gain").label == "late gain"
    assert Row("a", "b", None, 0, ci95=(None, 1.0)).interval is None


def test_curves_keep_steps_in_order_and_leave_out_gaps(folder: Path) -> None:
    lines = (folder / "curves.csv").read_text().splitlines()
    lines[1], lines[2] = lines[2], lines[1].rpartition(",")[0] + ","
    (folder / "curves.csv").write_text("\n".join(lines))
    curve = load_run(folder, STUDY).variants()[0].curves["accuracy"]["plain"][0]
    assert curve.step.tolist() == [1, 2]


def test_runs_go_by_name_or_where_names_repeat_by_path(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    same = shutil.copytree(folder, tmp_path / "deep" / "run")
    assert list(load_runs([folder, other])) == ["run", "other"]
    assert list(load_runs([folder, same])) == [str(folder), str(same)]


# --- Studies that this version does not have


def test_an_unknown_study_goes_by_plain_names(written: Path) -> None:
    run = load_run(written)
    assert [v.title for v in run.variants()] == ["Iris", "Wine"]
    assert run.metric("accuracy").label == "accuracy"
    assert run.study.look("bent").label == "bent"
    assert [plot.name for plot in run.study.plots] == ["metrics"]
    assert run.variants()[0].values("plain", "accuracy")


def test_an_unknown_study_needs_no_curves_and_no_plots(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", WITHOUT_VARIANTS)
    for name in ("curves.csv", "plots.safetensors", "checksums.json"):
        (folder / name).unlink()
    run = load_run(folder)
    assert (run.curves, run.plots, run.study.variant) == ({}, {}, "")


# --- Folders of earlier versions


def test_an_old_run_is_read_as_if_this_version_had_made_it(tmp_path: Path) -> None:
    study = replace(STUDY, variant="pixels", pairs=())
    folder = write_run(tmp_path / "run", study, variants=("normalised", "raw"))
    for name in ("trials.csv", "curves.csv", "summary.json"):
        text = (folder / name).read_text().replace("normalised", "normalized")
        (folder / name).write_text(text)
    arrays = load_file(folder / "plots.safetensors")
    old = {name.replace("normalised", "normalized"): a for name, a in arrays.items()}
    save_file(old, folder / "plots.safetensors")

    def older(summary: dict[str, Any]) -> None:
        claim = summary["claims"][0]
        del claim["data"]
        claim["id"] = claim["id"].replace("pretend/", "003/")
        claim.update(source="003", statement="It is so (normalized pixels).", published=0.4)
        claim.update(verdict="not measured", why="Undecided. 1.")

    edit(folder / "summary.json", older)
    edit(folder / "config.json", lambda r: r["options"].update(pixels=["normalized", "raw"]))
    run = load_run(folder, study)
    assert run.config.options["pixels"] == ["normalised", "raw"]
    first, raw = run.variants()
    assert (first.title, raw.title) == ("Normalised pixels", "Raw pixels")
    assert first.curves
    assert first.plots
    assert first.trials
    assert first.summary.rows
    claim = run.summary.claims[0]
    assert claim.id == "pretend/bent-beats-plain/normalised"
    assert (claim.data, claim.statement, claim.published) == ("normalised", "It is so.", "0.400")
    assert (claim.verdict, claim.source) == ("undecided", SOURCES["learn-metrics"])


# --- What is wrong, in one line


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        load_run(folder, STUDY)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_folders_that_are_no_finished_run(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "no such folder", "mahalens run")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "no such folder")
    refused(tmp_path, "holds no run", "config.json is missing")
    (folder / "summary.json").unlink()
    refused(folder, "not finished", f"mahalens run --resume {folder}")


RECORDS = ("config.json", "summary.json", "trials.csv", "curves.csv", "plots.safetensors")


@pytest.mark.parametrize("name", RECORDS[2:])
def test_a_record_that_the_run_wrote_is_missed(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, str(folder / name), "is missing", "run the study again")


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("damage", ["garbage", "empty", "folder"])
def test_a_damaged_record_is_named(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    if damage == "folder":
        path.unlink()
        path.mkdir()
        refused(folder, str(path), "is a folder, not a file")
    else:
        path.write_bytes({"garbage": b"\xff\x00\xfe{", "empty": b""}[damage])
        refused(folder, str(path), "is damaged")


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("summary.json", lambda r: r.pop("rows"), "rows"),
        ("config.json", lambda r: r.update(options=[1, 2]), "options"),
        ("summary.json", lambda r: r.update(rows=3, claims=[3]), "damaged"),
        ("summary.json", lambda r: r["rows"][0].pop("mean"), "mean"),
        ("summary.json", lambda r: r["rows"][0].update(mean="0.1"), "mean"),
        ("summary.json", lambda r: r["claims"][0].update(verdict="maybe"), "verdict"),
        ("summary.json", lambda r: r["outcomes"][0].update(trials="many"), "trials"),
        ("summary.json", lambda r: r["comparisons"][0].update(a=3), "a"),
        ("config.json", lambda r: r.update(protocol="other"), "protocol"),
    ],
)
def test_a_record_of_the_wrong_shape_is_named(
    folder: Path, name: str, change: Callable[[Any], object], part: str
) -> None:
    edit(folder / name, change)
    refused(folder, str(folder / name), "is damaged", part)


@pytest.mark.parametrize(
    ("name", "old", "new", "part"),
    [
        ("trials.csv", "iris,0,", "iris,first,", "line 2, column trial: 'first' is not a number"),
        ("trials.csv", "model,data,trial", "model,data,run", "no column 'trial'"),
        ("trials.csv", "model,data", "model,pixels", "no column 'data'"),
        ("trials.csv", "iris,1,", "iris,1,1,", "line 3 has 9 of 8 cells"),
        ("trials.csv", "iris,0,done,", "iris,0,done,x", "line 2, column accuracy"),
        ("curves.csv", "trial,epoch", "trial,step", "no column 'epoch'"),
        ("curves.csv", "iris,0,0,", "iris,0,soon,", "line 2, column epoch: 'soon'"),
        ("curves.csv", "model", '"model', "is damaged"),
    ],
)
def test_a_bad_cell_is_named(folder: Path, name: str, old: str, new: str, part: str) -> None:
    path = folder / name
    path.write_text(path.read_text().replace(old, new, 1))
    refused(folder, str(path), part)


def test_a_record_that_may_not_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        if path.name == "trials.csv":
            raise PermissionError(13, "Permission denied")
        return path.read_bytes()

    monkeypatch.setattr("mahalens.report.records.read_file", refuse)
    refused(folder, "trials.csv", "cannot be read (Permission denied)")


def test_paths_that_cannot_be_are_named(folder: Path) -> None:
    refused(folder / ("x" * 300), "cannot be a folder")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")  # leads nowhere but to itself
    refused(folder, "config.json", "cannot be read")


def test_text_of_a_record_is_printable(folder: Path) -> None:
    edit(folder / "summary.json", lambda r: r["rows"][0].update(model="evil\x1b[2J"))
    edit(folder / "summary.json", lambda r: r["facts"].update({"a\u202eb": ["\x07"]}))
    run = load_run(folder, STUDY)
    assert run.summary.rows[0].model == "evil\\x1b[2J"
    assert run.summary.facts["a\\u202eb"] == ["\\x07"]
