"""A user's own samples in a file: what is taken, and one line for everything that can be wrong."""

import contextlib
import gzip
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mahalens.data import load_gaussian, load_set
from mahalens.data.idx import read_idx
from mahalens.data.samples import load_samples
from mahalens.data.user_files import _split, load_file
from mahalens.errors import InputError
from mahalens.geometry import memory

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 6)).astype(np.float32)
Y = np.arange(20) % 3


@pytest.fixture(params=["npz", "safetensors"])
def write(request, tmp_path):
    """Writes arrays to a file of either kind."""

    def writer(**arrays):
        path = tmp_path / f"mine.{request.param}"
        if request.param == "npz":
            np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
        else:
            tensors = {name: torch.from_numpy(np.array(v)) for name, v in arrays.items()}
            save_file(tensors, path)
        return path

    return writer


def refused(path):
    """The message for a file that cannot be used: one line that begins with its name."""
    with pytest.raises(InputError) as error:
        load_set(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


class TestTaken:
    def test_with_test_arrays(self, write):
        path = write(x=X[:12], y=Y[:12], test_x=X[12:], test_y=Y[12:])
        for data in (load_set(path), load_set(str(path)), load_file(path)):
            assert np.array_equal(data.x.numpy(), X[:12])
            assert np.array_equal(data.test_x.numpy(), X[12:])
            assert data.y.tolist() == Y[:12].tolist()
            assert data.test_y.tolist() == Y[12:].tolist()
            assert (data.name, data.source, data.image_shape) == ("mine", str(path), None)
            assert data.largest == pytest.approx(np.abs(X[:12]).max(), rel=1e-7)
            assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)

    def test_without_them_a_fifth_is_kept(self, write):
        path = write(x=X, y=Y)
        data, again = load_set(path), load_set(path)
        assert (len(data.y), len(data.test_y)) == (16, 4)
        assert data.source == f"{path}, a fifth of its samples kept for the test"
        assert data.x.equal(again.x)
        # together they are all samples, each once, with its own label
        rows = {tuple(row): label for row, label in zip(X.tolist(), Y.tolist(), strict=True)}
        both = [*zip(data.x.tolist(), data.y.tolist(), strict=True)]
        both += zip(data.test_x.tolist(), data.test_y.tolist(), strict=True)
        assert {tuple(row): label for row, label in both} == rows
        assert len(both) == 20

    @settings(max_examples=60)
    @given(st.integers(2, 400))
    def test_split(self, count):
        kept, tested = _split(count)
        assert len(tested) == max(1, count // 5)
        assert sorted(kept.tolist() + tested.tolist()) == list(range(count))
        assert kept.tolist() == sorted(kept.tolist())
        if count >= 40:  # drawn, not cut off: sorted classes are in both parts
            assert int(kept.max()) > count * 0.8
            assert int(tested.min()) < count * 0.6

    def test_the_split_stays_what_it_is(self):
        assert _split(10)[1].tolist() == [5, 9]

    @pytest.mark.parametrize(
        ("shape", "image"),
        [((20, 6), None), ((20, 2, 3), (2, 3)), ((20, 3, 2, 1), (3, 2, 1)), ((20, 1), None)],
    )
    def test_image_shapes(self, write, shape, image):
        x = RNG.normal(size=shape)
        data = load_set(write(x=x, y=Y, test_x=x, test_y=Y))
        assert data.image_shape == image
        assert np.array_equal(data.x.numpy(), x.reshape(20, -1).astype(np.float32))

    def test_unsigned_bytes_have_a_largest_of_255(self, write):
        x = RNG.integers(0, 100, (20, 6), dtype=np.uint8)
        data = load_set(write(x=x, y=Y, test_x=x[:2], test_y=Y[:2]))
        assert data.largest == 255
        assert np.array_equal(data.x.numpy(), x)

    @pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u2", "u4", "f2", "f4", "f8"])
    def test_dtypes(self, write, dtype):
        x = RNG.integers(1, 100, (20, 6)).astype(dtype)
        data = load_set(write(x=x, y=Y.astype(dtype), test_x=x[:2], test_y=Y[:2].astype(dtype)))
        assert np.array_equal(data.x.numpy(), x)
        assert data.largest == x.max()
        assert data.y.tolist() == Y.tolist()

    def test_largest_is_of_absolute_values(self, write):
        assert load_set(write(x=[[-7.0], [1.0]], y=[0, 1], test_x=[[9.0]], test_y=[0])).largest == 7

    def test_order_of_bytes_and_of_columns(self, tmp_path):
        path = tmp_path / "mine.npz"
        x = np.asfortranarray(X.astype(">f8"))
        np.savez(path, x=x, y=Y.astype(">i4"), test_x=x, test_y=Y.astype(">i4"))
        data = load_set(path)
        assert np.array_equal(data.x.numpy(), X)
        assert data.y.tolist() == Y.tolist()

    def test_compressed_and_capitals(self, tmp_path):
        path = tmp_path / "MINE.NPZ"
        with path.open("wb") as stream:
            np.savez_compressed(stream, x=X, y=Y)
        assert load_set(path).name == "MINE"

    def test_bfloat16(self, tmp_path):
        x = torch.from_numpy(X).bfloat16()
        save_file({"x": x, "y": torch.from_numpy(Y)}, tmp_path / "mine.safetensors")
        assert load_set(tmp_path / "mine.safetensors").x.dtype == torch.float32

    def test_other_arrays_do_not_matter(self, write):
        assert load_set(write(x=X, y=Y, weights=[np.nan])).inputs == 6

    def test_others_are_not_even_opened(self, tmp_path):
        np.savez(tmp_path / "mine.npz", x=X, y=Y, names=np.array(["a", {}], dtype=object))
        assert load_set(tmp_path / "mine.npz").inputs == 6

    def test_labels_of_truth(self, write):
        assert load_set(write(x=X, y=Y > 0)).classes == 2


class TestMemory:
    """Sizes are in the headers: what cannot fit is refused before it is read."""

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
        assert refused(path) == wanted
        with pytest.raises(InputError, match=r"would take 12 GB of memory and 1 GB are free"):
            load_samples(path)

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

    def test_a_gaussian(self, tmp_path):
        path = self.bomb(tmp_path / "g.npz", (30_000, 30_000), "covariance")
        with pytest.raises(InputError, match=r"^\S*g.npz: covariance \[30000, 30000\] .* 11 GB"):
            load_gaussian(path)

    @pytest.mark.parametrize("gzipped", [False, True])
    def test_idx(self, tmp_path, gzipped, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 10**8)
        header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (10**5, 28, 28))
        content = header + bytes(784 * 10**5)
        path = tmp_path / "images"
        path.write_bytes(gzip.compress(content, 1) if gzipped else content)
        with pytest.raises(InputError, match=r"images: \[100000, 28, 28\] bytes: .* 0\.39 GB"):
            read_idx(path)

    def test_an_allocation_that_fails_is_one_line(self, write, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you")

        path = write(x=X, y=Y)
        monkeypatch.setattr(torch.Tensor, "flatten", fail)
        assert refused(path) == (
            "x: takes more memory than there is; 1 GB are free; save fewer samples or inputs in it"
        )


class TestRefused:
    def test_arrays_missing(self, write):
        assert refused(write(x=X)).startswith("has no y; wanted arrays x [N, ...]")
        assert refused(write(y=Y)).startswith("has no x; wanted")
        assert refused(write(images=X)).startswith("has no x and no y; wanted")
        assert refused(write(x=X, y=Y, test_x=X)).startswith("has test_x and no test_y; add it")
        assert refused(write(x=X, y=Y, test_y=Y)).startswith("has test_y and no test_x; add it")

    def test_lengths(self, write):
        assert refused(write(x=X, y=Y[:5])).startswith("x has 20 samples and y 5 labels")
        text = refused(write(x=X, y=Y, test_x=X, test_y=Y[:1]))
        assert text.startswith("test_x has 20 samples and test_y 1 labels")

    def test_sizes(self, write):
        text = refused(write(x=X, y=Y, test_x=X[:, :5], test_y=Y))
        assert text.startswith("x holds samples of shape [6] and test_x of [5]; wanted one shape")
        text = refused(write(x=X.reshape(20, 2, 3), y=Y, test_x=X.reshape(20, 3, 2), test_y=Y))
        assert "of shape [2, 3] and test_x of [3, 2]" in text

    def test_shapes(self, write):
        assert "x has shape [20], wanted [N, ...]; a single value" in refused(write(x=X[:, 0], y=Y))
        assert "x has shape [], wanted [N, ...]" in refused(write(x=1.0, y=Y))
        assert "x has shape [0, 6]" in refused(write(x=X[:0], y=Y[:0]))
        assert "x has shape [20, 0]" in refused(write(x=X[:, :0], y=Y))
        text = refused(write(x=X, y=np.eye(20)))
        assert text.startswith("y has shape [20, 20], wanted [N]")
        assert "y.argmax(1)" in text

    @pytest.mark.parametrize("part", ["x", "test_x"])
    def test_nan(self, write, part):
        bad = X.copy()
        bad[3, 2] = bad[3, 4] = bad[7, 0] = np.nan
        text = refused(write(**({"x": X, "y": Y, "test_x": X, "test_y": Y} | {part: bad})))
        assert text.startswith(f"{part} has NaN in 2 of 20 samples, the first at [3]; remove")

    def test_infinite(self, write):
        bad = X.copy()
        bad[3, 2] = np.inf
        said = "has an infinite value in 1 of 20 samples, the first at [3]"
        assert f"x {said}" in refused(write(x=bad, y=Y))  # before they are shuffled and split
        assert f"x {said}" in refused(write(x=bad, y=Y, test_x=X, test_y=Y))
        assert f"test_x {said}" in refused(write(x=X, y=Y, test_x=bad, test_y=Y))

    def test_too_large_for_float32(self, write):
        x = X.astype(np.float64) * 1e60
        assert "too large for float32" in refused(write(x=x, y=Y, test_x=X, test_y=Y))

    @pytest.mark.parametrize(
        "labels", [[0.5, 1.0], [-1, 1], [-1.0, 0.0], [np.nan, 0.0], [np.inf, 0.0]]
    )
    def test_labels(self, write, labels):
        text = refused(write(x=X[:2], y=labels, test_x=X[:1], test_y=[0]))
        assert text.startswith("y has labels that are not whole numbers from 0 on; number the")
        assert "numpy.unique(y, return_inverse=True)" in text
        text = refused(write(x=X[:2], y=[0, 1], test_x=X[:2], test_y=labels))
        assert text.startswith("test_y has labels that are not whole numbers")

    def test_stray_labels(self, write):
        text = refused(write(x=X, y=np.where(Y == 0, 2024, Y)))
        assert text.startswith("y has the label 2024 with 20 samples; number the classes 0, 1, 2")

    def test_labels_only_in_the_test_set(self, write):
        text = refused(write(x=X, y=Y, test_x=X[:1], test_y=[3]))
        assert text.startswith("test_y has the label 3, wanted 0 to 2")

    def test_a_class_that_went_to_the_test_set(self, write):
        labels = np.zeros(20, dtype=np.int64)
        labels[int(_split(20)[1][0])] = 1
        text = refused(write(x=X, y=labels))
        assert text.startswith("the class 1 has so few samples that training got none; give test_x")

    def test_a_single_sample(self, write):
        assert "x has 1 sample(s); wanted at least 2" in refused(write(x=X[:1], y=[0]))

    def test_nothing_but_zeros(self, write):
        assert "nothing but zeros" in refused(write(x=X * 0, y=Y))

    def test_scales_that_differ(self, write):
        bytes_ = RNG.integers(0, 255, (20, 6), dtype=np.uint8)
        text = refused(write(x=bytes_, y=Y, test_x=X, test_y=Y))
        assert text.startswith("x is uint8 and test_x float32")

    @pytest.mark.parametrize("values", [np.array([["a"]] * 20), X * 1j, X > 0])
    def test_no_real_numbers(self, tmp_path, values):
        np.savez(tmp_path / "mine.npz", x=values, y=Y)
        assert "wanted" in refused(tmp_path / "mine.npz")

    @pytest.mark.parametrize("shape", [(0, 4), (20, 0), (0,)])
    def test_no_values(self, tmp_path, shape):
        np.savez(tmp_path / "mine.npz", x=np.zeros(shape), y=np.zeros(shape[0]))
        assert "which holds no value; wanted samples" in refused(tmp_path / "mine.npz")

    def test_labels_as_text(self, tmp_path):
        np.savez(tmp_path / "mine.npz", x=X, y=np.array(["cat"] * 20))
        text = refused(tmp_path / "mine.npz")
        assert "y is text, wanted numbers; np.unique(y, return_inverse=True)[1] numbers" in text

    def test_no_such_file(self, tmp_path):
        text = refused(tmp_path / "mine.npz")
        assert text.startswith("there is no such set, folder or file; wanted one of digits, mnist,")
        with pytest.raises(InputError, match="there is no such file"):
            load_file(tmp_path / "mine.npz")

    @pytest.mark.parametrize("name", ["mine.csv", "mine.pkl", "mine.pt", "mine"])
    def test_unknown_extension(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"1")
        text = refused(tmp_path / name)
        assert text.startswith("the name of this file ends in ")
        assert "an .npz or .safetensors file with x and y" in text
        with pytest.raises(InputError, match="the name ends in"):
            load_file(tmp_path / name)

    def test_a_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "mine.npz")
        assert "this is no file" in refused(tmp_path / "mine.npz")

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

    def test_a_promise_of_too_much(self, tmp_path):
        path = tmp_path / "mine.npz"
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 9), }\n"
        with zipfile.ZipFile(path, "w") as archive:
            npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            archive.writestr("x.npy", npy)
            archive.writestr("y.npy", npy)
        refused(path)

    def test_pickles_are_not_opened(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (os.mkdir, (str(tmp_path / "sprung"),))

        path = tmp_path / "mine.npz"
        path.write_bytes(pickle.dumps(Trap()))
        refused(path)
        np.savez(path, x=np.array([[Trap()]], dtype=object), y=[0])
        assert refused(path).startswith("holds Python objects, which are not read")
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"no array", "x is no array of NumPy, it begins with 6e 6f 20 61 72 72; save arrays"),
            (b"", "x is no array of NumPy, it is empty; save arrays with numpy.savez"),
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

    @pytest.mark.parametrize(
        "dtype", ["M8[s]", "m8[s]", [("a", "f4"), ("b", "i4")], "c8", "c16", "V5", "longdouble"]
    )
    @pytest.mark.parametrize("part", ["x", "y"])
    def test_dtypes_that_are_no_numbers(self, tmp_path, dtype, part):
        path = tmp_path / "mine.npz"
        np.savez(path, **{"x": X, "y": Y, part: np.zeros((20, 2)[: 1 + (part == "x")], dtype)})
        assert f"{part} is " in (text := refused(path))
        assert "wanted real numbers of up to 64 bits" in text

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
    def test_floats_of_eight_bits_are_taken(self, tmp_path, dtype):
        x = torch.from_numpy(X).to(dtype)
        save_file({"x": x, "y": torch.from_numpy(Y)}, tmp_path / "mine.safetensors")
        data = load_set(tmp_path / "mine.safetensors")
        both = torch.cat([data.x, data.test_x])
        assert both.dtype == torch.float32
        assert both.sort(0).values.equal(x.float().sort(0).values)
        save_file({"x": x.float(), "y": torch.ones(20).to(dtype)}, tmp_path / "mine.safetensors")
        assert load_set(tmp_path / "mine.safetensors").classes == 2

    @pytest.mark.parametrize("part", ["y", "test_y"])
    @pytest.mark.parametrize(
        ("label", "text"),
        [
            (np.array([2**63] * 20, dtype=np.uint64), "{} has labels from 2^63 on; number"),
            (np.full(20, 1e300), "{} has the label "),
            (np.full(20, 2.0**53), "{} has the label 9007199254740992 with 20 samples; number"),
            (np.full(20, 2**62), "{} has the label 4611686018427387904 with 20 samples; number"),
            (np.full(20, 1.5), "{} has labels that are not whole numbers from 0 on"),
        ],
    )
    def test_labels_that_wrap_around(self, write, part, label, text):
        arrays = {"x": X, "y": Y, "test_x": X, "test_y": Y, part: label}
        assert refused(write(**arrays)).startswith(text.format(part))

    def test_features_from_two_to_the_63_on_stay_positive(self, write):
        x = np.full((20, 2), 2**63 + 2**40, dtype=np.uint64)
        data = load_set(write(x=x, y=Y))
        assert float(data.x.min()) == float(np.float32(2**63 + 2**40))
        assert float(load_samples(write(x=x, y=Y)).x.min()) == float(2**63 + 2**40)
        small = load_samples(write(x=x % 1000, y=Y.astype(np.uint64)))
        assert small.x.dtype == torch.int64
        assert small.y.tolist() == Y.tolist()

    def test_a_measured_value_is_no_class(self, write):
        x = RNG.normal(size=(5000, 3))
        text = refused(write(x=x, y=np.arange(5000)))
        assert text.startswith("y has 5,000 classes in 5,000 samples, as a measured value has; giv")
        text = refused(write(x=x, y=np.arange(5000) % 60 * 60))
        assert text.startswith("y has 60 different labels from 0 to 3,540; number the classes with")
        assert load_set(write(x=x, y=np.arange(5000) % 1000)).classes == 1000

    @settings(deadline=None, max_examples=80)
    @given(st.data())
    def test_no_content_escapes_as_another_error(self, tmp_path_factory, data):
        kinds = st.sampled_from(["f4", "f8", "i8", "u1", "i1", "?", "c8", "U2", "f2", "u8"])
        shapes = st.lists(st.integers(0, 4), max_size=4)
        arrays = {}
        for name in ("x", "y", "test_x", "test_y"):
            if data.draw(st.booleans()) or name in "xy":
                shape = data.draw(shapes)
                values = RNG.integers(-2, 5, shape)
                arrays[name] = values.astype(data.draw(kinds))
        path = tmp_path_factory.getbasetemp() / "anything.npz"
        np.savez(path, **arrays)
        with contextlib.suppress(InputError):
            loaded = load_set(path)
            assert len(loaded.y) + len(loaded.test_y) >= 2
