"""What a run of the transfer study is told, and what it claims."""

from __future__ import annotations

import pytest

from mahalens.data import places
from mahalens.data.problems import SEQUENCES
from mahalens.errors import InputError
from mahalens.nn import OffsetL2
from mahalens.studies.claims import Every
from mahalens.studies.paired.config import name_of
from mahalens.studies.transfer.claims import claims_for, pairs_of
from mahalens.studies.transfer.config import (
    FULL_DATA,
    SMALL_SEQUENCES,
    TABLE_SETS,
    TransferConfig,
    models_on,
)
from mahalens.studies.transfer.metrics import METRICS
from mahalens.studies.transfer.models import ALL, DEFAULT, MODELS, NETWORKS, chain_of
from mahalens.studies.transfer.presentation import PRESENTATION


def made(**given):
    return TransferConfig.with_defaults(**given)


@pytest.fixture
def without_sequences(monkeypatch, tmp_path):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path))
    monkeypatch.setattr(places, "find_spec", lambda name: None)


class TestDefaults:
    def test_sequences_that_are_not_here_are_left_out_and_told(self, without_sequences):
        config = made()
        assert config.data == TABLE_SETS
        wanted = "sequences are not on this machine; get them with: mahalens data fetch sequences"
        assert config.without == wanted
        assert wanted in config.deviations()

    def test_sequences_that_are_here(self, monkeypatch):
        monkeypatch.setattr(places, "find_problem", lambda name: {})
        config = made()
        assert config.data == (*TABLE_SETS, *SMALL_SEQUENCES)
        assert config.without is None
        assert config.models == DEFAULT
        assert config.deviations() == [
            "7 of 12 data sets (without basic-motions, japanese-vowels, osuleaf, pickup-gesture, "
            "acsf1)",
            "14 of 21 models",
            "trials: 10 instead of 30",
        ]

    def test_the_full_protocol(self):
        config = made(published=True)
        assert (config.data, config.models, config.trials) == (FULL_DATA, ALL, 30)
        assert config.deviations() == []
        assert made(published=True, models=["knn"]).models == ("knn",)
        some = made(published=True, data=["tables"])
        assert (some.data, some.trials) == (made(data=["tables"]).data, 30)
        assert some.models == config.models
        assert some.deviations() == ["4 of 12 data sets"]

    def test_groups_and_files(self):
        assert made(data=["tables"]).data == TABLE_SETS
        assert made(data=["sequences", "wine"]).data == (*SEQUENCES, "wine")
        told = made(data=["mine.npz"], train_size=20).deviations()
        assert "0 of 12 data sets" in told
        assert "data sets besides: mine.npz" in told
        assert "training samples: 20 instead of all" in told

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"models": ["relu"]}, "--models relu: unknown; give some of relu-linear, relu-l2, "),
            ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
            ({"data": []}, "--data: names nothing"),
            ({"data": ["wine", "wine"]}, "--data: 'wine' is given twice"),
            ({"data": ["tables", "wine"]}, "--data: 'wine' is given twice"),
            ({"models": ["dtw"], "data": ["wine"]}, "--models dtw: these are for sequences, and"),
            (
                {"published": True, "trials": 3},
                "--published with --trials 3: the full protocol has",
            ),
        ],
    )
    def test_bad_input(self, given, words):
        with pytest.raises(InputError) as error:
            made(**given)
        assert str(error.value).startswith(words)
        assert "\n" not in str(error.value)


class TestModels:
    def test_names_say_what_they_are(self):
        for name in NETWORKS:
            layers = list(chain_of(name, 5, 3, 4).build())
            assert isinstance(layers[-2 if "neg" in name else -1], OffsetL2) == ("l2" in name)
            heads = [layer for layer in layers if isinstance(layer, OffsetL2)]
            assert [head.variant for head in heads] == (
                [] if "l2" not in name else ["published-code" if "code" in name else "paper"]
            )
            assert (type(layers[-1]).__name__ == "Neg") == ("neg" in name)
            hidden = type(layers[1]).__name__ if len(layers) > 1 else ""
            assert {"relu": "ReLU", "abs": "Abs"}.get(name.split("-")[0], hidden) == hidden
        with pytest.raises(InputError, match="unknown network 'knn'"):
            chain_of("knn", 5, 3, 4)

    def test_all_are_described_and_can_be_told_apart(self):
        assert set(MODELS) == set(ALL) == set(PRESENTATION.labels)
        looks = {(PRESENTATION.colours[m], PRESENTATION.markers.get(m)) for m in ALL}
        assert len(looks) == len(ALL)
        assert len(set(PRESENTATION.labels.values())) == len(ALL)
        assert set(PRESENTATION.shown) <= set(METRICS)

    def test_sequences_have_models_of_their_own(self):
        config = made(data=["wine", "gunpoint"])
        assert set(models_on(config, "gunpoint")) - set(models_on(config, "wine")) == {
            "kernels-linear",
            "kernels-l2",
            "kernels-l2-neg",
            "dtw",
        }


class TestClaims:
    def test_on_each_set(self):
        claims = {claim.id: claim for claim in claims_for(made(data=["wine", "gunpoint"]))}
        one = claims["transfer/relu-l2-neg-keeps-up-with-relu-linear/wine"]
        assert one.statement == "ReLU-L2-Neg loses less than 2 points against ReLU-Linear."
        assert (one.predicate.model, one.predicate.than) == (
            name_of("relu-l2-neg", "wine"),
            name_of("relu-linear", "wine"),
        )
        assert (one.predicate.side, one.predicate.bound) == ("above", -2)
        assert "transfer/kernels-l2-neg-keeps-up-with-dtw/gunpoint" in claims
        assert "transfer/kernels-l2-neg-keeps-up-with-dtw/wine" not in claims

    def test_over_all_sets_of_a_kind(self):
        claims = {claim.id: claim for claim in claims_for(made(data=["wine", "iris", "gunpoint"]))}
        tables = claims["transfer/keeps-up-tables"].predicate
        assert isinstance(tables, Every)
        assert [p.model for p in tables.parts] == ["relu-l2-neg (wine)", "relu-l2-neg (iris)"]
        assert len(claims["transfer/keeps-up-sequences"].predicate.parts) == 1
        falls = claims["transfer/no-collapse"].predicate.parts
        assert ("kernels-l2 (gunpoint)", "kernels-linear (gunpoint)") in [
            (p.model, p.than) for p in falls
        ]
        assert not any("kernels" in p.model and "wine" in p.model for p in falls)

    def test_without_sequences_or_heads(self):
        claims = claims_for(made(data=["wine"], models=["relu-linear", "knn"]))
        ids = [claim.id for claim in claims]
        assert "transfer/no-collapse" not in ids
        assert not [one for one in ids if "sequences" in one or "kernels" in one]

    def test_pairs_are_of_models_that_are_there(self):
        pairs = pairs_of(made(data=["wine"]))
        assert ("relu-l2-neg", "relu-linear") in pairs
        assert ("relu-l2-neg", "boosting") in pairs
        assert len(set(pairs)) == len(pairs)
        assert {name for pair in pairs for name in pair} <= set(DEFAULT)
        assert ("relu-l2-neg-code", "relu-l2-neg") in pairs_of(made(data=["wine"], models=ALL))
