"""Random draws that studies share, and Gaussians in files.

:func:`stream` gives every purpose of a run its independent random numbers. :func:`draw_gaussian`
and :func:`draw_ellipsoids` draw the Gaussians and ellipsoids of the studies named after them.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from mahalens.data.formats import array_names, read_npz, require_file, unreadable
from mahalens.errors import InputError
from mahalens.files import write_file
from mahalens.geometry import Ellipsoids, ellipsoids
from mahalens.geometry._checks import count_of, require_finite, require_memory
from mahalens.geometry.covariance import symmetric_tolerance
from mahalens.geometry.gaussian import Gaussian

MEAN_RANGE = 10.0
RAW_RIDGE = 1e-3
FLOOR = 0.5
_WANTED = 'a .json file {"mean": [...], "covariance": [[...], ...]} or an .npz file with the same'
_ENTRIES = ("mean", "covariance", "factor")


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a generator for one purpose of one run, such as ``stream(0, "start", trial)``.

    Streams of different purposes are independent, and none depends on how many others there are:
    trial 3 starts from the same weights whether 5 or 500 trials are run.

    >>> a, b = stream(0, "start", 1), stream(0, "start", 2)
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).any())
    False
    """
    if seed < 0:
        raise InputError(f"a seed of {seed}; give a whole number of at least 0")
    key = [zlib.crc32(word.encode()) if isinstance(word, str) else word for word in purpose]
    state = np.random.SeedSequence(entropy=seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def draw_gaussian(dim: int, generator: torch.Generator) -> Gaussian:
    """Draw the Gaussian of one run of the Gaussian study, in float64.

    The mean is uniform in [-10, 10]^D; with A [D, D] standard normal, Sigma is
    A A^T + 1e-3 I divided by its largest eigenvalue, which so becomes 1. The mean is drawn
    first, then A, both on the CPU.
    Reference: the Gaussian notes, "Training and Test Data".

    >>> gaussian = draw_gaussian(3, torch.Generator().manual_seed(0))
    >>> gaussian
    Gaussian(dim=3, batch_shape=[], dtype=float64, device=cpu)
    >>> round(float(gaussian.eigenvalues[0]), 12)
    1.0
    """
    dim = count_of("dim", dim)
    uniform = torch.rand(dim, generator=generator, dtype=torch.float64)
    a = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    raw = a @ a.mT + RAW_RIDGE * torch.eye(dim, dtype=torch.float64)
    raw = (raw + raw.mT) / 2
    largest = torch.linalg.eigvalsh(raw)[-1]
    return Gaussian.from_covariance((2 * uniform - 1) * MEAN_RANGE, raw / largest)


class DrawnCovariances(Sequence[Tensor]):
    """Random covariances Sigma_k = A_k A_k^T + 0.5 I, A_k standard normal [D, D], drawn on access.

    Held in memory, the 1024 matrices of 784 x 784 of the ellipsoid study would take 5 GB in
    float64. Matrix k depends on seed, D and k alone.
    """

    def __init__(self, dim: int, count: int, seed: int = 0) -> None:
        self.dim, self.seed = count_of("dim", dim), seed
        self._length = count_of("count", count)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, k: int) -> Tensor: ...
    @overload
    def __getitem__(self, k: slice) -> list[Tensor]: ...
    def __getitem__(self, k: int | slice) -> Tensor | list[Tensor]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(self._length))]
        if not -self._length <= k < self._length:
            raise IndexError(f"covariance {k} of {self._length}")
        generator = stream(self.seed, "ellipsoid", k % self._length)
        a = torch.randn(self.dim, self.dim, generator=generator).double()
        return a @ a.T + FLOOR * torch.eye(self.dim, dtype=torch.float64)


def draw_points(dim: int, count: int, seed: int, purpose: str, dtype: torch.dtype) -> Tensor:
    """Draw standard normal points [N, D]; point n depends on seed, purpose, D and n alone."""
    rows = [
        torch.randn(dim, generator=stream(seed, purpose, n), dtype=torch.float64)
        for n in range(count)
    ]
    return torch.stack(rows).to(dtype)


def draw_ellipsoids(
    dim: int, count: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any
) -> Ellipsoids:
    """Draw ellipsoids as the ellipsoid study does: means N(0, I), Sigma_k = A_k A_k^T + 0.5 I.

    ``options`` are those of :func:`mahalens.geometry.ellipsoids.from_covariance`.

    >>> draw_ellipsoids(5, 3, kind="low-rank+remainder", rank=2)
    LowRankEllipsoids(count=3, dim=5, rank=2, remainder=True, dtype=float32, device=cpu)
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype is {dtype}, wanted torch.float32 or torch.float64")
    means = draw_points(dim, count, seed, "means", dtype)
    return ellipsoids.from_covariance(means, DrawnCovariances(dim, count, seed), **options)


def load_gaussian(path: str | os.PathLike[str]) -> Gaussian:
    """Read a Gaussian, in float64, from a ``.json`` or ``.npz`` file.

    The file has ``mean`` [D] and ``covariance`` [D, D]; for D = 1 plain numbers do. A third
    entry ``factor`` [D, D], as :func:`save_gaussian` writes it, is taken as it is, so that a
    saved Gaussian comes back to the last bit; it must agree with the covariance.

    Every fault of the file raises :class:`~mahalens.errors.InputError` with one line that names
    the file.
    """
    file = Path(path)
    arrays = {name: _numbers(file, name, value) for name, value in _read(file).items()}
    mean = _vector(file, arrays["mean"])
    matrices = {
        name: _matrix(file, name, arrays[name], len(mean)) for name in arrays if name != "mean"
    }
    try:
        if "factor" not in matrices:
            return Gaussian.from_covariance(mean, matrices["covariance"])
        gaussian = Gaussian(mean, matrices["factor"])
        require_finite("covariance", matrices["covariance"])
    except InputError as error:
        raise type(error)(f"{file}: {error}") from None
    difference = (gaussian.covariance - matrices["covariance"]).abs()
    if bool((difference > symmetric_tolerance(matrices["covariance"])).any()):
        raise InputError(
            f"{file}: covariance and factor disagree by up to {difference.max().item():.3g}; "
            f"after a change of the covariance remove the factor"
        )
    return gaussian


def save_gaussian(path: str | os.PathLike[str], gaussian: Gaussian) -> None:
    """Write a single Gaussian to a ``.json`` file that :func:`load_gaussian` gives back exactly.

    The file has ``mean``, ``covariance`` and ``factor``, in float64 with all digits. It is
    written under a temporary name and moved into place: a file that is there is whole. A
    float32 Gaussian comes back in float64 with the same numbers in mean and factor.
    """
    file = Path(path)
    if file.suffix.lower() != ".json":
        raise InputError(f"{file}: a Gaussian is saved as JSON, wanted a name that ends in .json")
    if gaussian.batch_shape:
        raise InputError(
            f"{file}: a file holds one Gaussian, not a batch {list(gaussian.batch_shape)}; "
            f"save them one by one"
        )
    write_file(file, gaussian_text(gaussian).encode("utf-8"))


def gaussian_text(gaussian: Gaussian) -> str:
    """Return a single Gaussian as the JSON text that :func:`save_gaussian` writes.

    Keys: ``mean`` [D], ``covariance`` [D, D] and ``factor`` [D, D], in float64.

    >>> from mahalens.geometry import Gaussian
    >>> text = gaussian_text(Gaussian.from_covariance(torch.zeros(1), torch.eye(1)))
    >>> sorted(json.loads(text))
    ['covariance', 'factor', 'mean']
    """
    exact = gaussian.to(device="cpu").to(dtype=torch.float64)
    return (
        f'{{"mean": {json.dumps(exact.mean.tolist())},\n'
        f' "covariance": {_dump_rows(exact.covariance)},\n'
        f' "factor": {_dump_rows(exact.factor)}}}\n'
    )


def _read(file: Path) -> dict[str, Any]:
    """Read the entries of the file that make up a Gaussian."""
    require_file(file, _WANTED)
    readers = {".json": _read_json, ".npz": _read_npz}
    kind = file.suffix.lower()
    if kind not in readers:
        raise InputError(f"{file}: the name ends in {kind or 'nothing'!r}, wanted {_WANTED}")
    try:
        return readers[kind](file)
    except InputError:
        raise
    except Exception as error:  # parsers of foreign bytes raise what they happen to raise
        raise unreadable(file, error) from None


def _read_json(file: Path) -> dict[str, Any]:
    # parse_int: a whole number too long for 64 bits is still a number
    require_memory(10 * file.stat().st_size, f"{file}", "save it as .npz")
    text = file.read_text(encoding="utf-8-sig")
    if not text.strip():
        raise InputError(f"{file}: not readable as .json, it is empty")
    content = json.loads(text, parse_int=float)
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds a {type(content).__name__}, wanted {_WANTED}")
    return {name: content[name] for name in _names(file, content)}


def _read_npz(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        if stream.read(2) == b"\x93N":
            raise InputError(f"{file}: holds a single array, wanted {_WANTED}")
    arrays = read_npz(file, _ENTRIES)
    return {name: arrays[name] for name in _names(file, array_names(file))}


def _names(file: Path, names: Iterable[str]) -> list[str]:
    present = list(names)
    missing = [name for name in ("mean", "covariance") if name not in present]
    if missing:
        raise InputError(
            f"{file}: has no {' and no '.join(missing)}, only {', '.join(present) or 'nothing'}; "
            f"wanted {_WANTED}"
        )
    return [name for name in _ENTRIES if name in present]


def _numbers(file: Path, name: str, value: Any) -> Tensor:
    """Turn an entry of the file into a float64 tensor."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{file}: {name} has rows of unequal length") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"{file}: {name} has entries that are not real numbers")
    with np.errstate(over="ignore"):  # to infinity, which is reported as such
        return torch.from_numpy(array.astype(np.float64))


def _vector(file: Path, mean: Tensor) -> Tensor:
    if mean.ndim > 1 or mean.numel() == 0:
        raise InputError(f"{file}: mean has shape {list(mean.shape)}, wanted a list of D numbers")
    return mean.reshape(-1)


def _matrix(file: Path, name: str, matrix: Tensor, dim: int) -> Tensor:
    if dim == matrix.numel() == 1:
        return matrix.reshape(1, 1)
    if tuple(matrix.shape) != (dim, dim):
        raise InputError(
            f"{file}: mean has length {dim} and {name} has shape {list(matrix.shape)}, "
            f"wanted [{dim}, {dim}]"
        )
    return matrix


def _dump_rows(matrix: Tensor) -> str:
    """Write a matrix as JSON with one row a line, to be read by people too."""
    return "[" + ",\n  ".join(json.dumps(row) for row in matrix.tolist()) + "]"
