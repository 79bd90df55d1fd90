"""IDX files: what is written comes back, and one line for everything that can be wrong."""

import contextlib
import gzip
import hashlib
import io
import math
import os
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.data import read_idx
from mahalens.errors import InputError


def idx(shape, values=None, kind=0x08):
    """The bytes of an IDX file."""
    if values is None:
        values = bytes(index % 251 for index in range(math.prod(shape)))
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + bytes(values)


def refused(path, **options):
    """The message for a file that cannot be used: one line that begins with its name."""
    with pytest.raises(InputError) as error:
        read_idx(path, **options)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.fixture(params=["plain", "gzipped"])
def write(request, tmp_path):
    """Writes content, as it is or gzipped, under a name that tells nothing."""

    def writer(content):
        path = tmp_path / "given"
        path.write_bytes(content if request.param == "plain" else gzip.compress(content))
        return path

    return writer


class TestRead:
    @pytest.mark.parametrize("shape", [(1,), (7,), (3, 2), (2, 3, 4), (2, 1, 3, 2), (), (1,) * 20])
    def test_shape_and_order(self, write, shape):
        tensor = read_idx(write(idx(shape)))
        assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, shape)
        assert tensor.flatten().tolist() == list(range(math.prod(shape)))

    def test_all_values(self, write):
        assert read_idx(write(idx((256,), range(256)))).tolist() == list(range(256))

    def test_more_than_one_piece(self, write):
        shape = (3, 1000, 1000)
        tensor = read_idx(write(idx(shape)))
        wanted = torch.arange(math.prod(shape)).remainder(251).to(torch.uint8).reshape(shape)
        assert tensor.equal(wanted)

    def test_content_decides_not_the_name(self, tmp_path):
        plain, packed = tmp_path / "plain.gz", tmp_path / "packed"
        plain.write_bytes(idx((2,)))
        packed.write_bytes(gzip.compress(idx((2,))))
        assert read_idx(plain).tolist() == read_idx(str(packed)).tolist() == [0, 1]

    def test_gzip_in_several_parts(self, tmp_path):
        path, content = tmp_path / "given", idx((9,))
        path.write_bytes(gzip.compress(content[:6]) + gzip.compress(content[6:]))
        assert read_idx(path).tolist() == list(range(9))

    def test_can_be_written_to(self, write):
        tensor = read_idx(write(idx((3,))))
        tensor += 1
        assert tensor.tolist() == [1, 2, 3]

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.integers(1, 4), max_size=5), st.randoms(use_true_random=False))
    def test_round_trip(self, tmp_path_factory, shape, random):
        path = tmp_path_factory.getbasetemp() / "round"
        values = random.randbytes(math.prod(shape))
        path.write_bytes(idx(shape, values))
        assert read_idx(path).numpy().tobytes() == values


class TestRefused:
    def test_missing_file(self, tmp_path):
        assert "there is no such file" in refused(tmp_path / "nowhere")

    def test_folder(self, tmp_path):
        assert "this is a folder" in refused(tmp_path)

    def test_file_in_the_way_of_a_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        assert "Not a directory" in refused(tmp_path / "file" / "images")

    def test_impossible_name(self):
        assert "cannot be read" in refused("a\0b")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
    def test_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        assert "a pipe or a device" in refused(tmp_path / "pipe")

    def test_not_allowed_to_read(self, tmp_path, monkeypatch):
        (tmp_path / "given").write_bytes(idx((2,)))

        def forbidden(*arguments, **options):  # a mode of 000 does not stop every user
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(io, "open", forbidden)
        assert refused(tmp_path / "given") == "cannot be read, Permission denied"

    def test_empty(self, write):
        assert "not an IDX file, it is empty" in refused(write(b""))

    @pytest.mark.parametrize(
        ("content", "start"),
        [
            (b"\x89PNG\r\n", "89 50 4e 47"),
            (b"\0\0\x08", "00 00 08"),
            (b"\0\1\x08\1", "00 01 08 01"),
        ],
    )
    def test_not_idx(self, write, content, start):
        text = refused(write(content))
        assert f"not an IDX file, it begins with {start};" in text
        assert "wanted an IDX file of unsigned bytes" in text

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (0x09, "an IDX file of signed bytes;"),
            (0x0D, "an IDX file of 32-bit floats;"),
            (0x00, "not an IDX file, type code 0x00;"),
            (0x0A, "not an IDX file, type code 0x0a;"),
        ],
    )
    def test_other_types(self, write, kind, words):
        assert refused(write(idx((4,), kind=kind))).startswith(words)

    @pytest.mark.parametrize("length", [4, 5, 11, 15])
    def test_cut_in_the_header(self, write, length):
        text = refused(write(idx((2, 3, 4))[:length]))
        assert f"cut short in its header, {length} of 16 bytes are there" in text

    @pytest.mark.parametrize("length", [16, 17, 39])
    def test_cut_later(self, write, length):
        text = refused(write(idx((2, 3, 4))[:length]))
        assert f"is cut short, [2, 3, 4] takes 40 bytes and {length} are there" in text

    @pytest.mark.parametrize("extra", [1, 2000])
    def test_too_long(self, write, extra):
        text = refused(write(idx((2, 3, 4)) + bytes(extra)))
        assert "is longer than its header says, [2, 3, 4] takes 40 bytes and more are" in text

    @pytest.mark.parametrize("shape", [(0,), (0, 28, 28), (0, *(2**32 - 1,) * 9), (5, 0)])
    def test_nothing_inside(self, write, shape):
        assert f"holds nothing, its header says {list(shape)}" in refused(write(idx(shape)))

    def test_damaged_gzip(self, tmp_path):
        path, whole = tmp_path / "given.gz", gzip.compress(idx((300,)), mtime=0)
        no_block, flipped, wrong_sum = bytearray(whole), bytearray(whole), bytearray(whole)
        no_block[10] = 0x07  # a kind of block that does not exist
        flipped[40] ^= 0xFF
        wrong_sum[-6] ^= 0xFF
        cut = [whole[:length] for length in (2, 5, 12, 50, len(whole) - 8, len(whole) - 1)]
        for content in (*cut, bytes(no_block), bytes(flipped), bytes(wrong_sum), whole + b"more"):
            path.write_bytes(content)
            text = refused(path)
            assert "gzipped content is cut short or damaged" in text
            assert text.endswith("get the file again")

    def test_absurd_size(self, write):
        text = refused(write(idx((2**32 - 1,) * 3, values=b"abc")))
        assert "is cut short" in text
        assert "and 19 are there" in text
        refused(write(idx((2**32 - 1,) * 255, values=b"abc")))

    @pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
    @pytest.mark.parametrize("claim", [(4, 2**30), (2**32 - 1,) * 3])
    def test_takes_no_memory_for_what_a_header_promises(self, write, claim):
        path = write(idx(claim, values=b"abc"))
        code = (
            "import resource, sys, mahalens.data.idx as idx\n"
            "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
            "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
            "try: idx.read_idx(sys.argv[1])\n"
            "except idx.InputError as error: print(error)\n"
        )
        ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert "is cut short" in ran.stdout, ran.stderr

    @settings(deadline=None, max_examples=200)
    @given(st.binary(max_size=40), st.booleans(), st.booleans())
    def test_no_content_escapes_as_another_error(self, tmp_path_factory, tail, magic, packed):
        path = tmp_path_factory.getbasetemp() / "anything"
        content = b"\0\0\x08" * magic + tail
        path.write_bytes(gzip.compress(content) if packed else content)
        with contextlib.suppress(InputError):
            read_idx(path)


class TestChecksum:
    def test_is_of_the_unpacked_content(self, write):
        content = idx((5,))
        path = write(content)
        assert len(read_idx(path, sha256=hashlib.sha256(content).hexdigest())) == 5

    def test_mismatch(self, write):
        content = idx((5,))
        text = refused(write(content), sha256="0" * 64)
        assert text.startswith("not the published file")
        assert hashlib.sha256(content).hexdigest() in text
        assert f"wanted {'0' * 64}" in text
