"""Networks that code on the user's machine makes: ``package.module:factory``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

import torch
from torch import nn

from mahalens.auditing.model_files.loaded import (
    LoadedModel,
    first_line,
    float_dtype,
    require_float,
)
from mahalens.auditing.model_files.look import factory_parts
from mahalens.auditing.model_files.weights import load_weights
from mahalens.errors import InputError


class FolderFinder(importlib.abc.MetaPathFinder):
    """Finds the module that a user named in a folder, and for that module those beside it.

    A folder on ``sys.path`` would serve everybody: torch looks for optional modules such as z3,
    and would run a ``z3.py`` that lies beside a model. This finder comes after all others, so that
    nothing installed is replaced, and answers only for the named module and for import statements
    in modules that it found itself.
    """

    def __init__(self, folder: str, module: str) -> None:
        self.folder, self.names = folder, {module.partition(".")[0]}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Look in the folder, if the module is named or one from there asks."""
        if path is not None:  # a submodule, which its package's path finds
            return None
        if fullname not in self.names and _importer(sys._getframe(1)) not in self.names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [self.folder])
        if spec is not None:
            self.names.add(fullname)
        return spec


@contextlib.contextmanager
def found_here(spec: str) -> Iterator[None]:
    """Find the module of a factory in the current folder within, if ``spec`` names a factory."""
    parts = factory_parts(spec)
    if parts is None:
        yield
        return
    finder = FolderFinder(os.getcwd(), parts[0])
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _importer(frame: FrameType | None) -> str:
    """Return the top package of the code that runs an import statement."""
    while frame is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return top
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def exit_refused() -> Iterator[None]:
    """Turn ``os._exit`` into SystemExit within, so that code of a user cannot end it in silence."""
    before, process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that ends as it should
            before(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = before


def load_factory(spec: str, weights: Path | None) -> LoadedModel:
    """Call a factory that the user named, and give what it makes the weights of a file."""
    module = _made(spec)
    try:
        require_float(module)
    except InputError as error:
        raise InputError(f"{spec}: {error}") from None
    if weights is not None:
        load_weights(module, weights)
    notes = () if weights is not None else (f"no --weights: the weights are as {spec} makes them",)
    return LoadedModel(
        module=module.eval(), name=spec, kind="factory", dtype=_input_dtype(module), notes=notes
    )


def _made(spec: str) -> nn.Module:
    parts = factory_parts(spec)
    assert parts is not None
    name, path = parts
    found: object = _imported(spec, name)
    for part in path.split("."):
        if not hasattr(found, part):
            where = f" in {file}" if (file := getattr(found, "__file__", None)) else ""
            raise InputError(f"{spec}: there is no {part!r}{where}; wanted a function or a class")
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InputError(
            f"{spec}: is a {type(found).__name__}; wanted a function or a class that makes a "
            f"torch.nn.Module"
        )
    try:
        with exit_refused():
            made = found()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{spec}: failed, {_told(error)}; it is called without arguments"
        ) from None
    if not isinstance(made, nn.Module):
        raise InputError(f"{spec}: made a {type(made).__name__}; wanted a torch.nn.Module")
    return made


def _imported(spec: str, name: str) -> ModuleType:
    try:
        with exit_refused():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{spec}: there is no module {error.name!r} here; run it in the folder that has "
                f"it, or install it"
            ) from None
        raise InputError(f"{spec}: needs {error.name!r}, which is not installed") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec}: importing {name} failed, {_told(error)}") from None


def _told(error: BaseException) -> str:
    """Kind, text and place of an error in the user's code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({Path(error.filename).name}, line {error.lineno})"
    return f"{type(error).__name__}: {first_line(error)}{place}"


def _input_dtype(module: nn.Module) -> torch.dtype | None:
    """The type its input has to have; not known where whole numbers go in first."""
    if any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in module.modules()):
        return None
    return float_dtype(module)
