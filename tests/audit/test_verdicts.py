import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mahalens.auditing.readings import (
    HyperplaneReading,
    PairReading,
    PerturbationReading,
    UnitReading,
    Verdict,
)
from mahalens.auditing.record import LayerRecord
from mahalens.auditing.verdicts import RULE, WORDS, judge, score_of, summarise
from mahalens.errors import InputError


def unit_reading(count, dead=(), saturated=(), silent=0.0, **changed):
    one = torch.ones(count)
    parts = dict.fromkeys(
        ("active", "flat", "mean", "std", "skewness", "least", "greatest"), one.clone()
    )
    return UnitReading(
        dead=tuple(dead),
        rare={},
        always=(),
        saturated=tuple(saturated),
        quantiles=one[:, None],
        silent_share=silent,
        **{**parts, **changed},
    )


def plane_reading(through, chance, classes=True, common=None):
    through = torch.tensor(through)
    one = torch.ones(len(through))
    return HyperplaneReading(
        length=one,
        mean_distance=one,
        mean_spreads=one,
        nearest=torch.zeros(len(through), dtype=torch.int64) if classes else None,
        through=through,
        chance=torch.tensor(chance),
        positive=one,
        common=None if common is None else torch.tensor(common),
    )


def perturbed(index):
    return PerturbationReading(baseline=1.0, scale={}, clip={}, offset={}, index=index)


def verdict_of(passing, chance, index=None, count=12, measured=True):
    planes = plane_reading([k < passing for k in range(count)], [chance] * count)
    return judge(unit_reading(count), planes, perturbed(index) if measured else None, count)


@pytest.mark.parametrize(
    ("passing", "chance", "word", "score"),
    [
        (12, 0.5, "distance-like", 1.0),
        (8, 0.5, "distance-like", 1 / 3),
        (7, 0.5, "mixed", 1 / 6),
        (6, 0.5, "mixed", 0.0),
        (5, 0.5, "mixed", -1 / 6),
        (4, 0.5, "intensity-like", -1 / 3),
        (0, 0.5, "intensity-like", -1.0),
        (0, 0.0, "mixed", 0.0),
        (6, 0.0, "distance-like", 0.5),
        (12, 1.0, "mixed", 0.0),
        (6, 1.0, "intensity-like", -0.5),
    ],
)
def test_geometry_alone(passing, chance, word, score):
    verdict = verdict_of(passing, chance, measured=False)
    assert verdict.score == pytest.approx(score)
    assert (verdict.word, verdict.share, verdict.chance) == (word, passing / 12, chance)


def test_common_hyperplanes_are_left_aside():
    some = plane_reading([True, True, False], [0.5] * 3, common=[False, False, True])
    verdict = judge(unit_reading(3), some, None, 3)
    assert (verdict.word, verdict.share) == ("distance-like", 1.0)
    assert verdict.reason.endswith("; 1 is near most classes at once and left aside")
    few = plane_reading([True, False, False], [0.5] * 3, common=[False, True, True])
    verdict = judge(unit_reading(3), few, None, 3)
    assert (verdict.word, verdict.score) == ("mixed", 1.0)
    every = plane_reading([False] * 3, [0.5] * 3, common=[True] * 3)
    for measured in (None, perturbed(0.9)):
        verdict = judge(unit_reading(3), every, measured, 3)
        assert (verdict.word, verdict.score) == ("mixed", None)
        assert verdict.reason.startswith("3 are near most classes at once and left aside")


def test_outputs_may_saturate():
    planes = plane_reading([True] * 4, [0.5] * 4)
    units = unit_reading(4, saturated=(0, 1, 2))
    assert judge(units, planes, None, 4).word == "broken"
    assert judge(units, planes, None, 4, output=True).word == "distance-like"
    assert judge(unit_reading(4, dead=(0, 1, 2)), planes, None, 4, output=True).word == "broken"


# What geometry says, what behaviour says, and what the verdict is.
@pytest.mark.parametrize(
    ("passing", "index", "word"),
    [
        (12, 0.5, "distance-like"),
        (12, 1 / 3, "distance-like"),
        (12, 0.0, "distance-like"),
        (12, None, "distance-like"),
        (12, -0.3, "distance-like"),
        (12, -1 / 3, "mixed"),
        (6, 0.9, "mixed"),
        (6, -0.9, "mixed"),
        (0, 0.9, "mixed"),
        (0, 0.1, "intensity-like"),
        (0, -0.9, "intensity-like"),
    ],
)
def test_behaviour_can_only_contradict(passing, index, word):
    assert verdict_of(passing, 0.5, index).word == word


@pytest.mark.parametrize(
    ("index", "word"),
    [(0.4, "distance-like"), (-0.4, "intensity-like"), (0.2, "mixed"), (None, "mixed")],
)
def test_without_hyperplanes_behaviour_decides(index, word):
    verdict = judge(unit_reading(3), None, perturbed(index), 3)
    assert verdict.word == word
    assert (verdict.score, verdict.share, verdict.chance) == (None, None, None)


def test_reasons_have_the_numbers():
    assert verdict_of(11, 0.61, 0.43).reason == (
        "11 of 12 live units pass through a class (92 %, 61 % by chance); "
        "offsets cost more accuracy than scaling and clipping (index 0.43)"
    )
    assert "scaling and clipping cost more accuracy than offsets (index -0.50)" in (
        verdict_of(6, 0.5, -0.5).reason
    )
    assert "about as much" in verdict_of(6, 0.5, 0.1).reason
    assert verdict_of(6, 0.5, None).reason.endswith("; no perturbation costs accuracy")
    planes = plane_reading([True], [0.5], classes=False)
    assert "the data's mean" in judge(unit_reading(1), planes, None, 1).reason
    nothing = judge(unit_reading(2), None, None, 2)
    assert nothing.word == "mixed"
    assert nothing.reason == "there are no hyperplanes and no perturbations to judge by"


def test_only_live_units_count():
    mean = torch.tensor([1.0, 1, 1, 1, 1, math.nan])
    units = unit_reading(6, dead=[0], saturated=[1], mean=mean)
    through = [True, True, True, False, False, True]
    chance = [1.0, 1.0, 0.5, 0.1, math.nan, 1.0]
    verdict = judge(units, plane_reading(through, chance), None, 6)
    assert verdict.share == 0.5
    assert verdict.chance == pytest.approx(0.3)
    assert verdict.reason.startswith("1 of 2 live units")


def test_layers_of_which_half_is_dead_are_broken():
    planes = plane_reading([True] * 4, [0.5] * 4)
    assert judge(unit_reading(4, dead=[0, 3]), planes, None, 4).word == "distance-like"
    verdict = judge(unit_reading(4, dead=[0, 3], saturated=[1]), planes, perturbed(0.9), 4)
    assert verdict.word == "broken"
    assert verdict.reason == "only 1 of 4 units are live (25 %); 2 are dead and 1 saturated"
    assert verdict.score == 1.0
    gone = unit_reading(2, std=torch.tensor([math.inf, math.nan]))
    verdict = judge(gone, plane_reading([False] * 2, [math.nan] * 2), None, 2)
    assert (verdict.word, verdict.score) == ("broken", None)


def test_silent_layers_are_broken():
    planes = plane_reading([True] * 2, [0.5] * 2)
    assert judge(unit_reading(2, silent=0.5), planes, None, 2).word == "distance-like"
    verdict = judge(unit_reading(2, silent=0.625), planes, None, 2)
    assert verdict.word == "broken"
    assert verdict.reason == "no unit is active on 62 % of the rows"


shares = st.floats(0, 1)


@given(shares, shares)
def test_the_score_is_between_its_ends_and_tells_the_side(share, chance):
    score = score_of(share, chance)
    assert -1 <= score <= 1
    assert (score > 0) == (share > chance) or chance == 1
    assert (score < 0) == (share < chance)


def test_the_rule_names_every_word_and_threshold():
    assert all(word in RULE for word in WORDS)
    assert "1/3" in RULE


def test_another_number_of_units_is_named():
    for count in (0, 3):
        with pytest.raises(InputError, match=f"count is {count}"):
            judge(unit_reading(2), None, None, count)


def layer(name, word, count=10, dead=(), saturated=(), mirrored=(), duplicate=()):
    pairs = PairReading(mirrored=mirrored, duplicate=duplicate, parallel=(), kept=())
    return LayerRecord(
        name=name,
        kind="Linear",
        units_count=count,
        inputs=3,
        activation="relu",
        calls=1,
        positions=1,
        rows=5,
        units=unit_reading(count, dead, saturated),
        hyperplanes=None,
        pairs=pairs,
        verdict=Verdict(word=word, score=None, share=None, chance=None, reason=""),
    )


def test_the_summary_counts_layers_and_names_the_largest_finding():
    layers = [
        layer("a", "mixed", dead=[1, 2]),
        layer("b", "distance-like", count=20, mirrored=((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))),
        layer("c", "distance-like", duplicate=((0, 1), (0, 2))),
    ]
    assert summarise(layers) == (
        "2 layers are distance-like and 1 layer is mixed; 2 of 40 units are dead; "
        "the largest finding is that 10 of 20 units of layer b stand in mirrored pairs."
    )
    assert "3 of 10 units of layer c are saturated" in summarise(
        [*layers, layer("c", "broken", saturated=[0, 1, 2])]
    )
    assert "3 of 10 units of layer d repeat another" in summarise(
        [*layers, layer("d", "mixed", duplicate=((0, 1), (0, 2), (3, 4)))]
    )
    assert "4 of 10 units of layer e are dead" in summarise(
        [*layers, layer("e", "mixed", dead=range(4))]
    )
    assert summarise([layer("a", "broken")]) == (
        "1 layer is broken; 0 of 10 units are dead, and none is saturated or repeats another."
    )
    assert summarise([]) == "There is no layer to judge."
