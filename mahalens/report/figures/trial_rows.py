"""Trials as dots in rows, a row per model, with mean, interval and published mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from mahalens.report.catalogue import model_colours
from mahalens.report.figures.rows import jitter
from mahalens.report.figures.style import GREY, INK, Entry, key
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords
from mahalens.report.views import view_of

_PUBLISHED: dict[str, Any] = {"ms": 6, "mfc": "white", "mec": INK, "mew": 1.2, "zorder": 5}


class Scale(Protocol):
    """Where values stand along an axis."""

    def at(self, values: ArrayLike) -> NDArray[np.float64]:
        """The places of values."""


def measured(part: RunRecords, metric: str) -> list[float]:
    """The values of all trials of all models."""
    return [v for model in set(part.trials.model) for v in part.trials.of(model, metric).values()]


def published(part: RunRecords, models: Iterable[str], metric: str) -> list[float]:
    """The published means of a metric."""
    given = (part.row(model, metric).get("published") for model in models)
    return [float(mean) for mean in given if mean is not None and is_number(mean)]


def draw_trials(
    ax: Axes, part: RunRecords, metric: str, places: dict[str, float], scale: Scale
) -> bool:
    """Draw one panel; say whether some model has several trials, and so an interval."""
    colours = model_colours(places, part.study)
    marker = view_of(part.study).marker
    several = False
    for model, place in places.items():
        trials = part.trials.of(model, metric)
        row = part.row(model, metric)
        if not trials:
            no_value(ax, place)
        ax.plot(
            scale.at(list(trials.values())),
            [place + jitter(trial, len(trials)) for trial in trials],
            ls="",
            marker=marker(model),
            ms=4.5,
            color=colours[model],
            mec="none",
            alpha=0.65,
            zorder=3,
        )
        if len(trials) > 1 and is_number(row.get("mean")):
            several = True
            ax.plot(scale.at([row["mean"]]), [place], "|", ms=12, mew=2.2, color=INK, zorder=4)
            ends = row.get("ci95") or []
            if len(ends) == 2 and all(is_number(end) for end in ends):
                ax.plot(scale.at(ends), [place, place], "-", lw=1.4, color=INK, zorder=4)
        if is_number(row.get("published")):
            ax.plot(scale.at([row["published"]]), [place], "D", **_PUBLISHED)
    return several


def no_value(ax: Axes, place: float) -> None:
    """Say that there is nothing to draw in a row."""
    within = ax.get_yaxis_transform()
    told = ax.text(0.99, place, "no value", fontsize=8, color=GREY, transform=within)
    told.set(va="center", ha="right")


def entries(trial: str, *, several: bool, published: bool) -> list[Entry]:
    """The legend of such panels."""
    found = [key(trial, marker="o", ls="", color=GREY, alpha=0.7, ms=5)]
    if several:
        found.append(key("mean with 95 % interval", marker="|", color=INK, ms=10, mew=2, lw=1.4))
    if published:
        found.append(key("published mean", marker="D", ls="", **_PUBLISHED))
    return found
