"""Loading by name, from folders and from files: what is taken, and one line for the rest."""

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import RNG, cifar, cifar_batch, contents, publish, put, refusal, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from mahalens.data import load_set, named
from mahalens.data.files import fifth_for_test, load_file, load_samples
from mahalens.data.named import CIFAR_FILES, FILES, TABLES
from mahalens.errors import InputError
from mahalens.files import fingerprint
from mahalens.geometry import _checks as memory

X = RNG.normal(size=(20, 6)).astype(np.float32)
Y = np.arange(20) % 3


class TestIdxFolder:
    def test_values(self, tmp_path):
        folder = put(tmp_path / "mine", contents())
        data = load_set(folder)
        assert data.x.equal(torch.arange(36.0).reshape(6, 6))
        assert data.test_x.equal(torch.arange(12.0).reshape(2, 6) + 100)
        assert (data.y.tolist(), data.test_y.tolist()) == ([0, 1, 2, 0, 1, 2], [2, 0])
        assert {data.x.dtype, data.test_x.dtype} == {torch.float32}
        assert {data.y.dtype, data.test_y.dtype} == {torch.int64}
        assert (data.name, data.source) == ("mine", str(folder))
        assert (data.inputs, data.classes, data.image_shape, data.largest) == (6, 3, (2, 3), 255)

    @pytest.mark.parametrize("dot", ["-", "."])
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_spellings(self, tmp_path, dot, end):
        files = {usual.replace("-idx", f"{dot}idx"): data for usual, data in contents().items()}
        assert f"train-images{dot}idx3-ubyte" in files
        assert load_set(str(put(tmp_path, files, "{}" + end))).inputs == 6

    def test_plain_content_under_a_gzipped_name(self, tmp_path):
        plain = put(tmp_path / "plain", contents())
        renamed = tmp_path / "renamed"
        renamed.mkdir()
        for file in FILES:
            (renamed / f"{file}.gz").write_bytes((plain / file).read_bytes())
        assert load_set(renamed).inputs == 6
        for file in FILES:  # as a browser leaves it; a run records its fingerprint
            assert fingerprint(renamed / f"{file}.gz") == fingerprint(plain / file)

    def test_plain_before_gzipped_and_files_before_folders(self, tmp_path):
        put(tmp_path, contents(mark=7))
        put(tmp_path, contents(mark=8), "{}.gz")
        assert load_set(tmp_path).x[0, 0] == 7
        (tmp_path / FILES[0]).unlink()
        (tmp_path / FILES[0]).mkdir()
        assert load_set(tmp_path).x[0, 0] == 8

    def test_a_path_is_never_a_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        put(tmp_path / "mnist", contents())
        put(tmp_path / "digits", contents())
        assert load_set(Path("mnist")).inputs == load_set("./mnist").inputs == 6
        assert load_set(Path("digits")).inputs == 6
        monkeypatch.chdir(tmp_path / "mnist")
        assert load_set(".").name == "mnist"

    @pytest.mark.parametrize(("shape", "image"), [((2,), None), ((2, 2, 3), (2, 2, 3))])
    def test_shapes_of_samples(self, tmp_path, shape, image):
        x = torch.arange(6 * np.prod(shape)).reshape(6, *shape)
        data = load_set(put(tmp_path, contents(train_images=x, test_images=x[:2])))
        assert (data.inputs, data.image_shape) == (np.prod(shape), image)

    def test_neither_name_nor_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = refused("MNIST")
        known = "wanted one of digits, mnist, fashion-mnist, cifar10, questions, iris, wine, "
        assert text.startswith(f"there is no such set, folder or file; {known}")
        (tmp_path / "file").write_text("")
        assert refused("file").startswith(f"the name of this file ends in 'nothing'; {known}")
        assert refused("file/below").startswith("there is no such set, folder or file")
        assert refused("a\0b")
        assert refused(tmp_path).startswith("has no train-images-idx3-ubyte, no train-labels")

    def test_not_allowed_to_read(self, tmp_path, monkeypatch):
        def forbidden(folder):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "scandir", forbidden)
        assert refused(tmp_path).startswith("cannot be read, Permission denied")

    @pytest.mark.parametrize(
        ("part", "values", "file", "words"),
        [
            ("train_labels", [0, 1], 0, "has 6 images but train-labels-idx1-ubyte has 2 labels"),
            ("test_labels", [0, 1, 2], 2, "has 2 images but t10k-labels-idx1-ubyte has 3 labels"),
            ("train_images", [1] * 6, 0, "has shape [6], wanted images"),
            ("train_labels", [[0], [1]], 1, "has shape [2, 1], wanted labels"),
            ("test_labels", [[0, 1]], 3, "has shape [1, 2], wanted labels"),
            ("test_images", torch.ones(2, 3, 2), 2, "of shape [3, 2] but train-images-idx3-ubyte"),
            ("test_images", torch.ones(2, 6), 2, "of shape [6] but train-images-idx3-ubyte of"),
        ],
    )
    def test_files_that_disagree(self, tmp_path, part, values, file, words):
        put(tmp_path, contents(**{part: values}))
        assert words in refusal(load_set, tmp_path, start=f"{tmp_path / FILES[file]}: ")

    def test_labels_only_in_the_test_set(self, tmp_path):
        text = refused(put(tmp_path, contents(test_labels=[0, 3])))
        assert text.startswith("test_y has the label 3, wanted 0 to 2, ")


class TestCifarFolder:
    @pytest.mark.parametrize("count", [6, 7, 10])
    @pytest.mark.parametrize("below", ["", named.CIFAR_FOLDER])
    def test_values(self, tmp_path, count, below):
        put(tmp_path / "mine" / below, cifar(count))
        data = load_set(tmp_path / "mine")
        records = np.frombuffer(b"".join(cifar(count).values()), np.uint8).reshape(-1, 3073)
        assert np.array_equal(torch.cat([data.x, data.test_x]), records[:, 1:])
        assert np.array_equal(torch.cat([data.y, data.test_y]), records[:, 0])
        assert (len(data.y), len(data.test_y)) == (5 * count, count)
        assert (data.image_shape, data.largest) == ((3, 32, 32), 255)
        assert (data.name, data.source) == ("mine", str(tmp_path / "mine"))
        assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)

    def test_batches_of_unequal_length(self, tmp_path):
        assert len(load_set(put(tmp_path, cifar(data_batch_3=cifar_batch(3, 2)))).y) == 43

    @pytest.mark.parametrize("missing", CIFAR_FILES)
    def test_missing_file(self, tmp_path, missing):
        put(tmp_path, cifar())
        (tmp_path / f"{missing}.bin").rename(tmp_path / missing)  # pickled batches are not read
        text = refused(tmp_path)
        assert text.startswith("has no train-images-idx3-ubyte")
        assert "the binary batches of CIFAR-10" in text

    def test_labels_only_in_the_test_set(self, tmp_path):
        batch = cifar_batch(3, 0, labels=[0, 1, 1])
        put(tmp_path, cifar(**dict.fromkeys(CIFAR_FILES[:5], batch)))
        assert refused(tmp_path).startswith("test_y has the label 9, wanted 0 to 1")


class TestCifarByName:
    @pytest.fixture(autouse=True)
    def small(self, machine, monkeypatch):
        publish(monkeypatch, "cifar10", images_per_file=10)

    @pytest.mark.parametrize("below", ["cifar10", named.CIFAR_FOLDER])
    def test_places(self, machine, below):
        folder = put(machine / "data" / below, cifar())
        data = load_set("cifar10")
        assert data.x.equal(load_set(folder).x)
        assert (data.name, data.source) == ("cifar10", f"the published files in {folder}")
        assert data.classes == 10
        assert load_samples("cifar10").source.startswith("cifar10 as published, test samples")

    def test_sizes_and_classes_are_the_published_ones(self, machine):
        home = put(named.home_of("cifar10"), cifar(20))
        assert "has 20 images, wanted 10" in refusal(load_set, "cifar10")
        assert len(load_set(home).y) == 100
        put(home, cifar(data_batch_1=cifar_batch(10, 0, [0] * 10)))
        assert "does not have 5 images of each class to train" in refusal(load_set, "cifar10")
        put(home, cifar(test_batch=cifar_batch(10, 0, [0] * 10)))
        text = refusal(load_set, "cifar10", start=f"{home}: ")
        assert text.startswith("does not have 1 images of each class to test")


class TestScikitLearn:
    def test_digits(self):
        data = load_set("digits")
        whole = pytest.importorskip("sklearn.datasets").load_digits()
        assert torch.cat([data.x, data.test_x]).equal(torch.tensor(whole.data).float())
        assert torch.cat([data.y, data.test_y]).equal(torch.tensor(whole.target))
        assert (len(data.y), len(data.test_y)) == (1437, 360)
        assert (data.image_shape, data.classes, data.largest) == ((8, 8), 10, 16)
        assert data.source == "scikit-learn's digits"

    @pytest.mark.parametrize("name", TABLES)
    def test_tables(self, name):
        data = load_set(name)
        datasets = pytest.importorskip("sklearn.datasets")
        loader = f"load_{name.replace('-', '_')}"
        whole = getattr(datasets, loader)()
        rows = torch.cat([data.x, data.test_x]).sort(0).values
        assert rows.equal(torch.tensor(whole.data).float().sort(0).values)
        sizes = np.bincount(whole.target)
        assert torch.bincount(data.test_y).tolist() == [int(0.3 * size) for size in sizes]
        assert (data.image_shape, data.source) == (None, f"scikit-learn's {loader}")

    def test_without_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn", None)
        assert "needs scikit-learn; pip install 'mahalens[sklearn]'" in refusal(load_set, "digits")


class TestFile:
    def test_with_test_arrays(self, write):
        path = write(x=X[:12], y=Y[:12], test_x=X[12:], test_y=Y[12:], weights=[np.nan])
        for data in (load_set(path), load_set(str(path)), load_file(path)):
            assert np.array_equal(data.x, X[:12])
            assert np.array_equal(data.test_x, X[12:])
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
    def test_the_fifth_is_drawn(self, count):
        train, test = fifth_for_test(count)
        assert len(test) == max(1, count // 5)
        assert sorted(train.tolist() + test.tolist()) == list(range(count))
        assert train.tolist() == sorted(train.tolist())
        if count >= 40:  # drawn, not cut off: sorted classes are in both parts
            assert int(train.max()) > count * 0.8
            assert int(test.min()) < count * 0.6

    @pytest.mark.parametrize(
        ("shape", "image"),
        [((20, 6), None), ((20, 2, 3), (2, 3)), ((20, 3, 2, 1), (3, 2, 1)), ((20, 1), None)],
    )
    def test_image_shapes(self, write, shape, image):
        x = RNG.normal(size=shape)
        data = load_set(write(x=x, y=Y, test_x=x, test_y=Y))
        assert data.image_shape == image
        assert np.array_equal(data.x, x.reshape(20, -1).astype(np.float32))

    @pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "f2", "f4", "f8"])
    def test_dtypes(self, write, dtype):
        x = RNG.integers(1, 100, (20, 6)).astype(dtype)
        data = load_set(write(x=x, y=Y.astype(dtype), test_x=x[:2], test_y=Y[:2].astype(dtype)))
        assert np.array_equal(data.x, x)
        assert data.largest == (255 if dtype == "u1" else x.max())
        assert data.y.tolist() == Y.tolist()

    def test_labels_of_truth_and_largest_of_absolute_values(self, write):
        data = load_set(write(x=[[-7.0], [1.0]], y=[False, True], test_x=[[9.0]], test_y=[False]))
        assert (data.largest, data.classes) == (7, 2)

    def test_order_of_bytes_and_of_columns_compressed_and_in_capitals(self, tmp_path):
        x, names = np.asfortranarray(X.astype(">f8")), np.array(["a", {}], dtype=object)
        path = tmp_path / "MINE.NPZ"
        with path.open("wb") as stream:
            np.savez_compressed(stream, x=x, y=Y.astype(">i4"), test_x=x, test_y=Y, names=names)
        data = load_set(path)
        assert np.array_equal(data.x, X)
        assert data.y.tolist() == Y.tolist()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
    def test_short_floats(self, tmp_path, dtype):
        path, x = tmp_path / "mine.safetensors", torch.from_numpy(X).to(dtype)
        save_file({"x": x, "y": torch.from_numpy(Y)}, path)
        data = load_set(path)
        both = torch.cat([data.x, data.test_x])
        assert both.dtype == torch.float32
        assert both.sort(0).values.equal(x.float().sort(0).values)
        save_file({"x": x.float(), "y": torch.ones(20).to(dtype)}, path)
        assert load_set(path).classes == 2

    def test_features_from_two_to_the_63_on_stay_positive(self, write):
        x = np.full((20, 2), 2**63 + 2**40, dtype=np.uint64)
        data = load_set(write(x=x, y=Y))
        assert float(data.x.min()) == float(np.float32(2**63 + 2**40))
        assert float(load_samples(write(x=x, y=Y)).x.min()) == float(2**63 + 2**40)
        small = load_samples(write(x=x % 1000, y=Y.astype(np.uint64)))
        assert small.x.dtype == torch.int64
        assert small.y.tolist() == Y.tolist()


def changed(row, column, value):
    x = X.copy()
    x[row, column] = value
    return x


BOTH = {"x": X, "y": Y, "test_x": X, "test_y": Y}
TEST_ONLY = np.zeros(20, dtype=np.int64)
TEST_ONLY[fifth_for_test(20)[1][0]] = 1
BYTES = RNG.integers(0, 255, (20, 6), dtype=np.uint8)


class TestFileRefused:
    def test_values_that_float32_cannot_tell_apart(self, write):
        text = "x has values from 100000000 to 100000007 in feature 5, too close for float32"
        x = X.astype(np.float64)
        x[:, 5] = 1e8 + np.arange(20) % 8
        assert refused(write(x=x, y=Y)).startswith(text)
        assert refused(write(x=x.astype(np.int64), y=Y)).startswith(text)
        x[:, 5] = 0.1 + 1e-17 * np.arange(20)  # rounding of a constant
        x[:, 4] = np.float32(0.1) + np.float32(1e-8) * np.arange(20)  # float32 before
        x[:, 4] = x[:, 4].astype(np.float32)
        assert load_set(write(x=x, y=Y)).inputs == 6

    @pytest.mark.parametrize(
        ("arrays", "text"),
        [
            ({"x": X}, "has no y; wanted arrays x [N, ...]"),
            ({"y": Y}, "has no x; wanted"),
            ({"images": X}, "has no x and no y; wanted"),
            ({"x": X, "y": Y, "test_x": X}, "has test_x and no test_y; add it"),
            ({"x": X, "y": Y, "test_y": Y}, "has test_y and no test_x; add it"),
            ({"x": X, "y": Y[:5]}, "x has 20 samples but y has 5 labels; give one label per sam"),
            (BOTH | {"test_y": Y[:1]}, "test_x has 20 samples but test_y has 1 labels"),
            (BOTH | {"test_x": X[:, :5]}, "x has samples of shape [6] but test_x of [5]; give one"),
            ({"x": X[:, 0], "y": Y}, "x has shape [20], wanted [N, ...]; a single value"),
            ({"x": 1.0, "y": Y}, "x has shape [], wanted [N, ...]"),
            ({"x": X[:0], "y": Y[:0]}, "x has shape [0, 6], which holds no value"),
            ({"x": X[:, :0], "y": Y}, "x has shape [20, 0], which holds no value"),
            ({"x": X[:0, 0], "y": Y[:0]}, "x has shape [0], which holds no value; give samples"),
            ({"x": X, "y": np.eye(20)}, "y has shape [20, 20], wanted [N], a class for each samp"),
            ({"x": changed([3, 7], 2, np.nan), "y": Y}, "x has NaN in 2 of 20 samples, the first"),
            (BOTH | {"test_x": changed(3, 2, np.nan)}, "test_x has NaN in 1 of 20 samples"),
            ({"x": changed(3, 2, np.inf), "y": Y}, "x has an infinite value in 1 of 20 samples"),
            (BOTH | {"x": X.astype(np.float64) * 1e60}, "x has values too large for float32"),
            ({"x": X, "y": np.where(Y == 0, 2024, Y)}, "y has the label 2024 with 20 samples; num"),
            (BOTH | {"test_y": np.full(20, 3)}, "test_y has the label 3, wanted 0 to 2"),
            ({"x": X, "y": TEST_ONLY}, "the class 1 has so few samples that training got none;"),
            ({"x": X[:1], "y": [0]}, "x has 1 sample(s); give at least 2"),
            ({"x": X * 0, "y": Y}, "x has nothing but zeros"),
            (BOTH | {"x": BYTES}, "x is uint8 and test_x float32"),
            ({"x": X > 0, "y": Y}, "x is bool, wanted real numbers"),
            *(
                (BOTH | {part: np.resize(labels, 20)}, f"{part} has labels that are not whole num")
                for part in ("y", "test_y")
                for labels in ([0.5, 1.0], [-1, 1], [-1.0, 0.0], [np.nan, 0.0], [np.inf, 0.0])
            ),
            *(
                (BOTH | {part: label}, text.format(part))
                for part in ("y", "test_y")
                for label, text in (
                    (np.full(20, 2**63, dtype=np.uint64), "{} has labels from 2^63 on; number"),
                    (np.full(20, 1e300), "{} has the label "),
                    (np.full(20, 2.0**53), "{} has the label 9007199254740992 with 20 samples"),
                    (np.full(20, 2**62), "{} has the label 4611686018427387904 with 20 samples"),
                )
            ),
        ],
    )
    def test_arrays(self, write, arrays, text):
        assert refused(write(**arrays)).startswith(text)

    def test_complex_numbers(self, tmp_path):
        path = tmp_path / "mine.safetensors"
        tensors = {"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}
        for part in tensors:
            save_file(tensors | {part: tensors[part] * 1j}, path)
            assert refused(path).startswith(f"{part} is complex64, wanted ")

    def test_a_measured_value_is_no_class(self, write):
        x = RNG.normal(size=(5000, 3))
        text = refused(write(x=x, y=np.arange(5000)))
        assert text.startswith("y has 5,000 classes in 5,000 samples, as a measured value has; giv")
        text = refused(write(x=x, y=np.arange(5000) % 60 * 60))
        assert text.startswith("y has 60 different labels from 0 to 3,540; number the classes with")
        assert load_set(write(x=x, y=np.arange(5000) % 1000)).classes == 1000

    def test_no_file(self, tmp_path):
        path = tmp_path / "mine.npz"
        assert refused(path).startswith("there is no such set, folder or file; wanted one of dig")
        assert refused(path, load_file).startswith("there is no such file, wanted arrays x")
        os.mkfifo(path)
        assert refused(path).startswith("this is a pipe or a device, wanted arrays x")

    @pytest.mark.parametrize("name", ["mine.csv", "mine.pkl", "mine.pt", "mine"])
    def test_unknown_extension(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"1")
        text = refused(tmp_path / name)
        assert text.startswith("the name of this file ends in ")
        assert "an .npz or .safetensors file with x and y" in text
        assert refused(tmp_path / name, load_file).startswith("the name ends in")

    @settings(deadline=None, max_examples=80)
    @given(st.data())
    def test_no_content_escapes_as_another_error(self, tmp_path_factory, data):
        kinds = st.sampled_from(["f4", "f8", "i8", "u1", "i1", "?", "c8", "U2", "f2", "u8"])
        shapes = st.lists(st.integers(0, 4), max_size=4)
        arrays = {}
        for name in ("x", "y", "test_x", "test_y"):
            if data.draw(st.booleans()) or name in "xy":
                values = RNG.integers(-2, 5, data.draw(shapes))
                arrays[name] = values.astype(data.draw(kinds))
        path = tmp_path_factory.getbasetemp() / "anything.npz"
        np.savez(path, **arrays)
        with contextlib.suppress(InputError):
            loaded = load_set(path)
            assert len(loaded.y) + len(loaded.test_y) >= 2


class TestSamples:
    def test_digits(self):
        data, samples = load_set("digits"), load_samples("digits")
        assert samples.x.equal(data.test_x / 16)
        assert samples.y.equal(data.test_y)
        assert samples.classes == tuple("0123456789")
        assert (samples.image, samples.shape) == ((8, 8), (64,))
        assert samples.source == "scikit-learn's digits, test samples, pixels from 0 to 1"
        assert load_samples("digits", limit=9).x.equal(samples.drawn(9, 0).x)

    @pytest.mark.parametrize("spelling", ["normalised", "normalized"])
    def test_pixels(self, spelling):
        samples = load_samples("digits", pixels=spelling)
        assert float(samples.x.mean()) == pytest.approx(0, abs=1e-6)
        assert float(samples.x.std(correction=0)) == pytest.approx(1, abs=1e-6)
        assert "mean 0 and spread 1" in samples.source

    def test_file(self, write):
        path = write(x=X, y=Y)
        samples = load_samples(str(path))
        assert np.array_equal(samples.x, X)
        assert samples.y.tolist() == Y.tolist()
        assert (samples.classes, samples.image) == (("0", "1", "2"), None)
        assert samples.source == str(path)
        unlabelled = load_samples(write(x=X))
        assert (unlabelled.y, unlabelled.classes) == (None, ())
        assert len(load_samples(write(x=X[:3], y=np.array([0, 999, 4]))).classes) == 1000

    def test_splits(self, write):
        path = write(x=X[:12], y=Y[:12], test_x=X[12:], test_y=Y[12:])
        for split, rows in (("train", X[:12]), ("test", X[12:]), ("all", X)):
            samples = load_samples(path, split)
            assert np.array_equal(samples.x, rows)
            assert len(samples.y) == len(rows)

    def test_kinds_of_numbers(self, write):
        tokens = load_samples(write(x=np.arange(40, dtype=np.int32).reshape(10, 4)))
        assert (tokens.x.dtype, tokens.image) == (torch.int64, None)
        assert load_samples(write(x=X.astype(np.float64))).x.dtype == torch.float64
        pixels = np.full((5, 1, 8, 8), 255, dtype=np.uint8)
        image = load_samples(write(x=pixels))
        assert (image.x.dtype, float(image.x.max()), image.image) == (torch.float32, 1.0, (8, 8))
        assert float(load_samples(write(x=pixels), pixels="raw").x.max()) == 255
        text = refused(write(x=pixels), load_samples, pixels="normalised")
        assert text == "all pixels are equal, so they cannot be normalised; give raw ones"

    @pytest.mark.parametrize(
        ("image", "shapes"),
        {
            (8, 8): [(8, 8), (1, 8, 8)],
            (3, 8, 9): [(3, 8, 9)],
            None: [(16, 8, 8), (8,), (2, 3), (2, 3, 8, 8)],
        }.items(),
    )
    def test_images(self, write, image, shapes):
        for shape in shapes:
            assert load_samples(write(x=np.ones((4, *shape), np.float32))).image == image

    @pytest.mark.parametrize(
        ("arrays", "text"),
        [
            ({"y": Y}, "has no x; wanted an array x"),
            ({}, "has no x; wanted an array x"),
            ({"a": X, "b": X}, "it has a, b, and an audit feeds a network one"),
            ({"x": X, "y": Y[:5]}, "x has 20 samples but y has 5 labels"),
            ({"x": X, "y": Y * 10**7}, "number the classes"),
            ({"x": X, "test_x": X[:, :2]}, "x and test_x differ in dtype or in the shape"),
            ({"x": X, "y": Y, "test_x": X}, "has labels for only one of x and test_x; give both"),
        ],
    )
    def test_faults(self, write, arrays, text):
        assert text in refused(write(**arrays), load_samples, split="all")

    @pytest.mark.parametrize(
        ("spec", "options", "text"),
        [
            ("digits", {"split": "valid"}, "split is 'valid', wanted one of test, train, all"),
            ("digits", {"pixels": "half"}, "pixels is 'half', wanted one of scaled"),
            ("digits", {"limit": 0}, "limit is 0, wanted a positive number"),
            ("digits", {"image_size": (4,)}, "image size is [4], wanted H,W"),
            ("kmnist", {}, "kmnist: there is no such set, file or folder; wanted one of digits"),
            ("a\0b", {}, "a\0b: there is no such set"),
            (__file__, {}, "the name ends in '.py'"),
        ],
    )
    def test_bad_options(self, spec, options, text):
        assert text in refusal(load_samples, spec, **options)


@pytest.fixture
def images(tmp_path):
    """Writes images into folders of classes."""

    def writer(sizes=((6, 5),) * 4, mode="L", kind="png"):
        folder = tmp_path / "images"
        for number, (height, width) in enumerate(sizes):
            place = folder / ("cats", "dogs")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            colours = {"L": 1, "RGB": 3, "RGBA": 4, "LA": 2, "P": 3}[mode]
            pixels = RNG.integers(0, 256, (height, width, colours), dtype=np.uint8)
            image = Image.fromarray(pixels[..., 0] if colours == 1 else pixels)
            image = image.convert(mode) if mode == "P" else image
            image.save(place / f"{number}.{kind}")
        return folder

    return writer


class TestImages:
    @pytest.mark.parametrize(
        ("mode", "kind", "colours"),
        [
            *(("L", "png", 1), ("LA", "png", 1), ("L", "jpg", 1), ("RGB", "png", 3)),
            *(
                ("RGBA", "png", 3),
                ("P", "gif", 3),
                *(("RGB", k, 3) for k in ("bmp", "webp", "jpg")),
            ),
        ],
    )
    def test_kinds(self, images, mode, kind, colours):
        folder = images(mode=mode, kind=kind)
        (folder / ".cache").mkdir()  # hidden folders are no classes
        samples = load_samples(folder)
        assert tuple(samples.x.shape) == (4, colours, 6, 5)
        assert samples.classes == ("cats", "dogs")
        assert samples.y.tolist() == [0, 0, 1, 1]
        assert samples.image == ((6, 5) if colours == 1 else (3, 6, 5))
        assert 0 <= float(samples.x.min()) <= float(samples.x.max()) <= 1
        assert samples.source == f"4 images in {folder}, pixels from 0 to 1"

    def test_the_pixels_are_right(self, images, tmp_path):
        folder = images(mode="RGB")
        first = np.asarray(Image.open(folder / "cats" / "0.png"))
        samples = load_samples(folder, pixels="raw")
        assert np.array_equal(samples.x[0], first.transpose(2, 0, 1))
        (tmp_path / "deep" / "a").mkdir(parents=True)
        values = np.array([[0, 257], [65535, 25700]], dtype=np.uint16)
        Image.fromarray(values).save(tmp_path / "deep" / "a" / "x.png")
        sixteen_bits = load_samples(tmp_path / "deep", pixels="raw")
        assert sixteen_bits.x.flatten().tolist() == [0, 1, 255, 100]

    def test_a_transparent_palette(self, tmp_path):
        (tmp_path / "a").mkdir()
        colours = Image.new("P", (2, 1))
        colours.putpalette([10, 20, 30, 40, 50, 60])
        colours.putdata([0, 1])
        colours.save(tmp_path / "a" / "x.png", transparency=bytes([0, 128]))
        x = load_samples(tmp_path, pixels="raw").x
        assert x.tolist() == [[[[10, 40]], [[20, 50]], [[30, 60]]]]

    def test_sizes(self, images):
        folder = images(sizes=((6, 5), (6, 5), (7, 5), (6, 5)))
        text = refusal(load_samples, folder, start=f"{folder / 'cats' / '2.png'}: ")
        assert text.startswith("is 7 x 5 pixels but 0.png is 6 x 5; give --image-size")
        assert tuple(load_samples(folder, image_size=(4, 3)).x.shape) == (4, 1, 4, 3)

    def test_limit_reads_no_more(self, images):
        folder = images()
        samples = load_samples(folder, limit=2)
        assert samples.source.startswith(f"2 of 4 images in {folder}, drawn at random")
        everything = load_samples(folder).x.tolist()
        rest = [i for i, x in enumerate(everything) if x not in samples.x.tolist()]
        assert len(rest) == 2
        paths = sorted(folder.rglob("*.png"))
        for number in rest:
            paths[number].write_text("no image")
        assert load_samples(folder, limit=2).x.equal(samples.x)

    def test_memory_is_known_before(self, images, monkeypatch):
        folder = images()
        monkeypatch.setattr(memory, "UNASKED", 0)
        monkeypatch.setattr(memory, "available_memory", lambda: 2_000)
        text = "4 images of 6 x 5: would take 3.2e-06 GB of memory and 2e-06 GB are free; give --l"
        assert text in refusal(load_samples, folder)
        monkeypatch.setattr(memory, "available_memory", lambda: 200)
        assert "png: 1 images of 6 x 5: would take" in refusal(load_samples, folder)

    def test_memory_of_a_size_is_known_before_the_first_image(self, images, monkeypatch):
        folder = images()
        monkeypatch.setattr(memory, "available_memory", lambda: 10**9)
        monkeypatch.setattr(Image.Image, "resize", lambda *_: pytest.fail("resized"))
        text = refusal(load_samples, folder, image_size=(100_000, 100_000))
        assert text.startswith("4 images of 100000 x 100000: would take")

    def test_a_damaged_image(self, images, monkeypatch):
        folder = images()
        bad = folder / "dogs" / "3.png"
        for content in (bad.read_bytes()[:40], b"no image"):
            bad.write_bytes(content)
            text = refusal(load_samples, folder, start=f"{bad}: ")
            assert text.startswith("not readable as an image, ")

        def fail(*_):
            raise MemoryError

        monkeypatch.setattr(Image, "open", fail)
        assert "0.png: takes more memory than there is" in refusal(load_samples, folder)

    def test_folders_without_classes(self, tmp_path, images):
        text = refused(tmp_path, load_samples)
        assert text.startswith("holds no folder with images; wanted a folder of images (png")
        Image.new("L", (3, 3)).save(tmp_path / "x.png")
        assert "its images lie in no folder of a class" in refused(tmp_path, load_samples)
        folder = images()
        (folder / "empty").mkdir()
        assert refused(folder, load_samples).startswith("empty holds no image")

    def test_folders_of_published_formats(self, tmp_path):
        samples = load_samples(put(tmp_path, contents()), "all", 3, pixels="raw")
        assert (tuple(samples.x.shape), samples.image) == ((3, 6), (2, 3))
        file = tmp_path / FILES[0]
        file.write_bytes(file.read_bytes()[:-1])
        assert refusal(load_samples, tmp_path, start=f"{file}: ").startswith("is cut short")
