"""Which kind of model a user gave, and one line for everything that is none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from mahalens.auditing.model_files.archives import program_name
from mahalens.auditing.model_files.factories import is_factory, load_factory
from mahalens.auditing.model_files.loaded import LoadedModel
from mahalens.auditing.model_files.programs import EXPORT, load_program
from mahalens.auditing.model_files.safely import quiet, weights_only
from mahalens.auditing.model_files.scripts import load_script
from mahalens.auditing.model_files.weights import is_safetensors, refusal
from mahalens.errors import InputError

WANTED = (
    "a .pt2 file of torch.export.save, package.module:factory with --weights, or a TorchScript file"
)
_USE_FACTORY = "give package.module:factory as the model and this file as --weights"
_FOREIGN = {
    ".onnx": "an ONNX model",
    ".h5": "a Keras model",
    ".hdf5": "a Keras model",
    ".keras": "a Keras model",
    ".pb": "a TensorFlow model",
    ".tflite": "a TensorFlow Lite model",
    ".mlmodel": "a Core ML model",
    ".gguf": "a GGUF model",
    ".ckpt.index": "a TensorFlow checkpoint",
}


def load_model(
    spec: str, weights: Path | None = None, *, example: Tensor | None = None
) -> LoadedModel:
    """Load a network to audit.

    ``spec`` is one of

    - a file of ``torch.export.save`` (``.pt2``): read with care, as nothing in it may run;
    - ``package.module:factory``: a function or class in importable code of the user's that makes
      a ``torch.nn.Module``, with ``weights`` from a ``.safetensors`` file or a state dict;
    - a TorchScript file, which torch converts for an ``example`` [N, ...] of its input.

    Everything else raises :class:`~mahalens.errors.InputError` with one line.

    >>> load_model("torch.nn:Identity").kind
    'factory'
    """
    path = Path(spec)
    try:
        there, folder = path.exists(), path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        there = folder = False
    if not there and is_factory(spec):
        return load_factory(spec, weights)
    if not there:
        raise InputError(f"{spec}: there is no such file; wanted {WANTED}")
    if folder:
        raise InputError(f"{spec}: is a folder; wanted {WANTED}")
    kind = _kind_of(path)
    if weights is not None:
        raise InputError(
            f"{spec}: is {kind}, which has weights of its own; leave --weights out, or give "
            f"package.module:factory with it"
        )
    return load_program(path) if kind == _PROGRAM else load_script(path, example)


def is_script(spec: str) -> bool:
    """Whether this is a TorchScript file, which is loaded for an example of its input."""
    path = Path(spec)
    try:
        return path.is_file() and _kind_of(path) == _SCRIPT
    except (InputError, OSError, ValueError):
        return False


_PROGRAM, _SCRIPT = "a torch.export program", "a TorchScript file"


def _kind_of(path: Path) -> str:
    """Which of the two kinds of file that hold a whole network this is."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise InputError(f"{path}: is no file; wanted {WANTED}")
        with path.open("rb") as opened:
            start = opened.read(512)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); wanted {WANTED}") from None
    if not start:
        raise InputError(f"{path}: is empty; wanted {WANTED}")
    if start[:4] == b"PK\x03\x04":
        return _kind_of_archive(path)
    what = _FOREIGN.get(path.suffix.lower())
    if what or start[:8] == b"\x89HDF\r\n\x1a\n":
        raise InputError(
            f"{path}: is {what or 'a Keras model'}, and networks of PyTorch are audited; wanted "
            f"{WANTED}"
        )
    if is_safetensors(start):
        raise InputError(f"{path}: holds weights and no network; {_USE_FACTORY}")
    if path.suffix.lower() == ".py":
        raise InputError(
            f"{path}: is Python code; give {path.stem}:NAME, with the function or class in it that "
            f"makes the network"
        )
    if start[:1] == b"\x80":
        raise InputError(f"{path}: {_told_of_pickle(path)}")
    raise InputError(f"{path}: is no model that torch knows; wanted {WANTED}")


def _kind_of_archive(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # of an archive within, when the end of the outer one is missing
            if any(part.header_offset == 0 for part in archive.infolist()) != bool(names):
                raise zipfile.BadZipFile
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError):
        raise InputError(f"{path}: is damaged or cut short; copy or export it again") from None
    if program_name(names) is not None:
        return _PROGRAM
    if any("/code/" in name for name in names):
        return _SCRIPT
    if any(name.endswith("/data.pkl") for name in names):
        raise InputError(f"{path}: {_told_of_pickle(path)}")
    if any(name.endswith(".npy") for name in names):
        raise InputError(f"{path}: holds arrays and no network; is it the data?")
    if any(name.endswith(".weights.h5") for name in names):
        raise InputError(f"{path}: is a Keras model, and networks of PyTorch are audited")
    if any("aotinductor" in name for name in names):
        raise InputError(
            f"{path}: holds compiled machine code, which is not run; save the program itself "
            f"with torch.export.save"
        )
    raise InputError(f"{path}: is an archive without a network; wanted {WANTED}")


def _told_of_pickle(path: Path) -> str:
    """What to do with a file of torch.save, which is read as weights or not at all."""
    try:
        with quiet(), weights_only():
            torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its parsers happen to raise
        return (
            f"{refusal(error)}; save model.state_dict() and give package.module:factory with "
            f"--weights, or export the model: {EXPORT}"
        )
    return f"holds weights and no network; {_USE_FACTORY}"
