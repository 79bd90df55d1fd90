"""Objects that show themselves: a ``repr`` of one line, and a table in notebooks.

A struct or dataclass inherits both from :class:`Shown`, or writes better ones with :func:`cut` and
:func:`table_html`. Everything is escaped, because names
of layers, classes and files come from outside. Needs neither torch nor jinja2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from mahalens.progress import printable

LONGEST = 200
"""Characters of a ``repr``."""
_LONGEST_FIELD = 60
_MOST_ROWS = 60
_MISSING = "–"
_LEFT = ' style="text-align: left"'


def cut(text: object, longest: int = _LONGEST_FIELD) -> str:
    """Return text as one printable line of at most ``longest`` characters.

    >>> cut("a name\\nof two lines"), cut("abcdefgh", 5)
    ('a name of two lines', 'abcd…')
    """
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def quoted(text: str) -> str:
    """Return a name from outside in quotes, cut.

    >>> quoted("it's")
    '"it\\'s"'
    """
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else line[:39] + "…")


def counted(number: int, thing: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "layer"), counted(1200, "layer")
    ('1 layer', '1,200 layers')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class Shown:
    """Base of structs and dataclasses (``repr=False``) that show their fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        return one_line(self)

    def _repr_html_(self) -> str:
        return facts_html(type(self).__name__, _fields(self))


def one_line(value: Any) -> str:
    """Return the class and fields of a struct, dataclass or named tuple in one line.

    Arrays are shown by type and shape, long texts and collections by their beginning.

    >>> @dataclasses.dataclass(repr=False)
    ... class Reading(Shown):
    ...     name: str
    ...     units: tuple[int, ...]
    >>> Reading("fc1", tuple(range(100)))
    Reading(name='fc1', units=(0, 1, 2, … 100 in all))
    """
    fields = ", ".join(f"{name}={_brief(part)}" for name, part in _fields(value).items())
    line = f"{type(value).__name__}({fields})"
    return line if len(line) <= LONGEST else line[: LONGEST - 2] + "…)"


def facts_html(caption: str, facts: Mapping[str, Any], notes: Iterable[str] = ()) -> str:
    """Return facts by name as a table, a row for each."""
    rows = [(name.replace("_", " "), _fact(fact)) for name, fact in facts.items()]
    return table_html(caption, ("", ""), rows, notes)


def table_html(
    caption: str,
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[Any]] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return a table as HTML: texts to the left, numbers to the right, at most 60 rows.

    >>> table_html("Ages", ("name", "age"), [("<Ada>", 36)]).splitlines()[4]
    '<tr><td style="text-align: left">&lt;Ada&gt;</td><td>36</td></tr>'
    """
    every = iter(rows)
    shown = list(islice(every, _MOST_ROWS))
    lines = [f"<p>{_escaped(caption)}</p>"]
    if shown:
        lines += ["<table>", _heads(columns, shown[0]), "<tbody>"]
        lines += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown]
        lines.append("</tbody></table>")
    if rest := sum(1 for _ in every):
        lines.append(f"<p>and {rest:,} more</p>")
    lines += [f"<p>{_escaped(note)}</p>" for note in notes]
    return "\n".join(lines)


def _heads(columns: Sequence[str], first: Sequence[Any]) -> str:
    """Return the heads of the columns, each over its texts or numbers."""
    heads = [
        f"<th{_LEFT if isinstance(cell, str) else ''}>{_escaped(column)}</th>"
        for column, cell in zip(columns, first, strict=True)
    ]
    return f"<thead><tr>{''.join(heads)}</tr></thead>" if any(columns) else ""


def _cell(value: Any) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else _number(value)
    return f"<td{_LEFT if is_text else ''}>{_escaped(text)}</td>"


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _escaped(text: object) -> str:
    return escape(printable(text))


def _fact(value: Any) -> str:
    """Return a fact as the text of a cell: texts as they are, everything else in brief."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _number(value) if is_number or value is None else _brief(value)


def _fields(value: Any) -> dict[str, Any]:
    names = getattr(value, "__struct_fields__", None) or getattr(value, "_fields", None)
    if names is None:
        names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}


def _brief(value: Any) -> str:
    """Return a value in a few characters, without computing anything with it."""
    if isinstance(value, str):
        return quoted(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        pairs = (f"{_brief(name)}: {_brief(part)}" for name, part in islice(value.items(), 4))
        return _collection("{", pairs, "}", len(value))
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        first, last = ("[", "]") if isinstance(value, list) else ("(", ")")
        return _collection(first, (_brief(part) for part in value[:4]), last, len(value))
    return cut(repr(value))


def _collection(first: str, parts: Iterable[str], last: str, count: int) -> str:
    shown = list(parts)
    if count <= len(shown) and sum(map(len, shown)) < _LONGEST_FIELD:
        comma = "," * (count == 1 and first == "(")
        return f"{first}{', '.join(shown)}{comma}{last}"
    kept: list[str] = []
    while shown and len(kept) < 3 and sum(map(len, kept)) + len(shown[0]) < _LONGEST_FIELD:
        kept.append(shown.pop(0))
    return f"{first}{', '.join([*kept, f'… {count:,} in all'])}{last}"
