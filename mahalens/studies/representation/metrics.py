"""What each column of a representation run means: labels, units, how to show it. No torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

ACTIVE = 1e-6
"""A unit is active on an input if its activation is larger than this in size (source 003)."""

_RARE = (
    "Share of the {layer} units whose activation after the last activation function exceeds 1e-6 "
    "in size on {bound} of the {data} inputs."
)


def _activity() -> dict[str, Metric]:
    found = {}
    bounds = {"dead": "none", "rare1": "fewer than 1 %", "rare5": "fewer than 5 %"}
    names = {"dead": "Dead", "rare1": "Rarely active (< 1 %)", "rare5": "Rarely active (< 5 %)"}
    for data, ending in (("training", ""), ("test", "_test")):
        for layer, place in (("output", "outputs"), ("hidden", "hidden")):
            for kind, bound in bounds.items():
                where = f"{layer} units" + (", test data" if ending else "")
                found[f"{kind}_{place}{ending}"] = Metric(
                    f"{names[kind]} {where}",
                    _RARE.format(layer=layer, bound=bound, data=data),
                    unit="%",
                )
    return found


METRICS: dict[str, Metric] = {
    "test_accuracy": Metric(
        "Test accuracy",
        "Share of the test samples whose class has the largest output, after the last epoch.",
        unit="%",
        better="high",
    ),
    "train_accuracy": Metric(
        "Training accuracy", "The same on the training samples.", unit="%", better="high"
    ),
    "train_loss": Metric(
        "Training loss", "Cross-entropy on the training samples, before the last update.", log=True
    ),
    "epochs_to_converge": Metric(
        "Epochs to convergence",
        "First measured epoch from which on the test accuracy stays within 1 point of its last "
        "value.",
        unit="epochs",
        better="low",
        log=True,
    ),
    "late_gain": Metric(
        "Still gaining",
        "Test accuracy gained over the last tenth of the epochs: near 0 once training has "
        "converged.",
        unit="points",
        better=None,
    ),
    **_activity(),
    "dead_outputs_start": Metric(
        "Dead output units before training",
        "Share of the output units that are active on none of the training inputs with the "
        "starting weights.",
        unit="%",
    ),
    "silent_inputs": Metric(
        "Inputs without an active output",
        "Share of the test samples for which no output unit is active: their class is a guess.",
        unit="%",
    ),
    "own_centre": Metric(
        "Hyperplane to own class centre",
        "|output c at the centre of class c| before the last activation function, in spreads of "
        "that output over the training data, averaged over the classes c; the centre is the mean "
        "of the class's hidden activations. For a linear output, the distance of the hyperplane.",
        unit="spreads",
        better=None,
    ),
    "other_centre": Metric(
        "Hyperplane to other class centres",
        "The same for the centres of all other classes.",
        unit="spreads",
        better=None,
    ),
    "centre_ratio": Metric(
        "Own over other centres",
        "The first over the second: below 1 the output measures distance from its own class, "
        "above 1 from the others (intensity).",
        unit="ratio",
        better=None,
        log=True,
    ),
    "gap_from_dead": Metric(
        "Gap explained by dead outputs",
        "For models with ReLU outputs: accuracy that the baseline of the same trial has on the "
        "classes whose output is dead here, as a share of what this model lacks.",
        unit="share",
        better=None,
    ),
}
