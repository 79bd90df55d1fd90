"""What the scripts that make tables for the documents share: the head of a run, and its claims."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mahalens.errors import RunFolderError
from mahalens.report.ledger import statements
from mahalens.report.numbers import number
from mahalens.report.records import RunRecords, load_run

VERDICTS = {"holds": "**holds**", "fails": "**fails**"}


def print_runs(about: str | None, page: Callable[..., list[str]], **flags: str) -> None:
    """Print the page of every run folder that the command line names.

    ``flags`` are options that the page can be given, each with its help.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("runs", nargs="+")
    for flag, said in flags.items():
        parser.add_argument(f"--{flag}", action="store_true", help=said)
    given = vars(parser.parse_args())
    try:
        for folder in given.pop("runs"):
            sys.stdout.write("\n".join(page(load_run(folder), **given)) + "\n")
    except RunFolderError as error:
        parser.error(str(error))


def head(run: RunRecords, told: str) -> list[str]:
    """The command and versions of a run, ``told`` of its data, and what was scaled."""
    config = run.config
    scaled = "; ".join(config["scaled"]) or "nothing was scaled"
    return [
        "```sh",
        str(config["command"]),
        "```",
        "",
        f"mahalens {config['mahalens']}, torch {config['torch']}, seed {config['seed']}, {told}. "
        f"Protocol: {config['protocol']} ({scaled}).",
        "",
    ]


def claims(
    run: RunRecords, parts: dict[str, str], *, source: bool, whole: str = "(one verdict for both)"
) -> list[str]:
    """A line per statement, with a column of verdicts for each part, under its title.

    What a run measured on no part, as for models that were left out, is counted and not listed.
    """
    left_out = 0
    named = ["claim", *(["source"] if source else []), "published", *parts.values()]
    lines = [f"| {' | '.join(named)} |", "|" + "---|" * len(named)]
    for statement in statements(run.summary["claims"]):
        given = statement.claims
        first = next(iter(given.values()))
        if "" in given:
            cells = [verdict(first), *[whole] * (len(parts) > 1), *[""] * (len(parts) - 2)]
        else:
            cells = [verdict(given[part]) if part in given else "–" for part in parts]
        if set(cells) == {"–"}:
            left_out += 1
            continue
        about = [statement.text, *([statement.source] if source else [])]
        lines.append(f"| {' | '.join([*about, str(first['published'] or '–'), *cells])} |")
    told = [f"Not measured by this run: {left_out} more claims.", ""] if left_out else []
    return [*lines, "", *told]


def verdict(claim: Any) -> str:
    """A verdict with the number that it rests on."""
    verdict = claim["verdict"]
    if verdict not in VERDICTS:
        return "–" if verdict == "not measured" else str(verdict)
    return f"{VERDICTS[verdict]} ({number(claim['measured'])})"


def table(named: Sequence[str], lines: Iterator[Sequence[str]]) -> list[str]:
    """A Markdown table with numbers to the right of its first column."""
    return [
        f"| {' | '.join(named)} |",
        "|---|" + "---:|" * (len(named) - 1),
        *(f"| {' | '.join(cells)} |" for cells in lines),
        "",
    ]
