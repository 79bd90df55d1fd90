"""Learned against true distance on new data, best trial of each model."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.style import DASHED, GREY, INK, WIDTH, key, legend, note, panels, plain
from mahalens.report.numbers import number
from mahalens.report.records import RunRecords

TITLE = "Fit on new data"


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Best trial of each model; each dot is a new sample, drawn after training. A model that "
        "measures the distance puts them all on the diagonal. A bend at the right is an output "
        "that saturates, a gap at the left a model whose smallest output is not 0."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when the run holds no such samples."""
    names = (name.split("/") for name in records.plots)
    models = models_in_order(
        parts[1]
        for parts in names
        if len(parts) == 3 and parts[0] == "fit" and f"fit/{parts[1]}/learned" in records.plots
    )
    true = {m: records.plots.get(f"fit/{m}/true", np.zeros(0)).astype(float) for m in models}
    models = [model for model in models if np.isfinite(true[model]).any()]
    if not models:
        return None
    learned = {m: records.plots[f"fit/{m}/learned"].astype(float) for m in models}
    longest = max(float(np.nanmax(true[model])) for model in models)
    # Learned distances may be far too long; past half as much again they would squeeze the rest.
    outputs = np.concatenate([learned[model] for model in models])
    near = outputs[outputs <= 1.5 * longest]
    limit = 1.05 * max(longest, float(near.max()) if near.size else 0.0)

    columns = min(4, len(models))
    figure, axes = panels(
        len(models), columns, min(WIDTH / columns + 0.45, 4.4), sharex=True, sharey=True
    )
    colours = model_colours(models)
    for ax, model in zip(axes, models, strict=True):
        x, y = true[model], learned[model]
        inside = np.isfinite(y) & (y <= limit)
        ax.plot([0, limit], [0, limit], color=INK, ls=DASHED, lw=1.1, zorder=3)
        ax.plot(x[inside], y[inside], ".", ms=5, color=colours[model], mec="none", alpha=0.35)
        if not inside.all():
            note(ax, f"{np.count_nonzero(~inside)} of {len(y)} outside the view", upper=True)
        mse = number(records.row(model, "test_mse").get("best"))
        ax.set_title(f"{plain(model_label(model))}\ntest MSE {mse}", color=colours[model])
        ax.set(xlim=(0, limit), ylim=(0, limit), aspect="equal", xlabel="true distance (spreads)")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[0].set_ylabel("learned distance (spreads)")
    legend(
        figure,
        [
            key("a new sample", marker=".", ls="", color=GREY, ms=7),
            key("learned = true", color=INK, ls=DASHED, lw=1.1),
        ],
    )
    return figure
