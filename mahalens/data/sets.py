"""Labelled data sets by name, and those a user brings in a folder or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from mahalens.data.catalogue import (
    PUBLISHED,
    SETS,
    TABLES,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
)
from mahalens.data.idx import read_idx
from mahalens.data.labelled import LabelledData
from mahalens.data.places import cifar_files_in, files_in, find_set
from mahalens.data.problems import SEQUENCES
from mahalens.errors import InputError

__all__ = ["DIGITS_TEST", "LabelledData", "load_set"]

DIGITS_TEST = 360  # the last fifth, in scikit-learn's order
WANTED = (
    f"one of {', '.join((*SETS, *TABLES))} or of the sequences that `mahalens data list` names, an "
    f".npz or .safetensors file with x and y, a file of series ending in _TRAIN.ts, or a folder "
    f"with IDX files or the batches of CIFAR-10"
)


def load_set(name: str | os.PathLike[str]) -> LabelledData:
    """Load a labelled data set by name, from a folder or from a file.

    Names are ``"digits"``, ``"mnist"``, ``"fashion-mnist"`` and ``"cifar10"``
    (:data:`mahalens.data.catalogue.SETS`). The files of the last three must be the published
    ones, as ``mahalens data fetch`` brings them; they are looked for in ``$MAHALENS_DATA``
    (``<name>``, then torchvision's ``MNIST/raw``, ``FashionMNIST/raw`` or
    ``cifar-10-batches-py``) or else in the user's cache folder, and then, for Fashion-MNIST, in
    Debian's package. The tables ``"iris"``, ``"wine"`` and ``"breast-cancer"``
    (:data:`mahalens.data.catalogue.TABLES`) come with scikit-learn, as the digits do.

    Sequences such as ``"gunpoint"`` (:data:`mahalens.data.problems.SEQUENCES`) are flattened,
    channel after channel; their files come with ``mahalens data fetch sequences``.

    Any other text, and every ``Path``, is one of

    - a folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
      ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, plain or gzipped;
    - a folder with the batches of CIFAR-10, binary or python;
    - an ``.npz`` or ``.safetensors`` file with ``x`` [N, ...] and ``y`` [N], and perhaps
      ``test_x`` and ``test_y`` (:func:`mahalens.data.user_files.load_file`);
    - a file of series ``X_TRAIN.ts`` with ``X_TEST.ts`` beside it.

    These are taken as they are. Nothing is downloaded: when a set is missing, the error says how
    to get it. Nothing that a file holds is run.

    >>> load_set("digits")
    LabelledData('digits', 1437 + 360 samples, inputs=64, classes=10, largest=16)
    """
    if isinstance(name, str) and name in SETS:
        return _named(name)
    if isinstance(name, str) and name in TABLES:
        from mahalens.data.tables import load_table

        return load_table(name)
    if isinstance(name, str) and name in SEQUENCES:
        from mahalens.data.series import load_sequences

        return load_sequences(name)
    path = Path(name)
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name with a zero byte, or a folder in the way
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read, {reason}; wanted {WANTED}") from None
    if is_folder:
        return _folder(path)
    if not is_there:
        raise InputError(f"{path}: there is no such set, folder or file; wanted {WANTED}")
    if path.suffix.lower() == ".ts":
        from mahalens.data.series import load_sequences

        return load_sequences(path)
    from mahalens.data.user_files import KINDS, load_file

    if path.suffix.lower() not in KINDS:
        kind = path.suffix or "nothing"
        raise InputError(f"{path}: the name of this file ends in {kind!r}; wanted {WANTED}")
    return load_file(path)


def _named(name: str) -> LabelledData:
    if name == "digits":
        return _digits()
    if name == "cifar10":
        from mahalens.data.cifar import load_cifar

        return load_cifar()
    files = find_set(name)
    source = f"the published files in {files[TRAIN_IMAGES].parent}"
    return _from_files(name, files, PUBLISHED[name].sha256, source)


def _folder(folder: Path) -> LabelledData:
    try:
        files = files_in(folder)
    except InputError as error:
        try:
            batches = cifar_files_in(folder)
        except InputError:
            raise InputError(f"{error}; wanted {WANTED}") from None
        from mahalens.data.cifar import load_cifar_folder

        return load_cifar_folder(folder, batches)
    return _from_files(folder.absolute().name, files, {}, str(folder))


def _digits() -> LabelledData:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise  # scikit-learn is there and lacks something else
        raise InputError(
            "digits comes with scikit-learn, which is not installed; pip install scikit-learn"
        ) from None
    bunch = load_digits()
    x = torch.from_numpy(bunch.data).float()
    y = torch.from_numpy(bunch.target).long()
    return LabelledData(
        name="digits",
        x=x[:-DIGITS_TEST],
        y=y[:-DIGITS_TEST],
        test_x=x[-DIGITS_TEST:],
        test_y=y[-DIGITS_TEST:],
        image_shape=(8, 8),
        largest=16.0,
        source="scikit-learn's digits",
    )


def _from_files(
    name: str, files: Mapping[str, Path], sha256: Mapping[str, str], source: str
) -> LabelledData:
    """Load the four files, whose unpacked content must have the checksums given."""
    arrays = {usual: read_idx(path, sha256.get(usual)) for usual, path in files.items()}
    for images, labels in ((TRAIN_IMAGES, TRAIN_LABELS), (TEST_IMAGES, TEST_LABELS)):
        if arrays[images].ndim < 2:
            raise InputError(
                f"{files[images]}: has shape {list(arrays[images].shape)}, wanted images, one "
                f"after another"
            )
        if arrays[labels].ndim != 1:
            raise InputError(
                f"{files[labels]}: has shape {list(arrays[labels].shape)}, wanted labels, a "
                f"single axis"
            )
        if len(arrays[images]) != len(arrays[labels]):
            raise InputError(
                f"{files[images]}: holds {len(arrays[images])} images and "
                f"{files[labels].name} {len(arrays[labels])} labels; wanted one label per image"
            )
    shape, test_shape = (tuple(arrays[key].shape[1:]) for key in (TRAIN_IMAGES, TEST_IMAGES))
    if shape != test_shape:
        raise InputError(
            f"{files[TEST_IMAGES]}: holds images of shape {list(test_shape)} and "
            f"{files[TRAIN_IMAGES].name} of {list(shape)}; wanted one shape"
        )
    try:
        return LabelledData(
            name=name,
            x=arrays[TRAIN_IMAGES].flatten(1).float(),
            y=arrays[TRAIN_LABELS].long(),
            test_x=arrays[TEST_IMAGES].flatten(1).float(),
            test_y=arrays[TEST_LABELS].long(),
            image_shape=shape if len(shape) > 1 else None,
            largest=255.0,
            source=source,
        )
    except InputError as error:
        raise InputError(f"{files[TEST_LABELS].parent}: {error}") from None
