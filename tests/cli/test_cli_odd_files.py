"""Pipes, devices and names too long where files and folders are wanted: one line, at once."""

import os
import shutil

import numpy as np
import pytest

LONG = "x" * 5_000
RECORDS = ("config.json", "summary.json", "trials.csv", "plots.safetensors", "gaussian.json")


def refused(outcome):
    assert (outcome.code, outcome.out) == (2, ""), outcome.err
    (line,) = outcome.err.splitlines()
    assert line.startswith("mahalens: ")
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("command", [("report",), ("claims",), ("run", "--resume")])
def test_a_pipe_in_place_of_a_record(cli, finished, tmp_path, name, command):
    path = tmp_path / "run"
    shutil.copytree(finished[0], path)
    (path / name).unlink()
    os.mkfifo(path / name)
    if name == "gaussian.json":  # which only a run that goes on reads
        command = ("run", "--resume")
        (path / "summary.json").unlink()
    line = refused(cli(*command, path))
    assert "pipe" in line or "missing" in line


def test_a_pipe_in_place_of_a_checkpoint(cli, tmp_path, small, monkeypatch):
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
    assert f"{file}: is a pipe, not a file" in refused(cli("run", "--resume", path, "--quiet"))


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
def test_a_pipe_in_place_of_data(cli, tmp_path, study, option, name):
    os.mkfifo(tmp_path / name)
    refused(cli("run", study, option, tmp_path / name, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


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
def test_a_name_that_is_too_long(cli, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    refused(cli(*words))
    assert os.listdir(tmp_path) == []


def test_data_that_changed_between_two_parts_of_a_run(cli, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(60, 4)).astype("f4"), np.arange(60) % 3
    for study in ("representation", "perturbation"):
        np.savez("own.npz", x=x, y=y)
        with monkeypatch.context() as patch:
            patch.setattr("mahalens.studies.run.write_records", stop)
            words = ("--trials", "1", "--epochs", "5", "--pixels", "raw", "--quiet")
            outcome = cli("run", study, "--data", "own.npz", *words, "--out", study)
            assert outcome.code == 130, outcome.err
        np.savez("own.npz", x=x + 1, y=y)
        line = refused(cli("run", "--resume", study, "--quiet"))
        assert line.startswith("mahalens: own.npz: has changed since the run began; bring the old")


@pytest.mark.usefixtures("no_report")
def test_a_changed_record_of_a_finished_run_is_told(cli, finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished[0], path)
    table = path / "trials.csv"
    table.write_text(table.read_text().replace("abs,0,", "abs,00,"))
    outcome = cli("run", "--resume", path, "--quiet")
    assert outcome.code == 0
    assert outcome.err.startswith(f"mahalens: warning: {table}: has changed since the run wrote it")
