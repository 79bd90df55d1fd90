"""How accurate a model is on what it knows, against how well it finds what it does not know."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.metric_axis import PlainScale
from mahalens.report.figures.part_panels import part_panels
from mahalens.report.figures.style import GREY, key, legend, plain
from mahalens.report.figures.trial_rows import measured
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords
from mahalens.report.views import view_of

TITLE = "Does finding the unknown cost accuracy on the known?"
_ACROSS, _UP = "test_accuracy", "auroc"


def caption(records: RunRecords) -> str:
    """What to look for."""
    del records
    return (
        "Each mark is the mean of a model over the trials, lines are 95 % intervals. Up: more of "
        "the unknown is found. Right: more of the known is given its class. The dashed lines go "
        "through softmax; above and right of both is better in both. Detectors that read the "
        "softmax network share its accuracy."
    )


def draw(records: RunRecords) -> Figure | None:
    """None when no model has both numbers."""
    parts = [part for part in records.parts() if _models(part)]
    if not parts:
        return None
    models = models_in_order({m for part in parts for m in _models(part)}, records.study)
    figure, axes = part_panels(parts, 4.2, "test accuracy on known classes (%)")
    colours = model_colours(models, records.study)
    marker = view_of(records.study).marker
    for ax, part in zip(axes, parts, strict=True):
        for model in _models(part):
            _draw_model(ax, part, model, colours[model], marker(model))
        _through_reference(ax, part)
        for metric, limit in ((_ACROSS, ax.set_xlim), (_UP, ax.set_ylim)):
            limit(PlainScale(_shown(part, metric)).limits())
    axes[0].set_ylabel("AUROC, unknown against known")
    legend(
        figure,
        [
            key(
                plain(model_label(model, records.study)),
                marker=marker(model),
                color=colours[model],
                ls="",
                ms=7,
            )
            for model in models
        ],
        columns=4,
    )
    return figure


def _models(part: RunRecords) -> list[str]:
    """The models of a data set that have both numbers."""
    return [
        model
        for model in dict.fromkeys(part.trials.model)
        if all(is_number(part.row(model, metric).get("mean")) for metric in (_ACROSS, _UP))
    ]


def _shown(part: RunRecords, metric: str) -> list[float]:
    """Means and ends of intervals, which may be far wider than what two or three trials show."""
    trials = measured(part, metric)
    rows = [part.row(model, metric) for model in _models(part)]
    ends = [
        end for row in rows for end in (row["mean"], *(row.get("ci95") or ())) if is_number(end)
    ]
    return [min(max(float(end), min(trials)), max(trials)) for end in ends]


def _draw_model(ax: Axes, part: RunRecords, model: str, colour: str, marker: str) -> None:
    across, up = part.row(model, _ACROSS), part.row(model, _UP)
    x, y = float(across["mean"]), float(up["mean"])
    for row, line in ((across, "x"), (up, "y")):
        ends = row.get("ci95") or []
        if len(ends) == 2 and all(is_number(end) for end in ends):
            xs, ys = (ends, [y, y]) if line == "x" else ([x, x], ends)
            ax.plot(xs, ys, "-", color=colour, lw=1.0, alpha=0.6, zorder=3)
    above = 5 if model == "softmax" else 4  # which others lie upon
    ax.plot([x], [y], marker=marker, color=colour, ms=8, mec="white", mew=0.8, ls="", zorder=above)


def _through_reference(ax: Axes, part: RunRecords) -> None:
    if "softmax" in _models(part):
        ax.axvline(float(part.row("softmax", _ACROSS)["mean"]), color=GREY, ls="--", lw=0.8)
        ax.axhline(float(part.row("softmax", _UP)["mean"]), color=GREY, ls="--", lw=0.8)
