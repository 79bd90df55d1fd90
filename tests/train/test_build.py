"""Compiling the engine: without a compiler, with a bad one, and where the library is cached."""

import fnmatch
import os
import shutil
import stat
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch
from train_problems import draw_stack, normal

from mahalens.errors import InputError
from mahalens.nn import Chain
from mahalens.train import MeanSquaredError
from mahalens.train.compiled import library, why_not
from mahalens.train.compiled.build import MACHINE_FLAGS, SOURCES, load_library

CHAIN = Chain.parse("Linear(5), Tanh, OffsetL2(3), PointSlope(2), Norm", inputs=4)
needs_library = pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine: {why_not()}")
ASK = "from mahalens.train.compiled import why_not; print(repr(why_not()))"
HERE = library()._name if library() is not None else ""
COPY = f'for last; do :; done\ncp "{HERE}" "$last"'
"""A compiler that is quick: it hands out the library that is there already."""


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache folder, and a process that has not asked for the library yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MAHALENS_COMPILE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    load_library.cache_clear()
    yield tmp_path / "cache" / "mahalens" / "compiled"
    load_library.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Puts a shell script in the compiler's place; it logs what it is asked to compile."""

    def make(body, version="echo fake 1.0; exit 0"):
        script = tmp_path / "compiler"
        script.write_text(
            f'#!/bin/sh\ncase "$*" in *--version*) {version};; esac\n'
            f'echo "$*" >> {tmp_path}/asked\n{body}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return lambda: (tmp_path / "asked").read_text().splitlines()

    return make


@pytest.fixture
def copying(compiler):
    if not os.path.exists(HERE):
        pytest.skip("the library was made for this process alone")
    return compiler(COPY)


def gradients(engine):
    x = normal(77, 4)
    return MeanSquaredError(CHAIN, x, x.norm(dim=1), engine=engine).loss_and_gradient(
        draw_stack(CHAIN, 3)
    )


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


class TestWithoutLibrary:
    @pytest.mark.parametrize(
        ("environment", "body", "reason"),
        [
            ({"PATH": "{tmp}"}, None, "no C++ compiler"),
            ({"MAHALENS_COMPILE": "0"}, "exit 0", "MAHALENS_COMPILE=0"),
            ({"CXX": "false"}, None, "false: *"),
            ({"CXX": "/no/such/compiler"}, None, "/no/such/compiler: *"),
            ({"CXX": "/dev/null"}, None, "/dev/null: *"),
            ({"CXX": "'c++"}, None, "CXX: *"),  # a quotation that does not end
            ({}, "exit 0", "*"),  # nothing is made
            ({}, "echo >&2; exit 1", "*compiler: *"),
            ({}, "echo 'x: too new\nmore' >&2; exit 1", "*compiler: x: too new"),
        ],
    )
    def test_torch_takes_over_and_one_line_says_why(
        self, cache, compiler, monkeypatch, tmp_path, environment, body, reason
    ):
        asked = compiler(body) if body else None
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(tmp=tmp_path))
        message = why_not()
        assert message
        assert fnmatch.fnmatchcase(message, reason)
        assert "\n" not in message
        assert MeanSquaredError(CHAIN, normal(5, 4), normal(5)).engine == "torch"
        assert bool(gradients("auto")[0].isfinite().all())
        with pytest.raises(InputError) as caught:
            gradients("compiled")
        wanted = f"there is no compiled engine here ({message}); give engine='torch'"
        assert str(caught.value) == wanted
        assert not any(path.stat().st_size for path in cache.glob("*"))
        if "too new" in message:
            assert len(asked()) == len(MACHINE_FLAGS)  # once per set of flags, then never again

    def test_a_compiler_that_cannot_say_its_version(self, cache, compiler):
        compiler("exit 0", version="echo no licence >&2; exit 1")
        assert why_not().endswith("compiler: no licence")

    def test_a_compiler_that_takes_too_long(self, cache, compiler):
        compiler("exec sleep 20")
        made, reason = load_library(seconds=0.3)
        assert made is None
        assert "timed out" in reason
        assert files(cache) == []


@needs_library
class TestCache:
    def test_one_file_that_is_made_once_and_again_if_broken(self, cache, copying):
        assert why_not() == ""
        (name,) = files(cache)
        made = (cache / name).stat()
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        load_library.cache_clear()
        assert why_not() == ""
        assert files(cache) == [name]
        assert (cache / name).stat().st_mtime_ns == made.st_mtime_ns
        assert len(copying()) == 1
        (cache / name).unlink()
        (cache / name).write_bytes(b"broken")
        load_library.cache_clear()
        assert why_not() == ""
        assert (len(copying()), files(cache)) == (2, [name])

    @pytest.mark.slow
    @pytest.mark.parametrize("harm", ["cut", "flipped"])
    def test_a_damaged_library_is_not_loaded(self, cache, copying, harm):
        """The system would end the process, or run what is there."""
        assert load_library()[0] is not None
        (name,) = files(cache)
        content = (cache / name).read_bytes()
        size = len(content) // 2 // 4096 * 4096
        middle = bytes([content[size] ^ 1])
        damaged = content[:size] if harm == "cut" else content[:size] + middle + content[size + 1 :]
        # A new file, as this process has the old one in use.
        (cache / name).unlink()
        (cache / name).write_bytes(damaged)
        done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "''\n")
        assert files(cache) == [name]
        assert (cache / name).read_bytes() == content
        assert len(copying()) == 2

    def test_another_compiler_or_other_sources_get_another_file(self, cache, compiler, tmp_path):
        sources = tmp_path / "sources"
        shutil.copytree(Path(str(resources.files("mahalens.train.compiled"))), sources)
        compiler(COPY)
        assert load_library()[1] == load_library(sources)[1] == ""
        assert len(files(cache)) == 1
        (sources / "sparse.h").write_text((sources / "sparse.h").read_text() + "\n// changed\n")
        load_library.cache_clear()
        assert load_library(sources)[1] == ""
        assert len(files(cache)) == 2
        load_library.cache_clear()
        compiler(COPY, version="echo fake 2.0; exit 0")
        assert load_library()[1] == ""
        assert len(files(cache)) == 3

    def test_a_compiler_with_options_of_its_own(self, cache, copying, monkeypatch):
        monkeypatch.setenv("CXX", f"{os.environ['CXX']} -one '-two three'")
        assert why_not() == ""
        assert copying()[0].startswith("-one -two three ")

    @pytest.mark.parametrize(
        "state", [0o770, 0o707, 0o777, "another user's", "read-only", "cannot be made"]
    )
    def test_not_where_others_can_write_or_nobody_can(
        self, cache, copying, tmp_path, monkeypatch, state
    ):
        """The library works, and no trace of it is left anywhere."""
        is_root = os.getuid() == 0
        if state in ("another user's", "read-only") and is_root != (state == "another user's"):
            pytest.skip("only root can give files away, and nothing is read-only for root")
        if state == "cannot be made":
            (tmp_path / "cache").write_text("a file, not a folder")
        else:
            cache.mkdir(parents=True, mode=0o700)
            cache.chmod({"another user's": 0o700, "read-only": 0o500}.get(state, state))
        if state == "another user's":
            os.chown(cache, 12345, 12345)
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        assert why_not() == ""
        assert str(tmp_path / "temporary") in copying()[0]
        assert list((tmp_path / "temporary").iterdir()) == []
        assert bool(gradients("compiled")[0].isfinite().all())
        assert not cache.is_dir() or files(cache) == []

    @pytest.mark.slow
    def test_two_processes_at_once(self, cache, compiler):
        asked = compiler(f"sleep 1\n{COPY}")
        command = [sys.executable, "-c", ASK]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in "ab"]
        assert [process.communicate(timeout=300)[0] for process in both] == ["''\n", "''\n"]
        assert len(files(cache)) == 1
        assert len(asked()) in (1, 2)


@needs_library
@pytest.mark.slow
def test_a_compiler_that_does_not_know_the_machine(cache, compiler):
    real = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    refuse = 'case "$*" in *-march=native*) echo "unknown machine" >&2; exit 1;; esac'
    asked = compiler(f'{refuse}\nexec {real} "$@"')
    for got, want in zip(gradients("compiled"), gradients("torch"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    assert ["-march=native" in line for line in asked()] == [True, False]
    assert len(files(cache)) == 1


def test_the_sources_are_in_the_package():
    """All of them, and all count in the name under which the library is cached."""
    folder = resources.files("mahalens.train.compiled")
    there = {path.name for path in folder.iterdir() if path.name.endswith((".h", ".cpp"))}
    assert there == set(SOURCES)
