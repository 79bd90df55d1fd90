"""``mahalens run``: start a study, or go on with one. Flags come from the options of each study."""

from __future__ import annotations

import math
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from mahalens._stopping import stopped
from mahalens.data.named import CATALOGUE, WEIGHTS
from mahalens.errors import ConditionMet, InputError, Interrupted
from mahalens.progress import printable
from mahalens.studies.registry import STUDIES, load_study
from mahalens.studies.study import Config, Option, Study, flag_of, type_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mahalens.studies.folder import RunFolder

FOLDER = click.Path(path_type=Path)
SILENCE = 0.5
"""Seconds after which a run that has shown nothing says what it is doing."""
DATA_SETS = {name: text for name, text in CATALOGUE.items() if name not in WEIGHTS}


def completing(
    choices: Mapping[str, str], *, several: bool = False, files: bool = False
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the tab completion of a value: names with their meaning, or else ``files``.

    With ``several`` the last of the names between commas is completed, to one not yet there.
    """

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        first, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        items = [
            CompletionItem(f"{first}{comma}{name}", help=text)
            for name, text in choices.items()
            if name.startswith(last) and name not in first.split(",")
        ]
        return items or [CompletionItem(incomplete, type="file")] * files

    return complete


_EXECUTORS = {"processes": "processes on this machine", "dask": "workers of Dask"}
_EXECUTION = (
    click.Option(
        ["--executor"],
        default="processes",
        show_default=True,
        metavar="processes|dask",
        help="Where jobs are computed.",
        shell_complete=completing(_EXECUTORS),
    ),
    click.Option(
        ["--workers"], type=int, help="Processes on this machine.  [default: what suits the study]"
    ),
    click.Option(["--scheduler"], metavar="ADDRESS", help="With --executor dask: its scheduler."),
)
_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FEW = 6  # choices that help can write in place of a value
_QUIET = click.Option(["--quiet"], is_flag=True, help="No progress, no tables.")


class CommaSeparated(click.ParamType):  # type: ignore[type-arg]
    """Several values in one option, separated by commas."""

    name = "a,b,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


class WholeNumbers(CommaSeparated):
    """Several whole numbers in one option."""

    name = "n,n,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text and read the numbers."""
        parts = super().convert(value, param, ctx)
        if not parts:
            raise InputError(f"{param.opts[0]} is empty: give some, or leave it out")
        try:
            return tuple(int(part) for part in parts)
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 4,8,64", param, ctx)


class Shares(CommaSeparated):
    """Several shares between 0 and 1 in one option."""

    name = "share,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text and read the numbers."""
        try:
            shares = tuple(float(part) for part in super().convert(value, param, ctx))
        except ValueError:
            shares = ()
        if not shares or not all(0 < share < 1 for share in shares):
            self.fail(
                f"{value!r} is not a list of shares between 0 and 1 such as 0.05,0.01", param, ctx
            )
        return shares


class NumberOrAll(click.ParamType):  # type: ignore[type-arg]
    """A whole number, or ``all``."""

    name = "integer"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read the number, or leave the word."""
        if value == "all":
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor all", param, ctx)


class Verdicts(CommaSeparated):
    """Several verdicts in one option."""

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text and check the words."""
        verdicts = super().convert(value, param, ctx)
        if not verdicts or not set(verdicts) <= VERDICTS.keys():
            self.fail(f"{value!r} is not a list of {', '.join(VERDICTS)}", param, ctx)
        return verdicts


VERDICTS = {"fails": "fails", "undecided": "is undecided", "not measured": "was not measured"}
"""Verdicts that ``--fail-on`` takes, each as a message puts it."""
_FAIL_ON: dict[str, Any] = {
    "type": Verdicts(),
    "metavar": "VERDICT,...",
    "help": f"Exit with 1 if a claim has one of these verdicts: {', '.join(VERDICTS)}.",
    "shell_complete": completing(VERDICTS, several=True),
}
_KINDS: dict[Any, Any] = {
    **{kind: kind for kind in (int, float, str)},
    tuple[str, ...]: CommaSeparated(),
    tuple[int, ...]: WholeNumbers(),
}


class Studies(click.Group):
    """The studies as commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all studies."""
        return list(STUDIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of one study."""
        return command_of(load_study(cmd_name)) if cmd_name in STUDIES else None


def command_of(study: Study[Any]) -> click.Command:
    """Return the command that runs a study, with a flag for each of its options."""
    options = study.config.options()
    parameters: list[click.Parameter] = [
        _parameter(study, name, option) for name, option in options.items() if option.flag
    ]
    parameters += [
        click.Option(["--published"], is_flag=True, help=_protocol(study)),
        *_EXECUTION,
        click.Option(["--out"], type=FOLDER, required=True, metavar="DIR", help="Run folder."),
        click.Option(["--force"], is_flag=True, help="Replace the run that DIR holds."),
        click.Option(["--fail-on"], **_FAIL_ON),
        _QUIET,
        click.Option(["--resume"], hidden=True, expose_value=False, callback=_resume_elsewhere),
    ]

    def run_study(**values: Any) -> None:
        _run(study, **values)

    return click.Command(study.name, callback=run_study, params=parameters, help=study.question)


def published_options(config: type[Config]) -> dict[str, Any]:
    """Return the options that ``--published`` chooses; those it leaves alone have their default."""
    chosen: dict[str, Any] = {}
    for name, option in config.options().items():
        chosen[name] = option.full(chosen) if option.is_published else option.usual(chosen)
    return chosen


def _protocol(study: Study[Any]) -> str:
    """Write the help of ``--published``: the values that it fixes, or that are not the default."""
    usual: dict[str, Any] = {}
    for name, option in study.config.options().items():
        usual[name] = option.usual(usual)
    full = published_options(study.config)
    values = []
    for name, option in study.config.options().items():
        if option.is_published and option.flag and (option.fixed or full[name] != usual[name]):
            every = bool(option.choices) and full[name] == tuple(option.choices)
            values.append(f"{flag_of(name)} {'all' if every else option.write(full[name])}")
    return f"The {study.protocol} protocol: {'; '.join(values) or 'the defaults'}."


def _parameter(study: Study[Any], name: str, option: Option) -> click.Option:
    """Return the flag of an option; its default is filled in later, when others are known."""
    hint = type_of(study.config, name)
    if isinstance(hint, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    words = [f"--{option.named or flag_of(name)}", name]
    help_ = option.help.replace("STUDY", study.name)
    if hint is bool:
        return click.Option(words, is_flag=True, default=None, help=help_)
    if default := default_of(option):
        help_ = f"{help_}  [default: {default}]"
    kind: Any = str if get_origin(hint) is Literal or name == "budget" else _KINDS[hint]
    if option.or_all:
        kind = NumberOrAll()
    several = isinstance(kind, CommaSeparated)
    metavar = option.metavar or (kind.name if several else None)
    if option.choices and len(option.choices) <= _FEW and not option.metavar:
        metavar = ("," if several else "|").join(option.choices)
    of_data = name == "data"
    names = completing(
        option.choices or (DATA_SETS if of_data else {}), several=several, files=of_data
    )
    return click.Option(
        words,
        type=FOLDER if option.file else kind,
        metavar=metavar,
        help=help_,
        shell_complete=None if option.file else names,
    )


def default_of(option: Option) -> str:
    """Write the default of an option; empty if it has none, or one that depends on others."""
    value = option.default
    if option.shown or callable(value) or value is None:
        return option.shown
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _resume_elsewhere(context: click.Context, option: click.Parameter, folder: str | None) -> None:
    """Say where the option is, as one would look for it here."""
    if folder is not None:
        raise InputError(
            f"--resume goes in place of a study: mahalens run --resume {shlex.quote(folder)}"
        )


def _run(
    study: Study[Any],
    *,
    out: Path,
    force: bool,
    quiet: bool,
    published: bool,
    executor: str,
    workers: int | None,
    scheduler: str | None,
    fail_on: tuple[str, ...] | None,
    **options: Any,
) -> None:
    """Start a run with the options of the command line, and finish it."""
    quiet = quiet or bool(click.get_current_context().obj)
    if options.get("budget") is not None:
        options["budget"] = read_time(options["budget"])
    where: dict[str, Any] = {"executor": executor, "workers": workers, "scheduler": scheduler}
    config = study.config.with_defaults(published=published, executor=executor, **options)
    with announced(quiet, study.name, *study.data(config)):
        from mahalens.studies.run import start

        command = shlex.join(["mahalens", *sys.argv[1:]])
        opened = start(study, config, out, force=force, command=command, **where)
    with opened as folder:
        finish(study, folder, quiet=quiet, **where)
    _judge(folder.path, fail_on)


def read_time(text: str) -> float:
    """Return seconds from text such as ``90``, ``20m``, ``1.5h`` or ``1h30m``.

    >>> read_time("20m"), read_time("1h30m"), read_time("45")
    (1200.0, 5400.0, 45.0)
    """
    wanted = f"--budget {text}: give a time such as 90s, 20m, 1.5h or 1h30m"
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        plain += "s"
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", plain):
        raise InputError(wanted)
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", plain)
    seconds = sum(float(amount) * _TIMES[unit] for amount, unit in parts)
    if not 0 < seconds < math.inf:
        raise InputError(wanted)
    return seconds


@click.group(cls=Studies, invoke_without_command=True)
@click.option("--resume", type=FOLDER, metavar="DIR", help="Go on with the run in DIR.")
@click.option("--executor", metavar="processes|dask", help="With --resume: where to compute.")
@click.option("--workers", type=int, help="With --resume: processes on this machine.")
@click.option("--scheduler", metavar="ADDRESS", help="With --resume and dask: its scheduler.")
@click.option("--fail-on", **_FAIL_ON | {"help": "With --resume: exit with 1 on these verdicts."})
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
@click.pass_context
def run(ctx: click.Context, /, resume: Path | None, quiet: bool, **where: Any) -> None:
    """Run a study, or go on with one: run STUDY --out DIR, run --resume DIR."""
    ctx.obj = quiet  # so that "run --quiet STUDY" and "run STUDY --quiet" are the same
    where = {name: value for name, value in where.items() if value is not None}
    if resume is None:
        if where:
            raise InputError(
                f"--{flag_of(next(iter(where)))} before a study goes with --resume; give it after "
                "the study"
            )
        if ctx.invoked_subcommand is None:
            raise InputError(f"run what? give a study ({', '.join(STUDIES)}) or --resume DIR")
        return
    if ctx.invoked_subcommand is not None:
        raise InputError("--resume DIR already determines the study; drop one of the two")
    from mahalens.studies.folder import RunFolder

    with RunFolder.open(resume) as folder:
        if folder.config.study not in STUDIES:
            raise InputError(f"{resume}: study {folder.config.study!r} is unknown to this version")
        with announced(quiet, folder.config.study, resume):
            from mahalens.studies.run import check_executor  # loads torch
        fail_on = where.pop("fail_on", None)
        where = {"executor": "processes", "workers": None, "scheduler": None, **where}
        check_executor(**where)  # a finished run does not compute, but a wrong word is still wrong
        finish(load_study(folder.config.study), folder, quiet=quiet, **where)
    _judge(resume, fail_on)


@click.command()
@click.argument("folders", type=FOLDER, metavar="DIR...", nargs=-1, required=True)
@click.option("--models", type=CommaSeparated(), help="Models to take.  [default: all]")
@click.option("--seeds", type=WholeNumbers(), help="Seeds to take.  [default: all]")
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder of the pooled run.")
@click.option("--force", is_flag=True, help="Replace the run that DIR holds.")
@click.option("--fail-on", **_FAIL_ON)
@click.option("--quiet", is_flag=True, help="No tables.")
def pool(
    folders: tuple[Path, ...],
    models: tuple[str, ...] | None,
    seeds: tuple[int, ...] | None,
    out: Path,
    force: bool,
    fail_on: tuple[str, ...] | None,
    quiet: bool,
) -> None:
    """Put the trials of several runs together, and judge the claims by all of them.

    The runs differ in --seed and --trials, or have the same seeds of other --models and --pixels.
    With --models, the other models may have other seeds; with --seeds, runs may have further ones.
    One run alone is judged anew.
    """
    with announced(quiet, "pool", *folders):
        from mahalens.report import build_report
        from mahalens.studies.run import pool as pool_runs

        command = shlex.join(["mahalens", *sys.argv[1:]])
        some_models, some_seeds = models or (), seeds or ()
        pool_runs(folders, out, models=some_models, seeds=some_seeds, force=force, command=command)
        page = build_report(out)
    _print_results(out, page, quiet=quiet)
    _judge(out, fail_on)


@contextmanager
def announced(quiet: bool, study: str, *sources: object) -> Iterator[None]:
    """Print a first line if loading torch and reading data takes longer than a moment."""
    names = printable(", ".join(map(str, sources)))
    line = f"{study}: reading {names}" if names else f"{study}: starting"
    timer = threading.Timer(SILENCE, click.echo, [line], {"err": True})
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def finish(study: Study[Any], folder: RunFolder, *, quiet: bool, **where: Any) -> None:
    """Finish a run, ``where`` it is to be computed, make its report and print its results."""
    from mahalens.progress import Display, catch_interrupts
    from mahalens.report import build_report
    from mahalens.studies.run import execute

    try:
        if not folder.finished:
            with Display(quiet=quiet) as display, catch_interrupts() as should_stop:
                execute(study, folder, display, should_stop, **where)
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
    _print_results(folder.path, page, quiet=quiet)


def _judge(path: Path, fail_on: Sequence[str] | None) -> None:
    """Raise :class:`ConditionMet` if a claim of a finished run has one of these verdicts."""
    from mahalens.report.records import load_run

    claims = load_run(path).summary.claims if fail_on else ()
    met = [claim for claim in claims if claim.verdict in (fail_on or ())]
    if met:
        first = f"{met[0].id} {VERDICTS[met[0].verdict]}"
        more = f", and {len(met) - 1} more" if len(met) > 1 else ""
        raise ConditionMet(f"--fail-on {','.join(fail_on or ())}: {first}{more}")


def _print_results(path: Path, page: Path, *, quiet: bool) -> None:
    """Print the results and where the report is; advice for the user's data comes last."""
    from mahalens.report.records import load_run
    from mahalens.report.run_tables import advice, answer, run_tables

    if quiet:
        click.echo(f"report: {printable(page)}")
        return
    records = load_run(path)
    last = advice(records)
    first = (sentence for sentence in answer(records) if sentence not in last)
    for sentence in (records.study.question, *first, ""):
        click.echo(printable(sentence))
    for table in run_tables(path.name, records):
        table.show()
    click.echo(f"report: {printable(page)}")
    for sentence in last:
        click.echo(printable(sentence))
