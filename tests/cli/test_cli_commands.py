"""The commands when all is well: help, lists, runs, reports and claims."""

import json
import os
import re
import shutil
import warnings

import numpy as np
import pytest
from click.shell_completion import BashComplete

import mahalens.cli
from mahalens.data import load_gaussian
from mahalens.studies.registry import STUDIES, load_study

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
SHORT = ("--data", "iris", "--trials", "2", "--epochs", "2")
MODELS = ("--models", "abs-0,abs-50")


def flags_of(study):
    options = load_study(study).config.options().items()
    return [f"--{o.named or n.replace('_', '-')}" for n, o in options if o.flag]


def words_of(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def finished(cli, tmp_path_factory):
    """A whole run with its report, and what was printed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    outcome = cli("run", "hybrid", *SHORT, *MODELS, "--out", path)
    assert outcome.code == 0, outcome.err
    return path, outcome


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "copy")


# Help and lists


def test_version(process):
    outcome = process("--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"mahalens, version {mahalens.__version__}\n"


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], ["run", "--help"], ["run", "hybrid", "-h"], ["claims", "-h"]]
)
def test_help(cli, words):
    outcome = cli(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Usage: ")


def test_no_command_shows_the_help(cli):
    outcome = cli()
    assert outcome.err == ""
    assert outcome.out.startswith("Usage: ")
    assert "claims" in outcome.out


def test_list_names_the_studies_on_one_screen(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = cli("list")
    assert (outcome.code, outcome.err) == (0, "")
    for study in STUDIES:
        assert f"{study} {load_study(study).question}" in words_of(outcome.out)
    lines = outcome.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[-1].endswith("or a topic: data, models, options, metrics, claims")


def test_list_of_a_topic(cli):
    data = cli("list", "data").out
    assert all(word in data for word in ("digits", "breast-cancer", "mobilenet-v2"))
    assert "hybrid" not in data
    claims = cli("list", "claims").out
    assert all(f"{study}: {load_study(study).question}" in claims for study in STUDIES)
    assert "half-beats-relu" in claims
    assert "--trials" not in claims
    both = cli("list", "hybrid", "metrics", "models").out
    assert all(word in both for word in ("hybrid: Do layers", "abs-50", "test_accuracy"))
    assert not any(word in both for word in ("--trials", "half-beats-relu", "gaussian"))


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("run hyb", ["plain,hybrid"]),
        ("run hybrid --da", ["plain,--data"]),
        ("run hybrid --data fa", ["plain,fashion-mnist"]),
        ("run hybrid --data digits,iris,di", ["file,digits,iris,di"]),  # digits is there already
        ("run hybrid --data digits,wi", ["plain,digits,wine"]),
        ("run hybrid --models abs-0,narrow-d", ["plain,abs-0,narrow-double"]),
        ("run hybrid --executor d", ["plain,dask"]),
        ("run hybrid --out som", ["file,som"]),
        ("audit nets:build --data mn", ["plain,mnist"]),
        ("audit nets:build --data wi", ["file,wi"]),  # tables feed no network
        ("detect nets:build --unknown ./mine", ["file,./mine"]),
        ("data fetch mob", ["plain,mobilenet-v2"]),
        ("list cla", ["plain,claims"]),
    ],
)
def test_tab_completion(line, answers):
    shell = BashComplete(mahalens.cli.cli, {}, "mahalens", "")
    *words, incomplete = line.split()
    items = shell.get_completions(words, incomplete)
    assert [shell.format_completion(item) for item in items] == answers


def test_a_shell_asks_for_completions(process, monkeypatch):
    monkeypatch.setenv("_MAHALENS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "mahalens run hyb")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert process().out == "plain,hybrid\n"
    monkeypatch.setenv("_MAHALENS_COMPLETE", "zsh_source")
    assert "_MAHALENS_COMPLETE=zsh_complete" in process().out


@pytest.mark.parametrize("study", STUDIES)
def test_list_of_a_study_names_models_options_metrics_and_claims(cli, study):
    outcome = cli("list", study)
    assert (outcome.code, outcome.err) == (0, "")
    known = load_study(study)
    choices = [name for option in known.config.options().values() for name in option.choices]
    claims = [claim.key for claim in known.claims_of(known.config.with_defaults())]
    for word in (*known.models, *known.metrics, *flags_of(study), *choices, *claims):
        assert word in outcome.out


# run


def test_a_run_leaves_all_of_the_contract(finished):
    path, _ = finished
    files = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert files >= {
        "config.json",
        "trials.csv",
        "curves.csv",
        "comparisons.csv",
        "summary.json",
        "checksums.json",
        "report.html",
        "weights/iris-abs-0.safetensors",
    }
    assert any(name.startswith("figures/") and name.endswith(".png") for name in files)
    assert not any(name.startswith((".", "checkpoints")) for name in files)


def test_what_a_run_records_and_prints(finished):
    path, outcome = finished
    config = json.loads((path / "config.json").read_text())
    assert config["command"] == f"mahalens run hybrid {' '.join((*SHORT, *MODELS))} --out {path}"
    assert config["protocol"] == "scaled"
    assert any(change.startswith("models: without abs-12, ") for change in config["scaled"])
    assert outcome.out.rstrip("\n").splitlines()[-1] == f"report: {path / 'report.html'}"
    text = words_of(outcome.out)
    parts = ("Do layers that mix", "in this scaled run", "Results", "Comparisons")
    places = [text.index(part) for part in (*parts, "Claims", "hybrid/half-beats-relu")]
    assert places == sorted(places)  # the answer first, the claims last
    assert places[0] == 0
    assert "All 4 trials ran to their end." in text
    assert outcome.err.splitlines()  # progress, without a terminal in plain lines
    assert not CONTROL.search(outcome.err + outcome.out)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.usefixtures("no_report")
def test_quiet(cli, tmp_path, place):
    words = ["run", "hybrid", *SHORT, "--models", "abs-0", "--out", tmp_path / "run"]
    words.insert(1 if place == "before" else len(words), "--quiet")
    outcome = cli(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"report: {tmp_path / 'run' / 'report.html'}\n"


@pytest.mark.usefixtures("no_report")
def test_same_seed_same_numbers(cli, finished, tmp_path):
    first, _ = finished
    words = ["run", "hybrid", *SHORT, *MODELS, "--quiet"]
    cli(*words, "--out", tmp_path / "same", "--seed", "0")
    cli(*words, "--out", tmp_path / "other", "--seed", "1")
    for name in ("curves.csv", "weights/iris-abs-0.safetensors"):
        content = (first / name).read_bytes()
        assert (tmp_path / "same" / name).read_bytes() == content
        assert (tmp_path / "other" / name).read_bytes() != content


# A Gaussian of the user


@pytest.mark.parametrize("kind", ["npz", "json"])
@pytest.mark.parametrize("dim", [[], ["--dim", "3"]], ids=["any", "--dim 3"])
@pytest.mark.usefixtures("no_report")
def test_a_gaussian_of_the_user(cli, small, tmp_path, kind, dim):
    mean, covariance = [1.0, 2.0, 3.0], [[2.0, 0.5, 0], [0.5, 1, 0], [0, 0, 3]]
    file = tmp_path / f"mine.{kind}"
    if kind == "npz":
        np.savez(file, mean=mean, covariance=covariance)
    else:
        file.write_text(json.dumps({"mean": mean, "covariance": covariance}))
    words = ["run", "gaussian", *dim, *small, "--models", "abs", "--gaussian", file, "--quiet"]
    outcome = cli(*words, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["options"]["dim"] == 3
    assert config["options"]["gaussian"].endswith(file.name)
    assert any(re.match(f"gaussian: .*{file.name} ", change) for change in config["scaled"])
    saved = load_gaussian(tmp_path / "run" / "gaussian.json")
    np.testing.assert_allclose(saved.mean, mean)
    np.testing.assert_allclose(saved.covariance, covariance, atol=1e-12)


@pytest.mark.usefixtures("no_report")
def test_a_doubtful_gaussian_is_warned_of_once(cli, small, tmp_path):
    near = 1 - 1e-13
    content = {"mean": [0, 0], "covariance": [[1, near], [near, 1]]}
    (tmp_path / "g.json").write_text(json.dumps(content))
    words = ["run", "gaussian", *small, "--models", "ground-truth", "--dtype", "float64"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        outcome = cli(
            *words, "--gaussian", tmp_path / "g.json", "--quiet", "--out", tmp_path / "run"
        )
    assert outcome.code == 0
    assert outcome.err.startswith("mahalens: warning: covariance is nearly singular")
    assert outcome.err.count("\n") == 1


# report and claims


def test_report_again(cli, copy):
    page = (copy / "report.html").read_bytes()
    (copy / "report.html").unlink()
    shutil.rmtree(copy / "figures")
    outcome = cli("report", copy)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{copy / 'report.html'}\n"
    assert (copy / "report.html").read_bytes() == page
    assert any((copy / "figures").iterdir())


@pytest.mark.parametrize("command", ["report", "claims"])
def test_an_unfinished_run_has_neither(cli, copy, command):
    (copy / "summary.json").unlink()
    outcome = cli(command, copy)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert f"mahalens run --resume {copy}" in outcome.err


def test_claims_of_one_run(cli, finished):
    path, _ = finished
    outcome = cli("claims", path)
    assert (outcome.code, outcome.err) == (0, "")
    text = words_of(outcome.out)
    assert "? undecided" in text
    assert "A layer half of Abs units is more accurate" in text
    assert not CONTROL.search(outcome.out)


def test_claims_of_runs_of_the_same_name_can_be_told_apart(cli, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for place in ("a", "b"):
        shutil.copytree(finished[0], tmp_path / place / "run")
    text = words_of(cli("claims", "a/run", "b/run").out)
    assert "Claim a/run b/run" in text
    monkeypatch.chdir(tmp_path / "a" / "run")
    assert cli("claims", ".").code == 0


def test_signs_that_cannot_be_shown_do_no_harm(process, finished):
    outcome = process("claims", finished[0], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (outcome.code, outcome.err) == (0, "")
    assert "A layer half of Abs units" in words_of(outcome.out)
