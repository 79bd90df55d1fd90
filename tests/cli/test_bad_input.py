"""Bad input: one line on stderr that names the value, exit code 2, and nothing written."""

import json

import numpy as np
import pytest

from mahalens.studies.registry import STUDIES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fly", "No such command 'fly'"),
        ("--fly", "No such option"),
        ("run", f"run what? give a study ({', '.join(STUDIES)}) or --resume DIR"),
        ("run fly", "No such command 'fly'"),
        ("run gaussian", "Missing option '--out'"),
        ("run gaussian --out", "'--out' requires an argument"),
        ("run --workers 2 gaussian --out run", "--workers before a study goes with --resume"),
        ("run --resume", "'--resume' requires an argument"),
        ("run --resume gone gaussian --out run", "--resume DIR already determines the study"),
        ("run --resume gone", "gone: there is no such folder; start one with"),
        ("run --resume .", ".: holds no run; start one with"),
        ("report", "Missing argument 'DIR'. See"),
        ("report a b", "Got unexpected extra argument (b). See"),
        ("audit mlp.pt2 --out run", "Missing option '--data'"),
        ("claims", "Missing argument 'DIR...'"),
        ("pool --out run", "Missing argument 'DIR...'"),
        ("pool gone --out run", "gone: there is no such folder; start one with"),
        ("list hybrid weather", "'weather' cannot be listed; give a study (gaussian, "),
    ],
)
def test_commands(fails, words, message):
    assert message in fails(*words.split())


# --- --gaussian FILE --------------------------------------------------------------------------

EYE = [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("name", "mean", "covariance", "words", "message"),
    [  # tests/data has the other faults of files
        ("g.json", [0, 0], [[1, 2], [2, 1]], "", "g.json: covariance [2, 2] is not positive def"),
        ("g.npz", [0, 0, 0], EYE, "", "g.npz: mean has length 3"),
        ("g.txt", [0, 0], EYE, "", "g.txt: the name ends in '.txt'"),
        ("d.json", None, None, "", "d.json: this is a folder"),
        ("", None, None, "--gaussian x.json", "x.json: there is no such file"),
    ],
)
def test_files(fails, tmp_path, name, mean, covariance, words, message):
    path = tmp_path / name
    if name.endswith(".npz"):
        np.savez(path, mean=mean, covariance=covariance)
    elif mean is not None:
        path.write_text(json.dumps({"mean": mean, "covariance": covariance}))
    elif name:
        path.mkdir()
    file = ("--gaussian", name) if name else ()
    assert message in fails("run", "gaussian", *file, *words.split(), "--out", "run")


# --- --out DIR and --resume DIR ---------------------------------------------------------------


def test_a_folder_that_holds_a_run(fails, recorded, picture):
    before = picture(recorded)
    line = fails("run", "gaussian", "--out", recorded)
    assert line.startswith(f"{recorded}: already holds a run")
    assert "--resume" in line
    assert "--force" in line
    for words in ("--trials 0", "--device meta", "--gaussian gone.json", "--seed -1"):
        fails("run", "gaussian", *words.split(), "--out", recorded, "--force")
    assert picture(recorded) == before


def test_a_folder_of_other_files(fails, tmp_path):
    (tmp_path / "my  photos").mkdir()
    (tmp_path / "my  photos" / "cat.jpg").write_text("cat")
    line = fails("run", "gaussian", "--out", "my  photos", "--force")
    assert line.startswith("my  photos: already holds other files (cat.jpg)")


@pytest.mark.parametrize(
    "words", ["run --resume run", "run gaussian --out run", "run gaussian --out run --force"]
)
def test_a_damaged_config(fails, tmp_path, words):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"model_type": "bert"}')
    assert fails(*words.split()).startswith("run/config.json: is damaged (")


def test_a_run_of_a_study_of_another_version(fails, recorded, tmp_path):
    (tmp_path / "run").mkdir()
    config = json.loads((recorded / "config.json").read_text())
    config |= {"study": "weather", "checksum": None}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "study 'weather' is unknown" in fails("run", "--resume", "run")


def test_a_finished_run_takes_no_unknown_executor(fails, recorded):
    message = "--executor moon: unknown; give processes or dask"
    assert message in fails("run", "--resume", recorded, "--executor", "moon")


@pytest.mark.slow
def test_a_real_process_shows_no_traceback(process, tmp_path):
    (tmp_path / "g.json").write_text('{"mean": [0, 0], "covariance": [[1, 2], [2, 1]]}')
    outcome = process("run", "gaussian", "--gaussian", "g.json", "--out", "run", cwd=tmp_path)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("mahalens: g.json: covariance [2, 2] is not positive definite")
    assert not (tmp_path / "run").exists()
