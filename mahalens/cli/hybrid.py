"""``mahalens run hybrid``: layers that mix Abs and ReLU units, from none to all."""

from __future__ import annotations

from typing import Any

import click

from mahalens.cli.paired import paired_options, run_paired
from mahalens.cli.run import run
from mahalens.studies.hybrid.config import HybridConfig


@run.command()
@paired_options(
    data="digits,iris,wine,breast-cancer",
    models="all but learned and narrow-learned, which take long",
    trials="20; MNIST and other large sets: 10",
    epochs="100; large sets: 20",
    size="all; large sets: 5000",
    full="also MNIST and Fashion-MNIST, all samples, all models",
)
@click.option(
    "--hidden", type=int, help="Units of wide layers.  [default: 128 on images, 32 on tables]"
)
@click.option("--narrow", type=int, help="Units of narrow layers.  [default: 4]")
def hybrid(**options: Any) -> None:
    """Mix Abs and ReLU units in a hidden layer, from none to all."""
    run_paired("hybrid", HybridConfig, **options)
