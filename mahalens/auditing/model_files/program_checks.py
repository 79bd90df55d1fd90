"""What the description of an exported program may hold before torch is given it.

Reading a program, torch looks functions up by name, evaluates sizes and guards as Python text,
builds containers of named types and writes Python code out of names. Here every text in the
description must be one of a kind that is known to be harmless; texts that only a debugger wants
are removed.
"""

from __future__ import annotations

import json
import re
from typing import Any

import torch

from mahalens.auditing.model_files.expressions import is_plain_expression
from mahalens.errors import InputError

QUANTISED = (
    "holds a quantised network, whose packed weights cannot be read as hyperplanes; give the "
    "float network it was made from"
)

# Removed: stack traces and the like, and guards, which torch would run as Python code.
_REMOVED: dict[str, dict[str, str] | list[str]] = {
    "metadata": {},
    "guards_code": [],
    "treespec_namedtuple_fields": {},
}
_OBJECTS = {"as_custom_obj", "custom_obj", "as_operator"}
_NAME = re.compile(r"[A-Za-z0-9_.-]{0,500}")
_VERSION = re.compile(r"[A-Za-z0-9_.+<=-]{0,100}")
_TEXT = re.compile(r"[A-Za-z0-9_ ,.>-]{0,200}")  # "reflect", or an einsum's "bij,bjk->bik"
_KINDS = {"as_string": _TEXT, "as_strings": _TEXT, "torch_version": _VERSION}
_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")
_ON_SIZES = re.compile(r"torch\._?sym_[a-z_]+|math\.[a-z][a-z0-9]*")
_ON_NUMBERS = frozenset(
    {
        "getitem",
        "add",
        "sub",
        "mul",
        "floordiv",
        "truediv",
        "mod",
        "pow",
        "neg",
        "pos",
        "abs",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and_",
        "or_",
        "xor",
        "not_",
        "lshift",
        "rshift",
        "is_",
        "is_not",
    }
)
_WITH_GRAPHS = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond")
)
_ON_FILES = frozenset({"from_file", "save"})
_CONTAINERS = frozenset(
    {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
)


def clean_program(description: Any) -> dict[str, Any]:
    """The description of a program, as decoded from its JSON, without what it must not hold.

    Raises :class:`~mahalens.errors.InputError`, with the reason only, where something is left
    that torch might run.
    """
    if not isinstance(description, dict) or "graph_module" not in description:
        raise InputError("does not describe a program")
    cleaned = {key: _clean(key, value) for key, value in description.items()}
    for name in cleaned.get("range_constraints") or {}:
        _require_expression(name)
    return cleaned


def _clean(key: str, value: Any) -> Any:
    if key in _REMOVED:
        return type(_REMOVED[key])()
    if key in _OBJECTS and value:
        raise InputError(f"holds an object of a class of its own ({key}); export it without")
    if isinstance(value, dict):
        _require_keys(key, value)
        if value.get("name") == "assert_msg":  # what to say when it fails: any text
            return {**value, "arg": {"as_string": "the program's own check failed"}}
        return {name: _clean(name, one) for name, one in value.items()}
    if isinstance(value, list):
        return [_clean(key, one) for one in value]
    if isinstance(value, str):
        _require_text(key, value)
    return value


def _require_keys(key: str, value: dict[Any, Any]) -> None:
    for name in value:
        if key == "range_constraints":
            _require_expression(name)
        elif not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"has the name {_short(name)} in it, which no program needs")


def _require_text(key: str, value: str) -> None:
    if key == "target":
        _require_operator(value)
    elif key == "expr_str":
        _require_expression(value)
    elif key in ("in_spec", "out_spec"):
        _require_containers(value)
    elif not _KINDS.get(key, _NAME).fullmatch(value):
        raise InputError(f"has the text {_short(value)} as {key}, which no program needs")


def _require_expression(text: object) -> None:
    if not is_plain_expression(text):
        raise InputError(f"has the size {_short(text)}, which is no plain arithmetic")


def _require_operator(target: str) -> None:
    """Only operators of torch itself that work on tensors and numbers."""
    number = target.startswith("_operator.") and target.removeprefix("_operator.") in _ON_NUMBERS
    if number or target in _WITH_GRAPHS or _ON_SIZES.fullmatch(target):
        return
    match = _OPERATOR.fullmatch(target)
    if match is None:
        raise InputError(f"calls {_short(target)}, which is no operator of torch")
    room, name, overload = match.groups()
    if room.startswith(("quantized", "torchao")):
        raise InputError(QUANTISED)
    if room not in ("aten", "prims") or name in _ON_FILES:
        raise InputError(
            f"calls {_short(target)}, and only torch's own operators on tensors are run; export "
            f"the network without it"
        )
    found = getattr(getattr(getattr(torch.ops, room), name, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise InputError(
            f"calls {_short(target)}, which torch {torch.__version__} does not have; export the "
            f"network with this version"
        )


def _require_containers(text: str) -> None:
    """Inputs and outputs are tensors in tuples, lists and dicts; other types are looked up."""
    try:
        spec = json.loads(text)
        plain = isinstance(spec, list) and all(
            isinstance(part, int) or _plain_container(part) for part in spec
        )
    except (ValueError, RecursionError):
        plain = False
    if not plain:
        raise InputError(
            "takes or gives something other than tensors in tuples, lists and dicts; export a "
            "network that takes one tensor and gives a tensor"
        )


def _plain_container(spec: Any) -> bool:
    if not isinstance(spec, dict) or spec.get("type") not in _CONTAINERS:
        return False
    context = spec.get("context")
    keys = json.loads(context) if isinstance(context, str) else context
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(one, (str, int)) for one in keys)
    ):
        return False
    children = spec.get("children_spec")
    return isinstance(children, list) and all(map(_plain_container, children))


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
