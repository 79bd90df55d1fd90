"""How runs of the activations study are shown. Needs no torch."""

from __future__ import annotations

from mahalens.studies.activations.models import DISTANCES, INTENSITIES, MODELS, label_of, split
from mahalens.studies.paired.presentation import Presentation

COLOURS = {
    "relu": "#0072B2",
    "abs": "#D55E00",
    "gelu": "#009E73",
    "silu": "#56B4E9",
    "tanh": "#CC79A7",
    "softplus": "#E69F00",
    "leakyrelu": "#000000",
}
"""One of Okabe and Ito's colours for each activation."""
MARKERS = {INTENSITIES: "^", DISTANCES: "v"}
"""Large is strong, small is near."""

PRESENTATION = Presentation(
    labels={model: label_of(model) for model in MODELS},
    colours={model: COLOURS[split(model)[0]] for model in MODELS},
    primary="test_accuracy",
    shown=(
        "test_accuracy",
        "train_accuracy",
        "unused_outputs",
        "flat_outputs",
        "flat_outputs_start",
        "dead_outputs",
        "late_gain",
    ),
    figures=("compared", "forms"),
    remark="A name is an activation: alone, outputs are free; with 2 it also follows the output "
    "layer, which holds outputs to intensities; with 2-Neg these are negated, which holds them to "
    "distances. Trials differ in their starting weights alone.",
    curve="test_accuracy",
    markers={model: MARKERS[split(model)[1]] for model in MODELS if split(model)[1]},
)
