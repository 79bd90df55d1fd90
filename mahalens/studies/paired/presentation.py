"""How a paired study is shown: names, colours, which columns and figures. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Presentation:
    """What a report has to know of a paired study; ``PRESENTATION`` in its ``presentation``.

    Args:
        labels: what each model is called in tables and figures, in the order to show them.
        colours: a colour for each model, of Okabe and Ito's palette or told apart by ``markers``.
        primary: the metric of the first figure, and by which the best trial is chosen.
        shown: the metrics of the table that a reader sees first, the primary one among them.
        figures: modules of ``mahalens.report.figures``, in the order of the page.
        remark: what a reader must know before comparing figures, in a sentence or two.
        curve: the column of ``curves.csv`` that figures of curves show; none if empty.
        axis: what the primary metric is measured along, when it is no accuracy: ``"linear"``.
        parts: what data sets are called where their own names would not do.
    """

    labels: Mapping[str, str]
    colours: Mapping[str, str]
    primary: str
    shown: tuple[str, ...]
    figures: tuple[str, ...]
    remark: str = ""
    curve: str = ""
    axis: str = "accuracy"
    markers: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
