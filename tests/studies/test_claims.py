"""Claims as data: each kind of statement on hand-made evidence, and how a run judges its table."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from scipy import stats

from mahalens.studies.claims import (
    AboveChance,
    Average,
    Both,
    Claim,
    Difference,
    Every,
    Evidence,
    Finding,
    GainsMore,
    Indistinguishable,
    Judgement,
    Lower,
    MoreVariable,
    Ratio,
    TrialShare,
    Within,
    judge,
    show,
)
from mahalens.studies.registry import load_study
from mahalens.studies.study import SOURCES, variant_name

NAN, INF = math.nan, math.inf
FIGURES = {("loss", "a"): 0.5, ("loss", "b"): 1.25}
NOISE = np.array([0.1, -0.1, 0.05, -0.05, 0.02, -0.02, 0.08, -0.08])


def evidence(basins=None, facts=None, figures=FIGURES, **columns):
    """Return evidence of a metric "loss" by model."""
    return Evidence(
        trials={("", model, "loss"): np.array(values, float) for model, values in columns.items()},
        facts={"dim": 4, "word": "ten", "chance": [0.5, 0.7], **(facts or {})},
        published_mean=lambda metric, model, variant: figures.get((metric, model)),
        basins={("", model): names for model, names in (basins or {}).items()},
    )


def is_a_text(why):
    """Check sentences for people: closed, on one line, without the words of a computer."""
    assert why.endswith(".")
    assert why == " ".join(why.split())
    assert "nan" not in why.lower().split()
    assert "None" not in why
    return why


def finding_of(predicate, **columns):
    finding = predicate.judge(evidence(**columns))
    is_a_text(finding.sentence)
    return finding


LOWER = Lower("loss", "a", "b")
BELOW = TrialShare("loss", "a", "below", 1)
MEAN = Average("loss", "a", "below", 1, per="dim")
CHANCE = AboveChance("loss", "a", 0.9, "chance")
RATIO = Ratio("loss", "a", "b", "below", 0.5)
FAR = Difference("loss", "a", "b", "below", -20.0)
WITHIN = Within("loss", "a", "b", 0.5)
ALIKE = Indistinguishable("loss", "a", "b", 0.5)
WILDER = MoreVariable("loss", "a", "b")
GAIN = GainsMore("loss", "a+", "a", "b+", "b")

# --- Evidence ---------------------------------------------------------------------------------


def test_values_are_none_where_no_trial_has_a_number():
    given = evidence(a=[1, NAN], b=[NAN, NAN], c=[INF, NAN])
    np.testing.assert_array_equal(given.values("a", "loss"), [1, NAN])
    for model, metric in (("b", "loss"), ("c", "loss"), ("z", "loss"), ("a", "other")):
        assert given.values(model, metric) is None


def test_models_go_by_plain_names_on_a_variant_and_by_full_ones_in_a_run():
    given = Evidence(
        trials={("raw", "a", "loss"): np.ones(2), ("even", "a", "loss"): np.zeros(2)},
        facts={},
        published_mean=lambda metric, model, variant: {"raw": 3.0}.get(variant),
        basins={("raw", "a"): ["stalled", ""]},
    )
    assert given.on("raw").values("a", "loss").tolist() == [1, 1]
    assert given.on("even").values("a", "loss").tolist() == [0, 0]
    assert given.on(None).values("a (raw)", "loss").tolist() == [1, 1]
    assert given.on(None).values("a", "loss") is None
    assert given.on("raw").values("a (raw)", "loss") is None
    assert given.on(None).published("loss", "a (raw)") == 3.0
    assert given.on("even").published("loss", "a") is None
    assert given.on(None).basins_of("a (raw)") == ["stalled", ""]


def test_a_fact_that_is_no_number():
    assert evidence().number("dim") == 4.0
    with pytest.raises(TypeError, match="fact 'word' is 'ten', not a number"):
        evidence().number("word")


# --- What all predicates share ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicate", "columns"),
    [
        *(
            (predicate, columns)
            for predicate in (LOWER, RATIO, FAR, WITHIN, ALIKE, WILDER)
            for columns in (
                {},
                {"a": [1] * 6},
                {"b": [1] * 6},
                {"a": [NAN] * 6, "b": [1] * 6},
            )
        ),
        (LOWER, {"a": [1, NAN], "b": [NAN, 1]}),
        *((predicate, {"b": [1]}) for predicate in (BELOW, MEAN, CHANCE)),
        *((predicate, {"a": [NAN, NAN]}) for predicate in (MEAN, CHANCE)),
        (BELOW, {"a": []}),
        (MEAN, {"a": [1.0, 2.0], "facts": {"dim": 0}}),  # no unit to speak in
        (CHANCE, {"a": [1], "facts": {"chance": None}}),
        (AboveChance("loss", "a", 0.9, "luck"), {"a": [1]}),
        (Both(BELOW, LOWER), {"a": [1]}),
        (Both(LOWER, BELOW, negated=True), {"b": [1]}),
        (Every((BELOW, MEAN)), {"c": [1]}),
        (GAIN, {"a": [1], "a+": [2], "b+": [3]}),
        (GAIN, {"a": [NAN, 1], "a+": [NAN, 1], "b": [1, NAN], "b+": [1, 1]}),
    ],
    ids=str,
)
def test_not_measured(predicate, columns):
    assert predicate.judge(evidence(**columns)) is None


@pytest.mark.parametrize("trials", [1, 2, 4, 5])
@pytest.mark.parametrize(
    "predicate", [LOWER, BELOW, MEAN, CHANCE, RATIO, FAR, WITHIN, ALIKE, WILDER, GAIN], ids=repr
)
def test_few_trials_decide_nothing(predicate, trials):
    ramp = 0.01 * np.arange(trials) if trials > 1 else np.zeros(1)
    b = 42 + 10 * np.resize(NOISE, trials)
    columns = {"a": 0.93 + ramp, "a+": 2 + ramp, "b": b, "b+": b}
    finding = predicate.judge(evidence(**columns))
    is_a_text(finding.sentence)
    assert finding.sentence.startswith("Too few trials to tell.") == (trials < 5)
    assert (finding.holds is None) == (trials < 5)


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (LOWER, "0.5 against 1.25"),
        (Lower("loss", "a", "z"), None),
        (Lower("other", "a", "b"), None),
        (BELOW, "mean 0.5"),
        (TrialShare("loss", "z", "below", 1), None),
        (Average("loss", "b", "below", 1, per="dim"), "mean 0.312"),
        (Average("loss", "b", "below", 1), "mean 1.25"),
        (Average("loss", "z", "below", 1), None),
        (CHANCE, None),
        (RATIO, "0.4"),
        (Ratio("loss", "a", "z", "below", 1.0), None),
        (FAR, "0.5 against 1.25"),
        (WITHIN, "0.5 against 1.25"),
        (ALIKE, "0.5 against 1.25"),
        (WILDER, None),
        (Both(BELOW, FAR), "mean 0.5"),
        (Every((BELOW, CHANCE, LOWER)), "mean 0.5; 0.5 against 1.25"),
        (GAIN, None),
        (GainsMore("loss", "b", "a", "b", "b"), "0.75 against 0"),
    ],
    ids=str,
)
def test_published(predicate, text):
    assert predicate.published(evidence()) == text


# --- Lower ------------------------------------------------------------------------------------


def test_lower_holds_by_the_signed_rank_test():
    a, b = [1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12]
    finding = finding_of(LOWER, a=a, b=b)
    assert finding.holds
    assert finding.measured == 1.0
    p = stats.wilcoxon(a, b, alternative="less").pvalue
    assert finding.why == (
        f"a averages 3.5, b 7; lower in 6 of 6 trials, one-sided Wilcoxon p = {show(p)}."
    )


@pytest.mark.parametrize(
    ("a", "share", "holds"),
    [
        ([9] * 6, 0.0, False),  # the other way round
        ([5] * 6, 0.0, False),  # equal
        ([1, 9, 1, 9, 1, 9], 0.5, False),  # leaning neither way
        ([1, 1, 5, 5, 5, 5], 0.333, None),  # where they differ, lower: equal trials do not count
        ([1, 5, 5, 5, 5], 0.2, None),  # one of one: p = 0.5
        ([9, 5, 5, 5, 5], 0.0, False),
        ([4, 2, 1, 7, 10], 0.6, None),  # p = 0.5, but ranks of 8 beside 7
        ([6, 8, 9, 3, 0], 0.4, False),
        ([0, 0, 0, 6, 6, 6], 0.5, None),  # by more where it is lower
        ([4, 4, 4, 9, 9, 4, 9], 0.571, False),  # in most of them, but by less
        ([1, 1, 1, 1, 9], 0.8, None),  # most of them, but not significantly
        ([1, 1, 1, 1, 1], 1.0, True),  # five of five: p = 0.031
    ],
    ids=str,
)
def test_lower(a, share, holds):
    finding = finding_of(LOWER, a=a, b=[5] * len(a))
    assert (finding.holds, round(finding.measured, 3)) == (holds, share)
    assert finding.sentence.startswith("Undecided") == (holds is None)


def test_rounding_makes_nothing_lower():
    assert finding_of(LOWER, a=[0.3] * 6, b=[0.1 + 0.2] * 6).holds is False
    assert finding_of(LOWER, a=[0.3] * 5 + [2.0], b=[0.1 + 0.2] * 5 + [1.0]).measured == 0.0


def test_lower_speaks_of_the_trials_that_both_models_have():
    a, b = [1, 2, 3, 4, 5, 6, NAN, 8], [2, 4, 6, 8, 10, 12, 1e9, NAN]
    finding = finding_of(LOWER, a=a, b=b)
    assert finding == finding_of(LOWER, a=a[:6], b=b[:6])
    assert finding.holds
    assert "b 7;" in finding.why


# --- TrialShare -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "values", "share"),
    [
        ("below", [0.0] * 9 + [5], 0.9),
        ("above", [2.0] * 9 + [0], 0.9),
        ("above", [INF, 2], 1.0),
        ("below", [0.0] * 8 + [5, 5], 0.8),
        ("below", [1.0], 0.0),  # at the bound is not below it
        ("above", [1.0], 0.0),
        ("below", [-INF, 0.0, NAN], 2 / 3),  # a trial without a value is none that does
    ],
)
def test_a_share_of_the_trials(side, values, share):
    finding = finding_of(TrialShare("loss", "a", side, 1.0, fewest=1), a=values)
    assert finding.holds is (share >= 0.9)
    assert finding.measured == pytest.approx(share)
    k, n = round(share * len(values)), len(values)
    assert finding.why.lower().startswith(f"{side} 1 in {k} of {n} trials (")
    assert "wanted in 90%" in finding.why


def test_share_states_the_wilson_interval():
    low, high = stats.binomtest(14, 20).proportion_ci(method="wilson")
    finding = finding_of(TrialShare("loss", "a", "below", 1, share=0.5), a=[0] * 14 + [2] * 6)
    assert finding.holds
    assert f"({low:.0%} to {high:.0%} with 95 % confidence)" in finding.why
    assert "wanted in 50%; median 0." in finding.why


def test_a_share_counts_trials_as_misses_if_all_of_them_are_lost():
    lost = finding_of(BELOW, a=[NAN] * 20, basins={"a": ["non-finite"] * 20})
    assert (lost.holds, lost.measured, lost.trials) == (False, 0.0, 20)
    assert "in 0 of 20 trials" in lost.why
    assert "no trial has a value. Of the 20 that miss: 20 non-finite." in lost.why
    above = finding_of(TrialShare("loss", "a", "above", 1), a=[INF] * 6)
    assert above.holds is False
    assert finding_of(BELOW, a=[NAN] * 4).holds is None


def test_a_share_of_a_metric_that_the_model_lacks_is_not_measured():
    given = evidence(a=[NAN] * 6)
    trials = {**given.trials, ("", "a", "time"): np.ones(6)}
    assert BELOW.judge(Evidence(trials, {}, given.published_mean)) is None
    trials = {**given.trials, ("", "b", "time"): np.ones(6), ("x", "a", "time"): np.ones(6)}
    assert BELOW.judge(Evidence(trials, {}, given.published_mean).on("")).holds is False


def test_share_says_where_the_trials_lie_that_miss():
    basins = {"a": ["zero residual", "local minimum", "zero residual", "zero residual", "stalled"]}
    why = finding_of(BELOW, basins=basins, a=[0, 5, 5, 5, NAN]).why
    assert why.endswith(
        "Of the 4 that miss: 2 in the basin of the perfect fit, 1 at a local minimum, 1 stalled."
    )
    assert "that miss" not in finding_of(BELOW, basins=basins, a=[0] * 5).why
    assert "that miss" not in finding_of(BELOW, basins={"a": [""] * 2}, a=[5, 5]).why
    assert "that miss" not in finding_of(BELOW, basins={"b": ["stalled"]}, a=[5]).why


# --- Average and AboveChance ------------------------------------------------------------------


SIDES = [
    ("below", 0.01, True),
    ("below", -0.5, None),
    ("below", -9.0, False),
    ("above", -9.0, True),
    ("above", -0.5, None),
    ("above", 0.01, False),
]


@pytest.mark.parametrize(("side", "off", "holds"), SIDES)
def test_average_is_decided_by_its_whole_interval(side, off, holds):
    values = np.array([1.0, 1.5, 2.0, 2.5, 3.0])
    low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    bound = float(high + off)
    finding = finding_of(Average("loss", "a", side, bound), a=values)
    assert (finding.holds, finding.measured) == (holds, 2.0)
    assert finding.sentence == (
        ("Undecided. " if holds is None else "")
        + f"Mean 2, 95 % interval {show(low)} to {show(high)}; wanted {side} {show(bound)}."
    )
    assert "single trial" in finding_of(Average("loss", "a", side, bound), a=[0.5, NAN]).why


def test_average_in_units_of_a_fact():
    finding = finding_of(MEAN, a=[2.0] * 5 + [NAN])
    assert finding.holds
    assert finding.measured == 0.5
    assert finding.why.startswith("Mean 0.5 of the ")


@pytest.mark.parametrize(
    ("values", "chance", "holds"),
    [
        ([0.95, 0.96, 0.96, 0.96, 0.97], [0.5, 0.7], True),
        ([0.85, 0.86, 0.86, 0.86, 0.87], [0.5, 0.7], False),  # above chance, below the bound
        ([0.95, 0.96, 0.96, 0.96, 0.97], [0.8, 0.99], False),  # chance reaches the bound too
        ([0.5, 0.95, 0.95, 1.0, 1.0], [0.1, 0.2], None),  # too uncertain
        ([1.0] * 5, [1.0, 1.0], False),  # one dimension: nothing to tell apart
    ],
    ids=str,
)
def test_above_chance(values, chance, holds):
    finding = finding_of(CHANCE, a=values, facts={"chance": chance})
    assert finding.holds is holds
    assert finding.measured == pytest.approx(np.mean(values))
    assert f"{show(chance[0])} to {show(chance[1])}" in finding.why


# --- Ratio and differences --------------------------------------------------------------------


@pytest.mark.parametrize("side", ["below", "above"])
@pytest.mark.parametrize("bound", [0.05, 0.2, 0.5])
def test_a_ratio_is_the_geometric_mean_with_its_interval(side, bound):
    a, b = np.array([1.0, 2.0, 4.0, 2.0, 2.0]), np.array([10.0, 10.0, 10.0, 5.0, 20.0])
    finding = finding_of(Ratio("loss", "a", "b", side, bound), a=a, b=b)
    logs = np.log(a / b)
    assert finding.measured == pytest.approx(stats.gmean(a / b))
    low, high = np.exp(stats.t.interval(0.95, 4, logs.mean(), stats.sem(logs)))
    assert f"{show(low)} to {show(high)}" in finding.why
    places = (high < bound, low >= bound) if side == "below" else (low > bound, high <= bound)
    assert finding.holds is (True if places[0] else False if places[1] else None)


def test_an_interval_of_ratios_may_leave_the_numbers():
    finding = finding_of(RATIO, a=[1e-30, 1.0], b=[1.0, 1e-30])
    assert (finding.holds, finding.measured) == (None, pytest.approx(1.0))
    assert "to inf" in finding.why


@pytest.mark.parametrize("zeros", [15, 20])
def test_ratios_without_a_logarithm_are_not_left_out(zeros):
    a = np.where(np.arange(20) < zeros, 0.0, 0.9)
    finding = finding_of(RATIO, a=a, b=np.ones(20))
    assert (finding.holds, finding.trials) == (None, 20)
    assert f"{zeros} of 20 ratios have no logarithm" in finding.why
    (line,) = ledger([Claim("few", "It is less.", RATIO)], evidence(a=a, b=np.ones(20)))
    assert (line.verdict, line.measured, line.trials_to_decide) == ("undecided", None, None)


@pytest.mark.parametrize("bound", [0.1, 0.2, 0.3, 0.7])
@pytest.mark.parametrize("side", ["below", "above"])
def test_rounding_puts_nothing_on_a_side_of_a_bound(side, bound):
    """A number at the bound is on neither side of it."""
    b = np.arange(1.0, 9.0)
    at = {"a": b + bound, "b": b}
    assert np.ptp(at["a"] - b) > 0
    assert finding_of(Difference("loss", "a", "b", side, bound), **at).holds is False
    assert finding_of(Within("loss", "a", "b", bound), **at).holds is None
    assert finding_of(Ratio("loss", "a", "b", side, bound), a=bound * b, b=b).holds is False
    inside = finding_of(Within("loss", "a", "b", bound + 1e-9), **at)
    assert inside.holds is True


def test_rounding_is_no_gain():
    zero, columns = [0.0] * 6, {"a+": [0.1 + 0.2] * 6, "b+": [0.3] * 6}
    finding = finding_of(GAIN, a=zero, b=zero, **columns)
    assert (finding.holds, finding.measured) == (False, 0.0)
    above = Difference("loss", "a+", "b+", "above", 0.0)
    assert finding_of(above, **columns).holds is False
    assert "95 % interval 0 to 0" in finding_of(above, **columns).why


def test_two_models_without_spread_do_not_vary():
    finding = finding_of(WILDER, a=[100.0] * 20, b=[100.0] * 20)
    assert (finding.holds, finding.trials) == (False, 20)
    assert math.isnan(finding.measured)
    assert finding_of(WILDER, a=[5.0] * 4, b=[5.0] * 9).holds is None
    single = finding_of(WILDER, a=[1.0, 2.0] * 4, b=[3.0])
    assert single.sentence == "Too few trials to tell. A single trial of b has no spread."


BASE = 90 + NOISE


@pytest.mark.parametrize(
    ("predicate", "a", "holds"),
    [
        (FAR, BASE - 50 + NOISE[::-1], True),
        (FAR, BASE - 1, False),
        (FAR, BASE - np.array([0, 60, 5, 55, 0, 45, 10, 20]), None),
        (WITHIN, BASE + NOISE[::-1], True),
        (WITHIN, BASE + 2 + NOISE[::-1], False),
        (WITHIN, BASE - 2 + NOISE[::-1], False),
        (WITHIN, BASE + 20 * NOISE, None),
        (WITHIN, BASE + 0.5 + NOISE[::-1], None),
        (WITHIN, BASE, True),  # equal runs are within any margin
        (ALIKE, BASE + NOISE[::-1] / 2, True),
        (ALIKE, BASE + 0.3 + NOISE / 10, False),  # a small but certain difference
        (ALIKE, BASE + 30 * NOISE, None),  # not significant, but so wild that nothing is shown
        (WILDER, 90 + 30 * NOISE, True),
        (WILDER, 90 + NOISE / 30, False),
        (WILDER, 90 + 1.1 * NOISE, None),
    ],
)
def test_differences(predicate, a, holds):
    finding = finding_of(predicate, a=a, b=BASE)
    assert finding.holds is holds
    assert finding.sentence.startswith("Undecided. ") == (holds is None)
    wanted = np.std(a) / np.std(BASE) if predicate == WILDER else np.mean(a - BASE)
    assert finding.measured == pytest.approx(wanted)


def test_differences_are_paired():
    """Trials differ by far more than the models, which differ by just over the bound each time."""
    b = np.array([20.0, 90, 40, 70, 55])
    close = Difference("loss", "a", "b", "below", -5.0)
    assert finding_of(close, a=b - 5.1 + NOISE[:5] / 10, b=b).holds is True


def test_a_difference_of_nothing_but_rounding_is_zero():
    random = np.random.default_rng(0)
    a = 100 * random.random(7)
    b = random.permutation(a)
    assert float(np.mean(a - b)) != 0  # or the test would show nothing
    for predicate in (FAR, WITHIN):
        assert finding_of(predicate, a=a, b=b).measured == 0.0
    assert finding_of(FAR, a=a + 1e-9, b=a).measured == pytest.approx(1e-9, rel=1e-3)


# --- GainsMore --------------------------------------------------------------------------------


def gains(gain, other, trials=12):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, trials)) * 50  # trials differ far more than models do
    noise = rng.normal(size=(2, trials)) * 0.1
    return {"a": a, "a+": a + gain + noise[0], "b": b, "b+": b + other + noise[1]}


@pytest.mark.parametrize(
    ("gain", "other", "holds"), [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 1.0, None)]
)
def test_the_mean_difference_of_two_gains_decides(gain, other, holds):
    columns = gains(gain, other)
    finding = finding_of(GAIN, **columns)
    difference = (columns["a+"] - columns["a"]) - (columns["b+"] - columns["b"])
    low, high = stats.t.interval(
        0.95, len(difference) - 1, difference.mean(), stats.sem(difference)
    )
    assert finding.holds is holds
    assert finding.measured == pytest.approx(difference.mean())
    assert (low > 0) == (holds is True)
    assert (high <= 0) == (holds is False)
    assert "a+ gains" in finding.why
    assert finding.sentence.startswith("Undecided. ") == (holds is None)


def test_gains_leave_out_trials_without_a_number():
    columns = gains(2.0, 1.0)
    whole = finding_of(GAIN, **{name: values[1:] for name, values in columns.items()})
    columns["b"][0] = NAN
    assert finding_of(GAIN, **columns) == whole


# --- Both and Every ---------------------------------------------------------------------------

HOLDS = TrialShare("loss", "a", "below", 1)
FAILS = TrialShare("loss", "b", "below", 1)


@pytest.mark.parametrize("negated", [False, True])
def test_both(negated):
    given = evidence(a=[0.0] * 5, b=[2.0] * 5)
    for first, second in itertools.product((HOLDS, FAILS), repeat=2):
        finding = Both(first, second, negated=negated).judge(given)
        a, b = first.judge(given), second.judge(given)
        holds = a.holds and b.holds is not negated
        assert finding == Finding(holds, a.measured, f"{a.why} {b.why}")


def test_both_undecided_where_one_is():
    sure = TrialShare("loss", "a", "below", 10, fewest=1)
    wrong = TrialShare("loss", "a", "above", 10, fewest=1)
    columns = {"a": [1, 2], "b": [3, 4]}
    assert finding_of(sure, **columns).holds is True
    assert finding_of(Both(LOWER, wrong), **columns).holds is False
    assert finding_of(Both(LOWER, sure), **columns).holds is None
    assert finding_of(Both(sure, LOWER, negated=True), **columns).holds is None


def test_every():
    both = Every((Average("loss", "a", "above", 90.0), Average("loss", "b", "above", 90.0)))
    good, bad, wild = 95 + NOISE, 50 + NOISE, 90 + 100 * NOISE
    assert finding_of(both, a=good, b=good).holds is True
    assert finding_of(both, a=good, b=bad).holds is False
    unclear = finding_of(both, a=good, b=wild)
    assert unclear.holds is None
    assert unclear.sentence.startswith("Undecided. a: mean 95")
    assert unclear.sentence.count("Undecided") == 1
    few = finding_of(both, a=good[:3], b=good)
    assert few.sentence.startswith("Too few trials to tell. a: mean")
    half = finding_of(both, a=good)
    assert (half.holds, half.measured) == (None, 0.5)
    assert "1 of 2 parts have no numbers here" in half.why
    assert finding_of(both, a=bad).holds is False


# --- Judging a table --------------------------------------------------------------------------

CLAIM = Claim("low", "It is low.", BELOW, "x")
ABSENT = Claim("absent", "It is not here.", TrialShare("loss", "z", "below", 1), "x")


def ledger(claims, given, variants=("",)):
    return judge(claims, given, study="toy", variants=variants, sources={"x": "A paper"})


def test_a_judgement():
    ours = msgspec.structs.replace(CLAIM, source="here")
    line, own, none = ledger([CLAIM, ours, ABSENT], evidence(a=[0.5] * 6))
    assert "6 of 6" in line.why
    assert line == Judgement(
        *("toy/low", "A paper", "It is low.", "", "mean 0.5", 1.0, "holds", line.why)
    )
    assert own.published is None  # nothing is, of what only we claim
    assert (none.verdict, none.measured) == ("not measured", None)
    assert none.why == "This run has no numbers for it."


def test_each_claim_is_put_to_each_variant_and_those_about_the_run_come_last():
    trials = {(v, "a", "loss"): np.full(6, level) for v, level in (("raw", 0.5), ("even", 2.0))}
    given = Evidence(trials, {}, lambda *_: None)
    across = msgspec.structs.replace(
        CLAIM, key="across", each=False, predicate=Lower("loss", "a (raw)", "a (even)")
    )
    only = msgspec.structs.replace(CLAIM, key="only", on=("raw",))
    absent = msgspec.structs.replace(CLAIM, key="absent", only=("b",))
    lines = ledger([across, CLAIM, only, absent], given, ("raw", "even"))
    assert [(line.id, line.data, line.verdict) for line in lines] == [
        ("toy/low/raw", "raw", "holds"),
        ("toy/only/raw", "raw", "holds"),
        ("toy/low/even", "even", "fails"),
        ("toy/across", "", "holds"),
    ]


def test_needs_that_are_not_met_say_which():
    claim = msgspec.structs.replace(CLAIM, needs={"solver": "newton"})
    (line,) = ledger([claim], evidence(a=[0.5] * 6, facts={"solver": "adam"}))
    assert (line.verdict, line.measured) == ("not measured", None)
    assert line.why == "Needs a run with solver newton."
    assert line.published == "mean 0.5"
    (line,) = ledger([claim], evidence(a=[0.5] * 6, facts={"solver": "newton"}))
    assert line.verdict == "holds"


def test_an_undecided_claim_says_how_many_trials_like_these_would_decide_it():
    near = Claim("near", "It is small.", Average("loss", "a", "below", 0.5), "x")
    values = np.array([0.2, 0.4, 0.9, 0.1, 0.3, 0.6])
    (line,) = ledger([near], evidence(a=values))
    assert (line.verdict, line.trials_to_decide) == ("undecided", 48)
    assert is_a_text(line.why).endswith("About 48 trials like these would decide it.")
    for times, decided in ((6, False), (8, True)):  # the last number that is tried before
        many = np.tile(values, times)
        high = stats.t.interval(0.95, len(many) - 1, many.mean(), stats.sem(many))[1]
        assert (high < 0.5) == decided
    (line,) = ledger([near], evidence(a=np.tile(values, 8)))
    assert (line.verdict, line.trials_to_decide) == ("holds", None)


@pytest.mark.parametrize("values", [[0.4, 0.5, 0.6, 0.5, 0.5], [0.2], [0.2, 0.3]])
def test_no_number_of_trials_is_made_up(values):
    near = Claim("near", "It is small.", Average("loss", "a", "below", 0.5), "x")
    (line,) = ledger([near], evidence(a=values))
    assert (line.verdict, line.trials_to_decide) == ("undecided", None)
    assert "would decide" not in line.why


class Counted(Lower, frozen=True):
    """Holds, and notes the numbers of trials that it is put to."""

    counts: list[int]

    def _find(self, a, b):
        self.counts.append(len(a))
        return Finding(True, 1.0, "It holds.", len(a))


def test_trials_are_not_repeated_if_only_a_missing_part_is_open():
    here = Counted("loss", "a", "b", counts=[])
    both = Every((here, Lower("loss", "a", "z")))
    for claim in (both, Every((both, here)), Both(both, here)):
        here.counts.clear()
        (line,) = ledger([Claim("all", "All hold.", claim)], evidence(a=[1] * 200, b=[2] * 200))
        assert (line.verdict, line.trials_to_decide) == ("undecided", None)
        assert set(here.counts) == {200}
        assert len(here.counts) <= 2


def test_no_more_than_2000_trials_are_repeated():
    """Few trials may be behind the part that is open, and many behind the others."""
    here = Counted("loss", "a", "b", counts=[])
    near = Average("loss", "c", "below", 0.5)
    values = [0.4, 0.5, 0.6, 0.5, 0.5] + [NAN] * 195
    given = evidence(a=[1] * 200, b=[2] * 200, c=values)
    (line,) = ledger([Claim("all", "All hold.", Every((here, near)))], given)
    assert (line.verdict, line.trials_to_decide) == ("undecided", None)
    assert max(here.counts) == 2000
    beside = Evidence({**given.trials, ("x", "a", "loss"): np.ones(9000)}, {}, given.published_mean)
    assert (given.longest, beside.on("").longest, beside.longest) == (200, 200, 9000)


# --- The tables of the studies ----------------------------------------------------------------


def simple(predicate):
    """Return the simple predicates that a predicate is made of."""
    if isinstance(predicate, Both):
        return [*simple(predicate.first), *simple(predicate.second)]
    if isinstance(predicate, Every):
        return [part for one in predicate.parts for part in simple(one)]
    return [predicate]


@pytest.fixture
def full(study):
    """The full protocol of a study, whose claims may be about all of its models and data."""
    return load_study(study), load_study(study).config.with_defaults(published=True)


EVIDENCE = {"perturbation": {"lost"}, "detect": {"rank"}}
"""Metrics that a study computes for its claims alone."""


def test_statements_are_sentences_about_metrics_of_the_study(full):
    study, config = full
    known = {*study.metrics, *EVIDENCE.get(study.name, ())}
    for claim in study.claims_of(config):
        assert claim.statement.endswith(".")
        assert claim.source in SOURCES
        for part in simple(claim.predicate):
            assert part.metric in known


def test_numbers_decide_and_their_lack_does_not(full, finished):
    """With one number everywhere no claim is unheard of; with none, none is decided."""
    study, config = full
    facts = finished(study.name).summary["facts"]
    variants = study.asked or tuple(map(variant_name, study.variants(config)))
    names = {
        (variant, getattr(part, field))
        for claim in study.claims_of(config)
        for part in simple(claim.predicate)
        for field in ("model", "than", "base", "than_base")
        if hasattr(part, field)
        for variant in (variants if claim.each else ("",))
    }
    predicates = {claim.key: claim.predicate for claim in study.claims_of(config)}
    for trials, value in ((0, 0.5), (1, 0.5), (6, NAN)):
        given = Evidence(
            {(*name, m): np.full(trials, value) for name in names for m in study.metrics},
            facts,
            lambda metric, model, variant: None,
        )
        lines = judge(
            study.claims_of(config), given, study=study.name, variants=variants, sources=SOURCES
        )
        for line in lines:
            is_a_text(line.why)
            if trials == 6 and line.verdict == "fails":
                # Trials without a value are misses in a share of all trials.
                key = line.id.split("/")[1]
                assert any(isinstance(part, TrialShare) for part in simple(predicates[key]))
            elif trials != 1:
                assert line.verdict == "not measured"
            else:
                assert line.measured is None or math.isfinite(line.measured)
