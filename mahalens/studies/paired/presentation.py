"""How a paired study is shown: names, colours, which columns and figures. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

PAIRED = ("init", "heads", "activations", "transfer", "hybrid")
"""The studies of this form."""

# What people call the data sets that come by name.
_TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "iris": "Iris",
    "wine": "Wine",
    "breast-cancer": "Breast cancer",
}


@dataclass(frozen=True)
class Presentation:
    """What a report has to know of a paired study; ``PRESENTATION`` in its ``presentation``.

    Args:
        labels: what each model is called in tables and figures, in the order to show them.
        colours: a colour for each model, of Okabe and Ito's palette or told apart by ``markers``.
        primary: the metric of the first figure, and by which the best trial is chosen.
        shown: the metrics of the table that a reader sees first, the primary one among them.
        figures: modules of ``mahalens.report.figures``, in the order of the page. A module that
            can draw any metric draws the primary one, or the one named after a colon:
            ``"compared:ece"``.
        remark: what a reader must know before comparing figures, in a sentence or two.
        curve: the column of ``curves.csv`` that figures of curves show; none if empty.
        axis: what the primary metric is measured along, when it is no accuracy: ``"linear"``.
        markers: a marker of matplotlib for each model that is not to be drawn as a dot.
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

    def title(self, part: str) -> str:
        """What a data set is called: a file of the user by its own name.

        >>> plain = Presentation(labels={}, colours={}, primary="", shown=(), figures=())
        >>> plain.title("fashion-mnist"), plain.title("My-set")
        ('Fashion-MNIST', 'My-set')
        """
        return self.parts.get(part) or _TITLES.get(part, part)


def presentation_of(study: str) -> Presentation | None:
    """How a paired study is shown; ``None`` for other studies, and for one that does not say.

    >>> presentation_of("gaussian") is None
    True
    """
    if study not in PAIRED:
        return None
    package = f"mahalens.studies.{study}"
    try:
        module = import_module(f"{package}.presentation")
    except ModuleNotFoundError as error:
        if error.name in (package, f"{package}.presentation"):
            return None
        raise
    found: Presentation = module.PRESENTATION
    return found
