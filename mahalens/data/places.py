"""Where the files of a labelled data set may lie on this machine. Needs no torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from mahalens.data.catalogue import CIFAR_FILES, FILES, PUBLISHED, InstalledPackage
from mahalens.data.problems import GROUP, PROBLEMS
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
    raise _not_here(name, name, tried)


def find_problem(name: str) -> dict[str, Path]:
    """The files of a named set of sequences, for training and for testing, likewise.

    The sets are fetched together, and any place that has the two files will do.
    """
    tried = []
    for folder in _places(GROUP):
        try:
            return series_files_in(folder, PROBLEMS[name].files)
        except InputError as error:
            tried.append(str(error))
    raise _not_here(name, GROUP, tried)


def _not_here(name: str, group: str, tried: list[str]) -> InputError:
    published = PUBLISHED[group]
    if published.debian_package is not None:
        tried.append(f"Debian's package {published.debian_package}")
    if published.installed is not None:
        tried.append(f"the Python package {published.installed.package}")
    return InputError(
        f"{name} is not on this machine; looked at {'; '.join(tried)}. To get it, run "
        f"`mahalens data fetch {group}`, or put its files in {home_of(group)}"
    )


def set_files_in(name: str, folder: Path) -> dict[str, Path]:
    """The files of a named set in a folder, in whatever layout the set is published."""
    if name == GROUP:
        return series_files_in(folder, PUBLISHED[GROUP].files)
    return cifar_files_in(folder) if name == "cifar10" else files_in(folder)


def series_files_in(folder: Path, files: Iterable[str]) -> dict[str, Path]:
    """These files of series in a folder, or each in the folder of its problem below it."""
    present = _names_in(folder)
    folders = {file: problem.folder for problem in PROBLEMS.values() for file in problem.files}
    found, missing = {}, []
    for file in files:
        below = folder / folders.get(file, ".") / file
        if file in present or below.is_file():
            found[file] = folder / file if file in present else below
        else:
            missing.append(file)
    if missing:
        raise InputError(f"{folder}: has no {', no '.join(missing)}")
    return found


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


def installed_folder(source: InstalledPackage) -> Path | None:
    """The folder of an installed Python package that has the files; it is not imported."""
    try:
        spec = find_spec(source.package)
    except (ImportError, ValueError):  # half installed
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / source.below


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
        for below in published.below_root:
            yield root / below
    if published.debian_package is not None:
        yield from debian_folders(published.debian_package)
    if published.installed is not None:
        folder = installed_folder(published.installed)
        if folder is not None:
            yield folder


def _chosen_root() -> Path | None:
    """The folder the user chose for data sets."""
    chosen = os.environ.get("MAHALENS_DATA")
    return Path(os.path.expanduser(chosen)) if chosen else None


def _cache_root() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("mahalens") / "data"
