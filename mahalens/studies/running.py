"""What the runs of all studies share: someone who watches, versions and inputs to compare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import torch

from mahalens._version import __version__
from mahalens.data.catalogue import SETS
from mahalens.data.places import cifar_files_in, files_in, find_problem, find_set
from mahalens.data.problems import SEQUENCES
from mahalens.data.series import TEST, TRAIN
from mahalens.errors import InputError, RunFolderError
from mahalens.files import Fingerprint, fingerprint
from mahalens.studies.folder import RunConfig, RunFolder, now
from mahalens.train.compiled import why_not


class HasProgress(Protocol):
    """Something that is under way."""

    @property
    def progress(self) -> tuple[float, float, str]:
        """How much is done, of how much, and a word on where it stands."""


@dataclass
class Progress:
    """How far something is."""

    done: int
    total: int
    state: str = ""

    @property
    def progress(self) -> tuple[int, int, str]:
        """How much is done, of how much, and a word on where it stands."""
        return self.done, self.total, self.state


class Watcher(Protocol):
    """Told what a run is doing."""

    def stage(self, name: str) -> Callable[[HasProgress], None]:
        """A part of the run begins; what is returned is called now and then with its progress."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: small products gain little from a second one, and lose much when
    the other core is busy, as the threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare_versions(folder: RunFolder, watcher: Watcher) -> None:
    """Say it if a run is resumed with other versions: its last digits may then differ."""
    begun = {"mahalens": folder.config.mahalens, "torch": folder.config.torch}
    here = {"mahalens": __version__, "torch": str(torch.__version__)}
    for name, version in begun.items():
        if version != here[name]:
            watcher.note(
                f"begun with {name} {version}, going on with {here[name]}: "
                "the last digits may differ from those of an uninterrupted run"
            )


class HasDeviations(Protocol):
    """The options of a study."""

    @property
    def seed(self) -> int:
        """Where all random numbers come from."""

    def deviations(self) -> list[str]:
        """What differs from the published protocol, one sentence each."""


def run_config(
    study: str,
    config: HasDeviations,
    command: str,
    *,
    device: str = "cpu",
    threads: int | None = None,
    engine: Literal["compiled", "torch"] = "torch",
    inputs: Mapping[str, Fingerprint] | None = None,
) -> RunConfig:
    """What ``config.json`` says: the options, and with what they are run."""
    deviations = config.deviations()
    return RunConfig(
        study=study,
        torch=str(torch.__version__),
        created=now(),
        seed=config.seed,
        device=device,
        threads=torch.get_num_threads() if threads is None else threads,
        engine=engine,
        protocol="scaled" if deviations else "published",
        scaled=deviations,
        command=command or " ".join(sys.argv),
        options=msgspec.to_builtins(config),
        inputs=dict(inputs or {}),
    )


_WITH_SKLEARN = {
    "digits": "digits.csv.gz",
    "iris": "iris.csv",
    "wine": "wine_data.csv",
    "breast-cancer": "breast_cancer.csv",
}


def input_files(data: Iterable[str]) -> dict[str, Path]:
    """The files that data sets are read from, under their names in ``config.json``.

    A file of the user goes by its path, that of a set with a name by both names, wherever it lies
    and packed or not: ``mnist/train-images-idx3-ubyte``.
    """
    return {name: path for one in data for name, path in _files_of(one).items()}


def _files_of(data: str) -> dict[str, Path]:
    if data in _WITH_SKLEARN:
        spec = find_spec("sklearn")
        if spec is None or spec.origin is None:
            return {}
        file = Path(spec.origin).parent / "datasets" / "data" / _WITH_SKLEARN[data]
        return {f"{data}/{file.name.removesuffix('.gz')}": file}
    if data in SETS or data in SEQUENCES:
        files = find_set(data) if data in SETS else find_problem(data)
        return {f"{data}/{name}": file for name, file in files.items()}
    path = Path(data)
    if path.is_dir():
        for look in (files_in, cifar_files_in):
            try:
                files = look(path)
            except InputError:
                continue
            return {f"{path}/{name}": file for name, file in files.items()}
    if path.name.endswith(TRAIN):
        other = path.with_name(path.name.removesuffix(TRAIN) + TEST)
        return {str(path): path, str(other): other}
    return {str(path): path}


def fingerprints(files: Mapping[str, Path]) -> dict[str, Fingerprint]:
    """The fingerprints of all files that a run reads."""
    found = {}
    for name, path in files.items():
        try:
            found[name] = fingerprint(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); the run needs it as it was when it "
                "began"
            ) from None
    return found


def check_inputs(config: RunConfig, files: Mapping[str, Path]) -> None:
    """Refuse files that have changed since the run began: its results would be of both.

    A run of an earlier version, which has no fingerprints, takes them as they are.
    """
    if config.inputs is None:
        return
    for name, here in fingerprints(files).items():
        if config.inputs.get(name) != here:
            raise RunFolderError(
                f"{files[name]}: has changed since the run began; bring the old file back, or "
                "start a new run, as this one would mix results of both"
            )


def compare_inputs(folder: RunFolder, files: Mapping[str, Path], watcher: Watcher) -> None:
    """Refuse inputs that have changed, and say so if nobody can tell."""
    check_inputs(folder.config, files)
    if folder.config.inputs is None and files:
        watcher.note(
            "begun by an earlier version, which kept no fingerprints of its data: make sure that "
            "they have not changed"
        )


def compare_engines(folder: RunFolder, watcher: Watcher) -> None:
    """Say if a run goes on with another engine than it was begun with."""
    if folder.config.engine == "compiled" and why_not():
        watcher.note(
            f"begun with the compiled engine, going on without ({why_not()}): "
            "the last digits may differ from those of an uninterrupted run"
        )


def engine_here() -> Literal["compiled", "torch"]:
    """Which engine trains on this machine's processor."""
    return "torch" if why_not() else "compiled"
