"""How far each start is ahead of the usual one, epoch by epoch: a row per data set."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray
from scipy import stats

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.style import INK, key, legend, panels, plain
from mahalens.report.records import RunRecords

TITLE = "Who is ahead of Kaiming, and for how long?"
_SIDES = {"abs": "Abs", "relu": "ReLU"}
_USUAL = "kaiming"
_DRAWN = ("lsuv", "sample-point", "class-mean", "whiten", "whiten-90", "cluster-pca")
_BANDED = "cluster-pca"  # the start that the study is about: more bands would hide each other
_STEP = 1.0  # points up to which the axis is linear
_TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)

Floats = NDArray[np.float64]


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Test accuracy of each start minus that of Kaiming with the same activation function, in "
        "the same trial, at the end of every epoch: means over the trials, and for cluster PCA "
        "the 95 % interval. A start that trains faster is above zero at the left; one that ends "
        "better stays there. Log scale beyond ±1 point."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no start can be compared with the usual one."""
    parts = [part for part in records.parts() if any(_leads(part, side) for side in _SIDES)]
    if not parts:
        return None
    sides = [side for side in _SIDES if any(_leads(part, side) for part in parts)]
    figure, axes = panels(len(parts) * len(sides), len(sides), 1.9, sharex=True)
    shown: dict[str, str] = {}
    for place, ax in enumerate(axes):
        part, side = parts[place // len(sides)], sides[place % len(sides)]
        found = _leads(part, side)
        for model in models_in_order(found, records.study):
            start = model.removeprefix(f"{side}-")
            colour = model_colours([model], records.study)[model]
            shown[start] = colour
            _draw_start(ax, *found[model], colour, start == _BANDED)
        ax.axhline(0.0, color=INK, lw=0.9, zorder=2)
        ax.set_title(f"{plain(part.title)}: {_SIDES[side]}", loc="left")
        _set_axis(ax, found)
        if place % len(sides) == 0:
            ax.set_ylabel("points ahead\nof Kaiming")
        if place >= len(axes) - len(sides):
            ax.set_xlabel("epoch")
    axes[0].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes[0].set_xlim(1.0, max(2.0, *(float(ax.dataLim.x1) for ax in axes)))
    names = {start: _name(records, sides, start) for start in _DRAWN if start in shown}
    legend(figure, [key(name, lw=2.0, color=shown[start]) for start, name in names.items()])
    return figure


def _name(records: RunRecords, sides: list[str], start: str) -> str:
    """What a start is called, without the activation function."""
    return plain(model_label(f"{sides[0]}-{start}", records.study).partition(": ")[2])


def _leads(part: RunRecords, side: str) -> dict[str, tuple[Floats, Floats]]:
    """By model, epochs [L] and what each shared trial is ahead there [T, L]."""
    base = part.curves.get(f"{side}-{_USUAL}", {})
    found = {}
    for start in _DRAWN:
        own = part.curves.get(f"{side}-{start}", {})
        shared = [trial for trial in own if trial in base]
        if any(own[trial].step.max() > 0 for trial in shared):
            steps = np.asarray(own[shared[0]].step, dtype=float)
            rows = np.array([own[trial].value - base[trial].value for trial in shared])
            # Before the first epoch all are guessing, and who is ahead is chance.
            trained = steps > 0
            found[f"{side}-{start}"] = steps[trained], rows[:, trained]
    return found


def _draw_start(ax: Axes, steps: Floats, ahead: Floats, colour: str, banded: bool) -> None:
    mean = ahead.mean(0)
    ax.plot(steps, mean, color=colour, lw=2.0 if banded else 1.4, zorder=5 if banded else 4)
    if banded and len(ahead) > 1:
        half = stats.t.ppf(0.975, len(ahead) - 1) * stats.sem(ahead)
        ax.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.18, lw=0, zorder=3)


def _set_axis(ax: Axes, found: dict[str, tuple[Floats, Floats]]) -> None:
    """Room for the means, on a scale that shows tenths of a point and tens of points."""
    ax.set_yscale("symlog", linthresh=_STEP, linscale=1.0)
    ends = [
        float(end)
        for _, ahead in found.values()
        for end in (ahead.mean(0).min(), ahead.mean(0).max())
    ]
    low, high = min([-_STEP, *ends]), max([_STEP, *ends])
    ax.set_ylim(1.5 * low, 1.5 * high)
    ticks = [tick for tick in _TICKS if 1.5 * low <= tick <= 1.5 * high]
    if len(ticks) > 7:
        ticks = [tick for tick in ticks if abs(tick) in (0, 1, 5, 20, 50)]
    ax.set_yticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
