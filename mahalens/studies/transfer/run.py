"""Runs the transfer study in a folder, from the start or from where it was stopped."""

from __future__ import annotations

from mahalens.studies.paired.config import name_of
from mahalens.studies.paired.run import runner
from mahalens.studies.paired.study import Found, PairedStudy
from mahalens.studies.transfer.claims import claims_for, pairs_of
from mahalens.studies.transfer.config import TransferConfig
from mahalens.studies.transfer.measuring import jobs, measure
from mahalens.studies.transfer.metrics import METRICS
from mahalens.studies.transfer.models import label_of
from mahalens.studies.transfer.samples import check, is_resampled

OFTEN = 0.5
"""Share of trials at the last epoch from which on a network was not done."""


def cautions(config: TransferConfig, found: Found) -> list[str]:
    """What to mind: trials that overlap, and networks that more epochs might have helped."""
    said = []
    if any(map(is_resampled, config.data)):
        said.append(
            "trials split the same samples anew, so that their training sets overlap: intervals "
            "and p values over trials are narrower than those over new samples would be"
        )
    if config.without:
        said.append(config.without)
    limited = [
        name_of(label_of(model), part)
        for (part, model), own in found.items()
        if "at_limit" in own.metrics and float(own.metrics["at_limit"].nanmean()) > OFTEN
    ]
    if limited:
        shown = ", ".join(limited[:3]) + (" and others" if len(limited) > 3 else "")
        said.append(
            f"{len(limited)} of the networks were trained to the last epoch allowed in most "
            f"trials ({shown}): more epochs might help them"
        )
    return said


STUDY = PairedStudy(
    name="transfer",
    config=TransferConfig,
    metrics=METRICS,
    check=check,
    jobs=jobs,
    measure=measure,
    pairs=pairs_of,
    tested=("test_accuracy", "log_loss"),
    claims=claims_for,
    cautions=cautions,
)

start, carry_on = runner(STUDY)
