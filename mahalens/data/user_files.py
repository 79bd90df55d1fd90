"""A user's own samples with a class each, from an ``.npz`` or a ``.safetensors`` file."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mahalens.data.labelled import LabelledData
from mahalens.data.streams import stream
from mahalens.errors import InputError
from mahalens.geometry.checks import dtype_name
from mahalens.geometry.memory import refusing_memory, require_memory

KINDS = (".npz", ".safetensors")
WANTED = (
    "arrays x [N, ...] with the samples and y [N] with their classes, and perhaps test_x and test_y"
)
TEST_SHARE = 5  # without test arrays every fifth sample is kept for the test
MANY_CLASSES = 100
"""From here on classes must be numbered without large gaps, and have 2 samples on average."""
LARGEST_LABEL = 2**53
"""Above it float64 has no room for every whole number."""
SMALLER = "save fewer samples or inputs in it"
_NAMES = ("x", "y", "test_x", "test_y")


def load_file(path: str | os.PathLike[str]) -> LabelledData:
    """Load the arrays ``x`` [N, ...] and ``y`` [N] of a file, and ``test_x``, ``test_y``.

    Samples are flattened to [N, D]; ``image_shape`` keeps [H, W] or [C, H, W]. Classes are whole
    numbers from 0 on. :attr:`~LabelledData.largest` is 255 for unsigned bytes and else the
    largest absolute value in ``x``. Without test arrays a fifth of the samples, drawn once and
    for all by the number of samples alone, is the test set; ``source`` says so.

    Every fault of the file raises :class:`~mahalens.errors.InputError` with one line that names
    the file. Nothing in it is unpickled.
    """
    file = Path(path)
    arrays = read_arrays(file)
    try:
        with refusing_memory("x", SMALLER):
            return _labelled(file, arrays)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _labelled(file: Path, arrays: dict[str, Tensor]) -> LabelledData:
    if missing := [name for name in _NAMES[:2] if name not in arrays]:
        raise InputError(f"has no {' and no '.join(missing)}; wanted {WANTED}")
    if ("test_x" in arrays) != ("test_y" in arrays):
        there, absent = ("test_x", "test_y") if "test_x" in arrays else ("test_y", "test_x")
        raise InputError(f"has {there} and no {absent}; add it, or leave both out")
    x = samples_of("x", arrays["x"])
    shape = tuple(x.shape[1:])
    y = labels_of("y", arrays["y"], len(x))
    _require_classes(y)
    if "test_x" in arrays:
        test_x = samples_of("test_x", arrays["test_x"])
        if tuple(test_x.shape[1:]) != shape:
            raise InputError(
                f"x holds samples of shape {list(shape)} and test_x of {list(test_x.shape[1:])}; "
                f"wanted one shape"
            )
        if (x.dtype == torch.uint8) != (test_x.dtype == torch.uint8):
            raise InputError(
                f"x is {dtype_name(x.dtype)} and test_x {dtype_name(test_x.dtype)}, so that "
                f"their scales may differ; give both the same dtype"
            )
        test_y = labels_of("test_y", arrays["test_y"], len(test_x))
        source = str(file)
    else:
        kept, tested = _split(len(x))
        x, test_x, y, test_y = x[kept], x[tested], y[kept], y[tested]
        source = f"{file}, a fifth of its samples kept for the test"
        if int(test_y.max()) > int(y.max()):
            raise InputError(
                f"the class {int(test_y.max())} has so few samples that training got none; give "
                f"test_x and test_y"
            )
    flat, flat_test = (part.flatten(1).to(torch.float32) for part in (x, test_x))
    if flat.isinf().any() and not torch.isinf(x).any():
        raise InputError("x has values too large for float32; divide them by a common number")
    largest = 255.0 if x.dtype == torch.uint8 else float(flat.abs().max())
    if largest == 0:
        raise InputError("x has nothing but zeros; wanted samples that differ")
    image_shape = shape if len(shape) > 1 else None
    return LabelledData(file.stem, flat, y, flat_test, test_y, image_shape, largest, source)


def _require_classes(y: Tensor) -> None:
    """Refuse labels that number something else than classes, such as a measured value."""
    top, classes = int(y.max()) + 1, len(y.unique())
    if top > MANY_CLASSES and top > 2 * classes:
        raise InputError(
            f"y has {classes:,} different labels from 0 to {top - 1:,}; number the classes without "
            f"gaps, for example with numpy.unique(y, return_inverse=True)[1]"
        )
    if classes > MANY_CLASSES and 2 * classes > len(y):
        raise InputError(
            f"y has {classes:,} classes in {len(y):,} samples, as a measured value has; give "
            f"classes with at least 2 samples each"
        )


def _split(count: int) -> tuple[Tensor, Tensor]:
    """Which samples to train with and which to test with: the last fifth of a fixed order."""
    if count < 2:
        raise InputError(f"x has {count} sample(s); wanted at least 2, one for the test")
    order = torch.randperm(count, generator=stream(0, "test split", count))
    tested = max(1, count // TEST_SHARE)
    return order[:-tested].sort().values, order[-tested:].sort().values


def samples_of(name: str, x: Tensor) -> Tensor:
    """Samples [N, ...] of finite real numbers, or an error that says what they are."""
    if 0 in x.shape:
        raise InputError(f"{name} has shape {list(x.shape)}, which holds no value; wanted samples")
    if x.ndim < 2:
        advice = "; a single value per sample is [N, 1]" if x.ndim == 1 else ""
        raise InputError(f"{name} has shape {list(x.shape)}, wanted [N, ...]{advice}")
    if x.dtype == torch.bool or x.is_complex():
        raise InputError(f"{name} is {dtype_name(x.dtype)}, wanted real numbers")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        what = "NaN" if bool(x.isnan().any()) else "an infinite value"
        bad = (~x.isfinite()).flatten(1).any(1).nonzero()
        raise InputError(
            f"{name} has {what} in {len(bad)} of {len(x)} samples, the first at [{int(bad[0])}]; "
            f"remove or repair them"
        )
    return x


def labels_of(name: str, y: Tensor, samples: int, most: int | None = None) -> Tensor:
    """Labels [N] as int64, or an error that says what they are.

    There may be ``most`` classes; if not given, as many as samples where the name is y.
    """
    of = name.replace("y", "x")
    if y.ndim != 1:
        raise InputError(
            f"{name} has shape {list(y.shape)}, wanted [N], a class for each sample; for one-hot "
            f"rows give {name}.argmax(1)"
        )
    if len(y) != samples:
        raise InputError(f"{of} has {samples} samples and {name} {len(y)} labels; wanted as many")
    if y.is_complex():
        raise InputError(f"{name} is {dtype_name(y.dtype)}, wanted whole numbers from 0 on")
    whole = y.to(torch.float64)
    if bool(((whole != whole.floor()) | (whole < 0) | whole.isinf()).any()):
        raise InputError(
            f"{name} has labels that are not whole numbers from 0 on; number the classes, for "
            f"example with numpy.unique({name}, return_inverse=True)[1]"
        )
    # so that a stray number does not make for millions of outputs
    if most is None:
        most = samples if name == "y" else LARGEST_LABEL
    if samples and float(whole.max()) >= most:
        raise InputError(
            f"{name} has the label {int(whole.max())} with {samples} samples; number the classes "
            f"0, 1, 2, ..., for example with numpy.unique({name}, return_inverse=True)[1]"
        )
    return y.to(torch.int64)


def read_arrays(file: Path, wanted: str = WANTED) -> dict[str, Tensor]:
    """Those of the arrays x, y, test_x and test_y that a file has, as they are."""
    kind = file.suffix.lower()
    if kind not in KINDS:
        raise InputError(
            f"{file}: the name ends in {kind or 'nothing'!r}; wanted an .npz or .safetensors file "
            f"with {wanted}"
        )
    try:
        if not file.exists():
            raise InputError(f"{file}: there is no such file; wanted {wanted}")
        if not file.is_file():  # opening a pipe would wait for a writer
            raise InputError(f"{file}: this is no file; wanted {wanted}")
        return _read_npz(file) if kind == ".npz" else _read_safetensors(file)
    except InputError:
        raise
    except Exception as error:  # parsers of foreign bytes raise what they happen to raise
        raise unreadable(file, error) from None


def unreadable(file: Path, error: Exception) -> InputError:
    """Return the one line for what a parser raised on a file."""
    if isinstance(error, MemoryError):
        return InputError(f"{file}: takes more memory than there is; {SMALLER}")
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    reason = reason or type(error).__name__
    return InputError(f"{file}: not readable as {file.suffix.lower()}, {reason}")


class _Stored(NamedTuple):
    """What the header of an array promises."""

    shape: Sequence[int]
    dtype: str
    bits: int


def _require_room(file: Path, stored: dict[str, _Stored]) -> None:
    """Refuse arrays that will not fit: as they are stored, in float32, and split in two."""
    sizes = {
        name: math.prod(one.shape) * (one.bits + 64) // 8 for name, one in stored.items() if one
    }
    if sizes:
        name = max(sizes, key=lambda key: sizes[key])
        what = f"{file}: {name} {list(stored[name].shape)} of {stored[name].dtype}"
        require_memory(sum(sizes.values()), what, SMALLER)


def _read_npz(file: Path) -> dict[str, Tensor]:
    arrays = npz_arrays(file, _NAMES)
    return {name: _tensor(name, array, file) for name, array in arrays.items()}


def npz_arrays(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read those of the named arrays that an ``.npz`` file has; others are not even opened.

    Their headers are read first: what is no array of numbers, or would not fit in memory, is
    refused before anything is unpacked.
    """
    with file.open("rb") as opened:
        if opened.read(2) != b"PK":
            raise InputError(f"{file}: not readable as .npz, it is no such archive")
        opened.seek(0)
        with zipfile.ZipFile(opened) as archive:
            members = {one.removesuffix(".npy"): one for one in archive.namelist()}
            members = {name: members[name] for name in names if name in members}
            stored = {}
            for name, member in members.items():
                with archive.open(member) as content:
                    shape, dtype = _npy_header(file, name, content)
                    promised = math.prod(shape) * dtype.itemsize
                if archive.getinfo(member).file_size < promised:
                    raise InputError(f"{file}: not readable as .npz, {name} is cut short")
                stored[name] = _Stored(shape, str(dtype), 8 * dtype.itemsize)
            _require_room(file, stored)
            arrays = {}
            for name, member in members.items():
                with archive.open(member) as content:
                    arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
            return arrays


def _npy_header(file: Path, name: str, content: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Read shape and dtype of an array in an ``.npz`` file, if it is one of numbers."""
    start = content.read(6)
    if start != b"\x93NUMPY":
        what = f"begins with {start.hex(' ')}" if start else "is empty"
        raise InputError(
            f"{file}: {name} is no array of NumPy, it {what}; save arrays with numpy.savez"
        )
    version = tuple(content.read(2))
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise InputError(f"{file}: {name} is an array of an unknown version, {list(version)}")
    # Versions 2 and 3 differ in how names of fields are spelt, and only structures have these.
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(content)
    if dtype.hasobject:
        raise InputError(
            f"{file}: holds Python objects, which are not read as they could run code; save "
            "numbers, classes for example as np.unique(y, return_inverse=True)[1]"
        )
    if dtype.kind in "US":
        advice = "; np.unique(y, return_inverse=True)[1] numbers classes" if "y" in name else ""
        raise InputError(f"{file}: {name} is text, wanted numbers{advice}")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise InputError(f"{file}: {name} is {dtype}, wanted real numbers of up to 64 bits")
    if any(size < 0 for size in shape):
        raise InputError(f"{file}: not readable as .npz, {name} has shape {list(shape)}")
    return shape, dtype


def _tensor(name: str, array: np.ndarray, file: Path) -> Tensor:
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    made = torch.from_numpy(np.array(native) if not native.flags.writeable else native)
    return _usable(name, made, file)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        names = _known(opened.keys())
        stored = {}
        for name in names:
            part = opened.get_slice(name)
            dtype = str(part.get_dtype())
            bits = re.search(r"\d+", dtype)
            stored[name] = _Stored(part.get_shape(), dtype, int(bits[0]) if bits else 8)
        _require_room(file, stored)
        return {name: _usable(name, opened.get_tensor(name), file) for name in names}


def _usable(name: str, values: Tensor, file: Path) -> Tensor:
    """The same numbers in a dtype that can be computed with."""
    if values.dtype == torch.uint64:
        signed = values.view(torch.int64)
        if not bool((signed < 0).any()):
            return signed
        if "y" in name:
            raise InputError(f"{file}: {name} has labels from 2^63 on; number the classes 0, 1, 2")
        return torch.from_numpy(values.numpy().astype(np.float64))
    if values.dtype in (torch.uint16, torch.uint32):
        return values.to(torch.int64)
    if values.is_floating_point() and values.dtype.itemsize < 2:
        try:
            return values.to(torch.float32)
        except (RuntimeError, TypeError):
            kind = dtype_name(values.dtype)
            raise InputError(f"{file}: {name} is {kind}, wanted numbers of 8 to 64 bits") from None
    return values


def _known(names: Iterable[str]) -> list[str]:
    """Those of the arrays that matter; others are not even read."""
    present = set(names)
    return [name for name in _NAMES if name in present]


def array_names(file: Path) -> list[str]:
    """The names of all arrays in a file that :func:`read_arrays` can read."""
    if file.suffix.lower() == ".npz":
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())
