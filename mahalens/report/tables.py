"""A table as a value that prints itself in a terminal, as HTML and as Markdown.

Reports, the command line and documents make a :class:`Table` of :class:`Cell`, :class:`Column` and
:class:`Section`; all of it is text, and all of it is escaped where it is shown. The tables of a run
are in :mod:`.run_tables`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mahalens._show import counted, quoted, table_html
from mahalens.report.numbers import MISSING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from rich.table import Table as RichTable
    from rich.text import Text

SYMBOLS = {"holds": "✓", "fails": "✗", "undecided": "?", "not measured": "–"}
"""The four verdicts with their signs."""
_STYLES = {"holds": "green", "fails": "red", "undecided": "yellow", "not measured": "dim"}


@dataclass(frozen=True)
class Cell:
    """One cell, all of it text.

    Args:
        text: the content.
        note: smaller, beside it.
        below: smaller, on a line below it.
        bold: whether it stands out.
        colour: of a mark before the text, on a page.
        verdict: whether the text is a verdict, which has a sign and a colour.
        details: pairs of a name and a text that a page shows when the cell is opened.
        is_open: whether it is open at first.
        span: over how many columns it reaches, on a page.
    """

    text: str = MISSING
    note: str = ""
    below: str = ""
    bold: bool = False
    colour: str = ""
    verdict: bool = False
    details: tuple[tuple[str, str], ...] = ()
    is_open: bool = False
    span: int = 1

    @property
    def symbol(self) -> str:
        """The sign of a verdict."""
        return SYMBOLS.get(self.text, "") if self.verdict else ""


@dataclass(frozen=True)
class Column:
    """The head of a column; numbers are set to the right, ``is_text`` to the left.

    ``on_page`` columns are left out where there is little room: in terminals and in Markdown.
    """

    label: str
    is_text: bool = False
    on_page: bool = False


@dataclass(frozen=True)
class Section:
    """A line across the table that says what the lines below it are about."""

    title: str
    note: str = ""


Line = Section | tuple[Cell, ...]


@dataclass(frozen=True, repr=False)
class Table:
    """A table as a value. The first cell of each line is its head.

    Args:
        title: what it shows.
        columns: the heads of the columns.
        lines: sections and rows of cells.
        notes: what to know to read it, one sentence or a few each.
        is_compact: whether verdicts are signs without words, as in tables with many columns.

    >>> table = Table("Ages", (Column("name", True), Column("age")), ((Cell("Ada"), Cell("36")),))
    >>> print(table.markdown())
    | name | age |
    |---|---:|
    | Ada | 36 |
    """

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    is_compact: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines)

    def rich(self) -> RichTable:
        """Return the table for a terminal; nothing in it is taken for markup."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        heading = Text(self.title)
        for note in self.notes:
            heading.append(f"\n{note}", style="dim")
        table = RichTable(title=heading, title_justify="left", box=box.SIMPLE_HEAD)
        for place, column in enumerate(self._brief):
            least = 14 if column.is_text else None
            table.add_column(
                Text(column.label),
                justify="left" if column.is_text else "right",
                min_width=least,
                overflow="fold",
                ratio=(3 if place == 0 else 1) if column.is_text else None,
            )
        for line in self.lines:
            if isinstance(line, Section):
                table.add_section()
                table.add_row(Text(line.title, style="bold"))
            else:
                table.add_row(*(_rich(cell, self.is_compact) for cell in self._brief_cells(line)))
        return table

    def show(self) -> None:
        """Print it to the terminal; where that is narrow, lines wrap but columns stay."""
        from rich.console import Console

        console = Console(highlight=False)
        least = sum(26 if column.is_text else 16 for column in self._brief)
        console.width = max(console.width, least)
        console.print(self.rich())

    def html(self) -> Markup:
        """Return the table as HTML, with everything escaped."""
        from markupsafe import Markup

        return Markup(environment().get_template("table.html.j2").render(table=self))

    def _repr_html_(self) -> str:
        """Return the table below its title, for notebooks."""
        return f"{table_html(self.title)}\n{self.html()}"

    def __repr__(self) -> str:
        columns, lines = counted(len(self.columns), "column"), counted(len(self.lines), "line")
        return f"Table({quoted(self.title)}, {columns}, {lines})"

    def markdown(self) -> str:
        """Return the table as GitHub's Markdown, without its title and notes."""
        rows = [
            [f"**{_escape(line.title)}**"]
            if isinstance(line, Section)
            else [_markdown(cell) for cell in self._brief_cells(line)]
            for line in self.lines
        ]
        width = len(self._brief)
        lines = [
            [_escape(column.label) for column in self._brief],
            *(row + [""] * (width - len(row)) for row in rows),
        ]
        text = [f"| {' | '.join(cells)} |" for cells in lines]
        marks = ["---" if column.is_text else "---:" for column in self._brief]
        return "\n".join([text[0], f"|{'|'.join(marks)}|", *text[1:]])

    @property
    def _brief(self) -> list[Column]:
        return [column for column in self.columns if not column.on_page]

    def _brief_cells(self, line: tuple[Cell, ...]) -> list[Cell]:
        cells = [cell for whole in line for cell in (whole, *[Cell("")] * (whole.span - 1))]
        pairs = zip(cells, self.columns, strict=True)
        return [cell for cell, column in pairs if not column.on_page]


def stack(title: str, tables: Sequence[Table], *notes: str) -> Table:
    """Put tables with the same columns below each other, with a section for each.

    Their notes come after the given ones, each once.
    """
    lines: list[Line] = []
    for table in tables:
        lines += [*([Section(table.title)] if table.title else []), *table.lines]
    notes = tuple(dict.fromkeys((*notes, *(note for table in tables for note in table.notes))))
    return Table(title, tables[0].columns if tables else (), tuple(lines), notes)


def _rich(cell: Cell, is_compact: bool) -> Text:
    from rich.text import Text

    text = cell.text
    if cell.verdict:
        text = cell.symbol if is_compact else f"{cell.symbol} {text}"
    style = _STYLES.get(cell.text, "") if cell.verdict else "bold" if cell.bold else ""
    rich = Text(text, style=style)
    if cell.note:
        rich.append(f" {cell.note}", style="dim" if cell.verdict else "")
    if cell.below:
        rich.append(f"\n{cell.below}", style="dim")
    return rich


def _markdown(cell: Cell) -> str:
    text = _escape(cell.text)
    marked = cell.bold or (cell.verdict and cell.text in ("holds", "fails"))
    text = f"**{text}**" if marked and text else text
    below = f"({cell.below})" if cell.below else ""
    return " ".join(filter(None, (text, _escape(cell.note), _escape(below))))


def _escape(text: str) -> str:
    return re.sub(r"([\\|<*`\[])", r"\\\1", " ".join(text.split()))


@functools.cache
def environment() -> Environment:
    """Return the templates of reports, which escape everything that is put into them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("mahalens.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
