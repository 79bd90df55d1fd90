"""``mahalens run activations``: the networks of source 003 with other activations."""

from __future__ import annotations

from typing import Any

import click

from mahalens.cli.paired import paired_options, run_paired
from mahalens.cli.run import run
from mahalens.studies.activations.config import SOLVERS, ActivationsConfig
from mahalens.studies.representation.config import PIXELS


@run.command()
@paired_options(
    data="digits",
    models="all 21",
    trials="10",
    epochs="2000; MNIST and other large sets: 1000",
    size="all; large sets: 5000",
    full="all of MNIST, 5,000 epochs, 20 trials, as source 003",
)
@click.option("--pixels", metavar="|".join(PIXELS), help="[default: normalized]")
@click.option("--solver", metavar="|".join(SOLVERS), help="[default: sgd, as source 003]")
def activations(**options: Any) -> None:
    """Hold networks of seven activations to intensities and to distances."""
    run_paired("activations", ActivationsConfig, **options)
