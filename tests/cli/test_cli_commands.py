"""What the commands do when all is well."""

import json
import os
import re
import shutil
import warnings

import numpy as np
import pytest

import mahalens
from mahalens.data import load_gaussian

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def words_of(text):
    return " ".join(text.split())


def test_version(process):
    outcome = process("--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"mahalens, version {mahalens.__version__}\n"


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], ["run", "--help"], ["run", "gaussian", "-h"], ["claims", "-h"]]
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


def test_help_of_a_study_names_every_option(cli):
    text = cli("run", "gaussian", "--help").out
    options = "dim trials epochs samples solver models dtype device seed gaussian out force quiet"
    assert [o for o in options.split() if f"--{o}" not in text] == []


def test_list(cli):
    outcome = cli("list")
    assert (outcome.code, outcome.err) == (0, "")
    for word in ("gaussian", "abs", "relu", "sigmoid", "ground-truth", "adam", "newton", "MD_Abs"):
        assert word in outcome.out
    assert [line for line in outcome.out.splitlines() if not line.startswith(" ")] == [
        "Studies:",
        "Models of gaussian:",
        "Solvers of gaussian:",
        "Methods of ellipsoids:",
        "Solvers of ellipsoids:",
        "Models of representation:",
        "Pixels of representation:",
        "Engines of representation:",
        "Models of init:",
        "Models of activations:",
        "Solvers of activations:",
        "Models of hybrid:",
        "Models of heads:",
        "Models of transfer:",
        "Data:",
    ]


def test_signs_that_cannot_be_shown_do_no_harm(process, finished):
    outcome = process("claims", finished[0], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (outcome.code, outcome.err) == (0, "")
    assert "MD_Abs learns the distance" in words_of(outcome.out)


# run


def test_a_run_leaves_all_of_the_contract(finished):
    path, _ = finished
    found = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert found >= {
        "config.json",
        "gaussian.json",
        "trials.csv",
        "curves.csv",
        "summary.json",
        "plots.safetensors",
        "report.html",
        "weights/abs.safetensors",
        "weights/ground-truth.safetensors",
    }
    assert any(name.startswith("figures/") and name.endswith(".png") for name in found)
    assert not any(name.startswith((".", "checkpoints")) for name in found)


def test_a_run_records_its_command(finished):
    path, _ = finished
    config = json.loads((path / "config.json").read_text())
    assert config["command"] == (
        "mahalens run gaussian --trials 2 --epochs 300 --samples 30 --models abs,ground-truth "
        f"--out {path}"
    )
    assert config["protocol"] == "scaled"
    assert "models: without relu, sigmoid" in config["scaled"]


def test_what_a_run_prints(finished):
    path, outcome = finished
    assert outcome.out.rstrip("\n").splitlines()[-1] == f"report: {path / 'report.html'}"
    text = words_of(outcome.out)
    for word in ("Results", "Outcomes", "Claims", "MD_Abs", "2 done", "000/abs-whitens"):
        assert word in text


def test_progress_without_a_terminal_is_plain_lines(finished):
    _, outcome = finished
    lines = outcome.err.splitlines()
    assert lines[0] == "abs: starts"
    assert re.fullmatch(r"abs: 300 of 300, MSE \S+, took \d+ s", lines[1])
    assert "reading the trained models" in lines
    assert not CONTROL.search(outcome.err)
    assert not CONTROL.search(outcome.out)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.usefixtures("no_report")
def test_quiet(cli, small, tmp_path, place):
    words = ["run", "gaussian", *small, "--models", "abs", "--out", tmp_path / "run"]
    words.insert(1 if place == "before" else len(words), "--quiet")
    outcome = cli(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"report: {tmp_path / 'run' / 'report.html'}\n"


@pytest.mark.usefixtures("no_report")
def test_same_seed_same_numbers(cli, small, finished, tmp_path):
    first, _ = finished
    words = ["run", "gaussian", *small, "--models", "abs,ground-truth", "--quiet"]
    cli(*words, "--out", tmp_path / "same", "--seed", "0")
    cli(*words, "--out", tmp_path / "other", "--seed", "1")
    names = ["trials.csv", "curves.csv", "gaussian.json", "plots.safetensors"]
    names += ["weights/abs.safetensors", "weights/ground-truth.safetensors"]
    for name in names:
        content = (first / name).read_bytes()
        assert (tmp_path / "same" / name).read_bytes() == content
        assert (tmp_path / "other" / name).read_bytes() != content


@pytest.mark.parametrize("models", ["relu,abs", " relu , abs ", "relu,,abs,"])
@pytest.mark.usefixtures("no_report")
def test_models_are_separated_by_commas_and_keep_their_order(cli, small, tmp_path, models):
    outcome = cli("run", "gaussian", *small, "--models", models, "--quiet", "--out", tmp_path / "r")
    assert outcome.code == 0
    options = json.loads((tmp_path / "r" / "config.json").read_text())["options"]
    assert options["models"] == ["relu", "abs"]


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
    assert (config["options"]["dim"], config["options"]["gaussian"]) == (3, file.name)
    assert f"gaussian: from {file.name} instead of drawn as in source 000" in config["scaled"]
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


@pytest.mark.usefixtures("no_report")
def test_force_replaces_a_run_and_spares_other_files(cli, small, finished, tmp_path):
    first, _ = finished
    path = tmp_path / "copy"
    shutil.copytree(first, path)
    (path / "notes.txt").write_text("mine")
    words = ["run", "gaussian", *small, "--models", "relu", "--quiet", "--out", path, "--force"]
    assert cli(*words).code == 0
    assert (path / "notes.txt").read_text() == "mine"
    assert [p.name for p in (path / "weights").iterdir()] == ["relu.safetensors"]
    assert not (path / "report.html").exists()
    assert not (path / "figures").exists()


# report and claims


def test_report_again(cli, finished, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(finished[0], path)
    page = (path / "report.html").read_bytes()
    (path / "report.html").unlink()
    shutil.rmtree(path / "figures")
    outcome = cli("report", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{path / 'report.html'}\n"
    assert len((path / "report.html").read_bytes()) == pytest.approx(len(page), rel=0.1)
    assert any((path / "figures").iterdir())


def test_report_of_an_unfinished_run(cli, finished, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(finished[0], path)
    (path / "summary.json").unlink()
    for command in ("report", "claims"):
        outcome = cli(command, path)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert f"mahalens run --resume {path}" in outcome.err


def test_claims_of_one_run(cli, finished):
    path, _ = finished
    outcome = cli("claims", path)
    assert (outcome.code, outcome.err) == (0, "")
    text = words_of(outcome.out)
    summary = json.loads((path / "summary.json").read_text())
    for verdict in {claim["verdict"] for claim in summary["claims"]}:
        assert verdict in text
    assert "MD_Abs learns the distance" in text
    assert not CONTROL.search(outcome.out)


def test_claims_of_two_runs_stand_side_by_side(cli, finished, tmp_path):
    path, _ = finished
    shutil.copytree(path, tmp_path / "second")
    shutil.copytree(path, tmp_path / "deep" / "second")
    head = next(
        line
        for line in cli("claims", path, tmp_path / "second").out.splitlines()
        if "source" in line
    )
    assert head.split()[-2:] == ["run", "second"]
    outcome = cli("claims", path, tmp_path / "gone")
    assert (outcome.code, outcome.out) == (2, "")


def test_claims_of_runs_of_the_same_name_can_be_told_apart(cli, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for place in ("a", "b"):
        shutil.copytree(finished[0], tmp_path / place / "run")
    text = words_of(cli("claims", "a/run", "b/run").out)
    assert "a/run b/run" in text
    monkeypatch.chdir(tmp_path / "a" / "run")
    assert cli("claims", ".").code == 0
