"""``mahalens run init``: starting weights from data against the usual ones."""

from __future__ import annotations

from typing import Any

from mahalens.cli.paired import paired_options, run_paired
from mahalens.cli.run import run
from mahalens.studies.init.config import (
    ALL_SETS,
    EPOCHS,
    LARGE_SIZE,
    SMALL_SETS,
    TRIALS,
    InitConfig,
)
from mahalens.studies.init.models import MODELS


@run.command()
@paired_options(
    data=",".join(SMALL_SETS),
    models=f"all {len(MODELS)} of `mahalens list`",
    trials=str(TRIALS),
    epochs=str(EPOCHS),
    size=f"all; with large sets {LARGE_SIZE}",
    full=f"all samples of {', '.join(ALL_SETS)}, {TRIALS} trials",
)
def init(**options: Any) -> None:
    """Start networks from clusters and principal axes, and see whether they train faster."""
    run_paired("init", InitConfig, **options)
