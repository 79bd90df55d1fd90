"""A paired study as data: what it measures, what it claims, and how one piece of it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mahalens.studies.claims import Claim
from mahalens.studies.figure import Figure
from mahalens.studies.metric import Metric
from mahalens.studies.paired.config import Job, PairedConfig
from mahalens.studies.paired.measures import Measures

C = TypeVar("C", bound=PairedConfig)
Found = Mapping[tuple[str, str], Measures]
"""All measures of a run, by part and model."""


def nothing_published(metric: str, model: str, part: str) -> Figure | None:
    """For studies of proposals that nobody has tested."""
    del metric, model, part
    return None


def named_data(config: PairedConfig) -> Iterable[str]:
    """For studies that read the data sets of their options and nothing else."""
    return config.data


def no_cautions(config: Any, found: Found) -> list[str]:
    """For studies whose results need no warning."""
    del config, found
    return []


@dataclass(frozen=True)
class PairedStudy(Generic[C]):
    """All that tells one paired study from another.

    Args:
        name: as in ``mahalens run NAME``, and the package below ``mahalens.studies``.
        config: the type of its options.
        metrics: the columns of ``trials.csv``, by name.
        check: loads what a run needs and raises :class:`~mahalens.errors.InputError` for what is
            not there or does not fit, before anything is written. Returns what the summary says
            of each data set, by part.
        jobs: all work, cut into pieces of a minute or so.
        measure: computes one piece, in any process, from the options and the job alone: trial i
            must not depend on the number of trials, nor on what was computed before. Gives the
            measures of each model that the work is about.
        pairs: which models are tested against each other on every data set.
        tested: the metrics in which they are.
        claims: what the run is to decide.
        published: the published figure for a metric, a model and a data set.
        cautions: what to mind when reading the results, each a sentence without its full stop.
        reads: the data sets that are read, by name or file.
    """

    name: str
    config: type[C]
    metrics: Mapping[str, Metric]
    check: Callable[[C], Mapping[str, Mapping[str, Any]]]
    jobs: Callable[[C], Sequence[Job]]
    measure: Callable[[C, Job], Mapping[str, Measures]]
    pairs: Callable[[C], Sequence[tuple[str, str]]]
    tested: tuple[str, ...]
    claims: Callable[[C], Sequence[Claim]]
    published: Callable[[str, str, str], Figure | None] = nothing_published
    cautions: Callable[[C, Found], Sequence[str]] = no_cautions
    reads: Callable[[C], Iterable[str]] = named_data
