"""What the figures of perturbed networks share: arrays of a network, lines with bands, axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from mahalens.report.catalogue import models_in_order
from mahalens.report.figures.style import INK
from mahalens.report.records import RunRecords
from mahalens.studies.perturbation.levels import KINDS, percent

Floats = NDArray[np.float64]
PUBLISHED: dict[str, Any] = {"marker": "D", "ls": "", "ms": 4.2, "mec": INK, "mew": 0.8}
_TICKS = {
    "scale": (0.01, 0.1, 1.0, 10.0),
    "clip": (0.01, 0.1, 1.0),
    "offset": (-2.0, -0.1, 0.0, 0.1, 1.0),
}
_STUDY = "perturbation"
_NEAR = 0.05  # offsets up to this are drawn to scale, larger ones on a log scale


def networks_of(parts: Iterable[RunRecords]) -> list[str]:
    """The networks that were perturbed, in the order of all tables."""
    given = (name.partition("/") for part in parts for name in part.plots)
    return models_in_order((model for model, _, what in given if what == "offset.train"), _STUDY)


def has(part: RunRecords, model: str, kind: str, what: str = "train") -> bool:
    """Whether a network has a finite mean somewhere."""
    array = part.plots.get(f"{model}/{kind}.{what}")
    return array is not None and bool(np.isfinite(array[0]).any())


def draw_line(
    ax: Axes, part: RunRecords, model: str, kind: str, what: str, band: bool = True, **style: Any
) -> None:
    """The mean by level, and a band for its interval."""
    levels = part.plots[f"{model}/{kind}.levels"].astype(np.float64)
    mean, low, high = part.plots[f"{model}/{kind}.{what}"].astype(np.float64)
    ax.plot(levels, mean, marker=".", ms=3.5, zorder=4, **style)
    if band and np.isfinite(low).any():
        ends = np.clip(low, 0, 100), np.clip(high, 0, 100)
        ax.fill_between(levels, *ends, color=style["color"], alpha=0.18, lw=0, zorder=2)


def draw_published(ax: Axes, part: RunRecords, model: str, kind: str, colour: str) -> bool:
    """The published means; say whether there are any."""
    levels = part.plots[f"{model}/{kind}.levels"]
    published = part.plots[f"{model}/{kind}.published"]
    known = np.isfinite(published)
    if known.any():
        ax.plot(levels[known], published[known], mfc=colour, zorder=5, **PUBLISHED)
    return bool(known.any())


def set_axes(ax: Axes, kind: str) -> None:
    """Levels along, accuracies from 0 to 100 up."""
    if kind == "offset":
        ax.set_xscale("symlog", linthresh=_NEAR, linscale=0.8)
        ax.axvline(0, color="#bbbbbb", lw=0.8, zorder=1)
    else:
        ax.set_xscale("log")
    ticks = _TICKS[kind]
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [percent(kind, level).removesuffix(" %") for level in ticks])
    ax.set_ylim(0, 102)
    ax.set_xlabel(f"{KINDS[kind].lower()} (%)")
