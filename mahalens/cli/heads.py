"""``mahalens run heads``: distance heads against linear + softmax."""

from __future__ import annotations

from typing import Any

import click

from mahalens.cli.paired import paired_options, run_paired
from mahalens.cli.run import run
from mahalens.studies.heads.config import (
    DEFAULT_DATA,
    DEFAULT_EPOCHS,
    FULL_DATA,
    FULL_EPOCHS,
    FULL_TRIALS,
    LARGE_SIZE,
    HeadsConfig,
)
from mahalens.studies.heads.models import MODELS


@run.command()
@paired_options(
    data=",".join(DEFAULT_DATA),
    models=f"all {len(MODELS)} of `mahalens list`",
    trials=str(FULL_TRIALS),
    epochs=f"{DEFAULT_EPOCHS}; with large sets {FULL_EPOCHS}",
    size=f"all; with large sets {LARGE_SIZE}",
    full=f"all samples of {' and '.join(FULL_DATA)}, {FULL_TRIALS} trials",
)
@click.option("--compactness", type=float, help="Weight of the penalty.  [default: 0.05]")
@click.option("--reject-rate", type=float, help="Share of the known to reject.  [default: 0.05]")
def heads(**options: Any) -> None:
    """Classify by distance, and tell the unknown from the known: heads and their rivals."""
    run_paired("heads", HeadsConfig, **options)
