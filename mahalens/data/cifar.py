"""CIFAR-10, from its published files or from a folder in one of their layouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mahalens.data.catalogue import CIFAR_FILES, CIFAR_TEST, CIFAR_TRAIN
from mahalens.data.cifar_files import read_records, require_published_labels
from mahalens.data.labelled import LabelledData
from mahalens.data.places import find_set
from mahalens.data.python_batches import RECORD, NotABatchError
from mahalens.errors import InputError

IMAGE_SHAPE = (3, 32, 32)


def load_cifar() -> LabelledData:
    """Load the published CIFAR-10 from the first place that has it: 50,000 + 10,000 images."""
    files = find_set("cifar10")
    folder = files[CIFAR_TEST].parent
    return _load("cifar10", files, f"the published files in {folder}", published=True)


def load_cifar_folder(folder: Path, files: Mapping[str, Path]) -> LabelledData:
    """Load files in a layout of CIFAR-10, with any number of images in each."""
    return _load(folder.absolute().name, files, str(folder), published=False)


def _load(name: str, files: Mapping[str, Path], source: str, *, published: bool) -> LabelledData:
    batches = {key: read_records(files[key], published=published) for key in CIFAR_FILES}
    folder = files[CIFAR_TEST].parent
    try:
        if published:
            require_published_labels(
                {key: bytes(records[::RECORD]) for key, records in batches.items()}
            )
        x, y = _tensors([batches[key] for key in CIFAR_TRAIN])
        test_x, test_y = _tensors([batches[CIFAR_TEST]])
        return LabelledData(name, x, y, test_x, test_y, IMAGE_SHAPE, 255.0, source)
    except NotABatchError as error:
        raise InputError(
            f"{folder}: {error}; get the files again, or give the folder as a path to use it as "
            f"it is"
        ) from None
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def _tensors(batches: list[bytearray]) -> tuple[Tensor, Tensor]:
    """Pixels [N, 3072], float32, and labels [N] of several batches."""
    records = [torch.frombuffer(one, dtype=torch.uint8).view(-1, RECORD) for one in batches]
    # Converted batch by batch into place: all bytes are turned into floats once.
    x = torch.empty(sum(len(one) for one in records), RECORD - 1)
    for part, one in zip(x.split([len(one) for one in records]), records, strict=True):
        part.copy_(one[:, 1:])
    return x, torch.cat([one[:, 0] for one in records]).long()
