"""What each column of a perturbation run means: labels, units, how to show it. No torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric
from mahalens.studies.perturbation.levels import KINDS, TABLE, column, percent

_MEANING = {
    "scale": "with all values of the hidden layer multiplied by {level}",
    "clip": "with no value of a hidden unit above its lowest activation plus {level} of its range",
    "offset": "with each hidden unit's lowest activation moved by {level} of its range, its "
    "highest kept, and all values between in proportion",
}
_INDEX = (
    "(D - I) / (D + I), with D the mean accuracy lost under the table's offsets, I under its "
    "scales and clips: 1 for a network that relies on distances only, -1 for one that relies on "
    "intensities only"
)
_MISFIT = "Mean distance from the published accuracies over the nine levels of the table"


def _levels(start: str, said: str, where: str, kinds: tuple[str, ...]) -> dict[str, Metric]:
    found = {}
    for kind in kinds:
        for level in TABLE[kind]:
            amount = percent(kind, level)
            found[f"{start}{column(kind, level)}"] = Metric(
                f"{KINDS[kind]} {amount}{said}",
                f"Accuracy on the {where} {_MEANING[kind].format(level=amount)}.",
                unit="%",
                better=None,
            )
    return found


METRICS: dict[str, Metric] = {
    "train_accuracy": Metric(
        "Training accuracy",
        "Share of the training samples whose class has the largest output, unperturbed.",
        unit="%",
        better="high",
    ),
    "test_accuracy": Metric(
        "Test accuracy", "The same on the test samples.", unit="%", better="high"
    ),
    **_levels("", "", "training samples", tuple(KINDS)),
    "reliance": Metric("Reliance on distance", f"{_INDEX}.", unit="index", better=None),
    "misfit": Metric("Distance from the published table", f"{_MISFIT}.", unit="points"),
    **_levels("test_", ", test data", "test samples", tuple(KINDS)),
    "reliance_test": Metric(
        "Reliance on distance, test data", f"{_INDEX}; on the test samples.", "index", None
    ),
    **_levels(
        "after_",
        ", after the activation",
        "training samples, perturbed after the activation function,",
        ("clip", "offset"),
    ),
    "reliance_after": Metric(
        "Reliance on distance, after the activation",
        f"{_INDEX}; perturbed after the activation function.",
        unit="index",
        better=None,
    ),
    "misfit_after": Metric(
        "Distance from the published table, after the activation",
        f"{_MISFIT}, perturbed after the activation function.",
        unit="points",
    ),
    "late_gain": Metric(
        "Still gaining",
        "Test accuracy gained over the last tenth of the epochs: near 0 once training has "
        "converged.",
        unit="points",
        better=None,
    ),
}
