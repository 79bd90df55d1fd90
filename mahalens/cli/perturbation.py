"""``mahalens run perturbation``: what intensities and distances are worth to trained networks."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from mahalens.cli.kinds import FOLDER, CommaSeparated
from mahalens.cli.run import announced, carry_on, run
from mahalens.errors import InputError
from mahalens.studies.perturbation.config import PerturbationConfig
from mahalens.studies.representation.config import PIXELS


@run.command()
@click.option(
    "--from",
    "source",
    type=FOLDER,
    metavar="DIR",
    help="Take the trained networks of a finished representation run.",
)
@click.option(
    "--data",
    metavar="NAME|FILE",
    help="As in representation.  [default: mnist if it is here, else digits]",
)
@click.option(
    "--models",
    type=CommaSeparated(),
    help="Networks of representation, by name or family.  [default: relu-bias,abs-bias]",
)
@click.option("--pixels", metavar=f"{'|'.join(PIXELS)}|both", help="[default: raw; --from: all]")
@click.option("--epochs", type=int, help="Epochs of training.  [default: 1000; digits: 2000]")
@click.option("--trials", type=int, help="Trials per network.  [default: 5; digits: 10]")
@click.option("--train-size", type=int, help="Training samples.  [default: 5000; digits: all]")
@click.option("--budget", metavar="TIME", help="Scale training to about so long: 90s, 20m, 2h.")
@click.option(
    "--published", is_flag=True, help="The paper's protocol: all of MNIST, 5,000 epochs, 20 trials."
)
@click.option("--seed", type=int, help="[default: 0]")
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the run.")
@click.option("--force", is_flag=True, help="Replace the run that DIR holds.")
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
def perturbation(
    source: Path | None, out: Path, force: bool, quiet: bool, published: bool, **options: Any
) -> None:
    """Perturb trained networks by intensity and by distance, and see what it costs."""
    given = {name: value for name, value in options.items() if value is not None}
    if published:
        given["published"] = True
    quiet = quiet or bool(click.get_current_context().obj)
    with announced(quiet, "perturbation", source or options.get("data")):
        if source is None:
            config = PerturbationConfig.with_defaults(**given)
        else:
            trained = [name for name in given if name not in ("models", "pixels")]
            if trained:
                raise InputError(
                    f"--from with --{trained[0].replace('_', '-')}: its networks are trained "
                    "already; leave one of them out"
                )
            from mahalens.studies.perturbation.networks import config_of

            config = config_of(source, **given)
        from mahalens.studies.perturbation.run import start

        command = shlex.join(["mahalens", *sys.argv[1:]])
        opened = start(config, out, force=force, command=command)
    with opened as folder:
        carry_on(folder, quiet=quiet)
