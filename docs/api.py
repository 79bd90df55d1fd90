"""Makes docs/reference/api.md: public names, arguments, first lines of docstrings.

    python docs/api.py          # prints the page
    python docs/api.py --write  # writes it

A test compares the page with what this prints.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from enum import EnumMeta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import cast, get_args

PAGE = Path(__file__).parent / "reference" / "api.md"
_FEW = 4  # arguments of a record that somebody may want to make
ROOMS = {
    "nn": "[heads](../guides/heads.md), [notation](notation.md)",
    "init": "[starting weights](../guides/starts.md)",
    "geometry": "[ellipsoids](../guides/ellipsoids.md), [theory](../theory.md)",
    "geometry.ellipsoids": "[ellipsoids](../guides/ellipsoids.md); also `mahalens.ellipsoids`",
    "train": "[training](../guides/trials.md)",
    "auditing": "[the audit](readings.md), [how to use it](../guides/audit.md)",
    "detection": "[distance heads](../guides/heads.md)",
    "data": "[data](../guides/data.md)",
    "stats": "[how numbers become verdicts](verdicts.md)",
    "report": "[run folders](run-folder.md)",
}


def page() -> str:
    """Return the page as text."""
    import mahalens

    top = set(mahalens.__all__)
    lines = [
        "# Public names",
        "",
        "What can be imported, room by room. Names with a star are in `mahalens` itself too:",
        "`from mahalens import DistanceHead`. Docstrings tell the rest, most with an example that",
        "the tests run: `help(mahalens.DistanceHead)`. What is not listed may change without",
        "notice. Bad input raises `mahalens.InputError`, which is a `ValueError`; every error of",
        "the package is a `mahalens.MahalensError`. Made by `python docs/api.py --write`.",
    ]
    for room, guides in ROOMS.items():
        module = import_module(f"mahalens.{room}")
        lines += ["", f"## mahalens.{room}", "", first_line(module.__doc__)]
        lines += [f"More in {guides}.", "", "| name | what it is |", "|---|---|"]
        lines += rows(module, top)
    return "\n".join(lines) + "\n"


def rows(module: ModuleType, top: set[str]) -> Iterator[str]:
    """Yield a row of the table for each public name of a room, in alphabetical order."""
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        star = " *" if name in top else ""
        text = first_line(value.__doc__) if _is_made_of_code(value) else _members(value)
        yield f"| `{name}{arguments(value)}`{star} | {text} |"


def arguments(value: object) -> str:
    """Return the arguments of a function or class with defaults; none for records nobody makes."""
    if not _is_made_of_code(value):
        return ""
    if isinstance(value, EnumMeta) or getattr(value, "_is_protocol", False):
        return ""
    plain = [_plain(parameter) for parameter in inspect.signature(value).parameters.values()]
    names = [parameter.name for parameter in plain]
    if inspect.isclass(value) and names == ["args", "kwargs"]:
        return "()"  # a module without options
    if _is_record(value) and len(plain) > _FEW:
        return ""
    return str(inspect.Signature(plain)).replace("'...'", "...")


def _is_made_of_code(value: object) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def _members(value: object) -> str:
    """List the members of a constant by name."""
    members = cast("Iterable[object]", get_args(value) or value)
    return ", ".join(f"`{getattr(member, 'value', member)}`" for member in members)


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter without its type; a default without a short form becomes ``...``."""
    if parameter.default is not parameter.empty and "<" in repr(parameter.default):
        parameter = parameter.replace(default="...")
    return parameter.replace(annotation=parameter.empty)


def _is_record(value: object) -> bool:
    """Return whether a class only holds the result of a function."""
    return dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__")


def first_line(docstring: str | None) -> str:
    """Return the first line of a docstring, from reStructuredText to Markdown."""
    line = inspect.cleandoc(docstring or "").partition("\n")[0]
    line = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", line).replace("``", "`")
    return line.replace("|", "\\|")


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/reference/api.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
