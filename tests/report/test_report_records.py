from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mahalens.errors import RunFolderError
from mahalens.report.records import load_run

MakeRun = Callable[..., Path]
Edit = Callable[[Path, Callable[[dict[str, Any]], object]], None]


@pytest.mark.parametrize("solver", ["adam", "newton"])
@pytest.mark.parametrize("dim", [2, 10])
def test_records_are_read_as_they_stand(make_run: MakeRun, dim: int, solver: str) -> None:
    folder = make_run(dim=dim, solver=solver, trials=4)
    run = load_run(str(folder))
    assert run.study == "gaussian"
    assert run.config == json.loads((folder / "config.json").read_text())
    stored = json.loads((folder / "summary.json").read_text())
    assert run.summary | {"claims": stored["claims"]} == stored
    assert [c["verdict"] for c in run.summary["claims"]] == [c["verdict"] for c in stored["claims"]]
    assert run.gaussian is not None
    assert run.gaussian["covariance"].shape == (dim, dim)
    with (folder / "trials.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for place, line in enumerate(lines):
        value = run.trials.metrics["test_mse"][place]
        assert (run.trials.model[place], run.trials.trial[place]) == (
            line["model"],
            int(line["trial"]),
        )
        assert np.isnan(value) if line["test_mse"] == "" else value == float(line["test_mse"])
    assert "steps" not in run.trials.metrics
    stored = load_file(folder / "plots.safetensors")
    assert run.plots.keys() == stored.keys()


def test_a_trial_without_a_value_is_left_out(make_run: MakeRun) -> None:
    run = load_run(make_run(trials=4))
    assert sorted(run.trials.of("relu", "train_mse")) == [0, 1, 2]  # trial 3 was not finite
    assert run.trials.of("abs", "mirrored_pairs") == {}
    assert run.trials.of("abs", "no such metric") == {}
    assert run.row("abs", "no such metric") == {}


def test_curves_come_by_model_and_trial(make_run: MakeRun) -> None:
    run = load_run(make_run(trials=4))
    assert run.curves["relu"].keys() == {0, 1, 2, 3}
    stopped, whole = run.curves["relu"][3], run.curves["relu"][0]
    assert stopped.step[-1] < whole.step[-1]
    assert np.all(np.diff(whole.step) > 0)
    assert "ground-truth" not in run.curves


def test_a_study_without_plots_and_curves_can_be_read(make_run: MakeRun, edit: Edit) -> None:
    folder = make_run(trials=2)
    for name in ("curves.csv", "plots.safetensors", "gaussian.json"):
        (folder / name).unlink()
    for name in ("config.json", "summary.json"):
        edit(folder / name, lambda record: record.update(study="later"))
    run = load_run(folder)
    assert (run.curves, run.plots, run.gaussian) == ({}, {}, None)


def one_line(folder: Path, *parts: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        load_run(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_no_folder(tmp_path: Path) -> None:
    one_line(tmp_path / "nowhere", "nowhere", "no such folder", "mahalens run")
    (tmp_path / "file").write_text("")
    one_line(tmp_path / "file", "no such folder")


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    one_line(tmp_path, "holds no run", "config.json is missing")


def test_an_unfinished_run_says_how_to_finish_it(make_run: MakeRun) -> None:
    folder = make_run(trials=2)
    (folder / "summary.json").unlink()
    one_line(folder, "not finished", f"mahalens run --resume {folder}")


@pytest.mark.parametrize("name", ["trials.csv", "curves.csv", "gaussian.json", "plots.safetensors"])
def test_a_missing_record_is_named(make_run: MakeRun, name: str) -> None:
    folder = make_run(trials=2)
    (folder / name).unlink()
    one_line(folder, str(folder / name), "is missing", "run the study again")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "summary.json",
        "trials.csv",
        "curves.csv",
        "gaussian.json",
        "plots.safetensors",
    ],
)
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "folder"])
def test_a_damaged_record_is_named(make_run: MakeRun, name: str, damage: str) -> None:
    folder = make_run(trials=2)
    path = folder / name
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
        one_line(folder, str(path), "is a folder, not a file")
        return
    changed = {"cut": content[: len(content) - 7], "garbage": b"\xff\x00\xfe{", "empty": b""}
    path.write_bytes(changed[damage])
    if damage == "cut" and name == "curves.csv":
        return  # what is left may be a shorter number: no reader could tell
    one_line(folder, str(path), "is damaged")


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("summary.json", lambda r: r.pop("rows"), "rows"),
        ("summary.json", lambda r: r["rows"][0].pop("mean"), "mean"),
        ("summary.json", lambda r: r["claims"][0].update(verdict="maybe"), "verdict"),
        ("summary.json", lambda r: r["outcomes"][0].update(trials="many"), "trials"),
        ("summary.json", lambda r: r["rows"][0].update(mean="0.1"), "mean"),
        ("config.json", lambda r: r.update(options=3), "options"),
        ("config.json", lambda r: r.update(protocol="other"), "protocol"),
        ("gaussian.json", lambda r: r["mean"].append(1.0), "covariance"),
    ],
)
def test_a_record_of_the_wrong_shape_is_named(
    make_run: MakeRun, edit: Edit, name: str, change: Callable[[Any], object], part: str
) -> None:
    folder = make_run(trials=2)
    edit(folder / name, change)
    one_line(folder, str(folder / name), "is damaged", part)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("abs,0,", "abs,first,", "line 2, column trial: 'first' is not a number"),
        ("model,trial", "model,run", "no column 'trial'"),
        ("abs,1,", "abs,1,1,", "line 3 has 20 of 19 cells"),
    ],
)
def test_a_bad_cell_is_named(make_run: MakeRun, old: str, new: str, part: str) -> None:
    folder = make_run(trials=2)
    path = folder / "trials.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    one_line(folder, str(path), part)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fit/abs/learned", (3,)),
        ("eigenvalues/abs/rows", (2, 3)),
        ("eigenvalues/abs/gram", (4,)),
        ("plane/true", (90, 89)),
        ("plane/abs/distance", (2, 2)),
        ("plane/abs/weight", (3, 2)),
        ("plane/samples", (4, 3)),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    make_run: MakeRun, name: str, shape: tuple[int, ...]
) -> None:
    folder = make_run(trials=2)
    path = folder / "plots.safetensors"
    arrays = load_file(path)
    save_file({**arrays, name: np.zeros(shape, np.float32)}, path)
    one_line(folder, str(path), name, "where")


def test_a_record_that_may_not_be_read_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(trials=2)

    def refuse(path: Path) -> bytes:
        if path.name == "trials.csv":
            raise PermissionError(13, "Permission denied")
        return path.read_bytes()

    monkeypatch.setattr("mahalens.report.files.read_file", refuse)
    one_line(folder, "trials.csv", "cannot be read (Permission denied)")
