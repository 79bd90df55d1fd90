"""Test error and distance error of ellipsoids fitted to data, by rank, beside the rivals."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mahalens.report.catalogue import model_colours, model_label, models_in_order
from mahalens.report.figures.style import key, legend, panels, plain
from mahalens.report.names import family
from mahalens.report.numbers import is_number
from mahalens.report.records import RunRecords

TITLE = "Classification by ellipsoids"
_PANELS = {
    "error_density": "Test error by density (%)",
    "error_distance": "Test error by distance (%)",
    "distance_error": "Distance off from the full one (%)",
}
_FAMILIES = {
    "rank": ("rank R + one spread for the rest", "o"),
    "truncated": ("rank R, rest dropped", "s"),
    "shared": ("basis of R shared by all classes", "^"),
}
_LINES = {"full": "-", "diagonal": "--", "spherical": ":", "qda": "-."}


def caption(records: RunRecords) -> str:
    """What to look for."""
    return (
        "Means over the trials with 95 % intervals. Lines across: models without a rank. Density "
        "weighs distances by the size of the ellipsoid and the share of the class; distance alone "
        "takes the nearest ellipsoid in units of its own spread, and favours large ones."
    )


def draw(records: RunRecords) -> Figure | None:
    """None for runs that fit nothing to data."""
    models = models_in_order(row["model"] for row in records.summary["rows"])
    shown = [
        metric
        for metric in _PANELS
        if any(
            family(m)[0] in _FAMILIES and is_number(records.row(m, metric).get("mean"))
            for m in models
        )
    ]
    if "error_density" not in shown:
        return None
    figure, axes = panels(len(shown), 3, 3.8, sharex=True)
    colours = model_colours(models)
    sizes = sorted({size for m in models if (size := family(m)[1]) and family(m)[0] in _FAMILIES})
    used: dict[str, None] = {}
    for ax, metric in zip(axes, shown, strict=True):
        ax.set_title(_PANELS[metric], loc="left", fontsize=9.5)
        for name in _FAMILIES:
            _draw_family(ax, records, metric, name, models, colours)
        for model in models:
            row = records.row(model, metric)
            single = model in _LINES or family(model)[0] in ("clusters", "mixture")
            if single and is_number(row.get("mean")) and row["mean"] > 0:
                used.setdefault(model, None)
                ax.axhline(100 * row["mean"], color=colours[model], ls=_line(model), lw=1.3)
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.set_ylim(bottom=0)
        ax.set_xlabel("rank R (log scale)")
    entries = [
        key(label, marker=marker, color=colours[next(m for m in models if family(m)[0] == name)])
        for name, (label, marker) in _FAMILIES.items()
        if any(family(m)[0] == name for m in models)
    ]
    entries += [key(plain(model_label(m)), color=colours[m], ls=_line(m), lw=1.3) for m in used]
    legend(figure, entries, columns=4)
    return figure


def _line(model: str) -> Any:
    """How the line of a model without a rank is drawn; shorter dashes for more of its parts."""
    size = family(model)[1] or 1
    return _LINES.get(model) or (0, (12 / size, 4 / size**0.5))


def _draw_family(
    ax: Axes,
    records: RunRecords,
    metric: str,
    name: str,
    models: list[str],
    colours: dict[str, str],
) -> None:
    points = []
    for model in models:
        kind, size = family(model)
        row = records.row(model, metric)
        if kind == name and size and is_number(row.get("mean")):
            low, high = row.get("ci95") or (row["mean"], row["mean"])
            points.append((size, 100 * row["mean"], 100 * low, 100 * high, colours[model]))
    if not points:
        return
    points.sort()
    x, y, low, high, colour = zip(*points, strict=True)
    ax.fill_between(x, low, high, color=colour[0], alpha=0.15, lw=0)
    ax.plot(x, y, color=colour[0], marker=_FAMILIES[name][1], ms=5, lw=1.7)
