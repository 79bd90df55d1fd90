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
        ("report", "Missing argument 'DIR'"),
        ("claims", "Missing argument 'DIR...'"),
        ("list hybrid weather", "unexpected extra argument"),
    ],
)
def test_commands(fails, words, message):
    assert message in fails(*words.split())


# --- --gaussian FILE --------------------------------------------------------------------------

EYE = [[1, 0], [0, 1]]
FILES = {
    "not symmetric": ({"mean": [0, 0], "covariance": [[1, 0.5], [0, 1]]}, "is not symmetric"),
    "not positive definite": (
        {"mean": [0, 0], "covariance": [[1, 2], [2, 1]]},
        "is not positive definite: smallest eigenvalue -1",
    ),
    "singular": ({"mean": [0, 0], "covariance": [[1, 1], [1, 1]]}, "covariance"),
    "mean too long": ({"mean": [0, 0, 0], "covariance": EYE}, "mean has length 3"),
    "NaN in the mean": ({"mean": [float("nan"), 0], "covariance": EYE}, "NaN or infinite"),
    "infinite covariance": (
        {"mean": [0, 0], "covariance": [[1, 0], [0, float("inf")]]},
        "NaN or infinite",
    ),
    "no mean": ({"covariance": EYE}, "has no mean"),
    "not square": ({"mean": [0, 0], "covariance": [[1, 0]]}, "covariance has shape [1, 2]"),
    "words": ({"mean": ["a", "b"], "covariance": EYE}, "not real numbers"),
    "ragged": ({"mean": [0, 0], "covariance": [[1, 0], [0]]}, "rows of unequal length"),
}


@pytest.mark.parametrize("case", FILES)
def test_json_files(fails, tmp_path, case):
    content, message = FILES[case]
    (tmp_path / "g.json").write_text(json.dumps(content))
    for dim in ((), ("--dim", "2")):
        line = fails("run", "gaussian", *dim, "--gaussian", "g.json", "--out", "run")
        assert line.startswith("g.json: ")
        assert message in line


@pytest.mark.parametrize("case", ["not symmetric", "mean too long", "NaN in the mean"])
def test_npz_files(fails, tmp_path, case):
    content, message = FILES[case]
    np.savez(tmp_path / "g.npz", **{k: np.array(v, float) for k, v in content.items()})
    line = fails("run", "gaussian", "--gaussian", "g.npz", "--out", "run")
    assert line.startswith("g.npz: ")
    assert message in line


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.json", b"", "not readable as .json"),
        ("g.json", b"\xff\xfe\x00", "not readable as .json"),
        ("g.json", b"[1, 2]", "holds a list"),
        ("g.npz", b"PK\x03\x04 not really", "not readable as .npz"),
        ("g.txt", b"1 2 3", "the name ends in '.txt'"),
        ("g", b"1 2 3", "the name ends in 'nothing'"),
    ],
)
def test_files_that_are_something_else(fails, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    line = fails("run", "gaussian", "--gaussian", name, "--out", "run")
    assert line.startswith(f"{name}: ")
    assert message in line


def test_the_dimension_must_be_that_of_the_file(fails, tmp_path):
    np.savez(tmp_path / "g.npz", mean=np.zeros(3), covariance=np.eye(3))
    line = fails("run", "gaussian", "--dim", "2", "--gaussian", "g.npz", "--out", "run")
    assert line == "g.npz: has 3 dimensions, but --dim is 2; leave --dim out or make them equal"


def test_a_folder_in_place_of_a_file(fails, tmp_path):
    (tmp_path / "d.json").mkdir()
    for name, message in (("d.json", "this is a folder"), ("x.json", "there is no such file")):
        assert message in fails("run", "gaussian", "--gaussian", name, "--out", "run")


def test_numbers_that_the_dtype_cannot_hold(fails, tmp_path):
    content = {"mean": [0, 0], "covariance": [[1e200, 0], [0, 1e200]]}
    (tmp_path / "g.json").write_text(json.dumps(content))
    line = fails("run", "gaussian", "--gaussian", "g.json", "--out", "run")
    assert line.startswith("--dtype float32: cannot hold the samples")
    assert "--dtype float64" in line


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


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "--force"])
def test_a_folder_of_other_files(fails, tmp_path, force):
    (tmp_path / "my  photos").mkdir()
    (tmp_path / "my  photos" / "cat.jpg").write_text("cat")
    line = fails("run", "gaussian", "--out", "my  photos", *force)
    assert line.startswith("my  photos: already holds other files (cat.jpg)")
    (tmp_path / "file").write_text("x")
    assert "file: is a file" in fails("run", "gaussian", "--out", "file", *force)
    assert "lies below a file" in fails("run", "gaussian", "--out", "file/run", *force)


@pytest.mark.parametrize("content", [b"", b'{"study": "\xff"}', b'{"model_type": "bert"}'])
@pytest.mark.parametrize(
    "words", ["run --resume run", "run gaussian --out run", "run gaussian --out run --force"]
)
def test_a_damaged_config(fails, tmp_path, words, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_bytes(content)
    assert fails(*words.split()).startswith("run/config.json: is damaged (")


def test_a_run_of_a_study_of_another_version(fails, recorded, tmp_path):
    (tmp_path / "run").mkdir()
    config = json.loads((recorded / "config.json").read_text())
    config |= {"study": "weather", "checksum": None}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "study 'weather' is unknown" in fails("run", "--resume", "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--executor moon", "--executor moon: unknown; give processes or dask"),
        ("--workers 0", "--workers 0: give a whole number from 1 to 1000"),
        ("--scheduler tcp://x:1", "--scheduler without --executor dask"),
        ("--executor dask --workers 2", "--workers with --executor dask"),
    ],
)
def test_ways_to_go_on_that_do_not_exist(fails, recorded, words, message):
    assert message in fails("run", "--resume", recorded, *words.split())


@pytest.mark.slow
def test_a_real_process_shows_no_traceback(process, tmp_path):
    (tmp_path / "g.json").write_text('{"mean": [0, 0], "covariance": [[1, 2], [2, 1]]}')
    outcome = process("run", "gaussian", "--gaussian", "g.json", "--out", "run", cwd=tmp_path)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("mahalens: g.json: covariance [2, 2] is not positive definite")
    assert not (tmp_path / "run").exists()
