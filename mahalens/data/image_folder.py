"""Images in folders, one folder for each class."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.memory import refusing_memory, require_memory

if TYPE_CHECKING:
    from PIL import Image

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_GREY = ("1", "L", "LA", "I", "I;16", "F")


def find_images(folder: Path) -> tuple[list[str], list[Path], list[int]]:
    """The classes in a folder, which are its sub-folders, all their images and their classes."""
    try:
        inside = sorted(folder.iterdir())
        classes = [one for one in inside if one.is_dir() and not one.name.startswith(".")]
        found = {one: _images_in(one) for one in classes}
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from None
    kinds = ", ".join(kind[1:] for kind in KINDS)
    wanted = f"wanted a folder of images ({kinds}) for each class"
    if not classes or not any(found.values()):
        loose = "; its images lie in no folder of a class" if _images_in(folder) else ""
        raise InputError(f"{folder}: holds no folder with images{loose}; {wanted}")
    if empty := [one.name for one, files in found.items() if not files]:
        raise InputError(f"{folder}: {empty[0]} holds no image; {wanted}")
    files = [file for one in classes for file in found[one]]
    labels = [label for label, one in enumerate(classes) for _ in found[one]]
    return [one.name for one in classes], files, labels


def read_images(files: list[Path], size: tuple[int, int] | None = None) -> Tensor:
    """Read images as bytes [N, C, H, W]: C is 1 if all are grey and else 3.

    ``size`` [H, W] resizes them; without it all must be of one size. What they will take is
    known from the first image before the others are read.
    """
    first = _read(files[0], size)
    _require_room(len(files), *first.shape[:2], colours=3)
    remedy = "give --limit or a smaller --image-size"
    with refusing_memory(f"{len(files)} images of {first.shape[0]} x {first.shape[1]}", remedy):
        pixels = np.empty((len(files), *first.shape[:2], 3), dtype=np.uint8)
    for number, file in enumerate(files):
        image = first if number == 0 else _read(file, size)
        if image.shape != first.shape:
            height, width = image.shape[:2]
            raise InputError(
                f"{file}: is {height} x {width} pixels and {files[0].name} {first.shape[0]} x "
                f"{first.shape[1]}; give --image-size H,W to bring all to one size"
            )
        pixels[number] = image
    grey = bool(
        (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 0] == pixels[..., 2]).all()
    )
    kept = pixels[..., :1] if grey else pixels
    return torch.from_numpy(np.ascontiguousarray(kept.transpose(0, 3, 1, 2)))


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() in KINDS and file.is_file()
    )


def _read(file: Path, size: tuple[int, int] | None) -> np.ndarray:
    """One image as bytes [H, W, 3]; a grey one has three equal colours, a moving one is still."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that of an image that unpacks to too much
            with Image.open(file) as image:
                _require_room(1, image.height, image.width, colours=3)
                image.load()
                plain = _in_bytes(image) if image.mode.startswith("I") else image
                colours = plain.convert("L" if plain.mode in _GREY else "RGB").convert("RGB")
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except MemoryError:
        raise InputError(f"{file}: takes more memory than there is") from None
    except Exception as error:  # its parsers raise what they happen to raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{file}: not readable as an image, {reason}") from None
    if size is not None and (colours.height, colours.width) != size:
        colours = colours.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(colours, dtype=np.uint8)


def _in_bytes(image: Image.Image) -> Image.Image:
    """An image of 16 bits, whose pixels Pillow would clip at 255 and not divide, in 8."""
    from PIL import Image

    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8))


def _require_room(count: int, height: int, width: int, *, colours: int) -> None:
    # As bytes, and twice as floats of 32 bits: as they are, and scaled.
    needed = 9 * count * height * width * colours
    require_memory(
        needed, f"{count} images of {height} x {width}", "give --limit or a smaller --image-size"
    )
