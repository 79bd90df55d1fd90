"""The page docs/architecture.md says what the imports of the package say."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mahalens"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LONGEST = {"`mahalens run STUDY`": 12, "`mahalens.audit(model, data)`": 10, "Training": 5}
"""How each path's heading begins, and how many modules the path may have."""


def module_name(path: Path) -> str:
    """``mahalens/nn/head.py`` is ``nn.head``, a package goes by its folder, the root is empty."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in PACKAGE.rglob("*.py")}
ROOMS = {name for name in SOURCES if name and "." not in name and SOURCES[name].stem == "__init__"}


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports_from(path: Path) -> Iterator[tuple[str, str, str]]:
    """All ``from package.module import name as alias`` of a file, anywhere in it."""
    package = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            if module == "mahalens" or module.startswith("mahalens."):
                for alias in node.names:
                    name = module.removeprefix("mahalens").removeprefix(".")
                    yield name, alias.name, alias.asname or alias.name


@functools.cache
def origin(package: str, name: str) -> str:
    """The module that a name of a package comes from, by the package's stub or its imports."""
    below = f"{package}.{name}" if package else name
    if below in SOURCES:
        return below
    folder = PACKAGE / package.replace(".", "/")
    for path in (folder / "__init__.pyi", folder / "__init__.py"):
        for module, imported, alias in imports_from(path) if path.exists() else ():
            if alias == name and module != package:
                return origin(module, imported)
    return package


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """The modules that a module imports, those behind ``train.Adam`` too."""
    path = SOURCES[module]
    modules, rooms = set(), {}
    for package, name, alias in imports_from(path):
        modules |= {package, origin(package, name)}
        if origin(package, name) in ROOMS:
            rooms[alias] = origin(package, name)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in rooms:
                modules.add(origin(rooms[node.value.id], node.attr))
        elif isinstance(node, ast.Import):
            modules |= {
                a.name.partition(".")[2] for a in node.names if a.name.startswith("mahalens")
            }
    return frozenset(modules & set(SOURCES)) - {"", module}


def room_imports(*, on_call: bool) -> set[tuple[str, str]]:
    """Pairs of rooms, the first of which imports the second; ``on_call`` inside functions too."""
    pairs = set()
    for module, path in SOURCES.items():
        room = module.partition(".")[0]
        waiting: list[ast.AST] = [parse(path)]
        while waiting:
            node = waiting.pop()
            if on_call or not isinstance(node, ast.FunctionDef):
                waiting += ast.iter_child_nodes(node)
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                pairs |= {(room, name.split(".")[1]) for name in names if name[:9] == "mahalens."}
    return {(a, b) for a, b in pairs if a != b and {a, b} <= ROOMS}


# --- What the page says -----------------------------------------------------------------------


def table_modules() -> list[str]:
    return re.findall(r"^\| `([\w.]+)` \|", PAGE, re.M)


def path_of(heading: str) -> list[str]:
    section = PAGE.split(f"\n### {heading}")[1].split("\n#")[0]
    return re.findall(r"^\d+\. `([\w.]+)`: ", section, re.M)


def arrows(kind: str) -> set[tuple[str, str]]:
    return set(re.findall(rf"^    (\w+) {re.escape(kind)} (\w+)$", PAGE, re.M))


def reachable(room: str) -> set[str]:
    """The rooms that arrows of the picture lead to."""
    direct = {b for a, b in arrows("-->") if a == room}
    return direct.union(*(reachable(below) for below in direct))


def test_every_module_directly_below_a_room_is_in_a_table() -> None:
    expected = {
        name
        for name in SOURCES
        if name not in ROOMS and name.count(".") <= 1 and name not in ("", "__main__")
    }
    assert set(table_modules()) == expected
    assert len(table_modules()) == len(set(table_modules()))


def test_every_room_has_a_heading_and_a_place_in_the_picture() -> None:
    assert set(re.findall(r"^### (\w+): ", PAGE, re.M)) == ROOMS
    assert set(re.findall(r'^    (\w+)\["<b>', PAGE, re.M)) == ROOMS


def test_the_picture_has_every_import_between_rooms() -> None:
    for room, other in room_imports(on_call=False):
        assert other in reachable(room), f"{room} imports {other}"
    for room, other in room_imports(on_call=True):
        drawn = other in reachable(room) or (room, other) in arrows("-. on call .->")
        assert drawn, f"{room} imports {other}"


def test_every_arrow_of_the_picture_is_an_import() -> None:
    drawn = arrows("-->") | arrows("-. on call .->")
    assert len(drawn) > len(ROOMS)
    assert drawn <= room_imports(on_call=True)


@pytest.mark.parametrize("heading", LONGEST)
def test_paths_follow_imports(heading: str) -> None:
    path = path_of(heading)
    assert 3 <= len(path) <= LONGEST[heading]
    assert len(set(path)) == len(path)
    assert set(path) <= set(SOURCES)
    for place, module in enumerate(path[1:], start=1):
        importers = [before for before in path[:place] if module in imports_of(before)]
        assert importers, f"{module} is imported by none of {path[:place]}"


def test_imports_are_followed_through_stubs_and_no_further() -> None:
    """A resolver that reached everything could not make the test of the paths fail."""
    assert "train.descent" in imports_of("studies.gaussian")  # by train.Adam
    assert "report.page" in imports_of("cli.run")  # by build_report, inside a function
    assert "train.descent" not in imports_of("studies.registry")
    assert "nn.head" not in imports_of("nn.layers")
