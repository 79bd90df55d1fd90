"""Translating the compiled engine: without a compiler, with a bad one, and where it is kept."""

import functools
import os
import shutil
import stat
import subprocess
import sys
from importlib import resources

import pytest
import torch

from mahalens.errors import InputError
from mahalens.nn import Chain
from mahalens.train import MeanSquaredError, TrialStack
from mahalens.train.compiled import build, engine, library, why_not

CHAIN = Chain.parse("Linear(5), Tanh, OffsetL2(3), PointSlope(2), Norm", inputs=4)
needs_library = pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine: {why_not()}")
not_as_root = pytest.mark.skipif(os.getuid() == 0, reason="nothing is read-only for root")
only_as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache folder, and a process that has not asked for the library yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MAHALENS_COMPILE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "_reason", "")
    fresh = functools.cache(library.__wrapped__)
    monkeypatch.setattr(build, "library", fresh)
    monkeypatch.setattr(engine, "library", fresh)
    return tmp_path / "cache" / "mahalens" / "compiled"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Puts a shell script in the compiler's place; it logs what it is asked to translate."""

    def make(body, version="fake 1.0"):
        script = tmp_path / "compiler"
        script.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *--version*) echo {version}; exit 0;; esac\n'
            f'echo "$*" >> {tmp_path}/asked\n{body}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return lambda: (tmp_path / "asked").read_text().splitlines()

    return make


@pytest.fixture
def copying(compiler):
    """A compiler that is quick: it hands out the library that is there already."""
    return compiler(copy_of_library())


def copy_of_library():
    if not os.path.exists(library()._name):
        pytest.skip("the library was made for this process alone")
    return f'for last; do :; done\ncp "{library()._name}" "$last"'


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(77, 4, generator=generator, dtype=torch.float64)
    stack = TrialStack.from_seeds(CHAIN, range(3))
    return x, x.norm(dim=1), TrialStack(CHAIN, stack.values.double())


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def assert_falls_back(reason):
    """One reason, an engine that works without the library, and one line for who insists."""
    assert why_not() == reason
    x, y, stack = problem()
    objective = MeanSquaredError(CHAIN, x, y)
    assert objective.engine == "torch"
    assert bool(objective.loss(stack).isfinite().all())
    with pytest.raises(InputError) as caught:
        MeanSquaredError(CHAIN, x, y, engine="compiled")
    assert str(caught.value) == f"there is no compiled engine here ({reason}); give engine='torch'"
    assert "\n" not in reason


class TestWithoutLibrary:
    def test_no_compiler(self, cache, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert_falls_back("no C++ compiler")
        assert not cache.exists()

    def test_switched_off(self, cache, monkeypatch, compiler):
        compiler("exit 0")
        monkeypatch.setenv("MAHALENS_COMPILE", "0")
        assert_falls_back("MAHALENS_COMPILE=0")
        assert not cache.exists()

    @pytest.mark.parametrize("command", ["false", "/no/such/compiler", "/dev/null"])
    def test_a_compiler_that_cannot_be_used(self, cache, monkeypatch, command):
        monkeypatch.setenv("CXX", command)
        assert why_not().startswith(f"{command}: ")
        assert_falls_back(why_not())
        assert files(cache.parent) == []

    def test_a_compiler_that_fails(self, cache, compiler):
        asked = compiler("echo 'engine.cpp:1: too new' >&2\necho 'and more' >&2\nexit 1")
        assert why_not().endswith("compiler: engine.cpp:1: too new")
        assert_falls_back(why_not())
        assert len(asked()) == len(build.MACHINE_FLAGS)  # once per set of flags, then never again
        assert files(cache) == []

    def test_a_compiler_that_takes_too_long(self, cache, compiler, monkeypatch):
        monkeypatch.setattr(build, "SECONDS", 0.3)
        compiler("exec sleep 20")
        assert "timed out" in why_not()
        assert files(cache) == []

    def test_a_compiler_that_makes_nothing(self, cache, compiler):
        compiler("exit 0")
        assert_falls_back(why_not())
        assert why_not()

    def test_a_compiler_that_fails_with_an_empty_line(self, cache, compiler):
        compiler("echo >&2; exit 1")
        assert_falls_back(why_not())

    def test_a_compiler_that_cannot_say_its_version(self, cache, tmp_path, monkeypatch):
        script = tmp_path / "compiler"
        script.write_text("#!/bin/sh\necho 'no licence' >&2\nexit 1\n")
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        assert_falls_back(f"{script}: no licence")

    def test_a_name_that_cannot_be_read(self, cache, monkeypatch):
        monkeypatch.setenv("CXX", "'c++")
        assert_falls_back(why_not())


@needs_library
class TestCache:
    def test_a_broken_file_is_made_again(self, cache, copying):
        cache.mkdir(parents=True, mode=0o700)
        (cache / f"engine-{build._key([os.environ['CXX']])}-6-00.so").write_bytes(b"broken")
        assert why_not() == ""

    @pytest.mark.parametrize("harm", ["cut", "flipped"])
    def test_a_damaged_library_is_not_loaded(self, cache, copying, harm):
        """The system would end the process, or run what is there."""
        assert library.__wrapped__() is not None
        (name,) = files(cache)
        content = (cache / name).read_bytes()
        size = len(content) // 2 // 4096 * 4096
        middle = bytes([content[size] ^ 1])
        damaged = content[:size] if harm == "cut" else content[:size] + middle + content[size + 1 :]
        # A new file, as this process has the old one in use.
        (cache / name).unlink()
        (cache / name).write_bytes(damaged)
        code = "from mahalens.train.compiled import why_not; print(repr(why_not()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "''\n")
        assert files(cache) == [name]
        assert (cache / name).read_bytes() == content
        assert len(copying()) == 2

    def test_one_file_that_is_made_once(self, cache, copying, monkeypatch):
        assert why_not() == ""
        (name,) = files(cache)
        made = (cache / name).stat()
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        monkeypatch.setattr(build, "library", functools.cache(library.__wrapped__))
        assert why_not() == ""
        assert files(cache) == [name]
        assert (cache / name).stat().st_mtime_ns == made.st_mtime_ns
        assert len(copying()) == 1

    def test_another_compiler_gets_its_own_file(self, cache, compiler):
        for version in ("fake 1.0", "fake 2.0"):
            compiler(copy_of_library(), version)
            assert library.__wrapped__() is not None
        assert len(files(cache)) == 2

    def test_other_sources_or_flags_get_their_own_file(self, cache, copying, monkeypatch):
        for flags in (build.FLAGS, (*build.FLAGS, "-g")):
            monkeypatch.setattr(build, "FLAGS", flags)
            assert library.__wrapped__() is not None
        for sources in (build.SOURCES[:-1], build.SOURCES[:-2]):
            monkeypatch.setattr(build, "SOURCES", sources)
            assert library.__wrapped__() is not None
        assert len(files(cache)) == 4

    def test_a_compiler_with_options_of_its_own(self, cache, copying, monkeypatch):
        monkeypatch.setenv("CXX", f"{os.environ['CXX']} -one '-two three'")
        assert why_not() == ""
        assert copying()[0].startswith("-one -two three ")

    def uses_a_temporary_folder(self, cache, copying, tmp_path, monkeypatch):
        """The library works, and no trace of it is left anywhere."""
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        assert why_not() == ""
        assert str(tmp_path / "temporary") in copying()[0]
        assert list((tmp_path / "temporary").iterdir()) == []
        x, y, stack = problem()
        assert bool(MeanSquaredError(CHAIN, x, y, engine="compiled").loss(stack).isfinite().all())
        assert not cache.is_dir() or files(cache) == []

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
    def test_not_where_others_can_write(self, cache, copying, tmp_path, monkeypatch, mode):
        cache.mkdir(parents=True)
        cache.chmod(mode)
        self.uses_a_temporary_folder(cache, copying, tmp_path, monkeypatch)

    @only_as_root
    def test_not_in_the_folder_of_somebody_else(self, cache, copying, tmp_path, monkeypatch):
        cache.mkdir(parents=True, mode=0o700)
        os.chown(cache, 12345, 12345)
        self.uses_a_temporary_folder(cache, copying, tmp_path, monkeypatch)

    @not_as_root
    def test_a_folder_that_is_read_only(self, cache, copying, tmp_path, monkeypatch):
        cache.mkdir(parents=True)
        cache.chmod(0o500)
        self.uses_a_temporary_folder(cache, copying, tmp_path, monkeypatch)

    def test_a_folder_that_cannot_be_made(self, cache, copying, tmp_path, monkeypatch):
        (tmp_path / "cache").write_text("a file, not a folder")
        self.uses_a_temporary_folder(cache, copying, tmp_path, monkeypatch)

    def test_two_processes_at_once(self, cache, compiler):
        asked = compiler(f"sleep 1\n{copy_of_library()}")
        code = "from mahalens.train.compiled import why_not; print(repr(why_not()))"
        command = [sys.executable, "-c", code]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in "ab"]
        assert [process.communicate(timeout=60)[0] for process in both] == ["''\n", "''\n"]
        assert len(files(cache)) == 1
        assert len(asked()) in (1, 2)


@needs_library
def test_a_compiler_that_does_not_know_the_machine(cache, compiler):
    real = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    refuse = 'case "$*" in *-march=native*) echo "unknown machine" >&2; exit 1;; esac'
    asked = compiler(f'{refuse}\nexec {real} "$@"')
    x, y, stack = problem()
    objective = MeanSquaredError(CHAIN, x, y, engine="compiled")
    wanted = MeanSquaredError(CHAIN, x, y, engine="torch")
    for got, want in zip(
        objective.loss_and_gradient(stack), wanted.loss_and_gradient(stack), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    assert ["-march=native" in line for line in asked()] == [True, False]
    assert len(files(cache)) == 1


def test_the_sources_are_in_the_package():
    """All of them, and all count in the name under which the library is kept."""
    folder = resources.files("mahalens.train.compiled")
    there = {path.name for path in folder.iterdir() if path.name.endswith((".h", ".cpp"))}
    assert there == set(build.SOURCES)
    for name in build.SOURCES:
        assert folder.joinpath(name).read_text()
