"""``mahalens run transfer``: OffsetL2 heads on tables and sequences."""

from __future__ import annotations

from typing import Any

from mahalens.cli.paired import paired_options, run_paired
from mahalens.cli.run import run
from mahalens.studies.transfer.config import TransferConfig


@run.command()
@paired_options(
    data="tables, and three sets of sequences if they are here; groups: tables, sequences",
    models="all but those of the published code",
    trials="10",
    epochs="300, of which each network uses what held-out samples advise",
    size="all",
    full="all sets and models, 30 trials",
)
def transfer(**options: Any) -> None:
    """Put OffsetL2 heads beside linear ones on tables and sequences."""
    run_paired("transfer", TransferConfig, **options)
