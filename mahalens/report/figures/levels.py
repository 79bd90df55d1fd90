"""Training accuracy by level of perturbation: scale, clip and offset, a row per part of the run."""

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
from mahalens.report.figures.style import GREY, key, legend, panels, plain
from mahalens.report.networks import network_style
from mahalens.report.records import RunRecords
from mahalens.studies.perturbation.levels import KINDS

TITLE = "What do intensities and distances cost, level by level?"


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "A network that relies on intensities falls in the first two columns, one that relies on "
        "distances in the third, near an offset of 0. A scale of 100 %, a clip of 100 % and an "
        "offset of 0 leave the network as it was. Lines are means over the trials. Offsets up to "
        "5 % are drawn to scale, larger ones on a log scale."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when nothing was perturbed."""
    parts = records.parts()
    models = networks_of(parts)
    if not any(has(part, model, kind) for part in parts for model in models for kind in KINDS):
        return None
    colours = model_colours(models, records.study)
    figure, axes = panels(
        len(parts) * len(KINDS), len(KINDS), 3.0, extra_height=0.6, sharex="col", sharey=True
    )
    published = band = False
    for ax, (part, kind) in zip(axes, ((p, k) for p in parts for k in KINDS), strict=True):
        for model in models:
            if not has(part, model, kind):
                continue
            line = network_style(model)["ls"]
            draw_line(ax, part, model, kind, "train", color=colours[model], ls=line, lw=1.6)
            published |= draw_published(ax, part, model, kind, colours[model])
            band |= part.row(model, "train_accuracy").get("n", 0) > 1
        set_axes(ax, kind)
        ax.set_title(plain(f"{KINDS[kind]}, {part.title.lower()}"), loc="left", fontsize=9.5)
        if kind == "scale":
            ax.set_ylabel("training accuracy (%)")
    entries = [
        key(
            plain(model_label(model, records.study)),
            color=colours[model],
            lw=1.8,
            ls=network_style(model)["ls"],
        )
        for model in models
    ]
    if band:
        entries.append(key("95 % interval of the mean", color=GREY, lw=8, alpha=0.3))
    if published:
        entries.append(key("published mean", mfc="white", **PUBLISHED))
    legend(figure, entries)
    return figure
