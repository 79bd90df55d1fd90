"""Numbers as text, and tables that print themselves in a terminal, as HTML and as Markdown.

Reports, the command line and documents make a :class:`Table` of :class:`Cell`, :class:`Column` and
:class:`Section`; all of it is text, and all of it is escaped where it is shown. The tables of a run
are in :mod:`.run_tables`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mahalens._show import counted, quoted, table_html

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from rich.table import Table as RichTable
    from rich.text import Text


MISSING = "–"
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e6  # outside, a power of ten reads better than a row of zeros


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; None, NaN, text and booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None, figures: int = 3) -> str:
    """Write a number with so many significant figures.

    Whole numbers stay whole, powers of ten appear only where zeros would crowd the digits, and
    a number that is missing or not finite is a dash.

    >>> [number(v) for v in (20, 10000, 0.12345, 0.4, 47012.3, 2.9e-31, None, float("nan"))]
    ['20', '10,000', '0.123', '0.400', '47,000', '2.9e-31', '–', '–']
    """
    if value is None or not is_number(value):
        return MISSING
    value = float(value)
    size = abs(value)
    if value == int(value) and size < _PLAIN_TO:
        return f"{int(value):,}"
    mantissa, exponent = f"{value:.{figures - 1}e}".split("e")
    rounded = float(f"{mantissa}e{exponent}")  # rounding may carry into the next power of ten
    if not _PLAIN_FROM <= abs(rounded) < _PLAIN_TO:
        short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{short}e{int(exponent)}"
    return f"{rounded:,.{max(0, figures - 1 - int(exponent))}f}"


def interval(bounds: Sequence[float | None] | None) -> str:
    """Write the lower and upper end of an interval.

    >>> interval([0.0801, 0.162]), interval(None)
    ('0.0801 to 0.162', '–')
    """
    if bounds is None or len(bounds) != 2 or not all(is_number(b) for b in bounds):
        return MISSING
    return f"{number(bounds[0])} to {number(bounds[1])}"


def mean_and_half(
    mean: float | None, bounds: Sequence[float | None] | None, percent: bool = False
) -> tuple[str, str]:
    """Write a mean and half the width of its interval, rounded alike; "" without an interval.

    The half-width has two figures and decides how many places the mean has. Percentages have two
    places, as 99.98 is not 100.

    >>> mean_and_half(34.2178, [33.0, 35.4356]), mean_and_half(0.95513, [0.9541, 0.95616])
    (('34.2', '1.2'), ('0.9551', '0.0010'))
    >>> mean_and_half(97.5, [97.5, 97.5], percent=True), mean_and_half(0.95513, None)
    (('97.50', '0.00'), ('0.9551', ''))
    >>> mean_and_half(-1e-17, [-2.0, 2.0])
    ('0.0', '2.0')
    """
    if mean is None or not is_number(mean):
        return MISSING, ""
    alone = f"{mean:.2f}" if percent else number(mean, figures=4)
    if interval(bounds) == MISSING or bounds is None:
        return alone, ""
    low, high = (float(b) for b in bounds if b is not None)
    half = (high - low) / 2
    if percent:
        return alone, f"{half:.2f}" if half >= 0.005 or half == 0 else number(half, figures=2)
    if half < 1e-6 or not max(abs(mean), half) < _PLAIN_TO:
        return alone, number(half, figures=2)
    places = max(0, 1 - int(f"{half:.1e}".split("e")[1]))
    shown = f"{mean:,.{places}f}"
    return shown if float(shown.replace(",", "")) else shown.lstrip("-"), f"{half:,.{places}f}"


def published_value(value: float | None, percent: bool = False) -> str:
    """Write a published mean, which was rounded before: without zeros at its end.

    >>> published_value(0.122), published_value(98.3, percent=True), published_value(None)
    ('0.122', '98.30', '–')
    """
    if value is None or not is_number(value):
        return MISSING
    if percent:
        return f"{value:.2f}"
    text = number(value, figures=4)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def signed(value: float | None) -> str:
    """Write a difference: a positive one begins with a plus.

    >>> signed(0.5), signed(-2), signed(None)
    ('+0.500', '-2', '–')
    """
    text = number(value)
    return f"+{text}" if value is not None and is_number(value) and value > 0 else text


def p_value(p: float | None) -> str:
    """Write a p-value with two figures.

    >>> p_value(0.0312), p_value(3.2e-9), p_value(None)
    ('0.031', '< 0.0001', '–')
    """
    if p is None or not is_number(p):
        return MISSING
    return "< 0.0001" if p < 1e-4 else number(p, 2)


def anything(value: object) -> str:
    """Write a value of a record: a number, text, a list or dictionary of them, or nothing.

    >>> anything(1.0), anything("0.122 against 0.2675"), anything([0.71, 0.993]), anything(None)
    ('1', '0.122 against 0.2675', '0.710, 0.993', '–')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(anything(item) for item in value) or MISSING
    if isinstance(value, dict):
        return ", ".join(f"{key} {anything(item)}" for key, item in value.items()) or MISSING
    return str(value) if value is not None and value != "" else MISSING


def duration(seconds: float | None) -> str:
    """Write a time as a person would say it.

    >>> [duration(s) for s in (0.004, 12.34, 200, 7300, None)]
    ['under 0.1 s', '12.3 s', '3 min 20 s', '2 h 2 min', '–']
    """
    if seconds is None or not is_number(seconds):
        return MISSING
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def in_sentence(label: str) -> str:
    """Return a label as it stands in the middle of a sentence: abbreviations keep their capitals.

    >>> in_sentence("Test accuracy"), in_sentence("AUROC")
    ('test accuracy', 'AUROC')
    """
    return label[:1].lower() + label[1:] if label[1:2].islower() else label


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
