"""Claims of the sources: data, with verdicts that are computed from runs and never typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from mahalens.studies.evidence import Evidence
from mahalens.studies.predicates import Predicate, is_finite

Verdict = Literal["holds", "fails", "not measured"]


class Claim(msgspec.Struct, frozen=True):
    """A statement of a source, and the predicate that decides it.

    ``needs`` lists facts the run must have for the claim to apply, such as the solver.
    """

    id: str
    source: str
    statement: str
    predicate: Predicate
    needs: dict[str, str] = {}


class Judgement(msgspec.Struct, frozen=True):
    """One line of the ledger, as ``summary.json`` holds it."""

    id: str
    source: str
    statement: str
    published: str | None
    measured: float | None
    verdict: Verdict
    why: str


def judge(claims: Sequence[Claim], evidence: Evidence) -> list[Judgement]:
    """Put every claim to the evidence of one run."""
    return [_judge(claim, evidence) for claim in claims]


def _judge(claim: Claim, evidence: Evidence) -> Judgement:
    # Of our own claims nothing was published, though their parts may have figures.
    published = None if claim.source == "here" else claim.predicate.published(evidence)
    missing = [
        f"{fact} {wanted}" for fact, wanted in claim.needs.items() if evidence.facts[fact] != wanted
    ]
    finding = None if missing else claim.predicate.judge(evidence)
    if finding is None:
        needed = f"Needs a run with {' and '.join(missing)}."
        why = needed if missing else "This run has no numbers for it."
        measured, verdict = None, "not measured"
    else:
        why = finding.why
        measured = None if finding.holds is None else is_finite(finding.measured)
        verdicts = {True: "holds", False: "fails", None: "not measured"}
        verdict = verdicts[finding.holds]
    return msgspec.convert(
        {
            "id": claim.id,
            "source": claim.source,
            "statement": claim.statement,
            "published": published,
            "measured": measured,
            "verdict": verdict,
            "why": why,
        },
        Judgement,
    )
