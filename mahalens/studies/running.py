"""What the runs of all studies share: someone who watches, and versions to compare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import torch

from mahalens._version import __version__
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
