"""Histograms, prototypes, whitening and perturbation of a layer, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mahalens.auditing.readings import (
    HistogramReading,
    PerturbationReading,
    PrototypeReading,
    WhiteningReading,
)
from mahalens.auditing.record import LayerRecord
from mahalens.report.audit.choice import SHOWN_CLASSES
from mahalens.report.audit.compact import Floats, array, one, short

_RIDGES = 11  # classes of a histogram drawn one by one when there are too many for all
_POINTS = 200  # of a spectrum
_WHITENING = (
    "shrinkage",
    "sphericity",
    "isotropy",
    "precision_error",
    "precision_scale",
    "precision_cosine",
    "input_rank",
    "output_rank",
)
OTHERS = -1
"""Stands for all classes that are not drawn one by one."""


def histograms(layer: LayerRecord, chosen: Sequence[int], most: int) -> dict[str, Any]:
    """By unit: edges, and for each class shown its number, counts and overlap."""
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
        shown = sorted(_nearest_classes(layer, reading.units[place], len(counts)))
        others = np.delete(counts, shown, axis=0).sum(axis=0)
        rest = [[OTHERS, others.astype(int).tolist(), None]]
    rows = [
        [int(label), counts[label].astype(int).tolist(), one(float(overlap[label]))]
        for label in shown
    ]
    return {"edges": short(reading.edges[place]), "rows": rows + rest}


def _nearest_classes(layer: LayerRecord, unit: int, classes: int) -> list[int]:
    planes = layer.hyperplanes
    if planes is None or planes.class_spreads is None:
        return list(range(min(classes, _RIDGES)))
    away = np.abs(array(planes.class_spreads[:, unit]))
    return [int(label) for label in np.argsort(away, kind="stable")[:_RIDGES]]


def prototypes(reading: PrototypeReading | None, chosen: Sequence[int]) -> dict[str, Any] | None:
    """For each chosen unit, in order: samples, positions and values under both readings."""
    if reading is None:
        return None
    mine = np.array(chosen, dtype=np.int64)
    several = bool((reading.near_position > 0).any() or (reading.active_position > 0).any())
    return {
        "near": reading.near_sample[mine].tolist(),
        "near_value": short(array(reading.near_distance)[mine]),
        "near_position": reading.near_position[mine].tolist() if several else None,
        "active": reading.active_sample[mine].tolist(),
        "active_value": short(array(reading.active_value)[mine]),
        "active_position": reading.active_position[mine].tolist() if several else None,
    }


def whitening(reading: WhiteningReading | None) -> dict[str, Any] | None:
    """The numbers, and the spectra at no more than some 200 places."""
    if reading is None:
        return None
    return {
        "rows": reading.rows,
        **{name: one(getattr(reading, name)) for name in _WHITENING},
        "spectrum": _spectrum(array(reading.spectrum)),
        "recovered": _spectrum(array(reading.recovered)),
        "output": _spectrum(array(reading.output_spectrum)),
        "unseen": int(np.isinf(array(reading.recovered)).sum()),
    }


def _spectrum(values: Floats) -> list[list[float]]:
    """Pairs of place (from 1) and eigenvalue; those that a logarithm cannot show are left out."""
    places = np.unique(np.linspace(0, max(len(values) - 1, 0), min(len(values), _POINTS)).round())
    kept = [int(p) for p in places if np.isfinite(values[int(p)]) and values[int(p)] > 0]
    return [[place + 1, value] for place, value in zip(kept, short(values[kept]), strict=True)]


def perturbation(reading: PerturbationReading | None) -> dict[str, Any] | None:
    """Accuracy by level, as curves of [level, accuracy] in rising order."""
    if reading is None:
        return None
    curves = {
        name: sorted([float(level), one(accuracy)] for level, accuracy in levels.items())
        for name, levels in (
            ("scale", reading.scale),
            ("clip", reading.clip),
            ("offset", reading.offset),
        )
    }
    return {"baseline": one(reading.baseline), "index": one(reading.index), **curves}
