"""What each column of an activations run means: labels, units, how to show it. No torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric
from mahalens.studies.representation.metrics import METRICS as OF_003

FLAT = 0.01
"""A unit is flat if its spread over the training samples is below this share of the largest one in
its layer. Unlike a size of 1e-6, that means the same for smooth activations."""
RARE = 0.1
"""An output is rarely chosen if it is for fewer samples than this share of those of its class."""

_STATES = {
    "unused": (
        "Outputs never chosen",
        "Share of the output units that are the largest for none of the training samples",
    ),
    "rare": (
        "Outputs rarely chosen",
        f"Share of the output units that are the largest for fewer training samples than "
        f"{RARE:.0%} of those of their class",
    ),
    "flat": (
        "Flat outputs",
        f"Share of the output units whose spread over the training samples is below {FLAT:.0%} of "
        "the largest spread among the outputs: they say nothing",
    ),
    "dead": (
        "Dead outputs by 003",
        "Share of the output units that exceed 1e-6 in size on none of the training samples",
    ),
}


def _outputs() -> dict[str, Metric]:
    found = {}
    for when, ending in (("", ""), (" before training", "_start")):
        for kind, (label, meaning) in _STATES.items():
            starting = ", with the starting weights" if ending else ""
            found[f"{kind}_outputs{ending}"] = Metric(
                f"{label}{when}", f"{meaning}{starting}.", unit="%"
            )
    return found


METRICS: dict[str, Metric] = {
    **{name: OF_003[name] for name in ("test_accuracy", "train_accuracy", "train_loss")},
    **_outputs(),
    "outputs_lost": Metric(
        "Outputs flattened by training",
        "Flat outputs after training less those before: above 0 where training made outputs flat.",
        unit="points",
    ),
    "flat_hidden": Metric(
        "Flat hidden units",
        f"Share of the hidden units whose spread over the training samples is below {FLAT:.0%} of "
        "the largest spread among them.",
        unit="%",
    ),
    "dead_hidden": Metric(
        "Dead hidden units by 003",
        "Share of the hidden units that exceed 1e-6 in size on none of the training samples.",
        unit="%",
    ),
    **{name: OF_003[name] for name in ("epochs_to_converge", "late_gain")},
}
