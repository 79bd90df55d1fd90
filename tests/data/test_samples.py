"""Samples for a network: sets, files and folders of images, and one line for what is none."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mahalens.data.image_folder
from mahalens.data import load_set
from mahalens.data.samples import Samples, load_samples
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


@pytest.fixture
def images(tmp_path):
    """Writes images into folders of classes, some grey levels for each."""

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


def refused(spec, **options):
    with pytest.raises(InputError) as error:
        load_samples(spec, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


class TestSets:
    def test_digits(self):
        data = load_set("digits")
        samples = load_samples("digits")
        assert samples.x.equal(data.test_x / 16)
        assert samples.y.equal(data.test_y)
        assert samples.classes == tuple("0123456789")
        assert (samples.image, samples.shape) == ((8, 8), (64,))
        assert samples.source == "scikit-learn's digits, test samples, pixels from 0 to 1"

    @pytest.mark.parametrize(("split", "count"), [("test", 360), ("train", 1437), ("all", 1797)])
    def test_splits(self, split, count):
        assert len(load_samples("digits", split).x) == len(load_samples("digits", split).y) == count

    def test_pixels(self):
        raw = load_samples("digits", pixels="raw")
        assert float(raw.x.max()) == 16
        normal = load_samples("digits", pixels="normalised")
        assert float(normal.x.mean()) == pytest.approx(0, abs=1e-6)
        assert float(normal.x.std(correction=0)) == pytest.approx(1, abs=1e-6)
        assert "raw pixels" in raw.source
        assert "mean 0 and spread 1" in normal.source

    @pytest.mark.parametrize(
        ("limit", "seed"), [(1, 0), (2, 3), (100, 0), (100, 1), (360, 0), (500, 0)]
    )
    def test_limit(self, limit, seed):
        some = load_samples("digits", limit=limit, seed=seed)
        again = load_samples("digits", limit=limit, seed=seed)
        assert len(some.x) == len(some.y) == min(limit, 360)
        assert some.x.equal(again.x)
        everything = load_samples("digits")
        rows = {tuple(row): i for i, row in enumerate(everything.x.tolist())}
        places = [rows[tuple(row)] for row in some.x.tolist()]
        assert places == sorted(set(places))
        assert some.y.equal(everything.y[places])
        assert ("drawn at random" in some.source) == (limit < 360)

    def test_shapes(self):
        samples = load_samples("digits", limit=4)
        image = samples.reshaped((1, 8, 8))
        assert image.shape == (1, 8, 8)
        assert image.x.flatten(1).equal(samples.x)
        assert image.first(2).x.equal(image.x[:2])
        assert len(image.first(2).y) == 2
        with pytest.raises(InputError, match=r"\[64\] cannot take the shape \[1, 28, 28\]: 64 val"):
            samples.reshaped((1, 28, 28))
        with pytest.raises(InputError, match="cannot take the shape"):
            samples.reshaped((-8, -8))

    def test_what_it_says(self):
        assert repr(load_samples("digits", limit=3)) == (
            "Samples(3 of shape [64], 10 classes, image (8, 8))"
        )
        assert repr(Samples(torch.zeros(2, 3), None, (), None, "")) == (
            "Samples(2 of shape [3], no labels)"
        )


class TestFiles:
    def test_with_labels(self, write):
        path = write(x=X, y=Y)
        samples = load_samples(str(path))
        assert np.array_equal(samples.x.numpy(), X)
        assert samples.y.tolist() == Y.tolist()
        assert (samples.classes, samples.image) == (("0", "1", "2"), None)
        assert samples.source == str(path)

    def test_without_labels(self, write):
        samples = load_samples(write(x=X))
        assert samples.y is None
        assert samples.classes == ()

    def test_splits(self, write):
        path = write(x=X[:12], y=Y[:12], test_x=X[12:], test_y=Y[12:])
        for split, rows in (("train", X[:12]), ("test", X[12:]), ("all", X)):
            samples = load_samples(path, split)
            assert np.array_equal(samples.x.numpy(), rows)
            assert len(samples.y) == len(rows)

    def test_kinds_of_numbers(self, write):
        tokens = load_samples(write(x=np.arange(40, dtype=np.int32).reshape(10, 4)))
        assert (tokens.x.dtype, tokens.image) == (torch.int64, None)
        double = load_samples(write(x=X.astype(np.float64)))
        assert double.x.dtype == torch.float64
        pixels = np.full((5, 1, 8, 8), 255, dtype=np.uint8)
        image = load_samples(write(x=pixels))
        assert (image.x.dtype, float(image.x.max())) == (torch.float32, 1.0)
        assert image.image == (8, 8)
        assert float(load_samples(write(x=pixels), pixels="raw").x.max()) == 255
        assert "cannot be normalised" in refused(write(x=pixels), pixels="normalised")

    @pytest.mark.parametrize(
        ("shape", "image"),
        [
            ((8, 8), (8, 8)),
            ((1, 8, 8), (8, 8)),
            ((3, 8, 9), (3, 8, 9)),
            ((16, 8, 8), None),
            ((8,), None),
            ((2, 3), None),
            ((2, 3, 8, 8), None),
        ],
    )
    def test_images(self, write, shape, image):
        assert load_samples(write(x=np.ones((4, *shape), np.float32))).image == image

    def test_many_classes_and_few_samples(self, write):
        samples = load_samples(write(x=X[:3], y=np.array([0, 999, 4])))
        assert len(samples.classes) == 1000

    @pytest.mark.parametrize(
        ("arrays", "text"),
        [
            ({"y": Y}, "has no x; wanted an array x"),
            ({"a": X, "b": X}, "has no x; wanted"),
            ({"a": X, "b": X}, "it has a, b, and an audit feeds a network one"),
            ({"x": X, "y": Y[:5]}, "x has 20 samples and y 5 labels"),
            ({"x": np.where(X > 2, np.nan, X)}, "x has NaN in"),
            ({"x": np.where(X > 1, np.inf, X)}, "x has an infinite value in"),
            ({"x": X[:0]}, "x has shape [0, 6]"),
            ({"x": X[:, 0]}, "a single value per sample is [N, 1]"),
            ({"x": X, "y": Y - 1}, "not whole numbers from 0 on"),
            ({"x": X, "y": Y + 0.5}, "not whole numbers from 0 on"),
            ({"x": X, "y": Y[:, None]}, "y has shape [20, 1], wanted [N]"),
            ({"x": X, "y": Y * 10**7}, "number the classes"),
            ({"x": X > 0}, "x is bool"),
        ],
    )
    def test_faults(self, write, arrays, text):
        path = write(**arrays)
        said = refused(path)
        assert said.startswith(f"{path}: ")
        assert text in said

    def test_faults_of_splits(self, write):
        assert "differ in dtype" in refused(write(x=X, test_x=X[:, :2]), split="all")
        assert "labels for one of" in refused(write(x=X, y=Y, test_x=X), split="all")

    def test_no_such_file(self, tmp_path):
        assert "there is no such set, file or folder; wanted one of digits" in refused("kmnist")
        assert "there is no such set" in refused("a\0b")
        (tmp_path / "x.csv").write_text("1,2")
        assert "the name ends in '.csv'" in refused(tmp_path / "x.csv")
        (tmp_path / "x.npz").write_bytes(b"PK")
        assert "not readable as .npz" in refused(tmp_path / "x.npz")

    def test_a_pickled_array(self, tmp_path):
        np.savez(tmp_path / "x.npz", x=np.array([{}], dtype=object))
        assert "holds Python objects, which are not read" in refused(tmp_path / "x.npz")


class TestFolders:
    @pytest.mark.parametrize(
        ("mode", "kind", "colours"),
        [
            ("L", "png", 1),
            ("LA", "png", 1),
            ("RGB", "png", 3),
            ("RGBA", "png", 3),
            ("P", "gif", 3),
            ("RGB", "bmp", 3),
            ("RGB", "webp", 3),
            ("RGB", "jpg", 3),
            ("L", "jpg", 1),
        ],
    )
    def test_kinds(self, images, mode, kind, colours):
        folder = images(mode=mode, kind=kind)
        samples = load_samples(folder)
        assert tuple(samples.x.shape) == (4, colours, 6, 5)
        assert samples.classes == ("cats", "dogs")
        assert samples.y.tolist() == [0, 0, 1, 1]
        assert samples.image == ((6, 5) if colours == 1 else (3, 6, 5))
        assert 0 <= float(samples.x.min()) <= float(samples.x.max()) <= 1
        assert samples.source == f"4 images in {folder}, pixels from 0 to 1"

    def test_the_pixels_are_right(self, images):
        folder = images(mode="RGB")
        first = np.asarray(Image.open(folder / "cats" / "0.png"))
        samples = load_samples(folder, pixels="raw")
        assert np.array_equal(samples.x[0].numpy(), first.transpose(2, 0, 1))

    def test_sixteen_bits(self, tmp_path):
        (tmp_path / "a").mkdir()
        values = np.array([[0, 257], [65535, 25700]], dtype=np.uint16)
        Image.fromarray(values).save(tmp_path / "a" / "x.png")
        samples = load_samples(tmp_path, pixels="raw")
        assert samples.x.flatten().tolist() == [0, 1, 255, 100]

    def test_sizes(self, images):
        folder = images(sizes=((6, 5), (6, 5), (7, 5), (6, 5)))
        text = refused(folder)
        assert text.startswith(f"{folder / 'cats' / '2.png'}: is 7 x 5 pixels and 0.png 6 x 5")
        samples = load_samples(folder, image_size=(4, 3))
        assert tuple(samples.x.shape) == (4, 1, 4, 3)
        assert "image size is [4]" in refused(folder, image_size=(4,))

    def test_limit_reads_no_more(self, images, monkeypatch):
        folder = images()
        read = []
        before = mahalens.data.image_folder._read
        monkeypatch.setattr(
            mahalens.data.image_folder, "_read", lambda *a: read.append(a) or before(*a)
        )
        samples = load_samples(folder, limit=2)
        assert len(samples.x) == len(read) == 2
        assert samples.source.startswith(f"2 of 4 images in {folder}, drawn at random")

    def test_memory_is_known_before(self, images, monkeypatch):
        folder = images()
        monkeypatch.setattr(memory, "UNASKED", 0)
        monkeypatch.setattr(memory, "available_memory", lambda: 2_000)
        said = "4 images of 6 x 5: would take 3.2e-06 GB of memory and 2e-06 GB are free; give --l"
        assert said in refused(folder)

    def test_a_damaged_image(self, images):
        folder = images()
        bad = folder / "dogs" / "3.png"
        bad.write_bytes(bad.read_bytes()[:40])
        assert refused(folder).startswith(f"{bad}: not readable as an image, ")
        bad.write_text("no image")
        assert refused(folder).startswith(f"{bad}: not readable as an image, ")

    def test_folders_that_are_none(self, tmp_path, images):
        assert "holds no folder with images; wanted a folder of images (png" in refused(tmp_path)
        Image.new("L", (3, 3)).save(tmp_path / "x.png")
        assert "its images lie in no folder of a class" in refused(tmp_path)
        folder = images()
        (folder / "empty").mkdir()
        assert "empty holds no image" in refused(folder)

    def test_hidden_folders_are_no_classes(self, images):
        folder = images()
        (folder / ".cache").mkdir()
        assert load_samples(folder).classes == ("cats", "dogs")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"split": "valid"}, "split is 'valid', wanted one of test, train, all"),
        ({"pixels": "half"}, "pixels is 'half', wanted one of scaled"),
        ({"limit": 0}, "limit is 0, wanted a positive number"),
    ],
)
def test_bad_options(options, text):
    assert text in refused("digits", **options)
