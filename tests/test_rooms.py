"""The shape of the package: imports flow one way, can be followed, and are few."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mahalens"
MODULES = sorted(PACKAGE.rglob("*.py"))

LIBRARY = {"geometry", "nn", "init", "auditing", "detection", "data", "stats", "train"}
# What each room may import, besides itself and the modules at the root that import no room.
MAY_IMPORT = {
    "geometry": set(),
    "stats": set(),
    "data": {"geometry"},
    "nn": {"geometry"},
    "init": {"geometry", "nn", "auditing"},  # a start is looked at, and fed, as an audit does it
    "auditing": {"geometry", "nn", "stats"},
    "detection": {"geometry", "nn", "stats", "auditing"},  # a model is run as an audit runs it
    "estimators": {"geometry", "detection"},
    "train": {"geometry", "nn", "init", "auditing", "data"},
    "studies": LIBRARY,
    "report": LIBRARY | {"studies"},
    "cli": LIBRARY | {"studies", "report"},
}
# What a room may import on call only, inside a function: Chain.build(init="...") names a start,
# AuditRecord.show() writes a page.
ON_CALL = {"nn": {"init"}, "auditing": {"report"}}
ROOT_MODULES = {"_show", "errors", "files", "progress", "_stopping", "_version"}

# Modules that import something by a name they did not write down, and why.
BY_NAME = {
    "auditing/load.py": "the user's module, named on the command line",
}
MOST_IMPORTS = 0.05
"""Share of the package's lines that imports may take."""


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imported_rooms(path: Path, on_call: bool = True) -> set[str]:
    """The rooms that a module imports; without ``on_call`` only those it needs to be imported."""
    names = set()
    waiting: list[ast.AST] = [parse(path)]
    while waiting:
        node = waiting.pop()
        if on_call or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[1] for name in names if name.startswith("mahalens.")}


def test_imports_flow_one_way() -> None:
    for path in MODULES:
        room = room_of(path)
        if room in MAY_IMPORT:
            always = MAY_IMPORT[room] | ROOT_MODULES | {room}
            assert imported_rooms(path, on_call=False) <= always, path
            assert imported_rooms(path) <= always | ON_CALL.get(room, set()), path


def test_every_room_is_known() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(MAY_IMPORT)


def imports_by_name(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of ``import_module`` or ``__import__`` with anything but a text in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if called in ("import_module", "__import__") and not literal:
                yield node


def test_imports_can_be_followed() -> None:
    """An editor finds every importer, because no module's name is made at run time."""
    by_name = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if any(imports_by_name(parse(path)))
    }
    assert by_name == set(BY_NAME)


def import_lines(path: Path) -> int:
    nodes = ast.walk(parse(path))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or 0) - node.lineno + 1 for node in imports)


def test_imports_are_few() -> None:
    """Many small modules that import each other would have more."""
    modules = MODULES
    lines = sum(len(path.read_text().splitlines()) for path in modules)
    imports = sum(import_lines(path) for path in modules)
    assert imports <= MOST_IMPORTS * lines, f"{imports} of {lines} lines are imports"
