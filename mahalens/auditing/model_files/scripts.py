"""TorchScript files, as far as torch can convert them to programs."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.model_files.loaded import LoadedModel
from mahalens.auditing.model_files.program_checks import QUANTISED
from mahalens.auditing.model_files.programs import EXPORT, from_program
from mahalens.auditing.model_files.safely import first_line, quiet, weights_only
from mahalens.errors import InputError

ADVICE = f"export the model instead, where its Python code is: {EXPORT}"
_ON_FILES = re.compile(r"\btorch\.(save|from_file)\b|\bops\.aten\.(save|from_file)\b")
_PACKED = re.compile(r"\bops\.quantized\b|\bquantized\.|_packed_params|\b__setstate__\b")


def load_script(path: Path, example: Tensor | None) -> LoadedModel:
    """Load a TorchScript file and convert it to a program, for an example [N, ...] of its input.

    TorchScript is a language of its own, which torch runs without Python; files that would read
    or write others are refused.
    """
    _require_harmless(path)
    try:
        with quiet(), weights_only():
            script = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:  # torch raises what its parsers happen to raise
        raise InputError(
            f"{path}: torch {torch.__version__} cannot read this TorchScript file "
            f"({first_line(error)}); {ADVICE}"
        ) from None
    if example is None:
        raise InputError(f"{path}: a TorchScript file is converted with an example; give one")
    try:
        loaded = _converted(script, example, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return loaded


def _converted(script: Any, example: Tensor, name: str) -> LoadedModel:
    try:
        from torch._export.converter import TS2EPConverter
    except ImportError:
        raise InputError(
            f"torch {torch.__version__} has no converter of TorchScript files; {ADVICE}"
        ) from None
    parameters = {key: value.detach() for key, value in script.named_parameters()}
    kinds = {value.dtype for value in parameters.values() if value.is_floating_point()}
    if example.is_floating_point() and len(kinds) == 1:
        example = example.to(kinds.pop())
    try:
        with quiet(), torch.no_grad():
            wanted = script(example)
    except Exception as error:
        raise InputError(
            f"the TorchScript model fails on samples of shape {list(example.shape[1:])} "
            f"({_last_line(error)}); give the shape it takes with --shape"
        ) from None
    try:
        with quiet():
            program = TS2EPConverter(script, (example,), {}).convert()
            loaded = from_program(program, name)
            _as_parameters(loaded.module, parameters)
            with torch.no_grad():
                given = loaded.module(example)
    except Exception as error:
        raise InputError(
            f"torch cannot convert this TorchScript model ({first_line(error)}); {ADVICE}"
        ) from None
    if not _same(given, wanted):
        raise InputError(f"torch converts this TorchScript model wrongly; {ADVICE}")
    return LoadedModel(
        module=loaded.module,
        name=name,
        kind="TorchScript file",
        batch_size=loaded.batch_size,
        dtype=loaded.dtype,
        input_shape=loaded.input_shape,
        notes=("converted from TorchScript by torch", *loaded.notes),
    )


def _require_harmless(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "/code/" not in name or not name.endswith(".py"):
                    continue
                code = archive.read(name).decode(errors="replace")
                if _PACKED.search(code):
                    raise InputError(f"{path}: {QUANTISED}")
                if found := _ON_FILES.search(code):
                    raise InputError(f"{path}: its code calls {found.group()}, and is not run")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise InputError(f"{path}: is damaged or cut short ({first_line(error)})") from None


def _as_parameters(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """The converter turns parameters into buffers; turn them back."""
    for name in parameters:
        owner_name, _, last = name.rpartition(".")
        try:
            owner = module.get_submodule(owner_name)
        except AttributeError:  # the program does without it
            continue
        tensor = owner._buffers.pop(last, None)
        if tensor is not None:
            owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))


def _same(given: object, wanted: object) -> bool:
    if isinstance(wanted, Tensor):
        return isinstance(given, Tensor) and torch.allclose(
            given, wanted, rtol=1e-3, atol=1e-4, equal_nan=True
        )
    if isinstance(wanted, (tuple, list)):
        return isinstance(given, (tuple, list)) and all(map(_same, given, wanted))
    return True


def _last_line(error: Exception) -> str:
    """TorchScript puts its own story first and what went wrong last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return first_line(Exception(lines[-1])) if lines else type(error).__name__
