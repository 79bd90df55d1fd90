"""Options of the representation study: defaults, what is refused, what is called scaled."""

import msgspec
import pytest

from mahalens.errors import InputError
from mahalens.studies.representation.config import (
    LONG_EPOCHS,
    RepresentationConfig,
    read_time,
)
from mahalens.studies.representation.models import MODELS, PRIMARY
from mahalens.studies.representation.published import published_figure

make = RepresentationConfig.with_defaults


def test_defaults_are_the_published_protocol_on_digits():
    config = make()
    assert config.data == "digits"
    assert set(config.models) == set(MODELS)
    assert config.pixels == ("normalized", "raw")
    assert (config.epochs, config.trials, config.hidden, config.learning_rate) == (
        5_000,
        20,
        128,
        1e-3,
    )
    assert config.group == 20
    assert config.deviations() == ["data: digits instead of mnist"]


def test_published_is_published():
    config = make(published=True)
    assert config.data == "mnist"
    assert config.train_size is None
    assert config.deviations() == []
    assert make(published=True, epochs=LONG_EPOCHS).deviations() == []


def test_what_differs_is_said():
    config = make(data="mnist", trials=5, epochs=1500, train_size=5000, models=("relu", "abs"))
    assert config.deviations() == [
        "training samples: 5,000 instead of all",
        "epochs: 1,500 instead of 5,000",
        "trials: 5 instead of 20",
        "models: without relu2, abs2, relu2-neg, abs2-neg",
    ]


def test_named_models_are_taken_as_named_and_all_comes_with_both_forms_of_bias():
    assert make(models=PRIMARY).models == PRIMARY
    assert "relu-bias" in make(models=("all",)).models
    assert "relu-bias" not in make(models=("all",), bias="no").models


def test_groups_of_a_cluster_are_small():
    assert make(engine="dask").group == 5
    assert make(engine="dask", trials=3).group == 3
    assert make(engine="dask", group=7).group == 7


def test_options_survive_being_written():
    config = make(trials=3, nodes=(1, 2), budget="5m")
    assert msgspec.convert(msgspec.to_builtins(config), RepresentationConfig) == config


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
        ({"epochs": 0}, "--epochs 0: give"),
        ({"train_size": 1}, "--train-size 1: give"),
        ({"seed": -1}, "--seed -1: give"),
        ({"pixels": "grey"}, "--pixels grey: give normalized, raw or both"),
        ({"engine": "ray"}, "--engine ray: unknown; known: local, dask"),
        ({"scheduler": "tcp://x"}, "--scheduler without --engine dask"),
        ({"nodes": (128,)}, "--nodes 128: give a whole number of at most 127"),
        ({"budget": "soon"}, "--budget soon: give a time such as 90s"),
        ({"budget": "0m"}, "--budget 0m: give a time"),
        ({"published": True, "trials": 3}, "--published with --trials 3"),
        ({"published": True, "epochs": 7}, "--published with --epochs 7"),
        ({"published": True, "data": "fashion-mnist"}, "--published with --data fashion-mnist"),
        ({"published": True, "data": "digits"}, "--published with --data digits"),
        ({"group": 0}, "--group 0: give"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, said):
    with pytest.raises(InputError) as caught:
        make(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("20m", 1200), ("2H", 7200), ("1h30m", 5400), ("0.5m", 30)],
)
def test_times(text, seconds):
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-5m", "1e9", "5d", "inf", "nan"])
def test_no_times(text):
    with pytest.raises(InputError, match="give a time such as"):
        read_time(text)


def test_tensorboard_that_is_missing(monkeypatch):
    monkeypatch.setattr("mahalens.studies.representation.config.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'mahalens\[tensorboard\]'"):
        make(tensorboard=True)


def test_published_figures_are_those_of_the_right_table():
    def mean(model, epochs=5000, data="mnist"):
        figure = published_figure("test_accuracy", model, data, epochs)
        return None if figure is None else figure.mean

    assert mean("relu2") == 47.20
    assert mean("relu2", 1500) == 47.20
    assert mean("relu2-bias") == 39.94
    assert mean("relu2-bias", LONG_EPOCHS) == 56.31
    assert mean("relu2-neg", LONG_EPOCHS) == 96.46
    assert mean("abs-l2") == mean("abs-l2-code") == 97.61
    assert mean("linear-l2") is None
    assert mean("relu-point") is None
    assert mean("relu", data="digits") is None
    assert published_figure("dead_outputs", "relu2", "mnist", 5000).mean == 33.0
