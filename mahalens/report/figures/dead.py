"""Test accuracy of every trial against its dead outputs: do they explain the failure?"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.style import DASHED, INK, key, legend, panels, plain
from mahalens.report.networks import has_relu_outputs, network_style
from mahalens.report.numbers import is_number, number
from mahalens.report.records import RunRecords

TITLE = "Do dead outputs explain the failure?"
_BASE = "relu"


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Each mark is a trial of a network that ends in ReLU. A class whose output is dead cannot "
        "be named, so that each dead output costs about its share of the samples: the dashed line "
        "is the mean of ReLU less that cost. Marks along it fail because outputs died; marks well "
        "below it fail for another reason as well, and low marks at 0 for another reason alone."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no network that ends in ReLU has both numbers in some trial."""
    parts = [part for part in records.parts() if any(_points(part, m) for m in _models(part))]
    models = models_in_order((m for part in parts for m in _models(part)), records.study)
    if not parts:
        return None
    figure, axes = panels(len(parts), 2, 3.7, extra_height=0.8, sharex=True, sharey=True)
    colours = model_colours(models, records.study)
    based, most = False, 10.0
    for ax, part in zip(axes, parts, strict=True):
        for place, model in enumerate(models):
            points = _points(part, model)
            if not points:
                continue
            dead, accuracy = np.array(points, dtype=np.float64).T
            most = max(most, float(dead.max()))
            # Marks of several networks at the same share of dead outputs stand side by side.
            aside = 0.5 * (place - (len(models) - 1) / 2)
            style = {"marker": network_style(model)["marker"], "color": colours[model]}
            ax.plot(dead + aside, accuracy, ls="", ms=6, mec="white", mew=0.5, alpha=0.8, **style)
        based |= _draw_base(ax, part)
        ax.set_title(plain(part.title), loc="left")
        ax.set_xlabel("dead outputs (%)")
        ax.tick_params(labelleft=True)
        told = next((t for model in models if (t := _told(part, model))), "")
        ax.set_title(told, loc="right", fontsize=8.5, fontweight="normal")
    axes[0].set_xlim(-4, min(most * 1.08 + 3, 104))
    axes[0].set_ylim(0, 103)
    axes[0].set_ylabel("test accuracy (%)")
    entries = [
        key(
            plain(model_label(model, records.study)),
            marker=network_style(model)["marker"],
            ls="",
            ms=6,
            color=colours[model],
        )
        for model in models
    ]
    if based:
        entries.append(key("ReLU less the dead classes", color=INK, ls=DASHED, lw=1.1))
    legend(figure, entries, columns=4)
    return figure


def _models(part: RunRecords) -> list[str]:
    return [m for m in models_in_order(part.trials.model, part.study) if has_relu_outputs(m)]


def _points(part: RunRecords, model: str) -> list[tuple[float, float]]:
    dead = part.trials.of(model, "dead_outputs")
    accuracy = part.trials.of(model, "test_accuracy")
    return [(dead[trial], accuracy[trial]) for trial in dead if trial in accuracy]


def _draw_base(ax: Axes, part: RunRecords) -> bool:
    mean = part.row(_BASE, "test_accuracy").get("mean")
    if mean is None or not is_number(mean):
        return False
    ax.plot([0, 100], [mean, 0], color=INK, ls=DASHED, lw=1.1, zorder=1)
    return True


def _told(part: RunRecords, model: str) -> str:
    share = part.row(model, "gap_from_dead").get("mean")
    if share is None or not is_number(share):
        return ""
    name = plain(model_label(model, part.study))
    return f"dead outputs: {number(100 * share, 2)} % of what {name} lacks"
