"""``mahalens run STUDY``: flags made from the options of a study, and what it refuses."""

import json
import sys
import time

import pytest

from mahalens.cli.run import read_time
from mahalens.errors import InputError
from mahalens.studies.registry import STUDIES, load_study

LENGTH = {"ellipsoids": "--steps", "detect": "--resamples"}


def words_of(text):
    return " ".join(text.split())


# --- Flags ------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES)
def test_help_explains_every_option_with_its_default(cli, study):
    outcome = cli("run", study, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    text, value = words_of(outcome.out), load_study(study)
    assert value.question in text
    for name, option in value.config.options().items():
        if option.flag:
            flag = f"--{option.named or name.replace('_', '-')} "
            _, _, rest = text.partition(flag)
            assert words_of(option.help).replace("STUDY", study) in rest, name
            assert not option.shown or f"[default: {option.shown}]" in rest, name
    assert f"--published The {value.protocol} protocol: " in text
    for flag in ("--executor processes|dask", "--workers", "--scheduler", "--out", "--force"):
        assert f" {flag} " in text
    assert "--resume" not in text


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ("gaussian", "--solver adam|newton Adam as published, or second order. [default: adam]"),
        ("gaussian", "--models abs,relu,sigmoid,ground-truth Models, see `mahalens list gaussian`"),
        ("gaussian", "The published protocol: the defaults."),
        ("ellipsoids", "--ranks n,n,... Components kept. [default: 4,8,64; with --data: 1,2,4,"),
        ("perturbation", "--from DIR Take the trained networks of a finished representation run."),
        ("representation", "data mnist; models relu, abs, relu2, abs2, relu2-neg, abs2-neg; "),
        ("representation", "--depth INTEGER Hidden layers, each of --hidden units. [default: 1]"),
        ("hybrid", "--models a,b,... Models, see `mahalens list hybrid`. [default: all but"),
        ("hybrid", "models all; trials 20; epochs 100; train-size all."),
    ],
)
def test_help_of_some_flags(cli, study, words):
    assert words in words_of(cli("run", study, "--help").out)


@pytest.fixture
def started(cli, tmp_path, monkeypatch):
    """Return the configuration and the place to compute of a command, without computing."""
    seen = []

    def start(study, config, out, **rest):
        seen.append((config, rest))
        raise InputError("seen")

    monkeypatch.setattr("mahalens.studies.run.start", start)

    def run(*words):
        outcome = cli("run", *words, "--out", tmp_path / "run")
        assert outcome.err == "mahalens: seen\n"
        return seen.pop()

    return run


@pytest.mark.parametrize(
    ("study", "words", "options"),
    [
        ("gaussian", "--solver newton", {"dtype": "float64", "epochs": 2000}),
        ("gaussian", "--dim 3 --models relu,,abs,", {"dim": 3, "models": ("abs", "relu")}),
        ("ellipsoids", "--ranks 2,4 --noise 0.5", {"ranks": (2, 4), "noise": 0.5}),
        ("ellipsoids", "--data digits --clusters 3", {"data": "digits", "clusters": (3,)}),
        ("representation", "--models relu --bias both", {"models": ("relu", "relu-bias")}),
        ("representation", "--pixels both", {"pixels": ("normalised", "raw")}),
        ("representation", "--nodes 3,5 --hidden 6", {"nodes": (3, 5), "hidden": 6}),
        ("representation", "--executor dask", {"trials": 20, "group": 5}),
        ("perturbation", "--data digits", {"data": "digits", "epochs": 2000, "networks": None}),
        ("activations", "--data a.npz,iris", {"data": ("a.npz", "iris"), "solver": "sgd"}),
        ("init", "--data mnist", {"data": ("mnist",), "train_size": 5000}),
        ("init", "--data mnist --train-size all", {"train_size": None}),
        ("perturbation", "--published --train-size all", {"train_size": None, "trials": 20}),
        ("hybrid", "--budget 1h30m", {"budget": 5400.0}),
        ("hybrid", "--tensorboard --device meta", {"tensorboard": True, "device": "meta"}),
        ("hybrid", "", {"tensorboard": False, "device": "cpu", "seed": 0, "budget": None}),
        ("heads", "--reject-rate 0.1 --seed 7", {"reject_rate": 0.1, "seed": 7}),
        ("transfer", "--data tables", {"data": ("iris", "wine", "breast-cancer", "digits")}),
        ("ellipsoids", "--published", {"dim": 784, "count": 1024, "steps": 10_000}),
    ],
)
def test_flags_become_options(started, study, words, options):
    config, _ = started(study, *words.split())
    assert {name: getattr(config, name) for name in options} == options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("20m", 1200), ("2H", 7200), ("1h30m", 5400), ("0.5m", 30)],
)
def test_times(text, seconds):
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-5m", "1e9", "5d", "inf", "nan", "0m"])
def test_no_times(text):
    with pytest.raises(InputError, match="give a time such as"):
        read_time(text)


def test_the_executor_is_handed_on(started):
    _, rest = started("hybrid", "--executor", "dask", "--scheduler", "tcp://x:1", "--force")
    assert rest["force"]
    assert {name: rest[name] for name in ("executor", "scheduler", "workers")} == {
        "executor": "dask",
        "scheduler": "tcp://x:1",
        "workers": None,
    }
    assert started("hybrid", "--workers", 2)[1]["workers"] == 2


# --- Runs -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_a_small_run_of_every_study_with_its_report(cli, study_words, tmp_path, study):
    words = (*study_words[study].split(), LENGTH.get(study, "--epochs"), "2")
    path = tmp_path / "run"
    outcome = cli("run", study, *words, "--workers", 1, "--out", path)
    assert outcome.code == 0, outcome.err
    assert load_study(study).question in (path / "report.html").read_text()
    assert list((path / "figures").glob("*.png"))
    assert outcome.out.startswith(f"{load_study(study).question}\n")
    assert "Results" in outcome.out
    *_, report = outcome.out.partition(f"report: {path / 'report.html'}\n")
    assert report.startswith("On ") if load_study(study).advice else not report
    assert cli("claims", path).code == 0


@pytest.mark.usefixtures("no_report")
def test_verdicts_that_fail_a_run(cli, fails, study_words, tmp_path):
    path = tmp_path / "run"
    words = (*study_words["hybrid"].split(), "--epochs", "2", "--workers", 1, "--out", path)
    outcome = cli("run", "hybrid", *words, "--fail-on", "fails,not measured")
    claims = json.loads((path / "summary.json").read_text())["claims"]
    met = [claim for claim in claims if claim["verdict"] in ("fails", "not measured")]
    phrase = {"fails": "fails", "not measured": "was not measured"}[met[0]["verdict"]]
    assert outcome.code == 1
    first = f"--fail-on fails,not measured: {met[0]['id']} {phrase}"
    assert outcome.err.endswith(f"mahalens: {first}, and {len(met) - 1} more\n")
    assert "report: " in outcome.out  # the run itself is done
    for verdict in ("fails", "undecided", "not measured"):
        expected = int(any(claim["verdict"] == verdict for claim in claims))
        assert cli("run", "--resume", path, "--quiet", "--fail-on", verdict).code == expected
        words = ("pool", path, "--out", tmp_path / verdict, "--quiet", "--fail-on", verdict)
        assert cli(*words).code == expected
    wanted = "is not a list of fails, undecided, not measured"
    assert wanted in fails("run", "--resume", path, "--fail-on", "holds")
    assert wanted in fails("run", "gaussian", "--out", "other", "--fail-on=")
    assert "--fail-on before a study" in fails("run", "--fail-on", "fails", "gaussian")


@pytest.mark.slow
def test_runs_are_pooled_with_a_report(cli, study_words, tmp_path):
    for seed in ("0", "1"):
        words = (*study_words["init"].split(), "--epochs", "2", "--seed", seed, "--workers", 1)
        assert cli("run", "init", *words, "--quiet", "--out", tmp_path / seed).code == 0
    outcome = cli("pool", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "both")
    assert (outcome.code, outcome.err.count("Traceback")) == (0, 0)
    assert outcome.out.rstrip().endswith(str(tmp_path / "both" / "report.html"))
    config = json.loads((tmp_path / "both" / "config.json").read_text())
    assert [piece["seed"] for piece in config["pooled"]] == [0, 1]
    assert cli("run", "--resume", tmp_path / "both", "--quiet").code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_networks_of_a_representation_run(cli, make_run, tmp_path):
    words = "--data digits --train-size 60 --trials 2 --epochs 12"
    networks = make_run("representation", f"{words} --models relu-bias,abs-bias --pixels raw")
    trained = make_run("perturbation", words)
    outcome = cli("run", "perturbation", "--from", networks, "--quiet", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "run" / "trials.csv").read_bytes() == (trained / "trials.csv").read_bytes()


def test_a_run_that_is_slow_to_read_says_so_first(cli, tmp_path, monkeypatch):
    def start(*rest, **more):
        time.sleep(0.4)
        raise InputError("read at last")

    monkeypatch.setattr("mahalens.studies.run.start", start)
    monkeypatch.setattr(sys.modules["mahalens.cli.run"], "SILENCE", 0.1)
    last, data = "mahalens: read at last\n", ("--data", "a\x1b[1mb.npz")
    for words, first in (
        (("gaussian",), "gaussian: starting\n"),
        (("representation", *data), "representation: reading a\\x1b[1mb.npz\n"),
        (("representation", *data, "--quiet"), ""),
        (("--quiet", "representation", *data), ""),
    ):
        assert cli("run", *words, "--out", tmp_path / "run").err == first + last


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: ...")]
)
def test_an_allocation_that_fails_is_one_line(fails, monkeypatch, error):
    def start(*rest, **more):
        raise error

    monkeypatch.setattr("mahalens.studies.run.start", start)
    line = fails("run", "gaussian", "--out", "run")
    assert line.startswith("this takes more memory than there is; give fewer")


# --- Refusals ---------------------------------------------------------------------------------

REFUSALS = [  # tests/studies has those of single options and of data
    ("gaussian", "--dim two", "'--dim': 'two' is not a valid integer"),
    ("hybrid", "--train-size some", "'some' is neither a whole number nor all"),
    ("gaussian", "--trials 2.5", "'2.5' is not a valid integer"),
    ("gaussian", "--trials", "'--trials': '--out' is not a valid integer"),
    ("gaussian", "--models abs,tanh", "--models tanh: unknown; give abs, relu, sigmoid, ground"),
    ("gaussian", "--models ,", "--models is empty: give some of abs, relu"),
    ("gaussian", "--device meta", "--device meta: cannot be used here"),
    ("gaussian", "--colour red", "No such option"),
    ("gaussian", "stray", "unexpected extra argument"),
    ("ellipsoids", "--ranks four", "'four' is not a list of whole numbers such as 4,8,64"),
    ("ellipsoids", "--ranks ,", "--ranks is empty: give some, or leave it out"),
    ("ellipsoids", "--count 1000000 --dim 784", "leave out the full distance"),
    ("perturbation", "--from nowhere", "nowhere: there is no such folder"),
    ("hybrid", "--budget soon", "--budget soon: give a time such as 90s, 20m"),
    ("hybrid", "--published --trials 3", "--published with --trials 3"),
    ("transfer", "--data gunpoint", "mahalens data fetch sequences"),
    ("heads", "--data mnist", "mahalens data fetch mnist"),
]


@pytest.mark.parametrize(
    ("study", "words", "message"), REFUSALS, ids=[f"{s} {w[:40]}" for s, w, _ in REFUSALS]
)
def test_refusals(fails, monkeypatch, tmp_path, study, words, message):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path))  # without Debian's packages of data sets
    assert message in fails("run", study, *words.split(), "--out", "run")


@pytest.mark.parametrize("study", STUDIES)
def test_resume_goes_in_place_of_a_study(fails, study):
    message = "--resume goes in place of a study: mahalens run --resume runs/x"
    assert message in fails("run", study, "--resume", "runs/x", "--out", "run")
