"""What the ellipsoid study is told: defaults, what differs from source 002, what is refused."""

import msgspec
import pytest

from mahalens.errors import InputError
from mahalens.studies.ellipsoids.config import METHODS, EllipsoidConfig, split_model
from mahalens.studies.ellipsoids.published import DETAILS, PUBLISHED


def make(**options):
    return EllipsoidConfig.with_defaults(**options)


def test_the_default_is_small_and_says_so():
    config = make()
    assert (config.dim, config.count, config.trials) == (96, 128, 5)
    assert config.ranks == (4, 8, 64)
    assert [d.split(":")[0] for d in config.deviations()] == ["dim", "count", "steps"]


def test_published_is_the_source_and_nothing_deviates():
    config = make(published=True)
    assert (config.dim, config.count, config.steps, config.solver) == (784, 1024, 10_000, "adam")
    assert config.deviations() == []


def test_published_with_another_size_says_what_was_scaled():
    config = make(published=True, count=512, steps=100, noise=0.1, ranks=(4, 8))
    assert config.deviations() == [
        "count: 512 instead of 1024",
        "steps: 100 instead of 10000",
        "noise: 0.1 instead of 0.0",
        "ranks: without 64",
    ]


def test_newton_deviates_by_its_solver_and_not_by_its_steps():
    config = make(published=True, solver="newton")
    assert config.deviations() == ["solver: newton instead of adam"]


def test_leaving_methods_out_is_a_deviation_but_the_extra_one_is_none():
    assert (
        make(published=True, methods=("elliptical", "spherical", "pca-l2", "pca-l1")).deviations()
        == []
    )
    assert make(published=True, methods=("spherical",)).deviations() == [
        "methods: without elliptical, pca-l2, pca-l1"
    ]


def test_models_are_methods_with_their_ranks_in_the_order_of_the_source():
    assert make(ranks=(2, 3), methods=("pca-l1", "elliptical", "pca-l2")).models == (
        "elliptical",
        "pca-l2-2",
        "pca-l2-3",
        "pca-l1-2",
        "pca-l1-3",
    )
    assert [split_model(m) for m in ("remainder-8", "spherical")] == [
        ("remainder", 8),
        ("spherical", None),
    ]


def test_ranks_above_a_small_dimension_are_left_out_by_default():
    assert make(dim=10).ranks == (4, 8)
    assert make(dim=2).ranks == (2,)


def test_what_is_needed_follows_from_the_methods():
    assert not make(methods=("spherical", "pca-l2")).needs_full
    assert make(methods=("spherical",)).largest_rank == 0
    assert make(methods=tuple(METHODS)).largest_rank == 64


def test_data_has_its_own_defaults():
    config = make(data="digits")
    assert config.ranks == (1, 2, 4, 8, 16, 32)
    assert config.clusters == (2, 4)
    assert config.deviations()[0].startswith("data: ")


def test_options_survive_the_record():
    for config in (make(), make(data="digits", clusters=()), make(solver="newton", noise=0.5)):
        record = msgspec.json.decode(msgspec.json.encode(config))
        assert msgspec.convert(record, EllipsoidConfig) == config


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dim": 0}, "--dim 0: give a whole number of at least 1"),
        ({"count": 0}, "--count 0: give a whole number of at least 1"),
        ({"trials": -1}, "--trials -1"),
        ({"steps": 0}, "--steps 0"),
        ({"seed": -1}, "--seed -1"),
        ({"dim": 10**13}, "at most 1000000000000"),
        ({"ranks": (4, 97)}, "--ranks 97: is more than --dim 96"),
        ({"ranks": (0,)}, "--ranks 0: give a whole number of at least 1"),
        ({"ranks": (4, 4)}, "--ranks 4,4: a number is named twice"),
        ({"ranks": ()}, "--ranks is empty"),
        ({"noise": -0.1}, "--noise -0.1: give a number of at least 0"),
        ({"noise": float("nan")}, "--noise nan"),
        ({"methods": ("l3",)}, "--methods l3: unknown; known: elliptical"),
        ({"methods": ()}, "--methods is empty"),
        ({"methods": ("spherical", "spherical")}, "one is named twice"),
        ({"solver": "sgd"}, "--solver sgd: unknown; known: adam, newton"),
        ({"published": True, "data": "digits"}, "leave one of them out"),
        ({"data": "digits", "shrinkage": 1.0}, "--shrinkage 1.0: give a number from 0 to below 1"),
        ({"data": "digits", "train_size": 1}, "--train-size 1"),
        ({"data": "digits", "clusters": (0,)}, "--clusters 0"),
        ({"clusters": (2,)}, "--clusters without --data"),
        ({"train_size": 10}, "--train-size without --data"),
        ({"shrinkage": 0.2}, "--shrinkage without --data"),
    ],
)
def test_bad_options(options, told):
    with pytest.raises(InputError) as error:
        make(**options)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_published_figures_are_those_of_the_source():
    errors = {
        model: value for (metric, model), value in PUBLISHED.items() if metric == "final_error"
    }
    assert errors == {
        "elliptical": 0.161,
        "spherical": 0.628,
        "pca-l2-4": 0.116,
        "pca-l2-8": 0.235,
        "pca-l2-64": 0.074,
        "pca-l1-64": 19.85,
    }
    assert PUBLISHED["seconds", "elliptical"] == 65.1
    assert set(DETAILS) <= set(PUBLISHED)
    assert {model for _, model in PUBLISHED} <= set(make(published=True).models)
