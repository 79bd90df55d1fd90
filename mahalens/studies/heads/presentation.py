"""How the heads study is shown. No torch."""

from __future__ import annotations

from mahalens.studies.paired.presentation import Presentation

LABELS = {
    "softmax": "Softmax",
    "energy": "Energy",
    "knn": "Nearest neighbours",
    "mahalanobis": "Mahalanobis",
    "relative-mahalanobis": "Relative Mahalanobis",
    "ensemble": "5 networks",
    "duq": "DUQ-like",
    "fitted": "Distance head, fitted to softmax",
    "distance": "Distance head, trained",
    "refitted": "Distance head, trained and refitted",
    "layered": "Distance heads, all layers",
}

# Okabe and Ito's palette: rivals on the softmax network share one colour.
_COLOURS = {
    "softmax": "#000000",
    "energy": "#8a8a8a",
    "knn": "#8a8a8a",
    "mahalanobis": "#8a8a8a",
    "relative-mahalanobis": "#8a8a8a",
    "ensemble": "#56b4e9",
    "duq": "#009e73",
    "fitted": "#e69f00",
    "distance": "#d55e00",
    "refitted": "#d55e00",
    "layered": "#cc79a7",
}
_MARKERS = {
    "energy": "s",
    "knn": "^",
    "mahalanobis": "D",
    "relative-mahalanobis": "v",
    "ensemble": "P",
    "duq": "X",
    "refitted": "D",
    "layered": "s",
}

PRESENTATION = Presentation(
    labels=LABELS,
    colours=_COLOURS,
    markers=_MARKERS,
    primary="auroc",
    axis="linear",
    shown=(
        "auroc",
        "test_accuracy",
        "missed_at_95",
        "rejected_unknown",
        "ece",
        "ece_calibrated",
    ),
    figures=("compared", "known_unknown", "compared:ece_calibrated"),
    remark=(
        "Known is what networks were trained on. On Fashion-MNIST the unknown is MNIST and the "
        "other way round; on other sets it is some of the classes, other ones in every trial. "
        "Energy, nearest neighbours and the two Mahalanobis detectors read the softmax network, so "
        "that its accuracy and calibration are theirs."
    ),
)
