"""How runs of the transfer study are shown. Needs no torch."""

from __future__ import annotations

from mahalens.studies.paired.presentation import Presentation
from mahalens.studies.transfer.models import ALL, YARDSTICKS, label_of, split

_BACKBONES = {"relu": "#0072B2", "abs": "#D55E00", "none": "#CC79A7", "kernels": "#009E73"}
_YARDSTICKS = {"boosting": "#E69F00", "knn": "#56B4E9", "dtw": "#000000"}
_HEADS = {"l2": "^", "l2-neg": "v", "l2-code": "<", "l2-neg-code": ">"}
"""Large is far, small is near."""


def _colour(model: str) -> str:
    return _YARDSTICKS.get(model) or _BACKBONES[split(model)[0]]


def _markers() -> dict[str, str]:
    networks = {model: _HEADS.get(split(model)[1]) for model in ALL if model not in YARDSTICKS}
    marked = {model: marker for model, marker in networks.items() if marker}
    return marked | dict.fromkeys(YARDSTICKS, "s")


PRESENTATION = Presentation(
    labels={model: label_of(model) for model in ALL},
    colours={model: _colour(model) for model in ALL},
    primary="test_accuracy",
    shown=(
        "test_accuracy",
        "balanced_accuracy",
        "log_loss",
        "train_accuracy",
        "chosen_rate",
        "chosen_epochs",
    ),
    figures=("compared", "differences", "compared:log_loss"),
    remark="A name is a backbone and its head. L2: the class whose prototype is furthest away "
    "wins; L2-Neg: the nearest one. Every trial splits a set anew, so that spreads show what the "
    "split does, and the samples of trials overlap.",
    curve="test_accuracy",
    markers=_markers(),
    parts={
        "gunpoint": "GunPoint",
        "italy-power-demand": "Italy power demand",
        "arrow-head": "ArrowHead",
        "basic-motions": "BasicMotions",
        "japanese-vowels": "Japanese vowels",
        "osuleaf": "OSU leaf",
        "pickup-gesture": "Pickup gesture",
        "acsf1": "ACSF1",
    },
)
