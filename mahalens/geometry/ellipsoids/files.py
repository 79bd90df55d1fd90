"""Ellipsoids as safetensors files: tensors by name, and their kind as the only metadata."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from mahalens.errors import InputError
from mahalens.files import open_file, replacing
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.full import FullEllipsoids
from mahalens.geometry.ellipsoids.lowrank import LowRankEllipsoids
from mahalens.geometry.ellipsoids.shared import SharedBasisEllipsoids
from mahalens.geometry.ellipsoids.spheres import DiagonalEllipsoids, SphericalEllipsoids

KEY = "ellipsoids"
KINDS: dict[str, type[Ellipsoids]] = {
    "full": FullEllipsoids,
    "low-rank": LowRankEllipsoids,
    "low-rank+remainder": LowRankEllipsoids,
    "diagonal": DiagonalEllipsoids,
    "spherical": SphericalEllipsoids,
    "shared-basis": SharedBasisEllipsoids,
}


def save_ellipsoids(ellipsoids: Ellipsoids, path: Path) -> None:
    """Write ``path`` under a temporary name and move it into place."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    found: dict[str, Tensor] = {}
    for name, tensor in ellipsoids.tensors().items():
        ready = tensor.detach().cpu().contiguous()
        # The format has no two names for the same memory.
        shared = any(
            ready.untyped_storage()._cdata == t.untyped_storage()._cdata for t in found.values()
        )
        found[name] = ready.clone() if shared else ready
    try:
        with replacing(path) as temporary:
            save_file(found, temporary, {KEY: ellipsoids.kind})
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from None


def load_ellipsoids(path: str | Path) -> Ellipsoids:
    """Read what :meth:`Ellipsoids.save` wrote; every fault is one line that names the file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        with open_file(path), safe_open(path, "pt") as file:
            kind = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({reason}); give a file made by save") from None
    if kind not in KINDS:
        given = "holds no ellipsoids" if kind is None else f"holds ellipsoids of kind {kind!r}"
        raise InputError(f"{path}: {given}; give a file made by save")
    cls = KINDS[kind]
    needed = set(cls.fields) - ({"remainder"} if kind == "low-rank" else set())
    if set(tensors) != needed:
        raise InputError(
            f"{path}: holds {', '.join(sorted(tensors)) or 'nothing'} where kind {kind!r} has "
            f"{', '.join(sorted(needed))}"
        )
    try:
        return cls.from_tensors(tensors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
