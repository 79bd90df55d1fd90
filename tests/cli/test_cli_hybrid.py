"""``mahalens run hybrid`` as a user meets it."""

import json

import pytest

SMALL = ("--data", "iris", "--models", "narrow-0,narrow-100", "--trials", "2", "--epochs", "2")


def test_a_small_run(cli, tmp_path):
    done = cli("run", "hybrid", *SMALL, "--workers", "1", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["study"] == "hybrid"
    assert (tmp_path / "run" / "report.html").exists()
    names = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert names == {"shares", "compared", "progress"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--models", "abs-33"), "--models abs-33: unknown; give some of abs-0"),
        (("--hidden", "12"), "--hidden 12: give 8 or a multiple of it"),
        (("--narrow", "2"), "--narrow 2: give 4 or a multiple of it"),
        (("--trials", "0"), "--trials 0: give a whole number of at least 1"),
        (("--published", "--epochs", "3"), "--published with --epochs 3"),
        (("--data", "no-such-set"), "no-such-set"),
        (("--workers", "0"), "--workers 0"),
    ],
)
def test_bad_input_is_one_line(cli, tmp_path, options, words):
    done = cli("run", "hybrid", *options, "--out", tmp_path / "run")
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_models_are_listed(cli):
    listed = cli("list").out
    assert "Models of hybrid:" in listed
    assert "half of the units Abs, the others ReLU" in listed
