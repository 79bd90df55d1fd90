"""What a run is told: defaults, what counts as published, and what is refused."""

import msgspec
import pytest

from mahalens.errors import InputError
from mahalens.studies.gaussian.config import MODELS, GaussianConfig

ALL = ("abs", "relu", "sigmoid", "ground-truth")
make = GaussianConfig.with_defaults


@pytest.mark.parametrize(
    ("dim", "epochs", "samples"),
    [
        (1, 10_000, 1_000),
        (2, 10_000, 1_000),
        (3, 50_000, 1_000),
        (10, 50_000, 1_000),
        (11, 250_000, 10_000),
        (100, 250_000, 10_000),
        (101, 250_000, 10_000),
        (2_000, 250_000, 20_000),
    ],
)
def test_defaults_by_dimension(dim, epochs, samples):
    config = make(dim=dim)
    assert (config.dim, config.epochs, config.samples, config.trials) == (dim, epochs, samples, 20)
    assert (config.solver, config.dtype, config.device, config.seed) == (
        "adam",
        "float32",
        "cpu",
        0,
    )
    assert config.models == ALL == tuple(MODELS)
    assert (config.learning_rate, config.betas) == (1e-3, (0.9, 0.99))
    assert config.test_samples == 1_000
    assert config.gaussian is None


def test_two_dimensions_unless_told_otherwise():
    assert make() == make(dim=2)


@pytest.mark.parametrize("dim", [2, 10, 100])
def test_newton_converges_in_float64(dim):
    config = make(dim=dim, solver="newton")
    assert (config.solver, config.dtype, config.epochs, config.trials) == (
        "newton",
        "float64",
        2_000,
        20,
    )
    assert config.samples == make(dim=dim).samples
    assert make(dim=dim, solver="newton", dtype="float32").dtype == "float32"
    assert make(dim=dim, solver="newton", epochs=7).epochs == 7


def test_what_is_given_is_kept():
    given = {
        "dim": 5,
        "trials": 2,
        "epochs": 3,
        "samples": 4,
        "solver": "adam",
        "models": ("relu",),
        "dtype": "float64",
        "device": "meta",
        "seed": 6,
        "gaussian": "mine.json",
    }
    config = make(**given)
    assert {name: getattr(config, name) for name in given} == given


def test_trained_models_keep_their_order_and_leave_the_analytic_one_out():
    assert make(models=("ground-truth", "relu", "abs")).trained_models == ("relu", "abs")
    assert make(models=("ground-truth",)).trained_models == ()


@pytest.mark.parametrize("dim", [2, 10, 100])
def test_the_published_protocol_has_no_deviations(dim):
    assert make(dim=dim).deviations() == []
    assert make(dim=dim, seed=123).deviations() == []
    assert make(dim=dim, device="cuda").deviations() == []  # 000 trained on either


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"trials": 5}, ["trials: 5 instead of 20"]),
        ({"epochs": 100}, ["epochs: 100 instead of 10000"]),
        ({"dim": 10, "epochs": 10_000}, ["epochs: 10000 instead of 50000"]),
        ({"samples": 50}, ["samples: 50 instead of 1000"]),
        ({"dim": 100, "samples": 1_000}, ["samples: 1000 instead of 10000"]),
        ({"dtype": "float64"}, ["dtype: float64 instead of float32"]),
        ({"models": ("abs",)}, ["models: without relu, sigmoid, ground-truth"]),
        ({"dim": 3}, ["dim: 3 instead of 2, 10 or 100"]),
        ({"gaussian": "my.npz"}, ["gaussian: from my.npz instead of drawn as in source 000"]),
        (
            {"solver": "newton"},
            ["solver: newton instead of adam", "dtype: float64 instead of float32"],
        ),
        (
            {"dim": 7, "trials": 1, "epochs": 1},
            ["dim: 7 instead of 2, 10 or 100", "trials: 1 instead of 20"],
        ),
    ],
    ids=str,
)
def test_every_deviation_is_a_sentence(options, wanted):
    assert make(**options).deviations() == wanted


@pytest.mark.parametrize(
    ("name", "value"), [("test_samples", 10), ("learning_rate", 0.1), ("betas", (0.9, 0.999))]
)
def test_what_only_the_library_can_change_is_a_deviation_too(name, value):
    config = msgspec.structs.replace(make(), **{name: value})
    (text,) = config.deviations()
    assert text.startswith(f"{name}: {value} instead of ")


def test_models_in_another_order_are_no_deviation():
    assert make(models=tuple(reversed(ALL))).deviations() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "--dim 0: give a whole number of at least 1"),
        ({"dim": -3}, "--dim -3: give a whole number of at least 1"),
        ({"dim": 10**30}, f"--dim {10**30}: give a whole number of at most {10**12}"),
        ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
        ({"trials": -1}, "--trials -1: give a whole number of at least 1"),
        ({"epochs": 0}, "--epochs 0: give a whole number of at least 1"),
        ({"epochs": 10**30}, f"--epochs {10**30}: give a whole number of at most {10**12}"),
        ({"samples": -5}, "--samples -5: give a whole number of at least 2"),
        ({"samples": 1}, "--samples 1: give a whole number of at least 2"),
        ({"seed": -1}, "--seed -1: give a whole number of at least 0"),
        ({"seed": 2**63}, f"--seed {2**63}: give a whole number of at most {2**63 - 1}"),
        ({"solver": "sgd"}, "--solver sgd: unknown; known: adam, newton"),
        ({"solver": ""}, "--solver : unknown; known: adam, newton"),
        ({"dtype": "half"}, "--dtype half: unknown; known: float32, float64"),
        ({"models": ()}, f"--models is empty: give some of {', '.join(ALL)}"),
        (
            {"models": ("abs", "tanh")},
            f"--models tanh: unknown model; known: {', '.join(ALL)}",
        ),
        ({"models": ("abs", "relu", "abs")}, "--models abs,relu,abs: a model is named twice"),
    ],
    ids=str,
)
def test_refused_in_one_line_that_names_value_and_remedy(options, message):
    with pytest.raises(InputError) as caught:
        make(**options)
    assert str(caught.value) == message


def test_there_and_back_through_json():
    config = make(dim=3, solver="newton", models=("abs",), gaussian="x.json", seed=2**63 - 1)
    there = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(config)))
    assert there["models"] == ["abs"]
    assert msgspec.convert(there, GaussianConfig) == config


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 0},
        {"dim": "2"},
        {"models": ["tanh"]},
        {"solver": "sgd"},
        {"dtype": "half"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_records_that_were_tampered_with_do_not_come_back(change):
    there = {**msgspec.to_builtins(make()), **change}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(there, GaussianConfig)
