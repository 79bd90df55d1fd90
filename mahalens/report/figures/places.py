"""Perturbed before and after the activation function: clips and offsets, network by network."""

from __future__ import annotations

from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label
from mahalens.report.figures.perturbed import (
    PUBLISHED,
    draw_line,
    draw_published,
    has,
    networks_of,
    set_axes,
)
from mahalens.report.figures.style import DASHED, GREY, key, legend, panels, plain
from mahalens.report.records import RunRecords

TITLE = "Does it matter where the network is perturbed?"
_KINDS = ("clip", "offset")


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Before the activation function an offset moves the hyperplane of a unit; after it, it "
        "adds a constant to what the outputs sum up. A clip before Abs leaves large negative "
        "values alone. Published means, where there are any, show which of the two the paper did. "
        "Scales are the same in both places."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when nothing was perturbed after an activation function."""
    parts = records.parts()
    shown = [
        (part, model, kind)
        for part in parts
        for model in networks_of([part])
        for kind in _KINDS
        if has(part, model, kind) and has(part, model, kind, "after")
    ]
    if not shown:
        return None
    colours = model_colours((model for _, model, _ in shown), records.study)
    figure, axes = panels(len(shown), 4, 2.9, extra_height=0.6, sharey=True)
    published = False
    for place, (ax, (part, model, kind)) in enumerate(zip(axes, shown, strict=True)):
        draw_line(ax, part, model, kind, "train", color=colours[model], lw=1.6)
        draw_line(ax, part, model, kind, "after", color=GREY, lw=1.4, ls=DASHED)
        published |= draw_published(ax, part, model, kind, colours[model])
        set_axes(ax, kind)
        name = model_label(model, records.study)
        ax.set_title(plain(f"{name}\n{part.title.lower()}"), loc="left", fontsize=9.5)
        if place % 4 == 0:
            ax.set_ylabel("training accuracy (%)")
    entries = [
        key(f"before, {plain(model_label(model, records.study))}", color=colour, lw=1.8)
        for model, colour in colours.items()
    ]
    entries.append(key("after the activation", color=GREY, lw=1.6, ls=DASHED))
    if published:
        entries.append(key("published mean", mfc="white", **PUBLISHED))
    legend(figure, entries)
    return figure
