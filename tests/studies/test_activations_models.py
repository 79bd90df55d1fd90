"""The networks of the activations study and its options."""

from __future__ import annotations

import pytest
import torch

from mahalens.errors import InputError
from mahalens.studies.activations.claims import claims_for, pairs_of
from mahalens.studies.activations.config import ActivationsConfig
from mahalens.studies.activations.metrics import METRICS
from mahalens.studies.activations.models import (
    ACTIVATIONS,
    FORMS,
    MODELS,
    ONE_SIDED,
    TWO_SIDED,
    chain_of,
    label_of,
    split,
)
from mahalens.studies.activations.presentation import PRESENTATION
from mahalens.studies.activations.run import STUDY, published
from mahalens.studies.representation.models import PRIMARY
from mahalens.studies.representation.models import chain_of as chain_of_003


def made(**options):
    return ActivationsConfig.with_defaults(**options)


def models_in(predicate):
    """Every model that a predicate speaks of."""
    found = {getattr(predicate, name, None) for name in ("model", "than")}
    inner = [*getattr(predicate, "parts", ())]
    inner += [getattr(predicate, name) for name in ("first", "second") if hasattr(predicate, name)]
    return {name for name in found if name}.union(*(models_in(part) for part in inner))


class TestNetworks:
    def test_there_are_three_forms_of_seven_activations(self):
        assert len(MODELS) == 21
        assert {split(model) for model in MODELS} == {(a, f) for a in ACTIVATIONS for f in FORMS}
        for model in MODELS:
            assert "".join(split(model)) == model

    def test_the_references_are_the_six_of_003(self):
        assert set(PRIMARY) <= set(MODELS)
        for model in PRIMARY:
            assert chain_of(model, 784, 10) == chain_of_003(model, 784, 10)

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_the_forms_are_made_of_the_same_layers(self, name):
        free, held, far = (str(chain_of(f"{name}{form}", 8, 3, 4)) for form in FORMS)
        kind = ACTIVATIONS[name]
        assert free == f"Linear(4), {kind}, Linear(3, bias=False)"
        assert held == f"{free}, {kind}"
        assert far == f"{held}, Neg"

    def test_the_sides_of_activations(self):
        assert {*ONE_SIDED, *TWO_SIDED} == set(ACTIVATIONS)
        for name, kind in ACTIVATIONS.items():
            function = getattr(torch.nn, kind, None) or torch.nn.Identity
            below = function()(torch.tensor(-30.0))
            assert (abs(float(below)) < 1e-6) == (name in ONE_SIDED)

    def test_every_network_is_shown(self):
        assert tuple(PRESENTATION.labels) == tuple(PRESENTATION.colours) == tuple(MODELS)
        looks = {(PRESENTATION.colours[m], PRESENTATION.markers.get(m, "o")) for m in MODELS}
        assert len(looks) == len(MODELS)
        assert set(PRESENTATION.shown) <= set(METRICS)
        assert label_of("gelu2-neg") == "GELU2-Neg"


class TestOptions:
    def test_by_default_digits(self):
        config = made()
        assert config.data == ("digits",)
        assert (config.trials, config.epochs, config.train_size) == (10, 2_000, None)
        assert (config.pixels, config.solver, config.learning_rate) == ("normalized", "sgd", 1e-3)
        assert config.models == tuple(MODELS)

    def test_less_of_large_sets(self):
        config = made(data=["digits", "mnist"])
        assert (config.trials, config.epochs, config.train_size) == (10, 1_000, 5_000)
        config = made(data=["mnist"], epochs=7, train_size=60, trials=2)
        assert (config.trials, config.epochs, config.train_size) == (2, 7, 60)

    @pytest.mark.parametrize("pixels", ["normalized", "raw"])
    def test_the_full_protocol(self, pixels):
        config = made(published=True, pixels=pixels)
        assert config.data == ("mnist",)
        assert (config.trials, config.epochs, config.train_size) == (20, 5_000, None)
        assert config.deviations() == []

    def test_what_is_scaled_is_said(self):
        config = made(data=["mnist"], solver="adam", models=["relu", "gelu"])
        told = config.deviations()
        assert told[0] == "training samples: 5,000 instead of all"
        assert "epochs: 1,000 instead of 5,000" in told
        assert "solver: adam instead of sgd" in told
        assert told[-1].startswith("models: without relu2, relu2-neg, abs,")
        assert "data: digits instead of mnist" in made().deviations()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"models": ["gelu3"]}, "--models gelu3: unknown; give some of relu, relu2, relu2-neg"),
            ({"pixels": "both"}, "--pixels both: unknown; give one of normalized, raw"),
            ({"solver": "newton"}, "--solver newton: unknown; give one of sgd, adam"),
            ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
            ({"data": []}, "--data: names nothing; give at least one"),
            ({"published": True, "trials": 3}, "--published with --trials 3: the full"),
            ({"published": True, "data": ["digits"]}, "--published with --data digits: source"),
            ({"published": True, "solver": "adam"}, "--published with --solver adam: source 003"),
        ],
    )
    def test_bad_options(self, options, message):
        with pytest.raises(InputError, match=message):
            made(**options)


class TestClaims:
    def test_they_are_put_to_every_data_set(self):
        config = made(data=["digits", "mnist"])
        claims = claims_for(config)
        assert len({claim.id for claim in claims}) == len(claims)
        for claim in claims:
            study, _, part = claim.id.split("/")
            assert study == "activations"
            assert part in ("digits", "mnist")
            assert claim.data == part
            assert claim.source in ("003", "004", "here")
            named = models_in(claim.predicate)
            assert named
            assert named <= {f"{model} ({part})" for model in MODELS}

    def test_every_activation_is_asked_about(self):
        ids = {claim.id for claim in claims_for(made())}
        for name in ACTIVATIONS:
            for key in ("intensities-cost", "distances-no-worse", "distances-equal-free"):
                assert f"activations/{name}-{key}/digits" in ids

    def test_pairs(self):
        pairs = pairs_of(made())
        assert len(set(pairs)) == len(pairs)
        assert ("gelu2", "gelu") in pairs
        assert ("abs2-neg", "relu2-neg") in pairs
        assert all(a in MODELS and b in MODELS and a != b for a, b in pairs)

    def test_published_figures_are_those_of_003(self):
        assert published("test_accuracy", "relu2", "mnist").mean == 47.20
        assert published("test_accuracy", "relu2", "digits") is None
        assert published("test_accuracy", "gelu2", "mnist") is None
        assert STUDY.published is published
