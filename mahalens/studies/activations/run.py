"""Runs the activations study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

import math

from mahalens.studies.activations.claims import claims_for, pairs_of
from mahalens.studies.activations.config import ActivationsConfig
from mahalens.studies.activations.measuring import check, jobs, measure
from mahalens.studies.activations.metrics import METRICS
from mahalens.studies.activations.models import label_of
from mahalens.studies.figure import Figure
from mahalens.studies.paired.config import name_of
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.study import Found, PairedStudy
from mahalens.studies.representation.config import PUBLISHED_EPOCHS
from mahalens.studies.representation.published import published_figure
from mahalens.studies.still_learning import still_learning


def published(metric: str, model: str, part: str) -> Figure | None:
    """What source 003 gives for its six networks on MNIST after 5,000 epochs."""
    return published_figure(metric, model, part, PUBLISHED_EPOCHS)


def cautions(config: ActivationsConfig, found: Found) -> list[str]:
    """Whether networks were still learning when training ended."""
    del config
    gains = {}
    for (part, model), own in found.items():
        values = own.metrics["late_gain"]
        known = values[values.isfinite()]
        gains[name_of(label_of(model), part)] = float(known.mean()) if len(known) else math.nan
    return still_learning(gains)


STUDY = PairedStudy(
    name="activations",
    config=ActivationsConfig,
    metrics=METRICS,
    check=check,
    jobs=jobs,
    measure=measure,
    pairs=pairs_of,
    tested=("test_accuracy",),
    claims=claims_for,
    published=published,
    cautions=cautions,
)

start, carry_on = runner(STUDY)
