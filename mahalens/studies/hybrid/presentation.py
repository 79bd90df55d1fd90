"""How runs of the hybrid study are shown. Needs no torch."""

from __future__ import annotations

from mahalens.studies.hybrid.mixtures import MIXTURES, NARROW, Mixture
from mahalens.studies.paired.presentation import Presentation

RELU_END, MIDDLE, ABS_END = (0x00, 0x72, 0xB2), (0x94, 0x67, 0xA8), (0xD5, 0x5E, 0x00)
"""Okabe and Ito's blue for ReLU and vermilion for Abs, as everywhere, and what lies between."""
_LEARNED, _DOUBLE = "#009E73", "#000000"
_PARTS = {0.125: "1/8", 0.25: "1/4", 0.5: "1/2", 0.75: "3/4", 0.875: "7/8"}


def _label(mixture: Mixture) -> str:
    if mixture.times > 1:
        return "Narrow ReLU, twice the units"
    if mixture.share is None:
        said = "learned"
    else:
        parts = {0.0: "ReLU", 1.0: "Abs"}
        said = parts.get(mixture.share) or f"{_PARTS[mixture.share]} Abs"
    return f"Narrow, {said}" if mixture.family == NARROW else said[:1].upper() + said[1:]


def _colour(mixture: Mixture) -> str:
    """Between the ends by the share of Abs units."""
    if mixture.times > 1:
        return _DOUBLE
    if mixture.share is None:
        return _LEARNED
    low, high = (RELU_END, MIDDLE) if mixture.share < 0.5 else (MIDDLE, ABS_END)
    along = 2 * mixture.share - (mixture.share >= 0.5)
    mixed = (round(a + along * (b - a)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02X}" for part in mixed)


PRESENTATION = Presentation(
    labels={name: _label(mixture) for name, mixture in MIXTURES.items()},
    colours={name: _colour(mixture) for name, mixture in MIXTURES.items()},
    markers={name: "s" for name, mixture in MIXTURES.items() if mixture.family == NARROW},
    primary="test_accuracy",
    shown=(
        "test_accuracy",
        "gain",
        "train_loss",
        "fastest_epochs",
        "dead",
        "abs_weight",
        "rate",
    ),
    figures=("shares", "compared", "progress"),
    remark="Trial i of all models has the same samples and order of batches, and all models of one "
    "width start from the same weights. Every trial chose its learning rate by held-out training "
    "samples.",
    curve="test_accuracy",
)
