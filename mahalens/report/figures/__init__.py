"""The figures of a report, each from the records alone.

Importing this package loads no drawing library; :func:`draw_figures` does. Figures are built as
objects and rendered with Agg, so the caller's own matplotlib set-up is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mahalens.report.records import RunRecords

FIGURE_NAMES = ("hyperplanes", "loss", "metrics", "eigenvalues", "fit")


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
    from mahalens.report.figures import eigenvalues, fit, hyperplanes, loss, metrics
    from mahalens.report.figures.style import render, styled

    modules = dict(zip(FIGURE_NAMES, (hyperplanes, loss, metrics, eigenvalues, fit), strict=True))
    for name, module in modules.items():
        with styled():
            figure = module.draw(records)
            if figure is None:
                continue
            png, width, height = render(figure)
        yield DrawnFigure(name, module.TITLE, module.caption(records), png, width, height)
