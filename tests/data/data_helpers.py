"""Small data sets in the layouts of the published ones, and refusals as text."""

import dataclasses
import gzip
import hashlib
import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from mahalens.data import load_set
from mahalens.data.named import CIFAR_FILES, FILES, PUBLISHED, home_of
from mahalens.errors import InputError

RNG = np.random.default_rng(0)


def refusal(call, *arguments, start="", **options):
    """The message of a refused call: one line, returned without ``start``, with which it begins."""
    with pytest.raises(InputError) as error:
        call(*arguments, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(start)
    return text.removeprefix(start)


def refused(path, read=load_set, **options):
    """The message for a file that cannot be used: one line that begins with its name."""
    return refusal(read, path, start=f"{path}: ", **options)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def idx(values, kind=0x08):
    """The bytes of an IDX file."""
    tensor = torch.as_tensor(values)
    header = struct.pack(f">HBB{tensor.ndim}I", 0, kind, tensor.ndim, *tensor.shape)
    return header + tensor.to(torch.uint8).numpy().tobytes()


def contents(mark=0, **changed):
    """The four files of a small set, by usual name; ``mark`` is its first pixel."""
    images = torch.arange(6 * 2 * 3).reshape(6, 2, 3)
    images[0, 0, 0] = mark
    tensors = {
        "train_images": images,
        "train_labels": [0, 1, 2, 0, 1, 2],
        "test_images": images[:2] + 100,
        "test_labels": [2, 0],
    }
    return dict(zip(FILES, map(idx, (tensors | changed).values()), strict=True))


def cifar_batch(count, seed, labels=None):
    """A binary file of CIFAR-10 with random images; labels run through all classes."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = [(seed + n) % 10 for n in range(count)] if labels is None else labels
    return np.column_stack((np.array(labels, np.uint8), images)).tobytes()


def cifar(count=10, **changed):
    """The six binary files of CIFAR-10 with so many images each."""
    files = {name: cifar_batch(count, seed) for seed, name in enumerate(CIFAR_FILES)}
    return {f"{name}.bin": content for name, content in (files | changed).items()}


def put(folder, files, spelling="{}"):
    """Write files, spelled as asked, gzipped if that ends in .gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for usual, content in files.items():
        name = spelling.format(usual)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def publish(monkeypatch, name, *sources, files=None, **changed):
    """Let these files be the published ones of a set, and these its sources."""
    if files is not None:
        changed["sha256"] = {k: hashlib.sha256(content).hexdigest() for k, content in files.items()}
    if sources:
        changed["sources"] = sources
    published = dataclasses.replace(PUBLISHED[name], **changed)
    monkeypatch.setitem(PUBLISHED, name, published)


def install(monkeypatch, name, members):
    """Let a wheel with these members be the published one of a set, and put it in its place."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for member, value in members.items():
            archive.writestr(member, value)
    (file,) = PUBLISHED[name].files
    publish(monkeypatch, name, files={file: content.getvalue()})
    return put(home_of(name), {file: content.getvalue()}) / file
