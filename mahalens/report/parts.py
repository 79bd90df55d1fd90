"""The parts of a run: one for each kind of pixels, or one for each data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mahalens.report.views import view_of


@dataclass(frozen=True)
class Part:
    """One part, with what the summary says of it; a run without parts is one, without a name.

    ``name`` is that of the records, ``title`` stands at the head of a table, ``phrase`` in the
    middle of a sentence.
    """

    name: str
    title: str
    phrase: str
    summary: dict[str, Any]


def part_name(entry: Mapping[str, Any], study: str) -> str:
    """The part that a row or an outcome belongs to; empty for studies without parts.

    >>> part_name({"group": {"pixels": "raw"}}, "representation"), part_name({}, "hybrid")
    ('raw', '')
    """
    parts = view_of(study).parts
    return str(entry.get("group", {}).get(parts.by, "")) if parts else ""


def parts_of(summary: Mapping[str, Any], also: Iterable[str] = ()) -> list[Part]:
    """The parts of a summary in the order of its rows, then those that only others know of.

    >>> run = {"study": "hybrid", "rows": [], "outcomes": [{"group": {"data": "mnist"}}]}
    >>> [part.title for part in parts_of(run, also=["iris"])]
    ['MNIST', 'Iris']
    """
    study = str(summary["study"])
    view = view_of(study).parts
    if view is None:
        return [Part("", "", "", dict(summary))]
    entries = (*summary["rows"], *summary.get("outcomes", []))
    found = dict.fromkeys([*(part_name(entry, study) for entry in entries), *also])
    return [
        Part(
            name,
            view.title(name) if name else "",
            view.phrase(name) if name else "",
            _of_part(summary, name, study),
        )
        for name in found
    ]


def _of_part(summary: Mapping[str, Any], name: str, study: str) -> dict[str, Any]:
    """What a summary says of one part; claims and what else is about the whole run stay."""

    def own(key: str) -> list[dict[str, Any]]:
        return [entry for entry in summary.get(key, []) if part_name(entry, study) == name]

    facts = dict(summary.get("facts", {}))
    if isinstance(facts.get("data"), dict):
        facts["data"] = {part: told for part, told in facts["data"].items() if part == name}
    tests = [line for line in summary.get("comparisons", []) if line["family"] == name]
    return {
        **summary,
        "rows": own("rows"),
        "outcomes": own("outcomes"),
        "facts": facts,
        "comparisons": tests,
    }
