"""CIFAR-10 in both layouts; python batches are read, never run."""

import contextlib
import dataclasses
import hashlib
import pickle
import pickletools
import struct

import numpy as np
import platformdirs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.data import catalogue, cifar_files, load_set, places, python_batches
from mahalens.data.python_batches import NotABatchError, records_of_pickle
from mahalens.errors import InputError

FILES = catalogue.CIFAR_FILES


def batch(count, seed):
    """Images [count, 3072] and labels, which run through all classes."""
    numbers = np.random.default_rng(seed)
    images = numbers.integers(0, 256, (count, 3072), dtype=np.uint8)
    return images, [(seed + n) % 10 for n in range(count)]


def binary(images, labels):
    return b"".join(
        bytes([label]) + row.tobytes() for row, label in zip(images, labels, strict=True)
    )


def python(images, labels, protocol=2, **more):
    content = {b"batch_label": b"one", b"labels": labels, b"data": images, b"filenames": [b"a.png"]}
    return pickle.dumps(content | more, protocol=protocol)


def python2(images, labels):
    """The same as Python 2 and an old numpy wrote it: text is bytes, and numbers are short."""
    raw = images.tobytes()
    dtype = b"cnumpy\ndtype\nq\x05U\x02u1q\x06K\x00K\x01\x87q\x07Rq\x08(K\x03U\x01|q\tNNNJ"
    dtype += struct.pack("<i", -1) + b"J" + struct.pack("<i", -1) + b"K\x00tq\nb"
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x03oneU\x04data"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R"
        + b"(K\x01M"
        + struct.pack("<H", len(images))
        + b"M\x00\x0c\x86"
        + dtype
        + b"\x89T"
        + struct.pack("<I", len(raw))
        + raw
        + b"tbU\x06labels](K"
        + b"K".join(bytes([label]) for label in labels)
        + b"eu."
    )


def write(folder, layout, count=10):
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(FILES):
        images, labels = batch(count, seed)
        if layout == "binary":
            (folder / f"{name}.bin").write_bytes(binary(images, labels))
        else:
            (folder / name).write_bytes(python(images, labels))
    return folder


def refused(name):
    with pytest.raises(InputError) as error:
        load_set(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def expected(count=10):
    parts = [batch(count, seed) for seed in range(6)]
    x = np.concatenate([images for images, _ in parts]).astype(np.float32)
    y = np.concatenate([labels for _, labels in parts])
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.fixture
def small_published(tmp_path, monkeypatch):
    """A machine without data, on which ten images make a published batch."""
    monkeypatch.delenv("MAHALENS_DATA", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(cifar_files, "PER_BATCH", 10)
    sums = {
        name: hashlib.md5(python(*batch(10, seed)), usedforsecurity=False).hexdigest()
        for seed, name in enumerate(FILES)
    }
    changed = dataclasses.replace(catalogue.PUBLISHED["cifar10"], md5=sums)
    monkeypatch.setitem(catalogue.PUBLISHED, "cifar10", changed)
    return tmp_path


class TestFolder:
    @pytest.mark.parametrize("layout", ["binary", "python"])
    @pytest.mark.parametrize("count", [6, 7, 10])
    def test_values(self, tmp_path, layout, count):
        folder = write(tmp_path / "mine", layout, count)
        data = load_set(folder)
        x, y = expected(count)
        assert torch.cat([data.x, data.test_x]).equal(x)
        assert torch.cat([data.y, data.test_y]).equal(y)
        assert (len(data.y), len(data.test_y)) == (5 * count, count)
        assert (data.image_shape, data.largest) == ((3, 32, 32), 255)
        assert (data.name, data.source) == ("mine", str(folder))
        assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)

    @pytest.mark.parametrize("below", places.CIFAR_FOLDERS)
    def test_folder_above(self, tmp_path, below):
        write(tmp_path / below, "binary" if below.endswith("bin") else "python")
        assert len(load_set(tmp_path).y) == 50

    def test_batches_of_unequal_length(self, tmp_path):
        write(tmp_path, "binary")
        (tmp_path / "data_batch_3.bin").write_bytes(binary(*batch(3, 2)))
        assert len(load_set(tmp_path).y) == 43

    def test_binary_comes_first(self, tmp_path):
        write(tmp_path, "python", 7)
        write(tmp_path, "binary", 6)
        assert len(load_set(tmp_path).test_y) == 6

    @pytest.mark.parametrize("end", ["", ".bin"])
    @pytest.mark.parametrize("missing", FILES)
    def test_missing_file(self, tmp_path, missing, end):
        write(tmp_path, "binary" if end else "python")
        (tmp_path / (missing + end)).unlink()
        assert "has no train-images-idx3-ubyte" in refused(tmp_path)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "has 0 bytes, wanted records of 3073"),
            (bytes(3072), "has 3072 bytes, wanted records of 3073"),
            (bytes(3074), "has 3074 bytes"),
            (b"\x0a" + bytes(3072), "has the label 10, wanted 0 to 9"),
            (bytes(3073) + b"\xff" + bytes(3072), "has the label 255"),
        ],
    )
    def test_damaged_binary(self, tmp_path, content, words):
        write(tmp_path, "binary")
        file = tmp_path / "data_batch_2.bin"
        file.write_bytes(content)
        text = refused(tmp_path)
        assert text.startswith(f"{file}: no batch of CIFAR-10, it ")
        assert words in text

    def test_damaged_python(self, tmp_path):
        write(tmp_path, "python")
        file = tmp_path / "test_batch"
        file.write_bytes(file.read_bytes()[:5000])
        assert refused(tmp_path).startswith(f"{file}: no batch of CIFAR-10, it ")

    def test_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr(cifar_files, "LIMIT", 30_000)
        write(tmp_path, "binary")
        assert "no batch of CIFAR-10 has" in refused(tmp_path)


class TestPublished:
    @pytest.mark.parametrize("layout", ["binary", "python"])
    def test_home(self, small_published, layout):
        home = write(places.home_of("cifar10"), layout)
        data = load_set("cifar10")
        assert torch.cat([data.x, data.test_x]).equal(expected()[0])
        assert (data.name, data.source) == ("cifar10", f"the published files in {home}")
        assert data.classes == 10

    @pytest.mark.parametrize("layout", ["bin", "py"])
    def test_folders_of_others(self, small_published, monkeypatch, layout):
        monkeypatch.setenv("MAHALENS_DATA", str(small_published))
        folder = small_published / f"cifar-10-batches-{layout}"
        write(folder, "binary" if layout == "bin" else "python")
        assert load_set("cifar10").source.endswith(str(folder))

    @pytest.mark.parametrize("layout", ["binary", "python"])
    def test_sizes_are_the_published_ones(self, small_published, monkeypatch, layout):
        home = write(places.home_of("cifar10"), layout, 20)
        monkeypatch.setitem(
            catalogue.PUBLISHED,
            "cifar10",
            dataclasses.replace(catalogue.PUBLISHED["cifar10"], md5={}),
        )
        assert "has 20 images, wanted 10" in refused("cifar10")
        assert len(load_set(home).y) == 100

    def test_python_files_have_checksums(self, small_published):
        home = write(places.home_of("cifar10"), "python")
        images, labels = batch(10, 3)
        images[5, 5] ^= 1
        (home / "data_batch_4").write_bytes(python(images, labels))
        text = refused("cifar10")
        assert text.startswith(f"{home / 'data_batch_4'}: ")
        assert "is not the published file: MD5 " in text

    def test_binary_files_have_as_many_of_each_class(self, small_published):
        home = write(places.home_of("cifar10"), "binary")
        images, _ = batch(10, 0)
        (home / "data_batch_1.bin").write_bytes(binary(images, [0] * 10))
        assert "does not have 5 images of each class to train" in refused("cifar10")
        write(home, "binary")
        (home / "test_batch.bin").write_bytes(binary(images, [0] * 10))
        assert "does not have 1 images of each class to test" in refused("cifar10")

    def test_missing(self, small_published):
        text = refused("cifar10")
        assert "cifar10 is not on this machine" in text
        assert "has no" not in text  # there is no folder at all
        assert "`mahalens data fetch cifar10`" in text


class TestPickles:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_every_protocol(self, protocol):
        images, labels = batch(300, 1)
        assert records_of_pickle(python(images, labels, protocol)) == binary(images, labels)

    @pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
    def test_every_numpy(self, module):
        images, labels = batch(4, 0)
        here = b"numpy._core.multiarray" if np.__version__ >= "2" else b"numpy.core.multiarray"
        content = python(images, labels)
        assert here in content
        assert records_of_pickle(content.replace(here, module.encode())) == binary(images, labels)

    def test_python_2(self):
        images, labels = batch(300, 1)
        content = python2(images, labels)
        real = pickle.loads(content, encoding="bytes")  # it is what we say it is
        assert np.array_equal(real[b"data"], images)
        assert real[b"labels"] == labels
        assert records_of_pickle(content) == binary(images, labels)

    def test_names_as_text(self):
        images, labels = batch(3, 1)
        content = pickle.dumps({"data": images, "labels": labels})
        assert records_of_pickle(content) == binary(images, labels)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({b"labels": [1]}, "holds 3 images and 1 labels"),
            ({b"labels": [0, 1, 10]}, "labels that are not whole numbers from 0 to 9"),
            ({b"labels": [0, 1, -1]}, "labels that are not whole numbers"),
            ({b"labels": [0, 1, True]}, "labels that are not whole numbers"),
            ({b"labels": [0, 1, b"2"]}, "labels that are not whole numbers"),
            ({b"labels": [0, 1, None]}, "labels that are not whole numbers"),
            ({b"labels": [0, 1, 10**30]}, "labels that are not whole numbers"),
            ({b"labels": (0, 1, 2)}, "no array named data and list named labels"),
            ({b"data": b"abc"}, "no array named data"),
            ({b"data": np.zeros((3, 3071), np.uint8)}, "data has shape"),
            ({b"data": np.zeros((3, 3072), np.int8)}, "no array of unsigned bytes"),
            ({b"data": np.zeros((3, 3072), np.float32)}, "no array of unsigned bytes"),
            ({b"data": np.zeros((3, 3, 1024), np.uint8)}, "data has shape"),
            ({b"data": np.asfortranarray(np.zeros((3, 3072), np.uint8))}, "order of columns"),
        ],
    )
    def test_other_contents(self, change, words):
        images, labels = batch(3, 0)
        content = pickle.dumps({b"data": images, b"labels": labels} | change, protocol=2)
        with pytest.raises(NotABatchError, match=words):
            records_of_pickle(content)

    @pytest.mark.parametrize("value", [None, [1, 2], "text", 3])
    def test_no_dictionary(self, value):
        with pytest.raises(NotABatchError, match="wanted data and labels"):
            records_of_pickle(pickle.dumps(value))

    @pytest.mark.parametrize(
        "content", [b"", b".", b"hello", b"\x80\x02", b"\x80\x02}", b"(.", b"]"]
    )
    def test_no_pickle(self, content):
        with pytest.raises(NotABatchError):
            records_of_pickle(content)


class TestMalice:
    """Pickles that would do harm, were they run."""

    @pytest.fixture
    def trap(self, tmp_path):
        return str(tmp_path / "sprung")

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_calls_are_refused(self, tmp_path, trap, protocol):
        class Trap:
            def __reduce__(self):
                return (open, (trap, "w"))

        images, labels = batch(2, 0)
        for value in (
            Trap(),
            {b"data": images, b"labels": labels, b"more": Trap()},
            {b"data": Trap(), b"labels": labels},
            {b"data": images, b"labels": [Trap(), 1]},
        ):
            content = pickle.dumps(value, protocol=protocol)
            with pytest.raises(
                NotABatchError, match=r"asks for '(_?io|builtins|__builtin__)\.open'"
            ):
                records_of_pickle(content)
            assert not (tmp_path / "sprung").exists()

    def test_the_trap_is_real(self, tmp_path):
        content = b"cos\nmkdir\n(V" + str(tmp_path / "sprung").encode() + b"\ntR."
        with pytest.raises(NotABatchError, match=r"asks for 'os\.mkdir'"):
            records_of_pickle(content)
        assert not (tmp_path / "sprung").exists()
        pickle.loads(content)
        assert (tmp_path / "sprung").exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"cnumpy\nndarray\n(K\x01tR.",  # an array of its own making
            b"cnumpy\nndarray\n)\x81.",  # by NEWOBJ
            b"(cnumpy\nndarray\no.",  # by OBJ
            b"(inumpy\nndarray\n.",  # by INST
            b"cnumpy\ndtype\n}b.",  # state for the type itself
            b"cnumpy.core.multiarray\n_reconstruct\n}U\x0c__defaults__)sb.",
            b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x04\x00\x00\x00zliptR.",  # another codec
            b"c_codecs\nencode\n(C\x01aX\x06\x00\x00\x00latin1tR.",  # of bytes
            b"c_codecs\nencode\n)R.",
            b"cnumpy\ndtype\n)R.",
            b"cnumpy.core.numeric\n_frombuffer\n(NNNNtR.",
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nR.",  # arguments no tuple
            b"cnumpy.core.multiarray\nscalar\n.",
            b"cnumpy\nndarray.tofile\n.",
            b"\x8c\x05numpy\x8c\x04load\x93.",  # STACK_GLOBAL
            b"K\x01\x8c\x04load\x93.",
            b"\x82\x01.",  # EXT1: whatever was registered under 1
            b"Pname\n.",  # PERSID
            b"K\x01Q.",  # BINPERSID
            b"\x8f.",  # EMPTY_SET
            b"\x97.",  # NEXT_BUFFER
        ],
    )
    def test_allowed_names_in_odd_ways(self, content):
        with pytest.raises(NotABatchError):
            records_of_pickle(content)

    @pytest.mark.parametrize("codec", [b"zlip", b"utf-8", b"rot13"])
    def test_other_codecs(self, codec):
        content = b"c_codecs\nencode\n(X\x01\x00\x00\x00aV" + codec + b"\ntR."
        with pytest.raises(NotABatchError, match="asks for a call that no batch needs"):
            records_of_pickle(content)

    def test_memory_is_not_taken_for_what_is_not_there(self):
        # a memo of 2^31 entries, and a text of 2^32 bytes: an unpickler would take gigabytes
        with pytest.raises(NotABatchError, match="wanted data and labels"):
            records_of_pickle(b"Nr\xff\xff\xff\x7f.")
        with pytest.raises(NotABatchError, match="damaged, or no pickle"):
            records_of_pickle(b"T\xff\xff\xff\x7f.")
        with pytest.raises(NotABatchError, match="damaged, or no pickle"):
            records_of_pickle(b"\x8e" + b"\xff" * 7 + b"\x0f.")

    def test_odd_escapes_are_no_warning_to_the_user(self):
        with pytest.raises(NotABatchError, match="wanted data and labels"):
            records_of_pickle(b"S'\\q'\n.")

    def test_a_list_in_itself(self):
        with pytest.raises(NotABatchError):
            records_of_pickle(b"]q\x00h\x00a.")

    def test_endless_work(self, monkeypatch):
        monkeypatch.setattr(python_batches, "MOST_STEPS", 1000)
        with pytest.raises(NotABatchError, match="far more instructions"):
            records_of_pickle(b"N" * 2000 + b".")

    def test_a_claimed_shape_is_not_believed(self):
        images, labels = batch(2, 0)
        content = python2(images, labels).replace(b"M\x02\x00M\x00\x0c", b"M\x03\x00M\x00\x0c")
        with pytest.raises(NotABatchError, match="data has shape"):
            records_of_pickle(content)

    @settings(deadline=None, max_examples=300)
    @given(st.data())
    def test_no_content_escapes_as_another_error(self, data):
        whole = python(*batch(1, 0), data.draw(st.integers(0, 5)))
        damaged = bytearray(whole[:120] + whole[-260:])
        for _ in range(data.draw(st.integers(0, 6))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(NotABatchError):
            records_of_pickle(bytes(damaged))

    @settings(deadline=None, max_examples=300)
    @given(st.lists(st.sampled_from([op.code.encode("latin-1") for op in pickletools.opcodes])))
    def test_any_sequence_of_instructions(self, codes):
        with contextlib.suppress(NotABatchError):
            records_of_pickle(b"".join(codes) + b"\0\0\0\0\n.")
