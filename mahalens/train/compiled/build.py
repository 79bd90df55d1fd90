"""Translates the engine with the machine's own compiler, once, and keeps the result."""

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
SECONDS = 120

_reason = ""


def why_not() -> str:
    """Why there is no compiled engine, in a few words; empty if there is one."""
    return "" if library() is not None else _reason


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled engine, or ``None`` where it cannot be had."""
    global _reason
    if os.environ.get("MAHALENS_COMPILE", "1") == "0":
        _reason = "MAHALENS_COMPILE=0"
        return None
    compiler: list[str] = []
    try:
        compiler = _compiler()
        if not compiler:
            _reason = "no C++ compiler"
            return None
        return _load(compiler)
    except (OSError, subprocess.SubprocessError, AttributeError, ValueError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines() or [""]
        telling = next((line for line in lines if "error" in line.lower()), lines[0])
        _reason = f"{compiler[0] if compiler else 'CXX'}: {telling.strip()}"
        return None


def _compiler() -> list[str]:
    """The user's ``CXX``, or the first compiler found."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    return [found] if found else []


def _load(compiler: list[str]) -> ctypes.CDLL:
    name = f"engine-{_key(compiler)}"
    kept = _cache_folder()
    if kept is not None:
        for path in sorted(kept.glob(f"{name}-*.so")):
            with contextlib.suppress(OSError, AttributeError):  # damaged: make it again
                if path.name == _named(name, path):
                    return _open(path)
        return _open(_translate(compiler, kept, name))
    # Nowhere to keep it: translate for this process alone. Once loaded, the file is not needed.
    with tempfile.TemporaryDirectory(prefix="mahalens-") as folder:
        return _open(_translate(compiler, Path(folder), name))


def _named(name: str, path: Path) -> str:
    """The name of a library as it should be, with length and checksum of its content.

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


def _key(compiler: list[str]) -> str:
    """What the result depends on: sources, flags, compiler and processor."""
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update((Path(__file__).parent / source).read_bytes())
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, check=True, timeout=SECONDS, text=True
    )
    digest.update(version.stdout.encode())
    digest.update(repr((FLAGS, MATH_FLAGS, MACHINE_FLAGS, compiler, _processor())).encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """A home folder may be shared by machines with different processors."""
    described = [platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        described += sorted({li for li in lines if li.startswith(("flags", "Features", "model"))})
    except OSError:
        pass
    return "\n".join(described)


def _cache_folder() -> Path | None:
    """The user's own cache folder; ``None`` if others could write there, or if nobody can.

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


def _translate(compiler: list[str], folder: Path, name: str) -> Path:
    """Translate into a temporary file in the folder, then give it its name."""
    source = str(Path(__file__).parent / "training.cpp")
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        for number, machine in enumerate(MACHINE_FLAGS, 1):
            command = [*compiler, *FLAGS, *MATH_FLAGS, *machine, source, "-o", temporary]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            if done.returncode == 0:
                break
            if number == len(MACHINE_FLAGS):
                done.check_returncode()
        path = folder / _named(name, Path(temporary))
        os.replace(temporary, path)
        return path
    finally:
        Path(temporary).unlink(missing_ok=True)
