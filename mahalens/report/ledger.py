"""Claims by what they state: those put to several data sets of a run share one statement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Statement:
    """A statement with its claims, by the data set each was put to ("" for the whole run)."""

    key: str
    source: str
    text: str
    claims: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def statements(claims: Iterable[Mapping[str, Any]]) -> list[Statement]:
    """Return the statements of a run, in the order in which they are first met."""
    ledger: dict[str, Statement] = {}
    for claim in claims:
        data = str(claim.get("data", ""))
        key = str(claim["id"]).removesuffix(f"/{data}")
        statement = Statement(key, str(claim["source"]), str(claim["statement"]))
        ledger.setdefault(key, statement).claims[data] = claim
    return list(ledger.values())


# Before claims had the field, "(raw pixels)" or "(on digits)" ended the statement.
_PUT_TO = re.compile(
    r"(?P<stated>.*) \((?:(?P<pixels>\w+) pixels|on (?P<data>[\w-]+))\)\.", re.DOTALL
)


def upgrade(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return a claim of an earlier version in today's form: with its data set and all verdicts.

    Earlier versions wrote the data set into the statement, and "not measured" for what was
    measured but is undecided.

    >>> old = {"id": "003/fails/raw", "statement": "It fails (raw pixels).", "why": "Undecided. 1."}
    >>> new = upgrade(old | {"verdict": "not measured"})
    >>> new["statement"], new["data"], new["verdict"]
    ('It fails.', 'raw', 'undecided')
    """
    if "data" in claim:
        return dict(claim)
    match = _PUT_TO.fullmatch(str(claim["statement"]))
    data = (match["pixels"] or match["data"]) if match else ""
    new = {**claim, "data": ""}
    if match and str(claim["id"]).endswith(f"/{data}"):
        new |= {"data": data, "statement": f"{match['stated']}."}
    opened = str(claim.get("why") or "").startswith(("Undecided", "Too few trials"))
    if claim["verdict"] == "not measured" and opened:
        new["verdict"] = "undecided"
    return new
