"""Runs the study of starting weights."""

from __future__ import annotations

from collections.abc import Sequence

from mahalens.studies.init.claims import claims_for
from mahalens.studies.init.config import InitConfig
from mahalens.studies.init.measuring import check, measure
from mahalens.studies.init.metrics import METRICS
from mahalens.studies.init.models import ACTIVATIONS, FROM_DATA, STARTS
from mahalens.studies.paired.config import Job, jobs_of
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.study import Found, PairedStudy

AT_ONCE = 5
"""Trials in one job: less than a minute of work but for all samples of a large set."""


def jobs(config: InitConfig) -> list[Job]:
    """All work of a run: a few trials of one model each."""
    return jobs_of(config, config.models, AT_ONCE)


def pairs(config: InitConfig) -> list[tuple[str, str]]:
    """Every start beside Kaiming, and beside LSUV those that share its output layer.

    Cluster PCA is also beside hyperplanes through random samples, to see what its axes do.
    Variants are beside Kaiming alone: the more pairs, the less a correction for all leaves.
    """
    found = []
    for activation in ACTIVATIONS:
        others = [start for start in STARTS if start != "kaiming"]
        found += [(f"{activation}-{start}", f"{activation}-kaiming") for start in others]
        rivals = [start for start in FROM_DATA if STARTS[start].output == "lsuv"]
        found += [(f"{activation}-{start}", f"{activation}-lsuv") for start in rivals]
        found.append((f"{activation}-cluster-pca", f"{activation}-sample-point"))
    return [(a, b) for a, b in found if a in config.models and b in config.models]


def cautions(config: InitConfig, found: Found) -> Sequence[str]:
    """Where the best learning rate may lie outside of those to choose from."""
    del config
    told = []
    for part in dict.fromkeys(part for part, _ in found):
        at_end = []
        for (where, model), own in found.items():
            count = int((own.metrics["rate_at_end"] > 0).sum())
            if where == part and 2 * count > own.trials:
                at_end.append(f"{model} in {count} of {own.trials}")
        if at_end:
            told.append(
                f"on {part} most trials of some models chose the lowest or the highest learning "
                f"rate on offer, so that theirs may lie beyond it: {', '.join(at_end)}"
            )
    return told


STUDY = PairedStudy(
    name="init",
    config=InitConfig,
    metrics=METRICS,
    check=check,
    jobs=jobs,
    measure=measure,
    pairs=pairs,
    tested=("mean_accuracy", "test_accuracy", "first_accuracy", "epochs_to_tenth"),
    claims=claims_for,
    cautions=cautions,
)

start, carry_on = runner(STUDY)
