"""The catalogue of named sets, and where on this machine their files are found."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data_helpers import contents, publish, put, refusal

from mahalens.data import load_set, named
from mahalens.data.backbones import BACKBONES
from mahalens.data.named import (
    CIFAR_FILES,
    FILES,
    IMAGES,
    PUBLISHED,
    SEQUENCE_SETS,
    SETS,
    WEIGHTS,
    Source,
    find_set,
)
from mahalens.errors import InputError

NAMED = ("mnist", "fashion-mnist")
TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}


@pytest.fixture(params=NAMED)
def name(request, machine, monkeypatch):
    """A set whose small published files are not on this machine."""
    publish(monkeypatch, request.param, files=contents())
    return request.param


class TestPlaces:
    def test_each_in_turn(self, machine, monkeypatch, name):
        raw = put(machine / "data" / TORCHVISION[name], contents(), "{}.gz")
        assert load_set(name).source == f"the published files in {raw}"
        home = put(machine / "data" / name, contents())
        data = load_set(name)
        assert (data.name, data.inputs) == (name, 6)
        assert data.source == f"the published files in {home}"
        (home / FILES[3]).unlink()  # an incomplete place is passed over
        assert load_set(name).source == f"the published files in {raw}"

    @pytest.mark.parametrize("root", [None, ""])
    def test_a_chosen_root_replaces_the_cache(self, machine, monkeypatch, name, root):
        cache = put(machine / "cache" / "mahalens" / "data" / name, contents())
        text = refusal(load_set, name)
        assert str(machine / "cache") not in text
        assert str(machine / "data" / name) in text
        assert str(machine / "data" / TORCHVISION[name]) in text
        if root is None:
            monkeypatch.delenv("MAHALENS_DATA")
        else:
            monkeypatch.setenv("MAHALENS_DATA", root)
        assert load_set(name).source == f"the published files in {cache}"

    def test_home_is_expanded(self, machine, monkeypatch, name):
        put(machine / "root" / name, contents())
        monkeypatch.setenv("HOME", str(machine))
        monkeypatch.setenv("USERPROFILE", str(machine))
        monkeypatch.setenv("MAHALENS_DATA", "~/root")
        assert named.home_of(name) == machine / "root" / name
        data = load_set(name)
        assert data.inputs == 6
        assert data.source == f"the published files in {Path('~/root') / name}"

    @pytest.mark.parametrize("file", FILES)
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_checksums(self, machine, name, file, end):
        files = contents()
        files[file] = files[file][:-1] + b"\1"  # a valid file with one other value
        folder = put(named.home_of(name), files, "{}" + end)
        start = f"{folder / (file + end)}: not the published file, "
        assert refusal(load_set, name, start=start)
        assert load_set(folder).inputs == 6  # as a folder it is taken as it is

    def test_message_when_nothing_is_found(self, machine, name):
        home = machine / "data" / name
        (machine / "data").mkdir()
        home.write_text("")
        text = refusal(load_set, name, start=f"{name} is not on this machine; looked at {home}: ")
        assert text.startswith("not a folder; ")
        assert f"To get it, run `mahalens data fetch {name}`, or put its files in {home}" in text
        package = name == "fashion-mnist"
        assert ("; Debian's package dataset-fashion-mnist. To get" in text) == package


class TestDebian:
    @pytest.fixture(autouse=True)
    def folder(self, machine, monkeypatch):
        publish(monkeypatch, "fashion-mnist", files=contents())
        return put(machine / "share" / "datasets", contents(), "{}.gz")

    def test_files_as_listed(self, machine, folder, program):
        listing = [machine / "doc" / "README.md.gz", folder, *sorted(folder.iterdir())]
        lines = "; ".join(f"echo {path}" for path in ("/.", "/usr", *listing))
        program(f"echo $@ >> {machine}/words; {lines}", "dpkg")
        assert load_set("fashion-mnist").source == f"the published files in {folder}"
        assert (machine / "words").read_text() == "-L dataset-fashion-mnist\n"
        # it is the last place, asked only then, and has no MNIST
        home = put(named.home_of("fashion-mnist"), contents())
        assert load_set("fashion-mnist").source.endswith(f" {home}")
        assert "mnist is not on this machine" in refusal(load_set, "mnist")
        assert (machine / "words").read_text() == "-L dataset-fashion-mnist\n"

    def test_listed_and_gone(self, machine, program):
        paths = [machine / "doc" / "README.md.gz", *(machine / "gone" / usual for usual in FILES)]
        program("; ".join(f"echo {path}" for path in paths), "dpkg")
        text = refusal(load_set, "fashion-mnist")
        assert text.count(f"{machine / 'gone'}: there is no such folder") == 1
        assert str(machine / "doc") not in text

    @pytest.mark.parametrize("script", ["exit 1", "/bin/sleep 5"])
    def test_failures_are_ignored(self, monkeypatch, program, script):
        monkeypatch.setattr(named, "DPKG_SECONDS", 0.2)
        program(script, "dpkg")
        assert "fashion-mnist is not on this machine" in refusal(load_set, "fashion-mnist")


def test_an_installed_package_is_used_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "site" / "made_up_series"
    files = dict.fromkeys(SEQUENCE_SETS["gunpoint"].files, b"x")
    folder = put(package / "files" / "GunPoint", files)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    publish(monkeypatch, "sequences", Source("installed", "made_up_series", below="files"))
    assert set(find_set("gunpoint").values()) == {folder / file for file in files}
    for missing in ("no_such_package", "site.no", ""):  # absent, no package, no name
        publish(monkeypatch, "sequences", Source("installed", missing, below="files"))
        assert "gunpoint is not on this machine" in refusal(find_set, "gunpoint")


class TestCatalogue:
    def test_every_set_is_described_and_can_be_had(self):
        assert {*SETS, *IMAGES, *WEIGHTS, "sequences"} == {"digits", *PUBLISHED}
        assert {*BACKBONES} == {*WEIGHTS}
        sequences = [file for problem in SEQUENCE_SETS.values() for file in problem.files]
        wanted = {"cifar10": CIFAR_FILES, "sequences": tuple(sequences)}
        for name, published in PUBLISHED.items():
            assert published.files == wanted.get(name, FILES) or published.packed
            checksums = list(published.sha256.values())
            assert len(set(checksums)) == len(checksums)
            assert all(len(checksum) == 64 for checksum in checksums)
            labels = [source.label for source in published.sources]
            assert len(set(labels)) == len(labels) >= 1

    def test_needs_no_torch(self):
        code = (
            "import sys, mahalens.data.named, mahalens.data.fetch, mahalens.cli\n"
            "assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_the_real_set_if_it_is_here(name):
    try:
        find_set(name)
    except InputError as error:
        pytest.skip(str(error))
    data = load_set(name)
    assert (tuple(data.x.shape), tuple(data.test_x.shape)) == ((60_000, 784), (10_000, 784))
    assert (data.classes, data.image_shape, data.largest) == (10, (28, 28), 255)
    assert torch.bincount(data.test_y).sum() == 10_000
    first = {"mnist": (5, 7), "fashion-mnist": (9, 9)}[name]
    assert (int(data.y[0]), int(data.test_y[0])) == first
    assert (data.x.min(), data.x.max()) == (0, 255)
