"""Runs the hybrid study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from mahalens.data import stream
from mahalens.data.tables import held_out
from mahalens.errors import InputError
from mahalens.studies.hybrid.claims import claims_for, pairs_of
from mahalens.studies.hybrid.config import VALIDATION, HybridConfig, trials_at_once
from mahalens.studies.hybrid.measuring import measure
from mahalens.studies.hybrid.metrics import METRICS
from mahalens.studies.hybrid.mixtures import MIXTURES
from mahalens.studies.hybrid.presentation import PRESENTATION
from mahalens.studies.paired.config import Job, jobs_of, name_of
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.samples import check_sets, samples_of
from mahalens.studies.paired.study import Found, PairedStudy
from mahalens.studies.still_learning import still_learning


def check(config: HybridConfig) -> dict[str, dict[str, Any]]:
    """Load what a run needs; what the summary says of each data set."""
    facts = check_sets(config.data, config.train_size)
    for data in config.data:
        one = samples_of(data, seed=config.seed, trial=0, train_size=config.train_size)
        if not held_out(one.y, VALIDATION, stream(config.seed, "validation", 0, 0)).any():
            raise InputError(
                f"--data {data}: {len(one.y)} training samples leave none to choose learning "
                "rates by; give at least 5 of some class"
            )
    return facts


def jobs(config: HybridConfig) -> list[Job]:
    """All work: some trials of all layers of one width."""
    families = list(dict.fromkeys(MIXTURES[name].family for name in config.models))
    return [
        job
        for data in config.data
        for job in jobs_of(replace(config, data=(data,)), families, trials_at_once(data))
    ]


def cautions(config: HybridConfig, found: Found) -> list[str]:
    """Whether networks were still learning when training ended."""
    del config
    gains = {}
    for (part, model), own in found.items():
        values = own.metrics["late_gain"]
        known = values[values.isfinite()]
        label = name_of(PRESENTATION.labels[model], part)
        gains[label] = float(known.mean()) if len(known) else math.nan
    return still_learning(gains)


STUDY = PairedStudy(
    name="hybrid",
    config=HybridConfig,
    metrics=METRICS,
    check=check,
    jobs=jobs,
    measure=measure,
    pairs=pairs_of,
    tested=("test_accuracy", "fastest_epochs"),
    claims=claims_for,
    cautions=cautions,
)

start, carry_on = runner(STUDY)
