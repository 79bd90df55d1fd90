"""Makes the pages of public names, one for each room, when the site is built.

The names are those of ``__init__.pyi`` in the package and its rooms; their text is that of their
docstrings. Pages are written to ``docs/reference/api``, which is not committed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import mahalens

PACKAGE = Path(mahalens.__file__).parent
GUIDES = {
    "nn": "heads",
    "init": "starts",
    "geometry": "ellipsoids",
    "geometry.ellipsoids": "ellipsoids",
    "train": "trials",
    "auditing": "audit",
    "detection": "unknowns",
    "estimators": "estimators",
    "data": "data",
}


def rooms() -> list[str]:
    """Return the rooms with public names, errors last."""
    stubs = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.pyi"))
    return [*stubs, "geometry.ellipsoids", "errors"]


def public_names(room: str) -> list[str]:
    """Return the public names of a room in alphabetical order."""
    module = import_module(f"mahalens.{room}")
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
    above = public_names(room.rpartition(".")[0]) if "." in room else []  # are shown there
    return sorted(set(names) - set(above), key=lambda name: (name.lower(), name))


def room_page(room: str) -> str:
    """Return the page of a room as reStructuredText."""
    title = f"mahalens.{room}"
    lines = [title, "=" * len(title), "", f".. automodule:: {title}", ""]
    if room in GUIDES:
        lines += [f"Guide: :doc:`/guides/{GUIDES[room]}`. Shapes: :doc:`/reference/notation`.", ""]
    lines += [f".. currentmodule:: {title}", ""]
    for name in public_names(room):
        lines += [*name_lines(room, name), ""]
    return "\n".join(lines)


def name_lines(room: str, name: str) -> Iterator[str]:
    """Yield the directive that shows a public name."""
    value = getattr(import_module(f"mahalens.{room}"), name)
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
        yield f".. auto{kind}:: {name}"
        yield "   :members:"
        # scikit-learn adds these to its estimators, with texts that link to its own pages.
        routing = [member for member in dir(value) if re.fullmatch(r"set_\w+_request", member)]
        if routing:
            yield f"   :exclude-members: {', '.join(routing)}"
    elif inspect.isroutine(value):
        yield f".. autofunction:: {name}"
    else:
        yield f".. py:data:: {name}"
        yield ""
        yield from (f"   {line}" for line in constant_text(room, name).splitlines())


def overview() -> str:
    """Return the first page of the reference: all public names with their first lines."""
    lines = [
        "# Public names",
        "",
        "Import names from their room: `from mahalens.nn import DistanceHead`. Those with a star",
        "are in `mahalens` too. What is not listed may change without notice.",
        "",
        "Bad input raises `mahalens.InputError`, which is a `ValueError`; every error of the",
        "package is a `mahalens.MahalensError`.",
        "",
    ]
    for room in rooms():
        lines += [f"## [mahalens.{room}]({room}.rst)", "", first_line(room), ""]
        lines += ["| name | meaning |", "|---|---|"]
        for name in public_names(room):
            star = " *" if name in mahalens.__all__ else ""
            reference = f"[`{name}`](#mahalens.{room}.{name})"
            lines.append(f"| {reference}{star} | {first_line(room, name)} |")
        lines.append("")
    pages = "\n".join(rooms())
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", pages, "```", ""])


def constant_text(room: str, name: str) -> str:
    """Return the text below a constant in its module, and its members."""
    stub = (PACKAGE / room.replace(".", "/") / "__init__.pyi").read_text(encoding="utf-8")
    module = re.search(rf"^from \.([\w.]+) import {name} as", stub, re.M)
    assert module, f"{name} is not in the stub of {room}"
    comments = ModuleAnalyzer.for_module(f"mahalens.{room}.{module[1]}").find_attr_docs()
    text = "\n".join(comments.get(("", name), [])).strip()
    members = getattr(import_module(f"mahalens.{room}"), name)
    words = [_word(member) for member in get_args(members) or members]
    return f"{text}\n\nMembers: {', '.join(f'``{word}``' for word in words)}."


def _word(member: Any) -> str:
    return " + ".join(member) if isinstance(member, tuple) else getattr(member, "value", member)


def first_line(room: str, name: str = "") -> str:
    """Return the first line of a docstring, from reStructuredText to Markdown."""
    value = import_module(f"mahalens.{room}")
    value = getattr(value, name) if name else value
    has_docstring = inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)
    text = inspect.getdoc(value) if has_docstring else constant_text(room, name)
    line = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", (text or "").partition("\n")[0])
    return line.replace("``", "`").replace("|", "\\|")


def write_pages(app: Sphinx) -> None:
    """Write all pages; one that has not changed is left alone, so that it is not read again."""
    folder = Path(app.srcdir) / "reference" / "api"
    folder.mkdir(exist_ok=True)
    pages = {f"{room}.rst": room_page(room) for room in rooms()} | {"index.md": overview()}
    for path in folder.iterdir():
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def skip_aliases(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool:
    """Leave out fields of named tuples, whose text would be "Alias for field number 0"."""
    return skip or (inspect.getdoc(value) or "").startswith("Alias for field number")


def short_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, arguments: str, returned: str
) -> tuple[str, str]:
    """Write modules without options as ``Abs()``; they pass everything on to ``nn.Module``."""
    return ("()" if arguments == "(*args, **kwargs)" else arguments), returned


def keep_underscores(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Keep the underscore at the end of an attribute's name, which would make it a link."""
    lines[:] = [re.sub(r"^(:ivar \w*)_:", r"\1\\_:", line) for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip_aliases)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-process-docstring", keep_underscores, priority=600)  # after napoleon
    return {"version": "1", "parallel_read_safe": True}
