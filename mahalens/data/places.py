"""Where the files of a labelled data set may lie on this machine. Needs no torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mahalens.data.catalogue import CIFAR_FILES, FILES, PUBLISHED
from mahalens.errors import InputError

DPKG_SECONDS = 10.0  # a package manager that hangs must not stop a study
CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")


def home_of(name: str) -> Path:
    """The folder where the files of a named set belong: the first place that is looked at.

    It is ``$MAHALENS_DATA/<name>``, or, without that variable, in the user's cache folder.
    """
    return (_chosen_root() or _cache_root()) / name


def find_set(name: str) -> dict[str, Path]:
    """The files of a named set, from the first place that has them all.

    Keys are the usual names in :data:`~mahalens.data.catalogue.FILES`, or ``CIFAR_FILES``. When
    no place has them, the error names every place and says how to get the set.
    """
    tried = []
    for folder in _places(name):
        try:
            return set_files_in(name, folder)
        except InputError as error:
            tried.append(str(error))
    published = PUBLISHED[name]
    if published.debian_package is not None:
        tried.append(f"Debian's package {published.debian_package}")
    raise InputError(
        f"{name} is not on this machine; looked at {'; '.join(tried)}. To get it, run "
        f"`mahalens data fetch {name}`, or put its files in {home_of(name)}"
    )


def set_files_in(name: str, folder: Path) -> dict[str, Path]:
    """The files of a named set in a folder, in whatever layout the set is published."""
    return cifar_files_in(folder) if name == "cifar10" else files_in(folder)


def files_in(folder: Path) -> dict[str, Path]:
    """The four files in a folder, by their usual names, or an error that says which are missing.

    Each may be gzipped, and may be spelled with a dot, as in ``train-images.idx3-ubyte``.
    """
    present = _names_in(folder)
    found = {}
    for usual in FILES:
        chosen = next((one for one in spellings(usual) if one in present), None)
        if chosen is not None:
            found[usual] = folder / chosen
    missing = [usual for usual in FILES if usual not in found]
    if missing:
        raise InputError(f"{folder}: has no {', no '.join(missing)} (plain or .gz)")
    return found


def cifar_files_in(folder: Path) -> dict[str, Path]:
    """The six files of CIFAR-10 in a folder or in the folder its archive unpacks to.

    Keys are those of the python layout. The binary layout comes first: it takes no reading of
    pickles.
    """
    present = _names_in(folder)
    missing = []
    for end in (".bin", ""):
        absent = [name for name in CIFAR_FILES if name + end not in present]
        if not absent:
            return {name: folder / (name + end) for name in CIFAR_FILES}
        missing.append(absent[0] + end)
    for below in CIFAR_FOLDERS:
        if folder.name != below and (folder / below).is_dir():
            return cifar_files_in(folder / below)
    raise InputError(f"{folder}: has no {' and no '.join(missing)}")


def spellings(usual: str) -> list[str]:
    """The names a file may have; plain ones first, as they need no unpacking.

    >>> spellings("t10k-labels-idx1-ubyte")[:2]
    ['t10k-labels-idx1-ubyte', 't10k-labels.idx1-ubyte']
    """
    dotted = usual.replace("-idx", ".idx")
    return [usual, dotted, f"{usual}.gz", f"{dotted}.gz"]


def debian_folders(package: str) -> list[Path]:
    """The folders in which an installed Debian package keeps files of a data set."""
    try:
        listing = subprocess.run(
            ["dpkg", "-L", package], capture_output=True, timeout=DPKG_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # no Debian, or the package is not installed
    wanted = {spelling for usual in FILES for spelling in spellings(usual)}
    paths = [Path(line) for line in os.fsdecode(listing).splitlines()]
    return list(dict.fromkeys(path.parent for path in paths if path.name in wanted))


def _names_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except FileNotFoundError:
        raise InputError(f"{folder}: there is no such folder") from None
    except NotADirectoryError:
        raise InputError(f"{folder}: this is no folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: cannot be read, {reason}") from None


def _places(name: str) -> Iterator[Path]:
    """The folders to look at, in turn; the package manager is asked only if it comes to that."""
    yield home_of(name)
    published = PUBLISHED[name]
    root = _chosen_root()
    if root is not None:
        for folder in published.below_root:
            yield root / folder
    if published.debian_package is not None:
        yield from debian_folders(published.debian_package)


def _chosen_root() -> Path | None:
    """The folder the user chose for data sets."""
    chosen = os.environ.get("MAHALENS_DATA")
    return Path(os.path.expanduser(chosen)) if chosen else None


def _cache_root() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("mahalens") / "data"
