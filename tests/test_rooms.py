"""Imports flow one way between the rooms."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mahalens"

# What each room may import, besides itself and the modules at the root that import nothing.
MAY_IMPORT = {
    "geometry": set(),
    "stats": set(),
    "data": {"geometry"},
    "nn": {"geometry"},
    "init": {"geometry", "nn", "auditing"},  # a start is looked at, and fed, as an audit does it
    "auditing": {"geometry", "nn", "stats"},
    "train": {"geometry", "nn", "init", "auditing", "data"},
    "studies": {"geometry", "nn", "init", "auditing", "data", "stats", "train"},
    "report": {"geometry", "nn", "init", "auditing", "data", "stats", "train", "studies"},
    "cli": {"geometry", "nn", "init", "auditing", "data", "stats", "train", "studies", "report"},
}
# What a room may import on call only, inside a function: Chain.build(init="...") names a start.
ON_CALL = {"nn": {"init"}}
ROOT_MODULES = {"errors", "files", "console", "_lazy", "_stopping", "_version"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported_rooms(path: Path, on_call: bool = True) -> set[str]:
    """The rooms that a module imports; without ``on_call`` only those it needs to be imported."""
    names = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
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
        room = path.relative_to(PACKAGE).parts[0]
        if room in MAY_IMPORT:
            always = MAY_IMPORT[room] | ROOT_MODULES | {room}
            assert imported_rooms(path, on_call=False) <= always, path
            assert imported_rooms(path) <= always | ON_CALL.get(room, set()), path


def test_every_room_is_known():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(MAY_IMPORT)
