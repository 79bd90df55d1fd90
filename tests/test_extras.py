"""The library works without its extras, and what needs one says so in one line."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mahalens.errors import COMMAND_LINE, InputError, require_extra

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}
SHOWING = ("cli", "estimators", "report", "studies")  # rooms that an extra brings to life


def modules_of(requirements: list[str]) -> set[str]:
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
    return {MODULES.get(name, name) for name in names - {"mahalens"}}


CORE = modules_of(PROJECT["dependencies"])
EXTRAS = {n: modules_of(r) for n, r in PROJECT["optional-dependencies"].items() if n != "dev"}
HIDE = f"import sys; sys.modules.update(dict.fromkeys({sorted(set().union(*EXTRAS.values()))}))\n"


def without_extras(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + code, *words], capture_output=True, text=True, cwd=ROOT
    )


def imported_at_once(path: Path) -> set[str]:
    """The packages that a module needs to be imported."""
    names = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not is_for_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"mahalens"}


def test_the_library_imports_core_dependencies_only():
    package = ROOT / "mahalens"
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] not in SHOWING:
            assert imported_at_once(path) <= CORE, path


def test_every_extra_of_the_command_line_is_checked_for():
    assert set(COMMAND_LINE) == EXTRAS["cli"] | EXTRAS["report"] | EXTRAS["sklearn"]


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "hybrid", "--out", "x"]])
def test_the_command_names_its_extra(words):
    code = "from mahalens._stopping import run_command; run_command()"
    ended = without_extras(code, *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    line = r"mahalens: the command line needs [\w, -]+; pip install 'mahalens\[cli\]'\n"
    assert re.fullmatch(line, ended.stderr), ended.stderr


def test_a_function_names_its_extra():
    ended = without_extras("import mahalens; mahalens.build_report('x')")
    error = "a report needs jinja2, matplotlib, rich; pip install 'mahalens[report]'"
    assert ended.stderr.splitlines()[-1] == f"mahalens.errors.InputError: {error}"


def test_a_room_names_its_extra():
    ended = without_extras("import mahalens.estimators")
    error = "mahalens.estimators needs scikit-learn; pip install 'mahalens[sklearn]'"
    assert ended.stderr.splitlines()[-1] == f"mahalens.errors.InputError: {error}"


def test_what_is_installed_is_not_asked_for():
    require_extra("cli", "the command line", *COMMAND_LINE)
    with pytest.raises(InputError, match="this needs nowhere; pip install 'mahalens\\[cli\\]'"):
        require_extra("cli", "this", "click", "nowhere")


class TestReadmeOfThePackageIndex:
    TEXT = "![two\nwords](docs/a.png) [page](docs/b.md#c) [far](https://d.org)\n```\nx[0](y)\n```\n"

    @pytest.fixture
    def absolute(self):
        pytest.importorskip("hatchling")
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.absolute

    def test_links_lead_to_the_repository(self, absolute):
        assert absolute(self.TEXT, "https://e.org/m/") == (
            "![two\nwords](https://e.org/m/raw/HEAD/docs/a.png) "
            "[page](https://e.org/m/blob/HEAD/docs/b.md#c) [far](https://d.org)\n```\nx[0](y)\n```\n"
        )

    def test_without_an_address_no_link_leads_nowhere(self, absolute):
        assert absolute(self.TEXT, None) == " page [far](https://d.org)\n```\nx[0](y)\n```\n"
