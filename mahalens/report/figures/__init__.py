"""The figures of a report, each from the records alone.

Importing this package loads no drawing library; :func:`draw_figures` does. Figures are built as
objects and rendered with Agg, so the caller's own matplotlib set-up is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from mahalens.report.records import RunRecords
from mahalens.report.views import view_of


@dataclass(frozen=True)
class DrawnFigure:
    """One figure as the page shows it; ``name`` is its file name without ``.png``."""

    name: str
    title: str
    caption: str
    png: bytes
    width: int
    height: int


def draw_figures(records: RunRecords) -> Iterator[DrawnFigure]:
    """Draw, in the order of the page, every figure that the run has data for."""
    from mahalens.report.figures.style import render, styled

    for name in view_of(records.study).figures:
        # "compared:ece" is the figure "compared" of the metric "ece".
        drawing, _, metric = name.partition(":")
        module = import_module(f"mahalens.report.figures.{drawing}")
        of = (metric,) if metric else ()
        with styled():
            figure = module.draw(records, *of)
            if figure is None:
                continue
            png, width, height = render(figure)
        title = module.title(records, *of) if hasattr(module, "title") else module.TITLE
        yield DrawnFigure(file_name(name), title, module.caption(records, *of), png, width, height)


def file_name(figure: str) -> str:
    """The name of a figure's file, without ``.png``.

    >>> file_name("accuracy"), file_name("compared:ece")
    ('accuracy', 'compared-ece')
    """
    return figure.replace(":", "-")
