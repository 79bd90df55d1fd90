"""The hybrid study: its models, options, claims and how they are shown."""

import re

import pytest

from mahalens.errors import InputError
from mahalens.studies.hybrid.claims import claims_for, pairs_of
from mahalens.studies.hybrid.config import (
    DEFAULT_MODELS,
    FULL_DATA,
    HybridConfig,
    trials_at_once,
)
from mahalens.studies.hybrid.mixtures import MIXTURES, MODELS, REFERENCE
from mahalens.studies.hybrid.presentation import PRESENTATION
from mahalens.studies.paired.config import name_of


class TestModels:
    def test_from_none_to_all_in_both_widths(self):
        shares = {}
        for mixture in MIXTURES.values():
            if mixture.share is not None and mixture.times == 1:
                shares.setdefault(mixture.family, []).append(mixture.share)
        assert shares["wide"] == [0, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 1]
        assert shares["narrow"] == [0, 1 / 4, 1 / 2, 3 / 4, 1]

    @pytest.mark.parametrize("name", MIXTURES)
    def test_names_say_their_share(self, name):
        mixture = MIXTURES[name]
        number = re.fullmatch(r"(?:abs|narrow)-(\d+)", name)
        if number:
            assert int(number[1]) == round(100 * mixture.share)
        assert mixture.family == ("narrow" if name.startswith("narrow") else "wide")

    @pytest.mark.parametrize("units", [8, 32, 128])
    def test_shares_are_whole_units(self, units):
        for mixture in MIXTURES.values():
            if mixture.share is not None:
                assert mixture.absolute(units) == mixture.share * units

    def test_widths(self):
        config = HybridConfig.with_defaults()
        assert [config.units("abs-50", image) for image in (True, False)] == [128, 32]
        assert [config.units("narrow-50", image) for image in (True, False)] == [4, 4]
        assert config.units("narrow-double", True) == 8
        other = HybridConfig.with_defaults(hidden=16, narrow=8)
        assert [other.units(m, True) for m in ("abs-0", "narrow-0", "narrow-double")] == [16, 8, 16]

    def test_the_references_have_relu_units_alone(self):
        assert [MIXTURES[name].share for name in REFERENCE.values()] == [0.0, 0.0]
        assert [MIXTURES[name].family for name in REFERENCE.values()] == list(REFERENCE)

    def test_every_model_is_listed_and_shown(self):
        assert list(MODELS) == list(MIXTURES) == list(PRESENTATION.labels)
        assert len(set(PRESENTATION.labels.values())) == len(MIXTURES)
        looks = [(PRESENTATION.colours[m], PRESENTATION.markers.get(m, "o")) for m in MIXTURES]
        assert len(set(looks)) == len(MIXTURES)
        assert PRESENTATION.colours["abs-0"] == "#0072B2"
        assert PRESENTATION.colours["narrow-100"] == "#D55E00"


class TestDefaults:
    def test_without_options(self):
        config = HybridConfig.with_defaults()
        assert config.data == ("digits", "iris", "wine", "breast-cancer")
        assert config.models == DEFAULT_MODELS
        assert (config.trials, config.epochs, config.train_size) == (20, 100, None)
        assert {m for m in MIXTURES if m not in config.models} == {"learned", "narrow-learned"}

    @pytest.mark.parametrize("data", ["mnist", "fashion-mnist", "cifar10"])
    def test_less_of_large_sets(self, data):
        config = HybridConfig.with_defaults(data=["iris", data])
        assert (config.trials, config.epochs, config.train_size) == (10, 20, 5_000)
        own = HybridConfig.with_defaults(data=[data], trials=3, epochs=4, train_size=100)
        assert (own.trials, own.epochs, own.train_size) == (3, 4, 100)

    def test_the_full_protocol_deviates_in_nothing(self):
        config = HybridConfig.with_defaults(published=True)
        assert config.data == FULL_DATA
        assert config.models == tuple(MIXTURES)
        assert config.deviations() == []

    def test_what_deviates_is_said(self):
        config = HybridConfig.with_defaults(
            data=["digits"], models=["abs-0"], trials=3, epochs=7, train_size=1000, hidden=8,
            narrow=8,
        )  # fmt: skip
        said = config.deviations()
        assert said[0] == f"data: digits instead of {', '.join(FULL_DATA)}"
        assert said[1:6] == [
            "training samples: at most 1,000 instead of all",
            "epochs: 7 instead of 100",
            "trials: 3 instead of 20",
            "units of wide layers: 8 instead of as usual",
            "units of narrow layers: 8 instead of 4",
        ]
        assert said[6].startswith("models: without abs-12, abs-25")
        assert len(said) == 7

    def test_models_come_in_the_order_of_the_study(self):
        config = HybridConfig.with_defaults(models=["narrow-0", "abs-100", "abs-0"])
        assert config.models == ("abs-0", "abs-100", "narrow-0")

    def test_samples_that_may_fill_the_memory_come_one_trial_at_a_time(self):
        sets = ("digits", "wine", "mnist", "mine.npz")
        assert [trials_at_once(data) for data in sets] == [4, 4, 1, 1]


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"models": ["abs-33"]}, "--models abs-33: unknown; give some of abs-0, abs-12"),
            ({"hidden": 12}, "--hidden 12: give 8 or a multiple of it, so that shares are whole"),
            ({"hidden": 0}, "--hidden 0: give 8 or a multiple of it"),
            ({"hidden": -8}, "--hidden -8: give 8 or a multiple of it"),
            ({"narrow": 6}, "--narrow 6: give 4 or a multiple of it"),
            ({"narrow": 0}, "--narrow 0: give 4 or a multiple of it"),
            ({"narrow": 10**9}, "--narrow 1000000000: give a whole number of at most 100000"),
            ({"trials": 0}, "--trials 0: give a whole number of at least 1"),
            ({"published": True, "trials": 3}, "--published with --trials 3: the full protocol"),
            ({"published": True, "train_size": 9}, "--published with --train-size 9: the full"),
        ],
    )
    def test_bad_options(self, options, words):
        with pytest.raises(InputError, match=f"^{re.escape(words)}") as caught:
            HybridConfig.with_defaults(**options)
        assert "\n" not in str(caught.value)


class TestClaims:
    config = HybridConfig.with_defaults(data=["digits", "iris"])

    def test_each_is_put_to_every_set(self):
        claims = claims_for(self.config)
        keys = [claim.id.split("/") for claim in claims]
        assert {start for start, _, _ in keys} == {"hybrid"}
        assert len({claim.id for claim in claims}) == len(claims)
        for _, key, part in keys:
            other = "iris" if part == "digits" else "digits"
            assert ["hybrid", key, other] in keys
        for claim in claims:
            assert claim.data == claim.id.split("/")[2]
            assert claim.source in ("001", "here")

    def test_they_speak_of_models_that_there_are(self):
        known = {name_of(model, part) for model in MIXTURES for part in ("digits", "iris")}
        named = set()
        for claim in claims_for(self.config):
            named |= set(re.findall(r"[\w-]+ \((?:digits|iris)\)", str(claim.predicate)))
        assert named <= known
        assert name_of("narrow-double", "iris") in named

    def test_learned_mixtures_have_claims_where_they_are_trained(self):
        both = HybridConfig.with_defaults(data=["iris"], models=list(MIXTURES))
        more = {c.id for c in claims_for(both)} - {c.id for c in claims_for(self.config)}
        assert more == {
            "hybrid/learned-becomes-abs/iris",
            "hybrid/narrow-learned-becomes-abs/iris",
        }

    def test_pairs(self):
        pairs = pairs_of(self.config)
        assert len(pairs) == len(set(pairs)) == 14
        assert ("abs-50", "abs-100") in pairs
        assert ("narrow-100", "narrow-double") in pairs
        for a, b in pairs:
            assert MIXTURES[a].family == MIXTURES[b].family
