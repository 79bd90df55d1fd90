"""The compiled engine's library: compiled once with the machine's compiler, then cached."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = (
    *("tiles.h", "functions.h", "layers.h", "losses.h", "sparse.h", "memory.h"),
    *("engine.cpp", "training.cpp"),
)
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti")
# Neither changes a number: they only say that nobody looks at errno or at trap flags.
MATH_FLAGS = ("-fno-math-errno", "-fno-trapping-math")
# Tried in this order. The second is for compilers that do not know the machine they run on.
MACHINE_FLAGS = (("-march=native",), ())


def library() -> ctypes.CDLL | None:
    """Return the library of the compiled engine, ``None`` where there is none."""
    return load_library()[0]


def why_not() -> str:
    """Return why there is no compiled engine, in a few words; empty if there is one."""
    return load_library()[1]


@functools.cache
def load_library(
    sources: Path = Path(__file__).parent, seconds: float = 120
) -> tuple[ctypes.CDLL | None, str]:
    """Load the library, compiling it if need be; the second value says why there is none.

    ``sources`` is the folder of the C++ files, ``seconds`` the time that the compiler may take.
    """
    if os.environ.get("MAHALENS_COMPILE", "1") == "0":
        return None, "MAHALENS_COMPILE=0"
    compiler: list[str] = []
    try:
        compiler = _compiler()
        if not compiler:
            return None, "no C++ compiler"
        return _Compiler(compiler, sources, seconds).load(), ""
    except (OSError, subprocess.SubprocessError, AttributeError, ValueError) as error:
        output = getattr(error, "stderr", None)  # bytes if the compiler took too long
        lines = str(output if isinstance(output, str) and output else error).strip().splitlines()
        lines = lines or [""]
        message = next((line for line in lines if "error" in line.lower()), lines[0])
        return None, f"{compiler[0] if compiler else 'CXX'}: {message.strip()}"


def _compiler() -> list[str]:
    """Return the user's ``CXX``, or the first compiler found."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]


class _Compiler:
    """A compiler, the sources it translates and the seconds it may take."""

    def __init__(self, command: list[str], sources: Path, seconds: float) -> None:
        self.command, self.sources, self.seconds = command, sources, seconds

    def load(self) -> ctypes.CDLL:
        """Load the library from the cache, or compile it."""
        name = f"engine-{self._key()}"
        cache = _cache_folder()
        if cache is not None:
            for path in sorted(cache.glob(f"{name}-*.so")):
                with contextlib.suppress(OSError, AttributeError):  # damaged: make it again
                    if path.name == _full_name(name, path):
                        return _open(path)
            return _open(self._compile(cache, name))
        # No cache: compile for this process alone. Once loaded, the file is not needed.
        with tempfile.TemporaryDirectory(prefix="mahalens-") as folder:
            return _open(self._compile(Path(folder), name))

    def _run(self, *arguments: str, check: bool) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            timeout=self.seconds,
            check=check,
        )

    def _key(self) -> str:
        """Hash of all that the library depends on: sources, flags, compiler and processor."""
        digest = hashlib.sha256()
        for source in SOURCES:
            digest.update((self.sources / source).read_bytes())
        digest.update(self._run("--version", check=True).stdout.encode())
        digest.update(repr((FLAGS, MATH_FLAGS, MACHINE_FLAGS, self.command, _processor())).encode())
        return digest.hexdigest()[:20]

    def _compile(self, folder: Path, name: str) -> Path:
        """Compile into a temporary file in the folder, then give it its name."""
        source = str(self.sources / "training.cpp")
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            for number, machine in enumerate(MACHINE_FLAGS, 1):
                last = number == len(MACHINE_FLAGS)
                flags = (*FLAGS, *MATH_FLAGS, *machine)
                if self._run(*flags, source, "-o", temporary, check=last).returncode == 0:
                    break
            path = folder / _full_name(name, Path(temporary))
            os.replace(temporary, path)
            return path
        finally:
            Path(temporary).unlink(missing_ok=True)


def _full_name(name: str, path: Path) -> str:
    """Return the name that a library should have, with length and checksum of its content.

    The system maps a library into memory and ends the process if the file turns out to be short.
    """
    content = path.read_bytes()
    return f"{name}-{len(content)}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _open(path: Path) -> ctypes.CDLL:
    opened = ctypes.CDLL(str(path))
    for name in ("train_float32", "train_float64", "range_float32", "range_float64"):
        getattr(opened, name).restype = ctypes.c_longlong
    for name in ("update_float32", "update_float64"):
        getattr(opened, name).restype = None
    return opened


def _processor() -> str:
    """Describe the processor: machines with different ones may share a home folder."""
    described = [platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        described += sorted({li for li in lines if li.startswith(("flags", "Features", "model"))})
    except OSError:
        pass
    return "\n".join(described)


def _cache_folder() -> Path | None:
    """Return the user's own cache folder; ``None`` if others could write there, or if nobody can.

    What lies there is executed, so it must not be anybody else's.
    """
    from platformdirs import user_cache_path

    folder = user_cache_path("mahalens") / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            return None
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None
