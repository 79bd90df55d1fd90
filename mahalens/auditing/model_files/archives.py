"""Copying a ``.pt2`` archive without anything in it that torch would unpickle or run."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from mahalens.auditing.model_files.program_checks import QUANTISED, clean_program
from mahalens.auditing.model_files.safely import first_line, weights_only
from mahalens.errors import InputError

OLD_PROGRAM = "serialized_exported_program.json"
"""The program in the archives of torch up to 2.7."""
_OLD_TENSORS = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")
_WEIGHT = re.compile(r"data/(weights|constants)/(weight|tensor)_\d+")
_CONFIG = re.compile(r"data/(weights|constants)/\w+_config\.json")
_SAMPLES = re.compile(r"data/sample_inputs/model\.pt")
_FACTS = re.compile(r"archive_format|archive_version|byteorder|version|\.data/\w+")
_EXTRA = re.compile(r"(data/)?extra(_files)?/.*|\.format/.*")
_LARGEST_TEXT = 1 << 28  # bytes of a description


def program_name(names: list[str]) -> str | None:
    """The part of an archive that describes its program, or None if it holds none.

    >>> program_name(["net/version", "net/models/model.json"])
    'net/models/model.json'
    >>> program_name(["net/data.pkl"])
    """
    new = [name for name in names if name.endswith("/models/model.json")]
    old = [name for name in names if name == OLD_PROGRAM]
    return next(iter(new or old), None)


def copy_program(path: Path, copy: Path) -> None:
    """Write a copy of the archive at ``path`` that holds its program and tensors, all checked.

    torch is given this copy only, so that it cannot find in the archive what was not seen here.
    Faults raise :class:`~mahalens.errors.InputError` with the reason.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            names = [part.filename for part in parts]
            program = program_name(names)
            if program is None or len(set(names)) < len(names):
                raise InputError("is no archive that torch.export.save wrote")
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
                raise InputError("is compressed, which torch.export.save does not do")
            root = "" if program == OLD_PROGRAM else program.removesuffix("models/model.json")
            with zipfile.ZipFile(copy, "w") as clean:
                for part in parts:
                    content = _checked(archive, part, root)
                    if content is not None:
                        # torch takes the first folder of an archive for its root
                        below = part.filename.removeprefix(root)
                        clean.writestr(f"program/{below}" if root else below, content)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, zlib.error) as error:
        raise InputError(f"is damaged or cut short ({first_line(error)})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"is damaged ({first_line(error)})") from None


def _checked(archive: zipfile.ZipFile, part: zipfile.ZipInfo, root: str) -> bytes | None:
    """The content of a part as torch may have it; None for parts it does without."""
    if not part.filename.startswith(root):
        raise InputError(f"holds {part.filename!a}, which torch.export.save does not write")
    name = part.filename.removeprefix(root)
    if _EXTRA.fullmatch(name) or part.is_dir():
        return None
    if name in (OLD_PROGRAM, "models/model.json"):
        return json.dumps(clean_program(_read_json(archive, part))).encode()
    if _CONFIG.fullmatch(name):
        config = _read_json(archive, part)
        _require_plain_tensors(config)
        return json.dumps(config).encode()
    if _WEIGHT.fullmatch(name):
        return archive.read(part)
    if _SAMPLES.fullmatch(name) or _OLD_TENSORS.fullmatch(name):
        content = archive.read(part)
        _require_tensors(name, content)
        return content
    if _FACTS.fullmatch(name):
        return archive.read(part)
    if name.startswith("data/aotinductor/"):
        raise InputError(
            "holds compiled machine code, which is not run; save the program itself with "
            "torch.export.save"
        )
    raise InputError(
        f"holds {name!a}, an object that only unpickling could read; export it without"
    )


def _read_json(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> Any:
    if part.file_size > _LARGEST_TEXT:
        raise InputError(f"has {part.file_size} bytes of {part.filename!a}, which is too much")
    return json.loads(archive.read(part))


def _require_plain_tensors(config: Any) -> None:
    """Every tensor lies in a part of its own as plain numbers, none as a pickle."""
    entries = config.get("config") if isinstance(config, dict) else None
    if not isinstance(entries, dict):
        raise InputError("does not say where its weights are")
    for name, entry in entries.items():
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise InputError(f"names a tensor {name!a}")
        plain = isinstance(entry, dict) and not entry.get("use_pickle")
        file = entry.get("path_name") if plain else None
        if not isinstance(file, str) or not re.fullmatch(r"(weight|tensor)_\d+", file):
            raise InputError(
                f"holds {name!a} as a pickle, which is not opened; give the network plain float "
                f"weights and export it again"
            )
        meta = entry.get("tensor_meta") or {}
        numbers = [*(meta.get("sizes") or []), *(meta.get("strides") or [])]
        for number in (*numbers, meta.get("storage_offset")):
            if not isinstance(number, dict) or type(number.get("as_int")) is not int:
                raise InputError(f"does not give the shape of {name!a} in numbers")


def _require_tensors(name: str, content: bytes) -> None:
    """A part that torch saved: nothing but tensors and containers."""
    if not content:
        return
    try:
        with weights_only():
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its parsers happen to raise
        if "quantized" in str(error):
            raise InputError(QUANTISED) from None
        raise InputError(
            f"holds more than tensors in {name!a}, and is not opened: unpickling would run code"
        ) from None
