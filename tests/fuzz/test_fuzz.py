"""Command lines and data files made at random: each ends soon, with 0, 2 or 130 and no traceback.

The fast tests try a handful, the slow ones 60 of each, ``make fuzz`` thousands. ``FUZZ_LINES`` and
``FUZZ_FILES`` say how many, ``FUZZ_SEED`` draws others.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

HANDFUL = 4
LINES = int(os.environ.get("FUZZ_LINES", 60))
FILES = int(os.environ.get("FUZZ_FILES", 60))
SEED = int(os.environ.get("FUZZ_SEED", 0))
LIMIT = 60.0
"""Seconds after which a command gets Ctrl-C: longer than any small run takes on a busy machine."""

SMALL: dict[str, str] = {
    "run gaussian": "--epochs 3 --trials 2 --samples 30 --models abs",
    "run ellipsoids": "--dim 4 --count 6 --steps 3 --trials 1 --ranks 2",
    "run representation": "--models relu --epochs 2 --trials 1 --train-size 50 --pixels raw",
    "run perturbation": "--models relu-bias --data digits --epochs 2 --trials 1 --train-size 50",
    "run init": "--data iris --epochs 2 --trials 2 --models kaiming-relu --workers 1",
    "run heads": "--data digits --epochs 1 --trials 1 --models softmax --train-size 60 --workers 1",
    "run hybrid": "--data iris --epochs 2 --trials 1 --models abs-0 --workers 1",
    "run activations": "--data digits --epochs 2 --trials 1 --train-size 50 --workers 1",
    "run transfer": "--data iris --epochs 2 --trials 1 --workers 1",
    "run pixels": "--network relu --epochs 2 --trials 1 --train-size 50 --workers 1",
    "run mechanisms": "--models relu --pixels raw --epochs 2 --trials 1 --train-size 50",
    "run penalties": "--data iris --models abs-none --epochs 2 --trials 1 --workers 1",
    "run clusters": "--data 2d-apart-round --models abs-classes --epochs 2 --trials 1",
    "run detect": "--data iris --models mahalanobis --trials 1",
    "audit": "nets:make --data digits --limit 20",
    "data fetch": "digits",
}
"""Options with which a command takes a moment if nothing is wrong with it."""

NETWORK = """from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = x.flatten(1).float()
        return self.second(self.first(x[:, [0, -1]]).relu())


make = Net
"""
"""A network that takes samples of any shape."""

NASTY = [
    "", " ", ",", ",,,", "-1", "0", "1", "2", "3", "-0", "99999999999999999999", "1e400", "nan",
    "inf", "-inf", "1.5", "true", "None", "[/b]", "[red]", "\x1b[31mred", "a\nb", "é", "\u202e",
    "日本", "x" * 300, "a/" * 400, "/dev/null", "/dev/zero", ".", "..", "/", "~", "missing",
    "missing/x.npz", "plain.txt", "empty.npz", "noise.safetensors", "pipe", "folder", "%s", "{}",
    "$HOME", "*", "--", "-", "digits", "iris", "mnist", "relu,abs", "relu,,relu", "abs-0,abs-0",
    "all", "1,2,3", "0.5,0.5", "cpu", "cuda:9", "meta", "float8", "dask", "tcp://127.0.0.1:1",
    "local", "5s", "1h", "0s", "torch.nn:Identity", "torch.nn:Linear", "os:getcwd", "nothing:here",
    "a:b:c", "plain:make", "audited", "finished",
]  # fmt: skip

Answer = dict[str, Any]


class Zygote:
    """A process that runs command lines for us."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, argv: list[str], cwd: Path, limit: float = LIMIT) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"argv": argv, "cwd": str(cwd), "limit": limit}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer: Answer = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


@pytest.fixture
def place(tmp_path: Path, zygote: Zygote) -> Path:
    """A folder with things in it that a user may name, rightly or by mistake."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "plain.txt").write_text("some text\n")
    (folder / "plain.py").write_text("def make():\n    raise RuntimeError('no network today')\n")
    (folder / "nets.py").write_text(NETWORK)
    (folder / "empty.npz").write_bytes(b"")
    (folder / "noise.safetensors").write_bytes(bytes(range(256)) * 4)
    (folder / "folder").mkdir()
    (folder / "folder" / "config.json").write_text('{"study": "gaussian"}')
    os.mkfifo(folder / "pipe")
    for words, out in (("audit", "audited"), ("run gaussian", "finished")):
        argv = [*words.split(), *SMALL[words].split(), "--out", out]
        assert zygote.run(argv, folder)["code"] == 0, argv
    return folder


# Command lines


def commands() -> dict[str, click.Command]:
    """All commands of the command line by their words."""
    from mahalens.cli import cli

    found: dict[str, click.Command] = {}

    def walk(command: click.Command, words: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, (*words, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found[" ".join(words)] = command

    walk(cli, ())
    return found


def command_line(draw: random.Random, number: int) -> list[str]:
    """A command with some options right and a few wrong."""
    known = commands()
    words = draw.choice(sorted(known))
    command = known[words]
    argv = words.split()
    small = SMALL.get(words, "").split()
    if words.startswith(("run ", "audit")):
        places = [f"out{number}", "folder", "plain.txt", "pipe", "finished", "audited"]
        small += ["--out", draw.choices(places, [20, 1, 1, 1, 1, 1])[0]]
    changes = draw.choice([0, 1, 1, 1, 2, 3])
    for _ in range(changes):
        _spoil(small, command, draw)
    if draw.random() < 0.03:
        draw.shuffle(small)
    if words.startswith("run ") and draw.random() < 0.03:
        argv.insert(1, draw.choice(["--quiet", "--resume", "--resume=folder", "--workers=0"]))
    if draw.random() < 0.02:
        argv[-1] = draw.choice(NASTY)
    return argv + small


def _spoil(argv: list[str], command: click.Command, draw: random.Random) -> None:
    """Change one thing about a command's arguments."""
    what = draw.random()
    if what < 0.55:
        options = [o for o in command.params if isinstance(o, click.Option)]
        if options:
            option = draw.choice(options)
            name = draw.choice(option.opts + option.secondary_opts)
            argv += [name] if option.is_flag else [name, draw.choice(NASTY)]
    elif what < 0.85 and argv:
        argv[draw.randrange(len(argv))] = draw.choice(NASTY)
    elif what < 0.95 and argv:
        del argv[draw.randrange(len(argv))]
    else:
        argv.insert(draw.randrange(len(argv) + 1), draw.choice(NASTY))


def too_much(argv: list[str]) -> bool:
    """Whether a command line asks for real work: for a download, or for hours of training."""
    return "fetch" in argv and any(name in argv for name in ("mnist", "all"))


@pytest.mark.parametrize("count", [HANDFUL, pytest.param(LINES, marks=pytest.mark.slow)])
def test_command_lines(zygote: Zygote, place: Path, count: int) -> None:
    draw = random.Random(SEED)
    lines = [command_line(draw, number) for number in range(count)]
    assert_end_well(zygote, [(argv, place) for argv in lines if not too_much(argv)])


def assert_end_well(zygote: Zygote, jobs: list[tuple[list[str], Path]]) -> None:
    """Run command lines in their folders; among many, some succeed and some are refused."""
    faults = []
    codes: Counter[int] = Counter()
    for number, (argv, folder) in enumerate(jobs):
        answer = zygote.run(argv, folder)
        codes[answer["code"]] += 1
        if fault := judge(answer):
            faults.append(f"{number}: mahalens {argv!r}: {fault}")
            print(faults[-1], file=sys.stderr)
    print(f"exit codes of {len(jobs)} command lines: {dict(codes)}")
    assert not faults, f"{len(faults)} of {len(jobs)}:\n" + "\n".join(faults[:40])
    assert len(jobs) <= HANDFUL or {0, 2} <= set(codes)


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def judge(answer: Answer) -> str:
    """The fault of an answer, or nothing."""
    err, out = answer["err"], answer["out"]
    tail = err.strip().splitlines()[-6:]
    if answer["hung"]:
        return f"hangs: {tail}"
    if "Traceback" in err or "Traceback" in out:
        return f"traceback: {tail}"
    if answer["code"] not in (0, 2, 130):
        return f"exit code {answer['code']}: {tail}"
    if answer["code"] == 2 and sum(x.startswith("mahalens: ") for x in tail) != 1 and not out:
        return f"not one line: {tail}"
    if CONTROL.search(err + out):
        return f"control characters: {tail!r}"
    if answer["code"] == 130 and answer["seconds"] > LIMIT:
        return f"took more than {LIMIT:.0f} s: {tail}"
    return ""


# Data files


def arrays(draw: random.Random) -> dict[str, np.ndarray]:
    """Arrays x and y, and perhaps test_x and test_y, most of them wrong in some way."""
    rng = np.random.default_rng(draw.randrange(2**32))
    count = draw.choice([1, 2, 5, *[90, 120, 150] * 4])
    width = draw.choice([1, 2, 3, 8])
    shapes = [(count, width), (count, 4, 4), (count, 3, 4, 4), (count,), (), (0, 3), (count, 0)]
    shape = draw.choices(shapes, [60, 8, 4, 1, 1, 1, 1])[0]
    kinds = ["f4", "f8", "f2", "u1", "i8", "i2", "u8", "?", "c8", "U3", ">f4", "M8[s]", "O"]
    kind = draw.choices(kinds, [50, 15, 3, 15, 3, 2, 3, 1, 1, 1, 2, 1, 1])[0]
    x = _values(rng, shape, kind, draw)
    labels = draw.choices(
        [
            rng.integers(0, 3, count),
            np.arange(count) % 2,
            np.zeros(count, dtype=np.int64),
            rng.integers(0, 3, count) * 1000,
            rng.normal(size=count),
            rng.integers(-2, 3, count),
            np.full(count, 2**63 + 5, dtype=np.uint64),
            np.full(count, np.nan),
            np.eye(3)[rng.integers(0, 3, count)],
            np.array(["cat", "dog"])[rng.integers(0, 2, count)],
            rng.integers(0, 3, count + 1),
            rng.integers(0, 3, count).astype(np.float32),
            np.arange(count, dtype=np.float64) * 1e300,
        ],
        [60, 20, 2, 2, 1, 1, 1, 1, 1, 1, 1, 2, 1],
    )[0]
    found = {"x": x, "y": labels}
    if draw.random() < 0.2:
        found["test_x"] = x if draw.random() < 0.7 else rng.normal(size=(4, 9))
        found["test_y"] = labels
    for name in ("x", "y", "test_x"):
        if draw.random() < 0.04:
            found.pop(name, None)
    return found


def _values(
    rng: np.random.Generator, shape: tuple[int, ...], kind: str, draw: random.Random
) -> np.ndarray:
    values = rng.normal(size=shape) * draw.choice([*[1] * 9, 100, 1e-20, 1e20, 1e38, 0])
    if kind == "O":
        return np.full(shape, None, dtype=object)
    if kind == "U3":
        return np.full(shape, "abc")
    if kind == "u8":
        return np.full(shape, 2**63 + 1, dtype=np.uint64)
    with np.errstate(all="ignore"):
        found = np.nan_to_num(np.abs(values), posinf=1.0).clip(0, 100).astype(kind)
        if kind[-2:] in ("f2", "f4", "f8"):
            found = values.astype(kind)
            if found.size and draw.random() < 0.05:
                found.flat[draw.randrange(found.size)] = draw.choice([np.nan, np.inf, -np.inf])
    return found


def npz(draw: random.Random, path: Path) -> Path:
    stored = io.BytesIO()
    np.savez_compressed(stored, **arrays(draw))  # type: ignore[arg-type]
    data = stored.getvalue()
    what = draw.random()
    if what < 0.1:
        data = _with_member(data, "x.npy", b"no array at all")
    elif what < 0.2:
        data = _with_member(data, "x.npy", _npy_header(draw))
    elif what < 0.25:
        data = _with_member(data, "x", b"")
    file = path / "data.npz"
    file.write_bytes(damaged(data, draw) if draw.random() < 0.3 else data)
    return file


def _npy_header(draw: random.Random) -> bytes:
    """The header of an array that is not there, or not all of it."""
    shape = draw.choice(["(10**9, 10**9)", "(1000000000, 4)", "(-5, 3)", "(2,", "('a',)", "(5, 3)"])
    kind = draw.choice(["<f4", "|O", "<U8", "<M8[s]", "zz"])
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text = text + " " * (118 - len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + b"\0" * 64


def _with_member(data: bytes, name: str, content: bytes) -> bytes:
    stored = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stored, "w") as new:
        for member in old.namelist():
            if member != name:
                new.writestr(member, old.read(member))
        new.writestr(name, content)
    return stored.getvalue()


def safetensors(draw: random.Random, path: Path) -> Path:
    file = path / "data.safetensors"
    tensors = {}
    for name, value in arrays(draw).items():
        try:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value)).clone()
        except (TypeError, ValueError):  # a kind that torch has not
            tensors[name] = torch.zeros(3, 2)
    if draw.random() < 0.2 and "x" in tensors and not tensors["x"].is_complex():
        kind = draw.choice([torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.int8])
        tensors["x"] = tensors["x"].to(torch.float32).to(kind)
    save_file(tensors, str(file))
    if draw.random() < 0.4:
        data = file.read_bytes()
        if draw.random() < 0.5:
            data = data.replace(b'"F32"', draw.choice([b'"F8_'[:5], b'"F64"', b'"BF1', b'"I64"']))
        file.write_bytes(damaged(data, draw))
    return file


def idx(draw: random.Random, path: Path) -> Path:
    """A folder with the four files of MNIST's form, one of them perhaps damaged."""
    folder = path / "idx"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(draw.randrange(2**32))
    for part, count in (("train", 90), ("t10k", 30)):
        images = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        labels = rng.integers(0, 3, count, dtype=np.uint8)
        head = struct.pack(">HBBIII", 0, 8, 3, *images.shape)
        if draw.random() < 0.1:
            head = struct.pack(">HBBIII", 0, draw.choice([8, 9, 13]), 3, 2**31, 2**20, 4)
        pictures = head + images.tobytes()
        classes = struct.pack(">HBBI", 0, 8, 1, count) + labels.tobytes()
        for name, data in (("images-idx3", pictures), ("labels-idx1", classes)):
            data = damaged(data, draw) if draw.random() < 0.1 else data
            file = folder / f"{part}-{name}-ubyte"
            if draw.random() < 0.3:
                packed = gzip.compress(data)
                packed = damaged(packed, draw) if draw.random() < 0.3 else packed
                file.with_name(file.name + ".gz").write_bytes(packed)
                file.unlink(missing_ok=True)
            elif draw.random() < 0.95:
                file.write_bytes(data)
    return folder


def images(draw: random.Random, path: Path) -> Path:
    """A folder with a folder of pictures for each class."""
    from PIL import Image

    folder = path / "images"
    for name in draw.sample(["cat", "dog", "[/b]", "\x1b[31m", "é"], 2):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(draw.choice([0, 1, 4])):
            size = draw.choice([(8, 8), (8, 8), (9, 7), (1, 1)])
            mode = draw.choice(["L", "RGB", "RGBA", "P", "1", "I;16"])
            stored = io.BytesIO()
            Image.new(mode, size).save(stored, "PNG")
            data = stored.getvalue()
            data = damaged(data, draw) if draw.random() < 0.3 else data
            (folder / name / f"{number}.png").write_bytes(data)
    folder.mkdir(exist_ok=True)
    return folder


def gaussian(draw: random.Random, path: Path) -> Path:
    """A mean and a covariance, most of them wrong in some way."""
    matrices = [
        [[1, 0], [0, 1]], [[1, 2], [2, 1]], [[0, 0], [0, 0]], [[1, 0]], [], None, "text",
        [[1e300, 0], [0, 1e-300]], [[1, "a"], [0, 1]], [[float("nan"), 0], [0, 1]], [[[1]]],
        [[1, 0], [0.5, 1]],
    ]  # fmt: skip
    means = [[0, 0], [0], [], None, [float("inf"), 0], [[0, 0]], "mean", [1e308, 1e308], {}]
    content = {"mean": draw.choice(means), "covariance": draw.choice(matrices)}
    if draw.random() < 0.1:
        content.pop(draw.choice(list(content)))
    data = json.dumps(draw.choice([content, content, content, [content], 3, None])).encode()
    file = path / "gaussian.json"
    file.write_bytes(damaged(data, draw) if draw.random() < 0.3 else data)
    return file


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The same bytes with some of them cut off, flipped, repeated or added."""
    changed = bytearray(data)
    what = draw.random()
    if what < 0.3:
        del changed[draw.randrange(len(changed) + 1) :]
    elif what < 0.7 and changed:
        for _ in range(draw.choice([1, 1, 3, 20])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    elif what < 0.85:
        start = draw.randrange(len(changed) + 1)
        changed[start:start] = bytes(draw.randrange(256) for _ in range(draw.choice([1, 8, 100])))
    else:
        changed += bytes(changed)
    return bytes(changed)


USES: list[tuple[Callable[[random.Random, Path], Path], list[str]]] = [
    (npz, ["run representation", "run init", "run transfer", "run heads", "audit"]),
    (safetensors, ["run representation", "run hybrid", "run activations", "audit"]),
    (idx, ["run representation", "run ellipsoids", "audit"]),
    (images, ["audit"]),
    (gaussian, ["run gaussian"]),
]


@pytest.mark.parametrize("count", [HANDFUL, pytest.param(FILES, marks=pytest.mark.slow)])
def test_data_files(zygote: Zygote, tmp_path: Path, count: int) -> None:
    draw = random.Random(SEED + 1)
    jobs = []
    for number in range(count):
        make, uses = draw.choices(USES, [8, 6, 4, 2, 2])[0]
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "nets.py").write_text(NETWORK)
        file = make(draw, folder)
        jobs.append((use(draw.choice(uses), file), folder))
    assert_end_well(zygote, jobs)


def use(words: str, file: Path) -> list[str]:
    """The command that reads a data file, and as little more as it can."""
    small = SMALL[words].split()
    flag = "--gaussian" if words == "run gaussian" else "--data"
    if flag in small:
        small[small.index(flag) + 1] = str(file)
    else:
        small += [flag, str(file)]
    if words == "run ellipsoids":
        small = ["--data", str(file), "--trials", "1", "--ranks", "2"]
    for option in ("--train-size", "--limit"):
        if option in small:
            place = small.index(option)
            del small[place : place + 2]
    return [*words.split(), *small, "--out", "out", "--quiet"]
