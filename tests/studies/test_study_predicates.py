"""Each kind of statement on hand-made evidence: holds, fails, cannot be said."""

import math

import numpy as np
import pytest
from scipy import stats

from mahalens.studies.claims import (
    AboveChance,
    Average,
    Both,
    Evidence,
    Finding,
    Lower,
    Ratio,
    TrialShare,
    is_finite,
    show,
)

NAN, INF = math.nan, math.inf
FIGURES = {("loss", "a"): 0.5, ("loss", "b"): 1.25}


def evidence(basins=None, facts=None, **columns):
    """Evidence of a metric "loss" by model."""
    return Evidence(
        trials={(model, "loss"): np.array(values, float) for model, values in columns.items()},
        facts={"dim": 4, "word": "ten", "chance": [0.5, 0.7], **(facts or {})},
        published=lambda metric, model: FIGURES.get((metric, model)),
        basins=basins or {},
    )


def is_a_text(why):
    """Sentences for people: closed, on one line, without the words of a computer."""
    assert why.endswith(".")
    assert why == " ".join(why.split())
    assert "nan" not in why.lower().split()
    assert "None" not in why
    return why


# Evidence


def test_values_are_none_where_no_trial_has_a_number():
    given = evidence(a=[1, NAN], b=[NAN, NAN], c=[INF, NAN])
    np.testing.assert_array_equal(given.values("a", "loss"), [1, NAN])
    assert given.values("b", "loss") is None
    assert given.values("c", "loss") is None
    assert given.values("z", "loss") is None
    assert given.values("a", "other") is None


def test_a_fact_that_is_no_number():
    assert evidence().number("dim") == 4.0
    with pytest.raises(TypeError, match="fact 'word' is 'ten', not a number"):
        evidence().number("word")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.122, "0.122"), (1234.5, "1.23e3"), (9.1e-7, "9.1e-7"), (1e-12, "1e-12")],
)
def test_numbers_in_sentences(value, text):
    assert show(value) == text


def test_is_finite():
    assert is_finite(0.25) == 0.25
    assert is_finite(NAN) is is_finite(INF) is is_finite(-INF) is None


# Lower


def test_lower_holds_by_the_signed_rank_test():
    a, b = [1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12]
    finding = Lower("loss", "a", "b").judge(evidence(a=a, b=b))
    assert finding.holds
    assert finding.measured == 1.0
    p = stats.wilcoxon(a, b, alternative="less").pvalue
    assert is_a_text(finding.why) == (
        f"a averages 3.5, b 7; lower in 6 of 6 trials, one-sided Wilcoxon p = {show(p)}."
    )


@pytest.mark.parametrize(
    ("a", "b", "share"),
    [
        ([2, 4, 6, 8, 10, 12], [1, 2, 3, 4, 5, 6], 0.0),  # the other way round
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], 0.0),  # equal
        ([1, 9, 1, 9, 1, 9], [2, 8, 2, 8, 2, 8], 0.5),  # undecided
        ([1], [2], 1.0),  # one trial decides nothing
        ([1, 1, 1], [2, 2, 2], 1.0),  # nor do three
    ],
    ids=str,
)
def test_lower_fails(a, b, share):
    finding = Lower("loss", "a", "b").judge(evidence(a=a, b=b))
    assert not finding.holds
    assert finding.measured == share
    is_a_text(finding.why)


@pytest.mark.parametrize(("trials", "holds"), [(1, None), (4, None), (5, True)])
def test_lower_with_few_trials_decides_nothing(trials, holds):
    finding = Lower("loss", "a", "b").judge(evidence(a=range(trials), b=range(10, 10 + trials)))
    assert finding.holds is holds
    assert is_a_text(finding.sentence).startswith("Too few trials to tell.") == (holds is None)


def test_lower_speaks_of_the_trials_that_both_models_have():
    a, b = [1, 2, 3, 4, 5, 6, NAN, 8], [2, 4, 6, 8, 10, 12, 1e9, NAN]
    finding = Lower("loss", "a", "b").judge(evidence(a=a, b=b))
    assert finding == Lower("loss", "a", "b").judge(evidence(a=a[:6], b=b[:6]))
    assert finding.holds
    assert "b 7;" in finding.why


@pytest.mark.parametrize(
    "columns",
    [{"a": [1]}, {"b": [1]}, {}, {"a": [1], "b": [NAN]}, {"a": [1, NAN], "b": [NAN, 1]}],
    ids=str,
)
def test_lower_not_measured(columns):
    assert Lower("loss", "a", "b").judge(evidence(**columns)) is None


def test_lower_published():
    assert Lower("loss", "a", "b").published(evidence()) == "0.5 against 1.25"
    assert Lower("loss", "a", "z").published(evidence()) is None
    assert Lower("other", "a", "b").published(evidence()) is None


# TrialShare


@pytest.mark.parametrize(
    ("side", "values", "share"),
    [
        ("below", [0.0] * 9 + [5], 0.9),
        ("below", [0.0] * 18 + [5, 5], 0.9),
        ("below", [0.5], 1.0),
        ("above", [2.0] * 9 + [0], 0.9),
        ("above", [INF, 2], 1.0),
    ],
)
def test_share_holds(side, values, share):
    finding = TrialShare("loss", "a", side, 1.0, fewest=1).judge(evidence(a=values))
    assert finding.holds
    assert finding.measured == pytest.approx(share)
    why = is_a_text(finding.why)
    k, n = round(share * len(values)), len(values)
    assert why.lower().startswith(f"{side} 1 in {k} of {n} trials (")
    assert "wanted in 90%" in why


@pytest.mark.parametrize(
    ("side", "values", "share"),
    [
        ("below", [0.0] * 8 + [5, 5], 0.8),
        ("below", [1.0], 0.0),  # at the bound is not below it
        ("above", [1.0], 0.0),
        ("below", [0.0, 0, NAN], 2 / 3),  # a trial without a value is none that does
        ("below", [NAN, 5, NAN], 0.0),
        ("above", [NAN, 5, NAN], 1 / 3),
        ("below", [-INF, INF, 0], 2 / 3),
    ],
)
def test_share_fails(side, values, share):
    finding = TrialShare("loss", "a", side, 1.0, fewest=1).judge(evidence(a=values))
    assert finding.holds is False
    assert finding.measured == pytest.approx(share)
    is_a_text(finding.why)


def test_share_states_the_wilson_interval():
    low, high = stats.binomtest(14, 20).proportion_ci(method="wilson")
    finding = TrialShare("loss", "a", "below", 1, share=0.5).judge(evidence(a=[0] * 14 + [2] * 6))
    assert finding.holds
    assert f"({low:.0%} to {high:.0%} with 95 % confidence)" in finding.why
    assert "wanted in 50%; median 0." in finding.why


def test_share_says_where_the_trials_lie_that_miss():
    basins = {"a": ["zero residual", "local minimum", "zero residual", "zero residual", "stalled"]}
    predicate = TrialShare("loss", "a", "below", 1)
    why = is_a_text(predicate.judge(evidence(basins, a=[0, 5, 5, 5, NAN])).why)
    assert why.endswith(
        "Of the 4 that miss: 2 in the basin of the perfect fit, 1 at a local minimum, 1 stalled."
    )
    assert "that miss" not in predicate.judge(evidence(basins, a=[0] * 5)).why
    assert "that miss" not in predicate.judge(evidence({"a": [""] * 2}, a=[5, 5])).why
    assert "that miss" not in predicate.judge(evidence({"b": ["stalled"]}, a=[5])).why


def test_share_not_measured():
    assert TrialShare("loss", "a", "below", 1).judge(evidence(b=[1])) is None
    assert TrialShare("loss", "a", "below", 1).judge(evidence(a=[NAN, NAN])) is None


def test_share_published():
    assert TrialShare("loss", "a", "below", 1).published(evidence()) == "mean 0.5"
    assert TrialShare("loss", "z", "below", 1).published(evidence()) is None


# Average


def interval(values):
    values = np.array(values, float)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return values.mean() - half, values.mean() + half


@pytest.mark.parametrize(
    ("side", "bound", "holds"),
    [
        ("below", "above all", True),
        ("below", "inside", None),
        ("below", "below all", False),
        ("above", "below all", True),
        ("above", "inside", None),
        ("above", "above all", False),
    ],
)
def test_average_is_decided_by_its_whole_interval(side, bound, holds):
    values = [1.0, 1.5, 2.0, 2.5, 3.0]
    low, high = interval(values)
    bound = float({"above all": high + 0.01, "inside": 2.1, "below all": low - 0.01}[bound])
    finding = Average("loss", "a", side, bound).judge(evidence(a=values))
    assert finding.holds is holds
    assert finding.measured == 2.0
    assert is_a_text(finding.sentence) == (
        ("Undecided. " if holds is None else "")
        + f"Mean 2, 95 % interval {show(low)} to {show(high)}; wanted {side} {show(bound)}."
    )


@pytest.mark.parametrize(("trials", "holds"), [(1, None), (4, None), (5, True)])
def test_few_trials_decide_nothing(trials, holds):
    given = evidence(a=[0.95] * trials)
    for predicate in (
        TrialShare("loss", "a", "below", 1),
        Average("loss", "a", "below", 1),
        AboveChance("loss", "a", 0.9, "chance"),
    ):
        finding = predicate.judge(given)
        assert finding.holds is holds
        assert is_a_text(finding.sentence).startswith("Too few trials to tell.") == (holds is None)
    assert TrialShare("loss", "a", "below", 1, fewest=1).judge(given).holds is True


def test_average_in_units_of_a_fact():
    finding = Average("loss", "a", "below", 1, per="dim").judge(evidence(a=[2.0] * 5 + [NAN]))
    assert finding.holds
    assert finding.measured == 0.5
    assert is_a_text(finding.why).startswith("Mean 0.5 of the ")
    assert Average("loss", "b", "below", 1, per="dim").published(evidence()) == "mean 0.312"
    assert Average("loss", "b", "below", 1).published(evidence()) == "mean 1.25"
    assert Average("loss", "z", "below", 1).published(evidence()) is None


def test_average_of_one_trial_claims_no_interval():
    for values in ([0.5], [0.5, NAN]):
        finding = Average("loss", "a", "below", 1).judge(evidence(a=values))
        assert finding.measured == 0.5
        assert "95 %" not in is_a_text(finding.why)
        assert "single trial" in finding.why


def test_average_not_measured():
    predicate = Average("loss", "a", "below", 1, per="dim")
    assert predicate.judge(evidence(b=[1])) is None
    assert predicate.judge(evidence(a=[NAN])) is None
    assert predicate.judge(evidence(a=[1.0, 2.0], facts={"dim": 0})) is None  # no unit to speak in


# AboveChance


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
    predicate = AboveChance("loss", "a", 0.9, "chance")
    finding = predicate.judge(evidence(a=values, facts={"chance": chance}))
    assert finding.holds is holds
    assert finding.measured == pytest.approx(np.mean(values))
    assert f"{show(chance[0])} to {show(chance[1])}" in is_a_text(finding.why)
    assert predicate.published(evidence()) is None


def test_above_chance_of_one_trial_claims_no_interval():
    finding = AboveChance("loss", "a", 0.9, "chance").judge(evidence(a=[0.95]))
    assert "95 %" not in is_a_text(finding.why)


def test_above_chance_not_measured():
    predicate = AboveChance("loss", "a", 0.9, "chance")
    assert predicate.judge(evidence(b=[1])) is None
    assert predicate.judge(evidence(a=[1], facts={"chance": None})) is None
    assert AboveChance("loss", "a", 0.9, "luck").judge(evidence(a=[1])) is None


# Both


HOLDS = TrialShare("loss", "a", "below", 1)
FAILS = TrialShare("loss", "b", "below", 1)
GIVEN = {"a": [0.0] * 5, "b": [2.0] * 5}


@pytest.mark.parametrize(
    ("first", "second", "negated", "holds"),
    [
        (HOLDS, HOLDS, False, True),
        (HOLDS, FAILS, False, False),
        (FAILS, HOLDS, False, False),
        (FAILS, FAILS, False, False),
        (HOLDS, HOLDS, True, False),
        (HOLDS, FAILS, True, True),
        (FAILS, HOLDS, True, False),
        (FAILS, FAILS, True, False),
    ],
)
def test_both(first, second, negated, holds):
    given = evidence(**GIVEN)
    finding = Both(first, second, negated=negated).judge(given)
    a, b = first.judge(given), second.judge(given)
    assert finding == Finding(holds, a.measured, f"{a.why} {b.why}")
    is_a_text(finding.why)


def test_both_undecided_where_one_is():
    few = Lower("loss", "a", "b")
    sure = TrialShare("loss", "a", "below", 10, fewest=1)
    given = evidence(a=[1, 2], b=[3, 4])
    wrong = TrialShare("loss", "a", "above", 10, fewest=1)
    assert Both(few, wrong).judge(given).holds is False
    assert sure.judge(given).holds is True
    assert Both(few, sure).judge(given).holds is None
    assert Both(sure, few, negated=True).judge(given).holds is None


def test_both_not_measured_and_published():
    assert Both(HOLDS, FAILS).judge(evidence(a=[1])) is None
    assert Both(HOLDS, FAILS, negated=True).judge(evidence(b=[1])) is None
    assert Both(HOLDS, FAILS).published(evidence()) == "mean 0.5"


# Lower, between holding and failing


@pytest.mark.parametrize(
    ("a", "holds"),
    [
        ([1, 1, 1, 1, 1], True),  # five of five: p = 0.031
        ([1, 1, 1, 1, 9], None),  # most of them, but not significantly
        ([1, 1, 1, 9, 9], None),
        ([1, 1, 9, 9, 9], False),  # at most half
        ([9, 9, 9, 9, 9], False),
        ([1, 1, 1, 1], None),  # too few
    ],
)
def test_lower_in_most_trials_decides_nothing(a, holds):
    values = [value + 0.01 * i for i, value in enumerate(a)]
    finding = Lower("loss", "a", "b").judge(evidence(a=values, b=[5.0] * len(a)))
    assert finding.holds is holds
    assert is_a_text(finding.sentence).startswith("Undecided") == (holds is None and len(a) >= 5)


# Ratio


def test_a_ratio_is_the_geometric_mean_with_its_interval():
    a, b = np.array([1.0, 2.0, 4.0, 2.0, 2.0]), np.array([10.0, 10.0, 10.0, 5.0, 20.0])
    finding = Ratio("loss", "a", "b", "below", 0.5).judge(evidence(a=a, b=b))
    logs = np.log(a / b)
    assert finding.measured == pytest.approx(stats.gmean(a / b))
    low, high = stats.t.interval(0.95, 4, logs.mean(), stats.sem(logs))
    assert f"{show(math.exp(low))} to {show(math.exp(high))}" in is_a_text(finding.why)
    assert finding.holds is bool(math.exp(high) < 0.5)


@pytest.mark.parametrize(
    ("side", "bound", "holds"),
    [
        ("below", 0.5, True),
        ("below", 0.05, False),
        ("below", 0.2, None),
        ("above", 0.05, True),
        ("above", 0.5, False),
        ("above", 0.2, None),
    ],
)
def test_a_ratio_holds_fails_or_is_undecided_by_its_interval(side, bound, holds):
    given = evidence(a=[1.8, 2.2, 2.0, 1.9, 2.1], b=[10.0] * 5)
    assert Ratio("loss", "a", "b", side, bound).judge(given).holds is holds


def test_a_ratio_needs_positive_numbers_and_enough_trials():
    predicate = Ratio("loss", "a", "b", "below", 0.5)
    assert predicate.judge(evidence(a=[1.0] * 5)) is None
    assert predicate.judge(evidence(a=[0.0] * 5, b=[1.0] * 5)) is None
    few = predicate.judge(evidence(a=[0.1, 0.2], b=[1.0, 1.0]))
    assert few.holds is None
    assert is_a_text(few.sentence).startswith("Too few trials")
    one = predicate.judge(evidence(a=[0.1], b=[1.0]))
    assert one.holds is None
    is_a_text(one.why)


def test_the_published_ratio():
    assert Ratio("loss", "a", "b", "below", 1.0).published(evidence()) == "0.4"
    assert Ratio("loss", "a", "z", "below", 1.0).published(evidence()) is None
