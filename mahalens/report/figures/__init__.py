"""The figures of a report, each from the records alone.

Importing this package loads no drawing library; :func:`draw_figures` does. Figures are built as
objects and rendered with Agg, so the caller's own matplotlib set-up is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from mahalens.report.records import RunRecords

FIGURES = {
    "gaussian": ("hyperplanes", "loss", "metrics", "eigenvalues", "fit"),
    "ellipsoids": ("convergence", "ranks", "classification", "metrics"),
    "representation": ("accuracy", "learning", "outputs", "dead", "centres", "latent"),
    "perturbation": ("levels", "places"),
}
"""The figures of each study, in the order of the page; those without data are left out."""


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

    for name in FIGURES.get(records.study, ("metrics",)):
        module = import_module(f"mahalens.report.figures.{name}")
        with styled():
            figure = module.draw(records)
            if figure is None:
                continue
            png, width, height = render(figure)
        yield DrawnFigure(name, module.TITLE, module.caption(records), png, width, height)
