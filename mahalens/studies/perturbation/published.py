"""The published figures of arXiv 2411.17932: accuracy on MNIST's training set. Needs no torch."""

from __future__ import annotations

from mahalens.studies.figure import Figure
from mahalens.studies.perturbation.levels import KINDS, TABLE, column

BASELINE: dict[tuple[str, str], Figure] = {
    ("train_accuracy", "abs-bias"): Figure(99.99, std=0.00),
    ("train_accuracy", "relu-bias"): Figure(98.33, std=0.15),
    ("test_accuracy", "abs-bias"): Figure(95.29, std=0.20),
    ("test_accuracy", "relu-bias"): Figure(95.61, std=0.14),
}

# The tables of its appendix, means of 20 runs: by level, Abs and ReLU.
_TABLES: dict[str, dict[float, tuple[float, float]]] = {
    "scale": {
        0.01: (94.76, 75.33),
        0.05: (99.86, 97.33),
        0.1: (99.98, 98.10),
        0.25: (99.98, 98.31),
        0.5: (99.99, 98.33),
        10.0: (99.99, 98.33),
    },
    "clip": {
        0.01: (52.90, 75.93),
        0.05: (60.13, 82.57),
        0.1: (71.05, 87.56),
        0.2: (88.55, 93.84),
        0.3: (96.11, 96.67),
        0.4: (98.70, 97.74),
        0.5: (99.60, 98.14),
        0.75: (99.98, 98.33),
    },
    "offset": {
        -2.0: (11.04, 18.77),
        -1.0: (12.60, 41.68),
        -0.75: (14.79, 55.16),
        -0.5: (21.78, 72.90),
        -0.25: (49.03, 90.24),
        -0.1: (86.25, 96.55),
        -0.05: (95.49, 97.78),
        -0.03: (97.86, 98.13),
        -0.02: (98.95, 98.24),
        -0.01: (99.82, 98.31),
        0.01: (99.81, 98.26),
        0.02: (98.85, 98.14),
        0.03: (97.70, 97.99),
        0.05: (95.00, 97.62),
        0.1: (81.40, 96.31),
        0.25: (23.43, 81.60),
        0.5: (11.14, 32.54),
        0.75: (9.81, 13.94),
        1.0: (9.78, 9.41),
    },
}
_MODELS = ("abs-bias", "relu-bias")


def published_level(model: str, kind: str, level: float) -> float | None:
    """The published accuracy of a network under a perturbation, in per cent.

    >>> published_level("abs-bias", "offset", 0.25), published_level("abs", "offset", 0.25)
    (23.43, None)
    """
    if model not in _MODELS or level not in _TABLES[kind]:
        return None
    return _TABLES[kind][level][_MODELS.index(model)]


def published_levels(model: str, kind: str) -> dict[float, float]:
    """All published accuracies of a network under one kind of perturbation."""
    if model not in _MODELS:
        return {}
    return {level: both[_MODELS.index(model)] for level, both in _TABLES[kind].items()}


def published_reliance(model: str) -> float | None:
    """The index that the published table comes to; the paper itself has none.

    >>> published_reliance("abs-bias"), published_reliance("relu-bias")
    (0.433, -0.349)
    """
    if model not in _MODELS:
        return None
    baseline = BASELINE["train_accuracy", model].mean
    lost = {
        kind: [baseline - _TABLES[kind][level][_MODELS.index(model)] for level in TABLE[kind]]
        for kind in KINDS
    }
    distance, intensity = lost["offset"], [*lost["scale"], *lost["clip"]]
    d, i = (sum(part) / len(part) for part in (distance, intensity))
    return round((d - i) / (d + i), 3)


def published_figure(metric: str, model: str, data: str) -> Figure | None:
    """What the paper gives for a column of a run on MNIST."""
    if data != "mnist":
        return None
    if (metric, model) in BASELINE:
        return BASELINE[metric, model]
    if metric == "reliance":
        index = published_reliance(model)
        return None if index is None else Figure(index)
    for kind, levels in TABLE.items():
        for level in levels:
            if metric == column(kind, level):
                figure = published_level(model, kind, level)
                return None if figure is None else Figure(figure)
    return None
