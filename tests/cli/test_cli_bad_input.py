"""Bad input: one line on stderr that names the value, exit code 2, and nothing written."""

import json

import numpy as np
import pytest

KNOWN_MODELS = "abs, relu, sigmoid, ground-truth"

OPTIONS = {
    "dim zero": ("--dim 0", "--dim 0: give a whole number of at least 1"),
    "dim negative": ("--dim -2", "--dim -2: give a whole number of at least 1"),
    "trials zero": ("--trials 0", "--trials 0: give a whole number of at least 1"),
    "trials negative": ("--trials -1", "--trials -1: give a whole number of at least 1"),
    "epochs zero": ("--epochs 0", "--epochs 0: give a whole number of at least 1"),
    "epochs negative": ("--epochs=-5", "--epochs -5: give a whole number of at least 1"),
    "epochs absurd": ("--epochs 1" + "0" * 30, "give a whole number of at most"),
    "samples zero": ("--samples 0", "--samples 0: give a whole number of at least 2"),
    "samples negative": ("--samples -1", "--samples -1: give a whole number of at least 2"),
    "samples one": ("--samples 1", "--samples 1: give a whole number of at least 2"),
    "samples absurd": ("--samples 1" + "0" * 30, "give a whole number of at most"),
    "seed negative": ("--seed -1", "--seed -1: give a whole number of at least 0"),
    "seed absurd": ("--seed 1" + "0" * 30, "give a whole number of at most"),
    "not a number": ("--dim two", "'--dim': 'two' is not a valid integer"),
    "a fraction": ("--trials 2.5", "'2.5' is not a valid integer"),
    "no value": ("--trials", "'--trials': '--out' is not a valid integer"),
    "unknown solver": ("--solver sgd", "--solver sgd: unknown; known: adam, newton"),
    "solver in capitals": ("--solver NEWTON", "--solver NEWTON: unknown; known: adam, newton"),
    "unknown dtype": ("--dtype half", "--dtype half: unknown; known: float32, float64"),
    "unknown model": ("--models tanh", f"--models tanh: unknown model; known: {KNOWN_MODELS}"),
    "one unknown": ("--models abs,tanh", f"--models tanh: unknown model; known: {KNOWN_MODELS}"),
    "no model": ("--models ,", f"--models is empty: give some of {KNOWN_MODELS}"),
    "twice": ("--models abs,relu,abs", "--models abs,relu,abs: a model is named twice"),
    "wrong case": ("--models Abs", "--models Abs: unknown model"),
    "device": ("--device nonsense", "--device nonsense: cannot be used here"),
    "absent device": ("--device meta", "--device meta: cannot be used here"),
    "unknown option": ("--colour red", "No such option"),
    "stray word": ("stray", "unexpected extra argument"),
}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fails(cli, tmp_path, picture):
    """Run a command that must fail, and give the line it says."""

    def run(*words):
        before = picture(tmp_path)
        outcome = cli(*words)
        assert outcome.code == 2
        assert outcome.out == ""
        assert outcome.err.startswith("mahalens: ")
        assert outcome.err.endswith("\n")
        assert outcome.err.count("\n") == 1
        assert picture(tmp_path) == before
        return outcome.err.removeprefix("mahalens: ").rstrip("\n")

    return run


@pytest.mark.parametrize("case", OPTIONS)
def test_options(fails, case):
    words, wanted = OPTIONS[case]
    assert wanted in fails("run", "gaussian", *words.split(), "--out", "run")


def test_models_of_nothing_but_spaces(fails):
    assert "--models is empty" in fails("run", "gaussian", "--models", " , ", "--out", "run")
    assert "--models is empty" in fails("run", "gaussian", "--models", "", "--out", "run")
    for words in (
        ("ellipsoids", "--clusters"),
        ("ellipsoids", "--ranks"),
        ("representation", "--nodes"),
    ):
        text = fails("run", words[0], words[1], ",", "--out", "run")
        assert f"{words[1]} is empty: give some, or leave it out" in text


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("fly", "No such command 'fly'"),
        ("--fly", "No such option"),
        (
            "run",
            "run what? give a study (gaussian, ellipsoids, representation, perturbation, "
            "activations, init, hybrid, heads, transfer) or --resume DIR",
        ),
        ("run fly", "No such command 'fly'"),
        ("run gaussian", "Missing option '--out'"),
        ("run gaussian --out", "'--out' requires an argument"),
        ("run --resume", "'--resume' requires an argument"),
        ("run --resume gone gaussian --out run", "--resume takes no study"),
        ("run gaussian --resume gone --out run", "No such option"),
        ("run --resume gone", "gone: there is no such folder; start one with"),
        ("run --resume .", ".: holds no run; start one with"),
        ("report", "Missing argument 'DIR'"),
        ("report gone", "gone: no such folder"),
        ("report .", ".: holds no run"),
        ("claims", "Missing argument 'DIR...'"),
        ("claims gone", "gone: no such folder"),
        ("list all", "unexpected extra argument"),
    ],
)
def test_commands(fails, words, wanted):
    assert wanted in fails(*words.split())


# --gaussian FILE

EYE = [[1, 0], [0, 1]]
FILES = {
    "not symmetric": ({"mean": [0, 0], "covariance": [[1, 0.5], [0, 1]]}, "is not symmetric"),
    "not positive definite": (
        {"mean": [0, 0], "covariance": [[1, 2], [2, 1]]},
        "is not positive definite: smallest eigenvalue -1",
    ),
    "singular": ({"mean": [0, 0], "covariance": [[1, 1], [1, 1]]}, "covariance"),
    "mean too long": ({"mean": [0, 0, 0], "covariance": EYE}, "mean has length 3"),
    "mean too short": ({"mean": [0], "covariance": EYE}, "mean has length 1"),
    "NaN in the mean": ({"mean": [float("nan"), 0], "covariance": EYE}, "NaN or infinite"),
    "NaN in the covariance": (
        {"mean": [0, 0], "covariance": [[1, 0], [0, float("nan")]]},
        "NaN or infinite",
    ),
    "infinity": ({"mean": [0, float("inf")], "covariance": EYE}, "NaN or infinite"),
    "no mean": ({"covariance": EYE}, "has no mean"),
    "not square": ({"mean": [0, 0], "covariance": [[1, 0]]}, "covariance has shape [1, 2]"),
    "words": ({"mean": ["a", "b"], "covariance": EYE}, "not real numbers"),
    "ragged": ({"mean": [0, 0], "covariance": [[1, 0], [0]]}, "rows of unequal length"),
}


@pytest.mark.parametrize("dim", [[], ["--dim", "2"]], ids=["any", "--dim 2"])
@pytest.mark.parametrize("case", FILES)
def test_json_files(fails, tmp_path, case, dim):
    content, wanted = FILES[case]
    (tmp_path / "g.json").write_text(json.dumps(content))
    line = fails("run", "gaussian", *dim, "--gaussian", "g.json", "--out", "run")
    assert line.startswith("g.json: ")
    assert wanted in line


@pytest.mark.parametrize(
    "case", ["not symmetric", "not positive definite", "mean too long", "NaN in the mean"]
)
def test_npz_files(fails, tmp_path, case):
    content, wanted = FILES[case]
    np.savez(tmp_path / "g.npz", **{k: np.array(v, float) for k, v in content.items()})
    line = fails("run", "gaussian", "--gaussian", "g.npz", "--out", "run")
    assert line.startswith("g.npz: ")
    assert wanted in line


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("g.json", b"", "not readable as .json"),
        ("g.json", b"{", "not readable as .json"),
        ("g.json", b"\xff\xfe\x00", "not readable as .json"),
        ("g.json", b"[1, 2]", "holds a list"),
        ("g.npz", b"PK\x03\x04 not really", "not readable as .npz"),
        ("g.npz", b"", "not readable as .npz"),
        ("g.txt", b"1 2 3", "the name ends in '.txt'"),
        ("g", b"1 2 3", "the name ends in 'nothing'"),
    ],
)
def test_files_that_are_something_else(fails, tmp_path, name, content, wanted):
    (tmp_path / name).write_bytes(content)
    line = fails("run", "gaussian", "--gaussian", name, "--out", "run")
    assert line.startswith(f"{name}: ")
    assert wanted in line


def test_a_file_that_is_not_there_or_a_folder(fails, tmp_path):
    (tmp_path / "d.json").mkdir()
    assert "there is no such file" in fails("run", "gaussian", "--gaussian", "x.json", "--out", "r")
    assert "this is a folder" in fails("run", "gaussian", "--gaussian", "d.json", "--out", "r")


def test_the_dimension_must_be_that_of_the_file(fails, tmp_path):
    np.savez(tmp_path / "g.npz", mean=np.zeros(3), covariance=np.eye(3))
    line = fails("run", "gaussian", "--dim", "2", "--gaussian", "g.npz", "--out", "run")
    assert line == ("g.npz: has 3 dimensions, but --dim is 2; leave --dim out or make them equal")


def test_numbers_that_the_dtype_cannot_hold(fails, tmp_path):
    content = {"mean": [0, 0], "covariance": [[1e200, 0], [0, 1e200]]}
    (tmp_path / "g.json").write_text(json.dumps(content))
    line = fails("run", "gaussian", "--gaussian", "g.json", "--out", "run")
    assert "--dtype float64" in line


# --out DIR


def test_a_folder_that_holds_a_run(fails, finished, tmp_path, picture):
    path, _ = finished
    before = picture(path)
    line = fails("run", "gaussian", "--out", path)
    assert picture(path) == before
    assert line.startswith(f"{path}: already holds a run")
    assert "--resume" in line
    assert "--force" in line


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "--force"])
def test_a_folder_of_other_files(fails, tmp_path, force):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    line = fails("run", "gaussian", "--out", "photos", *force)
    assert line.startswith("photos: already holds other files (cat.jpg)")


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "--force"])
def test_a_file_in_the_way(fails, tmp_path, force):
    (tmp_path / "file").write_text("x")
    assert "file: is a file" in fails("run", "gaussian", "--out", "file", *force)
    assert "lies below a file" in fails("run", "gaussian", "--out", "file/run", *force)


@pytest.mark.parametrize("content", [b"", b"{", b'{"study": "\xff"}', b'{"model_type": "bert"}'])
@pytest.mark.parametrize(
    "words",
    [
        "run --resume run",
        "run gaussian --out run",
        "run gaussian --out run --force",
        "report run",
        "claims run",
    ],
)
def test_a_damaged_config(fails, tmp_path, words, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_bytes(content)
    line = fails(*words.split())
    assert str(line).startswith("run/config.json: is damaged (")


def test_a_run_of_a_study_of_another_version(cli, finished, tmp_path, fails):
    path, _ = finished
    text = (path / "config.json").read_text()
    (tmp_path / "run").mkdir()
    record = {**json.loads(text), "study": "weather", "checksum": None}
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    assert "study 'weather' is unknown" in fails("run", "--resume", "run")


def test_bad_input_of_a_forced_run_leaves_the_old_run_alone(fails, finished, picture):
    path, _ = finished
    before = picture(path)
    for words in ("--trials 0", "--device meta", "--gaussian gone.json", "--seed -1"):
        fails("run", "gaussian", *words.split(), "--out", path, "--force")
    assert picture(path) == before


def test_spaces_of_a_path_are_kept(fails, tmp_path):
    (tmp_path / "a  b").mkdir()
    (tmp_path / "a  b" / "x").touch()
    assert fails("run", "gaussian", "--out", "a  b").startswith("a  b: already holds")


def test_a_real_process_shows_no_traceback(process, tmp_path):
    (tmp_path / "g.json").write_text('{"mean": [0, 0], "covariance": [[1, 2], [2, 1]]}')
    outcome = process("run", "gaussian", "--gaussian", "g.json", "--out", "run", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("mahalens: g.json: covariance [2, 2] is not positive definite")
    assert not (tmp_path / "run").exists()
    outcome = process("run", "gaussian", "--trials", "0", "--out", "run", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err == "mahalens: --trials 0: give a whole number of at least 1\n"
