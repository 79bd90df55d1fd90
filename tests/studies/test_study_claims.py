"""Claims as data: their verdicts come from evidence and from nowhere else."""

import math

import msgspec
import numpy as np
import pytest

from mahalens.studies.claims import Both, Claim, Evidence, Judgement, TrialShare, judge
from mahalens.studies.gaussian.claims import CLAIMS
from mahalens.studies.gaussian.config import MODELS, SOLVERS
from mahalens.studies.gaussian.metrics import METRICS
from mahalens.studies.gaussian.published import published_mean

NAN = math.nan


def parts(predicate):
    """The simple predicates a predicate is made of."""
    if isinstance(predicate, Both):
        return [*parts(predicate.first), *parts(predicate.second)]
    return [predicate]


def evidence(solver="adam", number=lambda model, metric: 0.5, trials=6, models=tuple(MODELS)):
    return Evidence(
        trials={
            (model, metric): np.array([number(model, metric)] * trials)
            for model in models
            for metric in METRICS
        },
        facts={
            "dim": 2,
            "solver": solver,
            "target_variance": 0.4,
            "row_cosine_chance": [0.7, 0.99],
        },
        published=lambda metric, model: published_mean(metric, model, 2),
    )


def verdicts(given):
    return {line.id: line.verdict for line in judge(CLAIMS, given)}


def test_ids_are_unique_and_name_their_source():
    ids = [claim.id for claim in CLAIMS]
    assert len(set(ids)) == len(ids)
    for claim in CLAIMS:
        assert claim.id.startswith(f"{claim.source}/")
        assert claim.source in ("000", "001")
        assert claim.statement.endswith(".")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_speak_of_metrics_models_and_facts_that_exist(claim):
    facts = evidence().facts
    for part in parts(claim.predicate):
        assert part.metric in METRICS
        named = {part.model, getattr(part, "than", part.model)}
        assert named <= set(MODELS)
        for fact in (getattr(part, "per", None), getattr(part, "chance", None)):
            assert fact is None or fact in facts
    assert all(fact in facts for fact in claim.needs)
    assert claim.needs.get("solver", "adam") in SOLVERS


@pytest.mark.parametrize(
    "wanted",
    [
        "000/abs-beats-sigmoid",
        "000/relu-beats-sigmoid",
        "000/abs-recovers-precision-adam",
        "000/abs-recovers-precision-newton",
        "000/relu-units-pair-up",
        "000/abs-hyperplanes-through-mean",
        "000/relu-hyperplanes-through-mean",
        "000/eigenvectors-are-rows",
    ],
)
def test_the_claims_that_were_asked_for(wanted):
    assert wanted in {claim.id for claim in CLAIMS}


def test_a_verdict_is_never_typed():
    assert "verdict" not in Claim.__struct_fields__
    assert "measured" not in Claim.__struct_fields__
    # The same claims come out differently for different numbers.
    low, high = verdicts(evidence(number=lambda *_: 1e-9)), verdicts(evidence(number=lambda *_: 9))
    for claim in CLAIMS:
        if any(hasattr(part, "side") for part in parts(claim.predicate)):
            assert (low[claim.id] != high[claim.id]) or low[claim.id] == "not measured"


def test_every_claim_can_hold_fail_and_go_unmeasured():
    def numbers(good):
        """Numbers that speak for all claims at once, or against them."""

        def number(model, metric):
            if metric in ("row_cosine", "gram_cosine"):
                return 0.5
            if model == "sigmoid" or metric == "mirrored_pairs":
                return 2.0 if good else 0.0
            return 1e-9 if good else 5.0

        return number

    with_adam = verdicts(evidence("adam", numbers(True)))
    with_newton = verdicts(evidence("newton", numbers(True)))
    assert with_adam["000/abs-recovers-precision-adam"] == "holds"
    assert with_adam["000/abs-recovers-precision-newton"] == "not measured"
    assert with_newton["000/abs-recovers-precision-newton"] == "holds"
    assert with_newton["000/abs-recovers-precision-adam"] == "not measured"
    # Chance reaches the bound in the facts above, so the rows prove nothing; all else holds.
    assert {name for name, verdict in with_adam.items() if verdict == "fails"} == {
        "000/eigenvectors-are-rows"
    }
    against = verdicts(evidence("adam", numbers(False)))
    assert {name for name, verdict in against.items() if verdict == "holds"} == set()
    nothing = verdicts(evidence(number=lambda *_: NAN))
    assert set(nothing.values()) == {"not measured"}


def test_rows_that_are_eigenvectors_beyond_chance():
    def number(model, metric):
        return 0.99 if metric == "row_cosine" else 1e-9

    given = evidence(number=number)
    given = Evidence(
        given.trials, {**given.facts, "row_cosine_chance": [0.1, 0.6]}, given.published
    )
    found = verdicts(given)
    assert found["000/eigenvectors-are-rows"] == "holds"
    assert found["001/whitening-without-principal-components"] == "fails"


CLAIM = Claim("x/a", "x", "It is low.", TrialShare("train_mse", "abs", "below", 1))


def test_a_judgement():
    (line,) = judge([CLAIM], evidence())
    assert line == Judgement(
        id="x/a",
        source="x",
        statement="It is low.",
        data="",
        published="mean 0.122",
        measured=1.0,
        verdict="holds",
        why=line.why,
    )
    assert "6 of 6" in line.why


def test_needs_that_are_not_met_say_which():
    claim = msgspec.structs.replace(CLAIM, needs={"solver": "newton"})
    (line,) = judge([claim], evidence("adam"))
    assert (line.verdict, line.measured) == ("not measured", None)
    assert line.why == "Needs a run with solver newton."
    assert line.published == "mean 0.122"
    (line,) = judge([claim], evidence("newton"))
    assert line.verdict == "holds"


@pytest.mark.parametrize(
    "given",
    [evidence(models=("relu",)), evidence(number=lambda *_: NAN)],
    ids=["model not run", "no trial has a number"],
)
def test_no_numbers(given):
    (line,) = judge([CLAIM], given)
    assert (line.verdict, line.measured) == ("not measured", None)
    assert line.why == "This run has no numbers for it."


def test_one_trial_and_no_trial_give_whole_sentences():
    for given in (evidence(trials=1), evidence(number=lambda *_: NAN), evidence(trials=0)):
        for line in judge(CLAIMS, given):
            assert line.why.endswith(".")
            assert "nan" not in line.why.lower()
            assert line.measured is None or math.isfinite(line.measured)
