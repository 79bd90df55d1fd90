"""Weights for a network, from a ``.safetensors`` file or a state dict that torch saved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.model_files.loaded import QUANTISED, first_line, quiet
from mahalens.auditing.model_files.look import (
    WEIGHTS_WANTED,
    first_bytes,
    is_archive,
    is_safetensors,
    require_weights_only,
)
from mahalens.errors import InputError

_NESTED = ("state_dict", "model_state_dict", "model", "ema", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.")  # DataParallel, torch.compile, Lightning
_SHOWN = 3


def load_weights(module: nn.Module, path: Path) -> None:
    """Give the network the weights in a file; every one must be there and fit.

    Nothing in the file is unpickled but tensors and containers. A state dict that lies under
    ``state_dict`` or ``model`` of a checkpoint is found, and the prefixes that DataParallel,
    ``torch.compile`` and Lightning put before names are removed.
    """
    tensors = read_weights(path)
    own = module.state_dict()
    tensors = _without_prefix(tensors, own)
    missing = [name for name in own if name not in tensors]
    unknown = [name for name in tensors if name not in own]
    if missing or unknown:
        faults = []
        if missing:
            faults.append(f"lacks {_some(missing)}")
        if unknown:
            faults.append(f"has {_some(unknown)}, which the network does not")
        raise InputError(
            f"{path}: {' and '.join(faults)}; give the weights of this network, or its factory "
            f"the options they were trained with"
        )
    wrong = [
        f"{name} {list(tensors[name].shape)} for {list(mine.shape)}"
        for name, mine in own.items()
        if isinstance(mine, Tensor)
        and not isinstance(mine, (nn.UninitializedParameter, nn.UninitializedBuffer))
        and mine.shape != tensors[name].shape
    ]
    if wrong:
        raise InputError(
            f"{path}: the shapes of {_some(wrong)} differ from the network's; give the factory "
            f"the options it was trained with"
        )
    unreal = [
        name
        for name, mine in own.items()
        if isinstance(mine, Tensor) and tensors[name].is_complex() and not mine.is_complex()
    ]
    if unreal:
        raise InputError(
            f"{path}: {_some(unreal)} holds complex numbers and the network's are real; give the "
            f"weights of this network"
        )
    try:
        with quiet():
            module.load_state_dict(tensors)
    except Exception as error:  # a module may check more, or memory may end
        raise InputError(f"{path}: does not fit the network, {first_line(error)}") from None


def read_weights(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name."""
    start = first_bytes(path, WEIGHTS_WANTED)
    if is_safetensors(start):
        return _read_safetensors(path)
    if is_archive(start):
        require_weights_only(path)
    return _state_dict(path, _read_torch(path))


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except Exception as error:  # also for a type of number that this torch does not have
        raise InputError(f"{path}: is damaged or cut short ({first_line(error)})") from None


def _read_torch(path: Path) -> object:
    try:
        with quiet():
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its parsers happen to raise
        raise InputError(f"{path}: {_refusal(error)}; wanted {WEIGHTS_WANTED}") from None


def _refusal(error: Exception) -> str:
    """Why torch did not read a file when told to read weights only."""
    text = str(error)
    if "quantized" in text:
        return QUANTISED
    found = re.search(r"(?:GLOBAL|Unsupported global:?(?: GLOBAL)?|class) ([\w.]+)", text)
    if found:
        return f"holds a pickled {found.group(1)}, and is not opened: unpickling would run code"
    if "weights only" in text.lower():  # torch's long advice to trust the file
        return "is no file of weights, or damaged"
    return f"is no file of weights, or damaged ({first_line(error)})"


def _state_dict(path: Path, content: object) -> dict[str, Any]:
    """The state dict in a checkpoint: the content itself, or its one part that is one."""
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: holds a {type(content).__name__}; wanted {WEIGHTS_WANTED}")
    if any("_packed_params" in str(key) for key in content):
        raise InputError(f"{path}: {QUANTISED}")
    if _is_state_dict(content):
        return dict(content)
    nested = [key for key in _NESTED if _is_state_dict(content.get(key))]
    if not nested:
        nested = [str(key) for key, value in content.items() if _is_state_dict(value)]
    if len(nested) == 1 or (nested and nested[0] in _NESTED[:3]):
        return dict(content[nested[0]])
    there = f"has several ({_some(nested)})" if nested else f"has {_some(map(str, content))}"
    raise InputError(f"{path}: wanted one state dict, and this checkpoint {there}; save it alone")


def _is_state_dict(content: object) -> bool:
    if not isinstance(content, Mapping) or not content:
        return False
    return all(isinstance(k, str) for k in content) and all(
        isinstance(value, Tensor) for value in content.values()
    )


def _without_prefix(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under the network's names, if a known prefix is all that is between them."""
    found = dict(tensors)
    while found.keys() != own.keys():
        for prefix in _PREFIXES:
            taken = any(name.startswith(prefix) for name in own)
            if found and not taken and all(name.startswith(prefix) for name in found):
                found = {name.removeprefix(prefix): value for name, value in found.items()}
                break
        else:
            return found
    return found


def _some(names: Iterable[str]) -> str:
    """The first few of many, and how many there are.

    >>> _some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    listed = list(names)
    text = ", ".join(listed[:_SHOWN])
    return text if len(listed) <= _SHOWN else f"{text} and {len(listed) - _SHOWN} more"
