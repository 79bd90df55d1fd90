"""Runs the heads study."""

from __future__ import annotations

from mahalens.studies.heads.checking import check
from mahalens.studies.heads.claims import MAIN, claims_for
from mahalens.studies.heads.config import OTHER, HeadsConfig
from mahalens.studies.heads.measuring import measure
from mahalens.studies.heads.metrics import METRICS
from mahalens.studies.heads.models import READERS
from mahalens.studies.heads.presentation import LABELS
from mahalens.studies.heads.published import published_figure
from mahalens.studies.paired.config import Job, jobs_of, name_of
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.study import Found, PairedStudy


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


def cautions(config: HeadsConfig, found: Found) -> list[str]:
    """What to mind: trials in which nothing could be calibrated."""
    del config
    lost = {
        name_of(LABELS[model], part): int((own.metrics["auroc"].isfinite() & own_lost).sum())
        for (part, model), own in found.items()
        if (own_lost := own.metrics["ece_calibrated"].isnan()).any()
    }
    told = [f"{name} in {count}" for name, count in lost.items() if count]
    if not told:
        return []
    shown = "; ".join(told[:3]) + ("; and others" if len(told) > 3 else "")
    return [
        "where all held-out samples were right no temperature is best, and calibrated errors leave "
        f"such trials out ({shown})"
    ]


def reads(config: HeadsConfig) -> list[str]:
    """The data sets, and those that are the unknown for them."""
    return [*config.data, *(OTHER[data] for data in config.data if data in OTHER)]


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
    cautions=cautions,
    reads=reads,
)

start, carry_on = runner(STUDY)
