"""The cases of the detect study: what is known, what is unknown, and their features.

A *pool* is the features of one source of images in one network, with labels. Pools are computed
once and kept below the folder of all data, under a name made from the checksums of the weights and
of the images. A *case* says which pools, and which of their classes, are known and unknown; a
*draw* is what one trial of it gets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor

from mahalens.data import held_out, load_backbone, load_samples, stream
from mahalens.data.dataset import TEST_SHARE, standardise
from mahalens.data.files import input_files
from mahalens.data.named import home_of
from mahalens.errors import InputError
from mahalens.files import fingerprint, replacing
from mahalens.studies.samples import whole_set
from mahalens.studies.study import remember

VERSION = 2
"""Of the recipes below; features of another version are computed anew."""
BATCH = 64
LEFT_OUT = 0.3
"""Share of the classes that a trial leaves out where a case does not say how many."""


@dataclass(frozen=True)
class Pool:
    """Features of one source of images; without a network, the numbers of a set itself."""

    source: str
    network: str = "efficientnet-lite0"
    size: int = 96
    """Height and width that images are brought to."""

    @property
    def reads(self) -> list[str]:
        """The named sets and weights that it is made from."""
        made = self.source in ("letters", "noise")
        return ([] if made else [self.source]) + ([self.network] if self.network else [])


@dataclass(frozen=True)
class Case:
    """Known and unknown samples: classes left out of a pool, or those of another.

    ``classes`` of the pool are known in a trial, drawn at random, and the others unknown, unless
    another pool is; 0 for all. ``labels`` and ``unknown_labels`` choose classes for all trials.
    """

    known: Pool
    unknown: Pool | None = None
    classes: int = 0
    labels: tuple[int, ...] = ()
    unknown_labels: tuple[int, ...] = ()


_CIFAR = Pool("cifar10")
CASES = {
    "cifar10-classes": Case(_CIFAR, classes=6),
    "cifar10-mnist": Case(_CIFAR, Pool("mnist"), classes=6),
    "cifar10-fashion-mnist": Case(_CIFAR, Pool("fashion-mnist"), classes=6),
    "cifar10-digits": Case(_CIFAR, Pool("digits"), classes=6),
    "cifar10-letters": Case(_CIFAR, Pool("letters"), classes=6),
    "cifar10-textiles": Case(_CIFAR, Pool("textiles"), classes=6, unknown_labels=(2,)),
    "cifar10-noise": Case(_CIFAR, Pool("noise"), classes=6),
    "cifar10-mobilenet": Case(Pool("cifar10", "mobilenet-v2"), classes=6),
    "mnist": Case(Pool("mnist"), Pool("fashion-mnist")),
    "fashion-mnist": Case(Pool("fashion-mnist"), Pool("mnist")),
    "elpv": Case(Pool("elpv", size=160), labels=(0, 4), unknown_labels=(3, 7)),
    "textiles": Case(Pool("textiles", size=160), labels=(2,), unknown_labels=(0, 1)),
    "questions": Case(Pool("questions", ""), classes=30),
}
"""The cases by name."""


@dataclass(frozen=True)
class Draw:
    """The features of one trial: known ones with labels, to fit and to test with, and unknown."""

    z: Tensor
    y: Tensor
    test_z: Tensor
    unknown: Tensor


def case_of(name: str) -> Case:
    """Return a case; one that has no name here leaves classes out of a set or file of the user."""
    return CASES.get(name) or Case(Pool(name, ""))


def twin_of(name: str) -> str:
    """Return the first case with the same known samples.

    >>> twin_of("cifar10-noise"), twin_of("wine")
    ('cifar10-classes', 'wine')
    """
    case = case_of(name)
    known = (case.known, case.classes, case.labels)
    same = (n for n, each in CASES.items() if (each.known, each.classes, each.labels) == known)
    return next(same, name)


def reads_of(name: str) -> list[str]:
    """Return the sets and weights that a case is made from."""
    case = case_of(name)
    pools = [case.known] + ([case.unknown] if case.unknown else [])
    return list(dict.fromkeys(each for pool in pools for each in pool.reads))


def missing(name: str) -> str:
    """Return which sets and weights of a case are not on this machine, in words; or nothing."""
    absent = []
    for each in reads_of(name):
        try:
            input_files([each])
        except InputError:
            absent.append(each)
    return f"mahalens data fetch {' and '.join(absent)}" if absent else ""


def draw(name: str, seed: int, trial: int) -> Draw:
    """Return the features of one trial.

    Classes are drawn where a case leaves some out. Of CIFAR-10, the test images are for testing;
    elsewhere each trial splits the known samples anew, 7 to 3 within each class. (The test digits
    of scikit-learn have other writers than its training digits, and no rate is kept on them.)
    """
    case = case_of(name)
    z, y, test = features(case.known)
    known, unknown = _labels(case, y, seed, trial)
    mine = torch.isin(y, known)
    if not test.any() or case.labels or not unknown.numel():
        split = held_out(y[mine], TEST_SHARE, stream(seed, "split", trial))
        test_rows, train_rows = (mine.nonzero().squeeze(1)[part] for part in (split, ~split))
        other_rows = torch.isin(y, unknown)
    else:
        test_rows, train_rows = (mine & test, mine & ~test)
        other_rows = torch.isin(y, unknown) & test
    others = z[other_rows]
    if case.unknown is not None:
        others = _unknown(case.unknown, case.unknown_labels)
    if name not in CASES:
        pixels = whole_set(name).image_shape is not None
        both = torch.cat([z[test_rows], others])
        train, rest = standardise(z[train_rows], both, pixels)
        return Draw(train, y[train_rows], *rest.split([len(z[test_rows]), len(others)]))
    return Draw(z[train_rows], y[train_rows], z[test_rows], others)


def _labels(case: Case, y: Tensor, seed: int, trial: int) -> tuple[Tensor, Tensor]:
    """Return the known classes of a trial, and the unknown ones of the same pool."""
    if case.labels:
        return torch.tensor(case.labels), torch.tensor(case.unknown_labels)
    labels = y.unique()
    count = case.classes or len(labels)
    if not case.classes and case.unknown is None:
        count = min(max(round((1 - LEFT_OUT) * len(labels)), 2), len(labels) - 1)
    order = torch.randperm(len(labels), generator=stream(seed, "classes", trial))
    return labels[order[:count]], labels[order[count:]]


def _unknown(pool: Pool, labels: tuple[int, ...]) -> Tensor:
    """Return the unknown samples of another pool: its test samples, if it has some."""
    z, y, test = features(pool)
    rows = test if test.any() else torch.ones_like(test)
    return z[rows & torch.isin(y, torch.tensor(labels))] if labels else z[rows]


# --- Features ---------------------------------------------------------------------------------

Progress = Callable[[float, str], None]


@remember(4)
def features(pool: Pool) -> tuple[Tensor, Tensor, Tensor]:
    """Return features [N, D], labels [N], and which samples [N] are for testing."""
    if not pool.network:
        whole = whole_set(pool.source)
        x, y = torch.cat([whole.x, whole.test_x]), torch.cat([whole.y, whole.test_y])
        return x, y, torch.zeros(len(y), dtype=torch.bool)
    tensors = load_file(place_of(pool))
    return tensors["z"], tensors["y"], tensors["test"]


def prepare(name: str, report: Progress) -> None:
    """Compute the features of a case that are not there yet."""
    case = case_of(name)
    for pool in filter(None, (case.known, case.unknown)):
        if pool.network:
            place = place_of(pool)
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):
                if not place.exists():
                    _compute(pool, place, report)


def place_of(pool: Pool) -> Path:
    """Return the file of a pool, whose name has the checksums of all it is made from."""
    inputs = {name: fingerprint(path).sha256 for name, path in input_files(pool.reads).items()}
    recipe = msgspec.json.encode([VERSION, pool, sorted(inputs.items())])
    key = hashlib.sha256(recipe).hexdigest()[:16]
    return home_of("features") / f"{pool.source}-{pool.network}-{pool.size}-{key}.safetensors"


@torch.inference_mode()
def _compute(pool: Pool, place: Path, report: Progress) -> None:
    images, y, test = IMAGES[pool.source](pool.source)
    network = load_backbone(pool.network, pool.size)[:-1]
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rows = []
    for start in range(0, len(images), BATCH):
        report(start / len(images), f"features of {pool.source}")
        batch = images[start : start + BATCH]
        rows.append(network(batch.contiguous(memory_format=torch.channels_last)))
    with replacing(place) as temporary:
        save_file({"z": torch.cat(rows), "y": y, "test": test}, temporary)


# --- Images: pixels in [0, 1] [N, 1 or 3, H, W], labels [N], and which are for testing [N] -------

Images = tuple[Tensor, Tensor, Tensor]


def _published(train: int, test: int) -> Callable[[str], Images]:
    """Return a function that takes the first so many images of each class."""

    def take(name: str) -> Images:
        whole = whole_set(name)
        rows, test_rows = _first(whole.y, train), _first(whole.test_y, test)
        x = torch.cat([whole.x[rows], whole.test_x[test_rows]]) / whole.largest
        y = torch.cat([whole.y[rows], whole.test_y[test_rows]])
        height, width = (whole.image_shape or ())[-2:]
        return x.view(len(y), -1, height, width), y, torch.arange(len(y)) >= len(rows)

    return take


def _first(y: Tensor, count: int) -> Tensor:
    rows = [(y == label).nonzero().squeeze(1)[:count] for label in y.unique()]
    return torch.cat(rows).sort().values


def _packaged(name: str) -> Images:
    samples = load_samples(name)
    x, _, test = _unlabelled(samples.x)
    return x, cast(Tensor, samples.y), test


def _noise(name: str) -> Images:
    x = torch.rand(1000, 3, 32, 32, generator=stream(0, name))
    return _unlabelled(x)


def _letters(name: str) -> Images:
    """Draw letters of many fonts, sizes and colours on a plain ground."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    faces = sorted((Path(matplotlib.get_data_path()) / "fonts/ttf").glob("DejaVu*.ttf"))
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(1000):
        ground, ink = (tuple(map(int, colour)) for colour in rng.integers(0, 256, (2, 3)))
        picture = Image.new("RGB", (32, 32), ground)
        face = ImageFont.truetype(str(faces[rng.integers(len(faces))]), int(rng.integers(18, 30)))
        x, y = (float(place) for place in rng.integers(13, 20, 2))
        letter = alphabet[rng.integers(len(alphabet))]
        ImageDraw.Draw(picture).text((x, y), letter, font=face, fill=ink, anchor="mm")
        pictures.append(np.asarray(picture))
    return _unlabelled(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 255)


def _unlabelled(x: Tensor) -> Images:
    return x, torch.zeros(len(x), dtype=torch.long), torch.zeros(len(x), dtype=torch.bool)


IMAGES: dict[str, Callable[[str], Images]] = {
    "cifar10": _published(1000, 500),
    "mnist": _published(400, 150),
    "fashion-mnist": _published(400, 150),
    "digits": _published(1000, 1000),
    "elpv": _packaged,
    "textiles": _packaged,
    "letters": _letters,
    "noise": _noise,
}
