"""The verdict on a layer from its readings, and what to do about it: every word and threshold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from records import bare_layer, unit_reading
from scipy import stats

from mahalens.auditing.pairs import PairReading
from mahalens.auditing.perturb import PerturbationReading
from mahalens.auditing.readings import (
    GRID,
    HyperplaneReading,
    ascending_rows,
    quantiles_of,
    read_hyperplanes,
    resampled_shares,
)
from mahalens.auditing.verdict import (
    Verdict,
    chance_test,
    judge_layers,
    score_of,
    suggest,
    summarise,
    weigh,
    welch_test,
)
from mahalens.auditing.whitening import WhiteningReading


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


def judge(units, planes, perturbation=None, **options):
    return judge_layers([weigh(units, planes, perturbation, **options)])[0]


def verdict_of(passing, chance, index=None, count=12, measured=True):
    planes = plane_reading([k < passing for k in range(count)], [chance] * count)
    return judge(unit_reading(count), planes, perturbed(index) if measured else None)


@pytest.mark.parametrize(
    ("passing", "chance", "word", "score"),
    [
        (12, 0.5, "distance-like", 1.0),
        (10, 0.5, "distance-like", 2 / 3),
        (8, 0.5, "not judged", 1 / 3),  # p = 0.39: chance does that
        (6, 0.5, "not judged", 0.0),
        (4, 0.5, "not judged", -1 / 3),
        (2, 0.5, "intensity-like", -2 / 3),
        (0, 0.5, "intensity-like", -1.0),
        (0, 0.0, "not judged", 0.0),
        (6, 0.0, "distance-like", 0.5),
        (12, 1.0, "not judged", 0.0),
        (6, 1.0, "intensity-like", -0.5),
    ],
)
def test_geometry_alone(passing, chance, word, score):
    verdict = verdict_of(passing, chance, measured=False)
    assert verdict.score == pytest.approx(score)
    assert (verdict.word, verdict.share, verdict.chance) == (word, passing / 12, chance)


def test_common_hyperplanes_are_left_aside():
    some = plane_reading([k < 8 for k in range(9)], [0.5] * 9, common=[k == 8 for k in range(9)])
    verdict = judge(unit_reading(9), some)
    assert (verdict.word, verdict.share) == ("distance-like", 1.0)
    assert verdict.reason.endswith("; 1 is near most classes at once and left aside")
    few = plane_reading([k < 8 for k in range(17)], [0.5] * 17, common=[k > 7 for k in range(17)])
    verdict = judge(unit_reading(17), few)
    assert (verdict.word, verdict.score) == ("not judged", 1.0)
    assert verdict.reason.endswith("left aside; the few that are left speak for no layer")
    every = plane_reading([False] * 3, [0.5] * 3, common=[True] * 3)
    for measured in (None, perturbed(0.9)):
        verdict = judge(unit_reading(3), every, measured)
        assert (verdict.word, verdict.score) == ("not judged", None)
        assert verdict.reason.startswith("3 are near most classes at once and left aside")


def test_outputs_may_saturate():
    planes = plane_reading([True] * 8, [0.5] * 8)
    units = unit_reading(8, saturated=range(5))
    assert judge(units, planes).word == "broken"
    assert judge(units, planes, output=True).word == "distance-like"
    assert judge(unit_reading(8, dead=range(5)), planes, output=True).word == "broken"


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
        (6, 0.9, "not judged"),
        (6, -0.9, "not judged"),
        (0, 0.9, "mixed"),
        (0, 0.1, "intensity-like"),
        (0, -0.9, "intensity-like"),
    ],
)
def test_behaviour_can_only_contradict(passing, index, word):
    assert verdict_of(passing, 0.5, index).word == word


@pytest.mark.parametrize(
    ("index", "word"),
    [(0.4, "distance-like"), (-0.4, "intensity-like"), (0.2, "even"), (None, "not judged")],
)
def test_without_hyperplanes_behaviour_decides(index, word):
    verdict = judge(unit_reading(3), None, perturbed(index))
    assert verdict.word == word
    assert (verdict.score, verdict.share, verdict.chance) == (None, None, None)


def test_reasons_have_the_numbers():
    assert verdict_of(11, 0.51, 0.43).reason == (
        "11 of 12 live units pass through a class (92 %, 51 % by chance); "
        "offsets cost more accuracy than scaling and clipping (index 0.43)"
    )
    assert "scaling and clipping cost more accuracy than offsets (index -0.50)" in (
        verdict_of(6, 0.5, -0.5).reason
    )
    assert "about as much" in verdict_of(6, 0.5, 0.1).reason
    assert verdict_of(6, 0.5, None).reason.endswith("; no perturbation costs accuracy")
    planes = plane_reading([True], [0.5], classes=False)
    assert "the data's mean" in judge(unit_reading(1), planes).reason
    nothing = judge(unit_reading(2), None)
    assert nothing.word == "not judged"
    assert nothing.reason == "there are no hyperplanes and no perturbations to judge by"


def test_a_few_units_cannot_tell():
    for passing, count, chance in ((4, 4, 0.1), (5, 5, 0.5), (1, 6, 0.5)):
        verdict = verdict_of(passing, chance, count=count, measured=False)
        known = count == 6
        assert verdict.word == ("not judged" if known else "too few units")
        assert known or verdict.reason.endswith(f"; {count} units cannot tell it from chance")
    assert verdict_of(6, 0.5, count=6, measured=False).word == "distance-like"  # p = 1/32


def test_none_of_many_is_no_evidence_where_chance_is_small():
    verdict = verdict_of(0, 0.01, count=63, measured=False)
    assert (verdict.word, verdict.score) == ("not judged", -1.0)
    assert verdict.reason.endswith("that does not differ from chance (p = 1)")


def test_layers_that_measure_distances_by_construction():
    verdict = judge(unit_reading(3), None, by_construction=True)
    assert verdict.word == "distance-like"
    assert verdict.reason == "measures distances to its prototypes by construction"
    assert judge(unit_reading(3, dead=[0, 1]), None, by_construction=True).word == "broken"


def evidence(passing, count=40, chance=0.5, spread=0.0, **more):
    """A layer with so many passing units, and shares in new data that spread so far."""
    planes = plane_reading([k < passing for k in range(count)], [chance] * count)
    shares = passing / count + spread * torch.linspace(-1, 1, 201, dtype=torch.float64)
    return weigh(unit_reading(count), planes, None, shares=shares, **more)


def test_an_interval_across_the_threshold_is_mixed():
    sure, unsure = judge_layers([evidence(39), evidence(30, spread=0.1)])
    assert sure.word == "distance-like"
    assert sure.interval[0] > 1 / 3
    assert unsure.word == "mixed"
    assert unsure.interval[0] < 1 / 3 < unsure.score < unsure.interval[1]
    assert "more samples or units could overturn it (score 0.50, 95 % " in unsure.reason


def test_an_interval_about_chance_is_even():
    (verdict,) = judge_layers([evidence(200, count=400)])
    assert verdict.word == "even"
    assert "about as often as by chance (score 0.00, 95 % " in verdict.reason
    assert judge_layers([evidence(10, count=20)])[0].word == "not judged"  # too few to say so


def test_a_layer_must_differ_from_its_baseline_in_its_direction():
    layer = evidence(39)
    for untrained, word in ((20, "distance-like"), (35, "not judged"), (39, "not judged")):
        for copies in ([evidence(untrained)], [evidence(20), evidence(untrained)]):
            (verdict,) = judge_layers([layer], [copies])
            assert verdict.word == word
            assert verdict.baseline_score == evidence(untrained).score
    low = evidence(6)
    assert judge_layers([low], [[evidence(20)]])[0].word == "intensity-like"
    (verdict,) = judge_layers([low], [[evidence(0)]])  # differs, but the other way
    assert (verdict.word, verdict.p_baseline < 0.05) == ("not judged", True)
    (verdict,) = judge_layers([layer], [[]])
    assert verdict.reason.endswith("the baseline has no such layer, so that chance alone decides")


@pytest.mark.slow
def test_the_interval_covers_the_score_of_all_samples_and_units():
    draw = torch.Generator().manual_seed(0)

    def evidence(means, samples, count, resampled):
        y = torch.randint(4, (samples,), generator=draw)
        rows = torch.randn(count, 6, generator=draw).double()
        off = 0.5 * torch.randn(count, generator=draw) * rows.norm(dim=1)
        bias = off - (rows * means[torch.randint(4, (count,), generator=draw)]).sum(1)
        z = (means[y] + torch.randn(samples, 6, generator=draw)) @ rows.T + bias
        mean = torch.stack([z[y == c].mean(0) for c in range(4)])
        std = torch.stack([z[y == c].std(0, correction=0) for c in range(4)])
        grid = quantiles_of(ascending_rows(z), GRID)
        length, positive = rows.norm(dim=1), (z > 0).double().mean(0)
        planes = read_hyperplanes(length, z.mean(0), z.std(0), positive, grid, mean, std)
        chosen = planes.chance.isfinite() & ~planes.common
        sizes = torch.bincount(y, minlength=4)
        shares = resampled_shares(z, y, mean, std, sizes, chosen) if resampled else None
        reading = unit_reading(count, mean=z.mean(0), std=z.std(0))
        return weigh(reading, planes, None, shares=shares)

    covered = 0
    for _ in range(40):
        means = 1.5 * torch.randn(4, 6, generator=draw).double()
        truth = evidence(means, 2000, 300, False).score
        low, high = evidence(means, 150, 50, True).interval
        covered += low <= truth <= high
    assert 0.85 <= covered / 40 <= 1


def test_p_values_are_corrected_over_the_layers_that_are_judged():
    alone = judge_layers([evidence(28)])[0].p_chance
    three = judge_layers([evidence(28), evidence(20), evidence(20), evidence(28, unmarked=True)])
    assert three[0].p_chance == pytest.approx(3 * alone)
    assert three[3].p_chance is None
    assert three[3].word == "not judged"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.data())
def test_the_chance_test_is_exact(chances, data):
    passing = data.draw(st.integers(0, len(chances)))
    pmf = np.ones(1)
    for q in chances:
        pmf = np.convolve(pmf, [1 - q, q])
    p, least = chance_test(passing, torch.tensor(chances, dtype=torch.float64))
    tails = [min(pmf[: k + 1].sum(), pmf[k:].sum()) for k in range(len(pmf))]
    assert p == pytest.approx(min(1, 2 * tails[passing]), rel=1e-6, abs=1e-12)
    assert least == pytest.approx(min(1, 2 * tails[0], 2 * tails[-1]), rel=1e-6, abs=1e-12)


def test_the_chance_test_of_many_units_is_nearly_exact():
    chances = torch.rand(6000, generator=torch.Generator().manual_seed(0)).double()
    exact = stats.poisson_binom(chances.numpy())
    for passing in (2900, 2950, 3050):
        expected = 2 * min(exact.cdf(passing), exact.sf(passing - 1))
        assert chance_test(passing, chances)[0] == pytest.approx(min(1, expected), rel=2e-2)


def test_welch_is_scipys_and_has_an_answer_for_constants():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randn(9, generator=draw), 1 + 2 * torch.randn(30, generator=draw)
    assert welch_test(one, other) == pytest.approx(
        float(stats.ttest_ind(one.double(), other.double(), equal_var=False).pvalue)
    )
    same = torch.full((5,), 0.1)
    assert welch_test(same, same) == 1
    assert welch_test(same, same + 0.5) == 0
    assert welch_test(same[:1], same) == 1


def test_only_live_units_count():
    mean = torch.tensor([1.0, 1, 1, 1, 1, math.nan])
    units = unit_reading(6, dead=[0], saturated=[1], mean=mean)
    through = [True, True, True, False, False, True]
    chance = [1.0, 1.0, 0.5, 0.1, math.nan, 1.0]
    verdict = judge(units, plane_reading(through, chance))
    assert verdict.share == 0.5
    assert verdict.chance == pytest.approx(0.3)
    assert verdict.reason.startswith("1 of 2 live units")


def test_layers_of_which_half_is_dead_are_broken():
    many = plane_reading([True] * 16, [0.5] * 16)
    assert judge(unit_reading(16, dead=range(8)), many).word == "distance-like"
    planes = plane_reading([True] * 4, [0.5] * 4)
    verdict = judge(unit_reading(4, dead=[0, 3], saturated=[1]), planes, perturbed(0.9))
    assert verdict.word == "broken"
    assert verdict.reason == "only 1 of 4 units are live (25 %); 2 are dead and 1 saturated"
    assert verdict.score == 1.0
    gone = unit_reading(2, std=torch.tensor([math.inf, math.nan]))
    verdict = judge(gone, plane_reading([False] * 2, [math.nan] * 2))
    assert (verdict.word, verdict.score) == ("broken", None)


def test_silent_layers_are_broken():
    planes = plane_reading([True] * 2, [0.5] * 2)
    assert judge(unit_reading(2, silent=0.5), planes).word == "too few units"
    verdict = judge(unit_reading(2, silent=0.625), planes)
    assert verdict.word == "broken"
    assert verdict.reason == "no unit is active on 62 % of the rows"


shares = st.floats(0, 1)


@given(shares, shares)
def test_the_score_is_between_its_ends_and_tells_the_side(share, chance):
    score = score_of(share, chance)
    assert -1 <= score <= 1
    assert (score > 0) == (share > chance) or chance == 1
    assert (score < 0) == (share < chance)


def layer(name, word, count=10, dead=(), saturated=(), mirrored=(), duplicate=()):
    verdict = Verdict(word=word, score=None, share=None, chance=None, reason="")
    units, pairs = unit_reading(count, dead, saturated), pair_reading(mirrored, duplicate)
    return bare_layer(name, units, pairs=pairs, verdict=verdict)


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


# --- Suggestions ----------------------------------------------------------------------------------


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
