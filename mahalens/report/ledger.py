"""Claims by what they state: those put to several parts of a run share one statement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# "(raw pixels)" or "(on digits)" at the end says which part of the run a claim is put to.
_PUT_TO = re.compile(
    r"(?P<stated>.*) \((?:(?P<pixels>\w+) pixels|on (?P<data>[\w-]+))\)\.", re.DOTALL
)


@dataclass(frozen=True)
class Statement:
    """A statement with its claims, by the part of the run each was put to ("" for the whole)."""

    key: str
    source: str
    text: str
    claims: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def split(claim: Mapping[str, Any]) -> tuple[str, str, str]:
    """Key, statement and part of a claim.

    >>> split({"id": "003/relu2-fails/raw", "statement": "ReLU2 fails (raw pixels)."})
    ('003/relu2-fails', 'ReLU2 fails.', 'raw')
    >>> split({"id": "000/abs", "statement": "Abs wins."})
    ('000/abs', 'Abs wins.', '')
    >>> split({"id": "hybrid/half/iris", "statement": "Half does (on iris)."})
    ('hybrid/half', 'Half does.', 'iris')
    """
    name, stated = str(claim["id"]), str(claim["statement"])
    found = _PUT_TO.fullmatch(stated)
    part = (found["pixels"] or found["data"]) if found else ""
    if found is None or not name.endswith(f"/{part}"):
        return name, stated, ""
    return name.removesuffix(f"/{part}"), f"{found['stated']}.", part


def statements(claims: Iterable[Mapping[str, Any]]) -> list[Statement]:
    """The statements of a run, in the order in which they are first met."""
    found: dict[str, Statement] = {}
    for claim in claims:
        key, text, part = split(claim)
        found.setdefault(key, Statement(key, str(claim["source"]), text)).claims[part] = claim
    return list(found.values())


def state_of(claim: Mapping[str, Any]) -> str:
    """The verdict in a word or two: what was measured but left open is told apart.

    >>> state_of({"verdict": "not measured", "why": "Undecided. Mean 4."}), state_of(
    ...     {"verdict": "holds", "why": ""})
    ('undecided', 'holds')
    """
    why = str(claim.get("why") or "")
    open_still = any(word in why.lower() for word in ("undecided", "too few trials"))
    undecided = claim["verdict"] == "not measured" and open_still
    return "undecided" if undecided else str(claim["verdict"])
