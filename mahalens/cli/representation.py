"""``mahalens run representation``: networks held to distance or intensity."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from mahalens.cli.kinds import FOLDER, CommaSeparated, WholeNumbers
from mahalens.cli.run import announced, carry_on, run
from mahalens.studies.representation.config import ENGINES, PIXELS, RepresentationConfig


@run.command()
@click.option(
    "--data",
    metavar="NAME|FILE",
    help="digits, mnist, fashion-mnist, cifar10, or a file or folder of yours.  [default: digits]",
)
@click.option(
    "--models",
    type=CommaSeparated(),
    default="all",
    show_default=True,
    help="all, primary, biased, offset-l2, published-code, point-slope, or models by name.",
)
@click.option("--bias", metavar="no|yes|both", help="Output bias of the six primary models.")
@click.option("--pixels", default="both", show_default=True, metavar=f"{'|'.join(PIXELS)}|both")
@click.option("--epochs", type=int, help="Epochs of full-batch descent.  [default: 5000]")
@click.option("--trials", type=int, help="Trials per model.  [default: 20]")
@click.option("--train-size", type=int, help="Training samples.  [default: all]")
@click.option("--budget", metavar="TIME", help="Scale the run down to about so long: 90s, 20m, 2h.")
@click.option(
    "--published", is_flag=True, help="The paper's protocol: all of MNIST, 5,000 epochs, 20 trials."
)
@click.option("--engine", default="local", show_default=True, metavar="|".join(ENGINES))
@click.option("--scheduler", metavar="ADDRESS", help="With --engine dask: a running scheduler.")
@click.option("--group", type=int, help="Trials trained together.  [default: all; dask: 5]")
@click.option("--nodes", type=WholeNumbers(), help="Hidden nodes whose distributions are drawn.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard event files.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the run.")
@click.option("--force", is_flag=True, help="Replace the run that DIR holds.")
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
def representation(out: Path, force: bool, quiet: bool, **options: Any) -> None:
    """Train networks held to distance or intensity outputs, and compare them."""
    given = {name: value for name, value in options.items() if value is not None}
    config = RepresentationConfig.with_defaults(**given)
    quiet = quiet or bool(click.get_current_context().obj)
    with announced(quiet, "representation", config.data):
        from mahalens.studies.representation.run import start

        command = shlex.join(["mahalens", *sys.argv[1:]])
        opened = start(config, out, force=force, command=command)
    with opened as folder:
        carry_on(folder, quiet=quiet)
