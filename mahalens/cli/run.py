"""``mahalens run``: start a study, or go on with one."""

from __future__ import annotations

import shlex
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mahalens._stopping import stopped
from mahalens.cli.kinds import FOLDER, CommaSeparated, WholeNumbers
from mahalens.console import printable
from mahalens.errors import InputError, Interrupted
from mahalens.studies.ellipsoids.config import METHODS, EllipsoidConfig
from mahalens.studies.ellipsoids.config import SOLVERS as SEARCHES
from mahalens.studies.gaussian.config import DTYPES, MODELS, SOLVERS, GaussianConfig
from mahalens.studies.paired.presentation import PAIRED
from mahalens.studies.registry import STUDIES

if TYPE_CHECKING:
    from mahalens.studies.folder import RunFolder

SILENCE = 0.5
"""Seconds after which a run that has shown nothing says what it is doing."""


@click.group(invoke_without_command=True)
@click.option("--resume", type=FOLDER, metavar="DIR", help="Go on with the run in DIR.")
@click.option("--engine", metavar="local|dask", help="With --resume: where the rest is computed.")
@click.option("--scheduler", metavar="ADDRESS", help="With --resume and dask: its scheduler.")
@click.option("--workers", type=int, help="With --resume: processes to compute in.")
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
@click.pass_context
def run(
    ctx: click.Context,
    resume: Path | None,
    engine: str | None,
    scheduler: str | None,
    workers: int | None,
    quiet: bool,
) -> None:
    """Run a study, or go on with one: run STUDY --out DIR, run --resume DIR."""
    ctx.obj = quiet  # so that "run --quiet STUDY" and "run STUDY --quiet" are the same
    given = {"engine": engine, "scheduler": scheduler, "workers": workers}
    where: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if resume is None:
        if where:
            raise InputError(
                f"--{next(iter(where))} before a study goes with --resume; give it after the study"
            )
        if ctx.invoked_subcommand is None:
            raise InputError(f"run what? give a study ({', '.join(STUDIES)}) or --resume DIR")
        return
    if ctx.invoked_subcommand is not None:
        raise InputError("--resume takes no study: the folder knows it; leave one of them out")
    from mahalens.studies.folder import RunFolder

    with RunFolder.open(resume) as folder:
        if folder.config.study not in STUDIES:
            raise InputError(f"{resume}: study {folder.config.study!r} is unknown to this version")
        _check_where(folder, where)
        with announced(quiet, folder.config.study, resume):
            import_module(f"mahalens.studies.{folder.config.study}.run")
        carry_on(folder, quiet=quiet, **where)


@contextmanager
def announced(quiet: bool, study: str, *read: object) -> Iterator[None]:
    """Print a first line unless what is done is done at once: torch is loaded, data are read."""
    named = ", ".join(str(one) for one in read if one is not None)
    what = "".join(letter if letter.isprintable() else "?" for letter in named)
    line = f"{study}: reading {what}" if what else f"{study}: starting"
    timer = threading.Timer(SILENCE, click.echo, [line], {"err": True})
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_where(folder: RunFolder, where: Iterable[str]) -> None:
    """Refuse to compute a run in a way that its study does not know."""
    study = folder.config.study
    known: dict[str, tuple[str, ...]] = {"representation": ("engine", "scheduler")}
    known |= dict.fromkeys(PAIRED, ("workers",))
    for name in where:
        if name not in known.get(study, ()):
            able = ", ".join(one for one, ways in known.items() if name in ways)
            raise InputError(
                f"--{name}: {folder.path} holds a run of {study}, which has no such choice (only "
                f"{able}); leave it out"
            )


@run.command()
@click.option("--dim", type=int, help="Dimensions: 2, 10, 100 as published, or any.  [default: 2]")
@click.option("--trials", type=int, help="Trials per model.  [default: 20]")
@click.option("--epochs", type=int, help="Epochs of Adam (as published), or most steps of Newton.")
@click.option("--samples", type=int, help="Training samples.  [default: as published]")
@click.option("--solver", default="adam", show_default=True, metavar="|".join(SOLVERS))
@click.option(
    "--models", type=CommaSeparated(), default=",".join(MODELS), show_default=True, help="Some of:"
)
@click.option("--dtype", metavar="|".join(DTYPES), help="[default: float32; newton: float64]")
@click.option("--device", default="cpu", show_default=True, help="Any device torch knows.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--gaussian", type=FOLDER, metavar="FILE", help="Your mean and covariance, npz or JSON."
)
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the run.")
@click.option("--force", is_flag=True, help="Replace the run that DIR holds.")
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
def gaussian(gaussian: Path | None, out: Path, force: bool, quiet: bool, **options: Any) -> None:
    """Train networks to output the Mahalanobis distance, and read what they learned."""
    if options["dim"] is None:
        options["dim"] = _dim_of(gaussian) if gaussian else 2
    config = GaussianConfig.with_defaults(**options, gaussian=gaussian.name if gaussian else None)
    quiet = quiet or bool(click.get_current_context().obj)
    with announced(quiet, "gaussian", gaussian):
        from mahalens.studies.gaussian.run import start

        command = shlex.join(["mahalens", *sys.argv[1:]])
        opened = start(config, out, gaussian_file=gaussian, force=force, command=command)
    with opened as folder:
        carry_on(folder, quiet=quiet)


@run.command()
@click.option("--dim", type=int, help="Dimensions.  [default: 96]")
@click.option("--count", type=int, help="Ellipsoids.  [default: 128]")
@click.option("--ranks", type=WholeNumbers(), help="Components kept.  [default: 4,8,64]")
@click.option(
    "--methods",
    type=CommaSeparated(),
    default=",".join(METHODS),
    show_default=True,
    help="Some of:",
)
@click.option("--solver", default="adam", show_default=True, metavar="|".join(SEARCHES))
@click.option("--steps", type=int, help="Steps of Adam, or most steps of Newton.")
@click.option("--trials", type=int, default=5, show_default=True, help="Points to find, or fits.")
@click.option("--noise", type=float, default=0.0, show_default=True, help="Noise in a distance.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--published", is_flag=True, help="The size of source 002: 784-D, 1024, 10,000 steps."
)
@click.option(
    "--data",
    metavar="NAME|DIR",
    help="Fit ellipsoids to digits, mnist, fashion-mnist or IDX files.",
)
@click.option("--clusters", type=WholeNumbers(), help="With --data: clusters per class, as 2,4.")
@click.option("--train-size", type=int, help="With --data: samples to fit to.")
@click.option("--shrinkage", type=float, help="With --data: of every covariance, 0 to 1.")
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the run.")
@click.option("--force", is_flag=True, help="Replace the run that DIR holds.")
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
def ellipsoids(out: Path, force: bool, quiet: bool, **options: Any) -> None:
    """Find points from their distances to many ellipsoids; or fit ellipsoids to data."""
    given = {name: value for name, value in options.items() if value is not None}
    config = EllipsoidConfig.with_defaults(**given)
    quiet = quiet or bool(click.get_current_context().obj)
    with announced(quiet, "ellipsoids", config.data):
        from mahalens.studies.ellipsoids.run import start

        command = shlex.join(["mahalens", *sys.argv[1:]])
        opened = start(config, out, force=force, command=command)
    with opened as folder:
        carry_on(folder, quiet=quiet)


def _dim_of(gaussian: Path) -> int:
    from mahalens.data import load_gaussian

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said again, once, when the run begins
        return load_gaussian(gaussian).dim


def carry_on(folder: RunFolder, *, quiet: bool, **where: str | int) -> None:
    """Finish the run, ``where`` it is to be computed, make its report and say what came out."""
    from mahalens.console import Display, catch_interrupts
    from mahalens.report import build_report

    study = import_module(f"mahalens.studies.{folder.config.study}.run")
    try:
        if not folder.finished:
            with Display(quiet=quiet) as display, catch_interrupts() as should_stop:
                study.carry_on(folder, display, should_stop, **where)
                if should_stop():  # too late for the study, but not for the report
                    raise Interrupted("stopped by the user")
        else:
            folder.drop_checkpoints()  # of a process that was killed in its last moment
            for name in folder.changed():
                click.echo(
                    f"mahalens: warning: {folder.path / name}: has changed since the run wrote it; "
                    "the report shows it as it is now",
                    err=True,
                )
            if not quiet:
                click.echo(
                    f"{printable(folder.path)}: the run is complete; making its report again"
                )
        page = build_report(folder.path)
    except (Interrupted, KeyboardInterrupt, Exception) as error:
        if not (stopped() or isinstance(error, Interrupted | KeyboardInterrupt)):
            raise
        raise Interrupted(
            f"stopped; go on with: mahalens run --resume {shlex.quote(str(folder.path))}"
        ) from None
    if not quiet:
        _print_results(folder.path)
    click.echo(f"report: {printable(page)}")


def _print_results(path: Path) -> None:
    from rich.console import Console

    from mahalens.report.records import load_run
    from mahalens.report.tables import run_tables

    tables = run_tables(path.name, load_run(path).summary)
    console = Console(highlight=False)
    # On a narrow terminal lines wrap, rather than columns fold into single letters.
    console.width = max(console.width, 18 * max(len(table.columns) for table in tables))
    for table in tables:
        console.print(table)
