"""The command line: parses, calls, prints. Starts quickly: torch is loaded by ``run`` only."""

from __future__ import annotations

import io
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from mahalens._stopping import stoppable, stopped
from mahalens._version import __version__
from mahalens.cli import (  # noqa: F401 (they add their commands to run)
    activations,
    heads,
    hybrid,
    init,
    perturbation,
    representation,
    transfer,
)
from mahalens.cli.audit import audit, diff
from mahalens.cli.data import data
from mahalens.cli.kinds import FOLDER
from mahalens.cli.run import run
from mahalens.console import printable
from mahalens.errors import Interrupted, MahalensError
from mahalens.files import is_folder
from mahalens.studies.activations.config import SOLVERS as DESCENTS
from mahalens.studies.activations.models import MODELS as ACTIVATED
from mahalens.studies.ellipsoids.config import METHODS
from mahalens.studies.ellipsoids.config import SOLVERS as SEARCHES
from mahalens.studies.gaussian.config import MODELS, SOLVERS
from mahalens.studies.heads.models import MODELS as HEADS
from mahalens.studies.hybrid.mixtures import MODELS as MIXED
from mahalens.studies.init.models import MODELS as STARTED
from mahalens.studies.registry import DATA, STUDIES
from mahalens.studies.representation.config import ENGINES, PIXELS
from mahalens.studies.representation.models import MODELS as NETWORKS
from mahalens.studies.representation.models import text_of
from mahalens.studies.transfer.models import MODELS as TRANSFERRED


class _Commands(click.Group):
    """Commands that can be stopped; click would print an empty line first."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("stopped") from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mahalens")
def cli() -> None:
    """Read and build neural networks as distance measures."""


cli.add_command(run)
cli.add_command(audit)
cli.add_command(diff)
cli.add_command(data)


@cli.command("list")
def list_() -> None:
    """List studies, models, solvers and data."""
    for title, entries in (
        ("Studies", STUDIES),
        ("Models of gaussian", MODELS),
        ("Solvers of gaussian", SOLVERS),
        ("Methods of ellipsoids", METHODS),
        ("Solvers of ellipsoids", SEARCHES),
        ("Models of representation", {name: text_of(name) for name in NETWORKS}),
        ("Pixels of representation", PIXELS),
        ("Engines of representation", ENGINES),
        ("Models of init", STARTED),
        ("Models of activations", ACTIVATED),
        ("Solvers of activations", DESCENTS),
        ("Models of hybrid", MIXED),
        ("Models of heads", HEADS),
        ("Models of transfer", TRANSFERRED),
        ("Data", DATA),
    ):
        click.echo(f"{title}:")
        width = max(18, *map(len, entries))
        for name, text in entries.items():
            click.echo(f"  {name:<{width}} {text}")


@cli.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--figures", is_flag=True, help="Of an audit: draw figures/*.png as well.")
def report(folder: Path, figures: bool) -> None:
    """Make the figures and the report of the run or the audit in DIR again."""
    from mahalens.report.audit_folder import RECORD, load_audit_folder
    from mahalens.report.files import is_record

    if is_folder(folder) and is_record(folder / RECORD):
        from mahalens.report.audit.page import write_audit_report

        page = write_audit_report(load_audit_folder(folder), folder, figures=figures)
    else:
        from mahalens.report import build_report

        page = build_report(folder)
    click.echo(printable(page))


@cli.command()
@click.argument("folders", type=FOLDER, metavar="DIR...", nargs=-1, required=True)
def claims(folders: tuple[Path, ...]) -> None:
    """Show the ledger: each claim of the sources with its verdict in each run."""
    from rich.console import Console

    from mahalens.report.records import load_run
    from mahalens.report.tables import claims_table

    short = [printable(folder.name) for folder in folders]
    names = (
        short if all(short) and len(set(short)) == len(short) else [printable(f) for f in folders]
    )
    runs = [(name, load_run(f).summary) for name, f in zip(names, folders, strict=True)]
    console = Console(highlight=False)
    # On a narrow terminal lines wrap, rather than columns vanish.
    console.width = max(console.width, 60 + 30 * len(runs))
    console.print(claims_table(runs), soft_wrap=False)


def _show_warning(message: Warning | str, *details: Any, **more: Any) -> None:
    click.echo(f"mahalens: warning: {_one_line(message)}", err=True)


def main() -> None:
    """Entry point: one line and exit code 2 for bad input, 130 when interrupted."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where Σ cannot be shown, ? will do
    with stoppable():
        _run()


def _run() -> None:
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which click has from 8.2 on
            click.echo(error.format_message())
            sys.exit(2)
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f" See '{error.ctx.command_path} --help'."
        _fail(error.format_message() + hint, 2)
    except Interrupted as error:
        _fail(str(error), 130)
    except MahalensError as error:
        _fail(str(error), 2)
    except OSError as error:  # a path that the system refuses, a full disk
        place = "" if error.filename is None else f"{error.filename}: "
        _fail(f"{place}{error.strerror or error}; check the path and the space on the disk", 2)
    except (click.Abort, KeyboardInterrupt):
        _fail("stopped", 130)
    except Exception as error:
        if stopped():
            _fail("stopped", 130)
        from mahalens.geometry.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail("this takes more memory than there is; give fewer samples, units or trials", 2)


def _fail(message: str, code: int) -> None:
    if stopped() and code != 130:  # what a stopped command says in other words
        message, code = "stopped", 130
    click.echo(f"mahalens: {_one_line(message)}", err=True)
    sys.exit(code)


def _one_line(message: object) -> str:
    """A message on one line, with nothing in it that a terminal would obey."""
    return printable(re.sub(r"\s*\n\s*", " ", str(message)))
