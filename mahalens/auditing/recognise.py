"""Recognise which kind of model a user names, without opening it; needs no torch.

A ``.pt2`` file and a TorchScript file are programs: whoever loads one runs it. They are recognised
here by names of files, names of the parts of an archive and first bytes, before anything is
unpickled, imported or written, and refused without ``trust``.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Literal

from mahalens.errors import InputError

Kind = Literal["factory", "torch.export program", "TorchScript file"]

EXPORT = (
    "program = torch.export.export(model.eval(), (example,), "
    'dynamic_shapes=({0: torch.export.Dim("batch")},)); torch.export.save(program, "model.pt2")'
)
"""How to export a network, for messages."""
WEIGHTS_WANTED = "a .safetensors file, or what torch.save(model.state_dict(), ...) wrote"
_WANTED = (
    "package.module:factory with --weights, or with --trust a .pt2 file of torch.export.save or a "
    "TorchScript file"
)
_USE_FACTORY = "give package.module:factory as the model and this file as --weights"
_ABOUT_PICKLES = (
    f"is a file of torch.save, and is not opened: unpickling a model runs code; if it holds "
    f"weights, {_USE_FACTORY}; if it holds a whole model, save model.state_dict() instead, or "
    f"export it: {EXPORT}"
)
_SPEC = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_FOREIGN = {
    ".onnx": "an ONNX model",
    **dict.fromkeys((".h5", ".hdf5", ".keras"), "a Keras model"),
    ".pb": "a TensorFlow model",
    ".tflite": "a TensorFlow Lite model",
    ".mlmodel": "a Core ML model",
    ".gguf": "a GGUF model",
}
# The only parts of an archive that torch.save writes.
_OF_WEIGHTS = re.compile(
    r"[^/]+/(data\.pkl|data/\d+|version|byteorder|\.data/serialization_id|\.format_version"
    r"|\.storage_alignment)"
)


def recognise_model(spec: str, weights: Path | None = None, *, trust: bool = False) -> Kind:
    """Return the kind of a model; raise :class:`~mahalens.errors.InputError` if it cannot be used.

    Only names of files, names of the parts of an archive and first bytes are read.

    >>> recognise_model("torch.nn:Identity")
    'factory'
    """
    path = Path(spec)
    try:
        exists, folder = path.exists(), path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        exists = folder = False
    if not exists and factory_parts(spec) is not None:
        if weights is not None:
            first_bytes(weights, WEIGHTS_WANTED)
        return "factory"
    if folder or not exists:
        reason = "is a folder" if folder else "there is no such file"
        raise InputError(f"{spec}: {reason}; wanted {_WANTED}")
    kind = _kind_of_file(path)
    if not trust:
        raise InputError(
            f"{spec}: is a {kind}, a program that can run any code of its maker when loaded; give "
            f"package.module:factory with --weights, or --trust (in Python trust=True) if you made "
            f"the file or trust its source"
        )
    if weights is not None:
        raise InputError(
            f"{spec}: is a {kind}, which has weights of its own; leave --weights out, or give "
            f"package.module:factory with it"
        )
    return kind


def factory_parts(spec: str) -> tuple[str, str] | None:
    """Return module and name of a text of the form ``package.module:factory``, else None.

    >>> factory_parts("nets.small:build"), factory_parts("nets/small.pt2")
    (('nets.small', 'build'), None)
    """
    match = _SPEC.fullmatch(spec)
    return None if match is None else (match[1], match[2])


def first_bytes(path: Path, wanted: str) -> bytes:
    """Return the beginning of a regular file; for anything else raise an error with ``wanted``."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise InputError(f"{path}: is no file and cannot be read; wanted {wanted}")
        with path.open("rb") as file:
            start = file.read(512)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; wanted {wanted}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); wanted {wanted}") from None
    if not start:
        raise InputError(f"{path}: is empty; wanted {wanted}")
    return start


def is_safetensors(start: bytes) -> bool:
    """Return whether a file that starts so is a ``.safetensors`` file: a length, then JSON."""
    return len(start) > 8 and start[8:9] == b"{" and start[5:8] == b"\0\0\0"


def is_archive(start: bytes) -> bool:
    """Return whether a file that starts so is a zip archive."""
    return start[:4] == b"PK\x03\x04"


def require_weights_only(path: Path) -> None:
    """Refuse an archive with any part that ``torch.save`` does not write for a state dict."""
    names = _archive_names(path)
    others = [name for name in names if not _OF_WEIGHTS.fullmatch(name)]
    if others or len({name.partition("/")[0] for name in names}) > 1:
        kind = _kind_of_archive(names)
        what = f"is a {kind}" if kind else f"holds {others[0] if others else names[0]!a}"
        raise InputError(f"{path}: {what}, and not only weights; wanted {WEIGHTS_WANTED}")


def _kind_of_file(path: Path) -> Kind:
    """Return which of the two kinds of program a file is; refuse every other file."""
    start, suffix = first_bytes(path, _WANTED), path.suffix.lower()
    names = _archive_names(path) if is_archive(start) else []
    if kind := _kind_of_archive(names):
        return kind
    if names:
        reason = _not_a_program(names)
    elif suffix in _FOREIGN or start[:8] == b"\x89HDF\r\n\x1a\n":
        what = _FOREIGN.get(suffix, "a Keras model")
        reason = f"is {what}, and networks of PyTorch are audited; wanted {_WANTED}"
    elif is_safetensors(start):
        reason = f"holds weights and no network; {_USE_FACTORY}"
    elif suffix == ".py":
        reason = (
            f"is Python code; give {path.stem}:NAME, with the function or class in it that makes "
            f"the network"
        )
    elif start[:1] == b"\x80":
        reason = _ABOUT_PICKLES
    else:
        reason = f"is no model that torch knows; wanted {_WANTED}"
    raise InputError(f"{path}: {reason}")


def _not_a_program(names: list[str]) -> str:
    if all(_OF_WEIGHTS.fullmatch(name) for name in names):
        return _ABOUT_PICKLES
    if any(name.endswith(".npy") for name in names):
        return "holds arrays and no network; is it the data?"
    if any(name.endswith(".weights.h5") for name in names):
        return "is a Keras model, and networks of PyTorch are audited"
    return f"is an archive without a network; wanted {_WANTED}"


def _kind_of_archive(names: list[str]) -> Kind | None:
    """Return the kind of program that an archive with these parts may be, in any spelling.

    >>> _kind_of_archive(["net/Code/x.PY", "net/data.pkl"])
    'TorchScript file'
    >>> _kind_of_archive(["net/data.pkl", "net/data/0"])
    """
    plain = [re.sub(r"[\\/]+", "/", name).lower() for name in names]
    folders = {folder for name in plain for folder in name.split("/")[:-1]}
    files = {name.rpartition("/")[2] for name in plain}
    if files & {"serialized_exported_program.json", "archive_format"}:
        return "torch.export program"
    if folders & {"models", "aotinductor"}:
        return "torch.export program"
    if "code" in folders or "constants.pkl" in files or any(name.endswith(".py") for name in files):
        return "TorchScript file"
    return None


def _archive_names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # of an archive within, when the end of the outer one is missing
            if any(part.header_offset == 0 for part in archive.infolist()) != bool(names):
                raise zipfile.BadZipFile
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError):
        raise InputError(f"{path}: is damaged or cut short; copy or export it again") from None
    return names
