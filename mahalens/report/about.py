"""The data of a run, what was scaled down and what to mind, as every table of it must say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mahalens.report.numbers import is_number, number
from mahalens.report.views import view_of

_FEW = 3  # data sets that can be named with their sizes


def about(summary: Mapping[str, Any], brief: bool = False) -> str:
    """A sentence or a few; ``brief`` where the page has told what was scaled and what to mind.

    >>> about({"protocol": "scaled", "scaled": ["trials: 5 instead of 20"],
    ...        "facts": {"data": "digits", "training_samples": 1437, "test_samples": 360}})
    'Data: digits (1,437 training, 360 test samples). Scaled: trials: 5 instead of 20.'
    >>> about({"protocol": "published", "cautions": ["all networks were still learning"]})
    'Published protocol, nothing scaled down. Mind: all networks were still learning.'

    Of a run on several data sets, each of them:

    >>> about({"study": "hybrid", "protocol": "published",
    ...        "facts": {"data": {"iris": {"training_samples": 105}, "wine": {}}}})
    'Data: Iris (105 training samples), Wine. Full protocol, nothing scaled down.'
    >>> about({"protocol": "scaled", "scaled": ["trials: 5 instead of 20"],
    ...        "facts": {"data": "digits"}}, brief=True)
    'Data: digits. Scaled run: the head of this page says what was changed.'
    """
    parts = view_of(str(summary.get("study", ""))).parts
    told = [] if brief else _texts(summary.get("cautions", []))
    cautions = "".join(f" Mind: {text}." for text in told)
    data = f"Data: {sets}. " if (sets := data_line(summary)) else ""
    if summary["protocol"] == "published":
        protocol = parts.protocol if parts else "Published protocol"
        return f"{data}{protocol}, nothing scaled down.{cautions}"
    if brief:
        return f"{data}Scaled run: the head of this page says what was changed."
    scaled = "; ".join(_texts(summary.get("scaled", []))) or "not recorded"
    return f"{data}Scaled: {scaled}.{cautions}"


def data_line(summary: Mapping[str, Any]) -> str:
    """The data of a run in a line; empty if the summary does not say."""
    facts = summary.get("facts", {})
    data = facts.get("data")
    if not isinstance(data, Mapping):
        return f"{data}{_amount(facts)}" if data else ""
    parts = view_of(str(summary.get("study", ""))).parts
    names = {part: parts.title(part) if parts else str(part) for part in data}
    few = len(names) <= _FEW
    told = {part: own if isinstance(own, Mapping) and few else {} for part, own in data.items()}
    return ", ".join(f"{name}{_amount(told[part])}" for part, name in names.items())


def _amount(facts: Mapping[str, Any]) -> str:
    counts = [
        f"{number(facts[name])} {said}"
        for name, said in (("training_samples", "training"), ("test_samples", "test"))
        if is_number(facts.get(name))
    ]
    return f" ({', '.join(counts)} samples)" if counts else ""


def _texts(changes: Iterable[object]) -> list[str]:
    return [str(change) for change in changes]
