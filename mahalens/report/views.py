"""What tells the report of one study from that of another: all of it is data, kept here.

Studies come in three kinds. Those of distance measures (gaussian, ellipsoids) have one set of
results; those of the networks of source 003 have one for each kind of pixels; paired studies have
one for each data set and say themselves how they are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mahalens.report.names import ORDER, distance_colour, distance_label
from mahalens.report.networks import network_colour, network_label, network_style
from mahalens.studies.paired import presentation
from mahalens.studies.paired.presentation import Presentation
from mahalens.studies.representation.models import MODELS as NETWORKS


@dataclass(frozen=True)
class Parts:
    """The parts of a run, in each of which every model was trained again.

    Args:
        by: what tells them apart: a column of ``trials.csv`` and a key of groups.
        title: what a part is called at the head of a table, from its name in the records.
        phrase: the same in the middle of a sentence.
        short: the same in a word, where what it is about is plain.
        table: which table shows its results.
        model: what one of the models is.
        protocol: what a run is called of which nothing was scaled down.
    """

    by: str
    title: Callable[[str], str]
    phrase: Callable[[str], str]
    short: Callable[[str], str]
    table: Literal["overview", "levels", "shown"]
    model: str = "model"
    protocol: str = "Published protocol"

    @property
    def of_data(self) -> bool:
        """Whether each part is a data set of its own, as in paired studies."""
        return self.by == "data"


@dataclass(frozen=True)
class View:
    """How one study is shown, and what its run folders hold beyond what all do.

    Args:
        order: models in the order of tables and figures; others come after them.
        label: what a model is called.
        colour: its colour; ``None`` for one that has none of its own.
        marker: how one of its trials is drawn.
        primary: metrics by which the best trial is chosen, the first that there is.
        remark: what to know before comparing with published figures.
        figures: modules of ``mahalens.report.figures``, in the order of the page.
        needed: records that must be there.
        curve: columns of ``curves.csv``, along which and what; ``None`` if none is read.
        parts: the parts of a run, where it has some.
        shown: metrics of the table ``"shown"``.
        linear: whether the primary metric stands on a linear axis, though it is a percentage.
    """

    order: tuple[str, ...] = ORDER
    label: Callable[[str], str] = distance_label
    colour: Callable[[str], str | None] = distance_colour
    marker: Callable[[str], str] = lambda _model: "o"
    primary: tuple[str, ...] = ()
    remark: str = ""
    figures: tuple[str, ...] = ("metrics",)
    needed: tuple[str, ...] = ()
    curve: tuple[str, str] | None = ("epoch", "train_mse")
    parts: Parts | None = None
    shown: tuple[str, ...] = ()
    linear: bool = False


def _networks(
    table: Literal["overview", "levels"],
    *,
    primary: str,
    remark: str,
    figures: tuple[str, ...],
    needed: tuple[str, ...],
) -> View:
    """The view of a study of the networks of source 003."""
    return View(
        order=tuple(NETWORKS),
        label=network_label,
        colour=network_colour,
        marker=lambda model: str(network_style(model)["marker"]),
        primary=(primary,),
        remark=f"The published figures are those of all of MNIST. {remark}",
        figures=figures,
        needed=needed,
        curve=("epoch", "test_accuracy"),
        parts=Parts(
            by="pixels",
            title=lambda part: f"{part.capitalize()} pixels",
            phrase=lambda part: f"{part} pixels",
            short=str.capitalize,
            table=table,
            model="network",
        ),
    )


_VIEWS = {
    "gaussian": View(
        primary=("train_mse",),
        remark="The published figures belong to another random draw of the Gaussian: compare "
        "patterns and ranges, not digits.",
        figures=("hyperplanes", "loss", "metrics", "eigenvalues", "fit"),
        needed=("gaussian.json", "curves.csv", "plots.safetensors"),
    ),
    "ellipsoids": View(
        primary=("final_error", "error_density"),
        remark="Trials differ in the point that is sought and in where the search begins (with "
        "data: in the samples fitted to); all methods share them, and the ellipsoids.",
        figures=("convergence", "ranks", "classification", "metrics"),
        curve=("step", "error"),
    ),
    "representation": _networks(
        "overview",
        primary="test_accuracy",
        remark="Source 003 says that its images were normalised; the code it published ran on raw "
        "ones.",
        figures=("accuracy", "learning", "outputs", "dead", "centres", "latent"),
        needed=("curves.csv", "plots.safetensors"),
    ),
    "perturbation": _networks(
        "levels",
        primary="train_accuracy",
        remark="The paper perturbs the hidden layer before its activation function; what the same "
        "does after it is measured beside it.",
        figures=("levels", "places"),
        needed=("plots.safetensors",),
    ),
}
_UNSAID = Presentation(
    labels={}, colours={}, primary="", shown=(), figures=("compared", "differences")
)


def view_of(study: str) -> View:
    """How a study is shown; one that nobody knows has a table and a figure of all metrics.

    >>> view_of("representation").label("relu2-neg"), view_of("hybrid").parts.by
    ('ReLU2-Neg', 'data')
    """
    if study in presentation.PAIRED:
        return _paired(presentation.presentation_of(study) or _UNSAID)
    return _VIEWS.get(study, View())


def every_figure() -> set[str]:
    """The figures that some study has."""
    studies = (*_VIEWS, *presentation.PAIRED)
    return {figure for study in studies for figure in view_of(study).figures}


def _paired(told: Presentation) -> View:
    return View(
        order=tuple(told.labels),
        label=lambda model: told.labels.get(model, model),
        colour=told.colours.get,
        marker=lambda model: told.markers.get(model, "o"),
        primary=(told.primary,) if told.primary else (),
        remark=told.remark,
        figures=told.figures,
        curve=("epoch", told.curve) if told.curve else None,
        parts=Parts(
            by="data",
            title=told.title,
            phrase=told.title,
            short=told.title,
            table="shown",
            protocol="Full protocol",
        ),
        shown=told.shown,
        linear=told.axis == "linear",
    )
