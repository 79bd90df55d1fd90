"""Labelled data sets: where they are found, what is refused, and how subsets are drawn."""

import builtins
import dataclasses
import gzip
import hashlib
import math
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import platformdirs
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mahalens.data import LabelledData, catalogue, load_set, places, problems
from mahalens.data.labelled import _shares
from mahalens.errors import InputError

USUAL = catalogue.FILES
NAMED = ("mnist", "fashion-mnist")
TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}


def idx(values, kind=0x08):
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
    return dict(zip(USUAL, map(idx, (tensors | changed).values()), strict=True))


def put(folder, files, spelling="{}"):
    """Write files, spelled as asked, gzipped if that ends in .gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for usual, content in files.items():
        name = spelling.format(usual)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def refused(name):
    with pytest.raises(InputError) as error:
        load_set(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def publish(monkeypatch, name, files):
    """Take these files for the published ones of a set."""
    sums = {usual: hashlib.sha256(content).hexdigest() for usual, content in files.items()}
    changed = dataclasses.replace(catalogue.PUBLISHED[name], sha256=sums)
    monkeypatch.setitem(catalogue.PUBLISHED, name, changed)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an empty cache, no variable set, and no package manager."""
    monkeypatch.delenv("MAHALENS_DATA", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "cache" / name)

    def absent(command, **options):
        raise FileNotFoundError(2, "No such file or directory", command[0])

    monkeypatch.setattr(subprocess, "run", absent)
    return tmp_path


def install_package(monkeypatch, *listed):
    """Let dpkg list these files for Debian's package; returns the commands that were run."""
    commands = []

    def dpkg(command, **options):
        commands.append(command)
        assert options["timeout"] <= 30
        listing = "\n".join(["/.", "/usr", *map(str, listed), ""]).encode()
        return subprocess.CompletedProcess(command, 0, stdout=listing, stderr=b"")

    monkeypatch.setattr(subprocess, "run", dpkg)
    return commands


def small(labels, test_labels=(0,), **changed):
    """Data whose single pixel is the number of the sample."""
    x = torch.arange(len(labels), dtype=torch.float32)[:, None]
    test_x = torch.zeros(len(test_labels), 1)
    values = {
        "name": "small",
        "x": x,
        "y": torch.tensor(labels),
        "test_x": test_x,
        "test_y": torch.tensor(test_labels),
        "image_shape": None,
        "largest": 255.0,
        "source": "typed",
    }
    return LabelledData(**(values | changed))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class TestFolder:
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

    @pytest.mark.parametrize("dotted", [False, True])
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_spellings(self, tmp_path, dotted, end):
        files = contents()
        if dotted:
            files = {usual.replace("-idx", ".idx"): content for usual, content in files.items()}
            assert "train-images.idx3-ubyte" in files
        assert load_set(str(put(tmp_path, files, "{}" + end))).inputs == 6

    def test_plain_before_gzipped(self, tmp_path):
        put(tmp_path, contents(mark=7))
        put(tmp_path, contents(mark=8), "{}.gz")
        assert load_set(tmp_path).x[0, 0] == 7

    def test_a_folder_with_the_name_of_a_file_is_passed_over(self, tmp_path):
        files = contents()
        (tmp_path / USUAL[0]).mkdir()
        put(tmp_path, {USUAL[0]: files.pop(USUAL[0])}, "{}.gz")
        assert load_set(put(tmp_path, files)).inputs == 6

    def test_a_path_is_never_a_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        put(tmp_path / "mnist", contents())
        put(tmp_path / "digits", contents())
        assert load_set(Path("mnist")).inputs == load_set("./mnist").inputs == 6
        assert load_set(Path("digits")).inputs == 6

    def test_this_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(put(tmp_path / "mine", contents()))
        assert load_set(".").name == "mine"

    def test_is_not_checked_against_published_sets(self, tmp_path):
        assert load_set(put(tmp_path / "mnist", contents())).name == "mnist"

    def test_samples_that_are_no_images(self, tmp_path):
        rows = torch.arange(12).reshape(6, 2)
        data = load_set(put(tmp_path, contents(train_images=rows, test_images=rows[:2])))
        assert (data.inputs, data.image_shape) == (2, None)

    def test_colour(self, tmp_path):
        images = torch.arange(6 * 12).reshape(6, 2, 2, 3)
        data = load_set(put(tmp_path, contents(train_images=images, test_images=images[4:])))
        assert (data.inputs, data.image_shape) == (12, (2, 2, 3))

    def test_neither_name_nor_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = refused("MNIST")
        known = "wanted one of digits, mnist, fashion-mnist, cifar10, iris, wine, "
        assert text.startswith(f"MNIST: there is no such set, folder or file; {known}")
        (tmp_path / "file").write_text("")
        assert refused("file").startswith(f"file: the name of this file ends in 'nothing'; {known}")
        assert "there is no such set, folder or file" in refused("file/below")
        assert "a\0b: " in refused("a\0b")
        assert "has no train-images-idx3-ubyte, no train-labels" in refused(tmp_path)

    @pytest.mark.parametrize("missing", USUAL)
    def test_missing_file(self, tmp_path, missing):
        put(tmp_path, contents())
        (tmp_path / missing).unlink()
        assert refused(tmp_path).startswith(f"{tmp_path}: has no {missing} (plain or .gz); wanted")

    def test_not_allowed_to_read(self, tmp_path, monkeypatch):
        def forbidden(folder):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(places.os, "scandir", forbidden)
        assert refused(tmp_path).startswith(f"{tmp_path}: cannot be read, Permission denied")

    def test_damaged_file(self, tmp_path):
        put(tmp_path, contents() | {USUAL[2]: b"hello"})
        assert refused(tmp_path).startswith(f"{tmp_path / USUAL[2]}: not an IDX file")

    @pytest.mark.parametrize(
        ("part", "values", "file", "words"),
        [
            ("train_labels", [0, 1], 0, "holds 6 images and train-labels-idx1-ubyte 2 labels"),
            ("test_labels", [0, 1, 2], 2, "holds 2 images and t10k-labels-idx1-ubyte 3 labels"),
            ("train_images", [1] * 6, 0, "has shape [6], wanted images"),
            ("train_labels", [[0], [1]], 1, "has shape [2, 1], wanted labels"),
            ("test_labels", [[0, 1]], 3, "has shape [1, 2], wanted labels"),
            ("test_images", torch.ones(2, 3, 2), 2, "of shape [3, 2] and train-images-idx3-ubyte"),
            ("test_images", torch.ones(2, 6), 2, "of shape [6] and train-images-idx3-ubyte of"),
        ],
    )
    def test_files_that_disagree(self, tmp_path, part, values, file, words):
        text = refused(put(tmp_path, contents(**{part: values})))
        assert text.startswith(f"{tmp_path / USUAL[file]}: ")
        assert words in text

    def test_labels_only_in_the_test_set(self, tmp_path):
        text = refused(put(tmp_path, contents(test_labels=[0, 3])))
        assert text.startswith(f"{tmp_path}: test_y has the label 3, wanted 0 to 2, ")


@pytest.mark.parametrize("name", NAMED)
class TestPlaces:
    def test_each_in_turn(self, machine, monkeypatch, name):
        files = contents()
        publish(monkeypatch, name, files)
        cache = put(machine / "cache" / "mahalens" / "data" / name, files)
        assert load_set(name).source == f"the published files in {cache}"
        monkeypatch.setenv("MAHALENS_DATA", str(machine / "root"))
        raw = put(machine / "root" / TORCHVISION[name], files, "{}.gz")
        assert load_set(name).source == f"the published files in {raw}"
        own = put(machine / "root" / name, files)
        data = load_set(name)
        assert data.source == f"the published files in {own}"
        assert (data.name, data.inputs) == (name, 6)

    def test_a_chosen_root_replaces_the_cache(self, machine, monkeypatch, name):
        files = contents()
        publish(monkeypatch, name, files)
        put(machine / "cache" / "mahalens" / "data" / name, files)
        monkeypatch.setenv("MAHALENS_DATA", str(machine / "root"))
        text = refused(name)
        assert str(machine / "cache") not in text
        assert str(machine / "root" / name) in text
        assert str(machine / "root" / TORCHVISION[name]) in text
        monkeypatch.setenv("MAHALENS_DATA", "")
        assert load_set(name).inputs == 6

    def test_home_is_expanded(self, machine, monkeypatch, name):
        publish(monkeypatch, name, contents())
        put(machine / "root" / name, contents())
        monkeypatch.setenv("HOME", str(machine))
        monkeypatch.setenv("USERPROFILE", str(machine))
        monkeypatch.setenv("MAHALENS_DATA", "~/root")
        assert places.home_of(name) == machine / "root" / name
        assert load_set(name).inputs == 6

    def test_an_incomplete_place_is_passed_over(self, machine, monkeypatch, name):
        publish(monkeypatch, name, contents())
        monkeypatch.setenv("MAHALENS_DATA", str(machine))
        (put(machine / name, contents()) / USUAL[3]).unlink()
        assert f"{machine / name}: has no {USUAL[3]} (plain or .gz)" in refused(name)
        put(machine / TORCHVISION[name], contents())
        assert load_set(name).inputs == 6

    @pytest.mark.parametrize("file", USUAL)
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_checksums(self, machine, monkeypatch, name, file, end):
        publish(monkeypatch, name, contents())
        files = contents()
        files[file] = files[file][:-1] + b"\1"  # a valid file with one other value
        folder = put(places.home_of(name), files, "{}" + end)
        text = refused(name)
        assert text.startswith(f"{folder / (file + end)}: not the published file, ")
        assert load_set(folder).inputs == 6  # as a folder it is taken as it is

    def test_small_files_are_not_the_published_ones(self, machine, name):
        put(places.home_of(name), contents())
        assert "not the published file" in refused(name)

    def test_message_when_nothing_is_found(self, machine, name):
        home = machine / "cache" / "mahalens" / "data" / name
        text = refused(name)
        assert text.startswith(f"{name} is not on this machine; looked at {home}: there is no ")
        assert f"To get it, run `mahalens data fetch {name}`, or put its files in {home}" in text
        package = name == "fashion-mnist"
        assert ("; Debian's package dataset-fashion-mnist. To get" in text) == package


class TestDebian:
    def folder(self, machine):
        return put(machine / "share" / "datasets", contents(), "{}.gz")

    def test_files_as_listed(self, machine, monkeypatch):
        publish(monkeypatch, "fashion-mnist", contents())
        folder = self.folder(machine)
        readme = machine / "doc" / "README.md.gz"
        commands = install_package(monkeypatch, folder, readme, *sorted(folder.iterdir()))
        data = load_set("fashion-mnist")
        assert data.source == f"the published files in {folder}"
        assert commands == [["dpkg", "-L", "dataset-fashion-mnist"]]

    def test_is_the_last_place_and_asked_only_then(self, machine, monkeypatch):
        publish(monkeypatch, "fashion-mnist", contents())
        commands = install_package(monkeypatch, *self.folder(machine).iterdir())
        home = put(places.home_of("fashion-mnist"), contents())
        assert load_set("fashion-mnist").source.endswith(f" {home}")
        assert commands == []

    def test_has_no_mnist(self, machine, monkeypatch):
        publish(monkeypatch, "mnist", contents())
        commands = install_package(monkeypatch, *self.folder(machine).iterdir())
        assert "mnist is not on this machine" in refused("mnist")
        assert commands == []

    def test_listed_and_gone(self, machine, monkeypatch):
        readme = machine / "doc" / "README.md.gz"
        install_package(monkeypatch, readme, *(machine / "gone" / usual for usual in USUAL))
        text = refused("fashion-mnist")
        assert text.count(f"{machine / 'gone'}: there is no such folder") == 1
        assert str(readme.parent) not in text

    @pytest.mark.parametrize(
        "failure",
        [
            subprocess.CalledProcessError(1, "dpkg"),
            subprocess.TimeoutExpired("dpkg", 1),
            PermissionError(13, "Permission denied"),
        ],
    )
    def test_failures_are_ignored(self, machine, monkeypatch, failure):
        def fail(command, **options):
            assert options["check"]
            raise failure

        monkeypatch.setattr(subprocess, "run", fail)
        assert "fashion-mnist is not on this machine" in refused("fashion-mnist")


class TestDigits:
    def test_split(self):
        data = load_set("digits")
        whole = pytest.importorskip("sklearn.datasets").load_digits()
        assert torch.cat([data.x, data.test_x]).equal(torch.tensor(whole.data).float())
        assert torch.cat([data.y, data.test_y]).equal(torch.tensor(whole.target))
        assert (len(data.y), len(data.test_y)) == (1437, 360)
        assert (data.image_shape, data.classes, data.largest) == ((8, 8), 10, 16)
        assert data.x.max() == 16
        assert data.source == "scikit-learn's digits"

    def test_without_scikit_learn(self, monkeypatch):
        real = builtins.__import__

        def without(name, *arguments, **options):
            if name.startswith("sklearn"):
                raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
            return real(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", without)
        assert "pip install scikit-learn" in refused("digits")

    def test_a_damaged_scikit_learn_is_not_called_missing(self, monkeypatch):
        real = builtins.__import__

        def damaged(name, *arguments, **options):
            if name.startswith("sklearn"):
                raise ModuleNotFoundError("No module named 'joblib'", name="joblib")
            return real(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", damaged)
        with pytest.raises(ModuleNotFoundError, match="joblib"):
            load_set("digits")


class TestSubset:
    @settings(deadline=None, max_examples=200)
    @given(st.lists(st.integers(0, 40), min_size=1, max_size=7), st.data())
    def test_shares(self, sizes, data):
        total, present = sum(sizes), sum(size > 0 for size in sizes)
        assume(present)
        n = data.draw(st.integers(present, total))
        counts = _shares(sizes, n)
        exact = [n * size / total for size in sizes]
        assert sum(counts) == n
        assert all(min(size, 1) <= count <= size for count, size in zip(counts, sizes, strict=True))
        # a class may exceed its share only by rounding, or because every class keeps one sample
        for count, share in zip(counts, exact, strict=True):
            assert count < share + 1
            if all(other >= 1 or other == 0 for other in exact):
                assert count > share - 1
        # no sample moved from one class to another brings the shares closer
        for giver in range(len(sizes)):
            for taker in range(len(sizes)):
                if giver != taker and counts[giver] > 1 and counts[taker] < sizes[taker]:
                    before = (counts[giver] - exact[giver]) ** 2 + (
                        counts[taker] - exact[taker]
                    ) ** 2
                    after = (counts[giver] - 1 - exact[giver]) ** 2 + (
                        counts[taker] + 1 - exact[taker]
                    ) ** 2
                    assert before <= after + 1e-9

    def test_small_classes_are_paid_for_by_the_least_wronged(self):
        # exact shares 2.7, 2.5 and three of 0.3, which are raised to 1
        assert _shares([10, 9, 1, 1, 1], 6) == [2, 1, 1, 1, 1]

    def test_exact_shares(self):
        data = small([0] * 60 + [1] * 30 + [2] * 10)
        assert torch.bincount(data.subset(50, seeded(0)).y).tolist() == [30, 15, 5]
        assert torch.bincount(data.subset(3, seeded(0)).y).tolist() == [1, 1, 1]

    @settings(deadline=None, max_examples=50)
    @given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
    def test_draws_samples_of_the_data(self, labels, choice):
        data = small(labels, [labels[0]])
        n = choice.draw(st.integers(len(set(labels)), len(labels)))
        drawn = data.subset(n, seeded(choice.draw(st.integers(0, 9))))
        numbers = drawn.x[:, 0].long().tolist()
        assert numbers == sorted(set(numbers))  # each at most once, in order
        assert drawn.y.tolist() == [labels[number] for number in numbers]
        assert len(drawn.y) == n
        assert set(drawn.y.tolist()) == set(labels)
        assert drawn.test_x is data.test_x
        assert drawn.test_y is data.test_y
        assert drawn.classes == data.classes

    def test_all_is_the_same(self):
        data = small([2, 0, 1, 1, 0])
        assert data.subset(5, seeded(0)).x.equal(data.x)

    def test_one_seed_one_subset(self):
        data = small([0, 1] * 50)
        first, again, other = (data.subset(20, seeded(seed)).x for seed in (1, 1, 2))
        assert first.equal(again)
        assert not first.equal(other)

    def test_every_sample_is_as_likely(self):
        data, generator = small([0] * 8 + [1] * 4), seeded(0)
        times = Counter()
        for _ in range(1500):
            times.update(data.subset(6, generator).x[:, 0].long().tolist())
        # binomial with a half: standard deviation 19
        assert all(abs(times[number] - 750) < 100 for number in range(12))

    def test_says_what_it_is(self):
        drawn = small([0, 1, 0, 1]).subset(2, seeded(0))
        assert drawn.source == "typed, 2 of 4 training samples drawn at random"
        assert (drawn.name, drawn.largest) == ("small", 255)

    @pytest.mark.parametrize("n", [1, 2, 7, 100])
    def test_too_few_or_too_many(self, n):
        with pytest.raises(InputError, match=f"n is {n}, wanted at least 3, .* and at most 6"):
            small([0, 1, 2, 0, 1, 2]).subset(n, seeded(0))

    @pytest.mark.parametrize("n", [0, -1, 2.0, True])
    def test_asks_for_a_number(self, n):
        with pytest.raises(InputError, match=f"n is {n!r}, wanted a whole number"):
            small([0, 0, 0]).subset(n, seeded(0))

    def test_labels_without_samples(self):
        drawn = small([1, 3, 3, 1, 1]).subset(2, seeded(0))
        assert (drawn.y.sort().values.tolist(), drawn.classes) == ([1, 3], 4)


class TestLabelledData:
    def test_scaled(self, tmp_path):
        data = load_set(put(tmp_path, contents(mark=255)))
        scaled = data.scaled()
        assert (scaled.x.max(), scaled.largest, scaled.x.dtype) == (1, 1, torch.float32)
        assert scaled.x.equal(data.x / 255)
        assert scaled.test_x.equal(data.test_x / 255)
        assert scaled.y is data.y
        assert scaled.scaled().x.equal(scaled.x)
        assert data.x.max() == 255  # the given data stay

    def test_cannot_be_changed(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            small([0]).name = "other"

    def test_is_shown_in_one_line(self):
        shown = "LabelledData('small', 3 + 1 samples, inputs=1, classes=2, largest=255)"
        assert repr(small([0, 1, 1])) == shown

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"x": [[1.0]]}, "x is a list, wanted a torch tensor"),
            ({"x": torch.ones(2, 1, dtype=torch.uint8)}, "x is uint8, wanted float32"),
            ({"x": torch.ones(2, 1, 1)}, r"x has shape \[2, 1, 1\], wanted \[N, D\]"),
            ({"x": torch.ones(3, 1)}, "x has 3 samples and y 2 labels"),
            ({"x": torch.tensor([[1.0], [math.nan]])}, "x has 1 value.* NaN"),
            ({"x": torch.ones(0, 1)}, r"x has shape \[0, 1\]"),
            ({"y": [0, 1]}, "y is a list, wanted a torch tensor"),
            ({"y": torch.tensor([0.0, 1.0])}, r"y is float32 of shape \[2\], wanted int64 \[N\]"),
            ({"y": torch.tensor([[0], [1]])}, r"y is int64 of shape \[2, 1\]"),
            ({"y": torch.tensor([0, -1])}, "y has the label -1, wanted labels from 0 on"),
            ({"test_x": torch.ones(1, 2)}, "test_x has 2 inputs and x 1"),
            ({"test_x": torch.ones(1, 1).double()}, "test_x is float64 and x float32"),
            ({"test_x": torch.ones(2, 1)}, "test_x has 2 samples and test_y 1 labels"),
            ({"test_y": torch.tensor([2])}, "test_y has the label 2, wanted 0 to 1"),
            ({"test_y": torch.tensor([-1])}, "test_y has the label -1"),
            ({"image_shape": (2, 2)}, r"image_shape is \(2, 2\), wanted a shape of 1 pixels"),
            ({"largest": 0.0}, "largest is 0.0, wanted a positive number"),
            ({"largest": math.nan}, "largest is nan, wanted a positive number"),
            ({"largest": math.inf}, "largest is inf, wanted a positive number"),
        ],
    )
    def test_refused(self, changed, words):
        with pytest.raises(InputError, match=f"^{words}"):
            small([0, 1], **changed)


class TestCatalogue:
    def test_every_set_is_described_and_can_be_had(self):
        assert {*catalogue.SETS, "sequences"} == {"digits", *catalogue.PUBLISHED}
        for description in catalogue.SETS.values():
            assert "\n" not in description
        for name, published in catalogue.PUBLISHED.items():
            wanted = {"cifar10": (), "sequences": problems.SHA256}.get(name, USUAL)
            assert set(published.sha256) == set(wanted)
            assert set(published.md5) == (
                set(catalogue.CIFAR_FILES) if name == "cifar10" else set()
            )
            assert len(published.sources) >= 2
            assert len({source.label for source in published.sources}) == len(published.sources)

    def test_names_are_where_they_were(self):
        import mahalens.data.sets

        assert mahalens.data.sets.LabelledData is LabelledData
        assert mahalens.data.sets.load_set is load_set

    def test_needs_no_torch(self):
        code = (
            "import sys, mahalens.data, mahalens.data.catalogue, mahalens.data.places\n"
            "import mahalens.data.fetch, mahalens.data.python_batches, mahalens.cli.data\n"
            "assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMED)
def test_the_real_set_if_it_is_here(name):
    try:
        places.find_set(name)
    except InputError as error:
        pytest.skip(str(error))
    data = load_set(name)
    assert (tuple(data.x.shape), tuple(data.test_x.shape)) == ((60_000, 784), (10_000, 784))
    assert (data.classes, data.image_shape, data.largest) == (10, (28, 28), 255)
    assert torch.bincount(data.test_y).sum() == 10_000
    first = {"mnist": (5, 7), "fashion-mnist": (9, 9)}[name]
    assert (int(data.y[0]), int(data.test_y[0])) == first
    assert (data.x.min(), data.x.max()) == (0, 255)
