"""Public names that load their module on first use, so that the command line starts quickly."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attach(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` for ``package`` (PEP 562).

    ``exports`` maps each public name to the module that defines it.
    """

    def __getattr__(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(exports[name])
        try:
            return getattr(module, name)
        except AttributeError:  # a module of that package, such as geometry.ellipsoids
            return importlib.import_module(f"{exports[name]}.{name}")

    def __dir__() -> list[str]:
        return sorted(exports)

    return __getattr__, __dir__
