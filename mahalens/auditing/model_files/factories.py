"""Networks that code on the user's machine makes: ``package.module:factory``."""

from __future__ import annotations

import importlib
import re
import traceback
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from mahalens.auditing.model_files.loaded import LoadedModel, float_dtype, require_float
from mahalens.auditing.model_files.safely import first_line
from mahalens.auditing.model_files.weights import load_weights
from mahalens.errors import InputError

_SPEC = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def is_factory(spec: str) -> bool:
    """Whether a text has the form ``package.module:factory``.

    >>> is_factory("nets.small:build"), is_factory("nets/small.pt2")
    (True, False)
    """
    return _SPEC.fullmatch(spec) is not None


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
    match = _SPEC.fullmatch(spec)
    assert match is not None
    name, path = match.groups()
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
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({Path(error.filename).name}, line {error.lineno})"
    return f"{type(error).__name__}: {first_line(error)}{place}"


def _input_dtype(module: nn.Module) -> torch.dtype | None:
    """The type its input has to have; not known where whole numbers go in first."""
    if any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in module.modules()):
        return None
    return float_dtype(module)
