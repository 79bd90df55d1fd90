"""What every paired study is told: which models, on which data, how often. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from mahalens.errors import InputError
from mahalens.studies.options import check_count


class PairedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``data`` are names of data sets or files of the user, ``models`` what is compared on each of
    them. ``train_size`` is the most training samples that are taken of a set, all if ``None``.
    A study adds fields of its own in a subclass, and says in ``deviations`` what it scaled.
    """

    data: tuple[str, ...]
    models: tuple[str, ...]
    trials: int
    epochs: int
    train_size: int | None
    seed: int

    def __post_init__(self) -> None:
        check_count("trials", self.trials, 1)
        check_count("epochs", self.epochs, 1)
        check_count("seed", self.seed, 0)
        if self.train_size is not None:
            check_count("train-size", self.train_size, 2)
        for option, given in (("data", self.data), ("models", self.models)):
            if not given:
                raise InputError(f"--{option}: names nothing; give at least one")
        parts = [part_of(name) for name in self.data]
        for option, names in (("data", parts), ("models", self.models)):
            for name in names:
                if list(names).count(name) > 1:
                    raise InputError(f"--{option}: {name!r} is given twice; give it once")

    @classmethod
    def with_defaults(cls, *args: Any, **given: Any) -> Self:
        """Fill in what is not given; a study has its own, with options that it names."""
        return cls(*args, **given)

    def deviations(self) -> list[str]:
        """What differs from the full protocol, one sentence each; none means the full one."""
        return []


@dataclass(frozen=True)
class Job:
    """Some trials of one piece of work on one data set: what is computed in one go.

    ``work`` is the name of a model, or of something that several models share, such as a trained
    network that many detectors read.
    """

    data: str
    work: str
    first: int
    count: int

    @property
    def part(self) -> str:
        """The name of the data set in all records."""
        return part_of(self.data)

    @property
    def name(self) -> str:
        """A file name for it."""
        return f"{self.part}-{self.work}-{self.first:04d}"

    @property
    def trials(self) -> range:
        """The numbers of its trials."""
        return range(self.first, self.first + self.count)


def part_of(data: str) -> str:
    """What a data set is called in records: its name, or that of the user's file without path.

    >>> part_of("fashion-mnist"), part_of("data/My set.npz")
    ('fashion-mnist', 'My-set')
    """
    return re.sub(r"[^\w-]+", "-", Path(data).stem or data).strip("-") or "data"


def name_of(model: str, part: str) -> str:
    """A model on a data set, as claims and comparisons call it.

    >>> name_of("abs", "digits")
    'abs (digits)'
    """
    return f"{model} ({part})"


def jobs_of(config: PairedConfig, works: Sequence[str], at_once: int) -> list[Job]:
    """All work of a run, data set after data set, ``at_once`` trials in one job.

    Trials come before works, so that a run that is stopped has as many whole trials as it can.
    """
    return [
        Job(data, work, first, min(at_once, config.trials - first))
        for data in config.data
        for first in range(0, config.trials, at_once)
        for work in works
    ]


def choose(option: str, wanted: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names that an option asks for, in the order of the study.

    >>> choose("models", ["b", "a"], ["a", "b", "c"])
    ('a', 'b')
    """
    wanted = tuple(wanted)
    for name in wanted:
        if name not in known:
            raise InputError(f"--{option} {name}: unknown; give some of {', '.join(known)}")
        if wanted.count(name) > 1:
            raise InputError(f"--{option}: {name!r} is given twice; give it once")
    return tuple(name for name in known if name in wanted)


def refuse_with_published(**given: object) -> None:
    """Refuse options that the full protocol has its own of; those that are None were not given."""
    for name, value in given.items():
        if value is not None:
            told = ",".join(value) if isinstance(value, (list, tuple)) else value
            raise InputError(
                f"--published with --{name.replace('_', '-')} {told}: the full protocol has its "
                "own; leave one of them out"
            )


def compare_protocol(*lines: tuple[str, object, object]) -> list[str]:
    """What differs from the full protocol, from names, values and the full protocol's values.

    >>> compare_protocol(("epochs", 2_000, 5_000), ("trials", 10, 10))
    ['epochs: 2,000 instead of 5,000']
    """

    def shown(value: object) -> str:
        return f"{value:,}" if isinstance(value, int) else str(value)

    return [f"{name}: {shown(v)} instead of {shown(full)}" for name, v, full in lines if v != full]


def missing_from(name: str, have: Sequence[str], full: Iterable[str]) -> list[str]:
    """What of the full protocol a run leaves out.

    >>> missing_from("models", ["a"], ["a", "b"])
    ['models: without b']
    """
    missing = [one for one in full if one not in have]
    return [f"{name}: without {', '.join(missing)}"] if missing else []
