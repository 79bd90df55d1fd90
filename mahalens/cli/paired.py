"""What the commands of all paired studies share: their options, and how a run begins."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from mahalens.cli.kinds import FOLDER, CommaSeparated
from mahalens.cli.run import announced, carry_on
from mahalens.errors import InputError
from mahalens.studies.paired.config import PairedConfig

F = TypeVar("F", bound=Callable[..., Any])


def _resume_elsewhere(context: click.Context, option: click.Parameter, folder: str | None) -> None:
    """Say where the option is, as one would look for it here."""
    del context, option
    if folder is not None:
        raise InputError(
            f"--resume belongs to run itself, as a run knows its study: mahalens run --resume "
            f"{shlex.quote(folder)}"
        )


def paired_options(
    *, data: str, models: str, trials: str, epochs: str, size: str, full: str
) -> Callable[[F], F]:
    """The options that every paired study has; the texts say what is taken if one is not given.

    ``full`` says what ``--published`` runs.
    """
    options = [
        click.option(
            "--data",
            type=CommaSeparated(),
            metavar="NAME|FILE,...",
            help=f"Data sets: names of `mahalens data list`, or files.  [default: {data}]",
        ),
        click.option(
            "--models",
            type=CommaSeparated(),
            help=f"Models, see `mahalens list`.  [default: {models}]",
        ),
        click.option("--trials", type=int, help=f"Trials of each model.  [default: {trials}]"),
        click.option("--epochs", type=int, help=f"Epochs of training.  [default: {epochs}]"),
        click.option("--train-size", type=int, help=f"Most training samples.  [default: {size}]"),
        click.option("--published", is_flag=True, help=f"The full protocol: {full}."),
        click.option("--seed", type=int, help="[default: 0]"),
        click.option("--workers", type=int, help="Processes to compute in.  [default: all cores]"),
        click.option(
            "--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the run."
        ),
        click.option("--force", is_flag=True, help="Replace the run that DIR holds."),
        click.option("--quiet", is_flag=True, help="No progress, no tables."),
        click.option("--resume", hidden=True, expose_value=False, callback=_resume_elsewhere),
    ]

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def run_paired(
    study: str,
    config: type[PairedConfig],
    *,
    out: Path,
    force: bool,
    quiet: bool,
    workers: int | None,
    published: bool,
    **options: Any,
) -> None:
    """Begin a run of a paired study with the options that were given, and finish it."""
    given = {name: value for name, value in options.items() if value is not None}
    if published:
        given["published"] = True
    made = config.with_defaults(**given)
    quiet = quiet or bool(click.get_current_context().obj)
    with announced(quiet, study, *made.data):
        from mahalens.studies.paired.workers import check_workers

        count = check_workers(workers)
        module = import_module(f"mahalens.studies.{study}.run")
        command = shlex.join(["mahalens", *sys.argv[1:]])
        opened = module.start(made, out, force=force, command=command)
    with opened as folder:
        carry_on(folder, quiet=quiet, workers=count)
