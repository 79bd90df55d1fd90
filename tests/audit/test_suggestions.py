import math

import pytest
import torch
from records import unit_reading

from mahalens.auditing.pairs import PairReading
from mahalens.auditing.verdict import suggest
from mahalens.auditing.whitening import WhiteningReading


def pair_reading(mirrored=(), duplicate=()):
    return PairReading(mirrored=mirrored, duplicate=duplicate, parallel=(), kept=())


def spectrum_reading(spectrum):
    return WhiteningReading(
        rows=5,
        shrinkage=0.0,
        sphericity=0.0,
        isotropy=1.0,
        precision_error=None,
        precision_scale=None,
        precision_cosine=None,
        spectrum=torch.tensor(spectrum),
        recovered=torch.zeros(0),
        output_spectrum=torch.zeros(0),
        input_rank=1.0,
        output_rank=1.0,
    )


def suggestions(units=None, activation="relu", feeds="out", inputs=10, **parts):
    given = units if units is not None else unit_reading(8)
    found = suggest(activation=activation, feeds=feeds, inputs=inputs, units=given, **parts)
    assert len({one.action for one in found}) == len(found)
    return {one.action: one for one in found}


def test_nothing_found_nothing_suggested():
    calm = {"input_mean": torch.ones(3), "input_std": torch.tensor([1.0, 2.0, 3.0])}
    whitening = spectrum_reading([3.0, 1.0])
    assert suggestions(pairs=pair_reading(), whitening=whitening, **calm) == {}
    assert suggestions() == {}
    assert suggestions(whitening=spectrum_reading([])) == {}


def test_dead_units_are_removed_or_restarted():
    found = suggestions(unit_reading(8, dead=[1, 5]))
    assert list(found) == ["remove dead", "restart dead"]
    remove, restart = found.values()
    assert remove.units == restart.units == (1, 5)
    assert remove.effect.startswith("saves 2 of 8 units (25 %), 20 weights here and the column of")
    assert "2 units have something to measure again" in restart.effect
    assert "25 % of the layer" in restart.effect
    assert (remove.exact, restart.exact) == (True, False)


@pytest.mark.parametrize(
    ("activation", "feeds", "exact"),
    [
        ("relu", "out", True),
        ("abs", "out", True),
        ("none", "out", True),
        ("sigmoid", "out", True),
        ("relu", None, False),
        ("softmax", "out", False),
        ("prelu", "out", False),
        ("mixed", "out", False),
    ],
)
def test_only_units_that_act_one_by_one_and_are_read_once_can_go(activation, feeds, exact):
    pairs = pair_reading(duplicate=((0, 1),), mirrored=((2, 3),))
    found = suggestions(unit_reading(8, dead=[4]), activation, feeds, pairs=pairs)
    assert found["remove dead"].exact is exact
    assert found["merge duplicates"].exact is exact
    if activation in ("relu", "abs"):
        assert found["fold mirrored"].exact is exact
    else:
        assert "fold mirrored" not in found


def test_duplicates_are_merged_into_the_lowest():
    pairs = pair_reading(duplicate=((0, 3), (0, 5), (1, 4)))
    merge = suggestions(pairs=pairs)["merge duplicates"]
    assert merge.units == (3, 4, 5)
    assert merge.effect.startswith("saves 3 of 8 units (38 %), 30 weights here")
    assert "equal length" not in merge.effect
    scaled = suggestions(activation="tanh", pairs=pairs)["merge duplicates"]
    assert "where copies have equal length, for tanh does not scale" in scaled.effect


def test_mirrored_pairs_are_folded():
    pairs = pair_reading(mirrored=((2, 6), (0, 3)))
    fold = suggestions(pairs=pairs)["fold mirrored"]
    assert fold.units == (0, 2, 3, 6)
    assert fold.effect.startswith("up to 2 pairs become one unit each with an absolute value")
    assert "saves 2 of 8 units (25 %), 20 weights" in fold.effect
    assert "read with equal weights; prune checks both" in fold.effect
    assert "|-z| = |z|" in suggestions(activation="abs", pairs=pairs)["fold mirrored"].effect
    assert "fold mirrored" not in suggestions(activation="gelu", pairs=pairs)


def test_inputs_far_from_normal_are_named():
    def effect(**parts):
        found = suggestions(**parts)
        assert all(one.exact is False and one.units == () for one in found.values())
        return found["normalise input"].effect if found else None

    assert effect(whitening=spectrum_reading([1e6, 1.0])).startswith(
        "whitening it would bring its condition number from 1.0e+06 to 1"
    )
    assert effect(whitening=spectrum_reading([0.9e6, 1.0])) is None
    std = torch.tensor([1.0, 1.0])
    assert "5.0 spreads from 0" in effect(input_mean=torch.tensor([5.0, -5.0]), input_std=std)
    assert effect(input_mean=torch.tensor([2.9, 2.9]), input_std=std) is None
    uneven = torch.tensor([1e-3, 0.5])
    assert "factor of 500" in effect(input_mean=torch.zeros(2), input_std=uneven)
    both = effect(whitening=spectrum_reading([1e9, 1.0]), input_mean=9 * std, input_std=std)
    assert "condition number from above 1e+09" in both
    assert "9.0 spreads from 0" in both


def test_constant_inputs_do_not_count_as_narrow():
    calm = suggestions(input_mean=torch.zeros(3), input_std=torch.tensor([0.0, 1.0, 2.0]))
    assert calm == {}
    assert suggestions(input_mean=torch.ones(2), input_std=torch.zeros(2)) == {}
    assert suggestions(input_mean=torch.tensor([math.nan]), input_std=torch.ones(1)) == {}


def test_a_few_odd_inputs_do_not_count():
    std = torch.ones(100)
    std[:4] = 1e-6
    assert suggestions(input_mean=torch.zeros(100), input_std=std) == {}
    std[:6] = 1e-6
    assert "normalise input" in suggestions(input_mean=torch.zeros(100), input_std=std)


def test_saturated_units_are_brought_back():
    found = suggestions(unit_reading(4, saturated=[0, 2], flat=torch.full((4,), 0.97)), "tanh")
    lower = found["lower saturation"]
    assert lower.units == (0, 2)
    assert lower.exact is False
    assert lower.effect.startswith("2 of 4 units pass on gradients again")
    assert "flat end of tanh (on 97 % of the rows)" in lower.effect
