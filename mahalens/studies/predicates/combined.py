"""Several predicates in one claim."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from mahalens.studies.evidence import Evidence, Finding

if TYPE_CHECKING:
    from mahalens.studies.predicates import Predicate


class Both(msgspec.Struct, frozen=True):
    """Two predicates hold, the second one if ``negated`` fails. ``measured`` is the first's."""

    first: Predicate
    second: Predicate
    negated: bool = False

    def judge(self, evidence: Evidence) -> Finding | None:
        """Judge both."""
        a, b = self.first.judge(evidence), self.second.judge(evidence)
        if a is None or b is None:
            return None
        parts = (a.holds, b.holds if b.holds is None else b.holds != self.negated)
        holds = False if False in parts else None if None in parts else True
        return Finding(holds, a.measured, _together(holds, [a.why, b.why]))

    def published(self, evidence: Evidence) -> str | None:
        """What was published about the first."""
        return self.first.published(evidence)


class Every(msgspec.Struct, frozen=True):
    """All predicates hold; it fails if one does. ``measured`` is the share that hold."""

    parts: tuple[Predicate, ...]

    def judge(self, evidence: Evidence) -> Finding | None:
        """Judge each; what was not measured is left out if something else was."""
        findings = [(part, part.judge(evidence)) for part in self.parts]
        known = [finding for _, finding in findings if finding is not None]
        if not known:
            return None
        outcomes = [finding.holds for finding in known]
        holds = False if False in outcomes else None if None in outcomes else True
        if holds and len(known) < len(self.parts):
            holds = None
        share = sum(outcome is True for outcome in outcomes) / len(self.parts)
        missing = len(self.parts) - len(known)
        told = f" {missing} of {len(self.parts)} parts have no numbers here." if missing else ""
        whys = [_named(part, finding.why) for part, finding in findings if finding is not None]
        return Finding(holds, share, _together(holds, whys) + told)

    def published(self, evidence: Evidence) -> str | None:
        """What was published about each."""
        figures = [part.published(evidence) for part in self.parts]
        return "; ".join(figure for figure in figures if figure) or None


_OPEN = ("Too few trials to tell. ", "Undecided. ")


def _together(holds: bool | None, whys: list[str]) -> str:
    """Several reasons as one; if the whole is open, that is said first, and once."""
    plain, opened = [], []
    for why in whys:
        start = next((word for word in _OPEN if why.startswith(word)), "")
        opened.append(start)
        plain.append(why.removeprefix(start))
    first = next((word for word in _OPEN if word in opened), "Undecided. ")
    return (first if holds is None else "") + " ".join(plain)


def _named(part: Predicate, why: str) -> str:
    """A reason that says whose it is, for where there are several."""
    model = getattr(part, "model", None)
    if model is None or re.search(rf"(?<!\w){re.escape(model)}(?!\w)", why):
        return why
    start = next((word for word in _OPEN if why.startswith(word)), "")
    rest = why.removeprefix(start)
    return f"{start}{model}: {rest[0].lower()}{rest[1:]}"
