"""What a run of the study of starting weights is told, its models and its claims."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mahalens.errors import InputError
from mahalens.init import METHODS
from mahalens.studies.init.claims import claims_for
from mahalens.studies.init.config import ALL_SETS, LARGE_SIZE, SMALL_SETS, InitConfig
from mahalens.studies.init.metrics import METRICS
from mahalens.studies.init.models import FROM_DATA, MODELS, RIVALS, STARTS, read_model
from mahalens.studies.init.presentation import PRESENTATION
from mahalens.studies.init.run import STUDY, pairs
from mahalens.studies.paired.config import name_of

SIDES = ("model", "than", "base", "than_base")


def test_defaults_need_no_download_and_say_what_they_leave_out():
    config = InitConfig.with_defaults()
    assert config.data == SMALL_SETS
    assert config.train_size is None
    assert config.trials == 10
    assert config.deviations() == ["data: without mnist, fashion-mnist"]


def test_the_full_protocol_deviates_in_nothing():
    config = InitConfig.with_defaults(published=True)
    assert config.data == ALL_SETS
    assert config.train_size is None
    assert config.deviations() == []


def test_large_sets_are_cut_by_default():
    config = InitConfig.with_defaults(data=["mnist"])
    assert config.train_size == LARGE_SIZE
    assert f"training samples: {LARGE_SIZE:,} instead of all" in config.deviations()
    assert InitConfig.with_defaults(data=["mnist"], train_size=60_000).train_size == 60_000


def test_all_that_is_scaled_is_said():
    config = replace(
        InitConfig.with_defaults(trials=3, epochs=2, models=["relu-lsuv", "abs-kaiming"]),
        image_rates=(0.01,),
        table_rates=(0.02, 0.5),
        tunings=1,
        start_rows=50,
    )
    assert config.models == ("abs-kaiming", "relu-lsuv")  # in the order of the study
    told = "\n".join(config.deviations())
    for word in (
        "trials: 3",
        "epochs: 2",
        "images: 0.01 ",
        "tables: 0.02, 0.5 ",
        "choose one: 1",
        "start from: 50",
    ):
        assert word in told
    assert "abs-cluster-pca," in told.split("models: without ")[1]


def test_the_full_protocol_on_sets_of_ones_choice():
    config = InitConfig.with_defaults(published=True, data=["mnist"])
    assert (config.data, config.train_size, config.trials) == (("mnist",), None, 10)
    told = config.deviations()
    assert told == ["data: without digits, iris, wine, breast-cancer, fashion-mnist"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"models": ["abs-magic"]}, "abs-magic: unknown"),
        ({"published": True, "trials": 3}, "--published with --trials"),
        ({"trials": 0}, "--trials 0"),
        ({"data": ["iris", "iris"]}, "given twice"),
        ({"models": ["abs-lsuv", "abs-lsuv"]}, "--models: 'abs-lsuv' is given twice; give it once"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, told):
    with pytest.raises(InputError, match=told) as refused:
        InitConfig.with_defaults(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rates", [(0.1, -1.0), (), (float("nan"),)])
@pytest.mark.parametrize("kind", ["image_rates", "table_rates"])
def test_learning_rates_are_positive_numbers(kind, rates):
    with pytest.raises(InputError, match="learning rates of"):
        replace(InitConfig.with_defaults(), **{kind: rates})


def test_models_are_all_starts_with_both_activations():
    assert set(MODELS) == {f"{a}-{s}" for a in ("abs", "relu") for s in STARTS} - {
        "abs-cluster-pca-mirror"
    }
    for model in MODELS:
        activation, start = read_model(model)
        assert activation == {"abs": "Abs", "relu": "ReLU"}[model.split("-")[0]]
        assert start.hidden in METHODS
        assert start.output in METHODS
        assert set(start.options) <= set(METHODS[start.hidden].options)
    # Each start from data differs in its hidden layer alone from one of the usual ones.
    usual = {STARTS[name].output for name in RIVALS}
    assert {STARTS[name].output for name in FROM_DATA} <= usual


def test_everything_has_a_name_a_colour_and_a_metric():
    assert list(PRESENTATION.labels) == list(MODELS)
    assert set(PRESENTATION.colours) == set(PRESENTATION.markers) == set(MODELS)
    looks = {(PRESENTATION.colours[m], PRESENTATION.markers[m]) for m in MODELS}
    assert len(looks) == len(MODELS)
    assert len(set(PRESENTATION.labels.values())) == len(MODELS)
    assert {PRESENTATION.primary, *PRESENTATION.shown, *STUDY.tested} <= set(METRICS)


def test_claims_are_put_to_every_set_about_models_that_are_there():
    config = InitConfig.with_defaults(data=["iris", "wine"])
    claims = claims_for(config)
    assert len({claim.id for claim in claims}) == len(claims)
    known = {name_of(model, part) for model in MODELS for part in ("iris", "wine")}
    for claim in claims:
        study, _, part = claim.id.split("/")
        assert (study, part in ("iris", "wine")) == ("init", True)
        assert claim.data == part
        parts = getattr(claim.predicate, "parts", (claim.predicate,))
        named = {getattr(one, side, None) for one in parts for side in SIDES} - {None}
        assert named <= known
        assert all(name.endswith(f"({part})") for name in named)
        assert {one.metric for one in parts} <= set(METRICS)
    keys = [[c.id.split("/")[1] for c in claims if c.id.endswith(p)] for p in ("iris", "wine")]
    assert keys[0] == keys[1]


def test_every_start_is_tested_against_the_usual_ones():
    found = pairs(InitConfig.with_defaults())
    assert len(set(found)) == len(found)
    for model in MODELS:
        usual = f"{model.split('-')[0]}-kaiming"
        assert ((model, usual) in found) == (model != usual)
    assert {(a, b) for a, b in found if b.endswith("lsuv")} == {
        (f"{activation}-{start}", f"{activation}-lsuv")
        for activation in ("abs", "relu")
        for start in ("whiten", "cluster-pca")
    }
    assert ("relu-cluster-pca", "relu-sample-point") in found
    some = InitConfig.with_defaults(models=["abs-whiten", "relu-whiten", "abs-lsuv"])
    assert pairs(some) == [("abs-whiten", "abs-lsuv")]


def test_files_of_the_user_are_taken_whole():
    assert InitConfig.with_defaults(data=["mine.npz"]).train_size is None
    assert InitConfig.with_defaults(data=["mine.npz", "mnist"]).train_size == 5000
