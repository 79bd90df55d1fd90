"""What each column of a hybrid run means: labels, units, how to show it. No torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

METRICS: dict[str, Metric] = {
    "test_accuracy": Metric(
        "Test accuracy",
        "Share of the test samples given their class, after the last epoch.",
        unit="%",
        better="high",
    ),
    "gain": Metric(
        "Gain over ReLU",
        "Test accuracy less that of the layer of the same family with ReLU units alone, in the "
        "same trial.",
        unit="points",
        better="high",
    ),
    "area": Metric(
        "Mean accuracy along training",
        "Test accuracy averaged over all epochs from the start on: high where training is fast.",
        unit="%",
        better="high",
    ),
    "train_loss": Metric(
        "Training loss", "Cross-entropy over the batches of the last epoch.", log=True
    ),
    "epochs_to_tenth": Metric(
        "Epochs to a tenth",
        "First epoch with a training loss of at most a tenth of that of guessing, ln C / 10; one "
        "more than there are where there is none.",
        unit="epochs",
        log=True,
    ),
    "fastest_epochs": Metric(
        "Fewest epochs to a tenth",
        "The same at the learning rate of the grid that gets there first, on the training samples "
        "that learning rates are tried on.",
        unit="epochs",
        log=True,
    ),
    "late_gain": Metric(
        "Late gain",
        "Points of test accuracy gained in the last tenth of the epochs.",
        unit="points",
        better=None,
    ),
    "dead": Metric(
        "Dead units",
        "Share of the hidden units that exceed 1e-6 in size on none of the training samples.",
        unit="%",
    ),
    "dead_relu": Metric(
        "Dead ReLU units",
        "Share of the ReLU units that exceed 1e-6 on none of the training samples.",
        unit="%",
    ),
    "flat_abs": Metric(
        "Abs units that do not fold",
        "Share of the Abs units with all training samples on one side of their hyperplane, where "
        "they are linear.",
        unit="%",
        better=None,
    ),
    "abs_weight": Metric(
        "Weight on Abs units",
        "Share of Abs units in what moves the outputs: the spread of each unit's activation times "
        "the size of its weights to the classes.",
        unit="%",
        better=None,
    ),
    "learned_abs": Metric(
        "Learned part of an Abs",
        "Minus the slope for negative numbers that units have learned, on average: 0 is a ReLU, 1 "
        "an Abs, -1 a linear unit. They start at 0.5.",
        better=None,
    ),
    "rate": Metric(
        "Learning rate",
        "The one that did best on held-out training samples.",
        better=None,
        log=True,
    ),
    "seconds": Metric("Time", "Of the last training of a trial, without the choice of rate.", "s"),
}
