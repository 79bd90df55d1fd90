"""Readers of files: what is written comes back, and one line for everything that can be wrong."""

import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from data_helpers import cifar_batch, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.data import formats, load_gaussian, load_set, read_idx
from mahalens.data.files import load_samples
from mahalens.data.formats import read_batch
from mahalens.errors import InputError
from mahalens.geometry import _checks as memory

X = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
Y = np.arange(20) % 3


def idx(shape, values=None, kind=0x08):
    """The bytes of an IDX file, whether or not its header is right."""
    if values is None:
        values = bytes(index % 251 for index in range(math.prod(shape)))
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + bytes(values)


WHOLE = idx((2, 3, 4))


class TestIdx:
    @pytest.fixture(params=["plain", "gzipped"])
    def write(self, request, tmp_path):
        """Writes content, as it is or gzipped, under a name that tells nothing."""

        def writer(content):
            path = tmp_path / "given"
            path.write_bytes(content if request.param == "plain" else gzip.compress(content))
            return path

        return writer

    @pytest.mark.parametrize("shape", [(1,), (7,), (3, 2), (2, 3, 4), (2, 1, 3, 2), (), (1,) * 20])
    def test_shape_and_order(self, write, shape):
        tensor = read_idx(write(idx(shape)))
        assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, shape)
        assert tensor.flatten().tolist() == list(range(math.prod(shape)))
        tensor += 1  # can be written to
        assert int(tensor.min()) == 1

    def test_more_than_one_piece(self, write):
        shape = (3, 1000, 1000)
        values = torch.arange(math.prod(shape)).remainder(251).to(torch.uint8)
        content = idx(shape, values.numpy().tobytes())
        tensor = read_idx(write(content), sha256=hashlib.sha256(content).hexdigest())
        assert tensor.equal(values.reshape(shape))

    def test_content_decides_not_the_name(self, tmp_path):
        plain, packed = tmp_path / "plain.gz", tmp_path / "packed"
        plain.write_bytes(idx((9,)))
        packed.write_bytes(gzip.compress(idx((9,))[:6]) + gzip.compress(idx((9,))[6:]))
        assert read_idx(plain).tolist() == read_idx(str(packed)).tolist() == list(range(9))

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.integers(1, 4), max_size=5), st.randoms(use_true_random=False))
    def test_round_trip(self, tmp_path_factory, shape, random):
        path = tmp_path_factory.getbasetemp() / "round"
        values = random.randbytes(math.prod(shape))
        path.write_bytes(idx(shape, values))
        assert read_idx(path).numpy().tobytes() == values

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "not an IDX file, it is empty"),
            (b"\x89PNG\r\n", "not an IDX file, it begins with 89 50 4e 47; wanted an IDX file of"),
            (b"\0\0\x08", "not an IDX file, it begins with 00 00 08;"),
            (b"\0\1\x08\1", "not an IDX file, it begins with 00 01 08 01;"),
            (idx((4,), kind=0x09), "an IDX file of signed bytes;"),
            (idx((4,), kind=0x0D), "an IDX file of 32-bit floats;"),
            (idx((4,), kind=0x00), "not an IDX file, type code 0x00;"),
            *((WHOLE[:n], f"cut short in its header, {n} of 16 bytes") for n in (4, 5, 11, 15)),
            *((WHOLE[:n], f"is cut short, [2, 3, 4] takes 40 bytes and {n}") for n in (16, 39)),
            (WHOLE + b"\0", "is longer than its header says, [2, 3, 4] takes 40 bytes and more"),
            (WHOLE + bytes(2000), "is longer than its header says, [2, 3, 4] takes 40 bytes and"),
            *(
                (idx(shape, b""), f"holds nothing, its header says {list(shape)}")
                for shape in ((0,), (0, 28, 28), (0, *(2**32 - 1,) * 9), (5, 0))
            ),
            (idx((2**32 - 1,) * 3, b"abc"), "is cut short"),
            (idx((2**32 - 1,) * 255, b"abc"), "is cut short"),
        ],
    )
    def test_refused(self, write, content, words):
        assert refused(write(content), read_idx).startswith(words)

    def test_no_file(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_bytes(idx((2,)))
        os.mkfifo(tmp_path / "pipe")
        for name, words in (
            ("nowhere", "there is no such file, wanted an IDX file"),
            (".", "this is a folder, wanted an IDX file"),
            ("file/images", "cannot be read, Not a directory"),
            ("a\0b", "cannot be read, "),
            ("pipe", "this is a pipe or a device"),
        ):
            assert refused(tmp_path / name, read_idx).startswith(words)

        def forbidden(*arguments, **options):  # a mode of 000 does not stop every user
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(io, "open", forbidden)
        assert refused(tmp_path / "file", read_idx) == "cannot be read, Permission denied"
        assert refused(tmp_path / "file", read_batch) == "cannot be read, Permission denied"

    def test_damaged_gzip(self, tmp_path):
        path, whole = tmp_path / "given.gz", gzip.compress(idx((300,)), mtime=0)
        no_block, flipped, wrong_sum = bytearray(whole), bytearray(whole), bytearray(whole)
        no_block[10] = 0x07  # a kind of block that does not exist
        flipped[40] ^= 0xFF
        wrong_sum[-6] ^= 0xFF
        cut = [whole[:length] for length in (2, 5, 12, 50, len(whole) - 8, len(whole) - 1)]
        for content in (*cut, no_block, flipped, wrong_sum, whole + b"more"):
            path.write_bytes(content)
            text = refused(path, read_idx)
            assert "gzipped content is cut short or damaged" in text
            assert text.endswith("get the file again")

    def test_another_checksum(self, write):
        text = refused(write(idx((5,))), read_idx, sha256="0" * 64)
        assert text.startswith("not the published file")
        assert f"{hashlib.sha256(idx((5,))).hexdigest()}, wanted {'0' * 64}" in text

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
    def test_takes_no_memory_for_what_a_header_promises(self, tmp_path):
        for number, claim in enumerate([(4, 2**30), (2**32 - 1,) * 3]):
            content = idx(claim, values=b"abc")
            (tmp_path / f"plain{number}").write_bytes(content)
            (tmp_path / f"packed{number}").write_bytes(gzip.compress(content))
        code = (
            "import resource, sys, mahalens.data.formats as formats\n"
            "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
            "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
            "for path in sys.argv[1:]:\n"
            "    try: formats.read_idx(path)\n"
            "    except formats.InputError as error: print(error)\n"
        )
        command = [sys.executable, "-c", code, *tmp_path.iterdir()]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.stdout.count("is cut short") == 4, ran.stderr

    @settings(deadline=None, max_examples=200)
    @given(st.binary(max_size=40), st.booleans(), st.booleans())
    def test_no_content_escapes_as_another_error(self, tmp_path_factory, tail, magic, packed):
        path = tmp_path_factory.getbasetemp() / "anything"
        content = b"\0\0\x08" * magic + tail
        path.write_bytes(gzip.compress(content) if packed else content)
        with contextlib.suppress(InputError):
            read_idx(path)


class TestCifar:
    def test_records(self, tmp_path):
        path = tmp_path / "data_batch_1.bin"
        path.write_bytes(cifar_batch(4, 7))
        records = read_batch(path, 4)
        assert records.numpy().tobytes() == cifar_batch(4, 7)
        assert records[:, 0].tolist() == [7, 8, 9, 0]

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "has 0 bytes, wanted records of 3073"),
            (bytes(3072), "has 3072 bytes, wanted records of 3073"),
            (bytes(3074), "has 3074 bytes"),
            (b"\x0a" + bytes(3072), "has the label 10, wanted 0 to 9"),
            (bytes(3073) + b"\xff" + bytes(3072), "has the label 255"),
            (bytes(3073), "has 1 images, wanted 2"),
        ],
    )
    def test_damaged(self, tmp_path, content, words):
        path = tmp_path / "data_batch_2.bin"
        path.write_bytes(content)
        text = refused(path, read_batch, images=2)
        assert text.startswith(f"not a batch of CIFAR-10, it {words}")

    def test_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr(formats, "BATCH_LIMIT", 3000)
        (tmp_path / "b.bin").write_bytes(bytes(3073))
        assert refused(tmp_path / "b.bin", read_batch).startswith("has 3,073 bytes; a batch of")


class TestArrays:
    @pytest.mark.parametrize("kind", ["npz", "safetensors"])
    @pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"PK\x03\x04" + bytes(50)])
    def test_not_readable(self, tmp_path, kind, content):
        path = tmp_path / f"mine.{kind}"
        path.write_bytes(content)
        assert refused(path).startswith(f"not readable as .{kind}, ")

    def test_cut_short(self, write):
        path = write(x=X, y=Y)
        whole = path.read_bytes()
        for length in (30, 100, len(whole) - 30):
            path.write_bytes(whole[:length])
            assert refused(path).startswith("not readable as .")

    def test_pickles_are_not_opened(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (os.mkdir, (str(tmp_path / "sprung"),))

        path = tmp_path / "mine.npz"
        objects = np.array([[Trap()]], dtype=object)
        for read in (load_set, load_samples, load_gaussian):
            path.write_bytes(pickle.dumps(Trap()))
            refused(path, read)
            np.savez(path, x=objects, y=[0], mean=objects, covariance=objects)
            assert refused(path, read).startswith("holds Python objects, which are not read")
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"no array", "x is not a NumPy array, it begins with 6e 6f 20 61 72 72; save arrays"),
            (b"", "x is not a NumPy array, it is empty; save arrays with numpy.savez"),
            (b"\x93NUMPY\x09\x00", "x is an array of an unknown version, [9, 0]"),
            (b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8'", "not readable as .npz, "),
        ],
    )
    def test_members_that_are_no_arrays(self, tmp_path, content, text):
        path = tmp_path / "mine.npz"
        for name in ("x.npy", "x"):
            np.savez(path, y=Y)
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr(name, content)
            assert refused(path).startswith(text)

    @pytest.mark.parametrize("shape", ["(10000000000000, 9)", "(-1, 9)"])
    def test_a_header_that_promises_too_much_or_nothing(self, tmp_path, shape):
        path = tmp_path / "mine.npz"
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        np.savez(path, y=Y)
        with zipfile.ZipFile(path, "a") as archive:
            npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            archive.writestr("x.npy", npy)
        assert refused(path).startswith("not readable as .npz, ")

    @pytest.mark.parametrize(
        "dtype", ["M8[s]", "m8[s]", [("a", "f4"), ("b", "i4")], "c8", "c16", "V5", "longdouble"]
    )
    @pytest.mark.parametrize("part", ["x", "y"])
    def test_dtypes_that_are_no_numbers(self, tmp_path, dtype, part):
        path = tmp_path / "mine.npz"
        np.savez(path, **{"x": X, "y": Y, part: np.zeros((20, 2)[: 1 + (part == "x")], dtype)})
        assert f"{part} is " in (text := refused(path))
        assert "wanted real numbers of up to 64 bits" in text

    def test_text(self, tmp_path):
        np.savez(tmp_path / "mine.npz", x=X, y=np.array(["cat"] * 20))
        text = refused(tmp_path / "mine.npz")
        assert "y is text, wanted numbers; np.unique(y, return_inverse=True)[1] numbers" in text


class TestMemory:
    """Sizes are in the headers: data that cannot fit are refused before they are read."""

    @pytest.fixture(autouse=True)
    def little(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 10**9)

    def bomb(self, path, shape, name="x"):
        """A file of a few bytes that unpacks to zeros of this shape."""
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        np.savez(path, y=Y)
        size = len(npy) + 4 * int(np.prod(shape))
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(npy)
                member.write(bytes(1 << 20))
        # The directory says what unpacking would bring, whatever was written.
        content = bytearray(path.read_bytes())
        place = content.rindex(b"PK\x01\x02")
        content[place + 24 : place + 28] = size.to_bytes(4, "little")
        path.write_bytes(content)
        return path

    def test_a_bomb_is_not_unpacked(self, tmp_path):
        path = self.bomb(tmp_path / "mine.npz", (1_000_000, 1000))
        wanted = (
            "x [1000000, 1000] of float32: would take 12 GB of memory and 1 GB are free; save "
            "fewer samples or inputs in it"
        )
        assert refused(path) == refused(path, load_samples) == wanted
        path = self.bomb(tmp_path / "g.npz", (30_000, 30_000), "covariance")
        assert refused(path, load_gaussian).startswith("covariance [30000, 30000] of float32: wou")

    def test_safetensors(self, tmp_path):
        path = tmp_path / "mine.safetensors"
        size = 4 * 10**9
        parts = {
            "x": {"dtype": "F32", "shape": [1000000, 1000], "data_offsets": [0, size]},
            "y": {"dtype": "I64", "shape": [20], "data_offsets": [size, size + 160]},
        }
        header = json.dumps(parts).encode()
        with path.open("wb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            stream.truncate(8 + len(header) + size + 160)
        assert refused(path).startswith("x [1000000, 1000] of F32: would take 12 GB of memory")

    @pytest.mark.parametrize("gzipped", [False, True])
    def test_idx(self, tmp_path, gzipped, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 10**8)
        path = tmp_path / "images"
        content = idx((10**5, 28, 28), bytes(784 * 10**5))
        path.write_bytes(gzip.compress(content, 1) if gzipped else content)
        text = refused(path, read_idx)
        assert text.startswith("[100000, 28, 28] bytes: would take 0.39 GB")

    def test_an_allocation_that_fails_is_one_line(self, write, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you")

        path = write(x=X, y=Y)
        monkeypatch.setattr(torch.Tensor, "flatten", fail)
        assert refused(path) == (
            "x: takes more memory than there is; 1 GB are free; save fewer samples or inputs in it"
        )
        assert str(formats.unreadable(path, MemoryError())) == (
            f"{path}: takes more memory than there is; save fewer samples or inputs in it"
        )
