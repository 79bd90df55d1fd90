"""The plots a study may ask for, as values; :mod:`mahalens.report.plots` draws them.

Every plot says which question it answers (``title``) and what to look for (``caption``), so that
the report knows no study. ``name`` is its file in ``figures/``. A plot for which a run has no
numbers is left out. Legends say what the marks are; captions need not.

===================  ===============================================================================
from the trials      :class:`Dots`, :class:`AllMetrics`, :class:`Scatter`
from their means     :class:`Against`, :class:`Spans`, :class:`Differences`
along training       :class:`Curves`
from arrays          :class:`Levels`, :class:`Grid`, :class:`Ridges`, :class:`Plane`,
                     :class:`Diagonal`
===================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure of a page. ``models`` chooses the models that are drawn; by default all are."""

    name: str
    title: str
    caption: str
    models: Callable[[str], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Dots(Plot):
    """One metric of every trial: a row per model, a panel per variant, the mean and interval.

    Published means are marked. ``family`` puts a gap between rows of different families.
    """

    name: str = "compared"
    caption: str = (
        "All models share their trials: two whose clouds overlap can still differ in every trial, "
        "which the paired tests see."
    )
    metric: str
    family: Callable[[str], str] | None = None


@dataclass(frozen=True, kw_only=True)
class AllMetrics(Plot):
    """Every metric as a small panel: each trial a dot, the mean, its interval, the published."""


@dataclass(frozen=True, kw_only=True)
class Curves(Plot):
    """One column of ``curves.csv`` along training.

    ``panel`` says what has a panel of its own besides each variant: every model, a function of the
    model, or nothing. ``draw`` is every trial, or the median of the trials with their quartiles.
    ``than`` maps a model to another whose curve is subtracted, trial by trial; the mean difference
    is then drawn with its 95 % interval.
    """

    caption: str = "A line that still moves at the right edge has not converged."
    column: str
    panel: Literal["", "model"] | Callable[[str], str] = ""
    draw: Literal["trials", "median"] = "median"
    than: Callable[[str], str | None] | None = None
    log: bool = False
    line: Callable[[str], str] | None = None
    """What the legend calls a model; those of one name, in different panels, share an entry."""
    band: Callable[[str], bool] | None = None
    """Which models have a band, where many would hide each other; by default all."""
    metric: str = ""
    """The metric whose published mean is drawn as a level; by default that of the column's name."""
    label: str = ""
    """What is drawn, beside the axis; by default the metric of the column's name."""


@dataclass(frozen=True, kw_only=True)
class Differences(Plot):
    """Paired differences of every tested pair in one metric, with intervals, by variant."""

    name: str = "differences"
    caption: str = (
        "Mean over the trials of the first model minus the second, with its 95 % interval. "
        "Filled: significant after Holm's correction over the pairs of the data set."
    )
    metric: str


@dataclass(frozen=True, kw_only=True)
class Scatter(Plot):
    """Two metrics against each other, every trial a dot; a panel per variant.

    ``average`` draws the mean of each model with both intervals instead.
    """

    x: str
    y: str
    average: bool = False
    reference: str = ""
    """A model whose means have a dashed line across and one up."""
    loss: str = ""
    """A model whose mean of ``y`` falls to 0 as ``x``, in per cent, grows to 100: a dashed line."""
    loss_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Spans(Plot):
    """The means of two metrics of each model, joined by a bar: a row per model.

    The bar shows which of the two is smaller; it is grey if the 95 % interval of their ``ratio``,
    a third metric, holds 1. A panel per variant.
    """

    first: str
    second: str
    ratio: str = ""
    family: Callable[[str], str] | None = None
    label: str = ""
    """What is measured, below the axis; by default the label of ``first``."""
    words: tuple[str, str, str] = ("first smaller", "second smaller", "no clear difference")
    """What the legend says of bars."""


@dataclass(frozen=True, kw_only=True)
class Against(Plot):
    """Metrics against a number that belongs to the model, such as a rank or a share of units.

    ``at`` gives that number; models without one are drawn as level lines. Models of one ``line``
    are joined. One row of panels per metric, one column per variant.
    """

    metrics: tuple[str, ...]
    at: Callable[[str], float | None]
    line: Callable[[str], str]
    label: str
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Levels(Plot):
    """Arrays ``[3, L]`` (mean, low and high) along ``L`` levels, with published means ``[L]``.

    One column of panels per kind, one row per variant (``row="variant"``) or per model
    (``row="model"``); the values of ``what`` are lines of different style. Names of arrays follow
    those of the variant in ``plots.safetensors``.
    """

    kinds: tuple[str, ...]
    what: tuple[tuple[str, str], ...]
    """Names and labels of the lines."""
    row: Literal["variant", "model"] = "variant"
    axes: tuple[str, ...] = ()
    """Labels of the horizontal axes, one for each kind."""
    array: str = "{model}/{kind}.{what}"
    """The names of arrays; without ``{model}``, each of ``what`` has a colour of its own."""
    levels: str = "{model}/{kind}.levels"
    published: str = "{model}/{kind}.published"
    order: tuple[int, int, int] = (0, 1, 2)
    """Which rows of an array are the line and the lower and upper end of its band."""
    label: str = ""
    """What is drawn, beside the axis."""
    band: str = "95 % interval of the mean"
    percent: bool = False
    """Whether levels, which are fractions, are written as percentages."""
    limits: tuple[float, float] | None = None
    """The ends of the vertical axis."""
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid(Plot):
    """An array ``[T, C]`` of every model as a picture: a row per trial, a column per class.

    Its entries are shares, from 0 to 1; ``below`` are metrics whose means are written below.
    """

    array: str
    label: str
    below: tuple[tuple[str, str], ...] = ()
    """Names of metrics and what they are called there."""


@dataclass(frozen=True, kw_only=True)
class Ridges(Plot):
    """The classes along some hidden nodes (arrays ``latent.*``): one ridge per class.

    ``models`` says which are preferred: a run without any of them shows its first.
    """


@dataclass(frozen=True, kw_only=True)
class Plane(Plot):
    """Arrays ``plane/*``: 2-D data, the hyperplane of each unit, learned and true distances.

    ``plane/mean`` is one mean ``[2]`` or several ``[K, 2]``, with true distances to the nearest.
    Models without ``plane/{model}/distance`` have no learned contours. ``plane/{model}/through``
    ``[H]`` marks hyperplanes that pass through a mean.
    """

    panels: tuple[str, ...] = ()
    """Models that come first, in this order; the others follow in that of the study."""

    metric: str = ""
    """A metric of the best trial, written above each panel."""


@dataclass(frozen=True, kw_only=True)
class Diagonal(Plot):
    """Learned against true values: arrays ``{group}/{model}/{learned}`` against ``{true}``.

    ``true`` may contain ``{model}``. One row of panels per array of ``learned``. Arrays ``[T, N]``
    have a row per trial, of which the best stands out; arrays ``[N]`` are those of the best.
    """

    group: str
    true: str
    learned: tuple[tuple[str, str], ...]
    """Names of arrays and labels of their panels."""
    log: bool = False
    label: str = "true value"
    """What the true values are, below the axis."""
    metric: str = ""
    """A metric of the best trial, written above each panel."""
