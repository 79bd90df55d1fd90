"""Runs the heads study."""

from __future__ import annotations

from mahalens.studies.heads.checking import check
from mahalens.studies.heads.claims import MAIN, claims_for
from mahalens.studies.heads.config import HeadsConfig
from mahalens.studies.heads.measuring import measure
from mahalens.studies.heads.metrics import METRICS
from mahalens.studies.heads.models import READERS
from mahalens.studies.heads.published import published_figure
from mahalens.studies.paired.config import Job, jobs_of
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.study import PairedStudy


def jobs(config: HeadsConfig) -> list[Job]:
    """All work of a run: one network of one trial each, with all models that read it."""
    works = [work for work, readers in READERS.items() if set(readers) & set(config.models)]
    return jobs_of(config, works, 1)


def pairs(config: HeadsConfig) -> list[tuple[str, str]]:
    """Every other model beside softmax, and the head that does both jobs beside its rivals."""
    found = [(model, "softmax") for model in config.models if model != "softmax"]
    found += [(MAIN, rival) for rival in ("mahalanobis", "duq", "ensemble", "fitted", "distance")]
    found.append(("layered", MAIN))
    return [(a, b) for a, b in found if a in config.models and b in config.models]


STUDY = PairedStudy(
    name="heads",
    config=HeadsConfig,
    metrics=METRICS,
    check=check,
    jobs=jobs,
    measure=measure,
    pairs=pairs,
    tested=("auroc", "test_accuracy", "ece", "ece_calibrated", "nll_calibrated"),
    claims=claims_for,
    published=published_figure,
)

start, carry_on = runner(STUDY)
