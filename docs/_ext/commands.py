"""Makes the reference of the command line from the commands themselves, when the site is built.

``{commands}`` in a page becomes a section for each command: usage, explanation, options.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mahalens.cli import cli


def command_lines(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    """Yield a command and the commands below it as lines of MyST Markdown."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    if parent is not None:
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        yield from (f"## {path}", "", "```text", usage, "```", "")
        yield from (*inspect.cleandoc(command.help or "").splitlines(), "")
        yield from option_table(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below and not below.hidden:
                yield from command_lines(below, f"{path} {name}", context)


def option_table(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the options of a command as a table, without ``--help``."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    records = [option.get_help_record(context) for option in options if not option.is_eager]
    if any(records):
        yield from ("| option | meaning |", "|---|---|")
        for option, meaning in filter(None, records):
            cells = (f"`{option}`", " ".join(meaning.split()))
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


class Commands(SphinxDirective):
    """The directive ``commands``."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each command."""
        lines = list(command_lines(cli, "mahalens", None))
        block = nodes.Element()
        self.state.nested_parse(StringList(lines, source="mahalens --help"), 0, block)
        return block.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known."""
    app.add_directive("commands", Commands)
    return {"version": "1", "parallel_read_safe": True}
