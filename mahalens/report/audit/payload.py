"""The one object that the page's script draws from, cut to what a browser takes with ease.

Numbers are rounded to four digits. Of large layers the most telling units are in the page, and of
many classes those that matter to a unit; the record's files have everything.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mahalens.auditing.readings import HistogramReading
from mahalens.auditing.record import AuditRecord, LayerRecord, fields_in
from mahalens.auditing.verdict import Verdict
from mahalens.report.audit.tables import interval_of, look_of, rarest, signed, words_of
from mahalens.report.tables import is_number, number

Floats = NDArray[np.float64]

NUMBERS = 450_000
"""Numbers about units in one page, about 3 MB."""
HISTOGRAM_NUMBERS = 250_000
PICTURES = 3_000_000
"""Bytes of all pictures of samples together, as they stand in the page."""
LEAST_UNITS = 40
"""Units of a layer that are in the page however many layers there are."""
SHOWN_CLASSES = 30
"""Classes up to which the page has every class's mean; beyond, those that matter to a unit."""
OTHERS = -1
"""Stands for all classes of a histogram that are not drawn one by one."""
DEAD, RARE, ALWAYS, SATURATED = 1, 2, 4, 8
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of classes: Okabe and Ito's, which readers with any colour vision tell apart."""
SHAPES = ("circle", "square", "diamond", "up", "down")
"""Shapes cycle out of step with the colours: the first 30 classes all look different."""
_LISTED = 60  # units named by a suggestion
_NEAREST, _OUTERMOST = 8, 3  # classes shown of a unit when there are too many for all
_RIDGES = 11  # classes of a histogram drawn one by one when there are too many for all
_SPECTRUM = 200  # places of a spectrum
_SIDE, _POINTS, _WORDS = 64, 64, 10  # pixels, points of a line, words: the most of a sample


def page_data(record: AuditRecord) -> dict[str, Any]:
    """Return everything the script needs; ``templates/audit/base.js`` says who reads it."""
    costs = [_cost(record, layer) for layer in record.layers]
    sizes = [layer.units_count * cost for layer, cost in zip(record.layers, costs, strict=True)]
    chosen = [
        interesting(layer)[: max(room // cost, LEAST_UNITS)]
        for layer, cost, room in zip(record.layers, costs, shares(sizes, NUMBERS, 0), strict=True)
    ]
    with_histograms = max(1, sum(layer.histograms is not None for layer in record.layers))
    per_unit = min(max(len(record.data.classes), 1), SHOWN_CLASSES) * (record.settings.bins + 1)
    most_histograms = max(1, HISTOGRAM_NUMBERS // with_histograms // per_unit)
    low, _, high = levels(record)
    quantiles = record.settings.quantiles or (0.5,)
    return {
        "classes": list(record.data.classes),
        "counts": list(record.data.counts),
        "labels": record.data.labels,
        "through": record.settings.through,
        "band": [quantiles[low], quantiles[high]],
        "marks": {"colours": COLOURS, "shapes": SHAPES, "most": SHOWN_CLASSES},
        "words": words_of(record),
        "image": _height_and_width(record),
        "samples": samples_of(record, _wanted_samples(record, chosen)),
        "layers": [
            _layer(record, layer, units, most_histograms)
            for layer, units in zip(record.layers, chosen, strict=True)
        ],
    }


def as_script(data: dict[str, Any]) -> str:
    """Return the object as JSON that nothing inside a script element can end; NaN becomes null.

    >>> as_script({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return msgspec.json.encode(data).decode("utf-8").replace("<", "\\u003c")


def _layer(
    record: AuditRecord, layer: LayerRecord, chosen: list[int], most_histograms: int
) -> dict[str, Any]:
    verdict, look = layer.verdict, look_of(layer.verdict.word)
    return {
        "name": layer.name,
        "kind": layer.kind,
        "count": layer.units_count,
        "activation": layer.activation,
        "positions": layer.positions,
        "grid": grid_of(record, layer),
        "verdict": {
            "word": verdict.word,
            "kind": look.kind,
            "symbol": look.symbol,
            **{name: _single(getattr(verdict, name)) for name in ("score", "share", "chance")},
            "reason": verdict.reason,
        },
        "suggestions": [
            {
                "action": s.action,
                "units": list(s.units[:_LISTED]),
                "count": len(s.units),
                "effect": s.effect,
                "exact": s.exact,
            }
            for s in layer.suggestions
        ],
        "facts": _facts(layer),
        "notes": list(layer.notes),
        "rare": rarest(layer)[0],
        "silent": _silent(record, layer),
        "columns": _columns(record, layer, chosen),
        "partners": _partners(layer, chosen),
        "histograms": histograms_of(layer, chosen, most_histograms),
        "prototypes": _prototypes(layer, chosen),
        "whitening": _whitening(layer),
        "perturbation": _perturbation(layer),
    }


# --- Numbers and looks --------------------------------------------------------------------------


def array(values: Tensor) -> Floats:
    """Return a tensor of any number type as float64."""
    import torch

    return values.detach().to("cpu", torch.float64).numpy()


def short(values: Tensor | Floats, digits: int = 4) -> list[Any]:
    """Return numbers rounded to ``digits`` significant digits, in lists as nested as the array.

    NaN and infinities stay; JSON has null for them.

    >>> short(np.array([[0.123456, 98765.4], [1e-7, 0.0]]))
    [[0.1235, 98770.0], [1e-07, 0.0]]
    """
    numbers = array(values) if isinstance(values, Tensor) else np.asarray(values, dtype=np.float64)
    usable = np.isfinite(numbers) & (numbers != 0)
    sizes = np.abs(np.where(usable, numbers, 1.0))
    places = np.clip(digits - 1 - np.floor(np.log10(sizes)), -300, 300)
    # Division by a whole power of ten gives the float that prints shortest.
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.round(numbers / down * up) / up * down
    result: list[Any] = np.where(usable & np.isfinite(rounded), rounded, numbers).tolist()
    return result


def _single(value: float | None) -> float | None:
    rounded: float | None = None if value is None else short(np.array([value]))[0]
    return rounded


def class_mark(label: int, classes: int) -> tuple[str, str]:
    """Return colour and matplotlib's marker of a class; of very many classes all look the same.

    >>> class_mark(6, 10)
    ('#0072B2', 's')
    """
    if classes > len(COLOURS) * len(SHAPES):
        return "#8a8a8a", "o"
    return COLOURS[label % len(COLOURS)], "osD^v"[label % len(SHAPES)]


def levels(record: AuditRecord) -> tuple[int, int, int]:
    """Return the places of the quantiles nearest to 5 %, 50 % and 95 % among those taken."""
    taken = np.array(record.settings.quantiles or (0.5,))
    low, middle, high = (int(np.abs(taken - level).argmin()) for level in (0.05, 0.5, 0.95))
    return low, middle, high


# --- Which units are in the page ----------------------------------------------------------------


def nearness(layer: LayerRecord) -> Floats:
    """Return how many spreads each hyperplane is from its nearest mean [K]; NaN if unknown."""
    planes = layer.hyperplanes
    if planes is None:
        return np.full(layer.units_count, np.nan)
    if planes.class_spreads is None or planes.nearest is None:
        return np.abs(array(planes.mean_spreads))
    spreads, nearest = array(planes.class_spreads), planes.nearest.numpy()
    away = np.abs(spreads[np.clip(nearest, 0, None), np.arange(layer.units_count)])
    return np.where(nearest >= 0, away, np.nan)


def interesting(layer: LayerRecord) -> list[int]:
    """Return all units of a layer, the most telling ones first.

    Taken in turn: units with a histogram, hyperplanes nearest a class, dead units, members of
    pairs, saturated units, hyperplanes furthest from every class, the widest, and by number.
    """
    units, near = layer.units, nearness(layer)
    near = np.where(np.isnan(near), np.inf, near)
    far = np.where(np.isinf(near), -np.inf, near)
    pairs = layer.pairs
    orders: tuple[Sequence[int], ...] = (
        layer.histograms.units if layer.histograms else (),
        np.argsort(near, kind="stable").tolist(),
        units.dead,
        tuple(chain.from_iterable(pairs.duplicate + pairs.mirrored)) if pairs else (),
        units.saturated,
        np.argsort(-far, kind="stable").tolist(),
        np.argsort(-np.nan_to_num(array(units.std), nan=-1.0), kind="stable").tolist(),
        range(layer.units_count),
    )
    in_turn = chain.from_iterable(zip_longest(*orders))
    return list(dict.fromkeys(int(unit) for unit in in_turn if unit is not None))


def shares(wanted: Sequence[int], budget: int, least: int) -> list[int]:
    """Split a budget fairly: who wants less than an equal share leaves the rest to others.

    Everyone gets ``least``, or what it wants if that is less.

    >>> shares([10, 1000, 1000], budget=410, least=5)
    [10, 200, 200]
    """
    parts = [0] * len(wanted)
    rest = budget
    by_size = sorted(range(len(wanted)), key=lambda place: wanted[place])
    for done, place in enumerate(by_size):
        equal = max(rest, 0) // (len(wanted) - done)
        parts[place] = min(wanted[place], max(equal, least))
        rest -= parts[place]
    return parts


def _cost(record: AuditRecord, layer: LayerRecord) -> int:
    """Return how many numbers one unit of a layer takes in the page."""
    per_class = 2 if len(record.data.classes) <= SHOWN_CLASSES else 3
    prototypes = 0 if layer.prototypes is None else layer.prototypes.near_sample.shape[-1]
    return 17 + per_class * min(len(record.data.classes), 14) + 6 * int(prototypes)


# --- The readings of a layer --------------------------------------------------------------------


def _columns(record: AuditRecord, layer: LayerRecord, chosen: Sequence[int]) -> dict[str, Any]:
    """Return what is known of the chosen units, a list per column in their order."""
    units, planes, mine = layer.units, layer.hyperplanes, np.array(chosen, dtype=np.int64)
    places = levels(record)
    quantiles = array(units.quantiles)[mine]
    if quantiles.shape[1] <= max(places):
        quantiles = np.full((len(mine), max(places) + 1), np.nan)
    names = ("active", "mean", "std", "skewness", "least", "greatest")
    flags = (
        (DEAD, set(units.dead)),
        (RARE, set(rarest(layer)[1])),
        (ALWAYS, set(units.always)),
        (SATURATED, set(units.saturated)),
    )
    columns: dict[str, Any] = {
        "unit": [int(unit) for unit in chosen],
        "flags": [sum(bit for bit, group in flags if unit in group) for unit in chosen],
        **{name: short(array(getattr(units, name))[mine]) for name in names},
        **{
            name: short(quantiles[:, place])
            for name, place in zip(("low", "median", "high"), places, strict=True)
        },
        "near": short(nearness(layer)[mine]),
    }
    if planes is not None:
        # 0 for no class, 1 for one or a few, 2 for near most of them at once.
        through = planes.through.long()
        through = through if planes.common is None else through + 2 * planes.common.long()
        columns["through"] = through[mine].tolist()
        for name in ("chance", "positive", "length", "mean_distance"):
            columns[name.removeprefix("mean_")] = short(array(getattr(planes, name))[mine])
        if planes.nearest is not None:
            columns["nearest"] = planes.nearest[mine].tolist()
    return columns | _class_means(layer, mine)


def _class_means(layer: LayerRecord, mine: Any) -> dict[str, Any]:
    """Return means and spreads of z by class [unit][class], and of which classes if not of all."""
    units = layer.units
    if units.class_mean is None or units.class_std is None:
        return {}
    means, spread = (array(of)[:, mine].T for of in (units.class_mean, units.class_std))
    if means.shape[1] <= SHOWN_CLASSES:
        return {"class_mean": short(means), "class_std": short(spread)}
    with np.errstate(divide="ignore", invalid="ignore"):
        nearest = np.argsort(np.abs(means / spread), axis=1, kind="stable")[:, :_NEAREST]
    placed = np.argsort(means, axis=1, kind="stable")  # NaN comes last
    known = np.maximum(np.isfinite(means).sum(axis=1), 1)
    rows = []
    for row, count in enumerate(known):
        outer = [*placed[row, :_OUTERMOST], *placed[row, max(count - _OUTERMOST, 0) : count]]
        rows.append(list(dict.fromkeys(int(c) for c in [*nearest[row], *outer])))
    return {
        "class_index": rows,
        "class_mean": [short(means[row, which]) for row, which in enumerate(rows)],
        "class_std": [short(spread[row, which]) for row, which in enumerate(rows)],
    }


def _partners(layer: LayerRecord, chosen: Sequence[int]) -> dict[str, dict[str, list[int]]]:
    """Return for each kind of pair the partners of those chosen units that have one."""
    mine = set(chosen)
    partners: dict[str, dict[str, list[int]]] = {}
    for kind in fields_in("pairs", "pairs") if layer.pairs is not None else ():
        of = partners.setdefault(kind, {})
        for first, second in getattr(layer.pairs, kind):
            for unit, other in ((first, second), (second, first)):
                if unit in mine and len(listed := of.setdefault(str(unit), [])) < _NEAREST:
                    listed.append(int(other))
    return partners


def _facts(layer: LayerRecord) -> list[tuple[str, str]]:
    """Return what stands beside a layer's verdict: the evidence, and its form in words."""
    facts = {
        "Units": f"{layer.units_count:,} on {layer.inputs:,} inputs",
        "Activation": layer.activation,
        "Rows seen": f"{layer.rows:,}",
        "Rows per sample": f"{layer.positions:,}" if layer.positions != 1 else "",
        "Uses in a forward pass": f"{layer.calls:,}" if layer.calls != 1 else "",
        "Folded in": layer.folded,
        "Feeds": layer.feeds,
    }
    for name, sizes in layer.geometry.items():
        usual = name in ("stride", "dilation", "groups") and all(size == 1 for size in sizes)
        if not usual and any(sizes):
            facts[name.capitalize()] = " × ".join(map(str, sizes))
    return [*evidence(layer.verdict), *((name, text) for name, text in facts.items() if text)]


def evidence(verdict: Verdict) -> list[tuple[str, str]]:
    """Return a verdict's score, and how far it is from chance and from untrained."""
    facts = []
    if verdict.score is not None:
        interval = interval_of(verdict)
        facts.append(("Score", signed(verdict.score) + (f" ({interval})" if interval else "")))
    for name, p in (("chance", verdict.p_chance), ("untrained", verdict.p_baseline)):
        if p is not None and is_number(p):
            text = "p < 0.001" if p < 0.001 else f"p = {number(p, figures=2)}"
            facts.append((f"Different from {name}", text))
    if is_number(verdict.baseline_score):
        facts.append(("Score when untrained", signed(verdict.baseline_score)))
    return facts


def _silent(record: AuditRecord, layer: LayerRecord) -> dict[str, Any] | None:
    """Return the rows that no unit of the layer responds to."""
    reading = layer.units
    if not reading.silent_share:
        return None
    by_class: list[tuple[str, float]] = []
    if reading.silent_by_class is not None:
        named = zip(record.data.classes, short(reading.silent_by_class), strict=False)
        by_class = sorted((pair for pair in named if pair[1] > 0), key=lambda pair: -pair[1])[:5]
    return {
        "share": _single(reading.silent_share),
        "samples": list(reading.silent_samples),
        "by_class": by_class,
    }


def histograms_of(layer: LayerRecord, chosen: Sequence[int], most: int) -> dict[str, Any]:
    """Return by unit: edges, and for each class shown its number, counts and overlap."""
    reading = layer.histograms
    if reading is None:
        return {}
    mine = set(chosen)
    places = [place for place, unit in enumerate(reading.units) if unit in mine][:most]
    return {str(reading.units[place]): _histogram(layer, reading, place) for place in places}


def _histogram(layer: LayerRecord, reading: HistogramReading, place: int) -> dict[str, Any]:
    counts, overlap = array(reading.counts[place]), array(reading.overlap[place])
    shown = list(range(len(counts)))
    rest: list[Any] = []
    if len(counts) > SHOWN_CLASSES:
        planes, shown = layer.hyperplanes, shown[:_RIDGES]
        if planes is not None and planes.class_spreads is not None:
            away = np.abs(array(planes.class_spreads[:, reading.units[place]]))
            shown = sorted(np.argsort(away, kind="stable")[:_RIDGES].tolist())
        others = np.delete(counts, shown, axis=0).sum(axis=0)
        rest = [[OTHERS, others.astype(int).tolist(), None]]
    rows = [
        [label, counts[label].astype(int).tolist(), _single(float(overlap[label]))]
        for label in shown
    ]
    return {"edges": short(reading.edges[place]), "rows": rows + rest}


def _prototypes(layer: LayerRecord, chosen: Sequence[int]) -> dict[str, Any] | None:
    """Return of each chosen unit, in order: samples, positions and values under both readings."""
    reading = layer.prototypes
    if reading is None:
        return None
    mine = np.array(chosen, dtype=np.int64)
    several = bool((reading.near_position > 0).any() or (reading.active_position > 0).any())
    shown: dict[str, Any] = {}
    for kind, value in (("near", reading.near_distance), ("active", reading.active_value)):
        position = getattr(reading, f"{kind}_position")[mine].tolist()
        shown[kind] = getattr(reading, f"{kind}_sample")[mine].tolist()
        shown[f"{kind}_value"] = short(array(value)[mine])
        shown[f"{kind}_position"] = position if several else None
    return shown


def _whitening(layer: LayerRecord) -> dict[str, Any] | None:
    """Return the numbers, and the spectra at no more than some 200 places."""
    reading = layer.whitening
    if reading is None:
        return None
    names = ("shrinkage", *fields_in("layers", "whitening"))
    return {
        "rows": reading.rows,
        **{name: _single(getattr(reading, name)) for name in names},
        "spectrum": _spectrum(array(reading.spectrum)),
        "recovered": _spectrum(array(reading.recovered)),
        "output": _spectrum(array(reading.output_spectrum)),
        "unseen": int(np.isinf(array(reading.recovered)).sum()),
    }


def _spectrum(values: Floats) -> list[list[float]]:
    """Return pairs of place (from 1) and eigenvalue, without those that a logarithm cannot show."""
    last = max(len(values) - 1, 0)
    grid = np.unique(np.linspace(0, last, min(len(values), _SPECTRUM)).round()).astype(int)
    places = [int(p) for p in grid if np.isfinite(values[p]) and values[p] > 0]
    return [[place + 1, value] for place, value in zip(places, short(values[places]), strict=True)]


def _perturbation(layer: LayerRecord) -> dict[str, Any] | None:
    """Return accuracy by level, as curves of [level, accuracy] in rising order."""
    reading = layer.perturbation
    if reading is None:
        return None
    curves = {
        name: sorted([float(level), _single(value)] for level, value in curve.items())
        for name in ("scale", "clip", "offset")
        for curve in [getattr(reading, name)]
    }
    return {"baseline": _single(reading.baseline), "index": _single(reading.index), **curves}


# --- Samples as small pictures ------------------------------------------------------------------


def samples_of(
    record: AuditRecord, wanted: Iterable[int], budget: int = PICTURES
) -> dict[str, Any]:
    """Return what the page shows of the wanted samples, in order, until the budget is spent.

    ``form`` says how: ``picture`` (data addresses), ``line`` (whole numbers 0 to 99), ``words``
    (text) or ``number`` when the record holds no samples; ``shown`` has them by sample number.
    """
    examples, numbers = record.examples, record.example_samples
    if examples is None or numbers is None or not len(numbers):
        return {"form": "number", "shown": {}, "labels": {}, "left_out": 0}
    place = {number: row for row, number in enumerate(numbers.tolist())}
    rows = {sample: place[sample] for sample in dict.fromkeys(wanted) if sample in place}
    form, draw = _drawer(record, examples)
    shown: dict[str, Any] = {}
    spent = 0
    for sample, row in rows.items():
        if spent < budget:
            shown[str(sample)] = draw(row)
            spent += len(str(shown[str(sample)])) + 10
    labels = {}
    if record.example_labels is not None:
        labels = {str(s): int(record.example_labels[row]) for s, row in rows.items()}
    left_out = len(rows) - len(shown)
    return {"form": form, "shown": shown, "labels": labels, "left_out": left_out}


def _wanted_samples(record: AuditRecord, chosen: list[list[int]]) -> Iterator[int]:
    """Yield the samples that prototypes name: of the first unit of every layer, the second, ..."""
    readings = [layer.prototypes for layer in record.layers]
    for turn in range(max(map(len, chosen), default=0)):
        for reading, order in zip(readings, chosen, strict=True):
            if reading is not None and turn < len(order):
                yield from reading.near_sample[order[turn]].tolist()
                yield from reading.active_sample[order[turn]].tolist()


def _drawer(record: AuditRecord, examples: Tensor) -> tuple[str, Callable[[int], Any]]:
    """Return the form of the samples, and a function that draws one of them."""
    shape = record.data.image
    size = int(np.prod(examples.shape[1:]))
    if shape is not None and len(shape) in (2, 3) and size == int(np.prod(shape)):
        low, high = _ends(examples)

        def picture(row: int) -> str:
            pixels = as_pixels(array(examples[row]), shape, low, high)
            return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")

        return "picture", picture
    if not examples.is_floating_point():

        def words(row: int) -> str:
            values = examples[row].flatten()
            more = " …" if len(values) > _WORDS else ""
            return " ".join(str(v) for v in values[:_WORDS].tolist()) + more

        return "words", words
    low, high = _ends(examples)

    def line(row: int) -> list[int]:
        values = array(examples[row]).ravel()
        values = values[np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int)]
        heights: list[int] = np.round(99 * _between(values, low, high)).astype(int).tolist()
        return heights

    return ("line", line) if size > 1 else ("words", lambda row: f"{float(examples[row]):.4g}")


def as_pixels(sample: Floats, shape: tuple[int, ...], low: float, high: float) -> Any:
    """Return a sample between ``low`` (black) and ``high`` (white) as bytes [h, w] or [h, w, 3].

    Large pictures are thinned to at most 64 pixels a side. Pictures of one channel are grey,
    of three in colour, of others the mean over their channels.
    """
    picture = sample.reshape(shape)
    if picture.ndim == 2:
        picture = picture[None]
    step = max(1, -(-max(picture.shape[1:]) // _SIDE))
    picture = picture[:, ::step, ::step]
    if picture.shape[0] not in (1, 3):
        picture = picture.mean(axis=0, keepdims=True)
    pixels = np.round(255 * _between(picture, low, high)).astype(np.uint8)
    return pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return grey [H, W] or colour [H, W, 3] as a PNG file.

    >>> png(np.zeros((2, 3), dtype=np.uint8))[:4]
    b'\\x89PNG'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", compress_level=9)
    return buffer.getvalue()


def _between(values: Floats, low: float, high: float) -> Floats:
    """Return where values lie between two ends, 0 to 1; NaN is 0."""
    level = np.nan_to_num((values - low) / (high - low if high > low else 1.0))
    return np.clip(level, 0, 1)


def _ends(examples: Tensor) -> tuple[float, float]:
    """Return black and white for all pictures alike, which a few stray values do not set."""
    values = array(examples.flatten()[:: max(1, examples.numel() // 1_000_000)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = (float(v) for v in np.quantile(values, (0.005, 0.995)))
    return (low, high) if high > low else (float(values.min()), float(values.max()))


def _height_and_width(record: AuditRecord) -> tuple[int, int] | None:
    image = record.data.image
    return (image[-2], image[-1]) if image is not None and len(image) in (2, 3) else None


def grid_of(record: AuditRecord, layer: LayerRecord) -> tuple[int, int] | None:
    """Return rows and columns of a convolution's positions, where they cover the whole image."""
    size = _height_and_width(record)
    if size is None or layer.kind != "Conv2d" or layer.calls != 1:
        return None
    high, wide = size
    columns = round(math.sqrt(layer.positions * wide / high))
    if columns < 1 or layer.positions % columns:
        return None
    rows = layer.positions // columns
    return (rows, columns) if abs(rows * wide - columns * high) <= max(wide, high) else None
