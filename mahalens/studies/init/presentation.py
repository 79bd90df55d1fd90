"""How the study of starting weights is shown. No torch."""

from __future__ import annotations

from mahalens.studies.init.models import ACTIVATIONS, MODELS, STARTS
from mahalens.studies.paired.presentation import Presentation

# Okabe and Ito's palette, with two darker tones of it for the variants that are left; Abs and ReLU
# are told apart by markers and lines.
_COLOURS = {
    "kaiming": "#000000",
    "lsuv": "#8a8a8a",
    "sample-point": "#56b4e9",
    "class-mean": "#009e73",
    "whiten": "#0072b2",
    "whiten-90": "#cc79a7",
    "cluster-pca": "#d55e00",
    "cluster-pca-3": "#e69f00",
    "cluster-pca-all": "#8a4a00",
    "cluster-pca-mirror": "#a89b00",
}
_MARKERS = {"abs": "o", "relu": "s"}


def _read(model: str) -> tuple[str, str]:
    activation, _, start = model.partition("-")
    return activation, start


def _label(model: str) -> str:
    activation, start = _read(model)
    return f"{ACTIVATIONS[activation]}: {STARTS[start].label}"


PRESENTATION = Presentation(
    labels={model: _label(model) for model in MODELS},
    colours={model: _COLOURS[_read(model)[1]] for model in MODELS},
    markers={model: _MARKERS[_read(model)[0]] for model in MODELS},
    primary="mean_accuracy",
    shown=("mean_accuracy", "test_accuracy", "first_accuracy", "epochs_to_tenth"),
    figures=("differences", "differences:test_accuracy", "head_start", "compared"),
    curve="test_accuracy",
    remark=(
        "Every trial chose its learning rate by held-out training samples, so that each start is "
        "seen at the rate that suits it. Trial i of all models has the same samples and order of "
        "batches."
    ),
)
