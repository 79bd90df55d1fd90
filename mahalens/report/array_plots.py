"""Draws the plots that show arrays of ``plots.safetensors``: levels, grids, ridges, the plane.

Each function draws one class of :mod:`mahalens.studies.plots` and returns None if the run has no
such arrays; :func:`mahalens.report.plots.draw` chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from mahalens.report.records import RunRecords, in_order
from mahalens.report.style import (
    DASHED,
    GREY,
    INK,
    LINES,
    PALETTE,
    PUBLISHED,
    WIDTH,
    Entry,
    Floats,
    key,
    keys,
    label_below,
    legend,
    log_ticks,
    note,
    padded,
    panels,
    plain,
    positive_range,
    set_log_ticks,
)
from mahalens.report.tables import in_sentence, number
from mahalens.studies.plots import Diagonal, Grid, Levels, Plane, Plot, Ridges
from mahalens.studies.study import Model


def chosen(plot: Plot, records: RunRecords) -> list[str]:
    """Return the models of a run that a plot may show, in the order of the study.

    Functions of a plot, such as ``family``, need not answer for models that the study lacks.
    """
    known = records.study.models
    return [
        model
        for model in records.models()
        if not known or model in known or records.study.look(model) != Model(model)
        if plot.models is None or plot.models(model)
    ]


def _array(records: RunRecords, name: str) -> Floats:
    """Return an array as floats; empty if the run has none of that name."""
    return records.plots.get(name, np.zeros(0)).astype(np.float64)


def _models_with(plot: Plot, records: RunRecords, name: str) -> list[str]:
    """Return the models that have an array of that name, which contains ``{model}``."""
    before, _, after = name.partition("{model}")
    names = (n for n in records.plots if n.startswith(before) and n.endswith(after))
    models = [n.removeprefix(before).removesuffix(after) for n in names]
    models = in_order((m for m in models if m and "/" not in m), records.study.models)
    return [model for model in models if plot.models is None or plot.models(model)]


def _title(records: RunRecords, model: str, metric: str, between: str) -> str:
    """Return the label of a model, with a metric of its best trial."""
    row = records.row(model, metric) if metric else None
    label = plain(records.study.look(model).label)
    if row is None or row.best is None:
        return label
    return f"{label}{between}{plain(in_sentence(records.metric(metric).label))} {number(row.best)}"


# --- Levels -----------------------------------------------------------------------------------

_PUBLISHED = "published mean"
_LINEAR = 0.05  # levels of both signs are drawn to scale up to here, others on a log scale
_SMALL: dict[str, Any] = {**PUBLISHED, "ms": 4.2, "mew": 0.8}


def draw_levels(plot: Levels, records: RunRecords) -> Figure | None:
    """Draw lines with bands along the levels of each kind."""
    models = chosen(plot, records) if "{model}" in plot.array else [""]
    rows = [[model] for model in models] if plot.row == "model" else [models]
    cells = [
        (variant, kind, [line for model in row for line in _lines(plot, variant, model, kind)])
        for variant in records.variants()
        for row in rows
        for kind in plot.kinds
    ]
    cells = [cell for cell in cells if cell[2]]
    if not cells:
        return None
    columns = len({kind for _, kind, _ in cells})
    columns = columns * 2 if plot.row == "model" and columns < 3 else columns
    figure, axes = panels(len(cells), columns, 4.0 if len(cells) == 1 else 2.9, sharey=True)
    entries: dict[str, Entry] = {}
    for place, (ax, (variant, kind, lines)) in enumerate(zip(axes, cells, strict=True)):
        for model, what in lines:
            entries |= _draw_level(ax, plot, variant, model, kind, what)
        _set_levels(ax, plot)
        axis = dict(zip(plot.kinds, plot.axes, strict=False)).get(kind, kind)
        ax.set_xlabel(plain(axis))
        name = records.study.look(lines[0][0]).label if plot.row == "model" else axis
        name = name.partition(" (")[0] if len(cells) > 1 else ""
        between = "\n" if plot.row == "model" else ", "
        title = between.join(filter(None, (name[:1].upper() + name[1:], variant.title.lower())))
        ax.set_title(plain(title), loc="left", fontsize=9.5)
        if place % columns == 0:
            ax.set_ylabel(plain(plot.label))
    last = [entries.pop(name) for name in (plot.band, _PUBLISHED) if name in entries]
    legend(figure, [*entries.values(), *last], 5 if models != [""] else 2)
    return figure


def _lines(plot: Levels, records: RunRecords, model: str, kind: str) -> list[tuple[str, str]]:
    """Return which lines of a model have a finite value."""
    names = {what: plot.array.format(model=model, kind=kind, what=what) for what, _ in plot.what}
    return [(model, w) for w, name in names.items() if np.isfinite(_array(records, name)).any()]


def _draw_level(
    ax: Axes, plot: Levels, records: RunRecords, model: str, kind: str, what: str
) -> dict[str, Entry]:
    """Draw one line with its band, and published means beside the first; return the legend."""
    levels = _array(records, plot.levels.format(model=model, kind=kind))
    middle, low, high = _array(records, plot.array.format(model=model, kind=kind, what=what))[
        list(plot.order)
    ]
    if plot.log:  # which has no place for 0
        levels, middle, low, high = (a[middle > 0] for a in (levels, middle, low, high))
    place = [name for name, _ in plot.what].index(what)
    name, look = plot.what[place][1], records.study.look(model)
    colour, line, marker, size = look.colour, LINES[place % len(LINES)], ".", 3.5
    if not model:  # what is measured by colour, else by dashes
        colour, line, marker, size = PALETTE[place % len(PALETTE)], "-", "os^Dv"[place % 5], 5.0
    elif plot.row == "model":
        colour = GREY if place else colour
        name = name if place else f"{name}, {look.label}"
    else:
        line = line if place else look.line
        name = look.label if len(plot.what) == 1 else f"{look.label}, {name}"
    style: dict[str, Any] = {"color": colour, "ls": line, "marker": marker, "ms": size, "lw": 1.7}
    ax.plot(levels, middle, zorder=4, **style)
    entries = {name: key(plain(name), **style)}
    if np.isfinite(low).any():
        ends = (low, high) if plot.limits is None else np.clip((low, high), *plot.limits)
        ax.fill_between(levels, *ends, color=colour, alpha=0.18, lw=0, zorder=2)
        entries[plot.band] = key(plain(plot.band), color=GREY, lw=8, alpha=0.3)
    published = _array(records, plot.published.format(model=model, kind=kind))
    known = np.isfinite(published)
    if not place and known.any():
        ax.plot(levels[known], published[known], mfc=colour, zorder=5, **_SMALL)
        entries[_PUBLISHED] = key(_PUBLISHED, mfc="white", **_SMALL)
    return entries


def _set_levels(ax: Axes, plot: Levels) -> None:
    """Scale and label both axes by what was drawn."""
    levels = np.unique(np.concatenate([np.asarray(line.get_xdata()) for line in ax.lines]))
    ticks, low, high = levels.tolist(), float(levels[0]), float(levels[-1])
    if low < 0 < high:
        ax.set_xscale("symlog", linthresh=_LINEAR, linscale=0.8)
        ax.axvline(0, color="#bbbbbb", lw=0.8, zorder=1)
        near = 2 * _LINEAR
        ticks = sorted({low, high, 0.0, *(tick for tick in (-near, near) if low < tick < high)})
    elif low > 0 and high >= 8 * low:
        ax.set_xscale("log")
        ticks = ticks if len(ticks) <= 8 else log_ticks(low, high, 5)
    elif len(ticks) > 8:
        ticks = [float(tick) for tick in MaxNLocator(5).tick_values(low, high)]
    signed, factor = "+" if low < 0 else "", 100 if plot.percent else 1
    texts = [f"{factor * tick:{signed}g}" if tick else "0" for tick in ticks]
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [text.replace("-", "−") for text in texts])
    if plot.log and (ends := positive_range(ax.dataLim.intervaly)):
        ax.set_yscale("log")
        ax.set_ylim(padded(*ends))
        set_log_ticks(ax.yaxis, *padded(*ends))
    elif plot.limits is not None:
        ax.set_ylim(plot.limits[0], plot.limits[1] + 0.02 * (plot.limits[1] - plot.limits[0]))


# --- Grids ------------------------------------------------------------------------------------

# Upper ends of shares, their colours and names: warm for what hardly happens.
_STEPS = (
    (0.0, "#8c2d04", "never"),
    (0.01, "#e6701d", "below 1 %"),
    (0.05, "#fdc28c", "1 to 5 %"),
    (0.25, "#dbe9f4", "5 to 25 %"),
    (0.75, "#93bfdd", "25 to 75 %"),
    (1.0, "#3a7fb5", "above 75 %"),
)
_MISSING = "#cccccc"


def draw_grid(plot: Grid, records: RunRecords) -> Figure | None:
    """Draw a picture of shares for each model: a row per trial, a column per class."""
    name = f"{{model}}/{plot.array}"
    cells = [
        (variant, model, shares)
        for variant in records.variants()
        for model in _models_with(plot, variant, name)
        if (shares := _array(variant, name.format(model=model))).size
    ]
    if not cells:
        return None
    widest = max(sum(v is each for v, _, _ in cells) for each, _, _ in cells)
    labels = {model: plain(records.study.look(model).label) for _, model, _ in cells}
    longest = max(len(line) for label in labels.values() for line in label.split(", "))
    columns = max(1, min(max(widest, 2), 6, int(WIDTH / (0.5 + 0.075 * longest))))
    trials = max(len(shares) for _, _, shares in cells)
    height = 1.35 + 0.13 * min(max(trials, 4), 20) + 0.13 * len(plot.below)
    figure, axes = panels(len(cells), columns, height)
    seen: set[int] = set()
    for place, (ax, (variant, model, shares)) in enumerate(zip(axes, cells, strict=True)):
        levels = _steps(shares)
        seen |= set(levels.compressed().tolist())
        _draw_shares(ax, levels)
        title = (labels[model].replace(", ", ",\n"), plain(variant.title.lower()))
        ax.set_title("\n".join(filter(None, title)), fontsize=8.5, loc="left")
        ax.set_xlabel("\n".join(["class", *_below(plot, variant, model)]), fontsize=8)
        if place % columns == 0:
            ax.set_ylabel("trial")
    square: dict[str, Any] = {"marker": "s", "ls": "", "ms": 9, "mec": "#999999", "mew": 0.5}
    steps = [(colour, text) for n, (_, colour, text) in enumerate(_STEPS) if n in seen]
    if any(np.isnan(shares).any() for _, _, shares in cells):
        steps.append((_MISSING, "not finite"))
    entries = [key(text, color=colour, **square) for colour, text in steps]
    first = (entries[0][0], plain(f"{plot.label}: {entries[0][1]}"))
    legend(figure, [first, *entries[1:]], columns=7)
    return figure


def _steps(shares: Floats) -> np.ma.MaskedArray[Any, Any]:
    """Return the step that each share belongs to: a step takes what lies below its end."""
    ends = np.array([end for end, _, _ in _STEPS])
    levels = np.searchsorted(ends[1:-1], np.nan_to_num(shares), side="right") + 1
    return np.ma.masked_array(np.where(shares == 0, 0, levels), np.isnan(shares))


def _draw_shares(ax: Axes, levels: np.ma.MaskedArray[Any, Any]) -> None:
    colours = ListedColormap([colour for _, colour, _ in _STEPS]).with_extremes(bad=_MISSING)
    norm = BoundaryNorm(np.arange(len(_STEPS) + 1) - 0.5, colours.N)
    trials, classes = levels.shape
    edge = "white" if classes <= 20 else "none"
    ax.pcolormesh(levels, cmap=colours, norm=norm, edgecolors=edge, linewidth=0.4)
    ax.grid(visible=False)
    ax.set(xlim=(0, classes), ylim=(trials, 0))
    for axis, size in ((ax.xaxis, classes), (ax.yaxis, trials)):
        ticks = np.arange(0, size, max(1, -(-size // 5)))
        axis.set_ticks(ticks + 0.5, [str(tick) for tick in ticks])
        axis.set_tick_params(length=0)


def _below(plot: Grid, records: RunRecords, model: str) -> list[str]:
    """Return the means of some metrics, a line each."""
    lines = []
    for metric, label in plot.below:
        row = records.row(model, metric)
        if row is not None and row.mean is not None:
            unit = records.metric(metric).unit
            lines.append(plain(f"{label}: {number(row.mean)} {unit}".strip()))
    return lines


# --- Ridges -----------------------------------------------------------------------------------

_OVERLAP = 1.9  # the height of a ridge, in rows
_MOST_NODES = 6  # in a row of panels
_MOST_CLASSES = 22  # ridges that can be told apart; thousands would take minutes to draw
_COUNTS = "{model}/latent.counts"


def draw_ridges(plot: Ridges, records: RunRecords) -> Figure | None:
    """Draw the distribution of each class along hidden nodes."""
    cells = [
        (variant, model, node)
        for variant in records.variants()
        for model in _ridge_models(plot, variant)
        for node in range(min(len(_array(variant, f"{model}/latent.nodes")), _MOST_NODES))
    ]
    if not cells:
        return None
    columns = max(node for _, _, node in cells) + 1
    classes = max(_array(v, _COUNTS.format(model=model)).shape[1] for v, model, _ in cells)
    height = 1.0 + 0.16 * min(max(classes, 4), _MOST_CLASSES)
    figure, axes = panels(len(cells), columns, height)
    for ax, (variant, model, node) in zip(axes, cells, strict=True):
        _draw_node(ax, variant, model, node)
        name = plain(variant.study.look(model).label)
        title = f"{name}, node {int(_array(variant, f'{model}/latent.nodes')[node])}"
        title = "\n".join(filter(None, (title, plain(variant.title.lower()))))
        ax.set_title(title, loc="left", fontsize=8.5)
        if node == 0:
            ax.set_ylabel("class")
    for ax in axes:
        ax.set_xlabel("pre-activation", fontsize=8.5)
    legend(
        figure,
        [
            key("samples of a class (same area each)", color=GREY, lw=7, alpha=0.5),
            key("mean of the class", color=INK, marker="|", ls="", ms=9, mew=2),
            key("hyperplane of the node", color=INK, ls=DASHED, lw=1.0),
        ],
    )
    return figure


def remark_on_ridges(plot: Ridges, records: RunRecords) -> str:
    """Say that there are more classes than are drawn."""
    counts = [
        _array(variant, _COUNTS.format(model=model)).shape[1]
        for variant in records.variants()
        for model in _ridge_models(plot, variant)
    ]
    most = max(counts, default=0)
    return f"The first {_MOST_CLASSES} of {most:,} classes are drawn." * (most > _MOST_CLASSES)


def _ridge_models(plot: Ridges, records: RunRecords) -> list[str]:
    """Return the models that the plot prefers, else the first that has samples."""
    every = _models_with(Plot(name="", title="", caption=""), records, _COUNTS)
    every = [model for model in every if _array(records, _COUNTS.format(model=model)).any()]
    preferred = [m for m in every if plot.models is not None and plot.models(m)]
    return preferred or every[:1]


def _draw_node(ax: Axes, records: RunRecords, model: str, node: int) -> None:
    edges = _array(records, f"{model}/latent.edges")[node]
    counts = _array(records, f"{model}/latent.counts")[node][:_MOST_CLASSES]
    means = _array(records, f"{model}/latent.moments")[node][:, 0]
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    heights = _OVERLAP * shares / (float(shares.max()) or 1.0)
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.92, len(counts)))
    for label, (height, colour) in enumerate(zip(heights, colours, strict=True)):
        ridge, front = label - height, 2 + label  # those further down stand in front
        ax.stairs(ridge, edges, baseline=label, fill=True, color=colour, alpha=0.6, zorder=front)
        ax.stairs(ridge, edges, baseline=None, color=colour, lw=0.9, zorder=front + 0.2)
        if edges[0] <= means[label] <= edges[-1]:
            mark: dict[str, Any] = {"color": INK, "ms": 7, "mew": 1.6, "zorder": front + 0.4}
            ax.plot([means[label]], [label - 0.15], "|", **mark)
    if edges[0] < 0 < edges[-1]:
        ax.axvline(0, color=INK, ls=DASHED, lw=1.0, zorder=1.5)
    ax.set_yticks(range(0, len(counts), max(1, -(-len(counts) // 12))))
    ax.set_ylim(len(counts) - 0.6, -_OVERLAP - 0.1)
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.tick_params(axis="y", length=0)


# --- The plane --------------------------------------------------------------------------------

_CONTOURS = (1.0, 2.0, 3.0)
_DATA, _TRUE = "#a9b6bf", "#6b6b6b"


def draw_plane(plot: Plane, records: RunRecords) -> Figure | None:
    """Draw 2-D data with the hyperplanes and distance contours of each model."""
    shared = {name: _array(records, f"plane/{name}") for name in _PLANE}
    models = in_order(_models_with(plot, records, "plane/{model}/weight"), plot.panels)
    if not models or not all(array.size for array in shared.values()):
        return None
    x, y = shared["grid_x"], shared["grid_y"]
    shape = (y[-1] - y[0]) / (x[-1] - x[0])
    few = (shape < 1.2 and len(models) < 5) or len(models) == 4
    columns = min(2 if few else 3, len(models))
    height = float(np.clip((WIDTH / columns - 0.5) * shape + 0.6, 2.4, 5.2))
    figure, axes = panels(len(models), columns, height, sharex=True, sharey=True)
    for ax, model in zip(axes, models, strict=True):
        colour = records.study.look(model).colour
        _draw_model_plane(ax, records, model, shared, colour)
        ax.set_title(_title(records, model, plot.metric, ", "), color=colour)
    label_below(axes, columns, "x₁ (input units)")
    for ax in axes[::columns]:
        ax.set_ylabel("x₂ (input units)")
    with_distance = _models_with(plot, records, "plane/{model}/distance")
    colours = [records.study.look(model).colour for model in with_distance]
    learned = [keys("learned distance 1, 2, 3", colours, lw=2.2)] if colours else []
    marked = [records.study.look(m).colour for m in _models_with(plot, records, _THROUGH)]
    if marked:
        learned.append(keys("hyperplane through a mean", marked, lw=2.2))
    legend(
        figure,
        [
            key("data", marker="o", ls="", color=_DATA, ms=4),
            key("mean", marker="P", ls="", color=INK, mec="white", ms=9),
            key("true distance 1, 2, 3", color=_TRUE, ls=DASHED, lw=1.2),
            *learned,
            key("hyperplane and normal", color=INK, lw=1.1, marker=r"$\uparrow$", ms=9, mew=0.4),
        ],
    )
    return figure


_PLANE = ("mean", "samples", "grid_x", "grid_y", "true")
_THROUGH = "plane/{model}/through"


def _draw_model_plane(
    ax: Axes, records: RunRecords, model: str, plane: dict[str, Floats], colour: str
) -> None:
    x, y = plane["grid_x"], plane["grid_y"]
    low, high = np.array([x[0], y[0]]), np.array([x[-1], y[-1]])
    ax.plot(*plane["samples"].T, ".", ms=4, color=_DATA, mec="none", alpha=0.6, zorder=1)
    _contours(ax, x, y, plane["true"], colors=_TRUE, linestyles=[DASHED], linewidths=1.1, zorder=3)
    learned = _array(records, f"plane/{model}/distance")
    if learned.size:
        _contours(ax, x, y, learned, label=True, colors=colour, linewidths=2.2, zorder=2)
    weight = _array(records, f"plane/{model}/weight").reshape(-1, 2)
    bias = _array(records, f"plane/{model}/bias")
    through = _array(records, _THROUGH.format(model=model)) > 0
    through = through if len(through) == len(weight) else np.zeros(len(weight), dtype=bool)
    flat = outside = 0
    for w, b, marked in zip(weight, bias, through, strict=True):
        if not np.all(np.isfinite([*w, b])) or not np.any(w):
            flat += 1
            continue
        ends = visible_part(w, float(b), low, high)
        if ends is None:
            outside += 1
            continue
        look: dict[str, Any] = {"color": colour, "lw": 2.2} if marked else {"color": INK, "lw": 1.1}
        ax.plot(*ends.T, zorder=4, **look)
        # Mirrored units share a line; the same place on it lets their arrows show as one pair.
        start = ends[0] + 0.86 * (ends[1] - ends[0])
        tip = start + 0.085 * float(np.min(high - low)) * w / np.linalg.norm(w)
        arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, **look}
        ax.annotate("", xy=tuple(tip), xytext=tuple(start), arrowprops=arrow, zorder=5)
    ax.plot(*plane["mean"].reshape(-1, 2).T, "P", ms=9, color=INK, mec="white", mew=1.0, zorder=6)
    remarks = _unreached(learned)
    remarks += [f"{outside} of {len(weight)} hyperplanes outside the view"] if outside else []
    remarks += [f"{flat} of {len(weight)} units without a hyperplane"] if flat else []
    if remarks:
        note(ax, "\n".join(remarks))
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    ax.grid(visible=False)


def _unreached(learned: Floats) -> list[str]:
    """Return a remark where the model never gives one of the distances that contours are for."""
    values = learned[np.isfinite(learned)]
    if not values.size:
        return []
    low, high = float(values.min()), float(values.max())
    missing = [f"{level:g}" for level in _CONTOURS if not low < level < high]
    if not missing:
        return []
    return [f"output between {number(low)} and {number(high)}: no contour {', '.join(missing)}"]


def _contours(ax: Axes, x: Floats, y: Floats, z: Floats, label: bool = False, **style: Any) -> None:
    values = np.ma.masked_invalid(z)
    levels = [
        level for level in _CONTOURS if values.count() and values.min() < level < values.max()
    ]
    if levels:
        lines = ax.contour(x, y, values, levels=levels, **style)
        if label:
            for text in ax.clabel(lines, fmt="%g", fontsize=8.5, inline_spacing=3, zorder=4):
                text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})


def visible_part(w: Floats, b: float, low: Floats, high: Floats) -> Floats | None:
    """Return the ends ``[2, 2]`` of the line ``w·x + b = 0`` inside a box; None if it misses it.

    Ends come in the same order for (w, b) and (-w, -b).

    >>> visible_part(np.array([0.0, 2.0]), -1.0, np.zeros(2), np.ones(2)).tolist()
    [[0.0, 0.5], [1.0, 0.5]]
    """
    centre = (low + high) / 2
    size = math.hypot(*w)
    normal = w / size
    along = np.array([-normal[1], normal[0]])
    if (along[0], along[1]) < (0.0, 0.0):
        along = -along
    distance = (float(w @ centre) + b) / size
    if abs(distance) > math.dist(low, high):
        return None
    foot = centre - distance * normal
    first, last = -np.inf, np.inf
    for axis in range(2):
        if abs(along[axis]) < 1e-12:  # parallel to this side of the box
            if not low[axis] <= foot[axis] <= high[axis]:
                return None
            continue
        ends = sorted(((bound[axis] - foot[axis]) / along[axis]) for bound in (low, high))
        first, last = max(first, ends[0]), min(last, ends[1])
    if first >= last:
        return None
    return np.stack([foot + first * along, foot + last * along])


# --- Learned against true ---------------------------------------------------------------------


def draw_diagonal(plot: Diagonal, records: RunRecords) -> Figure | None:
    """Draw learned against true values; on the diagonal they are equal."""
    names = {f"{plot.group}/{{model}}/{learned}": label for learned, label in plot.learned}
    every = (model for name in names for model in _models_with(plot, records, name))
    models = in_order(every, records.study.models)
    true = {model: _array(records, plot.true.format(model=model)) for model in models}
    models = [model for model in models if np.isfinite(true[model]).any()]
    cells = [(n, m, _array(records, n.format(model=m))) for n in names for m in models]
    truth = np.concatenate([np.zeros(0), *(true[model] for model in models)])
    if not models or (plot.log and positive_range(truth) is None):
        return None
    limits = _views(plot, truth, [values.ravel() for _, _, values in cells])
    rows = len(names) > 1 < len(models)  # a row per array, else all panels side by side
    columns = len(models) if rows else min(4, len(cells))
    height = 2.9 if rows else min(WIDTH / columns + 0.45, 4.2)
    figure, axes = panels(len(cells), columns, height, sharex=True, sharey=True)
    for place, (ax, (name, model, values)) in enumerate(zip(axes, cells, strict=True)):
        _draw_equality(ax, plot, records, model, true[model], values, limits)
        if not rows or place < columns:
            colour = records.study.look(model).colour
            ax.set_title(_title(records, model, plot.metric, "\n"), color=colour)
        if place % columns == 0 or len(models) == 1:
            ax.set_ylabel(plain(names[name]))
        if place + columns >= len(axes):
            ax.set_xlabel(plain(plot.label))
    axes[0].set(xlim=limits[0], ylim=limits[1])
    if plot.log:
        axes[0].set(xscale="log", yscale="log")
    for axis, ends in ((axes[0].xaxis, limits[0]), (axes[0].yaxis, limits[1])):
        if plot.log:
            set_log_ticks(axis, *ends, most=5)
        else:
            axis.set_major_locator(MaxNLocator(5, integer=True))
    entries = [key("a sample", marker=".", ls="", color=GREY, ms=7)]
    if any(values.ndim > 1 for _, _, values in cells):
        entries = [
            key("a trial", marker="o", ls="", color=GREY, alpha=0.5, ms=4),
            key("best trial", marker="o", ls="", color=GREY, mec=INK, ms=7),
        ]
    legend(figure, [*entries, key("learned = true", color=INK, ls=DASHED, lw=1.1)])
    return figure


Limits = tuple[float, float]


def _views(plot: Diagonal, true: Floats, learned: Sequence[Floats]) -> tuple[Limits, Limits]:
    """Return the ends of both axes; values far from the true ones would squeeze the rest."""
    values = np.concatenate([true, *learned])
    values = values[np.isfinite(values)]
    if plot.log:
        low, high = positive_range(true) or (1.0, 1.0)
        near = values[(values >= low / 100) & (values <= high * 100)]
        return (low / 3, high * 3), (float(near.min() / 1.8), float(near.max() * 1.8))
    longest = float(np.nanmax(true))
    limit = 1.05 * float(values[values <= 1.5 * longest].max())
    return (0.0, limit), (0.0, limit)


def _draw_equality(
    ax: Axes,
    plot: Diagonal,
    records: RunRecords,
    model: str,
    true: Floats,
    learned: Floats,
    limits: tuple[Limits, Limits],
) -> None:
    """Draw the values of every trial; those of the best stand out where there are several."""
    x = np.broadcast_to(true, learned.shape) if learned.size else learned
    defined = ~np.isnan(learned)
    inside = defined & (learned >= limits[1][0]) & (learned <= limits[1][1])
    single, many = learned.ndim == 1, learned.shape[-1] > 20
    style: dict[str, Any] = {"marker": "o", "ls": "", "color": records.study.look(model).colour}
    size, alpha = (2.5, 0.35) if single else (4, 0.15 if many else 0.35)
    ax.plot(x[inside], learned[inside], ms=size, mec="none", alpha=alpha, **style)
    best = records.best_trial(model)
    if not single and best is not None and best < len(learned):
        size, edge = (4.5, 0.4) if many else (7.0, 0.9)
        shown = inside[best]
        ax.plot(x[best][shown], learned[best][shown], ms=size, mec=INK, mew=edge, zorder=4, **style)
    if plot.log:
        ax.axline((1.0, 1.0), (10.0, 10.0), color=INK, ls=DASHED, lw=1.1, zorder=1)
    else:
        ax.plot(limits[0], limits[0], color=INK, ls=DASHED, lw=1.1, zorder=3)
        ax.set_aspect("equal")
    outside, undefined = np.count_nonzero(defined & ~inside), np.count_nonzero(~defined)
    remarks = [f"{outside} of {learned.size} outside the view"] if outside else []
    remarks += [f"{undefined} of {learned.size} not defined"] if undefined else []
    if remarks or not learned.size:
        note(ax, "\n".join(remarks) or "no estimate", upper=True)
