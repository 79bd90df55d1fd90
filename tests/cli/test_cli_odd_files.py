"""Pipes, devices and names too long where files and folders are wanted: one line, at once."""

import os
import shutil

import pytest

LONG = "x" * 5_000
RECORDS = ("config.json", "summary.json", "trials.csv", "plots.safetensors", "gaussian.json")


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("command", [("report",), ("claims",), ("run", "--resume")])
def test_a_pipe_in_place_of_a_record(fails, finished, tmp_path, name, command):
    path = shutil.copytree(finished[0], tmp_path / "run")
    (path / name).unlink()
    os.mkfifo(path / name)
    if name == "gaussian.json":  # which only a run that goes on reads
        command = ("run", "--resume")
        (path / "summary.json").unlink()
    line = fails(*command, path)
    assert "pipe" in line or "missing" in line


def test_a_pipe_in_place_of_a_checkpoint(cli, fails, tmp_path, small, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("mahalens.studies.run.write_records", stop)
        words = ("run", "gaussian", *small, "--models", "abs", "--quiet", "--out", path)
        assert cli(*words).code == 130
    (file,) = (path / "checkpoints").glob("abs-0000.safetensors")
    file.unlink()
    os.mkfifo(file)
    assert f"{file}: is a pipe, not a file" in fails("run", "--resume", path, "--quiet")


@pytest.mark.parametrize(
    ("study", "option", "name"),
    [
        ("gaussian", "--gaussian", "pipe.json"),
        ("gaussian", "--gaussian", "pipe.npz"),
        ("representation", "--data", "pipe.npz"),
        ("init", "--data", "pipe.safetensors"),
        ("ellipsoids", "--data", "pipe.npz"),
    ],
)
def test_a_pipe_in_place_of_data(fails, tmp_path, study, option, name):
    os.mkfifo(tmp_path / name)
    assert name in fails("run", study, option, name, "--out", "run")


@pytest.mark.parametrize(
    "words",
    [
        ("report", LONG),
        ("claims", LONG),
        ("diff", LONG, LONG),
        ("diff", "y/" * 3000, "y"),
        ("run", "--resume", LONG),
        ("run", "gaussian", "--out", LONG),
        ("run", "perturbation", "--from", LONG, "--out", "run"),
        ("run", "gaussian", "--gaussian", f"{LONG}.json", "--out", "run"),
        ("run", "representation", "--data", LONG, "--out", "run"),
        ("run", "init", "--data", f"{LONG}.npz", "--out", "run"),
    ],
    ids=lambda words: "-".join(word[:12] for word in words[:-1]),
)
def test_a_name_that_is_too_long(fails, words):
    assert "Traceback" not in fails(*words)


@pytest.mark.usefixtures("no_report")
def test_a_changed_record_of_a_finished_run_is_told(cli, finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished[0], path)
    table = path / "trials.csv"
    table.write_text(table.read_text().replace("abs,0,", "abs,00,"))
    outcome = cli("run", "--resume", path, "--quiet")
    assert outcome.code == 0
    assert outcome.err.startswith(f"mahalens: warning: {table}: has changed since the run wrote it")
