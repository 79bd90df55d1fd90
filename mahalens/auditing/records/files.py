"""Audits as files: one ``.safetensors`` file that holds all, and ``audit.json`` for other tools.

The tensors of a record lie in the file under the path that leads to them, such as
``layers.0.units.mean``. All the rest is JSON text in the file's metadata, in which
``{"tensor": name}`` stands for a tensor and ``{"float": "nan"}`` for a number that JSON does not
have. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from mahalens.auditing.record import FORMAT, AuditRecord
from mahalens.auditing.records.plain import audit_json, audit_text
from mahalens.auditing.records.shapes import check_shapes
from mahalens.errors import InputError
from mahalens.files import open_file, replacing

__all__ = ["audit_json", "audit_text", "load_audit", "save_record"]

KEY = "mahalens.audit"
_LARGEST = 90_000_000  # characters; the format takes no header of more than 100 MB
_HOW = "give a file that save of an audit's record wrote"


def save_record(record: AuditRecord, path: str | os.PathLike[str]) -> None:
    """Write a record to one file, under a temporary name that is then moved into place.

    Args:
        record: what :func:`mahalens.audit` found.
        path: the file, by custom ``audit.safetensors``; its folder is made if it is missing.

    Example:
        >>> save_record(record, "audit.safetensors")  # doctest: +SKIP
        >>> load_audit("audit.safetensors").layers[0].units.dead  # doctest: +SKIP
        (3, 17)
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = Path(path)
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_to_plain(record, "", tensors), allow_nan=False, separators=(",", ":"))
    if len(text) > _LARGEST:
        raise InputError(
            f"{path}: the lists of units and pairs take {len(text) / 1e6:.0f} MB, more than a "
            "file can hold; audit with a larger cosine, so that fewer pairs are found"
        )
    try:
        with replacing(path) as temporary:
            save_file(_without_shared_memory(tensors), temporary, {KEY: text})
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be written ({_line(error)})") from None


def load_audit(path: str | os.PathLike[str]) -> AuditRecord:
    """Read a record that :meth:`AuditRecord.save` wrote; every number is as it was.

    A file that is missing, damaged, of another kind or of another version is an
    :class:`~mahalens.errors.InputError` of one line that names the file.
    """
    path = Path(path)
    text, tensors = _read(path)
    if text is None:
        raise InputError(f"{path}: holds no audit; {_HOW}")
    try:
        plain = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _damaged(path, error) from None
    if not isinstance(plain, dict) or "format" not in plain:
        raise _damaged(path, "it does not say its format")
    if plain["format"] != FORMAT:
        raise InputError(
            f"{path}: is an audit in format {plain['format']!r} of mahalens "
            f"{plain.get('mahalens', 'unknown')}, and this mahalens reads format {FORMAT}; "
            "audit again, or use that version"
        )
    try:
        record = msgspec.convert(_from_plain(plain, tensors), AuditRecord)
        check_shapes(record)
    except (msgspec.ValidationError, KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, error.args[0] if isinstance(error, KeyError) else error) from None
    return record


def _read(path: Path) -> tuple[str | None, dict[str, Tensor]]:
    """The text in the metadata and the tensors of a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with open_file(path):  # the library says less about files that are not there
            pass
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                return None, {}
            return text, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        reason = error.strerror or _line(error)
        raise InputError(f"{path}: cannot be read ({reason}); {_HOW}") from None
    except SafetensorError as error:
        raise InputError(
            f"{path}: is not a safetensors file, or damaged ({_line(error)}); {_HOW}"
        ) from None


def _to_plain(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold; tensors are put aside under the path that leads to them."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, dict):
        within = f"{path}." if path else ""
        return {k: _to_plain(v, f"{within}{k}", tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]
    return value


def _from_plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            ((kind, content),) = value.items()
            if kind == "tensor" and isinstance(content, str):
                if content not in tensors:
                    raise KeyError(f"tensor {content} is missing")
                return tensors[content]
            if kind == "float" and isinstance(content, str):
                return float(content)
        return {name: _from_plain(part, tensors) for name, part in value.items()}
    if isinstance(value, list):
        return [_from_plain(part, tensors) for part in value]
    return value


def _without_shared_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, each in memory of its own: the format has no two names for one."""
    seen: set[int] = set()
    ready = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        ready[name] = plain.clone() if place in seen else plain
        seen.add(place)
    return ready


def _damaged(path: Path, why: object) -> InputError:
    return InputError(f"{path}: is a damaged audit ({_line(why)}); audit again, or bring a copy")


def _line(why: object) -> str:
    return " ".join(str(why).split())
